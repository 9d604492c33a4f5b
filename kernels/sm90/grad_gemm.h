/* grad_gemm.h - a^T b for gradients of weights, whose sum runs over tokens, in pieces (grad_gemm.cu).
 *
 *     if (grad_gemm_plan(c, &p, a, b)) ...        // p.at: memory of grad_pieces_bytes(p)
 *     grad_gemm(c, p, a, b);
 *     n = grad_pieces_of(p, tile, piece);         // in the kernel that adds them up
 */
#ifndef KERNELS_SM90_GRAD_GEMM_H
#define KERNELS_SM90_GRAD_GEMM_H

#include "host/device.h"

/* Side of a tile, which two blocks of a cluster make; and pieces of a tile at most. */
enum { GRAD_SIDE = 256, GRAD_PIECES = 256 };

/* Tiles in rows of `columns`, stages of 64 tokens. A tile has `shares` of them, and each a cluster, which works on
 * its first `most` stages: all at the same tokens of their shares. What is left of the shares, `left` stages in
 * all, one share after the other, is divided among the `helpers`. What a cluster sums of a share is a piece, f32,
 * GRAD_SIDE^2: share s of tile t is job j = s tiles + t; its first piece is j, helper h's jobs + h + j. */
struct grad_pieces {
    float *at;
    int kblocks, columns, tiles;
    int shares, most, helpers, left;
    __host__ __device__ int first(int share) const { return share * kblocks / shares; }
    __host__ __device__ int left_of(int share) const
    {
        int n = first(share + 1) - first(share) - most;
        return n > 0 ? n : 0;
    }
    __host__ __device__ int jobs() const { return tiles * shares; }
    __host__ __device__ int first_left(int helper) const
    {
        return (int)((int64_t)helper * left / helpers);
    }
    /* Who works on that stage of what is left: the last that begins at or before it. */
    __host__ __device__ int helper_of(int stage) const
    {
        return (int)(((int64_t)(stage + 1) * helpers - 1) / left);
    }
};

/* For a (T,M), b (T,N), bf16. False, and no tiles: more of them than clusters, or a side is not a multiple of 8. */
bool grad_gemm_plan(const struct cuda_ops *c, struct grad_pieces *p, struct tensor a, struct tensor b);
size_t grad_pieces_bytes(const struct grad_pieces &p);
/* p.at: memory of so many bytes. */
void grad_gemm(struct cuda_ops *c, const struct grad_pieces &p, struct tensor a, struct tensor b);

/* The pieces of a tile in the order of tokens; how many. */
__device__ __forceinline__ int grad_pieces_of(const grad_pieces &p, int tile, int (&piece)[GRAD_PIECES])
{
    int n = 0, before = 0;

    for (int s = 0, job = tile; s < p.shares; s++, job += p.tiles) {
        int left = p.left_of(s), stage = before + tile * left;
        piece[n++] = job;
        for (int h = left ? p.helper_of(stage) : 0, end = left ? p.helper_of(stage + left - 1) + 1 : 0;
             h < end; h++)
            piece[n++] = p.jobs() + h + job;
        before += p.tiles * left;
    }
    return n;
}

#endif
