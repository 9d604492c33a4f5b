#include "inspect/momenta.h"

#include <stdlib.h>
#include "inspect/inspect.h"
#include "inspect/views.h"

static int add_view(struct trials *l, struct tensors *s, const struct view *v, int flags)
{
    struct matrix m;
    struct trial t;
    double *a = malloc(v->elements * sizeof *a), squares = 0;
    int rc = a ? values_load(s, v->t, v->first, a, v->elements) : err_memory();
    for (uint64_t i = 0; !rc && i < v->elements; i++)
        squares += a[i] * a[i];
    if (rc || squares == 0) {
        free(a);
        return rc;
    }
    if ((rc = matrix_take(&m, (int)v->shape[0], (int)v->shape[1], a)))
        return rc;
    rc = trial_of_matrix(&t, &m, v->name, flags);
    matrix_release(&m);
    return rc ? rc : trials_add(l, &t);
}

int momenta_trials(const char *path, const char *bank, int flags, int few, struct trials *t)
{
    struct inspect x;
    struct views v = { .n = 0 };
    int rc = inspect_open(&x, path);
    if (rc)
        return rc;
    rc = views_make(&v, x.tensors, &x.map, bank, 0);
    if (!rc)
        views_keep_matrices(&v, "momentum");
    if (!rc && v.n == 0)
        rc = err_set(GPT_INPUT, "%s: holds no %s%smomentum matrix", path, bank ? bank : "",
                     bank ? " " : "");
    int take = few && v.n > few ? few : v.n;
    for (int i = 0; i < take && !rc; i++)
        rc = add_view(t, x.tensors, &v.v[(int)((long)i * v.n / take)], flags);
    views_release(&v);
    inspect_close(&x);
    return rc;
}
