#include "inspect/expected.h"

#include <stdlib.h>
#include <string.h>

static const char *const *kinds_of(const struct param_spec *s)
{
    static const char *const adam[] = { "weight", "exp_avg", "exp_avg_sq", NULL };
    static const char *const muon[] = { "weight", "momentum", "second_momentum", "mantissa", NULL };
    static const char *const muon_f32[] = { "weight", "momentum", "second_momentum", NULL };
    return s->rule == RULE_ADAM ? adam : s->dtype == DT_BF16 ? muon : muon_f32;
}

static struct expected expect(const struct param_spec *s, const char *kind)
{
    struct expected e = { .param = s->label,
                          .kind = kind,
                          .sharded = s->comms != COMMS_REPLICATED };
    if (s->matrices > 1)
        e.shape[e.rank++] = s->matrices;
    e.shape[e.rank++] = s->rows;
    e.shape[e.rank++] = strcmp(kind, "second_momentum") ? s->cols : 1;
    e.dtype = !strcmp(kind, "weight") ? s->dtype : !strcmp(kind, "mantissa") ? DT_U16 : DT_F32;
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
            (*e)[(*n)++] = expect(&r->params[i], *k);
    return 0;
}
