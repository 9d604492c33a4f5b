/* attention.c - scores inside documents and windows, and back (record-61.md 2.7, 3.3).
 *
 * Queries are taken in blocks of one document and one head: every key that any
 * query of the block sees goes into one product, and the mask is a range of
 * keys for each query.
 */
#include "ops/qkv.h"

enum { BLOCK = 64 };

/* Queries first .. first+n-1 against keys key .. key+keys-1; rows of `scores` are keys long. */
struct block {
    const struct attn_shape *s;
    int64_t document; /* first row of the document */
    int64_t first, n, key, keys;
    int head;
};

typedef void block_fn(const struct block *b, void *arg, int thread);

struct walk {
    const struct attn_shape *s;
    block_fn *fn;
    void *arg;
};

/* Calls fn for the blocks of a head of document d that begin in rows from .. to-1, by row. */
static void blocks_of(const struct walk *w, int64_t head, int64_t d, int64_t from, int64_t to,
                      int thread)
{
    const struct attn_shape *s = w->s;
    int64_t end = (int64_t)s->cu[d + 1] * s->cu_mul;
    struct block b = { .s = s, .head = (int)head };

    b.document = (int64_t)s->cu[d] * s->cu_mul;
    b.first = b.document;
    assert(b.document <= end && end <= s->rows);
    if (from > b.first)
        b.first += (from - b.first + BLOCK - 1) / BLOCK * BLOCK;
    for (; b.first < end && b.first < to; b.first += BLOCK) {
        int64_t back = b.first - s->window;
        b.n = end - b.first < BLOCK ? end - b.first : BLOCK;
        b.key = back > b.document ? back : b.document;
        b.keys = b.first + b.n - b.key;
        w->fn(&b, w->arg, thread);
    }
}

/* A head of a document. */
static void document_blocks(void *arg, int64_t at, int64_t count, int thread)
{
    const struct walk *w = arg;
    int64_t documents = w->s->ncu - 1;

    (void)count;
    blocks_of(w, at / documents, at % documents, 0, w->s->rows, thread);
}

/* A head of BLOCK rows. */
static void row_blocks(void *arg, int64_t at, int64_t count, int thread)
{
    const struct walk *w = arg;
    int64_t from = at / w->s->heads * BLOCK;

    (void)count;
    for (int64_t d = 0; d + 1 < w->s->ncu; d++)
        blocks_of(w, at % w->s->heads, d, from, from + BLOCK, thread);
}

/* Calls fn for all blocks; in_order: those of one head and document in order, in one thread. */
static void for_blocks(struct ops *o, const struct attn_shape *s, bool in_order, block_fn *fn,
                       void *arg)
{
    struct walk w = { s, fn, arg };
    int64_t documents = s->ncu - 1, blocks = (s->rows + BLOCK - 1) / BLOCK;

    if (documents > 0)
        cpu_split(o, s->heads * (in_order ? documents : blocks), 1,
                  in_order ? document_blocks : row_blocks, &w);
}

/* The most scores that a block has. */
static int64_t scores_max(const struct attn_shape *s)
{
    int64_t keys = (int64_t)s->window + BLOCK;
    return BLOCK * (keys < s->rows ? keys : s->rows);
}

/* The keys [*from, *to) of query i of the block, counted from the block's first key: not before
 * its document, at most `window` back, none after itself. */
static void visible(const struct block *b, int64_t i, int64_t *from, int64_t *to)
{
    int64_t p = b->first + i, back = p - b->s->window;

    *from = (back > b->document ? back : b->document) - b->key;
    *to = p + 1 - b->key;
}

/* Returns where the block's head begins in a row of heads of `size` channels. */
static int64_t at(const struct block *b, int64_t row, int64_t size)
{
    return (row * b->s->heads + b->head) * size;
}

/* out (n,keys) = alpha a b^T, a being rows of queries and b rows of keys of this head, of `size` channels. */
static void by_key(const struct block *b, real *out, real alpha, const real *queries,
                   const real *keys, int64_t size)
{
    int64_t stride = b->s->heads * size;
    real_gemm_here(false, false, true, b->n, b->keys, size, alpha, queries + at(b, b->first, size),
                   stride, keys + at(b, b->key, size), stride, 0, out, b->keys);
}

/* Rows of queries = m (n,keys) times rows of keys. */
static void to_queries(const struct block *b, real *queries, const real *m, const real *keys,
                       int64_t size)
{
    int64_t stride = b->s->heads * size;
    real_gemm_here(false, false, false, b->n, size, b->keys, 1, m, b->keys,
                   keys + at(b, b->key, size), stride, 0, queries + at(b, b->first, size), stride);
}

/* Rows of keys += m^T (keys,n) times rows of queries. */
static void to_keys(const struct block *b, real *keys, const real *m, const real *queries,
                    int64_t size)
{
    int64_t stride = b->s->heads * size;
    real_gemm_here(false, true, false, b->keys, size, b->n, 1, m, b->keys,
                   queries + at(b, b->first, size), stride, 1, keys + at(b, b->key, size), stride);
}

/* -- forward ------------------------------------------------------------------------ */

struct forward {
    real *scores; /* of each thread */
    real *out, *lse;
    const real *q, *k, *v;
};

enum { LANES = 16 };

/* Scores of one query become probabilities, 0 where it does not see, and *lse theirs. */
SIMD_VERSIONS(softmax, (real * p, int64_t from, int64_t to, int64_t keys, real *lse),
              (p, from, to, keys, lse))
{
    real lane[LANES], max = p[from], sum = 0;
    int64_t j = from;

    for (int i = 0; i < LANES; i++)
        lane[i] = max;
    for (; j + LANES <= to; j += LANES)
        for (int i = 0; i < LANES; i++)
            lane[i] = p[j + i] > lane[i] ? p[j + i] : lane[i];
    for (; j < to; j++)
        max = p[j] > max ? p[j] : max;
    for (int i = 0; i < LANES; i++)
        max = lane[i] > max ? lane[i] : max;
    for (j = 0; j < from; j++)
        p[j] = 0;
    for (j = from; j < to; j++)
        p[j] = real_exp(fused, p[j] - max);
    for (int i = 0; i < LANES; i++)
        lane[i] = 0;
    for (j = from; j + LANES <= to; j += LANES)
        for (int i = 0; i < LANES; i++)
            lane[i] += p[j + i];
    for (; j < to; j++)
        sum += p[j];
    for (int i = 0; i < LANES; i++)
        sum += lane[i];
    for (j = from; j < to; j++)
        p[j] *= 1 / sum;
    for (j = to; j < keys; j++)
        p[j] = 0;
    *lse = max + real_log(sum);
}

static void forward_block(const struct block *b, void *arg, int thread)
{
    const struct forward *f = arg;
    real *p = f->scores + thread * scores_max(b->s);

    by_key(b, p, b->s->scale, f->q, f->k, attn_qk_dim(b->s));
    for (int64_t i = 0; i < b->n; i++) {
        int64_t from, to;
        visible(b, i, &from, &to);
        softmax(p + i * b->keys, from, to, b->keys,
                &f->lse[(int64_t)b->head * b->s->rows + b->first + i]);
    }
    to_queries(b, f->out, p, f->v, b->s->head_dim);
}

static void check_shape(struct tensor t, const struct attn_shape *s, int size)
{
    assert(tensor_count(t) == (int64_t)s->rows * s->heads * size);
    (void)t, (void)s, (void)size;
}

void cpu_attention_plan(struct ops *o, const struct attn_shape *s, int n)
{
    (void)o, (void)s, (void)n;
}

void cpu_attention(struct ops *o, struct tensor out, struct tensor lse, struct tensor q,
                   struct tensor k, struct tensor v, const struct attn_shape *s)
{
    struct forward f = { cpu_scratch(o, 0, cpu_threads(o) * scores_max(s)),
                         real_ptr(out),
                         real_ptr(lse),
                         real_ptr(q),
                         real_ptr(k),
                         real_ptr(v) };

    if (cpu_failed(o))
        return;
    check_shape(out, s, s->head_dim);
    check_shape(q, s, attn_qk_dim(s));
    for_blocks(o, s, false, forward_block, &f);
}

/* -- over a cache ------------------------------------------------------------------- */

/* Up to BLOCK rows of one sequence at consecutive positions. They end where BLOCK divides the
 * position, so that a row's sums do not depend on how rows come in calls. */
struct run {
    int64_t row, n;
};

struct cached {
    const struct kv_cache *c;
    const struct attn_shape *s;
    const struct run *run;
    real *scores, *keys,
        *values; /* of each thread: scores_max, and of a block (keys,Eq) and (keys,E) */
    int64_t keys_max;
    const real *q;
    real *out;
};

static int64_t cached_keys_max(const struct attn_shape *s)
{
    return (int64_t)s->window + (int64_t)BLOCK * s->cu_mul;
}

static int cached_runs(struct run *run, const struct kv_cache *c, int64_t tokens)
{
    int n = 0;
    for (int64_t t = 0; t < tokens; t++) {
        bool follows = t && c->slot[t] == c->slot[t - 1] && c->pos[t] == c->pos[t - 1] + 1;
        if (!follows || c->pos[t] % BLOCK == 0)
            run[n++] = (struct run){ t, 0 };
        run[n - 1].n++;
    }
    return n;
}

/* Copies the head's keys and values that the block sees out of the ring. */
static void gather_keys(const struct cached *f, const struct block *b, int64_t slot, real *keys,
                        real *values)
{
    const struct kv_cache *c = f->c;
    int64_t pair = f->s->cu_mul, size = f->s->head_dim, qk_size = attn_qk_dim(f->s);
    int64_t part = c->key_offset == KEY_OFFSET_NONE ? qk_size : qk_size / 4;

    for (int64_t j = 0; j < b->keys; j++) {
        int64_t row = b->key + j, p = row / pair, before = p > 0 ? p - 1 : 0;
        int64_t head = row % pair * f->s->heads + b->head, base = slot * c->capacity;
        int64_t own = base + p % c->capacity, last = base + before % c->capacity;
        memcpy(values + j * size, real_ptr(c->v) + own * c->v.cols + head * size,
               (size_t)size * sizeof *values);
        for (int64_t i = 0; i < qk_size; i += part)
            memcpy(keys + j * qk_size + i,
                   real_ptr(c->k) + (cached_offset(c, i, qk_size) ? last : own) * c->k.cols +
                       head * qk_size + i,
                   (size_t)part * sizeof *keys);
    }
}

/* A head of a run. */
static void cached_block(void *arg, int64_t at, int64_t count, int thread)
{
    const struct cached *f = arg;
    const struct attn_shape *s = f->s;
    const struct run *r = &f->run[at / s->heads];
    int64_t size = s->head_dim, qk_size = attn_qk_dim(s), back, row = r->row * s->cu_mul;
    struct block b = { .s = s, .head = (int)(at % s->heads) };
    real *p = f->scores + thread * BLOCK * s->cu_mul * f->keys_max, lse;
    real *keys = f->keys + thread * f->keys_max * qk_size;
    real *values = f->values + thread * f->keys_max * size;

    (void)count;
    b.first = (int64_t)f->c->pos[r->row] * s->cu_mul;
    b.n = r->n * s->cu_mul;
    back = b.first / (BLOCK * s->cu_mul) * (BLOCK * s->cu_mul) - s->window;
    b.key = back > 0 ? back : 0;
    b.keys = b.first + b.n - b.key;
    gather_keys(f, &b, f->c->slot[r->row], keys, values);
    real_gemm_here(false, false, true, b.n, b.keys, qk_size, s->scale,
                   f->q + (row * s->heads + b.head) * qk_size, s->heads * qk_size, keys, qk_size, 0,
                   p, b.keys);
    for (int64_t i = 0; i < b.n; i++) {
        int64_t from, to;
        visible(&b, i, &from, &to);
        softmax(p + i * b.keys, from, to, b.keys, &lse);
    }
    real_gemm_here(false, false, false, b.n, size, b.keys, 1, p, b.keys, values, size, 0,
                   f->out + (row * s->heads + b.head) * size, s->heads * size);
}

void cpu_attention_cached(struct ops *o, struct tensor out, struct tensor q, struct tensor y,
                          struct tensor gate, struct tensor alpha, const struct kv_cache *c,
                          const struct attn_shape *s)
{
    int64_t most = cached_keys_max(s), n = cpu_threads(o) * most;
    struct run *run = cpu_scratch_bytes(o, 3, (size_t)q.rows * sizeof *run);
    int64_t width = c->v.cols;
    real *own = alpha.data ? cpu_scratch(o, 4, q.rows * width) : NULL;
    struct xsa xsa = { .v = tensor_of(own, DT_REAL, q.rows, width), .alpha = alpha };
    struct cached f = { .c = c,
                        .s = s,
                        .run = run,
                        .scores = cpu_scratch(o, 0, n * BLOCK * s->cu_mul),
                        .keys = cpu_scratch(o, 1, n * attn_qk_dim(s)),
                        .values = cpu_scratch(o, 2, n * s->head_dim),
                        .keys_max = most,
                        .q = real_ptr(q),
                        .out = real_ptr(out) };

    if (cpu_failed(o))
        return;
    assert(q.cols == (int64_t)s->heads * attn_qk_dim(s) * s->cu_mul && attn_qk_dim(s) % 4 == 0);
    assert(out.rows == q.rows && c->k.cols == q.cols && out.cols == width);
    assert(width == (int64_t)s->heads * s->head_dim * s->cu_mul);
    cpu_split(o, (int64_t)cached_runs(run, c, q.rows) * s->heads, 1, cached_block, &f);
    for (int64_t t = 0; own && t < q.rows; t++)
        memcpy(own + t * width, real_ptr(c->v) + cached_row(c, t) * width,
               (size_t)width * sizeof *own);
    if (has(gate))
        cpu_out_gate(o, out, out, y, gate, s->heads * s->cu_mul, own ? &xsa : NULL);
}

/* -- backward ----------------------------------------------------------------------- */

struct backward {
    real *scores, *grads; /* of each thread */
    real *dq, *dk, *dv;
    const real *dout, *q, *k, *v, *lse, *delta;
};

/* p holds scores, ds dP; afterwards probabilities and the scores' gradient times the scale. */
SIMD_VERSIONS(softmax_bwd,
              (real * p, real *ds, real lse, real delta, real scale, int64_t from, int64_t to,
               int64_t keys),
              (p, ds, lse, delta, scale, from, to, keys))
{
    for (int64_t j = 0; j < from; j++)
        p[j] = ds[j] = 0;
    for (int64_t j = from; j < to; j++) {
        p[j] = real_exp(fused, p[j] - lse);
        ds[j] = scale * p[j] * (ds[j] - delta);
    }
    for (int64_t j = to; j < keys; j++)
        p[j] = ds[j] = 0;
}

static void backward_block(const struct block *b, void *arg, int thread)
{
    const struct backward *f = arg;
    const struct attn_shape *s = b->s;
    real *p = f->scores + thread * scores_max(s), *ds = f->grads + thread * scores_max(s);

    by_key(b, p, s->scale, f->q, f->k, attn_qk_dim(s));
    by_key(b, ds, 1, f->dout, f->v, s->head_dim);
    for (int64_t i = 0; i < b->n; i++) {
        int64_t row = (int64_t)b->head * s->rows + b->first + i, from, to;
        visible(b, i, &from, &to);
        softmax_bwd(p + i * b->keys, ds + i * b->keys, f->lse[row], f->delta[row], s->scale, from,
                    to, b->keys);
    }
    to_queries(b, f->dq, ds, f->k, attn_qk_dim(s));
    to_keys(b, f->dk, ds, f->q, attn_qk_dim(s));
    to_keys(b, f->dv, p, f->dout, s->head_dim);
}

void cpu_attention_bwd(struct ops *o, struct tensor dqkv, struct tensor dq, struct tensor dk,
                       struct tensor dv, enum values_grad values, struct tensor dout,
                       struct tensor q, struct tensor k, struct tensor v, struct tensor lse,
                       struct tensor delta, const struct attn_shape *s, const struct qk_made *m)
{
    int64_t scores = cpu_threads(o) * scores_max(s);
    struct backward f = { cpu_scratch(o, 0, scores),
                          cpu_scratch(o, 1, scores),
                          real_ptr(dq),
                          real_ptr(dk),
                          real_ptr(dv),
                          real_ptr(dout),
                          real_ptr(q),
                          real_ptr(k),
                          real_ptr(v),
                          real_ptr(lse),
                          real_ptr(delta) };

    if (cpu_failed(o))
        return;
    check_shape(dq, s, attn_qk_dim(s));
    check_shape(dout, s, s->head_dim);
    cpu_zero(o, dk);
    if (values != VALUES_ADDED)
        cpu_zero(o, dv);
    for_blocks(o, s, true, backward_block, &f);
    cpu_raw_grads(o, dqkv, dq, dk, q, k, m, s->rows / s->cu_mul);
    if (values == VALUES_JOINED)
        cpu_join_values(o, dqkv, dv);
    if (cpu_dqkv8(&m->shape))
        cpu_gradient_codes(cpu_dqkv8(&m->shape), 0, dqkv,
                           dqkv.cols -
                               (values == VALUES_JOINED ? 0 : tensor_count(dv) / dqkv.rows));
}
