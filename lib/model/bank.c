/* bank.c - memory, shards and initial values of the parameters. */
#include "model/bank.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/num.h"
#include "base/rng.h"
#include "state/parallel.h"

int64_t param_bytes(const struct param_spec *s)
{
    return s->matrices * s->rows * s->cols * (int64_t)dtype_size(s->dtype);
}

static int shard(struct param *p, int rank, int world)
{
    const struct param_spec *s = p->spec;
    int64_t unit_rows = s->matrices > 1 ? s->rows : 1;
    p->units = s->matrices > 1 ? s->matrices : s->rows;
    p->own_first = 0;
    p->own_count = p->units;
    if (s->comms != COMMS_REPLICATED) {
        if (p->units % world)
            return err_set(GPT_USAGE, "%s: %lld %s do not divide among %d ranks", s->label,
                           (long long)p->units, s->matrices > 1 ? "matrices" : "rows", world);
        p->own_count = p->units / world;
        p->own_first = rank * p->own_count;
    }
    p->w_own = tensor_rows(p->w, p->own_first * unit_rows, p->own_count * unit_rows);
    p->g_own = tensor_rows(p->g, p->own_first * unit_rows, p->own_count * unit_rows);
    return 0;
}

int banks_init(struct banks *b, const struct recipe *r, struct ops *o, int rank, int world)
{
    *b = (struct banks){ .recipe = r, .ops = o, .rank = rank, .world = world, .n = r->n_params };
    for (int i = 0; i < b->n; i++) {
        const struct param_spec *s = &r->params[i];
        struct param *p = &b->p[i];
        int64_t rows = s->matrices * s->rows;
        enum dtype g = r->gradients == DT_NONE || s->dtype == DT_F32 ? s->dtype : r->gradients;
        p->spec = s;
        p->w = tensor_of(NULL, s->dtype, rows, s->cols);
        p->g = tensor_of(NULL, g, rows, s->cols);
        p->w.data = o->alloc(o, tensor_bytes(p->w), s->label);
        p->g.data = o->alloc(o, tensor_bytes(p->g), s->label);
        int rc = shard(p, rank, world);
        if (rc)
            return rc;
    }
    banks_clear(b, true);
    return o->status(o);
}

void banks_clear(struct banks *b, bool adam)
{
    for (int i = 0; i < b->n; i++) {
        struct param *p = &b->p[i];
        if (p->spec->rule == RULE_ADAM && !adam)
            continue;
        if (p->spec->comms == COMMS_REPLICATED)
            b->ops->zero(b->ops, p->g);
        p->fresh = true;
    }
}

void banks_begin(struct banks *b, bool adam_fresh)
{
    for (int i = 0; i < b->n; i++)
        b->p[i].fresh = b->p[i].spec->rule == RULE_NORMUON || adam_fresh;
}

/* "1.1*11/0.5,1*11/0": groups between slashes, "a,b*n" is a,b n times over. */
static int fill_values(const struct param_spec *s, float *out, int64_t n)
{
    int64_t k = 0;
    char text[sizeof s->init_text], *outer = NULL;
    strcpy(text, s->init_text);
    for (char *g = strtok_r(text, "/", &outer); g; g = strtok_r(NULL, "/", &outer)) {
        float v[16];
        int64_t times = 1;
        int m = 0;
        double x;
        char *star = strchr(g, '*'), *inner = NULL;
        if (star) {
            *star++ = 0;
            if (num_i64(star, "repeat", 1, 1 << 20, &times))
                return err_prefix("%s: initial values", s->label);
        }
        for (char *c = strtok_r(g, ",", &inner); c && m < 16; c = strtok_r(NULL, ",", &inner)) {
            if (num_f64(c, "value", -1e9, 1e9, &x))
                return err_prefix("%s: initial values", s->label);
            v[m++] = (float)x;
        }
        for (int64_t t = 0; t < times; t++)
            for (int j = 0; j < m; j++, k++)
                if (k < n)
                    out[k] = v[j];
    }
    if (k != n)
        return err_set(GPT_INPUT, "%s: %lld initial values for %lld elements", s->label,
                       (long long)k, (long long)n);
    return 0;
}

enum { PIECE = 1 << 18 };           /* elements that a thread draws at a time */

struct fill {
    const struct param_spec *spec;
    int64_t matrix, n;
    struct rng rng;
    float *x;
    uint16_t *h;                /* x rounded, for bf16 weights */
};

static int fill_piece(void *arg, int piece)
{
    const struct fill *f = arg;
    const struct init *init = &f->spec->init[f->matrix % f->spec->n_init];
    int64_t first = (int64_t)piece * PIECE, end = first + PIECE < f->n ? first + PIECE : f->n;
    uint64_t base = (uint64_t)(f->matrix * f->n);
    float bound = (float)(sqrt(3.0) * init->value / sqrt((double)f->spec->cols));
    for (int64_t i = first; i < end; i++) {
        if (init->kind == INIT_UNIFORM)
            f->x[i] = bound * (2 * rng_uniform(&f->rng, base + (uint64_t)i) - 1);
        else if (init->kind == INIT_NORMAL)
            f->x[i] = init->value * rng_normal(&f->rng, base + (uint64_t)i);
        else if (init->kind == INIT_ZERO)
            f->x[i] = 0;
        f->h[i] = bf16_from_f32(f->x[i]);
    }
    return 0;
}

/* One matrix at a time through host memory, drawn by all processors. */
static int fill_param(struct banks *b, int index, uint64_t seed)
{
    struct param *p = &b->p[index];
    const struct param_spec *s = p->spec;
    struct fill f = { .spec = s, .n = s->rows * s->cols, .rng = rng_make(seed, (uint64_t)index) };
    f.x = malloc((size_t)f.n * sizeof *f.x);
    f.h = malloc((size_t)f.n * sizeof *f.h);
    int rc = f.x && f.h ? 0 : err_sys("initial values of %s", s->label);
    if (!rc && s->init[0].kind == INIT_VALUES)
        rc = fill_values(s, f.x, f.n);
    for (; f.matrix < s->matrices && !rc; f.matrix++) {
        struct tensor w = tensor_rows(p->w, f.matrix * s->rows, s->rows);
        if (s->init[f.matrix % s->n_init].kind == INIT_ZERO) {
            b->ops->zero(b->ops, w);
            continue;
        }
        rc = parallel_for((int)((f.n + PIECE - 1) / PIECE), 0, fill_piece, &f);
        if (!rc)
            b->ops->upload(b->ops, w.data, s->dtype == DT_BF16 ? (void *)f.h : (void *)f.x,
                           tensor_bytes(w));
    }
    free(f.x);
    free(f.h);
    return rc;
}

int banks_fill(struct banks *b, uint64_t seed)
{
    struct ops *o = b->ops;
    int rc = 0;
    for (int i = 0; i < b->n && !rc; i++)
        if (b->p[i].spec->init[0].kind != INIT_TRANSPOSE)
            rc = fill_param(b, i, seed);
    for (int i = 0; i < b->n && !rc; i++) {
        const struct param_spec *s = b->p[i].spec;
        if (s->init[0].kind != INIT_TRANSPOSE)
            continue;
        int from = recipe_param(b->recipe, s->init_text);
        if (from < 0)
            return err_set(GPT_INPUT, "%s: transpose:%s: no such parameter", s->label, s->init_text);
        o->transpose(o, b->p[i].w, b->p[from].w, false);
    }
    return rc ? rc : o->sync(o);
}
