/* logread.h - bytes of a run log to runs, in one pass and constant memory but for the numbers.
 *
 *     struct logsink sink = { .run = take_run, .note = take_note, .arg = &mine };
 *     if ((rc = logread_file("run.log.zst", false, &sink))) ...      // "-" is stdin
 *
 * or, fed by the caller:
 *     struct logread *r;
 *     if ((rc = logread_new(&r, "name", false, &sink))) return rc;
 *     while (...) if ((rc = logread_feed(r, data, n))) break;
 *     rc = logread_end(r);                                           // then logread_free
 *
 * Layouts: gpt-runlog(5), and lists.h of a file without step lines. Nothing that cannot be read is
 * guessed at: it is left out and named through sink.note with its line (0: the file as a whole),
 * three times a kind at most. A last line without its end is taken only if it ends in a unit, for a
 * digit may be missing otherwise. What a sink returns other than 0 ends the reading and comes back.
 * Threads: a reader belongs to one; any number of readers at a time.
 */
#ifndef RUNS_LOGREAD_H
#define RUNS_LOGREAD_H

#include <stdbool.h>
#include <stddef.h>
#include "runs/run.h"
#include "runs/stepline.h"

struct logsink {
    int (*run)(void *arg, const struct run *r); /* at the end of each */
    int (*step)(void *arg, const struct run *r, const struct stepline *s); /* may be NULL */
    void (*note)(void *arg, const char *path, long line, const char *text); /* may be NULL */
    void *arg;
};

struct logread;
int logread_new(struct logread **r, const char *name, bool keep_texts,
                const struct logsink *sink) MUST_CHECK;
int logread_feed(struct logread *r, const char *data, size_t n) MUST_CHECK;
int logread_end(struct logread *r) MUST_CHECK;
void logread_free(struct logread *r);

int logread_file(const char *path, bool keep_texts, const struct logsink *sink) MUST_CHECK;

#endif
