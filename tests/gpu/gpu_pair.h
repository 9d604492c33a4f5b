/* gpu_pair.h - the same tensor on the CPU and on the GPU, for tests of one against the other.
 *
 *     if (!pair_begin()) return pair_end();             // says why; 77 without a GPU
 *     struct both x = drawn(DT_BF16, rows, cols, 1);
 *     cpu->polar(cpu, x.c, ...);
 *     gpu->polar(gpu, x.g, ...);
 *     CHECK(distance(x) <= 1e-3);
 *     clear();                                          // memory of both goes back
 *     return pair_end();
 *
 * The seed is the time, and printed.
 */
#ifndef GPU_PAIR_H
#define GPU_PAIR_H

#include <stdlib.h>
#include <time.h>
#include "../kernels/ops_cuda.h"
#include "check.h"
#include "element.h"
#include "ops/ops.h"

static struct ops *cpu, *gpu;
static uint64_t seed, draws;

/* The same tensor on both devices. */
struct both {
    struct tensor c, g;
};

/* Four uniforms of 16 bits: near enough to a normal number, and quick for banks of millions. */
static inline double normal(void)
{
    uint64_t z = (seed + ++draws) * 0x9e3779b97f4a7c15u;
    int sum = 0;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    for (int i = 0; i < 4; i++)
        sum += (int)(z >> 16 * i & 0xffff);
    return (sum - 2 * 65535) * (1.7320508 / 65536);
}

static inline struct both blank(enum dtype t, int64_t rows, int64_t cols)
{
    struct both b = { tensor_of(NULL, t, rows, cols), tensor_of(NULL, t, rows, cols) };
    b.c.data = cpu->alloc(cpu, tensor_bytes(b.c), "test");
    b.g.data = gpu->alloc(gpu, tensor_bytes(b.g), "test");
    return b;
}

static inline void to_gpu(struct both b)
{
    gpu->upload(gpu, b.g.data, b.c.data, tensor_bytes(b.c));
}

static inline struct both drawn(enum dtype t, int64_t rows, int64_t cols, double scale)
{
    struct both b = blank(t, rows, cols);
    for (int64_t i = 0; i < rows * cols; i++)
        set(b.c, i, scale * normal());
    to_gpu(b);
    return b;
}

/* Random bits: mantissas. */
static inline struct both drawn_u16(int64_t rows, int64_t cols)
{
    struct both b = blank(DT_U16, rows, cols);
    for (int64_t i = 0; i < rows * cols; i++)
        ((uint16_t *)b.c.data)[i] = (uint16_t)(65536 * fabs(normal()));
    to_gpu(b);
    return b;
}

/* Per-step numbers, in the memory of each device. */
static inline void numbers(const void *x, size_t bytes, void **c, void **g)
{
    *c = cpu->alloc(cpu, bytes, "test");
    *g = gpu->alloc(gpu, bytes, "test");
    memcpy(*c, x, bytes);
    gpu->upload(gpu, *g, x, bytes);
}

/* The GPU's tensor in host memory; the caller frees its data. */
static inline struct tensor fetched(struct tensor t)
{
    void *host = malloc(tensor_bytes(t) + 1);
    memset(host, 0xff, tensor_bytes(t));
    gpu->download(gpu, host, t.data, tensor_bytes(t));
    t.data = host;
    return t;
}

static inline long different_bytes(struct both b)
{
    struct tensor g = fetched(b.g);
    long n = 0;
    for (size_t i = 0; i < tensor_bytes(b.c); i++)
        n += ((uint8_t *)g.data)[i] != ((uint8_t *)b.c.data)[i];
    free(g.data);
    return n;
}

/* |gpu - cpu| / |cpu|; NaN when either has one. */
static inline double distance(struct both b)
{
    struct tensor g = fetched(b.g);
    double d = 0, w = 0;
    for (int64_t i = 0; i < tensor_count(b.c); i++) {
        double x = get(b.c, i), y = get(g, i);
        d += (y - x) * (y - x);
        w += x * x;
    }
    free(g.data);
    return sqrt(w > 0 ? d / w : d);
}

static inline void clear(void) /* both devices anew: memory of a case goes back */
{
    CHECK_OK(gpu->sync(gpu));
    gpu->free(gpu);
    cpu->free(cpu);
    CHECK_OK(ops_cpu_new(&cpu));
    CHECK_OK(ops_cuda_new(&gpu, 0));
}

static inline bool named(const char *what, bool ok)
{
    if (!ok)
        printf("  in %s\n", what);
    return ok;
}

static inline bool pair_begin(void)
{
    if (ops_cuda_count() == 0)
        return false;
    seed = (uint64_t)time(NULL) << 32;
    printf("seed %llu\n", (unsigned long long)seed);
    return CHECK_OK(ops_cpu_new(&cpu)) && CHECK_OK(ops_cuda_new(&gpu, 0));
}

static inline int pair_end(void)
{
    if (!gpu)
        return ops_cuda_count() == 0 ? check_skip("gpu") : check_done();
    CHECK_OK(gpu->sync(gpu));
    gpu->free(gpu);
    cpu->free(cpu);
    return check_done();
}

#endif
