/* states.c - see states.h. */
#include "recipe/states.h"

#include <string.h>
#include "recipe/share.h"

struct table {
    const struct recipe *r;
    const struct param_spec *spec;
    struct state *s;
    int n;
};

static struct state *add(struct table *t, const char *kind, enum state_role role, enum dtype dtype)
{
    struct state *s = &t->s[t->n++];
    *s = (struct state){ .role = role,
                         .dtype = dtype,
                         .matrices = t->spec->matrices,
                         .rows = t->spec->rows,
                         .cols = t->spec->cols,
                         .sharded = t->spec->comms != COMMS_REPLICATED };
    snprintf(s->kind, sizeof s->kind, "%s", kind);
    return s;
}

/* Adds a tensor, and where its type has scales KIND.scale, one a row. */
static void add_scaled(struct table *t, const char *kind, enum state_role role, enum dtype dtype)
{
    add(t, kind, role, dtype);
    if (dtype != DT_F16 && dtype != DT_E4M3)
        return;
    struct state *s = add(t, "", role, DT_F32);
    snprintf(s->kind, sizeof s->kind, "%.*s.scale", KIND_SIZE - 8, kind);
    s->cols = 1;
}

static int uses_before(const struct rule *r, int chain, int use)
{
    int n = 0;
    for (int c = 0; c <= chain; c++)
        for (int k = 0; k < (c < chain ? r->chain[c].n : use); k++)
            n += r->chain[c].use[k].id == r->chain[chain].use[use].id;
    return n;
}

static void add_stage(struct table *t, int chain, int use)
{
    const struct stage_use *u = &t->spec->rule.chain[chain].use[use];
    const struct stage_row *row = &stage_rows[u->id];
    bool one = stage_has(u, "short");
    enum extent longer = t->spec->rows > t->spec->cols ? LEFT_SQUARE : RIGHT_SQUARE;
    int nth = uses_before(&t->spec->rule, chain, use) + 1;
    for (int k = 0; k < STAGE_STATES && row->state[k].kind; k++) {
        const char *flag = row->state[k].flag;
        if ((flag && !stage_has(u, flag)) || (one && row->state[k].extent == longer))
            continue;
        struct state *s = add(t, row->state[k].kind, STATE_RULE, row->state[k].dtype);
        if (nth > 1)
            snprintf(s->kind, sizeof s->kind, "%.*s.%hhd", KIND_SIZE - 8, row->state[k].kind,
                     (signed char)nth);
        s->chain = chain, s->use = use;
        bool column = s->rows < s->cols;
        switch (row->state[k].extent) {
        case EACH: break;
        case LONG_SIDE: *(column ? &s->rows : &s->cols) = 1; break;
        case LEFT_SQUARE: s->cols = s->rows; break;
        case RIGHT_SQUARE: s->rows = s->cols; break;
        case LEFT_LINE: s->cols = 1; break;
        case RIGHT_LINE: s->rows = 1; break;
        case ONE: /* of a table, of which ranks hold rows, each holds it */
            s->rows = s->cols = 1;
            s->sharded &= s->matrices > 1;
            break;
        }
    }
}

int states_of(const struct recipe *r, int param, struct state *out)
{
    const struct param_spec *s = &r->params[param];
    struct table t = { r, s, out, 0 };

    add(&t, "weight", STATE_WEIGHT, recipe_stored(s));
    if (s->stored == DT_E4M3)
        add(&t, "weight.scale", STATE_SCALE, DT_F32)->cols = 1;
    if (!rule_is_adam(&s->rule) && s->dtype == DT_BF16 && s->stored == DT_NONE)
        add(&t, "mantissa", STATE_MASTER, DT_U16);
    for (int c = 0; c < rule_chains(&s->rule); c++)
        for (int k = 0; k < s->rule.chain[c].n; k++)
            add_stage(&t, c, k);
    if (rule_has_adam(&s->rule)) {
        add_scaled(&t, "exp_avg", STATE_RULE, s->exp_avg);
        add_scaled(&t, "exp_avg_sq", STATE_RULE, s->exp_avg_sq);
    }
    int held = r->optimizer.around.kind == AROUND_AVERAGE ? 1 : 2;
    for (int k = 0; k < held && around_takes(&r->optimizer.around, param); k++)
        add(&t, k ? "around_before" : "around_mean", STATE_RULE, DT_F32)->chain = -1;
    if (s->master != DT_NONE)
        add_scaled(&t, recipe_master_kind(s), STATE_MASTER, s->master);
    if (recipe_delayed(r, s)) {
        struct state *a = add(&t, "weight.amax", STATE_AMAX, DT_F32);
        a->matrices = a->cols = 1, a->rows = r->precision.amax_history;
        a->sharded = false;
    }
    if (!strcmp(s->label, "mlp") && r->precision.mlp.down_fp8 == DOWN_DELAYED)
        for (int k = 0; k < 2; k++) { /* a number a layer's two matrices */
            struct state *a = add(&t, k ? "post_scale" : "next_scale", STATE_AMAX, DT_F32);
            a->rows = s->matrices / 2, a->matrices = a->cols = 1;
            a->sharded = false;
            a->each_rank = k == 1;
        }
    if (rule_is_adam(&s->rule))
        add(&t, "gradient", STATE_GRADIENT, recipe_gradient(r, s));
    return t.n;
}

int64_t states_bytes(const struct recipe *r, int param, const struct state *s, int world)
{
    int64_t units = s->matrices > 1 ? s->matrices : s->rows;
    int64_t bytes = s->matrices * s->rows * s->cols * (int64_t)dtype_size(s->dtype);
    return s->sharded ? bytes / units * share_most(r, param, world) : bytes;
}
