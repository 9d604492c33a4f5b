/* cluster.h - blocks of a cluster that send each other sums: nothing on GPUs other than Hopper,
 * where launches ask for clusters of one block.
 *
 *     all_of_cluster();                               // all have begun
 *     send4(&inbox[rank], 0, sum);
 *     all_of_cluster();                               // block 0 reads its inbox
 */
#ifndef KERNELS_CLUSTER_H
#define KERNELS_CLUSTER_H

#include "sm90/sm90.h"

__device__ __forceinline__ void all_of_cluster()
{
#ifdef SM90_CODE
    sm90::cluster_sync();
#endif
}
/* Into the shared memory of block `rank`, where `to` is in this one's; 16 bytes, aligned. */
__device__ __forceinline__ void send4(const void *to, int rank, float4 v)
{
#ifdef SM90_CODE
    uint32_t there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address(to)), "r"(rank));
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(there), "f"(v.x),
                 "f"(v.y), "f"(v.z), "f"(v.w)
                 : "memory");
#endif
}
/* Four bytes, which count on that block's barrier (sm90.h: the place of this one's). What waits
 * there at block scope sees them: both are in shared memory. */
__device__ __forceinline__ void send1(const void *to, int rank, float x, uint32_t bar)
{
#ifdef SM90_CODE
    uint32_t there, bar_there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address(to)), "r"(rank));
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(bar_there) : "r"(bar), "r"(rank));
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(there),
        "f"(x), "r"(bar_there)
        : "memory");
#endif
}

#endif
