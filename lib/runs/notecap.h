/* notecap.h - of the notes about one file, the first three of each kind.
 *
 *     struct notecap c = { 0 };
 *     if (notecap_take(&c, "a second line of step %d", line)) say(...);     // for each
 *     for (i = 0; notecap_rest(&c, i, text, sizeof text); i++) say(text);   // at the file's end
 *
 * A kind is a string constant, the same one for all notes of it. A struct belongs to one thread.
 */
#ifndef RUNS_NOTECAP_H
#define RUNS_NOTECAP_H

#include <stdbool.h>
#include <stddef.h>

enum { NOTECAP_EACH = 3, NOTECAP_KINDS = 32 };
struct notecap {
    struct {
        const char *kind;
        long line, notes;
    } of[NOTECAP_KINDS];
};

/* Counts a note; false: it is not to be said. */
bool notecap_take(struct notecap *c, const char *kind, long line);
/* How many of the i-th kind that has such were not said: "and 7 more like line 12". */
bool notecap_rest(const struct notecap *c, int i, char *text, size_t room);

#endif
