/* comm_group.cu - what the ranks of a process share: meeting, gathering on the host, failing. */
#include "host/comm_group.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <time.h>
extern "C" {
#include "base/progress.h"
}

enum { WATCH_MS = 100 };
static const double MEET_SECONDS = 60; /* for processes to start, at least */
static const double BACK_SECONDS = 2; /* for ranks to come back once all was aborted, at most */

/* A gather on the host: ranks of the process put their parts side by side, the last one exchanges
 * them with the other processes. */
struct meeting {
    int arrived, taking; /* ranks that have come; that have not taken the results yet */
    bool asking; /* the others: all of this process's ranks have come */
    long round; /* complete ones */
    size_t bytes;
    char *mine, *all; /* of the process, of the world */
    size_t size; /* of mine */
    int code; /* of the exchange */
};

struct nccl_group {
    struct rendezvous_place at;
    struct rendezvous *others;
    int gpus;
    double timeout;
    pthread_t watch;
    bool watching, stop;
    pthread_mutex_t lock; /* of everything below */
    pthread_cond_t change;
    struct member **member; /* gpus; NULL: has not come, or has left */
    struct meeting meeting;
    bool failed, aborting;
    int code;
    char message[600];
    double failed_at;
    void (*stuck)(void *ctx, int code, const char *message);
    void *stuck_ctx;
};

/* -- failing ------------------------------------------------------------------------------- */

/* g->lock is held. */
static void group_fail(struct nccl_group *g, int code, const char *message, bool tell)
{
    if (g->failed)
        return;
    g->failed = true;
    g->failed_at = now_seconds();
    g->code = code;
    snprintf(g->message, sizeof g->message, "%s", message);
    if (tell)
        rendezvous_tell(g->others, g->message);
    pthread_cond_broadcast(&g->change);
}

void member_fail(struct member *m, int code, const char *fmt, ...)
{
    char text[600];
    int n = snprintf(text, sizeof text, "rank %d (GPU %d), %s: ", m->c.rank, m->device,
                     member_phase(m));
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text + n, sizeof text - (size_t)n, fmt, ap);
    va_end(ap);
    pthread_mutex_lock(&m->group->lock);
    group_fail(m->group, code, text, true);
    pthread_mutex_unlock(&m->group->lock);
}

bool member_failed(const struct member *m)
{
    pthread_mutex_lock(&m->group->lock);
    bool failed = m->group->failed;
    pthread_mutex_unlock(&m->group->lock);
    return failed;
}

bool member_cuda(struct member *m, cudaError_t e, const char *expr, const char *file, int line)
{
    if (e == cudaSuccess)
        return true;
    member_fail(m, GPT_DEVICE, "%s:%d: %s: %s", file, line, expr, cudaGetErrorString(e));
    return false;
}

bool member_nccl(struct member *m, ncclResult_t e, const char *expr, const char *file, int line)
{
    if (e == ncclSuccess)
        return true;
    const char *more = ncclGetLastError(m->nccl);
    member_fail(m, GPT_DEVICE, "%s:%d: %.60s: NCCL: %s%s%s", file, line, expr,
                ncclGetErrorString(e), more && *more ? ": " : "", more ? more : "");
    return false;
}

void member_sign(struct member *m, const char *what)
{
    __atomic_store_n(&m->sign_ms, (int64_t)(now_seconds() * 1e3), __ATOMIC_RELAXED);
    if (what) {
        __atomic_store_n(&m->last, what, __ATOMIC_RELAXED);
        __atomic_add_fetch(&m->begun, 1, __ATOMIC_RELAXED);
    }
}

static double silence(const struct member *m)
{
    return now_seconds() - 1e-3 * (double)__atomic_load_n(&m->sign_ms, __ATOMIC_RELAXED);
}

/* -- the thread that watches --------------------------------------------------------------- */

/* The communicator's own opinion; false: it has failed. */
static bool nccl_well(struct member *m)
{
    ncclResult_t e = ncclSuccess;

    if (pthread_mutex_trylock(&m->calling)) /* in a call: it will say so itself */
        return true;
    bool asked = m->nccl && ncclCommGetAsyncError(m->nccl, &e) == ncclSuccess;
    pthread_mutex_unlock(&m->calling);
    return !asked || e == ncclSuccess || e == ncclInProgress;
}

/* a is rather the one whom b waits for: behind in collectives, else silent for longer. */
static bool behind(const struct member *a, const struct member *b)
{
    int64_t x = __atomic_load_n(&a->begun, __ATOMIC_RELAXED);
    int64_t y = __atomic_load_n(&b->begun, __ATOMIC_RELAXED);
    return x != y ? x < y : silence(a) > silence(b);
}

/* Of ranks that say they are at work and are not heard of, the one that is to blame. */
static struct member *silent(struct nccl_group *g)
{
    struct member *worst = NULL;
    for (int i = 0; i < g->gpus && !g->meeting.asking; i++) {
        struct member *m = g->member[i];
        if (m && __atomic_load_n(&m->phase, __ATOMIC_RELAXED) && silence(m) > g->timeout &&
            (!worst || behind(m, worst)))
            worst = m;
    }
    return worst;
}

/* g->lock is held. */
static void look(struct nccl_group *g)
{
    char text[600];
    struct member *m;

    if (rendezvous_failed(g->others, text, sizeof text))
        group_fail(g, GPT_DEVICE, text, false);
    for (int i = 0; i < g->gpus && !g->failed; i++)
        if ((m = g->member[i]) && !nccl_well(m)) {
            const char *more = ncclGetLastError(m->nccl);
            snprintf(text, sizeof text, "rank %d (GPU %d), %s: NCCL: %s", m->c.rank, m->device,
                     member_phase(m), more && *more ? more : "failed");
            group_fail(g, GPT_DEVICE, text, true);
        }
    if (!g->failed && (m = silent(g))) {
        const char *last = __atomic_load_n(&m->last, __ATOMIC_RELAXED);
        snprintf(text, sizeof text,
                 "rank %d (GPU %d), %s: no sign of life for %.1f seconds; the "
                 "last collective that it called was %s",
                 m->c.rank, m->device, member_phase(m), silence(m), last ? last : "none");
        group_fail(g, GPT_DEVICE, text, true);
    }
}

/* Ends kernels that wait for other ranks. The rank may sit in a call of NCCL that waits, too: it
 * is given a moment to leave it. The member cannot leave meanwhile. */
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

/* A thread for each: where a GPU hangs the call does not return. g->lock is held. */
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

/* Ranks that have not come back from their GPUs although nothing keeps them there: it is they who
 * hang, whoever was thought to. g->lock is held. */
static void say_stuck(struct nccl_group *g)
{
    char text[600];
    int n = 0;

    for (int i = 0; i < g->gpus; i++) {
        struct member *m = g->member[i];
        if (m && n < (int)sizeof text - 100)
            n += snprintf(text + n, sizeof text - (size_t)n, "%srank %d (GPU %d), %s",
                          n ? "; " : "", m->c.rank, m->device, member_phase(m));
    }
    snprintf(text + n, sizeof text - (size_t)n,
             ": does not come back from its GPU; it began with: "
             "%.300s",
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
    double back = g->timeout < BACK_SECONDS ? g->timeout : BACK_SECONDS;
    bool called = false;

    pthread_mutex_lock(&g->lock);
    while (!g->stop) {
        struct timespec until;
        if (!g->failed)
            look(g);
        if (g->failed && !g->aborting) {
            g->aborting = true;
            abort_all(g);
        }
        if (g->failed && !called && !empty(g) && g->stuck && now_seconds() - g->failed_at > back) {
            called = true;
            say_stuck(g);
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

/* -- ranks come and go --------------------------------------------------------------------- */

void group_join(struct member *m)
{
    struct nccl_group *g = m->group;
    pthread_mutex_lock(&g->lock);
    member_sign(m, NULL);
    m->aborted = g->aborting; /* too late for it */
    g->member[m->c.local_rank] = m;
    pthread_mutex_unlock(&g->lock);
}

void group_leave(struct member *m)
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

/* g->lock is held by the last rank of the process that came; it is released while others are
 * asked. */
static void exchange(struct nccl_group *g)
{
    struct meeting *t = &g->meeting;
    size_t bytes = t->bytes * (size_t)g->gpus;
    int rc;

    t->asking = true; /* whoever is late now is watched where he is */
    pthread_mutex_unlock(&g->lock);
    rc = rendezvous_gather(g->others, t->mine, bytes, t->all);
    pthread_mutex_lock(&g->lock);
    t->asking = false;
    for (int i = 0; i < g->gpus; i++)
        if (g->member[i])
            member_sign(g->member[i], NULL);
    if (rc)
        group_fail(g, rc, err_message(), false);
    t->arrived = 0;
    t->taking = rc ? 0 : g->gpus;
    t->round++;
    pthread_cond_broadcast(&g->change);
}

static bool make_room(struct meeting *t, size_t bytes, int gpus, int world)
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

/* g->lock is held: until something changes, a second at most. */
static void rest(struct nccl_group *g, int i)
{
    struct timespec until;
    member_sign(g->member[i], NULL); /* it waits for others: they are watched */
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += 1;
    pthread_cond_timedwait(&g->change, &g->lock, &until);
}

int group_gather(struct nccl_group *g, int rank, const void *mine, size_t bytes, void *all)
{
    struct meeting *t = &g->meeting;
    int i = rank - nccl_group_first(g), world = nccl_group_world(g), rc = GPT_OK;

    pthread_mutex_lock(&g->lock);
    while (!g->failed && t->taking > 0) /* the results of the round before */
        rest(g, i);
    if (!g->failed && t->arrived > 0 && t->bytes != bytes)
        group_fail(g, GPT_DEVICE, "ranks gather different numbers of bytes", true);
    if (!g->failed && t->arrived == 0 && !make_room(t, bytes, g->gpus, world))
        group_fail(g, GPT_SYSTEM, "out of memory", true);
    if (!g->failed) {
        long round = t->round;
        memcpy(t->mine + (size_t)i * bytes, mine, bytes);
        if (++t->arrived == g->gpus)
            exchange(g);
        while (!g->failed && t->round == round)
            rest(g, i);
    }
    if (g->failed) {
        rc = err_set(g->code, "%s", g->message);
    } else {
        memcpy(all, t->all, bytes * (size_t)world);
        if (--t->taking == 0)
            pthread_cond_broadcast(&g->change);
    }
    pthread_mutex_unlock(&g->lock);
    return rc;
}

int group_id(struct nccl_group *g, int rank, ncclUniqueId *id)
{
    int world = nccl_group_world(g), rc;
    ncclUniqueId mine = {}, *all = (ncclUniqueId *)malloc((size_t)world * sizeof *all);
    ncclResult_t e = rank == 0 ? ncclGetUniqueId(&mine) : ncclSuccess;

    if (!all)
        return err_sys("rank %d", rank);
    if (e != ncclSuccess) {
        free(all);
        return err_set(GPT_DEVICE, "rank 0: NCCL: %s", ncclGetErrorString(e));
    }
    rc = group_gather(g, rank, &mine, sizeof mine, all);
    *id = all[0];
    free(all);
    return rc;
}

/* -- life ---------------------------------------------------------------------------------- */

int nccl_group_world(const struct nccl_group *g) { return g->gpus * g->at.processes; }
int nccl_group_first(const struct nccl_group *g) { return g->gpus * g->at.process; }

/* A process of several on one machine has the GPUs after those of its neighbours, unless its
 * launcher shows it only its own. */
int nccl_group_device(const struct nccl_group *g, int i)
{
    int visible = 0;
    cudaGetDeviceCount(&visible);
    return visible >= (g->at.local + 1) * g->gpus ? g->at.local * g->gpus + i : i;
}

void nccl_group_abort(void *group, int rank, int code, const char *message)
{
    struct nccl_group *g = (struct nccl_group *)group;
    char text[600];

    snprintf(text, sizeof text, "rank %d, start: %s", rank, message);
    pthread_mutex_lock(&g->lock);
    group_fail(g, code, text, true);
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

/* All processes must bring the same number of GPUs. */
static int compare_gpus(struct nccl_group *g)
{
    int *all = (int *)malloc((size_t)g->at.processes * sizeof *all), rc;
    if (!all)
        return err_sys("group");
    rc = rendezvous_gather(g->others, &g->gpus, sizeof g->gpus, all);
    for (int i = 0; !rc && i < g->at.processes; i++)
        if (all[i] != g->gpus)
            rc = err_set(GPT_USAGE,
                         "process %d has %d GPUs, process %d has %d: all must have as "
                         "many",
                         g->at.process, g->gpus, i, all[i]);
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
    g->timeout = timeout_s;
    g->member = (struct member **)calloc((size_t)gpus, sizeof *g->member);
    pthread_mutex_init(&g->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&g->change, &monotonic);
    pthread_condattr_destroy(&monotonic);
    rc = g->member ? rendezvous_environment(&g->at) : err_sys("group");
    g->at.ranks = gpus;
    if (!rc && !(rc = rendezvous_new(&g->others, &g->at, fmax(timeout_s, MEET_SECONDS), timeout_s)))
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
    rendezvous_free(g->others);
    pthread_cond_destroy(&g->change);
    pthread_mutex_destroy(&g->lock);
    free(g->meeting.mine);
    free(g->meeting.all);
    free(g->member);
    free(g);
}
