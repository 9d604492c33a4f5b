/* checkpoint_dir.h - the directory of a run's checkpoints: ROOT/step-000123/ each, complete or
 * absent.
 *
 * A checkpoint is written as ROOT/.step-000123.tmp/, synced and renamed. One that is removed is
 * renamed to .step-000123.gone/ first; one that is replaced is exchanged in the rename, or becomes
 * .step-000123.old/ before. So an interruption at any moment leaves every step-N complete.
 *
 * These may be called by any thread, the three that write by one at a time (checkpoint_write.h).
 */
#ifndef CHECKPOINT_CHECKPOINT_DIR_H
#define CHECKPOINT_CHECKPOINT_DIR_H

#include <stdint.h>
#include "base/err.h"

/* ROOT/step-N; caller frees. NULL when out of memory. */
char *ckpt_path(const char *root, int64_t step);
/* N where dir, with links resolved, is named step-N; else -1. */
int64_t ckpt_named_step(const char *dir);
/* GPT_SYSTEM when there is something under that name. */
int ckpt_check_free(const char *root, int64_t step) MUST_CHECK;
/* The complete checkpoint of the highest step in root; caller frees *dir.
 * Incomplete and temporary ones are passed over. GPT_NO when there is none. */
int ckpt_latest(const char *root, char **dir) MUST_CHECK;
/* path itself where it has a MANIFEST, else ckpt_latest of it; caller frees *dir. */
int ckpt_at(const char *path, char **dir) MUST_CHECK;
/* Complete checkpoints in root by ascending step; caller frees *steps. */
int ckpt_list(const char *root, int64_t **steps, int *n) MUST_CHECK;
/* Complete checkpoints of a step above `above` (-1: all), but the last `keep_last` and those whose
 * step is a multiple of keep_every (0: none), by ascending step; caller frees *steps. keep_last < 1
 * is GPT_USAGE. */
int ckpt_prunable(const char *root, int keep_last, int64_t keep_every, int64_t above,
                  int64_t **steps, int *n) MUST_CHECK;
/* Removes those. *removed may be NULL. */
int ckpt_prune(const char *root, int keep_last, int64_t keep_every, int64_t above,
               int *removed) MUST_CHECK;

/* Makes this process the only one that may write into root, which must be there, until ckpt_let_go. */
int ckpt_hold(const char *root) MUST_CHECK;
void ckpt_let_go(const char *root); /* nothing where it does not hold root */
/* Makes the temporary directory and removes those that interrupted runs left in root. Until commit
 * or abort this process alone may write into root: GPT_SYSTEM where another one does. */
int ckpt_begin(const char *root, int64_t step) MUST_CHECK;
/* ROOT/.step-N.tmp; caller frees. NULL when out of memory, with a message. */
char *ckpt_temporary(const char *root, int64_t step);
/* Syncs and renames it. A complete checkpoint of the same step is replaced. After a failure: abort.
 */
int ckpt_publish(const char *root, int64_t step) MUST_CHECK;
/* Removes what was begun, if this process began it; keeps the present message. */
void ckpt_abort(const char *root, int64_t step);

#endif
