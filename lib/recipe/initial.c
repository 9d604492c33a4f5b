/* initial.c - drawing initial values, parameter after parameter, each by all processors. */
#include "recipe/initial.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include "base/num.h"
#include "base/rng.h"
#include "base/pool.h"

struct initial {
    const struct recipe *r;
    uint64_t seed;
    char *data[MAX_PARAMS]; /* the matrices that are not zero, in order, in the parameter's type */
    pthread_t thread;
    atomic_bool stop; /* set by initial_free */
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t moved;
    int done; /* parameters drawn */
    int code; /* failure of parameter `done`, with its message */
    char message[512];
};

static const struct init *init_of(const struct param_spec *s, int64_t matrix)
{
    return &s->init[matrix % s->n_init];
}

static bool is_drawn(const struct param_spec *s, int64_t matrix)
{
    enum init_kind kind = init_of(s, matrix)->kind;
    return kind != INIT_ZERO && kind != INIT_TRANSPOSE;
}

static int64_t drawn_before(const struct param_spec *s, int64_t matrix)
{
    int64_t n = 0;
    for (int64_t m = 0; m < matrix; m++)
        n += is_drawn(s, m);
    return n;
}

static size_t matrix_bytes(const struct param_spec *s)
{
    return (size_t)(s->rows * s->cols) * dtype_size(s->dtype);
}

const void *initial_matrix(const struct initial *v, int i, int64_t m)
{
    const struct param_spec *s = &v->r->params[i];
    return is_drawn(s, m) ? v->data[i] + (size_t)drawn_before(s, m) * matrix_bytes(s) : NULL;
}

static void put(const struct param_spec *s, void *out, int64_t i, float x)
{
    if (s->dtype == DT_BF16)
        ((uint16_t *)out)[i] = bf16_from_f32(x);
    else
        ((float *)out)[i] = x;
}

/* "a,b*n": a, b repeated n times, from element *k on; *k also counts values beyond the last. */
static int put_group(const struct param_spec *s, char *group, int64_t n, int64_t *k, void *out)
{
    enum { MOST = 16 };
    float v[MOST];
    int64_t times = 1;
    int m = 0;
    char *star = strchr(group, '*'), *save = NULL;
    if (star) {
        *star++ = 0;
        if (num_i64(star, "repeat", 1, 1 << 20, &times))
            return err_prefix("initial values");
    }
    for (char *c = strtok_r(group, ",", &save); c; c = strtok_r(NULL, ",", &save)) {
        double x;
        if (m == MOST)
            return err_set(GPT_INPUT, "initial values: more than %d in a group", MOST);
        if (num_f64(c, "value", -1e9, 1e9, &x))
            return err_prefix("initial values");
        v[m++] = (float)x;
    }
    for (int64_t t = 0; t < times; t++)
        for (int j = 0; j < m; j++, ++*k)
            if (*k < n && out)
                put(s, out, *k, v[j]);
    return 0;
}

/* "1.1*11/0.5,1*11/0": groups separated by slashes, for all matrices together. */
int initial_values(const struct param_spec *s, void *out)
{
    int64_t n = s->matrices * s->rows * s->cols, k = 0;
    char text[sizeof s->init_text], *save = NULL;
    int rc = 0;
    strcpy(text, s->init_text);
    for (char *g = strtok_r(text, "/", &save); g && !rc; g = strtok_r(NULL, "/", &save))
        rc = put_group(s, g, n, &k, out);
    if (!rc && k != n)
        rc =
            err_set(GPT_INPUT, "%lld initial values for %lld elements", (long long)k, (long long)n);
    return rc;
}

/* -- random numbers ---------------------------------------------------------------- */

enum {
    PIECE = 1 << 16,
    BATCH = 1 << 10
}; /* elements of a thread's task, and of one call of the generator */

struct draw {
    const struct initial *v;
    const struct param_spec *spec;
    int param;
    int64_t pieces; /* of a matrix */
};

/* `at`: index among the pieces of all matrices. */
static int draw_piece(void *arg, int at)
{
    const struct draw *d = arg;
    const struct param_spec *s = d->spec;
    int64_t matrix = at / d->pieces, first = at % d->pieces * PIECE, n = s->rows * s->cols;
    int64_t end = first + PIECE < n ? first + PIECE : n;
    const struct init *init = init_of(s, matrix);
    struct rng rng = rng_make(d->v->seed, (uint64_t)d->param);
    float bound = (float)(sqrt(3.0) * init->value / sqrt((double)s->cols)), x[BATCH];
    void *out = (void *)initial_matrix(d->v, d->param, matrix);
    for (int64_t i = first; i < end && !d->v->stop; i += BATCH) {
        int64_t m = end - i < BATCH ? end - i : BATCH;
        uint64_t index = (uint64_t)(matrix * n + i);
        if (init->kind == INIT_UNIFORM) {
            rng_uniforms(&rng, index, m, x);
            for (int64_t j = 0; j < m; j++)
                put(s, out, i + j, bound * (2 * x[j] - 1));
        } else if (init->kind == INIT_NORMAL) {
            rng_normals(&rng, index, m, x);
            for (int64_t j = 0; j < m; j++)
                put(s, out, i + j, init->value * x[j]);
        } else if (init->kind == INIT_SIGN) {
            rng_normals(&rng, index, m, x);
            for (int64_t j = 0; j < m; j++)
                put(s, out, i + j, x[j] < 0 ? -1 : 1);
        }
    }
    return 0;
}

static int draw_param(struct initial *v, int i)
{
    const struct param_spec *s = &v->r->params[i];
    struct draw d = { v, s, i, (s->rows * s->cols + PIECE - 1) / PIECE };
    int64_t n = drawn_before(s, s->matrices);
    if (!n)
        return 0;
    v->data[i] = malloc((size_t)n * matrix_bytes(s));
    if (!v->data[i])
        return err_sys("initial values of %s", s->label);
    if (s->init[0].kind == INIT_VALUES)
        return initial_values(s, v->data[i]);
    return parallel_for((int)(s->matrices * d.pieces), 0, draw_piece, &d);
}

/* -- the thread ---------------------------------------------------------------------- */

static void *draw_all(void *arg)
{
    struct initial *v = arg;
    int rc = 0;
    for (int i = 0; i < v->r->n_params && !rc && !v->stop; i++) {
        rc = draw_param(v, i);
        pthread_mutex_lock(&v->lock);
        v->done += !rc;
        v->code = rc;
        if (rc)
            snprintf(v->message, sizeof v->message, "%s", err_message());
        pthread_cond_broadcast(&v->moved);
        pthread_mutex_unlock(&v->lock);
    }
    return NULL;
}

int initial_new(struct initial **out, const struct recipe *r, uint64_t seed)
{
    struct initial *v = calloc(1, sizeof *v);
    *out = NULL;
    if (!v)
        return err_sys("initial values");
    v->r = r;
    v->seed = seed;
    pthread_mutex_init(&v->lock, NULL);
    pthread_cond_init(&v->moved, NULL);
    if ((errno = pthread_create(&v->thread, NULL, draw_all, v))) {
        int rc = err_sys("cannot start the thread that draws initial values");
        pthread_cond_destroy(&v->moved);
        pthread_mutex_destroy(&v->lock);
        free(v);
        return rc;
    }
    *out = v;
    return 0;
}

int initial_wait(struct initial *v, int i)
{
    pthread_mutex_lock(&v->lock);
    while (v->done <= i && !v->code)
        pthread_cond_wait(&v->moved, &v->lock);
    int rc = v->done > i ? 0 : v->code;
    pthread_mutex_unlock(&v->lock);
    return rc ? err_set(rc, "%s", v->message) : 0;
}

void initial_free(struct initial *v)
{
    if (!v)
        return;
    v->stop = true;
    pthread_join(v->thread, NULL);
    for (int i = 0; i < MAX_PARAMS; i++)
        free(v->data[i]);
    pthread_cond_destroy(&v->moved);
    pthread_mutex_destroy(&v->lock);
    free(v);
}
