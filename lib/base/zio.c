#include "base/zio.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>
#include "base/text.h"

enum { IN_BYTES = 1 << 17, OUT_BYTES = 1 << 17 }; /* zstd's block, the unit it works in */

/* --- reading --- */

enum format { PLAIN, ZSTD, GZIP };

struct zreader {
    FILE *f;
    char *path;
    enum format format;
    bool eof; /* f has ended: what is in in[] is the last */
    bool in_frame; /* a frame has begun and not ended */
    int failed; /* code of the first failure; its message in why */
    char why[512];
    uint64_t raw, out; /* bytes taken from in[], bytes handed out */
    size_t pos, end; /* unread part of in[] */
    ZSTD_DStream *zstd;
    z_stream gzip;
    unsigned char in[IN_BYTES];
};

static int fail(struct zreader *r, int code)
{
    r->failed = code;
    snprintf(r->why, sizeof r->why, "%s", err_message());
    return code;
}

/* Makes at least one byte available, or sets eof. */
static int fill(struct zreader *r)
{
    if (r->pos < r->end || r->eof)
        return GPT_OK;
    r->pos = 0;
    r->end = fread(r->in, 1, sizeof r->in, r->f);
    if (r->end < sizeof r->in) {
        if (ferror(r->f)) {
            r->end = 0;
            return fail(r, err_sys("cannot read '%s'", r->path));
        }
        r->eof = true;
    }
    return GPT_OK;
}

static bool starts(const struct zreader *r, const char *magic, size_t n)
{
    size_t have = r->end < n ? r->end : n;
    return have >= 2 && !memcmp(r->in, magic, have);
}

static bool is_zstd(const struct zreader *r)
{
    bool skippable =
        r->end >= 4 && (r->in[0] & 0xf0) == 0x50 && !memcmp(r->in + 1, "\x2a\x4d\x18", 3);
    return starts(r, "\x28\xb5\x2f\xfd", 4) || skippable;
}

static int detect(struct zreader *r)
{
    int rc = fill(r);
    if (rc)
        return rc;
    bool named_zstd = text_ends(r->path, ".zst"), named_gzip = text_ends(r->path, ".gz");
    if (is_zstd(r))
        r->format = ZSTD;
    else if (starts(r, "\x1f\x8b", 2))
        r->format = GZIP;
    else if (named_zstd || named_gzip)
        return err_set(GPT_INPUT, "%s: offset %llu: expected a %s frame, found %s", r->path,
                       (unsigned long long)r->raw, named_zstd ? "zstd" : "gzip",
                       r->end < 4 ? "the end of the file" : "other data");
    if (r->format == ZSTD && !(r->zstd = ZSTD_createDStream()))
        return err_memory();
    if (r->format == GZIP && inflateInit2(&r->gzip, 16 + MAX_WBITS) != Z_OK)
        return err_memory();
    return GPT_OK;
}

static int seek(struct zreader *r, uint64_t raw)
{
    r->raw = raw;
    if (raw && fseeko(r->f, (off_t)raw, SEEK_SET))
        return err_sys("cannot go to offset %llu of '%s'", (unsigned long long)raw, r->path);
    return GPT_OK;
}

int zreader_open(struct zreader **out, const char *path) { return zreader_open_at(out, path, 0); }

int zreader_open_at(struct zreader **out, const char *path, uint64_t raw)
{
    struct zreader *r = calloc(1, sizeof *r);
    if (!r || !(r->path = strdup(strcmp(path, "-") ? path : "standard input"))) {
        free(r);
        return err_memory();
    }
    r->f = strcmp(path, "-") ? fopen(path, "re") : stdin;
    int rc = r->f ? seek(r, raw) : err_sys("cannot open '%s'", path);
    if (!rc)
        rc = detect(r);
    if (rc) {
        zreader_close(r);
        return rc;
    }
    *out = r;
    return GPT_OK;
}

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

static int copy_plain(struct zreader *r, void *buf, size_t n, size_t *got)
{
    *got = n < r->end - r->pos ? n : r->end - r->pos;
    memcpy(buf, r->in + r->pos, *got);
    r->pos += *got;
    r->raw += *got;
    return GPT_OK;
}

int zreader_read(struct zreader *r, void *buf, size_t n, size_t *got)
{
    char *p = buf;
    *got = 0;
    if (r->failed)
        return err_set(r->failed, "%s", r->why);
    while (n > 0) {
        size_t k = 0;
        int rc = fill(r);
        if (rc)
            return rc;
        bool last = r->pos == r->end && r->eof;
        if (last && !r->in_frame)
            break;
        rc = r->format == PLAIN  ? copy_plain(r, p, n, &k)
             : r->format == ZSTD ? decode_zstd(r, p, n, &k)
                                 : decode_gzip(r, p, n, &k);
        if (rc)
            return rc;
        /* The decoder may still hold output after the last input. The file is too short only
         * when a call neither consumes nor produces anything. */
        if (last && !k && r->in_frame)
            return cut_frame(r);
        p += k;
        n -= k;
        *got += k;
        r->out += k;
    }
    return GPT_OK;
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
    if (r->f && r->f != stdin)
        fclose(r->f);
    ZSTD_freeDStream(r->zstd);
    if (r->format == GZIP)
        inflateEnd(&r->gzip);
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
