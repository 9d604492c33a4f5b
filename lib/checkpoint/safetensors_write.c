/* Writing: the header is known once all tensors are declared, so data can stream behind it. */
#include "checkpoint/safetensors.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "base/text.h"
#include "base/zio.h"

#define FRAME_BYTES (4u << 20)

struct st_writer {
    FILE *f;
    char *name;
    int level;
    struct st_header h; /* as declared */
    size_t tensor_room, meta_room;
    struct zwriter *z; /* once the header is written */
    size_t now; /* tensor being written */
    uint64_t done; /* bytes of it */
};

static int no_memory(const struct st_writer *w)
{
    return err_set(GPT_SYSTEM, "%s: out of memory", w->name);
}

int st_writer_new(struct st_writer **out, FILE *f, const char *name, int level)
{
    struct st_writer *w = calloc(1, sizeof *w);
    *out = NULL;
    if (!w || !(w->name = strdup(name))) {
        free(w);
        return err_set(GPT_SYSTEM, "%s: out of memory", name);
    }
    w->f = f;
    w->level = level;
    *out = w;
    return 0;
}

int st_declare(struct st_writer *w, const char *name, enum dtype dtype, int rank,
               const uint64_t *shape)
{
    assert(!w->z && rank >= 0 && st_type_name(dtype));
    if (w->h.n == w->tensor_room) {
        size_t room = w->tensor_room ? 2 * w->tensor_room : 16;
        struct st_tensor *v = realloc(w->h.tensors, room * sizeof *v);
        if (!v)
            return no_memory(w);
        w->h.tensors = v;
        w->tensor_room = room;
    }
    struct st_tensor *t = &w->h.tensors[w->h.n];
    memset(t, 0, sizeof *t);
    t->name = strdup(name);
    t->shape = malloc(((size_t)rank + 1) * sizeof *t->shape);
    w->h.n++;
    if (!t->name || !t->shape)
        return no_memory(w);
    t->type = st_type_name(dtype);
    t->dtype = dtype;
    t->rank = rank;
    t->bytes = dtype_size(dtype);
    for (int i = 0; i < rank; i++) {
        t->shape[i] = shape[i];
        if (__builtin_mul_overflow(t->bytes, shape[i], &t->bytes))
            return err_set(GPT_INPUT, "%s: tensor '%s': its shape takes more than 2^64 - 1 bytes",
                           w->name, name);
    }
    t->begin = w->h.data_bytes;
    w->h.data_bytes += t->bytes;
    return 0;
}

int st_note(struct st_writer *w, const char *key, const char *value)
{
    assert(!w->z);
    if (w->h.nmeta == w->meta_room) {
        size_t room = w->meta_room ? 2 * w->meta_room : 16;
        struct st_meta *v = realloc(w->h.meta, room * sizeof *v);
        if (!v)
            return no_memory(w);
        w->h.meta = v;
        w->meta_room = room;
    }
    struct st_meta *m = &w->h.meta[w->h.nmeta++];
    m->key = strdup(key);
    m->value = strdup(value);
    return m->key && m->value ? 0 : no_memory(w);
}

static void put_header(FILE *f, const struct st_header *h)
{
    const char *comma = "";
    fputc('{', f);
    for (size_t i = 0; i < h->nmeta; i++) {
        fputs(i ? "," : "\"__metadata__\":{", f);
        text_json(f, h->meta[i].key);
        fputc(':', f);
        text_json(f, h->meta[i].value);
        comma = ",";
    }
    if (h->nmeta)
        fputc('}', f);
    for (size_t i = 0; i < h->n; i++) {
        const struct st_tensor *t = &h->tensors[i];
        fputs(comma, f);
        comma = ",";
        text_json(f, t->name);
        fprintf(f, ":{\"dtype\":\"%s\",\"shape\":[", t->type);
        for (int k = 0; k < t->rank; k++)
            fprintf(f, "%s%" PRIu64, k ? "," : "", t->shape[k]);
        fprintf(f, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", t->begin, t->begin + t->bytes);
    }
    fputc('}', f);
}

/* Writes the header once. What we write is read back by the rules we read by:
 * a duplicate or an ill-formed name is the caller's input, found here. */
static int begin_data(struct st_writer *w)
{
    char *text = NULL;
    size_t n = 0;
    struct st_header check;
    unsigned char size[8];
    if (w->z)
        return 0;
    FILE *f = open_memstream(&text, &n);
    if (!f)
        return no_memory(w);
    put_header(f, &w->h);
    fflush(f);
    for (; n % 8; fflush(f))
        fputc(' ', f);
    if (fclose(f)) {
        free(text);
        return no_memory(w);
    }
    int rc = n <= ST_HEADER_MAX
                 ? st_header_parse(&check, w->name, text, n)
                 : err_set(GPT_INPUT, "%s: header size: expected at most %u, found %zu", w->name,
                           ST_HEADER_MAX, n);
    if (!rc) {
        st_header_release(&check);
        for (int i = 0; i < 8; i++)
            size[i] = (unsigned char)((uint64_t)n >> 8 * i);
        rc = zwriter_new(&w->z, w->f, w->name, w->level);
    }
    if (!rc)
        rc = zwriter_write(w->z, size, 8);
    if (!rc)
        rc = zwriter_write(w->z, text, n);
    if (!rc)
        rc = zwriter_frame(w->z);
    free(text);
    return rc;
}

int st_write(struct st_writer *w, const void *data, size_t n)
{
    const char *p = data;
    int rc = begin_data(w);
    while (!rc && n > 0) {
        while (w->now < w->h.n && w->done == w->h.tensors[w->now].bytes) {
            w->now++;
            w->done = 0;
        }
        assert(w->now < w->h.n);
        uint64_t left = w->h.tensors[w->now].bytes - w->done;
        uint64_t frame = FRAME_BYTES - w->done % FRAME_BYTES;
        uint64_t take = left < frame ? left : frame;
        size_t piece = take < n ? (size_t)take : n;
        rc = zwriter_write(w->z, p, piece);
        p += piece;
        n -= piece;
        w->done += piece;
        if (!rc && piece == take)
            rc = zwriter_frame(w->z);
    }
    return rc;
}

int st_writer_finish(struct st_writer *w)
{
    int rc = begin_data(w);
    if (rc)
        return rc;
    while (w->now < w->h.n && w->done == w->h.tensors[w->now].bytes) {
        w->now++;
        w->done = 0;
    }
    if (w->now < w->h.n)
        return err_set(GPT_INPUT, "%s: tensor '%s': %" PRIu64 " bytes declared, %" PRIu64 " given",
                       w->name, w->h.tensors[w->now].name, w->h.tensors[w->now].bytes, w->done);
    return zwriter_finish(w->z);
}

void st_writer_free(struct st_writer *w)
{
    if (!w)
        return;
    zwriter_free(w->z);
    st_header_release(&w->h);
    free(w->name);
    free(w);
}
