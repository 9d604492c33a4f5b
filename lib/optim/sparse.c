/* sparse.c - see sparse.h. */
#include "optim/sparse.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct sparse {
    struct ops *ops;
    int rank, world;
    int64_t rows, others; /* of the table; the most that are not one rank's */
    struct span *own; /* (world): the rows of each rank */
    bool even;
    uint64_t *touched; /* one bit a row */
    int64_t *send_rows, *recv_rows; /* (world): rows sent to, received from each rank */
    double *mine, *all; /* (world), (world,world): rows that a rank sends to each rank */
    int32_t *list; /* host: indices of the rows to be sent, then start (world + 1) */
    int64_t list_room;

    int32_t *send_index, *recv_index; /* device, from here on */
    int32_t *start; /* (world + 1): where the rows of each rank begin in recv */
    struct tensor send, recv; /* rows of the gradient */

    struct sparse_stats stats;
};

/* -- memory ------------------------------------------------------------------------ */

/* Upper bounds on the rows sent and received: above them the exchange is a dense reduce-scatter. */
static int64_t send_room(int64_t rows, int world, int64_t most)
{
    int64_t others = rows - rows / world;
    return most < others ? most : others;
}

static int64_t recv_room(int64_t rows, int world) { return rows - rows / world; }

static void *take(struct sparse *s, struct tensor t, const char *what)
{
    return s->ops->alloc(s->ops, tensor_bytes(t), what);
}

static int take_device(struct sparse *s, struct tensor g, int64_t most)
{
    int64_t out = send_room(g.rows, s->world, most), in = recv_room(g.rows, s->world);

    s->send = tensor_rows(g, 0, out);
    s->send.data = take(s, s->send, "rows to be sent");
    s->recv = tensor_rows(g, 0, in);
    s->recv.data = take(s, s->recv, "rows received");
    s->send_index = take(s, tensor_of(NULL, DT_I32, out, 1), "indices of rows to be sent");
    s->recv_index = take(s, tensor_of(NULL, DT_I32, in, 1), "indices of rows received");
    s->start = take(s, tensor_of(NULL, DT_I32, s->world + 1, 1), "starts of ranks");
    return s->ops->status(s->ops);
}

/* The gather op only copies rows, so any dtype passes through it as bf16. */
static struct tensor as_bits(struct tensor t)
{
    return tensor_of(t.data, DT_BF16, t.rows, t.cols * (int64_t)dtype_size(t.dtype) / 2);
}

/* Warm-up: launches the kernels of an exchange once, on rows that are not used. With lazy module
 * loading the first launch of a kernel synchronises the device, which can deadlock while a
 * collective is pending. */
static void warm_up(struct sparse *s)
{
    struct lookup l = { .tokens = 1, .row = s->send_index };
    struct row_merge m = {
        .rank = s->rank, .world = s->world, .index = s->recv_index, .start = s->start
    };

    if (s->world == 1 || !strcmp(s->ops->device, "cpu"))
        return;
    s->ops->upload(s->ops, s->send_index, s->list, sizeof *s->list);
    s->ops->upload(s->ops, s->start, s->list, (size_t)(s->world + 1) * sizeof *s->list);
    s->ops->gather(s->ops, as_bits(tensor_rows(s->send, 0, 1)), as_bits(s->recv), &l);
    s->ops->merge_rows(s->ops, tensor_rows(s->send, 0, 1), s->recv, &m);
}

int sparse_new(struct sparse **out, struct ops *o, struct comm *c, struct tensor g,
               const struct span *own, int64_t most)
{
    struct sparse *s = calloc(1, sizeof *s);
    size_t world = (size_t)c->world;
    int rc;

    *out = NULL;
    if (!s)
        return err_sys("sparse exchange");
    s->ops = o;
    s->rank = c->rank;
    s->world = c->world;
    s->rows = g.rows;
    s->others = g.rows - g.rows / c->world;
    s->even = g.rows % c->world == 0;
    s->list_room = send_room(g.rows, c->world, most);
    s->touched = calloc((size_t)(g.rows + 63) / 64, sizeof *s->touched);
    s->send_rows = calloc(world, sizeof *s->send_rows);
    s->recv_rows = calloc(world, sizeof *s->recv_rows);
    s->mine = calloc(world, sizeof *s->mine);
    s->all = calloc(world * world, sizeof *s->all);
    s->list = calloc((size_t)s->list_room + world + 1, sizeof *s->list);
    s->own = malloc(world * sizeof *s->own);
    if (!s->own || !s->touched || !s->send_rows || !s->recv_rows || !s->mine || !s->all || !s->list)
        rc = err_sys("sparse exchange of %lld rows", (long long)g.rows);
    else
        memcpy(s->own, own, world * sizeof *s->own), rc = take_device(s, g, most);
    if (!rc)
        warm_up(s);
    if (rc)
        sparse_free(s);
    else
        *out = s;
    return rc;
}

void sparse_free(struct sparse *s)
{
    if (!s)
        return;
    free(s->own);
    free(s->touched);
    free(s->send_rows);
    free(s->recv_rows);
    free(s->mine);
    free(s->all);
    free(s->list);
    free(s);
}

/* -- touched rows ------------------------------------------------------------------------- */

void sparse_touch(struct sparse *s, const int32_t *row, int n)
{
    for (int i = 0; i < n; i++) {
        assert(row[i] >= 0 && row[i] < s->rows);
        s->touched[row[i] / 64] |= UINT64_C(1) << row[i] % 64;
    }
}

void sparse_forget(struct sparse *s)
{
    memset(s->touched, 0, (size_t)(s->rows + 63) / 64 * sizeof *s->touched);
}

bool sparse_settled(const struct sparse *s)
{
    for (int64_t w = 0; w < (s->rows + 63) / 64; w++)
        if (s->touched[w])
            return false;
    return true;
}

/* Lists the touched rows of other shards in ascending order, which is by owner, and clears the
 * record of touched rows. Returns their number. */
static int64_t list_touched(struct sparse *s)
{
    int64_t n = 0;
    int owner = 0;

    memset(s->send_rows, 0, (size_t)s->world * sizeof *s->send_rows);
    for (int64_t w = 0; w < (s->rows + 63) / 64; w++) {
        for (uint64_t left = s->touched[w]; left; left &= left - 1) {
            int64_t row = 64 * w + __builtin_ctzll(left);
            while (row >= s->own[owner].first + s->own[owner].count)
                owner++;
            if (owner == s->rank)
                continue;
            assert(n < s->list_room);
            s->list[n++] = (int32_t)row;
            s->send_rows[owner]++;
        }
        s->touched[w] = 0;
    }
    return n;
}

/* -- the exchange ---------------------------------------------------------------------- */

/* Rows moved by an exchange; the same on all ranks. */
struct volume {
    int64_t most; /* that any rank sends or receives */
    double mean; /* that a rank sends */
};

static int share_counts(struct sparse *s, struct comm *c, struct volume *v)
{
    int world = s->world, rc;

    *v = (struct volume){ 0 };
    for (int r = 0; r < world; r++)
        s->mine[r] = (double)s->send_rows[r];
    if ((rc = c->gather_host(c, s->mine, world, s->all)))
        return rc;
    for (int r = 0; r < world; r++) {
        int64_t out = 0, in = 0;
        for (int q = 0; q < world; q++) {
            out += (int64_t)s->all[r * world + q];
            in += (int64_t)s->all[q * world + r];
        }
        s->recv_rows[r] = (int64_t)s->all[r * world + s->rank];
        v->most = out > v->most ? out : v->most;
        v->most = in > v->most ? in : v->most;
        v->mean += (double)out / world;
    }
    return 0;
}

static void exchange_rows(struct sparse *s, struct comm *c, struct tensor g, int64_t n)
{
    struct ops *o = s->ops;
    struct tensor out = tensor_of(s->send_index, DT_I32, n, 1);
    struct tensor in = tensor_of(s->recv_index, DT_I32, s->recv.rows, 1);
    struct lookup from = { .tokens = (int)n, .row = s->send_index };
    struct row_merge m = { .rank = c->rank,
                           .world = c->world,
                           .first = s->own[c->rank].first,
                           .index = s->recv_index,
                           .start = s->start };
    int32_t *start = s->list + s->list_room, at = 0;

    for (int r = 0; r <= c->world; r++) {
        start[r] = at;
        at += r < c->world ? (int32_t)s->recv_rows[r] : 0;
    }
    o->upload(o, s->send_index, s->list, tensor_bytes(out));
    o->upload(o, s->start, start, (size_t)(c->world + 1) * sizeof *start);
    comm_ticket indices = c->all_to_all(c, in, s->recv_rows, out, s->send_rows);
    o->gather(o, as_bits(tensor_rows(s->send, 0, n)), as_bits(g), &from);
    comm_ticket rows = c->all_to_all(c, s->recv, s->recv_rows, s->send, s->send_rows);
    c->wait(c, indices);
    c->wait(c, rows);
    o->merge_rows(o, tensor_rows(g, m.first, s->own[c->rank].count), s->recv, &m);
}

int sparse_exchange(struct sparse *s, struct comm *c, struct tensor g)
{
    double row = (double)tensor_bytes(tensor_rows(g, 0, 1)), indexed = row + sizeof(int32_t);
    double dense = (double)s->others * row;
    int64_t n = list_touched(s);
    struct volume v;
    int rc;

    assert(g.rows == s->rows && g.cols == s->send.cols && g.dtype == s->send.dtype);
    if ((rc = share_counts(s, c, &v)))
        return rc;
    s->stats.exchanges++;
    s->stats.dense_bytes += dense;
    if ((double)v.most * indexed < dense) {
        s->stats.sent_bytes += v.mean * indexed;
        exchange_rows(s, c, g, n);
    } else {
        s->stats.dense++;
        s->stats.sent_bytes += dense;
        c->wait(c, c->reduce_scatter(c, g, s->even ? NULL : s->own));
    }
    return 0;
}

struct sparse_stats sparse_stats(const struct sparse *s) { return s->stats; }
