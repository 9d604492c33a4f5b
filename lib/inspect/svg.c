#include "inspect/svg.h"

#include <math.h>
#include <string.h>
#include "base/chart.h"

enum {
    WIDTH = 900,
    HEIGHT = 560,
    LEFT = 76,
    RIGHT = 190,
    TOP = 44,
    BOTTOM = 56,
    DECADES = 8,
    GROUPS = 64
};

/* y from the largest power of ten that is needed down. */
static void set_decades(struct chart *p, const struct svg_curve *c, int n)
{
    double hi = -INFINITY, lo = INFINITY;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < c[i].n; k++)
            if (c[i].y[k] > 0 && isfinite(c[i].y[k])) {
                hi = fmax(hi, log10(c[i].y[k]));
                lo = fmin(lo, log10(c[i].y[k]));
            }
    if (hi < lo)
        hi = lo = 0;
    p->y1 = ceil(hi);
    p->y0 = fmin(fmax(floor(lo), p->y1 - DECADES), p->y1 - 1);
}

/* The group's number; new ones are added until the table is full. */
static int group_of(const char **groups, int *n, const char *name)
{
    for (int i = 0; i < *n; i++)
        if (!strcmp(groups[i], name))
            return i;
    if (*n == GROUPS)
        return GROUPS - 1;
    groups[*n] = name;
    return (*n)++;
}

void svg_curves(FILE *f, const char *title, const char *x_title, const char *y_title,
                const struct svg_curve *c, int n)
{
    const char *groups[GROUPS];
    int ngroups = 0;
    struct chart p = { .f = f,
                       .left = LEFT,
                       .top = TOP,
                       .width = WIDTH - LEFT - RIGHT,
                       .height = HEIGHT - TOP - BOTTOM,
                       .x1 = 1,
                       .log_y = true,
                       .title = title,
                       .x_title = x_title,
                       .y_title = y_title };
    set_decades(&p, c, n);
    chart_begin(f, WIDTH, HEIGHT);
    chart_axes(&p);
    for (int i = 0; i < n; i++) {
        chart_curve(&p, group_of(groups, &ngroups, c[i].group), 1);
        for (int k = 0; k < c[i].n; k++)
            chart_to(&p, c[i].n > 1 ? (double)k / (c[i].n - 1) : 0,
                     c[i].y[k] <= 0 ? p.y0 : fmax(log10(c[i].y[k]), p.y0));
        chart_curve_end(&p, c[i].name);
    }
    chart_axes_end(&p);
    for (int i = 0; i < ngroups; i++)
        chart_legend(f, WIDTH - RIGHT + 16, TOP + 14 + 18 * i, i, groups[i], "");
    chart_end(f);
}
