#include "inspect/views.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/grow.h"
#include "base/pool.h"

/* Adds x, whose name it takes over, if its name, or its tensor's or parameter's, matches. */
static int add(struct views *v, struct view x, const char *pattern)
{
    if (!x.name)
        return err_memory();
    if (pattern && fnmatch(pattern, x.name, 0) && fnmatch(pattern, x.t->name, 0) &&
        fnmatch(pattern, x.t->param, 0)) {
        free(x.name);
        return 0;
    }
    if (grow_one(&v->v, v->n, sizeof *v->v)) {
        free(x.name);
        return GPT_SYSTEM;
    }
    v->v[v->n++] = x;
    return 0;
}

/* The axes of t from `from` on; those beyond the fourth are multiplied into it. */
static void take_axes(struct view *x, const struct stored *t, int from)
{
    x->rank = 0;
    for (int i = from; i < t->rank; i++) {
        if (x->rank < 4)
            x->shape[x->rank++] = t->shape[i];
        else
            x->shape[3] *= t->shape[i];
    }
}

/* The part p of t: whole units, or some elements of one unit. */
static struct view part_view(const struct stored *t, const struct part_name *p)
{
    uint64_t each = t->elements / t->shape[0];
    struct view x = {
        .t = t, .part = p, .unit = p->unit, .first = p->unit * each, .elements = p->units * each
    };
    if (asprintf(&x.name, "%s%s%s", p->name, *t->kind ? "." : "", t->kind) < 0)
        x.name = NULL;
    take_axes(&x, t, p->units == 1 && t->rank > 1 ? 1 : 0);
    if (p->units > 1)
        x.shape[0] = p->units;
    if (x.rank > 1 && x.shape[x.rank - 1] == 1)
        x.rank--; /* one number a row is a vector */
    if (p->elements) {
        x.first += p->inner;
        x.elements = p->elements;
        x.rank = p->elements > 1;
        x.shape[0] = p->elements;
    }
    return x;
}

/* True if the part lies within t. A state may have another shape than the weight, and a history has
 * no parts. */
static bool fits(const struct stored *t, const struct part_name *p)
{
    if (!strcmp(t->kind, "weight.amax") || !strcmp(t->kind, "next_scale") ||
        !strcmp(t->kind, "post_scale") || t->rank == 0 || t->shape[0] == 0 ||
        p->unit + p->units > t->shape[0])
        return false;
    return !p->elements || p->inner + p->elements <= t->elements / t->shape[0];
}

static int add_mapped(struct views *v, const struct stored *t, const struct name_map *map,
                      const char *pattern, int flags, bool *known)
{
    *known = false;
    for (int i = 0; map && i < map->n; i++) {
        const struct part_name *p = &map->v[i];
        if (strcmp(p->param, t->param) || (p->elements && !(flags & VIEWS_SCALARS)) || !fits(t, p))
            continue;
        *known = true;
        if (p->padding && !(flags & VIEWS_PADDING))
            continue;
        int rc = add(v, part_view(t, p), pattern);
        if (rc)
            return rc;
    }
    return 0;
}

static int add_plain(struct views *v, const struct stored *t, const char *pattern)
{
    uint64_t outer = 1;
    for (int i = 0; i + 2 < t->rank; i++)
        outer *= t->shape[i];
    if (t->elements == 0 || (t->rank > 2 && t->shape[t->rank - 1] == 1) ||
        t->elements / outer * t->bits % 8) /* a matrix begins with a byte */
        outer = 1;
    for (uint64_t u = 0; u < outer; u++) {
        struct view x = { .t = t,
                          .unit = outer > 1 ? u : 0,
                          .elements = t->elements / outer,
                          .first = u * (t->elements / outer) };
        if (outer == 1)
            x.name = strdup(t->name);
        else if (asprintf(&x.name, "%s[%" PRIu64 "]", t->name, u) < 0)
            x.name = NULL;
        take_axes(&x, t, outer > 1 ? t->rank - 2 : 0);
        int rc = add(v, x, pattern);
        if (rc)
            return rc;
    }
    return 0;
}

static int by_name(const void *a, const void *b, void *arg)
{
    const struct views *v = arg;
    int x = *(const int *)a, y = *(const int *)b, d = strcmp(v->v[x].name, v->v[y].name);
    return d ? d : x - y; /* of equal names the first is found */
}

static void sort_names(struct views *v)
{
    for (int i = 0; i < v->n; i++)
        v->by_name[i] = i;
    if (v->n)
        qsort_r(v->by_name, (size_t)v->n, sizeof *v->by_name, by_name, v);
}

int views_make(struct views *v, const struct tensors *s, const struct name_map *map,
               const char *pattern, int flags)
{
    int rc = 0;
    *v = (struct views){ NULL, 0, NULL };
    for (int i = 0; !rc && i < tensors_count(s); i++) {
        const struct stored *t = tensors_at(s, i);
        bool known;
        if (t->is_part && !(flags & VIEWS_STORED))
            continue;
        rc = add_mapped(v, t, map, pattern, flags, &known);
        if (!rc && !known)
            rc = add_plain(v, t, pattern);
    }
    if (!rc && pattern && v->n == 0)
        rc = err_set(GPT_INPUT, "%s: no tensor matches '%s'", tensors_path(s), pattern);
    if (!rc && !(v->by_name = malloc(((size_t)v->n + 1) * sizeof *v->by_name)))
        rc = err_memory();
    if (rc)
        views_release(v);
    else
        sort_names(v);
    return rc;
}

void views_release(struct views *v)
{
    for (int i = 0; i < v->n; i++)
        free(v->v[i].name);
    free(v->v);
    free(v->by_name);
    *v = (struct views){ NULL, 0, NULL };
}

void views_keep_matrices(struct views *v, const char *kind)
{
    int k = 0;
    for (int i = 0; i < v->n; i++) {
        const char *have = *v->v[i].t->kind ? v->v[i].t->kind : "weight";
        if (v->v[i].rank == 2 && !strcmp(have, kind))
            v->v[k++] = v->v[i];
        else
            free(v->v[i].name);
    }
    v->n = k;
    sort_names(v);
}

struct groups {
    int *start, (*work)(void *arg, int i);
    void *arg;
};

static int one_tensor(void *arg, int group)
{
    const struct groups *g = arg;
    int rc = 0;
    for (int i = g->start[group]; !rc && i < g->start[group + 1]; i++)
        rc = g->work(g->arg, i);
    return rc;
}

int views_each(const struct views *v, int threads, int (*work)(void *arg, int i), void *arg)
{
    struct groups g = { malloc(((size_t)v->n + 1) * sizeof *g.start), work, arg };
    int n = 0;
    if (!g.start)
        return err_memory();
    for (int i = 0; i < v->n; i++)
        if (i == 0 || v->v[i].t != v->v[i - 1].t)
            g.start[n++] = i;
    g.start[n] = v->n;
    int rc = parallel_for(n, threads, one_tensor, &g);
    free(g.start);
    return rc;
}

const struct view *views_find(const struct views *v, const char *name)
{
    int lo = 0, hi = v->n;
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        if (strcmp(v->v[v->by_name[mid]].name, name) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    const struct view *x = lo < v->n ? &v->v[v->by_name[lo]] : NULL;
    return x && !strcmp(x->name, name) ? x : NULL;
}

const char *view_shape(const struct view *v, char *buf)
{
    size_t at = 0;
    buf[0] = 0;
    for (int i = 0; i < v->rank; i++)
        at += (size_t)snprintf(buf + at, 96 - at, "%s%" PRIu64, i ? "x" : "", v->shape[i]);
    return buf;
}

uint64_t view_bytes(const struct view *v)
{
    return v->elements == v->t->elements ? v->t->bytes : v->elements * v->t->bits / 8;
}

const char *view_ranks(const struct tensors *s, const struct view *v, char *buf)
{
    const struct ckpt *c = tensors_ckpt(s);
    const struct ckpt_entry *e = c ? ckpt_find(c, v->t->name) : NULL;
    const struct ckpt_file *f;
    int lo = -1, hi = -1, rank;
    if (!e)
        return NULL;
    ckpt_files(c, &f);
    uint64_t each = v->t->elements / v->t->shape[0];
    uint64_t from = v->first / each, to = (v->first + v->elements - 1) / each;
    for (int i = 0; i < e->npieces; i++) {
        const struct ckpt_piece *p = &e->pieces[i];
        if ((uint64_t)p->begin > to || (uint64_t)(p->begin + p->count) <= from)
            continue;
        if (sscanf(f[p->file].name, "rank%d.", &rank) != 1)
            continue;
        lo = lo < 0 || rank < lo ? rank : lo;
        hi = rank > hi ? rank : hi;
    }
    if (lo >= 0 && lo == hi)
        snprintf(buf, 32, "%d", lo);
    else if (lo >= 0)
        snprintf(buf, 32, "%d-%d", lo, hi);
    return lo >= 0 ? buf : NULL;
}
