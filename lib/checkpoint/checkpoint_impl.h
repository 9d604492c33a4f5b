/* checkpoint_impl.h - what the checkpoint's own files share; not for others. */
#ifndef CHECKPOINT_CHECKPOINT_IMPL_H
#define CHECKPOINT_CHECKPOINT_IMPL_H

#include <pthread.h>
#include "base/hash.h"
#include "base/zio.h"
#include "checkpoint/checkpoint.h"

#define CKPT_FORMAT 1

struct ckpt {
    char *dir;
    struct ckpt_info info;
    char *recipe_hash;
    struct ckpt_kv *state;
    struct ckpt_entry *entries;
    int nentries;
    struct ckpt_file *files;
    int nfiles;
    bool *checked; /* a file whose hash was found right; under lock */
    pthread_mutex_t lock;
};

/* ROOT/<before>step-N<after>; NULL when out of memory, with a message. */
char *ckpt_name(const char *root, const char *before, int64_t step, const char *after);
/* Locks root for this process, once; ckpt_let_go is false when it was not. */
int ckpt_take_hold(const char *root) MUST_CHECK;
bool ckpt_let_go(const char *root);
/* MANIFEST goes first, so that what is left at any moment is not complete. A link goes alone. */
int ckpt_remove_tree(const char *dir) MUST_CHECK;
/* What an interrupted prune left; all: and interrupted writers, but a complete .old whose place is
 * empty takes it again. */
int ckpt_remove_leftovers(const char *root, bool all) MUST_CHECK;

/* Parses MANIFEST's text (NUL-terminated, n bytes, changed in place); path is for messages. */
int ckpt_parse_manifest(struct ckpt *c, const char *path, char *text, size_t n) MUST_CHECK;
void ckpt_release(struct ckpt *c); /* everything but c itself */

/* One piece as a stream; reading its last byte checks its hash. Close after a failed open too. */
struct piece_reader {
    const struct ckpt_entry *e;
    const struct ckpt_piece *piece;
    char *path;
    struct zreader *z; /* compressed, or */
    int fd; /* plain, next byte at `at` */
    uint64_t at, left;
    struct xxh hash;
};
int ckpt_piece_open(struct piece_reader *p, const struct ckpt *c, const struct ckpt_entry *e,
                    int i) MUST_CHECK;
int ckpt_piece_read(struct piece_reader *p, void *dst, size_t n) MUST_CHECK; /* n <= left */
void ckpt_piece_close(struct piece_reader *p);
int ckpt_hash_file(const char *path, char hash[33]) MUST_CHECK;

#endif
