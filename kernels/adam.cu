/* adam.cu - Adam, element by element, one pass over all parameters of a call.
 *
 * Contract: op_list.h, optimizers.md 3. Bytes an element of bf16 weight and gradient: weight 2 + 2,
 * gradient 2, moments 8 + 8 = 22, or 14 with bf16 moments, 10 with e4m3 moments; an fp8 copy is one
 * more, an f32 master 8 less the 2 of reading the weight, a remainder 4. Every operation rounds
 * once, in the order of lib/ops/adam.c, division and root included: the bits are the reference's.
 *
 * A parameter without scales is cut among its blocks by 8 elements a thread (1 where 16-byte
 * accesses do not fit). One with scales has a block a row, which computes twice: first the row's
 * largest numbers, then what is stored with the scales that follow; the second reading comes from
 * the caches. Types are known at run time, the same in a whole block; those of the records' large
 * parameters have a kernel of their own.
 */
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

struct jobs {
    job of[ADAM_MAX];
    unsigned end[ADAM_MAX]; /* blocks up to and with this one's */
    int n;
};

/* What all elements of a parameter share in this update. */
struct constants {
    float step_size, decay, eps, factor;
    uint32_t update;
};

template <int WIDTH> struct numbers {
    float p[WIDTH], m[WIDTH], v[WIDTH];
};

/* A job of which only the types of its moments and gradient are open, which are MOMENTS and bf16, as
 * the records have them; DT_NONE: any. */
template <int MOMENTS> struct form {
    const job &q;
    __device__ int w() const { return MOMENTS ? DT_BF16 : q.w_type; }
    __device__ int g() const { return MOMENTS ? DT_BF16 : q.g_type; }
    __device__ int m() const { return MOMENTS ? MOMENTS : q.m.type; }
    __device__ int v() const { return MOMENTS ? MOMENTS : q.v.type; }
    __device__ int master() const { return MOMENTS ? DT_NONE : q.master.type; }
    __device__ int decay() const { return MOMENTS ? DECAY_CAUTIOUS : q.decay; }
    __device__ bool eps_inside() const { return MOMENTS ? false : q.eps_inside; }
    __device__ bool drawn() const { return MOMENTS ? false : q.drawn; }
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
    float g[WIDTH];
    read_value<WIDTH>(x.p, f, at, p_scale);
    load_kept<WIDTH>(g, q.g, f.g(), at, 1);
    load_kept<WIDTH>(x.m, q.m.data, f.m(), at, m_scale);
    load_kept<WIDTH>(x.v, q.v.data, f.v(), at, v_scale);
#pragma unroll
    for (int e = 0; e < WIDTH; e++) {
        float w = x.p[e], gi = mul(g[e], k.factor);
        if (f.decay() == DECAY_L2)
            gi = add(gi, mul(k.decay, w));
        x.m[e] = add(mul(q.beta1, x.m[e]), mul(q.rest1, gi));
        x.v[e] = add(mul(q.beta2, x.v[e]), mul(q.rest2, mul(gi, gi)));
        float below = f.eps_inside() ? root(add(x.v[e], k.eps)) : add(root(x.v[e]), k.eps);
        float delta = mul(quot(x.m[e], below), k.step_size);
        if (f.decay() == DECAY_ADAMW)
            delta = add(delta, mul(k.decay, w));
        else if (f.decay() == DECAY_CAUTIOUS)
            delta = add(delta, mul(delta, w) > 0 ? mul(k.decay, w) : 0);
        x.p[e] = sub(w, delta);
    }
}

template <int WIDTH, typename F>
__device__ __forceinline__ void write_value(const F &f, int64_t at, const float (&p)[WIDTH],
                                            float scale)
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
        store_kept<WIDTH>(q.master.data, f.master(), at, p, scale, NULL, false);
    }
    if (away) {
#pragma unroll
        for (int e = 0; e < WIDTH; e++)
            code[e] = f.master() == DT_U16 && q.truncate ? __float_as_uint(p[e]) >> 16
                                                         : rounded_away(p[e]);
        store_words<WIDTH>((uint16_t *)q.w + at, code);
    } else if (f.w() != DT_NONE) {
        store_kept<WIDTH>(q.w, f.w(), at, p, 1, NULL, false);
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
            p[e] = f16_value(encode_nearest(DT_F16, p[e]));
        else if (f.w() == DT_BF16 && f.master() == DT_U16 && f.q.truncate)
            p[e] = __uint_as_float(__float_as_uint(p[e]) & 0xffff0000u);
        else if (f.w() == DT_BF16)
            p[e] = beside ? __uint_as_float(rounded_away(p[e]) << 16) : as_stored<bf16>(p[e]);
    }
}

template <int WIDTH, typename F>
__device__ __forceinline__ void write(numbers<WIDTH> &x, const F &f, int64_t at, const constants &k,
                                      float p_scale, float m_scale, float v_scale, uint32_t *most)
{
    const job &q = f.q;
    draws<WIDTH> d;

    if (f.drawn())
        d.draw(q.seed, q.stream << 32 | k.update, q.first + (uint64_t)at);
    write_value<WIDTH>(f, at, x.p, p_scale);
    store_kept<WIDTH>(q.m.data, f.m(), at, x.m, m_scale, f.drawn() ? d.m : NULL, false);
    store_kept<WIDTH>(q.v.data, f.v(), at, x.v, v_scale, f.drawn() ? d.v : NULL, true);
    if (q.out.codes) {
        as_weight<WIDTH>(x.p, f);
        write_codes<WIDTH>(q.out, at, x.p, most);
    }
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
        write<WIDTH>(x, f, at, k, 1, 1, 1, most);
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

template <int WIDTH, typename F>
__device__ __forceinline__ void row(const F &f, const constants &k, int64_t r, uint32_t *most)
{
    __shared__ uint32_t warps[3][THREADS / 32];
    const job &q = f.q;
    float p_old = q.master.scale ? q.master.scale[r] : 1, m_old = q.m.scale ? q.m.scale[r] : 1;
    float v_old = q.v.scale ? q.v.scale[r] : 1;
    uint32_t p_most = 0, m_most = 0, v_most = 0;
    numbers<WIDTH> x;

    for (int64_t c = threadIdx.x * WIDTH; c < q.cols; c += THREADS * WIDTH) {
        compute<WIDTH>(x, f, r * q.cols + c, k, p_old, m_old, v_old);
#pragma unroll
        for (int e = 0; e < WIDTH; e++) {
            p_most = max(p_most, __float_as_uint(x.p[e]) & 0x7fffffff);
            m_most = max(m_most, __float_as_uint(x.m[e]) & 0x7fffffff);
            v_most = max(v_most, __float_as_uint(x.v[e]) & 0x7fffffff);
        }
    }
    float p_now = scale_for(f.master(), block_max(p_most, warps[0]));
    float m_now = scale_for(f.m(), block_max(m_most, warps[1]));
    float v_now = scale_for(f.v(), block_max(v_most, warps[2]));
    for (int64_t c = threadIdx.x * WIDTH; c < q.cols; c += THREADS * WIDTH) {
        compute<WIDTH>(x, f, r * q.cols + c, k, p_old, m_old, v_old);
        write<WIDTH>(x, f, r * q.cols + c, k, p_now, m_now, v_now, most);
    }
    if (threadIdx.x == 0 && q.master.scale)
        q.master.scale[r] = p_now;
    if (threadIdx.x == 0 && q.m.scale)
        q.m.scale[r] = m_now;
    if (threadIdx.x == 0 && q.v.scale)
        q.v.scale[r] = v_now;
    __syncthreads(); /* warps is used again for the next row */
}

template <int MOMENTS>
__global__ static void __launch_bounds__(THREADS) adam(const __grid_constant__ jobs all)
{
    int i = 0;
    while (blockIdx.x >= all.end[i])
        i++;
    const job &q = all.of[i];
    form<MOMENTS> f = { q };
    int64_t from = i ? all.end[i - 1] : 0, block = blockIdx.x - from, blocks = all.end[i] - from;
    const adam_step &step = q.step[q.gate ? q.gate->late : 0];
    constants k = { step.step_size, step.decay, step.eps, 1, step.update };
    uint32_t most = 0;

    if (q.gate) {
        if (q.gate->skip)
            return;
        k.factor = q.gate->factor;
    }
    if (MOMENTS == DT_NONE && q.rows) {
        for (int64_t r = block; r * q.cols < q.count; r += blocks)
            if (q.wide)
                row<8>(f, k, r, &most);
            else
                row<1>(f, k, r, &most);
    } else if (MOMENTS || q.wide) {
        flat<8>(f, k, block, blocks, &most);
    } else {
        flat<1>(f, k, block, blocks, &most);
    }
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
    return q.count % 8 == 0 && (!q.rows || q.cols % 8 == 0) && aligned_for_8(q.w, q.w_type) &&
           aligned_for_8(q.g, q.g_type) && aligned_for_8(q.master.data, q.master.type) &&
           aligned_for_8(q.m.data, q.m.type) && aligned_for_8(q.v.data, q.v.type) &&
           aligned_for_8(q.out.codes, DT_E4M3);
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

/* The type of moments of the records' large parameters; else DT_NONE. */
static int record_form(const job &q)
{
    bool record = q.w_type == DT_BF16 && q.g_type == DT_BF16 && q.master.type == DT_NONE &&
                  q.m.type == q.v.type && !q.rows && !q.drawn && q.wide && !q.eps_inside &&
                  q.decay == DECAY_CAUTIOUS;
    return record ? q.m.type : DT_NONE;
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

void gpu_adam(struct ops *o, const struct adam_param *p, int n)
{
    struct cuda_ops *c = cuda_of(o);
    struct jobs all = {};
    unsigned end = 0;

    assert(n <= ADAM_MAX);
    for (int i = 0; i < n && !c->failed; i++) {
        if (tensor_count(p[i].g) == 0 || !fits(c, &p[i]))
            continue;
        all.of[all.n] = job_of(&p[i]);
        if (p[i].copy)
            clear_amax<<<1, 1, 0, c->stream>>>(all.of[all.n].out.amax, p[i].gate);
        end += blocks_of(all.of[all.n]);
        all.end[all.n++] = end;
    }
    if (c->failed || !all.n)
        return;
    int moments = all.n == 1 ? record_form(all.of[0]) : DT_NONE;
    if (moments == DT_F32)
        adam<DT_F32><<<end, THREADS, 0, c->stream>>>(all);
    else if (moments == DT_BF16)
        adam<DT_BF16><<<end, THREADS, 0, c->stream>>>(all);
    else
        adam<DT_NONE><<<end, THREADS, 0, c->stream>>>(all);
    CUDA_LAUNCHED(c);
}
