/* Names, shapes and byte streams of checkpoints and files. A stream stays open after use: what is
 * read next often begins where it stopped, so a pass over all tensors reads each file once. */
#include "checkpoint/tensors.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "base/file.h"
#include "base/grow.h"
#include "checkpoint/checkpoint_dir.h"
#include "checkpoint/st_index.h"

enum { IDLE = 4, SKIP_BYTES = 1 << 16 };

struct file {
    char *path;
    struct st_reader *st; /* its header; when mapped its data */
    bool mapped;
    bool once; /* standard input */
    bool taken; /* st is, or was, the stream of a source */
};

/* A stream over the pieces of a checkpoint's tensor, or over a safetensors file. */
struct byte_source {
    const struct stored *t; /* checkpoint: the tensor; else NULL */
    int piece;
    struct ckpt_stream bytes;
    const struct file *file;
    struct st_reader *stream; /* own; NULL: the file's */
    uint64_t at; /* byte of the tensor; of the data section in a stream */
};

struct tensors {
    char *path;
    struct ckpt *ckpt;
    struct file *files;
    int nfiles;
    struct st_index index; /* empty unless path is one */
    bool indexed;
    struct stored *v, **by_name;
    int n;
    struct byte_source *idle[IDLE];
    pthread_mutex_t lock; /* idle, taken */
};

/* --- names --- */

/* A kind that ends in another one stands before it. */
static const char *const kinds[] = { "weight",
                                     "mantissa",
                                     "remainder",
                                     "momentum",
                                     "second_momentum",
                                     "exp_avg",
                                     "exp_avg_sq",
                                     "weight.scale",
                                     "weight.row_scale",
                                     "weight.amax",
                                     "next_scale",
                                     "post_scale",
                                     "exp_avg.scale",
                                     "exp_avg_sq.scale",
                                     "master.scale",
                                     "exp_avg.row_scale",
                                     "exp_avg_sq.row_scale",
                                     "master.row_scale",
                                     "master",
                                     "rounded",
                                     "gradient",
                                     "scale",
                                     "scale_inv" };

/* "attn.momentum" is param attn, kind momentum; "attn_bank" is param attn_bank, no kind. own: of a checkpoint, whose
 * kinds are any, behind a label without dots. */
static int split_name(struct stored *t, bool own)
{
    size_t n = strlen(t->name), at = n;
    const char *kind = "";
    for (size_t i = 0; at == n && i < sizeof kinds / sizeof *kinds; i++) {
        size_t k = strlen(kinds[i]);
        if (n > k && t->name[n - k - 1] == '.' && !strcmp(t->name + n - k, kinds[i])) {
            at = n - k - 1;
            kind = kinds[i];
        }
    }
    const char *dot = own && at == n ? strchr(t->name, '.') : NULL;
    if (dot)
        at = (size_t)(dot - t->name), kind = dot + 1;
    t->param = strndup(t->name, at);
    t->kind = strdup(kind);
    return t->param && t->kind ? 0 : err_memory();
}

static int by_name(const void *a, const void *b)
{
    const struct stored *x = *(struct stored *const *)a, *y = *(struct stored *const *)b;
    return strcmp(x->name, y->name);
}

/* The tensor whose name is a followed by b; NULL: none. */
static struct stored *find_joined(const struct tensors *s, const char *a, const char *b)
{
    size_t n = strlen(a);
    for (int lo = 0, hi = s->n; lo < hi;) {
        int mid = lo + (hi - lo) / 2, d = strncmp(a, s->by_name[mid]->name, n);
        d = d ? d : strcmp(b, s->by_name[mid]->name + n);
        if (!d)
            return s->by_name[mid];
        *(d < 0 ? &hi : &lo) = d < 0 ? mid : mid + 1;
    }
    return NULL;
}

/* The weight t's own tensor of that kind, which then is a part of t; NULL: none of as many
 * elements, of that many bits each unless bits is 0. */
static const struct stored *part_of(const struct tensors *s, const struct stored *t,
                                    const char *kind, unsigned bits)
{
    struct stored *x = find_joined(s, t->param, kind);
    if (!x || x->elements != t->elements || (bits && x->bits != bits))
        return NULL;
    x->is_part = true;
    return x;
}

/* Finds what belongs to t: master, low half, scale. */
static void find_parts(struct tensors *s, struct stored *t)
{
    static const char *const scales[] = { ".scale_inv", "_scale_inv", ".scale", "_scale" };
    struct stored *x = NULL;
    t->is_part |= strstr(t->kind, ".row_scale") != NULL;
    if (!strcmp(t->kind, "weight")) {
        t->master = part_of(s, t, ".master", 0);
        t->forward = part_of(s, t, ".rounded", 0);
    }
    if (t->dtype == DT_BF16 && !strcmp(t->kind, "weight") && !t->master) {
        t->low = part_of(s, t, ".mantissa", 16);
        t->away = !t->low;
        t->low = t->low ? t->low : part_of(s, t, ".remainder", 16);
    }
    for (size_t i = 0; !t->scale && i < sizeof scales / sizeof scales[0]; i++)
        if ((x = find_joined(s, t->name, scales[i])) ||
            (!strcmp(t->kind, "weight") && (x = find_joined(s, t->param, scales[i])))) {
            t->scale = x;
            x->is_part = true;
        }
}

static int name_all(struct tensors *s)
{
    int rc = 0;
    if (!(s->by_name = malloc(((size_t)s->n + 1) * sizeof *s->by_name)))
        return err_memory();
    for (int i = 0; !rc && i < s->n; i++) {
        s->v[i].index = i;
        s->by_name[i] = &s->v[i];
        rc = split_name(&s->v[i], s->ckpt != NULL);
    }
    qsort(s->by_name, (size_t)s->n, sizeof *s->by_name, by_name);
    for (int i = 0; !rc && i < s->n; i++)
        find_parts(s, &s->v[i]);
    return rc;
}

/* --- opening --- */

static int take_entries(struct tensors *s)
{
    const struct ckpt_entry *e;
    s->n = ckpt_entries(s->ckpt, &e);
    s->v = calloc((size_t)s->n + 1, sizeof *s->v);
    if (!s->v)
        return err_memory();
    for (int i = 0; i < s->n; i++) {
        struct stored *t = &s->v[i];
        t->name = e[i].name;
        t->dtype = e[i].dtype;
        t->type = st_type_name(t->dtype);
        t->bits = 8 * (unsigned)dtype_size(t->dtype);
        t->rank = e[i].rank;
        t->shape = (const uint64_t *)e[i].shape; /* none is negative */
        t->elements = 1;
        for (int k = 0; k < t->rank; k++)
            t->elements *= t->shape[k];
        t->bytes = t->elements * dtype_size(t->dtype);
    }
    return 0;
}

/* Adds the tensors of file i; of an index those that it places there. */
static int take_header(struct tensors *s, int i)
{
    struct file *f = &s->files[i];
    const struct st_header *h = st_header(f->st);
    const char *name = strrchr(f->path, '/');
    name = name ? name + 1 : f->path;
    struct stored *v = realloc(s->v, ((size_t)s->n + h->n + 1) * sizeof *v);
    if (!v)
        return err_memory();
    s->v = v;
    for (size_t k = 0; k < h->n; k++) {
        const struct st_tensor *t = &h->tensors[k];
        const char *in = s->indexed ? st_index_file(&s->index, t->name) : name;
        if (!in || strcmp(in, name))
            continue;
        v[s->n++] = (struct stored){ .name = t->name,
                                     .type = t->type,
                                     .dtype = t->dtype,
                                     .bits = t->bits,
                                     .rank = t->rank,
                                     .shape = t->shape,
                                     .elements = t->elements,
                                     .bytes = t->bytes,
                                     .file = i,
                                     .place = (int)k };
    }
    f->mapped = h->n == 0 || st_data(f->st, &h->tensors[0]);
    return 0;
}

/* Refuses a directory without a checkpoint, with the name of a model's file that it has. */
static int no_checkpoint(const char *path)
{
    static const char *const names[] = { "model.safetensors.index.json", "model.safetensors" };
    for (size_t i = 0; i < 2; i++)
        if (file_is_in(path, names[i]))
            return err_set(GPT_INPUT, "%s: no checkpoint of gpt-train: name the file in it, %s",
                           path, names[i]);
    return err_set(GPT_INPUT, "%s: has no MANIFEST and holds no complete checkpoint", path);
}

/* A directory is a checkpoint, or holds some. */
static int open_directory(struct tensors *s, const char *path)
{
    int rc = ckpt_at(path, &s->path);
    if (rc == GPT_NO)
        rc = no_checkpoint(path);
    if (!rc)
        rc = ckpt_open(&s->ckpt, s->path);
    return rc ? rc : take_entries(s);
}

/* path is freed with s. */
static int add_file(struct tensors *s, char *path, bool standard)
{
    if (!path || grow_one(&s->files, (size_t)s->nfiles, sizeof *s->files)) {
        free(path);
        return err_memory();
    }
    struct file *f = &s->files[s->nfiles++];
    *f = (struct file){ .path = path, .once = standard };
    int rc = st_open(&f->st, standard ? "-" : path);
    return rc ? rc : take_header(s, s->nfiles - 1);
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The files that the index names, each once, by name. */
static int add_indexed(struct tensors *s)
{
    const char **name = malloc((s->index.n + 1) * sizeof *name);
    int rc = name ? 0 : err_memory();
    for (size_t i = 0; !rc && i < s->index.n; i++)
        name[i] = s->index.map[i].value;
    if (!rc)
        qsort(name, s->index.n, sizeof *name, by_text);
    const char *slash = strrchr(s->path, '/');
    char *folder = slash ? strndup(s->path, (size_t)(slash - s->path) + 1) : strdup(".");
    if (!rc && !folder)
        rc = err_memory();
    for (size_t i = 0; !rc && i < s->index.n; i++)
        if (i == 0 || strcmp(name[i - 1], name[i]))
            rc = add_file(s, slash ? path_join(folder, name[i]) : strdup(name[i]), false);
    free(folder);
    free(name);
    return rc;
}

static int open_index(struct tensors *s)
{
    int rc = st_index_read(&s->index, s->path);
    s->indexed = true;
    return rc ? rc : add_indexed(s);
}

static int open_file(struct tensors *s, const char *path)
{
    bool standard = !strcmp(path, "-"), index = false;
    if (!(s->path = strdup(standard ? "standard input" : path)))
        return err_memory();
    int rc = standard ? 0 : st_index_detect(path, &index);
    if (!rc)
        rc = index ? open_index(s) : add_file(s, strdup(s->path), standard);
    return rc;
}

/* Checks that each tensor of the index is in its file. */
static int check_index(const struct tensors *s)
{
    for (size_t i = 0; i < s->index.n; i++)
        if (!tensors_find(s, s->index.map[i].key))
            return err_set(GPT_INPUT, "%s: weight_map: tensor '%s': '%s' holds none of that name",
                           s->path, s->index.map[i].key, s->index.map[i].value);
    return 0;
}

int tensors_open(struct tensors **out, const char *path)
{
    struct stat st;
    struct tensors *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s)
        return err_memory();
    pthread_mutex_init(&s->lock, NULL);
    int rc = strcmp(path, "-") && !stat(path, &st) && S_ISDIR(st.st_mode) ? open_directory(s, path)
                                                                          : open_file(s, path);
    if (!rc)
        rc = name_all(s);
    if (!rc)
        rc = check_index(s);
    if (rc)
        tensors_close(s);
    else
        *out = s;
    return rc;
}

static void free_source(struct byte_source *b)
{
    if (!b)
        return;
    if (b->t)
        ckpt_stream_close(&b->bytes);
    st_close(b->stream);
    free(b);
}

void tensors_close(struct tensors *s)
{
    if (!s)
        return;
    for (int i = 0; i < IDLE; i++)
        free_source(s->idle[i]);
    for (int i = 0; s->v && i < s->n; i++) {
        free(s->v[i].param);
        free(s->v[i].kind);
    }
    for (int i = 0; i < s->nfiles; i++) {
        st_close(s->files[i].st);
        free(s->files[i].path);
    }
    free(s->files);
    st_index_release(&s->index);
    ckpt_close(s->ckpt);
    free(s->v);
    free(s->by_name);
    free(s->path);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

int tensors_count(const struct tensors *s) { return s->n; }
const struct stored *tensors_at(const struct tensors *s, int i) { return &s->v[i]; }
const char *tensors_path(const struct tensors *s) { return s->path; }
const struct ckpt *tensors_ckpt(const struct tensors *s) { return s->ckpt; }

const struct st_meta *tensors_notes(const struct tensors *s, size_t *n)
{
    const struct st_header *h = s->indexed || !s->nfiles ? NULL : st_header(s->files[0].st);
    *n = h ? h->nmeta : s->index.nmeta;
    return h ? h->meta : s->index.meta;
}

const char *tensors_note(const struct tensors *s, const char *key)
{
    size_t n;
    const struct st_meta *m = tensors_notes(s, &n);
    for (size_t i = 0; i < n; i++)
        if (!strcmp(m[i].key, key))
            return m[i].value;
    return NULL;
}

int tensors_files(const struct tensors *s) { return s->nfiles; }
const char *tensors_file(const struct tensors *s, int i) { return s->files[i].path; }

int tensors_threads(const struct tensors *s)
{
    for (int i = 0; i < s->nfiles; i++)
        if (!s->files[i].mapped)
            return 1;
    return 0;
}

const struct stored *tensors_find(const struct tensors *s, const char *name)
{
    return find_joined(s, name, "");
}

/* --- byte streams --- */

static const struct ckpt_entry *entry_of(const struct tensors *s, const struct stored *t)
{
    const struct ckpt_entry *e;
    ckpt_entries(s->ckpt, &e);
    return &e[t->index];
}

/* Opens the piece that holds byte `at` of the tensor. */
static int open_piece(struct tensors *s, struct byte_source *b, uint64_t at)
{
    const struct ckpt_entry *e = entry_of(s, b->t);
    int i = 0;
    while (i + 1 < e->npieces && e->unit_bytes * (uint64_t)e->pieces[i + 1].begin <= at)
        i++;
    b->piece = i;
    b->at = e->unit_bytes * (uint64_t)e->pieces[i].begin;
    return ckpt_stream_open(&b->bytes, s->ckpt, e, i);
}

static int source_read(struct tensors *s, struct byte_source *b, char *dst, size_t n)
{
    while (n > 0) {
        int rc;
        if (b->bytes.left == 0) {
            ckpt_stream_close(&b->bytes);
            if ((rc = open_piece(s, b, b->at)))
                return rc;
        }
        size_t k = n < b->bytes.left ? n : (size_t)b->bytes.left;
        if ((rc = ckpt_stream_read(&b->bytes, dst, k)))
            return rc;
        b->at += k;
        dst += k;
        n -= k;
    }
    return 0;
}

static int skip_to(struct tensors *s, struct byte_source *b, uint64_t at)
{
    char buf[SKIP_BYTES];
    int rc = 0;
    while (!rc && b->at < at)
        rc = source_read(s, b, buf, at - b->at < SKIP_BYTES ? (size_t)(at - b->at) : SKIP_BYTES);
    return rc;
}

/* Takes out the idle source that is nearest before `at`, of a checkpoint's tensor t or of file f; NULL
 * when there is none. */
static struct byte_source *take_idle(struct tensors *s, const struct stored *t,
                                     const struct file *f, uint64_t at)
{
    int best = -1;
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < IDLE; i++) {
        struct byte_source *b = s->idle[i];
        if (b && b->t == t && b->file == f && b->at <= at &&
            (best < 0 || b->at > s->idle[best]->at))
            best = i;
    }
    struct byte_source *b = best < 0 ? NULL : s->idle[best];
    if (b)
        s->idle[best] = NULL;
    pthread_mutex_unlock(&s->lock);
    return b;
}

static void give_idle(struct tensors *s, struct byte_source *b)
{
    pthread_mutex_lock(&s->lock);
    int i = 0;
    while (i < IDLE - 1 && s->idle[i])
        i++;
    struct byte_source *old = s->idle[i];
    s->idle[i] = b;
    pthread_mutex_unlock(&s->lock);
    free_source(old);
}

/* True if `at` lies so far ahead in the tensor that opening its own piece is cheaper. */
static bool other_piece(struct tensors *s, const struct byte_source *b, uint64_t at)
{
    const struct ckpt_piece *p = &entry_of(s, b->t)->pieces[b->piece];
    return at >= entry_of(s, b->t)->unit_bytes * (uint64_t)(p->begin + p->count);
}

static int open_in_ckpt(struct tensor_bytes *b, uint64_t from)
{
    int rc = 0;
    b->src = take_idle(b->s, b->t, NULL, from);
    if (b->src && from > b->src->at && other_piece(b->s, b->src, from)) {
        free_source(b->src);
        b->src = NULL;
    }
    if (!b->src) {
        if (!(b->src = calloc(1, sizeof *b->src)))
            return err_memory();
        b->src->t = b->t;
        rc = open_piece(b->s, b->src, from);
    }
    return rc ? rc : skip_to(b->s, b->src, from);
}

static int open_in_stream(struct tensor_bytes *b, struct file *f, uint64_t at)
{
    b->src = take_idle(b->s, NULL, f, at);
    if (b->src)
        return 0;
    if (!(b->src = calloc(1, sizeof *b->src)))
        return err_memory();
    b->src->file = f;
    pthread_mutex_lock(&b->s->lock);
    bool taken = f->taken;
    f->taken = true;
    pthread_mutex_unlock(&b->s->lock);
    if (!taken)
        return 0;
    if (f->once)
        return err_set(GPT_INPUT, "standard input is read once, in order; give a file");
    return st_open(&b->src->stream, f->path);
}

int bytes_open(struct tensor_bytes *b, struct tensors *s, const struct stored *t, uint64_t from)
{
    t = &s->v[t->index]; /* the caller's may be a changed copy */
    *b = (struct tensor_bytes){ .s = s, .t = t, .at = from };
    assert(from <= t->bytes);
    if (from == t->bytes)
        return 0;
    if (s->ckpt)
        return open_in_ckpt(b, from);
    struct file *f = &s->files[t->file];
    if (f->mapped)
        return 0;
    return open_in_stream(b, f, st_header(f->st)->tensors[t->place].begin + from);
}

int bytes_read(struct tensor_bytes *b, void *dst, size_t n)
{
    assert(n <= b->t->bytes - b->at);
    int rc = 0;
    if (n == 0)
        return 0;
    if (b->s->ckpt) {
        rc = source_read(b->s, b->src, dst, n);
    } else {
        struct st_reader *r =
            b->src && b->src->stream ? b->src->stream : b->s->files[b->t->file].st;
        const struct st_tensor *t = &st_header(r)->tensors[b->t->place];
        rc = st_read(r, t, b->at, dst, n);
        if (b->src)
            b->src->at = t->begin + b->at + n;
    }
    b->at += n;
    if (rc) {
        free_source(b->src);
        b->src = NULL;
    }
    return rc;
}

void bytes_close(struct tensor_bytes *b)
{
    if (b->src && b->src->t && b->src->bytes.left == 0)
        free_source(b->src);
    else if (b->src)
        give_idle(b->s, b->src);
    b->src = NULL;
}
