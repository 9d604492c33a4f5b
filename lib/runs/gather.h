/* gather.h - from the operands of a command line to groups of runs.
 *
 *     struct gather g;
 *     struct gather_options o = { .threads = 0, .flags = GROUP_PROFILE };
 *     if ((rc = gather_read(&g, argv + first, argc - first, &o))) ...
 *     ... g.group[0] is the baseline ...
 *     gather_release(&g);                           // also after a failure
 *
 * An operand is [NAME=]PATH: a log, a folder, or "-". A folder with a log.txt is one run; of another
 * each log (*.txt and *.log, also with .zst or .gz) and each folder with a log.txt is one. Without NAME
 * a group is called after the last part of PATH, or after all of it when that is taken. Several
 * operands may share a NAME. A text with several sets of published lists makes a group of each, called
 * as the set is. Logs are read by several threads and taken in the order given, so that the result does
 * not depend on their number; beside the groups a thread holds one log's numbers at a time.
 */
#ifndef RUNS_GATHER_H
#define RUNS_GATHER_H

#include <stdbool.h>
#include "base/err.h"
#include "runs/group.h"
#include "runs/logread.h"

enum { GATHER_NOTES = 1000 };
struct note {
    char *path, *text;
    long line;
}; /* line 0: the file as a whole */

struct gather {
    struct group *group;
    int n;
    struct variants variants;
    struct note *note;
    int notes;
    long more_notes; /* beyond GATHER_NOTES */
    bool stdin_taken; /* an operand is "-" */
    int live; /* the group of the operand that is left; -1: none is */
    char *live_path; /* its log, or "-" */
    bool said_silent; /* that logs do not say which code ran */
};
struct gather_options {
    int threads; /* 0: one for each processor */
    unsigned flags; /* of group_add */
    bool keep_texts;
    int32_t at_step; /* runs are judged at this step; 0: at their end */
    const char *leave; /* this operand's log the caller reads, as it grows; NULL: none */
};

int gather_read(struct gather *g, char *const *operands, int n,
                const struct gather_options *o) MUST_CHECK;
/* Finishes all groups, as gather_read does; after more runs have been added. */
int gather_finish(struct gather *g, const struct gather_options *o) MUST_CHECK;
/* A sink of notes: arg is the struct gather. */
void gather_note(void *g, const char *path, long line, const char *text);
void gather_release(struct gather *g);

#endif
