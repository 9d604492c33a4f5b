/* quantize.cu - copies of weights in e4m3.
 *
 * Contracts: op_list.h. quantize: where Adam did not write the copy. Bytes an element of a bf16
 * weight: 2 + 1; 768 x 50304: 116 MB, 27 us at 4.25 TB/s, at the start of a run only. A thread
 * takes 8 elements at a time, the blocks form a grid-stride loop, so that amax takes one atomic a
 * block.
 *
 * quantize_matrices (fp8.md 1): one launch writes the greatest magnitude in each part of each
 * matrix, a second takes the greatest of a matrix's and writes scale and codes. 2 + 2 + 1 bytes an
 * element; 12 matrices of 3072 x 768: 142 MB, 33 us at 4.25 TB/s, once a step. Transposed as well,
 * by a third launch that reads the codes: 1 + 1 bytes more. quantize_delayed (fp8.md 5): between the two a
 * launch chooses the scales.
 */
#include "fp8_copy.h"
#include "gpu.h"

enum { THREADS = 256, BLOCKS = 132 * 8 };

template <int WIDTH, typename W>
static __global__ void __launch_bounds__(THREADS)
    quantize(const W *w, int64_t count, const fp8_out out)
{
    int64_t stride = (int64_t)gridDim.x * THREADS * WIDTH;
    uint32_t most = 0;

    for (int64_t at = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * WIDTH; at < count;
         at += stride) {
        float x[WIDTH];
        load<WIDTH>(x, w + at);
        write_codes<WIDTH>(out.codes, at, x, out.scale_inv, &most);
    }
    fold_amax(out, most);
}

void gpu_quantize(struct ops *o, const struct fp8_copy *copy, struct tensor w)
{
    struct cuda_ops *c = cuda_of(o);
    int64_t count = tensor_count(w);
    fp8_out out;

    assert(copy->codes.dtype == DT_E4M3 && tensor_count(copy->codes) == count && is_float(w));
    if (c->failed || !count || !fp8_out_begin(c, copy, &out))
        return;
    bool by_8 = wide(w, count) && (uintptr_t)out.codes % 8 == 0;
    int64_t blocks = (count - 1) / (THREADS * (by_8 ? 8 : 1)) + 1;
    unsigned grid = (unsigned)(blocks < BLOCKS ? blocks : BLOCKS);
    with_type(w, [&](auto *p) {
        if (by_8)
            quantize<8><<<grid, THREADS, 0, c->stream>>>(p, count, out);
        else
            quantize<1><<<grid, THREADS, 0, c->stream>>>(p, count, out);
    });
    CUDA_LAUNCHED(c);
}

/* -- matrices with a scale each -------------------------------------------------------------- */

enum { PARTS = 88 }; /* blocks of a matrix */

struct matrices_args {
    const bf16 *w;
    uint8_t *codes;
    float *scale;
    uint32_t *part; /* (n, PARTS) bits of the greatest magnitude: numbers >= 0 in their order */
    int64_t count, stride; /* elements of a matrix, and from one to the next in w */
    bool exact; /* scales, and quotients before they are codes, are not rounded to bf16 */
};

static __global__ void __launch_bounds__(THREADS) amax_of_matrices(const matrices_args a)
{
    const bf16 *w = a.w + blockIdx.y * a.stride;
    uint32_t most = 0;

    for (int64_t at = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * 8; at < a.count;
         at += (int64_t)PARTS * THREADS * 8)
        most = max(most, amax8(*(const uint4 *)(w + at)));
    most = block_max(most);
    if (threadIdx.x == 0)
        a.part[blockIdx.y * PARTS + blockIdx.x] = most;
}

/* Computes matrix blockIdx.x's scale: its own, or that of the refresh before; and the next one. */
static __global__ void __launch_bounds__(128)
    choose_scale(const matrices_args a, float *next, const float *first, float headroom)
{
    float most =
        fp8_amax(block_max(threadIdx.x < PARTS ? a.part[blockIdx.x * PARTS + threadIdx.x] : 0));

    if (threadIdx.x)
        return;
    bool own = *first != 0 || next[blockIdx.x] == 0;
    a.scale[blockIdx.x] = own ? as_stored<bf16>(quot(most, E4M3_MAX)) : next[blockIdx.x];
    next[blockIdx.x] = quot(headroom * most, E4M3_MAX);
}

/* CHOSEN: by the scale that is there, rounded once; else by the matrix's own, which is written. */
template <bool CHOSEN>
static __global__ void __launch_bounds__(THREADS) quantize_each(const matrices_args a)
{
    const bf16 *w = a.w + blockIdx.y * a.stride;
    uint8_t *codes = a.codes + blockIdx.y * a.count;
    float scale;

    if (CHOSEN) {
        scale = a.scale[blockIdx.y];
    } else {
        uint32_t most = threadIdx.x < PARTS ? a.part[blockIdx.y * PARTS + threadIdx.x] : 0;
        scale = quot(fp8_amax(block_max(most)), E4M3_MAX);
        if (!a.exact)
            scale = as_stored<bf16>(scale);
        if (blockIdx.x == 0 && threadIdx.x == 0)
            a.scale[blockIdx.y] = scale;
    }
    for (int64_t at = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * 8; at < a.count;
         at += (int64_t)PARTS * THREADS * 8) {
        float x[8];
        load8(x, w + at);
#pragma unroll
        for (int e = 0; e < 8; e++) {
            float code = quot(x[e], scale);
            x[e] = CHOSEN || a.exact ? code : as_stored<bf16>(code);
        }
        *(uint2 *)(codes + at) = pack_e4m3(x);
    }
}

/* d: with scales of the refresh before; NULL: with the matrices' own. */
static void copy_matrices(struct cuda_ops *c, const struct fp8_matrices *q,
                          const struct fp8_delay *d, struct tensor w)
{
    int n = (int)(q->codes.rows / q->rows);
    matrices_args a = { (const bf16 *)w.data + q->first * w.cols,
                        (uint8_t *)q->codes.data,
                        q->scale,
                        NULL,
                        q->rows * w.cols,
                        q->stride * w.cols,
                        q->exact };

    assert(q->codes.dtype == DT_E4M3 && q->codes.cols == w.cols && q->codes.rows % q->rows == 0);
    if (c->failed || !n || !CUDA_NEED(c, w.dtype == DT_BF16, "weights of products are bf16") ||
        !CUDA_NEED(c, w.cols % 16 == 0 && (!q->turned.data || q->rows % 16 == 0),
                   "rows of fp8 products are multiples of 16"))
        return;
    a.part = (uint32_t *)cuda_workspace(c, (size_t)n * PARTS * sizeof *a.part);
    if (!a.part)
        return;
    amax_of_matrices<<<dim3(PARTS, n), THREADS, 0, c->stream>>>(a);
    CUDA_LAUNCHED(c);
    if (d) {
        choose_scale<<<n, 128, 0, c->stream>>>(a, d->next, d->first, d->headroom);
        CUDA_LAUNCHED(c);
    }
    auto *kernel = d ? quantize_each<true> : quantize_each<false>;
    kernel<<<dim3(PARTS, n), THREADS, 0, c->stream>>>(a);
    CUDA_LAUNCHED(c);
    if (q->turned.data)
        fp8_transpose_each(c, q->turned, q->codes, n);
}

void gpu_quantize_matrices(struct ops *o, const struct fp8_matrices *q, struct tensor w)
{
    copy_matrices(cuda_of(o), q, NULL, w);
}

void gpu_input_codes(struct ops *o, struct tensor x8, struct tensor x, real scale)
{
    struct cuda_ops *c = cuda_of(o);

    assert(x8.dtype == DT_E4M3 && x.dtype == DT_BF16 && x8.rows == x.rows && x8.cols == x.cols);
    if (c->fp8 && !c->failed && x.rows &&
        CUDA_NEED(c, x.cols % 16 == 0, "fp8 products have widths of multiples of 16"))
        head_quantize(c, x8, {}, x, scale);
}

void gpu_quantize_delayed(struct ops *o, const struct fp8_matrices *q, const struct fp8_delay *d,
                          struct tensor w)
{
    copy_matrices(cuda_of(o), q, d, w);
}
