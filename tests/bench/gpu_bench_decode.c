/* gpu_bench_decode.c - time of a decoding step of a record's model, with random weights.
 *
 *     build/tests/gpu_bench_decode [RECIPE [POSITION]]      (record-61 1000)
 *
 * A line a number of sequences, each at POSITION with the windows of the last validation: the time of
 * a step launched as a graph (median, fastest and slowest of RUNS rounds of STEPS steps), tokens a
 * second, and beside it the time in which this GPU reads the weights that a token needs and the keys
 * and values that its queries see, at the rate at which it reads a bank (the op finite). Then, for
 * one sequence and for MOST, a line an op: how much shorter the step is where the op is left out of
 * the graph, of all its calls and of one. Exit 77 without a GPU.
 */
#include <stdio.h>
#include <stdlib.h>
#include "../kernels/ops_cuda.h"
#include "base/progress.h"
#include "model/decode.h"
#include "recipe/schedule.h"

enum { RUNS = 9, STEPS = 50, MOST = 64 };

static struct ops *o;
static struct recipe *r;
static struct banks banks;
static struct model m;

static void check(int rc)
{
    if (rc) {
        fprintf(stderr, "gpu_bench_decode: %s\n", err_message());
        exit(rc);
    }
}

static int by_time(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Seconds of `times` calls of fn, RUNS times, ascending. */
static void time_of(double *seconds, void (*fn)(void *arg), void *arg, int times)
{
    for (int k = -1; k < RUNS; k++) {
        double began;
        check(o->sync(o));
        began = now_seconds();
        for (int i = 0; i < times; i++)
            fn(arg);
        check(o->sync(o));
        if (k >= 0)
            seconds[k] = (now_seconds() - began) / times;
    }
    qsort(seconds, RUNS, sizeof *seconds, by_time);
}

static void launch(void *graph) { ops_cuda_launch(o, graph); }

/* Bytes a second of reading the MLP's bank, which is larger than any L2. */
static void read_bank(void *flag) { o->finite(o, flag, m.p.mlp->w); }
static double read_rate(void)
{
    double s[RUNS];
    time_of(s, read_bank, o->alloc(o, 4, "flag"), 20);
    return (double)tensor_bytes(m.p.mlp->w) / s[RUNS / 2];
}

/* What a step must read: weights of products once, keys and values for each sequence. */
static double step_bytes(int sequences, int position)
{
    double n = (double)tensor_bytes(m.p.lm_head->w);
    double d = r->model.width, f = r->model.mlp_width;
    for (int i = 0; i < r->n_layers; i++) {
        int pair = r->layers[i].attention == ATTN_PAIRED ? 2 : 1;
        int window =
            (r->layers[i].long_window ? m.schedule.window_long : m.schedule.window_short) / pair;
        n += 2 * 2 * f * d;
        if (layer_attends(r, i))
            n += 2 * 4 * d * d + 2.0 * 2 * d * sequences * (position < window ? position : window);
    }
    return n;
}

/* -- ops that are left out ----------------------------------------------------------- */

static int left_out; /* calls */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#define OP(name, ...) \
    static void no_##name(struct ops *on, __VA_ARGS__) { left_out++; }
#include "ops/op_list.h"
#pragma GCC diagnostic pop

/* Seconds of a step from `position` on, ascending. */
static void time_step(double *seconds, struct decoder *d, int sequences, int position)
{
    const struct choice greedy = { .classes = r->model.vocab, .top_p = 1 };
    struct decode_row row[MOST];
    void *graph;
    for (int t = 0; t < sequences; t++)
        row[t] = (struct decode_row){ .slot = t, .pos = position, .token = 17 * t, .before = 5 };
    decoder_rows(d, row, sequences);
    decoder_next(d, &greedy);
    check(ops_cuda_capture(o));
    decoder_next(d, &greedy);
    check(ops_cuda_capture_end(o, &graph));
    time_of(seconds, launch, graph, STEPS);
    ops_cuda_graph_free(graph);
}

static void print_without(const char *name, struct decoder *d, int sequences, int position,
                          double whole)
{
    double s[RUNS];
    left_out = 0;
    decoder_next(d, &(struct choice){ .classes = r->model.vocab, .top_p = 1 });
    int calls = left_out;
    if (!calls)
        return;
    time_step(s, d, sequences, position);
    double us = 1e6 * (whole - s[RUNS / 2]);
    printf("%9d %-16s %5d %9.1f %9.2f\n", sequences, name, calls, us, us / calls);
}

static void bench_ops(struct decoder *d, int sequences, int position, double whole)
{
    puts("sequences op               calls        us  us/call");
#define OP(name, ...) \
    { \
        void (*op)(struct ops *, __VA_ARGS__) = o->name; \
        o->name = no_##name; \
        print_without(#name, d, sequences, position, whole); \
        o->name = op; \
    }
#include "ops/op_list.h"
}

static void bench(int sequences, int position, double rate)
{
    struct decoder d;
    double s[RUNS];
    int context = position + (RUNS + 2) * STEPS;

    check(decoder_init(&d, &m, sequences, MOST, context));
    for (int i = 0; i < r->n_layers; i++)
        if (d.cache[i].k.data)
            o->zero(o, d.cache[i].k), o->zero(o, d.cache[i].v);
    time_step(s, &d, sequences, position);
    double floor = step_bytes(sequences, position) / rate;
    printf("%9d %9.1f %9.1f %9.1f %10.0f %9.1f %6.2f\n", sequences, 1e6 * s[RUNS / 2], 1e6 * s[0],
           1e6 * s[RUNS - 1], sequences / s[RUNS / 2], 1e6 * floor, floor / s[RUNS / 2]);
    if (sequences == 1 || sequences == MOST)
        bench_ops(&d, sequences, position, s[RUNS / 2]);
    decoder_release(&d);
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "record-61";
    int position = argc > 2 ? atoi(argv[2]) : 1000;
    struct step_schedule at;
    struct initial *v;

    if (ops_cuda_count() == 0) {
        puts("skipped: no GPU");
        return 77;
    }
    check(recipe_read(&r, name, NULL, 0));
    check(initial_new(&v, r, 1, NULL));
    check(ops_cuda_new(&o, 0));
    check(banks_init_weights(&banks, r, o));
    check(model_init_to(&m, &banks, 0, MOST, position + (RUNS + 2) * STEPS));
    check(banks_fill(&banks, v));
    initial_free(v);
    schedule_at(r, schedule_total(r), &at);
    model_set(&m, &at);
    o->rows_apart = true;
    double rate = read_rate();
    printf("%s at position %d; this GPU reads %.0f GB/s\n", name, position, rate / 1e9);
    puts("sequences   median      best     worst   tokens/s  floor us  ratio");
    for (int n = 1; n <= MOST; n *= 8)
        bench(n, position, rate);
    o->free(o);
    recipe_free(r);
    return 0;
}
