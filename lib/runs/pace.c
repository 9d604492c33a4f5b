/* pace.c - see pace.h. */
#include "runs/pace.h"

#include <math.h>
#include <stdlib.h>
#include "recipe/schedule.h"

static int fill(struct pace *p, const struct recipe *r)
{
    int n = schedule_total(r);
    p->tokens = calloc((size_t)n + 1, sizeof *p->tokens);
    p->lr = calloc((size_t)n + 1, sizeof *p->lr);
    if (!p->tokens || !p->lr)
        return err_memory();
    for (int i = 0; i < n; i++) {
        struct step_schedule s;
        schedule_at(r, i, &s);
        p->tokens[i + 1] = p->tokens[i] + s.tokens;
        p->lr[i + 1] = s.lr;
    }
    p->steps = n;
    return 0;
}

int pace_open(struct pace *p, const char *text)
{
    struct recipe *recipe;
    *p = (struct pace){ .steps = -1 };
    if (!text || recipe_parse(&recipe, "recipe", text, NULL, 0))
        return 0;
    int rc = fill(p, recipe);
    recipe_free(recipe);
    return rc;
}

double pace_tokens(const struct pace *p, double step)
{
    if (!(step >= 0 && step <= p->steps))
        return NAN;
    int s = (int)step;
    double part = step - s;
    return (double)p->tokens[s] + (part > 0 ? part * (double)(p->tokens[s + 1] - p->tokens[s]) : 0);
}

void pace_close(struct pace *p)
{
    free(p->tokens);
    free(p->lr);
    *p = (struct pace){ .steps = -1 };
}
