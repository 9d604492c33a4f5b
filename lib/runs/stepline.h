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
 * Read are `step:N/M name:value ...` (modded-nanogpt) and `s:N name:value ...` (llm.c), also
 * behind `[rank0]:`. The names that are read: val_loss and tel, train_loss and trl, train_time,
 * step_avg. Other pairs must be pairs and are passed over. Times carry their unit (ms or s). A
 * line is taken whole or not at all. Pure, safe in any thread.
 */
#ifndef RUNS_STEPLINE_H
#define RUNS_STEPLINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { STEP_MAX = 1 << 30 }; /* larger step numbers are errors */
enum stepline_kind { STEP_NONE, STEP_BAD, STEP_OK };

/* One decimal number as it was printed. */
struct printed {
    bool given;
    double value;
    int digits;
}; /* value may be NaN or infinite */

struct stepline {
    int32_t step, total; /* total 0: not given */
    struct printed val, train; /* losses */
    struct printed time_ms, avg_ms; /* in ms; digits are those behind the point of the ms */
    bool closed; /* ends in a unit: no digit can be missing */
    bool llmc; /* the s:N layout */
};

enum stepline_kind stepline_parse(const char *text, size_t n, struct stepline *s, const char **why);

#endif
