/* pair_signs.c - signs by the two last tokens (record-84.md 3). */
#include "ops/cpu.h"

void cpu_pair_signs(struct ops *o, struct tensor x, struct tensor signs, const struct batch *b)
{
    const real *s = real_view(o, 0, signs);

    if (cpu_failed(o))
        return;
    assert(x.rows == b->tokens && x.cols == signs.cols);
    for (int64_t t = 0; t < x.rows; t++) {
        int32_t before = b->before ? b->before[t] : t ? b->token.row[t - 1] : -1;
        int64_t row = before < 0 ? 0 : (before ^ b->token.row[t]) % signs.rows;
        real *xt = real_ptr(x) + t * x.cols;
        for (int64_t i = 0; i < x.cols; i++)
            xt[i] *= s[row * x.cols + i];
    }
}
