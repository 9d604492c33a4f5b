/* A plain file is mapped, any other is a forward stream. A header is parsed before it is written,
 * too. */
#include "checkpoint/safetensors.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/grow.h"
#include "base/le.h"
#include "base/text.h"
#include "base/zio.h"

#define FRAME_BYTES (4u << 20)

/* --- reading --- */

struct st_reader {
    char *path;
    struct st_header h;
    size_t next; /* index for st_next */
    unsigned char *map; /* the whole file, or NULL in a stream */
    size_t map_bytes;
    struct zreader *z;
    uint64_t at; /* bytes of the data section that the stream has given */
};

static int check_size(const char *path, uint64_t n)
{
    if (n > ST_HEADER_MAX && (uint32_t)n == 0x04034b50) /* "PK\3\4" */
        return err_set(GPT_INPUT,
                       "%s: a .pt of PyTorch, an .npz of NumPy, or another zip: expected "
                       "safetensors, which safetensors.torch.save_file makes of a .pt's tensors, "
                       "the last example of gpt-ckpt(1) of an .npz",
                       path);
    if (n == 0x206e6f6973726576) /* "version " */
        return zio_lfs_pointer(path);
    if (n > ST_HEADER_MAX)
        return err_set(GPT_INPUT,
                       "%s: offset 0: header size: expected at most %u, found %" PRIu64
                       ": no safetensors file",
                       path, ST_HEADER_MAX, n);
    return 0;
}

static int short_file(const char *path, const char *where, uint64_t want, uint64_t have)
{
    return err_set(GPT_INPUT,
                   "%s: the file ends in its %s: expected %" PRIu64 " bytes, found %" PRIu64, path,
                   where, want, have);
}

/* Bytes 4 to 8 of a plain file are 0 0 0 0 '{', because its header is shorter than 2^32; no gzip or
 * zstd file has these. */
bool st_compressed(const unsigned char *b, size_t n)
{
    return !(n >= 9 && !b[4] && !b[5] && !b[6] && !b[7] && b[8] == '{') && zio_compressed(b, n);
}

static int open_mapped(struct st_reader *r)
{
    if (r->map_bytes < 8)
        return short_file(r->path, "header size", 8, r->map_bytes);
    uint64_t n = le_number(r->map, 8), have = r->map_bytes - 8;
    int rc = check_size(r->path, n);
    if (rc)
        return rc;
    if (have < n)
        return short_file(r->path, "header", n, have);
    if ((rc = st_header_parse(&r->h, r->path, (const char *)r->map + 8, n)))
        return rc;
    have -= n;
    if (have != r->h.data_bytes)
        return err_set(GPT_INPUT, "%s: data section: expected %" PRIu64 " bytes, found %" PRIu64,
                       r->path, r->h.data_bytes, have);
    return 0;
}

/* Reads the header of a stream. Memory grows with what is read, not with the size it claims. */
static int open_stream(struct st_reader *r)
{
    unsigned char b[8];
    char *text = NULL;
    size_t got, have = 0, room = 0;
    int rc = zreader_open(&r->z, r->path);
    if (rc)
        return rc;
    if ((rc = zreader_read(r->z, b, 8, &got)))
        return rc;
    if (got < 8)
        return short_file(r->path, "header size", 8, got);
    uint64_t n = le_number(b, 8);
    if ((rc = check_size(r->path, n)))
        return rc;
    while (have < n) {
        if (have == room && (rc = grow_to(&text, &room, have + (1 << 16), 1)))
            break;
        if ((rc = zreader_read(r->z, text + have, (room < n ? room : n) - have, &got)))
            break;
        have += got;
        if (!got) {
            rc = short_file(r->path, "header", n, have);
            break;
        }
    }
    if (!rc)
        rc = st_header_parse(&r->h, r->path, text ? text : "", n);
    free(text);
    return rc;
}

/* Maps path when it is a plain regular file; leaves map NULL when it is a stream. */
static int map_plain(struct st_reader *r)
{
    struct stat st;
    unsigned char b[9];
    int rc = 0, fd = open(r->path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st)) {
        rc = err_sys("cannot open '%s'", r->path);
    } else if (S_ISDIR(st.st_mode)) {
        errno = EISDIR;
        rc = err_sys("cannot read '%s'", r->path);
    } else if (S_ISREG(st.st_mode)) {
        ssize_t n = pread(fd, b, sizeof b, 0);
        if (n < 0) {
            rc = err_sys("cannot read '%s'", r->path);
        } else if (n < 8) {
            rc = short_file(r->path, "header size", 8, (uint64_t)n);
        } else if (!st_compressed(b, (size_t)n)) {
            r->map_bytes = (size_t)st.st_size;
            r->map = mmap(NULL, r->map_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
            if (r->map == MAP_FAILED) {
                r->map = NULL;
                rc = err_sys("cannot map '%s'", r->path);
            }
        }
    }
    if (fd >= 0)
        close(fd);
    return rc;
}

int st_open(struct st_reader **out, const char *path)
{
    struct st_reader *r = calloc(1, sizeof *r);
    int rc = 0;
    *out = NULL;
    if (!r || !(r->path = strdup(path))) {
        free(r);
        return err_memory();
    }
    if (strcmp(path, "-"))
        rc = map_plain(r);
    if (!rc)
        rc = r->map ? open_mapped(r) : open_stream(r);
    if (rc) {
        st_close(r);
        return rc;
    }
    *out = r;
    return 0;
}

const struct st_header *st_header(const struct st_reader *r) { return &r->h; }

const void *st_data(const struct st_reader *r, const struct st_tensor *t)
{
    return r->map ? r->map + r->h.data_at + t->begin : NULL;
}

const struct st_tensor *st_next(struct st_reader *r)
{
    return r->next < r->h.n ? &r->h.tensors[r->next++] : NULL;
}

int st_read(struct st_reader *r, const struct st_tensor *t, uint64_t from, void *dst, size_t n)
{
    size_t got;
    int rc;
    assert(from <= t->bytes && n <= t->bytes - from);
    if (n == 0)
        return 0;
    if (r->map) {
        memcpy(dst, r->map + r->h.data_at + t->begin + from, n);
        return 0;
    }
    uint64_t at = t->begin + from;
    assert(at >= r->at);
    if (at > r->at && (rc = zreader_skip(r->z, at - r->at)))
        return err_prefix("tensor '%s'", t->name);
    r->at = at;
    if ((rc = zreader_read(r->z, dst, n, &got)))
        return err_prefix("tensor '%s'", t->name);
    r->at += got;
    if (got < n)
        return err_set(GPT_INPUT,
                       "%s: tensor '%s': the file ends at byte %" PRIu64
                       " of the data, expected %" PRIu64,
                       r->path, t->name, r->at, r->h.data_bytes);
    return 0;
}

int st_finish(struct st_reader *r)
{
    unsigned char more;
    size_t got;
    int rc;
    if (r->map)
        return 0;
    if (r->h.data_bytes > r->at && (rc = zreader_skip(r->z, r->h.data_bytes - r->at)))
        return rc;
    r->at = r->h.data_bytes;
    if ((rc = zreader_read(r->z, &more, 1, &got)))
        return rc;
    if (got)
        return err_set(GPT_INPUT, "%s: data section: expected %" PRIu64 " bytes, found more",
                       r->path, r->h.data_bytes);
    return 0;
}

void st_close(struct st_reader *r)
{
    if (!r)
        return;
    if (r->map)
        munmap(r->map, r->map_bytes);
    zreader_close(r->z);
    st_header_release(&r->h);
    free(r->path);
    free(r);
}

/* --- writing --- */

struct st_writer {
    FILE *f;
    char *name;
    int level;
    struct st_header h; /* as declared */
    struct zwriter *z; /* once the header is written */
    size_t now; /* tensor being written */
    uint64_t done; /* bytes of it */
};

int st_writer_new(struct st_writer **out, FILE *f, const char *name, int level)
{
    struct st_writer *w = calloc(1, sizeof *w);
    *out = NULL;
    if (!w || !(w->name = strdup(name))) {
        free(w);
        return err_memory();
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
    if (grow_one(&w->h.tensors, w->h.n, sizeof *w->h.tensors))
        return GPT_SYSTEM;
    struct st_tensor *t = &w->h.tensors[w->h.n];
    memset(t, 0, sizeof *t);
    t->name = strdup(name);
    t->shape = malloc(((size_t)rank + 1) * sizeof *t->shape);
    w->h.n++;
    if (!t->name || !t->shape)
        return err_memory();
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
    if (grow_one(&w->h.meta, w->h.nmeta, sizeof *w->h.meta))
        return GPT_SYSTEM;
    struct st_meta *m = &w->h.meta[w->h.nmeta++];
    m->key = strdup(key);
    m->value = strdup(value);
    return m->key && m->value ? 0 : err_memory();
}

/* Writes s as a JSON string; the check in begin_data reports one that is not UTF-8. */
static void put_json(FILE *f, const char *s) { text_json(f, s, strlen(s), true); }

static void put_header(FILE *f, const struct st_header *h)
{
    const char *comma = h->nmeta ? "," : "";
    fputc('{', f);
    if (h->nmeta) {
        fputs("\"__metadata__\":", f);
        for (size_t i = 0; i < h->nmeta; i++) {
            fputc(i ? ',' : '{', f);
            put_json(f, h->meta[i].key);
            fputc(':', f);
            put_json(f, h->meta[i].value);
        }
        fputc('}', f);
    }
    for (size_t i = 0; i < h->n; i++) {
        const struct st_tensor *t = &h->tensors[i];
        fputs(comma, f);
        comma = ",";
        put_json(f, t->name);
        fprintf(f, ":{\"dtype\":\"%s\",\"shape\":[", t->type);
        for (int k = 0; k < t->rank; k++)
            fprintf(f, "%s%" PRIu64, k ? "," : "", t->shape[k]);
        fprintf(f, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", t->begin, t->begin + t->bytes);
    }
    fputc('}', f);
}

/* Writes the header, once. It is parsed first, so that a name that comes twice or is not UTF-8 is
 * GPT_INPUT here and not in a reader. */
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
        return err_memory();
    put_header(f, &w->h);
    fflush(f);
    for (; n % 8; fflush(f))
        fputc(' ', f);
    if (fclose(f)) {
        free(text);
        return err_memory();
    }
    int rc = n <= ST_HEADER_MAX
                 ? st_header_parse(&check, w->name, text, n)
                 : err_set(GPT_INPUT, "%s: header size: expected at most %u, found %zu", w->name,
                           ST_HEADER_MAX, n);
    if (!rc) {
        st_header_release(&check);
        rc = zwriter_new(&w->z, w->f, w->name, w->level);
    }
    for (int i = 0; i < 8; i++)
        size[i] = (unsigned char)((uint64_t)n >> 8 * i);
    if (!rc)
        rc = zwriter_write(w->z, size, 8);
    if (!rc)
        rc = zwriter_write(w->z, text, n);
    if (!rc)
        rc = zwriter_frame(w->z);
    free(text);
    return rc;
}

/* Moves past the tensors whose data is complete. */
static void next_tensor(struct st_writer *w)
{
    while (w->now < w->h.n && w->done == w->h.tensors[w->now].bytes) {
        w->done = 0;
        w->now++;
    }
}

int st_write(struct st_writer *w, const void *data, size_t n)
{
    const char *p = data;
    int rc = begin_data(w);
    while (!rc && n > 0) {
        next_tensor(w);
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
    next_tensor(w);
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
