/* checkpoint_manifest.h - MANIFEST, which lists what a checkpoint holds: its text and its structs
 * (gpt-checkpoint(5)).
 *
 *     struct ckpt_manifest m;
 *     if (!(rc = ckpt_manifest_parse(&m, path, text, n)))
 *         e = ckpt_manifest_find(&m, "attn.momentum");      // e->shape, e->pieces
 *     ckpt_manifest_release(&m);
 *
 * A manifest may be read by many threads.
 */
#ifndef CHECKPOINT_CHECKPOINT_MANIFEST_H
#define CHECKPOINT_CHECKPOINT_MANIFEST_H

#include <stdint.h>
#include <stdio.h>
#include "types/dtype.h"
#include "base/err.h"

#define CKPT_MAX_RANK 4 /* axes of a tensor */
#define CKPT_MAX_RANKS (1 << 20)

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
const char *ckpt_info_state(const struct ckpt_info *i, const char *key); /* NULL: none */

/* A piece of a tensor in a file. */
struct ckpt_piece {
    int file;
    int64_t begin, count; /* units of the first axis */
    uint64_t at; /* offset in the file; of a frame in a compressed one */
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

struct ckpt_manifest {
    struct ckpt_info info; /* its recipe is a file of its own: NULL until set, then freed, too */
    char *recipe_hash;
    char hash[33]; /* its last line: XXH3 of all others, and so of all that the checkpoint holds */
    struct ckpt_entry *entries; /* by name */
    int nentries;
    struct ckpt_file *files;
    int nfiles;
};

/* Parses n bytes of text (NUL-terminated, changed in place); path is for messages. GPT_INPUT names
 * the line, what was expected and what was found. Release after a failure, too. */
int ckpt_manifest_parse(struct ckpt_manifest *m, const char *path, char *text, size_t n) MUST_CHECK;
void ckpt_manifest_release(struct ckpt_manifest *m);
const struct ckpt_entry *ckpt_manifest_find(const struct ckpt_manifest *m,
                                            const char *name); /* NULL: none */

/* Writing: each rank notes its file and the pieces in it, one line each; then all notes, one after
 * the other, make the text. Check f. */
void ckpt_manifest_note_piece(FILE *f, const struct ckpt_entry *e, const struct ckpt_piece *p,
                              const char *file);
void ckpt_manifest_note_file(FILE *f, const struct ckpt_file *file);
/* MANIFEST's text, checked by ckpt_manifest_parse; caller frees *text, after a failure too.
 * notes is changed; path is for messages. */
int ckpt_manifest_format(const struct ckpt_info *info, const char *recipe_hash, char *notes,
                         const char *path, char **text, size_t *n) MUST_CHECK;

#endif
