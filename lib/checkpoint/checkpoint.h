/* checkpoint.h - a run's state on disk: complete or absent, of any world size.
 *
 * A checkpoint is a directory ROOT/step-000123/ of
 *     rankN.safetensors.zst   what rank N keeps (its shards; rank 0 also what is replicated)
 *     recipe.txt              the recipe in full
 *     MANIFEST                text, written last: see gpt-checkpoint(5)
 * It is written as ROOT/.step-000123.tmp/, synced and renamed; without MANIFEST
 * it does not exist. A tensor "attn.momentum" is one array cut along its first
 * axis: each file holds some of its units (matrices, rows), and MANIFEST says
 * which, with an XXH3 of each piece and of each file. So resharding is slicing.
 * Same state, same bytes: no file holds a time or a host.
 *
 * Writing (ranks are threads or processes that share ROOT):
 *     if (rank == 0) rc = ckpt_begin(root, step);
 *     barrier, all agree on rc;
 *     rc = ckpt_write_rank(root, step, rank, tensors, n, 1);
 *     barrier, all agree on rc;
 *     if (rank == 0) rc = rc ? (ckpt_abort(root, step), rc) : ckpt_commit(root, &info);
 *
 * Reading, here all rows of a weight and this rank's rows of a momentum:
 *     if ((rc = ckpt_latest(root, &dir))) return rc;           // GPT_NO: there is none
 *     if ((rc = ckpt_open(&c, dir))) return rc;
 *     struct ckpt_want w[] = {
 *         { "attn.weight", DT_BF16, 0, 40, weight },
 *         { "attn.momentum", DT_F32, 5 * rank, 5, momentum } };
 *     rc = ckpt_load(c, w, 2, 1);
 *     ckpt_close(c);
 *
 * A struct ckpt may be used by many threads at a time; the writing calls as
 * above. GPT_INPUT: damaged or not what was asked for; GPT_SYSTEM: I/O, a full
 * disk (the temporary directory is removed by ckpt_abort, the older checkpoints
 * are untouched).
 */
#ifndef CHECKPOINT_CHECKPOINT_H
#define CHECKPOINT_CHECKPOINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/dtype.h"
#include "base/err.h"

#define CKPT_MAX_RANK 4 /* axes of a tensor */
#define CKPT_MAX_RANKS (1 << 20)

/* A rank's piece of a tensor, for writing. */
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

struct ckpt_kv {
    const char *key, *value;
};

struct ckpt_info {
    int64_t step; /* steps done: the next one to run */
    int64_t tokens; /* tokens seen */
    int ranks; /* world size */
    const char *tool; /* "gpt-train 0.1.0" */
    const char *recipe; /* full text */
    const struct ckpt_kv *state; /* small state: "loader.shard" = "3". A key has no blank and
                                       comes once; a value is one line. "loader." is the data
                                       position */
    int nstate;
};

/* From now to its end this process alone may write into root, which must be there. */
int ckpt_hold(const char *root) MUST_CHECK;
/* Rank 0: a fresh temporary directory; what interrupted runs left in root goes. Until commit or
 * abort this process alone may write into root: GPT_SYSTEM where another one does. */
int ckpt_begin(const char *root, int64_t step) MUST_CHECK;
/* Writes and syncs this rank's file: larger elements first, then by name, whatever the order of
 * t. level: zstd, 0 writes plain .safetensors. */
int ckpt_write_rank(const char *root, int64_t step, int rank, const struct ckpt_tensor *t, int n,
                    int level) MUST_CHECK;
/* Rank 0, after all ranks: checks that the pieces of each tensor cover it
 * exactly, writes recipe.txt and MANIFEST, renames. A complete checkpoint of the
 * same step is replaced. After a failure nothing of it is left. */
int ckpt_commit(const char *root, const struct ckpt_info *info) MUST_CHECK;
/* Removes what was begun, if this process began it; keeps the present message. */
void ckpt_abort(const char *root, int64_t step);

/* ROOT/step-N; caller frees. NULL when out of memory. */
char *ckpt_path(const char *root, int64_t step);
/* GPT_SYSTEM when there is something under that name. */
int ckpt_check_free(const char *root, int64_t step) MUST_CHECK;
/* The complete checkpoint of the highest step in root; caller frees *dir.
 * Incomplete and temporary ones are passed over. GPT_NO when there is none. */
int ckpt_latest(const char *root, char **dir) MUST_CHECK;
/* Complete checkpoints in root by ascending step; caller frees *steps. */
int ckpt_list(const char *root, int64_t **steps, int *n) MUST_CHECK;
/* Complete checkpoints but the last `keep_last` and those whose step is a multiple of keep_every
 * (0: none), by ascending step; caller frees *steps. keep_last < 1 is GPT_USAGE. */
int ckpt_prunable(const char *root, int keep_last, int64_t keep_every, int64_t **steps,
                  int *n) MUST_CHECK;
/* Removes those; they are renamed away before their files go. *removed may be NULL. */
int ckpt_prune(const char *root, int keep_last, int64_t keep_every, int *removed) MUST_CHECK;

struct ckpt;

/* A piece of a tensor in a file. */
struct ckpt_piece {
    int file;
    int64_t begin, count;
    uint64_t at;
    char hash[33];
};
struct ckpt_entry {
    char *name; /* "attn.momentum" */
    enum dtype dtype;
    int rank;
    int64_t shape[CKPT_MAX_RANK];
    uint64_t unit_bytes; /* bytes a unit of the first axis */
    struct ckpt_piece *pieces; /* by begin; they cover 0 .. shape[0] */
    int npieces;
};
struct ckpt_file {
    char *name;
    uint64_t bytes;
    char hash[33];
};

/* Reads MANIFEST (hash checked), recipe.txt (hash checked) and the sizes of the files. */
int ckpt_open(struct ckpt **c, const char *dir) MUST_CHECK;
void ckpt_close(struct ckpt *c);
const char *ckpt_dir(const struct ckpt *c);
const struct ckpt_info *ckpt_info(const struct ckpt *c);
const char *ckpt_recipe_hash(const struct ckpt *c);
const char *ckpt_state(const struct ckpt *c, const char *key); /* NULL: none */
/* The value of key as a whole number; missing or no number: GPT_INPUT. */
int ckpt_state_i64(const struct ckpt *c, const char *key, int64_t *out) MUST_CHECK;
int ckpt_entries(const struct ckpt *c, const struct ckpt_entry **e); /* how many; by name */
int ckpt_files(const struct ckpt *c, const struct ckpt_file **f);
const struct ckpt_entry *ckpt_find(const struct ckpt *c, const char *name); /* NULL: none */

struct ckpt_want {
    const char *name;
    enum dtype dtype; /* must be the stored one */
    int64_t begin, count; /* units of the first axis */
    void *dst; /* count units */
};
/* Fills all wants in one pass over the files that hold them, `threads` files at
 * a time (0: one for each processor). Every byte used is checked against its
 * hash before this returns 0; memory beyond dst is a few MiB a thread. */
int ckpt_load(const struct ckpt *c, const struct ckpt_want *w, int n, int threads) MUST_CHECK;

/* Hashes every file; a damaged one is named with tensor and offset. Once for each struct ckpt. */
int ckpt_verify_files(const struct ckpt *c, int threads) MUST_CHECK;

#endif
