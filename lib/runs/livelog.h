/* livelog.h - a log as it grows: standard input, or a file that another program writes.
 *
 *     struct livelog t;
 *     if ((rc = livelog_open(&t, "run/log.txt"))) return rc;          // "-": standard input
 *     while (!(rc = livelog_some(&t, buf, sizeof buf, &n)) && !t.ended)
 *         n ? use(buf, n) : sleep for a while;
 *     livelog_close(&t);                                          // also after a failure
 *
 * Standard input may be compressed and ends; a file is plain text and does not. One thread.
 */
#ifndef RUNS_LIVELOG_H
#define RUNS_LIVELOG_H

#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"
#include "base/zio.h"

struct livelog {
    const char *path;
    struct zreader *z; /* of standard input */
    int fd;
    int64_t at; /* bytes read */
    bool ended;
};
int livelog_open(struct livelog *t, const char *path) MUST_CHECK;
/* *n = 0: there is no more yet or, where ended is set, at all. */
int livelog_some(struct livelog *t, char *buf, size_t size, size_t *n) MUST_CHECK;
void livelog_close(struct livelog *t);

#endif
