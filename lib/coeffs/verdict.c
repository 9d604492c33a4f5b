#include "coeffs/verdict.h"

#include <math.h>
#include "base/text.h"

static void say(struct verdict *v, const char *name, double value)
{
    v->v[v->n].name = name;
    v->v[v->n++].value = value;
}

static int say_interval(struct verdict *v, const struct coeffs *c, const struct judge *j)
{
    struct range r;
    double over;
    int rc = eval_range(c, j->lower, j->upper, &r);
    if (rc || (rc = eval_overshoot(c, &over)))
        return rc;
    say(v, "rows", c->n);
    say(v, "low", r.low);
    say(v, "high", r.high);
    say(v, "worst", r.worst);
    say(v, "worst_at", r.worst_at);
    say(v, "slope_0", eval_slope(c));
    say(v, "f_1", coeffs_value(c, 1));
    say(v, "f_1.02", coeffs_value(c, 1.02));
    say(v, "overshoot", isinf(over) ? NAN : over);
    return 0;
}

static void say_spread(struct verdict *v, const char *rms, const char *max, struct spread s)
{
    say(v, rms, s.rms);
    say(v, max, s.max);
}

static int say_bf16(struct verdict *v, const struct coeffs *c, const struct judge *j)
{
    struct spread all = { NAN, NAN }, in = all;
    if (c->terms < 4) { /* no kernel takes longer rows */
        int rc = eval_bf16(c, j->trials, j->lower, &all, &in);
        if (rc)
            return rc;
    }
    say_spread(v, "rms_bf16", "max_bf16", all);
    say_spread(v, "rms_in_bf16", "max_in_bf16", in);
    return 0;
}

static int say_trials(struct verdict *v, const struct coeffs *c, const struct judge *j)
{
    double shift = 0;
    say_spread(v, "rms", "max", eval_trials(c, j->trials, 0));
    say_spread(v, "rms_in", "max_in", eval_trials(c, j->trials, j->lower));
    int rc = j->bf16 ? say_bf16(v, c, j) : 0;
    for (int i = 0; i < j->trials->n; i++)
        shift += j->trials->v[i].shift / j->trials->n;
    if (j->bf16 && j->trials->v[0].aol)
        say(v, "aol_shift", shift);
    return rc;
}

static void say_costs(struct verdict *v, const struct coeffs *c, const struct judge *j)
{
    struct costs k = eval_costs(c, j->rows, j->cols);
    say(v, "gflop_plain", k.plain.flops / 1e9);
    say(v, "gflop_symmetric", k.symmetric.flops / 1e9);
    say(v, "gflop_gram", k.gram.flops / 1e9);
    say(v, "mb_plain", k.plain.bytes / 1e6);
    say(v, "mb_symmetric", k.symmetric.bytes / 1e6);
    say(v, "mb_gram", k.gram.bytes / 1e6);
}

int verdict_of(struct verdict *v, const struct coeffs *c, const struct judge *j)
{
    v->n = 0;
    int rc = say_interval(v, c, j);
    if (!rc && j->trials && j->trials->n)
        rc = say_trials(v, c, j);
    if (!rc && j->rows)
        say_costs(v, c, j);
    return rc;
}

static void print_tsv(FILE *f, const struct coeffs *c, const struct verdict *v, int n)
{
    fputs("table", f);
    for (int i = 0; i < v->n; i++)
        fprintf(f, "\t%s", v->v[i].name);
    for (int k = 0; k < n; k++) {
        fprintf(f, "\n%s", c[k].name);
        for (int i = 0; i < v[k].n; i++)
            fprintf(f, "\t%.10g", v[k].v[i].value);
    }
    fputc('\n', f);
}

static void print_json(FILE *f, const struct coeffs *c, const struct verdict *v, int n)
{
    for (int k = 0; k < n; k++) {
        fputs(k ? ",\n {\"table\": " : "[\n {\"table\": ", f);
        text_json(f, c[k].name);
        for (int i = 0; i < v[k].n; i++) {
            fprintf(f, ", \"%s\": ", v[k].v[i].name);
            if (isfinite(v[k].v[i].value))
                fprintf(f, "%.10g", v[k].v[i].value);
            else
                fputs("null", f);
        }
        fputc('}', f);
    }
    fputs("\n]\n", f);
}

static void print_columns(FILE *f, const struct coeffs *c, const struct verdict *v, int n)
{
    fprintf(f, "%-16s", "");
    for (int k = 0; k < n; k++)
        fprintf(f, " %14.14s", c[k].name);
    for (int i = 0; i < v->n; i++) {
        fprintf(f, "\n%-16s", v->v[i].name);
        for (int k = 0; k < n; k++)
            if (isnan(v[k].v[i].value))
                fprintf(f, " %14s", "-");
            else
                fprintf(f, " %14.7g", v[k].v[i].value);
    }
    fputc('\n', f);
}

void verdict_print(FILE *f, enum verdict_format format, const struct coeffs *c,
                   const struct verdict *v, int n)
{
    switch (format) {
    case VERDICT_TABLE: print_columns(f, c, v, n); break;
    case VERDICT_TSV: print_tsv(f, c, v, n); break;
    case VERDICT_JSON: print_json(f, c, v, n); break;
    }
}
