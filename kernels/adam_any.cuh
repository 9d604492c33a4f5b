/* adam_any.cuh - rows and elements of Adam of types known at run time only: a thread fetches all that it
 * needs before it asks of what type it is, since a load behind each question waits for the one before.
 * What is out of the ordinary is computed by functions of their own, whose code takes no registers of
 * the others.
 */
#ifndef KERNELS_ADAM_ANY_CUH
#define KERNELS_ADAM_ANY_CUH

#include "adam_form.cuh"

/* The larger and the smaller of two numbers; a NaN if one is. */
__device__ __forceinline__ float larger(float a, float b)
{
#ifdef __CUDA_ARCH__
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
#else
    return a != a || a > b ? a : b;
#endif
}
__device__ __forceinline__ float smaller(float a, float b)
{
#ifdef __CUDA_ARCH__
    float y;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
#else
    return a != a || a < b ? a : b;
#endif
}

/* The least and largest |m| and v of a thread, and its largest |p| where a kernel wants it. */
struct reach {
    float m_least, m_most, v_least, v_most, p_most;
};
#define NOTHING_SEEN \
    { \
        1, 0, 1, 0, 0 \
    }
__device__ __forceinline__ static void extend(reach &s, const float (&m)[8], const float (&v)[8])
{
#pragma unroll
    for (int e = 0; e < 8; e++) {
        s.m_most = larger(s.m_most, fabsf(m[e])), s.m_least = smaller(s.m_least, fabsf(m[e]));
        s.v_most = larger(s.v_most, v[e]), s.v_least = smaller(s.v_least, v[e]);
    }
}

/* May root_within and quot_within take them: v in [2^-101, 2^40], |m| in [2^-80, 2^60] or 0, as in rows without a
 * gradient; or zeros alone? */
__device__ __forceinline__ static bool usual_but_small(const reach &s)
{
    return s.m_most <= 0x1p60f && s.v_most <= 0x1p40f && s.v_least >= 0x1p-101f;
}
__device__ __forceinline__ static bool only_zeros(const reach &s)
{
    return s.m_most == 0 && s.v_most == 0;
}
__device__ __forceinline__ static bool usual(const reach &s, const float (&m)[8])
{
    bool all = usual_but_small(s);
    return (all && s.m_least >= 0x1p-80f) || ((all || only_zeros(s)) && zeros_aside<8>(m));
}

/* The largest of a block's numbers, of one warp or several. */
__device__ __forceinline__ uint3 row_most(uint3 x, bool has_p, uint4 *warps)
{
    uint32_t lane = threadIdx.x % 32, all = 0xffffffffu;
    for (bool last = blockDim.x == 32;; last = true) {
        x.x = has_p ? __reduce_max_sync(all, x.x) : 0;
        x.y = __reduce_max_sync(all, x.y), x.z = __reduce_max_sync(all, x.z);
        if (last)
            return x;
        if (lane == 0)
            warps[threadIdx.x / 32] = make_uint4(x.x, x.y, x.z, 0);
        __syncthreads();
        uint4 y = lane < blockDim.x / 32 ? warps[lane] : make_uint4(0, 0, 0, 0);
        x = make_uint3(y.x, y.y, y.z);
    }
}

/* True if the steps of store_kept and store_drawn_usual hold for codes of this scale. */
__device__ __forceinline__ static bool scale_within(float scale, uint32_t most)
{
    return most < 0x7f800000 && scale <= 0x1p20f && (scale >= 0x1p-100f || most == 0);
}

/* Eight numbers as they lie in memory, of a type known at run time: all loads of a thread are on their way
 * before it looks at the first number. */
struct raw8 {
    uint4 lo, hi; /* f32: both; e4m3: x and y of lo */
};
__device__ __forceinline__ void fetch(raw8 &x, const void *p, int type, int64_t at)
{
    if (type == DT_F32) {
        x.lo = ((const uint4 *)((const float *)p + at))[0];
        x.hi = ((const uint4 *)((const float *)p + at))[1];
    } else if (type == DT_E4M3) {
        uint2 u = *(const uint2 *)((const uint8_t *)p + at);
        x.lo.x = u.x, x.lo.y = u.y;
    } else {
        x.lo = *(const uint4 *)((const uint16_t *)p + at);
    }
}
__device__ __forceinline__ void decode(float (&x)[8], const raw8 &u, int type)
{
    if (type == DT_F32) {
        const uint32_t w[8] = { u.lo.x, u.lo.y, u.lo.z, u.lo.w, u.hi.x, u.hi.y, u.hi.z, u.hi.w };
#pragma unroll
        for (int e = 0; e < 8; e++)
            x[e] = __uint_as_float(w[e]);
    } else if (type == DT_BF16) {
        unpack8(x, u.lo);
    } else if (type == DT_F16) {
        unpack_f16(x, u.lo);
    } else {
        unpack_e4m3(x, make_uint2(u.lo.x, u.lo.y));
    }
}

/* Eight columns of a parameter; p: of the master, the weight or its codes; a bf16 weight in lo with its low halves
 * in hi. */
struct any_columns {
    raw8 g, p, m, v;

    static __device__ __forceinline__ int value_type(const job &q)
    {
        return q.master.type != DT_NONE ? q.master.type : q.w_type != DT_NONE ? q.w_type : DT_E4M3;
    }
    __device__ __forceinline__ void fetch_all(const job &q, int64_t at)
    {
        fetch(g, q.g, q.g_type, at);
        fetch(m, q.m.data, q.m.type, at);
        fetch(v, q.v.data, q.v.type, at);
        if (q.master.type == DT_U16) {
            fetch(p, q.w, DT_BF16, at);
            p.hi = *(const uint4 *)((const uint16_t *)q.master.data + at);
        } else {
            fetch(p,
                  q.master.type != DT_NONE ? q.master.data
                  : q.w_type != DT_NONE    ? q.w
                                           : q.out.codes,
                  value_type(q), at);
        }
    }
    __device__ __forceinline__ void value(float (&x)[8], const job &q, const scales &s) const
    {
        int type = value_type(q);
        if (type == DT_U16) {
            const uint32_t hi[4] = { p.lo.x, p.lo.y, p.lo.z, p.lo.w };
            const uint32_t lo[4] = { p.hi.x, p.hi.y, p.hi.z, p.hi.w };
#pragma unroll
            for (int e = 0; e < 8; e++) {
                uint32_t both = __byte_perm(lo[e / 2], hi[e / 2], e % 2 ? 0x7632 : 0x5410);
                x[e] = __uint_as_float(both - (q.truncate ? 0 : (both & 0x8000) << 1));
            }
            return;
        }
        decode(x, p, type);
        float scale = type == DT_F16 && q.master.type != DT_NONE ? s.p : type == DT_E4M3 ? s.w : 1;
        if (scale != 1)
#pragma unroll
            for (int e = 0; e < 8; e++)
                x[e] = mul(x[e], scale);
    }
};

/* The new numbers p, m, v of eight columns. False: some may not be those of the reference: they are not usual(), or p
 * is above 2^60. */
__device__ __forceinline__ bool any_update(float (&p)[8], float (&m)[8], float (&v)[8], reach &s,
                                           const any_columns &in, const job &q, const constants &k,
                                           const scales &old)
{
    bool apart = !(fminf(old.m, old.v) >= 0x1p-100f);
    float g[8], beta1 = apart ? q.beta1 : mul(q.beta1, old.m);
    float beta2 = apart ? q.beta2 : mul(q.beta2, old.v);
    decode(g, in.g, q.g_type);
    decode(m, in.m, q.m.type);
    decode(v, in.v, q.v.type);
    in.value(p, q, old);
    if (apart)
#pragma unroll
        for (int e = 0; e < 8; e++)
            m[e] = mul(m[e], old.m), v[e] = mul(v[e], old.v);
    if (q.gate)
#pragma unroll
        for (int e = 0; e < 8; e++)
            g[e] = mul(g[e], k.factor);
    if (q.decay == DECAY_L2)
#pragma unroll
        for (int e = 0; e < 8; e++)
            g[e] = add(g[e], mul(k.decay, p[e]));
#pragma unroll
    for (int e = 0; e < 8; e++) {
        m[e] = add(mul(beta1, m[e]), mul(q.rest1, g[e]));
        v[e] = add(mul(beta2, v[e]), mul(q.rest2, mul(g[e], g[e])));
    }
    extend(s, m, v);
    float delta[8], most = 0;
#pragma unroll
    for (int e = 0; e < 8; e++)
        delta[e] = quot_within(m[e], add(root_within(add(v[e], k.inside)), k.beside));
    if (s.m_least == 0) /* with their signs */
#pragma unroll
        for (int e = 0; e < 8; e++)
            delta[e] = m[e] == 0 ? m[e] : delta[e];
#pragma unroll
    for (int e = 0; e < 8; e++)
        delta[e] = mul(delta[e], k.step_size);
    if (q.decay == DECAY_CAUTIOUS)
#pragma unroll
        for (int e = 0; e < 8; e++)
            delta[e] = add(delta[e], mul(delta[e], p[e]) > 0 ? mul(k.decay, p[e]) : 0);
    else if (q.decay == DECAY_ADAMW)
#pragma unroll
        for (int e = 0; e < 8; e++)
            delta[e] = add(delta[e], mul(k.decay, p[e]));
#pragma unroll
    for (int e = 0; e < 8; e++) {
        p[e] = sub(p[e], delta[e]);
        most = larger(most, fabsf(p[e]));
    }
    s.p_most = larger(s.p_most, most);
    return k.ordinary && s.p_most <= 0x1p60f && usual(s, m);
}

/* A weight's codes, x at most 2^60; power: the scale is a power of two. */
__device__ __forceinline__ uint2 codes_within(const float (&x)[8], float scale, bool power)
{
    float y[8];
    if (power) {
        float by = __uint_as_float((254u << 23) - __float_as_uint(scale));
#pragma unroll
        for (int e = 0; e < 8; e++)
            y[e] = mul(x[e], by);
    } else { /* what is below the range of quot_within has the code 0, with its sign */
#pragma unroll
        for (int e = 0; e < 8; e++)
            y[e] = copysignf(quot_within(x[e], scale), x[e]);
    }
    return pack_e4m3(y);
}

/* Writes weights of any stored type, as write_weight() does those of a compiled form. */
__device__ __forceinline__ void any_weight(float (&p)[8], const job &q, int64_t at,
                                           const scales &now, uint32_t *most)
{
    form<ANY> f = { q };
    bool computed = q.w_type != DT_BF16 && q.compute;
    write_value<8>(f, at, p, now.p, true);
    if (!q.out.codes && !computed)
        return;
    as_weight<8>(p, f, true);
    if (q.out.codes) {
        largest(*most, p);
        bool own = q.w_type == DT_NONE;
        float scale = own ? now.w : q.out.scale_inv;
        uint2 codes = codes_within(p, scale, own && q.w_scale);
        *(uint2 *)(q.out.codes + at) = codes;
        if (own && computed) {
            unpack_e4m3(p, codes);
#pragma unroll
            for (int e = 0; e < 8; e++)
                p[e] = mul(p[e], scale);
        }
    }
    if (computed)
        store<8>(q.compute + at, p);
}

__device__ __forceinline__ void any_moment(const kept &t, int64_t at, const float (&x)[8],
                                           float scale, bool drawn, const uint32_t (&draw)[4],
                                           bool second, float least, float most)
{
    const uint32_t none[4] = {};
    if (drawn && t.type != DT_F32)
        store_drawn_usual(t.data, t.type, at, x, scale, draw, second, least);
    else
        store_kept<8>(t.data, t.type, at, x, scale, false, none, second, true);
    if (!second || !has_scale(t.type) || most != 0)
        return;
    if (t.type == DT_E4M3) /* where 0 has become the least number */
        *(uint2 *)((uint8_t *)t.data + at) = make_uint2(0, 0);
    else
        store16((uint16_t *)t.data + at, make_uint4(0, 0, 0, 0));
}
__device__ __forceinline__ void any_moments(const job &q, int64_t at, const constants &k,
                                            const float (&m)[8], const float (&v)[8],
                                            const reach &s, const scales &now, bool drawn)
{
    draws<8> d = {};
    if (drawn)
        d.draw(round_keys(q.seed), (uint32_t)q.stream, k.update, q.first + (uint64_t)at);
    any_moment(q.m, at, m, now.m, drawn, d.words, false, s.m_least, s.m_most);
    any_moment(q.v, at, v, now.v, drawn, d.words, true, s.v_least, s.v_most);
}

/* The new scales of a block's row, of which a thread has seen s. False: it has numbers out of the ordinary. */
__device__ __forceinline__ bool any_scales(scales &now, const reach &s, bool good, const job &q,
                                           uint4 *warps)
{
    form<ANY> f = { q };
    uint3 own = row_most(make_uint3(__float_as_uint(s.p_most), __float_as_uint(s.m_most),
                                    good ? __float_as_uint(s.v_most) : UINT_MAX),
                         true, warps);
    uint3 top = held(q, own);
    now = new_scales(f, top, own.x);
    return own.z != UINT_MAX && (!has_scale(q.m.type) || scale_within(now.m, top.y)) &&
           (!has_scale(q.v.type) || scale_within(now.v, top.z));
}

/* A block's row of up to 8 columns a thread. False: nothing has been stored. */
__device__ __forceinline__ bool any_row(const job &q, const constants &k, int64_t r, bool drawn,
                                        uint4 *warps, uint32_t *most)
{
    int64_t at = r * q.cols + 8 * threadIdx.x;
    bool mine = 8 * threadIdx.x < q.cols, good = true;
    float p[8], m[8], v[8];
    reach s = NOTHING_SEEN;
    any_columns in;
    scales now;

    if (mine)
        in.fetch_all(q, at);
    scales old = old_scales(q, r);
    if (mine)
        good = any_update(p, m, v, s, in, q, k, old);
    if (!any_scales(now, s, good, q, warps))
        return false;
    if (mine) {
        any_moments(q, at, k, m, v, s, now, drawn);
        any_weight(p, q, at, now, most);
    }
    if (threadIdx.x == 0)
        store_scales(form<ANY>{ q }, r, now);
    return true;
}

/* Updates a row of any length, computed twice as in row_twice(). */
__device__ __forceinline__ bool any_long_row(const job &q, const constants &k, int64_t r,
                                             uint4 *warps, uint32_t *most)
{
    int64_t each = blockDim.x * 8, last = (q.cols - 1) / each * each;
    scales old = old_scales(q, r), now;
    float p[8], m[8], v[8];
    reach all = NOTHING_SEEN;
    bool good = true;
    any_columns in;

    for (int64_t c = 8 * threadIdx.x; c < q.cols; c += each) {
        reach s = NOTHING_SEEN;
        in.fetch_all(q, r * q.cols + c);
        good &= any_update(p, m, v, s, in, q, k, old);
        all.p_most = larger(all.p_most, s.p_most), all.m_most = larger(all.m_most, s.m_most);
        all.v_most = larger(all.v_most, s.v_most);
    }
    if (!any_scales(now, all, good, q, warps))
        return false;
    for (int64_t c = last + 8 * threadIdx.x; c >= 0; c -= each) {
        int64_t at = r * q.cols + c;
        reach s = NOTHING_SEEN;
        if (c >= q.cols)
            continue;
        in.fetch_all(q, at);
        any_update(p, m, v, s, in, q, k, old);
        any_moments(q, at, k, m, v, s, now, q.drawn);
        any_weight(p, q, at, now, most);
    }
    if (threadIdx.x == 0)
        store_scales(form<ANY>{ q }, r, now);
    return true;
}

/* Eight elements without scales. False: nothing has been stored. */
__device__ __forceinline__ bool any_elements(const job &q, const constants &k, int64_t at,
                                             bool drawn, uint32_t *most)
{
    const scales one = { 1, 1, 1, q.out.scale_inv };
    float p[8], m[8], v[8];
    reach s = NOTHING_SEEN;
    any_columns in;

    in.fetch_all(q, at);
    if (!any_update(p, m, v, s, in, q, k, one))
        return false;
    any_moments(q, at, k, m, v, s, one, drawn);
    any_weight(p, q, at, one, most);
    return true;
}

/* Updates eight elements by itself, as row_apart() does a row. */
template <typename JOB>
__device__ __attribute__((noinline)) static uint32_t elements_apart(const JOB &own, int64_t at)
{
    const job &q = as_job(own);
    form<ANY> f = { q };
    uint32_t most = 0;
    constants k;

    begin(q, k);
    for (int64_t i = at; i < at + 8; i++)
        elements<1>(f, k, i, &most);
    return most;
}

/* A block's part of eight elements a thread. */
template <typename JOB>
__device__ __forceinline__ void any_flat(const job &q, const JOB &own, const constants &k,
                                         int64_t block, bool drawn, uint32_t *most)
{
    int64_t at = (block * blockDim.x + threadIdx.x) * 8;
    if (at < q.count && !any_elements(q, k, at, drawn, most))
        *most = elements_apart(own, at);
}

/* What those do not take: rows too long for a block, too many blocks, elements one at a time. */
template <typename JOB>
__device__ __attribute__((noinline)) static uint32_t any_apart(const JOB &own, int64_t block,
                                                               int64_t blocks, uint4 (*warps)[32])
{
    const job &q = as_job(own);
    form<ANY> f = { q };
    uint32_t most = 0;
    int turn = 0;
    constants k;

    begin(q, k);
    if (q.rows) {
        for (int64_t r = block; r * q.cols < q.count; r += blocks, turn ^= 1)
            row_twice<1>(f, k, r, warps[turn], &most);
    } else {
        for (int64_t at = block * blockDim.x + threadIdx.x; at < q.count; at += blocks * blockDim.x)
            elements<1>(f, k, at, &most);
    }
    return most;
}

#endif
