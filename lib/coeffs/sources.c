#include "coeffs/sources.h"

#include <stdio.h>
#include <string.h>

static const char *usual_shape[] = { "768x768" };

int trial_sources_check(const struct trial_sources *g)
{
    int rows, cols;
    for (int i = 0; i < g->shape.n; i++)
        if (!shape_parse(g->shape.v[i], &rows, &cols))
            return err_set(GPT_USAGE, "--shape: expected a shape such as 768x3072, found '%s'",
                           g->shape.v[i]);
    return 0;
}

static int add_file(const struct trial_sources *g, const char *path, int flags, int few,
                    struct trials *t)
{
    struct svals_list v;
    int rows = 1, cols = 1, rc = svals_read(&v, path);
    if (rc)
        return rc;
    if (g->shape.n)
        shape_parse(g->shape.v[0], &rows, &cols);
    int take = few && v.n > few ? few : v.n;
    for (int i = 0; i < take && !rc; i++) {
        struct trial one;
        int at = (int)((long)i * v.n / take);
        rc = trial_of_svals(&one, &v.v[at], rows, cols, flags, g->seed, (uint64_t)at);
        if (!rc)
            rc = trials_add(t, &one);
    }
    svals_release(&v);
    return rc;
}

static int add_random(const struct trial_sources *g, const char *kind, const char *shape, int flags,
                      struct trials *t)
{
    int rows, cols, rc = 0;
    shape_parse(shape, &rows, &cols);
    for (int i = 0; i < g->matrices && !rc; i++) {
        struct matrix m;
        struct trial one;
        char name[96];
        snprintf(name, sizeof name, "%s %s %d", kind, shape, i);
        rc = matrix_random(&m, matrix_kind_parse(kind), rows, cols, g->seed, (uint64_t)i);
        if (rc)
            break;
        rc = trial_of_matrix(&one, &m, name, flags);
        matrix_release(&m);
        if (!rc)
            rc = trials_add(t, &one);
    }
    return rc;
}

int trial_sources_read(const struct trial_sources *g, int flags, int few, struct trials *t)
{
    struct opt_list shape = g->shape.n ? g->shape : (struct opt_list){ usual_shape, 1 };
    int rc = 0;
    for (int i = 0; i < g->spectrum.n && !rc; i++)
        rc = add_file(g, g->spectrum.v[i], flags, few, t);
    for (int k = 0; k < g->kind.n && !rc; k++)
        for (int i = 0; i < shape.n && !rc; i++)
            rc = add_random(g, g->kind.v[k], shape.v[i], flags, t);
    return rc;
}
