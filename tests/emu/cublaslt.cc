/* cublaslt.cc - the part of cuBLASLt that gemm.cu uses, as plain sums in f32. */
#include "emu.h"

#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

struct description {
    int32_t ta, tb, device_scale;
};
struct matrix {
    cudaDataType_t type;
    int64_t rows, cols, ld;
    int32_t batch;
    int64_t stride;
};

static size_t size_of(cudaDataType_t t)
{
    return t == CUDA_R_32F ? 4 : t == CUDA_R_16BF || t == CUDA_R_16F ? 2 : 1;
}

static float read(const matrix &m, const void *p, int64_t i)
{
    switch (m.type) {
    case CUDA_R_32F: return ((const float *)p)[i];
    case CUDA_R_16BF: return __bfloat162float(((const __nv_bfloat16 *)p)[i]);
    case CUDA_R_16F: return __half2float(((const __half *)p)[i]);
    case CUDA_R_8F_E4M3: return (float)((const __nv_fp8_e4m3 *)p)[i];
    default: return (float)((const __nv_fp8_e5m2 *)p)[i];
    }
}

/* op(m) (rows, cols), row by row; column-major m, as it is or transposed. */
static std::vector<float> rows_of(const matrix &m, const void *p, bool transposed)
{
    std::vector<float> x((size_t)(m.rows * m.cols));
    for (int64_t c = 0; c < m.cols; c++)
        for (int64_t r = 0; r < m.rows; r++)
            x[transposed ? c * m.rows + r : r * m.cols + c] = read(m, p, c * m.ld + r);
    return x;
}

/* d = alpha op(a) op(b) + beta c, column-major. */
static void multiply(const description &f, float alpha, const matrix &ma, const void *a,
                     const matrix &mb, const void *b, float beta, const void *c, const matrix &md,
                     void *d)
{
    std::vector<float> x = rows_of(ma, a, f.ta), y = rows_of(mb, b, !f.tb); /* y: columns of b */
    int64_t k = f.ta ? ma.rows : ma.cols;
    std::vector<float> sum(md.rows), turned((size_t)(k * md.rows));

    for (int64_t i = 0; i < md.rows; i++)
        for (int64_t l = 0; l < k; l++)
            turned[l * md.rows + i] = x[i * k + l];
    for (int64_t j = 0; j < md.cols; j++) {
        std::fill(sum.begin(), sum.end(), 0.0f);
        for (int64_t l = 0; l < k; l++)
            for (int64_t i = 0; i < md.rows; i++)
                sum[i] += turned[l * md.rows + i] * y[j * k + l];
        for (int64_t i = 0; i < md.rows; i++) {
            int64_t at = j * md.ld + i;
            float r = alpha * sum[i] + (beta ? beta * read(md, c, at) : 0);
            if (md.type == CUDA_R_32F)
                ((float *)d)[at] = r;
            else if (md.type == CUDA_R_16F)
                ((__half *)d)[at] = __float2half_rn(r);
            else
                ((__nv_bfloat16 *)d)[at] = __float2bfloat16(r);
        }
    }
}

extern "C" {

size_t cublasLtGetVersion(void) { return CUBLAS_VERSION; }
const char *cublasLtGetStatusString(cublasStatus_t) { return "refused by the emulation"; }
cublasStatus_t cublasLtCreate(cublasLtHandle_t *h)
{
    *h = NULL;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t) { return CUBLAS_STATUS_SUCCESS; }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *d, cublasComputeType_t,
                                        cudaDataType_t)
{
    *d = (cublasLtMatmulDesc_t) new description();
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d)
{
    delete (description *)d;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t to,
                                              cublasLtMatmulDescAttributes_t what, const void *p,
                                              size_t)
{
    description *d = (description *)to;
    switch (what) {
    case CUBLASLT_MATMUL_DESC_TRANSA: d->ta = *(int32_t *)p == CUBLAS_OP_T; break;
    case CUBLASLT_MATMUL_DESC_TRANSB: d->tb = *(int32_t *)p == CUBLAS_OP_T; break;
    case CUBLASLT_MATMUL_DESC_POINTER_MODE:
        d->device_scale = *(int32_t *)p == CUBLASLT_POINTER_MODE_DEVICE;
        break;
    case CUBLASLT_MATMUL_DESC_FAST_ACCUM: break;
    default: return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *l, cudaDataType_t type,
                                          uint64_t rows, uint64_t cols, int64_t ld)
{
    *l = (cublasLtMatrixLayout_t) new matrix{ type, (int64_t)rows, (int64_t)cols, ld, 1, 0 };
    return ld >= (int64_t)rows ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l)
{
    delete (matrix *)l;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t l,
                                                cublasLtMatrixLayoutAttribute_t what, const void *p,
                                                size_t)
{
    if (what == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT)
        ((matrix *)l)->batch = *(int32_t *)p;
    else if (what == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET)
        ((matrix *)l)->stride = *(int64_t *)p;
    else
        return CUBLAS_STATUS_NOT_SUPPORTED;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *p)
{
    *p = NULL;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t)
{
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t,
                                                    cublasLtMatmulPreferenceAttributes_t,
                                                    const void *, size_t)
{
    return CUBLAS_STATUS_SUCCESS;
}

/* One algorithm. fp8: both contiguous along the sum, leading dimensions and places by 16 bytes. */
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t la, cublasLtMatrixLayout_t lb,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t ld,
                                              cublasLtMatmulPreference_t, int,
                                              cublasLtMatmulHeuristicResult_t *found, int *n)
{
    const description *f = (const description *)desc;
    const matrix *a = (const matrix *)la, *b = (const matrix *)lb, *d = (const matrix *)ld;
    bool fp8 = size_of(a->type) == 1,
         ok = (f->ta ? a->cols : a->rows) == d->rows && (f->tb ? b->rows : b->cols) == d->cols &&
              (f->ta ? a->rows : a->cols) == (f->tb ? b->cols : b->rows);

    if (fp8)
        ok = ok && f->ta && !f->tb && a->ld % 16 == 0 && b->ld % 16 == 0 && a->rows % 16 == 0 &&
             d->rows % 16 == 0 && d->ld * size_of(d->type) % 16 == 0 &&
             !(a->type == CUDA_R_8F_E5M2 && b->type == CUDA_R_8F_E5M2);
    else
        ok = ok && (a->type == CUDA_R_16BF || (a->type == CUDA_R_16F && d->type != CUDA_R_16BF)) &&
             b->type == a->type && (d->type != CUDA_R_16F || a->type == CUDA_R_16F);
    memset(found, 0, sizeof *found);
    *n = ok;
    return ok ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}
cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *,
                                                    cublasLtMatmulAlgoConfigAttributes_t, void *p,
                                                    size_t size, size_t *written)
{
    memset(p, 0, size);
    *written = size;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t la, const void *b,
                              cublasLtMatrixLayout_t lb, const void *beta, const void *c,
                              cublasLtMatrixLayout_t, void *d, cublasLtMatrixLayout_t ld,
                              const cublasLtMatmulAlgo_t *, void *, size_t, cudaStream_t stream)
{
    const description f = *(const description *)desc;
    const matrix ma = *(const matrix *)la, mb = *(const matrix *)lb, md = *(const matrix *)ld;
    bool fp8 = size_of(ma.type) == 1;
    float now_alpha = f.device_scale ? 0 : *(const float *)alpha;
    float now_beta = f.device_scale ? 0 : *(const float *)beta;

    if (fp8 && ((uintptr_t)a | (uintptr_t)b | (uintptr_t)d) % 16)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    emu::launch("cuBLASLt", emu::shape(1, 1, 0, stream), 1, [=] {
        for (int64_t i = 0; i < md.batch; i++)
            multiply(f, f.device_scale ? *(const float *)alpha : now_alpha, ma,
                     (const char *)a + i * ma.stride * size_of(ma.type), mb,
                     (const char *)b + i * mb.stride * size_of(mb.type),
                     f.device_scale ? *(const float *)beta : now_beta,
                     (const char *)c + i * md.stride * size_of(md.type), md,
                     (char *)d + i * md.stride * size_of(md.type));
    });
    return CUBLAS_STATUS_SUCCESS;
}

} /* extern "C" */
