/* adam_form.cuh - one parameter's update on a GPU, in any of the forms that adam.cu knows: what a kernel is
 * told of it (struct job), what it knows when it is compiled (struct form), and the arithmetic and the stores of
 * elements, rows and long rows.
 *
 *     form<ANY> f = { q };                          // types of run time
 *     constants k;
 *     if (begin(q, k))                                    // else the step is skipped
 *         elements<8>(f, k, at, &most);
 */
#ifndef KERNELS_ADAM_FORM_CUH
#define KERNELS_ADAM_FORM_CUH

#include <limits.h>
#include "adam_store.h"
#include "fp8_copy.h"
#include "gpu.h"

enum { THREADS = 256, LIST_THREADS = 96, ROW_THREADS = 1024 };

/* One parameter, for the device. */
struct job {
    void *w;
    const void *g;
    kept master, m, v;
    fp8_out out; /* no codes: none */
    bf16 *compute; /* of a weight in f32, f16 or e4m3; or NULL */
    float *w_scale; /* of codes that are the weight: (rows), in place of out.scale_inv; or NULL */
    const float *w_top; /* of w_scale, as a kept's top */
    uint32_t *largest; /* (2): of m and v, for adam_largest; or NULL */
    const struct adam_step *step;
    const struct step_gate *gate;
    int64_t count, cols;
    uint64_t first, seed, stream;
    float beta1, rest1, beta2, rest2;
    uint8_t w_type, g_type; /* enum dtype */
    uint8_t decay; /* enum adam_decay */
    bool eps_inside, truncate, drawn, wide, rows;
    bool fast; /* any_row and any_flat take it */
};

static kept kept_of(struct row_scaled s)
{
    return kept{ s.t.data, (float *)s.scale, (const float *)s.top,
                 (uint8_t)(s.t.data ? s.t.dtype : DT_NONE) };
}

/* A job without master, scales, copy and drawn numbers: 40 of them are few arguments, which a short
 * launch waits for. */
struct plain_job {
    void *w, *m, *v;
    const void *g;
    const struct adam_step *step;
    const struct step_gate *gate;
    float beta1, rest1, beta2, rest2;
    uint32_t count;
    uint8_t w_type : 4, g_type : 4, m_type : 4, v_type : 4, decay;
    bool eps_inside : 1, wide : 1, fast : 1;
};

enum { SEARCHED = 64 }; /* a power of two, above ADAM_MAX */

template <typename JOB> struct jobs {
    JOB of[ADAM_MAX];
    unsigned end[SEARCHED]; /* blocks up to and with this one's; behind the last one: UINT_MAX */
};

__device__ __forceinline__ static const job &as_job(const job &q) { return q; }
__device__ __forceinline__ static job as_job(const plain_job &p)
{
    job q = {};
    q.w = p.w, q.g = p.g, q.m.data = p.m, q.v.data = p.v, q.step = p.step, q.gate = p.gate;
    q.w_type = p.w_type, q.g_type = p.g_type, q.m.type = p.m_type, q.v.type = p.v_type;
    q.beta1 = p.beta1, q.rest1 = p.rest1, q.beta2 = p.beta2, q.rest2 = p.rest2;
    q.master.type = DT_NONE, q.count = p.count, q.cols = p.count;
    q.decay = p.decay, q.eps_inside = p.eps_inside, q.wide = p.wide, q.fast = p.fast;
    return q;
}

/* What all elements of a parameter share in this update. */
struct constants {
    float step_size, decay, inside, beside, factor; /* eps: in the root, or beside it, and 0 */
    uint32_t update;
    bool ordinary; /* eps is at most 2^20: root_within and quot_within */
};

/* Scales of master, moments and codes (w): a row's, the whole tensor's, or 1. */
struct scales {
    float p, m, v, w;
};

template <int WIDTH> struct numbers {
    float p[WIDTH], m[WIDTH], v[WIDTH];
    uint32_t m_most, v_most; /* bits of the largest |m| and of v, which is not negative */
};

/* A form is what a kernel knows of its job when it is compiled. RECORD: weight and gradient are bf16, moments f32, there is
 * no master, and Adam is as the records have it; ANY: nothing. */
enum form_kind { ANY, RECORD };
template <form_kind KIND> struct form {
    enum { record = KIND == RECORD };
    const job &q;
    __device__ int w() const { return record ? DT_BF16 : q.w_type; }
    __device__ int g() const { return record ? DT_BF16 : q.g_type; }
    __device__ int m() const { return record ? DT_F32 : q.m.type; }
    __device__ int v() const { return record ? DT_F32 : q.v.type; }
    __device__ int master() const { return record ? DT_NONE : q.master.type; }
    __device__ int decay() const { return record ? DECAY_CAUTIOUS : q.decay; }
    __device__ bool drawn() const { return !record && q.drawn; }
};

/* -- arithmetic -------------------------------------------------------------------------------- */

template <int WIDTH, typename F>
__device__ __forceinline__ void read_value(float (&p)[WIDTH], const F &f, int64_t at, float scale,
                                           float w_scale)
{
    const job &q = f.q;
    if (f.master() == DT_U16) {
        uint32_t hi[WIDTH], lo[WIDTH];
        load_words<WIDTH>(hi, (const uint16_t *)q.w + at);
        load_words<WIDTH>(lo, (const uint16_t *)q.master.data + at);
#pragma unroll
        for (int e = 0; e < WIDTH; e++)
            p[e] = __uint_as_float((hi[e] << 16) +
                                   (q.truncate ? lo[e] : (uint32_t)(int32_t)(int16_t)lo[e]));
    } else if (f.master() != DT_NONE) {
        load_kept<WIDTH>(p, q.master.data, f.master(), at, scale);
    } else if (f.w() != DT_NONE) {
        load_kept<WIDTH>(p, q.w, f.w(), at, 1);
    } else {
        load_kept<WIDTH>(p, q.out.codes, DT_E4M3, at, w_scale);
    }
}

/* Least and largest of numbers' bits, which for numbers >= 0 count as they do. */
struct extent {
    uint32_t least, most;
};
template <int WIDTH>
__device__ __forceinline__ extent extent_of(const float (&x)[WIDTH], uint32_t mask)
{
    extent t = { __float_as_uint(x[0]) & mask, __float_as_uint(x[0]) & mask };
#pragma unroll
    for (int e = 1; e < WIDTH; e++) {
        t.least = min(t.least, __float_as_uint(x[e]) & mask);
        t.most = max(t.most, __float_as_uint(x[e]) & mask);
    }
    return t;
}

/* True if each m is 0 or large enough for quot_within. */
template <int WIDTH> __device__ __forceinline__ bool zeros_aside(const float (&m)[WIDTH])
{
    bool all = true;
#pragma unroll
    for (int e = 0; e < WIDTH; e++)
        all &= m[e] == 0 || fabsf(m[e]) >= 0x1p-80f;
    return all;
}

/* q = m / (root of v + eps), false where a number is out of the range of root_within and quot_within: v in
 * [2^-101, 2^40], |m| in [2^-80, 2^60] or 0, as in rows without a gradient. */
template <int WIDTH, typename F>
__device__ __forceinline__ bool quotients(float (&q)[WIDTH], numbers<WIDTH> &x, const constants &k)
{
    extent m = extent_of<WIDTH>(x.m, 0x7fffffff), v = extent_of<WIDTH>(x.v, 0xffffffff);
    bool below = WIDTH > 1 && k.ordinary && v.least >= 0x0d000000 && v.most <= 0x53800000 &&
                 m.most <= 0x5d800000;
    bool zeros = below && m.least < 0x17800000;
    x.m_most = m.most, x.v_most = v.most;
    /* eps is in one place, and adding 0 in the other changes nothing */
    if (below && (!zeros || zeros_aside<WIDTH>(x.m))) {
#pragma unroll
        for (int e = 0; e < WIDTH; e++)
            q[e] = quot_within(
                x.m[e], add(root_within(F::record ? x.v[e] : add(x.v[e], k.inside)), k.beside));
        if (zeros) /* with their signs */
#pragma unroll
            for (int e = 0; e < WIDTH; e++)
                q[e] = x.m[e] == 0 ? x.m[e] : q[e];
        return true;
    }
#pragma unroll
    for (int e = 0; e < WIDTH; e++)
        q[e] = quot(x.m[e], add(root(F::record ? x.v[e] : add(x.v[e], k.inside)), k.beside));
    return false;
}

/* The new moments; x.p is needed for DECAY_L2. A scale goes into its beta, exactly, where neither is tiny. */
template <int WIDTH, typename F>
__device__ __forceinline__ void new_moments(numbers<WIDTH> &x, const F &f, int64_t at,
                                            const constants &k, const scales &s)
{
    const job &q = f.q;
    float g[WIDTH], beta1 = q.beta1, beta2 = q.beta2;
    load_kept<WIDTH>(g, q.g, f.g(), at, 1);
    load_unscaled<WIDTH>(x.m, q.m.data, f.m(), at);
    load_unscaled<WIDTH>(x.v, q.v.data, f.v(), at);
    bool scaled = has_scale(f.m()) || has_scale(f.v());
    if (scaled && s.m >= 0x1p-100f && s.v >= 0x1p-100f && beta1 >= 0x1p-20f && beta2 >= 0x1p-20f) {
        beta1 = mul(beta1, s.m), beta2 = mul(beta2, s.v);
    } else if (scaled) {
#pragma unroll
        for (int e = 0; e < WIDTH; e++)
            x.m[e] = mul(x.m[e], s.m), x.v[e] = mul(x.v[e], s.v);
    }
    if (q.gate)
#pragma unroll
        for (int e = 0; e < WIDTH; e++)
            g[e] = mul(g[e], k.factor);
    if (f.decay() == DECAY_L2)
#pragma unroll
        for (int e = 0; e < WIDTH; e++)
            g[e] = add(g[e], mul(k.decay, x.p[e]));
#pragma unroll
    for (int e = 0; e < WIDTH; e++) {
        x.m[e] = add(mul(beta1, x.m[e]), mul(q.rest1, g[e]));
        x.v[e] = add(mul(beta2, x.v[e]), mul(q.rest2, mul(g[e], g[e])));
    }
}

/* Computes new moments and weights of a thread's elements; false where quotients() is false. */
template <int WIDTH, typename F>
__device__ __forceinline__ bool compute(numbers<WIDTH> &x, const F &f, int64_t at,
                                        const constants &k, const scales &s)
{
    float delta[WIDTH];
    read_value<WIDTH>(x.p, f, at, s.p, s.w);
    new_moments<WIDTH>(x, f, at, k, s);
    bool ordinary = quotients<WIDTH, F>(delta, x, k);
    bool everywhere = f.decay() == DECAY_ADAMW, nowhere = f.decay() == DECAY_L2;
#pragma unroll
    for (int e = 0; e < WIDTH; e++) {
        delta[e] = mul(delta[e], k.step_size);
        if (!nowhere)
            delta[e] =
                add(delta[e], everywhere || mul(delta[e], x.p[e]) > 0 ? mul(k.decay, x.p[e]) : 0);
        x.p[e] = sub(x.p[e], delta[e]);
    }
    return ordinary;
}

/* finite: p is known to be. */
template <int WIDTH, typename F>
__device__ __forceinline__ void write_value(const F &f, int64_t at, const float (&p)[WIDTH],
                                            float scale, bool finite = false)
{
    const job &q = f.q;
    bool away = f.w() == DT_BF16 && (f.master() == DT_U16 || f.master() == DT_F32);
    uint32_t code[WIDTH];

    if (f.master() == DT_U16) {
#pragma unroll
        for (int e = 0; e < WIDTH; e++)
            code[e] = __float_as_uint(p[e]) & 0xffff;
        store_words<WIDTH>((uint16_t *)q.master.data + at, code);
    } else if (f.master() != DT_NONE) {
        store_nearest<WIDTH>(q.master.data, f.master(), at, p, scale, finite);
    }
    if (away) {
#pragma unroll
        for (int e = 0; e < WIDTH; e++)
            code[e] = f.master() == DT_U16 && q.truncate ? __float_as_uint(p[e]) >> 16
                                                         : rounded_away(p[e]);
        store_words<WIDTH>((uint16_t *)q.w + at, code);
    } else if (f.w() != DT_NONE) {
        store_nearest<WIDTH>(q.w, f.w(), at, p, 1, finite);
    }
}

/* The numbers that the e4m3 codes are of: w as it is stored. finite: p is known to be. */
template <int WIDTH, typename F>
__device__ __forceinline__ void as_weight(float (&p)[WIDTH], const F &f, bool finite = false)
{
    bool beside = f.master() == DT_U16 || f.master() == DT_F32;
#pragma unroll
    for (int e = 0; e < WIDTH; e++) {
        if (f.w() == DT_F16 && finite)
            p[e] = __half2float(__float2half_rn(p[e]));
        else if (f.w() == DT_F16)
            p[e] = __half2float(__half(__half_raw{ (uint16_t)encode_nearest(DT_F16, p[e]) }));
        else if (f.w() == DT_BF16 && f.master() == DT_U16 && f.q.truncate)
            p[e] = __uint_as_float(__float_as_uint(p[e]) & 0xffff0000u);
        else if (f.w() == DT_BF16)
            p[e] = beside ? __uint_as_float(rounded_away(p[e]) << 16) : as_stored<bf16>(p[e]);
    }
}

/* The weight in all its forms; x.p is not needed after it. */
template <int WIDTH, typename F>
__device__ __forceinline__ void write_weight(float (&p)[WIDTH], const F &f, int64_t at,
                                             const scales &s, uint32_t *most)
{
    const fp8_out &out = f.q.out;
    bool computed = f.w() != DT_BF16 && f.q.compute;
    write_value<WIDTH>(f, at, p, s.p);
    if (out.codes || computed)
        as_weight<WIDTH>(p, f);
    if (out.codes)
        write_codes<WIDTH>(out.codes, at, p, f.w() == DT_NONE ? s.w : out.scale_inv, most);
    if (!computed)
        return;
    if (f.w() == DT_NONE) /* this thread has just written them */
        load_kept<WIDTH>(p, out.codes, DT_E4M3, at, s.w);
    store<WIDTH>(f.q.compute + at, p);
}

template <int WIDTH, typename F>
__device__ __forceinline__ void write_moments(const float (&m)[WIDTH], const float (&v)[WIDTH],
                                              const F &f, int64_t at, const constants &k,
                                              const scales &s, bool ordinary)
{
    const job &q = f.q;
    draws<WIDTH> d;
    if (f.drawn())
        d.draw(round_keys(q.seed), (uint32_t)q.stream, k.update, q.first + (uint64_t)at);
    store_kept<WIDTH>(q.m.data, f.m(), at, m, s.m, f.drawn(), d.words, false, ordinary);
    store_kept<WIDTH>(q.v.data, f.v(), at, v, s.v, f.drawn(), d.words, true, ordinary);
}

/* -- blocks -------------------------------------------------------------------------------------- */

/* WIDTH elements without scales. */
template <int WIDTH, typename F>
__device__ __forceinline__ void elements(const F &f, const constants &k, int64_t at, uint32_t *most)
{
    const scales one = { 1, 1, 1, f.q.out.scale_inv };
    numbers<WIDTH> x;
    bool ordinary = compute<WIDTH>(x, f, at, k, one);
    write_weight<WIDTH>(x.p, f, at, one, most);
    write_moments<WIDTH>(x.m, x.v, f, at, k, one, ordinary);
}

template <int WIDTH>
__device__ __forceinline__ void largest(uint32_t &most, const float (&x)[WIDTH])
{
#pragma unroll
    for (int e = 0; e < WIDTH; e++)
        most = max(most, __float_as_uint(x[e]) & 0x7fffffff);
}

__device__ __forceinline__ static scales old_scales(const job &q, int64_t r)
{
    return { q.master.scale ? q.master.scale[r] : 1, q.m.scale ? q.m.scale[r] : 1,
             q.v.scale ? q.v.scale[r] : 1, q.w_scale ? q.w_scale[r] : q.out.scale_inv };
}
/* Returns what new scales must hold: the row's largest p, m, v, or those of the whole tensor. */
__device__ __forceinline__ static uint3 held(const job &q, uint3 row)
{
    return make_uint3(q.master.top ? __float_as_uint(*q.master.top) : row.x,
                      q.m.top ? __float_as_uint(*q.m.top) : row.y,
                      q.v.top ? __float_as_uint(*q.v.top) : row.z);
}
__device__ __forceinline__ static float new_code_scale(const job &q, uint32_t p)
{
    if (!q.w_scale)
        return q.out.scale_inv;
    if (!q.w_top)
        return scale_for(DT_E4M3, p);
    uint32_t top = __float_as_uint(*q.w_top);
    return top ? scale_for(DT_E4M3, top) : 1;
}
template <typename F>
__device__ __forceinline__ static scales new_scales(const F &f, uint3 top, uint32_t p)
{
    return { scale_for(f.master(), top.x), scale_for(f.m(), top.y), scale_for(f.v(), top.z),
             f.w() == DT_NONE ? new_code_scale(f.q, p) : f.q.out.scale_inv };
}
template <typename F>
__device__ __forceinline__ static void store_scales(const F &f, int64_t r, const scales &s)
{
    const job &q = f.q;
    if (f.w() == DT_NONE && q.w_scale)
        q.w_scale[r] = s.w;
    if (q.master.scale)
        q.master.scale[r] = s.p;
    if (q.m.scale)
        q.m.scale[r] = s.m;
    if (q.v.scale)
        q.v.scale[r] = s.v;
}

/* True if a row's numbers are finite and its scales such that store_kept may take them as `ordinary`. */
__device__ __forceinline__ static bool can_shift(const scales &now, uint3 top)
{
    return max(top.y, top.z) < 0x7f800000 && now.m >= 0x1p-100f && now.v >= 0x1p-100f;
}

/* The largest of a block's three numbers; `warps` is free again after the next barrier but one. */
__device__ __forceinline__ uint3 block_most(uint3 x, uint4 *warps)
{
    uint32_t lane = threadIdx.x % 32, all = 0xffffffffu;
    x = make_uint3(__reduce_max_sync(all, x.x), __reduce_max_sync(all, x.y),
                   __reduce_max_sync(all, x.z));
    if (lane == 0)
        warps[threadIdx.x / 32] = make_uint4(x.x, x.y, x.z, 0);
    __syncthreads();
    uint4 y = lane < blockDim.x / 32 ? warps[lane] : make_uint4(0, 0, 0, 0);
    return make_uint3(__reduce_max_sync(all, y.x), __reduce_max_sync(all, y.y),
                      __reduce_max_sync(all, y.z));
}

/* The largest p, m, v of a thread's columns of a row. */
template <int WIDTH, typename F>
__device__ __forceinline__ void row_largest(uint3 &top, const F &f, const constants &k, int64_t r,
                                            const scales &old)
{
    numbers<WIDTH> x;
    for (int64_t c = threadIdx.x * WIDTH; c < f.q.cols; c += blockDim.x * WIDTH) {
        compute<WIDTH>(x, f, r * f.q.cols + c, k, old);
        largest(top.x, x.p);
        top.y = max(top.y, x.m_most), top.z = max(top.z, x.v_most);
    }
}

/* A block's row, computed twice: the second time from its end, which the caches still hold. */
template <int WIDTH, typename F>
__device__ __forceinline__ void row_twice(const F &f, const constants &k, int64_t r, uint4 *warps,
                                          uint32_t *most)
{
    const job &q = f.q;
    int64_t each = blockDim.x * WIDTH, last = (q.cols - 1) / each * each;
    scales old = old_scales(q, r);
    uint3 own = make_uint3(0, 0, 0);
    numbers<WIDTH> x;

    row_largest<WIDTH>(own, f, k, r, old);
    own = block_most(own, warps);
    uint3 top = held(q, own);
    scales now = new_scales(f, top, own.x);
    for (int64_t c = last + threadIdx.x * WIDTH; c >= 0; c -= each) {
        int64_t at = r * q.cols + c;
        if (c >= q.cols)
            continue;
        bool ordinary = compute<WIDTH>(x, f, at, k, old);
        write_weight<WIDTH>(x.p, f, at, now, most);
        write_moments<WIDTH>(x.m, x.v, f, at, k, now, ordinary && can_shift(now, top));
    }
    if (threadIdx.x == 0)
        store_scales(f, r, now);
}

/* False: the step is skipped. */
__device__ __forceinline__ static bool begin(const job &q, constants &k)
{
    const adam_step &step = q.step[q.gate ? q.gate->late : 0];
    k = { step.step_size,
          step.decay,
          q.eps_inside ? step.eps : 0,
          q.eps_inside ? 0 : step.eps,
          1,
          step.update,
          step.eps <= 0x1p20f };
    if (q.gate)
        k.factor = q.gate->factor;
    return !q.gate || !q.gate->skip;
}

/* A row that any_row leaves: with numbers that are not finite, or out of the range of root_within
 * and quot_within. By itself, so that its code takes no registers of the other rows. The largest weight. */
template <int WIDTH>
__device__ __attribute__((noinline)) static uint32_t row_apart(const job &q, int64_t r,
                                                               uint4 *warps)
{
    form<ANY> f = { q };
    uint32_t most = 0;
    constants k;
    begin(q, k);
    row_twice<WIDTH>(f, k, r, warps, &most);
    return most;
}

#endif
