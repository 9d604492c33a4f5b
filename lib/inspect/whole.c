/* whole.c - see whole.h. */
#include "inspect/whole.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 1 << 13 };

struct whole whole_of(const struct expected *e)
{
    bool low = !strcmp(e->kind, "mantissa") || !strcmp(e->kind, "remainder");
    return (struct whole){ .e = e, .master = low || !strcmp(e->kind, "master"), .low = low };
}

uint64_t whole_elements(const struct expected *e)
{
    uint64_t n = 1;
    for (int i = 0; i < e->rank; i++)
        n *= (uint64_t)e->shape[i];
    return n;
}

static const struct stored *find(const struct tensors *s, const char *part, const char *kind)
{
    char name[256];
    snprintf(name, sizeof name, "%s.%s", part, kind);
    return tensors_find(s, name);
}

static int wrong_size(const struct tensors *s, const struct stored *t, uint64_t n)
{
    return err_set(GPT_INPUT, "%s: tensor '%s': expected %" PRIu64 " elements, found %" PRIu64,
                   tensors_path(s), t->name, n, t->elements);
}

static bool is_weight(const struct whole *w) { return !strcmp(w->e->kind, "weight"); }

/* The numbers of t, which w takes. A weight that Adam rounds from what a master no longer has is
 * what the forward pass reads. */
static struct part part_of(const struct whole *w, uint64_t first, const struct stored *t)
{
    bool forward = is_weight(w) && recipe_rounding(w->e->spec) == WEIGHT_EVEN;
    return (struct part){ first, t->elements, forward ? stored_forward(t) : *t };
}

/* Looks for the pieces of w under the names of the map. */
static int find_parts(const struct tensors *s, const struct name_map *map, const char *kind,
                      struct whole *w, const char **missing)
{
    uint64_t each = whole_elements(w->e) / (uint64_t)w->e->shape[0];
    if (!(w->parts = calloc((size_t)map->n + 1, sizeof *w->parts)))
        return err_memory();
    for (int i = 0; i < map->n; i++) {
        const struct part_name *p = &map->v[i];
        if (strcmp(p->param, w->e->param))
            continue;
        const struct stored *t = find(s, p->name, kind);
        uint64_t n = p->elements ? p->elements : p->units * each;
        if (!t && !p->padding && !*missing)
            *missing = p->name;
        if (!t)
            continue;
        if (t->elements != n)
            return wrong_size(s, t, n);
        w->parts[w->n++] = part_of(w, p->unit * each + p->inner, t);
    }
    return 0;
}

/* Looks for w's matrices under the names PARAM.KIND[0] on, as export writes those of a parameter that no layer has a
 * name for: all of them, or none. */
static int find_matrices(const struct tensors *s, const char *kind, struct whole *w)
{
    uint64_t units = (uint64_t)w->e->shape[0], each = whole_elements(w->e) / units;
    char one[KIND_SIZE + 24];
    struct part *parts = calloc(units, sizeof *parts);
    if (!parts)
        return err_memory();
    for (uint64_t u = 0; u < units; u++) {
        snprintf(one, sizeof one, "%s[%" PRIu64 "]", kind, u);
        const struct stored *t = find(s, w->e->param, one);
        if (!t || t->elements != each) {
            free(parts);
            return t ? wrong_size(s, t, each) : 0;
        }
        parts[u] = part_of(w, u * each, t);
    }
    free(w->parts);
    w->parts = parts;
    w->n = (int)units;
    return 0;
}

static int by_first(const void *a, const void *b)
{
    const struct part *x = a, *y = b;
    return x->first < y->first ? -1 : x->first > y->first;
}

static int search(struct whole *w, const struct tensors *s, const struct name_map *map,
                  const char *kind, const char **missing)
{
    const struct stored *t = find(s, w->e->param, kind);
    *missing = NULL;
    if (!t && !map)
        return 0;
    if (!t) {
        int rc = find_parts(s, map, kind, w, missing);
        if (!rc)
            qsort(w->parts, (size_t)w->n, sizeof *w->parts, by_first);
        return rc || w->n || w->e->rank < 3 ? rc : find_matrices(s, kind, w);
    }
    if (t->elements != whole_elements(w->e))
        return wrong_size(s, t, whole_elements(w->e));
    if (!(w->parts = calloc(1, sizeof *w->parts)))
        return err_memory();
    w->parts[w->n++] = part_of(w, 0, t);
    return 0;
}

int whole_find(struct whole *w, const struct tensors *s, const struct name_map *map, int *states)
{
    const char *kind = w->master ? "weight" : w->e->kind, *missing, *dot = strstr(kind, ".scale");
    char row[64];
    int rc = search(w, s, map, kind, &missing);
    if (!rc && !w->n && dot) { /* as export names the scales of a state */
        snprintf(row, sizeof row, "%.*s.row_scale", (int)(dot - kind), kind);
        kind = row;
        whole_release(w);
        rc = search(w, s, map, kind, &missing);
    }
    bool weight = !strcmp(kind, "weight");
    if (!rc && weight && (missing || !w->n))
        return err_set(GPT_INPUT, "%s: expected a tensor '%s.weight', found none", tensors_path(s),
                       missing ? missing : w->e->param);
    *states += !rc && !weight && w->n > 0;
    return rc;
}

/* --- a piece as a stream --- */

void feed_close(struct feed *f)
{
    if (f->open)
        values_close(&f->v);
    f->open = 0;
}

/* Up to n elements from f->at on: of one part, or of a gap. */
static int next_values(struct feed *f, double *x, size_t *n)
{
    const struct whole *w = f->w;
    int i = 0, rc = 0;
    while (i < w->n && w->parts[i].first + w->parts[i].n <= f->at)
        i++;
    if (i == w->n || w->parts[i].first > f->at) {
        uint64_t gap = i < w->n ? w->parts[i].first - f->at : UINT64_MAX;
        *n = *n < gap ? *n : (size_t)gap;
        memset(x, 0, *n * sizeof *x);
    } else {
        const struct part *p = &w->parts[i];
        uint64_t left = p->first + p->n - f->at;
        *n = *n < left ? *n : (size_t)left;
        if (f->open != i + 1) {
            feed_close(f);
            f->open = i + 1;
            rc = values_open(&f->v, f->s, &p->t, f->at - p->first);
        }
        if (!rc)
            rc = values_read(&f->v, x, *n);
    }
    f->at += *n;
    return rc;
}

static uint16_t half_of(const struct whole *w, float x)
{
    if (w->low)
        return (uint16_t)f32_bits(x);
    if (w->e->dtype == DT_F16)
        return f16_from_f32(x);
    return is_weight(w) ? recipe_bf16(w->e->spec, x) : bf16_from_f32(x);
}

/* x is of elements from `first` on. */
static void encode(const struct whole *w, uint64_t first, const double *x, size_t n,
                   unsigned char *out)
{
    const struct expected *e = w->e;
    uint64_t cols = (uint64_t)e->shape[e->rank - 1];
    size_t size = dtype_size(e->dtype);
    for (size_t i = 0; i < n; i++) {
        float scale = w->holds       ? 1
                      : e->scale > 0 ? e->scale
                      : w->scale     ? w->scale[(first + i) / cols]
                                     : 1;
        float f = w->holds ? w->scale[first + i] : scale > 0 ? (float)(x[i] / (double)scale) : 0;
        uint16_t half = size == 2 ? half_of(w, f) : 0;
        if (size == 1)
            out[i] = e4m3_from_f32(f);
        else
            memcpy(out + size * i, size == 2 ? (void *)&half : (void *)&f, size);
    }
}

int feed_read(void *arg, void *dst, size_t n)
{
    struct feed *f = arg;
    double x[CHUNK];
    unsigned char *out = dst;
    size_t size = dtype_size(f->w->e->dtype);
    for (size_t left = n / size, k; left > 0; left -= k) {
        k = left < CHUNK ? left : CHUNK;
        uint64_t first = f->at;
        int rc = next_values(f, x, &k);
        if (rc)
            return rc;
        encode(f->w, first, x, k, out);
        out += k * size;
    }
    return 0;
}

/* The largest magnitudes of w's rows. */
static int row_sizes(const struct whole *w, struct tensors *s, uint64_t cols, float *most)
{
    struct feed f = { .s = s, .w = w };
    double x[CHUNK];
    int rc = 0;
    for (uint64_t n = whole_elements(w->e); !rc && f.at < n;) {
        uint64_t first = f.at;
        size_t k = n - first < CHUNK ? (size_t)(n - first) : CHUNK;
        rc = next_values(&f, x, &k);
        for (size_t i = 0; !rc && i < k; i++) {
            float size = (float)(x[i] < 0 ? -x[i] : x[i]), *row = &most[(first + i) / cols];
            *row = size > *row ? size : *row;
        }
    }
    feed_close(&f);
    return rc;
}

int whole_scales(struct whole *w, struct whole *of, struct tensors *s)
{
    uint64_t rows = whole_elements(w->e);
    struct feed f = { .s = s, .w = w };
    double x[CHUNK];
    int rc = 0;
    if (!(w->scale = calloc(rows + 1, sizeof *w->scale)))
        return err_memory();
    if (!w->n && of->n) {
        rc = row_sizes(of, s, (uint64_t)of->e->shape[of->e->rank - 1], w->scale);
        for (uint64_t i = 0; i < rows; i++)
            w->scale[i] = dtype_scale(of->e->dtype, w->scale[i]);
    }
    for (uint64_t i = 0; i < rows && w->e->scale > 0; i++)
        w->scale[i] = w->e->scale;
    while (!rc && w->n && w->e->scale == 0 && f.at < rows) {
        uint64_t first = f.at;
        size_t k = rows - first < CHUNK ? (size_t)(rows - first) : CHUNK;
        rc = next_values(&f, x, &k);
        for (size_t i = 0; !rc && i < k; i++)
            w->scale[first + i] = (float)x[i];
    }
    feed_close(&f);
    w->holds = true;
    of->scale = w->scale;
    return rc;
}

void whole_release(struct whole *w)
{
    free(w->parts);
    if (w->holds)
        free(w->scale);
    w->parts = NULL, w->n = 0, w->holds = false, w->scale = NULL;
}
