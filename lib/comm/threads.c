/* threads.c - ranks as threads of one process: collectives through shared memory.
 *
 * A collective is a slot that every rank fills in with its tensors. When the last rank has arrived,
 * the collective is divided into tasks, which write disjoint memory and read none that another
 * task writes. Ranks that wait for the collective take tasks until none is left, so it progresses
 * while other ranks compute, without threads of its own and without spinning. A task always adds in
 * the order of ranks: the result does not depend on which rank carries it out.
 *
 * After a failure no task is started, and no call returns while one is still running: a rank that
 * sees the failure may free its tensors.
 */
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "comm/comm.h"

enum { SLOTS = 128 }; /* collectives in flight; a further one completes the oldest */
static const double HANG_SECONDS = 600;

enum kind { REDUCE_SCATTER, ALL_GATHER, ALL_REDUCE, BROADCAST, ALL_TO_ALL, BARRIER, GATHER_HOST };

static const char *const kind_name[] = {
    "reduce-scatter", "all-gather", "all-reduce", "broadcast", "all-to-all", "barrier", "gather",
};

/* What one rank contributes to a collective. */
struct entry {
    bool here;
    struct tensor t, send;
    int64_t *recv_rows, *send_rows; /* world each, owned by the slot */
    struct span *own; /* world, in the memory of the two above: chunks of the ranks */
    const double *mine;
    double *all;
};

struct slot {
    int64_t seq; /* which collective; -1: none yet */
    enum kind kind;
    int root, n;
    int arrived, tasks, claimed, done;
    struct entry *e; /* world */
};

struct group {
    pthread_mutex_t lock;
    pthread_cond_t change; /* the last rank arrived, a slot is done, or a failure */
    int world, users;
    int running; /* tasks being carried out, outside the lock */
    double hang_seconds;
    int failed, failed_rank; /* code of the first failure */
    char message[400];
    struct slot slot[SLOTS];
    struct entry *entries;
    int64_t *rows;
};

struct member {
    struct comm c;
    struct group *g;
    int64_t seq; /* collectives that this rank has launched */
};

static struct member *member_of(struct comm *c) { return (struct member *)c; }

/* -- tasks: sums and copies -------------------------------------------------------- */

enum { BLOCK = 1024 }; /* elements summed at a time, on the stack */
enum { SMALL = 4096 }; /* elements below which an all-reduce is one task */

static int count_tasks(enum kind kind, int world, struct tensor t)
{
    if (kind == BARRIER || (world == 1 && kind != GATHER_HOST && kind != ALL_TO_ALL))
        return 0;
    if (kind == ALL_REDUCE && tensor_count(t) < SMALL)
        return 1;
    return world;
}

static void load(float *restrict to, struct tensor t, int64_t at, int n)
{
    if (t.dtype == DT_BF16) {
        const uint16_t *p = (const uint16_t *)t.data + at;
        for (int i = 0; i < n; i++)
            to[i] = bf16_to_f32(p[i]);
    } else {
        assert(t.dtype == DT_F32);
        memcpy(to, (const float *)t.data + at, (size_t)n * sizeof *to);
    }
}

static void store(struct tensor t, int64_t at, const float *restrict from, int n)
{
    if (t.dtype == DT_BF16) {
        uint16_t *p = (uint16_t *)t.data + at;
        for (int i = 0; i < n; i++)
            p[i] = bf16_from_f32(from[i]);
    } else {
        memcpy((float *)t.data + at, from, (size_t)n * sizeof *from);
    }
}

/* Elements first .. end-1: the mean over ranks, to rank `to`, or to all when to < 0. */
static void mean(const struct slot *s, int world, int64_t first, int64_t end, int to)
{
    float sum[BLOCK], x[BLOCK];
    for (int64_t at = first; at < end; at += BLOCK) {
        int n = end - at < BLOCK ? (int)(end - at) : BLOCK;
        load(sum, s->e[0].t, at, n);
        for (int r = 1; r < world; r++) {
            load(x, s->e[r].t, at, n);
            for (int i = 0; i < n; i++)
                sum[i] += x[i];
        }
        for (int i = 0; i < n; i++)
            sum[i] /= (float)world;
        for (int r = 0; r < world; r++)
            if (to < 0 || r == to)
                store(s->e[r].t, at, sum, n);
    }
}

static void copy_rows(struct tensor to, int64_t to_row, struct tensor from, int64_t row, int64_t n)
{
    struct tensor d = tensor_rows(to, to_row, n), f = tensor_rows(from, row, n);
    if (n > 0 && d.data != f.data)
        memcpy(d.data, f.data, tensor_bytes(f));
}

/* Rank r's rows of an all-to-all, from every rank's send buffer. */
static void receive(const struct slot *s, int world, int r)
{
    int64_t at = 0;
    for (int from = 0; from < world; from++) {
        int64_t skip = 0, n = s->e[r].recv_rows[from];
        for (int q = 0; q < r; q++)
            skip += s->e[from].send_rows[q];
        copy_rows(s->e[r].t, at, s->e[from].send, skip, n);
        at += n;
    }
}

static void run_task(const struct slot *s, int world, int task)
{
    struct tensor t = s->e[task].t;
    const struct span *own = s->e[task].own;
    int64_t count = tensor_count(t);
    switch (s->kind) {
    case REDUCE_SCATTER:
        mean(s, world, own[task].first * t.cols, (own[task].first + own[task].count) * t.cols,
             task);
        break;
    case ALL_GATHER:
        for (int r = 0; r < world; r++)
            copy_rows(t, own[r].first, s->e[r].t, own[r].first, own[r].count);
        break;
    case ALL_REDUCE:
        mean(s, world, count * task / s->tasks, count * (task + 1) / s->tasks, -1);
        break;
    case BROADCAST: copy_rows(t, 0, s->e[s->root].t, 0, t.rows); break;
    case ALL_TO_ALL: receive(s, world, task); break;
    case GATHER_HOST:
        for (int r = 0; r < world; r++)
            memcpy(s->e[task].all + (size_t)r * s->n, s->e[r].mine, (size_t)s->n * sizeof(double));
        break;
    case BARRIER: break;
    }
}

/* -- arriving and waiting; g->lock is held ---------------------------------------- */

static void PRINTF_LIKE(4, 5) fail(struct group *g, int rank, int code, const char *fmt, ...)
{
    va_list ap;
    if (g->failed)
        return;
    g->failed = code;
    g->failed_rank = rank;
    va_start(ap, fmt);
    vsnprintf(g->message, sizeof g->message, fmt, ap);
    va_end(ap);
    pthread_cond_broadcast(&g->change);
}

static bool complete(const struct group *g, const struct slot *s)
{
    return s->seq < 0 || (s->arrived == g->world && s->done == s->tasks);
}

static void fail_timeout(struct group *g, const struct slot *s)
{
    int absent = 0;
    while (absent < g->world - 1 && s->e[absent].here)
        absent++;
    fail(g, absent, GPT_DEVICE, "did not come to %s %lld within %g seconds", kind_name[s->kind],
         (long long)s->seq, g->hang_seconds);
}

/* Until collective seq in slot s is complete, or a rank failed. */
static void complete_or_fail(struct group *g, struct slot *s, int64_t seq)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)g->hang_seconds;
    until.tv_nsec += (long)((g->hang_seconds - (double)(time_t)g->hang_seconds) * 1e9);
    if (until.tv_nsec >= 1000000000L) {
        until.tv_nsec -= 1000000000L;
        until.tv_sec++;
    }
    while (!g->failed && s->seq == seq && !complete(g, s)) {
        if (s->arrived == g->world && s->claimed < s->tasks) {
            int task = s->claimed++;
            g->running++;
            pthread_mutex_unlock(&g->lock);
            run_task(s, g->world, task);
            pthread_mutex_lock(&g->lock);
            g->running--;
            if (++s->done == s->tasks || g->failed)
                pthread_cond_broadcast(&g->change);
        } else if (pthread_cond_timedwait(&g->change, &g->lock, &until) == ETIMEDOUT &&
                   s->seq == seq && s->arrived < g->world) {
            fail_timeout(g, s);
        }
    }
    while (g->failed && g->running > 0)
        pthread_cond_wait(&g->change, &g->lock);
}

static bool same_shape(struct tensor a, struct tensor b)
{
    return a.dtype == b.dtype && a.rows == b.rows && a.cols == b.cols;
}

/* Ranks that call different collectives would read past each other's memory. */
static void check_agreement(struct group *g, const struct slot *s, enum kind kind, int root, int n,
                            const struct entry *mine, int rank)
{
    const struct entry *first = NULL;
    for (int r = 0; r < g->world && !first; r++)
        if (s->e[r].here)
            first = &s->e[r];
    if (!first || (kind == s->kind && root == s->root && n == s->n &&
                   (kind == ALL_TO_ALL || same_shape(first->t, mine->t))))
        return;
    fail(g, rank, GPT_DEVICE,
         "collective %lld: %s of %lld x %lld %s where another rank has %s of %lld x %lld %s",
         (long long)s->seq, kind_name[kind], (long long)mine->t.rows, (long long)mine->t.cols,
         dtype_name(mine->t.dtype), kind_name[s->kind], (long long)first->t.rows,
         (long long)first->t.cols, dtype_name(first->t.dtype));
}

static void check_counts(struct group *g, const struct slot *s)
{
    for (int r = 0; r < g->world; r++)
        for (int q = 0; q < g->world; q++)
            if (s->e[r].recv_rows[q] != s->e[q].send_rows[r]) {
                fail(g, r, GPT_DEVICE,
                     "all-to-all %lld: expects %lld rows of rank %d, which sends %lld",
                     (long long)s->seq, (long long)s->e[r].recv_rows[q], q,
                     (long long)s->e[q].send_rows[r]);
                return;
            }
}

static void check_chunks(struct group *g, const struct slot *s)
{
    for (int r = 1; r < g->world; r++)
        if (memcmp(s->e[r].own, s->e[0].own, (size_t)g->world * sizeof(struct span))) {
            fail(g, r, GPT_DEVICE, "%s %lld: other chunks than rank 0 has", kind_name[s->kind],
                 (long long)s->seq);
            return;
        }
}

/* Adds this rank's entry to its next collective, whose ticket it returns. */
static comm_ticket arrive(struct comm *c, enum kind kind, int root, int n, struct entry mine)
{
    struct member *m = member_of(c);
    struct group *g = m->g;
    int64_t seq = m->seq++;
    struct slot *s = &g->slot[seq % SLOTS];
    size_t row_bytes = (size_t)g->world * sizeof(int64_t);

    pthread_mutex_lock(&g->lock);
    if (s->seq != seq)
        complete_or_fail(g, s, s->seq); /* the collective SLOTS before this one */
    if (g->failed) {
        pthread_mutex_unlock(&g->lock);
        return 0;
    }
    if (s->seq != seq) {
        s->seq = seq;
        s->kind = kind, s->root = root, s->n = n;
        s->arrived = s->claimed = s->done = 0;
        s->tasks = count_tasks(kind, g->world, mine.t);
        for (int r = 0; r < g->world; r++)
            s->e[r].here = false;
    }
    int rank = g->world == 1 ? 0 : c->rank; /* one alone may stand for a rank of many */
    check_agreement(g, s, kind, root, n, &mine, rank);
    struct entry *e = &s->e[rank];
    if (mine.recv_rows) /* the caller's counts need not live until the wait */
        memcpy(e->recv_rows, mine.recv_rows, row_bytes);
    if (mine.send_rows)
        memcpy(e->send_rows, mine.send_rows, row_bytes);
    if (mine.own)
        memcpy(e->own, mine.own, (size_t)g->world * sizeof *mine.own);
    mine.recv_rows = e->recv_rows;
    mine.send_rows = e->send_rows;
    mine.own = e->own;
    mine.here = true;
    *e = mine;
    if (++s->arrived == g->world) {
        if (kind == ALL_TO_ALL)
            check_counts(g, s);
        else if (kind == REDUCE_SCATTER || kind == ALL_GATHER)
            check_chunks(g, s);
        pthread_cond_broadcast(&g->change);
    }
    pthread_mutex_unlock(&g->lock);
    return (comm_ticket)(seq + 1);
}

static void threads_wait(struct comm *c, comm_ticket ticket)
{
    struct group *g = member_of(c)->g;
    if (ticket == 0)
        return;
    pthread_mutex_lock(&g->lock);
    complete_or_fail(g, &g->slot[(ticket - 1) % SLOTS], ticket - 1);
    pthread_mutex_unlock(&g->lock);
}

/* -- the interface ----------------------------------------------------------------- */

static comm_ticket arrive_chunks(struct comm *c, enum kind kind, struct tensor full,
                                 const struct span *own)
{
    int64_t part = full.rows / c->world;
    struct span s[c->world];
    assert(own || full.rows % c->world == 0);
    for (int r = 0; r < c->world; r++) {
        s[r] = own ? own[r] : (struct span){ r * part, part };
        assert(s[r].first >= 0 && s[r].count >= 0 && s[r].first + s[r].count <= full.rows);
    }
    return arrive(c, kind, 0, 0, (struct entry){ .t = full, .own = s });
}

/* Does nothing: all memory is shared. */
static void threads_share(struct comm *c, void *memory, size_t bytes, size_t reduced)
{
    (void)c;
    (void)memory;
    (void)bytes;
    (void)reduced;
}

static comm_ticket threads_reduce_scatter(struct comm *c, struct tensor full,
                                          const struct span *own)
{
    return arrive_chunks(c, REDUCE_SCATTER, full, own);
}

static comm_ticket threads_all_gather(struct comm *c, struct tensor full, const struct span *own)
{
    return arrive_chunks(c, ALL_GATHER, full, own);
}

static comm_ticket threads_all_reduce(struct comm *c, struct tensor t)
{
    return arrive(c, ALL_REDUCE, 0, 0, (struct entry){ .t = t });
}

/* Does nothing: a collective of threads has no launch. */
static void threads_group(struct comm *c, bool open)
{
    (void)c;
    (void)open;
}

static comm_ticket threads_broadcast(struct comm *c, struct tensor t, int root)
{
    assert(root >= 0 && root < c->world);
    return arrive(c, BROADCAST, root, 0, (struct entry){ .t = t });
}

static comm_ticket threads_all_to_all(struct comm *c, struct tensor recv, const int64_t *recv_rows,
                                      struct tensor send, const int64_t *send_rows)
{
    assert(recv.cols == send.cols && recv.dtype == send.dtype);
    return arrive(c, ALL_TO_ALL, 0, 0,
                  (struct entry){ .t = recv,
                                  .send = send,
                                  .recv_rows = (int64_t *)recv_rows,
                                  .send_rows = (int64_t *)send_rows });
}

static int threads_status(struct comm *c)
{
    struct group *g = member_of(c)->g;
    int rc = GPT_OK;
    pthread_mutex_lock(&g->lock);
    while (g->failed && g->running > 0)
        pthread_cond_wait(&g->change, &g->lock);
    if (g->failed)
        rc = g->world == 1 ? err_set(g->failed, "%s", g->message)
                           : err_set(g->failed, "rank %d: %s", g->failed_rank, g->message);
    pthread_mutex_unlock(&g->lock);
    return rc;
}

static int threads_barrier(struct comm *c)
{
    threads_wait(c, arrive(c, BARRIER, 0, 0, (struct entry){ 0 }));
    return threads_status(c);
}

static int threads_gather_host(struct comm *c, const double *mine, int n, double *all)
{
    threads_wait(c, arrive(c, GATHER_HOST, 0, n, (struct entry){ .mine = mine, .all = all }));
    return threads_status(c);
}

static void threads_abort(struct comm *c, int code, const char *message)
{
    struct group *g = member_of(c)->g;
    pthread_mutex_lock(&g->lock);
    fail(g, c->rank, code, "%s", message);
    while (g->running > 0)
        pthread_cond_wait(&g->change, &g->lock);
    pthread_mutex_unlock(&g->lock);
}

void comm_threads_timeout(struct comm *c, double seconds)
{
    struct group *g = member_of(c)->g;
    pthread_mutex_lock(&g->lock);
    g->hang_seconds = seconds;
    pthread_mutex_unlock(&g->lock);
}

static void group_free(struct group *g)
{
    pthread_cond_destroy(&g->change);
    pthread_mutex_destroy(&g->lock);
    free(g->entries);
    free(g->rows);
    free(g);
}

static void threads_free(struct comm *c)
{
    struct group *g = member_of(c)->g;
    pthread_mutex_lock(&g->lock);
    int left = --g->users;
    pthread_mutex_unlock(&g->lock);
    free(member_of(c));
    if (left == 0)
        group_free(g);
}

static struct group *group_new(int world)
{
    struct group *g = calloc(1, sizeof *g);
    pthread_condattr_t attr;
    if (!g)
        return NULL;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&g->change, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&g->lock, NULL);
    g->entries = calloc((size_t)SLOTS * world, sizeof *g->entries);
    g->rows = calloc((size_t)SLOTS * world * world * 2, sizeof *g->rows);
    if (!g->entries || !g->rows) {
        group_free(g);
        return NULL;
    }
    g->world = world;
    g->hang_seconds = HANG_SECONDS;
    for (int i = 0; i < SLOTS; i++) {
        g->slot[i].seq = -1;
        g->slot[i].e = g->entries + (size_t)i * world;
        for (int r = 0; r < world; r++) {
            int64_t *rows = g->rows + ((size_t)i * world + r) * world * 2;
            g->slot[i].e[r].recv_rows = rows;
            g->slot[i].e[r].send_rows = rows + world;
            g->slot[i].e[r].own = (struct span *)rows;
        }
    }
    return g;
}

int comm_threads_new(struct comm **out, int world)
{
    assert(world >= 1);
    struct group *g = group_new(world);
    if (!g)
        return err_sys("communicator of %d ranks", world);
    for (int r = 0; r < world; r++) {
        struct member *m = calloc(1, sizeof *m);
        if (!m) {
            if (r == 0)
                group_free(g);
            while (r > 0)
                threads_free(out[--r]);
            return err_sys("communicator of %d ranks", world);
        }
        m->g = g;
        g->users++;
        m->c = (struct comm){
            .rank = r,
            .world = world,
            .local_rank = r,
            .share = threads_share,
            .reduce_scatter = threads_reduce_scatter,
            .all_gather = threads_all_gather,
            .all_reduce = threads_all_reduce,
            .group = threads_group,
            .broadcast = threads_broadcast,
            .all_to_all = threads_all_to_all,
            .wait = threads_wait,
            .barrier = threads_barrier,
            .gather_host = threads_gather_host,
            .status = threads_status,
            .abort = threads_abort,
            .free = threads_free,
        };
        out[r] = &m->c;
    }
    return GPT_OK;
}
