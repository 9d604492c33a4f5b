/* remarks.c - see remarks.h. */
#include "recipe/remarks.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "coeffs/eval.h"
#include "recipe/text.h"

struct remarks {
    void (*say)(void *ctx, const char *text);
    void *ctx;
};

static void remark(const struct remarks *m, const char *fmt, ...) PRINTF_LIKE(2, 3);
static void remark(const struct remarks *m, const char *fmt, ...)
{
    char text[320];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    m->say(m->ctx, text);
}

/* True if no token of the stage has a loss. */
static bool has_no_loss(const struct stage *s)
{
    bool some = s->prefix_first != 0 || s->prefix_last != 0;
    for (int k = 0; k < s->n_mtp; k++)
        some |= s->mtp_first[k] != 0 || s->mtp_last[k] != 0;
    return !some;
}

/* Stages that one remark is of, and the largest of their numbers. */
struct stages_said {
    int n;
    char list[160]; /* "stages.0, 2" */
    long long most;
};

static void add_stage(struct stages_said *s, int i, long long number)
{
    size_t used = strlen(s->list);
    snprintf(s->list + used, sizeof s->list - used, s->n++ ? ", %d" : "stages.%d", i);
    s->most = number > s->most ? number : s->most;
}

/* Remarks on windows and sequences that no micro-batch is long enough for, weights and rates of
 * zero: a line a kind, whatever the number of stages. */
static void remark_stages(const struct remarks *m, const struct recipe *r)
{
    struct stages_said window = { 0 }, sequence = { 0 }, loss = { 0 }, rate = { 0 };
    long long shortest = INT64_MAX; /* micro-batch of those */
    for (int i = 0; i < r->n_stages; i++) {
        const struct stage *s = &r->stages[i];
        long long tokens = s->tokens / r->data.chunks, far = (long long)s->window * r->model.block;
        if (i + 1 == r->n_stages && !r->schedule.extension)
            continue;
        if (far > tokens || s->sequence > tokens)
            shortest = tokens < shortest ? tokens : shortest;
        if (far > tokens)
            add_stage(&window, i, far);
        if (s->sequence > tokens)
            add_stage(&sequence, i, s->sequence);
        if (has_no_loss(s))
            add_stage(&loss, i, 0);
        if ((i + 1 < r->n_stages ? s->lr : r->schedule.lr_floor) == 0)
            add_stage(&rate, i, 0);
    }
    if (window.n)
        remark(
            m,
            "%s: windows of %s%lld tokens, and a micro-batch has %lld: no token sees so far back in "
            "training",
            window.list, window.n > 1 ? "up to " : "", window.most, shortest);
    if (sequence.n)
        remark(
            m,
            "%s: a sequence of %s%lld tokens, and a micro-batch has %lld: no piece of a document is "
            "so long",
            sequence.list, sequence.n > 1 ? "up to " : "", sequence.most, shortest);
    if (loss.n)
        remark(m, "%s: all losses have weight 0: %s steps train nothing", loss.list,
               loss.n > 1 ? "their" : "its");
    if (rate.n)
        remark(m, "%s: the learning rate is 0: %s steps train nothing", rate.list,
               rate.n > 1 ? "their" : "its");
}

/* Remarks on a table of polar's. Singular values are at most 1 before the first row, and bf16 moves them by 2^-8. */
static void remark_rows(const struct remarks *m, const struct recipe *r, const char *of,
                        const struct polar_rows *rows)
{
    struct coeffs c = { .n = rows->n, .terms = 3 };
    struct range f;
    double most;
    for (int k = 0; k < c.n; k++)
        memcpy(c.row[k], rows->row[k], sizeof rows->row[k]);
    if (eval_range(&c, 0, 1, &f) || eval_overshoot(&c, &most))
        return;
    if (f.high > 2 || f.low < -2)
        remark(m,
               "%s: singular values up to 1 become as large as %.3g, where 1 is wanted: "
               "ns-coeffs eval says more",
               of, f.high > -f.low ? f.high : -f.low);
    else if (r->optimizer.polar.dtype == DT_BF16 && most < 1 + 0x1p-8)
        remark(
            m,
            "%s: these rows diverge from singular values of %.6f on, and bf16 moves them by 0.004: "
            "ns-coeffs polar makes rows with room, optimizer.polar=f32 needs none",
            of, most);
}

static bool same_rows(const struct polar_rows *a, const double (*row)[3], int n)
{
    return a->n == n && !memcmp(a->row, row, (size_t)n * sizeof *row);
}

/* Remarks on each table once. */
static void remark_coeffs(const struct remarks *m, const struct recipe *r)
{
    const struct polar_rows *seen[2 * MAX_PARAMS];
    int n = 0;
    for (int i = 0; i < 2 * r->n_params; i++) {
        const struct rule *rule = &r->params[i / 2].rule;
        const struct polar_rows *rows = &rule->chain[i % 2].polar;
        int k = 0;
        while (k < n && !same_rows(seen[k], rows->row, rows->n))
            k++;
        if (k < n || !chain_stage(&rule->chain[i % 2], STAGE_polar))
            continue;
        seen[n++] = rows;
        char of[RULE_NAME + 8] = "optimizer.coeffs";
        if (!same_rows(rows, r->optimizer.polar.row, r->optimizer.polar.n))
            snprintf(of, sizeof of, "rules.%s", rule->name);
        remark_rows(m, r, of, rows);
    }
}

/* True if a parameter, or a rule made of two, has the rule of that name. */
static bool has_rule(const struct recipe *r, const char *name)
{
    for (int i = 0; i < r->n_params; i++)
        if (!strcmp(r->params[i].rule.name, name))
            return true;
    for (int i = 0; i < r->text->n; i++) {
        const struct recipe_line *l = &r->text->line[i];
        char first[RULE_NAME] = "", second[RULE_NAME] = "";
        if (!strcmp(l->section, "rules") && !strchr(l->value, '|') &&
            sscanf(l->value, "%31s %*s %31s", first, second) == 2 &&
            (!strcmp(first, name) || !strcmp(second, name)))
            return true;
    }
    return false;
}

static bool has_schedule(const struct recipe *r, const char *name)
{
    for (int i = 0; i < r->n_params; i++)
        if (r->params[i].schedule >= 0 && !strcmp(r->schedules[r->params[i].schedule].name, name))
            return true;
    return false;
}

/* Remarks on lines of [rules] and [schedules] that move nothing. */
static void remark_unused(const struct remarks *m, const struct recipe *r)
{
    for (int i = 0; i < r->text->n; i++) {
        const struct recipe_line *l = &r->text->line[i];
        bool rule = !strcmp(l->section, "rules") && strcmp(l->key, "around");
        if (rule ? !has_rule(r, l->key)
                 : !strcmp(l->section, "schedules") && !has_schedule(r, l->key))
            remark(m, "%s.%s: no parameter has it: parameters.LABEL.%s=%s gives it to one",
                   l->section, l->key, rule ? "rule" : "schedule", l->key);
    }
}

void recipe_remarks(const struct recipe *r, void (*say)(void *ctx, const char *text), void *ctx)
{
    struct remarks m = { say, ctx };
    remark_stages(&m, r);
    remark_coeffs(&m, r);
    remark_unused(&m, r);
}
