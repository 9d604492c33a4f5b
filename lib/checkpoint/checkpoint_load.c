/* Loading: files are hashed as they lie, pieces as they come out, both before use. */
#include "checkpoint/checkpoint_impl.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/file.h"
#include "base/parallel.h"

#define CHUNK (1u << 20)

/* --- a piece as a stream --- */

/* Says of which tensor the present message is. */
static int piece_error(const struct piece_reader *p)
{
    return err_prefix("tensor '%s', units %" PRId64 ":%" PRId64, p->e->name, p->piece->begin,
                      p->piece->begin + p->piece->count);
}

int ckpt_piece_open(struct piece_reader *p, const struct ckpt *c, const struct ckpt_entry *e, int i)
{
    memset(p, 0, sizeof *p);
    p->fd = -1;
    p->e = e;
    p->piece = &e->pieces[i];
    p->left = e->unit_bytes * (uint64_t)p->piece->count;
    p->at = p->piece->at;
    const char *name = c->files[p->piece->file].name;
    size_t n = strlen(name);
    int rc = 0;
    if (!(p->path = path_join(c->dir, name)))
        return err_set(GPT_SYSTEM, "out of memory");
    if ((rc = xxh_init(&p->hash)))
        return rc;
    if (n > 4 && !strcmp(name + n - 4, ".zst"))
        rc = zreader_open_at(&p->z, p->path, p->at);
    else if ((p->fd = open(p->path, O_RDONLY | O_CLOEXEC)) < 0)
        rc = err_sys("cannot open '%s'", p->path);
    return rc ? piece_error(p) : 0;
}

static int read_plain(struct piece_reader *p, void *dst, size_t n)
{
    for (size_t done = 0; done < n;) {
        ssize_t k = pread(p->fd, (char *)dst + done, n - done, (off_t)p->at);
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return err_sys("cannot read '%s'", p->path);
        if (k == 0)
            return err_set(GPT_INPUT, "%s: the file ends at offset %" PRIu64, p->path, p->at);
        done += (size_t)k;
        p->at += (uint64_t)k;
    }
    return 0;
}

int ckpt_piece_read(struct piece_reader *p, void *dst, size_t n)
{
    char found[33];
    size_t got = n;
    int rc;
    assert(n <= p->left);
    rc = p->z ? zreader_read(p->z, dst, n, &got) : read_plain(p, dst, n);
    if (!rc && got < n)
        rc = err_set(GPT_INPUT, "%s: the file ends in it", p->path);
    if (rc)
        return piece_error(p);
    xxh_add(&p->hash, dst, n);
    p->left -= n;
    if (p->left || !n)
        return 0;
    xxh_hex(&p->hash, found);
    if (strcmp(found, p->piece->hash)) {
        err_set(GPT_INPUT, "%s: offset %" PRIu64 ": expected data of XXH3 %s, found %s", p->path,
                p->piece->at, p->piece->hash, found);
        return piece_error(p);
    }
    return 0;
}

void ckpt_piece_close(struct piece_reader *p)
{
    zreader_close(p->z);
    if (p->fd >= 0)
        close(p->fd);
    xxh_release(&p->hash);
    free(p->path);
}

/* --- the work: pieces, and what is wanted of them --- */

struct task {
    const struct ckpt_entry *e;
    int piece;
};
struct job {
    const struct ckpt *c;
    const struct ckpt_want *want; /* NULL: only verify */
    int nwant;
    struct task *tasks;
    int ntasks;
    int *files, nfiles; /* those that tasks touch */
};

/* Copies what lies in bytes [from, from + n) of the whole tensor to the wants it is part of. */
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

static int read_task(const struct job *j, const struct task *t, unsigned char *buf)
{
    struct piece_reader p;
    uint64_t at = t->e->unit_bytes * (uint64_t)t->e->pieces[t->piece].begin;
    int rc = ckpt_piece_open(&p, j->c, t->e, t->piece);
    while (!rc && p.left) {
        size_t n = p.left < CHUNK ? (size_t)p.left : CHUNK;
        if (!(rc = ckpt_piece_read(&p, buf, n)))
            deliver(j, t->e, at, buf, n);
        at += n;
    }
    ckpt_piece_close(&p);
    return rc;
}

static int do_task(void *arg, int i)
{
    const struct job *j = arg;
    unsigned char *buf = malloc(CHUNK);
    int rc = buf ? read_task(j, &j->tasks[i], buf) : err_set(GPT_SYSTEM, "out of memory");
    free(buf);
    return rc;
}

int ckpt_hash_file(const char *path, char hash[33])
{
    struct xxh x;
    unsigned char *buf = malloc(CHUNK);
    int fd = open(path, O_RDONLY | O_CLOEXEC), rc = 0;
    ssize_t n;
    if (fd < 0)
        rc = err_sys("cannot open '%s'", path);
    else if (!buf)
        rc = err_set(GPT_SYSTEM, "out of memory");
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
    free(buf);
    return rc;
}

/* A file is damaged: which of its tensors is it? */
static int locate(const struct ckpt *c, int file, const char *path, const char *found)
{
    struct job j = { .c = c };
    unsigned char *buf = malloc(CHUNK);
    int rc = 0;
    for (int i = 0; buf && !rc && i < c->nentries; i++)
        for (int k = 0; !rc && k < c->entries[i].npieces; k++)
            if (c->entries[i].pieces[k].file == file)
                rc = read_task(&j, &(struct task){ &c->entries[i], k }, buf);
    free(buf);
    if (rc == GPT_INPUT)
        return rc;
    return err_set(GPT_INPUT, "%s: expected XXH3 %s, found %s: it is damaged, in no tensor's data",
                   path, c->files[file].hash, found);
}

/* The hash of a file, once for each struct ckpt; a damaged one names the tensor. */
static int check_file(struct ckpt *c, int file)
{
    char found[33];
    pthread_mutex_lock(&c->lock);
    bool done = c->checked[file];
    pthread_mutex_unlock(&c->lock);
    if (done)
        return 0;
    char *path = path_join(c->dir, c->files[file].name);
    int rc = path ? ckpt_hash_file(path, found) : err_set(GPT_SYSTEM, "out of memory");
    if (!rc && strcmp(found, c->files[file].hash))
        rc = locate(c, file, path, found);
    free(path);
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
    return check_file((struct ckpt *)j->c, j->files[i]); /* its lock guards what changes */
}

static bool wanted(const struct job *j, const struct ckpt_entry *e, const struct ckpt_piece *p)
{
    if (!j->want)
        return true;
    for (int i = 0; i < j->nwant; i++) {
        const struct ckpt_want *w = &j->want[i];
        if (!strcmp(w->name, e->name) && w->begin < p->begin + p->count &&
            p->begin < w->begin + w->count)
            return true;
    }
    return false;
}

/* By file and place in it, so that a disk is read forward. */
static int by_place(const void *a, const void *b)
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
    for (int i = 0; i < c->nentries; i++)
        room += c->entries[i].npieces;
    j->tasks = malloc(((size_t)room + 1) * sizeof *j->tasks);
    j->files = malloc(((size_t)c->nfiles + 1) * sizeof *j->files);
    bool *used = calloc((size_t)c->nfiles + 1, sizeof *used);
    if (!j->tasks || !j->files || !used) {
        free(used);
        return err_set(GPT_SYSTEM, "out of memory");
    }
    for (int i = 0; i < c->nentries; i++)
        for (int k = 0; k < c->entries[i].npieces; k++) {
            const struct ckpt_piece *p = &c->entries[i].pieces[k];
            if (!wanted(j, &c->entries[i], p))
                continue;
            j->tasks[j->ntasks++] = (struct task){ &c->entries[i], k };
            used[p->file] = true;
        }
    qsort(j->tasks, (size_t)j->ntasks, sizeof *j->tasks, by_place);
    for (int i = 0; i < c->nfiles; i++)
        if (used[i] || !j->want)
            j->files[j->nfiles++] = i;
    free(used);
    return 0;
}

static int run(struct job *j, int threads)
{
    int rc = collect(j);
    if (!rc)
        rc = parallel_for(j->nfiles, threads, do_file, j);
    if (!rc)
        rc = parallel_for(j->ntasks, threads, do_task, j);
    free(j->tasks);
    free(j->files);
    return rc;
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
    if (n == 0)
        return 0;
    for (int i = 0; i < n; i++) {
        int rc = check_want(c, &w[i]);
        if (rc)
            return rc;
    }
    return run(&j, threads);
}

int ckpt_verify_files(const struct ckpt *c, int threads)
{
    struct job j = { .c = c };
    int rc = collect(&j);
    if (!rc)
        rc = parallel_for(j.nfiles, threads, do_file, &j);
    free(j.tasks);
    free(j.files);
    return rc;
}
