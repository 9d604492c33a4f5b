/* shard_write.c - see shard_write.h. */
#include "data/shard_write.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>
#include "base/grow.h"
#include "base/zio.h"
#include "data/corpus.h"
#include "base/le.h"

size_t shard_pack_room(void) { return ZSTD_compressBound(FRAME_BYTES); }

int shard_pack(ZSTD_CCtx *z, int level, const void *plain, size_t n, void *raw, size_t *raw_n)
{
    ZSTD_CCtx_setParameter(z, ZSTD_c_compressionLevel, level);
    ZSTD_CCtx_setParameter(z, ZSTD_c_checksumFlag, 1);
    *raw_n = ZSTD_compress2(z, raw, shard_pack_room(), plain, n);
    if (ZSTD_isError(*raw_n))
        return err_set(GPT_SYSTEM, "cannot compress a frame: %s", ZSTD_getErrorName(*raw_n));
    return 0;
}

/* --- the header --- */

#define HEADER_FRAME_BYTES (10 + SHARD_HEADER_BYTES + 4)

static void make_header(unsigned char h[SHARD_HEADER_BYTES], int64_t tokens)
{
    memset(h, 0, SHARD_HEADER_BYTES);
    put_le32(h, SHARD_MAGIC);
    put_le32(h + 4, SHARD_VERSION);
    put_le32(h + 8, (uint32_t)tokens);
}

/* The header as a zstd frame that is not compressed, so that its size does not
 * depend on the count, which is known last (RFC 8878, 3.1.1): one raw block,
 * content size in two bytes, single segment, checksum. */
static void make_header_frame(unsigned char f[HEADER_FRAME_BYTES], int64_t tokens)
{
    static const unsigned char start[10] = {
        0x28,
        0xb5,
        0x2f,
        0xfd,
        0x64,
        (SHARD_HEADER_BYTES - 256) & 255,
        (SHARD_HEADER_BYTES - 256) >> 8,
        (SHARD_HEADER_BYTES << 3 | 1) & 255,
        SHARD_HEADER_BYTES << 3 >> 8,
        0,
    };

    memcpy(f, start, 10);
    make_header(f + 10, tokens);
    put_le32(f + 10 + SHARD_HEADER_BYTES, (uint32_t)XXH64(f + 10, SHARD_HEADER_BYTES, 0));
}

static int cannot_write(const struct shard_writer *w)
{
    return w->out.path ? err_sys("cannot write '%s'", w->out.path)
                       : err_sys("cannot write a temporary file in '%s'", temporary_dir());
}

static int write_all(struct shard_writer *w, const void *p, size_t n)
{
    if (fwrite(p, 1, n, w->out.f) != n)
        return cannot_write(w);
    w->bytes += n;
    return 0;
}

static int write_header(struct shard_writer *w, int64_t tokens)
{
    unsigned char h[HEADER_FRAME_BYTES];

    if (w->level)
        make_header_frame(h, tokens);
    else
        make_header(h, tokens);
    return write_all(w, h, w->level ? HEADER_FRAME_BYTES : SHARD_HEADER_BYTES);
}

/* --- the file --- */

/* Stdout gets a shard through a temporary file that has no name, a small one through memory. */
static int open_unnamed(struct shard_writer *w)
{
    bool small = w->shard_tokens <= SHARD_MEMORY_TOKENS;
    int fd = small ? memfd_create("shard", MFD_CLOEXEC) : -1, rc;

    memset(&w->out, 0, sizeof w->out);
    if (fd < 0 && (rc = file_unnamed(temporary_dir(), &fd)))
        return rc;
    if ((w->out.f = fdopen(fd, "w+")))
        return 0;
    rc = cannot_write(w);
    close(fd);
    return rc;
}

int shard_writer_open(struct shard_writer *w, enum split split, int index)
{
    unsigned char h[SHARD_HEADER_BYTES];
    char *path;
    int rc;

    snprintf(w->name, sizeof w->name, "%s_%s_%06d.bin%s", w->prefix, split_name(split), index,
             w->level ? ".zst" : "");
    w->split = split;
    w->bytes = 0;
    w->tokens = 0;
    w->hashes = 0;
    if (!strcmp(w->dir, "-")) {
        rc = open_unnamed(w);
    } else {
        if (!(path = path_join(w->dir, w->name)))
            return err_memory();
        rc = output_open(&w->out, path, true); /* a shard that no manifest names may be there */
        free(path);
    }
    if (rc)
        return rc;
    w->is_open = true;
    make_header(h, w->shard_tokens);
    if ((rc = xxh_init(&w->hash))) {
        shard_writer_abort(w);
        return rc;
    }
    xxh_add(&w->hash, h, sizeof h);
    if (!(rc = write_header(w, w->shard_tokens)) && w->level)
        rc = frames_add(&w->frames, HEADER_FRAME_BYTES, SHARD_HEADER_BYTES);
    return rc;
}

static int index_tokens(struct shard_writer *w, const uint16_t *token, size_t n)
{
    int rc;

    for (size_t i = 0; w->with_index && i < n; i++)
        if (token[i] == w->bos && (rc = shard_index_add(&w->index, w->tokens + (int64_t)i)))
            return rc;
    w->tokens += (int64_t)n;
    return 0;
}

/* Beside the shard and before it, so that it is there when the shard is. */
static int write_index(struct shard_writer *w, const char *hash)
{
    char *shard = path_join(w->dir, w->name), *path = shard ? shard_index_path(shard) : NULL;
    int rc = path ? shard_index_write(&w->index, path, w->tokens, hash) : err_memory();

    free(shard);
    free(path);
    return rc;
}

static int hash_frame(struct shard_writer *w, const void *plain, size_t n)
{
    size_t at = (size_t)w->hashes * FRAME_HASH_CHARS;

    if (grow_to(&w->frame_hashes, &w->hashes_room, at + FRAME_HASH_CHARS, 1))
        return GPT_SYSTEM;
    if (at)
        w->frame_hashes[at - 1] = ' ';
    xxh_hex_of(plain, n, w->frame_hashes + at);
    w->hashes++;
    return 0;
}

int shard_writer_put(struct shard_writer *w, const void *plain, size_t n, const void *raw,
                     size_t raw_n)
{
    int rc;

    xxh_add(&w->hash, plain, n);
    if ((rc = hash_frame(w, plain, n)) || (rc = index_tokens(w, plain, n / 2)))
        return rc;
    if (!w->level)
        return write_all(w, plain, n);
    if ((rc = write_all(w, raw, raw_n)))
        return rc;
    return frames_add(&w->frames, (uint32_t)raw_n, (uint32_t)n);
}

static int write_table(struct shard_writer *w)
{
    char *table;
    size_t n;
    int rc;

    if ((rc = frames_table(&w->frames, &table, &n)))
        return rc;
    rc = write_all(w, table, n);
    free(table);
    return rc;
}

/* Computes the hash of a shard that turned out to be smaller: its header was another. It goes by
 * descriptor, for the file may have no name. */
static int hash_again(struct shard_writer *w, char hash[33])
{
    char path[40], *buf = malloc(FRAME_BYTES);
    struct zreader *z = NULL;
    struct xxh x = { NULL };
    size_t got;
    int rc;

    if (!buf)
        return err_memory();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fileno(w->out.f));
    if (!(rc = xxh_init(&x)) && !(rc = zreader_open(&z, path))) {
        while (!(rc = zreader_read(z, buf, FRAME_BYTES, &got)) && got)
            xxh_add(&x, buf, got);
        xxh_hex(&x, hash);
    }
    zreader_close(z);
    xxh_release(&x);
    free(buf);
    return rc;
}

static int correct_header(struct shard_writer *w, int64_t tokens)
{
    uint64_t bytes = w->bytes;
    int rc;

    if (fseeko(w->out.f, 0, SEEK_SET))
        return cannot_write(w);
    rc = write_header(w, tokens);
    w->bytes = bytes;
    if (!rc && fflush(w->out.f))
        rc = cannot_write(w);
    return rc;
}

static int copy_to_stdout(struct shard_writer *w)
{
    char *buf = malloc(FRAME_BYTES);
    size_t n;
    int rc = 0;

    if (!buf)
        return err_memory();
    rewind(w->out.f);
    while (!rc && (n = fread(buf, 1, FRAME_BYTES, w->out.f)) > 0)
        if (fwrite(buf, 1, n, stdout) != n)
            rc = err_sys("cannot write standard output");
    if (!rc && ferror(w->out.f))
        rc = err_sys("cannot read a temporary file");
    if (!rc && fflush(stdout))
        rc = err_sys("cannot write standard output");
    free(buf);
    return rc;
}

static void end_file(struct shard_writer *w)
{
    if (w->is_open && !strcmp(w->dir, "-"))
        fclose(w->out.f);
    else if (w->is_open)
        output_abort(&w->out);
    w->is_open = false;
    xxh_release(&w->hash);
    frames_release(&w->frames);
    shard_index_release(&w->index);
}

int shard_writer_finish(struct shard_writer *w, int64_t tokens, struct manifest_shard *s)
{
    int rc = 0;

    if (w->level)
        rc = write_table(w);
    if (!rc && tokens != w->shard_tokens)
        rc = correct_header(w, tokens);
    if (!rc && tokens != w->shard_tokens)
        rc = hash_again(w, s->hash);
    else
        xxh_hex(&w->hash, s->hash);
    if (!rc && w->with_index && strcmp(w->dir, "-"))
        rc = write_index(w, s->hash);
    if (!rc)
        rc = strcmp(w->dir, "-") ? output_commit(&w->out) : copy_to_stdout(w);
    s->split = w->split;
    s->name = w->name;
    s->bytes = (int64_t)w->bytes;
    s->tokens = tokens;
    s->frames = w->hashes ? w->frame_hashes : NULL;
    end_file(w); /* releases what the commit left */
    return rc;
}

void shard_writer_abort(struct shard_writer *w)
{
    end_file(w);
    free(w->frame_hashes);
    w->frame_hashes = NULL;
    w->hashes_room = 0;
}
