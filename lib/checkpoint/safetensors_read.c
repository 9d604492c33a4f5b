/* Reading: a plain file is mapped, anything else is a forward stream. */
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
#include "base/zio.h"
#include "checkpoint/npz.h"

struct st_reader {
    char *path;
    struct st_header h;
    size_t next; /* index for st_next */
    unsigned char *map; /* the whole file, or NULL in a stream */
    size_t map_bytes;
    struct zreader *z;
    uint64_t at; /* bytes of the data section that the stream has given */
};

static uint64_t le64(const unsigned char *b)
{
    uint64_t v = 0;
    for (int i = 8; i-- > 0;)
        v = v << 8 | b[i];
    return v;
}

static int check_size(const char *path, uint64_t n)
{
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

/* Does the file begin like a compressed one? A plain header's fifth to ninth
 * bytes are 0 0 0 0 '{' (its size is below 2^32), which no gzip or zstd file has. */
static bool looks_compressed(const unsigned char *b, size_t n)
{
    if (n >= 9 && !b[4] && !b[5] && !b[6] && !b[7] && b[8] == '{')
        return false;
    if (n >= 4 && b[0] == 0x28 && b[1] == 0xb5 && b[2] == 0x2f && b[3] == 0xfd)
        return true;
    if (n >= 4 && (b[0] & 0xf0) == 0x50 && b[1] == 0x2a && b[2] == 0x4d && b[3] == 0x18)
        return true;
    return n >= 2 && b[0] == 0x1f && b[1] == 0x8b;
}

static int open_mapped(struct st_reader *r)
{
    if (r->map_bytes < 8)
        return short_file(r->path, "header size", 8, r->map_bytes);
    if (npz_is(r->map, r->map_bytes))
        return npz_parse(&r->h, r->path, r->map, r->map_bytes);
    uint64_t n = le64(r->map), have = r->map_bytes - 8;
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

/* Reads the header of a stream piece by piece: a false size costs no memory. */
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
    uint64_t n = le64(b);
    if ((rc = check_size(r->path, n)))
        return rc;
    while (have < n) {
        if (have == room) {
            room = room ? 4 * room : 1 << 16;
            if (room > n)
                room = n;
            char *p = realloc(text, room);
            if (!p) {
                rc = err_set(GPT_SYSTEM, "%s: out of memory", r->path);
                break;
            }
            text = p;
        }
        if ((rc = zreader_read(r->z, text + have, room - have, &got)))
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
        } else if (!looks_compressed(b, (size_t)n)) {
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
        return err_set(GPT_SYSTEM, "%s: out of memory", path);
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
    uint64_t place = t->begin + from;
    assert(place >= r->at);
    if (place > r->at && (rc = zreader_skip(r->z, place - r->at)))
        return err_prefix("tensor '%s'", t->name);
    r->at = place;
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
