/* adam.c - Adam, element by element, in every form of its numbers (optimizers.md 3). */
#include "base/rng.h"
#include "ops/cpu.h"
#include "ops/store.h"

enum { BLOCK = FP8_BLOCK, PART = 64 * BLOCK }; /* elements in L1 at a time, for a thread */

/* What does not change from element to element. */
struct constants {
    real beta1, rest1, beta2, rest2, eps, step_size, decay, factor;
    bool eps_inside;
};

/* The numbers of up to BLOCK elements: value of the weight, gradient, moments. */
struct block {
    real p[BLOCK], g[BLOCK], m[BLOCK], v[BLOCK];
};

/* Scales of a row: as stored and as the update chooses them. */
struct scales {
    struct weight_scales w;
    real m, v;
};

/* -- the update ------------------------------------------------------------------------------ */

/* One rounding an operation, in this order; a test compares the bits with its own loop. */
static inline void moments(struct block *b, int n, const struct constants *k)
{
    for (int i = 0; i < n; i++) {
        real g = b->g[i];
        b->m[i] = k->beta1 * b->m[i] + k->rest1 * g;
        b->v[i] = k->beta2 * b->v[i] + k->rest2 * (g * g);
    }
}

static inline real quotient(real m, real v, const struct constants *k)
{
    return m / (k->eps_inside ? real_sqrt(v + k->eps) : real_sqrt(v) + k->eps);
}

static void update(struct block *b, int n, const struct constants *k, enum adam_decay decay)
{
    for (int i = 0; i < n; i++)
        b->g[i] *= k->factor;
    if (decay == DECAY_L2)
        for (int i = 0; i < n; i++)
            b->g[i] += k->decay * b->p[i];
    moments(b, n, k);
    for (int i = 0; i < n; i++) {
        real delta = quotient(b->m[i], b->v[i], k) * k->step_size;
        if (decay == DECAY_CAUTIOUS)
            delta += delta * b->p[i] > 0 ? k->decay * b->p[i] : 0;
        else if (decay == DECAY_ADAMW)
            delta += k->decay * b->p[i];
        b->p[i] -= delta;
    }
}

/* -- one parameter -------------------------------------------------------------------------------- */

static const struct adam_step *step_of(const struct adam_param *q)
{
    return q->step + (q->gate ? q->gate->late : 0);
}

static void compute(struct block *b, const struct adam_param *q, int64_t at, int n,
                    const struct scales *s, const struct constants *k)
{
    weight_read(b->p, q, at, n, &s->w);
    real_read(b->g, q->g, at, n);
    scaled_read(b->m, q->m.t, at, n, s->m);
    scaled_read(b->v, q->v.t, at, n, s->v);
    update(b, n, k, q->decay);
}

static void store(const struct block *b, const struct adam_param *q, int64_t at, int n,
                  const struct scales *s)
{
    uint32_t words[BLOCK / 8 + 2][4], *draw = NULL;
    uint64_t first = (uint64_t)(q->first + at);

    if (q->rounding == ROUND_STOCHASTIC) { /* four words are of eight elements */
        struct rng r = rng_make(q->seed, q->stream << 32 | step_of(q)->update);
        for (uint64_t i = first / 8; i <= (first + (uint64_t)n - 1) / 8; i++)
            rng_block(&r, i, words[i - first / 8]);
        draw = words[0];
    }
    weight_write(q, at, b->p, n, &s->w);
    scaled_write(q->m.t, at, b->m, n, s->m, draw, first % 8, false);
    scaled_write(q->v.t, at, b->v, n, s->v, draw, first % 8, true);
}

static struct scales old_scales(const struct adam_param *q, int64_t r)
{
    return (struct scales){ weight_scales_of(q, r), q->m.scale ? q->m.scale[r] : 1,
                            q->v.scale ? q->v.scale[r] : 1 };
}

/* The largest new numbers of a row, of the weight as w.p. */
static void row_largest(struct scales *most, const struct adam_param *q, int64_t r,
                        const struct scales *old, const struct constants *k)
{
    int64_t cols = q->g.cols;
    struct block b;

    for (int64_t at = 0; at < cols; at += BLOCK) {
        int n = cols - at < BLOCK ? (int)(cols - at) : BLOCK;
        compute(&b, q, r * cols + at, n, old, k);
        most->w.p = largest_of(most->w.p, b.p, n);
        most->m = largest_of(most->m, b.m, n);
        most->v = largest_of(most->v, b.v, n);
    }
}

/* A row whose scales depend on all of its new numbers: they are computed twice. */
static void row(const struct adam_param *q, int64_t r, const struct constants *k)
{
    int64_t cols = q->g.cols;
    struct scales old = old_scales(q, r), most = { 0 }, now;
    struct block b;

    row_largest(&most, q, r, &old, k);
    now.w = weight_new_scales(q, most.w.p);
    now.m = scale_of(q->m.t.dtype, q->m.top, most.m);
    now.v = scale_of(q->v.t.dtype, q->v.top, most.v);
    for (int64_t at = 0; at < cols; at += BLOCK) {
        int n = cols - at < BLOCK ? (int)(cols - at) : BLOCK;
        compute(&b, q, r * cols + at, n, &old, k);
        store(&b, q, r * cols + at, n, &now);
    }
    weight_put_scales(q, r, &now.w);
    if (q->m.scale)
        q->m.scale[r] = now.m;
    if (q->v.scale)
        q->v.scale[r] = now.v;
}

struct job {
    const struct adam_param *q;
    struct constants k;
    struct scales *most; /* adam_largest: of each thread */
};

static void rows(void *arg, int64_t first, int64_t count, int thread)
{
    const struct job *j = arg;
    (void)thread;
    for (int64_t r = first; r < first + count; r++)
        row(j->q, r, &j->k);
}

static void elements(void *arg, int64_t first, int64_t count, int thread)
{
    const struct job *j = arg;
    struct scales one = { weight_scales_of(j->q, 0), 1, 1 };
    struct block b;

    (void)thread;
    for (int64_t at = first; at < first + count; at += BLOCK) {
        int n = first + count - at < BLOCK ? (int)(first + count - at) : BLOCK;
        compute(&b, j->q, at, n, &one, &j->k);
        store(&b, j->q, at, n, &one);
    }
}

static void check_kept(const struct adam_param *q, struct row_scaled s)
{
    (void)q, (void)s;
    assert(tensor_count(s.t) == tensor_count(q->g));
    assert(!s.scale == !(s.t.dtype == DT_F16 || s.t.dtype == DT_E4M3));
}

static struct constants constants_of(const struct adam_param *q)
{
    const struct adam_step *step = step_of(q);
    return (struct constants){
        .beta1 = (real)q->beta1,
        .rest1 = (real)(1 - q->beta1),
        .beta2 = (real)q->beta2,
        .rest2 = (real)(1 - q->beta2),
        .eps = step->eps,
        .step_size = step->step_size,
        .decay = step->decay,
        .factor = q->gate ? q->gate->factor : 1,
        .eps_inside = q->eps_inside,
    };
}

static void adam(struct ops *o, const struct adam_param *q)
{
    int64_t count = tensor_count(q->g), n = q->g.rows, part = PART;
    struct job j = { q, constants_of(q), NULL };

    check_kept(q, q->m);
    check_kept(q, q->v);
    if (has(q->master.t))
        check_kept(q, q->master);
    assert(!weight_code_rows(q) || !has(q->w));
    if (count == 0 || (q->gate && q->gate->skip))
        return;
    if (q->copy)
        *q->copy->amax = 0;
    /* amax is one number: with a copy, all in one part. */
    if (q->master.scale || q->m.scale || q->v.scale || weight_code_rows(q)) {
        part = q->g.cols < PART ? PART / q->g.cols : 1;
        cpu_split(o, n, q->copy ? n : part, rows, &j);
    } else {
        cpu_split(o, count, q->copy ? count : part, elements, &j);
    }
}

void cpu_adam(struct ops *o, const struct adam_param *p, int n)
{
    assert(n <= ADAM_MAX);
    for (int i = 0; i < n && !cpu_failed(o); i++)
        adam(o, &p[i]);
}

static void rows_largest(void *arg, int64_t first, int64_t count, int thread)
{
    const struct job *j = arg;
    for (int64_t r = first; r < first + count; r++) {
        struct scales old = old_scales(j->q, r);
        row_largest(&j->most[thread], j->q, r, &old, &j->k);
    }
}

void cpu_adam_largest(struct ops *o, const struct adam_param *p, int n)
{
    int threads = cpu_threads(o);
    struct scales *most = cpu_scratch_bytes(o, 0, (size_t)threads * sizeof *most);

    for (int i = 0; i < n && !cpu_failed(o); i++) {
        const struct adam_param *q = &p[i];
        if (!q->largest || (q->gate && q->gate->skip))
            continue;
        memset(most, 0, (size_t)threads * sizeof *most);
        if (tensor_count(q->g)) {
            struct job j = { q, constants_of(q), most };
            cpu_split(o, q->g.rows, q->g.cols < PART ? PART / q->g.cols : 1, rows_largest, &j);
        }
        for (int k = 1; k < threads; k++) {
            most[0].m = largest_of(most[0].m, &most[k].m, 1);
            most[0].v = largest_of(most[0].v, &most[k].v, 1);
        }
        q->largest[0] = most[0].m, q->largest[1] = most[0].v;
    }
}
