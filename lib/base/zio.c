#include "base/zio.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>
#include "base/text.h"

enum { IN_BYTES = 1 << 17, OUT_BYTES = 1 << 17 }; /* zstd's block, the unit it works in */

/* --- reading --- */

enum format { PLAIN, ZSTD, GZIP };

struct zreader {
    int fd;
    bool waits; /* not a regular file: bytes may be long in coming */
    char *path;
    enum format format;
    bool eof; /* the file has ended: what is in in[] is the last */
    bool in_frame; /* a frame has begun and not ended */
    bool more; /* the decoder holds output that it had no room for */
    bool padded; /* gzip: zeros have followed the last frame */
    int failed; /* code of the first failure; its message in why */
    char why[512];
    uint64_t raw, out; /* bytes taken from in[], bytes handed out */
    size_t pos, end; /* unread part of in[] */
    char *peeked; /* decompressed bytes before those that the decoder gives next */
    size_t peek_at, peek_end;
    ZSTD_DStream *zstd;
    z_stream gzip;
    unsigned char in[IN_BYTES];
};

/* Standard input that was opened, peeked into and closed: the next one to open it begins there. */
static struct zreader *standard;

static int fail(struct zreader *r, int code)
{
    r->failed = code;
    snprintf(r->why, sizeof r->why, "%s", err_message());
    return code;
}

/* Readable: waiting ends; -1: none. */
static int wake = -1;

void zio_wake(int fd) { wake = fd; }

/* Waits for bytes of what is no regular file, or for the end of waiting. */
static int wait_for_input(struct zreader *r)
{
    struct pollfd p[2] = { { .fd = r->fd, .events = POLLIN }, { .fd = wake, .events = POLLIN } };
    if (!r->waits)
        return GPT_OK;
    while (poll(p, 2, -1) < 0)
        if (errno != EINTR)
            return fail(r, err_sys("cannot wait for '%s'", r->path));
    if (p[1].revents)
        return fail(r, err_set(GPT_SYSTEM, "%s: reading was interrupted", r->path));
    return GPT_OK;
}

/* Adds what is there to in[], or sets eof. */
static int add_input(struct zreader *r)
{
    ssize_t n;
    int rc = wait_for_input(r);
    if (rc)
        return rc;
    while ((n = read(r->fd, r->in + r->end, sizeof r->in - r->end)) < 0)
        if (errno != EINTR)
            return fail(r, err_sys("cannot read '%s'", r->path));
    r->end += (size_t)n;
    r->eof = !n;
    return GPT_OK;
}

/* Makes at least one byte available, or sets eof. */
static int fill(struct zreader *r)
{
    if (r->pos < r->end || r->eof)
        return GPT_OK;
    r->pos = r->end = 0;
    return add_input(r);
}

static enum format format_of(const unsigned char *b, size_t n)
{
    static const unsigned char magic[] = { 0x28, 0xb5, 0x2f, 0xfd };
    bool skippable = n >= 4 && (b[0] & 0xf0) == 0x50 && !memcmp(b + 1, "\x2a\x4d\x18", 3);
    if (skippable || (n >= 2 && !memcmp(b, magic, n < 4 ? n : 4)))
        return ZSTD;
    return n >= 2 && b[0] == 0x1f && b[1] == 0x8b ? GZIP : PLAIN;
}

bool zio_compressed(const unsigned char *b, size_t n) { return format_of(b, n) != PLAIN; }

int zio_lfs_pointer(const char *path)
{
    return err_set(GPT_INPUT,
                   "%s: a Git LFS pointer in place of the file: 'git lfs pull' fetches it", path);
}

static int detect(struct zreader *r)
{
    int rc = GPT_OK;
    while (r->end < 4 && !r->eof)
        if ((rc = add_input(r)))
            return rc;
    bool named_zstd = text_ends(r->path, ".zst"), named_gzip = text_ends(r->path, ".gz");
    r->format = format_of(r->in, r->end);
    if (r->end >= 23 && !memcmp(r->in, "version https://git-lfs", 23))
        return zio_lfs_pointer(r->path);
    if (r->end < 2 && (named_zstd || named_gzip))
        return err_set(GPT_INPUT, "%s: offset %llu: expected a %s frame, found the end of the file",
                       r->path, (unsigned long long)r->raw, named_zstd ? "zstd" : "gzip");
    if (r->format == ZSTD && !(r->zstd = ZSTD_createDStream()))
        return err_memory();
    if (r->format == GZIP && inflateInit2(&r->gzip, 16 + MAX_WBITS) != Z_OK)
        return err_memory();
    return GPT_OK;
}

static int seek(struct zreader *r, uint64_t raw)
{
    r->raw = raw;
    if (raw && lseek(r->fd, (off_t)raw, SEEK_SET) < 0)
        return err_sys("cannot go to offset %llu of '%s'", (unsigned long long)raw, r->path);
    return GPT_OK;
}

/* Opens a FIFO without waiting for its writer, which wait_for_input does. */
static int open_input(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd >= 0)
        fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
    return fd;
}

static int open_at(struct zreader **out, const char *path, uint64_t raw)
{
    bool is_stdin = !strcmp(path, "-");
    struct zreader *r = is_stdin ? standard : NULL;
    if (r) {
        standard = NULL;
        *out = r;
        return GPT_OK;
    }
    r = calloc(1, sizeof *r);
    if (!r || !(r->path = strdup(is_stdin ? "standard input" : path))) {
        free(r);
        return err_memory();
    }
    struct stat st;
    r->fd = is_stdin ? STDIN_FILENO : open_input(path);
    r->waits = r->fd >= 0 && !fstat(r->fd, &st) && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode);
    int rc = r->fd >= 0 ? seek(r, raw) : err_sys("cannot open '%s'", path);
    if (!rc)
        rc = detect(r);
    if (rc) {
        r->failed = rc;
        zreader_close(r);
        return rc;
    }
    *out = r;
    return GPT_OK;
}

int zreader_open(struct zreader **r, const char *path) { return open_at(r, path, 0); }

int zreader_open_at(struct zreader **r, const char *path, uint64_t raw)
{
    return open_at(r, path, raw);
}

bool zreader_plain(const struct zreader *r) { return r->format == PLAIN; }

static const char *format_name(const struct zreader *r)
{
    return r->format == ZSTD ? "zstd" : "gzip";
}

static int bad_frame(struct zreader *r, const char *why)
{
    return fail(r, err_set(GPT_INPUT, "%s: offset %llu: expected a sound %s frame, found: %s",
                           r->path, (unsigned long long)r->raw, format_name(r), why));
}

static int cut_frame(struct zreader *r)
{
    return fail(r, err_set(GPT_INPUT,
                           "%s: offset %llu: expected the rest of a %s frame, found "
                           "the end of the file",
                           r->path, (unsigned long long)r->raw, format_name(r)));
}

/* One call of the decoder: from in[] into buf. Sets *got, which may be 0. */
static int decode_zstd(struct zreader *r, void *buf, size_t n, size_t *got)
{
    ZSTD_inBuffer in = { r->in, r->end, r->pos };
    ZSTD_outBuffer out = { buf, n, 0 };
    size_t left = ZSTD_decompressStream(r->zstd, &out, &in);
    r->raw += in.pos - r->pos;
    r->pos = in.pos;
    *got = out.pos;
    if (ZSTD_isError(left) && ZSTD_getErrorCode(left) == ZSTD_error_frameParameter_windowTooLarge)
        return fail(r,
                    err_set(GPT_INPUT,
                            "%s: offset %llu: expected a zstd window of at most 128 MiB, found a "
                            "larger one: 'zstd -dc --long=31' decompresses it, into a pipe or a "
                            "file",
                            r->path, (unsigned long long)r->raw));
    if (ZSTD_isError(left))
        return bad_frame(r, ZSTD_getErrorName(left));
    r->in_frame = left != 0;
    return GPT_OK;
}

static int decode_gzip(struct zreader *r, void *buf, size_t n, size_t *got)
{
    if (!r->in_frame && inflateReset(&r->gzip) != Z_OK)
        return bad_frame(r, "decoder state");
    uInt room = n < 1u << 30 ? (uInt)n : 1u << 30;
    r->gzip.next_in = r->in + r->pos;
    r->gzip.avail_in = (uInt)(r->end - r->pos);
    r->gzip.next_out = buf;
    r->gzip.avail_out = room;
    int rc = inflate(&r->gzip, Z_NO_FLUSH);
    size_t pos = r->end - r->gzip.avail_in;
    r->raw += pos - r->pos;
    r->pos = pos;
    *got = room - r->gzip.avail_out;
    if (rc != Z_OK && rc != Z_STREAM_END && rc != Z_BUF_ERROR)
        return bad_frame(r, r->gzip.msg ? r->gzip.msg : "damaged data");
    r->in_frame = rc != Z_STREAM_END;
    return GPT_OK;
}

/* Takes the zeros that follow a gzip stream on tapes and in archives of blocks, as gzip(1) does;
 * nothing follows them. */
static int skip_padding(struct zreader *r)
{
    while (r->pos < r->end && !r->in[r->pos]) {
        r->pos++;
        r->raw++;
        r->padded = true;
    }
    return r->padded && r->pos < r->end ? bad_frame(r, "data behind zero padding") : GPT_OK;
}

static int copy_plain(struct zreader *r, void *buf, size_t n, size_t *got)
{
    *got = n < r->end - r->pos ? n : r->end - r->pos;
    memcpy(buf, r->in + r->pos, *got);
    r->pos += *got;
    r->raw += *got;
    return GPT_OK;
}

static size_t take_peeked(struct zreader *r, void *buf, size_t n)
{
    size_t have = r->peek_end - r->peek_at;
    n = n < have ? n : have;
    memcpy(buf, r->peeked + r->peek_at, n);
    r->peek_at += n;
    if (r->peek_at == r->peek_end) {
        free(r->peeked);
        r->peeked = NULL;
    }
    return n;
}

/* At least one byte, unless the stream has ended. */
static int decode_some(struct zreader *r, void *buf, size_t n, size_t *got)
{
    *got = 0;
    while (n && !*got) {
        int rc = r->more ? GPT_OK : fill(r);
        if (rc)
            return rc;
        if (r->format == GZIP && !r->in_frame && (rc = skip_padding(r)))
            return rc;
        bool last = r->pos == r->end && r->eof;
        if (last && !r->in_frame)
            break;
        if (r->padded) /* to the end of the file */
            continue;
        rc = r->format == PLAIN  ? copy_plain(r, buf, n, got)
             : r->format == ZSTD ? decode_zstd(r, buf, n, got)
                                 : decode_gzip(r, buf, n, got);
        if (rc)
            return rc;
        r->more = r->in_frame && *got == n;
        /* The decoder may still hold output after the last input. The file is too short only
         * when a call neither consumes nor produces anything. */
        if (last && !*got && r->in_frame)
            return cut_frame(r);
    }
    return GPT_OK;
}

int zreader_some(struct zreader *r, void *buf, size_t n, size_t *got)
{
    int rc = GPT_OK;
    *got = 0;
    if (r->peeked)
        *got = take_peeked(r, buf, n);
    else if (r->failed)
        rc = err_set(r->failed, "%s", r->why);
    else
        rc = decode_some(r, buf, n, got);
    r->out += *got;
    return rc;
}

int zreader_read(struct zreader *r, void *buf, size_t n, size_t *got)
{
    size_t k = 1;
    int rc = GPT_OK;
    for (*got = 0; !rc && *got < n && k; *got += k)
        rc = zreader_some(r, (char *)buf + *got, n - *got, &k);
    return rc;
}

int zreader_peek(struct zreader *r, size_t n, const void **p, size_t *got)
{
    assert(!r->out);
    char *all = n > r->peek_end ? realloc(r->peeked, n) : r->peeked;
    int rc = all ? GPT_OK : err_memory();
    if (!all)
        return rc;
    r->peeked = all;
    for (size_t k = 1; !rc && r->peek_end < n && k; r->peek_end += k)
        rc = r->failed ? err_set(r->failed, "%s", r->why)
                       : decode_some(r, all + r->peek_end, n - r->peek_end, &k);
    *p = all;
    *got = r->peek_end < n ? r->peek_end : n;
    if (!r->peek_end) {
        free(r->peeked);
        r->peeked = NULL;
        *p = "";
    }
    return rc;
}

int zreader_skip(struct zreader *r, uint64_t n)
{
    char buf[16384];
    uint64_t from = r->out;
    for (uint64_t left = n; left > 0;) {
        size_t got;
        int rc = zreader_read(r, buf, left < sizeof buf ? (size_t)left : sizeof buf, &got);
        if (rc)
            return rc;
        if (!got)
            return err_set(GPT_INPUT, "%s: expected %llu bytes, found %llu", r->path,
                           (unsigned long long)(from + n), (unsigned long long)r->out);
        left -= got;
    }
    return GPT_OK;
}

uint64_t zreader_offset(const struct zreader *r) { return r->out; }

uint64_t zreader_raw_offset(const struct zreader *r) { return r->raw; }

void zreader_close(struct zreader *r)
{
    if (!r)
        return;
    if (r->fd == STDIN_FILENO && !r->out && !r->failed && !standard) {
        standard = r;
        return;
    }
    if (r->fd > STDIN_FILENO)
        close(r->fd);
    ZSTD_freeDStream(r->zstd);
    if (r->format == GZIP)
        inflateEnd(&r->gzip);
    free(r->peeked);
    free(r->path);
    free(r);
}

/* --- writing --- */

struct zwriter {
    FILE *f;
    char *name;
    ZSTD_CStream *zstd; /* NULL: plain */
    bool in_frame, any; /* bytes since the last frame; a frame at all */
    uint64_t raw;
    unsigned char out[OUT_BYTES];
};

int zwriter_new(struct zwriter **out, FILE *f, const char *name, int level)
{
    struct zwriter *w = calloc(1, sizeof *w);
    if (!w || !(w->name = strdup(name)) || (level && !(w->zstd = ZSTD_createCStream()))) {
        zwriter_free(w);
        return err_memory();
    }
    w->f = f;
    if (level) {
        ZSTD_CCtx_setParameter(w->zstd, ZSTD_c_compressionLevel, level);
        ZSTD_CCtx_setParameter(w->zstd, ZSTD_c_checksumFlag, 1);
    }
    *out = w;
    return GPT_OK;
}

static int put(struct zwriter *w, const void *buf, size_t n)
{
    if (fwrite(buf, 1, n, w->f) != n)
        return err_sys("cannot write '%s'", w->name);
    w->raw += n;
    return GPT_OK;
}

/* Feeds in to the encoder until all is taken and, for ZSTD_e_end, all is out. */
static int encode(struct zwriter *w, ZSTD_inBuffer *in, ZSTD_EndDirective mode)
{
    size_t left;
    do {
        ZSTD_outBuffer out = { w->out, sizeof w->out, 0 };
        left = ZSTD_compressStream2(w->zstd, &out, in, mode);
        if (ZSTD_isError(left))
            return err_set(GPT_SYSTEM, "%s: cannot compress: %s", w->name, ZSTD_getErrorName(left));
        int rc = put(w, w->out, out.pos);
        if (rc)
            return rc;
    } while (in->pos < in->size || (mode == ZSTD_e_end && left));
    return GPT_OK;
}

int zwriter_write(struct zwriter *w, const void *buf, size_t n)
{
    if (!w->zstd || !n)
        return put(w, buf, n);
    ZSTD_inBuffer in = { buf, n, 0 };
    w->in_frame = true;
    return encode(w, &in, ZSTD_e_continue);
}

int zwriter_frame(struct zwriter *w)
{
    if (!w->zstd || !w->in_frame)
        return GPT_OK;
    ZSTD_inBuffer none = { NULL, 0, 0 };
    w->in_frame = false;
    w->any = true;
    return encode(w, &none, ZSTD_e_end);
}

int zwriter_finish(struct zwriter *w)
{
    w->in_frame |= w->zstd && !w->any; /* an empty stream is one empty frame */
    return zwriter_frame(w);
}

uint64_t zwriter_offset(const struct zwriter *w) { return w->raw; }

void zwriter_free(struct zwriter *w)
{
    if (!w)
        return;
    ZSTD_freeCStream(w->zstd);
    free(w->name);
    free(w);
}
