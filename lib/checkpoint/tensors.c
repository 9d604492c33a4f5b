/* Names, shapes and byte streams of checkpoints and files. A stream stays open after use: what is
 * read next often begins where it stopped, so a pass over all tensors reads each file once. */
#include "checkpoint/tensors.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "checkpoint/checkpoint_dir.h"

enum { IDLE = 4, SKIP_BYTES = 1 << 16 };

/* A stream over the pieces of a checkpoint's tensor, or over a safetensors file. */
struct byte_source {
    const struct stored *t; /* checkpoint: the tensor; else NULL */
    int piece;
    struct ckpt_stream bytes;
    struct st_reader *stream; /* own; NULL: that of struct tensors */
    uint64_t at; /* byte of the tensor; of the data section in a stream */
};

struct tensors {
    char *path;
    struct ckpt *ckpt;
    struct st_reader *st; /* a file: its header; when mapped its data */
    bool mapped;
    bool once; /* standard input */
    bool taken; /* st is, or was, the stream of a source */
    struct stored *v, **by_name;
    int n;
    struct byte_source *idle[IDLE];
    pthread_mutex_t lock; /* idle */
};

/* --- names --- */

/* A kind that ends in another one stands before it. */
static const char *const kinds[TENSOR_KINDS - 1] = { "weight",
                                                     "mantissa",
                                                     "remainder",
                                                     "momentum",
                                                     "second_momentum",
                                                     "exp_avg",
                                                     "exp_avg_sq",
                                                     "weight.scale",
                                                     "weight.row_scale",
                                                     "weight.amax",
                                                     "exp_avg.scale",
                                                     "exp_avg_sq.scale",
                                                     "master.scale",
                                                     "exp_avg.row_scale",
                                                     "exp_avg_sq.row_scale",
                                                     "master.row_scale",
                                                     "master",
                                                     "scale",
                                                     "scale_inv" };

/* "attn.momentum" is param attn, kind momentum; "attn_bank" is param attn_bank, no kind. */
static int split_name(struct stored *t)
{
    size_t n = strlen(t->name), at = n;
    const char *kind = "";
    for (size_t i = 0; at == n && i < TENSOR_KINDS - 1; i++) {
        size_t k = strlen(kinds[i]);
        if (n > k && t->name[n - k - 1] == '.' && !strcmp(t->name + n - k, kinds[i])) {
            at = n - k - 1;
            kind = kinds[i];
        }
    }
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

/* Finds t's low half and scale, which then are parts of t. */
static void find_parts(struct tensors *s, struct stored *t)
{
    static const char *const scales[] = { ".scale_inv", "_scale_inv", ".scale", "_scale" };
    struct stored *x = NULL;
    t->is_part |= strstr(t->kind, ".row_scale") != NULL;
    if (t->dtype == DT_BF16 && !strcmp(t->kind, "weight")) {
        if (!(x = find_joined(s, t->param, ".mantissa"))) {
            x = find_joined(s, t->param, ".remainder");
            t->rounded = x != NULL;
        }
        if (x && dtype_size(x->dtype) == 2 && x->elements == t->elements) {
            t->low = x;
            x->is_part = true;
        }
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
        rc = split_name(&s->v[i]);
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
        t->rank = e[i].rank;
        t->shape = (const uint64_t *)e[i].shape; /* none is negative */
        t->elements = 1;
        for (int k = 0; k < t->rank; k++)
            t->elements *= t->shape[k];
        t->bytes = t->elements * dtype_size(t->dtype);
    }
    return 0;
}

static int take_header(struct tensors *s)
{
    const struct st_header *h = st_header(s->st);
    s->n = (int)h->n;
    s->v = calloc(h->n + 1, sizeof *s->v);
    if (!s->v)
        return err_memory();
    for (int i = 0; i < s->n; i++) {
        const struct st_tensor *t = &h->tensors[i];
        s->v[i] = (struct stored){ .name = t->name,
                                   .type = t->type,
                                   .dtype = t->dtype,
                                   .rank = t->rank,
                                   .shape = t->shape,
                                   .elements = t->elements,
                                   .bytes = t->bytes };
    }
    s->mapped = h->n == 0 || st_data(s->st, &h->tensors[0]);
    return 0;
}

/* A directory is a checkpoint, or holds some. */
static int open_directory(struct tensors *s, const char *path)
{
    int rc = ckpt_at(path, &s->path);
    if (rc == GPT_NO)
        rc = err_set(GPT_INPUT, "%s: has no MANIFEST and holds no complete checkpoint", path);
    if (!rc)
        rc = ckpt_open(&s->ckpt, s->path);
    return rc ? rc : take_entries(s);
}

static int open_file(struct tensors *s, const char *path)
{
    s->once = !strcmp(path, "-");
    if (!(s->path = strdup(s->once ? "standard input" : path)))
        return err_memory();
    int rc = st_open(&s->st, path);
    return rc ? rc : take_header(s);
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
    st_close(s->st);
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

const struct st_header *tensors_header(const struct tensors *s)
{
    return s->ckpt ? NULL : st_header(s->st);
}

int tensors_threads(const struct tensors *s) { return s->ckpt || s->mapped ? 0 : 1; }

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

/* Takes out the idle source that is nearest before `at`; NULL when there is none. */
static struct byte_source *take_idle(struct tensors *s, const struct stored *t, uint64_t at)
{
    int best = -1;
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < IDLE; i++) {
        struct byte_source *b = s->idle[i];
        if (b && b->t == t && b->at <= at && (best < 0 || b->at > s->idle[best]->at))
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

/* Is `at` so far ahead in the tensor that opening its own piece is cheaper? */
static bool other_piece(struct tensors *s, const struct byte_source *b, uint64_t at)
{
    const struct ckpt_piece *p = &entry_of(s, b->t)->pieces[b->piece];
    return at >= entry_of(s, b->t)->unit_bytes * (uint64_t)(p->begin + p->count);
}

static int open_in_ckpt(struct tensor_bytes *b, uint64_t from)
{
    int rc = 0;
    b->src = take_idle(b->s, b->t, from);
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

static int open_in_stream(struct tensor_bytes *b, uint64_t at)
{
    b->src = take_idle(b->s, NULL, at);
    if (b->src)
        return 0;
    if (!(b->src = calloc(1, sizeof *b->src)))
        return err_memory();
    pthread_mutex_lock(&b->s->lock);
    bool taken = b->s->taken;
    b->s->taken = true;
    pthread_mutex_unlock(&b->s->lock);
    if (!taken)
        return 0;
    if (b->s->once)
        return err_set(GPT_INPUT, "standard input is read once, in order; give a file");
    return st_open(&b->src->stream, b->s->path);
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
    if (s->mapped)
        return 0;
    return open_in_stream(b, st_header(s->st)->tensors[t->index].begin + from);
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
        struct st_reader *r = b->src && b->src->stream ? b->src->stream : b->s->st;
        const struct st_tensor *t = &st_header(r)->tensors[b->t->index];
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
