#include "inspect/cat.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { AXES = 8, CHUNK = 4096 };

struct slice {
    int rank;
    uint64_t shape[AXES], lo[AXES], hi[AXES];
};

/* --- names and slices --- */

/* The tensor or view of that name. Of a stored tensor rank is -1: the axes are t's. */
static int find(struct tensors *s, const struct views *v, const char *name, struct view *out)
{
    const struct stored *t = tensors_find(s, name);
    const struct view *x = t ? NULL : views_find(v, name);
    if (x) {
        *out = *x;
        return 0;
    }
    if (!t)
        return err_set(GPT_INPUT, "%s: holds no tensor '%s' (gpt-ckpt ls lists them)",
                       tensors_path(s), name);
    *out = (struct view){ .t = t, .elements = t->elements, .rank = -1 };
    return 0;
}

/* A number of a slice, from the end when negative; *end is after it. */
static bool number(const char *s, char **end, uint64_t size, uint64_t *out)
{
    long long x = strtoll(s, end, 10);
    if (*end == s)
        return false;
    if (x < 0)
        x += (long long)size;
    *out = (uint64_t)x;
    return x >= 0 && *out <= size;
}

/* "a:b" or "i" at *p into lo, hi of axis k, which are the whole axis before. */
static bool axis(const char **p, struct slice *c, int k)
{
    char *end = (char *)*p;
    uint64_t size = c->shape[k];
    if (*end != ':' && !number(*p, &end, size, &c->lo[k]))
        return false;
    if (*end != ':') {
        c->hi[k] = c->lo[k] + 1;
    } else if (end[1] != ',' && end[1] != ']') {
        const char *b = end + 1;
        if (!number(b, &end, size, &c->hi[k]))
            return false;
    } else {
        end++;
    }
    *p = end;
    return c->lo[k] <= c->hi[k] && c->hi[k] <= size;
}

static int parse_slice(const char *text, const char *name, struct slice *c)
{
    for (int k = 0; k < c->rank; k++) {
        c->lo[k] = 0;
        c->hi[k] = c->shape[k];
    }
    if (!*text)
        return 0;
    const char *p = text + 1;
    for (int k = 0;; k++, p++) {
        if (k >= c->rank)
            return err_set(GPT_USAGE, "slice '%s': '%s' has %d axes", text, name, c->rank);
        if (!axis(&p, c, k) || (*p != ',' && *p != ']'))
            return err_set(GPT_USAGE,
                           "slice '%s': axis %d: expected i or a:b within 0:%" PRIu64
                           ", then ',' or ']'",
                           text, k, c->shape[k]);
        if (*p == ']')
            break;
    }
    return p[1] ? err_set(GPT_USAGE, "slice '%s': expected nothing after ']'", text) : 0;
}

static int take_shape(const struct view *v, const char *name, struct slice *c)
{
    const uint64_t *shape = v->rank < 0 ? v->t->shape : v->shape;
    c->rank = v->rank < 0 ? v->t->rank : v->rank;
    if (c->rank > AXES)
        return err_set(GPT_INPUT, "tensor '%s': %d axes, at most %d can be shown", name, c->rank,
                       AXES);
    for (int k = 0; k < c->rank; k++)
        c->shape[k] = shape[k];
    return 0;
}

/* --- printing --- */

/* True if row r, all elements along the last axis, is in the slice. */
static bool selected(const struct slice *c, uint64_t r)
{
    for (int k = c->rank - 2; k >= 0; k--) {
        uint64_t i = r % c->shape[k];
        if (i < c->lo[k] || i >= c->hi[k])
            return false;
        r /= c->shape[k];
    }
    return true;
}

static void print_number(FILE *f, enum dtype t, double x)
{
    fprintf(f,
            t == DT_F64         ? "%.17g"
            : t == DT_F32       ? "%.9g"
            : dtype_size(t) < 4 ? "%.7g"
                                : "%.0f",
            x);
}

/* An integer of 64 bits, more than a double holds. */
static void print_long(FILE *f, enum dtype t, const char *bytes)
{
    uint64_t u;
    memcpy(&u, bytes, sizeof u);
    fprintf(f, t == DT_I64 ? "%" PRId64 : "%" PRIu64, u);
}

struct source {
    struct values v;
    struct tensor_bytes b;
    bool raw; /* bytes are written as they are */
    bool bytes; /* read, and not values */
    enum dtype type; /* of what is printed */
    size_t size;
    FILE *f;
};

/* n elements: those in [lo, hi) are shown. */
static int row(struct source *s, uint64_t n, uint64_t lo, uint64_t hi, bool show)
{
    double x[CHUNK];
    int rc = 0;
    for (uint64_t at = 0, k; at < n; at += k) {
        k = n - at < CHUNK ? n - at : CHUNK;
        if ((rc = s->bytes ? bytes_read(&s->b, x, k * s->size) : values_read(&s->v, x, k)))
            return rc;
        for (uint64_t i = at > lo ? at : lo; show && i < at + k && i < hi; i++) {
            const char *bytes = (const char *)x + (i - at) * s->size;
            if (s->raw) {
                fwrite(bytes, s->size, 1, s->f);
                continue;
            }
            if (s->bytes)
                print_long(s->f, s->type, bytes);
            else
                print_number(s->f, s->type, x[i - at]);
            fputc(i + 1 < hi ? '\t' : '\n', s->f);
        }
    }
    return 0;
}

static int print(struct source *s, const struct slice *c)
{
    uint64_t rows = 1, cols = c->rank ? c->shape[c->rank - 1] : 1, last = 0;
    uint64_t lo = c->rank ? c->lo[c->rank - 1] : 0, hi = c->rank ? c->hi[c->rank - 1] : 1;
    int rc = 0;
    for (int k = 0; k + 1 < c->rank; k++)
        rows *= c->shape[k];
    for (uint64_t r = 0; r < rows; r++)
        if (selected(c, r))
            last = r + 1;
    for (uint64_t r = 0; !rc && r < last && !ferror(s->f); r++)
        rc = row(s, cols, lo, hi, selected(c, r));
    return rc ? rc : ferror(s->f) ? err_sys("cannot write the tensor") : 0;
}

static int open_and_print(struct tensors *s, const struct view *v, const struct slice *c, bool raw,
                          FILE *f)
{
    enum dtype t = v->t->dtype;
    struct source src = { .raw = raw, .f = f, .size = v->t->bits / 8 };
    src.bytes = raw || ((t == DT_I64 || t == DT_U64) && !v->t->scale && !v->t->master);
    if (v->elements == 0)
        return 0;
    if (raw && v->t->bits % 8)
        return err_set(GPT_INPUT, "tensor '%s': type %s cannot be cut", v->t->name, v->t->type);
    int rc = src.bytes ? bytes_open(&src.b, s, v->t, v->first * src.size)
                       : values_open(&src.v, s, v->t, v->first);
    src.type = src.bytes ? t : src.v.t->low || src.v.t->scale ? DT_F32 : src.v.t->dtype;
    if (!rc)
        rc = print(&src, c);
    if (src.bytes)
        bytes_close(&src.b);
    else
        values_close(&src.v);
    return rc;
}

int cat_tensor(struct tensors *s, const struct name_map *map, const char *what, bool raw, FILE *f)
{
    struct views v;
    struct view x;
    struct slice c;
    size_t n = strcspn(what, "[");
    char *name = strndup(what, n);
    if (!name)
        return err_memory();
    int rc = views_make(&v, s, map, NULL, VIEWS_PADDING | VIEWS_SCALARS | VIEWS_STORED);
    if (!rc)
        rc = find(s, &v, name, &x);
    if (!rc && !(rc = take_shape(&x, name, &c)))
        rc = parse_slice(what + n, name, &c);
    if (!rc)
        rc = open_and_print(s, &x, &c, raw, f);
    views_release(&v);
    free(name);
    return rc;
}
