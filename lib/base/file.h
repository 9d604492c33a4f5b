/* file.h - whole files, and outputs that are complete or absent.
 *
 * An output is written to a temporary file beside its target, flushed, synced
 * and renamed; until output_commit() the target does not change. A signal that
 * ends the program removes the temporary (output_cleanup_on_signal).
 *
 *     struct output o;
 *     if ((rc = output_open(&o, "run/MANIFEST", force))) return rc;
 *     fprintf(o.f, ...);
 *     if ((rc = output_commit(&o))) return rc;       // or output_abort(&o)
 *
 * Threads: one output, one thread; any number of outputs at a time.
 */
#ifndef BASE_FILE_H
#define BASE_FILE_H

#include <stdbool.h>
#include <stdio.h>
#include "base/err.h"

struct output {
    FILE *f;
    char *path, *tmp;
    bool force;
};

/* "-" is stdout (committed by a checked flush). A file that exists is
 * GPT_SYSTEM unless force; a symbolic link is followed; what is no regular file
 * (/dev/full, a pipe) is written to directly. After a failure o needs no release. */
int output_open(struct output *o, const char *path, bool force) MUST_CHECK;
int output_commit(struct output *o) MUST_CHECK;
void output_abort(struct output *o); /* also after a failed commit; idempotent */
/* From now on SIGINT, SIGTERM and SIGHUP, unless ignored, first remove temporaries. */
void output_cleanup_on_signal(void);
/* Removes temporaries and ends the process by the signal; for handlers of others. */
void output_end_by_signal(int sig);
/* Has a signal remove a file that is not an output; path stays as it is until it is forgotten. */
void output_remember(const char *path);
void output_forget(const char *path);

/* A new directory. A signal removes it with its files, until temporary_dir_keep. */
struct temporary_dir {
    char *path;
};
int temporary_dir_make(struct temporary_dir *t, const char *path) MUST_CHECK;
void temporary_dir_keep(struct temporary_dir *t); /* also when it has been renamed or removed */

void temporary_dir_remove(struct temporary_dir *t); /* with its files; nothing where it was kept */
/* A new directory of any name in temporary_dir(). */
int temporary_dir_new(struct temporary_dir *t) MUST_CHECK;

/* Reads a file ("-": stdin), decompressed where it is compressed (zio.h), of at most max bytes (0:
 * any size) and adds a NUL; caller frees. A longer one is GPT_INPUT. */
int file_read(const char *path, size_t max, char **data, size_t *n) MUST_CHECK;
/* The same of text that is read by lines, as text_plain_lines leaves it. GPT_INPUT where it is of
 * UTF-16 or UTF-32 by its mark. */
int file_read_text(const char *path, size_t max, char **data, size_t *n) MUST_CHECK;
/* Does the same to bytes that were read otherwise, with room for a NUL behind them. */
int file_take_text(const char *path, char *data, size_t *n) MUST_CHECK;
int file_mkdirs(const char *path) MUST_CHECK; /* mkdir -p, durable; "-" is GPT_USAGE */
int file_sync_dir(const char *path) MUST_CHECK; /* makes a rename in it durable */
const char *temporary_dir(void); /* $TMPDIR, else /tmp */
/* A file without a name in dir, to write and read. */
int file_unnamed(const char *dir, int *fd) MUST_CHECK;
/* Copies standard input, decompressed, into one, which is standard input from then on and can be
 * opened as *path any number of times. */
int file_spool_stdin(const char **path) MUST_CHECK;
char *path_join(const char *dir, const char *name); /* malloc'd; NULL when out of memory */
bool file_is_in(const char *dir, const char *name);
bool file_close(FILE *f); /* false: this, or a write before it, failed */

/* Flushes and closes stdout, for the last line of main() (opt_exit calls it): a
 * full disk or a closed descriptor is GPT_SYSTEM, not success. */
int stdout_close(void) MUST_CHECK;

#endif
