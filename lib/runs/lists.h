/* lists.h - losses and times of runs as they are published, in place of logs:
 *
 *     losses = [3.2777, 3.2785, 3.2790]
 *     times  = [105.369, 105.595, 105.414]           # seconds
 *
 * A list may go over several lines. Other lines are passed over.
 *
 *     struct lists l = { 0 };
 *     while (...) if ((rc = lists_line(&l, line, n))) break;
 *     if (!*l.wrong) ... l.of[LIST_LOSSES].v[i].value, .digits ...
 *     lists_release(&l);
 *
 * One thread.
 */
#ifndef RUNS_LISTS_H
#define RUNS_LISTS_H

#include <stdbool.h>
#include <stddef.h>
#include "base/err.h"
#include "runs/stepline.h"

enum { LIST_LOSSES, LIST_TIMES, LISTS };
struct lists {
    struct {
        struct printed *v;
        int n;
        bool seen;
    } of[LISTS];
    int open; /* the list that the last line did not close, + 1 */
    char wrong[96]; /* why the lists are not used; "": they can be */
};

/* A line without its end. */
int lists_line(struct lists *l, const char *line, size_t n) MUST_CHECK;
void lists_release(struct lists *l);

#endif
