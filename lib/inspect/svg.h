/* svg.h - curves on a logarithmic axis, as a picture that stands alone.
 *
 *     struct svg_curve c[] = { { "layers.0.attn.q", "attn.q", sigma, 768 } };
 *     svg_curves(f, "singular values", "share of the rank", "sigma / largest", c, 1);
 *
 * y is drawn from its largest power of ten down eight at most; x is the place of a
 * value in its curve, 0 to 1. Curves of one group share a colour and a line of the
 * legend; each shows its name to a pointer that rests on it. Check ferror(f).
 */
#ifndef INSPECT_SVG_H
#define INSPECT_SVG_H

#include <stdio.h>

struct svg_curve {
    const char *name, *group;
    const double *y;
    int n;
};
void svg_curves(FILE *f, const char *title, const char *x_title, const char *y_title,
                const struct svg_curve *c, int n);

#endif
