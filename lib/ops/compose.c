/* compose.c - dynamically composable attention over the last keys (record-89.md 7). */
#include "ops/qkv.h"

/* Names the keys and values that a token's query reads. */
struct keys {
    int64_t first, n; /* rows of k and v, in order */
    const real *k, *v; /* (n or more, Q), (.., D) */
};

/* Numbers of one token: a (H), and in rows of n: probabilities of each head, their mix. */
struct mixed {
    real *a, *p, *z;
    real r; /* the root of w1's mean square */
};

/* Makes a, probabilities and Z of token t. lse (H,T): written, unless it is none. */
static void mix_heads(const struct compose *c, struct mixed *m, const struct keys *keys, real *lse,
                      int64_t rows, int64_t t, const real *q)
{
    int64_t size = compose_qk_dim(c), width = (int64_t)c->heads * size, n = keys->n;
    real square = 0;

    for (int64_t h = 0; h < c->heads; h++)
        square += token_number(&c->w1, t, h) * token_number(&c->w1, t, h);
    m->r = real_sqrt(square / (real)c->heads + (real)1e-6);
    memset(m->z, 0, (size_t)n * sizeof *m->z);
    for (int64_t h = 0; h < c->heads; h++) {
        real *p = m->p + h * n, max = 0, sum = 0;
        for (int64_t j = 0; j < n; j++) {
            p[j] = (real)c->scale *
                   real_dot(q + h * size, keys->k + (keys->first + j) * width + h * size, size);
            max = j == 0 || p[j] > max ? p[j] : max;
        }
        for (int64_t j = 0; j < n; j++)
            sum += p[j] = (real)exp((double)(p[j] - max));
        m->a[h] = token_number(&c->w1, t, h) / m->r;
        for (int64_t j = 0; j < n; j++) {
            p[j] /= sum;
            m->z[j] += m->a[h] * p[j];
        }
        if (lse)
            lse[h * rows + t] = max + (real)log((double)sum);
    }
}

/* out += what the mix of probabilities makes of the values. */
static void add_values(const struct compose *c, const struct mixed *m, const struct keys *keys,
                       real *out, int64_t t)
{
    int64_t size = c->head_dim, width = (int64_t)c->heads * size;

    for (int64_t h = 0; h < c->heads; h++)
        for (int64_t j = 0; j < keys->n; j++) {
            const real *v = keys->v + (keys->first + j) * width + h * size;
            real w = token_number(&c->w2, t, h) * m->z[j];
            for (int64_t i = 0; i < size; i++)
                out[h * size + i] += w * v[i];
        }
}

/* Takes the memory of one token. */
static struct mixed mixed_of(struct ops *o, const struct compose *c)
{
    real *at = cpu_scratch(o, 4, c->heads + (int64_t)(c->heads + 1) * c->window);
    return (struct mixed){ .a = at,
                           .z = at ? at + c->heads : NULL,
                           .p = at ? at + c->heads + c->window : NULL };
}

/* Returns the first key that token t of the document that begins at `start` sees. */
static int64_t first_key(const struct compose *c, int64_t t, int64_t start)
{
    return t - c->window + 1 > start ? t - c->window + 1 : start;
}

/* Moves *d to the document that has token t. Returns where that begins. */
static int64_t document(const struct compose *c, int *d, int64_t t)
{
    while (*d + 1 < c->ncu && c->cu[*d + 1] <= t)
        ++*d;
    return c->cu[*d];
}

void cpu_compose(struct ops *o, struct tensor out, struct tensor lse, struct tensor x,
                 struct tensor q, struct tensor k, struct tensor v, const struct compose *c)
{
    int64_t width = x.cols;
    struct mixed m = mixed_of(o, c);
    int d = 0;

    if (cpu_failed(o))
        return;
    assert(width == (int64_t)c->heads * c->head_dim && c->window > 0);
    assert(q.cols == (int64_t)c->heads * compose_qk_dim(c));
    for (int64_t t = 0; t < x.rows; t++) {
        int64_t first = first_key(c, t, document(c, &d, t));
        struct keys keys = { first, t + 1 - first, real_ptr(k), real_ptr(v) };
        real *to = real_ptr(out) + t * width;
        mix_heads(c, &m, &keys, real_ptr(lse), x.rows, t, real_ptr(q) + t * q.cols);
        if (out.data != x.data)
            memcpy(to, real_ptr(x) + t * width, (size_t)width * sizeof *to);
        add_values(c, &m, &keys, to, t);
    }
}

/* -- over a cache ------------------------------------------------------------------- */

/* Copies the key, in heads of `size` channels, and the value at position p of a sequence. */
static void cached_key(real *k, real *v, const struct kv_cache *c, int64_t slot, int64_t p,
                       int64_t size)
{
    int64_t base = slot * c->capacity, before = p > 0 ? p - 1 : 0, at = base + p % c->capacity;
    const real *own = real_ptr(c->k) + at * c->k.cols;
    const real *last = real_ptr(c->k) + (base + before % c->capacity) * c->k.cols;

    for (int64_t i = 0; i < c->k.cols; i++)
        k[i] = cached_offset(c, i % size, size) ? last[i] : own[i];
    memcpy(v, real_ptr(c->v) + at * c->v.cols, (size_t)c->v.cols * sizeof *v);
}

void cpu_compose_cached(struct ops *o, struct tensor out, struct tensor q, const struct compose *c,
                        const struct kv_cache *cache)
{
    int64_t width = cache->v.cols, qk_width = q.cols;
    struct mixed m = mixed_of(o, c);
    real *k = cpu_scratch(o, 5, c->window * qk_width), *v = cpu_scratch(o, 6, c->window * width);

    if (cpu_failed(o))
        return;
    for (int64_t t = 0; t < q.rows; t++) {
        int64_t first = first_key(c, cache->pos[t], 0);
        struct keys keys = { 0, cache->pos[t] + 1 - first, k, v };
        for (int64_t j = 0; j < keys.n; j++)
            cached_key(k + j * qk_width, v + j * width, cache, cache->slot[t], first + j,
                       compose_qk_dim(c));
        mix_heads(c, &m, &keys, NULL, q.rows, t, real_ptr(q) + t * qk_width);
        add_values(c, &m, &keys, real_ptr(out) + t * width, t);
    }
}

/* -- backward ----------------------------------------------------------------------- */

/* Gradients of one token's numbers. */
struct mixed_grad {
    real *dz, *d; /* (n); (H,n): dout v of each head */
};

/* Writes dz and d, and the gradient of w2; adds that of the values. */
static void values_bwd(const struct compose *c, const struct mixed *m, struct mixed_grad *g,
                       const struct keys *keys, real *dv, const real *dout, int64_t t)
{
    int64_t size = c->head_dim, width = (int64_t)c->heads * size, n = keys->n;

    memset(g->dz, 0, (size_t)n * sizeof *g->dz);
    for (int64_t h = 0; h < c->heads; h++) {
        real w2 = token_number(&c->w2, t, h), dw2 = 0;
        const real *dy = dout + h * size;
        for (int64_t j = 0; j < n; j++) {
            int64_t at = (keys->first + j) * width + h * size;
            real dot = real_dot(dy, keys->v + at, size), w = w2 * m->z[j];
            g->d[h * n + j] = dot;
            dw2 += dot * m->z[j];
            g->dz[j] += w2 * dot;
            for (int64_t i = 0; i < size; i++)
                dv[at + i] += w * dy[i];
        }
        c->w2.grad[t * c->w2.stride + h] = dw2;
    }
}

/* From dz to the gradients of w1, of the token's query and of the keys. */
static void scores_bwd(const struct compose *c, const struct mixed *m, const struct mixed_grad *g,
                       const struct keys *keys, real *dq, real *dk, const real *q, int64_t t)
{
    int64_t size = compose_qk_dim(c), width = (int64_t)c->heads * size, n = keys->n;
    real *da = g->d, all = 0; /* d is read by now */

    for (int64_t h = 0; h < c->heads; h++) {
        const real *p = m->p + h * n;
        real dot = real_dot(g->dz, p, n);
        for (int64_t i = 0; i < size; i++)
            dq[h * size + i] = 0;
        for (int64_t j = 0; j < n; j++) {
            int64_t at = (keys->first + j) * width + h * size;
            real ds = (real)c->scale * m->a[h] * p[j] * (g->dz[j] - dot);
            for (int64_t i = 0; i < size; i++) {
                dq[h * size + i] += ds * keys->k[at + i];
                dk[at + i] += ds * q[h * size + i];
            }
        }
        da[h] = dot;
        all += dot * token_number(&c->w1, t, h);
    }
    for (int64_t h = 0; h < c->heads; h++)
        c->w1.grad[t * c->w1.stride + h] =
            (da[h] - token_number(&c->w1, t, h) * all / ((real)c->heads * m->r * m->r)) / m->r;
}

void cpu_compose_bwd(struct ops *o, struct tensor dqkv, struct tensor dq, struct tensor dk,
                     struct tensor dv, struct tensor dout, struct tensor q, struct tensor k,
                     struct tensor v, struct tensor lse, const struct compose *c,
                     const struct qk_made *made)
{
    int64_t T = q.rows, width = dout.cols, n = c->window;
    struct mixed m = mixed_of(o, c);
    struct mixed_grad g = { .dz = cpu_scratch(o, 5, (c->heads + 1) * n) };
    struct tensor raw = tensor_of(cpu_scratch(o, 6, T * dqkv.cols), DT_REAL, T, dqkv.cols);
    int d = 0;

    (void)lse;
    if (cpu_failed(o))
        return;
    g.d = g.dz + n;
    cpu_zero(o, dk);
    for (int64_t t = 0; t < T; t++) {
        int64_t first = first_key(c, t, document(c, &d, t));
        struct keys keys = { first, t + 1 - first, real_ptr(k), real_ptr(v) };
        const real *qt = real_ptr(q) + t * q.cols;
        mix_heads(c, &m, &keys, NULL, T, t, qt);
        values_bwd(c, &m, &g, &keys, real_ptr(dv), real_ptr(dout) + t * width, t);
        scores_bwd(c, &m, &g, &keys, real_ptr(dq) + t * q.cols, real_ptr(dk), qt, t);
    }
    cpu_raw_grads(o, raw, dq, dk, q, k, made, (int)T);
    for (int64_t t = 0; t < T; t++)
        for (int64_t i = 0; i < 2 * q.cols; i++)
            real_ptr(dqkv)[t * dqkv.cols + i] += real_ptr(raw)[t * dqkv.cols + i];
}
