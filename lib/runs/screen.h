/* screen.h - a run in progress on a terminal: its curve in characters, its speed, what is left of it.
 *
 *     struct screen s;
 *     screen_init(&s, stdout, "run", baseline);               // NULL: no baseline
 *     for each line of the run: if ((rc = screen_run(&s, run, recipe_text))) ...
 *     screen_wipe(&s); puts("a line above the picture");      // which the next screen_run draws again
 *     screen_end(&s);                                         // the picture stays
 *
 * Drawn where the file is a terminal that can move its cursor, of 40 columns and 12 lines at least;
 * else nothing is. Four times a second at most. Dots of braille are the training
 * losses, of the next token where the log has it; o is a validation, + one of the baseline's mean. One thread.
 */
#ifndef RUNS_SCREEN_H
#define RUNS_SCREEN_H

#include <stdio.h>
#include "runs/group.h"
#include "runs/pace.h"

struct screen {
    bool on;
    FILE *f;
    const char *name;
    const struct group *base;
    int columns, rows; /* of the terminal when the picture was drawn */
    int lines; /* of the picture that is shown */
    double last; /* when it was drawn, s */
    int trial; /* that pace is of */
    struct pace pace;
};
void screen_init(struct screen *s, FILE *f, const char *name, const struct group *base);
/* recipe: of this run, see pace_open. */
int screen_run(struct screen *s, const struct run *r, const char *recipe) MUST_CHECK;
/* The last picture of a run that has ended or waits: at once, whenever the one before was. */
void screen_draw(struct screen *s, const struct run *r);
void screen_wipe(struct screen *s);
void screen_end(struct screen *s);

#endif
