/* Files are hashed as they are stored and pieces as they are decompressed; both before use. */
#include "checkpoint/checkpoint.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/file.h"
#include "base/num.h"
#include "base/pool.h"
#include "base/zio.h"
#include "checkpoint/checkpoint_dir.h"
#include "checkpoint/safetensors.h"

#define MANIFEST_MAX (256u << 20)
#define CHUNK (1u << 20)

struct ckpt {
    char *dir;
    struct ckpt_manifest manifest;
    bool *checked; /* files whose hash was found right; under lock */
    pthread_mutex_t lock;
};

/* --- opening --- */

/* The newest checkpoint of a directory is found by name. */
static int check_name(const struct ckpt *c)
{
    int64_t named = ckpt_named_step(c->dir), step = c->manifest.info.step;
    if (named < 0 || named == step)
        return 0;
    return err_set(GPT_INPUT, "%s: named as step %" PRId64 ", but MANIFEST says step %" PRId64,
                   c->dir, named, step);
}

static int check_sizes(struct ckpt *c)
{
    for (int i = 0; i < c->manifest.nfiles; i++) {
        const struct ckpt_file *f = &c->manifest.files[i];
        struct stat st;
        char *path = path_join(c->dir, f->name);
        int rc = path ? 0 : err_memory();
        if (!rc && stat(path, &st))
            rc = errno != ENOENT
                     ? err_sys("cannot read '%s'", path)
                     : err_set(GPT_INPUT, "%s: MANIFEST lists it, but it is missing", path);
        else if (!rc && (uint64_t)st.st_size != f->bytes)
            rc = err_set(GPT_INPUT, "%s: expected %" PRIu64 " bytes, found %lld", path, f->bytes,
                         (long long)st.st_size);
        free(path);
        if (rc)
            return rc;
    }
    return 0;
}

static int read_manifest(struct ckpt *c)
{
    struct stat st;
    char *text = NULL, *path = path_join(c->dir, "MANIFEST");
    size_t n;
    if (!path)
        return err_memory();
    int rc = 0;
    if (stat(c->dir, &st))
        rc = err_sys("cannot open '%s'", c->dir);
    else if (stat(path, &st) && errno == ENOENT)
        rc = err_set(GPT_INPUT, "%s: has no MANIFEST: not a complete checkpoint", c->dir);
    else
        rc = file_read(path, MANIFEST_MAX, &text, &n);
    if (!rc)
        rc = ckpt_manifest_parse(&c->manifest, path, text, n);
    free(text);
    free(path);
    return rc;
}

static int read_recipe(struct ckpt *c)
{
    const struct ckpt_file *f = NULL;
    char *text = NULL, hash[33];
    size_t n;
    const struct ckpt_manifest *m = &c->manifest;
    for (int i = 0; i < m->nfiles; i++)
        if (!strcmp(m->files[i].hash, m->recipe_hash) && !strcmp(m->files[i].name, "recipe.txt"))
            f = &m->files[i];
    if (!f)
        return err_set(GPT_INPUT, "%s/MANIFEST: expected the recipe in recipe.txt", c->dir);
    char *path = path_join(c->dir, f->name);
    int rc = path ? file_read(path, f->bytes, &text, &n) : err_memory();
    if (!rc) {
        xxh_hex_of(text, n, hash);
        if (strcmp(hash, f->hash))
            rc = err_set(GPT_INPUT, "%s: expected XXH3 %s, found %s: it is damaged", path, f->hash,
                         hash);
    }
    c->manifest.info.recipe = text;
    free(path);
    return rc;
}

int ckpt_open(struct ckpt **out, const char *dir)
{
    struct ckpt *c = calloc(1, sizeof *c);
    *out = NULL;
    if (!c || !(c->dir = strdup(dir))) {
        free(c);
        return err_memory();
    }
    pthread_mutex_init(&c->lock, NULL);
    int rc = read_manifest(c);
    if (!rc)
        rc = check_name(c);
    if (!rc)
        rc = check_sizes(c);
    if (!rc)
        rc = read_recipe(c);
    if (!rc && !(c->checked = calloc((size_t)c->manifest.nfiles + 1, sizeof *c->checked)))
        rc = err_memory();
    if (rc)
        ckpt_close(c);
    else
        *out = c;
    return rc;
}

void ckpt_close(struct ckpt *c)
{
    if (!c)
        return;
    ckpt_manifest_release(&c->manifest);
    free(c->checked);
    free(c->dir);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

const char *ckpt_dir(const struct ckpt *c) { return c->dir; }
const struct ckpt_info *ckpt_info(const struct ckpt *c) { return &c->manifest.info; }
const char *ckpt_hash(const struct ckpt *c) { return c->manifest.hash; }
const char *ckpt_recipe_hash(const struct ckpt *c) { return c->manifest.recipe_hash; }

const char *ckpt_state(const struct ckpt *c, const char *key)
{
    return ckpt_info_state(&c->manifest.info, key);
}

int ckpt_state_i64(const struct ckpt *c, const char *key, int64_t *out)
{
    const char *s = ckpt_state(c, key);
    if (!s)
        return err_set(GPT_INPUT, "%s/MANIFEST: expected a line 'state %s', found none", c->dir,
                       key);
    if (num_i64(s, key, 0, INT64_MAX, out))
        return err_set(GPT_INPUT,
                       "%s/MANIFEST: state %s: expected a whole number from 0 on, found '%s'",
                       c->dir, key, s);
    return 0;
}

int ckpt_entries(const struct ckpt *c, const struct ckpt_entry **e)
{
    *e = c->manifest.entries;
    return c->manifest.nentries;
}

int ckpt_files(const struct ckpt *c, const struct ckpt_file **f)
{
    *f = c->manifest.files;
    return c->manifest.nfiles;
}

const struct ckpt_entry *ckpt_find(const struct ckpt *c, const char *name)
{
    return ckpt_manifest_find(&c->manifest, name);
}

/* --- a piece as a stream --- */

/* Puts the tensor before the present message. */
static int stream_error(const struct ckpt_stream *s)
{
    return err_prefix("tensor '%s', units %" PRId64 ":%" PRId64, s->e->name, s->piece->begin,
                      s->piece->begin + s->piece->count);
}

int ckpt_stream_open(struct ckpt_stream *s, const struct ckpt *c, const struct ckpt_entry *e, int i)
{
    memset(s, 0, sizeof *s);
    s->fd = -1;
    s->e = e;
    s->piece = &e->pieces[i];
    s->left = e->unit_bytes * (uint64_t)s->piece->count;
    s->at = s->piece->at;
    const char *name = c->manifest.files[s->piece->file].name;
    unsigned char b[9];
    ssize_t n = 0;
    int rc = 0;
    if (!(s->path = path_join(c->dir, name)))
        return err_memory();
    if ((rc = xxh_init(&s->hash)))
        return rc;
    if ((s->fd = open(s->path, O_RDONLY | O_CLOEXEC)) < 0)
        rc = err_sys("cannot open '%s'", s->path);
    else if ((n = pread(s->fd, b, sizeof b, 0)) < 0)
        rc = err_sys("cannot read '%s'", s->path);
    else if (st_compressed(b, (size_t)n))
        rc = zreader_open_at(&s->z, s->path, s->at);
    return rc ? stream_error(s) : 0;
}

static int read_plain(struct ckpt_stream *s, void *dst, size_t n)
{
    for (size_t done = 0; done < n;) {
        ssize_t k = pread(s->fd, (char *)dst + done, n - done, (off_t)s->at);
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return err_sys("cannot read '%s'", s->path);
        if (k == 0)
            return err_set(GPT_INPUT, "%s: the file ends at offset %" PRIu64, s->path, s->at);
        done += (size_t)k;
        s->at += (uint64_t)k;
    }
    return 0;
}

int ckpt_stream_read(struct ckpt_stream *s, void *dst, size_t n)
{
    char found[33];
    size_t got = n;
    int rc;
    assert(n <= s->left);
    rc = s->z ? zreader_read(s->z, dst, n, &got) : read_plain(s, dst, n);
    if (!rc && got < n)
        rc = err_set(GPT_INPUT, "%s: the file ends in it", s->path);
    if (rc)
        return stream_error(s);
    xxh_add(&s->hash, dst, n);
    s->left -= n;
    if (s->left || !n)
        return 0;
    xxh_hex(&s->hash, found);
    if (strcmp(found, s->piece->hash)) {
        err_set(GPT_INPUT, "%s: offset %" PRIu64 ": expected data of XXH3 %s, found %s", s->path,
                s->piece->at, s->piece->hash, found);
        return stream_error(s);
    }
    return 0;
}

void ckpt_stream_close(struct ckpt_stream *s)
{
    zreader_close(s->z);
    if (s->fd >= 0)
        close(s->fd);
    xxh_release(&s->hash);
    free(s->path);
}

/* --- loading and checking --- */

struct task {
    const struct ckpt_entry *e;
    int piece;
};
struct job {
    const struct ckpt *c;
    const struct ckpt_want *want;
    int nwant;
    struct task *tasks;
    int ntasks;
    int *files, nfiles; /* those that tasks touch; NULL: all */
};

/* Copies bytes [from, from + n) of the whole tensor to the wants that they are part of. */
static void deliver(const struct job *j, const struct ckpt_entry *e, uint64_t from,
                    const unsigned char *data, size_t n)
{
    for (int i = 0; i < j->nwant; i++) {
        const struct ckpt_want *w = &j->want[i];
        if (strcmp(w->name, e->name))
            continue;
        uint64_t lo = e->unit_bytes * (uint64_t)w->begin;
        uint64_t hi = lo + e->unit_bytes * (uint64_t)w->count;
        uint64_t a = from > lo ? from : lo, b = from + n < hi ? from + n : hi;
        if (a < b)
            memcpy((char *)w->dst + (a - lo), data + (a - from), b - a);
    }
}

static int read_task(const struct job *j, const struct task *t)
{
    struct ckpt_stream s;
    uint64_t at = t->e->unit_bytes * (uint64_t)t->e->pieces[t->piece].begin;
    unsigned char *buf = malloc(CHUNK);
    if (!buf)
        return err_memory();
    int rc = ckpt_stream_open(&s, j->c, t->e, t->piece);
    while (!rc && s.left) {
        size_t n = s.left < CHUNK ? (size_t)s.left : CHUNK;
        if (!(rc = ckpt_stream_read(&s, buf, n)))
            deliver(j, t->e, at, buf, n);
        at += n;
    }
    ckpt_stream_close(&s);
    free(buf);
    return rc;
}

static int do_task(void *arg, int i)
{
    const struct job *j = arg;
    return read_task(j, &j->tasks[i]);
}

int ckpt_file_hash(const struct ckpt *c, int file, char hash[33])
{
    struct xxh x;
    unsigned char *buf = malloc(CHUNK);
    char *path = path_join(c->dir, c->manifest.files[file].name);
    int fd = -1, rc = 0;
    ssize_t n;
    if (!buf || !path)
        rc = err_memory();
    else if ((fd = open(path, O_RDONLY | O_CLOEXEC)) < 0)
        rc = err_sys("cannot open '%s'", path);
    else if (!(rc = xxh_init(&x))) {
        while ((n = read(fd, buf, CHUNK)) > 0 || (n < 0 && errno == EINTR))
            if (n > 0)
                xxh_add(&x, buf, (size_t)n);
        if (n < 0)
            rc = err_sys("cannot read '%s'", path);
        else
            xxh_hex(&x, hash);
        xxh_release(&x);
    }
    if (fd >= 0)
        close(fd);
    free(path);
    free(buf);
    return rc;
}

/* Names the damaged tensor of a file whose hash is wrong, and the offset. */
static int locate(const struct ckpt *c, int file, const char *found)
{
    struct job j = { .c = c };
    const struct ckpt_file *f = &c->manifest.files[file];
    int rc = 0;
    for (int i = 0; !rc && i < c->manifest.nentries; i++)
        for (int k = 0; !rc && k < c->manifest.entries[i].npieces; k++)
            if (c->manifest.entries[i].pieces[k].file == file)
                rc = read_task(&j, &(struct task){ &c->manifest.entries[i], k });
    if (rc == GPT_INPUT)
        return rc;
    char *path = path_join(c->dir, f->name);
    rc = path ? err_set(GPT_INPUT,
                        "%s: expected XXH3 %s, found %s: it is damaged, in no tensor's data", path,
                        f->hash, found)
              : err_memory();
    free(path);
    return rc;
}

/* Checks the hash of a file that has not been checked yet. */
static int check_file(struct ckpt *c, int file)
{
    char found[33];
    pthread_mutex_lock(&c->lock);
    bool done = c->checked[file];
    pthread_mutex_unlock(&c->lock);
    if (done)
        return 0;
    int rc = ckpt_file_hash(c, file, found);
    if (!rc && strcmp(found, c->manifest.files[file].hash))
        rc = locate(c, file, found);
    if (!rc) {
        pthread_mutex_lock(&c->lock);
        c->checked[file] = true;
        pthread_mutex_unlock(&c->lock);
    }
    return rc;
}

static int do_file(void *arg, int i)
{
    const struct job *j = arg;
    return check_file((struct ckpt *)j->c, j->files ? j->files[i] : i); /* sets `checked` */
}

static bool wanted(const struct job *j, const struct ckpt_entry *e, const struct ckpt_piece *p)
{
    for (int i = 0; i < j->nwant; i++) {
        const struct ckpt_want *w = &j->want[i];
        if (!strcmp(w->name, e->name) && w->begin < p->begin + p->count &&
            p->begin < w->begin + w->count)
            return true;
    }
    return false;
}

/* Compares by file and offset, so that a disk is read forward. */
static int by_offset(const void *a, const void *b)
{
    const struct task *x = a, *y = b;
    const struct ckpt_piece *p = &x->e->pieces[x->piece], *q = &y->e->pieces[y->piece];
    if (p->file != q->file)
        return p->file < q->file ? -1 : 1;
    return p->at < q->at ? -1 : p->at > q->at;
}

static int collect(struct job *j)
{
    const struct ckpt *c = j->c;
    int room = 0;
    for (int i = 0; i < c->manifest.nentries; i++)
        room += c->manifest.entries[i].npieces;
    j->tasks = malloc(((size_t)room + 1) * sizeof *j->tasks);
    j->files = malloc(((size_t)c->manifest.nfiles + 1) * sizeof *j->files);
    bool *used = calloc((size_t)c->manifest.nfiles + 1, sizeof *used);
    if (!j->tasks || !j->files || !used) {
        free(used);
        return err_memory();
    }
    for (int i = 0; i < c->manifest.nentries; i++)
        for (int k = 0; k < c->manifest.entries[i].npieces; k++) {
            const struct ckpt_piece *p = &c->manifest.entries[i].pieces[k];
            if (!wanted(j, &c->manifest.entries[i], p))
                continue;
            j->tasks[j->ntasks++] = (struct task){ &c->manifest.entries[i], k };
            used[p->file] = true;
        }
    qsort(j->tasks, (size_t)j->ntasks, sizeof *j->tasks, by_offset);
    for (int i = 0; i < c->manifest.nfiles; i++)
        if (used[i])
            j->files[j->nfiles++] = i;
    free(used);
    return 0;
}

static int check_want(const struct ckpt *c, const struct ckpt_want *w)
{
    const struct ckpt_entry *e = ckpt_find(c, w->name);
    if (!e)
        return err_set(GPT_INPUT, "%s: expected a tensor '%s', found none", c->dir, w->name);
    if (e->dtype != w->dtype)
        return err_set(GPT_INPUT, "%s: tensor '%s': expected %s, found %s", c->dir, w->name,
                       dtype_name(w->dtype), dtype_name(e->dtype));
    if (w->begin < 0 || w->count < 0 || w->begin > e->shape[0] - w->count)
        return err_set(GPT_INPUT,
                       "%s: tensor '%s': expected units %" PRId64 ":%" PRId64 ", found 0:%" PRId64,
                       c->dir, w->name, w->begin, w->begin + w->count, e->shape[0]);
    return 0;
}

int ckpt_load(const struct ckpt *c, const struct ckpt_want *w, int n, int threads)
{
    struct job j = { .c = c, .want = w, .nwant = n };
    int rc = 0;
    for (int i = 0; !rc && i < n; i++)
        rc = check_want(c, &w[i]);
    if (!rc)
        rc = collect(&j);
    if (!rc)
        rc = parallel_for(j.nfiles, threads, do_file, &j);
    if (!rc)
        rc = parallel_for(j.ntasks, threads, do_task, &j);
    free(j.tasks);
    free(j.files);
    return rc;
}

int ckpt_verify_files(const struct ckpt *c, int threads)
{
    return parallel_for(c->manifest.nfiles, threads, do_file, &(struct job){ .c = c });
}
