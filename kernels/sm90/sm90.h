/* sm90.h - Hopper's own instructions, one function each: mbarriers, TMA, clusters, matrices from
 * registers to shared memory, registers. Products are wgmma.h's, tensor maps tensor_map.h's; what
 * kernels build of these is pipeline.h's; what older GPUs have too is mma.h's.
 *
 * Places in shared memory are 32-bit numbers: address(p). An mbarrier is a 64-bit word there; its
 * phase flips when its arrivals, and the bytes announced with barrier_expect, have come. Waiting is
 * at CTA scope, in clusters too: what is waited for is TMA's, and acquire at cluster scope costs a
 * fence a wait (products of polar.cu took 1.3 to 2 times as long with it).
 *
 * Source: PTX ISA 9.0.
 */
#ifndef KERNELS_SM90_SM90_H
#define KERNELS_SM90_SM90_H

#include <cuda.h>
#include <cuda_runtime.h>
#include <stdint.h>
#include "behind.h"
#include "mma.h"

/* In code for other GPUs the kernels that use this header are empty; they are not launched. */
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define SM90_CODE
#else
#pragma nv_diag_suppress 177 /* functions that are not used */
#endif

namespace sm90
{

/* -- mbarriers -------------------------------------------------------------------------- */

__device__ __forceinline__ void barrier_init(uint32_t bar, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals));
}
/* Makes inits visible to the cluster and to TMA. */
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
/* Arrives on the mbarrier at the same place in CTA `rank` of the cluster. CTA scope is enough where
 * TMA moves the data: release at cluster scope would be a fence an arrival. */
__device__ __forceinline__ void barrier_arrive_at(uint32_t bar, int rank)
{
    asm volatile("{\n"
                 ".reg .b32 there;\n"
                 "mapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
                 "}\n" ::"r"(bar),
                 "r"(rank)
                 : "memory");
}
/* Waits until the phase of this parity is complete. */
__device__ __forceinline__ void barrier_wait(uint32_t bar, uint32_t parity)
{
    uint32_t done;
    do {
        asm volatile("{\n"
                     ".reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n"
                     "}\n"
                     : "=r"(done)
                     : "r"(bar), "r"(parity)
                     : "memory");
    } while (!done);
}

/* Named barriers 1 .. 15 of the CTA, among `threads` threads (whole warps): arrives and waits;
 * arrives alone. */
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
                 "barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}
__device__ __forceinline__ uint32_t cluster_rank()
{
    uint32_t r;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}

/* -- TMA ---------------------------------------------------------------------- */

/* Starts the copy of the box at (column, row) into shared memory; its bytes count on `bar`. */
__device__ __forceinline__ void load_box(uint32_t to, const CUtensorMap *map, int column, int row,
                                         uint32_t bar)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
                 "l"(map), "r"(column), "r"(row), "r"(bar)
                 : "memory");
}
/* Starts the copy of a box of matrix `layer` of a 3-D map. */
__device__ __forceinline__ void load_box(uint32_t to, const CUtensorMap *map, int column, int row,
                                         int layer, uint32_t bar)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
                 "l"(map), "r"(column), "r"(row), "r"(layer), "r"(bar)
                 : "memory");
}
/* Starts the copy of a box of a 5-D map, under an L2 policy (mma.h). */
__device__ __forceinline__ void load_box(uint32_t to, const CUtensorMap *map, const int (&at)[5],
                                         uint32_t bar, uint64_t policy)
{
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%2, %3, %4, %5, %6}], [%7], %8;" ::"r"(to),
                 "l"(map), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4]), "r"(bar),
                 "l"(policy)
                 : "memory");
}
/* Starts the copy of bytes as they lie in memory, a multiple of 16, aligned to 16. */
__device__ __forceinline__ void load_bytes(uint32_t to, const void *from, int bytes, uint32_t bar,
                                           uint64_t policy)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(bar), "l"(policy)
                 : "memory");
}
/* Starts the copy of a box into every CTA of the cluster named in `mask`, counting on the mbarrier
 * of each. */
__device__ __forceinline__ void load_box_to(uint16_t mask, uint32_t to, const CUtensorMap *map,
                                            int column, int row, uint32_t bar)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
                 "l"(map), "r"(column), "r"(row), "r"(bar), "h"(mask)
                 : "memory");
}
__device__ __forceinline__ void store_box(const CUtensorMap *map, int column, int row,
                                          uint32_t from)
{
    asm volatile(
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map),
        "r"(column), "r"(row), "r"(from)
        : "memory");
}
__device__ __forceinline__ void store_box(const CUtensorMap *map, int column, int row, int layer,
                                          uint32_t from)
{
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group"
                 " [%0, {%1, %2, %3}], [%4];" ::"l"(map),
                 "r"(column), "r"(row), "r"(layer), "r"(from)
                 : "memory");
}
/* Adds a box to what is there, numbers of the map's type. */
__device__ __forceinline__ void add_box(const CUtensorMap *map, int column, int row, int layer,
                                        uint32_t from)
{
    asm volatile("cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.tile.bulk_group"
                 " [%0, {%1, %2, %3}], [%4];" ::"l"(map),
                 "r"(column), "r"(row), "r"(layer), "r"(from)
                 : "memory");
}
/* Makes this thread's stores since the last commit one group. */
__device__ __forceinline__ void stores_commit()
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/* Waits until at most N of the committed groups have not read their shared memory; until all are
 * done. */
template <int N = 0> __device__ __forceinline__ void stores_read()
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}
__device__ __forceinline__ void stores_done()
{
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
__device__ __forceinline__ void prefetch_map(const CUtensorMap *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
/* Fetches the line of 128 bytes at `at` into the L2. */
__device__ __forceinline__ void prefetch_line(const void *at)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}
__device__ __forceinline__ void store_shared(uint32_t at, uint16_t x)
{
    asm volatile("st.shared.b16 [%0], %1;" ::"r"(at), "h"(x) : "memory");
}
/* Makes what this thread wrote to shared memory visible to TMA and tensor cores. */
__device__ __forceinline__ void shared_written()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* -- 8x8 matrices of bf16 ------------------------------------------------------------------- */

/* Store what load_matrices and load_transposed (mma.h) load. */
__device__ __forceinline__ void store_matrices(uint32_t to, const uint32_t *r)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                 "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}
__device__ __forceinline__ void store_transposed(uint32_t to, const uint32_t (&r)[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                 "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}

/* -- registers ------------------------------------------------------------------------------ */

template <int REGISTERS> __device__ __forceinline__ void more_registers()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS> __device__ __forceinline__ void fewer_registers()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

} /* namespace sm90 */

#endif
