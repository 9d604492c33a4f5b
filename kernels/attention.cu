/* attention.cu - launchers of attention: checks, tensor maps, workspace, and the plan kernels.
 *
 * A call is two kernels: a plan (and for backward lse / ln 2 and delta = rowsum(dout out), one
 * read of dout, out and lse), then attention_fwd.cu or attention_bwd.cu. The plan depends on
 * the documents, so it is made on the device, anew in each call (about 3 us).
 */
#include <math.h>
#include <cuda_bf16.h>
#include "attention.h"
#include "attention_plan.cuh"
#include "vec.h"

namespace {

enum { PLAN_THREADS = 512, BINS = 256 };

/* Document of row p: the last n with cu[n] cu_mul <= p, so empty ones are passed over. */
__device__ int document_of(const struct attention_shape &s, int p)
{
    int lo = 0, hi = s.ncu;
    while (hi - lo > 1) {
        int mid = (lo + hi) / 2;
        if ((int64_t)__ldg(s.cu + mid) * s.cu_mul <= p)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}
/* Rows past the end are documents of one row, which nothing reads and no store writes. */
__device__ int2 start_and_end(const struct attention_shape &s, int p)
{
    if (p >= s.rows)
        return make_int2(p, p);
    const int d = document_of(s, p);
    const int64_t next = d + 1 < s.ncu ? (int64_t)__ldg(s.cu + d + 1) * s.cu_mul : s.rows;
    const int64_t start = max((int64_t)__ldg(s.cu + d) * s.cu_mul, (int64_t)p - s.window);
    const int64_t end = min(min(next, (int64_t)s.rows) - 1, (int64_t)p + s.window);
    return make_int2((int)start, (int)end);
}

__device__ struct reach reach_of_tile(const struct attention_shape &s, int tile, bool by_key)
{
    struct reach r = { tile, 0, 0, 0 };
    for (int i = 0; i < 2; i++) {           /* near, far */
        const int b = 2 * tile + (by_key ? i : 1 - i), row = b * BLOCK;
        const int2 first = start_and_end(s, row), last = start_and_end(s, row + BLOCK - 1);
        const int met = by_key ? last.y / BLOCK - b + 1 : b - first.x / BLOCK + 1;
        const int room = by_key ? first.y - BLOCK + 1 - row : row - last.x;
        const int whole = room < 0 ? 0 : room / BLOCK + 1;
        r.blocks |= (uint32_t)min(met, 0x7fff) << 16 * i;
        r.whole |= (uint32_t)min(whole, 0x7fff) << 16 * i;
    }
    return r;
}

/* One block sorts the tiles, most blocks first, so that what is left at the end is short.
 * Only the order of equal tiles changes from run to run: no result depends on it. */
__device__ void sort_tiles(const struct attention_shape &s, int tiles, bool by_key,
                           struct reach *out, int *bins)
{
    for (int i = threadIdx.x; i < BINS; i += blockDim.x)
        bins[i] = 0;
    __syncthreads();
    for (int t = threadIdx.x; t < tiles; t += blockDim.x) {
        struct reach r = reach_of_tile(s, t, by_key);
        atomicAdd(&bins[max(0, BINS - 1 - reach_blocks(r.blocks))], 1);
    }
    __syncthreads();
    if (threadIdx.x < 32) {                 /* counts to first places */
        int before = 0;
        for (int i = threadIdx.x; i < BINS; i += 32) {
            int n = bins[i], sum = n;
            for (int d = 1; d < 32; d *= 2) {
                int left = __shfl_up_sync(~0u, sum, d);
                sum += (int)threadIdx.x >= d ? left : 0;
            }
            bins[i] = before + sum - n;
            before += __shfl_sync(~0u, sum, 31);
        }
    }
    __syncthreads();
    for (int t = threadIdx.x; t < tiles; t += blockDim.x) {
        struct reach r = reach_of_tile(s, t, by_key);
        out[atomicAdd(&bins[max(0, BINS - 1 - reach_blocks(r.blocks))], 1)] = r;
    }
    __syncthreads();
}

/* Block 0: queues and sorted tiles (by key in backward only, in block 1). The others: start
 * and end of each row. */
__device__ bool plan(const struct attention_call &c, bool backward, int *bins)
{
    if (blockIdx.x == 0) {
        if (threadIdx.x < 4)
            c.p.next[threadIdx.x] = 0;
        sort_tiles(c.s, c.p.tiles, false, c.p.by_query, bins);
    } else if (blockIdx.x == 1 && backward) {
        sort_tiles(c.s, c.p.tiles, true, c.p.by_key, bins);
    } else {
        return false;
    }
    return true;
}
__device__ void plan_row(const struct attention_call &c, int p)
{
    int2 b = start_and_end(c.s, p);
    c.p.start[p] = b.x;
    c.p.end[p] = b.y;
}

__global__ void __launch_bounds__(PLAN_THREADS)
forward_plan(const __grid_constant__ struct attention_call c)
{
    __shared__ int bins[BINS];
    if (plan(c, false, bins))
        return;
    const int p = (blockIdx.x - 1) * PLAN_THREADS + threadIdx.x;
    if (p < c.p.padded)
        plan_row(c, p);
}

/* Thread: 8 channels of one row and head (2^lanes_log2 threads a head), or, when the caller
 * gives delta, one row and head. */
__global__ void __launch_bounds__(PLAN_THREADS)
backward_plan(const __grid_constant__ struct attention_call c, const bf16 *dout, const bf16 *out,
              const float *lse, const float *delta, int lanes_log2)
{
    __shared__ int bins[BINS];
    if (plan(c, true, bins))
        return;
    const uint32_t i = (blockIdx.x - 2) * PLAN_THREADS + threadIdx.x, group = i >> lanes_log2;
    const int row = group / c.s.heads, head = group % c.s.heads;
    const bool inside = row < c.s.rows;
    const int64_t from = (int64_t)head * c.s.rows + row, to = (int64_t)head * c.p.padded + row;
    float sum = 0;

    if (delta) {
        sum = inside ? delta[from] : 0;
    } else {
        if (inside) {
            float x[8], y[8];
            load8(x, dout + (int64_t)i * 8);
            load8(y, out + (int64_t)i * 8);
            sum = dot8(x, y);
        }
        sum = warp_sum(sum, 1 << lanes_log2);
    }
    if (i & ((1 << lanes_log2) - 1) || row >= c.p.padded)
        return;
    c.p.delta[to] = sum;
    c.p.lse2[to] = inside ? lse[from] * 1.4426950408889634f : 0;
    if (head == 0)
        plan_row(c, row);
}

/* -- host ------------------------------------------------------------------------- */
bool valid(const struct attention_shape *s)
{
    return s->rows >= 0 && s->heads > 0
        && (int64_t)s->rows * s->heads * s->head_dim < (int64_t)1 << 34 && s->ncu > 0 && s->cu
        && (s->head_dim == 32 || s->head_dim == 64 || s->head_dim == 128) && s->cu_mul > 0
        && s->window >= 0 && s->scale > 0;
}

/* Cuts the workspace; with base 0, counts it. */
size_t plan_cut(struct attention_plan *p, const struct attention_shape *s, void *base)
{
    size_t at = 0;
    auto cut = [&](size_t bytes) {
        char *x = (char *)base + at;
        at += (bytes + 255) / 256 * 256;
        return (void *)x;
    };
    p->tiles = (s->rows + TILE - 1) / TILE;
    p->padded = p->tiles * TILE;
    p->next = (int *)cut(4 * sizeof(int));
    p->start = (int *)cut(p->padded * sizeof(int));
    p->end = (int *)cut(p->padded * sizeof(int));
    p->by_query = (struct reach *)cut(p->tiles * sizeof(struct reach));
    p->by_key = (struct reach *)cut(p->tiles * sizeof(struct reach));
    p->lse2 = (float *)cut((size_t)s->heads * p->padded * sizeof(float));
    p->delta = (float *)cut((size_t)s->heads * p->padded * sizeof(float));
    return at;
}

/* The driver's encoder, found through the runtime so that libcuda need not be linked. */
typedef decltype(&cuTensorMapEncodeTiled) encode_fn;
encode_fn encoder()
{
    static const encode_fn found = [] {
        void *f = NULL;
        cudaDriverEntryPointQueryResult result;
        cudaError_t e = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000,
                                                         cudaEnableDefault, &result);
        return e == cudaSuccess && result == cudaDriverEntryPointSuccess ? (encode_fn)f : NULL;
    }();
    return found;
}

/* x: (rows, heads * E) bf16; boxes of 64 rows and one panel, as struct block stores them. */
bool map_of(CUtensorMap *map, const struct attention_shape *s, const void *x)
{
    const int panel = s->head_dim < 64 ? s->head_dim : 64;
    const cuuint64_t size[2] = { (cuuint64_t)s->heads * s->head_dim, (cuuint64_t)s->rows };
    const cuuint64_t stride[1] = { size[0] * 2 };
    const cuuint32_t box[2] = { (cuuint32_t)panel, BLOCK }, step[2] = { 1, 1 };
    encode_fn encode = encoder();
    return encode && encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, (void *)x, size, stride,
                            box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
                            panel < 64 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B,
                            CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                            CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

cudaError_t multiprocessors(int *n)
{
    int device;
    cudaError_t e = cudaGetDevice(&device);
    return e ? e : cudaDeviceGetAttribute(n, cudaDevAttrMultiProcessorCount, device);
}

struct attention_call call_of(const struct attention_shape *s, void *workspace)
{
    struct attention_call c = { *s };
    plan_cut(&c.p, s, workspace);
    c.unit = s->scale * 1.4426950408889634f;
    return c;
}

}   /* namespace */

extern "C" size_t attention_workspace_bytes(const struct attention_shape *s)
{
    struct attention_plan p;
    return plan_cut(&p, s, NULL);
}

extern "C" cudaError_t attention_forward(cudaStream_t stream, const struct attention_shape *s,
                                         void *out, float *lse, const void *q, const void *k,
                                         const void *v, void *workspace)
{
    struct forward_maps m;
    cudaError_t e;
    int sms;

    if (!valid(s))
        return cudaErrorInvalidValue;
    if (s->rows == 0)
        return cudaSuccess;
    if ((e = multiprocessors(&sms)) != cudaSuccess)
        return e;
    if (!map_of(&m.q, s, q) || !map_of(&m.k, s, k) || !map_of(&m.v, s, v)
        || !map_of(&m.out, s, out))
        return cudaErrorInvalidValue;
    struct attention_call c = call_of(s, workspace);
    c.lse = lse;
    const int blocks = 1 + (c.p.padded + PLAN_THREADS - 1) / PLAN_THREADS;
    forward_plan<<<blocks, PLAN_THREADS, 0, stream>>>(c);
    e = cudaGetLastError();
    return e ? e : attention_launch_forward(stream, &c, &m, sms);
}

extern "C" cudaError_t attention_backward(cudaStream_t stream, const struct attention_shape *s,
                                          void *dq, void *dk, void *dv, const void *dout,
                                          const void *q, const void *k, const void *v,
                                          const void *out, const float *lse, const float *delta,
                                          void *workspace)
{
    struct backward_maps m;
    cudaError_t e;
    int sms;

    if (!valid(s))
        return cudaErrorInvalidValue;
    if (s->rows == 0)
        return cudaSuccess;
    if ((e = multiprocessors(&sms)) != cudaSuccess)
        return e;
    if (!map_of(&m.q, s, q) || !map_of(&m.k, s, k) || !map_of(&m.v, s, v)
        || !map_of(&m.dout, s, dout) || !map_of(&m.dq, s, dq) || !map_of(&m.dk, s, dk)
        || !map_of(&m.dv, s, dv))
        return cudaErrorInvalidValue;
    struct attention_call c = call_of(s, workspace);
    const int lanes_log2 = delta ? 0 : s->head_dim == 128 ? 4 : s->head_dim == 64 ? 3 : 2;
    const int64_t threads = ((int64_t)c.p.padded * s->heads) << lanes_log2;
    backward_plan<<<(int)(2 + (threads + PLAN_THREADS - 1) / PLAN_THREADS), PLAN_THREADS, 0,
                    stream>>>(c, (const bf16 *)dout, (const bf16 *)out, lse, delta, lanes_log2);
    e = cudaGetLastError();
    return e ? e : attention_launch_backward(stream, &c, &m, sms);
}
