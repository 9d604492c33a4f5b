#include "coeffs/verdict.h"

#include <math.h>
#include <string.h>
#include "base/chart.h"
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

/* Restarts as a number of one digit each, 23 for after rows 2 and 3; 0: none. */
static double restart_digits(unsigned restart)
{
    double digits = 0;
    for (int k = 1; k < EVAL_GRAM_ROWS; k++)
        if (restart >> k & 1)
            digits = 10 * digits + k;
    return digits;
}

static int say_gram(struct verdict *v, const struct candidate *d, const struct judge *j,
                    struct spread direct)
{
    const struct coeffs *c = &d->table;
    unsigned restart = 0;
    struct spread in = { NAN, NAN };
    int rc = c->terms > 3 ? 0 : eval_restarts(c, d->trials, j->lower, direct, &restart, &in);
    if (rc)
        return rc;
    say(v, "gram_restart", isnan(in.rms) ? NAN : restart_digits(restart));
    say_spread(v, "rms_in_gram", "max_in_gram", in);
    return 0;
}

static int say_bf16(struct verdict *v, const struct candidate *c, const struct judge *j)
{
    struct spread all = { NAN, NAN }, in = all;
    double polar = NAN;
    if (c->table.terms < 4) { /* no kernel takes longer rows */
        int rc = eval_rounded(&c->table, c->trials, 0, j->lower, &all, &in, &polar);
        if (rc)
            return rc;
    }
    say_spread(v, "rms_bf16", "max_bf16", all);
    say_spread(v, "rms_in_bf16", "max_in_bf16", in);
    say(v, "polar_bf16", polar);
    return j->gram ? say_gram(v, c, j, in) : 0;
}

static int say_trials(struct verdict *v, const struct candidate *c, const struct judge *j)
{
    const struct trials *t = c->trials;
    double shift = 0, least = INFINITY, most = 0;
    for (int i = 0; i < t->n; i++) {
        shift += t->v[i].shift / t->n;
        least = fmin(least, t->v[i].x[t->v[i].n - 1]);
        most = fmax(most, t->v[i].x[0]);
    }
    say(v, "sigma_min", least);
    say(v, "sigma_max", most);
    say_spread(v, "rms", "max", eval_trials(&c->table, t, 0));
    say_spread(v, "rms_in", "max_in", eval_trials(&c->table, t, j->lower));
    say(v, "polar", eval_polar(&c->table, t));
    say(v, "aol_shift", shift);
    return j->bf16 ? say_bf16(v, c, j) : 0;
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

int verdict_of(struct verdict *v, const struct candidate *c, const struct judge *j)
{
    v->n = 0;
    int rc = say_interval(v, &c->table, j);
    if (!rc && c->trials && c->trials->n)
        rc = say_trials(v, c, j);
    if (!rc && j->rows)
        say_costs(v, &c->table, j);
    return rc;
}

int verdict_print(FILE *f, enum report_format format, const struct candidate *c,
                  const struct verdict *v, int n)
{
    char columns[VERDICT_MAX * 24] = "table:s: drop:s input:s", *end = columns + strlen(columns);
    struct report r;
    for (int i = 0; i < v->n; i++)
        end += sprintf(end, " %s:g7", v->v[i].name);
    report_begin(&r, f, format);
    r.transposed = true;
    report_table(&r, NULL, NULL, columns);
    for (int k = 0; k < n; k++) {
        report_cell_text(&r, c[k].table.name);
        report_cell_text(&r, c[k].drop);
        report_cell_text(&r, coeffs_input_names[c[k].input]);
        for (int i = 0; i < v->n; i++)
            report_cell_real(&r, v[k].v[i].value);
    }
    return report_end(&r);
}

/* --- the picture --- */

/* Layout in pixels: panels of the same width, a legend to the right. */
enum { LEFT = 60, WIDTH = 640, LEGEND = 250, TOP = 30, HEIGHT = 240, GAP = 50, SAMPLES = 1600 };

/* Curves of the tables, one of those that have the same rows. */
static void panel(const struct chart *p, const struct candidate *c, int n, double lower,
                  double upper)
{
    chart_axes(p);
    chart_mark_x(p, p->log_x ? log10(lower) : lower);
    chart_mark_x(p, p->log_x ? log10(upper) : upper);
    for (int i = 0; i < n; i++) {
        const struct coeffs *t = &c[i].table;
        bool drawn = false;
        for (int k = 0; k < i; k++)
            drawn |= t->n == c[k].table.n && !memcmp(t->row, c[k].table.row, sizeof t->row);
        if (drawn)
            continue;
        chart_curve(p, i, 1.6);
        for (int k = 0; k <= SAMPLES; k++) {
            double x = p->x0 + (p->x1 - p->x0) * k / SAMPLES;
            double y = coeffs_value(t, p->log_x ? pow(10, x) : x);
            chart_to(p, x, p->log_y ? log10(fmax(fabs(1 - y), 1e-30)) : y);
        }
        chart_curve_end(p, t->name);
    }
    chart_axes_end(p);
}

/* A point a matrix, in the table's column; off the panel it stands at its edge. */
static void distances(const struct chart *p, const struct candidate *c, int n)
{
    chart_axes(p);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < c[i].trials->n; k++) {
            double y = log10(trial_distance(&c[i].trials->v[k], &c[i].table));
            if (isnan(y))
                continue;
            fprintf(p->f, "<circle cx='%.1f' cy='%.1f' r='3.5' fill='%s'><title>",
                    chart_x(p, i + 1), chart_y(p, fmin(fmax(y, p->y0), p->y1)), chart_colour(i));
            text_xml(p->f, c[i].trials->v[k].name);
            fprintf(p->f, ": %.4g</title></circle>\n", pow(10, y));
        }
    chart_axes_end(p);
}

static void legend(FILE *f, const struct candidate *c, int n)
{
    for (int i = 0; i < n; i++) {
        char note[32];
        bool tried = c[i].trials && c[i].trials->n;
        snprintf(note, sizeof note, tried ? ", %s" : "", coeffs_input_names[c[i].input]);
        chart_legend(f, LEFT + WIDTH + 12, TOP + 12 + 20 * i, i, c[i].table.name, note);
    }
}

void verdict_plot(FILE *f, const struct candidate *c, int n, double lower, double upper)
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
                 near = above, below = above, points = above;
    bool tried = n && c[0].trials && c[0].trials->n;
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
    points.top = below.top + HEIGHT + GAP + 20;
    points.log_x = false;
    points.log_y = true;
    points.x0 = 0;
    points.x1 = n + 1;
    points.y0 = -3;
    points.y1 = 0.5;
    points.title = "distance to the matrix's polar factor, a point a matrix";
    points.x_title = "the legend's tables, in its order";
    chart_begin(f, LEFT + WIDTH + LEGEND, (tried ? points.top : below.top) + HEIGHT + 44);
    panel(&above, c, n, lower, upper);
    panel(&near, c, n, lower, upper);
    panel(&below, c, n, lower, upper);
    if (tried)
        distances(&points, c, n);
    legend(f, c, n);
    chart_end(f);
}
