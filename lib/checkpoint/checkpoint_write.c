/* Writing a checkpoint: each rank its file and a note of it, rank 0 the MANIFEST and the rename. */
#include "checkpoint/checkpoint_impl.h"

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

/* A file that hashes and counts what goes into it, behind a FILE. */
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
            return 0; /* fopencookie's sign of an error; errno stands */
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

/* Flushes, syncs and closes; hash is 33 bytes. */
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

/* Writes text whole and synced. */
static int write_text(const char *dir, const char *name, const char *text, size_t n, char *hash)
{
    struct sink s = { .fd = -1 };
    char *path = path_join(dir, name);
    int rc = path ? sink_open(&s, path) : err_set(GPT_SYSTEM, "out of memory");
    if (!rc && n && fwrite(text, 1, n, s.f) != n)
        rc = err_sys("cannot write '%s'", path);
    if (!rc)
        rc = sink_finish(&s, path, hash);
    if (path)
        sink_close(&s);
    free(path);
    return rc;
}

/* The one that this process writes: begin, commit and abort are rank 0's, one after the other. */
static struct temporary_dir writing;

int ckpt_begin(const char *root, int64_t step)
{
    int rc = file_mkdirs(root);
    if (rc || (rc = ckpt_take_hold(root)))
        return rc;
    char *tmp = ckpt_name(root, ".", step, ".tmp");
    rc = tmp ? ckpt_remove_leftovers(root, true) : GPT_SYSTEM;
    temporary_dir_keep(&writing);
    if (!rc)
        rc = temporary_dir_make(&writing, tmp);
    if (rc)
        ckpt_let_go(root);
    free(tmp);
    return rc;
}

void ckpt_abort(const char *root, int64_t step)
{
    /* The message that led here is the one to keep. */
    int code = err_code();
    char *said = strdup(err_message()), *tmp = ckpt_name(root, ".", step, ".tmp");
    if (ckpt_let_go(root)) {
        if (tmp && ckpt_remove_tree(tmp))
            err_clear();
        temporary_dir_keep(&writing);
    }
    if (said && code)
        err_set(code, "%s", said);
    free(said);
    free(tmp);
}

static uint64_t unit_bytes(const struct ckpt_tensor *t)
{
    uint64_t n = dtype_size(t->dtype);
    for (int i = 1; i < t->rank; i++)
        n *= (uint64_t)t->shape[i];
    return n;
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

/* The line of a piece in MANIFEST. */
static void note_piece(FILE *part, const struct ckpt_tensor *t, const char *file, uint64_t at,
                       const char *hash)
{
    fprintf(part, "tensor %s.%s %s ", t->param, t->kind, dtype_name(t->dtype));
    for (int i = 0; i < t->rank; i++)
        fprintf(part, "%s%" PRId64, i ? "x" : "", t->shape[i]);
    fprintf(part, " %" PRId64 " %" PRId64 " %s %" PRIu64 " %s\n", t->begin, t->count, file, at,
            hash);
}

static int write_data(struct st_writer *w, const struct ckpt_tensor *t, char hash[33])
{
    uint64_t bytes = unit_bytes(t) * (uint64_t)t->count;
    struct xxh x;
    if (t->data) {
        xxh_hex_of(t->data, bytes, hash);
        return st_write(w, t->data, bytes);
    }
    int rc = xxh_init(&x);
    char *buf = malloc(CHUNK);
    if (!rc && !buf)
        rc = err_set(GPT_SYSTEM, "out of memory");
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

static int write_tensors(struct sink *s, const char *path, const char *file, int64_t step, int rank,
                         const struct ckpt_tensor **t, int n, int level, FILE *part)
{
    struct st_writer *w;
    char text[33];
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
    for (int i = 0; !rc && i < n; i++) {
        if (fflush(s->f)) {
            rc = err_sys("cannot write '%s'", path);
            break;
        }
        uint64_t at = s->bytes;
        if (!(rc = write_data(w, t[i], text)))
            note_piece(part, t[i], file, at, text);
    }
    if (!rc)
        rc = st_writer_finish(w);
    st_writer_free(w);
    return rc;
}

int ckpt_write_rank(const char *root, int64_t step, int rank, const struct ckpt_tensor *t, int n,
                    int level)
{
    struct sink s = { .fd = -1 };
    char file[64], part_name[64], hash[33], *text = NULL;
    size_t bytes = 0;
    snprintf(file, sizeof file, "rank%d.safetensors%s", rank, level ? ".zst" : "");
    snprintf(part_name, sizeof part_name, "rank%d.part", rank);
    char *tmp = ckpt_name(root, ".", step, ".tmp"), *path = tmp ? path_join(tmp, file) : NULL;
    FILE *part = open_memstream(&text, &bytes);
    const struct ckpt_tensor **order = malloc(((size_t)n + 1) * sizeof *order);
    int rc = path && part && order ? sink_open(&s, path) : err_set(GPT_SYSTEM, "out of memory");
    if (!rc)
        rc = write_tensors(&s, path, file, step, rank, order, file_order(t, n, order), level, part);
    if (!rc)
        rc = sink_finish(&s, path, hash);
    if (!rc)
        fprintf(part, "file %s %" PRIu64 " %s\n", file, s.bytes, hash);
    if (part && fclose(part) && !rc)
        rc = err_set(GPT_SYSTEM, "out of memory");
    if (path)
        sink_close(&s);
    if (!rc)
        rc = write_text(tmp, part_name, text, bytes, hash);
    free(order);
    free(text);
    free(path);
    free(tmp);
    return rc;
}

/* --- the MANIFEST --- */

struct lines {
    char **v;
    size_t n, room;
};

static int add_line(struct lines *l, const char *s)
{
    if (l->n == l->room) {
        char **p = realloc(l->v, (l->room = l->room ? 2 * l->room : 64) * sizeof *p);
        if (!p)
            return err_set(GPT_SYSTEM, "out of memory");
        l->v = p;
    }
    l->v[l->n] = strdup(s);
    return l->v[l->n++] ? 0 : err_set(GPT_SYSTEM, "out of memory");
}

/* By name, then by first unit: fields 2 and 5 of "tensor NAME DTYPE SHAPE BEGIN ...". */
static int by_piece(const void *a, const void *b)
{
    char na[256], nb[256];
    long long x = 0, y = 0;
    sscanf(*(char *const *)a, "tensor %255s %*s %*s %lld", na, &x);
    sscanf(*(char *const *)b, "tensor %255s %*s %*s %lld", nb, &y);
    int d = strcmp(na, nb);
    return d ? d : x < y ? -1 : x > y;
}

/* Collects rankN.part of all ranks and removes them. */
static int read_parts(const char *tmp, int ranks, struct lines *files, struct lines *pieces)
{
    int rc = 0;
    for (int r = 0; !rc && r < ranks; r++) {
        char name[64], *text = NULL, *save;
        snprintf(name, sizeof name, "rank%d.part", r);
        char *path = path_join(tmp, name);
        if (!path)
            return err_set(GPT_SYSTEM, "out of memory");
        rc = file_read(path, 0, &text, &(size_t){ 0 });
        for (char *s = rc ? NULL : strtok_r(text, "\n", &save); !rc && s;
             s = strtok_r(NULL, "\n", &save))
            rc = add_line(strncmp(s, "file ", 5) ? pieces : files, s);
        if (!rc && unlink(path))
            rc = err_sys("cannot remove '%s'", path);
        free(text);
        free(path);
    }
    if (!rc)
        qsort(pieces->v, pieces->n, sizeof *pieces->v, by_piece);
    return rc;
}

static void free_lines(struct lines *l)
{
    for (size_t i = 0; i < l->n; i++)
        free(l->v[i]);
    free(l->v);
}

static int compose(const char *tmp, const struct ckpt_info *info, FILE *f)
{
    struct lines files = { 0 }, pieces = { 0 };
    char hash[33];
    size_t n = strlen(info->recipe);
    int rc = read_parts(tmp, info->ranks, &files, &pieces);
    if (!rc)
        rc = write_text(tmp, "recipe.txt", info->recipe, n, hash);
    if (!rc) {
        fprintf(f, "gpt checkpoint %d\ntool %s\nstep %" PRId64 "\ntokens %" PRId64 "\nranks %d\n",
                CKPT_FORMAT, info->tool, info->step, info->tokens, info->ranks);
        for (int i = 0; i < info->nstate; i++)
            fprintf(f, "state %s %s\n", info->state[i].key, info->state[i].value);
        fprintf(f, "recipe recipe.txt %zu %s\n", n, hash);
        for (size_t i = 0; i < files.n; i++)
            fprintf(f, "%s\n", files.v[i]);
        for (size_t i = 0; i < pieces.n; i++)
            fprintf(f, "%s\n", pieces.v[i]);
    }
    free_lines(&files);
    free_lines(&pieces);
    return rc;
}

/* What is written must be what is read: MANIFEST passes the reader's checks first. */
static int check_manifest(const char *tmp, const char *text, size_t n)
{
    struct ckpt c = { 0 };
    char *copy = malloc(n + 1);
    if (!copy)
        return err_set(GPT_SYSTEM, "out of memory");
    memcpy(copy, text, n);
    copy[n] = 0;
    int rc = ckpt_parse_manifest(&c, tmp, copy, n);
    free(copy);
    ckpt_release(&c);
    return rc;
}

static int write_manifest(const char *tmp, const struct ckpt_info *info)
{
    char *text = NULL, hash[33];
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    int rc = f ? compose(tmp, info, f) : err_set(GPT_SYSTEM, "out of memory");
    if (f && !rc) {
        fflush(f);
        xxh_hex_of(text, n, hash);
        fprintf(f, "end %s\n", hash);
    }
    if (f && fclose(f) && !rc)
        rc = err_set(GPT_SYSTEM, "out of memory");
    if (!rc)
        rc = check_manifest(tmp, text, n);
    if (!rc)
        rc = write_text(tmp, "MANIFEST", text, n, hash);
    free(text);
    return rc;
}

/* The new directory takes the name; one that had it goes, in one step where the file system can
 * exchange names. Where it cannot, the older one is for a moment found as .old (ckpt_latest). Names
 * are synced before files are removed, so that no power cut brings back an emptied directory. */
static int take_name(const char *root, int64_t step, const char *tmp)
{
    char *dir = ckpt_path(root, step), *old = ckpt_name(root, ".", step, ".old");
    const char *gone = NULL;
    int rc = dir && old ? 0 : GPT_SYSTEM;
    if (!rc && rename(tmp, dir)) {
        if (errno != EEXIST && errno != ENOTEMPTY) {
            rc = err_sys("cannot rename '%s' to '%s'", tmp, dir);
        } else if (!renameat2(AT_FDCWD, tmp, AT_FDCWD, dir, RENAME_EXCHANGE)) {
            gone = tmp;
        } else if (rename(dir, old)) {
            rc = err_sys("cannot rename '%s' to '%s'", dir, old);
        } else if (rename(tmp, dir)) {
            rc = err_sys("cannot rename '%s' to '%s'", tmp, dir);
            (void)!rename(old, dir);
        } else {
            gone = old;
        }
    }
    if (!rc)
        rc = file_sync_dir(root);
    if (!rc && gone)
        rc = ckpt_remove_tree(gone);
    free(dir);
    free(old);
    return rc;
}

int ckpt_commit(const char *root, const struct ckpt_info *info)
{
    char *tmp = ckpt_name(root, ".", info->step, ".tmp");
    int rc = tmp ? write_manifest(tmp, info) : GPT_SYSTEM;
    if (!rc)
        rc = file_sync_dir(tmp);
    if (!rc)
        rc = take_name(root, info->step, tmp);
    if (rc)
        ckpt_abort(root, info->step);
    else
        ckpt_let_go(root);
    temporary_dir_keep(&writing);
    free(tmp);
    return rc;
}
