/* threads_parts.c - what each part of a collective between threads does: sums and copies. */
#include <assert.h>
#include <string.h>
#include "comm/threads_impl.h"

enum { BLOCK = 1024 }; /* elements summed at a time, on the stack */
enum { SMALL = 4096 }; /* elements below which an all-reduce is one part */

int threads_parts(enum kind kind, int world, struct tensor t)
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

void threads_carry_out(const struct slot *s, int world, int part)
{
    struct tensor t = s->e[part].t;
    int64_t count = tensor_count(t), rows = t.rows / world;
    switch (s->kind) {
    case REDUCE_SCATTER:
        mean(s, world, part * rows * t.cols, (part * rows + s->e[part].recv_rows[part]) * t.cols,
             part);
        break;
    case ALL_GATHER:
        for (int r = 0; r < world; r++)
            copy_rows(t, r * rows, s->e[r].t, r * rows, s->e[r].recv_rows[r]);
        break;
    case ALL_REDUCE:
        mean(s, world, count * part / s->parts, count * (part + 1) / s->parts, -1);
        break;
    case BROADCAST: copy_rows(t, 0, s->e[s->root].t, 0, t.rows); break;
    case ALL_TO_ALL: receive(s, world, part); break;
    case GATHER_HOST:
        for (int r = 0; r < world; r++)
            memcpy(s->e[part].all + (size_t)r * s->n, s->e[r].mine, (size_t)s->n * sizeof(double));
        break;
    case BARRIER: break;
    }
}
