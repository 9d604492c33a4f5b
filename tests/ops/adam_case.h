/* adam_case.h - one of the forms in which Adam keeps a parameter, drawn, in host memory.
 *
 *     struct adam_case c = adam_case_drawn(&seed, false);
 *     struct adam_held h = adam_held_new(&c, &seed);        // drawn values; free with adam_held_free
 *     struct adam_param p = adam_param_of(&c, &h, &step);
 *
 * A part of memory lies before each tensor where the case says so, so that 16-byte accesses do not
 * fit.
 */
#ifndef TESTS_ADAM_CASE_H
#define TESTS_ADAM_CASE_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "ops/ops.h"

struct adam_case {
    enum dtype w, g, m, v; /* w: DT_NONE where the weight is its codes alone */
    enum dtype master; /* DT_NONE, DT_F32, DT_U16, DT_F16 */
    bool truncate, copy, eps_inside;
    bool code_rows; /* codes that are the weight have a scale a row */
    bool whole; /* one scale for all rows: of moments, and with code_rows a delayed one of codes */
    bool compute; /* a bf16 copy of a weight in f16 or e4m3 */
    enum adam_decay decay;
    enum adam_rounding rounding;
    int64_t rows, cols, lead, first;
    float factor;
    char name[160];
};

enum {
    H_W,
    H_G,
    H_MASTER,
    H_M,
    H_V,
    H_CODES,
    H_MASTER_SCALE,
    H_M_SCALE,
    H_V_SCALE,
    H_AMAX,
    H_COMPUTE,
    H_W_SCALE,
    H_TOP, /* (3): of m, v, codes */
    H_N
};

struct adam_held {
    struct tensor t[H_N]; /* no data: not in this case */
    struct fp8_copy copy;
};

static inline uint32_t adam_below(uint64_t *seed, uint32_t n)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*seed >> 32) % n);
}

static inline double adam_normal(uint64_t *seed)
{
    double s = 0;
    for (int i = 0; i < 6; i++)
        s += adam_below(seed, 65536) / 65535.0 - 0.5;
    return s * 1.4142135;
}

/* frequent: bf16 weight and gradient, both moments of one type, 16-byte accesses: GPUs have kernels for these. */
static inline struct adam_case adam_case_drawn(uint64_t *seed, bool frequent)
{
    static const enum dtype kept[] = { DT_F32, DT_BF16, DT_F16, DT_E4M3 };
    static const enum dtype weight[] = { DT_F32, DT_BF16, DT_BF16, DT_F16, DT_NONE };
    static const enum dtype master[] = { DT_NONE, DT_F32, DT_U16, DT_F16 };
    static const int64_t rows[] = { 0, 1, 3, 7, 17 },
                         cols[] = { 1, 7, 8, 64, 520, 936, 1003, 8200 };
    struct adam_case c;
    memset(&c, 0, sizeof c);
    c.w = weight[adam_below(seed, 5)], c.g = kept[adam_below(seed, 2)];
    c.m = kept[adam_below(seed, 4)], c.v = kept[adam_below(seed, 4)];
    if (frequent)
        c.w = c.g = DT_BF16, c.m = c.v;
    c.master = master[adam_below(seed, 4)];
    if (c.master == DT_U16)
        c.w = DT_BF16;
    c.truncate = adam_below(seed, 2);
    c.copy = c.w == DT_NONE || adam_below(seed, 4) == 0;
    c.compute = (c.w == DT_NONE || c.w == DT_F16) && adam_below(seed, 3);
    c.code_rows = c.w == DT_NONE && adam_below(seed, 2);
    c.whole = adam_below(seed, 3) == 0;
    c.eps_inside = adam_below(seed, 3) == 0;
    c.decay = (enum adam_decay)adam_below(seed, 3);
    c.rounding = (enum adam_rounding)adam_below(seed, 2);
    c.rows = rows[adam_below(seed, 5)], c.cols = cols[adam_below(seed, 8)];
    c.lead = adam_below(seed, 3) == 0 ? 3 : 0;
    c.first = adam_below(seed, 2) ? ((int64_t)1 << 33) + adam_below(seed, 9) : adam_below(seed, 9);
    c.factor = adam_below(seed, 3) ? 1 : 0.37f;
    if (frequent) {
        c.cols = 8 * ((c.cols + 7) / 8), c.first = 8 * (c.first / 8), c.lead = 0;
        c.decay = adam_below(seed, 3) ? DECAY_CAUTIOUS : c.decay;
    }
    snprintf(c.name, sizeof c.name,
             "w %s g %s m %s v %s master %s%s decay %d%s%s%s%s%s, %lld x %lld, lead %lld",
             dtype_name(c.w), dtype_name(c.g), dtype_name(c.m), dtype_name(c.v),
             dtype_name(c.master), c.truncate ? " cut" : "", (int)c.decay,
             c.eps_inside ? " eps inside" : "", c.rounding ? " stochastic" : "",
             c.code_rows ? " rows"
             : c.copy    ? " copy"
                         : "",
             c.compute ? " compute" : "", c.whole ? " whole" : "", (long long)c.rows,
             (long long)c.cols, (long long)c.lead);
    return c;
}

static inline double adam_get(struct tensor t, int64_t i)
{
    switch (t.dtype) {
    case DT_F32: return ((const float *)t.data)[i];
    case DT_BF16: return bf16_to_f32(((const uint16_t *)t.data)[i]);
    case DT_F16: return f16_to_f32(((const uint16_t *)t.data)[i]);
    case DT_U16: return ((const uint16_t *)t.data)[i];
    default: return e4m3_to_f32(((const uint8_t *)t.data)[i]);
    }
}

static inline void adam_set(struct tensor t, int64_t i, double x)
{
    switch (t.dtype) {
    case DT_F32: ((float *)t.data)[i] = (float)x; break;
    case DT_BF16: ((uint16_t *)t.data)[i] = bf16_from_f32((float)x); break;
    case DT_F16: ((uint16_t *)t.data)[i] = f16_from_f32((float)x); break;
    case DT_U16: ((uint16_t *)t.data)[i] = (uint16_t)x; break;
    default: ((uint8_t *)t.data)[i] = e4m3_from_f32((float)x); break;
    }
}

/* Bytes before its data that a tensor of this case has. */
static inline size_t adam_lead(const struct adam_case *c, enum dtype t)
{
    return (size_t)c->lead * dtype_size(t);
}

static inline struct tensor adam_room(const struct adam_case *c, enum dtype t, int64_t cols)
{
    struct tensor x = tensor_of(NULL, t, c->rows, cols);
    size_t bytes = adam_lead(c, t) + tensor_bytes(x);
    char *p = (char *)malloc(bytes + 1);
    memset(p, 0xff, bytes + 1);
    x.data = p + adam_lead(c, t);
    return x;
}

/* Values over many binades, some of them zeros. */
static inline void adam_fill(struct tensor t, uint64_t *seed, double scale, bool positive)
{
    for (int64_t i = 0; i < tensor_count(t); i++) {
        double x = scale * ldexp(adam_normal(seed), -(int)adam_below(seed, 12));
        adam_set(t, i, adam_below(seed, 17) == 0 ? 0 : positive ? fabs(x) : x);
    }
}

static inline struct tensor adam_kept(const struct adam_case *c, enum dtype t, uint64_t *seed,
                                      double scale, bool positive, struct tensor *scales)
{
    struct tensor x = adam_room(c, t, c->cols);
    bool scaled = t == DT_F16 || t == DT_E4M3;
    adam_fill(x, seed, scaled ? 100 : scale, positive);
    *scales = scaled ? adam_room(c, DT_F32, 1) : NO_TENSOR;
    for (int64_t r = 0; scaled && r < c->rows; r++)
        adam_set(*scales, r, ldexp(scale, (int)adam_below(seed, 7) - 10));
    return x;
}

static inline struct adam_held adam_held_new(const struct adam_case *c, uint64_t *seed)
{
    struct adam_held h;
    struct adam_case one = *c;
    memset(&h, 0, sizeof h);
    one.rows = 1, one.lead = 0;
    h.t[H_G] = adam_room(c, c->g, c->cols);
    adam_fill(h.t[H_G], seed, 0.1, false);
    h.t[H_M] = adam_kept(c, c->m, seed, 0.125, false, &h.t[H_M_SCALE]);
    h.t[H_V] = adam_kept(c, c->v, seed, 0.03125, true, &h.t[H_V_SCALE]);
    if (c->w != DT_NONE) {
        h.t[H_W] = adam_room(c, c->w, c->cols);
        adam_fill(h.t[H_W], seed, 1, false);
    }
    if (c->master == DT_U16) {
        h.t[H_MASTER] = adam_room(c, DT_U16, c->cols);
        for (int64_t i = 0; i < tensor_count(h.t[H_MASTER]); i++) {
            uint32_t u = f32_bits((float)adam_normal(seed));
            ((uint16_t *)h.t[H_W].data)[i] = (uint16_t)((u + (c->truncate ? 0 : 0x8000)) >> 16);
            ((uint16_t *)h.t[H_MASTER].data)[i] = (uint16_t)u;
        }
    } else if (c->master != DT_NONE) {
        h.t[H_MASTER] = adam_kept(c, c->master, seed, 1, false, &h.t[H_MASTER_SCALE]);
    }
    if (c->copy) {
        h.t[H_CODES] = adam_room(c, DT_E4M3, c->cols);
        adam_fill(h.t[H_CODES], seed, 100, false);
        h.t[H_AMAX] = adam_room(&one, DT_F32, 1);
        adam_set(h.t[H_AMAX], 0, 7);
        h.copy.codes = h.t[H_CODES], h.copy.scale_inv = 1.6f / 448;
        h.copy.amax = (real *)h.t[H_AMAX].data;
        if (c->code_rows)
            h.t[H_W_SCALE] = adam_room(c, DT_F32, 1);
        for (int64_t r = 0; c->code_rows && r < c->rows; r++)
            adam_set(h.t[H_W_SCALE], r, ldexp(1, (int)adam_below(seed, 7) - 10));
        h.copy.rows = (real *)h.t[H_W_SCALE].data;
    }
    if (c->compute)
        h.t[H_COMPUTE] = adam_room(c, DT_BF16, c->cols);
    if (c->whole) {
        h.t[H_TOP] = adam_room(&one, DT_F32, 3);
        for (int k = 0; k < 3;
             k++) /* codes: of updates before, 0, or less than some of the new ones */
            adam_set(h.t[H_TOP], k, adam_below(seed, 4) ? ldexp(1 + adam_below(seed, 8), -3) : 0);
    }
    return h;
}

static inline size_t adam_lead_of(const struct adam_case *c, const struct adam_held *h, int i)
{
    return i == H_AMAX || i == H_TOP ? 0 : adam_lead(c, h->t[i].dtype);
}

static inline void adam_held_free(const struct adam_case *c, struct adam_held *h)
{
    for (int i = 0; i < H_N; i++)
        if (h->t[i].data)
            free((char *)h->t[i].data - adam_lead_of(c, h, i));
}

static inline struct adam_param adam_param_of(const struct adam_case *c, struct adam_held *h,
                                              const struct adam_step *step)
{
    struct adam_param p;
    memset(&p, 0, sizeof p);
    p.w = h->t[H_W], p.g = h->t[H_G];
    p.master.t = h->t[H_MASTER], p.master.scale = (real *)h->t[H_MASTER_SCALE].data;
    p.m.t = h->t[H_M], p.m.scale = (real *)h->t[H_M_SCALE].data;
    p.v.t = h->t[H_V], p.v.scale = (real *)h->t[H_V_SCALE].data;
    if (c->whole) {
        real *top = (real *)h->t[H_TOP].data;
        p.largest = top;
        p.m.top = p.m.scale ? top : NULL, p.v.top = p.v.scale ? top + 1 : NULL;
        h->copy.top = c->code_rows ? top + 2 : NULL;
    }
    p.truncate = c->truncate, p.copy = c->copy ? &h->copy : NULL;
    p.compute = h->t[H_COMPUTE];
    p.beta1 = 0.9, p.beta2 = 0.99, p.decay = c->decay, p.eps_inside = c->eps_inside;
    p.rounding = c->rounding, p.seed = 17, p.stream = 3, p.first = c->first, p.step = step;
    return p;
}

#endif
