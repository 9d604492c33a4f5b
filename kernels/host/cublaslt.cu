/* cublaslt.cu - cuBLASLt's functions, of its library when the first of them is called.
 *
 * To relocate its 540 MB takes 58 of a start's 64 ms (CUDA 13.0, AMD EPYC, 2026-11-27): --help, --plan
 * and runs on a CPU do without it. Where it cannot be loaded, a function returns
 * CUBLAS_STATUS_NOT_INITIALIZED, whose text says why.
 */
#include <cublasLt.h>
#include <dlfcn.h>
#include <string.h>

#define TEXT(x) #x
#define LIBRARY(version) "libcublasLt.so." TEXT(version)

static const char *problem = "lacks a function of " LIBRARY(CUBLAS_VER_MAJOR);

static void *load(void)
{
    void *lib = dlopen(LIBRARY(CUBLAS_VER_MAJOR), RTLD_LAZY);
    const char *why = lib ? NULL : strdup(dlerror());

    if (why)
        problem = why;
    return lib;
}

static void *find(const char *name)
{
    static void *const lib = load();
    return lib ? dlsym(lib, name) : NULL;
}

#define FORWARD(type, otherwise, name, parameters, arguments) \
    type name parameters \
    { \
        static auto *const f = (decltype(&name))find(#name); \
        return f ? f arguments : otherwise; \
    }
#define STATUS(name, parameters, arguments) \
    FORWARD(cublasStatus_t, CUBLAS_STATUS_NOT_INITIALIZED, name, parameters, arguments)

FORWARD(size_t, 0, cublasLtGetVersion, (void), ())
FORWARD(const char *, problem, cublasLtGetStatusString, (cublasStatus_t s), (s))

STATUS(cublasLtCreate, (cublasLtHandle_t * lt), (lt))
STATUS(cublasLtDestroy, (cublasLtHandle_t lt), (lt))

/* Defines the functions that are alike for each kind of object. */
#define OBJECT(object, attribute) \
    STATUS(object##Destroy, (object##_t x), (x)) \
    STATUS(object##SetAttribute, (object##_t x, attribute what, const void *value, size_t size), \
           (x, what, value, size))
OBJECT(cublasLtMatrixLayout, cublasLtMatrixLayoutAttribute_t)
OBJECT(cublasLtMatmulDesc, cublasLtMatmulDescAttributes_t)
OBJECT(cublasLtMatmulPreference, cublasLtMatmulPreferenceAttributes_t)

STATUS(cublasLtMatrixLayoutCreate,
       (cublasLtMatrixLayout_t * m, cudaDataType type, uint64_t rows, uint64_t cols, int64_t ld),
       (m, type, rows, cols, ld))
STATUS(cublasLtMatmulDescCreate,
       (cublasLtMatmulDesc_t * desc, cublasComputeType_t compute, cudaDataType_t scale),
       (desc, compute, scale))
STATUS(cublasLtMatmulPreferenceCreate, (cublasLtMatmulPreference_t * p), (p))
STATUS(cublasLtMatmulAlgoGetHeuristic,
       (cublasLtHandle_t lt, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
        cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
        cublasLtMatmulPreference_t p, int most, cublasLtMatmulHeuristicResult_t *found, int *count),
       (lt, desc, a, b, c, d, p, most, found, count))
STATUS(cublasLtMatmulAlgoConfigGetAttribute,
       (const cublasLtMatmulAlgo_t *algo, cublasLtMatmulAlgoConfigAttributes_t what, void *value,
        size_t size, size_t *written),
       (algo, what, value, size, written))
STATUS(cublasLtMatmul,
       (cublasLtHandle_t lt, cublasLtMatmulDesc_t desc, const void *alpha, const void *a,
        cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout,
        const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *d,
        cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo, void *workspace,
        size_t size, cudaStream_t stream),
       (lt, desc, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout, algo, workspace,
        size, stream))
