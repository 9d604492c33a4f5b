/* multiply.cu - products of matrices that a rule's stages need in f32.
 *
 * Contract: op_list.h, optimizers.md 4.8. Both operands are packed (split.h), one product for all matrices, some at a
 * time; towards c, or with a diagonal, in a pass over c behind it. FLOPs: 2 R C k in f32, six times that in bf16.
 * c differs from the C reference's by the order of sums, and by 2^-24 of a product's operands.
 */
#include "gpu.h"
#include "optim.h"
#include "split.h"

enum { THREADS = 256 };

struct towards {
    const float *blend, *whole;
    float diagonal;
    bool sum;
    const struct step_gate *gate;
};

/* c <- what m says of the product t, matrix blockIdx.y. */
static __global__ void __launch_bounds__(THREADS)
    finish(float *c, const float *t, int64_t count, int cols, struct towards m)
{
    int64_t base = blockIdx.y * count;
    float blend = m.blend ? *m.blend : 1;

    if (m.gate && m.gate->skip)
        return;
    if (m.whole && m.whole[blockIdx.y] == 0)
        blend = 1;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count;
         i += (int64_t)gridDim.x * THREADS) {
        float x = m.sum ? t[base + i] : mul(blend, t[base + i]);
        if (m.blend)
            x = fmaf(1 - blend, c[base + i], x);
        c[base + i] = x + (i / cols == i % cols ? m.diagonal : 0);
    }
}

void gpu_multiply(struct ops *o, struct tensor out, struct tensor a, struct tensor b, int n,
                  const struct multiply *m)
{
    struct cuda_ops *c = cuda_of(o);
    int rows = (int)(out.rows / n), cols = (int)out.cols;
    int k = (int)(m->ta ? a.rows / n : a.cols);
    int64_t count = (int64_t)rows * cols, size_a = (int64_t)rows * k, size_b = (int64_t)cols * k;
    bool behind = m->blend || m->diagonal != 0 || m->gate;
    assert(tensor_count(a) == n * size_a && tensor_count(b) == n * size_b);
    if (c->failed || out.rows == 0 ||
        !CUDA_NEED(c, out.dtype == DT_F32 && a.dtype == DT_F32 && b.dtype == DT_F32,
                   "operands must be f32"))
        return;
    size_t each = packed_bytes(1, rows, k, SPLIT_A) + packed_bytes(1, cols, k, SPLIT_B) +
                  (behind ? cuda_round(4 * (size_t)count) : 0);
    int many = split_at_once(n, each);
    char *at = (char *)cuda_workspace(c, each * many);
    if (!at)
        return;
    struct packed pa = packed_cut(&at, many, rows, k, SPLIT_A);
    struct packed pb = packed_cut(&at, many, cols, k, SPLIT_B);
    float alpha = m->alpha == 0 ? 1 : (float)m->alpha;
    for (int first = 0; first < n; first += many) {
        int some = n - first < many ? n - first : many;
        float *to = (float *)out.data + first * count, *t = behind ? (float *)at : to;
        pack(c, pa, 0, 0,
             { (const float *)a.data + first * size_a, m->ta ? rows : k, size_a, rows, k, m->ta },
             some);
        pack(c, pb, 0, 0,
             { (const float *)b.data + first * size_b, m->tb ? k : cols, size_b, cols, k, !m->tb },
             some);
        packed_product(c, t, cols, count, pa, 0, rows, pb, 0, cols, 0, pa.chunks, alpha, false,
                       some);
        if (!behind || c->failed)
            continue;
        struct towards how = { m->blend, m->whole ? m->whole + first : NULL, (float)m->diagonal,
                               m->sum, m->gate };
        dim3 grid = matrices_grid(c, count, THREADS, some);
        finish<<<grid, THREADS, 0, c->stream>>>(to, t, count, cols, how);
        CUDA_LAUNCHED(c);
    }
}
