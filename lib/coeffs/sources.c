#include "coeffs/sources.h"

#include <stdio.h>
#include <string.h>

static const char *const usual_shape[] = { "768x768" };

int trial_sources_check(const struct trial_sources *g)
{
    int rows, cols;
    for (int i = 0; i < g->n_shape; i++)
        if (!shape_parse(g->shape[i], &rows, &cols))
            return err_set(GPT_USAGE, "--shape: expected a shape such as 768x3072, found '%s'",
                           g->shape[i]);
    for (int i = 0; i < g->n_kind; i++)
        if (matrix_kind_parse(g->kind[i]) == MATRIX_KINDS)
            return err_set(GPT_USAGE, "--distribution: expected one of %s, found '%s'",
                           MATRIX_CHOICES, g->kind[i]);
    return 0;
}

static int add_file(const struct trial_sources *g, const char *path, int flags, int few,
                    struct trials *t)
{
    struct svals_list v;
    int rows = 1, cols = 1, rc = svals_read(&v, path);
    if (rc)
        return rc;
    if (g->n_shape)
        shape_parse(g->shape[0], &rows, &cols);
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
    const char *const *shape = g->n_shape ? g->shape : usual_shape;
    int n_shape = g->n_shape ? g->n_shape : 1, rc = 0;
    for (int i = 0; i < g->n_spectrum && !rc; i++)
        rc = add_file(g, g->spectrum[i], flags, few, t);
    for (int k = 0; k < g->n_kind && !rc; k++)
        for (int i = 0; i < n_shape && !rc; i++)
            rc = add_random(g, g->kind[k], shape[i], flags, t);
    return rc;
}
