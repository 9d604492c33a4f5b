/* lists.h - losses and times of runs as they are published, in place of logs:
 *
 *     losses = [3.2777, 3.2785, 3.2790]
 *     times  = [105.369, 105.595, 105.414]           # seconds
 *
 * A list may go over several lines, and its name may be longer: val_losses, accs, new_losses,
 * train_times. Other lines are passed over. A text may hold several sets of runs; a set is called
 * after the first part of its lists' name (new), else after the line before it, where that is a
 * heading.
 *
 *     struct lists l = { 0 };
 *     while (...) if ((rc = lists_line(&l, text, n, line))) break;
 *     for (i = 0; i < l.n; i++) ... l.set[i].of[LIST_LOSSES].v[k].value ...
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

enum { LIST_LOSSES, LIST_TIMES, LISTS, LIST_NAME = 80 };
struct list {
    struct printed *v;
    int n;
    bool seen;
};
struct list_set {
    char name[LIST_NAME]; /* "": it has none */
    struct list of[LISTS];
    long line; /* on which its losses begin */
    char wrong[96]; /* why the set is not used; "": it can be */
};
struct lists {
    struct list_set *set;
    int n;
    long times; /* lists of times without losses */
    struct list *open; /* that the last line did not close */
    struct list_set *to;
    char heading[LIST_NAME]; /* the last line, if it can be one */
};

/* A line without its end, and its number. */
int lists_line(struct lists *l, const char *text, size_t n, long line) MUST_CHECK;
/* True if a list is not closed. */
bool lists_open(const struct lists *l);
/* Digits behind the point with which the losses were printed: the most of any, because Python drops
 * zeros at the end; 0: each as it stands, where so many have fewer that it cannot be that. */
int lists_digits(const struct list *losses);
void lists_release(struct lists *l);

#endif
