#include "inspect/expected.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const *kinds_of(const struct param_spec *s)
{
    static const char *const adam[] = { "weight", "exp_avg", "exp_avg_sq", NULL };
    static const char *const muon[] = { "weight", "momentum", "second_momentum", "mantissa", NULL };
    static const char *const muon_f32[] = { "weight", "momentum", "second_momentum", NULL };
    return s->rule == RULE_ADAM ? adam : s->dtype == DT_BF16 ? muon : muon_f32;
}

static enum dtype dtype_of(const struct recipe *r, const struct param_spec *s, const char *kind)
{
    return !strcmp(kind, "weight")     ? s->dtype
           : !strcmp(kind, "mantissa") ? DT_U16
           : s->rule == RULE_ADAM      ? recipe_adam_dtype(r, s)
                                       : DT_F32;
}

static struct expected expect(const struct recipe *r, const struct param_spec *s, const char *kind)
{
    struct expected e = { .param = s->label,
                          .kind = kind,
                          .sharded = s->comms != COMMS_REPLICATED };
    if (s->matrices > 1)
        e.shape[e.rank++] = s->matrices;
    e.shape[e.rank++] = s->rows;
    e.shape[e.rank++] = strcmp(kind, "second_momentum") ? s->cols : 1;
    e.dtype = dtype_of(r, s, kind);
    return e;
}

int expected_tensors(const struct recipe *r, struct expected **e, int *n)
{
    *n = 0;
    *e = calloc((size_t)r->n_params * 4 + 1, sizeof **e);
    if (!*e)
        return err_memory();
    for (int i = 0; i < r->n_params; i++)
        for (const char *const *k = kinds_of(&r->params[i]); *k; k++)
            (*e)[(*n)++] = expect(r, &r->params[i], *k);
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
        if (p->rule != RULE_ADAM)
            continue;
        snprintf((*s)[*n].key, sizeof(*s)->key, "adam.%s.updates", p->label);
        (*s)[(*n)++].param = p->label;
    }
    return 0;
}
