/* runlog_seen.h - reads a log from memory and keeps all that the reader says of it.
 *
 *     struct seen s;
 *     seen_read(&s, text, n, 1);        // fed one byte at a time; 0: all at once
 *     ... s.run[0].loss, s.val[i], s.note[k] ...
 *     seen_release(&s);
 */
#ifndef RUNLOG_SEEN_H
#define RUNLOG_SEEN_H

#include <stddef.h>
#include "runs/logread.h"

struct seen_val {
    int trial;
    struct run_val v;
};
struct seen_note {
    long line;
    char text[256];
};
struct seen {
    struct run *run; /* arrays and facts in it are gone */
    struct seen_val *val;
    struct run_step *step; /* of the first trial */
    struct seen_note *note;
    char (*hash)[FACTS][33]; /* of each run */
    int runs, vals, steps, notes, rc;
    char environment[2048], gpu[256]; /* of the first run */
};
void seen_read(struct seen *s, const char *text, size_t n, size_t piece);
void seen_release(struct seen *s);
/* True when a note of that line (-1: any) has this part. */
bool seen_note_has(const struct seen *s, long line, const char *part);

#endif
