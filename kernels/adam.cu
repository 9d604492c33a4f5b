/* adam.cu - Adam, element by element, one pass over all parameters of a call.
 *
 * Contract: op_list.h, optimizers.md 3. Bytes an element of bf16 weight and gradient: weight 2 + 2,
 * gradient 2, moments 8 + 8 = 22, or 14 with bf16 moments, 10 with e4m3 moments; an fp8 copy is one
 * more, an f32 master 8 less the 2 of reading the weight, a remainder 4, a bf16 copy of an f16 or e4m3 weight 2. Every operation rounds
 * once, in the order of lib/ops/adam.c, division and root included: the bits are the reference's.
 *
 * A thread takes 8 elements (1 where 16-byte accesses do not fit). A parameter with scales needs its row's
 * largest new numbers before it can store: a block keeps a row of up to 8192 columns in registers; longer rows
 * are computed twice, and the second reading, from the row's end, comes from the caches as far as they hold it.
 * Where Adam is as the records have it (adam_record) and moments are e4m3, a thread has 24 columns, a warp a row
 * of 768: what is done once a thread, addresses, scales, reductions, is a third.
 *
 * Of types that are known at run time only (any_row, any_elements), and so in a list of parameters, a thread
 * fetches all that it needs before it asks of what type it is: a load behind each question waits for the one before.
 *
 * Beside narrow types time is instructions, not bytes: 4 TB/s leave about 7 issue slots a byte. So roots and
 * quotients look once for what over- or underflows, and rows with such numbers are another function's; old
 * moments are not multiplied by their scale, but the beta is; roundings are the GPU's conversions, drawn ones
 * additions of integers; and types are the compiler's where they are frequent. One scale for all rows needs two
 * passes: the first computes moments alone (adam_largest).
 */
#include <limits.h>
#include "adam_store.h"
#include "fp8_copy.h"
#include "gpu.h"
#include "sm90/sm90.h"

enum { THREADS = 256, LIST_THREADS = 96, ROW_THREADS = 1024, RECORD_THREADS = 384 };

/* One parameter, for the device. */
struct job {
    void *w;
    const void *g;
    kept master, m, v;
    fp8_out out; /* no codes: none */
    bf16 *compute; /* of a weight in f16 or e4m3; or NULL */
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

/* Of a row, of all elements, or 1; w: of codes. */
struct scales {
    float p, m, v, w;
};

template <int WIDTH> struct numbers {
    float p[WIDTH], m[WIDTH], v[WIDTH];
    uint32_t m_most, v_most; /* bits of the largest |m| and of v, which is not negative */
};

/* What a kernel knows of its job when it is compiled: FORM: weight and gradient are bf16; RECORD: and Adam
 * is as the records have it; MASTER and MOMENTS: types, those of ANY form of run time. */
enum form_kind { ANY, FORM, RECORD };
template <form_kind KIND, int MASTER, int MOMENTS> struct form {
    enum { record = KIND == RECORD };
    const job &q;
    __device__ int w() const { return KIND == ANY ? q.w_type : DT_BF16; }
    __device__ int g() const { return KIND == ANY ? q.g_type : DT_BF16; }
    __device__ int m() const { return KIND == ANY ? q.m.type : MOMENTS; }
    __device__ int v() const { return KIND == ANY ? q.v.type : MOMENTS; }
    __device__ int master() const { return KIND == ANY ? q.master.type : MASTER; }
    __device__ int decay() const { return record ? DECAY_CAUTIOUS : q.decay; }
    __device__ bool drawn() const
    {
        return (KIND == ANY || (MOMENTS != DT_F32 && !(record && MOMENTS == DT_BF16))) && q.drawn;
    }
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

/* Is each m 0, or not too small for quot_within? */
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

/* As quotients(). */
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
/* What new scales hold: the row's largest numbers p, m, v, or those of the whole tensor. */
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

/* Are a row's numbers finite and its scales such that store_kept may take them as `ordinary`? */
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

/* A block's row, eight columns a thread. */
template <typename F>
__device__ __forceinline__ void row_once(const F &f, const constants &k, int64_t r, uint4 *warps,
                                         uint32_t *most)
{
    const job &q = f.q;
    int64_t at = r * q.cols + 8 * threadIdx.x;
    bool mine = 8 * threadIdx.x < q.cols, ordinary = false;
    bool late = f.master() == DT_F16 || (f.w() == DT_NONE && q.w_scale);
    scales old = old_scales(q, r);
    uint3 own = make_uint3(0, 0, 0);
    numbers<8> x;

    if (mine) {
        ordinary = compute<8>(x, f, at, k, old);
        own.y = x.m_most, own.z = x.v_most;
        if (late)
            largest(own.x, x.p);
        else
            write_weight<8>(x.p, f, at, old, most);
    }
    own = block_most(own, warps);
    uint3 top = held(q, own);
    scales now = new_scales(f, top, own.x);
    if (mine) {
        if (late)
            write_weight<8>(x.p, f, at, now, most);
        write_moments<8>(x.m, x.v, f, at, k, now, ordinary && can_shift(now, top));
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

/* A row that record_row and any_row leave: with numbers that are not finite, or out of the range of root_within
 * and quot_within. By itself, so that its code takes no registers of the other rows. The largest weight. */
template <int WIDTH>
__device__ __attribute__((noinline)) static uint32_t row_apart(const job &q, int64_t r,
                                                               uint4 *warps)
{
    form<ANY, 0, 0> f = { q };
    uint32_t most = 0;
    constants k;
    begin(q, k);
    row_twice<WIDTH>(f, k, r, warps, &most);
    return most;
}

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

/* As new_moments(); betas are 0 or not tiny. */
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

/* Of a thread's |m|, v and, where it is asked for, |p|. */
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

/* Do the steps of store_kept and store_drawn_usual hold for codes of this scale? */
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

/* Of a thread: three where instructions bound the time, one where bytes do (measured/optimizer.md). */
constexpr int parts_of(int moments) { return moments == DT_E4M3 ? 3 : 1; }
constexpr int most_threads(int parts) { return parts == 1 ? ROW_THREADS : RECORD_THREADS; }

/* One parameter as the records have it, of less than 2^31 elements, a row a block. On Hopper, where it was
 * measured; elsewhere adam_rows gives the same bits, and the program is smaller by as many kernels for each GPU. */
template <int MASTER, int MOMENTS, bool DRAWN>
__global__ static void __launch_bounds__(most_threads(parts_of(MOMENTS)))
    adam_record(const __grid_constant__ job q, const __grid_constant__ round_keys keys)
{
#ifdef SM90_CODE
    __shared__ uint4 warps[2][ROW_THREADS / 32];
    constexpr int parts = parts_of(MOMENTS);
    form<RECORD, MASTER, MOMENTS> f = { q };
    constants k;

    if (!begin(q, k))
        return;
    bool usual = k.ordinary && k.beside >= 0x1p-60f && k.step_size >= 0x1p-24f;
    if (!record_row<parts, MASTER, MOMENTS, DRAWN>(f, k, keys, blockIdx.x, usual, warps[0]))
        row_apart<8>(q, blockIdx.x, warps[1]);
#endif
}

/* -- rows and elements of any types ------------------------------------------------------------- */

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

/* As write_weight(). */
__device__ __forceinline__ void any_weight(float (&p)[8], const job &q, int64_t at,
                                           const scales &now, uint32_t *most)
{
    form<ANY, 0, 0> f = { q };
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
    form<ANY, 0, 0> f = { q };
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
        store_scales(form<ANY, 0, 0>{ q }, r, now);
    return true;
}

/* The same of any length, computed twice as in row_twice(). */
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
        store_scales(form<ANY, 0, 0>{ q }, r, now);
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

/* By itself, as row_apart(). */
template <typename JOB>
__device__ __attribute__((noinline)) static uint32_t elements_apart(const JOB &own, int64_t at)
{
    const job &q = as_job(own);
    form<ANY, 0, 0> f = { q };
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
    form<ANY, 0, 0> f = { q };
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

/* -- kernels ------------------------------------------------------------------------------------- */

/* Whose block is it? */
template <typename JOB> __device__ __forceinline__ static int job_at(const jobs<JOB> &all)
{
    int i = 0;
#pragma unroll
    for (int half = SEARCHED / 2; half; half /= 2)
        i += blockIdx.x >= all.end[i + half - 1] ? half : 0;
    return i;
}

/* Parameters of any forms; blocks, of at least THREADS, are dealt by `end`. */
template <typename JOB>
__global__ static void __launch_bounds__(ROW_THREADS)
    adam_list(const __grid_constant__ jobs<JOB> all)
{
    __shared__ uint4 warps[2][ROW_THREADS / 32];
    int i = job_at(all);
    const job &q = as_job(all.of[i]);
    int64_t from = i ? all.end[i - 1] : 0, block = blockIdx.x - from;
    uint32_t most = 0;
    constants k;

    if (!begin(q, k))
        return;
    if (!q.fast || (q.rows && q.cols > 8 * blockDim.x))
        most = any_apart(all.of[i], block, all.end[i] - from, warps);
    else if (!q.rows)
        any_flat(q, all.of[i], k, block, q.drawn, &most);
    else if (!any_row(q, k, block, q.drawn, warps[0], &most))
        most = row_apart<1>(q, block, warps[1]);
    if (q.out.codes)
        fold_amax(q.out, most);
}

/* One parameter of any types, a row a block; without scales 8 elements a thread. */
template <bool DRAWN>
__global__ static void __launch_bounds__(ROW_THREADS) adam_any_rows(const __grid_constant__ job q)
{
    __shared__ uint4 warps[2][ROW_THREADS / 32];
    uint32_t most = 0;
    constants k;

    if (!begin(q, k))
        return;
    if (!any_row(q, k, blockIdx.x, DRAWN, warps[0], &most))
        most = row_apart<1>(q, blockIdx.x, warps[1]);
    if (q.out.codes)
        fold_amax(q.out, most);
}
/* One of rows too long for that. */
__global__ static void __launch_bounds__(THREADS, 3) adam_any_long(const __grid_constant__ job q)
{
    __shared__ uint4 warps[2][THREADS / 32];
    uint32_t most = 0;
    constants k;

    if (!begin(q, k))
        return;
    if (!any_long_row(q, k, blockIdx.x, warps[0], &most))
        most = row_apart<1>(q, blockIdx.x, warps[1]);
    if (q.out.codes)
        fold_amax(q.out, most);
}
template <bool DRAWN>
__global__ static void __launch_bounds__(ROW_THREADS) adam_any_flat(const __grid_constant__ job q)
{
    uint32_t most = 0;
    constants k;

    if (!begin(q, k))
        return;
    any_flat(q, q, k, blockIdx.x, DRAWN, &most);
    if (q.out.codes)
        fold_amax(q.out, most);
}

/* One parameter without scales, 8 elements a thread. */
template <form_kind KIND, int MASTER, int MOMENTS>
__global__ static void __launch_bounds__(THREADS) adam_flat(const __grid_constant__ job q)
{
    form<KIND, MASTER, MOMENTS> f = { q };
    uint32_t most = 0;
    constants k;

    if (!begin(q, k))
        return;
    for (int64_t at = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * 8; at < q.count;
         at += (int64_t)gridDim.x * THREADS * 8)
        elements<8>(f, k, at, &most);
    if (q.out.codes)
        fold_amax(q.out, most);
}

/* One parameter with scales, a row a block. */
template <int MASTER, int MOMENTS>
__global__ static void __launch_bounds__(ROW_THREADS) adam_rows(const __grid_constant__ job q)
{
    __shared__ uint4 warps[2][ROW_THREADS / 32];
    form<FORM, MASTER, MOMENTS> f = { q };
    int64_t rows = q.count / q.cols;
    uint32_t most = 0;
    int turn = 0;
    constants k;

    if (!begin(q, k))
        return;
    for (int64_t r = blockIdx.x; r < rows; r += gridDim.x, turn ^= 1)
        row_once(f, k, r, warps[turn], &most);
    if (q.out.codes)
        fold_amax(q.out, most);
}

/* -- one scale for all rows ------------------------------------------------------------------------ */

/* The largest new m and v of all elements, which threads take WIDTH at a time: what is looked for is one number,
 * so a row need not be one block's. */
template <int WIDTH, typename F>
__device__ __forceinline__ void fold_tops(const F &f, const constants &k, int64_t block,
                                          int64_t blocks)
{
    const job &q = f.q;
    uint32_t m = 0, v = 0, all = 0xffffffffu;
    for (int64_t at = (block * THREADS + threadIdx.x) * WIDTH; at < q.count;
         at += blocks * THREADS * WIDTH) {
        numbers<WIDTH> x;
        scales s =
            old_scales(q, q.count <= INT32_MAX ? (uint32_t)at / (uint32_t)q.cols : at / q.cols);
        if (f.decay() == DECAY_L2)
            read_value<WIDTH>(x.p, f, at, s.p, s.w);
        new_moments<WIDTH>(x, f, at, k, s);
        largest(m, x.m);
        largest(v, x.v);
    }
    m = __reduce_max_sync(all, m), v = __reduce_max_sync(all, v);
    if (threadIdx.x % 32 == 0) {
        atomicMax(&q.largest[0], m);
        atomicMax(&q.largest[1], v);
    }
}

/* Of each parameter. */
__global__ static void __launch_bounds__(THREADS) adam_tops(const __grid_constant__ jobs<job> all)
{
    int i = job_at(all);
    const job &q = all.of[i];
    form<ANY, 0, 0> f = { q };
    int64_t from = i ? all.end[i - 1] : 0;
    constants k;

    if (!begin(q, k))
        return;
    if (q.wide)
        fold_tops<8>(f, k, blockIdx.x - from, all.end[i] - from);
    else
        fold_tops<1>(f, k, blockIdx.x - from, all.end[i] - from);
}

/* Of one as adam_record takes it, a row a block at a time, three parts a thread. */
template <int MOMENTS>
__global__ static void __launch_bounds__(RECORD_THREADS, 2) adam_top(const __grid_constant__ job q)
{
    unsigned rows = (uint32_t)q.count / (uint32_t)q.cols;
    float m_most = 0, v_most = 0;
    constants k;

    if (!begin(q, k))
        return;
    for (unsigned r = blockIdx.x; r < rows; r += gridDim.x) {
        const span_of_row t(q, r);
        constexpr int PARTS = 3;
        columns<DT_NONE, MOMENTS> in[PARTS];
        float m[8], v[8];
#pragma unroll
        for (int i = 0; i < PARTS; i++)
            if (t.has(i))
                in[i].fetch_moments(q, t.at(i));
        const scales old = { 1, q.m.scale[r], q.v.scale[r], 1 };
#pragma unroll
        for (int i = 0; i < PARTS; i++) {
            if (!t.has(i))
                continue;
            next_moments(m, v, in[i], q, k, old);
#pragma unroll
            for (int e = 0; e < 8; e++)
                m_most = larger(m_most, fabsf(m[e])), v_most = larger(v_most, fabsf(v[e]));
        }
    }
    uint32_t m = __reduce_max_sync(0xffffffffu, __float_as_uint(m_most));
    uint32_t v = __reduce_max_sync(0xffffffffu, __float_as_uint(v_most));
    if (threadIdx.x % 32 == 0) {
        atomicMax(&q.largest[0], m);
        atomicMax(&q.largest[1], v);
    }
}

/* What blocks then raise; where the step is skipped it stays. */
struct maxima {
    uint32_t *of[ADAM_MAX];
    const struct step_gate *gate[ADAM_MAX];
};
__global__ static void clear_maxima(const __grid_constant__ maxima all, int each)
{
    int i = threadIdx.x;
    if (!all.gate[i] || !all.gate[i]->skip)
        for (int k = 0; k < each; k++)
            all.of[i][k] = 0;
}

/* -- launch -------------------------------------------------------------------------------------- */

static bool aligned_for_8(const void *p, int type)
{
    return !p || (uintptr_t)p % (type == DT_E4M3 ? 8 : 16) == 0;
}

static bool takes_8(const job &q)
{
    return q.count % 8 == 0 && (!q.rows || q.cols % 8 == 0) && (!q.drawn || q.first % 8 == 0) &&
           aligned_for_8(q.w, q.w_type) && aligned_for_8(q.g, q.g_type) &&
           aligned_for_8(q.master.data, q.master.type) && aligned_for_8(q.m.data, q.m.type) &&
           aligned_for_8(q.v.data, q.v.type) && aligned_for_8(q.out.codes, DT_E4M3) &&
           aligned_for_8(q.compute, DT_BF16);
}

static bool is_kept(struct row_scaled s, int64_t count)
{
    bool scaled = s.t.dtype == DT_F16 || s.t.dtype == DT_E4M3;
    return (is_float(s.t) || scaled) && scaled == (s.scale != NULL) && tensor_count(s.t) == count;
}

static kept kept_of(struct row_scaled s)
{
    return kept{ s.t.data, (float *)s.scale, (const float *)s.top,
                 (uint8_t)(s.t.data ? s.t.dtype : DT_NONE) };
}

/* Is the beta 0, or not so small that the product with a scale rounds? */
static bool multiplies(float beta) { return beta == 0 || beta >= 0x1p-20f; }

enum { MOST_BLOCKS = 1 << 26 };
static unsigned blocks_of(const job &q, unsigned threads)
{
    int64_t n = q.rows ? q.count / q.cols : (q.count - 1) / (threads * (q.wide ? 8 : 1)) + 1;
    return (unsigned)(n < MOST_BLOCKS ? n : MOST_BLOCKS);
}

static job job_of(const struct adam_param *p)
{
    job q = {};
    q.w = p->w.data, q.w_type = (uint8_t)(p->w.data ? p->w.dtype : DT_NONE);
    q.g = p->g.data, q.g_type = (uint8_t)p->g.dtype;
    q.master = kept_of(p->master), q.m = kept_of(p->m), q.v = kept_of(p->v);
    if (p->copy)
        q.out = fp8_out{ (uint8_t *)p->copy->codes.data, p->copy->scale_inv,
                         (uint32_t *)p->copy->amax };
    q.compute = (bf16 *)p->compute.data;
    q.step = p->step, q.gate = p->gate;
    q.count = tensor_count(p->g), q.cols = p->g.cols;
    q.first = (uint64_t)p->first, q.seed = p->seed, q.stream = p->stream;
    q.beta1 = (float)p->beta1, q.rest1 = (float)(1 - p->beta1);
    q.beta2 = (float)p->beta2, q.rest2 = (float)(1 - p->beta2);
    q.decay = (uint8_t)p->decay, q.eps_inside = p->eps_inside, q.truncate = p->truncate;
    q.drawn = p->rounding == ROUND_STOCHASTIC;
    q.w_scale = p->copy ? (float *)p->copy->rows : NULL;
    q.w_top = p->copy ? (const float *)p->copy->top : NULL;
    q.largest = (uint32_t *)p->largest;
    q.rows = q.master.scale || q.m.scale || q.v.scale || q.w_scale;
    q.wide = takes_8(q);
    q.fast = q.wide && multiplies(q.beta1) && multiplies(q.beta2) && blocks_of(q, 32) < MOST_BLOCKS;
    return q;
}

/* As the records have it, but for master and moments. */
static bool is_record(const job &q)
{
    return q.w_type == DT_BF16 && q.g_type == DT_BF16 && !q.eps_inside && q.decay == DECAY_CAUTIOUS;
}

typedef void one_kernel(job);

template <int MASTER> static one_kernel *rows_kernel(int moments)
{
    switch (moments) {
    case DT_F16: return adam_rows<MASTER, DT_F16>;
    case DT_E4M3: return adam_rows<MASTER, DT_E4M3>;
    case DT_BF16: return MASTER == DT_F16 ? adam_rows<DT_F16, DT_BF16> : NULL;
    default: return MASTER == DT_F16 ? adam_rows<DT_F16, DT_F32> : NULL;
    }
}

template <int MASTER> static one_kernel *flat_kernel(int moments)
{
    return moments == DT_F32 ? adam_flat<FORM, MASTER, DT_F32> : adam_flat<FORM, MASTER, DT_BF16>;
}

/* Is a row more than a block holds? */
static bool is_long(const job &q) { return q.rows && q.cols > 8 * ROW_THREADS; }

/* The kernel of one parameter by itself, or NULL: it goes into a list. */
static one_kernel *kernel_for(const job &q)
{
    bool known = q.w_type == DT_BF16 && q.g_type == DT_BF16 && q.m.type == q.v.type;
    if (!q.fast)
        return NULL;
    if (is_long(q))
        return adam_any_long;
    if (!known)
        return q.rows ? (q.drawn ? adam_any_rows<true> : adam_any_rows<false>)
                      : (q.drawn ? adam_any_flat<true> : adam_any_flat<false>);
    bool record = is_record(q);
    if (record && !q.drawn && q.master.type == DT_NONE && q.m.type == DT_F32)
        return adam_flat<RECORD, DT_NONE, DT_F32>;
    if (record && !q.drawn && q.master.type == DT_NONE && q.m.type == DT_BF16)
        return adam_flat<RECORD, DT_NONE, DT_BF16>;
    switch (q.master.type) {
    case DT_F32: return q.rows ? rows_kernel<DT_F32>(q.m.type) : flat_kernel<DT_F32>(q.m.type);
    case DT_U16: return q.rows ? rows_kernel<DT_U16>(q.m.type) : flat_kernel<DT_U16>(q.m.type);
    case DT_F16: return rows_kernel<DT_F16>(q.m.type);
    default: return q.rows ? rows_kernel<DT_NONE>(q.m.type) : flat_kernel<DT_NONE>(q.m.type);
    }
}

typedef void record_kernel(job, round_keys);

template <int MASTER> static record_kernel *record_rows(int moments, bool drawn)
{
    switch (moments) {
    case DT_F16:
        return drawn ? adam_record<MASTER, DT_F16, true> : adam_record<MASTER, DT_F16, false>;
    case DT_E4M3:
        return drawn ? adam_record<MASTER, DT_E4M3, true> : adam_record<MASTER, DT_E4M3, false>;
    case DT_BF16:
        return MASTER != DT_F16 ? NULL
               : drawn          ? adam_record<DT_F16, DT_BF16, true>
                                : adam_record<DT_F16, DT_BF16, false>;
    default: return NULL;
    }
}

/* Is it one for record_row's columns? */
static bool has_record_rows(const job &q)
{
    return is_record(q) && q.wide && q.rows && q.m.type == q.v.type && q.count <= INT32_MAX &&
           q.cols <= 8 * ROW_THREADS && multiplies(q.beta1) && multiplies(q.beta2);
}
static unsigned record_threads(const job &q, int parts)
{
    return 32 * (unsigned)((q.cols + parts * 256 - 1) / (parts * 256));
}

/* As kernel_for, where record_row is for it. */
static record_kernel *record_kernel_for(const job &q)
{
    if (!has_record_rows(q) || q.out.codes || q.compute)
        return NULL;
    switch (q.master.type) {
    case DT_NONE: return record_rows<DT_NONE>(q.m.type, q.drawn);
    case DT_F32: return record_rows<DT_F32>(q.m.type, q.drawn);
    case DT_U16: return record_rows<DT_U16>(q.m.type, q.drawn);
    default: return record_rows<DT_F16>(q.m.type, q.drawn);
    }
}

/* As kernel_for, for the largest numbers. */
static one_kernel *top_kernel_for(const job &q)
{
    return !has_record_rows(q)   ? NULL
           : q.m.type == DT_F16  ? adam_top<DT_F16>
           : q.m.type == DT_E4M3 ? adam_top<DT_E4M3>
                                 : NULL;
}

static bool is_plain(const job &q)
{
    return q.master.type == DT_NONE && !q.rows && !q.drawn && !q.out.codes && !q.compute &&
           q.count <= UINT32_MAX;
}

static plain_job plain_of(const job &q)
{
    plain_job p = {};
    p.w = q.w, p.g = q.g, p.m = q.m.data, p.v = q.v.data, p.step = q.step, p.gate = q.gate;
    p.beta1 = q.beta1, p.rest1 = q.rest1, p.beta2 = q.beta2, p.rest2 = q.rest2;
    p.w_type = q.w_type, p.g_type = q.g_type, p.m_type = q.m.type, p.v_type = q.v.type;
    p.count = (uint32_t)q.count, p.decay = q.decay, p.eps_inside = q.eps_inside, p.wide = q.wide;
    p.fast = q.fast;
    return p;
}

static bool fits(struct cuda_ops *c, const struct adam_param *p)
{
    int64_t count = tensor_count(p->g);
    assert(!p->w.data || tensor_count(p->w) == count);
    assert(!p->copy || (p->copy->codes.dtype == DT_E4M3 && tensor_count(p->copy->codes) == count));
    assert(p->w.data || p->copy);
    assert(!p->w.data || !p->copy || !p->copy->rows);
    assert(!p->compute.data ||
           (p->compute.dtype == DT_BF16 && (!p->w.data || p->w.dtype == DT_F16)));
    return CUDA_NEED(c, is_float(p->g), "g must be f32 or bf16") &&
           CUDA_NEED(c, !p->w.data || is_float(p->w) || p->w.dtype == DT_F16,
                     "w must be f32, bf16 or f16") &&
           CUDA_NEED(c, is_kept(p->m, count) && is_kept(p->v, count),
                     "moments are f32, bf16, or f16 and e4m3 with scales") &&
           CUDA_NEED(c,
                     !p->master.t.data || p->master.t.dtype == DT_F32 ||
                         (p->master.t.dtype == DT_F16 && p->master.scale) ||
                         (p->master.t.dtype == DT_U16 && p->w.dtype == DT_BF16),
                     "a master is f32, f16 with scales, or u16 beside a bf16 weight");
}

/* Of a block that holds a row of a wide parameter. */
static unsigned row_threads(const job &q) { return (unsigned)((q.cols / 8 + 31) / 32 * 32); }

static void launch_one(struct cuda_ops *c, const job &q, one_kernel *kernel)
{
    unsigned threads = q.rows && !is_long(q) ? row_threads(q) : THREADS;
    kernel<<<blocks_of(q, threads), threads, 0, c->stream>>>(q);
    CUDA_LAUNCHED(c);
}

static void launch_record(struct cuda_ops *c, const job &q, record_kernel *kernel)
{
    kernel<<<(unsigned)(q.count / q.cols), record_threads(q, parts_of(q.m.type)), 0, c->stream>>>(
        q, round_keys(q.seed));
    CUDA_LAUNCHED(c);
}

/* By a kernel for one parameter; false: there is none. */
static bool launch_alone(struct cuda_ops *c, const job &q)
{
    record_kernel *rows = c->portable ? NULL : record_kernel_for(q);
    one_kernel *kernel = rows ? NULL : kernel_for(q);
    if (rows)
        launch_record(c, q, rows);
    else if (kernel)
        launch_one(c, q, kernel);
    return rows || kernel;
}

/* Is it so large that its form's own kernel, in place of the list's, saves more than a launch takes
 * (measured/optimizer.md)? */
static bool goes_alone(const job &q)
{
    bool own = q.rows && q.w_type == DT_BF16 && q.g_type == DT_BF16 && q.m.type == q.v.type;
    return (own || is_long(q)) &&
           q.count >= (is_long(q) || q.m.type == DT_E4M3 ? 1 << 22 : 1 << 24);
}

/* Warps a multiprocessor: as measured (measured/optimizer.md). */
static void launch_top(struct cuda_ops *c, const job &q, one_kernel *kernel)
{
    unsigned threads = record_threads(q, 3), warps = q.m.type == DT_E4M3 ? 16 : 64;
    int64_t rows = q.count / q.cols, blocks = 32 * warps * (unsigned)c->sms / threads;
    kernel<<<(unsigned)(rows < blocks ? rows : blocks), threads, 0, c->stream>>>(q);
    CUDA_LAUNCHED(c);
}

/* `end` behind the last of n; all blocks. */
template <typename JOB> static unsigned close_list(jobs<JOB> &all, int n)
{
    for (int i = n; i < SEARCHED; i++)
        all.end[i] = UINT_MAX;
    return all.end[n - 1];
}

/* Threads of a block that holds each row of n parameters, where it can. */
static unsigned list_threads(const job *q, int n)
{
    unsigned most = 0;
    for (int i = 0; i < n; i++)
        if (q[i].rows && q[i].fast && !is_long(q[i]))
            most = most > row_threads(q[i]) ? most : row_threads(q[i]);
    return most == 0 ? THREADS : most < LIST_THREADS ? LIST_THREADS : most;
}

template <typename JOB>
static void launch_list(struct cuda_ops *c, jobs<JOB> &all, int n, unsigned threads)
{
    unsigned blocks = close_list(all, n);
    adam_list<<<blocks, threads, 0, c->stream>>>(all);
    CUDA_LAUNCHED(c);
}

static void launch_clear(struct cuda_ops *c, const maxima &all, int n, int each)
{
    clear_maxima<<<1, n, 0, c->stream>>>(all, each);
    CUDA_LAUNCHED(c);
}

void gpu_adam_largest(struct ops *o, const struct adam_param *p, int n)
{
    struct cuda_ops *c = cuda_of(o);
    int64_t most = 8 * c->sms; /* blocks: each warp ends with two atomic maxima at one address */
    struct jobs<job> all = {
    };
    maxima tops = {};
    job jobs_of[ADAM_MAX];
    unsigned end = 0;
    int count = 0, cleared = 0, listed = 0;

    assert(n <= ADAM_MAX);
    for (int i = 0; i < n && !c->failed; i++) {
        if (!p[i].largest)
            continue;
        tops.of[cleared] = (uint32_t *)p[i].largest, tops.gate[cleared++] = p[i].gate;
        if (tensor_count(p[i].g) == 0 || !fits(c, &p[i]))
            continue;
        jobs_of[count++] = job_of(&p[i]);
    }
    if (!c->failed && cleared)
        launch_clear(c, tops, cleared, 2);
    for (int i = 0; i < count && !c->failed; i++) {
        const job &q = jobs_of[i];
        one_kernel *kernel = count == 1 || goes_alone(q) ? top_kernel_for(q) : NULL;
        if (kernel) {
            launch_top(c, q, kernel);
            continue;
        }
        int64_t blocks = (q.count - 1) / (THREADS * (q.wide ? 8 : 1)) + 1;
        end += (unsigned)(blocks < most ? blocks : most);
        all.of[listed] = q, all.end[listed++] = end;
    }
    if (c->failed || !listed)
        return;
    close_list(all, listed);
    adam_tops<<<end, THREADS, 0, c->stream>>>(all);
    CUDA_LAUNCHED(c);
}

void gpu_adam(struct ops *o, const struct adam_param *p, int n)
{
    struct cuda_ops *c = cuda_of(o);
    struct jobs<job> all = {
    };
    struct jobs<plain_job> plain = {
    };
    maxima amax = {};
    job jobs_of[ADAM_MAX];
    bool all_plain = true;
    unsigned end = 0;
    int count = 0, cleared = 0, listed = 0;

    assert(n <= ADAM_MAX);
    for (int i = 0; i < n && !c->failed; i++) {
        if (tensor_count(p[i].g) == 0 || !fits(c, &p[i]))
            continue;
        job &q = jobs_of[count++] = job_of(&p[i]);
        if (p[i].copy)
            amax.of[cleared] = q.out.amax, amax.gate[cleared++] = q.gate;
    }
    if (!c->failed && cleared)
        launch_clear(c, amax, cleared, 1);
    for (int i = 0; i < count && !c->failed; i++)
        if ((count > 1 && !goes_alone(jobs_of[i])) || !launch_alone(c, jobs_of[i]))
            all.of[listed++] = jobs_of[i], all_plain &= is_plain(jobs_of[i]);
    if (c->failed || !listed)
        return;
    unsigned threads = list_threads(all.of, listed);
    for (int i = 0; i < listed; i++) {
        plain.of[i] = plain_of(all.of[i]);
        end += blocks_of(all.of[i], threads);
        all.end[i] = plain.end[i] = end;
    }
    if (all_plain)
        launch_list(c, plain, listed, threads);
    else
        launch_list(c, all, listed, threads);
}
