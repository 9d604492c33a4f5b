#include "state/svg.h"

#include <math.h>
#include <string.h>
#include "base/text.h"

enum { WIDTH = 900, HEIGHT = 560, LEFT = 76, RIGHT = 190, TOP = 44, BOTTOM = 56, DECADES = 8,
       GROUPS = 64 };

/* Colours that differ for most eyes (Okabe and Ito), then again. */
static const char *const colours[] = { "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00",
                                       "#56b4e9", "#999999", "#000000" };

struct frame { double top, bottom; };       /* log10 of y at the upper and the lower edge */

static double x_at(double share) { return LEFT + share * (WIDTH - LEFT - RIGHT); }

static double y_at(const struct frame *fr, double log_y)
{
    if (log_y < fr->bottom)
        log_y = fr->bottom;
    return TOP + (fr->top - log_y) / (fr->top - fr->bottom) * (HEIGHT - TOP - BOTTOM);
}

static struct frame frame_of(const struct svg_curve *c, int n)
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
    struct frame fr = { ceil(hi), floor(lo) };
    fr.bottom = fmax(fr.bottom, fr.top - DECADES);
    if (fr.top <= fr.bottom)
        fr.bottom = fr.top - 1;
    return fr;
}

static void put_axes(FILE *f, const struct frame *fr, const char *x_title, const char *y_title)
{
    for (int e = (int)fr->bottom; e <= (int)fr->top; e++)
        fprintf(f, "<line x1='%d' x2='%.0f' y1='%.1f' y2='%.1f' stroke='#ddd'/>"
                "<text x='%d' y='%.1f' text-anchor='end'>10<tspan dy='-5' font-size='9'>%d</tspan>"
                "</text>\n", LEFT, x_at(1), y_at(fr, e), y_at(fr, e), LEFT - 8, y_at(fr, e) + 4, e);
    for (int i = 0; i <= 4; i++)
        fprintf(f, "<line x1='%.1f' x2='%.1f' y1='%d' y2='%d' stroke='#ddd'/>"
                "<text x='%.1f' y='%d' text-anchor='middle'>%g</text>\n", x_at(i / 4.0),
                x_at(i / 4.0), TOP, HEIGHT - BOTTOM, x_at(i / 4.0), HEIGHT - BOTTOM + 18, i / 4.0);
    fprintf(f, "<text x='%.0f' y='%d' text-anchor='middle'>", x_at(0.5), HEIGHT - 14);
    text_xml(f, x_title);
    fprintf(f, "</text>\n<text transform='translate(18,%d) rotate(-90)' text-anchor='middle'>",
            (TOP + HEIGHT - BOTTOM) / 2);
    text_xml(f, y_title);
    fprintf(f, "</text>\n");
}

static void put_curve(FILE *f, const struct frame *fr, const struct svg_curve *c,
                      const char *colour)
{
    fprintf(f, "<polyline fill='none' stroke='%s' stroke-opacity='0.7' points='", colour);
    for (int k = 0; k < c->n; k++)
        if (!isnan(c->y[k]))
            fprintf(f, "%.1f,%.1f ", x_at(c->n > 1 ? (double)k / (c->n - 1) : 0),
                    y_at(fr, c->y[k] > 0 ? log10(c->y[k]) : fr->bottom));
    fprintf(f, "'><title>");
    text_xml(f, c->name);
    fprintf(f, "</title></polyline>\n");
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
    struct frame fr = frame_of(c, n);
    fprintf(f, "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 %d %d' "
            "font-family='sans-serif' font-size='12'>\n<rect width='%d' height='%d' fill='#fff'/>\n"
            "<text x='%d' y='26' font-size='15'>", WIDTH, HEIGHT, WIDTH, HEIGHT, LEFT);
    text_xml(f, title);
    fprintf(f, "</text>\n");
    put_axes(f, &fr, x_title, y_title);
    for (int i = 0; i < n; i++)
        put_curve(f, &fr, &c[i], colours[group_of(groups, &ngroups, c[i].group) % 8]);
    for (int i = 0; i < ngroups; i++) {
        fprintf(f, "<rect x='%d' y='%d' width='14' height='4' fill='%s'/><text x='%d' y='%d'>",
                WIDTH - RIGHT + 16, TOP + 8 + 18 * i, colours[i % 8], WIDTH - RIGHT + 36,
                TOP + 14 + 18 * i);
        text_xml(f, groups[i]);
        fprintf(f, "</text>\n");
    }
    fprintf(f, "</svg>\n");
}
