/* checkpoint.h - reading a checkpoint.
 *
 * A checkpoint is a directory ROOT/step-000123/ of
 *     rankN.safetensors.zst   what rank N keeps (its shards; rank 0 also what is replicated)
 *     recipe.txt              the recipe in full
 *     MANIFEST                text, written last: see gpt-checkpoint(5)
 * Without MANIFEST it does not exist. A tensor "attn.momentum" is one array cut along its first
 * axis: each file holds some of its units (matrices, rows), and MANIFEST says which, with an XXH3
 * of each piece and of each file. So resharding is slicing.
 *
 * Here all rows of a weight and this rank's rows of a momentum:
 *     if ((rc = ckpt_latest(root, &dir))) return rc;           // checkpoint_dir.h
 *     if ((rc = ckpt_open(&c, dir))) return rc;
 *     struct ckpt_want w[] = {
 *         { "attn.weight", DT_BF16, 0, 40, weight },
 *         { "attn.momentum", DT_F32, 5 * rank, 5, momentum } };
 *     rc = ckpt_load(c, w, 2, 1);
 *     ckpt_close(c);
 *
 * A struct ckpt may be used by many threads at a time. GPT_INPUT: damaged or not what was asked
 * for; GPT_SYSTEM: I/O, memory. checkpoint_write.h writes one, tensors.h reads any kind of tensors.
 */
#ifndef CHECKPOINT_CHECKPOINT_H
#define CHECKPOINT_CHECKPOINT_H

#include "base/hash.h"
#include "checkpoint/checkpoint_manifest.h"

struct ckpt;

/* Reads MANIFEST (hash checked), recipe.txt (hash checked) and the sizes of the files. A directory
 * that is named step-N must hold step N. */
int ckpt_open(struct ckpt **c, const char *dir) MUST_CHECK;
void ckpt_close(struct ckpt *c);
const char *ckpt_dir(const struct ckpt *c);
const struct ckpt_info *ckpt_info(const struct ckpt *c);
const char *ckpt_recipe_hash(const struct ckpt *c);
const char *ckpt_hash(const struct ckpt *c); /* of MANIFEST, as its last line says it */
const char *ckpt_state(const struct ckpt *c, const char *key); /* NULL: none */
/* The value of key as a whole number from 0 on; missing or another: GPT_INPUT. */
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
/* The hash of a file as it is now, which files[file].hash should be. */
int ckpt_file_hash(const struct ckpt *c, int file, char hash[33]) MUST_CHECK;

/* Piece i of e as a stream. Reading its last byte checks its hash. Close after a failed open. */
struct ckpt_stream {
    const struct ckpt_entry *e;
    const struct ckpt_piece *piece;
    char *path;
    struct zreader *z; /* compressed, or */
    int fd; /* plain, next byte at `at` */
    uint64_t at, left;
    struct xxh hash;
};
int ckpt_stream_open(struct ckpt_stream *s, const struct ckpt *c, const struct ckpt_entry *e,
                     int i) MUST_CHECK;
int ckpt_stream_read(struct ckpt_stream *s, void *dst, size_t n) MUST_CHECK; /* n <= left */
void ckpt_stream_close(struct ckpt_stream *s);

#endif
