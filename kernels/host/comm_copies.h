/* comm_copies.h - large collectives by the GPUs' copy engines, which leave all SMs to what
 * runs beside them; inside of the NCCL communicator, comm_nccl.cu.
 *
 * NCCL moves by copies (NCCL_CTA_POLICY_ZERO) what lies in symmetric windows: its own kind of
 * memory, registered by all ranks. A reduction is a gather of the chunks of one owner, or an
 * all-to-all, into memory for what is received, and a pass of the owner that adds them up, while
 * the next exchange goes on: in the order of ranks, in f32, rounded once, to the bit what
 * comm_threads gives (NCCL's own reductions round once a hop).
 *
 * Between the GPUs of one process that have access to each other; elsewhere, and for what is small,
 * all is as without. Waiting for other ranks is the stream's, so an abort cannot end it: a rank
 * that fails leaves the others inside CUDA, and the group's `stuck` ends the process (comm_nccl.h).
 *
 * Bytes: a gather sends a chunk to each other rank, a reduction the same and reads all chunks,
 * writes one. 77 MB on two H100: gathered in 0.13 ms, 0.18 by NCCL's kernels
 * (share/doc/performance.md).
 */
#ifndef KERNELS_HOST_COMM_COPIES_H
#define KERNELS_HOST_COMM_COPIES_H

#include "host/comm_group.h"

enum { COPIES_PIECE = 8 << 20 };

/* True if the GPUs of this process, which is alone, can copy to each other: asks every pair, so once a
 * group (nccl_group_copies). */
bool copies_possible(const struct nccl_group *g);
/* Makes shared blocks of o come from NCCL, which maps them for all GPUs. */
void copies_memory(struct ops *o);

bool copies_start(struct member *m);
/* Does what share() of comm.h does, by copies. */
void copies_share(struct member *m, void *memory, size_t bytes, size_t reduced);
/* Between begin() and end() of the collective; false: nothing was queued, the ordinary way is left.
 * *last: the stream that ends the reduction. */
bool copies_gather(struct member *m, struct tensor full, const struct span *own);
bool copies_reduce(struct member *m, struct tensor full, const struct span *own,
                   cudaStream_t *last);
void copies_wait(struct member *m); /* for all that have been added up */
void copies_free(struct member *m);

#endif
