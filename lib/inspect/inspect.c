#include "inspect/inspect.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/num.h"
#include "base/version.h"
#include "model/schedule.h"

static const char *recipe_of(const struct tensors *s)
{
    const struct ckpt *c = tensors_ckpt(s);
    return c ? ckpt_info(c)->recipe : st_meta(tensors_header(s), "gpt.recipe");
}

int inspect_open(struct inspect *x, const char *path)
{
    memset(x, 0, sizeof *x);
    int rc = tensors_open(&x->tensors, path);
    const char *text = rc ? NULL : recipe_of(x->tensors);
    if (!text)
        return rc;
    if (recipe_parse(&x->recipe, tensors_path(x->tensors), text, NULL, 0)) {
        x->recipe = NULL;
        snprintf(x->why, sizeof x->why, "%s", err_message());
        err_clear();
        return 0;
    }
    if ((rc = tensor_names(x->recipe, &x->map)))
        inspect_close(x);
    return rc;
}

void inspect_close(struct inspect *x)
{
    tensors_close(x->tensors);
    recipe_free(x->recipe);
    tensor_names_release(&x->map);
    memset(x, 0, sizeof *x);
}

/* Without a recipe, what several ranks hold is cut. */
static bool in_pieces(const struct tensors *s, const char *param)
{
    for (int i = 0; i < tensors_count(s); i++) {
        const struct stored *t = tensors_at(s, i);
        if (!strcmp(t->param, param) && ckpt_find(tensors_ckpt(s), t->name)->npieces > 1)
            return true;
    }
    return false;
}

bool inspect_sharded(void *arg, const char *param)
{
    const struct inspect *x = arg;
    int i = x->recipe ? recipe_param(x->recipe, param) : -1;
    return i >= 0 ? x->recipe->params[i].comms != COMMS_REPLICATED : in_pieces(x->tensors, param);
}

static void adam_rule(const struct inspect *x, const struct param_spec *s, double lr,
                      struct update_rule *u)
{
    char key[96];
    int64_t n = 0;
    snprintf(key, sizeof key, "adam.%s.updates", s->label);
    if (ckpt_state_i64(tensors_ckpt(x->tensors), key, &n) || n < 1) {
        err_clear();
        return;
    }
    u->known = true;
    u->rate = x->recipe->adam_lr * lr * s->lr_mul[0];
    u->eps = x->recipe->adam_eps;
    u->correction = sqrt(1 - pow(s->beta2, (double)n)) / (1 - pow(s->beta1, (double)n));
}

void inspect_update_rule(void *arg, const struct view *v, struct update_rule *u)
{
    const struct inspect *x = arg;
    const struct ckpt *c = tensors_ckpt(x->tensors);
    int i = x->recipe ? recipe_param(x->recipe, v->t->param) : -1;
    struct point at;
    *u = (struct update_rule){ .known = false };
    if (i < 0 || !c)
        return;
    const struct param_spec *s = &x->recipe->params[i];
    int64_t step = ckpt_info(c)->step, last = schedule_total(x->recipe) - 1;
    schedule_at(x->recipe, (int)(step < last ? step : last), &at);
    if (s->rule == RULE_ADAM) {
        adam_rule(x, s, at.lr, u);
        return;
    }
    double shape = sqrt(fmax(1, (double)s->rows / (double)s->cols));
    *u = (struct update_rule){ .known = true,
                               .orthogonal = true,
                               .rate = x->recipe->muon_lr * at.lr * shape *
                                       s->lr_mul[v->unit % (uint64_t)s->n_lr] };
}

/* --- what is not a tensor --- */

int inspect_info(const struct inspect *x, struct ckpt_info *info)
{
    const struct ckpt *c = tensors_ckpt(x->tensors);
    const struct st_header *h = tensors_header(x->tensors);
    int n = c ? ckpt_info(c)->nstate : (int)h->nmeta;
    struct ckpt_kv *kv = calloc((size_t)n + 1, sizeof *kv);
    int rc = 0;
    *info = c ? *ckpt_info(c) : (struct ckpt_info){ .tool = st_meta(h, "gpt.tool") };
    info->state = kv;
    info->tool = info->tool ? info->tool : "gpt-ckpt " GPT_VERSION;
    if (!kv)
        return err_set(GPT_SYSTEM, "out of memory");
    for (int i = 0; c && i < n; i++)
        kv[i] = ckpt_info(c)->state[i];
    for (int i = 0; !c && i < n; i++)
        if (!strncmp(h->meta[i].key, "gpt.state.", 10))
            kv[info->nstate++] = (struct ckpt_kv){ h->meta[i].key + 10, h->meta[i].value };
    const char *step = c ? NULL : st_meta(h, "gpt.step");
    const char *tokens = c ? NULL : st_meta(h, "gpt.tokens");
    if (step)
        rc = num_i64(step, "gpt.step", 0, INT64_MAX, &info->step);
    if (!rc && tokens)
        rc = num_i64(tokens, "gpt.tokens", 0, INT64_MAX, &info->tokens);
    if (rc)
        inspect_info_release(info);
    return rc;
}

void inspect_info_release(struct ckpt_info *info)
{
    free((void *)info->state);
    info->state = NULL;
}

/* --- what a checkpoint must hold --- */

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

int inspect_expected(const struct recipe *r, struct expected **e, int *n)
{
    *n = 0;
    *e = calloc((size_t)r->n_params * 4 + 1, sizeof **e);
    if (!*e)
        return err_set(GPT_SYSTEM, "out of memory");
    for (int i = 0; i < r->n_params; i++)
        for (const char *const *k = kinds_of(&r->params[i]); *k; k++)
            (*e)[(*n)++] = expect(&r->params[i], *k);
    return 0;
}

/* States may be kept in other types than fp32; weights and mantissas are what they are. */
static bool same_type(const struct expected *e, const struct ckpt_entry *x)
{
    return e->dtype == x->dtype || (strcmp(e->kind, "weight") && strcmp(e->kind, "mantissa"));
}

static bool as_expected(const struct expected *e, const struct ckpt_entry *x)
{
    return same_type(e, x) && e->rank == x->rank &&
           !memcmp(e->shape, x->shape, (size_t)e->rank * sizeof *e->shape);
}

static void shape_text(char *buf, size_t n, enum dtype t, int rank, const int64_t *shape)
{
    int at = snprintf(buf, n, "%s ", dtype_name(t));
    for (int i = 0; i < rank; i++)
        at += snprintf(buf + at, n - (size_t)at, "%s%" PRId64, i ? "x" : "", shape[i]);
}

static int compare(const struct ckpt *c, const struct expected *e, int n, verify_tell_fn *tell,
                   void *tell_arg)
{
    const struct ckpt_entry *x;
    int entries = ckpt_entries(c, &x), faults = 0;
    bool *known = calloc((size_t)entries + 1, sizeof *known);
    char text[512], want[128], have[128], name[96];
    if (!known)
        return err_set(GPT_SYSTEM, "out of memory");
    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof name, "%s.%s", e[i].param, e[i].kind);
        const struct ckpt_entry *found = ckpt_find(c, name);
        if (found)
            known[found - x] = true;
        if (found && as_expected(&e[i], found))
            continue;
        shape_text(want, sizeof want, e[i].dtype, e[i].rank, e[i].shape);
        snprintf(have, sizeof have, "none");
        if (found)
            shape_text(have, sizeof have, found->dtype, found->rank, found->shape);
        snprintf(text, sizeof text, "%s: tensor '%s': the recipe expects %s, found %s", ckpt_dir(c),
                 name, want, have);
        tell(tell_arg, text);
        faults++;
    }
    for (int i = 0; i < entries; i++) {
        size_t len = strlen(x[i].name);
        if (known[i] || (len > 6 && !strcmp(x[i].name + len - 6, ".scale")) ||
            (len > 10 && !strcmp(x[i].name + len - 10, ".scale_inv")))
            continue;
        snprintf(text, sizeof text, "%s: tensor '%s': the recipe has none of that name",
                 ckpt_dir(c), x[i].name);
        tell(tell_arg, text);
        faults++;
    }
    free(known);
    return faults ? GPT_NO : 0;
}

int inspect_verify(void *arg, const struct ckpt *c, verify_tell_fn *tell, void *tell_arg)
{
    struct recipe *r;
    struct expected *e = NULL;
    char text[640];
    int n, rc = recipe_parse(&r, ckpt_dir(c), ckpt_info(c)->recipe, NULL, 0);
    (void)arg;
    if (rc) {
        snprintf(text, sizeof text, "recipe.txt: %s", err_message());
        tell(tell_arg, text);
        return GPT_NO;
    }
    rc = inspect_expected(r, &e, &n);
    if (!rc)
        rc = compare(c, e, n, tell, tell_arg);
    free(e);
    recipe_free(r);
    return rc;
}
