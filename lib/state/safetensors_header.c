/* The header's JSON: only the grammar that the format has, each rule its own message. */
#include "state/safetensors.h"
#include "state/st_json.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const struct type { const char *name; unsigned bits; enum dtype dtype; } types[] = {
    { "F64", 64, DT_F64 }, { "F32", 32, DT_F32 }, { "F16", 16, DT_F16 }, { "BF16", 16, DT_BF16 },
    { "I64", 64, DT_I64 }, { "I32", 32, DT_I32 }, { "I16", 16, DT_I16 }, { "U16", 16, DT_U16 },
    { "I8", 8, DT_I8 }, { "U8", 8, DT_U8 }, { "BOOL", 8, DT_BOOL },
    { "F8_E4M3", 8, DT_E4M3 }, { "F8_E5M2", 8, DT_E5M2 },
    { "U64", 64, DT_NONE }, { "U32", 32, DT_NONE }, { "C64", 64, DT_NONE },
    { "F8_E8M0", 8, DT_NONE }, { "F8_E4M3FNUZ", 8, DT_NONE }, { "F8_E5M2FNUZ", 8, DT_NONE },
    { "F6_E2M3", 6, DT_NONE }, { "F6_E3M2", 6, DT_NONE }, { "F4", 4, DT_NONE },
};
enum { NTYPES = sizeof types / sizeof types[0] };

const char *st_type_name(enum dtype t)
{
    for (int i = 0; i < NTYPES; i++)
        if (t != DT_NONE && types[i].dtype == t)
            return types[i].name;
    return NULL;
}

static unsigned type_bits(const char *name)
{
    for (int i = 0; i < NTYPES; i++)
        if (types[i].name == name)       /* tensors point into the table */
            return types[i].bits;
    return 0;
}

/* *grown has room for one more of `size` bytes after n. */
static int grow(const char *path, void **v, size_t n, size_t *room, size_t size)
{
    if (n < *room)
        return 0;
    size_t more = *room ? 2 * *room : 16;
    void *p = realloc(*v, more * size);
    if (!p)
        return st_json_no_memory(path);
    *v = p;
    *room = more;
    return 0;
}

static int numbers(struct st_json *c, uint64_t **v, size_t *n)
{
    size_t room = 0;
    bool more = true;
    int rc = st_json_expect(c, '[');
    *v = NULL;
    *n = 0;
    if (rc)
        return rc;
    if (st_json_at(c, ']')) {
        c->i++;
        return 0;
    }
    while (more) {
        if ((rc = grow(c->path, (void **)v, *n, &room, sizeof **v))
            || (rc = st_json_number(c, &(*v)[*n])))
            return rc;
        ++*n;
        if ((rc = st_json_next(c, ']', &more)))
            return rc;
    }
    return 0;
}

static int set_type(struct st_json *c, struct st_tensor *t)
{
    size_t at = c->i;
    char *name;
    int rc = st_json_string(c, &name);
    if (rc)
        return rc;
    for (int i = 0; i < NTYPES; i++)
        if (!strcmp(types[i].name, name)) {
            t->type = types[i].name;
            t->dtype = types[i].dtype;
        }
    if (!t->type)
        rc = err_set(GPT_INPUT, "%s: offset %zu: tensor '%s': unknown dtype '%s'", c->path,
                     c->base + at, t->name, name);
    free(name);
    return rc;
}

static int set_shape(struct st_json *c, struct st_tensor *t)
{
    size_t n;
    int rc = numbers(c, &t->shape, &n);
    if (rc)
        return rc;
    if (n > 64)
        return err_set(GPT_INPUT, "%s: tensor '%s': %zu axes, at most 64 are read", c->path,
                       t->name, n);
    t->rank = (int)n;
    t->elements = 1;
    for (size_t i = 0; i < n; i++)
        if (__builtin_mul_overflow(t->elements, t->shape[i], &t->elements))
            return err_set(GPT_INPUT, "%s: tensor '%s': its shape has more than 2^64 - 1 elements",
                           c->path, t->name);
    return 0;
}

static int set_offsets(struct st_json *c, struct st_tensor *t)
{
    uint64_t *v;
    size_t n;
    int rc = numbers(c, &v, &n);
    if (!rc && n != 2)
        rc = err_set(GPT_INPUT, "%s: tensor '%s': data_offsets: expected 2 numbers, found %zu",
                     c->path, t->name, n);
    else if (!rc && v[1] < v[0])
        rc = err_set(GPT_INPUT, "%s: tensor '%s': data_offsets [%" PRIu64 ",%" PRIu64
                     "]: the end lies before the begin", c->path, t->name, v[0], v[1]);
    if (!rc) {
        t->begin = v[0];
        t->bytes = v[1] - v[0];
    }
    free(v);
    return rc;
}

/* {"dtype": ..., "shape": ..., "data_offsets": ...} in any order, nothing else. */
static int tensor(struct st_json *c, struct st_tensor *t)
{
    static const char *field[3] = { "dtype", "shape", "data_offsets" };
    static int (*const set[3])(struct st_json *, struct st_tensor *)
        = { set_type, set_shape, set_offsets };
    bool seen[3] = { false, false, false }, more;
    int rc = st_json_expect(c, '{');
    if (rc)
        return rc;
    more = !st_json_at(c, '}');
    if (!more)
        c->i++;
    while (more) {
        char *key;
        int k = 0;
        if ((rc = st_json_string(c, &key)))
            return rc;
        while (k < 3 && strcmp(key, field[k]))
            k++;
        if (k == 3)
            rc = err_set(GPT_INPUT, "%s: tensor '%s': unknown field '%s'", c->path, t->name, key);
        else if (seen[k])
            rc = err_set(GPT_INPUT, "%s: tensor '%s': field '%s' comes twice", c->path, t->name,
                         key);
        free(key);
        if (rc || (rc = st_json_expect(c, ':')) || (rc = set[k](c, t))
            || (rc = st_json_next(c, '}', &more)))
            return rc;
        seen[k] = true;
    }
    for (int k = 0; k < 3; k++)
        if (!seen[k])
            return err_set(GPT_INPUT, "%s: tensor '%s': has no '%s'", c->path, t->name, field[k]);
    return 0;
}

static int metadata(struct st_json *c, struct st_header *h)
{
    size_t room = 0;
    if (h->meta)
        return err_set(GPT_INPUT, "%s: header: '__metadata__' comes twice", c->path);
    int rc = st_json_expect(c, '{');
    if (rc)
        return rc;
    bool more = !st_json_at(c, '}');
    if (!more)
        c->i++;
    while (more) {
        if ((rc = grow(c->path, (void **)&h->meta, h->nmeta, &room, sizeof *h->meta)))
            return rc;
        struct st_meta *m = &h->meta[h->nmeta];
        *m = (struct st_meta){ NULL, NULL };
        h->nmeta++;
        if ((rc = st_json_string(c, &m->key)) || (rc = st_json_expect(c, ':')))
            return rc;
        if (!st_json_at(c, '"'))
            return st_json_fail(c, c->i, "a string (__metadata__ maps strings to strings)");
        if ((rc = st_json_string(c, &m->value)) || (rc = st_json_next(c, '}', &more)))
            return rc;
    }
    return 0;
}

static int parse(struct st_json *c, struct st_header *h)
{
    size_t room = 0;
    bool meta = false;
    int rc;
    if (c->n == 0 || c->s[0] != '{')
        return st_json_fail(c, 0, "'{' as the first byte");
    c->i = 1;
    bool more = !st_json_at(c, '}');
    if (!more)
        c->i++;
    while (more) {
        char *key;
        if ((rc = st_json_string(c, &key)))
            return rc;
        if (!strcmp(key, "__metadata__")) {
            free(key);
            if (meta)
                return err_set(GPT_INPUT, "%s: header: '__metadata__' comes twice", c->path);
            meta = true;
            if ((rc = st_json_expect(c, ':')) || (rc = metadata(c, h)))
                return rc;
        } else {
            if ((rc = grow(c->path, (void **)&h->tensors, h->n, &room, sizeof *h->tensors))) {
                free(key);
                return rc;
            }
            struct st_tensor *t = &h->tensors[h->n++];
            memset(t, 0, sizeof *t);
            t->name = key;
            if ((rc = st_json_expect(c, ':')) || (rc = tensor(c, t)))
                return rc;
        }
        if ((rc = st_json_next(c, '}', &more)))
            return rc;
    }
    st_json_blanks(c);
    return c->i < c->n ? st_json_fail(c, c->i, "nothing but blanks after the last '}'") : 0;
}

static int by_string(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int no_duplicates(const char *path, const char **names, size_t n, const char *what)
{
    qsort(names, n, sizeof *names, by_string);
    for (size_t i = 1; i < n; i++)
        if (!strcmp(names[i - 1], names[i]))
            return err_set(GPT_INPUT, "%s: header: %s '%s' comes twice", path, what, names[i]);
    return 0;
}

int st_check_names(const struct st_header *h, const char *path)
{
    const char **v = malloc((h->n + h->nmeta + 1) * sizeof *v);
    if (!v)
        return st_json_no_memory(path);
    for (size_t i = 0; i < h->n; i++)
        v[i] = h->tensors[i].name;
    int rc = no_duplicates(path, v, h->n, "tensor");
    for (size_t i = 0; i < h->nmeta; i++)
        v[i] = h->meta[i].key;
    if (!rc)
        rc = no_duplicates(path, v, h->nmeta, "__metadata__ key");
    free(v);
    return rc;
}

static int by_place(const void *a, const void *b)
{
    const struct st_tensor *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? -1 : 1;     /* empty ones before the one that begins there */
    return strcmp(x->name, y->name);
}

static int check_places(const char *path, struct st_header *h)
{
    uint64_t at = 0;
    for (size_t i = 0; i < h->n; i++) {
        const struct st_tensor *t = &h->tensors[i];
        uint64_t bits;
        if (__builtin_mul_overflow(t->elements, type_bits(t->type), &bits))
            return err_set(GPT_INPUT, "%s: tensor '%s': its shape takes more than 2^64 - 1 bits",
                           path, t->name);
        if (bits % 8)
            return err_set(GPT_INPUT, "%s: tensor '%s': %" PRIu64 " elements of %s are no whole "
                           "number of bytes", path, t->name, t->elements, t->type);
        if (bits / 8 != t->bytes)
            return err_set(GPT_INPUT, "%s: tensor '%s': %" PRIu64 " elements of %s take %" PRIu64
                           " bytes, data_offsets hold %" PRIu64, path, t->name, t->elements,
                           t->type, bits / 8, t->bytes);
    }
    qsort(h->tensors, h->n, sizeof *h->tensors, by_place);
    for (size_t i = 0; i < h->n; i++) {
        const struct st_tensor *t = &h->tensors[i];
        if (t->begin != at)
            return err_set(GPT_INPUT, "%s: tensor '%s' begins at %" PRIu64 " of the data, "
                           "expected %" PRIu64 ": %s", path, t->name, t->begin, at,
                           t->begin > at ? "a hole" : "an overlap");
        at += t->bytes;
    }
    h->data_bytes = at;
    return 0;
}

int st_metadata_parse(struct st_header *h, const char *path, const char *text, size_t n)
{
    struct st_json c = { path, text, n, 0, 0 };
    int rc = metadata(&c, h);
    st_json_blanks(&c);
    if (!rc && c.i < n)
        rc = st_json_fail(&c, c.i, "nothing after the last '}'");
    return rc;
}

int st_header_parse(struct st_header *h, const char *path, const char *text, size_t n)
{
    struct st_json c = { path, text, n, 0, 8 };
    memset(h, 0, sizeof *h);
    h->data_at = 8 + (uint64_t)n;
    int rc = parse(&c, h);
    if (!rc)
        rc = st_check_names(h, path);
    if (!rc && h->n)
        rc = check_places(path, h);
    if (rc)
        st_header_release(h);
    return rc;
}

void st_header_release(struct st_header *h)
{
    for (size_t i = 0; i < h->n; i++) {
        free(h->tensors[i].name);
        free(h->tensors[i].shape);
    }
    for (size_t i = 0; i < h->nmeta; i++) {
        free(h->meta[i].key);
        free(h->meta[i].value);
    }
    free(h->tensors);
    free(h->meta);
    memset(h, 0, sizeof *h);
}

const struct st_tensor *st_find(const struct st_header *h, const char *name)
{
    for (size_t i = 0; i < h->n; i++)
        if (!strcmp(h->tensors[i].name, name))
            return &h->tensors[i];
    return NULL;
}

const char *st_meta(const struct st_header *h, const char *key)
{
    for (size_t i = 0; i < h->nmeta; i++)
        if (!strcmp(h->meta[i].key, key))
            return h->meta[i].value;
    return NULL;
}
