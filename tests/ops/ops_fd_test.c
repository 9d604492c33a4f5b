/* ops_fd_test.c - every backward op against finite differences, in double precision.
 *
 * Central differences of step h are off by h^2/6 times the third derivative,
 * and by eps |loss| / h from rounding. With h = 1e-5, losses below 1e3 and third
 * derivatives below 1e3 times the first (rows of norm 0.1 in RMS norm) that is
 * 2e-8 and 2e-8; 1e-6 of the gradient leaves room and still shows any wrong
 * term. Directions use every element of a gradient at once, single elements say
 * where it is wrong.
 *
 *     ops_fd_test [SEED]              the checks, and what else needs double (op_test.h)
 *     ops_fd_test --dump SEED         outputs and gradients of all cases, as doubles, for ops_test
 */
#include "check.h"
#include "op_test.h"

static const double step = 1e-5, tolerance = 1e-6;
enum { DIRECTIONS = 3, ELEMENTS = 24 };

/* Index in the input of element j of its gradient, which may have fewer columns. */
static int64_t input_index(const struct var *g, const struct var *x, int64_t j)
{
    return j / g->t.cols * x->t.cols + j % g->t.cols;
}

static double loss_at(struct ops_case *c, struct var *x, const double *value, const double *d,
                      double h)
{
    for (int64_t i = 0; i < tensor_count(x->t); i++)
        x->value[i] = value[i] + h * d[i];
    case_load(c);
    c->forward(c);
    return case_loss(c);
}

/* Derivative of the loss when x moves along d. */
static double slope(struct ops_case *c, struct var *x, const double *d)
{
    size_t bytes = (size_t)tensor_count(x->t) * sizeof(double);
    double *value = malloc(bytes), up, down;

    memcpy(value, x->value, bytes);
    up = loss_at(c, x, value, d, step);
    down = loss_at(c, x, value, d, -step);
    memcpy(x->value, value, bytes);
    free(value);
    return (up - down) / (2 * step);
}

static void check_slope(struct ops_case *c, struct var *g, struct var *x, const double *d,
                        const double *grad, double scale, const char *what, int64_t index)
{
    double expected = slope(c, x, d), found = 0;

    for (int64_t j = 0; j < tensor_count(g->t); j++)
        found += grad[j] * d[input_index(g, x, j)];
    check_that(fabs(found - expected) <= tolerance * scale, __FILE__, __LINE__,
               "%s: %s %s %lld: %.12g, finite differences %.12g, allowed %.2g", c->label, g->name,
               what, (long long)index, found, expected, tolerance * scale);
}

static void check_gradient(struct ops_case *c, struct var *g, const double *grad)
{
    struct var *x = case_find(c, g->of);
    int64_t n = tensor_count(g->t);
    double *d = calloc((size_t)tensor_count(x->t), sizeof *d), size = 0;

    for (int64_t j = 0; j < n; j++)
        size += grad[j] * grad[j];
    size = sqrt(size) + 1e-3; /* a gradient of zero, as for one document of one token */
    for (int i = 0; i < DIRECTIONS; i++) {
        for (int64_t j = 0; j < n; j++)
            d[input_index(g, x, j)] = case_draw(c);
        check_slope(c, g, x, d, grad, size, "direction", i);
    }
    memset(d, 0, (size_t)tensor_count(x->t) * sizeof *d);
    for (int i = 0; i < (n < ELEMENTS ? n : ELEMENTS); i++) {
        int64_t j = n <= ELEMENTS ? i : (int64_t)rng_below(&c->rng, c->draws++, (uint64_t)n);
        d[input_index(g, x, j)] = 1;
        check_slope(c, g, x, d, grad, size, "element", j);
        d[input_index(g, x, j)] = 0;
    }
    free(d);
}

static void check_finite(struct ops_case *c, const struct var *v, const double *value)
{
    for (int64_t i = 0; i < tensor_count(v->t); i++)
        if (!check_that(isfinite(value[i]), __FILE__, __LINE__, "%s: %s[%lld] is %g", c->label,
                        v->name, (long long)i, value[i]))
            return;
}

static void check_case(struct ops_case *c)
{
    double *value[CASE_VARS] = { NULL };

    case_load(c);
    c->forward(c);
    c->backward(c);
    for (int i = 0; i < c->n_vars; i++)
        if (case_is_result(&c->var[i])) {
            value[i] = case_download(c, c->var[i].t);
            check_finite(c, &c->var[i], value[i]);
        }
    for (int i = 0; i < c->n_vars; i++) {
        struct var *g = &c->var[i];
        if (g->kind != VAR_GRAD)
            continue;
        for (int64_t j = 0; g->value && j < tensor_count(g->t); j++)
            value[i][j] -= g->value[j]; /* what was there before */
        check_gradient(c, g, value[i]);
    }
    for (int i = 0; i < c->n_vars; i++)
        free(value[i]);
}

static void dump_case(struct ops_case *c)
{
    case_load(c);
    c->forward(c);
    c->backward(c);
    for (int i = 0; i < c->n_vars; i++)
        if (case_is_result(&c->var[i])) {
            double *value = case_download(c, c->var[i].t);
            fwrite(value, sizeof *value, (size_t)tensor_count(c->var[i].t), stdout);
            free(value);
        }
}

int main(int argc, char **argv)
{
    bool dump = argc > 2 && !strcmp(argv[1], "--dump");
    uint64_t seed = argc > 1 ? strtoull(argv[argc - 1], NULL, 10) : 1;

    for (struct op_case_at at = { 0, 0, -1 }; op_case_next(&at);) {
        struct ops *o;
        struct ops_case c;
        if (ops_cpu_new(&o)) {
            fprintf(stderr, "ops_fd_test: %s\n", err_message());
            return err_code();
        }
        op_case_make(&c, o, &at, DT_REAL, seed);
        (dump ? dump_case : check_case)(&c);
        if (!dump)
            CHECK_OK(o->status(o));
        case_release(&c);
    }
    for (int i = 0; i < n_op_tests && !dump; i++)
        if (op_tests[i]->in_double && check_of(op_tests[i]->name))
            op_tests[i]->in_double();
    return dump ? fflush(stdout) != 0 : check_done();
}
