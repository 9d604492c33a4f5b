#include "base/chart.h"

#include <math.h>
#include "base/text.h"

enum { COLOURS = 8, CYCLES = CHART_STYLES / COLOURS };

static const char *const colours[COLOURS] = {
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a8a8a", "#a08000",
};
static const char *const dashes[COLOURS] = {
    "none", "none", "none", "none", "6 3", "6 3", "2 2", "8 2 2 2",
};
/* Dashes of the colours when they come again. */
static const char *const cycle_dashes[CYCLES] = { NULL, "14 4", "1 4", "12 3 2 3 2 3" };

const char *chart_colour(int which) { return colours[which % COLOURS]; }

void chart_begin(FILE *f, int width, int height)
{
    fprintf(f,
            "<svg xmlns='http://www.w3.org/2000/svg' width='%d' height='%d' "
            "viewBox='0 0 %d %d' font-family='sans-serif' font-size='12'>\n",
            width, height, width, height);
    fputs("<style>.paper{fill:#fff}text{fill:#222}.grid{stroke:#888;stroke-opacity:.25}"
          ".frame{fill:none;stroke:#888}.mark{stroke:#888;stroke-dasharray:5 4}.curve{fill:none}"
          "@media(prefers-color-scheme:dark){.paper{fill:#181818}text{fill:#ddd}}</style>\n"
          "<rect class='paper' width='100%' height='100%'/>\n",
          f);
}

void chart_end(FILE *f) { fputs("</svg>\n", f); }

/* Where v is from lo to hi, 0 to 1; what is far off is brought near, so that numbers stay short. */
static double share(double v, double lo, double hi)
{
    return fmin(fmax((v - lo) / (hi - lo), -1), 2);
}

double chart_x(const struct chart *c, double x)
{
    return c->left + c->width * share(x, c->x0, c->x1);
}

double chart_y(const struct chart *c, double y)
{
    return c->top + c->height * (1 - share(y, c->y0, c->y1));
}

static void line(const struct chart *c, const char *class, double x0, double y0, double x1,
                 double y1)
{
    fprintf(c->f, "<line class='%s' x1='%.1f' y1='%.1f' x2='%.1f' y2='%.1f'/>\n", class,
            chart_x(c, x0), chart_y(c, y0), chart_x(c, x1), chart_y(c, y1));
}

void chart_mark_x(const struct chart *c, double x) { line(c, "mark", x, c->y0, x, c->y1); }
void chart_mark_y(const struct chart *c, double y) { line(c, "mark", c->x0, y, c->x1, y); }

static void label(const struct chart *c, double x, double y, const char *anchor, bool power,
                  double v)
{
    fprintf(c->f, "<text x='%.1f' y='%.1f' text-anchor='%s'>", x, y, anchor);
    if (power)
        fprintf(c->f, "10<tspan dy='-5' font-size='9'>%.0f</tspan></text>\n", v);
    else
        fprintf(c->f, "%.10g</text>\n", v);
}

/* 1, 2 or 5 times a power of ten, five or so to the range. */
static double step_of(double range)
{
    double raw = range / 5, power = pow(10, floor(log10(raw))), m = raw / power;
    return (m < 1.5 ? 1 : m < 3.5 ? 2 : m < 7.5 ? 5 : 10) * power;
}

/* The ticks from lo to hi: the first as a number of steps, and how many. */
static int ticks(double lo, double hi, bool power, double *step, double *first)
{
    *step = power ? 1 : step_of(hi - lo);
    *first = ceil(lo / *step - 1e-9);
    return (int)fmin(floor(hi / *step + 1e-9) - *first + 1, 40);
}

static void words(const struct chart *c, const char *s)
{
    text_xml(c->f, s);
    fputs("</text>\n", c->f);
}

void chart_axes(const struct chart *c)
{
    int bottom = c->top + c->height, n;
    double step, first;
    n = ticks(c->x0, c->x1, c->log_x, &step, &first);
    for (int i = 0; i < n; i++) {
        double x = (first + i) * step;
        line(c, "grid", x, c->y0, x, c->y1);
        label(c, chart_x(c, x), bottom + 17, "middle", c->log_x, x);
    }
    n = ticks(c->y0, c->y1, c->log_y, &step, &first);
    for (int i = 0; i < n; i++) {
        double y = (first + i) * step;
        line(c, "grid", c->x0, y, c->x1, y);
        label(c, c->left - 7, chart_y(c, y) + 4, "end", c->log_y, y);
    }
    if (c->title) {
        fprintf(c->f, "<text x='%d' y='%d' font-size='14'>", c->left, c->top - 10);
        words(c, c->title);
    }
    if (c->x_title) {
        fprintf(c->f, "<text x='%d' y='%d' text-anchor='middle'>", c->left + c->width / 2,
                bottom + 34);
        words(c, c->x_title);
    }
    if (c->y_title) {
        fprintf(c->f, "<text transform='translate(%d %d) rotate(-90)' text-anchor='middle'>",
                c->left - 60, c->top + c->height / 2);
        words(c, c->y_title);
    }
    fprintf(c->f,
            "<rect class='frame' x='%d' y='%d' width='%d' height='%d'/>\n"
            "<clipPath id='c%d'><rect x='%d' y='%d' width='%d' height='%d'/></clipPath>\n"
            "<g clip-path='url(#c%d)'>\n",
            c->left, c->top, c->width, c->height, c->top, c->left, c->top, c->width, c->height,
            c->top);
}

void chart_axes_end(const struct chart *c) { fputs("</g>\n", c->f); }

static void stroke(FILE *f, int which, double wide)
{
    int cycle = which / COLOURS % CYCLES;
    fprintf(f, "class='curve' stroke='%s' stroke-dasharray='%s' stroke-width='%g'",
            chart_colour(which), cycle ? cycle_dashes[cycle] : dashes[which % COLOURS], wide);
}

void chart_curve(const struct chart *c, int which, double pixels_wide)
{
    fputs("<polyline ", c->f);
    stroke(c->f, which, pixels_wide);
    fputs(" points='", c->f);
}

void chart_to(const struct chart *c, double x, double y)
{
    if (!isnan(x) && !isnan(y))
        fprintf(c->f, "%.1f,%.1f ", chart_x(c, x), chart_y(c, y));
}

void chart_curve_end(const struct chart *c, const char *name)
{
    fputs("'>", c->f);
    if (name) {
        fputs("<title>", c->f);
        text_xml(c->f, name);
        fputs("</title>", c->f);
    }
    fputs("</polyline>\n", c->f);
}

void chart_legend(FILE *f, int x, int y, int which, const char *name, const char *note)
{
    fputs("<path ", f);
    stroke(f, which, 3);
    fprintf(f, " d='M%d %dh24'/><text x='%d' y='%d'>", x, y - 4, x + 32, y);
    text_xml(f, name);
    text_xml(f, note);
    fputs("</text>\n", f);
}

void chart_legend_more(FILE *f, int x, int y, int n)
{
    fprintf(f, "<text x='%d' y='%d'>+%d more</text>\n", x + 32, y, n);
}
