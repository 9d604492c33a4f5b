/* norm.c - the norm of rows with a gain for each channel, and back (track-3.md 2). */
#include "ops/norm.h"

void cpu_norm(struct ops *o, struct tensor y, struct tensor x, struct tensor gain)
{
    int64_t width = x.cols;
    const real *g = real_view(o, 0, gain);

    if (cpu_failed(o))
        return;
    assert(y.rows == x.rows && y.cols == width && (!g || tensor_count(gain) == width));
    for (int64_t t = 0; t < x.rows; t++) {
        real *to = real_ptr(y) + t * width;
        norm_row(to, real_ptr(x) + t * width, width);
        for (int64_t i = 0; i < width && g; i++)
            to[i] *= g[i];
    }
}

void cpu_norm_bwd(struct ops *o, struct tensor dx, bool add, struct tensor dgain, struct tensor dy,
                  struct tensor x, struct tensor gain)
{
    int64_t width = x.cols;
    const real *g = real_view(o, 0, gain);
    real *dz = cpu_scratch(o, 1, width), *sum = cpu_scratch(o, 2, width);

    if (cpu_failed(o))
        return;
    assert(dx.rows == x.rows && dy.rows == x.rows && dy.cols == width && dx.cols == width);
    memset(sum, 0, (size_t)width * sizeof *sum);
    for (int64_t t = 0; t < x.rows; t++) {
        const real *from = real_ptr(x) + t * width, *d = real_ptr(dy) + t * width;
        real r = norm_factor(from, width), *to = real_ptr(dx) + t * width;
        for (int64_t i = 0; i < width; i++) {
            dz[i] = g ? g[i] * d[i] : d[i];
            sum[i] += r * from[i] * d[i];
        }
        norm_row_bwd(dz, dz, from, width);
        for (int64_t i = 0; i < width; i++)
            to[i] = add ? to[i] + dz[i] : dz[i];
    }
    if (has(gain))
        real_write(dgain, 0, sum, width, true);
}
