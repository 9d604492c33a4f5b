/* Each rank writes its file and rankN.part, which notes for MANIFEST what is in it; rank 0 puts the
 * notes together. */
#include "checkpoint/checkpoint_write.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/file.h"
#include "base/hash.h"
#include "checkpoint/safetensors.h"

enum { CHUNK = 1 << 20 };

/* A file whose bytes are hashed and counted as they are written to f. */
struct sink {
    int fd;
    uint64_t bytes;
    struct xxh hash;
    FILE *f;
};

static ssize_t sink_write(void *cookie, const char *buf, size_t n)
{
    struct sink *s = cookie;
    size_t done = 0;
    while (done < n) {
        ssize_t k = write(s->fd, buf + done, n - done);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return 0; /* an error, to fopencookie; errno says which */
        done += (size_t)k;
    }
    xxh_add(&s->hash, buf, n);
    s->bytes += n;
    return (ssize_t)n;
}

static int sink_open(struct sink *s, const char *path)
{
    memset(s, 0, sizeof *s);
    s->fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (s->fd < 0)
        return err_sys("cannot create '%s'", path);
    int rc = xxh_init(&s->hash);
    if (!rc && !(s->f = fopencookie(s, "w", (cookie_io_functions_t){ .write = sink_write })))
        rc = err_sys("cannot write '%s'", path);
    if (!rc)
        setvbuf(s->f, NULL, _IOFBF, 1 << 20);
    return rc;
}

/* Flushes and syncs; hash is 33 bytes. */
static int sink_finish(struct sink *s, const char *path, char *hash)
{
    int rc = 0;
    if (fflush(s->f) || fsync(s->fd))
        rc = err_sys("cannot write '%s'", path);
    xxh_hex(&s->hash, hash);
    return rc;
}

static void sink_close(struct sink *s)
{
    if (s->f)
        fclose(s->f);
    if (s->fd >= 0)
        close(s->fd);
    xxh_release(&s->hash);
}

/* Writes and syncs a whole file; hash is 33 bytes. */
static int write_text(const char *dir, const char *name, const char *text, size_t n, char *hash)
{
    struct sink s = { .fd = -1 };
    char *path = path_join(dir, name);
    int rc = path ? sink_open(&s, path) : err_memory();
    if (!rc && n && fwrite(text, 1, n, s.f) != n)
        rc = err_sys("cannot write '%s'", path);
    if (!rc)
        rc = sink_finish(&s, path, hash);
    sink_close(&s);
    free(path);
    return rc;
}

/* The tensor that t is a piece of; name has room for 256. */
static struct ckpt_entry entry_of(const struct ckpt_tensor *t, char *name)
{
    struct ckpt_entry e = {
        .name = name, .dtype = t->dtype, .rank = t->rank, .unit_bytes = dtype_size(t->dtype)
    };
    snprintf(name, 256, "%s.%s", t->param, t->kind);
    memcpy(e.shape, t->shape, sizeof e.shape);
    for (int i = 1; i < t->rank; i++)
        e.unit_bytes *= (uint64_t)t->shape[i];
    return e;
}

static int declare(struct st_writer *w, const struct ckpt_tensor *t)
{
    uint64_t shape[CKPT_MAX_RANK];
    char name[256], rows[96];
    assert(t->rank >= 1 && t->rank <= CKPT_MAX_RANK);
    assert(t->begin >= 0 && t->count >= 0 && t->begin + t->count <= t->shape[0]);
    for (int i = 0; i < t->rank; i++)
        shape[i] = (uint64_t)t->shape[i];
    shape[0] = (uint64_t)t->count;
    snprintf(name, sizeof name, "%s.%s", t->param, t->kind);
    int rc = st_declare(w, name, t->dtype, t->rank, shape);
    if (rc)
        return rc;
    snprintf(name, sizeof name, "units.%s.%s", t->param, t->kind);
    snprintf(rows, sizeof rows, "%" PRId64 ":%" PRId64 " of %" PRId64, t->begin,
             t->begin + t->count, t->shape[0]);
    return st_note(w, name, rows);
}

/* Larger elements first, so that each tensor lies aligned in the file; then by name. */
static int by_size_and_name(const void *a, const void *b)
{
    const struct ckpt_tensor *x = *(const struct ckpt_tensor *const *)a;
    const struct ckpt_tensor *y = *(const struct ckpt_tensor *const *)b;
    size_t m = dtype_size(x->dtype), n = dtype_size(y->dtype);
    if (m != n)
        return m > n ? -1 : 1;
    int d = strcmp(x->param, y->param);
    return d ? d : strcmp(x->kind, y->kind);
}

/* One order, so that the same state makes the same bytes. Empty pieces are left out. */
static int file_order(const struct ckpt_tensor *t, int n, const struct ckpt_tensor **order)
{
    int k = 0;
    for (int i = 0; i < n; i++)
        if (t[i].count > 0)
            order[k++] = &t[i];
    qsort(order, (size_t)k, sizeof *order, by_size_and_name);
    return k;
}

static int write_data(struct st_writer *w, const struct ckpt_tensor *t, uint64_t bytes,
                      char hash[33])
{
    struct xxh x;
    if (t->data) {
        xxh_hex_of(t->data, bytes, hash);
        return st_write(w, t->data, bytes);
    }
    int rc = xxh_init(&x);
    char *buf = malloc(CHUNK);
    if (!rc && !buf)
        rc = err_memory();
    for (uint64_t n; !rc && bytes > 0; bytes -= n) {
        n = bytes < CHUNK ? bytes : CHUNK;
        if ((rc = t->fill(t->arg, buf, n)))
            break;
        xxh_add(&x, buf, n);
        rc = st_write(w, buf, n);
    }
    if (!rc)
        xxh_hex(&x, hash);
    xxh_release(&x);
    free(buf);
    return rc;
}

/* The data of t, and the note of where they are in file. */
static int write_piece(struct sink *s, struct st_writer *w, const struct ckpt_tensor *t,
                       const char *path, const char *file, FILE *notes)
{
    char name[256];
    const struct ckpt_entry e = entry_of(t, name);
    if (fflush(s->f))
        return err_sys("cannot write '%s'", path);
    struct ckpt_piece p = { .begin = t->begin, .count = t->count, .at = s->bytes };
    int rc = write_data(w, t, e.unit_bytes * (uint64_t)t->count, p.hash);
    if (!rc)
        ckpt_manifest_note_piece(notes, &e, &p, file);
    return rc;
}

static int write_tensors(struct sink *s, const char *path, const char *file, int64_t step, int rank,
                         const struct ckpt_tensor **t, int n, int level, FILE *notes)
{
    struct st_writer *w;
    char text[24];
    int rc = st_writer_new(&w, s->f, path, level);
    if (rc)
        return rc;
    rc = st_note(w, "format", "gpt checkpoint 1");
    snprintf(text, sizeof text, "%" PRId64, step);
    rc = rc ? rc : st_note(w, "step", text);
    snprintf(text, sizeof text, "%d", rank);
    rc = rc ? rc : st_note(w, "rank", text);
    for (int i = 0; !rc && i < n; i++)
        rc = declare(w, t[i]);
    if (!rc)
        rc = st_write(w, NULL, 0); /* the header */
    for (int i = 0; !rc && i < n; i++)
        rc = write_piece(s, w, t[i], path, file, notes);
    if (!rc)
        rc = st_writer_finish(w);
    st_writer_free(w);
    return rc;
}

int ckpt_write_rank(const char *root, int64_t step, int rank, const struct ckpt_tensor *t, int n,
                    int level)
{
    struct sink s = { .fd = -1 };
    char file[64], part[64], *text = NULL;
    struct ckpt_file note = { .name = file };
    size_t bytes = 0;
    snprintf(file, sizeof file, "rank%d.safetensors%s", rank, level ? ".zst" : "");
    snprintf(part, sizeof part, "rank%d.part", rank);
    char *tmp = ckpt_temporary(root, step), *path = tmp ? path_join(tmp, file) : NULL;
    FILE *notes = open_memstream(&text, &bytes);
    const struct ckpt_tensor **order = malloc(((size_t)n + 1) * sizeof *order);
    int rc = path && notes && order ? sink_open(&s, path) : err_memory();
    if (!rc)
        rc =
            write_tensors(&s, path, file, step, rank, order, file_order(t, n, order), level, notes);
    if (!rc && !(rc = sink_finish(&s, path, note.hash))) {
        note.bytes = s.bytes;
        ckpt_manifest_note_file(notes, &note);
    }
    sink_close(&s);
    if (notes && fclose(notes) && !rc)
        rc = err_memory();
    if (!rc)
        rc = write_text(tmp, part, text, bytes, note.hash);
    free(order);
    free(text);
    free(path);
    free(tmp);
    return rc;
}

/* --- the MANIFEST --- */

/* The notes of all ranks, one after the other; their files are removed. */
static int take_notes(const char *tmp, int ranks, char **notes)
{
    size_t n, all;
    FILE *f = open_memstream(notes, &all);
    int rc = f ? 0 : err_memory();
    for (int r = 0; !rc && r < ranks; r++) {
        char name[64], *text = NULL;
        snprintf(name, sizeof name, "rank%d.part", r);
        char *path = path_join(tmp, name);
        rc = path ? file_read(path, 0, &text, &n) : err_memory();
        if (!rc)
            fwrite(text, 1, n, f);
        if (!rc && unlink(path))
            rc = err_sys("cannot remove '%s'", path);
        free(text);
        free(path);
    }
    if (f && fclose(f) && !rc)
        rc = err_memory();
    return rc;
}

static int write_manifest(const char *tmp, const struct ckpt_info *info)
{
    char *notes = NULL, *text = NULL, hash[33];
    size_t n;
    int rc = take_notes(tmp, info->ranks, &notes);
    if (!rc)
        rc = write_text(tmp, "recipe.txt", info->recipe, strlen(info->recipe), hash);
    if (!rc)
        rc = ckpt_manifest_format(info, hash, notes, tmp, &text, &n);
    if (!rc)
        rc = write_text(tmp, "MANIFEST", text, n, hash);
    free(notes);
    free(text);
    return rc;
}

int ckpt_commit(const char *root, const struct ckpt_info *info)
{
    char *tmp = ckpt_temporary(root, info->step);
    int rc = tmp ? write_manifest(tmp, info) : GPT_SYSTEM;
    if (!rc)
        rc = ckpt_publish(root, info->step);
    if (rc)
        ckpt_abort(root, info->step);
    free(tmp);
    return rc;
}
