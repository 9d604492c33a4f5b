/* embed_test.c - embed and gather: cases, the smear by hand, rows in the table's own dtype. */
#include "cpu_tensors.h"
#include "hand_tensors.h"
#include "op_test.h"

struct embed_shape {
    int tokens, width, vocab;
    bool add;
};

static const struct embed_shape embed_shapes[] = {
    { 1, 12, 3, false },
    { 2, 13, 1, true },
    { 13, 24, 7, false },
    { 31, 40, 50, true },
};

static void embed_forward(struct ops_case *c)
{
    c->o->embed(c->o, at(c, "x0"), at(c, "table"), at(c, "gate"), scalar(c, "lambda"), &c->batch);
}

static void embed_backward(struct ops_case *c)
{
    const struct embed_shape *s = c->shape;

    c->o->embed_bwd(c->o, at(c, "de"), at(c, "dgate"), scalar(c, "dlambda"), at(c, "dx0"),
                    at(c, "table"), at(c, "gate"), scalar(c, "lambda"), &c->batch);
    c->o->table_grad(c->o, at(c, "dtable"), at(c, "de"), NO_TENSOR, &c->batch.token, s->add);
}

static void embed_make(struct ops_case *c, int variant)
{
    const struct embed_shape *s = c->shape = &embed_shapes[variant];

    snprintf(c->label, sizeof c->label, "embed T=%d D=%d V=%d add=%d", s->tokens, s->width,
             s->vocab, s->add);
    case_batch(c, s->tokens, s->vocab, DOCS_RAGGED);
    case_weight(c, "table", s->vocab, s->width);
    case_weight(c, "gate", 1, GATE_WIDTH);
    case_scalar(c, "lambda");
    case_output(c, "x0", s->tokens, s->width, "dx0");
    case_saved(c, "de", s->tokens, s->width);
    case_grad(c, "dtable", "table", s->add);
    case_grad(c, "dgate", "gate", true);
    case_grad(c, "dlambda", "lambda", true);
    c->forward = embed_forward;
    c->backward = embed_backward;
}

/* out = table[row]: a table's rows by the batch's tokens. */
static void gather_forward(struct ops_case *c)
{
    c->o->gather(c->o, at(c, "out"), at(c, "table"), &c->batch.token);
}

static void gather_backward(struct ops_case *c)
{
    const struct embed_shape *s = c->shape;
    c->o->table_grad(c->o, at(c, "dtable"), at(c, "dout"), NO_TENSOR, &c->batch.token, s->add);
}

static void gather_make(struct ops_case *c, int variant)
{
    const struct embed_shape *s = c->shape = &embed_shapes[variant];

    snprintf(c->label, sizeof c->label, "gather T=%d D=%d V=%d add=%d", s->tokens, s->width,
             s->vocab, s->add);
    case_batch(c, s->tokens, s->vocab, DOCS_RAGGED);
    case_weight(c, "table", s->vocab, s->width);
    case_output(c, "out", s->tokens, s->width, "dout");
    case_grad(c, "dtable", "table", s->add);
    c->forward = gather_forward;
    c->backward = gather_backward;
}

/* Gate 0: s = e + lambda/2 e_before, of e before its own smear; token 0 alone is not smeared. */
static void test_smear(void)
{
    enum { T = 3, D = 12 };
    struct ops *o = cpu();
    struct tensor table = floats(o, 3, D, NULL), gate = floats(o, 1, D, NULL);
    struct tensor x0 = floats(o, T, D, NULL);
    struct batch b = { .tokens = T, .token = { T, (int32_t[]){ 2, 0, 1 }, NULL, NULL } };
    real lambda = 2;

    o->zero(o, table);
    o->zero(o, gate);
    for (int v = 0; v < 3; v++)
        ((float *)table.data)[v * D + v] = 1; /* token v is the unit vector v */
    o->embed(o, x0, table, gate, &lambda, &b);
    for (int t = 0; t < T; t++)
        for (int i = 0; i < D; i++) {
            bool own = i == b.token.row[t], before = t > 0 && i == b.token.row[t - 1];
            double norm = sqrt(D / (t ? 2.0 : 1.0));
            CHECK_NEAR(f32_at(x0, t * D + i), own || before ? norm : 0, 1e-5);
        }
    o->free(o);
}

/* Rows of a table in its own dtype: the same bits. */
static void test_gather(enum dtype dtype, int64_t rows, int64_t cols)
{
    struct tensor table = drawn(dtype, rows, cols, 1), out = blank(dtype, 2 * rows, cols);
    int32_t *row = calloc((size_t)(2 * rows), sizeof *row);
    struct lookup l = { .tokens = (int)(2 * rows), .row = row };
    int bad = 0;

    for (int64_t i = 0; i < 2 * rows; i++)
        row[i] = (int32_t)rng_below(&rng, draws++, (uint64_t)rows);
    o->gather(o, out, table, &l);
    for (int64_t i = 0; i < 2 * rows; i++)
        bad += memcmp(tensor_rows(out, i, 1).data, tensor_rows(table, row[i], 1).data,
                      tensor_bytes(tensor_rows(table, 0, 1))) != 0;
    CHECK_EQ(bad, 0);
    free(row);
}

static void by_hand(void)
{
    test_smear();
    cpu_begin();
    for (int s = 0; s < N_RAGGED; s++)
        for (int t = 0; t < 2; t++) {
            int64_t rows = ragged[s][0], cols = ragged[s][1];
            enum dtype type = t ? DT_BF16 : DT_F32;
            test_gather(type, rows, cols);
        }
    cpu_end();
}

const struct op_test embed_test = {
    .name = "embed table_grad",
    .cases = { { embed_make, COUNT(embed_shapes) }, { gather_make, COUNT(embed_shapes) } },
    .by_hand = by_hand,
};
