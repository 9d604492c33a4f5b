/* attention_plan.cuh - which blocks of keys a block of queries meets, and in what order
 * tiles are worked on; shared by attention*.cu.
 *
 * Rows are cut into blocks of 64, tiles are two blocks. Both directions look alike:
 *   by query: a tile of queries meets key blocks from its own down to its first start,
 *   by key:   a tile of keys meets query blocks from its own up to its last end.
 * Of the two blocks of a tile the near one is where the walk begins, the far one is one
 * block further along: block 1 and block 0 by query, 0 and 1 by key. A struct reach says
 * for each how many blocks it meets, counted from its own, and how many of these
 * (the diagonal one apart) no document start and no window edge cuts.
 */
#ifndef KERNELS_SM90_ATTENTION_PLAN_CUH
#define KERNELS_SM90_ATTENTION_PLAN_CUH

#include <cuda.h>
#include <stdint.h>
#include "sm90/attention.h"

enum { BLOCK = 64, TILE = 128 };

struct reach { /* near in the low, far in the high 16 bits */
    int tile; /* < 0: no more work */
    int head;
    uint32_t blocks; /* met by each */
    uint32_t whole; /* i-th met block is whole when 1 <= i < whole */
};
/* Blocks that either of the two meets, in the order of the walk. */
__device__ __forceinline__ int reach_blocks(uint32_t blocks)
{
    return max((int)(blocks & 0xffff), (int)(blocks >> 16) + 1);
}
__device__ __forceinline__ int reach_part(uint32_t both, int far)
{
    return both >> 16 * far & 0xffff;
}

struct attention_plan { /* in the workspace */
    int tiles, padded; /* ceil(rows / TILE), and the rows of so many tiles */
    int items; /* tiles * heads */
    int *next; /* (4) next item: forward, by key, by query */
    int *start, *end; /* (padded): first key of a query, last query of a key */
    struct reach *by_query, *by_key; /* (items + 1): in the order of work, and the end */
    struct reach *found[2]; /* (tiles) scratch */
    float *lse2, *delta; /* (heads, padded): backward only; lse / ln 2 */
};

struct attention_call {
    struct attn_shape s;
    struct attention_plan p;
    int sms; /* multiprocessors */
    float unit; /* scale / ln 2 */
    float *lse; /* forward: written */
};

/* Maps of (rows, heads * E) bf16 cut into boxes of 64 rows and one panel. */
struct forward_maps {
    CUtensorMap q, k, v, out, by_query;
};
/* lse2, delta: (heads, padded) f32 cut into boxes of 64. by_*: (items + 1, 4) int32, by rows:
 * work reaches the warpgroups as their data does, which racecheck can follow. */
struct backward_maps {
    CUtensorMap k, v, q, dout, dq, dk, dv, lse2, delta, by_key, by_query;
};

cudaError_t attention_launch_forward(cudaStream_t stream, const struct attention_call *c,
                                     const struct forward_maps *maps);
cudaError_t attention_launch_backward(cudaStream_t stream, const struct attention_call *c,
                                      const struct backward_maps *maps);

/* Launches kernel with (call, maps) so that it may start before its predecessor has ended. */
template <typename M>
static cudaError_t launch_behind(void (*kernel)(struct attention_call, M), int blocks, int threads,
                                 int shared_bytes, cudaStream_t stream,
                                 const struct attention_call *c, const M *maps)
{
    cudaLaunchAttribute attribute = {};
    cudaLaunchConfig_t config = {};
    cudaError_t e =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
    if (e != cudaSuccess)
        return e;
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = blocks;
    config.blockDim = threads;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, kernel, *c, *maps);
}

/* Over the 4 lanes that hold one row of a product. */
__device__ __forceinline__ float quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ __forceinline__ float quad_sum(float x)
{
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

/* Columns of a 64 x 64 product outside lo .. lo + len of their row become -infinity.
 * first: column of sum 0 of this thread; lo, len: of its two rows. */
__device__ __forceinline__ void mask_block(float (&s)[32], int first, const int (&lo)[2],
                                           const int (&len)[2])
{
    const int at[2] = { first - lo[0], first - lo[1] };
#pragma unroll
    for (int i = 0; i < 32; i++) {
        const int r = i / 2 % 2;
        if ((unsigned)(at[r] + (i / 4 * 8 + i % 2)) > (unsigned)len[r])
            s[i] = -INFINITY;
    }
}

#endif
