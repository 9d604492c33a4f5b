/* recipe_tables.c - the tables of a recipe: layers, parameters, scalars, stages, orders. */
#include "model/recipe_text.h"

#include <stdlib.h>
#include <string.h>
#include "base/num.h"

enum { MAX_COLUMNS = 12 };
static const double MAX_ELEMENTS = 0x1p40; /* of a parameter, so that bytes fit int64_t */

struct row {
    struct recipe *r;
    struct recipe_entry *e;
    char *copy, *col[MAX_COLUMNS];
    int n;
};

static int row_split(struct row *w, struct recipe *r, struct recipe_entry *e, int want)
{
    char *save = NULL;
    *w = (struct row){ .r = r, .e = e, .copy = strdup(e->value) };
    e->used = true;
    if (!w->copy)
        return err_sys("recipe");
    for (char *s = strtok_r(w->copy, " ", &save); s; s = strtok_r(NULL, " ", &save)) {
        if (w->n == MAX_COLUMNS)
            break;
        w->col[w->n++] = s;
    }
    if (w->n == want)
        return 0;
    free(w->copy);
    return text_error(r->text, e, "expected %d columns after the key, found %d", want, w->n);
}

static int one_of(const struct row *w, const char *text, const char *const *words, int *out)
{
    for (int i = 0; words[i]; i++)
        if (!strcmp(words[i], text)) {
            *out = i;
            return 0;
        }
    char list[128] = "";
    for (int i = 0; words[i]; i++)
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i ? "|" : "", words[i]);
    return text_error(w->r->text, w->e, "expected %s, found '%s'", list, text);
}

/* "-" is -1. */
static int index_of(const struct row *w, const char *text, int n, int *out)
{
    int64_t v;
    if (!strcmp(text, "-")) {
        *out = -1;
        return 0;
    }
    if (num_i64(text, "index", 0, n - 1, &v))
        return text_error(w->r->text, w->e, "expected '-' or an index in [0, %d], found '%s'",
                          n - 1, text);
    *out = (int)v;
    return 0;
}

/* A multiplier, deviation or weight. */
static int factor_of(const struct row *w, const char *text, double *out)
{
    if (num_f64(text, "number", 0, 1e6, out))
        return text_error(w->r->text, w->e, "expected a number in [0, 1e6], found '%s'", text);
    return 0;
}

/* The weight of the past in a running mean. */
static int beta_of(const struct row *w, const char *text, double *out)
{
    if (num_f64(text, "beta", 0, 1, out) || *out == 1)
        return text_error(w->r->text, w->e, "expected a beta in [0, 1), found '%s'", text);
    return 0;
}

static int param_of(const struct row *w, const char *label, int *out)
{
    *out = recipe_param(w->r, label);
    if (*out < 0)
        return text_error(w->r->text, w->e, "'%s' is no parameter", label);
    return 0;
}

/* "-", "table" or "table:2": a parameter, and which of the tables of vocab rows in it. */
static int table_of(const struct row *w, char *text, int *param, int *slot)
{
    char *colon = strchr(text, ':');
    int rc;
    *param = -1;
    *slot = 0;
    if (!strcmp(text, "-"))
        return 0;
    if (colon)
        *colon++ = 0;
    if ((rc = param_of(w, text, param)))
        return rc;
    return index_of(w, colon ? colon : "0", 1 << 16, slot);
}

/* "40", "d", "4d": a count, or a multiple of a size of the model. */
static int size_of(const struct row *w, const char *text, int64_t *out)
{
    const struct recipe *r = w->r;
    size_t n = strlen(text);
    int64_t unit = 0, times = 1;
    char head[32];
    switch (n ? text[n - 1] : 0) {
    case 'd': unit = r->width; break;
    case 'f': unit = r->mlp_width; break;
    case 'v': unit = r->vocab; break;
    case 'h': unit = r->heads; break;
    case 'b':
        if (!(unit = r->bigram_rows))
            return text_error(r->text, w->e, "'%s': there is no model.bigram_rows", text);
        break;
    }
    snprintf(head, sizeof head, "%.*s", (int)(unit ? n - 1 : n), text);
    if ((*head || !unit) && num_i64(head, "size", 1, 1 << 30, &times))
        return text_error(r->text, w->e,
                          "expected a size such as 40, d, 4d, f, v, h, b; found '%s'", text);
    *out = unit ? unit * times : times;
    return 0;
}

static int shape_of(const struct row *w, char *text, struct param_spec *p)
{
    int64_t s[3];
    int n = 0, rc = 0;
    char *save = NULL;
    for (char *c = strtok_r(text, ",", &save); c && !rc; c = strtok_r(NULL, ",", &save)) {
        if (n == 3)
            return text_error(w->r->text, w->e, "a shape has two or three sizes");
        rc = size_of(w, c, &s[n++]);
    }
    if (rc)
        return rc;
    if (n < 2)
        return text_error(w->r->text, w->e, "a shape has two or three sizes");
    p->matrices = n == 3 ? s[0] : 1;
    p->rows = s[n - 2];
    p->cols = s[n - 1];
    if ((double)p->matrices * (double)p->rows * (double)p->cols > MAX_ELEMENTS)
        return text_error(w->r->text, w->e, "more than %g elements", MAX_ELEMENTS);
    return 0;
}

/* zero | uniform:S | normal:S | values:LIST | transpose:LABEL, separated by commas. */
static int init_of(const struct row *w, char *text, struct param_spec *p)
{
    if (!strncmp(text, "values:", 7) || !strncmp(text, "transpose:", 10)) {
        p->n_init = 1;
        p->init[0].kind = *text == 'v' ? INIT_VALUES : INIT_TRANSPOSE;
        const char *arg = strchr(text, ':') + 1;
        if (strlen(arg) >= sizeof p->init_text)
            return text_error(w->r->text, w->e, "list of values longer than %zu characters",
                              sizeof p->init_text - 1);
        strcpy(p->init_text, arg);
        return 0;
    }
    char *save = NULL;
    for (char *c = strtok_r(text, ",", &save); c; c = strtok_r(NULL, ",", &save)) {
        if (p->n_init == MAX_CYCLE)
            return text_error(w->r->text, w->e, "more than %d initial values", MAX_CYCLE);
        struct init *i = &p->init[p->n_init++];
        double v = 0;
        int rc = 0;
        if (!strcmp(c, "zero")) {
            i->kind = INIT_ZERO;
        } else if (!strncmp(c, "uniform:", 8) || !strncmp(c, "normal:", 7)) {
            i->kind = *c == 'u' ? INIT_UNIFORM : INIT_NORMAL;
            rc = factor_of(w, strchr(c, ':') + 1, &v);
        } else {
            rc = text_error(w->r->text, w->e,
                            "expected zero, uniform:S, normal:S, values:LIST or "
                            "transpose:LABEL, found '%s'",
                            c);
        }
        if (rc)
            return rc;
        i->value = (float)v;
    }
    return p->n_init ? 0 : text_error(w->r->text, w->e, "expected an initial value");
}

static int lr_of(const struct row *w, char *text, struct param_spec *p)
{
    char *save = NULL;
    for (char *c = strtok_r(text, ",", &save); c; c = strtok_r(NULL, ",", &save)) {
        double v;
        if (p->n_lr == MAX_CYCLE)
            return text_error(w->r->text, w->e, "more than %d multipliers", MAX_CYCLE);
        int rc = factor_of(w, c, &v);
        if (rc)
            return rc;
        p->lr_mul[p->n_lr++] = (float)v;
    }
    if (p->n_lr > 1 && p->rule == RULE_ADAM)
        return text_error(w->r->text, w->e, "adam takes one multiplier, found %d", p->n_lr);
    return p->n_lr ? 0 : text_error(w->r->text, w->e, "expected a multiplier");
}

/* shape dtype init rule comms beta1 beta2 lr wd early */
static int bind_param(struct row *w, struct param_spec *p)
{
    static const char *const rules[] = { "normuon", "adam", NULL };
    static const char *const comms[] = { "replicated", "sharded", "sparse", NULL };
    static const char *const bools[] = { "no", "yes", NULL };
    static const char *const dtypes[] = { "bf16", "f32", NULL };
    double wd;
    int rule, com, early, dtype, rc;
    if ((rc = shape_of(w, w->col[0], p)) || (rc = one_of(w, w->col[1], dtypes, &dtype)) ||
        (rc = init_of(w, w->col[2], p)) || (rc = one_of(w, w->col[3], rules, &rule)) ||
        (rc = one_of(w, w->col[4], comms, &com)))
        return rc;
    p->dtype = dtype ? DT_F32 : DT_BF16;
    p->rule = (enum rule)rule;
    p->comms = (enum comms)com;
    if (p->rule == RULE_NORMUON && strcmp(w->col[5], "-"))
        return text_error(w->r->text, w->e,
                          "beta1 of normuon is the scheduled momentum: expected "
                          "'-', found '%s'",
                          w->col[5]);
    if ((rc = p->rule == RULE_ADAM ? beta_of(w, w->col[5], &p->beta1) : 0) ||
        (rc = beta_of(w, w->col[6], &p->beta2)) || (rc = lr_of(w, w->col[7], p)) ||
        (rc = factor_of(w, w->col[8], &wd)) || (rc = one_of(w, w->col[9], bools, &early)))
        return rc;
    p->wd_mul = (float)wd;
    p->early = early;
    /* Which rows a rank touches is known of this table alone. */
    if (p->comms == COMMS_SPARSE &&
        (strcmp(p->label, "bigram_embed") || p->rule != RULE_ADAM || !w->r->bigram_rows))
        return text_error(w->r->text, w->e,
                          "sparse is for bigram_embed, under adam, with "
                          "model.bigram_rows; found '%s'",
                          p->label);
    return 0;
}

int bind_params(struct recipe *r)
{
    for (int i = 0; i < r->text->n; i++) {
        struct recipe_entry *e = &r->text->e[i];
        if (strcmp(e->section, "parameters"))
            continue;
        if (r->n_params == MAX_PARAMS)
            return text_error(r->text, e, "more than %d parameters", MAX_PARAMS);
        struct param_spec *p = &r->params[r->n_params];
        struct row w;
        if (strlen(e->key) >= sizeof p->label)
            return text_error(r->text, e, "label longer than %zu characters", sizeof p->label - 1);
        int rc = row_split(&w, r, e, 10);
        if (rc)
            return rc;
        strcpy(p->label, e->key);
        rc = bind_param(&w, p);
        free(w.copy);
        if (rc)
            return rc;
        r->n_params++;
    }
    if (r->n_params == 0)
        return text_error(r->text, NULL, "[parameters] is missing");
    return 0;
}

/* attention bank window key_offset value value_gate out_gate mlp */
int bind_layers(struct recipe *r)
{
    static const char *const kinds[] = { "none", "plain", "paired", NULL };
    static const char *const windows[] = { "short", "long", "-", NULL };
    static const char *const bools[] = { "no", "yes", NULL };
    for (int i = 0; i < MAX_LAYERS; i++) {
        char key[12];
        snprintf(key, sizeof key, "%d", i);
        struct recipe_entry *e = text_find(r->text, "layers", key);
        if (!e)
            break;
        struct layer_spec *l = &r->layers[i];
        struct row w;
        int kind = 0, window = 0, offset = 0, rc = row_split(&w, r, e, 8);
        if (rc)
            return rc;
        if (!(rc = one_of(&w, w.col[0], kinds, &kind)) &&
            !(rc = index_of(&w, w.col[1], 1 << 16, &l->bank)) &&
            !(rc = one_of(&w, w.col[2], windows, &window)) &&
            !(rc = one_of(&w, w.col[3], bools, &offset)) &&
            !(rc = table_of(&w, w.col[4], &l->value, &l->value_slot)) &&
            !(rc = index_of(&w, w.col[5], 1 << 16, &l->value_gate)) &&
            !(rc = index_of(&w, w.col[6], 1 << 16, &l->out_gate)) &&
            !(rc = index_of(&w, w.col[7], 1 << 16, &l->mlp))) {
            l->attention = (enum attention_kind)kind;
            l->long_window = window == 1;
            l->key_offset = offset;
            if (kind != ATTN_NONE && (l->bank < 0 || l->out_gate < 0))
                rc = text_error(r->text, e, "attention needs a bank and an output gate");
            else if (l->value >= 0 && l->value_gate < 0)
                rc = text_error(r->text, e, "a value embedding needs a gate");
            else if (l->mlp < 0)
                rc = text_error(r->text, e, "a layer needs an MLP");
        }
        free(w.copy);
        if (rc)
            return rc;
        r->n_layers = i + 1;
    }
    if (r->n_layers == 0)
        return text_error(r->text, NULL, "[layers] is missing");
    return 0;
}

int bind_scalars(struct recipe *r)
{
    for (int i = 0; i < r->text->n; i++) {
        struct recipe_entry *e = &r->text->e[i];
        if (strcmp(e->section, "scalars"))
            continue;
        if (r->n_scalars == MAX_PARAMS)
            return text_error(r->text, e, "more than %d names", MAX_PARAMS);
        struct scalar_spec *s = &r->scalars[r->n_scalars];
        struct row w;
        int rc = row_split(&w, r, e, 3);
        if (rc)
            return rc;
        snprintf(s->name, sizeof s->name, "%s", e->key);
        if (!(rc = param_of(&w, w.col[0], &s->param)) &&
            !(rc = index_of(&w, w.col[1], 1 << 20, &s->first)) &&
            !(rc = index_of(&w, w.col[2], 1 << 16, &s->stride)) && (s->first < 0 || s->stride < 0))
            rc = text_error(r->text, e, "expected a first index and a stride, found '-'");
        free(w.copy);
        if (rc)
            return rc;
        r->n_scalars++;
    }
    return 0;
}

/* "1,0.5,0.25>0": weights, each fixed or running from first to last over the stage. */
static int mtp_of(const struct row *w, char *text, struct stage *s)
{
    char *save = NULL;
    for (char *c = strtok_r(text, ",", &save); c; c = strtok_r(NULL, ",", &save)) {
        if (s->n_mtp == MAX_MTP_WEIGHTS)
            return text_error(w->r->text, w->e, "more than %d weights", MAX_MTP_WEIGHTS);
        char *to = strchr(c, '>');
        if (to)
            *to++ = 0;
        int rc = factor_of(w, c, &s->mtp_first[s->n_mtp]);
        if (!rc)
            rc = factor_of(w, to ? to : c, &s->mtp_last[s->n_mtp]);
        if (rc)
            return rc;
        s->n_mtp++;
    }
    return s->n_mtp ? 0 : text_error(w->r->text, w->e, "expected weights of predicted tokens");
}

/* The extension's multiplier is the floor, so its row has none. */
static int stage_lr(const struct row *w, bool extension, struct stage *s)
{
    bool none = !strcmp(w->col[3], "-");
    if (none != extension)
        return text_error(w->r->text, w->e, "learning rate: expected %s, found '%s'",
                          extension ? "'-' in the last row, which lr_floor holds for" : "a number",
                          w->col[3]);
    return none ? 0 : factor_of(w, w->col[3], &s->lr);
}

/* tokens window sequence lr mtp */
int bind_stages(struct recipe *r)
{
    for (int i = 0; i < MAX_STAGES; i++) {
        char key[12];
        snprintf(key, sizeof key, "%d", i);
        struct recipe_entry *e = text_find(r->text, "stages", key);
        if (!e)
            break;
        snprintf(key, sizeof key, "%d", i + 1);
        bool extension = !text_find(r->text, "stages", key);
        struct stage *s = &r->stages[i];
        struct row w;
        int64_t window = 0, sequence = 0;
        int rc = row_split(&w, r, e, 5);
        if (rc)
            return rc;
        if (num_i64(w.col[0], "tokens", 1, INT64_C(1) << 40, &s->tokens) ||
            num_i64(w.col[1], "window", 1, 1 << 20, &window) ||
            num_i64(w.col[2], "sequence", 1, 1 << 30, &sequence))
            rc = text_error(r->text, e, "%s", err_message());
        else if (!(rc = stage_lr(&w, extension, s)))
            rc = mtp_of(&w, w.col[4], s);
        s->window = (int)window;
        s->sequence = (int)sequence;
        free(w.copy);
        if (rc)
            return rc;
        r->n_stages = i + 1;
    }
    if (r->n_stages < 2)
        return text_error(r->text, NULL, "[stages] needs one row at least and the extension");
    return 0;
}

/* Labels, each at most once; "-": none. */
int bind_labels(struct recipe *r, const struct recipe_entry *e, int *list, int *n)
{
    bool seen[MAX_PARAMS] = { false };
    char *copy = strdup(strcmp(e->value, "-") ? e->value : ""), *save = NULL;
    int rc = 0;
    if (!copy)
        return err_sys("recipe");
    *n = 0;
    for (char *s = strtok_r(copy, " ", &save); s && !rc; s = strtok_r(NULL, " ", &save)) {
        int p = recipe_param(r, s);
        if (p < 0)
            rc = text_error(r->text, e, "'%s' is no parameter", s);
        else if (seen[p])
            rc = text_error(r->text, e, "'%s' stands twice", s);
        else
            seen[list[(*n)++] = p] = true;
    }
    free(copy);
    return rc;
}

/* A list of all labels, each once. */
int bind_order(struct recipe *r, const char *key, int *order)
{
    struct recipe_entry *e = text_find(r->text, "order", key);
    int n, rc = bind_labels(r, e, order, &n);
    for (int i = 0; i < r->n_params && !rc; i++) {
        bool seen = false;
        for (int k = 0; k < n; k++)
            seen |= order[k] == i;
        if (!seen)
            rc = text_error(r->text, e, "'%s' is missing", r->params[i].label);
    }
    return rc;
}
