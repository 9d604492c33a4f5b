/* transpose.cu - dst (C,R) = src^T (R,C), or dst += src^T with one rounding.
 *
 * Contract: ops.h. Tiles of 64 x 64 pass through shared memory; 256 threads work on one, a block
 * on four at a time. Global accesses are 16 bytes wide in both directions; in shared memory a
 * row of bf16 takes 33 words, so that a column is spread over the banks. Blocks are put on empty
 * multiprocessors first, so gpu_transpose_sms starts one for each that it may use, else two.
 * Bytes an element, bf16: 4; 6 when adding.
 */
#include "gpu.h"
#include "optim.h"
#include "transpose.h"

enum { SIDE = 64, TEAM = 256, TEAMS = 4, THREADS = TEAM * TEAMS };

template <typename T>
struct tile { T at[SIDE][SIDE + 4 / sizeof(T)]; };

/* VEC: rows of src and dst are whole 16 bytes, at 16-byte addresses. */
template <bool VEC, bool ADD, typename S, typename D>
static __global__ void __launch_bounds__(THREADS)
transpose(D *dst, const S *src, int rows, int cols)
{
    extern __shared__ __align__(16) char raw[];
    constexpr int VS = VEC ? 16 / sizeof(S) : 1, VD = VEC ? 16 / sizeof(D) : 1;
    int team = threadIdx.x / TEAM, t = threadIdx.x % TEAM;
    tile<S> &tl = ((tile<S> *)raw)[team];
    int across = (cols + SIDE - 1) / SIDE;
    int64_t tiles = (int64_t)across * ((rows + SIDE - 1) / SIDE);

    for (int64_t i = (int64_t)blockIdx.x * TEAMS; i < tiles; i += (int64_t)gridDim.x * TEAMS) {
        bool mine = i + team < tiles;
        int r0 = (int)((i + team) / across) * SIDE, c0 = (int)((i + team) % across) * SIDE;
#pragma unroll
        for (int u = t; u < SIDE * SIDE / VS; u += TEAM) {
            int r = u / (SIDE / VS), cc = u % (SIDE / VS) * VS;
            if (!mine || r0 + r >= rows || c0 + cc >= cols)
                continue;
            const S *from = src + (int64_t)(r0 + r) * cols + c0 + cc;
            if constexpr (VEC) {
                uint4 v = *(const uint4 *)from;
                uint32_t *to = (uint32_t *)&tl.at[r][cc];
                to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
            } else {
                tl.at[r][cc] = *from;
            }
        }
        __syncthreads();
#pragma unroll
        for (int u = t; u < SIDE * SIDE / VD; u += TEAM) {
            int cc = u / (SIDE / VD), r = u % (SIDE / VD) * VD;
            if (!mine || c0 + cc >= cols || r0 + r >= rows)
                continue;
            D *to = dst + (int64_t)(c0 + cc) * rows + r0 + r;
            __align__(16) D out[VD];
            if constexpr (VEC) {
                if (ADD)
                    *(uint4 *)out = *(const uint4 *)to;
            } else if (ADD) {
                out[0] = *to;
            }
#pragma unroll
            for (int e = 0; e < VD; e++) {
                float x = widen(tl.at[r + e][cc]);
                narrow(&out[e], ADD ? add(widen(out[e]), x) : x);
            }
            if constexpr (VEC)
                *(uint4 *)to = *(const uint4 *)out;
            else
                *to = out[0];
        }
        __syncthreads();
    }
}

template <bool ADD, typename S, typename D>
static void launch(struct cuda_ops *c, D *dst, const S *src, int rows, int cols, int sms)
{
    bool vec = cols * sizeof(S) % 16 == 0 && rows * sizeof(D) % 16 == 0
               && (uintptr_t)dst % 16 == 0 && (uintptr_t)src % 16 == 0;
    auto kernel = vec ? transpose<true, ADD, S, D> : transpose<false, ADD, S, D>;
    int64_t tiles = (int64_t)div_up(rows, SIDE) * div_up(cols, SIDE);
    int64_t blocks = (tiles + TEAMS - 1) / TEAMS, most = sms > 0 ? sms : 2 * c->sms;
    int bytes = TEAMS * sizeof(tile<S>);
    if (CUDA_TRY(c, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         bytes))) {
        kernel<<<(unsigned)(blocks < most ? blocks : most), THREADS, bytes, c->stream>>>(
            dst, src, rows, cols);
        CUDA_LAUNCHED(c);
    }
}

void gpu_transpose_sms(struct ops *o, struct tensor dst, struct tensor src, bool add, int sms)
{
    struct cuda_ops *c = cuda_of(o);
    assert(dst.rows == src.cols && dst.cols == src.rows);
    if (c->failed || tensor_count(src) == 0
        || !CUDA_NEED(c, is_float(dst) && is_float(src), "tensors must be f32 or bf16"))
        return;
    with_type(dst, [&](auto *d) {
        with_type(src, [&](auto *s) {
            if (add)
                launch<true>(c, d, s, (int)src.rows, (int)src.cols, sms);
            else
                launch<false>(c, d, s, (int)src.rows, (int)src.cols, sms);
        });
    });
}

void gpu_transpose(struct ops *o, struct tensor dst, struct tensor src, bool add)
{
    gpu_transpose_sms(o, dst, src, add, 0);
}
