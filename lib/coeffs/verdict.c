#include "coeffs/verdict.h"

#include <math.h>
#include <string.h>
#include "base/chart.h"

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

/* Restarts as a number of one digit each, 23 for after rows 2 and 3; 0: none. */
static double restart_digits(unsigned restart)
{
    double digits = 0;
    for (int k = 1; k < EVAL_GRAM_ROWS; k++)
        if (restart >> k & 1)
            digits = 10 * digits + k;
    return digits;
}

static int say_gram(struct verdict *v, const struct coeffs *c, const struct judge *j,
                    struct spread direct)
{
    unsigned restart = 0;
    struct spread in = { NAN, NAN };
    int rc = c->terms > 3 ? 0 : eval_restarts(c, j->trials, j->lower, direct, &restart, &in);
    if (rc)
        return rc;
    say(v, "gram_restart", isnan(in.rms) ? NAN : restart_digits(restart));
    say_spread(v, "rms_in_gram", "max_in_gram", in);
    return 0;
}

static int say_bf16(struct verdict *v, const struct coeffs *c, const struct judge *j)
{
    struct spread all = { NAN, NAN }, in = all;
    if (c->terms < 4) { /* no kernel takes longer rows */
        int rc = eval_rounded(c, j->trials, 0, j->lower, &all, &in);
        if (rc)
            return rc;
    }
    say_spread(v, "rms_bf16", "max_bf16", all);
    say_spread(v, "rms_in_bf16", "max_in_bf16", in);
    return j->gram ? say_gram(v, c, j, in) : 0;
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

int verdict_print(FILE *f, enum report_format format, const struct coeffs *c,
                  const struct verdict *v, int n)
{
    char columns[VERDICT_MAX * 24] = "table:s:", *end = columns + strlen(columns);
    struct report r;
    for (int i = 0; i < v->n; i++)
        end += sprintf(end, " %s:g7", v->v[i].name);
    report_begin(&r, f, format);
    r.transposed = true;
    report_table(&r, NULL, NULL, columns);
    for (int k = 0; k < n; k++) {
        report_cell_text(&r, c[k].name);
        for (int i = 0; i < v->n; i++)
            report_cell_real(&r, v[k].v[i].value);
    }
    return report_end(&r);
}

/* --- the picture --- */

/* Layout in pixels: panels of the same width, a legend to the right. */
enum { LEFT = 60, WIDTH = 640, LEGEND = 170, TOP = 30, HEIGHT = 240, GAP = 50, SAMPLES = 1600 };

static void panel(const struct chart *p, const struct coeffs *c, int n, double lower, double upper)
{
    chart_axes(p);
    chart_mark_x(p, p->log_x ? log10(lower) : lower);
    chart_mark_x(p, p->log_x ? log10(upper) : upper);
    for (int i = 0; i < n; i++) {
        chart_curve(p, i, 1.6);
        for (int k = 0; k <= SAMPLES; k++) {
            double x = p->x0 + (p->x1 - p->x0) * k / SAMPLES;
            double y = coeffs_value(&c[i], p->log_x ? pow(10, x) : x);
            chart_to(p, x, p->log_y ? log10(fmax(fabs(1 - y), 1e-30)) : y);
        }
        chart_curve_end(p, c[i].name);
    }
    chart_axes_end(p);
}

void verdict_plot(FILE *f, const struct coeffs *c, int n, double lower, double upper)
{
    struct chart above = { .f = f,
                           .left = LEFT,
                           .top = TOP,
                           .width = WIDTH,
                           .height = HEIGHT,
                           .x0 = log10(lower / 10),
                           .x1 = log10(1.3 * upper),
                           .log_x = true,
                           .y0 = 0,
                           .y1 = 1.5,
                           .title = "f(x)" },
                 near = above, below = above;
    near.top += HEIGHT + GAP;
    near.log_x = false;
    near.x0 = 0.9 * upper;
    near.x1 = 1.1 * upper;
    near.y1 = 2;
    near.title = "f(x) about the upper end";
    below.top = near.top;
    below.top += HEIGHT + GAP;
    below.y0 = -6;
    below.y1 = 0.3;
    below.log_y = true;
    below.title = "|1 - f(x)|";
    below.x_title = "singular value x of the scaled input";
    chart_begin(f, LEFT + WIDTH + LEGEND, below.top + HEIGHT + 44);
    panel(&above, c, n, lower, upper);
    panel(&near, c, n, lower, upper);
    panel(&below, c, n, lower, upper);
    for (int i = 0; i < n; i++)
        chart_legend(f, LEFT + WIDTH + 12, TOP + 12 + 20 * i, i, c[i].name, "");
    chart_end(f);
}
