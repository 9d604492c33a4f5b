#include "checkpoint/pack.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/file.h"
#include "base/hash.h"
#include "base/zio.h"
#include "checkpoint/checkpoint_dir.h"

enum { BLOCK = 512, COPY = 1 << 17, MANIFEST_LARGEST = 256 << 20 };

struct tar_header {
    char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], sum[8], type, link[100], magic[6],
        version[2], user[32], group[32], major[8], minor[8], prefix[155], rest[12];
};
_Static_assert(sizeof(struct tar_header) == BLOCK, "a header of tar is a block");

/* The sum of a header's bytes, its own field being blanks. */
static unsigned sum_of(const struct tar_header *h)
{
    const unsigned char *b = (const unsigned char *)h;
    const size_t at = offsetof(struct tar_header, sum);
    unsigned sum = 0;
    for (size_t i = 0; i < BLOCK; i++)
        sum += i >= at && i < at + sizeof h->sum ? ' ' : b[i];
    return sum;
}

static size_t padding(uint64_t bytes) { return (size_t)(-bytes % BLOCK); }

/* -- writing ------------------------------------------------------------------------ */

static int put_header(struct zwriter *w, int64_t step, const char *name, uint64_t bytes)
{
    struct tar_header h = { .mode = "0000644",
                            .uid = "0000000",
                            .gid = "0000000",
                            .mtime = "00000000000",
                            .type = '0',
                            .magic = "ustar",
                            .version = { '0', '0' } };
    char sum[sizeof h.sum];
    int n = snprintf(h.name, sizeof h.name, "step-%06" PRId64 "/%s", step, name);
    if (n >= (int)sizeof h.name)
        return err_set(GPT_INPUT, "'%s': expected a name of at most %zu bytes", name,
                       sizeof h.name - 1);
    if (bytes >> 33) {
        h.size[0] = (char)0x80;
        for (int i = 0; i < 8; i++)
            h.size[11 - i] = (char)(bytes >> 8 * i);
    } else {
        snprintf(h.size, sizeof h.size, "%011" PRIo64, bytes);
    }
    snprintf(sum, sizeof sum, "%06o", sum_of(&h)); /* six digits, NUL, blank */
    memcpy(h.sum, sum, 7);
    h.sum[7] = ' ';
    return zwriter_write(w, &h, sizeof h);
}

static int put_zeros(struct zwriter *w, size_t n)
{
    static const char zeros[2 * BLOCK];
    return zwriter_write(w, zeros, n);
}

/* Copies bytes of f; hash is 33 bytes. */
static int put_bytes(struct zwriter *w, FILE *f, const char *path, uint64_t bytes, char *hash)
{
    char buf[COPY];
    struct xxh x;
    int rc = xxh_init(&x);
    for (uint64_t left = bytes; !rc && left > 0;) {
        size_t n = fread(buf, 1, left < COPY ? (size_t)left : COPY, f);
        if (!n && ferror(f))
            rc = err_sys("cannot read '%s'", path);
        else if (!n)
            rc = err_set(GPT_INPUT, "%s: expected %" PRIu64 " bytes, found %" PRIu64, path, bytes,
                         bytes - left);
        if (!rc) {
            xxh_add(&x, buf, n);
            rc = zwriter_write(w, buf, n);
        }
        left -= n;
    }
    xxh_hex(&x, hash);
    xxh_release(&x);
    return rc;
}

static int put_file(struct zwriter *w, const struct ckpt *c, const struct ckpt_file *f)
{
    char *path = path_join(ckpt_dir(c), f->name), hash[33];
    FILE *in = path ? fopen(path, "re") : NULL;
    int rc = !path ? err_memory() : in ? 0 : err_sys("cannot open '%s'", path);
    if (!rc)
        rc = put_header(w, ckpt_info(c)->step, f->name, f->bytes);
    if (!rc)
        rc = put_bytes(w, in, path, f->bytes, hash);
    if (!rc && strcmp(hash, f->hash))
        rc = err_set(GPT_INPUT, "%s: expected XXH3 %s, found %s: it is damaged", path, f->hash,
                     hash);
    if (!rc)
        rc = put_zeros(w, padding(f->bytes));
    if (in)
        fclose(in);
    free(path);
    return rc;
}

static int put_manifest(struct zwriter *w, const struct ckpt *c)
{
    char *path = path_join(ckpt_dir(c), "MANIFEST"), *text = NULL;
    size_t n;
    int rc = path ? file_read(path, MANIFEST_LARGEST, &text, &n) : err_memory();
    if (!rc)
        rc = put_header(w, ckpt_info(c)->step, "MANIFEST", n);
    if (!rc && !(rc = zwriter_write(w, text, n)))
        rc = put_zeros(w, padding(n));
    free(text);
    free(path);
    return rc;
}

int ckpt_pack(const struct ckpt *c, FILE *f, const char *name, int level)
{
    const struct ckpt_file *files;
    struct zwriter *w;
    int n = ckpt_files(c, &files), rc = zwriter_new(&w, f, name, level);
    if (rc)
        return rc;
    rc = put_manifest(w, c);
    for (int i = 0; i < n && !rc; i++)
        rc = put_file(w, c, &files[i]);
    if (!rc && !(rc = put_zeros(w, 2 * BLOCK)))
        rc = zwriter_finish(w);
    zwriter_free(w);
    return rc;
}

/* -- reading ------------------------------------------------------------------------- */

/* A stream that is being unpacked. */
struct unpack {
    struct zreader *z;
    const char *path; /* for messages */
    char *text; /* MANIFEST, and what it says */
    size_t bytes;
    struct ckpt_manifest manifest;
    bool *seen; /* [nfiles] */
    char name[101]; /* the present file, without its folder */
    uint64_t size;
};

static int get(struct unpack *u, void *buf, size_t n)
{
    size_t got;
    int rc = zreader_read(u->z, buf, n, &got);
    return rc || got == n ? rc
                          : err_set(GPT_INPUT,
                                    "%s: offset %" PRIu64 ": expected the rest of a packed "
                                    "checkpoint, found the end",
                                    u->path, zreader_offset(u->z));
}

static int not_packed(const struct unpack *u, const char *expected)
{
    return err_set(GPT_INPUT, "%s: offset %" PRIu64 ": expected %s, as gpt-ckpt pack writes it",
                   u->path, zreader_offset(u->z) - BLOCK, expected);
}

static int parse_size(const struct tar_header *h, uint64_t *size)
{
    char digits[13] = "", *end;
    *size = 0;
    if (h->size[0] & 0x80) {
        for (int i = 4; i < 12; i++)
            *size = *size << 8 | (unsigned char)h->size[i];
        return *size >> 62 ? GPT_INPUT : 0;
    }
    memcpy(digits, h->size, 12);
    *size = strtoull(digits, &end, 8);
    return end == digits ? GPT_INPUT : 0;
}

static bool is_zero(const struct tar_header *h)
{
    static const struct tar_header zero;
    return !memcmp(h, &zero, sizeof zero);
}

/* The next file; *end: there is none. */
static int next_file(struct unpack *u, bool *end)
{
    struct tar_header h;
    char sum[9] = "";
    int rc = get(u, &h, sizeof h);
    *end = !rc && is_zero(&h);
    if (rc || *end)
        return rc;
    memcpy(sum, h.sum, sizeof h.sum);
    if (memcmp(h.magic, "ustar", 5) || strtoul(sum, NULL, 8) != sum_of(&h))
        return not_packed(u, "a header of tar");
    if ((h.type != '0' && h.type) || parse_size(&h, &u->size))
        return not_packed(u, "a regular file");
    memcpy(u->name, h.name, sizeof h.name);
    const char *slash = strrchr(u->name, '/');
    if (slash)
        memmove(u->name, slash + 1, strlen(slash));
    return 0;
}

static int skip_padding(struct unpack *u)
{
    char pad[BLOCK];
    return get(u, pad, padding(u->size));
}

static int begin(struct unpack *u, const char *path)
{
    bool end;
    *u = (struct unpack){ .path = strcmp(path, "-") ? path : "standard input" };
    int rc = zreader_open(&u->z, path);
    if (rc || (rc = next_file(u, &end)))
        return rc;
    if (end || strcmp(u->name, "MANIFEST") || u->size > MANIFEST_LARGEST)
        return not_packed(u, "a checkpoint's MANIFEST first");
    u->bytes = (size_t)u->size;
    char *copy = malloc(u->bytes + 1);
    if (!copy || !(u->text = malloc(u->bytes + 1)))
        rc = err_memory();
    if (!rc && !(rc = get(u, u->text, u->bytes)) && !(rc = skip_padding(u))) {
        memcpy(copy, u->text, u->bytes);
        copy[u->bytes] = '\0';
        rc = ckpt_manifest_parse(&u->manifest, u->path, copy, u->bytes);
    }
    free(copy);
    if (!rc && !(u->seen = calloc((size_t)u->manifest.nfiles + 1, sizeof *u->seen)))
        rc = err_memory();
    return rc;
}

static void finish(struct unpack *u)
{
    zreader_close(u->z);
    ckpt_manifest_release(&u->manifest);
    free(u->text);
    free(u->seen);
}

/* A new file; commit syncs it. */
static int create(const char *dir, const char *name, FILE **f, char **path)
{
    int fd = -1;
    *f = NULL;
    if (!(*path = path_join(dir, name)))
        return err_memory();
    if ((fd = open(*path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)) >= 0)
        *f = fdopen(fd, "w");
    return *f ? 0 : err_sys("cannot create '%s'", *path);
}

static int commit(FILE *f, char *path, int rc)
{
    if (f && !rc && (fflush(f) || fsync(fileno(f))))
        rc = err_sys("cannot write '%s'", path);
    if (f && fclose(f) && !rc)
        rc = err_sys("cannot write '%s'", path);
    free(path);
    return rc;
}

static int copy_out(struct unpack *u, FILE *f, const char *path, char *hash)
{
    char buf[COPY];
    struct xxh x;
    int rc = xxh_init(&x);
    for (uint64_t left = u->size, n; !rc && left > 0; left -= n) {
        n = left < COPY ? left : COPY;
        if ((rc = get(u, buf, n)))
            break;
        xxh_add(&x, buf, n);
        if (fwrite(buf, 1, n, f) != n)
            rc = err_sys("cannot write '%s'", path);
    }
    xxh_hex(&x, hash);
    xxh_release(&x);
    return rc;
}

/* The present file, which MANIFEST must have with this size and hash. */
static int take_file(struct unpack *u, const char *dir)
{
    const struct ckpt_file *want = NULL;
    char *path, hash[33] = "";
    FILE *f;
    for (int i = 0; i < u->manifest.nfiles; i++)
        if (!strcmp(u->manifest.files[i].name, u->name) && !u->seen[i]) {
            want = &u->manifest.files[i];
            u->seen[i] = true;
            break;
        }
    if (!want || strchr(u->name, '/'))
        return err_set(GPT_INPUT, "%s: file '%s' is not one of its MANIFEST", u->path, u->name);
    if (want->bytes != u->size)
        return err_set(GPT_INPUT,
                       "%s: file '%s': expected %" PRIu64 " bytes as its MANIFEST says, found "
                       "%" PRIu64,
                       u->path, u->name, want->bytes, u->size);
    int rc = create(dir, u->name, &f, &path);
    if (!rc)
        rc = copy_out(u, f, path, hash);
    if (!rc && strcmp(hash, want->hash))
        rc = err_set(GPT_INPUT, "%s: file '%s': expected XXH3 %s, found %s: it is damaged", u->path,
                     u->name, want->hash, hash);
    rc = commit(f, path, rc);
    return rc ? rc : skip_padding(u);
}

/* Checks that only zeros follow, with which tar fills up its last record, and the end of the frame. */
static int take_end(struct unpack *u)
{
    struct tar_header h;
    size_t got = 0;
    int rc = get(u, &h, sizeof h);
    while (!rc && is_zero(&h))
        if ((rc = zreader_read(u->z, &h, sizeof h, &got)) || !got)
            break;
    if (!rc && got)
        rc = not_packed(u, "the end of a packed checkpoint");
    for (int i = 0; i < u->manifest.nfiles && !rc; i++)
        if (!u->seen[i])
            rc = err_set(GPT_INPUT, "%s: expected the file '%s' of its MANIFEST, found none",
                         u->path, u->manifest.files[i].name);
    return rc;
}

static int take_files(struct unpack *u, const char *dir)
{
    bool end = false;
    char *path;
    FILE *f;
    int rc = 0;
    while (!rc && !(rc = next_file(u, &end)) && !end)
        rc = take_file(u, dir);
    if (rc || (rc = take_end(u)))
        return rc;
    rc = create(dir, "MANIFEST", &f, &path);
    if (!rc && fwrite(u->text, 1, u->bytes, f) != u->bytes)
        rc = err_sys("cannot write '%s'", path);
    return commit(f, path, rc);
}

int ckpt_unpack_into(const char *path, const char *dir)
{
    struct unpack u;
    int rc = begin(&u, path);
    if (!rc)
        rc = take_files(&u, dir);
    finish(&u);
    return rc;
}

static int unpack_step(struct unpack *u, const char *root, int64_t step)
{
    struct stat st;
    bool made = stat(root, &st) && errno == ENOENT;
    char *tmp = ckpt_temporary(root, step);
    int rc = tmp ? ckpt_begin(root, step) : GPT_SYSTEM;
    if (!rc && ((rc = take_files(u, tmp)) || (rc = ckpt_publish(root, step))))
        ckpt_abort(root, step);
    if (rc && made)
        rmdir(root); /* only if nothing is in it */
    free(tmp);
    return rc;
}

int ckpt_unpack(const char *path, const char *root, bool force)
{
    struct unpack u;
    int rc = begin(&u, path);
    if (!rc && !force)
        rc = ckpt_check_free(root, u.manifest.info.step);
    if (!rc)
        rc = unpack_step(&u, root, u.manifest.info.step);
    finish(&u);
    return rc;
}
