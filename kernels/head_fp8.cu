/* head_fp8.cu - fp8 copies of a matrix and their transposes.
 *
 * A block takes a tile of 128 x 128 bytes through shared memory. Row r of the tile is 32 words;
 * word w lies at w ^ 4 (r / 16), so that both ways in and out are free of bank conflicts: in,
 * 16 bytes of a row a thread; out, a lane takes rows 16 g .. 16 g + 15 of one word (g = lane %
 * 8), turns 4 x 4 bytes at a time, and eight lanes write 128 contiguous bytes of a column.
 *
 *   head_quantize   reads 2 R C, writes 2 R C bytes: w (768,50304) 155 MB, 36 us at 4.25 TB/s;
 *                   x (49152,768) 151 MB, 36 us
 *   head_transpose  reads and writes R C: 4.94 GB at 49152 x 50304, 1.16 ms
 */
#include "head_fp8.h"
#include "vec.h"

enum { TILE = 128, THREADS = 256, WORDS = TILE / 4 };

__device__ __forceinline__ static uint32_t *word_at(uint32_t *tile, int r, int w)
{
    return tile + r * WORDS + (w ^ 4 * (r / 16 % 8));
}

/* Bytes (row i, column j) of four words become (row j, column i). */
__device__ __forceinline__ static void turn4(uint32_t (&w)[4])
{
    uint32_t a = __byte_perm(w[0], w[1], 0x5140), b = __byte_perm(w[2], w[3], 0x5140);
    uint32_t c = __byte_perm(w[0], w[1], 0x7362), d = __byte_perm(w[2], w[3], 0x7362);
    w[0] = __byte_perm(a, b, 0x5410), w[1] = __byte_perm(a, b, 0x7632);
    w[2] = __byte_perm(c, d, 0x5410), w[3] = __byte_perm(c, d, 0x7632);
}

/* The tile's columns, `column` .. of dst (C, ld), as rows; its rows go to bytes `row` .. */
__device__ __forceinline__ static void write_turned(uint8_t *dst, int64_t ld, uint32_t *tile,
                                                    int64_t row, int64_t rows, int64_t column,
                                                    int64_t columns)
{
    int g = threadIdx.x % 8, w = threadIdx.x / 8;
    uint32_t out[4][4]; /* column, group of four rows */

#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t in[4];
#pragma unroll
        for (int r = 0; r < 4; r++)
            in[r] = *word_at(tile, 16 * g + 4 * i + r, w);
        turn4(in);
#pragma unroll
        for (int j = 0; j < 4; j++)
            out[j][i] = in[j];
    }
#pragma unroll
    for (int j = 0; j < 4; j++)
        if (column + 4 * w + j < columns && row + 16 * g < rows)
            *(uint4 *)(dst + (column + 4 * w + j) * ld + row + 16 * g) =
                make_uint4(out[j][0], out[j][1], out[j][2], out[j][3]);
}

/* A thread's four vectors of 16 bytes: rows r, r + 32, ... and columns c .. c + 15. */
struct part {
    int r, c;
};
__device__ __forceinline__ static part part_of(int i)
{
    return part{ (int)threadIdx.x / 8 + 32 * i, (int)threadIdx.x % 8 * 16 };
}

__device__ __forceinline__ static uint4 quantize16(const bf16 *p, float scale)
{
    float x[8], y[8];

    load8(x, p);
    load8(y, p + 8);
#pragma unroll
    for (int j = 0; j < 8; j++)
        x[j] /= scale, y[j] /= scale;
    return make_uint4(pack_e4m3x4(x[0], x[1], x[2], x[3]), pack_e4m3x4(x[4], x[5], x[6], x[7]),
                      pack_e4m3x4(y[0], y[1], y[2], y[3]), pack_e4m3x4(y[4], y[5], y[6], y[7]));
}

__global__ static void __launch_bounds__(THREADS)
    quantize_tile(uint8_t *dst, uint8_t *dst_t, const bf16 *src, float scale, int64_t real_rows,
                  int64_t rows, int64_t columns)
{
    __shared__ __align__(16) uint32_t tile[TILE * WORDS];
    int64_t row = (int64_t)blockIdx.y * TILE, column = (int64_t)blockIdx.x * TILE;

#pragma unroll
    for (int i = 0; i < 4; i++) {
        part p = part_of(i);
        int64_t r = row + p.r, c = column + p.c;
        uint4 u = make_uint4(0, 0, 0, 0);
        if (r < real_rows && c < columns)
            u = quantize16(src + r * columns + c, scale);
        if (dst && r < rows && c < columns)
            *(uint4 *)(dst + r * columns + c) = u;
        if (dst_t)
            *(uint4 *)word_at(tile, p.r, p.c / 4) = u;
    }
    __syncthreads();
    if (dst_t)
        write_turned(dst_t, rows, tile, row, rows, column, columns);
}

void head_quantize(struct cuda_ops *c, struct tensor dst, struct tensor dst_t, struct tensor src,
                   float scale)
{
    int64_t rows = dst_t.data ? dst_t.cols : dst.rows;
    dim3 grid(div_up(src.cols, TILE), div_up(rows, TILE));

    assert(src.cols % 16 == 0 && rows >= src.rows && (!dst.data || dst.rows == rows));
    assert(!dst_t.data || rows % 16 == 0);
    if (c->failed)
        return;
    quantize_tile<<<grid, THREADS, 0, c->stream>>>((uint8_t *)dst.data, (uint8_t *)dst_t.data,
                                                   (const bf16 *)src.data, scale, src.rows, rows,
                                                   src.cols);
    CUDA_LAUNCHED(c);
}

__global__ static void __launch_bounds__(THREADS)
    transpose_tile(uint8_t *dst, int64_t dst_ld, const uint8_t *src, int64_t ld, int64_t real_rows,
                   int64_t rows, int64_t columns)
{
    __shared__ __align__(16) uint32_t tile[TILE * WORDS];
    int64_t row = (int64_t)blockIdx.y * TILE, column = (int64_t)blockIdx.x * TILE;
    uint4 u[4];

    src += blockIdx.z * rows * ld;
    dst += blockIdx.z * columns * dst_ld;

#pragma unroll
    for (int i = 0; i < 4; i++) {
        part p = part_of(i);
        int64_t r = row + p.r, c = column + p.c;
        u[i] = make_uint4(0, 0, 0, 0);
        if (r < real_rows && c < columns)
            u[i] = *(const uint4 *)(src + r * ld + c);
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        *(uint4 *)word_at(tile, part_of(i).r, part_of(i).c / 4) = u[i];
    __syncthreads();
    write_turned(dst, dst_ld, tile, row, rows, column, columns);
}

void head_transpose(struct cuda_ops *c, struct tensor dst_t, int64_t first, struct tensor src,
                    int64_t ld, int64_t rows)
{
    dim3 grid(div_up(src.cols, TILE), div_up(src.rows, TILE));

    assert(src.rows % 16 == 0 && first % 16 == 0 && dst_t.cols % 16 == 0);
    if (c->failed)
        return;
    transpose_tile<<<grid, THREADS, 0, c->stream>>>((uint8_t *)dst_t.data + first, dst_t.cols,
                                                    (const uint8_t *)src.data, ld, rows, src.rows,
                                                    src.cols);
    CUDA_LAUNCHED(c);
}

void fp8_transpose_each(struct cuda_ops *c, struct tensor dst_t, struct tensor src, int n)
{
    int64_t rows = dst_t.cols, columns = src.cols;
    dim3 grid(div_up(columns, TILE), div_up(rows, TILE), n);

    assert(src.rows == n * rows && dst_t.rows == n * columns && rows % 16 == 0 &&
           columns % 16 == 0);
    if (c->failed)
        return;
    transpose_tile<<<grid, THREADS, 0, c->stream>>>(
        (uint8_t *)dst_t.data, rows, (const uint8_t *)src.data, columns, rows, rows, columns);
    CUDA_LAUNCHED(c);
}
