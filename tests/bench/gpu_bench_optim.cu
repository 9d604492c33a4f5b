/* gpu_bench_optim.cu - times of the optimizer's kernels at record 61's shapes, beside their floors.
 *
 *     gpu_bench_optim [polar|plans|normuon|adam|soap|turns]
 *
 * One op alone; plans: polar, and the ways to cut its products; normuon: all of its ops, one bank
 * after the other and in branches; adam: with each form of its numbers beside a copy, worst first;
 * soap: its ops on track 3's banks, and all of a step; FLOPs are three times the definition's;
 * turns: the kernels of a turn (CUPTI).
 *
 * Each row: microseconds (median and least of RUNS replays of a captured graph that does the op
 * once on each of several sets of buffers, together beyond L2), the floor, time / floor, and the
 * rate. Floors: bytes that must move at 4.25 TB/s; products, symmetric ones counted half, at
 * 600 TFLOP/s (spec of the machine that the project was measured on). The baseline of polar is
 * the same 3 products an iteration through cuBLASLt, batched, fastest of its 8 proposals,
 * symmetric products in full.
 */
#include <algorithm>
#include <cublasLt.h>
#include <functional>
#include <vector>
#include "../kernels/host/device.h"
#include "../kernels/host/profile.h"
#include "../kernels/ops_cuda.h"
#include "../kernels/polar.h"
#include "adam_call.h"

enum { RUNS = 15 };
static const double BANDWIDTH = 4.25e12, RATE = 600e12;

static struct ops *o;
static struct cuda_ops *c;

static void must(int rc)
{
    if (rc) {
        fprintf(stderr, "%s\n", err_message());
        exit(5);
    }
}

/* Random normal-like numbers: sums of hashed uniforms, made on the device. e4m3: codes of 2^-4 to 2^-2. */
__global__ void fill(void *p, enum dtype t, int64_t n, float size, uint32_t seed)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x) {
        float sum = 0;
        uint32_t h = 0;
        for (uint32_t k = 0; k < 4; k++) {
            h = ((uint32_t)i * 4 + k) * 2654435761u + seed * 40503u;
            h ^= h >> 16, h *= 0x85ebca6bu, h ^= h >> 13, h *= 0xc2b2ae35u, h ^= h >> 16;
            sum += (float)h * 0x1p-32f - 0.5f;
        }
        sum *= size * 1.732f;
        if (t == DT_F32)
            ((float *)p)[i] = sum;
        else if (t == DT_F16)
            ((__half *)p)[i] = __float2half(sum);
        else if (t == DT_E4M3)
            ((uint8_t *)p)[i] = (uint8_t)(0x18 + (h & 0x87));
        else
            ((__nv_bfloat16 *)p)[i] = __float2bfloat16(sum);
    }
}

static void draw(struct tensor x, float size)
{
    static uint32_t seed = 1;
    fill<<<1024, 256, 0, c->stream>>>(x.data, x.dtype, tensor_count(x),
                                      x.dtype == DT_U16 ? 1 : size, seed++);
}

static struct tensor filled(enum dtype t, int64_t rows, int64_t cols, float size)
{
    struct tensor x = tensor_of(NULL, t, rows, cols);
    x.data = o->alloc(o, tensor_bytes(x), "bench");
    draw(x, size);
    must(o->status(o));
    return x;
}

static const void *number(const void *x, size_t bytes)
{
    void *p = o->alloc(o, bytes, "bench");
    o->upload(o, p, x, bytes);
    return p;
}

struct times {
    double median, least;
};

/* `once(i)` queues the op on set i. Microseconds an op. */
static times time_of(int sets, const std::function<void(int)> &once)
{
    void *graph;
    cudaEvent_t a, b;
    std::vector<double> us;
    once(0); /* workspace, modules */
    must(o->sync(o));
    must(ops_cuda_capture(o));
    for (int i = 0; i < sets; i++)
        once(i);
    must(ops_cuda_capture_end(o, &graph));
    cudaEventCreate(&a), cudaEventCreate(&b);
    for (int r = 0; r < RUNS + 2; r++) {
        float ms;
        cudaEventRecord(a, c->stream);
        ops_cuda_launch(o, graph);
        cudaEventRecord(b, c->stream);
        must(o->sync(o));
        cudaEventElapsedTime(&ms, a, b);
        if (r >= 2)
            us.push_back(ms * 1e3 / sets);
    }
    cudaEventDestroy(a), cudaEventDestroy(b);
    ops_cuda_graph_free(graph);
    std::sort(us.begin(), us.end());
    return { us[us.size() / 2], us[0] };
}

static void head(void)
{
    printf("%-44s %9s %9s %9s %7s %10s\n", "op", "median_us", "least_us", "floor_us", "ratio",
           "rate");
}

static void row(const char *name, times t, double bytes, double flops)
{
    double floor = flops ? flops / RATE * 1e6 : bytes / BANDWIDTH * 1e6;
    printf("%-44s %9.2f %9.2f %9.2f %7.2f", name, t.median, t.least, floor, t.median / floor);
    if (flops)
        printf(" %5.0f TFLOP/s\n", flops / t.median * 1e-6);
    else
        printf(" %5.2f TB/s\n", bytes / t.median * 1e-6);
    fflush(stdout);
}

/* -- polar --------------------------------------------------------------------------------- */

/* Newton-Schulz with fixed point 1, not the record's table: x is orthogonalised again and again
 * in place here, and the record's explodes past 1.02. The time is the same. */
static const double table[5][3] = {
    { 1.875, -1.25, 0.375 }, { 1.875, -1.25, 0.375 }, { 1.875, -1.25, 0.375 },
    { 1.875, -1.25, 0.375 }, { 1.875, -1.25, 0.375 },
};

/* One batched cuBLASLt product, column-major: d = op(a) op(b) + beta c. */
struct baseline {
    cublasLtHandle_t lt;
    void *work;
    size_t work_bytes;
};

struct lt_product {
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algo;
};

static cublasLtMatrixLayout_t layout(int64_t rows, int64_t cols, int n)
{
    cublasLtMatrixLayout_t l;
    int64_t stride = rows * cols;
    cublasLtMatrixLayoutCreate(&l, CUDA_R_16BF, rows, cols, rows);
    cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &n, sizeof n);
    cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride,
                                     sizeof stride);
    return l;
}

static bool multiply(const baseline &lt, const lt_product &p, const void *a, const void *b,
                     const void *add, void *d, float alpha, float beta)
{
    return cublasLtMatmul(lt.lt, p.desc, &alpha, a, p.a, b, p.b, &beta, add, p.d, d, p.d, &p.algo,
                          lt.work, lt.work_bytes, c->stream) == CUBLAS_STATUS_SUCCESS;
}

/* m x n = op(a) op(b), k; picks the fastest proposal on the given buffers. */
static lt_product prepare(const baseline &lt, bool ta, bool tb, int64_t m, int64_t n, int64_t k,
                          int batch, const void *a, const void *b, void *d)
{
    lt_product p;
    cublasOperation_t oa = ta ? CUBLAS_OP_T : CUBLAS_OP_N, ob = tb ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtMatmulPreference_t pref;
    cublasLtMatmulHeuristicResult_t found[8];
    int count = 0, best = 0;
    double least = 1e30;

    cublasLtMatmulDescCreate(&p.desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    cublasLtMatmulDescSetAttribute(p.desc, CUBLASLT_MATMUL_DESC_TRANSA, &oa, sizeof oa);
    cublasLtMatmulDescSetAttribute(p.desc, CUBLASLT_MATMUL_DESC_TRANSB, &ob, sizeof ob);
    p.a = ta ? layout(k, m, batch) : layout(m, k, batch);
    p.b = tb ? layout(n, k, batch) : layout(k, n, batch);
    p.d = layout(m, n, batch);
    cublasLtMatmulPreferenceCreate(&pref);
    cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                         &lt.work_bytes, sizeof lt.work_bytes);
    cublasLtMatmulAlgoGetHeuristic(lt.lt, p.desc, p.a, p.b, p.d, p.d, pref, 8, found, &count);
    for (int i = 0; i < count; i++) {
        p.algo = found[i].algo;
        if (!multiply(lt, p, a, b, d, d, 1, 0.5f))
            continue;
        times t = time_of(4, [&](int) { multiply(lt, p, a, b, d, d, 1, 0.5f); });
        if (t.median < least)
            least = t.median, best = i;
    }
    if (!count)
        fprintf(stderr, "cuBLASLt proposes nothing\n"), exit(5);
    p.algo = found[best].algo;
    return p;
}

static void bench_baseline(const char *name, std::vector<struct tensor> &x, int n, int64_t rows,
                           int64_t cols, double flops)
{
    int64_t k = std::min(rows, cols);
    bool tall = rows > cols;
    baseline lt = { NULL, NULL, 32 << 20 };
    struct tensor a = filled(DT_BF16, n * k, k, 0.01f), b = filled(DT_BF16, n * k, k, 0.01f);
    struct tensor y = filled(DT_BF16, n * rows, cols, 0.01f);

    cublasLtCreate(&lt.lt);
    lt.work = o->alloc(o, lt.work_bytes, "bench");
    void *x0 = x[0].data;
    lt_product gram = prepare(lt, !tall, tall, k, k, tall ? rows : cols, n, x0, x0, a.data);
    lt_product square = prepare(lt, true, false, k, k, k, n, a.data, a.data, b.data);
    lt_product update = tall ? prepare(lt, true, false, cols, rows, k, n, b.data, x0, y.data)
                             : prepare(lt, false, false, cols, rows, k, n, x0, b.data, y.data);
    times t = time_of((int)x.size(), [&](int i) {
        void *from = x[i].data, *to = y.data;
        for (int r = 0; r < 5; r++, std::swap(from, to)) {
            multiply(lt, gram, from, from, from, a.data, 1, 0);
            multiply(lt, square, a.data, a.data, a.data, b.data, (float)table[r][2],
                     (float)table[r][1]);
            if (tall)
                multiply(lt, update, b.data, from, from, to, 1, (float)table[r][0]);
            else
                multiply(lt, update, from, b.data, from, to, 1, (float)table[r][0]);
        }
    });
    row(name, t, 0, flops);
    cublasLtDestroy(lt.lt);
}

/* Every way to cut the products. */
static void plan_rows(std::vector<struct tensor> &x, int n, double flops)
{
    for (int overlap = 1; overlap >= 0; overlap--)
        for (int split = 0; split < 3; split++)
            for (int columns = 128; columns <= 256; columns += 64) {
                static const char *const of[] = { "nothing", "gram", "both" };
                struct polar_plan plan = { split > 0, split > 1, columns, !!overlap };
                char name[80];
                snprintf(name, sizeof name, "  split %s, update %d%s", of[split], columns,
                         overlap ? "" : ", no overlap");
                times t = time_of((int)x.size(), [&](int i) {
                    gpu_polar_planned(o, x[i], n, table, 5, false, &plan);
                });
                row(name, t, 0, flops);
            }
}

/* The Gram form of five rows in so many parts: each has X X^T and Q X; a row its square; but for the
 * last of a part two products more for A, and but for the first one for Q. */
static void bench_gram(std::vector<struct tensor> &x, int n, double k, double m, int parts,
                       unsigned restarts)
{
    double flops = n * (3.0 * parts * k * k * m + (5 + 3 * (5 - parts)) * k * k * k);
    char name[80];

    snprintf(name, sizeof name, "  Gram form in %d parts", parts);
    row(name,
        time_of((int)x.size(),
                [&](int i) { o->polar(o, x[i], n, table, 5, POLAR_GRAM | restarts); }),
        0, flops);
}

static void bench_polar(int n, int64_t rows, int64_t cols, bool plans)
{
    double k = (double)std::min(rows, cols), m = (double)std::max(rows, cols);
    double flops = 5.0 * n * (k * k * m + k * k * k + 2 * k * k * m);
    std::vector<struct tensor> x;
    char name[80];

    for (int i = 0; i < (n > 8 ? 2 : 6); i++)
        x.push_back(filled(DT_BF16, n * rows, cols, (float)(1 / (1.02 * sqrt(k * m)))));
    snprintf(name, sizeof name, "polar %d x %dx%d", n, (int)rows, (int)cols);
    row(name, time_of((int)x.size(), [&](int i) { o->polar(o, x[i], n, table, 5, false); }), 0,
        flops);
    snprintf(name, sizeof name, "  the same by cuBLASLt");
    bench_baseline(name, x, n, rows, cols, flops);
    row("  four rows, AOL",
        time_of((int)x.size(), [&](int i) { o->polar(o, x[i], n, table, 4, POLAR_AOL); }), 0,
        flops * 4 / 5);
    bench_gram(x, n, k, m, 2, POLAR_RESTART << 2);
    bench_gram(x, n, k, m, 3, POLAR_GRAM_FORM);
    if (plans)
        plan_rows(x, n, flops);
}

/* -- passes over memory ------------------------------------------------------------------------ */

struct bank_shape {
    int n;
    int64_t rows, cols;
};
struct bank {
    struct bank_shape shape;
    struct tensor g, mom, x, w, mant, q;
};

static struct bank bank_of(const bank_shape &s)
{
    int64_t rows = s.n * s.rows, second = s.rows < s.cols ? s.n * s.cols : rows;
    return { s,
             filled(DT_BF16, rows, s.cols, 0.01f),
             filled(DT_F32, rows, s.cols, 0.01f),
             filled(DT_BF16, rows, s.cols, 0.03f),
             filled(DT_BF16, rows, s.cols, 0.05f),
             filled(DT_U16, rows, s.cols, 1),
             filled(DT_F32, second, 1, 1e-3f) };
}

/* Numbers of a bank's ops in one step. */
struct bank_step {
    struct muon_step write;
    real momentum, variance; /* 1 - beta */
};

static void bench_bank(int n, int64_t rows, int64_t cols)
{
    struct bank_step m = { { 0.02f, 0.02f }, 0.05f, 0.05f };
    const struct bank_step *step = (const struct bank_step *)number(&m, sizeof m);
    double count = (double)n * rows * cols;
    std::vector<float> lr(n, 1.0f);
    std::vector<bank> sets;
    char name[80];

    for (int i = 0; i < std::max(2, (int)(2e8 / (count * 14))); i++)
        sets.push_back(bank_of({ n, rows, cols }));
    for (bool raw : { false, true }) {
        snprintf(name, sizeof name, "muon_input %d x %dx%d%s", n, (int)rows, (int)cols,
                 raw ? ", raw" : "");
        row(name,
            time_of((int)sets.size(),
                    [&](int i) {
                        o->muon_input(o, sets[i].x, sets[i].mom, sets[i].g, n, raw, &step->momentum,
                                      NULL);
                    }),
            12 * count, 0);
    }
    snprintf(name, sizeof name, "normuon %d x %dx%d", n, (int)rows, (int)cols);
    row(name,
        time_of((int)sets.size(),
                [&](int i) {
                    o->normuon(o, sets[i].w, sets[i].mant, sets[i].q, sets[i].x, n, lr.data(),
                               &step->variance, NULL, false, &step->write, NULL);
                }),
        10 * count, 0);
}

static void bench_adam(int64_t rows, int64_t cols, enum dtype moments)
{
    struct set {
        struct tensor w, g, m, v;
    };
    struct adam_step a = { 0.01f, 1e-6f, 1e-10f, 1 };
    const struct adam_step *step = (const struct adam_step *)number(&a, sizeof a);
    double count = (double)rows * cols, bytes = moments == DT_F32 ? 22 : 14;
    std::vector<set> sets;
    char name[80];

    for (int i = 0; i < std::max(2, (int)(3e8 / (count * 12))); i++)
        sets.push_back({ filled(DT_BF16, rows, cols, 0.05f), filled(DT_BF16, rows, cols, 0.01f),
                         filled(moments, rows, cols, 0.01f), filled(moments, rows, cols, 0) });
    snprintf(name, sizeof name, "adam %dx%d bf16, %s moments", (int)rows, (int)cols,
             dtype_name(moments));
    row(name,
        time_of((int)sets.size(),
                [&](int i) {
                    adam_call(o, sets[i].w, sets[i].g, sets[i].m, sets[i].v, 0.5, 0.95, step, NULL);
                }),
        bytes * count, 0);
    struct fp8_copy copy = { tensor_of(o->alloc(o, (size_t)(rows * cols), "w8"), DT_E4M3, rows,
                                       cols),
                             1.6f / 448, (real *)number(&a, sizeof(real)) };
    snprintf(name, sizeof name, "adam %dx%d bf16, %s moments, fp8 copy", (int)rows, (int)cols,
             dtype_name(moments));
    row(name,
        time_of((int)sets.size(),
                [&](int i) {
                    adam_call(o, sets[i].w, sets[i].g, sets[i].m, sets[i].v, 0.5, 0.95, step,
                              &copy);
                }),
        (bytes + 1) * count, 0);
}

static void anew(void)
{
    if (o) {
        must(o->sync(o));
        o->free(o);
    }
    must(ops_cuda_new(&o, 0));
    printf("# %s path\n", ((struct cuda_ops *)o)->portable ? "portable" : "native");
    c = cuda_of(o);
}

/* -- each form of Adam's numbers ---------------------------------------------------------------- */

/* Memory that one form after another takes. */
static struct {
    char *data;
    size_t bytes, used;
} pool;

static struct tensor pooled(enum dtype t, int64_t rows, int64_t cols, float size)
{
    struct tensor x = tensor_of(pool.data + pool.used, t, rows, cols);
    pool.used += (tensor_bytes(x) + 255) / 256 * 256;
    if (pool.used > pool.bytes)
        fprintf(stderr, "no room for a form of Adam\n"), exit(4);
    if (size == 0)
        o->zero(o, x);
    else
        draw(x, size);
    return x;
}

enum weight_form { W_F32, W_BF16, W_BF16_COPY, W_F16, W_E4M3, W_E4M3_FIXED };

struct adam_form {
    enum weight_form weight;
    enum dtype master, m, v;
    enum adam_rounding rounding;
    bool whole; /* one scale for all rows */
    enum adam_decay decay;
    bool eps_inside;
};

static const char *const weight_name[] = { "f32", "bf16",      "bf16/e4m3",
                                           "f16", "e4m3, row", "e4m3, fixed" };

static bool has_row_scale(enum dtype t) { return t == DT_F16 || t == DT_E4M3; }

/* What an update reads and writes, by count. */
static double form_bytes(const struct adam_form *f, double rows, double cols)
{
    static const double weight[] = { 4, 2, 3, 4, 3, 3 }; /* written, with copies */
    static const double own[] = { 4, 2, 2, 2, 1, 1 }; /* read, without a master */
    double master = (double)dtype_size(f->master);
    double bytes = weight[f->weight] + (f->weight == W_F32 ? 4 : 2) +
                   (f->master == DT_NONE  ? own[f->weight]
                    : f->master == DT_U16 ? 2 + 2 * master
                                          : 2 * master);
    double moments = (double)(dtype_size(f->m) + dtype_size(f->v));
    bytes += 2 * moments + (f->whole ? 2 + moments : 0);
    int scales =
        has_row_scale(f->m) + has_row_scale(f->v) + (f->master == DT_F16) + (f->weight == W_E4M3);
    return rows * (cols * bytes + 8 * scales);
}

static struct row_scaled kept_new(enum dtype t, int64_t rows, int64_t cols, float size)
{
    struct row_scaled s = {};
    if (t == DT_NONE)
        return s;
    s.t = pooled(t, rows, cols, size);
    if (has_row_scale(t))
        s.scale = (real *)pooled(DT_F32, rows, 1, size).data;
    return s;
}

static struct adam_param form_new(const struct adam_form *f, int64_t rows, int64_t cols,
                                  const struct adam_step *step, struct fp8_copy *copy)
{
    static const enum dtype type[] = { DT_F32, DT_BF16, DT_BF16, DT_F16, DT_NONE, DT_NONE };
    struct adam_param p = {};
    p.g = pooled(f->weight == W_F32 ? DT_F32 : DT_BF16, rows, cols, 0.01f);
    if (type[f->weight] != DT_NONE)
        p.w = pooled(type[f->weight], rows, cols, 0.05f);
    if (f->weight >= W_F16)
        p.compute = pooled(DT_BF16, rows, cols, 0);
    if (f->weight == W_BF16_COPY || f->weight >= W_E4M3) {
        *copy = fp8_copy{ pooled(DT_E4M3, rows, cols, 1), 1.6f / 448,
                          (real *)pooled(DT_F32, 1, 1, 0).data };
        copy->rows = f->weight == W_E4M3 ? (real *)pooled(DT_F32, rows, 1, 0.05f).data : NULL;
        p.copy = copy;
    }
    p.master = kept_new(f->master, rows, cols, 0.05f);
    p.m = kept_new(f->m, rows, cols, 0), p.v = kept_new(f->v, rows, cols, 0);
    p.beta1 = 0.5, p.beta2 = 0.95, p.rounding = f->rounding, p.seed = 1, p.step = step;
    p.decay = f->decay, p.eps_inside = f->eps_inside;
    if (f->whole) {
        p.largest = (real *)pooled(DT_F32, 1, 2, 0).data;
        p.m.top = p.m.scale ? p.largest : NULL, p.v.top = p.v.scale ? p.largest + 1 : NULL;
    }
    return p;
}

static times time_of_form(const struct adam_form *f, int64_t rows, int64_t cols)
{
    struct adam_step a = { 0.01f, 1e-6f, 1e-10f, 1 };
    struct adam_param p[2];
    struct fp8_copy copy[2];

    pool.used = 0;
    struct adam_step *step = (struct adam_step *)pooled(DT_F32, 1, 4, 0).data;
    o->upload(o, step, &a, sizeof a);
    for (int i = 0; i < 2; i++)
        p[i] = form_new(f, rows, cols, step, &copy[i]);
    return time_of(2, [&](int i) {
        o->adam_largest(o, &p[i], 1);
        o->adam(o, &p[i], 1);
    });
}

static const enum dtype moment_types[] = { DT_F32, DT_BF16, DT_F16, DT_E4M3 };

/* A line: all moments of one weight, master, rounding and update. */
struct form_line {
    char name[64];
    double of_copy[16], least;
};

static form_line line_of(adam_form f, const char *note, double copy_rate)
{
    const int64_t rows = 50304, cols = 768;
    form_line l = {};
    snprintf(l.name, sizeof l.name, "%-11s %-4s %s%s", weight_name[f.weight], dtype_name(f.master),
             f.rounding ? "drawn " : "", note);
    l.least = 1e9;
    for (int i = 0; i < 16; i++) {
        f.m = moment_types[i / 4], f.v = moment_types[i % 4];
        if ((f.rounding && i == 0) || (f.whole && !has_row_scale(f.m) && !has_row_scale(f.v)))
            continue;
        times t = time_of_form(&f, rows, cols);
        l.of_copy[i] = form_bytes(&f, (double)rows, (double)cols) / t.median * 1e6 / copy_rate;
        l.least = std::min(l.least, l.of_copy[i]);
    }
    return l;
}

static std::vector<form_line> all_lines(double rate)
{
    static const struct {
        enum weight_form weight;
        enum dtype master;
    } kept[] = { { W_F32, DT_NONE },        { W_BF16, DT_NONE },      { W_BF16, DT_F32 },
                 { W_BF16, DT_U16 },        { W_BF16, DT_F16 },       { W_BF16_COPY, DT_NONE },
                 { W_F16, DT_NONE },        { W_F16, DT_F32 },        { W_F16, DT_F16 },
                 { W_E4M3, DT_NONE },       { W_E4M3, DT_F32 },       { W_E4M3, DT_F16 },
                 { W_E4M3_FIXED, DT_NONE }, { W_E4M3_FIXED, DT_F32 }, { W_E4M3_FIXED, DT_F16 } };
    std::vector<form_line> lines;
    adam_form f = {};
    for (auto &k : kept)
        for (int drawn = 0; drawn < 2; drawn++) {
            f.weight = k.weight, f.master = k.master, f.rounding = (enum adam_rounding)drawn;
            lines.push_back(line_of(f, "", rate));
        }
    f = adam_form{ W_BF16, DT_NONE };
    f.whole = true;
    lines.push_back(line_of(f, "one scale", rate));
    f.whole = false, f.eps_inside = true;
    lines.push_back(line_of(f, "eps inside", rate));
    f.decay = DECAY_ADAMW, f.eps_inside = false;
    lines.push_back(line_of(f, "AdamW", rate));
    f.decay = DECAY_L2;
    lines.push_back(line_of(f, "L2", rate));
    std::sort(lines.begin(), lines.end(),
              [](const form_line &a, const form_line &b) { return a.least < b.least; });
    return lines;
}

/* Bytes a second as parts of what a plain copy kernel reaches in the same run. */
static void bench_adam_forms(double copy_rate)
{
    printf("adam 50304x768, bytes a second / copy's: weight, master; m/v of 4 = f32, 2 = bf16, h = "
           "f16, 1 = e4m3\n%-28s",
           "");
    for (int i = 0; i < 16; i++)
        printf("  %c/%c", "42h1"[i / 4], "42h1"[i % 4]);
    printf("\n");
    for (const form_line &l : all_lines(copy_rate)) {
        printf("%-28s", l.name);
        for (double x : l.of_copy)
            x > 0 ? printf(" %.2f", x) : printf("    -");
        printf("\n");
    }
    fflush(stdout);
}

/* Five tables, each in a launch of its own and all in one. */
static void bench_tables(int64_t rows, adam_form f)
{
    enum { TABLES = 5 };
    struct adam_step a = { 0.01f, 1e-6f, 1e-10f, 1 };
    struct adam_param p[TABLES];
    struct fp8_copy copy[TABLES];
    char name[80];

    pool.used = 0;
    struct adam_step *step = (struct adam_step *)pooled(DT_F32, 1, 4, 0).data;
    o->upload(o, step, &a, sizeof a);
    for (int i = 0; i < TABLES; i++)
        p[i] = form_new(&f, rows, 768, step, &copy[i]);
    for (int together = 0; together < 2; together++) {
        times t = time_of(1, [&](int) {
            for (int i = 0; i < TABLES && !together; i++)
                o->adam(o, &p[i], 1);
            if (together)
                o->adam(o, p, TABLES);
        });
        snprintf(name, sizeof name, "adam 5 x %dx768 %s, %s %s%s, %s", (int)rows,
                 weight_name[f.weight], dtype_name(f.m), dtype_name(f.v),
                 f.rounding ? " drawn" : "", together ? "one call" : "five");
        row(name, t, TABLES * form_bytes(&f, (double)rows, 768), 0);
    }
}

static void bench_all_tables(void)
{
    for (int64_t rows : { 6288, 50304 }) {
        bench_tables(rows, { W_BF16, DT_NONE, DT_F32, DT_F32 });
        bench_tables(rows, { W_BF16, DT_U16, DT_BF16, DT_BF16 });
        bench_tables(rows, { W_BF16, DT_NONE, DT_F16, DT_F16 });
        bench_tables(rows, { W_BF16, DT_NONE, DT_E4M3, DT_E4M3 });
        bench_tables(rows, { W_BF16, DT_NONE, DT_E4M3, DT_E4M3, ROUND_STOCHASTIC });
        bench_tables(rows, { W_E4M3, DT_F16, DT_E4M3, DT_F16 });
    }
}

static void bench_transpose(int64_t rows, int64_t cols)
{
    double count = (double)rows * cols;
    struct tensor src[2], dst[2];
    char name[80];

    for (int i = 0; i < 2; i++)
        src[i] = filled(DT_BF16, rows, cols, 1), dst[i] = filled(DT_BF16, cols, rows, 1);
    real factor = 1;
    const real *one = (const real *)number(&factor, sizeof factor);
    for (int sms : { 0, 112, 96, 64, 32 })
        for (int add = 0; add < 2; add++) {
            snprintf(name, sizeof name, "transpose %dx%d %s%s%.0d", (int)rows, (int)cols,
                     add ? "add" : "copy", sms ? ", SMs: " : "", sms);
            o->transpose_sms = sms;
            row(name, time_of(2, [&](int i) { o->transpose(o, dst[i], src[i], add ? one : NULL); }),
                (add ? 6 : 4) * count, 0);
        }
    o->transpose_sms = 0;
}

/* Parameters of 40 numbers, one and then 40 of them in a launch. */
static void bench_small(void)
{
    struct adam_param p[ADAM_MAX] = {};
    struct adam_step a = { 0.01f, 1e-6f, 1e-10f, 1 };
    const struct adam_step *step = (const struct adam_step *)number(&a, sizeof a);
    for (struct adam_param &q : p) {
        q.w = filled(DT_F32, 1, 40, 1), q.g = filled(DT_F32, 1, 40, 1);
        q.m.t = filled(DT_F32, 1, 40, 0), q.v.t = filled(DT_F32, 1, 40, 0);
        q.beta1 = 0.9, q.beta2 = 0.99, q.step = step;
    }
    row("adam 40 (a launch)", time_of(20, [&](int) { o->adam(o, p, 1); }), 28 * 40, 0);
    row("adam 40 x 40 (a launch)", time_of(20, [&](int) { o->adam(o, p, ADAM_MAX); }),
        28.0 * 40 * ADAM_MAX, 0);
}

__global__ void copy_kernel(float4 *to, const float4 *from, int64_t n)
{
    int64_t i = blockIdx.x * (int64_t)blockDim.x * 4 + threadIdx.x;
    float4 v[4];
    for (int k = 0; k < 4; k++)
        v[k] = from[i + k * blockDim.x];
    for (int k = 0; k < 4; k++)
        to[i + k * blockDim.x] = v[k];
}

/* Bytes a second of the copy kernel. */
static double bench_copy(void)
{
    struct tensor a = filled(DT_F32, 1, 256 << 20, 1), b = filled(DT_F32, 1, 256 << 20, 1);
    row("device copy of 1 GiB by the driver", time_of(2, [&](int) { o->copy(o, b, a); }),
        2.0 * tensor_bytes(a), 0);
    times t = time_of(2, [&](int) {
        copy_kernel<<<(64 << 20) / 1024, 256, 0, c->stream>>>((float4 *)b.data,
                                                              (const float4 *)a.data, 64 << 20);
    });
    row("device copy of 1 GiB by a kernel", t, 2.0 * tensor_bytes(a), 0);
    return 2.0 * tensor_bytes(a) / t.median * 1e6;
}

static void queue_bank(const bank &b, const struct bank_step *step)
{
    static const std::vector<float> lr(64, 1.0f);
    o->muon_input(o, b.x, b.mom, b.g, b.shape.n, false, &step->momentum, NULL);
    o->polar(o, b.x, b.shape.n, table, 5, 0);
    o->normuon(o, b.w, b.mant, b.q, b.x, b.shape.n, lr.data(), &step->variance, NULL, false,
               &step->write, NULL);
}

/* In place of a gather: its blocks hold multiprocessors for so long. */
__global__ void hold(uint64_t ns)
{
    uint64_t begin, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
    do
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    while (now - begin < ns);
}

/* All of NorMuon's ops on a rank's matrices: one bank after the other, and in branches. gather_us:
 * how long the first bank's gather takes, which starts when that bank is updated. */
static void bench_normuon(const char *name, const std::vector<bank_shape> &banks, double gather_us)
{
    struct bank_step m = { { 0.02f, 0.02f }, 0.05f, 0.05f };
    const struct bank_step *step = (const struct bank_step *)number(&m, sizeof m);
    std::vector<std::vector<bank>> sets(2);
    double flops = 0, count = 0;
    char text[80];

    for (const bank_shape &s : banks) {
        double k = (double)std::min(s.rows, s.cols), m = (double)std::max(s.rows, s.cols);
        flops += 5.0 * s.n * (3 * k * k * m + k * k * k);
        count += s.n * k * m;
        for (auto &set : sets)
            set.push_back(bank_of(s));
    }
    flops += 22 * count / BANDWIDTH * RATE; /* of the passes, at the rate of products */
    for (bool beside : { false, true }) {
        snprintf(text, sizeof text, "%s, %s%s", name, beside ? "beside" : "in turn",
                 gather_us ? ", a gather" : "");
        row(text,
            time_of((int)sets.size(),
                    [&](int i) {
                        for (size_t b = 0; b < banks.size(); b++) {
                            o->branch(o, beside ? (int)b : TRUNK);
                            queue_bank(sets[i][b], step);
                            if (b == 0 && gather_us) {
                                o->branch(o, beside ? 0 : BRANCHES - 1);
                                hold<<<16, 512, 0, c->stream>>>((uint64_t)(gather_us * 1e3));
                            }
                            o->branch(o, TRUNK);
                        }
                        o->join(o);
                    }),
            0, flops);
    }
}

static void bench_normuons(void)
{
    static const struct {
        const char *name;
        std::vector<bank_shape> banks;
        double gather_us;
    } ranks[] = {
        { "NorMuon 61, one rank", { { 40, 768, 768 }, { 24, 3072, 768 } }, 0 },
        { "NorMuon 61, rank of 4", { { 10, 768, 768 }, { 6, 3072, 768 } }, 0 },
        { "NorMuon 61, rank of 8", { { 5, 768, 768 }, { 3, 3072, 768 } }, 0 },
        { "NorMuon 61, rank of 8", { { 5, 768, 768 }, { 3, 3072, 768 } }, 137 },
        { "NorMuon 61, rank of 16", { { 3, 768, 768 }, { 2, 3072, 768 } }, 0 },
        { "NorMuon 84, rank of 8", { { 7, 256, 768 }, { 3, 768, 768 }, { 3, 3072, 768 } }, 0 },
    };
    for (auto &r : ranks) {
        anew();
        bench_normuon(r.name, r.banks, r.gather_us);
    }
}

/* -- soap ------------------------------------------------------------------------------------ */

struct soap_bank {
    int n;
    int64_t rows, cols;
    struct tensor x, g, p, half, second, s[2], q[2], updates;
};

static soap_bank soap_of(int n, int64_t rows, int64_t cols)
{
    soap_bank b = { n, rows, cols };
    for (struct tensor *t : { &b.x, &b.g, &b.p, &b.half, &b.second })
        *t = filled(DT_F32, n * rows, cols, t == &b.second ? 0 : 1);
    for (int side = 0; side < 2; side++) {
        int64_t k = side ? cols : rows;
        b.s[side] = filled(DT_F32, n * k, k, 0), b.q[side] = filled(DT_F32, n * k, k, 0);
        o->cosine_basis(o, b.q[side], n, 1, side, NULL);
    }
    b.updates = filled(DT_F32, n, 1, 1);
    return b;
}

static void rotate(const soap_bank &b, struct tensor to, struct tensor from, bool out)
{
    struct multiply left = {}, right = {};
    left.ta = !out, right.tb = out, left.basis_a = right.basis_b = true;
    o->multiply(o, b.half, b.q[0], from, b.n, &left);
    o->multiply(o, to, b.half, b.q[1], b.n, &right);
}

static void turn_side(const soap_bank &b, int side)
{
    struct basis_turn t = {};
    t.sort = true, t.v = b.second, t.right = side;
    o->turn(o, b.q[side], b.s[side], b.n, &t);
}

static void turn_sides(const soap_bank &b)
{
    struct basis_turn t = {};
    t.sort = true, t.v = b.second;
    if (b.rows == b.cols)
        t.other_q = b.q[1], t.other_s = b.s[1];
    o->turn(o, b.q[0], b.s[0], b.n, &t);
    if (b.rows != b.cols)
        turn_side(b, 1);
}

static void grow(const soap_bank &b, const real *blend)
{
    for (int side = 0; side < 2; side++) {
        struct multiply m = {};
        m.ta = side, m.tb = !side, m.blend = blend;
        o->multiply(o, b.s[side], b.p, b.p, b.n, &m);
    }
}

/* Queues what stage soap does, as optim/rules.c queues it. */
static void soap_once(const soap_bank &b, const real *numbers)
{
    rotate(b, b.p, b.g, false);
    grow(b, numbers);
    rotate(b, b.x, b.x, false);
    o->whiten(o, b.x, b.second, b.p, b.n, WHITEN_OWN, numbers, numbers + 1,
              (const real *)b.updates.data, NULL);
    rotate(b, b.x, b.x, true);
    turn_sides(b);
}

static void bench_soap(void)
{
    static const int64_t shape[][3] = { { 12, 768, 768 }, { 12, 3072, 768 } };
    static const int times_of[] = { 4, 2 }; /* q, k, v, o; up, down */
    real given[2] = { 0.1f, 1e-8f };
    double sum = 0, THREE = 3; /* products of f16 for one of f32 */
    char name[80];

    for (int i = 0; i < 2; i++) {
        anew();
        const real *numbers = (const real *)number(given, sizeof given);
        int n = (int)shape[i][0];
        double r = (double)shape[i][1], k = (double)shape[i][2],
               cubes[2] = { r * r * r, k * k * k };
        soap_bank b = soap_of(n, shape[i][1], shape[i][2]);
        for (int step = 0; step < 12; step++)
            draw(b.p, 1), grow(b, numbers);
        for (int side = 0; side < 2; side++) {
            snprintf(name, sizeof name, "turn %d of %d", n, (int)(side ? k : r));
            row(name, time_of(1, [&](int) { turn_side(b, side); }), 0,
                THREE * n * 16.0 / 3 * cubes[side]);
        }
        if (r == k)
            row("turn of both sides", time_of(1, [&](int) { turn_sides(b); }), 0,
                THREE * n * 32.0 / 3 * cubes[0]);
        snprintf(name, sizeof name, "rotate %d of %dx%d", n, (int)r, (int)k);
        row(name, time_of(1, [&](int) { rotate(b, b.p, b.g, false); }), 0,
            THREE * n * 2 * r * k * (r + k));
        snprintf(name, sizeof name, "covariances of %d of %dx%d", n, (int)r, (int)k);
        row(name, time_of(1, [&](int) { grow(b, numbers); }), 0, THREE * n * r * k * (r + k));
        snprintf(name, sizeof name, "soap %d of %dx%d", n, (int)r, (int)k);
        times t = time_of(1, [&](int) { soap_once(b, numbers); });
        row(name, t, 0, THREE * n * (16.0 / 3 * (cubes[0] + cubes[1]) + 7 * r * k * (r + k)));
        sum += times_of[i] * t.median;
    }
    printf("soap of track 3's 72 matrices: %.1f ms\n", sum / 1000);
}

/* Prints what kernels turns of a bank's sides take. */
static void profile_turns(int64_t rows, int64_t cols)
{
    struct trace t = {};
    anew();
    const float given = 0.1f;
    const real *blend = (const real *)number(&given, sizeof given);
    soap_bank b = soap_of(12, rows, cols);
    for (int step = 0; step < 12; step++)
        draw(b.p, 1), grow(b, blend);
    turn_sides(b);
    must(o->sync(o));
    must(profile_begin(&t));
    turn_sides(b);
    must(o->sync(o));
    profile_end();
    printf("turns of both sides of 12 of %dx%d\n", (int)rows, (int)cols);
    must(trace_table(&t, stdout, 1));
    trace_release(&t);
}

int main(int argc, char **argv)
{
    bool plans = argc > 1 && !strcmp(argv[1], "plans"), all = argc == 1;
    bool adam = argc > 1 && !strcmp(argv[1], "adam");
    bool normuon = argc > 1 && !strcmp(argv[1], "normuon");
    if (ops_cuda_count() == 0) {
        printf("skipped: no GPU\n");
        return 77;
    }
    anew();
    head();
    if (normuon) {
        bench_normuons();
        return 0;
    }
    if (argc > 1 && !strcmp(argv[1], "turns")) {
        profile_turns(768, 768);
        profile_turns(3072, 768);
        return 0;
    }
    if (argc > 1 && !strcmp(argv[1], "soap")) {
        bench_soap();
        return 0;
    }
    double copy_rate = bench_copy();
    static const int64_t shape[][3] = {
        { 5, 768, 768 }, { 3, 3072, 768 }, { 40, 768, 768 }, { 24, 3072, 768 }
    };
    for (auto &s : shape) {
        anew();
        if (!adam)
            bench_polar((int)s[0], s[1], s[2], plans);
    }
    if (!all && !adam)
        return 0;
    if (all)
        bench_normuons();
    for (auto &s : shape) {
        anew();
        if (all)
            bench_bank((int)s[0], s[1], s[2]);
    }
    anew();
    bench_adam(6288, 768, DT_F32);
    bench_adam(6288, 768, DT_BF16);
    anew();
    bench_adam(50304, 768, DT_F32);
    bench_adam(50304, 768, DT_BF16);
    bench_small();
    anew();
    pool.bytes = (size_t)10 << 30;
    pool.data = (char *)o->alloc(o, pool.bytes, "bench");
    must(o->status(o));
    bench_all_tables();
    bench_adam_forms(copy_rate);
    anew();
    if (all)
        bench_transpose(768, 50304);
    must(o->sync(o));
    o->free(o);
    return 0;
}
