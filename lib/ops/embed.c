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

void cpu_embed(struct ops *o, struct tensor x0, struct tensor table, struct tensor gate,
               const real *lambda, const struct batch *b)
{
    int64_t width = table.cols;
    real *const row[] = { cpu_scratch(o, 0, width), cpu_scratch(o, 1, width) };
    struct smear m;

    if (cpu_failed(o))
        return;
    assert(x0.rows == b->tokens && x0.cols == width);
    m = smear_of(table, gate, lambda);
    for (int64_t t = 0; t < b->tokens; t++) {
        real *e = row[t % 2], *before = row[(t + 1) % 2], *y = real_ptr(x0) + t * width;
        bool first = b->before ? b->before[t] < 0 : t == 0;
        read_row(e, table, b->token.row[t]);
        if (b->before && !first)
            read_row(before, table, b->before[t]);
        if (first)
            memcpy(y, e, (size_t)width * sizeof *y);
        else
            smear_row(&m, y, e, before);
        norm_row(y, y, width);
    }
}

void cpu_embed_bwd(struct ops *o, struct tensor de, struct tensor dgate, real *dlambda,
                   struct tensor dx0, struct tensor table, struct tensor gate, const real *lambda,
                   const struct batch *b)
{
    int64_t width = table.cols;
    real *const row[] = { cpu_scratch(o, 0, width), cpu_scratch(o, 1, width) };
    real *s = cpu_scratch(o, 2, width);
    real sum_gate[GATE_WIDTH] = { 0 }, sum_lambda = 0;
    struct smear m;

    if (cpu_failed(o))
        return;
    assert(de.rows == b->tokens && de.cols == width && dx0.rows == b->tokens);
    m = smear_of(table, gate, lambda);
    for (int64_t t = 0; t < b->tokens; t++) {
        const real *dy = real_ptr(dx0) + t * width;
        real *e = row[t % 2], *before = row[(t + 1) % 2];
        real *ds = real_ptr(de) + t * width; /* the gradient of s_t, then of e_t */
        read_row(e, table, b->token.row[t]);
        if (t == 0) {
            norm_row_bwd(ds, dy, e, width);
        } else {
            real sig = smear_row(&m, s, e, before), dgamma, du;
            real *dbefore = ds - width;
            norm_row_bwd(ds, dy, s, width);
            dgamma = real_dot(ds, before, width);
            du = dgamma * m.lambda * sig * (1 - sig);
            sum_lambda += dgamma * sig;
            for (int64_t i = 0; i < width; i++)
                dbefore[i] += m.lambda * sig * ds[i];
            for (int j = 0; j < GATE_WIDTH; j++) {
                sum_gate[j] += du * e[j];
                ds[j] += du * m.gate[j];
            }
        }
    }
    real_write(dgate, 0, sum_gate, GATE_WIDTH, true);
    *dlambda += sum_lambda;
}
