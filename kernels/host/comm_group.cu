/* comm_group.cu - what the ranks of a process share: connections to the other processes, gathers on
 * the host, detection of failures. */
#include "host/comm_copies.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <time.h>
extern "C" {
#include "base/progress.h"
}

enum { WATCH_MS = 100 };
static const double CONNECT_SECONDS = 60; /* for all processes to start, at least */
static const double ABORT_SECONDS = 2; /* from the abort until ranks must have left, at most */

/* A gather on the host: the ranks of the process write their parts side by side, the last one to
 * arrive exchanges them with the other processes. */
struct host_gather {
    int arrived, unread; /* ranks that have arrived; that have not copied the results yet */
    bool exchanging; /* all of this process's ranks have arrived */
    long round; /* complete ones */
    size_t bytes;
    char *mine, *all; /* of the process, of the world */
    size_t size; /* of mine */
};

struct nccl_group {
    struct rendezvous_env env;
    struct rendezvous *rendezvous;
    int gpus;
    double timeout;
    ncclUniqueId id; /* of the communicator, of the process that has rank 0 */
    bool has_id;
    pthread_t watch;
    bool watching, stop;
    pthread_mutex_t lock; /* of everything below */
    pthread_cond_t change;
    struct member **member; /* gpus; NULL: has not joined, or has left */
    struct host_gather gather;
    int copies; /* of copies_possible; -1: it has not been asked */
    bool failed, aborting;
    int code;
    char message[600];
    double failed_at;
    void (*stuck)(void *ctx, int code, const char *message);
    void *stuck_ctx;
};

/* -- failing ------------------------------------------------------------------------------- */

/* g->lock is held. tell: the other processes do not know yet. */
static void PRINTF_LIKE(4, 5)
    group_fail(struct nccl_group *g, int code, bool tell, const char *fmt, ...)
{
    va_list ap;

    if (g->failed)
        return;
    g->failed = true;
    g->failed_at = now_seconds();
    g->code = code;
    va_start(ap, fmt);
    vsnprintf(g->message, sizeof g->message, fmt, ap);
    va_end(ap);
    if (tell)
        rendezvous_tell(g->rendezvous, g->message);
    pthread_cond_broadcast(&g->change);
}

void nccl_member_fail(struct member *m, int code, const char *fmt, ...)
{
    char text[600];
    int n = snprintf(text, sizeof text, "rank %d (GPU %d), %s: ", m->c.rank, m->device,
                     nccl_member_phase(m));
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text + n, sizeof text - (size_t)n, fmt, ap);
    va_end(ap);
    pthread_mutex_lock(&m->group->lock);
    group_fail(m->group, code, true, "%s", text);
    pthread_mutex_unlock(&m->group->lock);
}

bool nccl_member_failed(const struct member *m)
{
    pthread_mutex_lock(&m->group->lock);
    bool failed = m->group->failed;
    pthread_mutex_unlock(&m->group->lock);
    return failed;
}

bool nccl_member_cuda(struct member *m, cudaError_t e, const char *expr, const char *file, int line)
{
    if (e == cudaSuccess)
        return true;
    nccl_member_fail(m, GPT_DEVICE, "%s:%d: %s: %s", file, line, expr, cudaGetErrorString(e));
    return false;
}

bool nccl_member_nccl(struct member *m, ncclResult_t e, const char *expr, const char *file,
                      int line)
{
    if (e == ncclSuccess)
        return true;
    const char *more = ncclGetLastError(m->nccl);
    nccl_member_fail(m, GPT_DEVICE, "%s:%d: %.60s: NCCL: %s%s%s", file, line, expr,
                     ncclGetErrorString(e), more && *more ? ": " : "", more ? more : "");
    return false;
}

void nccl_member_active(struct member *m, const char *what)
{
    __atomic_store_n(&m->active_ms, (int64_t)(now_seconds() * 1e3), __ATOMIC_RELAXED);
    if (what) {
        __atomic_store_n(&m->last, what, __ATOMIC_RELAXED);
        __atomic_add_fetch(&m->begun, 1, __ATOMIC_RELAXED);
    }
}

static double inactive_seconds(const struct member *m)
{
    return now_seconds() - 1e-3 * (double)__atomic_load_n(&m->active_ms, __ATOMIC_RELAXED);
}

/* -- the thread that watches --------------------------------------------------------------- */

/* Polls ncclCommGetAsyncError; false: the communicator has failed. */
static bool nccl_healthy(struct member *m)
{
    ncclResult_t e = ncclSuccess;

    if (pthread_mutex_trylock(&m->calling)) /* inside a call of NCCL, which returns the error */
        return true;
    bool known = m->nccl && ncclCommGetAsyncError(m->nccl, &e) == ncclSuccess;
    pthread_mutex_unlock(&m->calling);
    return !known || e == ncclSuccess || e == ncclInProgress;
}

/* a has called fewer collectives than b, or as many and has been inactive for longer. */
static bool behind(const struct member *a, const struct member *b)
{
    int64_t x = __atomic_load_n(&a->begun, __ATOMIC_RELAXED);
    int64_t y = __atomic_load_n(&b->begun, __ATOMIC_RELAXED);
    return x != y ? x < y : inactive_seconds(a) > inactive_seconds(b);
}

/* Returns the rank furthest behind of those in a phase that are past the timeout, for which the
 * others wait, or NULL. */
static struct member *find_stalled(struct nccl_group *g)
{
    struct member *last = NULL;
    for (int i = 0; i < g->gpus && !g->gather.exchanging; i++) {
        struct member *m = g->member[i];
        if (m && __atomic_load_n(&m->phase, __ATOMIC_RELAXED) && inactive_seconds(m) > g->timeout &&
            (!last || behind(m, last)))
            last = m;
    }
    return last;
}

/* g->lock is held. */
static void find_failure(struct nccl_group *g)
{
    char text[600];
    struct member *m;

    if (rendezvous_failed(g->rendezvous, text, sizeof text))
        group_fail(g, GPT_DEVICE, false, "%s", text);
    for (int i = 0; i < g->gpus && !g->failed; i++)
        if ((m = g->member[i]) && !nccl_healthy(m)) {
            const char *more = ncclGetLastError(m->nccl);
            group_fail(g, GPT_DEVICE, true, "rank %d (GPU %d), %s: NCCL: %s", m->c.rank, m->device,
                       nccl_member_phase(m), more && *more ? more : "failed");
        }
    if (!g->failed && (m = find_stalled(g))) {
        const char *last = __atomic_load_n(&m->last, __ATOMIC_RELAXED);
        group_fail(
            g, GPT_DEVICE, true,
            "rank %d (GPU %d), %s: no progress for %.1f seconds; the last collective that it "
            "called was %s",
            m->c.rank, m->device, nccl_member_phase(m), inactive_seconds(m), last ? last : "none");
    }
}

/* Ends kernels that wait for other ranks. The rank may be inside a call of NCCL that waits as well:
 * it has a second to return from it. The member cannot leave the group meanwhile. */
static void *abort_main(void *arg)
{
    struct member *m = (struct member *)arg;
    struct nccl_group *g = m->group;
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 1;
    bool locked = pthread_mutex_timedlock(&m->calling, &until) == 0;
    ncclComm_t nccl = m->nccl;
    m->nccl = NULL;
    if (nccl)
        ncclCommAbort(nccl);
    if (locked)
        pthread_mutex_unlock(&m->calling);
    pthread_mutex_lock(&g->lock);
    m->aborted = true;
    pthread_cond_broadcast(&g->change);
    pthread_mutex_unlock(&g->lock);
    return NULL;
}

/* One thread a rank: where a GPU hangs, ncclCommAbort does not return. g->lock is held. */
static void abort_all(struct nccl_group *g)
{
    for (int i = 0; i < g->gpus; i++) {
        struct member *m = g->member[i];
        pthread_t thread;
        if (!m)
            continue;
        if (pthread_create(&thread, NULL, abort_main, m))
            m->aborted = true;
        else
            pthread_detach(thread);
    }
    pthread_cond_broadcast(&g->change);
}

static bool in_phase(const struct member *m)
{
    return m && __atomic_load_n(&m->phase, __ATOMIC_RELAXED);
}

/* Ranks that are still inside CUDA after the abort are the real hang, whichever rank was reported
 * first. A rank that has left its phase is back: it may wait in its clean-up (destroying a graph
 * can wait for another GPU), and is named only if all do. g->lock is held. */
static void report_stuck(struct nccl_group *g)
{
    char text[600];
    bool any = false;
    int n = 0;

    for (int i = 0; i < g->gpus; i++)
        any |= in_phase(g->member[i]);
    for (int i = 0; i < g->gpus; i++) {
        struct member *m = g->member[i];
        if (m && (in_phase(m) || !any) && n < (int)sizeof text - 100)
            n += snprintf(text + n, sizeof text - (size_t)n, "%srank %d (GPU %d), %s",
                          n ? "; " : "", m->c.rank, m->device, nccl_member_phase(m));
    }
    snprintf(text + n, sizeof text - (size_t)n,
             ": still inside CUDA after all communicators were aborted; first failure: %.300s",
             g->message);
    g->stuck(g->stuck_ctx, g->code, text);
}

static bool empty(const struct nccl_group *g)
{
    for (int i = 0; i < g->gpus; i++)
        if (g->member[i])
            return false;
    return true;
}

static void *watch_main(void *arg)
{
    struct nccl_group *g = (struct nccl_group *)arg;
    double limit = g->timeout < ABORT_SECONDS ? g->timeout : ABORT_SECONDS;
    bool called = false;

    pthread_mutex_lock(&g->lock);
    while (!g->stop) {
        struct timespec until;
        if (!g->failed)
            find_failure(g);
        if (g->failed && !g->aborting) {
            g->aborting = true;
            abort_all(g);
        }
        if (g->failed && !called && !empty(g) && g->stuck && now_seconds() - g->failed_at > limit) {
            called = true;
            report_stuck(g);
        }
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += WATCH_MS * 1000000L;
        until.tv_sec += until.tv_nsec / 1000000000L;
        until.tv_nsec %= 1000000000L;
        if (!g->stop && (!g->failed || g->aborting))
            pthread_cond_timedwait(&g->change, &g->lock, &until);
    }
    pthread_mutex_unlock(&g->lock);
    return NULL;
}

/* -- joining and leaving ------------------------------------------------------------------- */

void nccl_group_join(struct member *m)
{
    struct nccl_group *g = m->group;
    pthread_mutex_lock(&g->lock);
    nccl_member_active(m, NULL);
    m->aborted = g->aborting; /* abort_all() has run without it */
    g->member[m->c.local_rank] = m;
    pthread_mutex_unlock(&g->lock);
}

void nccl_group_leave(struct member *m)
{
    struct nccl_group *g = m->group;
    pthread_mutex_lock(&g->lock);
    while (g->failed && !m->aborted)
        pthread_cond_wait(&g->change, &g->lock);
    g->member[m->c.local_rank] = NULL;
    pthread_mutex_unlock(&g->lock);
}

int nccl_group_status(struct nccl_group *g)
{
    int rc = GPT_OK;
    pthread_mutex_lock(&g->lock);
    if (g->failed)
        rc = err_set(g->code, "%s", g->message);
    pthread_mutex_unlock(&g->lock);
    return rc;
}

/* -- gathering on the host ----------------------------------------------------------------- */

/* Exchanges with the other processes; called by the last rank of the process to arrive, which holds
 * g->lock; that is released during the exchange. */
static void exchange(struct nccl_group *g)
{
    struct host_gather *t = &g->gather;
    size_t bytes = t->bytes * (size_t)g->gpus;
    int rc;

    t->exchanging = true; /* a late rank of another process is detected there */
    pthread_mutex_unlock(&g->lock);
    rc = rendezvous_gather(g->rendezvous, t->mine, bytes, t->all);
    pthread_mutex_lock(&g->lock);
    t->exchanging = false;
    for (int i = 0; i < g->gpus; i++)
        if (g->member[i])
            nccl_member_active(g->member[i], NULL);
    if (rc)
        group_fail(g, rc, false, "%s", err_message());
    t->arrived = 0;
    t->unread = rc ? 0 : g->gpus;
    t->round++;
    pthread_cond_broadcast(&g->change);
}

static bool make_room(struct host_gather *t, size_t bytes, int gpus, int world)
{
    if (bytes > t->size) {
        free(t->mine);
        free(t->all);
        t->mine = (char *)malloc(bytes * (size_t)gpus);
        t->all = (char *)malloc(bytes * (size_t)world);
        t->size = t->mine && t->all ? bytes : 0;
    }
    t->bytes = bytes;
    return t->size >= bytes;
}

/* g->lock is held. Waits for g->change, a second at most. */
static void wait_change(struct nccl_group *g, int i)
{
    struct timespec until;
    nccl_member_active(g->member[i], NULL); /* a rank that waits has not stalled */
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += 1;
    pthread_cond_timedwait(&g->change, &g->lock, &until);
}

int nccl_group_gather(struct nccl_group *g, int rank, const void *mine, size_t bytes, void *all)
{
    struct host_gather *t = &g->gather;
    int i = rank - nccl_group_first(g), world = nccl_group_world(g), rc = GPT_OK;

    pthread_mutex_lock(&g->lock);
    while (!g->failed && t->unread > 0) /* the results of the round before */
        wait_change(g, i);
    if (!g->failed && t->arrived > 0 && t->bytes != bytes)
        group_fail(g, GPT_DEVICE, true, "ranks gather different numbers of bytes");
    if (!g->failed && t->arrived == 0 && !make_room(t, bytes, g->gpus, world))
        group_fail(g, GPT_SYSTEM, true, "out of memory");
    if (!g->failed) {
        long round = t->round;
        memcpy(t->mine + (size_t)i * bytes, mine, bytes);
        if (++t->arrived == g->gpus)
            exchange(g);
        while (!g->failed && t->round == round)
            wait_change(g, i);
    }
    if (g->failed) {
        rc = err_set(g->code, "%s", g->message);
    } else {
        memcpy(all, t->all, bytes * (size_t)world);
        if (--t->unread == 0)
            pthread_cond_broadcast(&g->change);
    }
    pthread_mutex_unlock(&g->lock);
    return rc;
}

int nccl_group_begin(struct nccl_group *g)
{
    ncclResult_t e = g->env.process || g->has_id ? ncclSuccess : ncclGetUniqueId(&g->id);

    if (e != ncclSuccess)
        return err_set(GPT_DEVICE, "rank 0: NCCL: %s", ncclGetErrorString(e));
    g->has_id = true;
    return 0;
}

int nccl_group_id(struct nccl_group *g, int rank, ncclUniqueId *id)
{
    int world = nccl_group_world(g), rc = rank ? 0 : nccl_group_begin(g);
    ncclUniqueId mine = {}, *all;

    if (rc)
        return rc;
    if (!(all = (ncclUniqueId *)malloc((size_t)world * sizeof *all)))
        return err_sys("rank %d", rank);
    if (rank == 0)
        mine = g->id;
    rc = nccl_group_gather(g, rank, &mine, sizeof mine, all);
    *id = all[0];
    free(all);
    return rc;
}

/* -- start and end ------------------------------------------------------------------------ */

int nccl_group_world(const struct nccl_group *g) { return g->gpus * g->env.processes; }
int nccl_group_gpus(const struct nccl_group *g) { return g->gpus; }
int nccl_group_first(const struct nccl_group *g) { return g->gpus * g->env.process; }

bool nccl_group_copies(struct nccl_group *g)
{
    pthread_mutex_lock(&g->lock);
    if (g->copies < 0)
        g->copies = copies_possible(g);
    bool copies = g->copies > 0;
    pthread_mutex_unlock(&g->lock);
    return copies;
}

/* Processes on one machine take its GPUs in their local order, unless the launcher makes only its
 * own GPUs visible to each. */
int nccl_group_device(const struct nccl_group *g, int i)
{
    int visible = 0;
    cudaGetDeviceCount(&visible);
    return visible >= (g->env.local + 1) * g->gpus ? g->env.local * g->gpus + i : i;
}

void nccl_group_abort(void *group, int rank, int code, const char *message)
{
    struct nccl_group *g = (struct nccl_group *)group;

    pthread_mutex_lock(&g->lock);
    group_fail(g, code, true, "rank %d, start: %s", rank, message);
    pthread_mutex_unlock(&g->lock);
}

void nccl_group_stuck(struct nccl_group *g, void (*stuck)(void *ctx, int code, const char *message),
                      void *ctx)
{
    pthread_mutex_lock(&g->lock);
    g->stuck = stuck;
    g->stuck_ctx = ctx;
    pthread_mutex_unlock(&g->lock);
}

/* Checks that all processes have the same number of GPUs. */
static int compare_gpus(struct nccl_group *g)
{
    int *all = (int *)malloc((size_t)g->env.processes * sizeof *all), rc;
    if (!all)
        return err_sys("group");
    rc = rendezvous_gather(g->rendezvous, &g->gpus, sizeof g->gpus, all);
    for (int i = 0; !rc && i < g->env.processes; i++)
        if (all[i] != g->gpus)
            rc = err_set(GPT_USAGE,
                         "process %d has %d GPUs, process %d has %d: all must have as "
                         "many",
                         g->env.process, g->gpus, i, all[i]);
    free(all);
    return rc;
}

int nccl_group_new(struct nccl_group **out, int gpus, double timeout_s)
{
    struct nccl_group *g = (struct nccl_group *)calloc(1, sizeof *g);
    pthread_condattr_t monotonic;
    int rc;

    *out = NULL;
    if (!g)
        return err_sys("group");
    g->gpus = gpus;
    g->copies = -1;
    g->timeout = timeout_s;
    g->member = (struct member **)calloc((size_t)gpus, sizeof *g->member);
    pthread_mutex_init(&g->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&g->change, &monotonic);
    pthread_condattr_destroy(&monotonic);
    rc = g->member ? rendezvous_environment(&g->env) : err_sys("group");
    g->env.ranks = gpus;
    if (!rc && !(rc = rendezvous_new(&g->rendezvous, &g->env, fmax(timeout_s, CONNECT_SECONDS),
                                     timeout_s)))
        rc = compare_gpus(g);
    if (!rc && pthread_create(&g->watch, NULL, watch_main, g))
        rc = err_sys("group: thread");
    g->watching = !rc;
    if (rc) {
        nccl_group_free(g);
        return rc;
    }
    *out = g;
    return GPT_OK;
}

void nccl_group_free(struct nccl_group *g)
{
    if (!g)
        return;
    if (g->watching) {
        pthread_mutex_lock(&g->lock);
        g->stop = true;
        pthread_cond_broadcast(&g->change);
        pthread_mutex_unlock(&g->lock);
        pthread_join(g->watch, NULL);
    }
    rendezvous_free(g->rendezvous);
    pthread_cond_destroy(&g->change);
    pthread_mutex_destroy(&g->lock);
    free(g->gather.mine);
    free(g->gather.all);
    free(g->member);
    free(g);
}
