/* check.c - can the model run a recipe? It has the parameters and scalars of role_list.h, of
 * fitting shapes, and a layer map that stays inside of them.
 */
#include "recipe/text.h"

#include <string.h>
#include "base/suggest.h"
#include "recipe/initial.h"

enum when {
    ALWAYS,
    NEVER,
    WITH_BACKOUT,
    WITH_SKIP,
    WITH_SKIP_GATE,
    WITH_BIGRAMS,
    WITH_LANES,
    WITH_POST,
    WITH_FOLD,
    WITH_AFTER,
    WITH_X0,
    WITH_SMEAR,
    WITH_GATES,
    WITH_VALUES
};
static const struct param_role {
    const char *label;
    int times;
    const char *rows, *cols;
    bool added;
    enum when needed;
} param_roles[] = {
#define PARAM_ROLE(label, ...) { #label, __VA_ARGS__ },
#include "recipe/role_list.h"
};
enum param_role_index {
#define PARAM_ROLE(label, ...) ROLE_##label,
#include "recipe/role_list.h"
    N_PARAM_ROLES
};

static const struct scalar_role {
    const char *name;
    int count;
    enum when needed;
} scalar_roles[] = {
#define SCALAR_ROLE(name, ...) { #name, __VA_ARGS__ },
#include "recipe/role_list.h"
};
enum { N_SCALAR_ROLES = sizeof scalar_roles / sizeof *scalar_roles };

/* -- labels -------------------------------------------------------------------------- */

/* A parameter may have any label, which [layers] can name: it is wrong if it is near to the label
 * of a role that has no row, or in --set, which is meant to change one, to that of any role. */
int recipe_check_label(const struct recipe *r, const struct recipe_line *l)
{
    bool scalar = !strcmp(l->section, "scalars");
    int n = scalar ? N_SCALAR_ROLES : N_PARAM_ROLES;
    struct suggest s = suggest_for(l->key);
    for (int i = 0; i < n; i++) {
        const char *role = scalar ? scalar_roles[i].name : param_roles[i].label;
        if (!strcmp(role, l->key))
            return 0;
        if (!l->number || !recipe_find(r, l->section, role))
            suggest_try(&s, role);
    }
    if (scalar)
        return recipe_error(r, l, "the model has no scalar of this name%s", suggest_text(&s));
    return s.best ? recipe_error(r, l, "the model has no such parameter%s", suggest_text(&s)) : 0;
}

/* -- parameters ------------------------------------------------------------------------ */

int64_t recipe_size(const struct recipe *r, char letter)
{
    switch (letter) {
    case 'd': return r->model.width;
    case 'f': return r->model.mlp_width;
    case 'v': return r->model.vocab;
    case 'h': return r->model.heads;
    case 'b': return r->model.bigram.rows;
    case 'g': return GATE_WIDTH;
    case 'e': return r->model.qk_dim;
    case 'p': return r->model.bigram.width;
    case 's': return r->model.bigram.signs;
    case 'x': return r->model.xsa ? r->n_layers : 0;
    case 'a': return recipe_split_attn(r) || recipe_own_attn(r) ? 0 : r->model.width;
    case 'q': return recipe_split_attn(r) ? (int64_t)r->model.heads * r->model.qk_dim : 0;
    case 'y': return recipe_split_attn(r) ? r->model.width : 0;
    case 'j': return recipe_own_attn(r) ? (int64_t)r->model.heads * r->model.qk_dim : 0;
    case 'i': return recipe_own_attn(r) ? r->model.width : 0;
    case 'm': return recipe_own_mlp(r) ? 0 : r->model.mlp_width;
    case 'n': return recipe_own_mlp(r) ? r->model.mlp_width : 0;
    case 'k': return recipe_own_mlp(r) ? r->model.width : 0;
    case 'l': return r->n_layers;
    case 't': return r->token_coefs.hidden[TOKENS_OWN];
    case 'c': return r->token_coefs.width[TOKENS_OWN];
    case 'r': return r->token_coefs.hidden[TOKENS_GIVEN];
    case 'z': return r->token_coefs.width[TOKENS_GIVEN];
    case 'w': return r->model.gate_table;
    case 'u': return GATE_WIDTH + r->model.gate_table;
    default: return 1;
    }
}

/* "4d", "v", "1"; 0: of a table that the recipe has not. */
static int64_t size_of(const struct recipe *r, const char *size)
{
    int64_t times = *size >= '1' && *size <= '9' ? *size++ - '0' : 1;
    return times * recipe_size(r, *size);
}

/* Returns how many matrices of q or k a layer has in a role's parameter. */
static int matrices_of_qk(const struct param_role *role)
{
    return !strcmp(role->rows, "2q") ? 2 : !strcmp(role->rows, "j");
}

/* Returns the rows of a role's parameter, less those that some layers' q and k have more than the model's width
 * of them (negative: fewer), so that each index stands for as many. */
static int64_t rows_alike(const struct recipe *r, const struct param_role *role,
                          const struct param_spec *p)
{
    return p->matrices * p->rows - matrices_of_qk(role) * recipe_qk_extra(r, INT64_MAX);
}

/* Returns how often a role's parameter has the rows of the role; 0: the recipe has none. */
static int64_t multiple(const struct recipe *r, const struct param_role *role)
{
    int i = recipe_param(r, role->label);
    return i < 0 || !size_of(r, role->rows)
               ? 0
               : rows_alike(r, role, &r->params[i]) / size_of(r, role->rows);
}

/* True if x0 or the bigrams join some layer's stream with a number that no row of [token_coefs] makes. */
static bool joins_by_scalar(const struct recipe *r, enum token_role role)
{
    bool some = false;
    for (int i = 0; i < r->n_layers; i++)
        some |= (r->layers[i].attention != ATTN_NONE || r->model.inject_bare) &&
                !recipe_token_role(r, i, role);
    return some;
}

/* True if the model needs what a row of role_list.h has `when` for. */
static bool needed(const struct recipe *r, enum when when)
{
    bool lanes = r->model.lanes >= 0, gates = false, values = false;
    for (int i = 0; i < r->n_layers; i++) {
        gates |= r->layers[i].attention != ATTN_NONE && r->layers[i].out_gate >= 0;
        values |= r->layers[i].value >= 0;
    }
    switch (when) {
    case ALWAYS: return true;
    case NEVER: return false;
    case WITH_BACKOUT: return r->model.backout >= 0;
    case WITH_SKIP: return r->model.skip.to >= 0;
    case WITH_SKIP_GATE:
        return r->model.skip.to >= 0 && !recipe_token_role(r, r->model.skip.to, TOKEN_SKIP);
    case WITH_BIGRAMS: return r->model.bigram.rows > 0 && joins_by_scalar(r, TOKEN_BIGRAM);
    case WITH_LANES: return lanes;
    case WITH_POST: return lanes || r->model.post_single;
    case WITH_FOLD: return lanes || r->model.fold_mlp;
    case WITH_AFTER: return r->model.inject == INJECT_AFTER;
    case WITH_X0: return r->model.inject == INJECT_AFTER && joins_by_scalar(r, TOKEN_X0);
    case WITH_SMEAR: return recipe_param(r, "smear_gate") >= 0 || recipe_scalar(r, "smear") != NULL;
    case WITH_GATES: return gates;
    case WITH_VALUES: return values;
    }
    return false;
}

static int check_param_role(const struct recipe *r, const struct param_role *role, bool *read)
{
    int64_t unit = size_of(r, role->rows), cols = size_of(r, role->cols);
    int i = recipe_param(r, role->label);
    if (!unit || !cols)
        return 0;
    if (i < 0)
        return needed(r, role->needed)
                   ? recipe_error(r, NULL, "parameters: the model needs '%s'", role->label)
                   : 0;
    const struct param_spec *p = &r->params[i];
    int64_t rows = p->matrices * p->rows, alike = rows_alike(r, role, p);
    if (rows != alike && (alike < 0 || alike % unit))
        return recipe_error(r, recipe_find(r, "parameters", role->label),
                            "layers' widths of q and k differ: expected %lld rows, or a multiple "
                            "of %lld more, found %lld",
                            (long long)(unit * recipe_indices(r) + rows - alike), (long long)unit,
                            (long long)rows);
    for (int k = 0; k < r->n_layers && recipe_narrow(r); k++) {
        int64_t own = matrices_of_qk(role) * recipe_qk_rows(r, k);
        if (r->layers[k].attention != ATTN_NONE && own % p->rows)
            return recipe_error(r, recipe_find(r, "parameters", role->label),
                                "layer %d has %lld rows of it: expected matrices of so many, or of "
                                "a divisor, found %lld",
                                k, (long long)own, (long long)p->rows);
    }
    if (p->cols != cols || alike % unit || (role->times && rows != role->times * unit))
        return recipe_error(r, recipe_find(r, "parameters", role->label),
                            "expected %s%lld rows of %lld, found %lld of %lld",
                            role->times ? "" : "a multiple of ", (long long)unit, (long long)cols,
                            (long long)rows, (long long)p->cols);
    if (role->added && p->comms != COMMS_REPLICATED)
        return recipe_error(r, recipe_find(r, "parameters", role->label), "it must be replicated");
    read[i] = true;
    return 0;
}

/* An initial value that is another's transpose, and what the optimizer's rules ask for. */
static int check_param(const struct recipe *r, const struct param_spec *p)
{
    const struct recipe_line *e = recipe_find(r, "parameters", p->label);
    const struct stage_use *whole = rule_of_matrices(&p->rule);
    if (whole && p->matrices == 1)
        return recipe_error(r, e,
                            "%s is for banks, by its stage %s: expected a shape matrices,rows,cols",
                            p->rule.name, stage_rows[whole->id].word);
    for (int k = 0; k < p->n_init && rule_stage(&p->rule, STAGE_hyperball); k++)
        if (p->init[k].kind == INIT_ZERO)
            return recipe_error(r, e,
                                "hyperball of %s keeps the norm that the weight starts with, which "
                                "must not be 0: expected no 'zero' in the column init",
                                p->rule.name);
    if (p->init[0].kind == INIT_VALUES && initial_values(p, NULL))
        return recipe_error(r, e, "%s", err_message());
    if (p->init[0].kind != INIT_TRANSPOSE)
        return 0;
    int from = recipe_param(r, p->init_text);
    if (from < 0)
        return recipe_error(r, e, "'%s' is no parameter", p->init_text);
    const struct param_spec *s = &r->params[from];
    if (s->matrices * p->matrices == 1 && s->rows == p->cols && s->cols == p->rows &&
        s->dtype == p->dtype && p->stored != DT_F32 && s->init[0].kind != INIT_TRANSPOSE)
        return 0;
    return recipe_error(r, e,
                        "initial values: '%s' has not the transposed shape or the same "
                        "type, or is a transpose itself",
                        s->label);
}

/* Q, K and V of a layer are put together, and their gradients cleared together. */
static int check_together(const struct recipe *r, const char *first, const char *other, bool bank)
{
    int i = recipe_param(r, first), k = recipe_param(r, other);
    const struct param_spec *p = &r->params[i < 0 ? 0 : i], *q = &r->params[k < 0 ? 0 : k];
    if (i < 0 || k < 0 ||
        ((!bank || (p->dtype == q->dtype && recipe_gradient(r, p) == recipe_gradient(r, q))) &&
         p->every == q->every))
        return 0;
    return recipe_error(r, recipe_find(r, "parameters", other), "expected the %s of '%s'",
                        bank ? "types and steps" : "steps", first);
}

static int check_split_attn(const struct recipe *r)
{
    int qk = recipe_param(r, "qk_bank"), vo = recipe_param(r, "vo_bank");
    int rc = check_together(r, "q_bank", "k_bank", true);
    if (!rc)
        rc = check_together(r, "q_bank", "v_bank", true);
    if (!rc)
        rc = check_together(r, "q_bank", "o_bank", true);
    if (!rc)
        rc = check_together(r, "q_bank", "qkv_bias", false);
    if (!rc)
        rc = check_together(r, "up_bank", "down_bank", true);
    if (rc || qk < 0 || vo < 0)
        return rc;
    const struct param_spec *p = &r->params[qk], *q = &r->params[vo];
    if (p->dtype == q->dtype && !strcmp(p->rule.name, q->rule.name) && p->every == q->every)
        return 0;
    return recipe_error(r, recipe_find(r, "parameters", "vo_bank"),
                        "expected the type, rule and steps of 'qk_bank'");
}

static int check_params(const struct recipe *r, bool *read)
{
    int rc = check_split_attn(r);
    for (int i = 0; i < N_PARAM_ROLES && !rc; i++)
        rc = check_param_role(r, &param_roles[i], read);
    for (int i = 0; i < r->n_params && !rc; i++)
        rc = check_param(r, &r->params[i]);
    return rc;
}

/* -- scalars --------------------------------------------------------------------------- */

static const struct scalar_role *scalar_role(const char *name)
{
    for (int i = 0; i < N_SCALAR_ROLES; i++)
        if (!strcmp(scalar_roles[i].name, name))
            return &scalar_roles[i];
    return NULL;
}

static int check_scalar(const struct recipe *r, const struct scalar_spec *s, bool *read)
{
    const struct recipe_line *e = recipe_find(r, "scalars", s->name);
    const struct scalar_role *role = scalar_role(s->name);
    const struct param_spec *p = &r->params[s->param];
    if (!role)
        return recipe_error(r, e, "the model has no scalar of this name");
    int64_t last = s->first + (role->count > 1 ? r->n_layers - 1 : 0) * (int64_t)s->stride;
    if (last >= p->matrices * p->rows * p->cols)
        return recipe_error(r, e, "needs elements up to %lld, '%s' has %lld", (long long)last,
                            p->label, (long long)(p->matrices * p->rows * p->cols));
    if (p->dtype != DT_F32 || p->comms != COMMS_REPLICATED)
        return recipe_error(r, e, "'%s' must be f32 and replicated", p->label);
    read[s->param] = true;
    return 0;
}

static int check_scalars(const struct recipe *r, bool *read)
{
    int rc = 0;
    for (int i = 0; i < N_SCALAR_ROLES; i++)
        if (needed(r, scalar_roles[i].needed) && !recipe_scalar(r, scalar_roles[i].name))
            return recipe_error(r, NULL, "scalars: the model needs '%s'", scalar_roles[i].name);
    for (int i = 0; i < r->n_scalars && !rc; i++)
        rc = check_scalar(r, &r->scalars[i], read);
    return rc;
}

/* -- the layer map --------------------------------------------------------------------- */

/* Layers before i that have the same matrices, which only one may write the gradient of. */
static int check_own(const struct recipe *r, int i)
{
    const struct layer_spec *l = &r->layers[i];
    for (int k = 0; k < i; k++) {
        const struct layer_spec *other = &r->layers[k];
        bool both = l->attention != ATTN_NONE && other->attention != ATTN_NONE;
        if (l->mlp == other->mlp || (both && l->bank >= 0 && l->bank == other->bank))
            return recipe_error(r, recipe_find_row(r, "layers", i), "layer %d has the same %s", k,
                                l->mlp == other->mlp ? "MLP" : "attention bank");
    }
    return 0;
}

/* Attention in a spare matrix of the MLP bank, which no layer else may have. */
static int check_spare(const struct recipe *r, int i)
{
    const struct layer_spec *l = &r->layers[i];
    const struct recipe_line *e = recipe_find_row(r, "layers", i);
    if (l->attention == ATTN_NONE || l->spare < 0)
        return 0;
    if (r->model.mlp_width != 4 * r->model.width)
        return recipe_error(r, e,
                            "a matrix of 'mlp' is four of attention where mlp_width is %d, 4 d; "
                            "found %d",
                            4 * r->model.width, r->model.mlp_width);
    if (l->spare >= 2 * multiple(r, &param_roles[ROLE_mlp]))
        return recipe_error(r, e, "matrix %d is outside 'mlp'", l->spare);
    for (int k = 0; k < r->n_layers; k++) {
        const struct layer_spec *other = &r->layers[k];
        if (other->mlp == l->spare / 2 ||
            (k != i && other->attention != ATTN_NONE && other->spare == l->spare))
            return recipe_error(r, e, "layer %d has the same matrix of 'mlp'", k);
    }
    return 0;
}

/* Table `slot` of a parameter, which the line e names. */
static int check_value(const struct recipe *r, const struct recipe_line *e, int param, int slot,
                       bool *read)
{
    const struct param_spec *p = &r->params[param];
    int64_t rows = p->matrices * p->rows;
    int readers = 0;
    if (p->cols != r->model.width || rows % r->model.vocab || slot >= rows / r->model.vocab)
        return recipe_error(r, e, "table %d of '%s' needs %lld rows of %d, found %lld of %lld",
                            slot, p->label, (slot + 1LL) * r->model.vocab, r->model.width,
                            (long long)rows, (long long)p->cols);
    for (int k = 0; k < N_PARAM_ROLES; k++)
        if (!strcmp(p->label, param_roles[k].label))
            return recipe_error(r, e, "'%s' has another role", p->label);
    for (int k = 0; k <= r->n_layers; k++)
        readers += recipe_reads_table(r, k, param, slot);
    if (readers > 2)
        return recipe_error(r, e, "more than two layers read table %d of '%s'", slot, p->label);
    read[param] = true;
    return 0;
}

/* Returns the role of attention's bank: one of those, where Q, K, V and O are in two banks or in four. */
static int attention_role(const struct recipe *r, int split, int own)
{
    return recipe_own_attn(r) ? own : recipe_split_attn(r) ? split : ROLE_attn;
}

static int check_layer(const struct recipe *r, int i, bool *read)
{
    const struct layer_spec *l = &r->layers[i];
    const struct {
        const char *what;
        int64_t index;
        int role;
    } use[] = {
        { "attention bank", l->bank, attention_role(r, ROLE_qk_bank, ROLE_q_bank) },
        { "attention bank", l->bank, attention_role(r, ROLE_vo_bank, ROLE_k_bank) },
        { "attention bank", l->bank, attention_role(r, ROLE_vo_bank, ROLE_v_bank) },
        { "attention bank", l->bank, attention_role(r, ROLE_vo_bank, ROLE_o_bank) },
        { "MLP", l->mlp, recipe_own_mlp(r) ? ROLE_up_bank : ROLE_mlp },
        { "MLP", l->mlp, recipe_own_mlp(r) ? ROLE_down_bank : ROLE_mlp },
        { "output gate", l->out_gate, ROLE_attn_gate_bank },
        { "value gate", l->value_gate, ROLE_ve_gate_bank },
    };
    for (size_t k = 0; k < sizeof use / sizeof *use; k++)
        if (use[k].index >= 0 && use[k].index >= multiple(r, &param_roles[use[k].role]))
            return recipe_error(r, recipe_find_row(r, "layers", i), "%s %lld is outside '%s'",
                                use[k].what, (long long)use[k].index,
                                param_roles[use[k].role].label);
    if (l->attention == ATTN_PAIRED && r->model.heads % 2)
        return recipe_error(r, recipe_find_row(r, "layers", i),
                            "paired heads need an even number, found %d", r->model.heads);
    if (l->attention == ATTN_NONE &&
        (l->value >= 0 || (r->model.lanes >= 0 && i >= r->model.lanes)))
        return recipe_error(r, recipe_find_row(r, "layers", i), "%s needs attention",
                            l->value >= 0 ? "a value embedding" : "a layer of two lanes");
    if (l->out_gate >= 0 && recipe_param(r, "attn_gain") >= 0)
        return recipe_error(
            r, recipe_find_row(r, "layers", i),
            "a gate reads the norm without a gain: expected '-', or no 'attn_gain'");
    if (r->model.rope_halves && l->attention != ATTN_NONE &&
        (l->key_offset || l->spare >= 0 || !(recipe_own_attn(r) || recipe_split_attn(r))))
        return recipe_error(
            r, recipe_find_row(r, "layers", i),
            "rope_pairs = halves: expected q_bank, k_bank and v_bank, or qk_bank and "
            "vo_bank, and no key offset");
    if (l->attention != ATTN_NONE && l->qk_dim != r->model.head_dim &&
        (l->spare >= 0 || !(recipe_own_attn(r) || recipe_split_attn(r)) ||
         recipe_param(r, "qkv_bias") >= 0))
        return recipe_error(r, recipe_find_row(r, "layers", i),
                            "heads of q and k narrower than head_dim: expected qk_bank and "
                            "vo_bank, or q_bank, k_bank, v_bank and o_bank, and no 'qkv_bias'");
    if (l->attention != ATTN_NONE && l->qk_dim < r->model.rope_dim)
        return recipe_error(r, recipe_find_row(r, "layers", i),
                            "rope_dim says that %d channels of a head of q and k turn, and it has "
                            "%d",
                            r->model.rope_dim, l->qk_dim);
    if (l->attention != ATTN_NONE && r->model.rope_halves && l->qk_dim != 2 * r->model.rope_dim)
        return recipe_error(r, recipe_find_row(r, "layers", i),
                            "rope_pairs = halves: expected rope_dim to be half of the %d channels "
                            "of a head of q and k, found %d",
                            l->qk_dim, r->model.rope_dim);
    if (r->model.xsa && l->attention == ATTN_PLAIN && l->out_gate < 0)
        return recipe_error(r, recipe_find_row(r, "layers", i),
                            "exclusive attention needs an output gate");
    int rc = check_own(r, i);
    if (!rc)
        rc = check_spare(r, i);
    return rc || l->value < 0
               ? rc
               : check_value(r, recipe_find_row(r, "layers", i), l->value, l->value_slot, read);
}

/* Gradients of tables are written by those that read them. */
static int check_slots(const struct recipe *r)
{
    for (int param = 0; param < r->n_params; param++) {
        const struct param_spec *p = &r->params[param];
        int64_t tables = recipe_reads(r, param) ? p->matrices * p->rows / r->model.vocab : 0;
        for (int s = 0; s < tables; s++) {
            bool read = false;
            for (int k = 0; k <= r->n_layers; k++)
                read |= recipe_reads_table(r, k, param, s);
            if (!read)
                return recipe_error(r, recipe_find(r, "parameters", p->label),
                                    "no layer reads table %d of it", s);
        }
    }
    return 0;
}

static int check_taps(const struct recipe *r)
{
    if (r->model.skip.from >= r->n_layers || r->model.skip.to >= r->n_layers ||
        r->model.backout >= r->n_layers || r->model.lanes >= r->n_layers)
        return recipe_error(r, NULL, "model.skip, backout and lanes name layers below %d",
                            r->n_layers);
    if (r->model.skip.to < 0 && r->model.skip.from < 0)
        return 0;
    if (r->model.skip.from < 0 || r->model.skip.to <= r->model.skip.from + 1 ||
        r->model.skip.to == r->model.backout + 1 ||
        (r->model.skip.tap == SKIP_ATTENTION &&
         r->layers[r->model.skip.from].attention == ATTN_NONE))
        return recipe_error(r, recipe_find(r, "model", "skip"), "layer %d cannot receive layer %d",
                            r->model.skip.to, r->model.skip.from);
    return 0;
}

/* -- coefficients of tokens ------------------------------------------------------------- */

/* True if layer i has what a coefficient of that role is for. */
static bool has_place(const struct recipe *r, int i, enum token_role role)
{
    enum attention_kind kind = r->layers[i].attention;
    switch (role) {
    case TOKEN_SKIP: return i == r->model.skip.to;
    case TOKEN_X0: return kind != ATTN_NONE || r->model.inject_bare;
    case TOKEN_BIGRAM:
        return r->model.bigram.rows && (kind != ATTN_NONE || r->model.inject_bare) &&
               (i > 0 || !r->model.bigram.in_x0);
    case TOKEN_XSA: return kind == ATTN_PLAIN && !r->model.xsa;
    case TOKEN_GATE: return kind == ATTN_PLAIN && r->layers[i].out_gate < 0 && !r->model.xsa;
    case TOKEN_DC1:
    case TOKEN_DC2:
        return kind == ATTN_PLAIN && r->layers[i].out_gate < 0 && !r->model.xsa &&
               r->model.compose_window && recipe_token_role(r, i, TOKEN_DC1) &&
               recipe_token_role(r, i, TOKEN_DC2);
    default: return kind == ATTN_PLAIN && i > 0;
    }
}

/* Where the stream and its terms are what [token_coefs] takes them for. */
static bool token_layer(const struct recipe *r, const struct token_term *t)
{
    const struct token_block *b = &r->token_coefs.block[t->block];
    if (r->model.inject != INJECT_AFTER || r->model.lanes >= 0 || r->model.fold_mlp ||
        (b->at < 0 && r->model.bigram.in_x0))
        return false;
    if (t->layer == r->n_layers)
        return true;
    return has_place(r, t->layer, t->role) &&
           (b->set != TOKENS_OWN || r->layers[t->layer].attention == ATTN_PLAIN) &&
           (b->set != TOKENS_OWN || t->layer > 0) &&
           (t->source != SOURCE_TABLE || r->layers[t->layer].value < 0);
}

static int check_token_term(const struct recipe *r, int i, bool *read)
{
    const struct token_term *t = &r->token_coefs.term[i];
    const struct recipe_line *e = recipe_find_row(r, "token_coefs", i);
    int same = 0, sources = 0;

    if (!token_layer(r, t))
        return recipe_error(r, e,
                            "expected a layer of plain attention after layer 0, without a table of "
                            "its own, in a model of one lane with inject = after, fold_mlp = no");
    if (t->source == SOURCE_LAYER && t->layer == r->n_layers && t->from >= 0 &&
        t->from == r->model.backout)
        return recipe_error(r, e, "layer %d is the backout, a term of the same sum", t->from);
    if (t->source == SOURCE_LAYER &&
        (t->from >= t->layer || t->layer == 0 || (t->from >= 0 && r->model.skip.to == t->from + 1)))
        return recipe_error(r, e, "layer %d's output is not there", t->from);
    for (int k = 0; k < r->token_coefs.n; k++) {
        const struct token_term *o = &r->token_coefs.term[k];
        bool both = o->layer == t->layer && o->role == t->role;
        same += both && o->source == t->source && (t->source != SOURCE_LAYER || o->from == t->from);
        sources += both && t->role <= TOKEN_VALUE ? o->parts : 0;
        same += k != i && o->layer == t->layer && o->source == SOURCE_TABLE &&
                t->source == SOURCE_TABLE;
    }
    if (same > 1 || sources > MAX_SOURCES)
        return recipe_error(
            r, e, "a layer has each term once, one table, and %d sources in a place", MAX_SOURCES);
    enum token_set set = r->token_coefs.block[t->block].set;
    if (t->first + t->parts > r->token_coefs.width[set])
        return recipe_error(r, e, "more coefficients than the %d of '%s'",
                            r->token_coefs.width[set], set ? "mudd_gate_b2" : "mudd_b2");
    return t->source == SOURCE_TABLE ? check_value(r, e, t->table, t->slot, read) : 0;
}

/* True if the parameters of a set of MLPs have as many matrices as it has MLPs. */
static bool has_matrices(const struct recipe *r, enum token_set set)
{
    static const int of[N_TOKEN_SETS][3] = { { ROLE_mudd_w1, ROLE_mudd_w2, ROLE_mudd_b2 },
                                             { ROLE_mudd_gate_w1, ROLE_mudd_gate_w2,
                                               ROLE_mudd_gate_b2 } };
    bool ok = true;
    for (int k = 0; k < 3; k++)
        ok &= !recipe_token_blocks(r, set) ||
              multiple(r, &param_roles[of[set][k]]) >= recipe_token_blocks(r, set);
    return ok;
}

static int check_token_terms(const struct recipe *r, bool *read)
{
    int rc = 0;

    for (int i = 0; i < r->token_coefs.n && !rc; i++)
        rc = check_token_term(r, i, read);
    if (!rc && !has_matrices(r, TOKENS_OWN))
        rc = recipe_error(r, NULL,
                          "[token_coefs] has terms of %d layers: 'mudd_w1', 'mudd_w2' and "
                          "'mudd_b2' need as many matrices",
                          recipe_token_blocks(r, TOKENS_OWN));
    if (!rc && !has_matrices(r, TOKENS_GIVEN))
        rc = recipe_error(r, NULL,
                          "[token_coefs] has terms made in %d places: 'mudd_gate_w1', "
                          "'mudd_gate_w2' and 'mudd_gate_b2' need as many matrices",
                          recipe_token_blocks(r, TOKENS_GIVEN));
    return rc;
}

/* Attention that reads what an earlier layer's does. */
static int check_attend_as(const struct recipe *r)
{
    bool ok = r->model.attend_as < r->n_layers && r->model.attend_as != 0 &&
              (r->model.attend_as < 0 ||
               (r->model.inject == INJECT_AFTER && r->model.skip.to != r->model.attend_as));

    for (int i = r->model.attend_as; ok && i >= 0 && i < r->n_layers; i++)
        ok = r->layers[i].attention != ATTN_NONE &&
             (i > r->model.attend_as || !recipe_token_role(r, i, TOKEN_STREAM));
    return ok ? 0
              : recipe_error(
                    r, recipe_find(r, "model", "attend_as"),
                    "expected -1, or with inject = after a layer in [1, %d], which receives "
                    "no skip or term before its attention and has attention as all after it",
                    r->n_layers - 1);
}

static int check_layers(const struct recipe *r, bool *read)
{
    int rc = check_taps(r);
    if (!rc && recipe_param(r, "smear_gate") >= 0 && recipe_param(r, "embed_gain") >= 0)
        rc = recipe_error(r, recipe_find(r, "parameters", "embed_gain"),
                          "the smear's norm has no gain: expected no 'smear_gate'");
    for (int i = 0; i < r->n_layers && !rc; i++)
        rc = check_layer(r, i, read);
    if (!rc && r->model.lanes >= 0 && r->model.bigram.rows &&
        r->model.bigram.width < r->model.width)
        rc = recipe_error(r, recipe_find(r, "model", "bigram_width"), "two lanes take rows of %d",
                          r->model.width);
    if (rc || (rc = check_attend_as(r)) || (rc = check_token_terms(r, read)))
        return rc;
    return check_slots(r);
}

/* Only what the forward waits for may be gathered late. */
static int check_late(const struct recipe *r)
{
    static const char *const waits[] = { "attn",         "qk_bank",   "vo_bank", "q_bank",
                                         "k_bank",       "v_bank",    "o_bank",  "mlp",
                                         "up_bank",      "down_bank", "lm_head", "embed",
                                         "bigram_embed", "gate_table" };
    for (int k = 0; k < r->order.n_late; k++) {
        const char *label = r->params[r->order.late[k]].label;
        bool ok = false;
        for (size_t i = 0; i < sizeof waits / sizeof *waits; i++)
            ok |= !strcmp(waits[i], label);
        ok |= recipe_reads(r, r->order.late[k]);
        if (!ok)
            return recipe_error(r, recipe_find(r, "order", "late"),
                                "the forward does not wait for "
                                "'%s': expected a bank of matrices, lm_head, embed, bigram_embed, "
                                "gate_table or value embeddings",
                                label);
    }
    return 0;
}

int recipe_check(const struct recipe *r)
{
    bool read[MAX_PARAMS] = { false };
    int rc;
    if (r->model.width < GATE_WIDTH)
        return recipe_error(r, NULL,
                            "model: heads times head_dim is %d; gates look at %d "
                            "channels",
                            r->model.width, GATE_WIDTH);
    if (r->model.gate_table && (r->model.gate_table % 8 || r->model.heads > GATE_WIDTH ||
                                r->model.value_input != VALUE_INPUT))
        return recipe_error(r, recipe_find(r, "model", "gate_table"),
                            "expected a multiple of 8, %d heads at most and value_input = input, "
                            "found %d and %d heads",
                            GATE_WIDTH, r->model.gate_table, r->model.heads);
    if ((rc = check_params(r, read)) || (rc = check_scalars(r, read)) ||
        (rc = check_layers(r, read)) || (rc = check_late(r)))
        return rc;
    for (int i = 0; i < r->n_params; i++)
        if (!read[i])
            return recipe_error(r, recipe_find(r, "parameters", r->params[i].label),
                                "nothing in the model reads it");
    return 0;
}
