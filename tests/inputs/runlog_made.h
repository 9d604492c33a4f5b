/* runlog_made.h - run logs of every published layout, made up, with what they say.
 *
 *     struct made m = made_default(MADE_TODAY);
 *     m.loss = 3.2784; m.time_ms = 105607;
 *     char *text = made_text(&m, &n);          // free it
 *
 * Training lines of a run of m.steps steps, validations every m.every and at the end, the
 * clock running evenly. What a reader must find in it is in m afterwards.
 */
#ifndef RUNLOG_MADE_H
#define RUNLOG_MADE_H

#include <stdbool.h>
#include <stddef.h>

enum made_layout {
    MADE_TODAY, /* source, rule, environment and nvidia-smi, rule, warm-up, ms */
    MADE_BARE, /* the same without source and nvidia-smi */
    MADE_LLMC, /* 2024-06: s:N tel: trl: */
    MADE_LLMC_NORM, /* 2024-10: the same with lr: and norm: */
    MADE_SOURCE_2024, /* 2024-10: source first, train_loss, nan averages, a clock that restarts */
    MADE_RULES_2024, /* 2024-11: the same between three rules */
    MADE_RULES4_2024, /* 2024-12: the same with a section of the data loader */
    MADE_TRACK3, /* seconds, five digits, extra pairs, two trials, no rule at all before */
    MADE_OURS, /* gpt-train */
    MADE_LLMC_OUTPUT, /* llm.c on a terminal: each step's own time, validations without a step */
    MADE_NANOGPT, /* iterations from 0, one more than there are steps */
    MADE_LAYOUTS
};
extern const char *const made_name[MADE_LAYOUTS];

struct made {
    enum made_layout layout;
    int steps, every;
    double loss, time_ms; /* at the end; the loss of a second trial is 0.001 more */
    int seed; /* moves the losses on the way, and is in our header */
    int source; /* a number that stands in the source, or in the recipe */
    const char *gpu, *driver;
    /* what is in the text */
    int trials, digits;
    bool timed, restarts;
};

struct made made_default(enum made_layout layout);
/* The loss printed at a step that is validated, already rounded; and the clock. */
double made_loss(const struct made *m, int trial, int step);
double made_clock_ms(const struct made *m, int step);
char *made_text(struct made *m, size_t *n);

#endif
