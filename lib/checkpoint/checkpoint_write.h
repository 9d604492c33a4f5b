/* checkpoint_write.h - writing a run's state as a checkpoint, complete or absent.
 *
 * Ranks are threads or processes that share ROOT:
 *     if (rank == 0) rc = ckpt_begin(root, step);
 *     barrier, all agree on rc;
 *     rc = ckpt_write_rank(root, step, rank, tensors, n, 1);
 *     barrier, all agree on rc;
 *     if (rank == 0) rc = rc ? (ckpt_abort(root, step), rc) : ckpt_commit(root, &info);
 *
 * Same state, same bytes: no file holds a time or a host. GPT_SYSTEM: I/O, a full disk; then
 * ckpt_abort removes the temporary directory, and the older checkpoints are untouched.
 */
#ifndef CHECKPOINT_CHECKPOINT_WRITE_H
#define CHECKPOINT_CHECKPOINT_WRITE_H

#include <stddef.h>
#include "checkpoint/checkpoint_dir.h"
#include "checkpoint/checkpoint_manifest.h"

/* A rank's piece of a tensor. */
struct ckpt_tensor {
    const char *param; /* label of the parameter: "attn", "ve0", ... */
    const char *kind; /* "weight", "mantissa", "momentum", "second_momentum",
                         "exp_avg", "exp_avg_sq"; the tensor is "param.kind" */
    enum dtype dtype;
    int rank; /* axes, 1 .. CKPT_MAX_RANK */
    int64_t shape[CKPT_MAX_RANK]; /* of the whole tensor, all ranks together, without padding
                                     that depends on the number of ranks */
    int64_t begin, count; /* units of the first axis held here; replicated tensors are
                             written by rank 0 alone: 0, shape[0] */
    const void *data; /* count units, contiguous; or NULL and */
    int (*fill)(void *arg, void *dst, size_t n); /* gives the next n bytes of them, in order */
    void *arg;
};

/* Writes and syncs this rank's file: larger elements first, then by name, whatever the order of
 * t. level: zstd, 0 writes plain .safetensors. */
int ckpt_write_rank(const char *root, int64_t step, int rank, const struct ckpt_tensor *t, int n,
                    int level) MUST_CHECK;
/* Rank 0, after all ranks: checks that the pieces of each tensor cover it
 * exactly, writes recipe.txt and MANIFEST, renames. A complete checkpoint of the
 * same step is replaced. After a failure nothing of it is left. */
int ckpt_commit(const char *root, const struct ckpt_info *info) MUST_CHECK;

#endif
