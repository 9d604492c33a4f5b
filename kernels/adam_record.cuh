/* adam_record.cuh - rows of Adam as the records have it, of types known when they are compiled: all loads
 * first, one look at the range of a thread's numbers for all roots and quotients. record_row leaves a row
 * with others to row_apart.
 */
#ifndef KERNELS_ADAM_RECORD_CUH
#define KERNELS_ADAM_RECORD_CUH

#include "adam_form.cuh"

/* A thread's columns in parts of eight: at `first` and each `step` more, those below cols. */
struct span_of_row {
    uint32_t row, first, step, cols;
    __device__ __forceinline__ span_of_row(const job &q, unsigned r)
        : row(r * (uint32_t)q.cols), first(8 * threadIdx.x), step(8 * blockDim.x),
          cols((uint32_t)q.cols)
    {
    }
    __device__ __forceinline__ bool has(int i) const { return first + i * step < cols; }
    __device__ __forceinline__ uint32_t at(int i) const { return row + first + i * step; }
};

/* Eight columns as they lie in memory. */
template <int MASTER, int MOMENTS> struct columns {
    uint4 g, p[MASTER == DT_F32 ? 2 : 1], low;
    uint4 m, v; /* of e4m3 x and y */

    __device__ __forceinline__ void fetch_value(const job &q, uint32_t at)
    {
        if constexpr (MASTER == DT_F32) {
            p[0] = ((const uint4 *)((const float *)q.master.data + at))[0];
            p[1] = ((const uint4 *)((const float *)q.master.data + at))[1];
        } else {
            p[0] =
                *(const uint4 *)((const uint16_t *)(MASTER == DT_F16 ? q.master.data : q.w) + at);
        }
        if constexpr (MASTER == DT_U16)
            low = *(const uint4 *)((const uint16_t *)q.master.data + at);
    }
    static __device__ __forceinline__ uint4 fetch_moment(const void *t, uint32_t at)
    {
        if constexpr (MOMENTS != DT_E4M3)
            return *(const uint4 *)((const uint16_t *)t + at);
        uint2 u = *(const uint2 *)((const uint8_t *)t + at);
        return make_uint4(u.x, u.y, 0, 0);
    }
    __device__ __forceinline__ void fetch_moments(const job &q, uint32_t at)
    {
        g = *(const uint4 *)((const bf16 *)q.g + at);
        m = fetch_moment(q.m.data, at), v = fetch_moment(q.v.data, at);
    }
    static __device__ __forceinline__ void decode(float (&x)[8], const uint4 &u)
    {
        if (MOMENTS == DT_BF16)
            unpack8(x, u);
        else if (MOMENTS == DT_F16)
            unpack_f16(x, u);
        else
            unpack_e4m3(x, make_uint2(u.x, u.y));
    }
    __device__ __forceinline__ void value(float (&x)[8], bool truncate, float scale) const
    {
        if constexpr (MASTER == DT_F32) {
            const uint32_t w[8] = {
                p[0].x, p[0].y, p[0].z, p[0].w, p[1].x, p[1].y, p[1].z, p[1].w
            };
#pragma unroll
            for (int e = 0; e < 8; e++)
                x[e] = __uint_as_float(w[e]);
        } else if constexpr (MASTER == DT_U16) {
            const uint32_t hi[4] = { p[0].x, p[0].y, p[0].z, p[0].w };
            const uint32_t lo[4] = { low.x, low.y, low.z, low.w };
#pragma unroll
            for (int e = 0; e < 8; e++) {
                uint32_t both = __byte_perm(lo[e / 2], hi[e / 2], e % 2 ? 0x7632 : 0x5410);
                x[e] = __uint_as_float(both - (truncate ? 0 : (both & 0x8000) << 1));
            }
        } else if constexpr (MASTER == DT_F16) {
            unpack_f16(x, p[0]);
#pragma unroll
            for (int e = 0; e < 8; e++)
                x[e] = mul(x[e], scale);
        } else {
            unpack8(x, p[0]);
        }
    }
};

/* Computes what new_moments() does, for betas that are 0 or not tiny. */
template <typename C>
__device__ __forceinline__ void next_moments(float (&m)[8], float (&v)[8], const C &in,
                                             const job &q, const constants &k, const scales &s)
{
    bool apart = !(fminf(s.m, s.v) >= 0x1p-100f);
    float g[8], beta1 = apart ? q.beta1 : mul(q.beta1, s.m);
    float beta2 = apart ? q.beta2 : mul(q.beta2, s.v);
    unpack8(g, in.g);
    C::decode(m, in.m);
    C::decode(v, in.v);
    if (apart)
#pragma unroll
        for (int e = 0; e < 8; e++)
            m[e] = mul(m[e], s.m), v[e] = mul(v[e], s.v);
    if (q.gate)
#pragma unroll
        for (int e = 0; e < 8; e++)
            g[e] = mul(g[e], k.factor);
#pragma unroll
    for (int e = 0; e < 8; e++) {
        m[e] = add(mul(beta1, m[e]), mul(q.rest1, g[e]));
        v[e] = add(mul(beta2, v[e]), mul(q.rest2, mul(g[e], g[e])));
    }
}

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
template <int PARTS>
__device__ __forceinline__ static bool usual(const reach &s, const float (&m)[PARTS][8],
                                             const span_of_row &t)
{
    bool all = usual_but_small(s);
    if (all && s.m_least >= 0x1p-80f)
        return true;
    all |= only_zeros(s);
#pragma unroll
    for (int i = 0; i < PARTS; i++)
        all &= !t.has(i) || zeros_aside<8>(m[i]);
    return all;
}
__device__ __forceinline__ static bool usual(const reach &s, const float (&m)[8])
{
    bool all = usual_but_small(s);
    return (all && s.m_least >= 0x1p-80f) || ((all || only_zeros(s)) && zeros_aside<8>(m));
}

/* p = a > 0 ? p + b : p */
__device__ __forceinline__ void add_where_positive(float &p, float a, float b)
{
#ifdef __CUDA_ARCH__
    asm("{\n\t.reg .pred t;\n\tsetp.gt.f32 t, %1, 0f00000000;\n\t@t add.rn.f32 %0, %0, %2;\n\t}"
        : "+f"(p)
        : "f"(a), "f"(b));
#else
    p = a > 0 ? p + b : p;
#endif
}

/* p of moments that are usual. eps is at least 2^-60 and the step size 2^-24, so a delta is 0 only where m is;
 * 0 in place of -0 is the same there, since cautious decay adds 0 to it. */
__device__ __forceinline__ static void record_update(float (&p)[8], const float (&m)[8],
                                                     const float (&v)[8], const constants &k,
                                                     bool zeros)
{
    float q[8];
#pragma unroll
    for (int e = 0; e < 8; e++)
        q[e] = quot_within(m[e], add(root_within(v[e]), k.beside));
    if (zeros)
#pragma unroll
        for (int e = 0; e < 8; e++)
            q[e] = m[e] == 0 ? 0 : q[e];
#pragma unroll
    for (int e = 0; e < 8; e++) {
        float delta = mul(q[e], k.step_size);
        add_where_positive(delta, mul(delta, p[e]), mul(k.decay, p[e]));
        p[e] = sub(p[e], delta);
    }
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

/* Eight moments that are usual; zeros: a thread's v all are. */
template <int MOMENTS, bool DRAWN>
__device__ __forceinline__ void store_moments(const job &q, uint32_t at, const constants &k,
                                              const round_keys &keys, const float (&m)[8],
                                              const float (&v)[8], const reach &s,
                                              const scales &now)
{
    draws<8> d = {};
    if (DRAWN) {
        d.draw(keys, (uint32_t)q.stream, k.update, q.first + (uint64_t)at);
        store_drawn_usual(q.m.data, MOMENTS, at, m, now.m, d.words, false, s.m_least);
        store_drawn_usual(q.v.data, MOMENTS, at, v, now.v, d.words, true, s.v_least);
    } else {
        store_kept<8>(q.m.data, MOMENTS, at, m, now.m, false, d.words, false, true);
        store_kept<8>(q.v.data, MOMENTS, at, v, now.v, false, d.words, true, true);
    }
    if (!has_scale(MOMENTS) || s.v_most != 0)
        return;
    if (MOMENTS == DT_E4M3) /* where 0 has become the least number */
        *(uint2 *)((uint8_t *)q.v.data + at) = make_uint2(0, 0);
    else
        store16((uint16_t *)q.v.data + at, make_uint4(0, 0, 0, 0));
}

/* A block's row. False: nothing has been stored. */
template <int PARTS, int MASTER, int MOMENTS, bool DRAWN>
__device__ __forceinline__ bool record_row(const form<RECORD, MASTER, MOMENTS> &f,
                                           const constants &k, const round_keys &keys, unsigned r,
                                           bool good, uint4 *warps)
{
    const job &q = f.q;
    constexpr bool late = MASTER == DT_F16, scaled = MOMENTS == DT_F16 || MOMENTS == DT_E4M3;
    const span_of_row t(q, r);
    columns<MASTER, MOMENTS> in[PARTS];
    float p[late ? PARTS : 1][8], m[PARTS][8], v[PARTS][8];
    reach s = NOTHING_SEEN;
    uint32_t p_most = 0;

#pragma unroll
    for (int i = 0; i < PARTS; i++)
        if (t.has(i))
            in[i].fetch_value(q, t.at(i)), in[i].fetch_moments(q, t.at(i));
    scales old = { late ? q.master.scale[r] : 1, scaled ? q.m.scale[r] : 1,
                   scaled ? q.v.scale[r] : 1, 1 };
#pragma unroll
    for (int i = 0; i < PARTS; i++)
        if (t.has(i)) {
            next_moments(m[i], v[i], in[i], q, k, old);
            extend(s, m[i], v[i]);
        }
    good &= usual<PARTS>(s, m, t);
    if constexpr (late)
#pragma unroll
        for (int i = 0; i < PARTS; i++)
            if (t.has(i)) {
                in[i].value(p[i], false, old.p);
                record_update(p[i], m[i], v[i], k, s.m_least == 0);
                largest(p_most, p[i]);
            }
    uint3 own = row_most(
        make_uint3(p_most, __float_as_uint(s.m_most), good ? __float_as_uint(s.v_most) : UINT_MAX),
        late, warps);
    uint3 top = held(q, own);
    scales now = new_scales(f, top, own.x);
    if (own.z == UINT_MAX || (late && top.x >= 0x7f800000) ||
        (scaled && !(scale_within(now.m, top.y) && scale_within(now.v, top.z))))
        return false;
#pragma unroll
    for (int i = 0; i < PARTS; i++) {
        if (!t.has(i))
            continue;
        if constexpr (late) {
            const uint32_t none[4] = {};
            store_kept<8>(q.master.data, DT_F16, t.at(i), p[i], now.p, false, none, false, true);
            store<8>((bf16 *)q.w + t.at(i), p[i]);
        } else {
            in[i].value(p[0], q.truncate, 1);
            record_update(p[0], m[i], v[i], k, s.m_least == 0);
            write_value<8>(f, t.at(i), p[0], 1);
        }
        store_moments<MOMENTS, DRAWN>(q, t.at(i), k, keys, m[i], v[i], s, now);
    }
    if (threadIdx.x == 0)
        store_scales(f, r, now);
    return true;
}

/* Returns the parts of eight columns that a thread takes: three where instructions bound the time, one
 * where bytes do (share/doc/rejected.md, Adam). */
constexpr int parts_of(int moments) { return moments == DT_E4M3 ? 3 : 1; }
constexpr int most_threads(int parts) { return parts == 1 ? ROW_THREADS : RECORD_THREADS; }

#endif
