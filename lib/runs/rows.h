/* rows.h - a run as rows, one a step: what its log says, and tokens, rate and passes by its recipe.
 *
 *     struct rows o;
 *     struct row row;
 *     if ((rc = rows_open(&o, run, recipe_text))) return rc;
 *     rows_head(f, ROWS_CSV);
 *     while (rows_next(&o, INT32_MAX, &row))
 *         rows_write(f, ROWS_CSV, "group", run, &row);
 *     rows_close(&o);
 *
 * The names are those that trackers take for metrics; row_name[i] is of row.value[i]. A row has
 * the training line and the validation of its step; of two lines of one step the last counts. The run
 * may grow between calls. One thread; the caller checks the stream.
 */
#ifndef RUNS_ROWS_H
#define RUNS_ROWS_H

#include <stdbool.h>
#include <stdio.h>
#include "runs/pace.h"
#include "runs/run.h"

enum rows_format { ROWS_CSV, ROWS_JSONL };
enum {
    ROW_TRAIN, /* objective */
    ROW_NEXT, /* next token's part of it */
    ROW_VAL,
    ROW_NORM, /* of the gradients */
    ROW_LR, /* the schedule's factor on all learning rates */
    ROW_TOKENS, /* trained on by the end of the step */
    ROW_SECONDS, /* on the run's clock */
    ROW_EPOCH, /* passes over the data */
    ROW_VALUES
};
extern const char *const row_name[ROW_VALUES];

struct row {
    int32_t step;
    double value[ROW_VALUES]; /* NaN: not known */
};
struct rows {
    const struct run *run;
    struct pace pace;
    int at_step, at_val; /* the next lines */
};
int rows_open(struct rows *o, const struct run *r,
              const char *recipe) MUST_CHECK; /* see pace_open */
void rows_close(struct rows *o);
static inline void rows_rewind(struct rows *o) { o->at_step = o->at_val = 0; }
/* False where no row of a step below `before` is left. */
bool rows_next(struct rows *o, int32_t before, struct row *row);

/* The line of names; JSON lines have none. */
void rows_head(FILE *f, enum rows_format format);
/* Writes a row; a value that is not known is empty in CSV, and left out in JSON. */
void rows_write(FILE *f, enum rows_format format, const char *group, const struct run *r,
                const struct row *row);

#endif
