/* gpu_attention_test.cu - attention on the GPU against its definition in double precision.
 *
 *     gpu_attention_test [SEED [FILTER]]      SEED: else from the clock; it is printed.
 *                                             FILTER: only cases whose name contains it
 *
 * The definition is one warp a row and head that walks the keys (or queries) one by one, in
 * double, on the bf16 inputs. Compared: out, lse, dq, dk, dv; then a second run for the same
 * bits, writes past the end, and a graph replayed on other documents.
 */
#include <time.h>
#include "attention_case.cuh"
#include "check.h"

/* bf16 keeps 8 bits: out is rounded once (2^-9 relative), P and dS once more before a sum. */
static const double TOLERANCE = 1e-2;
/* Fewer rows than FEW do not average: with two keys a row, dP - delta nearly cancels. */
static const double FEW_TOLERANCE = 4e-2;
enum { FEW = 100 };
/* One row alone: fewer terms average the rounding of P, and it may be small by cancellation. */
static const double ROW_TOLERANCE = 5e-2;
/* f32 sums of at most some thousand exponentials, ex2.approx at 2 ulp. */
static const double LSE_TOLERANCE = 1e-4;

static void check(bool ok, const char *name, const char *what, double got, double limit)
{
    check_that(ok, __FILE__, __LINE__, "%s: %s: %.3g, limit %.3g", name, what, got, limit);
}

/* -- the definition ------------------------------------------------------------- */
struct reference {
    double *out, *lse, *delta, *dq, *dk, *dv; /* out..: (rows, heads E); (heads, rows) */
};

/* Lanes that share a row: one where they are emulated, and a shuffle takes longer than products. */
#ifdef __NVCC__
enum { LANES = 32 };
#else
enum { LANES = 1 };
#endif
template <int N> struct row {
    double x[N];
}; /* E / LANES channels a lane */
template <int N> __device__ row<N> row_of(const bf16 *p, int64_t at)
{
    row<N> r;
    for (int i = 0; i < N; i++)
        r.x[i] = (double)__bfloat162float(p[at * LANES * N + threadIdx.x % LANES * N + i]);
    return r;
}
template <int N> __device__ double dot(const row<N> &a, const row<N> &b)
{
    double s = 0;
    for (int i = 0; i < N; i++)
        s += a.x[i] * b.x[i];
    for (int m = LANES / 2; m > 0; m /= 2)
        s += __shfl_xor_sync(~0u, s, m);
    return s;
}
template <int N> __device__ void add(row<N> *a, double w, const row<N> &b)
{
    for (int i = 0; i < N; i++)
        a->x[i] += w * b.x[i];
}
template <int N> __device__ void put(double *p, int64_t at, const row<N> &a)
{
    for (int i = 0; i < N; i++)
        p[at * LANES * N + threadIdx.x % LANES * N + i] = a.x[i];
}

/* Grid: rows x heads x LANES threads. what: 0 forward, 1 dq, 2 dk and dv. */
template <int N> __global__ void define(struct buffers b, struct reference ref, int what)
{
    const int of = (blockIdx.x * blockDim.x + threadIdx.x) / LANES, heads = b.s.heads;
    const int p = of / heads, head = of % heads;
    if (p >= b.s.rows)
        return;
    const int64_t here = (int64_t)p * heads + head, stat = (int64_t)head * b.s.rows + p;
    const row<N> q = row_of<N>(b.q, here), k = row_of<N>(b.k, here), v = row_of<N>(b.v, here);
    const row<N> dout = row_of<N>(b.dout, here);
    const double scale = b.s.scale;
    row<N> a = {}, a2 = {};

    if (what == 0) {
        double top = -INFINITY, sum = 0;
        for (int j = b.start[p]; j <= p; j++)
            top = fmax(top, scale * dot(q, row_of<N>(b.k, (int64_t)j * heads + head)));
        for (int j = b.start[p]; j <= p; j++) {
            const int64_t at = (int64_t)j * heads + head;
            const double w = exp(scale * dot(q, row_of<N>(b.k, at)) - top);
            sum += w;
            add(&a, w, row_of<N>(b.v, at));
        }
        for (int i = 0; i < N; i++)
            a.x[i] /= sum;
        put(ref.out, here, a);
        ref.lse[stat] = top + log(sum);
        ref.delta[stat] = dot(a, dout);
    } else if (what == 1) {
        for (int j = b.start[p]; j <= p; j++) {
            const int64_t at = (int64_t)j * heads + head;
            const row<N> kj = row_of<N>(b.k, at);
            const double w = exp(scale * dot(q, kj) - ref.lse[stat]);
            add(&a, scale * w * (dot(dout, row_of<N>(b.v, at)) - ref.delta[stat]), kj);
        }
        put(ref.dq, here, a);
    } else {
        for (int i = p; i <= b.end[p]; i++) {
            const int64_t at = (int64_t)i * heads + head, st = (int64_t)head * b.s.rows + i;
            const row<N> qi = row_of<N>(b.q, at), di = row_of<N>(b.dout, at);
            const double w = exp(scale * dot(qi, k) - ref.lse[st]);
            add(&a2, w, di);
            add(&a, scale * w * (dot(di, v) - ref.delta[st]), qi);
        }
        put(ref.dk, here, a);
        put(ref.dv, here, a2);
    }
}

__global__ void narrow(float *to, const double *from, int64_t n)
{
    const int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    if (i < n)
        to[i] = (float)from[i];
}

/* Also gives backward its delta. */
static void define_all(struct buffers *b, struct reference *ref)
{
    const int64_t stats = (int64_t)b->s.rows * b->s.heads;
    double **tensors[] = { &ref->out, &ref->dq, &ref->dk, &ref->dv };
    for (double **t : tensors)
        *t = (double *)device(b->count * sizeof(double));
    ref->lse = (double *)device(stats * sizeof(double));
    ref->delta = (double *)device(stats * sizeof(double));
    for (int what = 0; what < 3; what++) {
        const int blocks = (int)((stats * LANES + 255) / 256);
        switch (b->s.head_dim) {
        case 32: define<32 / LANES><<<blocks, 256>>>(*b, *ref, what); break;
        case 64: define<64 / LANES><<<blocks, 256>>>(*b, *ref, what); break;
        case 128: define<128 / LANES><<<blocks, 256>>>(*b, *ref, what); break;
        }
        TRY(cudaGetLastError());
    }
    narrow<<<(int)((stats + 255) / 256), 256>>>(b->delta, ref->delta, stats);
    TRY(cudaGetLastError());
}
static void reference_free(struct reference *ref)
{
    double *all[] = { ref->out, ref->dq, ref->dk, ref->dv, ref->lse, ref->delta };
    for (double *p : all)
        TRY(cudaFree(p));
}

/* -- comparison ------------------------------------------------------------------- */
/* Each warp a row of n: sums[0] += |x - ref|^2, sums[1] += |ref|^2; per row into rows[]. */
__global__ void differ(const bf16 *x, const double *ref, int64_t count, int n, double *sums,
                       double *rows)
{
    const int64_t r = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) / 32;
    double d = 0, s = 0;
    if (r * n >= count)
        return;
    for (int i = threadIdx.x % 32; i < n; i += 32) {
        const double e = (double)__bfloat162float(x[r * n + i]) - ref[r * n + i];
        d += e * e;
        s += ref[r * n + i] * ref[r * n + i];
    }
    for (int m = 16; m > 0; m /= 2) {
        d += __shfl_xor_sync(~0u, d, m);
        s += __shfl_xor_sync(~0u, s, m);
    }
    if (threadIdx.x % 32 == 0) {
        atomicAdd(&sums[0], d);
        atomicAdd(&sums[1], s);
        rows[2 * r] = d;
        rows[2 * r + 1] = s;
    }
}

static void compare(const char *name, const char *what, const struct buffers *b, const bf16 *x,
                    const double *ref, double *shown)
{
    const int n = b->s.head_dim;
    const int64_t count = b->count / n;
    double *sums = (double *)device(2 * sizeof(double)), sum[2];
    double *rows = (double *)device(2 * count * sizeof(double)), worst = 0;
    TRY(cudaMemset(sums, 0, 2 * sizeof(double)));
    differ<<<(int)((count + 7) / 8), 256>>>(x, ref, b->count, n, sums, rows);
    TRY(cudaGetLastError());
    TRY(cudaMemcpy(sum, sums, sizeof sum, cudaMemcpyDeviceToHost));
    std::vector<double> each(2 * count);
    TRY(cudaMemcpy(each.data(), rows, 2 * count * sizeof(double), cudaMemcpyDeviceToHost));
    /* A gradient of zero throughout (documents of one token) is measured against 1. */
    const double typical = sum[1] / count > 1e-12 ? sum[1] / count : 1;
    const double whole = sqrt(sum[0] / (typical * count));
    for (int64_t r = 0; r < count; r++) {
        const double e = sqrt(each[2 * r] / (each[2 * r + 1] + typical));
        if (!(e <= worst))
            worst = e;
    }
    *shown = whole;
    const double limit = count < FEW ? FEW_TOLERANCE : TOLERANCE;
    check(whole <= limit, name, what, whole, limit);
    check(worst <= ROW_TOLERANCE, name, what, worst, ROW_TOLERANCE);
    TRY(cudaFree(sums));
    TRY(cudaFree(rows));
}

static double compare_lse(const char *name, const struct buffers *b, const double *ref)
{
    const size_t n = (size_t)b->s.rows * b->s.heads;
    std::vector<float> x(n);
    std::vector<double> y(n);
    TRY(cudaMemcpy(x.data(), b->lse, n * sizeof(float), cudaMemcpyDeviceToHost));
    TRY(cudaMemcpy(y.data(), ref, n * sizeof(double), cudaMemcpyDeviceToHost));
    double worst = 0;
    for (size_t i = 0; i < n; i++) {
        const double e = fabs(x[i] - y[i]) / fmax(1, fabs(y[i]));
        if (!(e <= worst))
            worst = e;
    }
    check(worst <= LSE_TOLERANCE, name, "lse", worst, LSE_TOLERANCE);
    return worst;
}

/* All outputs in one array, with what lies past their ends. */
static std::vector<uint16_t> bits_of(const struct buffers *b)
{
    const size_t n = b->count + (size_t)b->s.heads * b->s.head_dim;
    const size_t stats = ((size_t)b->s.rows * b->s.heads + 64) * 2;
    std::vector<uint16_t> all(4 * n + stats);
    const bf16 *outs[] = { b->out, b->dq, b->dk, b->dv };
    for (int i = 0; i < 4; i++)
        TRY(cudaMemcpy(&all[i * n], outs[i], n * 2, cudaMemcpyDeviceToHost));
    TRY(cudaMemcpy(&all[4 * n], b->lse, stats * 2, cudaMemcpyDeviceToHost));
    return all;
}
static void check_past_end(const char *name, const struct buffers *b,
                           const std::vector<uint16_t> &all)
{
    const size_t row = (size_t)b->s.heads * b->s.head_dim, n = b->count + row;
    size_t written = 0;
    for (int i = 0; i < 4; i++)
        for (size_t j = b->count; j < n; j++)
            written += all[i * n + j] != 0xffff;
    for (size_t j = all.size() - 128; j < all.size(); j++)
        written += all[j] != 0xffff;
    check(written == 0, name, "values written past the end", (double)written, 0);
}

/* Once more, added to dv: twice dv, which is exact, and what lies past the end as it was. */
static void check_added(const char *name, struct buffers *b, const std::vector<uint16_t> &before)
{
    const size_t dv = 3 * (b->count + (size_t)b->s.heads * b->s.head_dim);
    backward_to(0, b, true);
    std::vector<uint16_t> after = bits_of(b);
    size_t wrong = 0;
    for (size_t i = 0; i < after.size(); i++) {
        uint16_t expected = before[i];
        if (i >= dv && i < dv + b->count)
            expected = __bfloat16_as_ushort(
                __float2bfloat16(2 * __bfloat162float(__ushort_as_bfloat16(before[i]))));
        wrong += after[i] != expected;
    }
    check(wrong == 0, name, "dv added to", (double)wrong, 0);
}

enum { SMALL = 150 }; /* tokens at most, on a slow device (tests/emu) */

static void run_case(const struct shape_case *c, uint64_t seed)
{
    struct buffers b;
    struct reference ref;
    struct shape_case small = *c;
    double e[4], lse;
    if (check_small()) {
        small.tokens = c->tokens < SMALL ? c->tokens : SMALL;
        small.heads = c->heads < 2 ? 1 : 2;
        c = &small;
    }
    buffers_new(&b, c, seed);
    define_all(&b, &ref);
    forward(0, &b);
    backward(0, &b);
    TRY(cudaDeviceSynchronize());
    compare(c->name, "out", &b, b.out, ref.out, &e[0]);
    compare(c->name, "dq", &b, b.dq, ref.dq, &e[1]);
    compare(c->name, "dk", &b, b.dk, ref.dk, &e[2]);
    compare(c->name, "dv", &b, b.dv, ref.dv, &e[3]);
    lse = compare_lse(c->name, &b, ref.lse);
    std::vector<uint16_t> first = bits_of(&b);
    check_past_end(c->name, &b, first);
    make_plan(&b);
    for (int i = 0; i < 2; i++) { /* the second finds the plan's queues as the first left them */
        poison(&b);
        forward(0, &b);
        backward(0, &b);
        check(bits_of(&b) == first, c->name, "with a plan made before: other bits", 1, 0);
    }
    check_added(c->name, &b, first);
    printf("%-34s %7d x %d x %-3d  out %.1e  lse %.0e  dq %.1e  dk %.1e  dv %.1e\n", c->name,
           b.s.rows, b.s.heads, b.s.head_dim, e[0], lse, e[1], e[2], e[3]);
    fflush(stdout);
    reference_free(&ref);
    buffers_free(&b);
}

/* A graph captured over one set of documents, replayed over another. */
static void run_graph(uint64_t seed)
{
    const int tokens = check_small() ? SMALL : 2000;
    const struct shape_case one = { "graph", tokens, 6, 128, 1, 640, ONE };
    const struct shape_case text = { "graph, other documents", tokens, 6, 128, 1, 640, TEXT };
    struct buffers b, other;
    struct reference ref;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    double e;
    buffers_new(&b, &text, seed);
    buffers_new(&other, &one, seed);
    const size_t bytes = b.s.ncu * sizeof(int32_t);
    std::vector<int32_t> cu(b.s.ncu), single(b.s.ncu, one.tokens);
    single[0] = 0;
    TRY(cudaMemcpy(cu.data(), b.cu, bytes, cudaMemcpyDeviceToHost));
    TRY(cudaMemcpy(b.cu, single.data(), bytes, cudaMemcpyHostToDevice));
    TRY(cudaStreamCreate(&stream));
    TRY(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    forward(stream, &b);
    backward(stream, &b);
    TRY(cudaStreamEndCapture(stream, &graph));
    TRY(cudaGraphInstantiate(&exec, graph, 0));
    TRY(cudaGraphLaunch(exec, stream));
    TRY(cudaStreamSynchronize(stream));
    TRY(cudaMemcpy(b.cu, cu.data(), bytes, cudaMemcpyHostToDevice));
    poison(&b);
    define_all(&b, &ref);
    TRY(cudaDeviceSynchronize());
    TRY(cudaGraphLaunch(exec, stream));
    TRY(cudaStreamSynchronize(stream));
    compare(text.name, "out", &b, b.out, ref.out, &e);
    compare(text.name, "dq", &b, b.dq, ref.dq, &e);
    compare(text.name, "dk", &b, b.dk, ref.dk, &e);
    compare(text.name, "dv", &b, b.dv, ref.dv, &e);
    TRY(cudaGraphExecDestroy(exec));
    TRY(cudaGraphDestroy(graph));
    TRY(cudaStreamDestroy(stream));
    reference_free(&ref);
    buffers_free(&b);
    buffers_free(&other);
}

static const struct shape_case cases[] = {
    { "one block", 64, 1, 128, 1, 64, ONE },
    { "one tile", 128, 1, 128, 1, 128, ONE },
    { "two tiles", 256, 2, 128, 1, 1000, ONE },
    { "one row", 1, 6, 128, 1, 128, ONE },
    { "two rows", 2, 6, 128, 1, 128, ONE },
    { "one token, paired", 1, 3, 128, 2, 128, ONE },
    { "prime rows, window past all", 1009, 2, 128, 1, 4096, ONE },
    { "prime rows, small window", 997, 3, 128, 1, 37, ONE },
    { "window of no key but one", 300, 1, 128, 1, 0, ONE },
    { "documents of one token", 515, 2, 128, 1, 128, SINGLES },
    { "documents of one token, paired", 515, 3, 128, 2, 128, SINGLES },
    { "short and empty documents", 1500, 2, 128, 1, 128, SHORT },
    { "short documents, window 5", 1500, 2, 128, 1, 5, SHORT },
    { "text, window 128", 4099, 6, 128, 1, 128, TEXT },
    { "text, window 384", 4099, 6, 128, 1, 384, TEXT },
    { "text, paired, window 129", 3001, 3, 128, 2, 129, TEXT },
    { "text, window 2560, scale 0.3", 5000, 6, 128, 1, 2560, TEXT, 0.3f },
    { "head size 64", 3001, 4, 64, 1, 384, TEXT },
    { "head size 64, paired", 1501, 3, 64, 2, 640, TEXT },
    { "head size 64, one row", 1, 1, 64, 1, 1, ONE },
    { "head size 32", 3001, 2, 32, 1, 384, TEXT },
    { "head size 32, paired", 1501, 1, 32, 2, 200, SHORT },
    { "head size 32, one row", 1, 1, 32, 1, 1, ONE },
    { "record 61, stage 1, short", 16384, 6, 128, 1, 128, TEXT },
    { "record 61, stage 1, paired", 16384, 3, 128, 2, 128, TEXT },
    { "record 61, stage 3, long", 49152, 6, 128, 1, 1408, TEXT },
    { "record 61, stage 3, paired", 49152, 3, 128, 2, 640, TEXT },
    { "evaluation, one document", 65536, 2, 128, 1, 1664, ONE },
};

int main(int argc, char **argv)
{
    need_gpu("gpu_attention_test");
    const uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : (uint64_t)time(NULL);
    printf("seed %llu\n", (unsigned long long)seed);
    for (size_t i = 0; i < sizeof cases / sizeof *cases && check_of("attention"); i++)
        if ((argc < 3 || strstr(cases[i].name, argv[2])) &&
            !(check_small() && cases[i].tokens > 5000))
            run_case(&cases[i], seed + 10000 * i);
    if (argc < 3 && check_of("attention"))
        run_graph(seed + 2);
    return check_done();
}
