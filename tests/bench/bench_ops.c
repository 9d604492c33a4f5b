/* bench_ops.c - time of each model op of the plain C device on one core.
 *
 *     build/tests/bench_ops [TOKENS [WIDTH [VOCAB]]]      (1024 128 50304)
 *
 * A line an op: median, fastest and slowest of the runs in milliseconds, and
 * for products GFLOP/s at the median. Weights are bf16, heads of 32 channels.
 */
#include <stdio.h>
#include <stdlib.h>
#include "base/progress.h"
#include "base/rng.h"
#include "ops/ops.h"

enum { RUNS = 9, HEAD = 32, WINDOW = 384, DOCUMENT = 300 };

static struct ops *o;
static int T, D, H, F, V;
static struct batch batch;
static struct tensor x, y, z, a, b, d, e, x3, dx3, f1, f2, f3, d12, lse, delta, gate, dgate,
    one_gate;
static struct tensor wqkv, dwqkv, w1, dw1;
static struct tensor table, dtable, head, dhead, none;
static real *one;
static struct head_loss hl;
static struct attn_shape as;
static struct qk_made made;
static struct tensor keys; /* (T+1,D) */

static struct tensor make(enum dtype t, int64_t rows, int64_t cols, uint64_t stream)
{
    struct tensor m =
        tensor_of(o->alloc(o, (size_t)(rows * cols) * dtype_size(t), "bench"), t, rows, cols);
    struct rng r = rng_make(1, stream);
    for (int64_t i = 0; i < rows * cols; i++) {
        float v = rng_uniform(&r, (uint64_t)i) - 0.5f;
        if (t == DT_BF16)
            ((uint16_t *)m.data)[i] = bf16_from_f32(v);
        else
            ((real *)m.data)[i] = v;
    }
    return m;
}

static void run_embed(void) { o->embed(o, y, table, one_gate, one, &batch); }
static void run_embed_bwd(void)
{
    o->embed_bwd(o, z, one_gate, one + 1, x, table, one_gate, one, &batch);
}
static void run_table_grad(void) { o->table_grad(o, dtable, x, none, &batch.token, true); }
static void run_mix_norm(void)
{
    o->mix_norm(o, z, y, 2,
                (struct mix_term[]){ { .x = x, .coef = one }, { .x = y, .coef = one } });
}
static void run_mix_norm_bwd(void)
{
    o->mix_norm_bwd(o, (struct mix_grad[]){ { z, false, one + 1 }, { a, true, one + 2 } }, z, y,
                    d12, x, 2,
                    (struct mix_term[]){ { .x = x, .coef = one }, { .x = y, .coef = one } });
}
static void run_qkv_bwd_x(void) { o->linear_bwd_x(o, z, x3, wqkv, one, false); }
static void run_qkv_bwd_w(void) { o->linear_bwd_w(o, dwqkv, one + 1, x3, x, wqkv, one, false); }
static void run_relu2(void) { o->linear_relu2(o, f2, x, w1); }
static void run_relu2_bwd(void) { o->linear_relu2_bwd(o, f3, x, w1, NULL, f1); }
static void run_linear_t(void) { o->linear_t(o, z, f2, w1, NULL, x); }
static void run_linear_t_w(void) { o->linear_t_bwd_w(o, dw1, NULL, x, f2, w1, NULL, false); }
static void run_qkv(void)
{
    o->qkv(o, x, keys, z, made.factor, x3, a, wqkv, one, NO_TENSOR, &made.shape, made.rope, y, gate,
           table, &batch);
}
static void run_value_bwd(void)
{
    o->value_bwd(o, dx3, a, dgate, d12, none, &made.shape, y, gate, table, &batch);
}
static void run_attention(void) { o->attention(o, a, lse, x, keys, z, &as); }
static void run_attention_bwd(void)
{
    o->attention_bwd(o, dx3, b, d, e, VALUES_JOINED, x, x, keys, z, lse, delta, &as, &made);
}
static void run_out_gate(void) { o->out_gate(o, z, x, y, gate, H, NULL); }
static void run_out_gate_bwd(void)
{
    o->out_gate_bwd(o, z, delta, dgate, d12, x, y, y, gate, H, NULL);
}
static void run_head(void) { o->head_loss(o, one + 1, z, dhead, false, x, head, &hl); }
static void run_head_eval(void) { o->head_eval(o, one + 1, x, head, &hl); }
static void run_head_fp8(void)
{
    hl.fp8 = true;
    run_head();
    hl.fp8 = false;
}

static int ascending(const void *a, const void *b)
{
    double p = *(const double *)a, q = *(const double *)b;
    return (p > q) - (p < q);
}

static void bench(const char *name, void (*run)(void), double flop)
{
    double ms[RUNS];

    run();
    for (int i = 0; i < RUNS; i++) {
        double start = now_seconds();
        run();
        ms[i] = 1e3 * (now_seconds() - start);
    }
    qsort(ms, RUNS, sizeof *ms, ascending);
    printf("%-16s %9.3f %9.3f %9.3f", name, ms[RUNS / 2], ms[0], ms[RUNS - 1]);
    if (flop > 0)
        printf(" %8.1f", flop / ms[RUNS / 2] * 1e-6);
    putchar('\n');
}

static void setup_batch(void)
{
    int32_t *tok = o->alloc(o, (size_t)T * 4, "tok"), *tgt = o->alloc(o, (size_t)T * 4, "tgt");
    int32_t *order = o->alloc(o, (size_t)T * 4, "order"), *cu, at = 0;
    int32_t *start = o->alloc(o, ((size_t)V + 1) * 4, "start");
    struct rng r = rng_make(1, 99);

    batch.ncu = (T + DOCUMENT - 1) / DOCUMENT + 1;
    cu = o->alloc(o, (size_t)batch.ncu * 4, "cu");
    for (int i = 0; i < batch.ncu; i++)
        cu[i] = i * DOCUMENT < T ? i * DOCUMENT : T;
    for (int t = 0; t < T; t++) {
        tok[t] = (int32_t)rng_below(&r, (uint64_t)t, (uint64_t)V);
        tgt[t] = (int32_t)rng_below(&r, (uint64_t)(t + T), (uint64_t)V);
    }
    memset(start, 0, ((size_t)V + 1) * 4);
    for (int t = 0; t < T; t++)
        start[tok[t] + 1]++;
    for (int v = 0; v < V; v++)
        start[v + 1] += start[v];
    for (int v = 0; v < V; v++)
        for (int t = 0; t < T && start[v] != start[v + 1]; t++)
            if (tok[t] == v)
                order[at++] = t;
    batch.tokens = T;
    batch.tgt = tgt, batch.cu = cu;
    batch.token = (struct lookup){ T, tok, order, start };
}

static void setup(void)
{
    float freq[HEAD / 4];
    real *mtp = o->alloc(o, 3 * sizeof *mtp, "mtp");

    one = o->alloc(o, 3 * sizeof *one, "one");
    one[0] = 1, one[1] = one[2] = 0;
    mtp[0] = 1, mtp[1] = (real)0.5, mtp[2] = (real)0.25;
    setup_batch();
    x = make(DT_REAL, T, D, 1), y = make(DT_REAL, T, D, 2), z = make(DT_REAL, T, D, 3);
    x3 = make(DT_REAL, T, 3 * D, 4), dx3 = make(DT_REAL, T, 3 * D, 5);
    a = make(DT_REAL, T, D, 21), b = make(DT_REAL, T, D, 22);
    d = make(DT_REAL, T, D, 23), e = make(DT_REAL, T, D, 24);
    f1 = make(DT_REAL, T, F, 6), f2 = make(DT_REAL, T, F, 7), f3 = make(DT_REAL, T, F, 8);
    d12 = make(DT_REAL, T, GATE_WIDTH, 9), lse = make(DT_REAL, H, T, 10);
    delta = make(DT_REAL, H, T, 11);
    gate = make(DT_BF16, H, GATE_WIDTH, 11), dgate = make(DT_BF16, H, GATE_WIDTH, 12);
    one_gate = make(DT_BF16, 1, GATE_WIDTH, 25);
    wqkv = make(DT_BF16, 3 * D, D, 13), dwqkv = make(DT_BF16, 3 * D, D, 26);
    w1 = make(DT_BF16, F, D, 14);
    dw1 = make(DT_BF16, F, D, 15), table = make(DT_BF16, V, D, 16);
    dtable = make(DT_BF16, V, D, 17), head = make(DT_BF16, D, V, 18);
    dhead = make(DT_BF16, D, V, 19);
    keys = make(DT_REAL, T + 1, D, 21), made.factor = make(DT_REAL, 2 * H, T, 22);
    made.rope.table = make(DT_BF16, 2 * T, HEAD / 2, 20);
    for (int m = 0; m < HEAD / 4; m++)
        freq[m] = 1.f / (float)(1 + m);
    o->rope_table(o, made.rope, freq, 0, false);
    made.shape =
        (struct qkv_shape){ .heads = H, .head_dim = HEAD, .key_offset = KEY_OFFSET_QUARTERS };
    as = (struct attn_shape){ .rows = T,
                              .heads = H,
                              .head_dim = HEAD,
                              .cu = batch.cu,
                              .ncu = batch.ncu,
                              .cu_mul = 1,
                              .window = WINDOW,
                              .scale = 0.1f };
    hl = (struct head_loss){ .tgt = batch.tgt,
                             .mtp = mtp,
                             .n_mtp = 3,
                             .seed = 1,
                             .x_scale = 100.f / 448,
                             .w_scale = 1.6f / 448,
                             .g_scale = 0.75f / 448,
                             .cap_a = 23,
                             .cap_b = 5,
                             .cap_c = 7.5f };
}

int main(int argc, char **argv)
{
    double td;

    T = argc > 1 ? atoi(argv[1]) : 1024;
    D = argc > 2 ? atoi(argv[2]) : 128;
    V = argc > 3 ? atoi(argv[3]) : 50304;
    H = D / HEAD, F = 4 * D;
    if (T < 1 || H < 1 || D % HEAD || V < 2 || ops_cpu_new(&o)) {
        fprintf(stderr, "bench_ops: expected TOKENS WIDTH VOCAB, width a multiple of %d\n", HEAD);
        return 2;
    }
    setup();
    td = 2.0 * T * D;
    printf("# cpu, T=%d D=%d V=%d, heads of %d, window %d, documents of %d, %d runs\n", T, D, V,
           HEAD, WINDOW, DOCUMENT, RUNS);
    printf("# op                  median   fastest   slowest  GFLOP/s   (milliseconds)\n");
    bench("embed", run_embed, 0);
    bench("embed_bwd", run_embed_bwd, 0);
    bench("table_grad", run_table_grad, 0);
    bench("mix_norm", run_mix_norm, 0);
    bench("mix_norm_bwd", run_mix_norm_bwd, 0);
    bench("linear_bwd_x", run_qkv_bwd_x, td * 3 * D);
    bench("linear_bwd_w", run_qkv_bwd_w, td * 3 * D);
    bench("linear_relu2", run_relu2, td * F);
    bench("linear_relu2_bwd", run_relu2_bwd, td * F);
    bench("linear_t", run_linear_t, td * F);
    bench("linear_t_bwd_w", run_linear_t_w, td * F);
    bench("qkv", run_qkv, td * 3 * D);
    bench("value_bwd", run_value_bwd, 0);
    bench("attention", run_attention, 0);
    bench("attention_bwd", run_attention_bwd, 0);
    bench("out_gate", run_out_gate, 0);
    bench("out_gate_bwd", run_out_gate_bwd, 0);
    bench("head_loss", run_head, 3 * td * V);
    bench("head_loss fp8", run_head_fp8, 3 * td * V);
    bench("head_eval", run_head_eval, td * V);
    if (o->sync(o)) {
        fprintf(stderr, "bench_ops: %s\n", err_message());
        return err_code();
    }
    o->free(o);
    return 0;
}
