/* inject_test.c - inject_bwd: cases. */
#include "stream_case.h"
#include "op_test.h"

/* Places: 0 only stream 0 joins, 1 only stream 1, 2 both; each out_i a mix of what joins. */
struct inject_shape {
    int tokens, width;
    const char *places;
    bool two, add, narrow; /* narrow: the second stream has half of the channels */
};

static const struct inject_shape inject_shapes[] = {
    { 1, 12, "0", false, false, false },   { 3, 13, "2", true, true, false },
    { 7, 16, "0212", true, false, false }, { 5, 40, "000", false, true, false },
    { 7, 24, "2012", true, false, true },
};

static const char *const inject_out[] = { "out_0", "out_1", "out_2", "out_3" };
static const char *const inject_g[] = { "g_0", "g_1", "g_2", "g_3" };
static bool joins(char place, int stream) { return place == '2' || place == '0' + stream; }

static void inject_forward(struct ops_case *c)
{
    const struct inject_shape *s = c->shape;

    for (int i = 0; s->places[i]; i++) {
        struct mix_term in[2];
        int n = 0;
        for (int k = 0; k < 2; k++)
            if (joins(s->places[i], k))
                in[n++] = (struct mix_term){ .x = at(c, mix_x[k]),
                                             .coef = scalar(c, inject_c[k][i]),
                                             .n = at(c, mix_x[k]).cols };
        c->o->mix_norm(c->o, at(c, inject_out[i]), NO_TENSOR, n, in);
    }
}

static void inject_backward(struct ops_case *c)
{
    const struct inject_shape *s = c->shape;
    struct injection in[2] = { { .add = s->add }, { .add = s->add } };
    struct tensor g[4];
    int n = (int)strlen(s->places);

    for (int i = 0; i < n; i++)
        g[i] = at(c, inject_g[i]);
    for (int k = 0; k <= s->two; k++) {
        in[k].x = at(c, mix_x[k]);
        in[k].dx = at(c, mix_dx[k]);
        for (int i = 0; i < n; i++)
            if (joins(s->places[i], k)) {
                in[k].coef[i] = scalar(c, inject_c[k][i]);
                in[k].dcoef[i] = scalar(c, inject_dc[k][i]);
            }
    }
    c->o->inject_bwd(c->o, n, g, 1 + s->two, in);
}

static void inject_make(struct ops_case *c, int variant)
{
    const struct inject_shape *s = c->shape = &inject_shapes[variant];

    snprintf(c->label, sizeof c->label, "inject T=%d D=%d places=%s add=%d", s->tokens, s->width,
             s->places, s->add);
    for (int k = 0; k <= s->two; k++) {
        case_input(c, mix_x[k], s->tokens, k && s->narrow ? s->width / 2 : s->width);
        case_grad(c, mix_dx[k], mix_x[k], s->add);
    }
    for (int i = 0; s->places[i]; i++) {
        case_output(c, inject_out[i], s->tokens, s->width, inject_g[i]);
        for (int k = 0; k < 2; k++)
            if (joins(s->places[i], k)) {
                case_scalar(c, inject_c[k][i]);
                case_grad(c, inject_dc[k][i], inject_c[k][i], true);
            }
    }
    c->forward = inject_forward;
    c->backward = inject_backward;
}

const struct op_test inject_test = {
    .name = "inject",
    .cases = { { inject_make, COUNT(inject_shapes) } },
};
