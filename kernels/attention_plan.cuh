/* attention_plan.cuh - which blocks of keys a block of queries meets, and in what order
 * tiles are worked on; shared by attention*.cu of every path.
 *
 * Rows are cut into blocks of 64, tiles are two blocks. Both directions look alike:
 *   by query: a tile of queries meets key blocks from its own down to its first start,
 *   by key:   a tile of keys meets query blocks from its own up to its last end.
 * Of the two blocks of a tile the near one is where the walk begins, the far one is one
 * block further along: block 1 and block 0 by query, 0 and 1 by key. A struct reach says
 * for each how many blocks it meets, counted from its own, and how many of these
 * (the diagonal one apart) no document start and no window edge cuts.
 */
#ifndef KERNELS_ATTENTION_PLAN_CUH
#define KERNELS_ATTENTION_PLAN_CUH

#include <stdint.h>
#include "attention.h"

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

struct attention_plan {
    int tiles, padded; /* ceil(rows / TILE), and the rows of so many tiles */
    int items; /* tiles * heads */
    int *next; /* (4) next item: forward, by key, by query; 0 between calls (take_item) */
    int *start, *end; /* (padded): first key of a query, last query of a key */
    struct reach *by_query, *by_key; /* (items + 1): in the order of work, and the end */
    struct reach *found[2]; /* (tiles): as they lie, which portable backward reads */
    /* Backward only, in the workspace. */
    float *lse2, *delta; /* (heads, padded); lse / ln 2 */
    /* Portable backward: of 32 or 64 queries, sums of dq and how many tiles have added to them. */
    float *dq_sums; /* (heads, padded, head_dim) */
    int *added; /* (heads, padded / 32): 0 at the beginning */
};

struct attention_call {
    struct attn_shape s;
    struct attention_plan p;
    int sms; /* streaming multiprocessors */
    int shared_bytes; /* that a block may have */
    float unit; /* scale / ln 2 */
    float *lse; /* forward: written */
    struct attention_grads grads; /* backward */
};

/* The next number of a queue. Who gets `last`, the last one that any block of the grid takes,
 * leaves the queue as it was for the next call with this plan. */
__device__ __forceinline__ int take_item(int *next, int last)
{
    const int item = atomicAdd(next, 1);
    if (item == last)
        *(volatile int *)next = 0;
    return item;
}

/* The kernels behind the plan. mma: on any GPU; sm90: Hopper's. */
cudaError_t attention_mma_forward(cudaStream_t stream, const struct attention_call *c, void *out,
                                  const void *q, const void *k, const void *v);
cudaError_t attention_mma_backward(cudaStream_t stream, const struct attention_call *c,
                                   const void *dout, const void *q, const void *k, const void *v);
cudaError_t attention_sm90_forward(cudaStream_t stream, const struct attention_call *c, void *out,
                                   const void *q, const void *k, const void *v);
cudaError_t attention_sm90_backward(cudaStream_t stream, const struct attention_call *c,
                                    const void *dout, const void *q, const void *k, const void *v);

#endif
