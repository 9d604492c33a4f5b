/* transpose.c - dst = src^T, or dst += mix src^T, in tiles that stay in the cache. */
#include "ops/cpu.h"

enum { TILE = 32 };

void cpu_transpose(struct ops *o, struct tensor dst, struct tensor src, real mix)
{
    real in[TILE][TILE], out[TILE][TILE];

    assert(dst.rows == src.cols && dst.cols == src.rows);
    if (cpu_failed(o))
        return;
    for (int64_t r = 0; r < src.rows; r += TILE) {
        int64_t nr = src.rows - r < TILE ? src.rows - r : TILE;
        for (int64_t c = 0; c < src.cols; c += TILE) {
            int64_t nc = src.cols - c < TILE ? src.cols - c : TILE;
            for (int64_t i = 0; i < nr; i++)
                real_read(in[i], src, (r + i) * src.cols + c, nc);
            for (int64_t j = 0; j < nc; j++)
                for (int64_t i = 0; i < nr; i++)
                    out[j][i] = mix == 0 ? in[i][j] : mix * in[i][j];
            for (int64_t j = 0; j < nc; j++)
                real_write(dst, (c + j) * dst.cols + r, out[j], nr, mix != 0);
        }
    }
}
