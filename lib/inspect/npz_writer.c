#include "inspect/npz_writer.h"

#include <assert.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>
#include "base/grow.h"
#include "base/text.h"
#include "checkpoint/npz.h"

struct entry {
    char *name;
    uint64_t at, bytes;
    uint32_t crc;
};

struct npz_writer {
    FILE *f;
    char *name;
    uint64_t at; /* bytes of the archive so far */
    struct entry *e;
    int n;
    bool open; /* the last entry is being written */
    uint64_t left; /* bytes of its data still to come */
    FILE *notes;
    char *notes_text;
    size_t notes_n;
};

int npz_new(struct npz_writer **out, FILE *f, const char *name)
{
    struct npz_writer *w = calloc(1, sizeof *w);
    *out = NULL;
    if (!w || !(w->name = strdup(name))) {
        free(w);
        return err_memory();
    }
    w->f = f;
    *out = w;
    return 0;
}

int npz_note(struct npz_writer *w, const char *key, const char *value)
{
    bool first = !w->notes;
    if (first && !(w->notes = open_memstream(&w->notes_text, &w->notes_n)))
        return err_memory();
    fputc(first ? '{' : ',', w->notes);
    text_json(w->notes, key);
    fputc(':', w->notes);
    text_json(w->notes, value);
    return 0;
}

static int put(struct npz_writer *w, const void *p, size_t n)
{
    if (n && fwrite(p, 1, n, w->f) != n)
        return err_sys("cannot write '%s'", w->name);
    w->at += n;
    return 0;
}

/* Little-endian numbers of 2, 4 and 8 bytes: "244" and so on, then the values. */
static int put_numbers(struct npz_writer *w, const char *sizes, const uint64_t *v)
{
    unsigned char b[128];
    size_t n = 0;
    for (; *sizes; sizes++, v++)
        for (int i = 0; i < *sizes - '0'; i++)
            b[n++] = (unsigned char)(*v >> 8 * i);
    return put(w, b, n);
}

/* Sizes behind the data, names in UTF-8; 1980-01-01. */
enum { FLAGS = 1 << 3 | 1 << 11, DATE = 1 << 5 | 1 };

static int local_header(struct npz_writer *w, const struct entry *e)
{
    size_t len = strlen(e->name);
    uint64_t v[] = { 0x04034b50, 45, FLAGS, 0, 0, DATE, 0, 0xffffffff, 0xffffffff, len, 20 };
    int rc = put_numbers(w, "42222244422", v);
    uint64_t extra[] = { 1, 16, 0, 0 }; /* zip64: sizes come behind */
    if (!rc)
        rc = put(w, e->name, len);
    return rc ? rc : put_numbers(w, "2288", extra);
}

/* Ends the array being written: its descriptor. */
static int end_entry(struct npz_writer *w)
{
    if (!w->open)
        return 0;
    struct entry *e = &w->e[w->n - 1];
    w->open = false;
    if (w->left)
        return err_set(GPT_INPUT, "%s: array '%s': %" PRIu64 " bytes are missing", w->name, e->name,
                       w->left);
    uint64_t v[] = { 0x08074b50, e->crc, e->bytes, e->bytes };
    return put_numbers(w, "4488", v);
}

static int put_data(struct npz_writer *w, const void *p, size_t n)
{
    struct entry *e = &w->e[w->n - 1];
    e->bytes += n;
    e->crc = (uint32_t)crc32_z(e->crc, p, n);
    return put(w, p, n);
}

int npz_begin(struct npz_writer *w, const char *name, enum dtype t, int rank, const uint64_t *shape)
{
    char text[512];
    int rc = end_entry(w), n;
    assert(npz_descr(t));
    if (rc)
        return rc;
    if (grow_one(&w->e, w->n, sizeof *w->e))
        return GPT_SYSTEM;
    struct entry *e = &w->e[w->n];
    *e = (struct entry){ .at = w->at };
    if (asprintf(&e->name, "%s.npy", name) < 0)
        return err_memory();
    w->n++;
    w->open = true;
    w->left = dtype_size(t);
    n = snprintf(text, sizeof text, "{'descr': '%s', 'fortran_order': False, 'shape': (",
                 npz_descr(t));
    for (int i = 0; i < rank; i++) {
        w->left *= shape[i];
        n += snprintf(text + n, sizeof text - (size_t)n,
                      rank == 1 ? "%" PRIu64 ","
                      : i       ? ", %" PRIu64
                                : "%" PRIu64,
                      shape[i]);
    }
    n += snprintf(text + n, sizeof text - (size_t)n, "), }");
    while ((10 + n + 1) % 64)
        text[n++] = ' ';
    text[n++] = '\n';
    unsigned char magic[10] = {
        0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, (unsigned char)(n & 255), (unsigned char)(n >> 8)
    };
    rc = local_header(w, e);
    if (!rc)
        rc = put_data(w, magic, sizeof magic);
    return rc ? rc : put_data(w, text, (size_t)n);
}

int npz_write(struct npz_writer *w, const void *data, size_t n)
{
    assert(w->open && n <= w->left);
    w->left -= n;
    return put_data(w, data, n);
}

static int central_header(struct npz_writer *w, const struct entry *e)
{
    size_t len = strlen(e->name);
    uint64_t v[] = { 0x02014b50, 45,  45, FLAGS, 0, 0, DATE, e->crc,    0xffffffff,
                     0xffffffff, len, 28, 0,     0, 0, 0,    0xffffffff };
    int rc = put_numbers(w, "42222224442222244", v);
    uint64_t extra[] = { 1, 24, e->bytes, e->bytes, e->at };
    if (!rc)
        rc = put(w, e->name, len);
    return rc ? rc : put_numbers(w, "22888", extra);
}

static int put_notes(struct npz_writer *w)
{
    if (!w->notes)
        return 0;
    fputc('}', w->notes);
    int bad = fclose(w->notes);
    w->notes = NULL;
    if (bad)
        return err_memory();
    int rc = npz_begin(w, "__metadata__", DT_U8, 1, (uint64_t[]){ w->notes_n });
    return rc ? rc : npz_write(w, w->notes_text, w->notes_n);
}

int npz_finish(struct npz_writer *w)
{
    int rc = put_notes(w);
    if (!rc)
        rc = end_entry(w);
    uint64_t from = w->at;
    for (int i = 0; !rc && i < w->n; i++)
        rc = central_header(w, &w->e[i]);
    if (rc)
        return rc;
    uint64_t size = w->at - from, end64 = w->at, n = (uint64_t)w->n;
    uint64_t v[] = { 0x06064b50, 44,     45,     45,     0,      0,          n,          n,
                     size,       from, /* zip64 end */
                     0x07064b50, 0,      end64,  1, /* its locator */
                     0x06054b50, 0xffff, 0xffff, 0xffff, 0xffff, 0xffffffff, 0xffffffff, 0 };
    return put_numbers(w,
                       "4822448888"
                       "4484"
                       "42222442",
                       v);
}

void npz_free(struct npz_writer *w)
{
    if (!w)
        return;
    for (int i = 0; i < w->n; i++)
        free(w->e[i].name);
    free(w->e);
    if (w->notes)
        fclose(w->notes);
    free(w->notes_text);
    free(w->name);
    free(w);
}
