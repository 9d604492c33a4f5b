/* Every rule of the format is checked, each with its own message. */
#include "checkpoint/st_header.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "base/grow.h"
#include "checkpoint/st_text.h"

static const struct type {
    const char *name;
    unsigned bits;
    enum dtype dtype;
} types[] = {
    { "F64", 64, DT_F64 },         { "F32", 32, DT_F32 },     { "F16", 16, DT_F16 },
    { "BF16", 16, DT_BF16 },       { "I64", 64, DT_I64 },     { "U64", 64, DT_U64 },
    { "I32", 32, DT_I32 },         { "U32", 32, DT_U32 },     { "I16", 16, DT_I16 },
    { "U16", 16, DT_U16 },         { "I8", 8, DT_I8 },        { "U8", 8, DT_U8 },
    { "BOOL", 8, DT_BOOL },        { "F8_E4M3", 8, DT_E4M3 }, { "F8_E5M2", 8, DT_E5M2 },
    { "C64", 64, DT_NONE },        { "F8_E8M0", 8, DT_NONE }, { "F8_E4M3FNUZ", 8, DT_NONE },
    { "F8_E5M2FNUZ", 8, DT_NONE }, { "F6_E2M3", 6, DT_NONE }, { "F6_E3M2", 6, DT_NONE },
    { "F4", 4, DT_NONE },
};
enum { NTYPES = sizeof types / sizeof types[0] };

const char *st_type_name(enum dtype t)
{
    for (int i = 0; i < NTYPES; i++)
        if (t != DT_NONE && types[i].dtype == t)
            return types[i].name;
    return NULL;
}

/* --- grammar --- */

static int numbers(struct st_text *c, uint64_t **v, size_t *n)
{
    *v = NULL;
    *n = 0;
    json_open(&c->j, '[');
    while (json_element(&c->j)) {
        int rc = grow_one(v, *n, sizeof **v);
        if (rc)
            return rc;
        *n += json_u64(&c->j, &(*v)[*n]);
    }
    return st_text_end(c);
}

static int set_type(struct st_text *c, struct st_tensor *t)
{
    json_peek(&c->j);
    const char *at = c->j.at;
    char *name;
    int rc = st_text_string(c, &name);
    if (rc)
        return rc;
    for (int i = 0; i < NTYPES; i++)
        if (!strcmp(types[i].name, name)) {
            t->type = types[i].name;
            t->dtype = types[i].dtype;
            t->bits = types[i].bits;
        }
    if (!t->type)
        rc = err_set(GPT_INPUT, "%s: offset %" PRIu64 ": tensor '%s': unknown dtype '%s'", c->path,
                     c->base + (uint64_t)(at - c->begin), t->name, name);
    free(name);
    return rc;
}

static int set_shape(struct st_text *c, struct st_tensor *t)
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

static int set_offsets(struct st_text *c, struct st_tensor *t)
{
    uint64_t *v;
    size_t n;
    int rc = numbers(c, &v, &n);
    if (!rc && n != 2)
        rc = err_set(GPT_INPUT, "%s: tensor '%s': data_offsets: expected 2 numbers, found %zu",
                     c->path, t->name, n);
    else if (!rc && v[1] < v[0])
        rc = err_set(GPT_INPUT,
                     "%s: tensor '%s': data_offsets [%" PRIu64 ",%" PRIu64
                     "]: the end lies before the begin",
                     c->path, t->name, v[0], v[1]);
    if (!rc) {
        t->begin = v[0];
        t->bytes = v[1] - v[0];
    }
    free(v);
    return rc;
}

/* {"dtype": ..., "shape": ..., "data_offsets": ...} in any order; other fields are passed over. */
static int tensor(struct st_text *c, struct st_tensor *t)
{
    static const char *field[3] = { "dtype", "shape", "data_offsets" };
    static int (*const set[3])(struct st_text *, struct st_tensor *) = { set_type, set_shape,
                                                                         set_offsets };
    bool seen[3] = { false, false, false };
    struct json_string key;
    json_open(&c->j, '{');
    while (json_key(&c->j, &key)) {
        int k = 0, rc;
        while (k < 3 && !json_equal(&key, field[k]))
            k++;
        if (k == 3) {
            json_skip(&c->j);
            continue;
        }
        if (seen[k])
            return err_set(GPT_INPUT, "%s: tensor '%s': field '%s' comes twice", c->path, t->name,
                           field[k]);
        seen[k] = true;
        if ((rc = set[k](c, t)))
            return rc;
    }
    for (int k = 0; k < 3 && !c->j.bad; k++)
        if (!seen[k])
            return err_set(GPT_INPUT, "%s: tensor '%s': has no '%s'", c->path, t->name, field[k]);
    return st_text_end(c);
}

/* A map from strings to strings, or null, which some writers have for none. */
static int metadata(struct st_text *c, struct st_header *h)
{
    struct json_string key;
    if (json_peek(&c->j) == 'n') {
        json_skip(&c->j);
        return st_text_end(c);
    }
    json_open(&c->j, '{');
    for (;;) {
        int rc = grow_one(&h->meta, h->nmeta, sizeof *h->meta);
        if (rc)
            return rc;
        if (!json_key(&c->j, &key))
            return st_text_end(c);
        struct st_meta *m = &h->meta[h->nmeta++];
        *m = (struct st_meta){ NULL, NULL };
        if ((rc = st_text_decode(c, &key, &m->key)))
            return rc;
        if (json_peek(&c->j) != '"')
            return st_text_wrong(c, c->j.at, "a string (__metadata__ maps strings to strings)");
        if ((rc = st_text_string(c, &m->value)))
            return rc;
    }
}

static int parse(struct st_text *c, struct st_header *h)
{
    struct json_string key;
    bool noted = false;
    if (c->j.at == c->j.end || *c->j.at != '{')
        return st_text_wrong(c, c->j.at, "'{' as the first byte");
    json_open(&c->j, '{');
    while (json_key(&c->j, &key)) {
        int rc;
        if (json_equal(&key, "__metadata__")) {
            if (noted)
                return err_set(GPT_INPUT, "%s: header: '__metadata__' comes twice", c->path);
            noted = true;
            if ((rc = metadata(c, h)))
                return rc;
            continue;
        }
        if ((rc = grow_one(&h->tensors, h->n, sizeof *h->tensors)))
            return rc;
        struct st_tensor *t = &h->tensors[h->n++];
        memset(t, 0, sizeof *t);
        if ((rc = st_text_decode(c, &key, &t->name)) || (rc = tensor(c, t)))
            return rc;
    }
    return st_text_end(c);
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

static int check_names(const char *path, const struct st_header *h)
{
    const char **v = malloc((h->n + h->nmeta + 1) * sizeof *v);
    if (!v)
        return err_memory();
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

static int by_offset(const void *a, const void *b)
{
    const struct st_tensor *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? -1 : 1; /* empty tensors first */
    return strcmp(x->name, y->name);
}

static int check_offsets(const char *path, struct st_header *h)
{
    uint64_t at = 0;
    for (size_t i = 0; i < h->n; i++) {
        const struct st_tensor *t = &h->tensors[i];
        uint64_t bits;
        if (__builtin_mul_overflow(t->elements, t->bits, &bits))
            return err_set(GPT_INPUT, "%s: tensor '%s': its shape takes more than 2^64 - 1 bits",
                           path, t->name);
        if (bits % 8)
            return err_set(GPT_INPUT,
                           "%s: tensor '%s': %" PRIu64 " elements of %s are no whole "
                           "number of bytes",
                           path, t->name, t->elements, t->type);
        if (bits / 8 != t->bytes)
            return err_set(GPT_INPUT,
                           "%s: tensor '%s': %" PRIu64 " elements of %s take %" PRIu64
                           " bytes, data_offsets hold %" PRIu64,
                           path, t->name, t->elements, t->type, bits / 8, t->bytes);
    }
    qsort(h->tensors, h->n, sizeof *h->tensors, by_offset);
    for (size_t i = 0; i < h->n; i++) {
        const struct st_tensor *t = &h->tensors[i];
        if (t->begin != at)
            return err_set(GPT_INPUT,
                           "%s: tensor '%s' begins at %" PRIu64 " of the data, "
                           "expected %" PRIu64 ": %s",
                           path, t->name, t->begin, at, t->begin > at ? "a hole" : "an overlap");
        at += t->bytes;
    }
    h->data_bytes = at;
    return 0;
}

int st_header_parse(struct st_header *h, const char *path, const char *text, size_t n)
{
    struct st_text c = { { .at = text, .end = text + n }, path, "header", text, 8 };
    memset(h, 0, sizeof *h);
    h->data_at = 8 + (uint64_t)n;
    int rc = parse(&c, h);
    if (!rc)
        rc = st_text_nothing_more(&c);
    if (!rc)
        rc = check_names(path, h);
    if (!rc && h->n)
        rc = check_offsets(path, h);
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
