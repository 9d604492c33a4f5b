/* The zip's directory, then each array's own header. Every number in the file is checked before it
 * is used as an offset. */
#include "checkpoint/npz.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>
#include "base/le.h"

static const struct {
    const char *descr, *type;
    enum dtype dtype;
    unsigned size;
} types[] = {
    { "<f8", "F64", DT_F64, 8 },   { "<f4", "F32", DT_F32, 4 },  { "<f2", "F16", DT_F16, 2 },
    { "<i8", "I64", DT_I64, 8 },   { "<i4", "I32", DT_I32, 4 },  { "<i2", "I16", DT_I16, 2 },
    { "<u2", "U16", DT_U16, 2 },   { "|i1", "I8", DT_I8, 1 },    { "|u1", "U8", DT_U8, 1 },
    { "|b1", "BOOL", DT_BOOL, 1 }, { "<u4", "U32", DT_NONE, 4 }, { "<u8", "U64", DT_NONE, 8 },
};

const char *npz_descr(enum dtype t)
{
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (t != DT_NONE && types[i].dtype == t)
            return types[i].descr;
    return NULL;
}

struct zip {
    const char *path;
    const unsigned char *b;
    size_t n;
};

bool npz_is(const unsigned char *b, size_t n)
{
    return n >= 22 && !memcmp(b, "PK\3\4", 4) && (b[4] || b[5] || b[6] || b[7]);
}

static int bad(const struct zip *z, uint64_t at, const char *expected)
{
    return err_set(GPT_INPUT, "%s: offset %" PRIu64 ": zip: expected %s", z->path, at, expected);
}

static bool inside(const struct zip *z, uint64_t at, uint64_t n)
{
    return at <= z->n && n <= z->n - at;
}

/* Where the directory is, and how many entries it has. */
static int find_directory(const struct zip *z, uint64_t *at, uint64_t *entries)
{
    size_t end = z->n - 22, stop = z->n > 22 + 65535 ? z->n - 22 - 65535 : 0;
    while (le_number(z->b + end, 4) != 0x06054b50 && end > stop)
        end--;
    if (le_number(z->b + end, 4) != 0x06054b50)
        return bad(z, z->n, "the end of a directory: the file is cut short, or damaged");
    *entries = le_number(z->b + end + 10, 2);
    *at = le_number(z->b + end + 16, 4);
    if (*entries != 0xffff && *at != 0xffffffff)
        return 0;
    if (end < 20 || le_number(z->b + end - 20, 4) != 0x07064b50)
        return bad(z, end, "a zip64 locator before it");
    uint64_t end64 = le_number(z->b + end - 12, 8);
    if (!inside(z, end64, 56) || le_number(z->b + end64, 4) != 0x06064b50)
        return bad(z, end64, "a zip64 end of the directory");
    *entries = le_number(z->b + end64 + 32, 8);
    *at = le_number(z->b + end64 + 48, 8);
    return 0;
}

struct member {
    const unsigned char *name;
    size_t name_n;
    uint64_t at, bytes;
};

/* Fields that are all ones have their value in the zip64 extra field, in this order. */
static int take_zip64(const struct zip *z, uint64_t extra, uint64_t n, uint64_t *v[3])
{
    for (uint64_t at = extra, end = extra + n; end - at >= 4;) {
        uint64_t id = le_number(z->b + at, 2), size = le_number(z->b + at + 2, 2);
        if (size > end - at - 4)
            return bad(z, at, "an extra field that ends in its entry");
        for (uint64_t p = at + 4, k = 0; id == 1 && k < 3; k++) {
            if (*v[k] != 0xffffffff)
                continue;
            if (at + 4 + size - p < 8)
                return bad(z, at, "a zip64 number for each size");
            *v[k] = le_number(z->b + p, 8);
            p += 8;
        }
        at += 4 + size;
    }
    return 0;
}

/* The entry of the directory at *at, and the offset of its data; *at moves to the next. */
static int next_member(const struct zip *z, uint64_t *at, struct member *m)
{
    if (!inside(z, *at, 46) || le_number(z->b + *at, 4) != 0x02014b50)
        return bad(z, *at, "an entry of the directory");
    const unsigned char *b = z->b + *at;
    uint64_t method = le_number(b + 10, 2), packed = le_number(b + 20, 4),
             bytes = le_number(b + 24, 4);
    uint64_t name = le_number(b + 28, 2), extra = le_number(b + 30, 2), note = le_number(b + 32, 2);
    uint64_t local = le_number(b + 42, 4);
    if (!inside(z, *at + 46, name + extra + note))
        return bad(z, *at, "an entry of the directory that ends in the file");
    m->name = b + 46;
    m->name_n = name;
    int rc = take_zip64(z, *at + 46 + name, extra, (uint64_t *[3]){ &bytes, &packed, &local });
    if (rc)
        return rc;
    if (method != 0 || packed != bytes)
        return err_set(GPT_INPUT,
                       "%s: array '%.*s' is compressed: expected np.savez, not "
                       "np.savez_compressed",
                       z->path, (int)name, (const char *)m->name);
    if (!inside(z, local, 30) || le_number(z->b + local, 4) != 0x04034b50)
        return bad(z, local, "a member's header");
    m->at = local + 30 + le_number(z->b + local + 26, 2) + le_number(z->b + local + 28, 2);
    m->bytes = bytes;
    if (!inside(z, m->at, bytes))
        return bad(z, m->at, "a member that ends in the file");
    *at += 46 + name + extra + note;
    return 0;
}

/* --- the array's header, a Python dict --- */

/* What follows 'key': in the dict; NULL when it has no such key. */
static const char *dict_value(const char *dict, const char *key)
{
    char quoted[32];
    snprintf(quoted, sizeof quoted, "'%s':", key);
    const char *s = strstr(dict, quoted);
    if (!s)
        return NULL;
    s += strlen(quoted);
    return s + strspn(s, " ");
}

static int take_shape(const struct zip *z, const char *s, struct st_tensor *t)
{
    if (!s || *s != '(')
        return err_set(GPT_INPUT, "%s: array '%s': expected a shape", z->path, t->name);
    t->shape = calloc(32, sizeof *t->shape);
    if (!t->shape)
        return err_memory();
    t->elements = 1;
    for (s++; s += strspn(s, " ,"), *s >= '0' && *s <= '9'; t->rank++) {
        char *end;
        if (t->rank == 32)
            return err_set(GPT_INPUT, "%s: array '%s': more than 32 axes", z->path, t->name);
        t->shape[t->rank] = strtoull(s, &end, 10);
        if (__builtin_mul_overflow(t->elements, t->shape[t->rank], &t->elements))
            return err_set(GPT_INPUT, "%s: array '%s': its shape has more than 2^64 - 1 elements",
                           z->path, t->name);
        s = end;
    }
    return *s == ')' ? 0
                     : err_set(GPT_INPUT, "%s: array '%s': expected ')' after its shape", z->path,
                               t->name);
}

static int take_dict(const struct zip *z, const char *dict, struct st_tensor *t, unsigned *size)
{
    const char *descr = dict_value(dict, "descr"), *order = dict_value(dict, "fortran_order");
    if (!descr || *descr != '\'')
        return err_set(GPT_INPUT, "%s: array '%s': expected a plain type", z->path, t->name);
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (!strncmp(descr + 1, types[i].descr, 3) && descr[4] == '\'') {
            t->type = types[i].type;
            t->dtype = types[i].dtype;
            *size = types[i].size;
        }
    if (!t->type)
        return err_set(GPT_INPUT, "%s: array '%s': type %.8s is not read", z->path, t->name, descr);
    if (!order || strncmp(order, "False", 5))
        return err_set(GPT_INPUT, "%s: array '%s': expected C order", z->path, t->name);
    return take_shape(z, dict_value(dict, "shape"), t);
}

static int take_array(const struct zip *z, const struct member *m, struct st_tensor *t)
{
    const unsigned char *b = z->b + m->at;
    unsigned size = 0;
    if (m->bytes < 12 || memcmp(b, "\x93NUMPY", 6) || b[6] < 1 || b[6] > 3)
        return bad(z, m->at, "an array's header (\\x93NUMPY, version 1 to 3)");
    uint64_t from = b[6] == 1 ? 10 : 12, n = le_number(b + 8, b[6] == 1 ? 2 : 4);
    if (n > 65536 || n > m->bytes - from)
        return bad(z, m->at + 8, "an array's header that ends in it");
    char *dict = strndup((const char *)b + from, n);
    int rc = dict ? take_dict(z, dict, t, &size) : err_memory();
    free(dict);
    if (rc)
        return rc;
    t->begin = m->at + from + n;
    t->bytes = m->bytes - from - n;
    if (t->elements > UINT64_MAX / 8 || t->elements * size != t->bytes)
        return err_set(GPT_INPUT,
                       "%s: array '%s': %" PRIu64 " elements of %s do not take %" PRIu64 " bytes",
                       z->path, t->name, t->elements, t->type, t->bytes);
    return 0;
}

static int add_member(struct st_header *h, const struct zip *z, const struct member *m)
{
    struct st_tensor *t = &h->tensors[h->n];
    size_t n = m->name_n;
    if (n < 5 || memcmp(m->name + n - 4, ".npy", 4))
        return err_set(GPT_INPUT, "%s: member '%.*s': expected an array, NAME.npy", z->path, (int)n,
                       (const char *)m->name);
    memset(t, 0, sizeof *t);
    if (!(t->name = strndup((const char *)m->name, n - 4)))
        return err_memory();
    h->n++;
    int rc = take_array(z, m, t);
    if (rc || strcmp(t->name, "__metadata__") || t->dtype != DT_U8)
        return rc;
    rc = st_metadata_parse(h, z->path, (const char *)z->b + t->begin, t->bytes);
    free(t->name);
    free(t->shape);
    h->n--;
    return rc;
}

static int by_begin(const void *a, const void *b)
{
    const struct st_tensor *x = a, *y = b;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

int npz_parse(struct st_header *h, const char *path, const unsigned char *b, size_t n)
{
    struct zip z = { path, b, n };
    struct member m = { NULL, 0, 0, 0 };
    uint64_t at = 0, entries = 0;
    memset(h, 0, sizeof *h);
    int rc = find_directory(&z, &at, &entries);
    if (!rc && entries > n / 46)
        rc = bad(&z, at, "no more entries than the file has room for");
    if (!rc && !(h->tensors = calloc(entries + 1, sizeof *h->tensors)))
        rc = err_memory();
    for (uint64_t i = 0; !rc && i < entries; i++)
        if (!(rc = next_member(&z, &at, &m)))
            rc = add_member(h, &z, &m);
    if (!rc)
        rc = st_check_names(h, path);
    if (rc) {
        st_header_release(h);
        return rc;
    }
    qsort(h->tensors, h->n, sizeof *h->tensors, by_begin);
    h->data_bytes = n;
    return 0;
}

/* --- writing --- */

/* Little-endian numbers of 2, 4 and 8 bytes: "244" and so on, then the values. */
static int put_numbers(struct zwriter *z, const char *sizes, const uint64_t *v)
{
    unsigned char b[128];
    size_t n = 0;
    for (; *sizes; sizes++, v++)
        for (int i = 0; i < *sizes - '0'; i++)
            b[n++] = (unsigned char)(*v >> 8 * i);
    return zwriter_write(z, b, n);
}

static int put_name(struct zwriter *z, const char *name)
{
    int rc = zwriter_write(z, name, strlen(name));
    return rc ? rc : zwriter_write(z, ".npy", 4);
}

/* Sizes behind the data, names in UTF-8; 1980-01-01. */
enum { FLAGS = 1 << 3 | 1 << 11, DATE = 1 << 5 | 1 };

static int local_header(struct zwriter *z, const char *name)
{
    uint64_t v[] = { 0x04034b50,       45, FLAGS, 0, 0, DATE, 0, 0xffffffff, 0xffffffff,
                     strlen(name) + 4, 20 };
    uint64_t extra[] = { 1, 16, 0, 0 }; /* zip64: sizes come behind */
    int rc = put_numbers(z, "42222244422", v);
    if (!rc)
        rc = put_name(z, name);
    return rc ? rc : put_numbers(z, "2288", extra);
}

int npz_begin(struct zwriter *z, const struct st_tensor *t, struct npz_array *a)
{
    char text[512] = "\x93NUMPY\1";
    int n = 10;
    assert(npz_descr(t->dtype) && t->rank <= 16);
    *a = (struct npz_array){ .at = zwriter_offset(z) };
    n += snprintf(text + n, sizeof text - (size_t)n,
                  "{'descr': '%s', 'fortran_order': False, 'shape': (", npz_descr(t->dtype));
    for (int i = 0; i < t->rank; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, "%s%" PRIu64 "%s", i ? ", " : "",
                      t->shape[i], t->rank == 1 ? "," : "");
    n += snprintf(text + n, sizeof text - (size_t)n, "), }");
    while ((n + 1) % 64)
        text[n++] = ' ';
    text[n++] = '\n';
    text[8] = (char)((n - 10) & 255);
    text[9] = (char)((n - 10) >> 8);
    int rc = local_header(z, t->name);
    return rc ? rc : npz_write(z, a, text, (size_t)n);
}

int npz_write(struct zwriter *z, struct npz_array *a, const void *p, size_t n)
{
    a->bytes += n;
    a->crc = (uint32_t)crc32_z(a->crc, p, n);
    return zwriter_write(z, p, n);
}

int npz_end(struct zwriter *z, const struct npz_array *a)
{
    return put_numbers(z, "4488", (uint64_t[]){ 0x08074b50, a->crc, a->bytes, a->bytes });
}

static int central_header(struct zwriter *z, const char *name, const struct npz_array *a)
{
    uint64_t v[] = {
        0x02014b50,       45, 45, FLAGS, 0, 0, DATE,      a->crc, 0xffffffff, 0xffffffff,
        strlen(name) + 4, 28, 0,  0,     0, 0, 0xffffffff
    };
    uint64_t extra[] = { 1, 24, a->bytes, a->bytes, a->at };
    int rc = put_numbers(z, "42222224442222244", v);
    if (!rc)
        rc = put_name(z, name);
    return rc ? rc : put_numbers(z, "22888", extra);
}

int npz_directory(struct zwriter *z, const struct st_header *h, const struct npz_array *a)
{
    uint64_t from = zwriter_offset(z);
    int rc = 0;
    for (size_t i = 0; !rc && i < h->n; i++)
        rc = central_header(z, h->tensors[i].name, &a[i]);
    uint64_t end64 = zwriter_offset(z), size = end64 - from;
    uint64_t v[] = { 0x06064b50, 44,     45,     45,     0,      0,          h->n,       h->n,
                     size,       from, /* zip64 end */
                     0x07064b50, 0,      end64,  1, /* its locator */
                     0x06054b50, 0xffff, 0xffff, 0xffff, 0xffff, 0xffffffff, 0xffffffff, 0 };
    return rc ? rc
              : put_numbers(z,
                            "4822448888"
                            "4484"
                            "42222442",
                            v);
}
