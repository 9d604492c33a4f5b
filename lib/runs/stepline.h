/* stepline.h - parses a line of a run log as a step line.
 *
 *     struct stepline s;
 *     const char *why;
 *     switch (stepline_parse(text, n, &s, &why)) {
 *     case STEP_NONE: ...      // some other text
 *     case STEP_BAD: ...       // looks like a step line but cannot be read: why
 *     case STEP_OK: ...        // s
 *     }
 *
 * Layouts, behind what prefix.h passes over:
 *     step:N/M name:value ...                        modded-nanogpt, and ours
 *     s:N name:value ...                             llm.c's main.log
 *     step N/M | loss X | norm X | lr X | X ms ...   llm.c's output; its `val loss X` tells no step
 *     step N: train loss X, val loss X               nanoGPT
 *     iter N: loss X, time Xms ...                   nanoGPT, which counts these from 0
 * Of pairs the names val_loss and tel, train_loss and trl, next_loss, grad_norm and norm, train_time,
 * step_avg are read; others must be pairs and are passed over. Times carry their unit (ms or s). A
 * line is taken whole or not at all. A validation loss below 0 is none. Pure, safe in any thread.
 */
#ifndef RUNS_STEPLINE_H
#define RUNS_STEPLINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { STEP_MAX = 1 << 30 }; /* larger step numbers are errors */
enum stepline_kind { STEP_NONE, STEP_BAD, STEP_OK };
enum step_layout { LAYOUT_PAIRS, LAYOUT_LLMC, LAYOUT_LLMC_OUTPUT, LAYOUT_NANOGPT };

/* One decimal number as it was printed. */
struct printed {
    bool given;
    double value;
    int digits;
}; /* value may be NaN or infinite */

struct stepline {
    enum step_layout layout;
    int32_t step, total; /* step -1: that of the line before; total 0: not given */
    struct printed val, train, next, norm; /* losses; of the gradients */
    struct printed time_ms, avg_ms; /* in ms; digits are those behind the point of the ms */
    struct printed own_ms; /* the time of this step alone */
    bool closed; /* ends in a unit: no digit can be missing */
};

enum stepline_kind stepline_parse(const char *text, size_t n, struct stepline *s, const char **why);

#endif
