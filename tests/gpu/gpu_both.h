/* gpu_both.h - the same tensors on the CPU and on a GPU, for tests that hold one against the other.
 *
 *     struct both x = drawn(T, D, 1), y = blank(T, D);         // activations: f32 and bf16
 *     struct both w = weight(O, D, 0.1);                       // bf16 on both
 *     ON_BOTH
 *         o->linear(o, ON(y, o), ON(x, o), ON(w, o), NULL, NO_TENSOR);
 *     same("y", y, 1e-2, 0);                                   // |gpu - cpu| / |cpu|
 *
 * Numbers drawn are bf16 values, so both devices get the same; blanks hold NaN.
 *
 * Tolerances, as |gpu - cpu| / |cpu|:
 * - bf16 results: 1e-2 (a rounding is 2^-9 of an element at most; inner tensors in bf16 add);
 * - f32 sums of up to 1e6 terms in another order, with hardware exponentials: 1e-5 of the sum of
 *   absolute terms, which `size` gives where terms cancel.
 */
#ifndef GPU_BOTH_H
#define GPU_BOTH_H

#include <stdlib.h>
#include <time.h>
#include "../kernels/ops_cuda.h"
#include "base/rng.h"
#include "check.h"
#include "element.h"
#include "ops/ops.h"

static struct ops *cpu, *gpu;
static struct rng rng;
static uint64_t draws;

/* The same tensor on both devices: activations f32 and bf16, weights of one dtype. */
struct both {
    struct tensor c, g;
};

static inline double normal(void) { return rng_normal(&rng, draws++); }

static inline struct both blank_as(enum dtype on_cpu, enum dtype on_gpu, int64_t rows, int64_t cols)
{
    struct both b = { tensor_of(NULL, on_cpu, rows, cols), tensor_of(NULL, on_gpu, rows, cols) };
    b.c.data = cpu->alloc(cpu, tensor_bytes(b.c), "test");
    b.g.data = gpu->alloc(gpu, tensor_bytes(b.g), "test");
    return b;
}
static inline struct both blank(int64_t rows, int64_t cols)
{
    return blank_as(DT_F32, DT_BF16, rows, cols);
}

/* What the CPU's tensor holds, onto the GPU. */
static inline void send(struct both b)
{
    struct tensor raw = b.g;

    raw.data = malloc(tensor_bytes(b.g));
    for (int64_t i = 0; i < tensor_count(b.c); i++)
        set(raw, i, get(b.c, i));
    gpu->upload(gpu, b.g.data, raw.data, tensor_bytes(raw));
    free(raw.data);
}
static inline struct both draw(struct both b, double scale)
{
    int64_t n = tensor_count(b.c);
    float *x = (float *)malloc((size_t)n * sizeof *x);
    rng_normals(&rng, draws, n, x);
    draws += (uint64_t)n;
    for (int64_t i = 0; i < n; i++)
        set(b.c, i, bf16_round((float)(scale * x[i])));
    free(x);
    send(b);
    return b;
}
static inline struct both drawn(int64_t rows, int64_t cols, double scale)
{
    return draw(blank(rows, cols), scale);
}
static inline struct both weight(int64_t rows, int64_t cols, double scale)
{
    return draw(blank_as(DT_BF16, DT_BF16, rows, cols), scale);
}
static inline struct both number(double x)
{
    struct both b = blank_as(DT_F32, DT_F32, 1, 1);
    *(float *)b.c.data = (float)x;
    send(b);
    return b;
}
/* Integers, on both. */
struct ints {
    int32_t *c, *g;
};
static inline struct ints ints(const int32_t *v, int64_t n)
{
    size_t bytes = (size_t)n * sizeof *v;
    struct ints b = { cpu->alloc(cpu, bytes, "test"), gpu->alloc(gpu, bytes, "test") };
    memcpy(b.c, v, bytes);
    gpu->upload(gpu, b.g, v, bytes);
    return b;
}
static const struct both none;

/* The GPU's tensor in host memory; the caller frees its data. */
static inline struct tensor fetched(struct tensor t)
{
    struct tensor h = t;
    h.data = malloc(tensor_bytes(t));
    memset(h.data, 0xff, tensor_bytes(t));
    gpu->download(gpu, h.data, t.data, tensor_bytes(t));
    return h;
}

static const double bf16_tolerance = 1e-2, f32_tolerance = 1e-5;
static char label[200];

/* size: 0, or what stands in for |cpu| where it is smaller. */
static inline void same(const char *name, struct both b, double tolerance, double size)
{
    struct tensor h = fetched(b.g);
    double off = 0, norm = 0, worst = 0;
    int64_t where = 0;

    for (int64_t i = 0; i < tensor_count(b.c); i++) {
        double want = get(b.c, i), d = get(h, i) - want;
        off += d * d;
        norm += want * want;
        if (!(fabs(d) <= worst))
            worst = fabs(d), where = i;
    }
    off = sqrt(off), norm = sqrt(norm);
    norm = norm > size ? norm : size;
    check_that(off <= tolerance * norm, __FILE__, __LINE__,
               "%s: %s: off by %g of %g, %g allowed; most at row %lld, column %lld: %g, not %g",
               label, name, off, norm, tolerance, (long long)(where / b.c.cols),
               (long long)(where % b.c.cols), get(h, where), get(b.c, where));
    if (getenv("GPT_TEST_VERBOSE"))
        printf("%-60s %-10s %.2e (%.0e)\n", label, name, norm > 0 ? off / norm : off, tolerance);
    free(h.data);
}

static inline void same_bf16(const char *name, struct both b) { same(name, b, bf16_tolerance, 0); }

/* The CPU's tensor becomes the GPU's, so that what reads both is given the same. */
static inline void take_over(struct both b)
{
    struct tensor h = fetched(b.g);
    for (int64_t i = 0; i < tensor_count(b.c); i++)
        set(b.c, i, get(h, i));
    free(h.data);
}

/* Runs what follows on both devices: `o`, with its tensors ON(t, o) and numbers REAL(t, o). */
#define ON_BOTH for (struct ops *o = cpu; o; o = o == cpu ? gpu : NULL)
#define ON(t, o) ((o) == cpu ? (t).c : (t).g)
#define REAL(t, o) ((real *)ON(t, o).data)

static inline struct batch batch_of(struct ops *o, int tokens, struct ints tok, struct ints order,
                                    struct ints start)
{
    bool c = o == cpu;
    struct lookup l = { tokens, c ? tok.c : tok.g, c ? order.c : order.g, c ? start.c : start.g };
    return (struct batch){ .tokens = tokens, .token = l };
}

struct tokens {
    int n, vocab;
    struct ints tok, order, start;
};

/* A third of the tokens are one of the first three, so that long runs occur. */
static inline struct tokens tokens_make(int n, int vocab)
{
    int32_t *tok = malloc((size_t)n * 4), *order = malloc((size_t)n * 4);
    int32_t *start = calloc((size_t)vocab + 2, 4);
    struct tokens t = { .n = n, .vocab = vocab };

    for (int i = 0; i < n; i++) {
        int among = rng_below(&rng, draws++, 3) ? vocab : vocab < 3 ? vocab : 3;
        tok[i] = (int32_t)rng_below(&rng, draws++, (uint64_t)among);
        start[tok[i] + 2]++;
    }
    for (int v = 0; v < vocab; v++)
        start[v + 2] += start[v + 1];
    for (int i = 0; i < n; i++) /* start[v + 1] runs from v's first to v + 1's */
        order[start[tok[i] + 1]++] = i;
    t.tok = ints(tok, n);
    t.order = ints(order, n);
    t.start = ints(start, vocab + 1);
    free(tok), free(order), free(start);
    return t;
}
static inline struct batch tokens_on(struct ops *o, const struct tokens *t)
{
    return batch_of(o, t->n, t->tok, t->order, t->start);
}

/* Devices anew, so that memory is given back. */
static inline void fresh(void)
{
    if (cpu) {
        CHECK_OK(gpu->sync(gpu));
        CHECK_OK(cpu->status(cpu));
        cpu->free(cpu);
        gpu->free(gpu);
    }
    if (ops_cpu_new(&cpu) || ops_cuda_new(&gpu, 0)) {
        printf("%s\n", err_message());
        exit(1);
    }
    ops_cpu_threads(cpu, check_threads());
}

/* argv[1]: a seed, else the time; printed. False without a GPU. */
static inline bool both_begin(int argc, char **argv)
{
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : (uint64_t)time(NULL);

    if (ops_cuda_count() == 0)
        return false;
    printf("seed %llu\n", (unsigned long long)seed);
    rng = rng_make(seed, 0);
    return true;
}

static inline int both_end(void)
{
    CHECK_OK(gpu->sync(gpu)); /* after a failure outputs stay NaN */
    cpu->free(cpu);
    gpu->free(gpu);
    return check_done();
}

#endif
