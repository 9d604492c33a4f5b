#include "polar/svg.h"

#include <math.h>
#include "base/text.h"

/* Layout in pixels: two panels of the same width, a legend to the right. */
enum { LEFT = 60, WIDTH = 640, LEGEND = 170, TOP = 20, HEIGHT = 240, GAP = 44, SAMPLES = 1600 };
enum { TOTAL_WIDTH = LEFT + WIDTH + LEGEND, TOTAL_HEIGHT = TOP + 2 * HEIGHT + GAP + 44 };
/* Okabe and Ito's colours, told apart by most eyes, and dashes for the others. */
static const char *const colour[SVG_TABLES] = {
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a8a8a", "#a08000",
};
static const char *const dash[SVG_TABLES] = {
    "none", "none", "none", "none", "6 3", "6 3", "2 2", "8 2 2 2"
};

struct panel {
    int top;
    double x0, x1;              /* decades: log10 of the ends */
    double y0, y1;              /* ends of the scale; decades when logarithmic */
};

static double place_x(const struct panel *p, double decade)
{
    return LEFT + WIDTH * (decade - p->x0) / (p->x1 - p->x0);
}

static double place_y(const struct panel *p, double y)
{
    double t = (y - p->y0) / (p->y1 - p->y0);
    t = t > 1.02 ? 1.02 : t < -0.02 ? -0.02 : t;
    return p->top + HEIGHT * (1 - t);
}

static void text(FILE *f, double x, double y, const char *anchor, const char *words)
{
    fprintf(f, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
    text_xml(f, words);
    fputs("</text>\n", f);
}

static void line(FILE *f, const char *class, double x0, double y0, double x1, double y1)
{
    fprintf(f, "<path class=\"%s\" d=\"M%.1f %.1fL%.1f %.1f\"/>\n", class, x0, y0, x1, y1);
}

static void frame(FILE *f, const struct panel *p, double lower, double upper)
{
    char label[32];
    for (int d = (int)ceil(p->x0); d <= p->x1; d++) {
        line(f, "grid", place_x(p, d), p->top, place_x(p, d), p->top + HEIGHT);
        snprintf(label, sizeof label, "1e%d", d);
        text(f, place_x(p, d), p->top + HEIGHT + 14, "middle", label);
    }
    line(f, "ends", place_x(p, log10(lower)), p->top, place_x(p, log10(lower)), p->top + HEIGHT);
    line(f, "ends", place_x(p, log10(upper)), p->top, place_x(p, log10(upper)), p->top + HEIGHT);
    fprintf(f, "<rect class=\"frame\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/>\n", LEFT,
            p->top, WIDTH, HEIGHT);
}

static void level(FILE *f, const struct panel *p, double y, const char *label)
{
    line(f, "grid", LEFT, place_y(p, y), LEFT + WIDTH, place_y(p, y));
    text(f, LEFT - 6, place_y(p, y) + 4, "end", label);
}

static void curve(FILE *f, const struct panel *p, const struct coeffs *c, int which, int error)
{
    fprintf(f, "<path class=\"curve\" stroke=\"%s\" stroke-dasharray=\"%s\" d=\"", colour[which],
            dash[which]);
    for (int i = 0; i <= SAMPLES; i++) {
        double decade = p->x0 + (p->x1 - p->x0) * i / SAMPLES, y = coeffs_value(c, pow(10, decade));
        if (error)
            y = log10(fmax(fabs(1 - y), 1e-30));
        fprintf(f, "%c%.1f %.2f", i ? 'L' : 'M', place_x(p, decade), place_y(p, y));
    }
    fputs("\"/>\n", f);
}

void svg_plot(FILE *f, const struct coeffs *c, int n, double lower, double upper)
{
    struct panel above = { TOP, log10(lower / 10), log10(1.3 * upper), 0, 1.5 }, below = above;
    below.top = TOP + HEIGHT + GAP;
    below.y0 = -6;
    below.y1 = 0.3;
    fprintf(f, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
            "viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" font-size=\"12\">\n",
            TOTAL_WIDTH, TOTAL_HEIGHT, TOTAL_WIDTH, TOTAL_HEIGHT);
    fputs("<style>.grid{stroke:#8884;fill:none}.ends{stroke:#888;stroke-dasharray:3 3;fill:none}"
          ".frame{stroke:#888;fill:none}.curve{fill:none;stroke-width:1.6}text{fill:#333}"
          "@media(prefers-color-scheme:dark){text{fill:#ddd}}</style>\n", f);
    for (int k = 0; k < 2; k++)
        fprintf(f, "<clipPath id=\"%c\"><rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/>"
                "</clipPath>\n", 'a' + k, LEFT, k ? below.top : above.top, WIDTH, HEIGHT);
    for (int i = 0; i <= 3; i++) {
        char label[16];
        snprintf(label, sizeof label, "%.1f", 0.5 * i);
        level(f, &above, 0.5 * i, label);
    }
    for (int d = -6; d <= 0; d++) {
        char label[16];
        snprintf(label, sizeof label, "1e%d", d);
        level(f, &below, d, label);
    }
    frame(f, &above, lower, upper);
    frame(f, &below, lower, upper);
    text(f, LEFT + WIDTH / 2, TOP - 6, "middle", "f(x)");
    text(f, LEFT + WIDTH / 2, below.top - 6, "middle", "|1 - f(x)|");
    text(f, LEFT + WIDTH / 2, TOTAL_HEIGHT - 8, "middle", "singular value x of the scaled input");
    for (int k = 0; k < 2; k++) {
        fprintf(f, "<g clip-path=\"url(#%c)\">\n", 'a' + k);
        for (int i = 0; i < n; i++)
            curve(f, k ? &below : &above, &c[i], i, k);
        fputs("</g>\n", f);
    }
    for (int i = 0; i < n; i++) {
        double y = TOP + 12 + 20 * i, x = LEFT + WIDTH + 12;
        fprintf(f, "<path class=\"curve\" stroke=\"%s\" stroke-dasharray=\"%s\" "
                "d=\"M%.1f %.1fL%.1f %.1f\"/>\n", colour[i], dash[i], x, y, x + 24, y);
        text(f, x + 30, y + 4, "start", c[i].name);
    }
    fputs("</svg>\n", f);
}
