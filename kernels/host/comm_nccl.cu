/* comm_nccl.cu - collectives over NCCL; see comm_nccl.h. The group and its watch are in
 * comm_group.cu. */
#include "host/comm_copies.h"

#include <stdlib.h>
#include "ops_cuda.h"

static struct member *member_of(struct comm *c) { return (struct member *)c; }

/* -- tickets ------------------------------------------------------------------------------- */

bool nccl_member_capture(struct member *m, unsigned long long *id)
{
    cudaStreamCaptureStatus status;
    *id = 0;
    return MEMBER_CUDA(m, cudaStreamGetCaptureInfo(m->ops->stream, &status, id));
}

/* The stream of collectives waits for what is queued on the rank's stream. */
static bool begin(struct member *m, const char *what)
{
    cudaEvent_t queued = m->queued[m->seq % TICKETS];
    if (nccl_member_failed(m))
        return false;
    nccl_member_active(m, what);
    pthread_mutex_lock(&m->calling);
    if (m->nccl && MEMBER_CUDA(m, cudaEventRecord(queued, m->ops->stream)) &&
        MEMBER_CUDA(m, cudaStreamWaitEvent(m->stream, queued, 0)))
        return true;
    pthread_mutex_unlock(&m->calling);
    return false;
}

/* last: the stream that has it all behind it. */
static comm_ticket end(struct member *m, cudaStream_t last)
{
    struct ticket *t = &m->ticket[m->seq % TICKETS];
    bool ok = MEMBER_CUDA(m, cudaEventRecord(t->done, last)) && nccl_member_capture(m, &t->capture);
    pthread_mutex_unlock(&m->calling);
    m->seq++;
    return ok ? (comm_ticket)m->seq : 0;
}

static void nccl_wait(struct comm *c, comm_ticket ticket)
{
    struct member *m = member_of(c);
    struct ticket *t;
    unsigned long long capture;

    if (ticket == 0 || nccl_member_failed(m))
        return;
    nccl_member_active(m, NULL);
    if (m->seq - ticket >= TICKETS) { /* its event was reused: wait for a later one */
        ticket = (comm_ticket)(m->seq - TICKETS + 1);
        copies_wait(m);
    }
    t = &m->ticket[(ticket - 1) % TICKETS];
    if (!nccl_member_capture(m, &capture))
        return;
    if (t->capture == capture)
        MEMBER_CUDA(m, cudaStreamWaitEvent(m->ops->stream, t->done, 0));
    else if (capture)
        nccl_member_fail(m, GPT_DEVICE, "a collective from before the capture is waited for in it");
    /* else it belongs to a graph that was launched: all of it precedes this in the stream */
}

/* -- collectives --------------------------------------------------------------------------- */

static bool type_of(struct member *m, enum dtype t, ncclDataType_t *type)
{
    switch (t) {
    case DT_F64: *type = ncclFloat64; return true;
    case DT_F32: *type = ncclFloat32; return true;
    case DT_BF16: *type = ncclBfloat16; return true;
    case DT_F16: *type = ncclFloat16; return true;
    case DT_I64: *type = ncclInt64; return true;
    case DT_I32: *type = ncclInt32; return true;
    case DT_U8: *type = ncclUint8; return true;
    case DT_I8: *type = ncclInt8; return true;
    default:
        nccl_member_fail(m, GPT_DEVICE, "NCCL does not know type %s", dtype_name(t));
        return false;
    }
}

static char *rows_at(struct tensor t, int64_t row) { return (char *)tensor_rows(t, row, 0).data; }

/* Uneven chunks: one reduction to each owner. NCCL's rings then move all of `full` through every
 * rank, where a reduce-scatter moves one chunk less. */
static void reduce_chunks(struct member *m, struct tensor full, const struct span *own,
                          ncclDataType_t type)
{
    bool ok = MEMBER_NCCL(m, ncclGroupStart());
    for (int r = 0; ok && r < m->c.world; r++) {
        char *at = rows_at(full, own[r].first);
        if (own[r].count)
            ok = MEMBER_NCCL(m, ncclReduce(at, at, (size_t)(own[r].count * full.cols), type,
                                           ncclAvg, r, m->nccl, m->stream));
    }
    if (ok)
        MEMBER_NCCL(m, ncclGroupEnd());
}

static comm_ticket nccl_reduce_scatter(struct comm *c, struct tensor full, const struct span *own)
{
    struct member *m = member_of(c);
    int64_t chunk = full.rows / c->world;
    cudaStream_t last = m->stream;
    ncclDataType_t type;

    assert(own || full.rows % c->world == 0);
    if (!type_of(m, full.dtype, &type) || !begin(m, "reduce-scatter"))
        return 0;
    if (copies_reduce(m, full, own, &last))
        ;
    else if (own)
        reduce_chunks(m, full, own, type);
    else
        MEMBER_NCCL(m, ncclReduceScatter(full.data, rows_at(full, c->rank * chunk),
                                         (size_t)(chunk * full.cols), type, ncclAvg, m->nccl,
                                         m->stream));
    return end(m, last);
}

/* Uneven chunks: each rank sends its own to every other rank directly. */
static void send_chunks(struct member *m, struct tensor full, const struct span *own)
{
    int me = m->c.rank;
    struct tensor mine = tensor_rows(full, own[me].first, own[me].count);
    bool ok = MEMBER_NCCL(m, ncclGroupStart());
    for (int r = 0; ok && r < m->c.world; r++) {
        struct tensor other = tensor_rows(full, own[r].first, own[r].count);
        if (r != me && mine.rows)
            ok = MEMBER_NCCL(
                m, ncclSend(mine.data, tensor_bytes(mine), ncclUint8, r, m->nccl, m->stream));
        if (ok && r != me && other.rows)
            ok = MEMBER_NCCL(
                m, ncclRecv(other.data, tensor_bytes(other), ncclUint8, r, m->nccl, m->stream));
    }
    if (ok)
        MEMBER_NCCL(m, ncclGroupEnd());
}

static comm_ticket nccl_all_gather(struct comm *c, struct tensor full, const struct span *own)
{
    struct member *m = member_of(c);
    int64_t chunk = full.rows / c->world;

    assert(own || full.rows % c->world == 0);
    if (!begin(m, "all-gather"))
        return 0;
    if (copies_gather(m, full, own))
        ;
    else if (own)
        send_chunks(m, full, own);
    else
        MEMBER_NCCL(m, ncclAllGather(rows_at(full, c->rank * chunk), full.data,
                                     tensor_bytes(tensor_rows(full, 0, chunk)), ncclUint8, m->nccl,
                                     m->stream));
    return end(m, m->stream);
}

static void nccl_group(struct comm *c, bool open)
{
    struct member *m = member_of(c);

    if (open && begin(m, "all-reduce")) {
        m->grouped = MEMBER_NCCL(m, ncclGroupStart());
        if (!m->grouped)
            end(m, m->stream);
    } else if (!open && m->grouped) {
        m->grouped = false;
        MEMBER_NCCL(m, ncclGroupEnd());
        end(m, m->stream);
    }
}

/* In a group the ticket is that of the group, which its end queues. */
static comm_ticket nccl_all_reduce(struct comm *c, struct tensor t)
{
    struct member *m = member_of(c);
    ncclDataType_t type;

    if (!type_of(m, t.dtype, &type) || (!m->grouped && !begin(m, "all-reduce")))
        return 0;
    MEMBER_NCCL(m, ncclAllReduce(t.data, t.data, (size_t)tensor_count(t), type, ncclAvg, m->nccl,
                                 m->stream));
    return m->grouped ? (comm_ticket)(m->seq + 1) : end(m, m->stream);
}

static comm_ticket nccl_broadcast(struct comm *c, struct tensor t, int root)
{
    struct member *m = member_of(c);

    assert(root >= 0 && root < c->world);
    if (!begin(m, "broadcast"))
        return 0;
    MEMBER_NCCL(
        m, ncclBroadcast(t.data, t.data, tensor_bytes(t), ncclUint8, root, m->nccl, m->stream));
    return end(m, m->stream);
}

static comm_ticket nccl_all_to_all(struct comm *c, struct tensor recv, const int64_t *recv_rows,
                                   struct tensor send, const int64_t *send_rows)
{
    struct member *m = member_of(c);
    int64_t from = 0, to = 0;

    assert(recv.cols == send.cols && recv.dtype == send.dtype);
    if (!begin(m, "all-to-all"))
        return 0;
    bool ok = MEMBER_NCCL(m, ncclGroupStart());
    for (int r = 0; ok && r < c->world; r++) {
        struct tensor out = tensor_rows(send, to, send_rows[r]);
        struct tensor in = tensor_rows(recv, from, recv_rows[r]);
        if (out.rows)
            ok = MEMBER_NCCL(
                m, ncclSend(out.data, tensor_bytes(out), ncclUint8, r, m->nccl, m->stream));
        if (ok && in.rows)
            ok = MEMBER_NCCL(m,
                             ncclRecv(in.data, tensor_bytes(in), ncclUint8, r, m->nccl, m->stream));
        to += out.rows;
        from += in.rows;
    }
    if (ok)
        MEMBER_NCCL(m, ncclGroupEnd());
    return end(m, m->stream);
}

/* -- host side ----------------------------------------------------------------------------- */

static int nccl_gather_host(struct comm *c, const double *mine, int n, double *all)
{
    struct member *m = member_of(c);
    nccl_member_active(m, "gather");
    int rc = nccl_group_gather(m->group, c->rank, mine, (size_t)n * sizeof *mine, all);
    nccl_member_active(m, NULL);
    return rc;
}

static int nccl_barrier(struct comm *c)
{
    double one = 1, *all = (double *)malloc((size_t)c->world * sizeof *all);
    int rc = all ? nccl_gather_host(c, &one, 1, all) : err_sys("barrier");
    free(all);
    return rc;
}

/* NCCL waits without a timeout for all to register their memory: the barrier finds ranks that
 * failed. */
static void nccl_share(struct comm *c, void *memory, size_t bytes, size_t reduced)
{
    struct member *m = member_of(c);

    if (!m->copies || nccl_member_failed(m) || (!m->n_windows && nccl_barrier(c)))
        return;
    nccl_member_active(m, "share");
    pthread_mutex_lock(&m->calling);
    if (m->nccl)
        copies_share(m, memory, bytes, reduced);
    pthread_mutex_unlock(&m->calling);
}

static int nccl_status(struct comm *c) { return nccl_group_status(member_of(c)->group); }

static void nccl_abort(struct comm *c, int code, const char *message)
{
    nccl_member_fail(member_of(c), code, "%s", message);
}

int64_t comm_nccl_copied(struct comm *c) { return member_of(c)->copied; }

void comm_nccl_phase(struct comm *c, const char *phase)
{
    struct member *m = member_of(c);
    __atomic_store_n(&m->phase, phase, __ATOMIC_RELAXED);
    if (phase)
        __atomic_store_n(&m->worked, true, __ATOMIC_RELAXED);
    nccl_member_active(m, NULL);
}

/* -- start and end ------------------------------------------------------------------------ */

static void nccl_free(struct comm *c)
{
    struct member *m = member_of(c);

    if (!c)
        return;
    nccl_group_leave(m); /* the watching thread no longer uses m->nccl */
    copies_free(m);
    if (m->nccl && nccl_member_failed(m))
        ncclCommAbort(m->nccl); /* created after the failure, so not aborted yet */
    else if (m->nccl)
        ncclCommDestroy(m->nccl);
    for (int i = 0; i < TICKETS; i++) {
        if (m->queued[i])
            cudaEventDestroy(m->queued[i]);
        if (m->ticket[i].done)
            cudaEventDestroy(m->ticket[i].done);
    }
    if (m->stream)
        cudaStreamDestroy(m->stream);
    pthread_mutex_destroy(&m->calling);
    free(m);
}

bool nccl_member_stream(struct member *m, cudaStream_t *stream)
{
    int least, greatest;
    return MEMBER_CUDA(m, cudaDeviceGetStreamPriorityRange(&least, &greatest)) &&
           MEMBER_CUDA(m, cudaStreamCreateWithPriority(stream, cudaStreamNonBlocking, greatest));
}

bool nccl_member_event(struct member *m, cudaEvent_t *event)
{
    return MEMBER_CUDA(m, cudaEventCreateWithFlags(event, cudaEventDisableTiming));
}

static bool start(struct member *m, const ncclUniqueId *id)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    if (!MEMBER_CUDA(m, cudaSetDevice(m->device)) || !nccl_member_stream(m, &m->stream))
        return false;
    for (int i = 0; i < TICKETS; i++)
        if (!nccl_member_event(m, &m->queued[i]) || !nccl_member_event(m, &m->ticket[i].done))
            return false;
    if (!copies_start(m))
        return false;
    if (m->copies)
        config.CTAPolicy = NCCL_CTA_POLICY_ZERO;
    return MEMBER_NCCL(m, ncclCommInitRankConfig(&m->nccl, m->c.world, *id, m->c.rank, &config));
}

int nccl_group_ops(struct ops **o, int i, void *group)
{
    struct nccl_group *g = (struct nccl_group *)group;
    int rc = ops_cuda_new(o, nccl_group_device(g, i));

    if (!rc && nccl_group_copies(g))
        copies_memory(*o);
    return rc;
}

int comm_nccl_new(struct comm **out, struct ops *o, int rank, int world, void *group)
{
    struct nccl_group *g = (struct nccl_group *)group;
    struct member *m = (struct member *)calloc(1, sizeof *m);
    ncclUniqueId id;
    int rc;

    *out = NULL;
    if (!m)
        return err_sys("communicator of rank %d", rank);
    assert(world == nccl_group_world(g));
    m->c.rank = rank;
    m->c.world = world;
    m->c.local_rank = rank - nccl_group_first(g);
    m->c.share = nccl_share;
    m->c.reduce_scatter = nccl_reduce_scatter;
    m->c.all_gather = nccl_all_gather;
    m->c.all_reduce = nccl_all_reduce;
    m->c.group = nccl_group;
    m->c.broadcast = nccl_broadcast;
    m->c.all_to_all = nccl_all_to_all;
    m->c.wait = nccl_wait;
    m->c.barrier = nccl_barrier;
    m->c.gather_host = nccl_gather_host;
    m->c.status = nccl_status;
    m->c.abort = nccl_abort;
    m->c.free = nccl_free;
    m->group = g;
    m->device = cuda_of(o)->device;
    m->ops = cuda_of(o);
    m->copies = m->ops->take_shared != NULL;
    m->c.piece = m->copies ? COPIES_PIECE : 0;
    pthread_mutex_init(&m->calling, NULL);
    nccl_group_join(m);
    /* ncclCommInitRank waits without a timeout: the gather before it finds ranks that failed. */
    if ((rc = nccl_group_id(g, rank, &id)) ||
        (start(m, &id) ? rc = nccl_barrier(&m->c) : (rc = nccl_status(&m->c)))) {
        nccl_free(&m->c);
        return rc;
    }
    *out = &m->c;
    return GPT_OK;
}
