#include "inspect/expected.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 9 }; /* tensors of a parameter */

static bool scaled(enum dtype t) { return t == DT_F16 || t == DT_E4M3; }

static int kinds_of(const struct recipe *r, const struct param_spec *s, const char *kind[MOST],
                    enum dtype type[MOST])
{
    int n = 0;
    kind[n] = "weight", type[n++] = recipe_stored(s);
    if (s->stored == DT_E4M3)
        kind[n] = "weight.scale", type[n++] = DT_F32;
    if (recipe_delayed(r, s))
        kind[n] = "weight.amax", type[n++] = DT_F32;
    if (s->rule != RULE_ADAM) {
        kind[n] = "momentum", type[n++] = DT_F32;
        if (recipe_has_second(s))
            kind[n] = "second_momentum", type[n++] = DT_F32;
        if (recipe_mixed(s)) {
            kind[n] = "exp_avg", type[n++] = DT_F32;
            kind[n] = "exp_avg_sq", type[n++] = DT_F32;
        }
        if (s->dtype == DT_BF16)
            kind[n] = "mantissa", type[n++] = DT_U16;
        return n;
    }
    kind[n] = "exp_avg", type[n++] = s->exp_avg;
    if (scaled(s->exp_avg))
        kind[n] = "exp_avg.scale", type[n++] = DT_F32;
    kind[n] = "exp_avg_sq", type[n++] = s->exp_avg_sq;
    if (scaled(s->exp_avg_sq))
        kind[n] = "exp_avg_sq.scale", type[n++] = DT_F32;
    if (s->master != DT_NONE)
        kind[n] = recipe_master_kind(s), type[n++] = s->master;
    if (scaled(s->master))
        kind[n] = "master.scale", type[n++] = DT_F32;
    return n;
}

static bool one_a_row(const char *kind)
{
    return !strcmp(kind, "second_momentum") || strchr(kind, '.');
}

static struct expected expect(const struct recipe *r, const struct param_spec *s, const char *kind,
                              enum dtype type)
{
    bool history = !strcmp(kind, "weight.amax");
    struct expected e = { .param = s->label,
                          .kind = kind,
                          .spec = s,
                          .dtype = type,
                          .sharded = s->comms != COMMS_REPLICATED && !history };
    if (history) {
        e.shape[e.rank++] = r->precision.amax_history, e.shape[e.rank++] = 1;
        return e;
    }
    if (s->matrices > 1)
        e.shape[e.rank++] = s->matrices;
    bool column = s->rows < s->cols && !strcmp(kind, "second_momentum");
    e.shape[e.rank++] = column ? 1 : s->rows;
    e.shape[e.rank++] = one_a_row(kind) && !column ? 1 : s->cols;
    return e;
}

int expected_tensors(const struct recipe *r, struct expected **e, int *n)
{
    *n = 0;
    *e = calloc((size_t)r->n_params * MOST + 1, sizeof **e);
    if (!*e)
        return err_memory();
    for (int i = 0; i < r->n_params; i++) {
        const char *kind[MOST];
        enum dtype type[MOST];
        int have = kinds_of(r, &r->params[i], kind, type);
        for (int k = 0; k < have; k++) {
            struct expected *x = &(*e)[(*n)++];
            *x = expect(r, &r->params[i], kind[k], type[k]);
            if (!strncmp(kind[k], "weight", 6) && r->params[i].stored == DT_E4M3)
                x->scale = (float)recipe_weight_scale(r, &r->params[i]);
        }
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
        if (!recipe_has_adam(p))
            continue;
        snprintf((*s)[*n].key, sizeof(*s)->key, "adam.%s.updates", p->label);
        (*s)[(*n)++].param = p->label;
    }
    return 0;
}
