/* normuon.cu - the NorMuon update from an orthogonalised x: row variance, cautious decay, master.
 *
 * Contract: ops.h, record-61.md 4.5. n matrices (R,C), in two launches because the norms of a
 * whole matrix stand between them:
 *     row_stats   a warp a row: mean square into q; sums of mean square and of its scaled value,
 *                 one pair a block of ROWS rows                                     x -> q
 *     update      a warp a row: pairs added in their order, x scaled and rounded to its type,
 *                 w : mant updated                                        x, q, w, mant -> w, mant
 * Bytes an element: 2 + 10 (bf16 x and w, u16 mant); 10 if x were read once.
 * Bits equal the C reference's given the same row scales; these differ by the order of sums.
 */
#include "gpu.h"
#include "optim.h"

enum { WARPS = 8, ROWS = 16, MAX_MATRICES = 256 };

struct multipliers { float lr[MAX_MATRICES]; };

__device__ __forceinline__ float inverse_root(float second)
{
    return quot(1, root(second > 1e-10f ? second : 1e-10f));
}

/* Rows [16 b, 16 b + 16) of matrix blockIdx.y; sums[2 (y gridDim.x + b)] = their two sums. */
template <int WIDTH, typename X>
static __global__ void __launch_bounds__(WARPS * 32)
row_stats(double *sums, float *q, const X *x, int rows, int cols, float blend)
{
    __shared__ double warps[2][32];
    int lane = threadIdx.x % 32;
    double before = 0, after = 0;

    for (int r = threadIdx.x / 32; r < ROWS; r += WARPS) {
        int row = blockIdx.x * ROWS + r;
        if (row >= rows)
            break;
        int64_t at = (int64_t)blockIdx.y * rows + row;
        float dot = 0;
#pragma unroll 4
        for (int j = lane * WIDTH; j < cols; j += 32 * WIDTH) {
            float v[WIDTH];
            load<WIDTH>(v, x + at * cols + j);
#pragma unroll
            for (int e = 0; e < WIDTH; e++)
                dot = fmaf(v[e], v[e], dot);
        }
        float mean = quot(warp_sum(dot), (float)cols), second = q[at];
        second = add(second, mul(blend, sub(mean, second)));
        float t = inverse_root(second);
        __syncwarp();
        if (lane == 0) {
            q[at] = second;
            before += mean;
            after += mul(mul(mean, t), t);
        }
    }
    before = block_sum(before, warps[0]);
    after = block_sum(after, warps[1]);
    if (threadIdx.x == 0) {
        int64_t i = (int64_t)blockIdx.y * gridDim.x + blockIdx.x;
        sums[2 * i] = before;
        sums[2 * i + 1] = after;
    }
}

/* p - shrink - d lr, in the reference's order. */
__device__ __forceinline__ float moved(float p, float d, float lr, float decay)
{
    float shrink = mul(d, p) >= 0 ? mul(mul(p, decay), lr) : 0;
    return sub(sub(p, shrink), mul(d, lr));
}

/* w and mant are the halves of an f32: cut, not rounded. */
template <int WIDTH>
__device__ __forceinline__ void move_halves(uint16_t *w, uint16_t *mant, const float (&d)[WIDTH],
                                            float lr, float decay)
{
    if constexpr (WIDTH == 8) {
        uint4 high = *(const uint4 *)w, low = *(const uint4 *)mant;
        uint32_t *h = &high.x, *l = &low.x;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t even = __byte_perm(l[i], h[i], 0x5410), odd = __byte_perm(l[i], h[i], 0x7632);
            even = __float_as_uint(moved(__uint_as_float(even), d[2 * i], lr, decay));
            odd = __float_as_uint(moved(__uint_as_float(odd), d[2 * i + 1], lr, decay));
            h[i] = __byte_perm(even, odd, 0x7632);
            l[i] = __byte_perm(even, odd, 0x5410);
        }
        *(uint4 *)w = high;
        *(uint4 *)mant = low;
    } else {
        float p = __uint_as_float((uint32_t)*w << 16 | *mant);
        uint32_t bits = __float_as_uint(moved(p, d[0], lr, decay));
        *w = (uint16_t)(bits >> 16);
        *mant = (uint16_t)bits;
    }
}

/* Rows [8 b, 8 b + 8) of matrix blockIdx.y. mant NULL: w is f32. */
template <int WIDTH, typename X>
static __global__ void __launch_bounds__(WARPS * 32)
update(void *w, uint16_t *mant, const float *q, const X *x, int rows, int cols,
       const double *sums, int blocks, const struct muon_step *m,
       const __grid_constant__ struct multipliers mul_of)
{
    __shared__ double warps[2][32];
    double before = 0, after = 0;
    for (int i = threadIdx.x; i < blocks; i += WARPS * 32) {
        const double *s = sums + 2 * ((int64_t)blockIdx.y * blocks + i);
        before += s[0];
        after += s[1];
    }
    before = sqrt((double)cols * block_sum(before, warps[0]));
    after = sqrt((double)cols * block_sum(after, warps[1]));

    int row = blockIdx.x * WARPS + threadIdx.x / 32;
    if (row >= rows)
        return;
    float old = (float)before, now = (float)after;
    float keep = quot(old, now > 1e-10f ? now : 1e-10f);
    float lr = mul(m->lr, mul_of.lr[blockIdx.y]), decay = m->decay;
    int64_t at = (int64_t)blockIdx.y * rows + row;
    float scale = mul(inverse_root(q[at]), keep);

#pragma unroll 4
    for (int j = threadIdx.x % 32 * WIDTH; j < cols; j += 32 * WIDTH) {
        float d[WIDTH];
        load<WIDTH>(d, x + at * cols + j);
#pragma unroll
        for (int e = 0; e < WIDTH; e++) {
            X rounded;
            narrow(&rounded, mul(d[e], scale));
            d[e] = widen(rounded);
        }
        if (mant) {
            move_halves<WIDTH>((uint16_t *)w + at * cols + j, mant + at * cols + j, d, lr, decay);
        } else {
            float p[WIDTH];
            load<WIDTH>(p, (float *)w + at * cols + j);
#pragma unroll
            for (int e = 0; e < WIDTH; e++)
                p[e] = moved(p[e], d[e], lr, decay);
            store<WIDTH>((float *)w + at * cols + j, p);
        }
    }
}

void gpu_normuon(struct ops *o, struct tensor w, struct tensor mant, struct tensor q,
                 struct tensor x, int n, const float *lr_mul, double beta2,
                 const struct muon_step *m)
{
    struct cuda_ops *c = cuda_of(o);
    int rows = (int)(x.rows / n), cols = (int)x.cols, blocks = div_up(rows, ROWS);
    assert((int64_t)rows * n == x.rows && tensor_count(w) == tensor_count(x));
    assert(tensor_count(q) == x.rows);
    if (c->failed || x.rows == 0
        || !CUDA_NEED(c, w.dtype == DT_BF16 ? mant.dtype == DT_U16 : w.dtype == DT_F32,
                      "w must be bf16 with its u16 mantissa, or f32")
        || !CUDA_NEED(c, is_float(x) && q.dtype == DT_F32, "x must be f32 or bf16, q f32")
        || !CUDA_NEED(c, n <= MAX_MATRICES, "a rank may hold 256 matrices of a bank at most"))
        return;

    double *sums = (double *)cuda_workspace(c, 2 * sizeof *sums * n * blocks);
    if (!sums)
        return;
    struct multipliers lr = {};
    memcpy(lr.lr, lr_mul, (size_t)n * sizeof *lr_mul);
    uint16_t *low = w.dtype == DT_BF16 ? (uint16_t *)mant.data : NULL;
    float blend = (float)(1 - beta2), *qp = (float *)q.data;
    dim3 stats_grid(blocks, n), update_grid(div_up(rows, WARPS), n);
    bool by_8 = wide(x, cols) && wide(w, cols) && (!low || wide(mant, cols));
    with_type(x, [&](auto *px) {
        auto stats = by_8 ? row_stats<8, std::remove_pointer_t<decltype(px)>>
                          : row_stats<1, std::remove_pointer_t<decltype(px)>>;
        auto change = by_8 ? update<8, std::remove_pointer_t<decltype(px)>>
                           : update<1, std::remove_pointer_t<decltype(px)>>;
        stats<<<stats_grid, WARPS * 32, 0, c->stream>>>(sums, qp, px, rows, cols, blend);
        change<<<update_grid, WARPS * 32, 0, c->stream>>>(w.data, low, qp, px, rows, cols, sums,
                                                          blocks, m, lr);
    });
    CUDA_LAUNCHED(c);
}
