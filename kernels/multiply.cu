/* multiply.cu - products of matrices that a rule's stages need in f32.
 *
 * Contract: op_list.h, optimizers.md 4.8. Both operands are packed in f16x3, their rows scaled to norms from 1 to 2
 * (split.h), a basis' as they are, one product for all matrices, some at a time; a pass over c behind it takes scales
 * back, and does what is said of c. Of a matrix by itself the lower half is made, in rows of 384. FLOPs: 2 R C k in f32, half that of a matrix
 * by itself, three times that in f16. c differs from the C reference's by the order of sums, and by 2^-22 of a
 * product's operands.
 */
#include "gpu.h"
#include "optim.h"
#include "split.h"

enum { THREADS = 256, WIDE = 384, TILE = 32 };

struct towards {
    const float *blend, *whole, *over_row,
        *over_col; /* over: scales of (rows) and (cols) a matrix, or NULL: 1 */
    float diagonal;
    bool sum, symmetric; /* symmetric: t holds the lower half alone */
    const struct step_gate *gate;
};

__device__ __forceinline__ void finish_one(float *at, float x, float blend, bool diagonal,
                                           const struct towards &m)
{
    x = m.sum ? x : mul(blend, x);
    if (m.blend)
        x = fmaf(1 - blend, *at, x);
    *at = x + (diagonal ? m.diagonal : 0);
}

/* c <- what m says of the product t, which may be c, of matrix blockIdx.z: a block has a tile. */
static __global__ void __launch_bounds__(THREADS)
    finish(float *c, const float *t, int rows, int cols, struct towards m)
{
    __shared__ float tile[TILE][TILE + 1];
    int r0 = blockIdx.y * TILE, c0 = blockIdx.x * TILE;
    int64_t base = (int64_t)blockIdx.z * rows * cols;
    const float *over_row = m.over_row ? m.over_row + (int64_t)blockIdx.z * rows : NULL;
    const float *over_col = m.over_col ? m.over_col + (int64_t)blockIdx.z * cols : NULL;
    float blend = m.blend ? *m.blend : 1;

    if ((m.gate && m.gate->skip) || (m.symmetric && c0 > r0))
        return;
    if (m.whole && m.whole[blockIdx.z] == 0)
        blend = 1;
    for (int i = threadIdx.x; i < TILE * TILE; i += THREADS) {
        int row = r0 + i / TILE, col = c0 + i % TILE;
        if (row >= rows || col >= cols)
            continue;
        int64_t at = base + (int64_t)row * cols + col;
        float x = t[at] * (over_row ? over_row[row] : 1) * (over_col ? over_col[col] : 1);
        tile[i / TILE][i % TILE] = x;
        if (!m.symmetric || col <= row)
            finish_one(c + at, x, blend, row == col, m);
    }
    if (!m.symmetric)
        return;
    __syncthreads();
    for (int i = threadIdx.x; i < TILE * TILE; i += THREADS) {
        int row = c0 + i / TILE, col = r0 + i % TILE; /* above the diagonal */
        if (row < rows && col < cols && row < col)
            finish_one(c + base + (int64_t)row * cols + col, tile[i % TILE][i / TILE], blend, false,
                       m);
    }
}

/* Scales an operand's rows, which a basis need not be. */
static void scale(struct cuda_ops *c, const struct scales &to, struct unpacked *from, bool basis,
                  int n)
{
    if (basis)
        return;
    scale_rows(c, to, *from, n);
    from->by_row = to.by, from->by_stride = from->rows;
}

void gpu_multiply(struct ops *o, struct tensor out, struct tensor a, struct tensor b, int n,
                  const struct multiply *m)
{
    struct cuda_ops *c = cuda_of(o);
    int rows = (int)(out.rows / n), cols = (int)out.cols;
    int k = (int)(m->ta ? a.rows / n : a.cols);
    int64_t count = (int64_t)rows * cols, size_a = (int64_t)rows * k, size_b = (int64_t)cols * k;
    bool symmetric = a.data == b.data && m->ta != m->tb && rows == cols;
    assert(tensor_count(a) == n * size_a && tensor_count(b) == n * size_b);
    if (c->failed || out.rows == 0 ||
        !CUDA_NEED(c, out.dtype == DT_F32 && a.dtype == DT_F32 && b.dtype == DT_F32,
                   "operands must be f32"))
        return;
    bool apart = m->blend || m->gate || symmetric; /* the product is not in c */
    size_t lines[2] = { cuda_round(4 * (size_t)rows), cuda_round(4 * (size_t)cols) };
    size_t each = packed_bytes(1, rows, k, PAIR_A) + packed_bytes(1, cols, k, PAIR_B) +
                  2 * (lines[0] + lines[1]) + (apart ? cuda_round(4 * (size_t)count) : 0);
    int many = split_at_once(n, each);
    char *at = (char *)cuda_workspace(c, each * many);
    if (!at)
        return;
    struct packed pa = packed_cut(&at, many, rows, k, PAIR_A);
    struct packed pb = packed_cut(&at, many, cols, k, PAIR_B);
    struct scales scales[2];
    for (int i = 0; i < 2; i++) {
        scales[i].by = (float *)cuda_cut(&at, lines[i] * many);
        scales[i].over = (float *)cuda_cut(&at, lines[i] * many);
    }
    float alpha = m->alpha == 0 ? 1 : (float)m->alpha;
    for (int first = 0; first < n && !c->failed; first += many) {
        int some = n - first < many ? n - first : many;
        float *to = (float *)out.data + first * count, *t = apart ? (float *)at : to;
        struct unpacked fa = {
            (const float *)a.data + first * size_a, m->ta ? rows : k, size_a, rows, k, m->ta
        };
        struct unpacked fb = {
            (const float *)b.data + first * size_b, m->tb ? k : cols, size_b, cols, k, !m->tb
        };
        scale(c, scales[0], &fa, m->basis_a, some);
        if (symmetric) {
            pack_both(c, pa, pb, 0, 0, fa, some);
            for (int r = 0; r < rows; r += WIDE) {
                int w = min((int)WIDE, rows - r);
                packed_product(c, t + (int64_t)r * cols, cols, count, pa, r, w, pb, 0, r + w, 0,
                               pa.chunks, alpha, false, some);
            }
        } else {
            pack(c, pa, 0, 0, fa, some);
            scale(c, scales[1], &fb, m->basis_b, some);
            pack(c, pb, 0, 0, fb, some);
            packed_product(c, t, cols, count, pa, 0, rows, pb, 0, cols, 0, pa.chunks, alpha, false,
                           some);
        }
        if (c->failed)
            return;
        struct towards how = { m->blend,
                               m->whole ? m->whole + first : NULL,
                               m->basis_a ? NULL : scales[0].over,
                               m->basis_b ? NULL : scales[!symmetric].over,
                               (float)m->diagonal,
                               m->sum,
                               symmetric,
                               m->gate };
        finish<<<dim3(div_up(cols, TILE), div_up(rows, TILE), some), THREADS, 0, c->stream>>>(
            to, t, rows, cols, how);
        CUDA_LAUNCHED(c);
    }
}
