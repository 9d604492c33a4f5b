/* comm_copies.cu - see comm_copies.h. */
#include "host/comm_copies.h"

#include <stdlib.h>
#include <string.h>
#include "vec.h"
extern "C" {
#include "base/grow.h"
}

#if NCCL_VERSION_CODE < NCCL_VERSION(2, 28, 0)
#error "NCCL 2.28 or newer is needed, which gathers by copies"
#endif

/* Below the first a kernel of NCCL is as fast. Above the second, memory for what is received is not
 * taken. */
enum { COPIES_LEAST = 4 << 20, RECEIVED_MOST = 80 << 20 };

/* -- memory -------------------------------------------------------------------------------- */

static cudaError_t take(void **p, size_t bytes)
{
    size_t left = 0, total = 0;
    if (ncclMemAlloc(p, bytes) == ncclSuccess)
        return cudaSuccess;
    cudaError_t e = cudaGetLastError();
    cudaMemGetInfo(&left, &total);
    return e == cudaSuccess || left < bytes ? cudaErrorMemoryAllocation : e;
}

static cudaError_t give(void *p) { return ncclMemFree(p) ? cudaErrorUnknown : cudaSuccess; }

void copies_memory(struct ops *o)
{
    cuda_of(o)->take_shared = take;
    cuda_of(o)->give_shared = give;
}

bool copies_possible(const struct nccl_group *g)
{
    int n = nccl_group_world(g), version = 0;
    bool all = n > 1 && n == nccl_group_gpus(g) && ncclGetVersion(&version) == ncclSuccess &&
               version >= NCCL_VERSION(2, 28, 0);

    for (int i = 0; i < n && all; i++)
        for (int k = 0; k < n && all; k++) {
            int can = i == k;
            if (i != k)
                cudaDeviceCanAccessPeer(&can, nccl_group_device(g, i), nccl_group_device(g, k));
            all = can;
        }
    return all;
}

/* NULL: NCCL has no symmetric memory, on any rank; or a failure. */
static ncclWindow_t register_window(struct member *m, void *base, size_t bytes)
{
    ncclWindow_t win = NULL;

    if (MEMBER_NCCL(m,
                    ncclCommWindowRegister(m->nccl, base, bytes, &win, NCCL_WIN_COLL_SYMMETRIC)) &&
        !win)
        m->copies = false, m->c.piece = 0;
    return win;
}

static void drop_received(struct member *m)
{
    if (m->received_win)
        MEMBER_NCCL(m, ncclCommWindowDeregister(m->nccl, m->received_win));
    if (m->received[0].at)
        MEMBER_NCCL(m, ncclMemFree(m->received[0].at));
    m->received_win = NULL;
    m->received[0].at = m->received[1].at = NULL;
    m->received_bytes = 0;
}

/* The first collective by copies makes NCCL allocate, which a capture would not bear. */
static void begin_copies(struct member *m)
{
    size_t chunk = m->received_bytes / m->c.world;
    char *at = m->received[0].at;
    if (MEMBER_NCCL(
            m, ncclAllGather(at + m->c.rank * chunk, at, chunk, ncclUint8, m->nccl, m->stream)))
        MEMBER_CUDA(m, cudaStreamSynchronize(m->stream));
}

static void take_received(struct member *m, size_t bytes)
{
    size_t each = (bytes + 4095) / 4096 * 4096;
    void *p = NULL;

    drop_received(m);
    if (take(&p, 2 * each) != cudaSuccess) {
        nccl_member_fail(m, GPT_DEVICE, "too little memory: %zu MiB for what is received",
                         2 * each >> 20);
        return;
    }
    m->received[0].at = (char *)p;
    m->received[1].at = (char *)p + each;
    if (!(m->received_win = register_window(m, p, 2 * each)))
        return;
    m->received_bytes = bytes;
    begin_copies(m);
}

void copies_share(struct member *m, void *memory, size_t bytes, size_t reduced)
{
    struct window w = { (char *)memory, bytes, NULL };

    if (!m->copies || w.bytes < COPIES_LEAST || !(w.win = register_window(m, w.base, w.bytes)))
        return;
    if (grow_one(&m->window, (size_t)m->n_windows, sizeof *m->window)) {
        nccl_member_fail(m, GPT_SYSTEM, "out of memory");
        return;
    }
    m->window[m->n_windows++] = w;
    size_t most = (reduced < (size_t)RECEIVED_MOST ? reduced : (size_t)RECEIVED_MOST) / m->c.world *
                  m->c.world;
    if (reduced >= COPIES_LEAST && most > m->received_bytes)
        take_received(m, most);
}

bool copies_start(struct member *m)
{
    if (!m->copies)
        return true;
    bool ok = nccl_member_stream(m, &m->adding) && nccl_member_event(m, &m->exchanged);
    for (int k = 0; k < 2; k++)
        ok = ok && nccl_member_event(m, &m->received[k].added);
    return ok;
}

void copies_free(struct member *m)
{
    if (m->nccl && !nccl_member_failed(m)) {
        drop_received(m);
        while (m->n_windows > 0)
            MEMBER_NCCL(m, ncclCommWindowDeregister(m->nccl, m->window[--m->n_windows].win));
    }
    for (int k = 0; k < 2; k++)
        if (m->received[k].added)
            cudaEventDestroy(m->received[k].added);
    if (m->exchanged)
        cudaEventDestroy(m->exchanged);
    if (m->adding)
        cudaStreamDestroy(m->adding);
    free(m->window);
}

/* -- collectives --------------------------------------------------------------------------- */

/* True if each chunk lies in the rank's equal share: at its front, or anywhere. */
static bool is_even(const struct member *m, struct tensor full, const struct span *own, bool front)
{
    int64_t share = full.rows / m->c.world;
    bool even = full.rows % m->c.world == 0;
    for (int r = 0; r < m->c.world && own && even; r++) {
        int64_t at = own[r].first - r * share;
        even = !own[r].count || (at >= 0 && at + own[r].count <= share && (at == 0 || !front));
    }
    return even;
}

/* True if the tensor lies in a window. */
static bool is_shared(const struct member *m, struct tensor full)
{
    const char *first = (const char *)full.data, *end = first + tensor_bytes(full);
    bool found = false;
    for (int i = 0; i < m->n_windows && m->copies && !found; i++)
        found = first >= m->window[i].base && end <= m->window[i].base + m->window[i].bytes;
    return found;
}

bool copies_gather(struct member *m, struct tensor full, const struct span *own)
{
    if (!is_shared(m, full) || !is_even(m, full, own, true))
        return false;
    size_t share = tensor_bytes(full) / m->c.world;
    MEMBER_NCCL(m, ncclAllGather((char *)full.data + m->c.rank * share, full.data, share, ncclUint8,
                                 m->nccl, m->stream));
    m->copied++;
    return true;
}

/* 16 bytes of bf16, of f32. */
__device__ __forceinline__ void unpack(float (&x)[8], uint4 u) { unpack8(x, u); }
__device__ __forceinline__ void unpack(float (&x)[4], uint4 u) { memcpy(x, &u, sizeof u); }
__device__ __forceinline__ uint4 pack(const float (&x)[8]) { return pack8(x); }
__device__ __forceinline__ uint4 pack(const float (&x)[4])
{
    uint4 u;
    memcpy(&u, x, sizeof u);
    return u;
}

/* out = mean over ranks r of part[r stride ..]; n vectors of N numbers, strides in vectors. A
 * thread has FLIGHT vectors of a rank in flight. */
enum { ADDERS = 256, FLIGHT = 4 };
template <int N>
__global__ static void __launch_bounds__(ADDERS)
    comm_mean(uint4 *out, const uint4 *part, int64_t stride, int64_t n, int world)
{
    for (int64_t at = (int64_t)blockIdx.x * FLIGHT * ADDERS + threadIdx.x; at < n;
         at += (int64_t)gridDim.x * FLIGHT * ADDERS) {
        float sum[FLIGHT][N] = {}, x[N];
        uint4 u[FLIGHT];
        for (int r = 0; r < world; r++) {
#pragma unroll
            for (int f = 0; f < FLIGHT; f++)
                if (at + f * ADDERS < n)
                    u[f] = __ldcs(part + r * stride + at + f * ADDERS);
#pragma unroll
            for (int f = 0; f < FLIGHT; f++) {
                unpack(x, u[f]);
#pragma unroll
                for (int k = 0; k < N; k++)
                    sum[f][k] = r ? sum[f][k] + x[k] : x[k];
            }
        }
#pragma unroll
        for (int f = 0; f < FLIGHT; f++) {
#pragma unroll
            for (int k = 0; k < N; k++)
                sum[f][k] = __fdiv_rn(sum[f][k], (float)world);
            if (at + f * ADDERS < n)
                store16(out + at + f * ADDERS, pack(sum[f]));
        }
    }
}

/* Makes what is added up next wait for the exchanges so far. */
static bool follow_exchanges(struct member *m)
{
    return MEMBER_CUDA(m, cudaEventRecord(m->exchanged, m->stream)) &&
           MEMBER_CUDA(m, cudaStreamWaitEvent(m->adding, m->exchanged, 0));
}

/* Computes, after the exchange and on a stream of its own, the mean of what this rank received, a
 * chunk every `stride` bytes. */
static void add_up(struct member *m, struct received *from, size_t offset, size_t stride,
                   struct tensor out)
{
    enum { VECTOR = 16 };
    int64_t n = (int64_t)tensor_bytes(out) / VECTOR;
    auto kernel = out.dtype == DT_F32 ? comm_mean<4> : comm_mean<8>;
    int blocks = div_up(n, FLIGHT * ADDERS);

    if (!follow_exchanges(m))
        return;
    kernel<<<min(blocks, 4 * m->ops->sms), ADDERS, 0, m->adding>>>(
        (uint4 *)out.data, (const uint4 *)(from->at + offset), (int64_t)stride / VECTOR, n,
        m->c.world);
    if (MEMBER_CUDA(m, cudaGetLastError()) &&
        MEMBER_CUDA(m, cudaEventRecord(from->added, m->adding)))
        nccl_member_capture(m, &from->capture);
}

/* Waits for the sums of r, unless they were queued before this capture, which they precede. */
static void wait_added(struct member *m, cudaStream_t stream, const struct received *r)
{
    unsigned long long now = 0;
    if (nccl_member_capture(m, &now) && now == r->capture)
        MEMBER_CUDA(m, cudaStreamWaitEvent(stream, r->added, 0));
}

void copies_wait(struct member *m)
{
    for (int k = 0; k < 2 && m->copies; k++)
        wait_added(m, m->ops->stream, &m->received[k]);
}

/* Memory for the next exchange, when what it held has been added up. */
static struct received *next_received(struct member *m)
{
    struct received *r = &m->received[m->turn];
    wait_added(m, m->stream, r);
    m->turn = 1 - m->turn;
    m->copied++;
    return r;
}

/* Rows of every rank to their owner. */
static void collect(struct member *m, struct tensor rows, int owner)
{
    struct received *to = next_received(m);
    size_t bytes = tensor_bytes(rows);
    MEMBER_NCCL(m, ncclGather(rows.data, to->at, bytes, ncclUint8, owner, m->nccl, m->stream));
    if (owner == m->c.rank)
        add_up(m, to, 0, bytes, rows);
}

/* Sends all shares to their owners, who add up their chunks. */
static void exchange(struct member *m, struct tensor full, const struct span *own)
{
    struct received *to = next_received(m);
    int64_t share = full.rows / m->c.world, first = m->c.rank * share;
    struct span mine = own ? own[m->c.rank] : (struct span){ first, share };
    size_t bytes = tensor_bytes(tensor_rows(full, 0, share));
    MEMBER_NCCL(m, ncclAlltoAll(full.data, to->at, bytes, ncclUint8, m->nccl, m->stream));
    if (mine.count)
        add_up(m, to, tensor_bytes(tensor_rows(full, 0, mine.first - first)), bytes,
               tensor_rows(full, mine.first, mine.count));
}

/* Reduces to one owner after the other if that sends less than all shares at once. */
bool copies_reduce(struct member *m, struct tensor full, const struct span *own, cudaStream_t *last)
{
    int world = m->c.world;
    int64_t rows = 0, most = 0;

    if (!is_shared(m, full) || (full.dtype != DT_BF16 && full.dtype != DT_F32) ||
        tensor_bytes(tensor_rows(full, 0, 1)) % 16)
        return false;
    for (int r = 0; r < world; r++) {
        int64_t n = own ? own[r].count : full.rows / world;
        rows += n, most = n > most ? n : most;
    }
    bool fits = tensor_bytes(tensor_rows(full, 0, most)) * world <= m->received_bytes;
    bool in_turn = own && rows <= full.rows / world && fits;
    bool at_once = is_even(m, full, own, false) && tensor_bytes(full) <= m->received_bytes;
    if (tensor_bytes(tensor_rows(full, 0, rows)) < COPIES_LEAST || (!in_turn && !at_once))
        return false;
    for (int r = 0; r < world && in_turn; r++)
        if (own[r].count)
            collect(m, tensor_rows(full, own[r].first, own[r].count), r);
    if (!in_turn)
        exchange(m, full, own);
    if (own && !own[m->c.rank].count)
        return true;
    follow_exchanges(m); /* also those behind the one that it adds up */
    *last = m->adding;
    return true;
}
