/* adam.cu - Adam, element by element, one pass over all parameters of a call.
 *
 * Contract: op_list.h, optimizers.md 3. Bytes an element of bf16 weight and gradient: weight 2 + 2,
 * gradient 2, moments 8 + 8 = 22, or 14 with bf16 moments, 10 with e4m3 moments; an fp8 copy is one
 * more, an f32 master 8 less the 2 of reading the weight, a remainder 4, a bf16 copy of an f16 or e4m3
 * weight 2. Every operation rounds once, in the order of lib/ops/adam.c, division and root included:
 * the bits are the reference's.
 *
 * A thread takes 8 elements (1 where 16-byte accesses do not fit). A parameter with scales needs its row's
 * largest new numbers before it can store: a block keeps a row of up to 8192 columns in registers; longer rows
 * are computed twice, and the second reading, from the row's end, comes from the caches as far as they hold it.
 *
 * Of types that are known at run time only (any_row, any_elements), and so in a list of parameters, a thread
 * fetches all that it needs before it asks of what type it is: a load behind each question waits for the one before.
 *
 * Beside narrow types time is instructions, not bytes: 4 TB/s leave about 7 issue slots a byte. So roots and
 * quotients look once for what over- or underflows, and rows with such numbers are another function's; old
 * moments are not multiplied by their scale, but the beta is; roundings are the GPU's conversions, drawn ones
 * additions of integers. One scale for all rows needs two
 * passes: the first computes moments alone (adam_largest).
 *
 * adam_store.h has the types, adam_form.cuh an update of elements and of rows out of the ordinary, adam_any.cuh the
 * fast rows; here are the kernels and which of them a parameter gets: adam_record is compiled for what the records
 * store, bf16 weights with f32 moments, the others take types known at run time.
 */
#include "adam_any.cuh"

/* -- kernels ------------------------------------------------------------------------------------- */

/* Returns the index of the parameter to which this block belongs. */
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
/* Updates rows too long for that. 85 registers: 3 CTAs of 256 threads an SM. */
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

/* One parameter of the records' types, 8 elements a thread. */
__global__ static void __launch_bounds__(THREADS) adam_record(const __grid_constant__ job q)
{
    form<RECORD> f = { q };
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

/* Finds the largest |m| and |v| of each parameter of a list. */
__global__ static void __launch_bounds__(THREADS) adam_tops(const __grid_constant__ jobs<job> all)
{
    int i = job_at(all);
    const job &q = all.of[i];
    form<ANY> f = { q };
    int64_t from = i ? all.end[i - 1] : 0;
    constants k;

    if (!begin(q, k))
        return;
    if (q.wide)
        fold_tops<8>(f, k, blockIdx.x - from, all.end[i] - from);
    else
        fold_tops<1>(f, k, blockIdx.x - from, all.end[i] - from);
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

/* True if q is of form RECORD. */
static bool is_record(const job &q)
{
    return q.w_type == DT_BF16 && q.g_type == DT_BF16 && q.m.type == DT_F32 && q.v.type == DT_F32 &&
           q.master.type == DT_NONE && !q.rows && !q.drawn && !q.eps_inside &&
           q.decay == DECAY_CAUTIOUS;
}

/* True if a row is longer than what a block holds in registers. */
static bool is_long(const job &q) { return q.rows && q.cols > 8 * ROW_THREADS; }

typedef void one_kernel(job);

/* The kernel of one parameter by itself, or NULL: it goes into a list. */
static one_kernel *kernel_for(const job &q)
{
    return !q.fast        ? NULL
           : is_record(q) ? adam_record
           : is_long(q)   ? adam_any_long
           : q.rows       ? (q.drawn ? adam_any_rows<true> : adam_any_rows<false>)
                          : (q.drawn ? adam_any_flat<true> : adam_any_flat<false>);
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
           (p->compute.dtype == DT_BF16 && (!p->w.data || p->w.dtype != DT_BF16)));
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

/* Returns the threads of a block that holds one row of q in registers. */
static unsigned row_threads(const job &q) { return (unsigned)((q.cols / 8 + 31) / 32 * 32); }

/* Launches a kernel for one parameter; false if there is none. */
static bool launch_alone(struct cuda_ops *c, const job &q)
{
    one_kernel *kernel = kernel_for(q);
    unsigned threads = q.rows && !is_long(q) ? row_threads(q) : THREADS;
    if (!kernel)
        return false;
    kernel<<<blocks_of(q, threads), threads, 0, c->stream>>>(q);
    CUDA_LAUNCHED(c);
    return true;
}

/* True if q is so large that a kernel of its own, in place of the list's, saves more than a launch takes
 * (share/doc/rejected.md, Adam: five tables in one launch). */
static bool goes_alone(const job &q)
{
    return q.rows && q.count >= (is_long(q) || q.m.type == DT_E4M3 ? 1 << 22 : 1 << 24);
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
