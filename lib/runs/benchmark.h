/* benchmark.h - rules of judgement, a row a benchmark, and the results that are published of it.
 *
 *     const struct rules *k = rules_named("track-3");
 *     passes = rules_reach(k, (k->target - mean) * sqrt(n));     // sigma is assumed, not estimated
 *     lead = rules_pair(k, &old, &new);                          // of two results, from their printed means
 *     p = rules_p(k, lead);
 *     if ((rc = standings_read(k, &list, &n))) return rc;        // the caller frees list
 *
 * track-1 is the speed-run: mean loss below the target by Student's test, less time. track-3 is the
 * optimization benchmark (modded-nanogpt, records/track_3_optimization): fewest steps. loss has no target:
 * is one mean below another? Pure functions.
 */
#ifndef RUNS_BENCHMARK_H
#define RUNS_BENCHMARK_H

#include <stdbool.h>
#include "base/err.h"

enum rule { JUDGE_T, JUDGE_Z, JUDGE_LOSS };
struct rules {
    const char *name;
    enum rule rule;
    double target; /* NaN: none */
    double alpha; /* what p values must be below */
    double sigma; /* JUDGE_Z: deviation that a run's loss is assumed to have */
    double margin; /* JUDGE_Z: what (target - mean) sqrt(n), and a pair's lead, must reach */
    double step_loss; /* JUDGE_Z: what one step is worth between two results, in loss */
    const char *standings; /* text of share/standings; NULL: none */
};
/* NULL: there are none of that name. */
const struct rules *rules_named(const char *name);
/* True if a margin or lead is enough; 1e-12 less is, too, since 3.28 - 3.276 is 0.004 less an ulp. */
bool rules_reach(const struct rules *k, double lead);
/* P(Z >= lead / sigma). */
double rules_p(const struct rules *k, double lead);

struct result {
    double steps, mean;
    int n;
};
/* Returns ((a1 - a2) + step_loss (s1 - s2)) / sqrt(1/n1 + 1/n2); NaN where one has no steps or runs. */
double rules_pair(const struct rules *k, const struct result *older, const struct result *newer);

/* A row of the published table. Texts are the benchmark's; "" where the source does not give one. */
struct standing {
    int number;
    struct result result;
    char description[160], date[16];
};
/* Finds a published result by its number; GPT_USAGE: it is not in the list. */
int standing_of(const struct rules *k, int number, struct standing *s) MUST_CHECK;
int standings_read(const struct rules *k, struct standing **list, int *n) MUST_CHECK;

#endif
