/* exp_test.c - exponentials of the vector loops: their errors against f64, NaN, and the same
 * bits on every instruction set that has a fused multiply-add. */
#include <float.h>
#include "types/dtype.h"
#include "check.h"
#include "ops/cpu.h"

enum { BATCH = 1000 };

SIMD_VERSIONS(exps, (float *y, const float *x, int64_t n), (y, x, n))
{
    for (int64_t i = 0; i < n; i++)
        y[i] = real_exp(fused, x[i]);
}
SIMD_VERSIONS(powers, (float *y, const float *x, int64_t n), (y, x, n))
{
    for (int64_t i = 0; i < n; i++)
        y[i] = real_exp2(fused, x[i]);
}
SIMD_VERSIONS(limited, (float *y, const float *x, int64_t n), (y, x, n))
{
    for (int64_t i = 0; i < n; i++)
        y[i] = real_limit(fused, x[i]);
}

typedef void batch_fn(float *y, const float *x, int64_t n);

/* |y - want| in units of y's last place. */
static double units(float y, double want)
{
    int exponent;
    frexp(want, &exponent);
    return fabs((double)y - want) / ldexp(1, exponent - 24);
}

/* The greatest error over every 997th float from first to last, on set s; on others the same bits. */
static double worst_of(batch_fn *f, double (*exact)(double), float first, float last, enum simd s)
{
    double worst = 0;
    bool same = true;

    for (uint32_t at = f32_bits(first); at <= f32_bits(last); at += 997 * BATCH) {
        float x[BATCH], y[BATCH], other[BATCH];
        for (uint32_t i = 0; i < BATCH; i++) {
            x[i] = f32_from_bits(at + 997 * i);
            x[i] = fabsf(x[i]) <= fabsf(last) ? x[i] : last;
        }
        simd_limit(s);
        f(y, x, BATCH);
        for (enum simd t = SIMD_FMA; t < SIMD_SETS && s != SIMD_NONE; t++) {
            simd_limit(t);
            f(other, x, BATCH);
            same &= !memcmp(other, y, sizeof y);
        }
        for (int i = 0; i < BATCH; i++) {
            double off = units(y[i], exact((double)x[i]));
            worst = off <= worst ? worst : off;
        }
    }
    simd_limit(SIMD_SETS);
    CHECK(same);
    return worst;
}

static double within_126(double x) { return x < -126 ? -126 : x > 126 ? 126 : x; }

int main(void)
{
    const float nan_in[2] = { NAN, f32_from_bits(0xffffffff) };
    float out[2];

    for (enum simd s = SIMD_NONE; s < SIMD_SETS; s++) {
        double bound = s == SIMD_NONE ? 2 : 1.5;
        simd_limit(s);
        if (simd_get() != s)
            continue;
        CHECK(worst_of(exps, exp, 0, 87, s) <= bound);
        CHECK(worst_of(exps, exp, -0.0f, -87, s) <= bound);
        CHECK(worst_of(powers, exp2, 0, 126, s) <= 4);
        CHECK(worst_of(powers, exp2, -0.0f, -126, s) <= 4);
        CHECK(worst_of(limited, within_126, 0, FLT_MAX, s) <= 0);
        CHECK(worst_of(limited, within_126, -0.0f, -FLT_MAX, s) <= 0);
        simd_limit(s);
        exps(out, nan_in, 2);
        CHECK(isnan(out[0]) && isnan(out[1]));
        powers(out, nan_in, 2);
        CHECK(isnan(out[0]) && isnan(out[1]));
        limited(out, nan_in, 2);
        CHECK(isnan(out[0]) && isnan(out[1]));
        exps(out, (float[]){ -INFINITY, 1000 }, 2);
        CHECK_NEAR(out[0], 0, 2e-38);
        CHECK(out[1] > 6e37f && isfinite(out[1]));
        simd_limit(SIMD_SETS);
    }
    return check_done();
}
