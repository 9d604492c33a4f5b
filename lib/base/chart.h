/* chart.h - panels with axes in one SVG: grid, ticks, curves, a legend; light or dark as the
 * system of the viewer.
 *
 *     struct chart c = { .f = f, .left = 80, .top = 34, .width = 600, .height = 200,
 *                        .x0 = 0, .x1 = steps, .y0 = -4, .y1 = 0, .log_y = true,
 *                        .title = "loss", .x_title = "step", .y_title = "loss" };
 *     chart_begin(f, 700, 300);
 *     chart_axes(&c);
 *     chart_curve(&c, 0, 1.6);                  // of the first colour
 *     for (int i = 0; i < n; i++)
 *         chart_to(&c, i, log10(y[i]));
 *     chart_curve_end(&c, "run 1");
 *     chart_axes_end(&c);
 *     chart_end(f);
 *
 * left, top, width and height are pixels, all else is in the units of its axis; on a logarithmic
 * one that is powers of ten; where it spans less than one its labels are values. The caller checks the stream. Thread-safe.
 */
#ifndef BASE_CHART_H
#define BASE_CHART_H

#include <stdbool.h>
#include <stdio.h>
#include "base/file.h"

struct chart {
    FILE *f;
    int left, top, width, height;
    double x0, x1, y0, y1; /* at the edges */
    bool log_x, log_y;
    const char *title, *x_title, *y_title; /* NULL: none */
};

/* Opens a picture's file; a name of another format (.png) is GPT_USAGE, and says how to make one. */
int chart_open(struct output *out, const char *path, bool force) MUST_CHECK;
/* A viewer that is narrower than the picture shows it as wide as it can. */
void chart_begin(FILE *f, int width, int height);
void chart_end(FILE *f);

/* Frame, grid, labels and titles; what is drawn up to chart_axes_end is cut off at the frame. No
 * two charts of a picture have the same top. */
void chart_axes(const struct chart *c);
void chart_axes_end(const struct chart *c);
/* Dashed, from edge to edge. */
void chart_mark_x(const struct chart *c, double x);
void chart_mark_y(const struct chart *c, double y);

enum { CHART_STYLES = 32 }; /* strokes that differ */
/* One of eight colours that differ for most eyes (Okabe and Ito), the last four dashed, then again
 * with other dashes.
 * NaN is left out. The name is the tooltip of the curve; NULL: none. */
void chart_curve(const struct chart *c, int which, double pixels_wide);
void chart_to(const struct chart *c, double x, double y);
void chart_curve_end(const struct chart *c, const char *name);
/* A sample of the curve's stroke followed by name and note, at this position in pixels. */
void chart_legend(FILE *f, int x, int y, int which, const char *name, const char *note);
/* In place of the entries beyond CHART_STYLES: how many they are. */
void chart_legend_more(FILE *f, int x, int y, int n);

/* For other shapes: the position in pixels, at most one panel outside of this one. */
double chart_x(const struct chart *c, double x);
double chart_y(const struct chart *c, double y);
const char *chart_colour(int which);

#endif
