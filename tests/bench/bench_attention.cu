/* bench_attention.cu - times of attention beside their floor, as a TSV.
 *
 *     bench_attention [FILTER]        only cases whose name contains FILTER
 *
 * A captured graph runs CALLS calls over SETS sets of inputs in turn (each set is larger than
 * the L2); a replay between two events is one sample of CALLS calls. tflops counts what the
 * documents and the window need (4 E a pair forward, 10 E backward). The floor is the larger
 * of that at the rate of a large bf16 product, and each tensor read or written once at the
 * rate of a device copy, both as measured on an H200: 772 TFLOP/s and 4.25 TB/s.
 */
#include <algorithm>
#include "attention_case.cuh"

enum { SETS = 3, CALLS = 6, SAMPLES = 25 };
static const double FLOPS_PER_US = 772e6, BYTES_PER_US = 4.25e6;

static const struct shape_case cases[] = {
    { "T=49152 documents of 1024", 49152, 6, 128, 1, 2560, EVERY_1024 },
    { "T=16384 documents of 1024", 16384, 6, 128, 1, 2560, EVERY_1024 },
    { "T=16384 W=384", 16384, 6, 128, 1, 384, TEXT },
    { "T=16384 W=128", 16384, 6, 128, 1, 128, TEXT },
    { "T=16384 paired W=384", 16384, 3, 128, 2, 384, TEXT },
    { "T=16384 paired W=128", 16384, 3, 128, 2, 128, TEXT },
    { "T=49152 W=1408", 49152, 6, 128, 1, 1408, TEXT },
    { "T=49152 W=640", 49152, 6, 128, 1, 640, TEXT },
    { "T=49152 paired W=1408", 49152, 3, 128, 2, 1408, TEXT },
    { "T=49152 paired W=640", 49152, 3, 128, 2, 640, TEXT },
    { "T=49152 one document W=2560", 49152, 6, 128, 1, 2560, ONE },
};

struct times {
    double median, min, max;
};

static struct times measure(struct buffers *sets, void (*call)(cudaStream_t, struct buffers *))
{
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t from, to;
    std::vector<double> us;

    TRY(cudaStreamCreate(&stream));
    TRY(cudaEventCreate(&from));
    TRY(cudaEventCreate(&to));
    TRY(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < CALLS; i++)
        call(stream, &sets[i % SETS]);
    TRY(cudaStreamEndCapture(stream, &graph));
    TRY(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = -3; i < SAMPLES; i++) {
        float ms;
        TRY(cudaEventRecord(from, stream));
        TRY(cudaGraphLaunch(exec, stream));
        TRY(cudaEventRecord(to, stream));
        TRY(cudaEventSynchronize(to));
        TRY(cudaEventElapsedTime(&ms, from, to));
        if (i >= 0)
            us.push_back(ms * 1e3 / CALLS);
    }
    std::sort(us.begin(), us.end());
    TRY(cudaGraphExecDestroy(exec));
    TRY(cudaGraphDestroy(graph));
    TRY(cudaEventDestroy(from));
    TRY(cudaEventDestroy(to));
    TRY(cudaStreamDestroy(stream));
    return { us[us.size() / 2], us.front(), us.back() };
}

static void show(const char *name, const char *pass, struct times t, double flops, double bytes)
{
    const double floor = std::max(flops / FLOPS_PER_US, bytes / BYTES_PER_US);
    printf("%-28s\t%s\t%.1f\t%.1f\t%.1f\t%.0f\t%.1f\t%.2f\n", name, pass, t.median, t.min, t.max,
           flops / t.median * 1e-6, floor, t.median / floor);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    need_gpu("bench_attention");
    printf("%-28s\tpass\tus\tmin\tmax\ttflops\tfloor\tratio\n", "case");
    for (const struct shape_case &c : cases) {
        struct buffers sets[SETS];
        if (argc > 1 && !strstr(c.name, argv[1]))
            continue;
        for (int i = 0; i < SETS; i++) {
            buffers_new(&sets[i], &c, 61);
            forward(0, &sets[i]);
        }
        const double work = sets[0].pairs * c.heads * c.head_dim;
        const double tensor = sets[0].count * (double)sizeof(bf16);
        const double stats = (double)sets[0].s.rows * c.heads * sizeof(float);
        show(c.name, "fwd", measure(sets, forward), 4 * work, 4 * tensor + stats);
        show(c.name, "bwd", measure(sets, backward), 10 * work, 7 * tensor + 2 * stats);
        for (int i = 0; i < SETS; i++)
            buffers_free(&sets[i]);
    }
    return 0;
}
