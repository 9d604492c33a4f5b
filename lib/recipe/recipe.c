/* recipe.c - the lines of a recipe: parsing, overrides, look-up; the functions of recipe.h. */
#include "recipe/text.h"

#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/file.h"
#include "base/grow.h"
#include "base/hash.h"
#include "base/suggest.h"
#include "base/zio.h"
#include "recipe/named.h"

enum { RECIPE_MAX = 1 << 20 }; /* bytes of text */

static bool is_table(const char *section)
{
    return !strcmp(section, "layers") || !strcmp(section, "parameters") ||
           !strcmp(section, "scalars") || !strcmp(section, "stages") ||
           !strcmp(section, "states") || !strcmp(section, "token_coefs");
}

static char *trim(char *s)
{
    while (isspace((unsigned char)*s))
        s++;
    char *end = s + strlen(s);
    while (end > s && isspace((unsigned char)end[-1]))
        end--;
    *end = 0;
    return s;
}

/* Blanks between words become one. */
static void squeeze(char *s)
{
    char *out = s;
    for (; *s; s++)
        if (!isspace((unsigned char)*s))
            *out++ = *s;
        else if (out[-1] != ' ')
            *out++ = ' ';
    *out = 0;
}

struct recipe_line *recipe_find(const struct recipe *r, const char *section, const char *key)
{
    for (struct recipe_line *l = r->text->line; l < r->text->line + r->text->n; l++)
        if (!strcmp(l->section, section) && !strcmp(l->key, key))
            return l;
    return NULL;
}

struct recipe_line *recipe_find_row(const struct recipe *r, const char *section, int i)
{
    char key[12];
    snprintf(key, sizeof key, "%d", i);
    return recipe_find(r, section, key);
}

void recipe_drop(struct recipe *r, struct recipe_line *l)
{
    struct recipe_text *t = r->text;
    free(l->section), free(l->key), free(l->value);
    memmove(l, l + 1, (size_t)(t->line + --t->n - l) * sizeof *l);
}

int recipe_error(const struct recipe *r, const struct recipe_line *l, const char *fmt, ...)
{
    char msg[1280]; /* may hold a line of [rules] and its caret */
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    const char *name = r->text->name, *dot = l && l->section[0] ? "." : "";
    if (!l)
        return err_set(GPT_INPUT, "%s: %s", name, msg);
    if (l->number < 0)
        return err_set(GPT_INPUT, "%s: %s%s%s = %s, the default: %s", name, l->section, dot, l->key,
                       l->value, msg);
    if (!l->number)
        return err_set(GPT_USAGE, "--set %s%s%s=%s: %s", l->section, dot, l->key, l->value, msg);
    return err_set(GPT_INPUT, "%s:%d: %s%s%s: %s", name, l->number, l->section, dot, l->key, msg);
}

static int add_line(struct recipe_text *t, const char *section, const char *key, const char *value,
                    int number)
{
    if (grow_one(&t->line, t->n, sizeof *t->line))
        return GPT_SYSTEM;
    struct recipe_line *l = &t->line[t->n++];
    *l = (struct recipe_line){
        .section = strdup(section), .key = strdup(key), .value = strdup(value), .number = number
    };
    if (!l->section || !l->key || !l->value)
        return err_memory();
    squeeze(l->value);
    return 0;
}

int recipe_add_default(struct recipe *r, const char *section, const char *key, const char *value)
{
    return add_line(r->text, section, key, value, -1);
}

static int parse_line(struct recipe *r, char *section, char *line, int number)
{
    struct recipe_text *t = r->text;
    char *comment = strchr(line, '#');
    if (comment)
        *comment = 0;
    line = trim(line);
    if (!*line)
        return 0;
    if (*line == '[') {
        size_t n = strlen(line);
        if (line[n - 1] != ']' || n < 3 || n > 31)
            return err_set(GPT_INPUT, "%s:%d: expected '[section]', found '%s'", t->name, number,
                           line);
        memcpy(section, line + 1, n - 2);
        section[n - 2] = 0;
        return recipe_check_section(r, section, number);
    }
    char *value = line + strcspn(line, is_table(section) ? " \t" : "=");
    if (!*value)
        return err_set(GPT_INPUT, "%s:%d: expected '%s', found '%s'", t->name, number,
                       is_table(section) ? "key column ..." : "key = value", line);
    *value++ = 0;
    char *key = trim(line);
    const struct recipe_line *old = recipe_find(r, section, key);
    if (old)
        return err_set(GPT_INPUT, "%s:%d: %s.%s stands already in line %d", t->name, number,
                       section, key, old->number);
    return add_line(t, section, key, trim(value), number);
}

static int parse_lines(struct recipe *r, const char *text)
{
    char section[32] = "", *copy = strdup(text);
    int number = 0, rc = copy ? 0 : err_sys("%s", r->text->name);
    for (char *line = copy, *next; line && !rc; line = next) {
        next = strchr(line, '\n');
        if (next)
            *next++ = 0;
        rc = parse_line(r, section, line, ++number);
    }
    free(copy);
    return rc;
}

char *recipe_row_with(const char *row, int column, const char *value)
{
    char *out = malloc(strlen(row) + strlen(value) + 2);
    int at = 0;
    if (!out)
        return NULL;
    *out = 0;
    for (int k = 0; *row; k++) {
        int length = (int)strcspn(row, " ");
        at += sprintf(out + at, "%s%.*s", k ? " " : "", k == column ? (int)strlen(value) : length,
                      k == column ? value : row);
        row += length;
        row += strspn(row, " ");
        if (!*row && k + 1 == column) /* a last one that it had not */
            sprintf(out + at, " %s", value);
    }
    return out;
}

/* Makes of the key LABEL.COLUMN the key LABEL, and of *row its row with that column changed. */
static int set_column(const struct recipe *r, char *key, const char *value, char **row, bool *rule)
{
    static const char *const columns[] = { "shape", "dtype", "init", "rule",  "comms",   "beta1",
                                           "beta2", "lr",    "wd",   "early", "schedule" };
    int n = (int)(sizeof columns / sizeof *columns), column = 0;
    char *dot = strchr(key, '.');
    if (!dot)
        return 0;
    *dot = 0;
    const struct recipe_line *l = recipe_find(r, "parameters", key);
    while (column < n && strcmp(dot + 1, columns[column]))
        column++;
    if (!l)
        return err_set(GPT_USAGE, "--set parameters.%s.%s: the recipe has no parameter '%s'", key,
                       dot + 1, key);
    if (column == n)
        return err_set(GPT_USAGE,
                       "--set parameters.%s.%s: expected a column of [parameters]: shape, dtype, "
                       "init, rule, comms, beta1, beta2, lr, wd, early or schedule",
                       key, dot + 1);
    *rule = !strcmp(columns[column], "rule");
    return (*row = recipe_row_with(l->value, column, value)) ? 0 : err_memory();
}

/* Replaces a line by "section.key=value", or adds one. Keys above the first section have none here either. */
static int override(struct recipe *r, const char *assignment)
{
    char section[32] = "", key[64];
    const char *eq = strchr(assignment, '='), *dot = strchr(assignment, '.');
    if (!eq || eq == assignment)
        return err_set(GPT_USAGE, "--set '%s': expected section.key=value", assignment);
    const char *start = assignment;
    if (dot && dot < eq) {
        if (dot - assignment >= (long)sizeof section)
            return err_set(GPT_USAGE, "--set '%s': no such section", assignment);
        memcpy(section, assignment, (size_t)(dot - assignment));
        start = dot + 1;
    }
    snprintf(key, sizeof key, "%.*s", (int)(eq - start), start);
    char *value = NULL;
    bool rule = false;
    int rc = strcmp(section, "parameters") ? 0 : set_column(r, key, eq + 1, &value, &rule);
    if (rc)
        return rc;
    if (!value && !(value = strdup(eq + 1)))
        return err_sys("--set");
    struct recipe_line *l = recipe_find(r, section, key);
    if (l) {
        l->rule_set = rule;
        free(l->value);
        l->value = strdup(trim(value));
        l->number = 0;
        if (l->value)
            squeeze(l->value);
        else
            rc = err_sys("--set");
    } else {
        rc = add_line(r->text, section, key, trim(value), 0);
    }
    free(value);
    return rc;
}

/* Reads text and the n overrides but number `without` (-1: all of them). */
static int parse(struct recipe **out, const char *name, const char *text,
                 const char *const *overrides, int n, int without)
{
    struct recipe *r = calloc(1, sizeof *r);
    int rc = 0;
    *out = NULL;
    if (!r || !(r->text = calloc(1, sizeof *r->text)) || !(r->text->name = strdup(name)))
        rc = err_sys("%s", name);
    if (!rc)
        rc = parse_lines(r, text);
    for (int i = 0; i < n && !rc; i++)
        rc = i == without ? 0 : override(r, overrides[i]);
    if (!rc)
        rc = recipe_bind(r);
    if (!rc)
        rc = recipe_print(r);
    if (rc) {
        recipe_free(r);
        return rc;
    }
    xxh_hex_of(r->text->canonical, strlen(r->text->canonical), r->hash);
    *out = r;
    return 0;
}

/* Is the recipe sound with these overrides? Leaves no message. */
static bool is_sound(const char *name, const char *text, const char *const *overrides, int n,
                     int without)
{
    struct recipe *r;
    int rc = parse(&r, name, text, overrides, n, without);
    recipe_free(r);
    return !rc;
}

/* A fault in a recipe that is sound without --set is the fault of one of them, or of all. */
static int name_override(const char *name, const char *text, const char *const *overrides, int n)
{
    char said[2048]; /* a line of [rules] and its caret */
    snprintf(said, sizeof said, "%s", err_message());
    if (!is_sound(name, text, NULL, 0, -1))
        return err_set(GPT_INPUT, "%s", said);
    for (int i = n - 1; i >= 0; i--)
        if (is_sound(name, text, overrides, n, i))
            return err_set(GPT_USAGE, "--set %s: %s", overrides[i], said);
    return err_set(GPT_USAGE, "with what --set changes: %s", said);
}

int recipe_parse(struct recipe **out, const char *name, const char *text,
                 const char *const *overrides, int n)
{
    int rc = parse(out, name, text, overrides, n, -1);
    return rc == GPT_INPUT && n ? name_override(name, text, overrides, n) : rc;
}

static int unknown_name(const char *name)
{
    struct suggest s = suggest_for(name);
    for (int i = 0; i < recipe_named_count(); i++)
        suggest_try(&s, recipe_named_at(i)->name);
    return err_set(GPT_USAGE,
                   "'%s': no such recipe (gpt-train --recipes lists them) and no such file%s", name,
                   suggest_text(&s));
}

/* The first RECIPE_MAX + 1 bytes of a file as a string; *n: how many; *cut: there are more. */
static int read_begin(const char *path, char **text, size_t *n, bool *cut)
{
    struct zreader *z;
    const void *p;
    int rc = zreader_open(&z, path);
    if (rc)
        return rc;
    if (!(rc = zreader_peek(z, RECIPE_MAX + 1, &p, n))) {
        *cut = *n > RECIPE_MAX;
        if ((*text = malloc(*n + 1)))
            memcpy(*text, p, *n);
        rc = *text ? file_take_text(path, *text, n) : err_memory();
    }
    zreader_close(z);
    if (rc) {
        free(*text);
        *text = NULL;
    }
    return rc;
}

/* The recipe in a run log stands between its first two rules of '='; the header has its hash
 * (gpt-runlog(5)). */
static int read_log(struct recipe **r, const char *path, char *text, const char *const *overrides,
                    int n)
{
    char *begin = strstr(text, "\n====="), *line = strstr(text, "\nrecipe: "), hash[33] = "";
    begin = begin ? strchr(begin + 1, '\n') : NULL;
    char *end = begin ? strstr(begin, "\n=====") : NULL;
    size_t words = line ? strcspn(line + 1, "\n") : 0; /* the name, blanks in it, and the hash */
    if (!end || words < 32 || sscanf(line + 1 + words - 32, "%32[0-9a-f]", hash) != 1)
        return err_set(GPT_INPUT,
                       "%s: expected a recipe in this run log, found none (a log on a terminal "
                       "leaves it out)",
                       path);
    end[1] = '\0';
    int rc = recipe_parse(r, path, begin + 1, NULL, 0);
    if (rc)
        return rc;
    if (strcmp((*r)->hash, hash))
        rc = err_set(GPT_INPUT, "%s: expected a recipe of hash %s as the log says, found %s", path,
                     hash, (*r)->hash);
    recipe_free(*r);
    *r = NULL;
    return rc ? rc : recipe_parse(r, path, begin + 1, overrides, n);
}

int recipe_read(struct recipe **r, const char *path, const char *const *overrides, int n)
{
    char *text = NULL;
    size_t size;
    bool cut = false;
    const struct recipe_named *named = recipe_named_find(path);
    if (named)
        return recipe_parse(r, path, named->text, overrides, n);
    if (!strpbrk(path, "./") && strcmp(path, "-") && access(path, F_OK))
        return unknown_name(path);
    int rc = read_begin(path, &text, &size, &cut);
    if (rc)
        return rc;
    if (!strncmp(text, "tool: ", 6))
        rc = read_log(r, path, text, overrides, n);
    else if (cut)
        rc = err_set(GPT_INPUT, "'%s': expected at most %d bytes, found more", path, RECIPE_MAX);
    else if (strlen(text) != size)
        rc = err_set(GPT_INPUT, "%s: offset %zu: a NUL byte; a recipe is text", path, strlen(text));
    else
        rc = recipe_parse(r, path, text, overrides, n);
    free(text);
    return rc;
}

const char *recipe_canonical(const struct recipe *r) { return r->text->canonical; }

void recipe_free(struct recipe *r)
{
    struct recipe_text *t = r ? r->text : NULL;
    for (int i = 0; t && i < t->n; i++) {
        free(t->line[i].section);
        free(t->line[i].key);
        free(t->line[i].value);
    }
    if (t) {
        free(t->line);
        free(t->name);
        free(t->canonical);
    }
    free(t);
    free(r);
}

bool recipe_is_transposed(const struct param_spec *s, int64_t i)
{
    return !strcmp(s->label, "mlp") && i % 2;
}

double recipe_shape_factor(const struct param_spec *s, const struct chain *c, int64_t i)
{
    const struct stage_use *u = chain_stage(c, STAGE_shape);
    double rows = (double)s->rows, cols = (double)s->cols;
    if (!u)
        return 1;
    if (recipe_is_transposed(s, i) && !stage_has(u, "stored"))
        rows = (double)s->cols, cols = (double)s->rows;
    double match = u->number[0].value[0];
    if (stage_has(u, "spectral"))
        return sqrt(rows / cols);
    return match > 0 ? match * sqrt(fmax(rows, cols)) : sqrt(fmax(1, rows / cols));
}

int recipe_param(const struct recipe *r, const char *label)
{
    for (int i = 0; i < r->n_params; i++)
        if (!strcmp(r->params[i].label, label))
            return i;
    return -1;
}

bool recipe_has_gate(const struct recipe *r)
{
    return r->optimizer.clip > 0 || r->optimizer.loss_scale != 1 || r->optimizer.max_skips > 0 ||
           r->optimizer.grad_norm;
}

enum dtype recipe_gradient(const struct recipe *r, const struct param_spec *s)
{
    bool own = r->precision.gradients == DT_NONE || recipe_stored(s) == DT_F32;
    return !own ? r->precision.gradients : s->stored == DT_F32 ? DT_F32 : s->dtype;
}

const char *recipe_master_kind(const struct param_spec *s)
{
    return s->master != DT_U16 ? "master" : s->truncate ? "mantissa" : "remainder";
}

enum weight_rounding recipe_rounding(const struct param_spec *s)
{
    if (s->dtype != DT_BF16 || s->stored != DT_NONE)
        return WEIGHT_EVEN;
    if (!rule_is_adam(&s->rule) || (s->master == DT_U16 && s->truncate))
        return WEIGHT_CUT;
    return s->master == DT_U16 || s->master == DT_F32 ? WEIGHT_AWAY : WEIGHT_EVEN;
}

uint16_t recipe_bf16(const struct param_spec *s, float x)
{
    switch (recipe_rounding(s)) {
    case WEIGHT_CUT: return (uint16_t)(f32_bits(x) >> 16);
    case WEIGHT_AWAY: return bf16_from_f32_away(x);
    default: return bf16_from_f32(x);
    }
}

const struct scalar_spec *recipe_scalar(const struct recipe *r, const char *name)
{
    for (int i = 0; i < r->n_scalars; i++)
        if (!strcmp(r->scalars[i].name, name))
            return &r->scalars[i];
    return NULL;
}

int recipe_token_blocks(const struct recipe *r, enum token_set set)
{
    int n = 0;
    for (int k = 0; k < r->token_coefs.n_blocks; k++)
        n += r->token_coefs.block[k].set == set;
    return n;
}

const struct token_term *recipe_token_role(const struct recipe *r, int i, enum token_role role)
{
    for (int k = 0; k < r->token_coefs.n; k++)
        if (r->token_coefs.term[k].layer == i && r->token_coefs.term[k].role == role)
            return &r->token_coefs.term[k];
    return NULL;
}

bool recipe_reads_table(const struct recipe *r, int i, int param, int slot)
{
    if (i < r->n_layers && r->layers[i].value == param && r->layers[i].value_slot == slot)
        return true;
    for (int k = 0; k < r->token_coefs.n; k++) {
        const struct token_term *t = &r->token_coefs.term[k];
        if (t->layer == i && t->source == SOURCE_TABLE && t->table == param && t->slot == slot)
            return true;
    }
    return false;
}

bool recipe_reads(const struct recipe *r, int param)
{
    bool reads = false;
    for (int i = 0; i < r->n_layers; i++)
        reads |= r->layers[i].value == param;
    for (int k = 0; k < r->token_coefs.n; k++)
        reads |=
            r->token_coefs.term[k].source == SOURCE_TABLE && r->token_coefs.term[k].table == param;
    return reads;
}

bool recipe_split_attn(const struct recipe *r) { return recipe_param(r, "qk_bank") >= 0; }
bool recipe_own_attn(const struct recipe *r) { return recipe_param(r, "q_bank") >= 0; }
int64_t recipe_qk_rows(const struct recipe *r, int i)
{
    return (int64_t)r->model.heads * r->layers[i].qk_dim;
}
int64_t recipe_qkv_rows(const struct recipe *r, int i)
{
    return 2 * recipe_qk_rows(r, i) + r->model.width;
}

int64_t recipe_indices(const struct recipe *r)
{
    int64_t n = 0;
    for (int i = 0; i < r->n_layers; i++)
        n = r->layers[i].bank >= n ? r->layers[i].bank + 1 : n;
    return n;
}

bool recipe_narrow(const struct recipe *r)
{
    bool any = false;
    for (int i = 0; i < r->n_layers; i++)
        any |=
            r->layers[i].attention != ATTN_NONE && (r->layers[i].qk_dim != r->model.head_dim ||
                                                    r->layers[i].qk_dim != 2 * r->model.rope_dim);
    return any;
}

const char *recipe_cpu_alone(const struct recipe *r)
{
    int e = r->model.head_dim;
    if (recipe_narrow(r) && r->model.rope_dim % 8)
        return "model.rope_dim: on a GPU a multiple of 8";
    for (int i = 0; i < r->n_layers; i++) {
        int qk = r->layers[i].qk_dim;
        if (r->layers[i].attention == ATTN_NONE || qk == e)
            continue;
        if (qk != e / 2 && !(e == 128 && qk == 96))
            return "model.qk_head_dim: on a GPU a half of head_dim, or 96 of 128";
        if (qk < 32)
            return "model.qk_head_dim: on a GPU 32, 64 or 96";
        if (recipe_token_role(r, i, TOKEN_DC1))
            return "model.qk_head_dim: on a GPU layers with the role dc1 have head_dim channels";
    }
    return NULL;
}

int64_t recipe_qk_extra(const struct recipe *r, int64_t bank)
{
    int64_t extra = 0;
    for (int i = 0; i < r->n_layers; i++)
        if (r->layers[i].attention != ATTN_NONE && r->layers[i].bank >= 0 &&
            r->layers[i].bank < bank)
            extra += (int64_t)r->model.heads * (r->layers[i].qk_dim - r->model.qk_dim);
    return extra;
}

bool recipe_own_mlp(const struct recipe *r) { return recipe_param(r, "up_bank") >= 0; }

bool recipe_prefixes(const struct recipe *r)
{
    bool any = false;
    for (int i = 0; i < r->n_stages; i++)
        any |= r->stages[i].prefix_first != 0 || r->stages[i].prefix_last != 0;
    return any;
}

bool recipe_objective_differs(const struct recipe *r)
{
    bool any = recipe_prefixes(r);
    for (int i = 0; i < r->n_stages; i++)
        any |= r->stages[i].n_mtp > 1 || r->stages[i].mtp_first[0] != 1 ||
               r->stages[i].mtp_last[0] != 1;
    return any;
}
