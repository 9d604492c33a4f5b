#include "inspect/verify.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "base/file.h"
#include "checkpoint/checkpoint_impl.h"
#include "base/parallel.h"

enum { CHUNK = 1 << 20 };

struct audit {
    const struct ckpt *c;
    bool full;
    verify_tell_fn *tell;
    void *arg;
    int faults;
    pthread_mutex_t lock;
};

static void fault(struct audit *a, const char *text)
{
    pthread_mutex_lock(&a->lock);
    a->faults++;
    a->tell(a->arg, text);
    pthread_mutex_unlock(&a->lock);
}

/* What is wrong with the data is told and the audit goes on; what is wrong here ends it. */
static int settle(struct audit *a, int rc)
{
    if (rc != GPT_INPUT)
        return rc;
    fault(a, err_message());
    return 0;
}

/* --- finite numbers --- */

static bool is_finite(enum dtype t, const unsigned char *p)
{
    uint32_t w = 0;
    uint64_t d;
    switch (t) {
    case DT_F64: memcpy(&d, p, 8); return (d >> 52 & 0x7ff) != 0x7ff;
    case DT_F32: memcpy(&w, p, 4); return (w & 0x7f800000u) != 0x7f800000u;
    case DT_BF16: memcpy(&w, p, 2); return (w & 0x7f80u) != 0x7f80u;
    case DT_F16: memcpy(&w, p, 2); return (w & 0x7c00u) != 0x7c00u;
    case DT_E4M3: return (*p & 0x7f) != 0x7f;
    case DT_E5M2: return (*p & 0x7c) != 0x7c;
    default: return true;
    }
}

/* Index of the first element that is not finite, or n. */
static uint64_t first_nonfinite(enum dtype t, const unsigned char *p, uint64_t n)
{
    size_t size = dtype_size(t);
    uint64_t i = 0;
    while (i < n && is_finite(t, p + i * size))
        i++;
    return i;
}

static void tell_nonfinite(struct audit *a, const char *file, const char *tensor, uint64_t element,
                           uint64_t offset)
{
    char text[512];
    snprintf(text, sizeof text,
             "%s: tensor '%s': element %" PRIu64 " (byte %" PRIu64 " of its data) is not finite",
             file, tensor, element, offset);
    fault(a, text);
}

/* --- a checkpoint --- */

struct piece_at {
    const struct ckpt_entry *e;
    int piece;
};
struct full_audit {
    struct audit *a;
    int file;
    bool hash_differs;
    struct piece_at *v;
    int n;
};

static int audit_piece(struct full_audit *f, int i)
{
    const struct ckpt_entry *e = f->v[i].e;
    struct piece_reader p;
    size_t size = dtype_size(e->dtype);
    uint64_t at = 0;
    unsigned char *buf = malloc(CHUNK);
    bool finite = true;
    int rc =
        buf ? ckpt_piece_open(&p, f->a->c, e, f->v[i].piece) : err_set(GPT_SYSTEM, "out of memory");
    while (!rc && p.left) {
        size_t n = p.left < CHUNK ? (size_t)p.left : CHUNK;
        rc = ckpt_piece_read(&p, buf, n);
        uint64_t bad = rc ? n / size : first_nonfinite(e->dtype, buf, n / size);
        if (finite && bad < n / size) {
            finite = false;
            tell_nonfinite(f->a, p.path, e->name,
                           (uint64_t)p.piece->begin * (e->unit_bytes / size) + at / size + bad,
                           at + bad * size);
        }
        at += n;
    }
    if (buf)
        ckpt_piece_close(&p);
    free(buf);
    return settle(f->a, rc);
}

/* Task 0 hashes the file as it lies, the others its pieces: together they read a disk once. */
static int audit_task(void *arg, int i)
{
    struct full_audit *f = arg;
    char found[33];
    if (i > 0)
        return audit_piece(f, i - 1);
    char *path = path_join(f->a->c->dir, f->a->c->files[f->file].name);
    int rc = path ? ckpt_hash_file(path, found) : err_set(GPT_SYSTEM, "out of memory");
    f->hash_differs = !rc && strcmp(found, f->a->c->files[f->file].hash);
    free(path);
    return settle(f->a, rc);
}

static int audit_file(struct audit *a, int file)
{
    struct full_audit f = { .a = a, .file = file };
    const struct ckpt_entry *e;
    int n = ckpt_entries(a->c, &e), room = 0, before = a->faults;
    for (int i = 0; i < n; i++)
        room += e[i].npieces;
    if (!(f.v = malloc(((size_t)room + 1) * sizeof *f.v)))
        return err_set(GPT_SYSTEM, "out of memory");
    for (int i = 0; i < n; i++)
        for (int k = 0; k < e[i].npieces; k++)
            if (e[i].pieces[k].file == file)
                f.v[f.n++] = (struct piece_at){ &e[i], k };
    int rc = parallel_for(f.n + 1, 0, audit_task, &f);
    free(f.v);
    if (!rc && f.hash_differs && a->faults == before) {
        char text[512];
        snprintf(text, sizeof text, "%s/%s: its XXH3 is not %s: damaged, in no tensor's data",
                 a->c->dir, a->c->files[file].name, a->c->files[file].hash);
        fault(a, text);
    }
    return rc;
}

/* The header of file i against what MANIFEST says lies in it. */
static int audit_header(void *arg, int i)
{
    struct audit *a = arg;
    const struct ckpt *c = a->c;
    struct st_reader *r = NULL;
    char *path = path_join(c->dir, c->files[i].name), text[512];
    size_t listed = 0;
    if (!strstr(c->files[i].name, ".safetensors")) {
        free(path);
        return 0;
    }
    int rc = path ? st_open(&r, path) : err_set(GPT_SYSTEM, "out of memory");
    for (int k = 0; !rc && k < c->nentries; k++) {
        const struct ckpt_entry *e = &c->entries[k];
        for (int p = 0; p < e->npieces; p++) {
            if (e->pieces[p].file != i)
                continue;
            const struct st_tensor *t = st_find(st_header(r), e->name);
            bool same = t && t->dtype == e->dtype && t->rank == e->rank &&
                        t->shape[0] == (uint64_t)e->pieces[p].count &&
                        t->bytes == e->unit_bytes * t->shape[0];
            for (int x = 1; same && x < e->rank; x++)
                same = t->shape[x] == (uint64_t)e->shape[x];
            listed++;
            if (same)
                continue;
            snprintf(text, sizeof text, "%s: tensor '%s': %s", path, e->name,
                     t ? "its type or shape is not as in MANIFEST"
                       : "MANIFEST lists it, but it is missing");
            fault(a, text);
        }
    }
    if (!rc && st_header(r)->n != listed) {
        snprintf(text, sizeof text, "%s: expected %zu tensors, as MANIFEST lists, found %zu", path,
                 listed, st_header(r)->n);
        fault(a, text);
    }
    st_close(r);
    free(path);
    return settle(a, rc);
}

static int audit_ckpt(struct audit *a, const char *dir, verify_model_fn *model, void *model_arg)
{
    struct ckpt *c;
    int rc = ckpt_open(&c, dir);
    if (rc)
        return settle(a, rc);
    a->c = c;
    rc = parallel_for(c->nfiles, 0, audit_header, a);
    if (!rc && model) {
        int before = a->faults;
        rc = model(model_arg, c, a->tell, a->arg);
        if (rc == GPT_NO) { /* it told something */
            a->faults = before + 1;
            rc = 0;
        }
    }
    for (int i = 0; !rc && a->full && i < c->nfiles; i++)
        rc = audit_file(a, i);
    ckpt_close(c);
    return rc;
}

/* --- a file --- */

static int audit_tensor(struct audit *a, const char *path, struct st_reader *r,
                        const struct st_tensor *t, unsigned char *buf)
{
    size_t size = dtype_size(t->dtype);
    bool finite = t->dtype == DT_NONE;
    for (uint64_t at = 0, n; at < t->bytes; at += n) {
        n = t->bytes - at < CHUNK ? t->bytes - at : CHUNK;
        int rc = st_read(r, t, at, buf, n);
        if (rc)
            return rc;
        uint64_t bad = finite ? 0 : first_nonfinite(t->dtype, buf, n / size);
        if (!finite && bad < n / size) {
            finite = true; /* said once a tensor */
            tell_nonfinite(a, path, t->name, at / size + bad, at + bad * size);
        }
    }
    return 0;
}

static int audit_plain(struct audit *a, const char *path)
{
    struct st_reader *r;
    const struct st_tensor *t;
    int rc = st_open(&r, path);
    if (rc)
        return settle(a, rc);
    unsigned char *buf = malloc(CHUNK);
    if (!buf)
        rc = err_set(GPT_SYSTEM, "out of memory");
    while (!rc && a->full && (t = st_next(r)))
        rc = audit_tensor(a, path, r, t, buf);
    if (!rc && a->full)
        rc = st_finish(r);
    st_close(r);
    free(buf);
    return settle(a, rc);
}

int verify_path(const char *path, bool full, verify_model_fn *model, void *model_arg,
                verify_tell_fn *tell, void *arg, char **checked)
{
    struct audit a = { .full = full, .tell = tell, .arg = arg };
    struct stat st;
    char *manifest = path_join(path, "MANIFEST"), *dir = NULL;
    int rc = manifest ? 0 : err_set(GPT_SYSTEM, "out of memory");
    pthread_mutex_init(&a.lock, NULL);
    if (!rc && strcmp(path, "-") && stat(path, &st)) {
        rc = err_sys("cannot open '%s'", path);
    } else if (!rc && strcmp(path, "-") && S_ISDIR(st.st_mode)) {
        bool holds = stat(manifest, &st) != 0 && ckpt_latest(path, &dir) == 0;
        rc = audit_ckpt(&a, holds ? dir : path, model, model_arg);
    } else if (!rc) {
        rc = audit_plain(&a, path);
    }
    if (!rc && a.faults)
        rc = err_set(GPT_NO, "%s: %d fault%s", path, a.faults, a.faults > 1 ? "s" : "");
    *checked = rc ? NULL : strdup(dir ? dir : path);
    if (!rc && !*checked)
        rc = err_set(GPT_SYSTEM, "out of memory");
    free(dir);
    free(manifest);
    pthread_mutex_destroy(&a.lock);
    return rc;
}
