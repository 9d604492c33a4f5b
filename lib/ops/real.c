/* real.c - elements of any float type read and written, and the one BLAS call. */
#include "ops/real.h"

#include <cblas.h>
#include "ops/cpu.h"

void real_read(real *dst, struct tensor t, int64_t first, int64_t n)
{
    if (is_real(t)) {
        memcpy(dst, (const real *)t.data + first, (size_t)n * sizeof(real));
    } else if (t.dtype == DT_BF16) {
        const uint16_t *s = (const uint16_t *)t.data + first;
        for (int64_t i = 0; i < n; i++)
            dst[i] = bf16_to_f32(s[i]);
    } else {
        for (int64_t i = 0; i < n; i++)
            dst[i] = real_get(t, first + i);
    }
}

void real_write(struct tensor t, int64_t first, const real *src, int64_t n, bool add)
{
    if (is_real(t)) {
        real *d = (real *)t.data + first;
        for (int64_t i = 0; i < n; i++)
            d[i] = add ? d[i] + src[i] : src[i];
    } else if (t.dtype == DT_BF16) {
        uint16_t *d = (uint16_t *)t.data + first;
        for (int64_t i = 0; i < n; i++)
            d[i] = bf16_from_f32((float)(add ? bf16_to_f32(d[i]) + src[i] : src[i]));
    } else {
        for (int64_t i = 0; i < n; i++)
            real_set(t, first + i, add ? real_get(t, first + i) + src[i] : src[i]);
    }
}

const real *real_view(struct ops *o, int slot, struct tensor t)
{
    real *copy;

    if (!has(t))
        return NULL;
    if (is_real(t))
        return t.data;
    copy = cpu_scratch(o, slot, tensor_count(t));
    if (copy)
        real_read(copy, t, 0, tensor_count(t));
    return copy;
}

void real_gemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, real alpha, const real *a,
               int64_t lda, const real *b, int64_t ldb, real beta, real *c, int64_t ldc)
{
    enum CBLAS_TRANSPOSE ca = ta ? CblasTrans : CblasNoTrans, cb = tb ? CblasTrans : CblasNoTrans;

    assert(m <= INT32_MAX && n <= INT32_MAX && k <= INT32_MAX);
#ifdef GPT_OPS_DOUBLE
    cblas_dgemm
#else
    cblas_sgemm
#endif
        (CblasRowMajor, ca, cb, (int)m, (int)n, (int)k, alpha, a, (int)lda, b, (int)ldb, beta, c,
         (int)ldc);
}

real real_dot(const real *a, const real *b, int64_t n)
{
    enum { LANES = 16 };
    real lane[LANES] = { 0 }, sum = 0;
    int64_t i = 0;

    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++)
            lane[j] += a[i + j] * b[i + j];
    for (; i < n; i++)
        lane[i % LANES] += a[i] * b[i];
    for (int j = 0; j < LANES; j++)
        sum += lane[j];
    return sum;
}
