/* initial.c - drawing initial values, parameter after parameter, each by all processors, or taking them
 * from a source. */
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
#include "recipe/schedule.h"

struct initial {
    const struct recipe *r;
    uint64_t seed;
    const struct initial_source *source; /* NULL: all is drawn */
    char *
        data[MAX_PARAMS]; /* the matrices that are not zero, in order, in the parameter's type; with
                               a source all */
    float *exact[MAX_PARAMS], *reads[MAX_PARAMS]; /* with a source */
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
    return (size_t)(s->rows * s->cols) * dtype_size(initial_dtype(s));
}

const float *initial_exact(const struct initial *v, int i) { return v ? v->exact[i] : NULL; }
const float *initial_reads(const struct initial *v, int i) { return v ? v->reads[i] : NULL; }

/* Returns a drawn matrix's values; NULL of others. */
static const void *drawn_matrix(const struct initial *v, int i, int64_t m)
{
    const struct param_spec *s = &v->r->params[i];
    return is_drawn(s, m) ? v->data[i] + (size_t)drawn_before(s, m) * matrix_bytes(s) : NULL;
}

int initial_transposed(const struct initial *v, int i)
{
    const struct param_spec *s = &v->r->params[i];
    return v->source || s->init[0].kind != INIT_TRANSPOSE ? -1 : recipe_param(v->r, s->init_text);
}

const void *initial_matrix(const struct initial *v, int i, int64_t m)
{
    return v->source ? v->data[i] + (size_t)m * matrix_bytes(&v->r->params[i])
                     : drawn_matrix(v, i, m);
}

static void put(const struct param_spec *s, void *out, int64_t i, float x)
{
    if (initial_dtype(s) == DT_BF16)
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

/* Draws m numbers of a matrix of `cols` columns, from `index` on. */
static void draw_batch(const struct rng *rng, uint64_t index, int64_t m, struct init init,
                       int64_t cols, float *x)
{
    float bound = (float)(sqrt(3.0) * init.value / sqrt((double)cols));

    if (init.kind == INIT_UNIFORM)
        rng_uniforms(rng, index, m, x);
    else if (init.kind != INIT_ONE)
        rng_normals(rng, index, m, x);
    if (init.kind == INIT_UNIFORM)
        for (int64_t j = 0; j < m; j++)
            x[j] = bound * (2 * x[j] - 1);
    else if (init.kind == INIT_NORMAL)
        for (int64_t j = 0; j < m; j++)
            x[j] = init.value * x[j];
    else
        for (int64_t j = 0; j < m; j++)
            x[j] = init.kind == INIT_SIGN && x[j] < 0 ? -1 : 1;
}

static void put_batch(const struct param_spec *s, void *out, int64_t first, int64_t m,
                      const float *x)
{
    if (initial_dtype(s) == DT_BF16)
        for (int64_t j = 0; j < m; j++)
            ((uint16_t *)out)[first + j] = bf16_from_f32(x[j]);
    else
        memcpy((float *)out + first, x, (size_t)m * sizeof *x);
}

/* `at`: index among the pieces of all matrices. */
static int draw_piece(void *arg, int at)
{
    const struct draw *d = arg;
    const struct param_spec *s = d->spec;
    int64_t matrix = at / d->pieces, first = at % d->pieces * PIECE, n = s->rows * s->cols;
    int64_t end = first + PIECE < n ? first + PIECE : n;
    const struct init *init = init_of(s, matrix);
    struct rng rng = rng_make(d->v->seed, (uint64_t)d->param);
    float x[BATCH];
    void *out = (void *)drawn_matrix(d->v, d->param, matrix);
    for (int64_t i = first; i < end && out && !d->v->stop; i += BATCH) { /* NULL: all zero */
        int64_t m = end - i < BATCH ? end - i : BATCH;
        draw_batch(&rng, (uint64_t)(matrix * n + i), m, *init, s->cols, x);
        put_batch(s, out, i, m, x);
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

/* -- a source ------------------------------------------------------------------------- */

static size_t elements(const struct param_spec *s)
{
    return (size_t)(s->matrices * s->rows * s->cols);
}

static float get(const struct param_spec *s, const void *x, size_t i)
{
    return initial_dtype(s) == DT_BF16 ? bf16_to_f32(((const uint16_t *)x)[i])
                                       : ((const float *)x)[i];
}

/* x: numbers of a parameter of one matrix. */
static void transpose(const struct param_spec *s, const float *x, float *out)
{
    for (int64_t i = 0; i < s->rows; i++)
        for (int64_t k = 0; k < s->cols; k++)
            out[k * s->rows + i] = x[i * s->cols + k];
}

/* Parameter i's numbers are needed after it: it is tied, or another one is its transpose. */
static bool is_needed(const struct recipe *r, int i)
{
    bool needed = i == r->order.tied_head || i == r->order.tied_embed;
    for (int k = 0; k < r->n_params; k++)
        needed |= r->params[k].init[0].kind == INIT_TRANSPOSE &&
                  !strcmp(r->params[k].init_text, r->params[i].label);
    return needed;
}

/* Frees of parameter i what data[] has, too. */
static void drop(struct initial *v, int i)
{
    const struct param_spec *s = &v->r->params[i];
    if (initial_dtype(s) == DT_F32) {
        free(v->exact[i]);
        v->exact[i] = NULL;
    }
    if (s->stored == DT_NONE || s->stored == DT_F32) {
        free(v->reads[i]);
        v->reads[i] = NULL;
    }
}

/* Draws parameter i and writes all of it to x. */
static int draw_whole(struct initial *v, int i, float *x)
{
    const struct param_spec *s = &v->r->params[i];
    size_t each = (size_t)(s->rows * s->cols);
    if (s->init[0].kind == INIT_TRANSPOSE) {
        int from = recipe_param(v->r, s->init_text);
        transpose(&v->r->params[from], v->exact[from], x);
        return 0;
    }
    int rc = draw_param(v, i);
    for (int64_t m = 0; m < s->matrices && !rc; m++) {
        const void *from = drawn_matrix(v, i, m);
        for (size_t k = 0; k < each; k++)
            x[(size_t)m * each + k] = from ? get(s, from, k) : 0;
    }
    free(v->data[i]);
    v->data[i] = NULL;
    return rc;
}

/* Makes the weights of parameter i, in its type, of exact and reads. */
static int set_data(struct initial *v, int i)
{
    const struct param_spec *s = &v->r->params[i];
    bool even = recipe_rounding(s) == WEIGHT_EVEN;
    size_t n = elements(s);
    if (!(v->data[i] = malloc(n * dtype_size(initial_dtype(s)) + 1)))
        return err_memory();
    for (size_t k = 0; k < n; k++) {
        float x = v->exact[i][k];
        if (initial_dtype(s) == DT_BF16)
            x = even ? v->reads[i][k] : bf16_to_f32(recipe_bf16(s, x));
        put(s, v->data[i], (int64_t)k, x);
    }
    return 0;
}

static int take_param(struct initial *v, int i)
{
    const struct initial_source *source = v->source;
    size_t bytes = elements(&v->r->params[i]) * sizeof(float);
    float *exact = v->exact[i] = malloc(bytes + 1);
    float *reads = v->reads[i] = malloc(bytes + 1);
    int rc = exact && reads ? 0 : err_memory();
    if (!rc && source->partial[i] && !(rc = draw_whole(v, i, exact)))
        memcpy(reads, exact, bytes);
    if (!rc)
        rc = source->read(source->arg, i, exact, reads);
    if (!rc)
        rc = set_data(v, i);
    if (!is_needed(v->r, i))
        drop(v, i);
    return rc;
}

/* A tied embedding follows the head from the first step on: it must be that already. */
static int tie(struct initial *v)
{
    int head = v->r->order.tied_head, embed = v->r->order.tied_embed;
    const struct param_spec *h = &v->r->params[head];
    const float *x = v->reads[head], *y = v->reads[embed];
    for (int64_t i = 0; i < h->rows; i++)
        for (int64_t k = 0; k < h->cols; k++)
            if (x[i * h->cols + k] != y[k * h->rows + i])
                return err_set(
                    GPT_INPUT,
                    "%s: '%s' and '%s' have parted there, and the recipe ties them; with "
                    "-s order.tied=- they go on as two",
                    v->source->name, h->label, v->r->params[embed].label);
    transpose(h, v->exact[head], v->exact[embed]);
    transpose(h, x, v->reads[embed]);
    free(v->data[embed]);
    return set_data(v, embed);
}

/* Those that are transposes of others come after them. */
static int take_all(struct initial *v)
{
    const struct recipe *r = v->r;
    struct step_schedule first;
    int rc = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < r->n_params && !rc && !v->stop; i++)
            if ((r->params[i].init[0].kind == INIT_TRANSPOSE) == pass)
                rc = take_param(v, i);
    schedule_at(r, 0, &first);
    if (!rc && !v->stop && first.tied)
        rc = tie(v);
    for (int i = 0; i < r->n_params; i++)
        drop(v, i);
    return rc;
}

/* -- the thread ---------------------------------------------------------------------- */

/* n more parameters are there, unless rc says a failure. */
static void tell(struct initial *v, int n, int rc)
{
    pthread_mutex_lock(&v->lock);
    v->done += rc ? 0 : n;
    v->code = rc;
    if (rc)
        snprintf(v->message, sizeof v->message, "%s", err_message());
    pthread_cond_broadcast(&v->moved);
    pthread_mutex_unlock(&v->lock);
}

static void *draw_all(void *arg)
{
    struct initial *v = arg;
    int rc = 0;
    for (int i = 0; i < v->r->n_params && !rc && !v->stop; i++)
        tell(v, 1, rc = draw_param(v, i));
    return NULL;
}

static void *take_from_source(void *arg)
{
    struct initial *v = arg;
    int rc = take_all(v);
    if (!v->stop)
        tell(v, v->r->n_params, rc);
    return NULL;
}

int initial_new(struct initial **out, const struct recipe *r, uint64_t seed,
                const struct initial_source *source)
{
    struct initial *v = calloc(1, sizeof *v);
    *out = NULL;
    if (!v)
        return err_sys("initial values");
    v->r = r;
    v->seed = seed;
    v->source = source;
    pthread_mutex_init(&v->lock, NULL);
    pthread_cond_init(&v->moved, NULL);
    if ((errno = pthread_create(&v->thread, NULL, source ? take_from_source : draw_all, v))) {
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
    for (int i = 0; i < MAX_PARAMS; i++) {
        free(v->data[i]);
        free(v->exact[i]);
        free(v->reads[i]);
    }
    pthread_cond_destroy(&v->moved);
    pthread_mutex_destroy(&v->lock);
    free(v);
}
