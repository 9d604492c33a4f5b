/* comm_test.c - collectives of ranks that are threads, against sums made here.
 *
 * Every rank fills its buffers from (rank, element), so each rank can say alone
 * what the others hold and what must come out.
 */
#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#include "base/progress.h"
#include "check.h"
#include "comm/comm.h"

enum { MAX_WORLD = 8 };

struct rank_test {
    struct comm *c;
    void (*run)(struct comm *c);
    pthread_t thread;
};

static void *rank_main(void *arg)
{
    struct rank_test *t = arg;
    t->run(t->c);
    return NULL;
}

/* run() on world threads, a communicator each; timeout 0: as it comes. */
static void with_ranks(int world, double timeout, void (*run)(struct comm *))
{
    struct comm *c[MAX_WORLD];
    struct rank_test t[MAX_WORLD];

    if (!CHECK_OK(comm_threads_new(c, world)))
        return;
    if (timeout > 0)
        comm_threads_timeout(c[0], timeout);
    for (int r = 0; r < world; r++) {
        t[r] = (struct rank_test){ .c = c[r], .run = run };
        pthread_create(&t[r].thread, NULL, rank_main, &t[r]);
    }
    for (int r = 0; r < world; r++)
        pthread_join(t[r].thread, NULL);
    for (int r = 0; r < world; r++)
        c[r]->free(c[r]);
}

/* What rank r holds at element i: multiples of 2^-4 below 8, exact in bf16, of either sign. */
static float value_of(int r, int64_t i)
{
    return (float)((i * 37 + r * 101 + (i >> 5) * r) % 255 - 127) / 16;
}

static float get(struct tensor t, int64_t i)
{
    return t.dtype == DT_BF16 ? bf16_to_f32(((uint16_t *)t.data)[i]) : ((float *)t.data)[i];
}

static void set(struct tensor t, int64_t i, float x)
{
    if (t.dtype == DT_BF16)
        ((uint16_t *)t.data)[i] = bf16_from_f32(x);
    else
        ((float *)t.data)[i] = x;
}

static struct tensor filled(enum dtype type, int64_t rows, int64_t cols, int rank)
{
    struct tensor t = tensor_of(malloc((size_t)(rows * cols) * 4 + 1), type, rows, cols);
    for (int64_t i = 0; i < rows * cols; i++)
        set(t, i, value_of(rank, i));
    return t;
}

static float mean_of(enum dtype type, int world, int64_t i)
{
    float sum = 0;
    for (int r = 0; r < world; r++)
        sum += value_of(r, i);
    sum /= (float)world;
    return type == DT_BF16 ? bf16_round(sum) : sum;
}

/* Expected numbers are made in the same order of additions, so they are equal, not near. */
static long differing(struct tensor t, int64_t first, int64_t end, int world)
{
    long bad = 0;
    for (int64_t i = first; i < end; i++)
        bad += !(get(t, i) == mean_of(t.dtype, world, i));
    return bad;
}

static void sums_of(struct comm *c, enum dtype type, int64_t rows, int64_t cols)
{
    struct tensor full = filled(type, rows * c->world, cols, c->rank);
    struct tensor again = filled(type, rows * c->world, cols, c->rank);
    struct tensor whole = filled(type, rows, cols, c->rank);
    int64_t own = rows * cols, first = c->rank * own;

    /* Three in flight at once, waited for in different orders on odd and even ranks. */
    comm_ticket a = c->reduce_scatter(c, full, NULL), b = c->all_reduce(c, whole);
    if (c->rank & 1)
        c->wait(c, b);
    c->wait(c, a);
    CHECK_EQ(differing(full, first, first + own, c->world), 0);
    a = c->all_gather(c, full, NULL);
    comm_ticket d = c->reduce_scatter(c, again, NULL);
    c->wait(c, d);
    c->wait(c, a);
    c->wait(c, b);
    CHECK_EQ(differing(full, 0, own * c->world, c->world), 0);
    CHECK_EQ(differing(whole, 0, own, c->world), 0);
    CHECK_EQ(differing(again, first, first + own, c->world), 0);
    CHECK_OK(c->status(c));
    free(full.data), free(again.data), free(whole.data);
}

static void sums(struct comm *c)
{
    static const int64_t shape[][2] = { { 1, 1 },    { 1, 13 },  { 3, 7 }, { 1, 1023 },
                                        { 5, 1031 }, { 64, 96 }, { 0, 8 } };
    for (size_t i = 0; i < sizeof shape / sizeof *shape; i++) {
        sums_of(c, DT_F32, shape[i][0], shape[i][1]);
        sums_of(c, DT_BF16, shape[i][0], shape[i][1]);
    }
}

/* Who owns a row in a turn; -1: nobody. Chunks of 0 to 5 rows lie in an order that turns, with gaps
 * of up to two rows between them. Returns the number of rows. */
static int chunks_of_turn(int world, int turn, struct span *own, int *owner)
{
    int row = 0;
    for (int i = 0; i < world; i++) {
        int r = (i + turn) % world, n = (turn + 2 * r) % 6;
        own[r] = (struct span){ row, n };
        for (int gap = (turn + r) % 3; n || gap; row++)
            owner[row] = n ? (n--, r) : (gap--, -1);
    }
    return row;
}

/* Chunks of any sizes and places; what is left out keeps its bits. */
static void some_rows(struct comm *c)
{
    enum { COLS = 301 };
    struct span own[MAX_WORLD];
    int owner[MAX_WORLD * 7];
    long bad = 0;

    for (int turn = 0; turn < 12; turn++) {
        int rows = chunks_of_turn(c->world, turn, own, owner);
        struct tensor sum = filled(DT_BF16, rows, COLS, c->rank);
        struct tensor all = filled(DT_F32, rows, COLS, c->rank);
        struct span mine = own[c->rank];
        comm_ticket a = c->reduce_scatter(c, sum, own), b = c->all_gather(c, all, own);
        memset(own, -1, sizeof own); /* the array is the caller's again */
        c->wait(c, b);
        c->wait(c, a);
        bad += differing(sum, mine.first * COLS, (mine.first + mine.count) * COLS, c->world);
        for (int64_t i = 0; i < (int64_t)rows * COLS; i++) {
            int by = owner[i / COLS];
            bad += !(get(all, i) == value_of(by < 0 ? c->rank : by, i));
            if (by < 0)
                bad += !(get(sum, i) == value_of(c->rank, i));
        }
        free(sum.data), free(all.data);
    }
    CHECK_EQ(bad, 0);
}

/* Ranks that do not agree on the rows would wait for each other, or read what is not there. */
static void other_rows(struct comm *c)
{
    struct span own[2] = { { 0, 1 }, { 4, c->rank } };
    struct tensor t = filled(DT_F32, 8, 2, c->rank);
    c->wait(c, c->all_gather(c, t, own));
    CHECK_ERR(c->status(c), GPT_DEVICE, "rank 1: all-gather 0: other chunks than rank 0");
    free(t.data);
}

static void broadcasts(struct comm *c)
{
    for (int root = 0; root < c->world; root++) {
        struct tensor t = filled(DT_BF16, 3, 333, c->rank);
        long bad = 0;
        c->wait(c, c->broadcast(c, t, root));
        for (int64_t i = 0; i < tensor_count(t); i++)
            bad += get(t, i) != value_of(root, i);
        CHECK_EQ(bad, 0);
        free(t.data);
    }
}

/* Rows from rank r to rank q: none, one or several. */
static int64_t rows_between(int r, int q) { return (r * 3 + q * 5) % 4; }

static void exchange(struct comm *c)
{
    enum { COLS = 11 };
    int64_t send_rows[MAX_WORLD], recv_rows[MAX_WORLD], out = 0, in = 0, at = 0;
    long bad = 0;

    for (int q = 0; q < c->world; q++) {
        out += send_rows[q] = rows_between(c->rank, q);
        in += recv_rows[q] = rows_between(q, c->rank);
    }
    struct tensor send = filled(DT_F32, out, COLS, c->rank), recv = filled(DT_F32, in, COLS, 99);
    comm_ticket t = c->all_to_all(c, recv, recv_rows, send, send_rows);
    memset(send_rows, -1, sizeof send_rows); /* the counts are the caller's again */
    memset(recv_rows, -1, sizeof recv_rows);
    c->wait(c, t);
    for (int r = 0; r < c->world; r++) {
        int64_t skip = 0;
        for (int q = 0; q < c->rank; q++)
            skip += rows_between(r, q);
        for (int64_t i = 0; i < rows_between(r, c->rank) * COLS; i++)
            bad += get(recv, at++) != value_of(r, skip * COLS + i);
    }
    CHECK_EQ(at, in * COLS);
    CHECK_EQ(bad, 0);
    free(send.data), free(recv.data);
}

/* More collectives than slots, none waited for until the end. */
static void many(struct comm *c)
{
    enum { MANY = 1000 };
    static float x[MAX_WORLD][MANY];
    comm_ticket last[MANY];
    for (int i = 0; i < MANY; i++) {
        x[c->rank][i] = value_of(c->rank, i);
        last[i] = c->all_reduce(c, tensor_of(&x[c->rank][i], DT_F32, 1, 1));
    }
    for (int i = MANY - 1; i >= 0; i--)
        c->wait(c, last[i]);
    long bad = 0;
    for (int i = 0; i < MANY; i++)
        bad += x[c->rank][i] != mean_of(DT_F32, c->world, i);
    CHECK_EQ(bad, 0);
}

static void host_side(struct comm *c)
{
    double mine[3] = { c->rank, -1.5 * c->rank, 1e300 }, all[3 * MAX_WORLD];
    CHECK_OK(c->gather_host(c, mine, 3, all));
    for (int r = 0; r < c->world; r++) {
        CHECK(all[3 * r] == r && all[3 * r + 1] == -1.5 * r && all[3 * r + 2] == 1e300);
    }
    CHECK_OK(c->barrier(c));
}

/* The last rank fails while the others wait for it; two of them have more to wait for. */
static void failing(struct comm *c)
{
    struct tensor t = filled(DT_F32, 8, 4096, c->rank);
    c->wait(c, c->all_reduce(c, t));
    CHECK_OK(c->status(c));
    int rc = c->barrier(c); /* none fails before all have looked */
    CHECK(!rc || rc == GPT_INPUT);
    if (c->rank == c->world - 1) {
        usleep(50000);
        c->abort(c, GPT_INPUT, "shard 7: truncated");
    } else {
        double start = now_seconds();
        comm_ticket a = c->reduce_scatter(c, t, NULL), b = c->all_gather(c, t, NULL);
        c->wait(c, a);
        c->wait(c, b);
        CHECK(now_seconds() - start < 1);
    }
    char text[64];
    snprintf(text, sizeof text, "rank %d: shard 7: truncated", c->world - 1);
    CHECK_ERR(c->status(c), GPT_INPUT, text);
    CHECK_ERR(c->barrier(c), GPT_INPUT, text);
    c->wait(c, c->all_gather(c, t, NULL)); /* and nothing hangs afterwards */
    free(t.data);
}

/* Rank 1 never comes: the guard, set to a fraction of a second here, names it. */
static void hanging(struct comm *c)
{
    if (c->rank == 1)
        return;
    struct tensor t = filled(DT_F32, 8, 1, c->rank);
    c->wait(c, c->all_gather(c, t, NULL));
    CHECK_ERR(c->status(c), GPT_DEVICE, "rank 1: did not come to all-gather 0 within 0.2 seconds");
    free(t.data);
}

/* Different collectives, or shapes, are caught before anything is copied. */
static void disagreeing(struct comm *c)
{
    struct tensor t = filled(DT_F32, 8, 2 + c->rank, c->rank);
    c->wait(c, c->all_reduce(c, t));
    CHECK_ERR(c->status(c), GPT_DEVICE, "collective 0: all-reduce of 8 x");
    free(t.data);
}

static void miscounting(struct comm *c)
{
    float x[16] = { 0 }, y[16];
    int64_t one[MAX_WORLD] = { 1, 1, 1, 1 }, two[MAX_WORLD] = { 2, 2, 2, 2 };
    c->wait(c, c->all_to_all(c, tensor_of(y, DT_F32, 8, 1), two, tensor_of(x, DT_F32, 4, 1), one));
    CHECK_ERR(c->status(c), GPT_DEVICE, "expects 2 rows of rank 0, which sends 1");
}

static void solo(void)
{
    struct comm *c;
    if (!CHECK_OK(comm_threads_new(&c, 1)))
        return;
    sums(c);
    some_rows(c);
    broadcasts(c);
    exchange(c);
    host_side(c);
    c->abort(c, GPT_SYSTEM, "disk full");
    c->abort(c, GPT_INPUT, "later");
    CHECK_ERR(c->status(c), GPT_SYSTEM, "disk full");
    c->free(c);
}

int main(void)
{
    static void (*const all[])(struct comm *) = { sums,     some_rows, broadcasts,
                                                  exchange, many,      host_side };
    static const int worlds[] = { 1, 2, 3, 4, 8 };

    solo();
    for (size_t w = 0; w < sizeof worlds / sizeof *worlds; w++)
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
            with_ranks(worlds[w], 0, all[i]);
    for (int w = 2; w <= 8; w *= 2)
        with_ranks(w, 0, failing);
    with_ranks(4, 0.2, hanging);
    with_ranks(2, 0, disagreeing);
    with_ranks(2, 0, other_rows);
    with_ranks(4, 0, miscounting);
    return check_done();
}
