/* transpose.c - dst = src^T, or dst += mix src^T, in tiles that stay in the cache. */
#include "ops/cpu.h"

enum { TILE = 32, PART = 32 * TILE };

struct job {
    struct tensor dst, src;
    const real *mix;
};

/* Columns `first` .. of src, which are rows of dst. */
static void some_columns(void *arg, int64_t first, int64_t n, int thread)
{
    const struct job *j = arg;
    struct tensor dst = j->dst, src = j->src;
    real in[TILE][TILE], out[TILE][TILE], mix = j->mix ? *j->mix : 1;

    (void)thread;
    for (int64_t r = 0; r < src.rows; r += TILE) {
        int64_t nr = src.rows - r < TILE ? src.rows - r : TILE;
        for (int64_t c = first; c < first + n; c += TILE) {
            int64_t nc = first + n - c < TILE ? first + n - c : TILE;
            for (int64_t i = 0; i < nr; i++)
                real_read(in[i], src, (r + i) * src.cols + c, nc);
            for (int64_t k = 0; k < nc; k++)
                for (int64_t i = 0; i < nr; i++)
                    out[k][i] = mix * in[i][k];
            for (int64_t k = 0; k < nc; k++)
                real_write(dst, (c + k) * dst.cols + r, out[k], nr, j->mix);
        }
    }
}

void cpu_transpose(struct ops *o, struct tensor dst, struct tensor src, const real *mix)
{
    struct job job = { dst, src, mix };

    assert(dst.rows == src.cols && dst.cols == src.rows);
    if (!cpu_failed(o))
        cpu_split(o, src.cols, PART, some_columns, &job);
}
