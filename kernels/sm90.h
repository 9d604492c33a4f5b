/* sm90.h - Hopper's own instructions, one function each: barriers in shared memory, the copy
 * engine, clusters, matrices between registers and shared memory.
 *
 * Addresses in shared memory are 32-bit (shared_address). A barrier is a 64-bit word there; its
 * phase flips when its arrivals, and the bytes announced with barrier_expect, have come.
 *
 * Source: PTX ISA 9.0.
 */
#ifndef KERNELS_SM90_H
#define KERNELS_SM90_H

#include <cuda.h>
#include <cuda_runtime.h>
#include <stdint.h>

namespace sm90 {

__device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* -- barriers --------------------------------------------------------------------------- */

__device__ __forceinline__ void barrier_init(uint32_t bar, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals));
}
/* Makes inits visible to the cluster and to the copy engine. */
__device__ __forceinline__ void barrier_init_done()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void barrier_expect(uint32_t bar, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
/* On the barrier at the same place in block `rank` of the cluster. Block scope is enough where the
 * data is the copy engine's: release at cluster scope would be a fence an arrival. */
__device__ __forceinline__ void barrier_arrive_at(uint32_t bar, int rank)
{
    asm volatile("{\n"
                 ".reg .b32 there;\n"
                 "mapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
                 "}\n" ::"r"(bar), "r"(rank)
                 : "memory");
}
__device__ __forceinline__ void barrier_wait(uint32_t bar, int parity)
{
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n"
                 "}\n" ::"r"(bar), "r"(parity)
                 : "memory");
}

/* Numbered barriers of the block, among `threads` threads (whole warps). */
__device__ __forceinline__ void named_wait(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_arrive(int id, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ __forceinline__ void cluster_sync()
{
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ __forceinline__ uint32_t cluster_rank()
{
    uint32_t r;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}

/* -- the copy engine ---------------------------------------------------------------------- */

/* The box at (column, row) into shared memory; its bytes count on `bar`. */
__device__ __forceinline__ void load_box(uint32_t to, const CUtensorMap *map, int column, int row,
                                         uint32_t bar)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%2, %3}], [%4];" ::"r"(to), "l"(map), "r"(column), "r"(row),
                 "r"(bar)
                 : "memory");
}
/* The same into every block of the cluster named in `mask`, counting on each one's barrier. */
__device__ __forceinline__ void load_box_to(uint16_t mask, uint32_t to, const CUtensorMap *map,
                                            int column, int row, uint32_t bar)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to), "l"(map),
                 "r"(column), "r"(row), "r"(bar), "h"(mask)
                 : "memory");
}
__device__ __forceinline__ void store_box(const CUtensorMap *map, int column, int row,
                                          uint32_t from)
{
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];"
                 ::"l"(map), "r"(column), "r"(row), "r"(from)
                 : "memory");
}
/* Commits this thread's stores and waits until shared memory has been read. */
__device__ __forceinline__ void stores_read()
{
    asm volatile("cp.async.bulk.commit_group;\n"
                 "cp.async.bulk.wait_group.read 0;" ::: "memory");
}
/* What this thread wrote to shared memory before is seen by copy engine and tensor cores. */
__device__ __forceinline__ void shared_written()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* -- 8x8 matrices of bf16 ------------------------------------------------------------------- */

/* Four matrices, transposed on the way: lane l gives the address of row l % 8 (16 bytes) of matrix
 * l / 8 in memory; a lane's register of a matrix holds two neighbours of one column of it. */
__device__ __forceinline__ void load_turned(uint32_t (&r)[4], uint32_t from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from) : "memory");
}
__device__ __forceinline__ void store_turned(uint32_t to, const uint32_t (&r)[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
                 ::"r"(to), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
}

/* -- wgmma ------------------------------------------------------------------------------------ */

/* An operand whose rows are 64 bf16 (128 bytes, swizzled) along the sum: groups of 8 rows lie
 * 1024 bytes apart. 16 numbers further along the sum: + 2. */
__device__ __forceinline__ uint64_t operand(uint32_t address)
{
    return (uint64_t)(address >> 4 & 0x3fff) | (uint64_t)1 << 16 | (uint64_t)(1024 >> 4) << 32 |
        (uint64_t)1 << 62;
}
__device__ __forceinline__ void wgmma_begin()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/* At most N committed groups are still running. */
template <int N> __device__ __forceinline__ void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

template <int REGISTERS> __device__ __forceinline__ void more_registers()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS> __device__ __forceinline__ void fewer_registers()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

}   /* namespace sm90 */

#endif
