/* run.h - one training run, as its log tells it.
 *
 * A log may hold several (trials). Path, arrays and facts belong to whoever gives the run and hold
 * until the callback that received it returns. Losses are those printed, and so is the time: in
 * the logs of 2024 the clock starts anew after step 10 and leaves out what came before.
 */
#ifndef RUNS_RUN_H
#define RUNS_RUN_H

#include <stdbool.h>
#include <stdint.h>
#include "runs/facts.h"

struct run_val {
    int32_t step;
    int digits;
    double loss, time_ms;
}; /* time NaN: not logged */
struct run_tick {
    int32_t step;
    double time_ms;
}; /* a train line's clock */

struct run {
    const char *path;
    int trial; /* 1 .. in its file */
    long first_line, last_line; /* of a published list both are the file's last */
    int32_t first, last, total; /* steps; total 0: the log does not say; last 0: a published list */
    bool ended; /* its last line is the validation after the last step */
    double loss, time_ms; /* at the end; NaN where it has none */
    int loss_digits; /* behind the point */
    int32_t clock_restart; /* where the clock that counts begins; 0: with the run */
    int32_t resumed; /* continues another run from here; its clock is its own */
    int32_t missing; /* steps without a train line between others that have one */
    uint64_t loss_digest; /* of its losses, to find equal ones */
    int32_t losses; /* how many losses it has, in training and validation */
    struct run_val *val;
    struct run_tick *tick;
    int vals, ticks;
    const struct facts *facts;
    /* set by group_add, in the group's copy */
    int fact[FACTS]; /* index of a variant; -1 when the log does not say */
};

#endif
