/* mma.h - tensor cores and asynchronous copies as every GPU from compute capability 8.0 on has
 * them, one function for each instruction. What only Hopper has: sm90/sm90.h, sm90/wgmma.h.
 *
 *     copy_16(to, from, true);                        // each thread its 16 bytes
 *     copies_commit();
 *     copies_wait<0>();                               // this thread's; then __syncthreads()
 *     load_matrices(a, address_of_row); load_matrices(b, ...);
 *     mma(d, a, b[0], b[1]);
 *
 * Addresses in shared memory are 32-bit numbers: address(p). Source: PTX ISA 9.0.
 */
#ifndef KERNELS_MMA_H
#define KERNELS_MMA_H

#include <cuda_runtime.h>
#include <stdint.h>

__device__ __forceinline__ uint32_t address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* -- copies from memory into shared memory --------------------------------------------------- */

/* 16 bytes, both addresses aligned to them; zeros where `exists` is false: then nothing is read. */
__device__ __forceinline__ void copy_16(uint32_t to, const void *from, bool exists)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(exists ? 16 : 0)
                 : "memory");
}
/* Copies as copy_16(), where other CTAs soon read the 128 bytes around it: they come into the L2 at
 * once. */
__device__ __forceinline__ void copy_16_line(uint32_t to, const void *from, bool exists)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(exists ? 16 : 0)
                 : "memory");
}
/* Policies of the L2, which lets go first of what is read once. */
__device__ __forceinline__ uint64_t read_once()
{
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
__device__ __forceinline__ uint64_t read_again()
{
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
/* copy_16 by a policy. */
__device__ __forceinline__ void copy_16(uint32_t to, const void *from, bool exists, uint64_t policy)
{
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(to),
                 "l"(from), "r"(exists ? 16 : 0), "l"(policy)
                 : "memory");
}
/* Makes this thread's copies since the last commit one group. */
__device__ __forceinline__ void copies_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
/* Until at most N of this thread's groups are under way. */
template <int N> __device__ __forceinline__ void copies_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* -- 8x8 matrices of bf16 --------------------------------------------------------------------- */

/* Four matrices: lane l gives the address of row l % 8 (16 bytes) of matrix l / 8 in memory; a
 * lane's register of a matrix holds two neighbours of one row of it (row lane / 4). */
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
}
/* Transposed on the way: the register holds two neighbours of one column. */
__device__ __forceinline__ void load_transposed(uint32_t (&r)[4], uint32_t from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
}

/* -- the product of a warp -------------------------------------------------------------------- */

/* d (16,8) += a (16,16) b (16,8); f32 sums: d[2 h + e] is row lane / 4 + 8 h, column
 * 2 (lane % 4) + e. a: matrices (rows 0-7, k 0-7), (8-15, 0-7), (0-7, 8-15), (8-15, 8-15) as
 * load_matrices leaves them; b0, b1: k 0-7, 8-15 of b^T. */
__device__ __forceinline__ void mma(float *d, const uint32_t *a, uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
        " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#endif
