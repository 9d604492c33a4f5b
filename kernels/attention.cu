/* attention.cu - launchers of attention: checks, workspace, and the plan kernels.
 *
 * A call is a plan, unless the shape has one (and for backward lse / ln 2 and delta, padded to
 * whole tiles), then the kernels of attention_mma.cu or of sm90/attention_fwd.cu, attention_bwd.cu.
 * The plan depends on the documents, so it is made on the device: those of a batch in one launch.
 */
#include <math.h>
#include <cuda_bf16.h>
#include "attention_plan.cuh"
#include "behind.h"
#include "gpu.h"
#include "qkv.h"

namespace
{

enum { PLAN_THREADS = 512, BINS = 64 }; /* BINS: two a lane of a warp */
enum { HEADS_AT_ONCE = 6 }; /* whose lse and delta are loaded before the first is stored */

/* The shape's cu, copied into shared memory when it fits: a search is ten dependent loads. */
enum { CU_CACHED = 4096 };
__device__ const int32_t *cached_cu(const struct attn_shape &s, int32_t *cache)
{
    if (s.ncu > CU_CACHED)
        return s.cu;
    for (int i = threadIdx.x; i < s.ncu; i += blockDim.x)
        cache[i] = s.cu[i];
    __syncthreads();
    return cache;
}
/* Document of row p: the last n with cu[n] cu_mul <= p, so empty ones are passed over. */
__device__ int document_of(const struct attn_shape &s, int p)
{
    int lo = 0, hi = s.ncu;
    while (hi - lo > 1) {
        int mid = (lo + hi) / 2;
        if ((int64_t)s.cu[mid] * s.cu_mul <= p)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}
/* Returns the document of row p, which lies behind a row of document d. */
__device__ int document_from(const struct attn_shape &s, int d, int p)
{
    while (d + 1 < s.ncu && (int64_t)s.cu[d + 1] * s.cu_mul <= p)
        d++;
    return d;
}
/* Returns start and end of the document d of row p. Rows past the end are documents of one row,
 * which nothing reads and no store writes. */
__device__ int2 start_and_end(const struct attn_shape &s, int p, int d)
{
    if (p >= s.rows)
        return make_int2(p, p);
    const int64_t next = d + 1 < s.ncu ? (int64_t)s.cu[d + 1] * s.cu_mul : s.rows;
    const int64_t start = max((int64_t)s.cu[d] * s.cu_mul, (int64_t)p - s.window);
    const int64_t end = min(min(next, (int64_t)s.rows) - 1, (int64_t)p + s.window);
    return make_int2((int)start, (int)end);
}

__device__ struct reach reach_of_tile(const struct attn_shape &s, int tile, bool by_key)
{
    struct reach r = { tile, 0, 0, 0 };
    int d = document_of(s, tile * TILE);
    for (int half = 0; half < 2; half++) {
        const int b = 2 * tile + half, row = b * BLOCK, far = by_key ? half : 1 - half;
        const int2 first = start_and_end(s, row, d = document_from(s, d, row));
        const int2 last =
            start_and_end(s, row + BLOCK - 1, d = document_from(s, d, row + BLOCK - 1));
        const int met = by_key ? last.y / BLOCK - b + 1 : b - first.x / BLOCK + 1;
        const int room = by_key ? first.y - BLOCK + 1 - row : row - last.x;
        const int whole = room < 0 ? 0 : room / BLOCK + 1;
        r.blocks |= (uint32_t)min(met, 0x7fff) << 16 * far;
        r.whole |= (uint32_t)min(whole, 0x7fff) << 16 * far;
    }
    return r;
}

/* Sums of x over the threads before this one; sums: shared, one a warp. */
__device__ int2 sums_before(int2 x, int2 *sums)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int2 sum = x, warps = { 0, 0 };
    for (int d = 1; d < 32; d *= 2) {
        const int2 left = { __shfl_up_sync(~0u, sum.x, d), __shfl_up_sync(~0u, sum.y, d) };
        sum.x += lane >= d ? left.x : 0;
        sum.y += lane >= d ? left.y : 0;
    }
    if (lane == 31)
        sums[warp] = sum;
    __syncthreads();
    if (lane < warp)
        warps = sums[lane];
    return make_int2((int)__reduce_add_sync(~0u, warps.x) + sum.x - x.x,
                     (int)__reduce_add_sync(~0u, warps.y) + sum.y - x.y);
}

/* One block orders the tiles: as they lie, so that tiles worked on at one time share keys and
 * values in the L2 (sorted by work throughout, L2 hits fell to 50%), but the shortest ones,
 * LAST_ITEMS for each SM, last and longest first, so that all end together.
 * Only the order of equal tiles among the last changes from run to run: no result does. */
enum { LAST_ITEMS = 3, TILES_CACHED = 1024 };

__device__ void order_tiles(const struct attention_call &c, bool by_key, struct reach *out)
{
    __shared__ int bins[BINS], first[BINS], bound, extra, last_tiles;
    __shared__ int2 sums[PLAN_THREADS / 32];
    __shared__ reach few[TILES_CACHED];
    struct reach *const found =
        c.p.tiles <= TILES_CACHED ? few : c.p.found[by_key]; /* as they lie */
    const int tiles = c.p.tiles, each = (tiles + PLAN_THREADS - 1) / PLAN_THREADS;
    const int from = min(tiles, (int)threadIdx.x * each), to = min(tiles, from + each);
    auto bin_of = [](struct reach r) { return min(BINS - 1, reach_blocks(r.blocks)); };
    int2 before = { 0, 0 };

    for (int i = threadIdx.x; i < BINS; i += PLAN_THREADS)
        bins[i] = 0;
    __syncthreads();
    for (int t = from; t < to; t++) {
        found[t] = c.p.found[by_key][t] = reach_of_tile(c.s, t, by_key);
        atomicAdd(&bins[bin_of(found[t])], 1);
    }
    __syncthreads();
    if (threadIdx.x < 32) { /* last: bins below `bound`, `extra` tiles of it */
        const int i = 2 * threadIdx.x, wanted = (LAST_ITEMS * c.sms + c.s.heads - 1) / c.s.heads;
        int upto1 = bins[i] + bins[i + 1], upto0; /* tiles in bins <= i + 1, <= i */
        for (int d = 1; d < 32; d *= 2) {
            const int left = __shfl_up_sync(~0u, upto1, d);
            upto1 += (int)threadIdx.x >= d ? left : 0;
        }
        upto0 = upto1 - bins[i + 1];
        first[i] = tiles - upto0;
        first[i + 1] = tiles - upto1;
        const int fit = __popc(__ballot_sync(~0u, upto0 <= wanted)) +
                        __popc(__ballot_sync(~0u, upto1 <= wanted && i + 1 < BINS - 1));
        const int last = __reduce_max_sync(~0u, i + 1 < fit ? upto1 : i < fit ? upto0 : 0);
        if (threadIdx.x == 0) {
            bound = fit;
            extra = min(wanted - last, bins[fit]);
            last_tiles = last + extra;
        }
    }
    __syncthreads();
    for (int t = from; t < to; t++) {
        before.x += bin_of(found[t]) == bound;
        before.y += bin_of(found[t]) > bound;
    }
    before = sums_before(before, sums);
    int same = before.x, longer = before.y;
    for (int t = from; t < to; t++) {
        struct reach r = found[t];
        const int bin = bin_of(r), stay = bins[bound] - extra; /* of bin `bound` */
        int to_place = longer + min(same, stay);
        if (bin < bound)
            to_place = atomicAdd(&first[bin], 1);
        else if (bin == bound && same >= stay)
            to_place = tiles - last_tiles + same - stay;
        longer += bin > bound;
        same += bin == bound;
        for (; r.head < c.s.heads; r.head++)
            out[to_place * c.s.heads + r.head] = r;
    }
    if (threadIdx.x == 0)
        out[c.p.items] = { -1, 0, 0, 0 };
}

struct plans {
    struct attention_call of[ATTN_PLANS];
};

/* Plans shape blockIdx.y: blocks 0 and 1 order tiles by query (and empty the queues) and by key,
 * the others write start and end of each row. */
__global__ void __launch_bounds__(PLAN_THREADS) plan(const __grid_constant__ struct plans all)
{
    __shared__ int32_t cu[CU_CACHED];
    struct attention_call c = all.of[blockIdx.y];
    c.s.cu = cached_cu(c.s, cu);
    if (blockIdx.x == 0) {
        if (threadIdx.x < 4)
            c.p.next[threadIdx.x] = 0;
        order_tiles(c, false, c.p.by_query);
    } else if (blockIdx.x == 1) {
        order_tiles(c, true, c.p.by_key);
    } else {
        const int p = (blockIdx.x - 2) * PLAN_THREADS + threadIdx.x;
        if (p >= c.p.padded)
            return;
        const int2 b = start_and_end(c.s, p, document_of(c.s, p));
        c.p.start[p] = b.x;
        c.p.end[p] = b.y;
    }
}

/* lse / ln 2 and delta of all rows, the padding too. */
__global__ void __launch_bounds__(PLAN_THREADS)
    pad_rows(const __grid_constant__ struct attention_call c, const float *lse, const float *delta)
{
    const int p = blockIdx.x * PLAN_THREADS + threadIdx.x;
    start_kernel_behind();
    if (p >= c.p.padded)
        return;
    for (int from = 0; from < c.s.heads; from += HEADS_AT_ONCE) {
        float l[HEADS_AT_ONCE], d[HEADS_AT_ONCE];
        const int n = min(HEADS_AT_ONCE, c.s.heads - from);
#pragma unroll
        for (int i = 0; i < HEADS_AT_ONCE; i++) {
            const int64_t at = (int64_t)(from + i) * c.s.rows + p;
            l[i] = i < n && p < c.s.rows ? lse[at] : 0;
            d[i] = i < n && p < c.s.rows ? delta[at] : 0;
        }
#pragma unroll
        for (int i = 0; i < HEADS_AT_ONCE; i++) {
            const int64_t at = (int64_t)(from + i) * c.p.padded + p;
            if (i < n) {
                if (c.p.added && p % 32 == 0)
                    c.p.added[at / 32] = 0;
                c.p.lse2[at] = l[i] * 1.4426950408889634f;
                c.p.delta[at] = d[i];
            }
        }
    }
}

/* -- host ------------------------------------------------------------------------- */
/* struct reach counts the blocks that a block meets in 15 bits. */
bool valid(const struct attn_shape *s)
{
    const int far = s->window < s->rows ? s->window : s->rows;
    return far / BLOCK + 2 <= 0x7fff && s->rows >= 0 && s->heads > 0 &&
           (int64_t)s->rows * s->heads * s->head_dim < (int64_t)1 << 34 && s->ncu > 0 && s->cu &&
           (s->head_dim == 32 || s->head_dim == 64 || s->head_dim == 128) &&
           attn_qk_dim(s) <= s->head_dim && s->cu_mul > 0 && s->window >= 0 && s->scale > 0;
}

/* Takes parts of memory in turn; with base NULL, counts them. */
struct cutter {
    char *base;
    size_t at;
    template <typename T> void take(T **part, size_t count)
    {
        *part = (T *)(base + at);
        at += (count * sizeof(T) + 255) / 256 * 256;
    }
};

size_t cut_plan(struct attention_plan *p, const struct attn_shape *s, void *memory)
{
    struct cutter c = { (char *)memory, 0 };
    *p = {};
    p->tiles = (s->rows + TILE - 1) / TILE;
    p->padded = p->tiles * TILE;
    p->items = p->tiles * s->heads;
    c.take(&p->next, 4);
    c.take(&p->start, p->padded);
    c.take(&p->end, p->padded);
    c.take(&p->by_query, p->items + 1);
    c.take(&p->by_key, p->items + 1);
    c.take(&p->found[0], p->tiles);
    c.take(&p->found[1], p->tiles);
    assert(c.at <= attn_plan_bytes(s->rows, s->heads));
    return c.at;
}

/* Cuts the memory that backward has beside the plan; returns its bytes. */
size_t cut_sums(struct attention_plan *p, const struct attn_shape *s,
                const struct attention_path *path, void *memory)
{
    struct cutter c = { (char *)memory, 0 };
    const size_t rows = (size_t)s->heads * p->padded;
    c.take(&p->lse2, rows);
    c.take(&p->delta, rows);
    if (path->sums_dq) {
        c.take(&p->dq_sums, rows * s->head_dim);
        c.take(&p->added, rows / 32);
    }
    return c.at;
}

cudaError_t limits_of_gpu(int *multiprocessors, int *shared_bytes)
{
    int device;
    cudaError_t e = cudaGetDevice(&device);
    if (!e)
        e = cudaDeviceGetAttribute(multiprocessors, cudaDevAttrMultiProcessorCount, device);
    if (!e)
        e = cudaDeviceGetAttribute(shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    return e;
}

/* The call of a shape whose plan is in `memory`, without backward's sums. */
cudaError_t begin(struct attention_call *c, const struct attn_shape *s, void *memory)
{
    if (!valid(s))
        return cudaErrorInvalidValue;
    *c = { *s };
    cut_plan(&c->p, s, memory);
    c->unit = s->scale * 1.4426950408889634f;
    return limits_of_gpu(&c->sms, &c->shared_bytes);
}

int row_blocks(const struct attention_call *c)
{
    return (c->p.padded + PLAN_THREADS - 1) / PLAN_THREADS;
}

cudaError_t launch_plans(cudaStream_t stream, const struct plans *all, int n)
{
    int blocks = 0;
    for (int i = 0; i < n; i++)
        blocks = row_blocks(&all->of[i]) > blocks ? row_blocks(&all->of[i]) : blocks;
    if (blocks)
        plan<<<dim3(2 + blocks, n), PLAN_THREADS, 0, stream>>>(*all);
    return cudaGetLastError();
}

/* Begins a call with its plan: the shape's, or one made in the workspace. */
cudaError_t begin_planned(cudaStream_t stream, struct attention_call *c, const struct attn_shape *s,
                          void *workspace)
{
    struct plans own = {};
    cudaError_t e = begin(c, s, s->plan ? s->plan : workspace);

    if (e != cudaSuccess || s->plan)
        return e;
    own.of[0] = *c;
    return launch_plans(stream, &own, 1);
}

} /* namespace */

cudaError_t attention_plans(cudaStream_t stream, const struct attn_shape *s, int n)
{
    struct plans all = {};

    for (int i = 0; i < n; i++) {
        cudaError_t e = begin(&all.of[i], &s[i], s[i].plan);
        if (e != cudaSuccess)
            return e;
    }
    return launch_plans(stream, &all, n);
}

size_t attention_workspace_bytes(const struct attn_shape *s, const struct attention_path *path,
                                 bool backward)
{
    struct attention_plan p;
    const size_t plan = cut_plan(&p, s, NULL);
    return plan + (backward ? cut_sums(&p, s, path, NULL) : 0);
}

cudaError_t attention_forward(cudaStream_t stream, const struct attn_shape *s,
                              const struct attention_path *path, void *out, float *lse,
                              const void *q, const void *k, const void *v, void *workspace)
{
    struct attention_call c;
    cudaError_t e = begin_planned(stream, &c, s, workspace);

    if (e != cudaSuccess || s->rows == 0)
        return e;
    c.lse = lse;
    return path->forward(stream, &c, out, q, k, v);
}

cudaError_t attention_backward(cudaStream_t stream, const struct attn_shape *s,
                               const struct attention_path *path, const struct attention_grads *g,
                               const void *dout, const void *q, const void *k, const void *v,
                               const float *lse, const float *delta, void *workspace)
{
    struct attention_call c;
    cudaError_t e = begin_planned(stream, &c, s, workspace);

    if (e != cudaSuccess || s->rows == 0)
        return e;
    c.grads = *g;
    cut_sums(&c.p, s, path, (char *)workspace + attention_workspace_bytes(s, path, false));
    pad_rows<<<row_blocks(&c), PLAN_THREADS, 0, stream>>>(c, lse, delta);
    if ((e = cudaGetLastError()) != cudaSuccess)
        return e;
    return path->backward(stream, &c, dout, q, k, v);
}

const struct attention_path attention_native = { attention_sm90_forward, attention_sm90_backward,
                                                 false, true };
const struct attention_path attention_portable = { attention_mma_forward, attention_mma_backward,
                                                   true, false };

/* Hopper's own kernels have heads of q and k of v's width, or of 64 or 96 of 128 channels. */
static const struct attention_path *path_of(const struct cuda_ops *c, const struct attn_shape *s)
{
    const int qk = attn_qk_dim(s);
    return qk == s->head_dim || (s->head_dim == 128 && qk != 32) ? c->path->attention
                                                                 : &attention_portable;
}

void gpu_attention_plan(struct ops *o, const struct attn_shape *s, int n)
{
    struct cuda_ops *c = cuda_of(o);

    assert(n <= ATTN_PLANS);
    if (!c->failed)
        CUDA_TRY(c, attention_plans(c->stream, s, n));
}

void gpu_attention(struct ops *o, struct tensor out, struct tensor lse, struct tensor q,
                   struct tensor k, struct tensor v, const struct attn_shape *s)
{
    struct cuda_ops *c = cuda_of(o);
    const struct attention_path *path = path_of(c, s);
    void *workspace = cuda_workspace(c, attention_workspace_bytes(s, path, false));

    assert(q.dtype == DT_BF16 && lse.dtype == DT_F32);
    if (workspace)
        CUDA_TRY(c, attention_forward(c->stream, s, path, out.data, (float *)lse.data, q.data,
                                      k.data, v.data, workspace));
}

void gpu_attention_bwd(struct ops *o, struct tensor dqkv, struct tensor dq, struct tensor dk,
                       struct tensor dv, enum values_grad values, struct tensor dout,
                       struct tensor q, struct tensor k, struct tensor v, struct tensor lse,
                       struct tensor delta, const struct attn_shape *s, const struct qk_made *m)
{
    struct cuda_ops *c = cuda_of(o);
    const struct attention_path *path = path_of(c, s);
    void *workspace = cuda_workspace(c, attention_workspace_bytes(s, path, true));
    /* The kernels that turn gradients back themselves read a table of bf16, of half of a head, or of all of one that
     * is half as wide as v's. */
    const int qk = attn_qk_dim(s);
    bool raw = path->raw_grads && m->rope.table.dtype == DT_BF16 &&
               m->rope.table.cols == (2 * qk == s->head_dim ? qk : qk / 2),
         raw_keys = raw && m->shape.key_offset == KEY_OFFSET_NONE;
    const struct fp8_gradient *g8 = cuda_dqkv8(c, &m->shape);
    int64_t d = (int64_t)s->heads * s->cu_mul * s->head_dim;
    int64_t qd = (int64_t)s->heads * s->cu_mul * attn_qk_dim(s);
    char *to = (char *)(g8 ? g8->codes.data : dqkv.data);
    size_t part = g8 ? qd : 2 * qd; /* bytes of q's or k's in a row */
    float unit = g8 ? g8->scale : 0;
    struct attention_grads g = { dq.data, dk.data, dv.data, qd, qd, d, values == VALUES_ADDED };

    assert(lse.dtype == DT_F32 && delta.dtype == DT_F32 && m->factor.dtype == DT_F32);
    assert(dqkv.cols == 2 * qd + d);
    if (raw) {
        g.factor = (const float *)m->factor.data, g.rope = m->rope.table.data;
        g.dq = to, g.dq_stride = dqkv.cols;
        g.raw_keys = raw_keys;
        g.dq_unit = unit;
    }
    if (raw_keys)
        g.dk = to + part, g.dk_stride = dqkv.cols, g.dk_unit = unit;
    if (raw && values == VALUES_JOINED)
        g.dv = to + 2 * part, g.dv_stride = dqkv.cols, g.dv_unit = unit;
    if (!workspace || !CUDA_TRY(c, attention_backward(c->stream, s, path, &g, dout.data, q.data,
                                                      k.data, v.data, (const float *)lse.data,
                                                      (const float *)delta.data, workspace)))
        return;
    if (!raw_keys)
        cuda_raw_grads(c, dqkv, false, raw ? NULL : dq.data, dk.data,
                       !raw && values == VALUES_JOINED ? dv.data : NULL, q, k, m);
}
