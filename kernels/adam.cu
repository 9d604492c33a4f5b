/* adam.cu - Adam, element by element, one pass over all parameters of a call.
 *
 * Contract: op_list.h, optimizers.md 3. Bytes an element of bf16 weight and gradient: weight 2 + 2,
 * gradient 2, moments 8 + 8 = 22, or 14 with bf16 moments, 10 with e4m3 moments; an fp8 copy is one
 * more, an f32 master 8 less the 2 of reading the weight, a remainder 4. Every operation rounds
 * once, in the order of lib/ops/adam.c, division and root included: the bits are the reference's.
 *
 * A parameter without scales is cut among its blocks by 8 elements a thread (1 where 16-byte
 * accesses do not fit). One with scales needs its row's largest new numbers before it can store: a
 * warp takes a row of up to 1024 columns and keeps its new moments in registers; of longer rows a
 * block computes twice, and the second reading comes from the caches as far as they hold it.
 * Types are known at run time, the same in a whole block; frequent ones have kernels of their own.
 */
#include <limits.h>
#include "adam_store.h"
#include "fp8_copy.h"
#include "gpu.h"

enum { THREADS = 256 };

/* One parameter, for the device. */
struct job {
    void *w;
    const void *g;
    kept master, m, v;
    fp8_out out; /* no codes: none */
    const struct adam_step *step;
    const struct step_gate *gate;
    int64_t count, cols;
    uint64_t first, seed, stream;
    float beta1, rest1, beta2, rest2;
    uint8_t w_type, g_type; /* enum dtype */
    uint8_t decay; /* enum adam_decay */
    bool eps_inside, truncate, drawn, wide, rows;
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
    bool eps_inside : 1, wide : 1;
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
    q.decay = p.decay, q.eps_inside = p.eps_inside, q.wide = p.wide;
    return q;
}

/* What all elements of a parameter share in this update. */
struct constants {
    float step_size, decay, inside, beside, factor; /* eps: in the root, or beside it, and 0 */
    uint32_t update;
};

template <int WIDTH> struct numbers {
    float p[WIDTH], m[WIDTH], v[WIDTH];
};

/* What a kernel knows of its job when it is compiled: MOMENTS: the type of both, DT_NONE: any;
 * RECORD: the rest, too, as the records have it; DRAWN: 0, 1, or ANY. */
enum { ANY = -1 };
template <int MOMENTS, bool RECORD, int DRAWN> struct form {
    enum { record = RECORD };
    const job &q;
    __device__ int w() const { return RECORD ? DT_BF16 : q.w_type; }
    __device__ int g() const { return RECORD ? DT_BF16 : q.g_type; }
    __device__ int m() const { return MOMENTS ? MOMENTS : q.m.type; }
    __device__ int v() const { return MOMENTS ? MOMENTS : q.v.type; }
    __device__ int master() const { return RECORD ? DT_NONE : q.master.type; }
    __device__ int decay() const { return RECORD ? DECAY_CAUTIOUS : q.decay; }
    __device__ bool drawn() const { return DRAWN == ANY ? q.drawn : DRAWN; }
};

/* -- arithmetic -------------------------------------------------------------------------------- */

template <int WIDTH, typename F>
__device__ __forceinline__ void read_value(float (&p)[WIDTH], const F &f, int64_t at, float scale)
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
        load_kept<WIDTH>(p, q.out.codes, DT_E4M3, at, q.out.scale_inv);
    }
}

template <int WIDTH, typename F>
__device__ __forceinline__ void compute(numbers<WIDTH> &x, const F &f, int64_t at,
                                        const constants &k, float p_scale, float m_scale,
                                        float v_scale)
{
    const job &q = f.q;
    float g[WIDTH], delta[WIDTH];
    read_value<WIDTH>(x.p, f, at, p_scale);
    load_kept<WIDTH>(g, q.g, f.g(), at, 1);
    load_kept<WIDTH>(x.m, q.m.data, f.m(), at, m_scale);
    load_kept<WIDTH>(x.v, q.v.data, f.v(), at, v_scale);
#pragma unroll
    for (int e = 0; e < WIDTH; e++)
        g[e] = mul(g[e], k.factor);
    if (f.decay() == DECAY_L2)
#pragma unroll
        for (int e = 0; e < WIDTH; e++)
            g[e] = add(g[e], mul(k.decay, x.p[e]));
#pragma unroll
    for (int e = 0; e < WIDTH; e++) {
        x.m[e] = add(mul(q.beta1, x.m[e]), mul(q.rest1, g[e]));
        x.v[e] = add(mul(q.beta2, x.v[e]), mul(q.rest2, mul(g[e], g[e])));
        /* eps is in one place, and adding 0 in the other changes nothing */
        float below = add(root(F::record ? x.v[e] : add(x.v[e], k.inside)), k.beside);
        delta[e] = mul(quot(x.m[e], below), k.step_size);
    }
    if (f.decay() != DECAY_L2) {
        bool everywhere = f.decay() == DECAY_ADAMW;
#pragma unroll
        for (int e = 0; e < WIDTH; e++) {
            bool shrinks = everywhere || mul(delta[e], x.p[e]) > 0;
            delta[e] = add(delta[e], shrinks ? mul(k.decay, x.p[e]) : 0);
        }
    }
#pragma unroll
    for (int e = 0; e < WIDTH; e++)
        x.p[e] = sub(x.p[e], delta[e]);
}

template <int WIDTH, typename F>
__device__ __forceinline__ void write_value(const F &f, int64_t at, const float (&p)[WIDTH],
                                            float scale, bool finite)
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

/* The numbers that the e4m3 codes are of: w as it is stored. */
template <int WIDTH, typename F>
__device__ __forceinline__ void as_weight(float (&p)[WIDTH], const F &f)
{
    bool beside = f.master() == DT_U16 || f.master() == DT_F32;
#pragma unroll
    for (int e = 0; e < WIDTH; e++) {
        if (f.w() == DT_F16)
            p[e] = __half2float(__half(__half_raw{ (uint16_t)encode_nearest(DT_F16, p[e]) }));
        else if (f.w() == DT_BF16 && f.master() == DT_U16 && f.q.truncate)
            p[e] = __uint_as_float(__float_as_uint(p[e]) & 0xffff0000u);
        else if (f.w() == DT_BF16)
            p[e] = beside ? __uint_as_float(rounded_away(p[e]) << 16) : as_stored<bf16>(p[e]);
    }
}

/* The weight in all its forms; x.p is not needed after it. */
template <int WIDTH, typename F>
__device__ __forceinline__ void write_weight(float (&p)[WIDTH], const F &f, int64_t at, float scale,
                                             uint32_t *most, bool finite)
{
    write_value<WIDTH>(f, at, p, scale, finite);
    if (f.q.out.codes) {
        as_weight<WIDTH>(p, f);
        write_codes<WIDTH>(f.q.out, at, p, most);
    }
}

template <int WIDTH, typename F>
__device__ __forceinline__ void write_moments(const float (&m)[WIDTH], const float (&v)[WIDTH],
                                              const F &f, int64_t at, const constants &k,
                                              float m_scale, float v_scale, bool finite)
{
    const job &q = f.q;
    draws<WIDTH> d;
    if (f.drawn())
        d.draw(q.seed, q.stream << 32 | k.update, q.first + (uint64_t)at);
    store_kept<WIDTH>(q.m.data, f.m(), at, m, m_scale, f.drawn(), d.m, false, finite);
    store_kept<WIDTH>(q.v.data, f.v(), at, v, v_scale, f.drawn(), d.v, true, finite);
}

/* -- blocks -------------------------------------------------------------------------------------- */

template <int WIDTH, typename F>
__device__ __forceinline__ void flat(const F &f, const constants &k, int64_t block, int64_t blocks,
                                     uint32_t *most)
{
    for (int64_t at = (block * THREADS + threadIdx.x) * WIDTH; at < f.q.count;
         at += blocks * THREADS * WIDTH) {
        numbers<WIDTH> x;
        compute<WIDTH>(x, f, at, k, 1, 1, 1);
        write_weight<WIDTH>(x.p, f, at, 1, most, false);
        write_moments<WIDTH>(x.m, x.v, f, at, k, 1, 1, false);
    }
}

/* The largest of the block's; every thread gets it. */
__device__ __forceinline__ uint32_t block_max(uint32_t x, uint32_t *warps)
{
    x = __reduce_max_sync(0xffffffffu, x);
    if (threadIdx.x % 32 == 0)
        warps[threadIdx.x / 32] = x;
    __syncthreads();
    for (int i = 0; i < THREADS / 32; i++)
        x = max(x, warps[i]);
    return x;
}

template <int WIDTH>
__device__ __forceinline__ void largest(uint32_t &most, const float (&x)[WIDTH])
{
#pragma unroll
    for (int e = 0; e < WIDTH; e++)
        most = max(most, __float_as_uint(x[e]) & 0x7fffffff);
}

/* Scales of a row, or 1. */
struct scales {
    float p, m, v;
};
__device__ __forceinline__ static scales old_scales(const job &q, int64_t r)
{
    return { q.master.scale ? q.master.scale[r] : 1, q.m.scale ? q.m.scale[r] : 1,
             q.v.scale ? q.v.scale[r] : 1 };
}
template <typename F>
__device__ __forceinline__ static scales new_scales(const F &f, uint32_t p, uint32_t m, uint32_t v)
{
    return { scale_for(f.master(), p), scale_for(f.m(), m), scale_for(f.v(), v) };
}
__device__ __forceinline__ static void store_scales(const job &q, int64_t r, const scales &s)
{
    if (q.master.scale)
        q.master.scale[r] = s.p;
    if (q.m.scale)
        q.m.scale[r] = s.m;
    if (q.v.scale)
        q.v.scale[r] = s.v;
}

/* A block's row, computed twice. */
template <int WIDTH, typename F>
__device__ __forceinline__ void row(const F &f, const constants &k, int64_t r, uint32_t *most)
{
    __shared__ uint32_t warps[3][THREADS / 32];
    const job &q = f.q;
    scales old = old_scales(q, r);
    uint32_t p_most = 0, m_most = 0, v_most = 0;
    numbers<WIDTH> x;

    for (int64_t c = threadIdx.x * WIDTH; c < q.cols; c += THREADS * WIDTH) {
        compute<WIDTH>(x, f, r * q.cols + c, k, old.p, old.m, old.v);
        largest(p_most, x.p), largest(m_most, x.m), largest(v_most, x.v);
    }
    p_most = block_max(p_most, warps[0]);
    m_most = block_max(m_most, warps[1]);
    v_most = block_max(v_most, warps[2]);
    scales now = new_scales(f, p_most, m_most, v_most);
    bool finite = max(p_most, max(m_most, v_most)) < 0x7f800000;
    for (int64_t c = threadIdx.x * WIDTH; c < q.cols; c += THREADS * WIDTH) {
        int64_t at = r * q.cols + c;
        compute<WIDTH>(x, f, at, k, old.p, old.m, old.v);
        write_weight<WIDTH>(x.p, f, at, now.p, most, finite);
        write_moments<WIDTH>(x.m, x.v, f, at, k, now.m, now.v, finite);
    }
    if (threadIdx.x == 0)
        store_scales(q, r, now);
    __syncthreads(); /* warps is used again for the next row */
}

/* A warp's row of at most 256 PARTS columns. KEEP_P: the master has a scale, too. */
template <int PARTS, bool KEEP_P, typename F>
__device__ __forceinline__ void warp_row(const F &f, const constants &k, int64_t r, uint32_t *most)
{
    const job &q = f.q;
    int cols = (int)q.cols, lane = threadIdx.x % 32;
    scales old = old_scales(q, r);
    uint32_t p_most = 0, m_most = 0, v_most = 0;
    float p[KEEP_P ? PARTS : 1][8], m[PARTS][8], v[PARTS][8];

#pragma unroll
    for (int i = 0; i < PARTS; i++) {
        int c = (32 * i + lane) * 8;
        if (c >= cols)
            continue;
        int64_t at = r * q.cols + c;
        numbers<8> x;
        compute<8>(x, f, at, k, old.p, old.m, old.v);
        largest(p_most, x.p), largest(m_most, x.m), largest(v_most, x.v);
#pragma unroll
        for (int e = 0; e < 8; e++) {
            m[i][e] = x.m[e], v[i][e] = x.v[e];
            if (KEEP_P)
                p[i][e] = x.p[e];
        }
        if (!KEEP_P)
            write_weight<8>(x.p, f, at, 1, most, false);
    }
    if (KEEP_P)
        p_most = __reduce_max_sync(0xffffffffu, p_most);
    m_most = __reduce_max_sync(0xffffffffu, m_most);
    v_most = __reduce_max_sync(0xffffffffu, v_most);
    scales now = new_scales(f, p_most, m_most, v_most);
    bool finite = max(KEEP_P ? p_most : 0, max(m_most, v_most)) < 0x7f800000;
#pragma unroll
    for (int i = 0; i < PARTS; i++) {
        int c = (32 * i + lane) * 8;
        if (c >= cols)
            continue;
        int64_t at = r * q.cols + c;
        if (KEEP_P)
            write_weight<8>(p[i], f, at, now.p, most, finite);
        write_moments<8>(m[i], v[i], f, at, k, now.m, now.v, finite);
    }
    if (lane == 0)
        store_scales(q, r, now);
}

/* -- kernels ------------------------------------------------------------------------------------- */

/* False: the step is skipped. */
__device__ __forceinline__ static bool begin(const job &q, constants &k)
{
    const adam_step &step = q.step[q.gate ? q.gate->late : 0];
    k = { step.step_size, step.decay, q.eps_inside ? step.eps : 0, q.eps_inside ? 0 : step.eps, 1,
          step.update };
    if (q.gate)
        k.factor = q.gate->factor;
    return !q.gate || !q.gate->skip;
}

/* Parameters of any forms; blocks are dealt by `end`. */
template <typename JOB>
__global__ static void __launch_bounds__(THREADS) adam_list(const __grid_constant__ jobs<JOB> all)
{
    int i = 0;
#pragma unroll
    for (int half = SEARCHED / 2; half; half /= 2)
        i += blockIdx.x >= all.end[i + half - 1] ? half : 0;
    const job &q = as_job(all.of[i]);
    form<DT_NONE, false, ANY> f = { q };
    int64_t from = i ? all.end[i - 1] : 0, block = blockIdx.x - from, blocks = all.end[i] - from;
    uint32_t most = 0;
    constants k;

    if (!begin(q, k))
        return;
    if (q.rows) {
        for (int64_t r = block; r * q.cols < q.count; r += blocks)
            if (q.wide)
                row<8>(f, k, r, &most);
            else
                row<1>(f, k, r, &most);
    } else if (q.wide) {
        flat<8>(f, k, block, blocks, &most);
    } else {
        flat<1>(f, k, block, blocks, &most);
    }
    if (q.out.codes)
        fold_amax(q.out, most);
}

/* One parameter without scales, 8 elements a thread. */
template <int MOMENTS, bool RECORD, int DRAWN>
__global__ static void __launch_bounds__(THREADS) adam_flat(const __grid_constant__ job q)
{
    form<MOMENTS, RECORD, DRAWN> f = { q };
    uint32_t most = 0;
    constants k;

    if (!begin(q, k))
        return;
    flat<8>(f, k, blockIdx.x, gridDim.x, &most);
    if (q.out.codes)
        fold_amax(q.out, most);
}

/* One parameter with scales, a row a warp. */
template <int MOMENTS, int DRAWN, int PARTS, bool KEEP_P>
__global__ static void __launch_bounds__(THREADS, 2) adam_rows(const __grid_constant__ job q)
{
    form<MOMENTS, false, DRAWN> f = { q };
    int64_t rows = q.count / q.cols, warps = (int64_t)gridDim.x * (THREADS / 32);
    uint32_t most = 0;
    constants k;

    if (!begin(q, k))
        return;
    for (int64_t r = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32; r < rows; r += warps)
        warp_row<PARTS, KEEP_P>(f, k, r, &most);
    if (q.out.codes)
        fold_amax(q.out, most);
}

/* Where the step is skipped amax stays, too. */
__global__ static void clear_amax(uint32_t *amax, const struct step_gate *gate)
{
    if (!gate || !gate->skip)
        *amax = 0;
}

/* -- launch -------------------------------------------------------------------------------------- */

static bool aligned_for_8(const void *p, int type)
{
    return !p || (uintptr_t)p % (type == DT_E4M3 ? 8 : 16) == 0;
}

static bool takes_8(const job &q)
{
    return q.count % 8 == 0 && (!q.rows || q.cols % 8 == 0) && (!q.drawn || q.first % 4 == 0) &&
           aligned_for_8(q.w, q.w_type) && aligned_for_8(q.g, q.g_type) &&
           aligned_for_8(q.master.data, q.master.type) && aligned_for_8(q.m.data, q.m.type) &&
           aligned_for_8(q.v.data, q.v.type) && aligned_for_8(q.out.codes, DT_E4M3);
}

static bool is_kept(struct row_scaled s, int64_t count)
{
    bool scaled = s.t.dtype == DT_F16 || s.t.dtype == DT_E4M3;
    return (is_float(s.t) || scaled) && scaled == (s.scale != NULL) && tensor_count(s.t) == count;
}

static kept kept_of(struct row_scaled s)
{
    return kept{ s.t.data, (float *)s.scale, (uint8_t)(s.t.data ? s.t.dtype : DT_NONE) };
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
    q.step = p->step, q.gate = p->gate;
    q.count = tensor_count(p->g), q.cols = p->g.cols;
    q.first = (uint64_t)p->first, q.seed = p->seed, q.stream = p->stream;
    q.beta1 = (float)p->beta1, q.rest1 = (float)(1 - p->beta1);
    q.beta2 = (float)p->beta2, q.rest2 = (float)(1 - p->beta2);
    q.decay = (uint8_t)p->decay, q.eps_inside = p->eps_inside, q.truncate = p->truncate;
    q.drawn = p->rounding == ROUND_STOCHASTIC;
    q.rows = q.master.scale || q.m.scale || q.v.scale;
    q.wide = takes_8(q);
    return q;
}

static bool is_record(const job &q)
{
    return q.w_type == DT_BF16 && q.g_type == DT_BF16 && q.master.type == DT_NONE && !q.drawn &&
           !q.eps_inside && q.decay == DECAY_CAUTIOUS;
}

typedef void one_kernel(job);

template <int PARTS> static one_kernel *rows_kernel(const job &q)
{
    bool same = q.m.type == q.v.type && q.master.type != DT_F16;
    if (same && q.m.type == DT_F16)
        return q.drawn ? adam_rows<DT_F16, 1, PARTS, false> : adam_rows<DT_F16, 0, PARTS, false>;
    if (same && q.m.type == DT_E4M3)
        return q.drawn ? adam_rows<DT_E4M3, 1, PARTS, false> : adam_rows<DT_E4M3, 0, PARTS, false>;
    return adam_rows<DT_NONE, ANY, PARTS, true>;
}

/* The kernel of one parameter by itself, or NULL: it goes into a list. */
static one_kernel *kernel_for(const job &q)
{
    bool same = q.m.type == q.v.type;
    if (!q.wide)
        return NULL;
    if (q.rows)
        return q.cols <= 768 ? rows_kernel<3>(q) : q.cols <= 1024 ? rows_kernel<4>(q) : NULL;
    if (same && q.m.type == DT_F32)
        return is_record(q) ? adam_flat<DT_F32, true, 0> : adam_flat<DT_F32, false, 0>;
    if (same && q.m.type == DT_BF16)
        return is_record(q) ? adam_flat<DT_BF16, true, 0>
               : q.drawn    ? adam_flat<DT_BF16, false, 1>
                            : adam_flat<DT_BF16, false, 0>;
    return adam_flat<DT_NONE, false, ANY>;
}

static bool is_plain(const job &q)
{
    return q.master.type == DT_NONE && !q.rows && !q.drawn && !q.out.codes && q.count <= UINT32_MAX;
}

static plain_job plain_of(const job &q)
{
    plain_job p = {};
    p.w = q.w, p.g = q.g, p.m = q.m.data, p.v = q.v.data, p.step = q.step, p.gate = q.gate;
    p.beta1 = q.beta1, p.rest1 = q.rest1, p.beta2 = q.beta2, p.rest2 = q.rest2;
    p.w_type = q.w_type, p.g_type = q.g_type, p.m_type = q.m.type, p.v_type = q.v.type;
    p.count = (uint32_t)q.count, p.decay = q.decay, p.eps_inside = q.eps_inside, p.wide = q.wide;
    return p;
}

static unsigned blocks_of(const job &q)
{
    int64_t n = q.rows ? q.count / q.cols : (q.count - 1) / (THREADS * (q.wide ? 8 : 1)) + 1;
    return (unsigned)(n < 1 << 26 ? n : 1 << 26);
}

static bool fits(struct cuda_ops *c, const struct adam_param *p)
{
    int64_t count = tensor_count(p->g);
    assert(!p->w.data || tensor_count(p->w) == count);
    assert(!p->copy || (p->copy->codes.dtype == DT_E4M3 && tensor_count(p->copy->codes) == count));
    assert(p->w.data || p->copy);
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

static void launch_one(struct cuda_ops *c, const job &q, one_kernel *kernel)
{
    int64_t rows = q.count / q.cols, blocks = (rows - 1) / (THREADS / 32) + 1;
    unsigned n = q.rows ? (unsigned)(blocks < 1 << 26 ? blocks : 1 << 26) : blocks_of(q);
    kernel<<<n, THREADS, 0, c->stream>>>(q);
    CUDA_LAUNCHED(c);
}

template <typename JOB> static void launch_list(struct cuda_ops *c, jobs<JOB> &all, int n)
{
    unsigned blocks = all.end[n - 1];
    for (int i = n; i < SEARCHED; i++)
        all.end[i] = UINT_MAX;
    adam_list<<<blocks, THREADS, 0, c->stream>>>(all);
    CUDA_LAUNCHED(c);
}

void gpu_adam(struct ops *o, const struct adam_param *p, int n)
{
    struct cuda_ops *c = cuda_of(o);
    struct jobs<job> all = {
    };
    struct jobs<plain_job> plain = {
    };
    bool all_plain = true;
    unsigned end = 0;
    int count = 0;

    assert(n <= ADAM_MAX);
    for (int i = 0; i < n && !c->failed; i++) {
        if (tensor_count(p[i].g) == 0 || !fits(c, &p[i]))
            continue;
        job &q = all.of[count] = job_of(&p[i]);
        if (p[i].copy)
            clear_amax<<<1, 1, 0, c->stream>>>(q.out.amax, p[i].gate);
        plain.of[count] = plain_of(q);
        all_plain &= is_plain(q);
        end += blocks_of(q);
        all.end[count] = plain.end[count] = end;
        count++;
    }
    if (c->failed || !count)
        return;
    one_kernel *kernel = count == 1 ? kernel_for(all.of[0]) : NULL;
    if (kernel)
        launch_one(c, all.of[0], kernel);
    else if (all_plain)
        launch_list(c, plain, count);
    else
        launch_list(c, all, count);
}
