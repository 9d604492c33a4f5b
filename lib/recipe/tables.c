/* tables.c - the tables of a recipe: rows of layers, parameters, scalars and stages. */
#include "recipe/text.h"

#include <stdlib.h>
#include <string.h>
#include "base/num.h"

enum { MAX_COLUMNS = 12 };
static const double MAX_ELEMENTS = 0x1p40; /* of a parameter, so that bytes fit int64_t */

struct row {
    struct recipe *r;
    struct recipe_line *line;
    char *copy, *col[MAX_COLUMNS];
    int n;
};
typedef int bind_row(struct row *w, int i); /* columns to the fields of row i */

/* The last `optional` of its columns may be absent: they are "-". */
static int row_split(struct row *w, int want, int optional)
{
    char *save = NULL;
    if (!(w->copy = strdup(w->line->value)))
        return err_sys("recipe");
    for (char *s = strtok_r(w->copy, " ", &save); s && w->n < MAX_COLUMNS;
         s = strtok_r(NULL, " ", &save))
        w->col[w->n++] = s;
    if (w->n < want - optional || w->n > want)
        return recipe_error(w->r, w->line, "expected %d columns after the key, found %d",
                            w->n > want ? want : want - optional, w->n);
    while (w->n < want)
        w->col[w->n++] = "-";
    return 0;
}

static int bind_line(struct recipe *r, struct recipe_line *line, int columns, int optional,
                     bind_row *bind, int i)
{
    struct row w = { .r = r, .line = line };
    int rc = row_split(&w, columns, optional);
    line->used = true;
    if (!rc)
        rc = bind(&w, i);
    free(w.copy);
    return rc;
}

/* All rows of a table, *n of them, in the order of the file. */
static int bind_labelled(struct recipe *r, const char *section, int columns, int optional,
                         bind_row *bind, int *n)
{
    for (int i = 0; i < r->text->n; i++) {
        struct recipe_line *l = &r->text->line[i];
        if (strcmp(l->section, section))
            continue;
        if (*n == MAX_PARAMS)
            return recipe_error(r, l, "more than %d rows", MAX_PARAMS);
        if (strlen(l->key) >= LABEL_SIZE)
            return recipe_error(r, l, "label longer than %d characters", LABEL_SIZE - 1);
        int rc = bind_line(r, l, columns, optional, bind, *n);
        if (rc)
            return rc;
        ++*n;
    }
    return 0;
}

/* Rows 0, 1, ... of a table, *n of them. */
static int bind_numbered(struct recipe *r, const char *section, int columns, int optional,
                         bind_row *bind, int most, int *n)
{
    struct recipe_line *l;
    for (; *n < most && (l = recipe_find_row(r, section, *n)); ++*n) {
        int rc = bind_line(r, l, columns, optional, bind, *n);
        if (rc)
            return rc;
    }
    return 0;
}

/* -- columns --------------------------------------------------------------------------- */

/* Splits "a,b,c" into item[0..*n-1], `most` at most. */
static int list_of(const struct row *w, char *text, const char *what, int most, char **item, int *n)
{
    char *save = NULL;
    *n = 0;
    for (char *c = strtok_r(text, ",", &save); c && *n <= most;
         c = strtok_r(NULL, ",", &save), ++*n)
        if (*n < most)
            item[*n] = c;
    if (*n >= 1 && *n <= most)
        return 0;
    return recipe_error(w->r, w->line, "expected 1 to %d %s", most, what);
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
    return recipe_error(w->r, w->line, "expected %s, found '%s'", list, text);
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
        return recipe_error(w->r, w->line, "expected '-' or an index in [0, %d], found '%s'", n - 1,
                            text);
    *out = (int)v;
    return 0;
}

/* A multiplier, deviation or weight. */
static int factor_of(const struct row *w, const char *text, double *out)
{
    if (num_f64(text, "number", 0, 1e6, out))
        return recipe_error(w->r, w->line, "expected a number in [0, 1e6], found '%s'", text);
    return 0;
}

/* The weight of the past in a running mean. */
static int beta_of(const struct row *w, const char *text, double *out)
{
    if (num_f64(text, "beta", 0, 1, out) || *out == 1)
        return recipe_error(w->r, w->line, "expected a beta in [0, 1), found '%s'", text);
    return 0;
}

static int param_of(const struct row *w, const char *label, int *out)
{
    *out = recipe_param(w->r, label);
    if (*out < 0)
        return recipe_error(w->r, w->line, "'%s' is no parameter", label);
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
    int64_t unit = n && strchr("dfvhebps", text[n - 1]) ? recipe_size(r, text[n - 1]) : 0,
            times = 1;
    char head[32];
    if (n && (text[n - 1] == 'b' || text[n - 1] == 's') && !unit)
        return recipe_error(r, w->line, "'%s': there is no model.bigram_%s", text,
                            text[n - 1] == 'b' ? "rows" : "signs");
    snprintf(head, sizeof head, "%.*s", (int)(unit ? n - 1 : n), text);
    if ((*head || !unit) && num_i64(head, "size", 1, 1 << 30, &times))
        return recipe_error(
            r, w->line, "expected a size such as 40, d, 4d, e, f, v, h, b, p, s; found '%s'", text);
    *out = unit ? unit * times : times;
    return 0;
}

static int shape_of(const struct row *w, char *text, struct param_spec *p)
{
    char *size[3];
    int64_t s[3];
    int n, rc = list_of(w, text, "sizes", 3, size, &n);
    for (int i = 0; i < n && !rc; i++)
        rc = size_of(w, size[i], &s[i]);
    if (rc)
        return rc;
    if (n < 2)
        return recipe_error(w->r, w->line, "a shape has two or three sizes");
    p->matrices = n == 3 ? s[0] : 1;
    p->rows = s[n - 2];
    p->cols = s[n - 1];
    if ((double)p->matrices * (double)p->rows * (double)p->cols > MAX_ELEMENTS)
        return recipe_error(w->r, w->line, "more than %g elements", MAX_ELEMENTS);
    return 0;
}

/* zero | uniform:S | normal:S | sign | one | values:LIST | transpose:LABEL, separated by commas. */
static int init_of(const struct row *w, char *text, struct param_spec *p)
{
    if (!strncmp(text, "values:", 7) || !strncmp(text, "transpose:", 10)) {
        p->n_init = 1;
        p->init[0].kind = *text == 'v' ? INIT_VALUES : INIT_TRANSPOSE;
        const char *arg = strchr(text, ':') + 1;
        if (strlen(arg) >= sizeof p->init_text)
            return recipe_error(w->r, w->line, "list of values longer than %zu characters",
                                sizeof p->init_text - 1);
        strcpy(p->init_text, arg);
        return 0;
    }
    char *item[MAX_CYCLE];
    int rc = list_of(w, text, "initial values", MAX_CYCLE, item, &p->n_init);
    for (int i = 0; i < p->n_init && !rc; i++) {
        const char *c = item[i];
        double v = 0;
        if (!strcmp(c, "zero")) {
            p->init[i].kind = INIT_ZERO;
        } else if (!strcmp(c, "one")) {
            p->init[i].kind = INIT_ONE;
        } else if (!strcmp(c, "sign")) {
            p->init[i].kind = INIT_SIGN;
            v = 1;
        } else if (!strncmp(c, "uniform:", 8) || !strncmp(c, "normal:", 7)) {
            p->init[i].kind = *c == 'u' ? INIT_UNIFORM : INIT_NORMAL;
            rc = factor_of(w, strchr(c, ':') + 1, &v);
        } else {
            rc = recipe_error(w->r, w->line,
                              "expected zero, uniform:S, normal:S, sign, one, values:LIST or "
                              "transpose:LABEL, found '%s'",
                              c);
        }
        p->init[i].value = (float)v;
    }
    return rc;
}

/* "a,b*n": a, then b for n matrices. */
static int lr_of(const struct row *w, char *text, struct param_spec *p)
{
    char *item[MAX_MULTIPLIERS];
    int n, rc = list_of(w, text, "multipliers", MAX_MULTIPLIERS, item, &n);
    p->n_lr = 0;
    for (int i = 0; i < n && !rc; i++) {
        char *star = strchr(item[i], '*');
        int64_t times = 1;
        double v = 0;
        if (star)
            *star++ = 0;
        if (star && num_i64(star, "repeat", 1, MAX_MULTIPLIERS, &times))
            return recipe_error(w->r, w->line, "expected a number from 1 to %d, found '%s'",
                                MAX_MULTIPLIERS, star);
        if (times > MAX_MULTIPLIERS - p->n_lr)
            return recipe_error(w->r, w->line, "expected 1 to %d multipliers", MAX_MULTIPLIERS);
        rc = factor_of(w, item[i], &v);
        while (!rc && times--)
            p->lr_mul[p->n_lr++] = (float)v;
    }
    if (!rc && p->n_lr > 1 && (rule_is_adam(&p->rule) || p->matrices == 1))
        return recipe_error(w->r, w->line, "%s takes one multiplier, found %d",
                            rule_is_adam(&p->rule) ? "adam" : "one matrix", p->n_lr);
    return rc;
}

/* -- rows ------------------------------------------------------------------------------ */

/* The type of the weight; behind a '/' that of a copy: which an fp8 head reads, or all products. */
static int dtype_of(const struct row *w, const char *text, struct param_spec *p)
{
    static const char *const words[] = { "bf16",      "f32",      "f16",      "e4m3",
                                         "bf16/e4m3", "f32/e4m3", "f32/bf16", NULL };
    int i, rc = one_of(w, text, words, &i);
    if (rc)
        return rc;
    p->dtype = i == 1 || i == 5 ? DT_F32 : DT_BF16;
    p->stored = i == 2 ? DT_F16 : i == 3 ? DT_E4M3 : i == 6 ? DT_F32 : DT_NONE;
    p->codes = i == 4 || i == 5;
    return 0;
}

/* Leaves a column of the row empty. */
static int empty_column(struct row *w, int column)
{
    static char none[] = "-";
    char *row = recipe_row_with(w->line->value, column, none);
    if (!row)
        return err_memory();
    free(w->line->value);
    w->line->value = row;
    w->col[column] = none;
    return 0;
}

/* Finds the schedule that a column names; "-" is -1, the run's own. */
static int schedule_of(const struct row *w, const char *name, int *out)
{
    const struct recipe *r = w->r;
    for (*out = r->n_schedules - 1; *out >= 0 && strcmp(r->schedules[*out].name, name);)
        --*out;
    return *out >= 0 || !strcmp(name, "-")
               ? 0
               : recipe_error(r, w->line, "expected '-' or a line of [schedules], found '%s'",
                              name);
}

/* shape dtype init rule comms beta1 beta2 lr wd early schedule */
static int bind_param(struct row *w, int i)
{
    struct param_spec *p = &w->r->params[i];
    static const char *const comms[] = { "replicated", "sharded", "sparse", NULL };
    static const char *const bools[] = { "no", "yes", NULL };
    double wd;
    int com, early, rc;
    strcpy(p->label, w->line->key);
    if ((rc = shape_of(w, w->col[0], p)) || (rc = dtype_of(w, w->col[1], p)) ||
        (rc = init_of(w, w->col[2], p)) ||
        (rc = recipe_read_rule(w->r, w->line, w->col[3], &p->rule)) ||
        (rc = one_of(w, w->col[4], comms, &com)))
        return rc;
    p->comms = (enum comms)com;
    bool adam = rule_has_adam(&p->rule), kept = rule_reads_beta2(&p->rule);
    if (w->line->rule_set &&
        ((!adam && (rc = empty_column(w, 5))) || (!kept && (rc = empty_column(w, 6)))))
        return rc;
    if (!adam && strcmp(w->col[5], "-"))
        return recipe_error(w->r, w->line,
                            "beta1 of %s is the scheduled momentum: expected "
                            "'-', found '%s'",
                            w->col[3], w->col[5]);
    if (!kept && strcmp(w->col[6], "-"))
        return recipe_error(w->r, w->line, "%s has no beta2: expected '-', found '%s'", w->col[3],
                            w->col[6]);
    if ((rc = adam ? beta_of(w, w->col[5], &p->beta1) : 0) ||
        (rc = kept ? beta_of(w, w->col[6], &p->beta2) : 0) || (rc = lr_of(w, w->col[7], p)) ||
        (rc = factor_of(w, w->col[8], &wd)) || (rc = one_of(w, w->col[9], bools, &early)))
        return rc;
    if ((rc = schedule_of(w, w->col[10], &p->schedule)))
        return rc;
    p->wd_mul = (float)wd;
    p->early = early;
    /* Which rows a rank touches is known of this table alone. */
    if (p->comms == COMMS_SPARSE &&
        (strcmp(p->label, "bigram_embed") || !rule_is_adam(&p->rule) || !w->r->model.bigram.rows))
        return recipe_error(w->r, w->line,
                            "sparse is for bigram_embed, under adam, with "
                            "model.bigram_rows; found '%s'",
                            p->label);
    return 0;
}

int recipe_bind_params(struct recipe *r)
{
    int rc = bind_labelled(r, "parameters", 11, 1, bind_param, &r->n_params);
    return rc || r->n_params ? rc : recipe_error(r, NULL, "[parameters] is missing");
}

/* An index of the attention bank, or mlp:N. */
static int bank_of(const struct row *w, const char *text, struct layer_spec *l)
{
    bool spare = !strncmp(text, "mlp:", 4);
    l->bank = l->spare = -1;
    return index_of(w, spare ? text + 4 : text, 1 << 16, spare ? &l->spare : &l->bank);
}

/* "-", "64" or "64:0.12": channels of a head of q and k, and the scale of their scores. */
static int qk_of(const struct row *w, char *text, struct layer_spec *l)
{
    const struct recipe *r = w->r;
    char *colon = strchr(text, ':');
    int64_t dim = r->model.qk_dim;
    l->attn_scale = 0;
    if (colon)
        *colon++ = 0;
    if (strcmp(text, "-") && (num_i64(text, "width", 4, r->model.head_dim, &dim) || dim % 4))
        return recipe_error(r, w->line,
                            "expected '-', N or N:SCALE, N a multiple of 4 from 4 to head_dim, %d; "
                            "found '%s'",
                            r->model.head_dim, text);
    if (colon && num_f64(colon, "scale", 1e-6, 1e3, &l->attn_scale))
        return recipe_error(r, w->line, "expected a scale in [1e-6, 1e3], found '%s'", colon);
    l->qk_dim = (int)dim;
    return 0;
}

/* attention bank window key_offset value value_gate out_gate mlp qk */
static int bind_layer(struct row *w, int i)
{
    static const char *const kinds[] = { "none", "plain", "paired", NULL };
    static const char *const windows[] = { "short", "long", "-", NULL };
    static const char *const bools[] = { "no", "yes", NULL };
    struct layer_spec *l = &w->r->layers[i];
    int kind, window, offset, rc;
    if ((rc = one_of(w, w->col[0], kinds, &kind)) || (rc = bank_of(w, w->col[1], l)) ||
        (rc = one_of(w, w->col[2], windows, &window)) ||
        (rc = one_of(w, w->col[3], bools, &offset)) ||
        (rc = table_of(w, w->col[4], &l->value, &l->value_slot)) ||
        (rc = index_of(w, w->col[5], 1 << 16, &l->value_gate)) ||
        (rc = index_of(w, w->col[6], 1 << 16, &l->out_gate)) ||
        (rc = index_of(w, w->col[7], 1 << 16, &l->mlp)) || (rc = qk_of(w, w->col[8], l)))
        return rc;
    l->attention = (enum attention_kind)kind;
    if (kind == ATTN_NONE)
        l->spare = -1;
    l->long_window = window == 1;
    l->key_offset = offset;
    if (kind != ATTN_NONE && l->bank < 0 && l->spare < 0)
        return recipe_error(w->r, w->line, "attention needs a bank");
    if (l->value >= 0 && l->value_gate < 0)
        return recipe_error(w->r, w->line, "a value embedding needs a gate");
    return l->mlp < 0 ? recipe_error(w->r, w->line, "a layer needs an MLP") : 0;
}

int recipe_bind_layers(struct recipe *r)
{
    int rc = bind_numbered(r, "layers", 9, 1, bind_layer, MAX_LAYERS, &r->n_layers);
    return rc || r->n_layers ? rc : recipe_error(r, NULL, "[layers] is missing");
}

/* parameter first stride */
static int bind_scalar(struct row *w, int i)
{
    struct scalar_spec *s = &w->r->scalars[i];
    int rc;
    strcpy(s->name, w->line->key);
    if ((rc = param_of(w, w->col[0], &s->param)) ||
        (rc = index_of(w, w->col[1], 1 << 20, &s->first)) ||
        (rc = index_of(w, w->col[2], 1 << 16, &s->stride)))
        return rc;
    if (s->first < 0 || s->stride < 0)
        return recipe_error(w->r, w->line, "expected a first index and a stride, found '-'");
    return 0;
}

int recipe_bind_scalars(struct recipe *r)
{
    return bind_labelled(r, "scalars", 3, 0, bind_scalar, &r->n_scalars);
}

/* "-", "x0", "start", "layer:7", "table", "table:2" */
static int source_of(const struct row *w, char *text, struct token_term *t)
{
    if (!strcmp(text, "x0")) {
        t->source = SOURCE_X0;
        return 0;
    }
    if (!strcmp(text, "start")) {
        t->source = SOURCE_LAYER;
        t->from = -1;
        return 0;
    }
    if (!strncmp(text, "layer:", 6)) {
        t->source = SOURCE_LAYER;
        return index_of(w, text + 6, w->r->n_layers, &t->from);
    }
    int rc = table_of(w, text, &t->table, &t->slot);
    t->source = t->table < 0 ? SOURCE_NONE : SOURCE_TABLE;
    return rc;
}

/* "-": the stream of the layer that uses it; "x0"; "layer:3": that layer's output. */
static int made_of(const struct row *w, char *text, const struct token_term *t,
                   struct token_block *b)
{
    *b = (struct token_block){ .set = TOKENS_GIVEN, .at = -1 };
    if (!strcmp(text, "x0"))
        return 0;
    if (!strncmp(text, "layer:", 6)) {
        int rc = index_of(w, text + 6, w->r->n_layers, &b->at);
        b->at++;
        return rc;
    }
    if (strcmp(text, "-"))
        return recipe_error(w->r, w->line, "expected -|x0|layer:N, found '%s'", text);
    *b = (struct token_block){ .set = TOKENS_OWN, .at = t->layer };
    return 0;
}

/* Finds the MLP, or makes one more; the row's coefficients are the next of its outputs. */
static int add_to_block(const struct row *w, const struct token_block *b, struct token_term *t)
{
    struct recipe *r = w->r;
    int k = 0;
    while (k < r->token_coefs.n_blocks &&
           (r->token_coefs.block[k].set != b->set || r->token_coefs.block[k].at != b->at))
        k++;
    if (k == MAX_TOKEN_BLOCKS)
        return recipe_error(r, w->line, "more than %d places where coefficients are made",
                            MAX_TOKEN_BLOCKS);
    if (k == r->token_coefs.n_blocks) {
        r->token_coefs.block[k] = *b;
        r->token_coefs.block[k].index = recipe_token_blocks(r, b->set);
        r->token_coefs.n_blocks++;
    }
    t->block = k;
    t->first = r->token_coefs.block[k].n;
    r->token_coefs.block[k].n += t->parts;
    return 0;
}

/* A number of equal parts of the channels, or h: as many as heads. */
static int parts_of(const struct row *w, char *text, int *parts)
{
    if (!strcmp(text, "h")) {
        *parts = w->r->model.heads;
        return 0;
    }
    return index_of(w, text, 1 << 10, parts);
}

/* layer role source parts made: outputs of an MLP are counted in the order of the rows. */
static int bind_token_term(struct row *w, int i)
{
    static const char *const roles[] = { "stream", "value",        "residual",  "attn_lane0", "x0",
                                         "bigram", "residual_mlp", "mlp_lane0", "skip",       "xsa",
                                         "gate",   "dc1",          "dc2",       NULL };
    struct recipe *r = w->r;
    struct token_term *t = &r->token_coefs.term[i];
    struct token_block made;
    int role, parts = 0, rc;
    t->layer = r->n_layers;
    if ((strcmp(w->col[0], "end") && (rc = index_of(w, w->col[0], r->n_layers, &t->layer))) ||
        (rc = one_of(w, w->col[1], roles, &role)) || (rc = source_of(w, w->col[2], t)) ||
        (rc = parts_of(w, w->col[3], &parts)) || (rc = made_of(w, w->col[4], t, &made)))
        return rc;
    bool head = role >= TOKEN_XSA;
    t->role = (enum token_role)role;
    t->parts = parts;
    if (t->layer < 0 || parts < 1 || r->model.width % parts || r->model.heads % parts)
        return recipe_error(r, w->line, "expected a layer or 'end', and parts that divide %d heads",
                            r->model.heads);
    if (head && parts != r->model.heads)
        return recipe_error(r, w->line, "'%s' has a coefficient a head: expected h parts",
                            roles[role]);
    bool start = t->role == TOKEN_X0 && t->source == SOURCE_LAYER && t->from < 0;
    if (((t->source == SOURCE_NONE) != (t->role > TOKEN_VALUE) && !start) ||
        (t->role > TOKEN_VALUE && !head && parts > 1) ||
        (t->layer == r->n_layers && t->role != TOKEN_STREAM))
        return recipe_error(r, w->line,
                            "'stream' and 'value' take a source, the other roles '-' and one "
                            "part, or h, and 'x0' also 'start'; 'end' has the role 'stream' alone");
    if (made.at > t->layer)
        return recipe_error(r, w->line, "layer %d's output is not there", made.at - 1);
    return add_to_block(w, &made, t);
}

/* The parameters of a set's MLPs give the number of hidden channels and outputs. */
static int bind_token_set(struct recipe *r, enum token_set set, const char *first, const char *bias)
{
    int w1 = recipe_param(r, first), b2 = recipe_param(r, bias);
    if (!recipe_token_blocks(r, set))
        return 0;
    if (w1 < 0 || b2 < 0)
        return recipe_error(r, NULL, "parameters: [token_coefs] needs '%s' and '%s'", first, bias);
    r->token_coefs.hidden[set] = (int)r->params[w1].rows;
    r->token_coefs.width[set] = (int)r->params[b2].cols;
    return 0;
}

int recipe_bind_token_terms(struct recipe *r)
{
    int rc =
        bind_numbered(r, "token_coefs", 5, 1, bind_token_term, MAX_TOKEN_TERMS, &r->token_coefs.n);
    if (!rc)
        rc = bind_token_set(r, TOKENS_OWN, "mudd_w1", "mudd_b2");
    return rc ? rc : bind_token_set(r, TOKENS_GIVEN, "mudd_gate_w1", "mudd_gate_b2");
}

/* "0.25" or "0.25>0": a weight, fixed or running from first to last over the stage. */
static int running_of(const struct row *w, char *text, double *from, double *to)
{
    char *last = strchr(text, '>');
    if (last)
        *last++ = 0;
    int rc = factor_of(w, text, from);
    return rc ? rc : factor_of(w, last ? last : text, to);
}

static int mtp_of(const struct row *w, char *text, struct stage *s)
{
    char *item[MAX_MTP];
    int rc = list_of(w, text, "weights of predicted tokens", MAX_MTP, item, &s->n_mtp);
    for (int i = 0; i < s->n_mtp && !rc; i++)
        rc = running_of(w, item[i], &s->mtp_first[i], &s->mtp_last[i]);
    return rc;
}

/* The extension's multiplier is the floor, so its row has none. */
static int stage_lr(const struct row *w, bool extension, struct stage *s)
{
    bool none = !strcmp(w->col[3], "-");
    if (none != extension)
        return recipe_error(
            w->r, w->line, "learning rate: expected %s, found '%s'",
            extension ? "'-' in the last row, which lr_floor holds for" : "a number", w->col[3]);
    return none ? 0 : factor_of(w, w->col[3], &s->lr);
}

/* tokens window sequence lr mtp prefix */
static int bind_stage(struct row *w, int i)
{
    bool extension = !recipe_find_row(w->r, "stages", i + 1);
    struct stage *s = &w->r->stages[i];
    int64_t window, sequence;
    int rc;
    if (num_i64(w->col[0], "tokens", 1, INT64_C(1) << 40, &s->tokens) ||
        num_i64(w->col[1], "window", 1, 1 << 20, &window) ||
        num_i64(w->col[2], "sequence", 1, 1 << 30, &sequence))
        return recipe_error(w->r, w->line, "%s", err_message());
    s->window = (int)window;
    s->sequence = (int)sequence;
    rc = stage_lr(w, extension, s);
    if (!rc)
        rc = mtp_of(w, w->col[4], s);
    return rc || !strcmp(w->col[5], "-")
               ? rc
               : running_of(w, w->col[5], &s->prefix_first, &s->prefix_last);
}

int recipe_bind_stages(struct recipe *r)
{
    int rc = bind_numbered(r, "stages", 6, 1, bind_stage, MAX_STAGES, &r->n_stages);
    if (!rc && r->n_stages < 2)
        return recipe_error(r, NULL, "[stages] needs one row at least and the extension");
    return rc;
}

/* -- Adam's states ------------------------------------------------------------------------- */

static void state_master(struct param_spec *p, enum master m)
{
    static const enum dtype types[] = { DT_NONE, DT_F32, DT_U16, DT_U16, DT_F16 };
    p->master = recipe_stored(p) != DT_F32 ? types[m] : DT_NONE;
    p->truncate = m == MASTER_TRUNCATE;
}

static enum dtype state_dtype(const struct param_spec *p, enum dtype t)
{
    return t == DT_NONE ? recipe_stored(p) : t;
}

static int steps_of(const struct row *w, const char *text, int *out)
{
    int64_t n;
    if (num_i64(text, "steps", 1, MAX_PERIOD, &n))
        return recipe_error(w->r, w->line,
                            "expected '-' or a number of steps in [1, %d], found '%s'", MAX_PERIOD,
                            text);
    *out = (int)n;
    return 0;
}

/* The least common multiple of all numbers of steps. */
static int bind_period(struct recipe *r)
{
    r->optimizer.period = 1;
    for (int i = 0; i < r->n_params; i++) {
        int n = r->optimizer.period, every = r->params[i].every;
        while (n % every)
            n += r->optimizer.period;
        if (n > MAX_PERIOD)
            return recipe_error(r, recipe_find(r, "states", r->params[i].label),
                                "all parameters begin anew together after %d steps, more than %d",
                                n, MAX_PERIOD);
        r->optimizer.period = n;
    }
    return 0;
}

/* master exp_avg exp_avg_sq rounding every; "-": as [precision] and adam_every say */
static int bind_state(struct row *w, int i)
{
    static const char *const masters[] = { "none", "f32", "nearest", "truncate", "f16", "-", NULL };
    static const char *const types[] = { "weight", "f32", "bf16", "f16", "e4m3", "-", NULL };
    static const char *const roundings[] = { "nearest", "stochastic", "-", NULL };
    static const enum dtype of[] = { DT_NONE, DT_F32, DT_BF16, DT_F16, DT_E4M3 };
    int param, master, m, v, rounding, rc;
    (void)i;
    if ((rc = param_of(w, w->line->key, &param)) || (rc = one_of(w, w->col[0], masters, &master)) ||
        (rc = one_of(w, w->col[1], types, &m)) || (rc = one_of(w, w->col[2], types, &v)) ||
        (rc = one_of(w, w->col[3], roundings, &rounding)))
        return rc;
    struct param_spec *p = &w->r->params[param];
    if (!rule_is_adam(&p->rule))
        return recipe_error(w->r, w->line, "'%s' is not under adam", p->label);
    if (master <= MASTER_F16 && master != MASTER_NONE && recipe_stored(p) == DT_F32)
        return recipe_error(w->r, w->line, "a master is for a narrower weight, and '%s' is in %s",
                            p->label, dtype_name(recipe_stored(p)));
    if (master <= MASTER_F16)
        state_master(p, (enum master)master);
    p->exp_avg = m < 5 ? state_dtype(p, of[m]) : p->exp_avg;
    p->exp_avg_sq = v < 5 ? state_dtype(p, of[v]) : p->exp_avg_sq;
    p->stochastic = rounding < 2 ? rounding : p->stochastic;
    return strcmp(w->col[4], "-") ? steps_of(w, w->col[4], &p->every) : 0;
}

int recipe_bind_states(struct recipe *r)
{
    int n = 0;
    for (int i = 0; i < r->n_params; i++) {
        struct param_spec *p = &r->params[i];
        p->every = rule_is_adam(&p->rule) ? r->optimizer.adam.every : 1;
        if (!rule_is_adam(&p->rule)) {
            p->exp_avg = p->exp_avg_sq = DT_F32;
            p->master = p->stored == DT_NONE || p->stored == DT_F32 ? DT_NONE : DT_F32;
            continue;
        }
        state_master(p, r->precision.adam.master);
        p->exp_avg = p->exp_avg_sq = state_dtype(p, r->precision.adam.states);
        p->stochastic = r->precision.adam.stochastic;
    }
    int rc = bind_labelled(r, "states", 5, 1, bind_state, &n);
    for (int i = 0; i < r->n_params && !rc; i++)
        if (r->params[i].stored != DT_NONE && r->params[i].master == DT_U16)
            rc = recipe_error(
                r, recipe_find(r, "parameters", r->params[i].label),
                "low halves are for a bf16 weight: this one takes a master in f32, f16 "
                "or none");
    return rc ? rc : bind_period(r);
}
