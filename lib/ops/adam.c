/* adam.c - Adam, element by element, in every form of its numbers (optimizers.md 3). */
#include "base/rng.h"
#include "ops/cpu.h"

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
    real p, m, v, w; /* w: of a weight in e4m3 */
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

/* -- stored numbers --------------------------------------------------------------------------- */

static void read_scaled(real *x, struct tensor t, int64_t at, int n, real scale)
{
    if (t.dtype == DT_E4M3)
        for (int i = 0; i < n; i++)
            x[i] = e4m3_to_f32(((const uint8_t *)t.data)[at + i]);
    else
        real_read(x, t, at, n);
    if (t.dtype == DT_E4M3 || t.dtype == DT_F16)
        for (int i = 0; i < n; i++)
            x[i] *= scale;
}

/* The code of finite x, without sign, in a format of mbits mantissa bits from 2^emin on: what is cut off
 * carries with (draw + 1/2) 2^-16 of a unit. */
static uint32_t encode_drawn(float x, int mbits, int emin, uint32_t draw)
{
    uint32_t u = f32_bits(x) & 0x7fffffff, mantissa = u & 0x7fffff;
    int e = u >> 23 ? (int)(u >> 23) - 127 : -126, shift = 23 - mbits;

    mantissa |= u >> 23 ? 0x800000 : 0;
    if (e < emin) {
        shift += emin - e;
        e = emin;
    }
    if (shift > 41) /* below any carry */
        return 0;
    uint64_t sum = mantissa + ((uint64_t)(2 * draw + 1) << shift >> 17);
    return ((uint32_t)(e - emin) << mbits) + (uint32_t)(sum >> shift);
}

static uint32_t at_most(uint32_t code, uint32_t most) { return code < most ? code : most; }

/* x rounded to t: to nearest even, or as draw decides. */
static uint32_t code_of(enum dtype t, float x, const uint32_t *draw)
{
    uint32_t sign = f32_bits(x) >> 31;
    if (!draw || !isfinite(x))
        return t == DT_E4M3 ? e4m3_from_f32(x) : t == DT_F16 ? f16_from_f32(x) : bf16_from_f32(x);
    if (t == DT_E4M3)
        return sign << 7 | at_most(encode_drawn(x, 3, -6, *draw), 0x7e);
    if (t == DT_F16)
        return sign << 15 | at_most(encode_drawn(x, 10, -14, *draw), 0x7bff);
    return sign << 15 | at_most(encode_drawn(x, 7, -126, *draw), 0x7f7f);
}

/* Of element i from the words' first on, 16 bits; the second moment's have their bytes exchanged. */
static uint32_t drawn_bits(const uint32_t *words, uint64_t i, bool second)
{
    uint32_t bits = words[i / 2] >> 16 * (i % 2) & 0xffff;
    return second ? (bits >> 8 | bits << 8) & 0xffff : bits;
}

/* draw: words, the first number's bits at from; NULL: to nearest. A second moment that is not 0 does not
 * become 0. */
static void write_scaled(struct tensor t, int64_t at, const real *x, int n, real scale,
                         const uint32_t *draw, uint64_t from, bool second)
{
    bool scaled = t.dtype == DT_E4M3 || t.dtype == DT_F16;

    if (t.dtype == DT_REAL || (t.dtype == DT_BF16 && !draw)) {
        real_write(t, at, x, n, false);
        return;
    }
    for (int i = 0; i < n; i++) {
        float y = (float)(scaled ? x[i] / scale : x[i]);
        uint32_t bits = draw ? drawn_bits(draw, from + (uint64_t)i, second) : 0;
        uint32_t c = code_of(t.dtype, y, draw ? &bits : NULL);
        if (second && scaled && c == 0 && x[i] > 0)
            c = 1;
        if (t.dtype == DT_E4M3)
            ((uint8_t *)t.data)[at + i] = (uint8_t)c;
        else
            ((uint16_t *)t.data)[at + i] = (uint16_t)c;
    }
}

/* -- the weight and its master ------------------------------------------------------------------ */

static bool has_remainder(const struct adam_param *q) { return q->master.t.dtype == DT_U16; }

static void read_value(real *x, const struct adam_param *q, int64_t at, int n,
                       const struct scales *s)
{
    if (has_remainder(q)) {
        const uint16_t *hi = (const uint16_t *)q->w.data + at;
        const uint16_t *lo = (const uint16_t *)q->master.t.data + at;
        for (int i = 0; i < n; i++)
            x[i] = f32_from_bits(((uint32_t)hi[i] << 16) +
                                 (q->truncate ? lo[i] : (uint32_t)(int16_t)lo[i]));
    } else if (has(q->master.t)) {
        read_scaled(x, q->master.t, at, n, s->p);
    } else if (has(q->w)) {
        real_read(x, q->w, at, n);
    } else {
        read_scaled(x, q->copy->codes, at, n, s->w);
    }
}

static void write_value(const struct adam_param *q, int64_t at, const real *x, int n, real scale)
{
    uint16_t *hi = q->w.data, *lo = q->master.t.data;

    if (has_remainder(q)) {
        hi += at, lo += at;
        for (int i = 0; i < n; i++) {
            hi[i] = q->truncate ? (uint16_t)(f32_bits((float)x[i]) >> 16)
                                : bf16_from_f32_away((float)x[i]);
            lo[i] = (uint16_t)f32_bits((float)x[i]);
        }
        return;
    }
    if (has(q->master.t))
        write_scaled(q->master.t, at, x, n, scale, NULL, 0, false);
    if (q->w.dtype == DT_BF16 && q->master.t.dtype == DT_F32)
        for (int i = 0; i < n; i++)
            hi[at + i] = bf16_from_f32_away((float)x[i]);
    else if (has(q->w))
        real_write(q->w, at, x, n, false);
}

/* -- one parameter -------------------------------------------------------------------------------- */

static const struct adam_step *step_of(const struct adam_param *q)
{
    return q->step + (q->gate ? q->gate->late : 0);
}

static void compute(struct block *b, const struct adam_param *q, int64_t at, int n,
                    const struct scales *s, const struct constants *k)
{
    read_value(b->p, q, at, n, s);
    real_read(b->g, q->g, at, n);
    read_scaled(b->m, q->m.t, at, n, s->m);
    read_scaled(b->v, q->v.t, at, n, s->v);
    update(b, n, k, q->decay);
}

/* For products that have none in the weight's type. */
static void write_compute(const struct adam_param *q, int64_t at, int n, real scale)
{
    real x[BLOCK];
    if (has(q->w))
        real_read(x, q->w, at, n);
    else
        read_scaled(x, q->copy->codes, at, n, scale);
    real_write(q->compute, at, x, n, false);
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
    write_value(q, at, b->p, n, s->p);
    write_scaled(q->m.t, at, b->m, n, s->m, draw, first % 8, false);
    write_scaled(q->v.t, at, b->v, n, s->v, draw, first % 8, true);
    if (q->copy && has(q->w)) {
        cpu_fp8_write(q->copy, q->w, at, n);
    } else if (q->copy) {
        struct fp8_copy part = *q->copy;
        part.scale_inv = s->w;
        part.codes = tensor_of((uint8_t *)part.codes.data + at, DT_E4M3, 1, n);
        cpu_fp8_write(&part, tensor_of((real *)b->p, DT_REAL, 1, n), 0, n);
    }
    if (has(q->compute))
        write_compute(q, at, n, s->w);
}

static real largest(real most, const real *x, int n)
{
    for (int i = 0; i < n; i++) {
        real size = x[i] < 0 ? -x[i] : x[i];
        most = most == most && !(size <= most) ? size : most;
    }
    return most;
}

/* Of a weight's codes, where they are all of one scale. */
static real code_scale(const struct adam_param *q) { return q->copy ? q->copy->scale_inv : 1; }

static bool has_code_rows(const struct adam_param *q) { return q->copy && q->copy->rows; }

static struct scales old_scales(const struct adam_param *q, int64_t r)
{
    return (struct scales){ q->master.scale ? q->master.scale[r] : 1,
                            q->m.scale ? q->m.scale[r] : 1, q->v.scale ? q->v.scale[r] : 1,
                            has_code_rows(q) ? q->copy->rows[r] : code_scale(q) };
}

/* The largest new numbers of a row. */
static void row_largest(struct scales *most, const struct adam_param *q, int64_t r,
                        const struct scales *old, const struct constants *k)
{
    int64_t cols = q->g.cols;
    struct block b;

    for (int64_t at = 0; at < cols; at += BLOCK) {
        int n = cols - at < BLOCK ? (int)(cols - at) : BLOCK;
        compute(&b, q, r * cols + at, n, old, k);
        most->p = largest(most->p, b.p, n);
        most->m = largest(most->m, b.m, n);
        most->v = largest(most->v, b.v, n);
    }
}

static real scale_of(enum dtype t, const real *top, real most)
{
    return dtype_scale(t, (float)(top ? *top : most));
}

static real new_code_scale(const struct adam_param *q, real most)
{
    const real *top = q->copy ? q->copy->top : NULL;
    if (!has_code_rows(q))
        return code_scale(q);
    return top && *top == 0 ? 1 : scale_of(DT_E4M3, top, most);
}

/* A row whose scales depend on all of its new numbers: they are computed twice. */
static void row(const struct adam_param *q, int64_t r, const struct constants *k)
{
    int64_t cols = q->g.cols;
    struct scales old = old_scales(q, r), most = { 0 }, now;
    struct block b;

    row_largest(&most, q, r, &old, k);
    now.p = scale_of(q->master.t.dtype, q->master.top, most.p);
    now.m = scale_of(q->m.t.dtype, q->m.top, most.m);
    now.v = scale_of(q->v.t.dtype, q->v.top, most.v);
    now.w = new_code_scale(q, most.p);
    for (int64_t at = 0; at < cols; at += BLOCK) {
        int n = cols - at < BLOCK ? (int)(cols - at) : BLOCK;
        compute(&b, q, r * cols + at, n, &old, k);
        store(&b, q, r * cols + at, n, &now);
    }
    if (has_code_rows(q))
        q->copy->rows[r] = now.w;
    if (q->master.scale)
        q->master.scale[r] = now.p;
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
    struct scales one = { 1, 1, 1, code_scale(j->q) };
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
    assert(!has_code_rows(q) || !has(q->w));
    if (count == 0 || (q->gate && q->gate->skip))
        return;
    if (q->copy)
        *q->copy->amax = 0;
    /* amax is one number: with a copy, all in one part. */
    if (q->master.scale || q->m.scale || q->v.scale || has_code_rows(q)) {
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
            most[0].m = largest(most[0].m, &most[k].m, 1);
            most[0].v = largest(most[0].v, &most[k].v, 1);
        }
        q->largest[0] = most[0].m, q->largest[1] = most[0].v;
    }
}
