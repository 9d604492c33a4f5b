#include "coeffs/svg.h"

#include <math.h>
#include "base/chart.h"

/* Layout in pixels: two panels of the same width, a legend to the right. */
enum { LEFT = 60, WIDTH = 640, LEGEND = 170, TOP = 30, HEIGHT = 240, GAP = 50, SAMPLES = 1600 };

static void panel(const struct chart *p, const struct coeffs *c, int n, double lower, double upper)
{
    chart_axes(p);
    chart_mark_x(p, log10(lower));
    chart_mark_x(p, log10(upper));
    for (int i = 0; i < n; i++) {
        chart_curve(p, i, 1.6);
        for (int k = 0; k <= SAMPLES; k++) {
            double decade = p->x0 + (p->x1 - p->x0) * k / SAMPLES;
            double y = coeffs_value(&c[i], pow(10, decade));
            chart_to(p, decade, p->log_y ? log10(fmax(fabs(1 - y), 1e-30)) : y);
        }
        chart_curve_end(p, c[i].name);
    }
    chart_axes_end(p);
}

void svg_plot(FILE *f, const struct coeffs *c, int n, double lower, double upper)
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
                 below = above;
    below.top += HEIGHT + GAP;
    below.y0 = -6;
    below.y1 = 0.3;
    below.log_y = true;
    below.title = "|1 - f(x)|";
    below.x_title = "singular value x of the scaled input";
    chart_begin(f, LEFT + WIDTH + LEGEND, below.top + HEIGHT + 44);
    panel(&above, c, n, lower, upper);
    panel(&below, c, n, lower, upper);
    for (int i = 0; i < n; i++)
        chart_legend(f, LEFT + WIDTH + 12, TOP + 12 + 20 * i, i, c[i].name, "");
    chart_end(f);
}
