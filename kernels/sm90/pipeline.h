/* pipeline.h - what Hopper's kernels are built of: a pipeline of stages in shared memory between
 * the producer thread, which starts TMA copies, and the consumer warps; and the roles of warps.
 *
 *     pipeline<STAGES, BYTES, CLUSTER> p = { stages, barriers };   // shared memory, 1024-aligned
 *     if (threadIdx.x == 0)
 *         p.init(CONSUMER_WARPS);
 *     cluster_sync();                                  // without clusters __syncthreads()
 *     with_roles<40, 232>(
 *         [&] { if (threadIdx.x == 0)
 *                   for (n ...) { p.acquire(p.at(n)); load_box(p.slot(p.at(n)), ..., p.full(p.at(n))); } },
 *         [&](int group) { for (n ...) { p.wait(p.at(n)); ...; p.release(p.at(n)); } });
 *     cluster_sync();                    // no CTA leaves while another one arrives on its barriers
 *
 * A stage is BYTES of memory, a full and an empty mbarrier. The n-th use of the pipeline, counted
 * through all tiles, is of stage n % STAGES, in phase n / STAGES: a place. Both roles walk the same
 * places; a kernel without a count steps from one to the next.
 *
 *   acquire, the producer thread: waits until the stage is empty, expects the bytes of its copies
 *   wait, all threads of a consumer warp: until those bytes have landed
 *   release, all lanes of a consumer warp, which have met (after wgmma_wait or __syncwarp()) since
 *     the last of them read the stage: arrives on its empty barrier in each CTA of the cluster
 *
 * Every consumer warp releases every stage, also one that it did not need: a barrier's parity tells
 * two neighbouring phases apart, no more. Expected are all bytes that land in this CTA, those that
 * another CTA copies included; they may land before this CTA expects them.
 */
#ifndef KERNELS_SM90_PIPELINE_H
#define KERNELS_SM90_PIPELINE_H

#include "sm90/sm90.h"

namespace sm90
{

enum { WARPGROUP = 128, ROLE_THREADS = 3 * WARPGROUP };

struct place {
    uint32_t stage, phase;
};

template <int STAGES, int BYTES, int CLUSTER = 1> struct pipeline {
    static_assert(BYTES % 1024 == 0, "the swizzle repeats after 1024 bytes");
    static_assert(BYTES < 1 << 20, "a phase counts as many bytes");
    enum { BARRIER_BYTES = 2 * 8 * STAGES };

    uint32_t stages, barriers; /* in shared memory; barriers: full, then empty */

    static __device__ __forceinline__ place at(uint32_t n)
    {
        return { n % STAGES, n / STAGES & 1 };
    }
    static __device__ __forceinline__ void step(place &p)
    {
        if (++p.stage == STAGES)
            p.stage = 0, p.phase ^= 1;
    }
    __device__ __forceinline__ uint32_t slot(place p) const { return stages + p.stage * BYTES; }
    __device__ __forceinline__ uint32_t full(place p) const { return barriers + 8 * p.stage; }
    __device__ __forceinline__ uint32_t empty(place p) const
    {
        return barriers + 8 * (STAGES + p.stage);
    }
    /* Initializes the barriers, by one thread, before any other uses them. `warps`: consumer warps of a
     * CTA that release a stage. */
    __device__ __forceinline__ void init(int warps) const
    {
        for (uint32_t s = 0; s < STAGES; s++) {
            barrier_init(full({ s, 0 }), 1);
            barrier_init(empty({ s, 0 }), warps * CLUSTER);
        }
        barrier_init_done();
    }
    __device__ __forceinline__ void acquire(place p, int bytes = BYTES) const
    {
        barrier_wait(empty(p), p.phase ^ 1);
        barrier_expect(full(p), bytes);
    }
    __device__ __forceinline__ void wait(place p) const { barrier_wait(full(p), p.phase); }
    __device__ __forceinline__ void release(place p) const
    {
        if (CLUSTER == 1 && threadIdx.x % 32 == 0)
            barrier_arrive(empty(p));
        if (CLUSTER > 1 && threadIdx.x % 32 < CLUSTER)
            barrier_arrive_at(empty(p), threadIdx.x % 32);
    }
};

/* Returns `memory` as an address of shared memory, rounded up to what swizzled stages need; so the
 * launch asks for STAGES_ALIGN bytes more. */
enum { STAGES_ALIGN = 1024 };
__device__ __forceinline__ uint32_t stages_from(const void *memory)
{
    return (address(memory) + STAGES_ALIGN - 1) & ~(STAGES_ALIGN - 1u);
}

/* Returns the byte at which 16-byte chunk `chunk` of a row of 128 bytes lies: TMA's and wgmma's
 * 128-byte swizzle. */
__device__ __forceinline__ uint32_t swizzle128(uint32_t row, uint32_t chunk)
{
    return row * 128 + ((chunk ^ row % 8) << 4);
}

/* Runs producer() in warpgroup 0, where single threads start the copies and their warps meet again
 * behind it, and consumer(group) in warpgroups 1 and 2, whose group is 0 and 1, with so many registers
 * a thread. The kernel has ROLE_THREADS and __launch_bounds__(ROLE_THREADS, 1). */
template <int PRODUCER, int CONSUMER, typename P, typename C>
__device__ __forceinline__ void with_roles(P producer, C consumer)
{
    static_assert(PRODUCER % 8 == 0 && CONSUMER % 8 == 0, "setmaxnreg's unit");
    static_assert(PRODUCER + 2 * CONSUMER <= 3 * 168, "the launch gave 168, 65536 / 384 in eights");
    if (threadIdx.x < WARPGROUP) {
        fewer_registers<PRODUCER>();
        producer();
        __syncwarp();
    } else {
        more_registers<CONSUMER>();
        consumer(threadIdx.x / WARPGROUP - 1);
    }
}

} /* namespace sm90 */

#endif
