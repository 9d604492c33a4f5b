#include "inspect/expected.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "recipe/states.h"

static struct expected expect(const struct recipe *r, const struct param_spec *p,
                              const struct state *s)
{
    struct expected e = { .param = p->label,
                          .spec = p,
                          .dtype = s->dtype,
                          .sharded = s->sharded,
                          .each_rank = s->each_rank,
                          .optional = s->role == STATE_GRADIENT };
    memcpy(e.kind, s->kind, sizeof e.kind);
    if (p->stored == DT_E4M3 && (s->role <= STATE_SCALE || s->role == STATE_AMAX))
        e.scale = (float)recipe_weight_scale(r, p);
    if (s->matrices > 1)
        e.shape[e.rank++] = s->matrices;
    e.shape[e.rank++] = s->rows;
    e.shape[e.rank++] = s->cols;
    return e;
}

int expected_tensors(const struct recipe *r, struct expected **e, int *n)
{
    struct state s[MAX_STATES];
    *n = 0;
    *e = calloc((size_t)r->n_params * MAX_STATES + 1, sizeof **e);
    if (!*e)
        return err_memory();
    for (int i = 0; i < r->n_params; i++) {
        int have = states_of(r, i, s);
        for (int k = 0; k < have; k++)
            (*e)[(*n)++] = expect(r, &r->params[i], &s[k]);
    }
    return 0;
}

int expected_state(const struct recipe *r, struct expected_state **s, int *n)
{
    static const char *const position[] = { "loader.step", "loader.epoch", "loader.shard",
                                            "loader.document" };
    *n = 0;
    *s = calloc((size_t)r->n_params + 4, sizeof **s);
    if (!*s)
        return err_memory();
    for (int i = 0; i < 4; i++)
        snprintf((*s)[(*n)++].key, sizeof(*s)->key, "%s", position[i]);
    for (int i = 0; i < r->n_params; i++) {
        const struct param_spec *p = &r->params[i];
        if (!rule_has_adam(&p->rule))
            continue;
        snprintf((*s)[*n].key, sizeof(*s)->key, "adam.%s.updates", p->label);
        (*s)[(*n)++].param = p->label;
    }
    return 0;
}
