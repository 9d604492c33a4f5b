/* sparse_test.c - the sparse exchange of a table's gradient against a dense reduce-scatter of the
 * same numbers and against the mean worked out here, on 1, 2, 4 and 8 ranks as threads. */
#include <pthread.h>
#include <stdlib.h>
#include "base/rng.h"
#include "check.h"
#include "optim/sparse.h"

enum { MAX_WORLD = 8, PART = 11, COLS = 24, MAX_ROWS = MAX_WORLD * PART, ROUNDS = 3 };

/* Does rank r touch row v? */
enum pattern { UNEVEN, SCATTERED, ALL, ONE_OWNER, LAST_SPARSE, FIRST_DENSE, PATTERNS };

struct job {
    enum pattern pattern;
    enum dtype dtype;
    struct comm *comm;
};

/* The most rows that may travel with rows of this size before dense is as good. */
static int limit(int world, enum dtype t)
{
    int row = COLS * (int)dtype_size(t), k = 0;
    while ((k + 1) * (row + 4) < (world - 1) * PART * row)
        k++;
    return k;
}

static bool touches(const struct job *j, int rank, int v, int round)
{
    int world = j->comm->world, owner = v / PART, edge = limit(world, j->dtype);
    struct rng g = rng_make((uint64_t)j->pattern + 1, (uint64_t)round);
    bool some = rng_below(&g, (uint64_t)(rank * MAX_ROWS + v), 8) < 3;
    int others = v - (owner > rank ? PART : 0); /* place of v among the rows of others */

    switch (j->pattern) {
    case UNEVEN: /* rank 0 touches nothing, the others more and more; one row all of them */
        return rank && (v == world * PART / 2 || (some && v % (world + 1) <= rank));
    case SCATTERED: return some;
    case ALL: return true;
    case ONE_OWNER: return owner == world - 1; /* who then receives all that there is */
    case LAST_SPARSE: return rank == world - 1 && owner != rank && others < edge;
    case FIRST_DENSE: return rank == world - 1 && owner != rank && others < edge + 1;
    default: return false;
    }
}

/* What is compared goes through the gradient's dtype once, as backward would have left it. */
static float value(const struct job *j, int rank, int v, int c, int round)
{
    struct rng g = rng_make(99, (uint64_t)(round * MAX_WORLD + rank));
    float x = rng_normal(&g, (uint64_t)(v * COLS + c));

    if (!touches(j, rank, v, round))
        return 0;
    return j->dtype == DT_BF16 ? bf16_round(x) : x;
}

static float get(struct tensor t, int64_t i)
{
    return t.dtype == DT_BF16 ? bf16_to_f32(((uint16_t *)t.data)[i]) : ((float *)t.data)[i];
}

static void fill(const struct job *j, struct tensor t, int round)
{
    for (int v = 0; v < t.rows; v++)
        for (int c = 0; c < COLS; c++) {
            float x = value(j, j->comm->rank, v, c, round);
            if (t.dtype == DT_BF16)
                ((uint16_t *)t.data)[v * COLS + c] = bf16_from_f32(x);
            else
                ((float *)t.data)[v * COLS + c] = x;
        }
}

/* Two micro-batches in no order, with repetitions, as tokens come. */
static void touch(const struct job *j, struct sparse *s, int rows, int round)
{
    int32_t row[2 * MAX_ROWS] = { 0 };
    int n = 0;

    for (int v = rows - 1; v >= 0; v -= 2)
        if (touches(j, j->comm->rank, v, round))
            row[n++] = v;
    sparse_touch(s, row, n);
    for (int v = 0; v < rows; v++)
        if (touches(j, j->comm->rank, v, round))
            row[n++] = v;
    sparse_touch(s, row, n);
    CHECK_EQ(sparse_settled(s), n == 0);
}

/* Own rows: those of the dense way, and near the mean. Threads add in rank order in f32 and round
 * once in both ways, so the numbers are equal; the mean in double is apart by seven roundings of
 * f32, and one of bf16: 2^-9 of the number, and 2^-24 a term of about 1. */
static void compare(const struct job *j, struct tensor sparse, struct tensor dense, int round)
{
    int world = j->comm->world, first = j->comm->rank * PART, differ = 0, far = 0;
    double ulp = j->dtype == DT_BF16 ? 0x1p-8 : 0x1p-23;

    for (int v = first; v < first + PART; v++)
        for (int c = 0; c < COLS; c++) {
            double mean = 0, size = 0, got = get(sparse, v * COLS + c);
            for (int r = 0; r < world; r++) {
                mean += value(j, r, v, c, round) / (double)world;
                size += fabs(value(j, r, v, c, round));
            }
            differ += !(got == get(dense, v * COLS + c));
            far += !(fabs(got - mean) <= ulp * fabs(mean) + 0x1p-23 * size);
        }
    CHECK_EQ(differ, 0);
    CHECK_EQ(far, 0);
}

/* What all ranks send on average by the sparse way, counted from the pattern; and was it to be? */
static double counted(const struct job *j, int round, bool *sparse)
{
    int world = j->comm->world, row = COLS * (int)dtype_size(j->dtype), busiest = 0, sum = 0;

    for (int r = 0; r < world; r++) {
        int out = 0, in = 0;
        for (int v = 0; v < world * PART; v++)
            for (int q = 0; q < world; q++) {
                out += q == r && v / PART != r && touches(j, r, v, round);
                in += q != r && v / PART == r && touches(j, q, v, round);
            }
        sum += out;
        busiest = out > busiest ? out : busiest;
        busiest = in > busiest ? in : busiest;
    }
    *sparse = busiest * (row + 4) < (world - 1) * PART * row;
    return (double)sum / world * (row + 4);
}

static void one_round(const struct job *j, struct ops *o, struct sparse *s, int round)
{
    struct sparse_stats before = sparse_stats(s), after;
    int world = j->comm->world;
    struct tensor g = tensor_of(NULL, j->dtype, world * PART, COLS), dense = g;
    bool sparse;
    double bytes = counted(j, round, &sparse),
           full = (world - 1) * PART * COLS * (double)dtype_size(j->dtype);

    g.data = o->alloc(o, tensor_bytes(g), "sparse");
    dense.data = o->alloc(o, tensor_bytes(g), "dense");
    fill(j, g, round);
    fill(j, dense, round);
    touch(j, s, (int)g.rows, round);
    CHECK_OK(sparse_exchange(s, j->comm, g));
    CHECK(sparse_settled(s));
    j->comm->wait(j->comm, j->comm->reduce_scatter(j->comm, dense, NULL));
    compare(j, g, dense, round);
    after = sparse_stats(s);
    CHECK_EQ(after.exchanges - before.exchanges, 1);
    CHECK_EQ(after.dense - before.dense, !sparse);
    CHECK_NEAR(after.sent_bytes - before.sent_bytes, sparse ? bytes : full, 1e-6);
    CHECK_NEAR(after.dense_bytes - before.dense_bytes, full, 1e-6);
    if (j->pattern >= ALL && world > 1)
        CHECK_EQ(sparse, j->pattern == LAST_SPARSE);
    if (j->pattern < ALL && world == MAX_WORLD)
        CHECK(sparse);
}

static int new_sparse(struct sparse **s, struct ops *o, struct comm *c, struct tensor g)
{
    struct span own[MAX_WORLD];
    for (int r = 0; r < c->world; r++)
        own[r] = (struct span){ r * PART, PART };
    return sparse_new(s, o, c, g, own, g.rows);
}

static void *run_rank(void *arg)
{
    const struct job *j = arg;
    struct tensor g = tensor_of(NULL, j->dtype, j->comm->world * PART, COLS);
    struct ops *o;
    struct sparse *s;

    if (!CHECK_OK(ops_cpu_new(&o)))
        return NULL;
    if (CHECK_OK(new_sparse(&s, o, j->comm, g))) {
        for (int round = 0; round < ROUNDS; round++)
            one_round(j, o, s, round);
        CHECK_OK(o->status(o));
        CHECK_OK(j->comm->status(j->comm));
        sparse_free(s);
    }
    CHECK_OK(j->comm->barrier(j->comm)); /* others may still read from here */
    o->free(o);
    return NULL;
}

/* Rank 1 fails before it comes to the exchange. */
static void *failing_rank(void *arg)
{
    const struct job *j = arg;
    struct tensor g = tensor_of(NULL, j->dtype, j->comm->world * PART, COLS);
    struct ops *o;
    struct sparse *s;

    if (!CHECK_OK(ops_cpu_new(&o)) || !CHECK_OK(new_sparse(&s, o, j->comm, g)))
        return NULL;
    g.data = o->alloc(o, tensor_bytes(g), "gradient");
    fill(j, g, 0);
    touch(j, s, (int)g.rows, 0);
    if (j->comm->rank == 1)
        j->comm->abort(j->comm, GPT_DEVICE, "backward: lost");
    else
        CHECK_ERR(sparse_exchange(s, j->comm, g), GPT_DEVICE, "rank 1: backward: lost");
    sparse_free(s);
    o->free(o);
    return NULL;
}

static void with_ranks(int world, enum pattern pattern, enum dtype dtype, void *(*run)(void *))
{
    struct comm *c[MAX_WORLD];
    struct job j[MAX_WORLD];
    pthread_t thread[MAX_WORLD];

    CHECK_OK(comm_threads_new(c, world));
    for (int i = 0; i < world; i++) {
        j[i] = (struct job){ pattern, dtype, c[i] };
        pthread_create(&thread[i], NULL, run, &j[i]);
    }
    for (int i = 0; i < world; i++)
        pthread_join(thread[i], NULL);
    for (int i = 0; i < world; i++)
        c[i]->free(c[i]);
}

int main(void)
{
    for (int world = 1; world <= MAX_WORLD; world *= 2)
        for (int p = 0; p < PATTERNS; p++) {
            with_ranks(world, (enum pattern)p, DT_BF16, run_rank);
            with_ranks(world, (enum pattern)p, DT_F32, run_rank);
        }
    with_ranks(4, SCATTERED, DT_BF16, failing_rank);
    return check_done();
}
