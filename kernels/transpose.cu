/* transpose.cu - dst (C,R) = src^T (R,C), or dst += mix src^T.
 *
 * Contract: op_list.h. Tiles of 64 x 64 pass through shared memory; a team of 256 threads works on
 * one, a block on four at a time. Global accesses are 16 bytes wide in both directions; in shared
 * memory a row of bf16 takes 33 words, so that a column is spread over the banks. A block fills an
 * SM, and there is one for each that may be used: ops.transpose_sms. Bytes an element, bf16: 4; 6
 * when adding. The low halves of weights and codes of states are copied as what they are, u16 and
 * u8.
 */
#include "gpu.h"
#include "host/launch.h"
#include "optim.h"
#include <type_traits>

__device__ __forceinline__ float widen(uint16_t x) { return (float)x; }
__device__ __forceinline__ void narrow(uint16_t *p, float x) { *p = (uint16_t)x; }
__device__ __forceinline__ float widen(uint8_t x) { return (float)x; }
__device__ __forceinline__ void narrow(uint8_t *p, float x) { *p = (uint8_t)x; }

enum { SIDE = 64, TEAM = 256, TEAMS = 4, THREADS = TEAM * TEAMS };

template <typename T> struct tile {
    T at[SIDE][SIDE + 4 / sizeof(T)];
};

/* One team's part of the tile at (r0, c0) of src, in registers. */
template <int VS, typename S> struct held {
    enum { COUNT = SIDE * SIDE / VS / TEAM };
    typedef typename std::conditional<VS == 1, S, uint4>::type unit;
    unit v[COUNT];

    __device__ void load(const S *src, int rows, int cols, int r0, int c0, int t)
    {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            int u = t + i * TEAM, r = r0 + u / (SIDE / VS), c = c0 + u % (SIDE / VS) * VS;
            if (r < rows && c < cols)
                v[i] = *(const unit *)(src + (int64_t)r * cols + c);
        }
    }
    __device__ void put(tile<S> &tl, int t)
    {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            int u = t + i * TEAM;
            S *to = &tl.at[u / (SIDE / VS)][u % (SIDE / VS) * VS];
            if constexpr (VS == 1) {
                *to = v[i];
            } else {
                uint32_t *words = (uint32_t *)to; /* rows are not 16-byte aligned */
                words[0] = v[i].x, words[1] = v[i].y, words[2] = v[i].z, words[3] = v[i].w;
            }
        }
    }
};

/* The tile's transpose into dst, from (c0, r0) on. */
template <int VD, bool ADD, typename S, typename D>
__device__ __forceinline__ void write(D *dst, const tile<S> &tl, int rows, int cols, int r0, int c0,
                                      float mix, int t)
{
    held<VD, D> old;
    if (ADD)
        old.load(dst, cols, rows, c0, r0, t); /* all before the first is used */
#pragma unroll
    for (int i = 0; i < held<VD, D>::COUNT; i++) {
        int u = t + i * TEAM, c = u / (SIDE / VD), r = u % (SIDE / VD) * VD;
        if (c0 + c >= cols || r0 + r >= rows)
            continue;
        __align__(16) D out[VD];
        *(typename held<VD, D>::unit *)out = old.v[i];
#pragma unroll
        for (int e = 0; e < VD; e++) {
            float x = widen(tl.at[r + e][c]);
            narrow(&out[e], ADD ? add(widen(out[e]), mul(mix, x)) : x);
        }
        *(typename held<VD, D>::unit *)(dst + (int64_t)(c0 + c) * rows + r0 + r) =
            *(typename held<VD, D>::unit *)out;
    }
}

/* VEC: rows of src and dst are whole 16 bytes, at 16-byte addresses. */
template <bool VEC, bool ADD, typename S, typename D>
static __global__ void __launch_bounds__(THREADS)
    transpose(D *dst, const S *src, int rows, int cols, const float *factor)
{
    extern __shared__ __align__(16) char raw[];
    constexpr int VS = VEC ? 16 / sizeof(S) : 1, VD = VEC ? 16 / sizeof(D) : 1;
    float mix = ADD ? *factor : 1;
    int t = threadIdx.x % TEAM, across = (cols + SIDE - 1) / SIDE;
    tile<S> &tl = ((tile<S> *)raw)[threadIdx.x / TEAM];
    int64_t tiles = (int64_t)across * ((rows + SIDE - 1) / SIDE);
    int64_t i = (int64_t)blockIdx.x * TEAMS + threadIdx.x / TEAM, step = (int64_t)gridDim.x * TEAMS;
    held<VS, S> next;

    /* Tiles beyond the last have a row beyond the last. The next tile is on its way while this
     * one is written. */
    int r0 = (int)(i / across) * SIDE, c0 = (int)(i % across) * SIDE;
    next.load(src, rows, cols, r0, c0, t);
    for (int64_t first = (int64_t)blockIdx.x * TEAMS; first < tiles; first += step) {
        next.put(tl, t);
        __syncthreads();
        i += step;
        int r1 = (int)(i / across) * SIDE, c1 = (int)(i % across) * SIDE;
        next.load(src, rows, cols, r1, c1, t);
        write<VD, ADD>(dst, tl, rows, cols, r0, c0, mix, t);
        r0 = r1, c0 = c1;
        __syncthreads();
    }
}

template <bool ADD, typename S, typename D>
static void launch(struct cuda_ops *c, D *dst, const S *src, int rows, int cols, const float *mix)
{
    bool vec = cols * sizeof(S) % 16 == 0 && rows * sizeof(D) % 16 == 0 &&
               (uintptr_t)dst % 16 == 0 && (uintptr_t)src % 16 == 0;
    auto kernel = vec ? transpose<true, ADD, S, D> : transpose<false, ADD, S, D>;
    int64_t tiles = (int64_t)div_up(rows, SIDE) * div_up(cols, SIDE);
    int64_t blocks = (tiles + TEAMS - 1) / TEAMS, most = c->sms;
    if (c->ops.transpose_sms > 0 && c->ops.transpose_sms < most)
        most = c->ops.transpose_sms;
    dim3 grid(blocks < most ? blocks : most);
    if (tiles)
        CUDA_TRY(c, launch_kernel({ grid, THREADS, c->stream, (int)(TEAMS * sizeof(tile<S>)) },
                                  kernel, dst, src, rows, cols, mix));
}

void gpu_transpose(struct ops *o, struct tensor dst, struct tensor src, const real *mix)
{
    struct cuda_ops *c = cuda_of(o);
    bool halves = dst.dtype == DT_U16 && src.dtype == DT_U16 && !mix;
    bool codes = dst.dtype == DT_U8 && src.dtype == DT_U8 && !mix;
    assert(dst.rows == src.cols && dst.cols == src.rows);
    if (c->failed || tensor_count(src) == 0 ||
        !CUDA_NEED(c, halves || codes || (is_float(dst) && is_float(src)),
                   "tensors must be f32 or bf16, or both u16 or u8 and nothing added"))
        return;
    if (codes) {
        launch<false>(c, (uint8_t *)dst.data, (const uint8_t *)src.data, (int)src.rows,
                      (int)src.cols, NULL);
        return;
    }
    if (halves) {
        launch<false>(c, (uint16_t *)dst.data, (const uint16_t *)src.data, (int)src.rows,
                      (int)src.cols, NULL);
        return;
    }
    with_type(dst, [&](auto *d) {
        with_type(src, [&](auto *s) {
            if (mix)
                launch<true>(c, d, s, (int)src.rows, (int)src.cols, mix);
            else
                launch<false>(c, d, s, (int)src.rows, (int)src.cols, NULL);
        });
    });
}
