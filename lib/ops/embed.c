/* embed.c - embedding rows, smear, norm (record-61.md 2.2, 3.4). */
#include "ops/norm.h"

/* What the rows of one micro-batch share. */
struct smear {
    int64_t width;
    real gate[GATE_WIDTH], lambda;
};

static struct smear smear_of(struct tensor table, struct tensor gate, const real *lambda)
{
    struct smear s = { .width = table.cols, .lambda = *lambda };

    assert(tensor_count(gate) == GATE_WIDTH && table.cols >= GATE_WIDTH);
    real_read(s.gate, gate, 0, GATE_WIDTH);
    return s;
}

static void read_row(real *row, struct tensor table, int32_t v)
{
    assert(v >= 0 && v < table.rows);
    real_read(row, table, v * table.cols, table.cols);
}

/* s = e + gamma before, gamma = lambda sigmoid; returns the sigmoid. */
static real smear_row(const struct smear *m, real *s, const real *e, const real *before)
{
    real sig = sigmoid(real_dot(m->gate, e, GATE_WIDTH)), gamma = m->lambda * sig;

    for (int64_t i = 0; i < m->width; i++)
        s[i] = e[i] + gamma * before[i];
    return sig;
}

struct job {
    struct smear m;
    struct tensor x, table; /* x0, or its gradient */
    const struct batch *b;
    real *row; /* (2,D) of each thread: rows of the token and of the one before it */
    /* backward */
    real *ds; /* (T,D): gradients of s */
    real *sig, *dgamma; /* (T) */
    struct tensor de;
};

static void embed_rows(void *arg, int64_t first, int64_t count, int thread)
{
    const struct job *j = arg;
    int64_t width = j->m.width;
    real *e = j->row + thread * 2 * width, *before = e + width;
    const struct batch *b = j->b;

    for (int64_t t = first; t < first + count; t++) {
        real *y = real_ptr(j->x) + t * width;
        read_row(e, j->table, b->token.row[t]);
        if (b->before ? b->before[t] < 0 : t == 0) {
            memcpy(y, e, (size_t)width * sizeof *y);
        } else {
            read_row(before, j->table, b->before ? b->before[t] : b->token.row[t - 1]);
            smear_row(&j->m, y, e, before);
        }
        norm_row(y, y, width);
    }
}

void cpu_embed(struct ops *o, struct tensor x0, struct tensor table, struct tensor gate,
               const real *lambda, const struct batch *b)
{
    struct job j = { .x = x0, .table = table, .b = b };

    j.row = cpu_scratch(o, 0, cpu_threads(o) * 2 * table.cols);
    if (cpu_failed(o))
        return;
    assert(x0.rows == b->tokens && x0.cols == table.cols);
    j.m = smear_of(table, gate, lambda);
    cpu_split(o, b->tokens, CPU_ROWS, embed_rows, &j);
}

/* The gradient of s_t, by way of x0_t alone. */
static void smear_bwd_rows(void *arg, int64_t first, int64_t count, int thread)
{
    const struct job *j = arg;
    int64_t width = j->m.width;
    real *e = j->row + thread * 2 * width, *before = e + width;

    for (int64_t t = first; t < first + count; t++) {
        const real *dy = real_ptr(j->x) + t * width;
        real *ds = j->ds + t * width;
        read_row(e, j->table, j->b->token.row[t]);
        if (t == 0) {
            norm_row_bwd(ds, dy, e, width);
            continue;
        }
        read_row(before, j->table, j->b->token.row[t - 1]);
        j->sig[t] = smear_row(&j->m, ds, e, before);
        norm_row_bwd(ds, dy, ds, width);
        j->dgamma[t] = real_dot(ds, before, width);
    }
}

/* Returns the gradient of what token t's sigmoid is of. */
static real sum_grad(const struct job *j, int64_t t)
{
    return j->dgamma[t] * j->m.lambda * j->sig[t] * (1 - j->sig[t]);
}

/* The gradient of e_t: that of s_t, its gate's, and what s_(t+1) has of e_t. */
static void embed_bwd_rows(void *arg, int64_t first, int64_t count, int thread)
{
    const struct job *j = arg;
    int64_t width = j->m.width;

    (void)thread;
    for (int64_t t = first; t < first + count; t++) {
        const real *ds = j->ds + t * width;
        real *de = real_ptr(j->de) + t * width, du = t ? sum_grad(j, t) : 0;
        memcpy(de, ds, (size_t)width * sizeof *de);
        for (int k = 0; k < GATE_WIDTH && t; k++)
            de[k] += du * j->m.gate[k];
        for (int64_t i = 0; i < width && t + 1 < j->b->tokens; i++)
            de[i] += j->m.lambda * j->sig[t + 1] * ds[width + i];
    }
}

void cpu_embed_bwd(struct ops *o, struct tensor de, struct tensor dgate, real *dlambda,
                   struct tensor dx0, struct tensor table, struct tensor gate, const real *lambda,
                   const struct batch *b)
{
    struct job j = { .x = dx0, .table = table, .b = b, .de = de };
    int64_t T = b->tokens, width = table.cols;
    real e[GATE_WIDTH], sum_gate[GATE_WIDTH] = { 0 }, sum_lambda = 0;

    j.row = cpu_scratch(o, 0, cpu_threads(o) * 2 * width);
    j.ds = cpu_scratch(o, 1, T * width);
    j.sig = cpu_scratch(o, 2, T);
    j.dgamma = cpu_scratch(o, 3, T);
    if (cpu_failed(o))
        return;
    assert(de.rows == T && de.cols == width && dx0.rows == T);
    j.m = smear_of(table, gate, lambda);
    cpu_split(o, T, CPU_ROWS, smear_bwd_rows, &j);
    cpu_split(o, T, CPU_ROWS, embed_bwd_rows, &j);
    for (int64_t t = 1; t < T; t++) {
        real_read(e, table, b->token.row[t] * width, GATE_WIDTH);
        sum_lambda += j.dgamma[t] * j.sig[t];
        for (int k = 0; k < GATE_WIDTH; k++)
            sum_gate[k] += sum_grad(&j, t) * e[k];
    }
    real_write(dgate, 0, sum_gate, GATE_WIDTH, true);
    *dlambda += sum_lambda;
}
