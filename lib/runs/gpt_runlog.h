/* gpt_runlog.h - the curves in a log of a training run, for programs outside of this tree.
 *
 *     static int show(void *arg, const struct gpt_run *r)
 *     {
 *         for (int i = 0; i < r->vals; i++)
 *             printf("%d %f\n", r->val[i].step, r->val[i].loss);
 *         return 0;
 *     }
 *     ...
 *     gpt_runlog_read("run.log", show, NULL);
 *
 * Logs of gpt-train, modded-nanogpt, llm.c and nanoGPT are read, and lists of losses as they are
 * published (gpt-runlog(5)). Any thread.
 */
#ifndef GPT_RUNLOG_H
#define GPT_RUNLOG_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

struct gpt_run_point {
    int step;
    double loss; /* nats a token; of train lines the objective */
    double time_ms; /* the run's clock; NaN where the line has none */
};
struct gpt_run {
    const char *path;
    int first, last, total; /* steps; total 0: the log does not say */
    bool ended; /* its last line is the validation after the last step */
    double loss, time_ms; /* at the end; NaN: not known */
    int vals, steps;
    const struct gpt_run_point *val; /* [vals] validations */
    const struct gpt_run_point *step; /* [steps] train lines */
};

/* Calls f with each run in the file ("-": standard input; .zst and .gz are decompressed), valid during
 * the call. What f returns other than 0 ends the reading and is returned. */
int gpt_runlog_read(const char *path, int (*f)(void *arg, const struct gpt_run *r), void *arg);

#ifdef __cplusplus
}
#endif
#endif
