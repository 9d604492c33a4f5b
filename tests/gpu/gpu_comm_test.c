/* gpu_comm_test.c - collectives over NCCL, one thread a GPU, against sums made here; captured in a
 * graph; and what becomes of the others when a rank fails or does not come.
 *
 *     gpu_comm_test             all GPUs of this process (at least 2)
 *     gpu_comm_test node N      one process of several with N GPUs each (RANK, WORLD_SIZE,
 *                               LOCAL_RANK, MASTER_ADDR, MASTER_PORT), collectives only
 * Numbers are small multiples of 1/8, so that NCCL's sums in bf16 are exact in any order.
 * What share() is told of goes by copies where the GPUs have access to each other; all is tested with and without.
 */
#include <cuda_runtime.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#include "../kernels/host/comm_nccl.h"
#include "../kernels/ops_cuda.h"
#include "check.h"
#include "recipe/share.h"
#include "optim/sparse.h"

enum { MAX_GPUS = 16 };

struct rank_test {
    pthread_t thread;
    struct nccl_group *g;
    int i;
    void (*run)(struct comm *c, struct ops *o);
};

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *rank_main(void *arg)
{
    struct rank_test *t = arg;
    struct ops *o = NULL;
    struct comm *c = NULL;

    if (CHECK_OK(nccl_group_ops(&o, t->i, t->g)) &&
        CHECK_OK(
            comm_nccl_new(&c, o, nccl_group_first(t->g) + t->i, nccl_group_world(t->g), t->g))) {
        t->run(c, o);
        c->free(c);
    }
    if (o)
        o->free(o);
    return NULL;
}

static void with_ranks(int gpus, double timeout, void (*run)(struct comm *c, struct ops *o))
{
    struct rank_test t[MAX_GPUS];
    struct nccl_group *g;

    if (!CHECK_OK(nccl_group_new(&g, gpus, timeout)))
        return;
    for (int i = 0; i < gpus; i++) {
        t[i] = (struct rank_test){ .g = g, .i = i, .run = run };
        pthread_create(&t[i].thread, NULL, rank_main, &t[i]);
    }
    for (int i = 0; i < gpus; i++)
        pthread_join(t[i].thread, NULL);
    nccl_group_free(g);
}

/* -- collectives ---------------------------------------------------------------------------- */

static bool sharing; /* set between runs */

static struct tensor shared(struct comm *c, struct tensor t)
{
    if (sharing)
        c->share(c, t.data, tensor_bytes(t), tensor_bytes(t));
    return t;
}

/* Of GPUs of one process. NCCL without peer access has no copies. */
static bool peers(const struct comm *c)
{
    bool all = c->world > 1 && !getenv("WORLD_SIZE") && !getenv("NCCL_P2P_DISABLE");
    for (int a = 0; a < c->world; a++)
        for (int b = 0; all && b < c->world; b++) {
            int can = a == b;
            all = a == b || (!cudaDeviceCanAccessPeer(&can, a, b) && can);
        }
    return all;
}

static float value_of(int rank, int64_t i)
{
    return (float)((i * 37 + rank * 11 + (i >> 5) * rank) % 15 - 7);
}
static float mean_of(int world, int64_t i)
{
    float sum = 0;
    for (int r = 0; r < world; r++)
        sum += value_of(r, i);
    return sum / (float)world;
}

static float get(const void *host, enum dtype t, int64_t i)
{
    return t == DT_BF16 ? bf16_to_f32(((const uint16_t *)host)[i]) : ((const float *)host)[i];
}

/* Element i of rank r's tensor holds value_of(r, i); NaN where `only` >= 0 and i is not of that
 * rank's rows. */
static struct tensor filled(struct ops *o, enum dtype type, int64_t rows, int64_t cols, int rank,
                            int only, int world)
{
    struct tensor t = tensor_of(NULL, type, rows, cols);
    char *host = malloc(tensor_bytes(t) + 1);
    for (int64_t i = 0; i < rows * cols; i++) {
        float x = only >= 0 && i / (rows / world * cols) != only ? NAN : value_of(rank, i);
        if (type == DT_BF16)
            ((uint16_t *)host)[i] = bf16_from_f32(x);
        else
            ((float *)host)[i] = x;
    }
    t.data = o->alloc_shared(o, tensor_bytes(t), "test");
    o->upload(o, t.data, host, tensor_bytes(t));
    free(host);
    return t;
}

static char *fetched(struct ops *o, struct tensor t)
{
    char *host = malloc(tensor_bytes(t) + 1);
    memset(host, 0xff, tensor_bytes(t));
    o->download(o, host, t.data, tensor_bytes(t));
    return host;
}

/* Elements of rows [first, end) that are not the mean. */
static long not_mean(struct ops *o, struct tensor t, int64_t first, int64_t end, int world)
{
    char *host = fetched(o, t);
    long bad = 0;
    for (int64_t i = first * t.cols; i < end * t.cols; i++)
        bad += !(get(host, t.dtype, i) == mean_of(world, i));
    free(host);
    return bad;
}

static void sums_of(struct comm *c, struct ops *o, enum dtype type, int64_t rows, int64_t cols)
{
    int w = c->world;
    struct tensor a = shared(c, filled(o, type, rows * w, cols, c->rank, -1, w));
    struct tensor b = shared(c, filled(o, type, rows * w, cols, c->rank, -1, w));
    struct tensor own = shared(c, filled(o, type, rows * w, cols, 0, c->rank, w));

    comm_ticket t1 = c->reduce_scatter(c, a, NULL), t2 = c->all_reduce(c, b);
    comm_ticket t3 = c->all_gather(c, own, NULL);
    CHECK(t1 > 0 && t2 > t1 && t3 > t2);
    c->wait(c, t3);
    c->wait(c, t1);
    CHECK_EQ(not_mean(o, a, c->rank * rows, (c->rank + 1) * rows, w), 0);
    c->wait(c, c->all_gather(c, a, NULL));
    c->wait(c, t2);
    CHECK_EQ(not_mean(o, a, 0, rows * w, w), 0);
    CHECK_EQ(not_mean(o, b, 0, rows * w, w), 0);
    char *host = fetched(o, own);
    long bad = 0;
    for (int64_t i = 0; i < rows * w * cols; i++)
        bad += !(get(host, type, i) == value_of(0, i));
    CHECK_EQ(bad, 0);
    free(host);
}

/* Means of two types as a group, whose ticket both have; then one without a group. */
static void in_a_group(struct comm *c, struct ops *o)
{
    int w = c->world;
    struct tensor a = filled(o, DT_F32, 3, 5, c->rank, -1, w);
    struct tensor b = filled(o, DT_BF16, 7, 11, c->rank, -1, w);
    struct tensor after = filled(o, DT_F32, 1, 12, c->rank, -1, w);

    c->group(c, true);
    comm_ticket t = c->all_reduce(c, a);
    CHECK_EQ(c->all_reduce(c, b), t);
    c->group(c, false);
    comm_ticket t2 = c->all_reduce(c, after);
    CHECK(t > 0 && t2 > t);
    c->wait(c, t);
    CHECK_EQ(not_mean(o, a, 0, 3, w), 0);
    CHECK_EQ(not_mean(o, b, 0, 7, w), 0);
    c->wait(c, t2);
    CHECK_EQ(not_mean(o, after, 0, 1, w), 0);
}

/* Of each place some rows, none or all; what is left out keeps its bits, but where copies gather it with the rest.
 * Turn 0: all ranks none; 3: one rank alone. */
static void some_rows(struct comm *c, struct ops *o, enum dtype type, int64_t part, int64_t cols)
{
    int64_t rows[MAX_GPUS], own = part * cols;
    struct span chunk[MAX_GPUS];
    int w = c->world;
    long bad = 0;

    for (int turn = 0; turn < 4; turn++) {
        struct tensor sum = shared(c, filled(o, type, part * w, cols, c->rank, -1, w));
        struct tensor all = shared(c, filled(o, type, part * w, cols, c->rank, -1, w));
        for (int r = 0; r < w; r++) {
            rows[r] = turn == 0    ? 0
                      : turn < 3   ? (part * turn + r) % (part + 1)
                      : r == w - 1 ? part
                                   : 0;
            chunk[r] = (struct span){ r * part, rows[r] };
        }
        comm_ticket t = c->reduce_scatter(c, sum, chunk);
        c->wait(c, c->all_gather(c, all, chunk));
        c->wait(c, t);
        bad += not_mean(o, sum, c->rank * part, c->rank * part + rows[c->rank], w);
        char *s = fetched(o, sum), *a = fetched(o, all);
        for (int64_t i = 0; i < own * w; i++) {
            int owner = (int)(i / own);
            bool moved = i % own < rows[owner] * cols;
            float there = get(a, type, i);
            bad += !(there == value_of(moved ? owner : c->rank, i) ||
                     (sharing && there == value_of(owner, i)));
            if (owner != c->rank || !moved)
                bad += !(get(s, type, i) == value_of(c->rank, i));
        }
        free(s), free(a);
    }
    CHECK_EQ(bad, 0);
}

static void broadcast_and_exchange(struct comm *c, struct ops *o)
{
    int64_t send_rows[MAX_GPUS], recv_rows[MAX_GPUS], sent = 0, got = 0, at = 0;
    long bad = 0;

    for (int root = 0; root < c->world; root++) {
        struct tensor t = filled(o, DT_BF16, 3, 333, c->rank, -1, 1);
        c->wait(c, c->broadcast(c, t, root));
        char *host = fetched(o, t);
        for (int64_t i = 0; i < tensor_count(t); i++)
            bad += !(get(host, DT_BF16, i) == value_of(root, i));
        free(host);
    }
    for (int r = 0; r < c->world; r++) { /* rank a sends (a + 2 b) % 4 rows to b */
        sent += send_rows[r] = (c->rank + 2 * r) % 4;
        got += recv_rows[r] = (r + 2 * c->rank) % 4;
    }
    struct tensor send = filled(o, DT_F32, sent ? sent : 1, 5, c->rank, -1, 1);
    struct tensor recv = filled(o, DT_F32, got ? got : 1, 5, 99, -1, 1);
    c->wait(c, c->all_to_all(c, recv, recv_rows, send, send_rows));
    char *host = fetched(o, recv);
    for (int from = 0; from < c->world; from++) {
        int64_t skip = 0;
        for (int b = 0; b < c->rank; b++)
            skip += (from + 2 * b) % 4;
        for (int64_t i = 0; i < recv_rows[from] * 5; i++)
            bad += !(get(host, DT_F32, at * 5 + i) == value_of(from, skip * 5 + i));
        at += recv_rows[from];
    }
    free(host);
    CHECK_EQ(bad, 0);
}

static void collectives(struct comm *c, struct ops *o)
{
    /* The last two are large enough for copies; rows of the last are not whole vectors. */
    static const int64_t shape[][2] = { { 1, 1 },   { 1, 13 },     { 3, 7 },
                                        { 64, 96 }, { 1537, 768 }, { 1537, 771 } };
    double mine[2] = { c->rank, 10.0 * c->rank }, all[2 * MAX_GPUS];

    for (int s = 0; s < 6; s++) {
        sums_of(c, o, DT_BF16, shape[s][0], shape[s][1]);
        sums_of(c, o, DT_F32, shape[s][0], shape[s][1]);
        some_rows(c, o, DT_BF16, shape[s][0], shape[s][1]);
        some_rows(c, o, DT_F32, shape[s][0], shape[s][1]);
    }
    broadcast_and_exchange(c, o);
    for (int round = 0; round < 20; round++) {
        CHECK_OK(c->gather_host(c, mine, 2, all));
        for (int r = 0; r < c->world; r++)
            CHECK(all[2 * r] == r && all[2 * r + 1] == 10.0 * r);
        CHECK_OK(c->barrier(c));
    }
    CHECK_EQ(comm_nccl_copied(c) > 0, sharing && peers(c));
    CHECK_OK(c->status(c));
    CHECK_OK(o->sync(o));
}

/* Elements that are not value_of(rank, i). */
static long not_value(struct ops *o, struct tensor t, int rank)
{
    char *host = fetched(o, t);
    long bad = 0;
    for (int64_t i = 0; i < tensor_count(t); i++)
        bad += !(get(host, t.dtype, i) == value_of(rank, i));
    free(host);
    return bad;
}

/* A tensor that is gathered, read, written anew and gathered again, in replays that nothing on the host
 * separates; one rank is slow before it reads, another before it writes. */
static void read_then_written(struct comm *c, struct ops *o)
{
    enum { ROWS = 2048, COLS = 768, REPLAYS = 20, DELAY = 12 };
    int w = c->world, own = c->rank * ROWS;
    struct tensor a = shared(c, filled(o, DT_BF16, ROWS * w, COLS, 9, -1, w)), src[2], out[2];
    struct tensor big = filled(o, DT_F32, 4096, 2048, 0, -1, 1);
    struct tensor slow = filled(o, DT_F32, 4096, 2048, 0, -1, 1);
    void *graph;

    for (int k = 0; k < 2; k++) {
        src[k] = filled(o, DT_BF16, ROWS * w, COLS, k, -1, w);
        out[k] = filled(o, DT_BF16, ROWS * w, COLS, 9, -1, w);
    }
    CHECK_OK(ops_cuda_capture(o));
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < DELAY && c->rank == (k ? w - 1 : 0); i++)
            o->copy(o, slow, big);
        o->copy(o, tensor_rows(a, own, ROWS), tensor_rows(src[k], own, ROWS));
        c->wait(c, c->all_gather(c, a, NULL));
        for (int i = 0; i < DELAY && c->rank == (k ? 0 : w - 1); i++)
            o->copy(o, slow, big);
        o->copy(o, out[k], a);
    }
    CHECK_OK(ops_cuda_capture_end(o, &graph));
    for (int r = 0; r < REPLAYS; r++) {
        ops_cuda_launch(o, graph);
        for (int k = 0; k < 2 && r + 1 < REPLAYS; k++)
            o->zero(o, out[k]);
    }
    for (int k = 0; k < 2; k++)
        CHECK_EQ(not_value(o, out[k], k), 0);
    CHECK_OK(c->status(c));
    CHECK_OK(o->sync(o));
    ops_cuda_graph_free(graph);
    CHECK_OK(c->barrier(c));
}

/* Reduce, copy, gather, all captured; replays see new numbers. More collectives than tickets. */
static void in_a_graph(struct comm *c, struct ops *o)
{
    enum { ROWS = 1536, COLS = 768, REPLAYS = 3 };
    int w = c->world;
    struct tensor src = filled(o, DT_BF16, ROWS * w, COLS, c->rank, -1, w);
    struct tensor a = shared(c, filled(o, DT_BF16, ROWS * w, COLS, 5, -1, w));
    struct tensor small = filled(o, DT_F32, 1, 8, c->rank, -1, 1);
    void *graph;

    c->wait(c, c->all_reduce(c, small)); /* one of them outside, before */
    CHECK_OK(o->sync(o));
    CHECK_OK(ops_cuda_capture(o));
    o->copy(o, a, src);
    comm_ticket t = c->reduce_scatter(c, a, NULL);
    for (int i = 0; i < 300; i++)
        c->all_reduce(c, small);
    c->wait(c, t);
    t = c->all_gather(c, a, NULL);
    c->wait(c, t);
    CHECK_OK(ops_cuda_capture_end(o, &graph));
    for (int r = 0; r < REPLAYS; r++) {
        o->zero(o, a);
        ops_cuda_launch(o, graph);
        c->wait(c, t); /* of the capture: means nothing out here */
        CHECK_EQ(not_mean(o, a, 0, ROWS * w, w), 0);
    }
    CHECK_EQ(not_mean(o, small, 0, 1, w), 0); /* a mean of means */
    CHECK_OK(c->status(c));
    CHECK_OK(o->sync(o));
    ops_cuda_graph_free(graph);
    CHECK_OK(c->barrier(c));
}

/* Reductions that branches wait for, and gathers that start there after some delay; captured. */
static void in_branches(struct comm *c, struct ops *o)
{
    enum { ROWS = 1536, COLS = 768, REPLAYS = 3, DELAYS = 10 };
    int w = c->world;
    struct tensor src[2], sum[2], mean[2], out[2], large[2];
    comm_ticket t[2];
    void *graph;

    for (int i = 0; i < 2; i++) {
        src[i] = filled(o, DT_BF16, ROWS * w, COLS, c->rank, -1, w);
        sum[i] = shared(c, filled(o, DT_BF16, ROWS * w, COLS, 5, -1, w));
        mean[i] = shared(c, filled(o, DT_BF16, ROWS * w, COLS, 5, -1, w));
        out[i] = filled(o, DT_BF16, ROWS * w, COLS, 5, -1, w);
        large[i] = filled(o, DT_F32, 1 << 10, 1 << 14, 0, -1, 1);
    }
    CHECK_OK(o->sync(o));
    CHECK_OK(ops_cuda_capture(o));
    for (int i = 0; i < 2; i++) {
        o->copy(o, sum[i], src[i]);
        t[i] = c->reduce_scatter(c, sum[i], NULL);
    }
    for (int i = 0; i < 2; i++) {
        o->branch(o, i);
        c->wait(c, t[i]);
        for (int k = 0; k < DELAYS; k++)
            o->zero(o, large[i]);
        o->copy(o, tensor_rows(mean[i], c->rank * ROWS, ROWS),
                tensor_rows(sum[i], c->rank * ROWS, ROWS));
        t[i] = c->all_gather(c, mean[i], NULL);
        o->branch(o, TRUNK);
    }
    o->join(o);
    for (int i = 0; i < 2; i++) {
        c->wait(c, t[i]);
        o->copy(o, out[i], mean[i]);
    }
    CHECK_OK(ops_cuda_capture_end(o, &graph));
    for (int r = 0; r < REPLAYS; r++) {
        for (int i = 0; i < 2; i++)
            o->zero(o, mean[i]), o->zero(o, out[i]);
        ops_cuda_launch(o, graph);
        for (int i = 0; i < 2; i++)
            CHECK_EQ(not_mean(o, out[i], 0, ROWS * w, w), 0);
    }
    CHECK_OK(c->status(c));
    CHECK_OK(o->sync(o));
    ops_cuda_graph_free(graph);
    CHECK_OK(c->barrier(c));
}

/* -- sparse exchange ------------------------------------------------------------------------- */

enum { PART = 61, WIDTH = 768 };

/* Round 3: every row, so that the dense way is taken; round 4: rank 0 nothing. */
static bool touches(int rank, int64_t row, int round)
{
    return round == 3 || (row == PART && round != 4) ||
           ((round != 4 || rank) && (row * 7 + rank * 3 + round) % (rank + 3) == 0);
}

static float row_value(int rank, int64_t i, int round)
{
    return touches(rank, i / WIDTH, round) ? value_of(rank + round, i) : 0;
}

/* Between two replayed graphs, as in a step: the first brings the gradient, the second takes the
 * result away; counts differ from round to round. */
static void sparse_between_graphs(struct comm *c, struct ops *o)
{
    int w = c->world;
    struct tensor src = filled(o, DT_BF16, PART * w, WIDTH, c->rank, -1, 1);
    struct tensor g = filled(o, DT_BF16, PART * w, WIDTH, 3, -1, 1);
    struct tensor out = filled(o, DT_BF16, PART, WIDTH, 3, -1, 1);
    struct tensor small = filled(o, DT_F32, 1, 8, c->rank, -1, 1);
    struct sparse *s;
    struct span own[MAX_GPUS];
    uint16_t *host = malloc(tensor_bytes(g));
    void *before, *after;

    for (int r = 0; r < c->world; r++)
        own[r] = share_even(g.rows, r, c->world);
    if (!CHECK_OK(sparse_new(&s, o, c, g, own, g.rows)))
        return;
    CHECK_OK(ops_cuda_capture(o));
    c->wait(c, c->all_reduce(c, small)); /* collectives of a graph before and after */
    o->copy(o, g, src);
    CHECK_OK(ops_cuda_capture_end(o, &before));
    CHECK_OK(ops_cuda_capture(o));
    o->copy(o, out, tensor_rows(g, c->rank * PART, PART));
    c->wait(c, c->all_gather(c, g, NULL));
    CHECK_OK(ops_cuda_capture_end(o, &after));
    for (int round = 0; round < 6; round++) {
        long bad = 0;
        for (int64_t i = 0; i < tensor_count(g); i++)
            host[i] = bf16_from_f32(row_value(c->rank, i, round));
        o->upload(o, src.data, host, tensor_bytes(g));
        for (int32_t row = 0; row < g.rows; row++)
            if (touches(c->rank, row, round))
                sparse_touch(s, &row, 1);
        ops_cuda_launch(o, before);
        CHECK_OK(sparse_exchange(s, c, g));
        ops_cuda_launch(o, after);
        uint16_t *own = (uint16_t *)fetched(o, out);
        for (int64_t i = 0; i < tensor_count(out); i++) {
            float sum = 0; /* small whole numbers: exact in any order */
            for (int r = 0; r < w; r++)
                sum += row_value(r, c->rank * PART * WIDTH + i, round);
            bad += !(bf16_to_f32(own[i]) == sum / (float)w);
        }
        CHECK_EQ(bad, 0);
        free(own);
    }
    CHECK_EQ(sparse_stats(s).dense, 1);
    CHECK_OK(c->status(c));
    CHECK_OK(o->sync(o));
    ops_cuda_graph_free(before);
    ops_cuda_graph_free(after);
    sparse_free(s);
    free(host);
    CHECK_OK(c->barrier(c));
}

/* -- failures ---------------------------------------------------------------------------------- */

/* Rank 1 fails; the others wait for it on their GPUs, and their waits must return. */
static void one_fails(struct comm *c, struct ops *o)
{
    struct tensor t = filled(o, DT_BF16, 8 * c->world, 64, c->rank, -1, c->world);
    double start;

    CHECK_OK(o->sync(o));
    CHECK_OK(c->barrier(c));
    comm_nccl_phase(c, "step");
    start = seconds();
    if (c->rank == 1) {
        usleep(300000);
        c->abort(c, GPT_DEVICE, "the moon is full");
    } else {
        c->wait(c, c->reduce_scatter(c, t, NULL));
        int rc = o->sync(o); /* its own verdict does not matter */
        (void)rc;
    }
    CHECK(seconds() - start < 5);
    CHECK_ERR(c->status(c), GPT_DEVICE, "rank 1 (GPU 1), step: the moon is full");
    CHECK_ERR(c->barrier(c), GPT_DEVICE, "the moon is full");
    CHECK_EQ(c->all_reduce(c, t), 0);
}

/* Rank 1 does not come and says nothing, for longer than the timeout of 2 s. */
static void one_hangs(struct comm *c, struct ops *o)
{
    struct tensor t = filled(o, DT_BF16, 8 * c->world, 64, c->rank, -1, c->world);
    double start;

    CHECK_OK(o->sync(o));
    CHECK_OK(c->barrier(c));
    comm_nccl_phase(c, "step");
    start = seconds();
    if (c->rank == 1) {
        while (seconds() - start < 20 && c->status(c) == GPT_OK)
            usleep(10000);
    } else {
        for (int i = 0; i < 20; i++) { /* still queueing, so it is heard of */
            c->wait(c, c->all_gather(c, t, NULL));
            usleep(50000);
        }
        int rc = o->sync(o);
        (void)rc;
    }
    CHECK(seconds() - start < 8);
    CHECK_ERR(c->status(c), GPT_DEVICE, "rank 1 (GPU 1), step: no progress");
}

enum { SCATTER, GATHER, SUM, SCATTER_ROWS, GATHER_ROWS, KINDS };

static void collective(struct comm *c, int kind, struct tensor t, const struct span *own)
{
    switch (kind) {
    case SCATTER: c->wait(c, c->reduce_scatter(c, t, NULL)); break;
    case GATHER: c->wait(c, c->all_gather(c, t, NULL)); break;
    case SUM: c->wait(c, c->all_reduce(c, t)); break;
    case SCATTER_ROWS: c->wait(c, c->reduce_scatter(c, t, own)); break;
    case GATHER_ROWS: c->wait(c, c->all_gather(c, t, own)); break;
    }
}

/* Of the last place a third is used, as of the MLP bank's on 8 ranks. */
static void bench(struct comm *c, struct ops *o)
{
    struct span used[MAX_GPUS];
    static const struct {
        const char *what;
        double mb;
    } size[] = {
        { "attn bank", 47.2 },
        { "table", 77.3 },
        { "mlp bank", 113.2 },
        { "scalars", 0.0002 },
    };
    for (int s = 0; s < 4; s++) {
        int64_t rows = 8 * 96, cols = (int64_t)(size[s].mb * 5e5 / (double)rows / 8) * 8 + 8;
        struct tensor t =
            tensor_of(o->alloc(o, (size_t)(rows * cols) * 2, "bench"), DT_BF16, rows, cols);
        double us[KINDS];
        shared(c, t);
        for (int r = 0; r < c->world; r++)
            used[r] = (struct span){ r * (rows / c->world),
                                     rows / c->world / (r + 1 < c->world ? 1 : 3) };
        o->zero(o, t);
        for (int kind = 0; kind < KINDS; kind++)
            for (int warm = 1; warm >= 0; warm--) {
                void *graph;
                CHECK_OK(ops_cuda_capture(o));
                for (int i = 0; i < 10; i++)
                    collective(c, kind, t, used);
                CHECK_OK(ops_cuda_capture_end(o, &graph));
                ops_cuda_launch(o, graph);
                CHECK_OK(o->sync(o));
                CHECK_OK(c->barrier(c));
                double start = seconds();
                ops_cuda_launch(o, graph);
                CHECK_OK(o->sync(o));
                us[kind] = (seconds() - start) * 1e5;
                CHECK_OK(c->barrier(c));
                ops_cuda_graph_free(graph);
            }
        double gb = tensor_bytes(t) * 1e-9 * (c->world - 1) / c->world;
        if (c->rank == 0)
            printf("%s%-10s %8.2f MB, %d ranks: reduce-scatter %.0f us (%.0f GB/s), all-gather "
                   "%.0f us (%.0f GB/s), all-reduce %.0f us; less padding: %.0f, %.0f us\n",
                   sharing ? "shared " : "", size[s].what, tensor_bytes(t) * 1e-6, c->world,
                   us[SCATTER], gb / us[SCATTER] * 1e6, us[GATHER], gb / us[GATHER] * 1e6, us[SUM],
                   us[SCATTER_ROWS], us[GATHER_ROWS]);
    }
}

int main(int argc, char **argv)
{
    int gpus = ops_cuda_count();

    if (gpus == 0)
        return check_skip("gpu");
    if (argc > 2 && !strcmp(argv[1], "node")) {
        with_ranks(atoi(argv[2]), 20, collectives);
        with_ranks(atoi(argv[2]), 20, in_a_graph);
        return check_done();
    }
    if (gpus > 8)
        gpus = 8;
    with_ranks(1, 20, collectives);
    with_ranks(1, 20, in_branches);
    if (gpus < 2)
        return check_done();
    gpus = gpus >= 8 ? 8 : gpus >= 4 ? 4 : 2; /* of these the means are exact */
    for (int s = 0; s < 2; s++) {
        sharing = s;
        with_ranks(gpus, 20, collectives);
        with_ranks(gpus, 20, in_a_graph);
        with_ranks(gpus, 20, in_a_group);
        with_ranks(gpus, 20, read_then_written);
        with_ranks(gpus, 20, in_branches);
    }
    with_ranks(gpus, 20, sparse_between_graphs);
    with_ranks(gpus, 20, one_fails);
    with_ranks(gpus, 2, one_hangs);
    if (argc > 1 && !strcmp(argv[1], "bench"))
        for (int s = 0; s < 2; s++) {
            sharing = s;
            with_ranks(gpus, 20, bench);
        }
    return check_done();
}
