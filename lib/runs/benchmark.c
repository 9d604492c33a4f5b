/* benchmark.c - see benchmark.h. */
#include "runs/benchmark.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/grow.h"

/* The file as it is, with a zero byte behind it; the path is relative to the top of the tree, where make
 * runs. */
__asm__(
    ".pushsection .rodata\nstandings_track_3:\n.incbin \"share/standings/track-3.tsv\"\n.byte 0\n"
    ".popsection\n");
extern const char standings_track_3[] __attribute__((visibility("hidden")));

static const struct rules all[] = {
    { .name = "track-1", .rule = JUDGE_T, .target = 3.28, .alpha = 0.01 },
    { .name = "track-3",
      .rule = JUDGE_Z,
      .target = 3.28,
      .alpha = 0.01,
      .sigma = 0.0013,
      .margin = 0.004,
      .step_loss = 0.0045 / 100,
      .standings = standings_track_3 },
    { .name = "loss", .rule = JUDGE_LOSS, .target = NAN, .alpha = 0.01 },
};

const struct rules *rules_named(const char *name)
{
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!strcmp(all[i].name, name))
            return &all[i];
    return NULL;
}

bool rules_reach(const struct rules *k, double lead) { return lead >= k->margin - 1e-12; }

double rules_p(const struct rules *k, double lead)
{
    return k->sigma > 0 ? 0.5 * erfc(lead / k->sigma / sqrt(2)) : NAN;
}

double rules_pair(const struct rules *k, const struct result *older, const struct result *newer)
{
    if (older->n < 1 || newer->n < 1)
        return NAN;
    double lead = older->mean - newer->mean + k->step_loss * (older->steps - newer->steps);
    return lead / sqrt(1.0 / older->n + 1.0 / newer->n);
}

/* A line of the table: number, steps, mean, runs, date, description, between tabs. */
static int read_line(const char *line, int number, struct standing *s)
{
    int at = 0;
    *s = (struct standing){ .number = 0 };
    sscanf(line, "%d\t%lf\t%lf\t%d\t%15[^\t]\t%159[^\n]%n", &s->number, &s->result.steps,
           &s->result.mean, &s->result.n, s->date, s->description, &at);
    if (!at || line[at] != '\n')
        return err_set(GPT_INPUT, "standings:%d: expected number, steps, mean, runs, date and text",
                       number);
    if (!strcmp(s->date, "-"))
        *s->date = '\0';
    if (!strcmp(s->description, "-"))
        *s->description = '\0';
    return 0;
}

int standings_read(const struct rules *k, struct standing **list, int *n)
{
    int rc = 0, number = 1;
    *list = NULL;
    *n = 0;
    for (const char *line = k->standings; line && *line && !rc; number++) {
        const char *end = strchr(line, '\n');
        if (*line != '#' && !(rc = grow_one(list, *n, sizeof **list)) &&
            !(rc = read_line(line, number, &(*list)[*n])))
            ++*n;
        line = end ? end + 1 : NULL;
    }
    if (rc) {
        free(*list);
        *list = NULL;
    }
    return rc;
}

int standing_of(const struct rules *k, int number, struct standing *s)
{
    struct standing *list;
    int n, found = 0, rc = standings_read(k, &list, &n);
    for (int i = 0; i < n; i++)
        if (list[i].number == number) {
            *s = list[i];
            found++;
        }
    free(list);
    return rc || found ? rc : err_set(GPT_USAGE, "%s has no result %d here", k->name, number);
}
