/* lock.h - one writer a directory.
 *
 * The writer holds DIR/.lock, which names its process and host, with flock(2): the kernel lets go
 * when the process ends, however it does, and the file that is left is taken over by the next.
 * Where the file system has no flock, what the file says decides: a writer of this host whose
 * process is gone has no claim; one of another host has, until somebody removes the file.
 *
 *     struct dir_lock l;
 *     if ((rc = dir_lock_take(&l, "shards"))) return rc;   // "'shards' is being written by ..."
 *     ...
 *     dir_lock_release(&l);
 *
 * A signal that ends the program removes the file, too (output_cleanup_on_signal). Threads: one a
 * struct; two locks of one directory exclude each other within a process as well.
 */
#ifndef BASE_LOCK_H
#define BASE_LOCK_H

#include "base/err.h"

struct dir_lock {
    int fd;
    char *path; /* NULL: not held */
};

/* GPT_SYSTEM where another writer holds it, naming that. After a failure nothing is held. */
int dir_lock_take(struct dir_lock *l, const char *dir) MUST_CHECK;
void dir_lock_release(struct dir_lock *l); /* idempotent */

#endif
