/* gpu_bench_ops.cu - times of the model's kernels at the records' shapes, beside their floors.
 *
 *     gpu_bench_ops [TOKENS ...]         (49152 16384)
 *     gpu_bench_ops -j [TOKENS ...]      joules, too: 1 s of each row, without a pause
 *     GPT_GPU_PATH=portable gpu_bench_ops    the kernels for any GPU (ops_cuda.h)
 *
 * Each row: microseconds (median and least of RUNS replays of a captured graph that does the op
 * once on each of SETS sets of buffers, together beyond L2), the floor, time / floor, the rate,
 * how often record 61's forward and backward of a micro-batch call it, and what that makes in ms.
 * The last row adds these up; calls of 0 are other forms, or what records 74 and 84 add. Floors:
 * each input read once, each output written once at 4.25 TB/s; products at 770 (bf16) and 1198
 * (fp8) TFLOP/s, the ceilings measured on an H200; where an op is both, their sum, for its passes
 * depend on each other.
 *
 * With -j each row ends with microseconds, watts and millijoules of one op while nothing else runs:
 * a card at its limit of power lowers its clock, and then an op takes as long as its joules do. The
 * driver counts them (NVML). 0 W: its count did not change often enough.
 */
#include <dlfcn.h>
#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>
#include "../kernels/host/device.h"
#include "../kernels/ops_cuda.h"
#include "../kernels/sm90/transposed_gemm.h"

enum { RUNS = 9, SETS = 3, D = 768, H = 6, E = 128, F = 3072, V = 50304, DOCUMENT = 600 };
enum { HASHES = 251520 }; /* rows of record 74's bigram table */
static const double BANDWIDTH = 4.25e12, BF16 = 770e12, FP8 = 1198e12;

static struct ops *o;
static struct cuda_ops *c;
static double total_ms, total_floor_ms;

static void must(int rc)
{
    if (rc) {
        fprintf(stderr, "gpu_bench_ops: %s\n", err_message());
        exit(5);
    }
}

/* Sums of hashed uniforms, near normal, made on the device. */
__global__ void fill(void *p, bool f32, int64_t n, float size, uint32_t seed)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x) {
        float sum = 0;
        for (uint32_t k = 0; k < 4; k++) {
            uint32_t h = ((uint32_t)i * 4 + k) * 2654435761u + seed * 40503u;
            h ^= h >> 16, h *= 0x85ebca6bu, h ^= h >> 13, h *= 0xc2b2ae35u, h ^= h >> 16;
            sum += (float)h * 0x1p-32f - 0.5f;
        }
        sum *= size * 1.732f;
        if (f32)
            ((float *)p)[i] = sum;
        else
            ((__nv_bfloat16 *)p)[i] = __float2bfloat16(sum);
    }
}

static struct tensor filled(int64_t rows, int64_t cols, float size, enum dtype t = DT_BF16)
{
    static uint32_t seed = 1;
    struct tensor x = tensor_of(NULL, t, rows, cols);
    x.data = o->alloc(o, tensor_bytes(x), "bench");
    fill<<<1024, 256, 0, c->stream>>>(x.data, t == DT_F32, rows * cols, size, seed++);
    must(o->status(o));
    return x;
}

static const int32_t *ints(const std::vector<int32_t> &v)
{
    int32_t *p = (int32_t *)o->alloc(o, v.size() * 4, "bench");
    o->upload(o, p, v.data(), v.size() * 4);
    return p;
}

/* Codes in the memory of a tensor of bf16. */
static struct tensor codes_in(struct tensor t)
{
    t.dtype = DT_E4M3;
    return t;
}

/* Positions sorted by the rows that they read; *distinct of them. */
static struct lookup lookup_of(const std::vector<int32_t> &row, int rows, int *distinct)
{
    std::vector<int32_t> order(row.size()), start(rows + 1);

    for (size_t t = 0; t < row.size(); t++)
        order[t] = (int)t, start[row[t] + 1]++;
    *distinct = (int)std::count_if(start.begin(), start.end(), [](int n) { return n > 0; });
    for (int v = 0; v < rows; v++)
        start[v + 1] += start[v];
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return row[a] < row[b]; });
    return lookup{ (int)row.size(), ints(row), ints(order), ints(start) };
}

static int token_rows, bigram_rows; /* that the batch reads */

/* Tokens as text has them: the r-th most frequent about 1/r of the first. */
static struct batch batch_make(int tokens)
{
    std::vector<int32_t> tok(tokens), tgt(tokens), pair(tokens), cu;
    struct batch b = {};
    uint64_t h = 1;
    for (int t = 0; t < tokens; t++) {
        h = h * 6364136223846793005u + 1442695040888963407u;
        tok[t] = std::min(V - 1, (int)exp(log((double)V) * (double)(h >> 11) * 0x1p-53) - 1);
        tok[t] = (int)((int64_t)tok[t] * 7919 % V);
        if (t)
            tgt[t - 1] = tok[t];
        pair[t] = (int)((tok[t] * 36313u ^ (t ? tok[t - 1] : 0) * 27191u) % (HASHES - 1));
    }
    for (int at = 0; at < tokens; at += DOCUMENT)
        cu.push_back(at);
    while (cu.size() % 128)
        cu.push_back(tokens);
    b.tokens = tokens;
    b.tgt = ints(tgt);
    b.token = lookup_of(tok, V, &token_rows);
    b.bigram = lookup_of(pair, HASHES, &bigram_rows);
    b.cu = ints(cu), b.ncu = (int)cu.size();
    return b;
}

/* The driver's count of what the card has taken, in millijoules; NULL: not asked for. */
static int (*card_energy)(void *card, unsigned long long *mj);
static void *card;
static double total_joules;

static void count_joules(void)
{
    void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    auto init = (int (*)(void))(nvml ? dlsym(nvml, "nvmlInit_v2") : NULL);
    auto find = (int (*)(const char *, void **))(
        nvml ? dlsym(nvml, "nvmlDeviceGetHandleByPciBusId_v2") : NULL);
    char bus[32];

    if (nvml)
        card_energy = (decltype(card_energy))dlsym(nvml, "nvmlDeviceGetTotalEnergyConsumption");
    if (!init || !find || !card_energy || init() || cudaDeviceGetPCIBusId(bus, sizeof bus, 0) ||
        find(bus, &card)) {
        fprintf(stderr, "gpu_bench_ops: -j: NVML does not find GPU 0\n");
        exit(5);
    }
}

/* Waits until the count changes; returns when it did, in seconds. */
static double changed(unsigned long long *mj)
{
    unsigned long long before = 0;

    for (bool first = true;; first = false) {
        if (card_energy(card, mj)) {
            fprintf(stderr, "gpu_bench_ops: -j: NVML does not count joules on this card\n");
            exit(5);
        }
        if (!first && *mj != before)
            break;
        before = *mj;
        std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

/* Replays a graph of SETS ops n times; returns watts from the first change of the count after the first fifth to
 * the first after the last quarter has begun, or 0 if the ops had ended by then. us: of one op, after that fifth. */
static double watts_of(void *graph, int n, double *us)
{
    int warm = n / 5 + 1, last = n - n / 4;
    unsigned long long from, to;
    cudaEvent_t a, b, middle;
    float ms;

    cudaEventCreate(&a), cudaEventCreate(&b), cudaEventCreate(&middle);
    for (int i = 0; i < n; i++) {
        if (i == warm)
            cudaEventRecord(a, c->stream);
        if (i == last)
            cudaEventRecord(middle, c->stream);
        ops_cuda_launch(o, graph);
    }
    cudaEventRecord(b, c->stream);
    cudaEventSynchronize(a);
    double start = changed(&from);
    cudaEventSynchronize(middle);
    double end = changed(&to);
    bool over = cudaEventQuery(b) == cudaSuccess;
    must(o->sync(o));
    cudaEventElapsedTime(&ms, a, b);
    *us = ms * 1e3 / ((n - warm) * SETS);
    cudaEventDestroy(a), cudaEventDestroy(b), cudaEventDestroy(middle);
    return over ? 0 : (double)(to - from) * 1e-3 / (end - start);
}

static void print_joules(void *graph, double us, int calls)
{
    double watts = 0;
    for (int n = (int)(1e6 / (us * SETS)) + 8, tries = 0; watts == 0 && tries < 4; n *= 2, tries++)
        watts = watts_of(graph, n, &us);
    total_joules += watts * us * calls * 1e-6;
    printf(" %9.1f us %4.0f W %8.2f mJ", us, watts, watts * us * 1e-3);
}

/* `once(i)` queues the op on set i. */
static void row(const char *name, int calls, double bytes, double bf16_flops, double fp8_flops,
                const std::function<void(int)> &once)
{
    double floor = (bytes / BANDWIDTH + bf16_flops / BF16 + fp8_flops / FP8) * 1e6;
    std::vector<double> us;
    cudaEvent_t a, b;
    void *graph;

    must(ops_cuda_capture(o));
    for (int i = 0; i < SETS; i++)
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
            us.push_back(ms * 1e3 / SETS);
    }
    cudaEventDestroy(a), cudaEventDestroy(b);
    std::sort(us.begin(), us.end());
    double t = us[us.size() / 2];
    total_ms += t * calls * 1e-3, total_floor_ms += floor * calls * 1e-3;
    printf("%-34s %9.1f %9.1f %9.1f %6.2f %6.2f TB/s %5.0f TFLOP/s %4d %8.3f", name, t, us[0],
           floor, t / floor, bytes / t * 1e-6, (bf16_flops + fp8_flops) / t * 1e-6, calls,
           t * calls * 1e-3);
    if (card_energy)
        print_joules(graph, t, calls);
    printf("\n");
    fflush(stdout);
    ops_cuda_graph_free(graph);
}

/* Codes between 2^-3 and 2, of both signs, in e5m2 (e4m3: half to 2). */
__global__ static void fill_codes(uint8_t *p, int64_t n)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x) {
        uint32_t h = (uint32_t)i * 2654435761u;
        h ^= h >> 16, h *= 0x85ebca6bu, h ^= h >> 13;
        p[i] = (h & 0x8f) | 0x30;
    }
}

/* Measures what floors are made of, at this card's clock and in its joules. */
static void ceilings(void)
{
    enum { N = 8192 };
    struct tensor a[2], y[SETS];
    double flops = 2.0 * N * N * N, bytes = 4.0 * N * N;

    for (struct tensor &t : a)
        t = filled(N, N, 1);
    for (struct tensor &t : y)
        t = filled(N, N, 1);
    row("(nothing but a launch)", 0, 0, 0, 0, [&](int i) { o->zero(o, tensor_rows(y[i], 0, 1)); });
    row("(copy)", 0, bytes, 0, 0, [&](int i) {
        cudaMemcpyAsync(y[i].data, a[i & 1].data, N * (size_t)N * 2, cudaMemcpyDeviceToDevice,
                        c->stream);
    });
    row("(product of 8192 lines, bf16)", 0, 0, flops, 0, [&](int i) {
        struct gemm g = { .out = y[i], .a = a[0], .b = a[1], .tb = true, .alpha = 1 };
        cuda_gemm(c, &g);
    });
    struct tensor code[2] = { codes_in(a[0]), codes_in(a[1]) };
    for (struct tensor &t : code)
        fill_codes<<<1024, 256, 0, c->stream>>>((uint8_t *)t.data, (int64_t)N * N);
    row("(product of 8192 lines, e4m3)", 0, 0, 0, flops, [&](int i) {
        struct gemm g = {
            .out = y[i], .a = code[0], .b = code[1], .tb = true, .alpha = 1e-3f, .fast = true
        };
        cuda_gemm(c, &g);
    });
}

/* The tensors of one set. */
struct set {
    struct tensor x, y, z, g, h, i, h2, h3, h4, x3, dx3, f1, f2, f3, d12, lse, delta;
    struct tensor keys; /* (T+1,D) */
};

static struct set sets[SETS];
static struct tensor none, table, dtable, bigrams, dbigrams, head, dhead;
static struct tensor wqkv, dwqkv, wo, dwo, w1, dw1, gate, dgate;
static struct tensor gate1, dgate1;
static real *num, *sum; /* numbers to read, sums to add to */
static struct rope rope;

static void make(int T)
{
    float freq[E / 4];
    for (struct set &s : sets) {
        for (struct tensor *t : { &s.x, &s.y, &s.z, &s.g, &s.h, &s.i, &s.h2, &s.h3, &s.h4 })
            *t = filled(T, D, 1);
        s.keys = filled(T + 1, D, 1);
        s.x3 = filled(T, 3 * D, 1), s.dx3 = filled(T, 3 * D, 1);
        s.f1 = filled(T, F, 1), s.f2 = filled(T, F, 1), s.f3 = filled(T, F, 1);
        s.d12 = filled(T, GATE_WIDTH, 0.01f);
        s.lse = filled(H, T, 1, DT_F32);
        s.delta = filled(H, T, 1, DT_F32);
    }
    table = filled(V, D, 1), dtable = filled(V, D, 1);
    bigrams = filled(HASHES, D, 1), dbigrams = filled(HASHES, D, 1);
    head = filled(D, V, 0.05f), dhead = filled(D, V, 1);
    wqkv = filled(3 * D, D, 0.03f), dwqkv = filled(3 * D, D, 1);
    wo = filled(D, D, 0.03f), dwo = filled(D, D, 1), w1 = filled(F, D, 0.03f);
    dw1 = filled(F, D, 1);
    gate = filled(H, GATE_WIDTH, 0.1f), dgate = filled(H, GATE_WIDTH, 1);
    gate1 = filled(1, GATE_WIDTH, 0.1f), dgate1 = filled(1, GATE_WIDTH, 1);
    num = (real *)filled(1, 8, 0.3f, DT_F32).data;
    sum = (real *)filled(1, 8, 1, DT_F32).data;
    rope.table = filled(2 * T, E / 2, 1);
    for (int m = 0; m < E / 4; m++)
        freq[m] = powf(1024, -m / (E / 4 - 1.f));
    o->rope_table(o, rope, freq, 0, false);
}

/* A (T,D) tensor in memory of a larger one. */
static struct tensor start_of(struct tensor t, int T) { return tensor_of(t.data, t.dtype, T, D); }

static void streams(int T, const struct batch *b)
{
    double A = 2.0 * T * D, R = 2.0 * D, W = V * R; /* bytes of (T,D), a row, a table */

    row("embed", 1, 2 * A, 0, 0, [&](int i) { o->embed(o, sets[i].x, table, gate1, num, b); });
    row("embed_bwd", 1, 3 * A, 0, 0,
        [&](int i) { o->embed_bwd(o, sets[i].z, dgate1, sum, sets[i].x, table, gate1, num, b); });
    row("table_grad", 2, A + W, 0, 0,
        [&](int i) { o->table_grad(o, dtable, sets[i].x, none, &b->token, false); });
    row("table_grad two", 2, 2 * A + W, 0, 0,
        [&](int i) { o->table_grad(o, dtable, sets[i].x, sets[i].y, &b->token, false); });
    row("table_grad, add", 0, A + 2 * token_rows * R, 0, 0,
        [&](int i) { o->table_grad(o, dtable, sets[i].x, none, &b->token, true); });
    row("table_grad 251520 rows", 0, A + HASHES * R, 0, 0,
        [&](int i) { o->table_grad(o, dbigrams, sets[i].x, none, &b->bigram, false); });
    row("table_grad 251520 rows, add", 0, A + 2 * bigram_rows * R, 0, 0,
        [&](int i) { o->table_grad(o, dbigrams, sets[i].x, none, &b->bigram, true); });
    row("gather 251520 rows", 0, A + bigram_rows * R, 0, 0,
        [&](int i) { o->gather(o, sets[i].x, bigrams, &b->bigram); });
    row("mix_norm two terms", 11, 4 * A, 0, 0, [&](int i) {
        struct set &s = sets[i];
        struct mix_term in[2] = { { s.x, num, false }, { s.y, num + 1, false } };
        o->mix_norm(o, s.z, s.g, 2, in);
    });
    row("mix_norm two terms, codes", 0, 4.5 * A, 0, 0, [&](int i) {
        struct set &s = sets[i];
        struct mix_term in[2] = { { s.x, num, false }, { s.y, num + 1, false } };
        o->mix_norm_codes(o, s.z, s.g, codes_in(s.h), 8.0f / 448, 2, in);
    });
    row("input_codes", 0, 1.5 * A, 0, 0,
        [&](int i) { o->input_codes(o, codes_in(sets[i].h), sets[i].x, 8.0f / 448); });
    row("mix_norm lane 1: two, out alone", 0, 3 * A, 0, 0, [&](int i) {
        struct set &s = sets[i];
        struct mix_term in[2] = { { s.x, num, false }, { s.y, num + 1, false } };
        o->mix_norm(o, s.x, none, 2, in);
    });
    row("mix_norm three terms", 0, 5 * A, 0, 0, [&](int i) {
        struct set &s = sets[i];
        struct mix_term in[3] = { { s.x, NULL, false }, { s.y, NULL, false }, { s.h, num, true } };
        o->mix_norm(o, s.z, s.g, 3, in);
    });
    row("mix_norm four terms", 0, 6 * A, 0, 0, [&](int i) {
        struct set &s = sets[i];
        struct mix_term in[4] = { { s.x, num, false },
                                  { s.y, NULL, false },
                                  { s.h, num + 1, false },
                                  { s.i, num + 2, false } };
        o->mix_norm(o, s.z, s.g, 4, in);
    });
    row("mix_norm norm only", 10, 2 * A, 0, 0, [&](int i) {
        struct mix_term in = { sets[i].x, NULL, false };
        o->mix_norm(o, sets[i].x, sets[i].y, 1, &in);
    });
    row("mix_norm_bwd two terms", 11, 8 * A, 0, 0, [&](int i) {
        struct set &s = sets[i];
        struct mix_term in[2] = { { s.x, num, false }, { s.y, num + 1, false } };
        struct mix_grad d[2] = { { s.g, false, sum }, { s.h, true, sum + 1 } };
        o->mix_norm_bwd(o, d, s.g, s.z, s.d12, s.i, 2, in);
    });
    row("mix_norm_bwd three terms", 0, 9 * A, 0, 0, [&](int i) {
        struct set &s = sets[i];
        struct mix_term in[3] = { { s.x, num, false },
                                  { s.y, NULL, false },
                                  { s.h, num + 1, false } };
        struct mix_grad d[3] = { { s.g, false, sum },
                                 { s.i, false, NULL },
                                 { s.h2, true, sum + 1 } };
        o->mix_norm_bwd(o, d, s.g, s.z, none, s.y, 3, in);
    });
    row("mix_norm_bwd four terms", 0, 12 * A, 0, 0, [&](int i) {
        struct set &s = sets[i];
        struct mix_term in[4] = { { s.x, num, false },
                                  { s.y, NULL, false },
                                  { s.h, num + 1, false },
                                  { s.i, num + 2, false } };
        struct mix_grad d[4] = { { s.g, false, sum },
                                 { s.h2, false, NULL },
                                 { s.h3, true, sum + 1 },
                                 { s.h4, true, sum + 2 } };
        o->mix_norm_bwd(o, d, s.g, s.z, s.d12, s.y, 4, in);
    });
    row("mix_norm_bwd norm only", 10, 4 * A, 0, 0, [&](int i) {
        struct set &s = sets[i];
        struct mix_term in = { s.x, NULL, false };
        struct mix_grad d = { s.g, false, NULL };
        o->mix_norm_bwd(o, &d, s.g, s.z, none, s.x, 1, &in);
    });
    row("lanes_mix five terms", 0, 8 * A, 0, 0, [&](int i) {
        struct set &s = sets[i];
        const struct tensor out[2] = { s.h2, s.h3 };
        struct lanes_term in[5] = { { s.x, 1, { num, NULL } },
                                    { s.y, 2, { NULL, num } },
                                    { s.z, 3, { num, num + 1 } },
                                    { s.g, 1, { num + 2, NULL } },
                                    { s.h, 1, { num + 3, NULL } } };
        o->lanes_mix(o, out, s.h4, 1, 5, in);
    });
    row("lanes_mix three terms", 0, 6 * A, 0, 0, [&](int i) {
        struct set &s = sets[i];
        const struct tensor out[2] = { s.h2, s.h3 };
        struct lanes_term in[3] = { { s.x, 1, { num, NULL } },
                                    { s.y, 2, { NULL, num } },
                                    { s.z, 3, { num, num + 1 } } };
        o->lanes_mix(o, out, s.h4, 0, 3, in);
    });
    row("lanes_mix_bwd three terms", 0, 10 * A, 0, 0, [&](int i) {
        struct set &s = sets[i];
        const struct tensor dout[2] = { s.h2, s.h3 };
        struct lanes_term in[3] = { { s.x, 1, { num, NULL } },
                                    { s.y, 2, { NULL, num } },
                                    { s.z, 3, { num, num + 1 } } };
        struct lanes_grad d[3] = { { s.h2, { sum, NULL } },
                                   { s.h3, { NULL, sum } },
                                   { s.h4, { sum + 1, sum + 2 } } };
        o->lanes_mix_bwd(o, d, dout, s.g, s.d12, s.i, 0, 3, in);
    });
    row("inject_bwd ten places", 0, 14 * A, 0, 0, [&](int i) {
        struct set &s = sets[i];
        const struct tensor g[10] = { s.x,
                                      s.y,
                                      s.z,
                                      s.g,
                                      s.h,
                                      s.i,
                                      s.h4,
                                      start_of(s.x3, T),
                                      start_of(s.f1, T),
                                      start_of(s.f2, T) };
        struct injection in[2] = {};
        for (int k = 0; k < 2; k++) {
            in[k].x = start_of(k ? s.f3 : s.dx3, T);
            in[k].dx = k ? s.h2 : s.h3;
            for (int p = 0; p < 10; p++)
                in[k].coef[p] = num + k, in[k].dcoef[p] = sum + k;
        }
        o->inject_bwd(o, 10, g, 2, in);
    });
    row("skip_gate", 1, 3 * A, 0, 0, [&](int i) {
        struct set &s = sets[i];
        o->skip_gate(o, s.x, s.x, s.y, s.z, gate1, num, NULL);
    });
    row("skip_gate_bwd", 1, 3 * A, 0, 0, [&](int i) {
        struct set &s = sets[i];
        o->skip_gate_bwd(o, s.g, s.h, dgate1, sum, s.x, s.y, s.z, gate1, num, NULL);
    });
}

/* What record 84 adds: coefficients of tokens, streams of fewer channels, exclusive attention. */
static void recombined(int T, const struct batch *b)
{
    enum { P = D / 4, K = 64, M = 14, SIGNS = 8192 };
    double A = 2.0 * T * D;
    struct tensor w = filled(M, K, 0.1f), dw = filled(M, K, 1), bias = filled(1, M, 1),
                  dbias = filled(1, M, 1), signs = filled(SIGNS, P, 1), alpha, dalpha;
    struct tensor coef = filled(T, M, 0.3f, DT_F32), dcoef = filled(T, M, 1, DT_F32);
    const real *c0 = (const real *)coef.data;
    real *d0 = (real *)dcoef.data;
    struct xsa xsa[SETS];

    alpha = filled(1, H, 1, DT_F32), dalpha = filled(1, H, 1, DT_F32);
    for (int i = 0; i < SETS; i++)
        xsa[i] = { sets[i].h, alpha, sets[i].i, dalpha };
    auto narrow = [&](struct tensor t) { return tensor_of(t.data, t.dtype, T, P); };
    auto hidden = [&](struct tensor t) { return tensor_of(t.data, t.dtype, T, K); };
    auto token = [&](struct tensor x, int k, bool plus_one = false) {
        return mix_term{ .x = x, .coef = c0 + k, .plus_one = plus_one, .stride = M };
    };
    auto half = [&](struct tensor x, int k, int first) {
        return mix_term{ .x = x, .coef = c0 + k, .stride = M, .first = first, .n = D / 2 };
    };
    row("pair_signs", 0, 4.0 * T * P, 0, 0,
        [&](int i) { o->pair_signs(o, narrow(sets[i].x), signs, b); });
    row("token_coefs", 0, T * (2.0 * K + 4 * M), 0, 0,
        [&](int i) { o->token_coefs(o, coef, hidden(sets[i].x), w, bias, NULL); });
    row("token_coefs_bwd", 0, T * (4.0 * K + 4 * M), 0, 0, [&](int i) {
        o->token_coefs_bwd(o, hidden(sets[i].x), dw, dbias, NULL, dcoef, hidden(sets[i].x), w, bias,
                           NULL);
    });
    row("mix_norm four, one narrow", 0, 5.25 * A, 0, 0, [&](int i) {
        struct set &s = sets[i];
        struct mix_term in[4] = { { s.x, num },
                                  { s.y, num + 1 },
                                  { s.h, num + 2 },
                                  { .x = narrow(s.i), .coef = num + 3, .n = P } };
        o->mix_norm(o, s.z, s.g, 4, in);
    });
    row("mix_norm values", 0, 6 * A, 0, 0, [&](int i) {
        struct set &s = sets[i];
        struct mix_term in[6] = { { s.z },       token(s.x, 0),   token(s.y, 1),
                                  token(s.h, 2), half(s.i, 6, 0), half(s.i, 7, D / 2) };
        o->mix_norm(o, s.z, none, 6, in);
    });
    row("mix_norm_bwd values", 0, 11 * A, 0, 0, [&](int i) {
        struct set &s = sets[i];
        struct mix_term in[6] = { { s.z },       token(s.x, 0),   token(s.y, 1),
                                  token(s.h, 2), half(s.i, 6, 0), half(s.i, 7, D / 2) };
        struct mix_grad d[6] = { { none },
                                 { s.h2, true, d0 },
                                 { s.h3, true, d0 + 1 },
                                 { s.h4, false, d0 + 2 },
                                 { start_of(s.x3, T), false, d0 + 6 },
                                 { start_of(s.x3, T), false, d0 + 7 } };
        o->mix_norm_bwd(o, d, s.z, none, none, s.z, 6, in);
    });
    row("mix_norm recombined", 0, 4 * A, 0, 0, [&](int i) {
        struct set &s = sets[i];
        struct mix_term in[3] = { token(s.x, 5, true), token(s.y, 3), token(s.h, 4) };
        o->mix_norm(o, s.z, none, 3, in);
    });
    row("mix_norm_bwd recombined", 0, 9 * A, 0, 0, [&](int i) {
        struct set &s = sets[i];
        struct mix_term in[3] = { token(s.x, 5, true), token(s.y, 3), token(s.h, 4) };
        struct mix_grad d[3] = { { s.g, false, d0 + 5 },
                                 { s.h2, true, d0 + 3 },
                                 { s.h3, true, d0 + 4 } };
        o->mix_norm_bwd(o, d, s.g, none, none, s.z, 3, in);
    });
    row("mix_norm before the head", 0, 8 * A, 0, 0, [&](int i) {
        struct set &s = sets[i];
        struct mix_term in[6] = { { s.x },       token(s.y, 0),  token(s.h, 1),
                                  token(s.i, 2), token(s.h2, 3), token(s.h3, 4) };
        o->mix_norm(o, s.z, s.g, 6, in);
    });
    row("mix_norm_bwd before the head", 0, 13 * A, 0, 0, [&](int i) {
        struct set &s = sets[i];
        struct mix_term in[6] = { { s.x },       token(s.y, 0),  token(s.h, 1),
                                  token(s.i, 2), token(s.h2, 3), token(s.h3, 4) };
        struct mix_grad d[6] = { { s.h4 },
                                 { start_of(s.x3, T), false, d0 },
                                 { start_of(s.dx3, T), false, d0 + 1 },
                                 { start_of(s.f1, T), false, d0 + 2 },
                                 { start_of(s.f2, T), false, d0 + 3 },
                                 { start_of(s.f3, T), false, d0 + 4 } };
        o->mix_norm_bwd(o, d, none, s.g, none, s.z, 6, in);
    });
    row("inject_bwd six places, narrow", 0, 8.5 * A, 0, 0, [&](int i) {
        struct set &s = sets[i];
        const struct tensor g[6] = { s.x, s.y, s.z, s.g, s.h, s.i };
        struct injection in[2] = {};
        for (int k = 0; k < 2; k++) {
            in[k].x = k ? narrow(s.f3) : start_of(s.dx3, T);
            in[k].dx = k ? narrow(s.h2) : s.h3;
            for (int p = 0; p < 6; p++)
                in[k].coef[p] = num + k, in[k].dcoef[p] = sum + k;
        }
        o->inject_bwd(o, 6, g, 2, in);
    });
    row("out_gate, exclusive", 0, 3 * A, 0, 0,
        [&](int i) { o->out_gate(o, sets[i].y, sets[i].x, sets[i].g, gate, H, &xsa[i]); });
    row("out_gate_bwd, exclusive", 0, 5 * A, 0, 0, [&](int i) {
        struct set &s = sets[i];
        o->out_gate_bwd(o, s.y, s.delta, dgate, s.d12, s.y, s.x, s.g, gate, H, &xsa[i]);
    });
}

static void products(int T)
{
    double A = 2.0 * T * D * D;
    struct fp8_matrices one = { { o->alloc(o, (size_t)F * D, "bench"), DT_E4M3, F, D },
                                {},
                                (real *)o->alloc(o, sizeof(real), "bench"),
                                0,
                                F,
                                F };
    struct fp8_weight w8 = { one.codes, one.scale }, turned = w8;

    o->quantize_matrices(o, &one, w1);

    row("(linear qkv)", 0, 0, 3 * A, 0,
        [&](int i) { o->linear(o, sets[i].x3, sets[i].x, wqkv, num, none); });
    row("linear_bwd_x qkv", 10, 0, 3 * A, 0,
        [&](int i) { o->linear_bwd_x(o, sets[i].y, sets[i].x3, wqkv, num, false); });
    row("linear_bwd_w qkv", 10, 0, 3 * A, 0,
        [&](int i) { o->linear_bwd_w(o, dwqkv, sum, sets[i].x3, sets[i].x, wqkv, num, false); });
    struct fp8_weight qkv_t = { codes_in(filled(D, 3 * D, 1)), num };
    row("linear_bwd_fp8 qkv", 0, 3.0 * T * D, 0, 6 * A, [&](int i) {
        o->linear_bwd_fp8(o, sets[i].y, dwqkv, sum, sets[i].x3, codes_in(sets[i].x3), sets[i].x,
                          wqkv, qkv_t, num, 1.0f / 448, 8.0f / 448, false);
    });
    row("linear out + residual", 10, 0, A, 0,
        [&](int i) { o->linear(o, sets[i].y, sets[i].x, wo, num, sets[i].y); });
    struct fp8_weight out_8 = { codes_in(filled(D, D, 1)), num };
    row("linear_fp8 out + residual", 0, 3.0 * T * D, 0, A,
        [&](int i) { o->linear_fp8(o, sets[i].y, sets[i].x, wo, out_8, num, sets[i].y); });
    row("linear_bwd_x out", 10, 0, A, 0,
        [&](int i) { o->linear_bwd_x(o, sets[i].y, sets[i].x, wo, num, false); });
    row("linear_bwd_w out", 10, 0, A, 0,
        [&](int i) { o->linear_bwd_w(o, dwo, sum, sets[i].y, sets[i].x, wo, num, false); });
    row("linear_relu2", 11, 0, 4 * A, 0,
        [&](int i) { o->linear_relu2(o, sets[i].f2, sets[i].x, w1); });
    row("linear_relu2_fp8", 0, 2.5 * T * D, 0, 4 * A,
        [&](int i) { o->linear_relu2_fp8(o, sets[i].f2, none, sets[i].x, w1, w8); });
    row("linear_relu2_fp8, codes", 0, 2.5 * T * D, 0, 4 * A, [&](int i) {
        o->linear_relu2_fp8(o, sets[i].f2, codes_in(sets[i].f3), sets[i].x, w1, w8);
    });
    row("quantize_matrices, one", 0, 5.0 * F * D, 0, 0,
        [&](int) { o->quantize_matrices(o, &one, w1); });
    one.turned = turned.codes = { o->alloc(o, (size_t)F * D, "bench"), DT_E4M3, D, F };
    row("quantize_matrices, turned", 0, 7.0 * F * D, 0, 0,
        [&](int) { o->quantize_matrices(o, &one, w1); });
    row("linear_t + residual", 11, 0, 4 * A, 0,
        [&](int i) { o->linear_t(o, sets[i].y, sets[i].f2, w1, NULL, sets[i].y); });
    row("linear_t_fp8 + residual", 0, 0, 0, 4 * A, [&](int i) {
        o->linear_t_fp8(o, sets[i].y, none, w1, codes_in(sets[i].f3), NULL, turned, NULL,
                        sets[i].y);
    });
    row("linear_relu2_bwd", 11, 0, 4 * A, 0,
        [&](int i) { o->linear_relu2_bwd(o, sets[i].f3, sets[i].x, w1, NULL, sets[i].f2); });
    row("mlp_bwd_fp8", 0, 5.0 * T * D, 0, 8 * A, [&](int i) {
        o->mlp_bwd_fp8(o, sets[i].f3, sets[i].y, sets[i].x, w1, turned, w1, w8, NULL, sets[i].f2,
                       NULL);
    });
    row("mlp_bwd_fp8, dw1", 0, 8.0 * T * D, 0, 12 * A, [&](int i) {
        struct fp8_grads first = { dw1, sets[i].x, {}, NULL, false };
        o->mlp_bwd_fp8(o, sets[i].f3, sets[i].y, sets[i].g, w1, turned, w1, w8, NULL, sets[i].f2,
                       &first);
    });
    struct tensor dw2 = filled(F, D, 1);
    row("mlp_bwd_fp8, dw1, dw2", 0, 9.0 * T * D, 0, 16 * A, [&](int i) {
        struct fp8_grads both = { dw1, sets[i].x, dw2, NULL, false };
        o->mlp_bwd_fp8(o, sets[i].f3, sets[i].y, sets[i].g, w1, turned, w1, w8, NULL, sets[i].f2,
                       &both);
    });
    row("linear_relu2_bwd, scale", 0, 0, 4 * A, 0,
        [&](int i) { o->linear_relu2_bwd(o, sets[i].f3, sets[i].x, w1, num, sets[i].f2); });
    row("(linear, no ReLU)", 0, 0, 4 * A, 0,
        [&](int i) { o->linear(o, sets[i].f1, sets[i].x, w1, NULL, none); });
    row("linear_t_bwd_w", 11, 0, 4 * A, 0,
        [&](int i) { o->linear_t_bwd_w(o, dw1, NULL, sets[i].x, sets[i].f2, w1, NULL, false); });
    row("linear_t_bwd_w, dscale", 0, 0, 4 * A, 0,
        [&](int i) { o->linear_t_bwd_w(o, dw1, sum, sets[i].x, sets[i].f2, w1, num, false); });
    row("linear_bwd_w fc", 11, 0, 4 * A, 0,
        [&](int i) { o->linear_bwd_w(o, dw1, NULL, sets[i].f3, sets[i].x, w1, NULL, false); });
    row("linear_bwd_x fc", 11, 0, 4 * A, 0,
        [&](int i) { o->linear_bwd_x(o, sets[i].y, sets[i].f3, w1, NULL, false); });
}

static void heads(int T, const struct batch *b)
{
    double A = 2.0 * T * D, P = A * D; /* bytes of (T,D), FLOPs of a product by (D,D) */
    struct tensor factor = filled(2 * H, T, 1, DT_F32);
    struct qk_made plain = { { H, E, false, KEY_OFFSET_NONE, false }, rope, factor };
    struct qk_made paired = { { H, E, true, KEY_OFFSET_NONE, false }, rope, factor };
    struct qk_made split = { { H, E, false, KEY_OFFSET_HALF, true }, rope, factor };
    struct attn_shape a = { T, H, E, 0, b->cu, b->ncu, 1, T > 20000 ? 640 : 128, 0.1f };
    double pairs = 0;

    for (int p = 0; p < T; p++)
        pairs += (double)H * (std::min(p % DOCUMENT, a.window) + 1);
    auto keys_of = [&](struct set &s, const struct qk_made &m) {
        return tensor_rows(s.keys, 0, T + (m.shape.key_offset != KEY_OFFSET_NONE));
    };
    auto qkv = [&](struct set &s, const struct qk_made &m, struct tensor table) {
        o->qkv(o, s.x, keys_of(s, m), s.z, factor, s.x3, s.h, wqkv, num, none, &m.shape, m.rope,
               s.g, gate, table, b);
    };
    row("qkv", 5, 0, 3 * P, 0, [&](int i) { qkv(sets[i], plain, none); });
    struct fp8_operands codes = { {}, 8.0f / 448, { codes_in(filled(3 * D, D, 1)), num } };
    struct qk_made in_fp8 = plain;
    in_fp8.shape.fp8 = &codes;
    row("qkv of codes", 0, 0, 0, 3 * P, [&](int i) {
        codes.x8 = codes_in(sets[i].i);
        qkv(sets[i], in_fp8, none);
    });
    row("qkv of codes, paired, table", 0, 0, 0, 3 * P, [&](int i) {
        codes.x8 = codes_in(sets[i].i);
        in_fp8.shape.paired = true;
        qkv(sets[i], in_fp8, table);
    });
    row("qkv paired, table", 5, 0, 3 * P, 0, [&](int i) { qkv(sets[i], paired, table); });
    row("qkv half offset, split gate", 0, 0, 3 * P, 0, [&](int i) { qkv(sets[i], split, table); });
    row("value_bwd", 5, 3 * A, 0, 0, [&](int i) {
        struct set &s = sets[i];
        o->value_bwd(o, s.dx3, s.h, dgate, s.d12, none, &plain.shape, s.g, gate, table, b);
    });
    row("value_bwd split gate, dv apart", 0, 4 * A, 0, 0, [&](int i) {
        struct set &s = sets[i];
        o->value_bwd(o, s.dx3, s.h, dgate, s.d12, s.y, &split.shape, s.g, gate, table, b);
    });
    row("out_gate", 10, 2 * A, 0, 0,
        [&](int i) { o->out_gate(o, sets[i].y, sets[i].x, sets[i].g, gate, H, NULL); });
    row("out_gate_bwd", 10, 3 * A, 0, 0, [&](int i) {
        struct set &s = sets[i];
        o->out_gate_bwd(o, s.y, s.delta, dgate, s.d12, s.y, s.x, s.g, gate, H, NULL);
    });
    auto attention_bwd = [&](struct set &s, const struct qk_made &m, struct attn_shape as) {
        int64_t n = T / 3; /* of x3's rows, a (T,D) */
        o->attention_bwd(o, s.dx3, tensor_shape(tensor_rows(s.x3, 0, n), T, D),
                         tensor_shape(tensor_rows(s.x3, n, n), T, D),
                         tensor_shape(tensor_rows(s.x3, 2 * n, n), T, D), VALUES_JOINED, s.g, s.x,
                         keys_of(s, m), s.z, s.lse, s.delta, &as, &m);
    };
    for (struct set &s : sets) /* q, k, v that make sense together */
        qkv(s, plain, none);
    row("attention", 10, 0, 4.0 * E * pairs, 0, [&](int i) {
        struct set &s = sets[i];
        o->attention(o, s.h, s.lse, s.x, s.keys, s.z, &a);
    });
    row("attention_bwd", 8, 0, 10.0 * E * pairs, 0,
        [&](int i) { attention_bwd(sets[i], plain, a); });
    row("attention_bwd, codes", 0, 0, 10.0 * E * pairs, 0, [&](int i) {
        struct fp8_gradient g8 = { codes_in(sets[i].dx3), 1.0f / 448 };
        struct qk_made coded = plain;
        coded.shape.dqkv8 = &g8;
        attention_bwd(sets[i], coded, a);
    });
    row("attention_bwd half offset", 2, 0, 10.0 * E * pairs, 0,
        [&](int i) { attention_bwd(sets[i], split, a); });
}

/* The weights' gradient of the head: x8t (D,T) by g8 (T,V) as it lies, and by its transpose. */
static void head_dw(int T)
{
    double G = 2.0 * T * D * V;
    struct tensor x8t = tensor_of(o->alloc(o, (size_t)T * D, "bench"), DT_E4M3, D, T);
    struct tensor g8 = tensor_of(o->alloc(o, (size_t)T * V, "bench"), DT_E5M2, T, V);
    struct gemm product = {
        .out = dhead, .a = x8t, .b = tensor_shape(g8, V, T), .tb = true, .alpha = 1e-3f
    };

    fill_codes<<<1024, 256, 0, c->stream>>>((uint8_t *)x8t.data, (int64_t)T * D);
    fill_codes<<<1024, 256, 0, c->stream>>>((uint8_t *)g8.data, (int64_t)T * V);
    row("(head dw, transposed before)", 0, 0, 0, G, [&](int) { cuda_gemm(c, &product); });
    if (!c->portable)
        row("(head dw, turned on the way)", 0, 0, 0, G,
            [&](int) { transposed_gemm(c, dhead, x8t, g8, 1e-3f, false); });
}

static void the_head(int T, const struct batch *b)
{
    double L = (double)T * V, G = 2.0 * T * D * V;
    struct head_loss h = { b->tgt,     num,         3,  1, 0,    true, 100 / 448.f,
                           1.6f / 448, 0.75f / 448, 23, 5, 7.5f, {} };
    static const float mtp[3] = { 1, 0.5f, 0.25f };

    head_dw(T);
    o->upload(o, num, mtp, sizeof mtp);
    row("head_loss fp8", 1, 5 * L, 0, 3 * G,
        [&](int i) { o->head_loss(o, sum, sets[i].y, dhead, false, sets[i].x, head, &h); });
    struct fp8_copy copy = { filled(D, V, 1), h.w_scale, num + 4 };
    copy.codes.dtype = DT_E4M3;
    o->quantize(o, &copy, head);
    h.w8 = copy.codes;
    row("head_loss fp8, w8 given", 1, 5 * L, 0, 3 * G,
        [&](int i) { o->head_loss(o, sum, sets[i].y, dhead, false, sets[i].x, head, &h); });
    h.fp8 = false;
    row("head_loss bf16", 0, 4 * L, 3 * G, 0,
        [&](int i) { o->head_loss(o, sum, sets[i].y, dhead, false, sets[i].x, head, &h); });
    row("head_eval", 0, 2 * L, G, 0, [&](int i) { o->head_eval(o, sum, sets[i].x, head, &h); });
}

static void bench(int T)
{
    must(ops_cuda_new(&o, 0));
    printf("# %s path\n", ((struct cuda_ops *)o)->portable ? "portable" : "native");
    c = (struct cuda_ops *)o;
    struct batch b = batch_make(T);
    make(T);
    must(o->sync(o));
    total_ms = total_floor_ms = total_joules = 0;
    printf("T = %d, D = %d, F = %d, V = %d\n", T, D, F, V);
    printf("%-34s %9s %9s %9s %6s %11s %13s %4s %8s\n", "op", "median_us", "least_us", "floor_us",
           "ratio", "bytes", "flops", "call", "ms");
    ceilings();
    streams(T, &b);
    recombined(T, &b);
    products(T);
    heads(T, &b);
    the_head(T, &b);
    printf("%-34s %8.2f ms, floor %.2f ms, ratio %.2f; %zu MB", "forward and backward", total_ms,
           total_floor_ms, total_ms / total_floor_ms, o->allocated(o) >> 20);
    if (card_energy)
        printf("; %.2f J", total_joules);
    printf("\n\n");
    o->free(o);
}

int main(int argc, char **argv)
{
    if (ops_cuda_count() == 0) {
        printf("gpu_bench_ops: no GPU\n");
        return 77;
    }
    int from = argc > 1 && !strcmp(argv[1], "-j") ? 2 : 1;
    if (from == 2)
        count_joules();
    for (int i = from; i < argc; i++)
        bench(atoi(argv[i]));
    if (argc == from) {
        bench(49152);
        bench(16384);
    }
    return 0;
}
