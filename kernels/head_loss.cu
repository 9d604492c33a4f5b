/* head_loss.cu - logits, softcap, multi-token cross entropy, and back. record-61.md 2.9, 2.10, 3.2.
 *
 * x (T,D), w (D,V), dx bf16, dw bf16 or f32. With fp8, operands of the three products are
 * contiguous along their sums, as fp8 tensor cores require, so x8 and w8 exist transposed too
 * (head_fp8.cu). On Hopper dw's product turns g8 on the way in (sm90/transposed_gemm.cu), on the
 * portable path it is transposed:
 *
 *   x8 (T,D), x8t (D,T), w8 (D,V), w8t (V,D)                     e4m3 of x / s_x, w / s_w
 *       (where Adam left a w8, only w8t is made: 2 D V bytes instead of 4)
 *   for each CHUNK rows
 *       logits (rows,V) bf16 = s_x s_w x8 w8                     2 T D V FLOP, T V 2 bytes
 *       one pass over a row: losses, g8 (rows,V) e5m2            T V (2 + 1) bytes
 *       portable: g8t (V,T), the chunk's columns                 T V (1 + 1)
 *       dx = s_g s_w g8 w8^T                                     2 T D V FLOP
 *   dw (+)= s_x s_g x8^T g8                                      2 T D V FLOP
 *
 * At T = 49152, D = 768, V = 50304: three products of 3.80 TFLOP (3.2 ms each at 1198 TFLOP/s),
 * 7.4 GB for the row pass (1.75 ms at 4.25 TB/s; 3 special-function operations an element are
 * 2.0 ms); portable: 4.9 GB for the transpose (1.16 ms).
 *
 * One block holds a row of logits in shared memory, so each is read once. No maximum is needed: z =
 * a s((l + b)/c) lies in (0, a), and exp(z - a/2) cannot overflow. The row pass keeps f = exp(z -
 * a/2) s (1 - s) in bf16 where the logit was, sums exp(z - a/2), and then scales f by one number a
 * row. Where g8 is transposed it overwrites the logits of its row: its rows are 2 V bytes apart.
 *
 * The sigmoid is one hardware tanh in the fp8 pass (off by 2^-11 of it, far below a code of e5m2
 * and below the bf16 of the logit), an exponential and a reciprocal elsewhere.
 *
 * With h->block, all of that is done for so many rows after another (a span), and dw is summed over
 * the spans: in f32, D V 4 bytes, where it is bf16. What is taken is then 3 V bytes a row of the
 * block (bf16: 2 V), and some copies of w.
 *
 * A bias is added to the logits where they are read, in f32; its gradient is the sum of the logits'
 * over rows, 2 T V bytes more. With h->cap_root z = a s, s = u / sqrt(1 + u^2), u = (l + b)/c, lies in (-a, a): exp(z)
 * is taken as it is, and f is exp(z) (1 - s^2)^(3/2) (track-3.md 2).
 *
 * Without fp8, as where the GPU has none (below 8.9), the gradient is bf16, in place, and cuBLASLt
 * transposes by itself.
 */
#include "bias.h"
#include "gpu.h"
#include "head_fp8.h"
#include "host/launch.h"
#include "sm90/transposed_gemm.h"
#include "vec.h"

enum { CHUNK = 16384 }; /* rows of logits in memory, at most, with fp8 and in evaluation */
enum { THREADS = 512 };
enum { STATIC_SHARED = 256 }; /* bytes, at most */

struct row_args {
    bf16 *logits; /* (rows, V) */
    char *gradient; /* where it goes, bytes a row; may be over the logits */
    int64_t gradient_row;
    float *loss; /* (rows,losses) of this chunk: the row's, and with two that of its next token */
    int losses;
    const int32_t *tgt; /* of the chunk's first row */
    const float *mtp;
    const int32_t *prefix; /* (vocab), or NULL */
    token_mask never; /* evaluation */
    const int32_t *before; /* as tgt */
    int n_mtp, left; /* rows from the first to the last of the batch */
    int vocab;
    float seed, g_scale; /* g_scale: of the gradient's e5m2 */
    float a, b, c;
    const void *bias; /* (vocab), or NULL */
    bool bias_f32, root;
    bool whole, round; /* all weights in every row's gradient; s is rounded to bf16 */
};

/* z = a s, and what the loss and gradient need of it. */
struct capped {
    float s, e;
};

__device__ __forceinline__ static float tanh_fast(float x)
{
    float y;
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

struct cap {
    float mul, add, mul_t, add_t, mul_e, add_e;
    bool round, root; /* root: z = a u / sqrt(1 + u^2), u = mul l + add */
};

constexpr float LOG2E = 1.4426950408889634f;

__device__ __forceinline__ static cap cap_of(float a, float b, float c, bool round, bool root)
{
    if (root)
        return cap{ 1 / c, b / c, 0, 0, LOG2E * a, 0, round, root };
    return cap{ -LOG2E / c, -LOG2E * b / c, 0.5f / c, 0.5f * b / c,
                LOG2E * a,  -LOG2E * a / 2, round,    root };
}

/* Returns the shift: exp(z - shift) is summed. */
__device__ __forceinline__ static float shift_of(const row_args &a) { return a.root ? 0 : a.a / 2; }

/* The bias of eight classes from 8 i on, added to their logits. */
__device__ __forceinline__ static void add_bias(float (&x)[8], const row_args &a, int i)
{
    float b[8];

    if (!a.bias)
        return;
    if (a.bias_f32)
        load8(b, (const float *)a.bias + 8 * i);
    else
        load8(b, (const bf16 *)a.bias + 8 * i);
#pragma unroll
    for (int j = 0; j < 8; j++)
        x[j] += b[j];
}

__device__ __forceinline__ static float biased(float logit, const row_args &a, int v)
{
    return a.bias ? logit + load_any(a.bias, a.bias_f32, v) : logit;
}

__device__ __forceinline__ static float as_bf16(float x)
{
    return __bfloat162float(__float2bfloat16(x));
}

/* s = sigmoid((l + b)/c), e = exp(a s - a/2); or s = u / sqrt(1 + u^2), e = exp(a s). */
__device__ __forceinline__ static capped capped_of(float l, const cap &k)
{
    capped r;
    if (k.root) {
        float u = fmaf(l, k.mul, k.add);
        r.s = u * rsqrtf(fmaf(u, u, 1));
        r.e = exp2_approx(r.s * k.mul_e);
        return r;
    }
    r.s = rcp_approx(1 + exp2_approx(fmaf(l, k.mul, k.add)));
    if (k.round)
        r.s = as_bf16(r.s);
    r.e = exp2_approx(fmaf(r.s, k.mul_e, k.add_e));
    return r;
}

/* ds/du from s. */
__device__ __forceinline__ static float slope_of(float s, const cap &k)
{
    float rest = fmaf(-s, s, 1);
    return k.root ? rest * sqrt_approx(rest) : fmaf(-s, s, s);
}

/* Terms of a row's loss: predicted tokens, with a table of prefixes one more. */
__device__ __forceinline__ static int terms(const row_args &a)
{
    return a.n_mtp + (a.prefix != NULL);
}

/* The class of term k of row t of the chunk, -1: none. The last rows look over the batch's end. */
__device__ __forceinline__ static int target_of(const row_args &a, int t, int k)
{
    return k == a.n_mtp ? a.prefix[a.tgt[t]] : k < a.left - t ? a.tgt[t + k] : -1;
}

/* The sum of the weights that its gradient has. */
__device__ __forceinline__ static float weights_of(const row_args &a, int t)
{
    float sum = 0;
    for (int k = 0; k < terms(a); k++)
        if ((a.whole && k < a.n_mtp) || target_of(a, t, k) >= 0)
            sum += a.mtp[k];
    return sum;
}

/* Replaces eight logits by f: with s = (1 + t)/2, e = exp(a t/2), f = e s (1 - s), or without
 * rounding, four times that, e (1 - t^2). Adds each e to *sum. */
template <bool ROUND>
__device__ __forceinline__ static void fast_f(float (&x)[8], const cap &k, float *sum)
{
#pragma unroll
    for (int j = 0; j < 8; j++)
        x[j] = tanh_fast(fmaf(x[j], k.mul_t, k.add_t));
    if (ROUND) {
#pragma unroll
        for (int j = 0; j < 8; j++)
            x[j] = fmaf(0.5f, x[j], 0.5f);
        unpack8(x, pack8(x)); /* two numbers an instruction */
    }
#pragma unroll
    for (int j = 0; j < 8; j++) {
        float e = exp2_approx(ROUND ? fmaf(x[j], k.mul_e, k.add_e) : -k.add_e * x[j]),
              et = e * x[j];
        *sum += e;
        x[j] = fmaf(-et, x[j], ROUND ? et : e);
    }
}

/* f in place of the logits, in shared memory; returns the sum of e over the block. ANY: with a bias, or a
 * root. */
template <bool FAST, bool ROUND, bool ANY>
__device__ static float softcap_row(uint4 *shared, float *warps, const uint4 *row, int n8,
                                    const cap &k, const row_args &a)
{
    float sum = 0;

#pragma unroll 4
    for (int i = threadIdx.x; i < n8; i += THREADS) {
        float x[8];
        unpack8(x, row[i]);
        if (ANY)
            add_bias(x, a, i);
        if (FAST) {
            fast_f<ROUND>(x, k, &sum);
        } else {
#pragma unroll
            for (int j = 0; j < 8; j++) {
                capped r = capped_of(x[j], k);
                sum += r.e;
                x[j] = r.e * (ANY ? slope_of(r.s, k) : fmaf(-r.s, r.s, r.s));
            }
        }
        shared[i] = pack8(x);
    }
    return block_sum(sum, warps);
}

/* The row's loss, and the entries of its targets: f' with S f' / sum = (S p - hit) s (1 - s), times
 * unit. One thread a term; v is its class, logit that of v. */
__device__ static void targets(const row_args &a, int t, bf16 *f, int v, float logit, float sum,
                               const cap &k, float unit)
{
    int lane = threadIdx.x;
    float lse = logf(sum) + shift_of(a), hit = 0, loss = 0, next = 0;

    if (v >= 0) {
        capped r = capped_of(logit, k);
        float weights = weights_of(a, t);
        for (int j = 0; j < terms(a); j++)
            hit += target_of(a, t, j) == v ? a.mtp[j] : 0;
        next = lse - a.a * r.s; /* lane 0's */
        loss = a.mtp[lane] * next;
        f[v] = __float2bfloat16((r.e - (weights > 0 ? hit / weights * sum : 0)) * slope_of(r.s, k) *
                                unit);
    }
    loss = warp_sum(loss);
    if (lane == 0)
        a.loss[t * a.losses] = loss;
    if (lane == 0 && a.losses > 1)
        a.loss[t * a.losses + 1] = next;
}

/* A second row an SM, whose loads run while the first one sums. */
template <bool FP8, bool ROUND, bool ANY>
__global__ static void __launch_bounds__(THREADS, 2) head_row(row_args a)
{
    extern __shared__ uint4 shared[];
    __shared__ float warps[32];
    int t = blockIdx.x, n8 = a.vocab / 8;
    int v = threadIdx.x < terms(a) ? target_of(a, t, threadIdx.x) : -1;
    const uint4 *row = (const uint4 *)(a.logits + (int64_t)t * a.vocab);
    uint4 *to = (uint4 *)(a.gradient + t * a.gradient_row);
    cap k = cap_of(a.a, a.b, a.c, ROUND, ANY && a.root);
    float logit = 0, sum, unit = FP8 && !ROUND ? 4 : 1; /* of f */

    if (v >= 0)
        logit = __bfloat162float(((const bf16 *)row)[v]);
    if (ANY && v >= 0)
        logit = biased(logit, a, v);
    sum = softcap_row<FP8, ROUND, ANY>(shared, warps, row, n8, k,
                                       a); /* every read of the row is over */
    __syncthreads();
    if (threadIdx.x < 32)
        targets(a, t, (bf16 *)shared, v, logit, sum, k, unit);
    __syncthreads();
    float scale = a.seed * weights_of(a, t) * a.a / (a.c * sum * unit);
    if (FP8)
        scale /= a.g_scale;
    for (int i = threadIdx.x; i < n8; i += THREADS) {
        float x[8];
        unpack8(x, shared[i]);
#pragma unroll
        for (int j = 0; j < 8; j++)
            x[j] *= scale;
        if (FP8)
            ((uint2 *)to)[i] = pack_e5m2(x);
        else
            to[i] = pack8(x);
    }
}

/* Losses only, for evaluation: one target a row. */
__global__ static void __launch_bounds__(THREADS) head_eval_row(row_args a)
{
    __shared__ float warps[32];
    int t = blockIdx.x, n8 = a.vocab / 8;
    const bf16 *row = a.logits + (int64_t)t * a.vocab;
    const uint8_t *never = NULL; /* a byte for 8 classes */
    cap k = cap_of(a.a, a.b, a.c, false, a.root);
    float sum = 0;

    if (a.never.bits)
        never = (const uint8_t *)(a.never.bits + (int64_t)a.never.row[a.before[t]] * a.never.words);
#pragma unroll 4
    for (int i = threadIdx.x; i < n8; i += THREADS) {
        float x[8];
        unsigned barred = never ? never[i] : 0;
        load8(x, row + 8 * i);
        add_bias(x, a, i);
#pragma unroll
        for (int j = 0; j < 8; j++)
            sum += barred >> j & 1 ? 0 : capped_of(x[j], k).e;
    }
    sum = block_sum(sum, warps);
    if (threadIdx.x == 0) {
        capped r = capped_of(biased(__bfloat162float(row[a.tgt[t]]), a, a.tgt[t]), k);
        a.loss[t] = logf(sum) + shift_of(a) - a.a * r.s;
    }
}

static int losses_of(const struct head_loss *h) { return h->next ? 2 : 1; }

static row_args row_args_of(const struct head_loss *h, struct tensor w, bf16 *logits)
{
    row_args a = {};

    a.logits = logits;
    a.gradient = (char *)logits;
    a.gradient_row = 2 * w.cols;
    a.mtp = h->mtp;
    a.n_mtp = h->n_mtp;
    a.losses = losses_of(h);
    a.prefix = h->prefix;
    a.never = h->never;
    a.vocab = (int)w.cols;
    a.seed = h->seed;
    a.g_scale = h->g_scale;
    a.a = h->cap_a, a.b = h->cap_b, a.c = h->cap_c;
    a.bias = h->bias.data, a.bias_f32 = h->bias.dtype == DT_F32, a.root = h->cap_root;
    a.whole = h->whole, a.round = h->bf16_sigmoid;
    return a;
}

static bool can_do(struct cuda_ops *c, struct tensor x, struct tensor w)
{
    assert(x.dtype == DT_BF16 && x.cols == w.rows);
    return !c->failed && x.rows > 0 &&
           CUDA_NEED(c, w.dtype == DT_BF16, "the head's weights are bf16") &&
           CUDA_NEED(c, w.cols % 8 == 0, "the vocabulary is a multiple of 8") &&
           CUDA_NEED(c, w.cols * 2 + STATIC_SHARED <= c->shared_max,
                     "a row of logits in bf16 must fit in a block's shared memory (227 KB on "
                     "compute capability 9.0 and 10, 163 KB on 8.0, 99 KB on 8.6, 8.9 and 12)");
}

/* The pass over `rows` rows of logits, which start at row `first` of the batch of T. */
static void row_pass(struct cuda_ops *c, row_args a, const struct head_loss *h, float *loss,
                     int64_t tokens, int64_t first, int64_t rows)
{
    int bytes = a.vocab * 2;
    bool fp8 = h->fp8 && c->fp8, any = h->bias.data || h->cap_root;
    auto *kernel = any ? head_row<false, false, true>
                   : h->bf16_sigmoid
                       ? (fp8 ? head_row<true, true, false> : head_row<false, true, false>)
                   : fp8 ? head_row<true, false, false>
                         : head_row<false, false, false>;

    a.loss = loss + first * a.losses;
    a.tgt = h->tgt + first;
    a.left = (int)(tokens - first);
    CUDA_TRY(c, launch_kernel({ dim3(rows), THREADS, c->stream, bytes }, kernel, a));
}

/* Rows of the batch that one product of the weights' gradient sums over: all, or h->block. */
static int64_t span_of(const struct head_loss *h, int64_t tokens)
{
    int64_t all = (tokens + 15) / 16 * 16, block = ((int64_t)h->block + 15) / 16 * 16;

    return block && block < all ? block : all;
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* dw (+)= the products over the spans: the one product itself, or their sum in f32, rounded once. */
struct weight_sum {
    struct tensor to; /* of the products */
    bool add; /* to it: the first product */
};

static bool rounds(const struct cuda_ops *c, struct tensor dw, bool add)
{
    return c->ops.bf16_grads && (add || dw.dtype == DT_F32);
}

static size_t sum_bytes(const struct cuda_ops *c, struct tensor dw, bool add, bool several)
{
    return rounds(c, dw, add) || (several && dw.dtype != DT_F32)
               ? cuda_round(tensor_count(dw) * sizeof(float))
               : 0;
}

static weight_sum sum_of(const struct cuda_ops *c, char **at, struct tensor dw, bool add,
                         bool several)
{
    size_t bytes = sum_bytes(c, dw, add, several);

    if (!bytes)
        return { dw, add };
    return { tensor_of(cuda_cut(at, bytes), DT_F32, dw.rows, dw.cols), false };
}

static void sum_product(struct cuda_ops *c, weight_sum *sum, struct gemm product)
{
    product.out = sum->to;
    if (sum->add)
        product.add = sum->to;
    cuda_gemm(c, &product);
    sum->add = true;
}

/* On each path: adds the weight gradient of codes, x8t (D,rows) and the gradient's g8; and how g8
 * lies: by tokens as (rows,V), which the product transposes, else as (V,rows). */
struct head_path {
    void (*sum_codes)(struct cuda_ops *c, weight_sum *sum, struct tensor x8t, struct tensor g8,
                      float alpha);
    bool by_tokens;
};

static void sum_natively(struct cuda_ops *c, weight_sum *sum, struct tensor x8t, struct tensor g8,
                         float alpha)
{
    transposed_gemm(c, sum->to, x8t, g8, alpha, sum->add);
    sum->add = true;
}

static void sum_portably(struct cuda_ops *c, weight_sum *sum, struct tensor x8t, struct tensor g8,
                         float alpha)
{
    sum_product(c, sum, { .a = x8t, .b = g8, .tb = true, .alpha = alpha });
}

const struct head_path head_native = { sum_natively, true };
const struct head_path head_portable = { sum_portably, false };

static void sum_end(struct cuda_ops *c, const weight_sum &sum, struct tensor dw, bool add)
{
    if (sum.to.data != dw.data)
        cuda_write_sum(c, dw, (const float *)sum.to.data, add);
}

struct fp8_work {
    float *row_loss;
    struct tensor x8, x8t, w8, w8t; /* x8, x8t: of a span */
    struct tensor g8; /* the span's gradient codes, as struct head_path says */
    bf16 *logits; /* (rows, V) */
    int64_t rows;
};

/* Loss, dx and g8 of rows first .. first + n - 1, `at` .. of the span. */
static void chunk_fp8(struct cuda_ops *c, const fp8_work &k, struct tensor dx, struct tensor w,
                      const struct head_loss *h, int64_t tokens, int64_t first, int64_t at,
                      int64_t n)
{
    int64_t v = w.cols, real_n = least(tokens - first, n);
    row_args a = row_args_of(h, w, k.logits);
    struct gemm forward = { .out = tensor_of(k.logits, DT_BF16, n, v),
                            .a = tensor_rows(k.x8, at, n),
                            .b = k.w8t,
                            .tb = true,
                            .alpha = h->x_scale * h->w_scale,
                            .fast = true };
    struct gemm back = { .out = tensor_rows(dx, first, real_n),
                         .b = k.w8,
                         .tb = true,
                         .alpha = h->g_scale * h->w_scale };

    if (c->path->head->by_tokens) {
        a.gradient = (char *)k.g8.data + at * v;
        a.gradient_row = v;
    }
    back.a = tensor_of(a.gradient, DT_E5M2, real_n, v);
    back.lda = a.gradient_row;
    cuda_gemm(c, &forward);
    row_pass(c, a, h, k.row_loss, tokens, first, real_n);
    if (!c->path->head->by_tokens)
        head_transpose(c, k.g8, at, tensor_of(a.gradient, DT_E5M2, n, v), a.gradient_row, real_n);
    cuda_gemm(c, &back);
}

/* x8, x8t and g8 of rows first .. first + n - 1, which are tokens of x up to its end. */
static void span_fp8(struct cuda_ops *c, fp8_work *k, struct tensor dx, struct tensor x,
                     struct tensor w, const struct head_loss *h, int64_t first, int64_t n)
{
    k->x8 = tensor_of(k->x8.data, DT_E4M3, n, x.cols);
    k->x8t = tensor_of(k->x8t.data, DT_E4M3, x.cols, n);
    k->g8 = c->path->head->by_tokens
                ? tensor_of(k->g8.data, DT_E5M2, least(x.rows - first, n), w.cols)
                : tensor_of(k->g8.data, DT_E5M2, w.cols, n);
    head_quantize(c, k->x8, k->x8t, tensor_rows(x, first, least(x.rows - first, n)), h->x_scale);
    for (int64_t at = 0; at < n; at += k->rows)
        chunk_fp8(c, *k, dx, w, h, x.rows, first + at, at, least(n - at, k->rows));
}

static void loss_fp8(struct cuda_ops *c, float *loss, struct tensor dx, struct tensor dw, bool add,
                     struct tensor x, struct tensor w, const struct head_loss *h)
{
    int64_t t = x.rows, tp = (t + 15) / 16 * 16, d = x.cols, v = w.cols, span = span_of(h, t);
    fp8_work k = { .rows = least(span, CHUNK) };
    bool given = h->w8.data != NULL;
    int losses = losses_of(h);
    size_t need = cuda_round(tp * losses * sizeof(float)) + 2 * cuda_round(span * d) +
                  (given ? 1 : 2) * cuda_round(d * v) + cuda_round(k.rows * v * 2) +
                  cuda_round(v * span) + sum_bytes(c, dw, add, span < tp);
    char *at = (char *)cuda_workspace(c, need);

    if (!at || !CUDA_NEED(c, d % 16 == 0 && v % 16 == 0,
                          "the fp8 head's width and vocabulary are multiples of 16"))
        return;
    k.row_loss = (float *)cuda_cut(&at, tp * losses * sizeof(float));
    k.x8.data = cuda_cut(&at, span * d);
    k.x8t.data = cuda_cut(&at, span * d);
    k.w8 = given ? h->w8 : tensor_of(cuda_cut(&at, d * v), DT_E4M3, d, v);
    k.w8t = tensor_of(cuda_cut(&at, d * v), DT_E4M3, v, d);
    k.logits = (bf16 *)cuda_cut(&at, k.rows * v * 2);
    k.g8.data = cuda_cut(&at, v * span);
    weight_sum sum = sum_of(c, &at, dw, add, span < tp);

    if (given)
        head_transpose(c, k.w8t, 0, k.w8, v, d);
    else
        head_quantize(c, k.w8, k.w8t, w, h->w_scale);
    for (int64_t first = 0; first < tp; first += span) {
        span_fp8(c, &k, dx, x, w, h, first, least(tp - first, span));
        c->path->head->sum_codes(c, &sum, k.x8t, k.g8, h->x_scale * h->g_scale);
    }
    sum_end(c, sum, dw, add);
    cuda_add_partials(c, loss, DT_F32, k.row_loss, (int)t, losses);
}

static void loss_bf16(struct cuda_ops *c, float *loss, struct tensor dx, struct tensor dw, bool add,
                      struct tensor x, struct tensor w, const struct head_loss *h)
{
    int64_t t = x.rows, v = w.cols, span = least(span_of(h, t), t);
    int losses = losses_of(h);
    size_t columns = h->dbias.data ? cuda_round(column_sums_bytes(c, span, v)) : 0;
    char *at =
        (char *)cuda_workspace(c, cuda_round(t * losses * sizeof(float)) + columns +
                                      cuda_round(span * v * 2) + sum_bytes(c, dw, add, span < t));

    if (!at)
        return;
    float *row_loss = (float *)cuda_cut(&at, t * losses * sizeof(float));
    bf16 *memory = (bf16 *)cuda_cut(&at, span * v * 2);
    float *partial = columns ? (float *)cuda_cut(&at, columns) : NULL;
    weight_sum sum = sum_of(c, &at, dw, add, span < t);

    for (int64_t first = 0; first < t; first += span) {
        int64_t n = least(t - first, span);
        struct tensor logits = tensor_of(memory, DT_BF16, n, v), rows = tensor_rows(x, first, n);
        struct gemm forward = { .out = logits, .a = rows, .b = w };
        struct gemm back = { .out = tensor_rows(dx, first, n), .a = logits, .b = w, .tb = true };
        cuda_gemm(c, &forward);
        row_pass(c, row_args_of(h, w, memory), h, row_loss, t, first, n);
        cuda_gemm(c, &back);
        if (partial)
            column_sums_add(c, h->dbias, logits, partial);
        sum_product(c, &sum, { .a = rows, .b = logits, .ta = true });
    }
    sum_end(c, sum, dw, add);
    cuda_add_partials(c, loss, DT_F32, row_loss, (int)t, losses);
}

void gpu_head_loss(struct ops *o, real *loss, struct tensor dx, struct tensor dw, bool add,
                   struct tensor x, struct tensor w, const struct head_loss *h)
{
    struct cuda_ops *c = cuda_of(o);

    assert(dx.dtype == DT_BF16 && dx.rows == x.rows && dx.cols == x.cols);
    assert(dw.rows == w.rows && dw.cols == w.cols && h->n_mtp <= MAX_MTP);
    assert(!h->w8.data || (h->w8.dtype == DT_E4M3 && h->w8.rows == w.rows && h->w8.cols == w.cols));
    bool any = h->bias.data || h->cap_root;
    if (can_do(c, x, w) && CUDA_NEED(c, !(any && h->fp8 && c->fp8) && !(any && h->bf16_sigmoid),
                                     "a head with a bias or a root cap has bf16 products and f32 "
                                     "sums: head_fp8 = no, head_sigmoid = f32"))
        (h->fp8 && c->fp8 ? loss_fp8 : loss_bf16)(c, loss, dx, dw, add, x, w, h);
}

void gpu_head_eval(struct ops *o, real *loss, struct tensor x, struct tensor w,
                   const struct head_loss *h)
{
    struct cuda_ops *c = cuda_of(o);
    int64_t t = x.rows, v = w.cols, rows = least(least(span_of(h, t), CHUNK), t);
    char *at;

    if (!can_do(c, x, w))
        return;
    at = (char *)cuda_workspace(c, cuda_round(t * sizeof(float)) + rows * v * 2);
    if (!at)
        return;
    float *row_loss = (float *)cuda_cut(&at, t * sizeof(float));
    for (int64_t first = 0; first < t; first += rows) {
        int64_t n = t - first < rows ? t - first : rows;
        struct gemm g = { .out = tensor_of(at, DT_BF16, n, v),
                          .a = tensor_rows(x, first, n),
                          .b = w };
        row_args a = row_args_of(h, w, (bf16 *)at);
        a.tgt = h->tgt + first;
        a.before = h->never.bits ? h->before + first : NULL;
        a.loss = row_loss + first;
        cuda_gemm(c, &g);
        head_eval_row<<<(int)n, THREADS, 0, c->stream>>>(a);
        CUDA_LAUNCHED(c);
    }
    cuda_add_partials(c, loss, DT_F32, row_loss, (int)t, 1);
}
