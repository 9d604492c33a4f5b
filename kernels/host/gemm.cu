/* gemm.cu - row-major matrix products through cuBLASLt.
 *
 * cuBLASLt is column-major: out(M,N) row-major is out^T(N,M) to it, so it gets
 * b as its first operand and a as its second. The algorithm for a shape is chosen
 * once, at its first use (also inside a capture: the query launches nothing),
 * and kept. fp8 operands must both be contiguous along K: ta = false, tb = true.
 *
 * cuBLASLt proposes several algorithms, ranked. Its first was up to 33% slower than another on an
 * H200 (table in prefer()), so we choose among the proposals, by what their
 * tiles are: never by timing, which would make results differ from run to run.
 *
 * With g->scale the factors alpha and beta are read on the device, so that a
 * captured graph sees new values.
 */
#include "host/device.h"

#include <cublasLt.h>
#include <stdlib.h>

enum { LT_WORKSPACE = 64 << 20 };

/* All that a choice of algorithm depends on; compared as bytes. */
struct key {
    int64_t m, n, k, lda, ldb, ldo, stride_a, stride_b, stride_out;
    int32_t ta, tb, type_a, type_b, type_out, align_a, align_b, align_out;
    int32_t add, device_scale, fast, alone, batch;
};

struct plan {
    struct key key;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, out; /* a and b as cuBLASLt counts them: ours swapped */
    cublasLtMatmulAlgo_t algo;
};

struct gemm_cache {
    cublasLtHandle_t lt;
    void *workspace;
    struct plan *plans;
    int n;
};

static bool lt_ok(struct cuda_ops *c, cublasStatus_t s, const char *expr, int line)
{
    if (s == CUBLAS_STATUS_SUCCESS)
        return true;
    cuda_fail(c, GPT_DEVICE, "%s:%d: %s: %s", __FILE__, line, expr, cublasLtGetStatusString(s));
    return false;
}
#define LT_TRY(c, expr) lt_ok((c), (expr), #expr, __LINE__)

bool gemm_cache_new(struct cuda_ops *c)
{
    void *workspace = cuda_take(c, LT_WORKSPACE, "matrix products");
    if (!workspace || c->counting)
        return workspace != NULL;
    c->gemm = (struct gemm_cache *)calloc(1, sizeof *c->gemm);
    if (!c->gemm) {
        cuda_fail(c, GPT_SYSTEM, "cannot allocate memory for matrix products");
        return false;
    }
    c->gemm->workspace = workspace;
    return true;
}

bool gemm_begin(struct cuda_ops *c)
{
    return c->gemm->lt || LT_TRY(c, cublasLtCreate(&c->gemm->lt));
}

static void plan_release(struct plan *p)
{
    cublasLtMatrixLayoutDestroy(p->out);
    cublasLtMatrixLayoutDestroy(p->b);
    cublasLtMatrixLayoutDestroy(p->a);
    cublasLtMatmulDescDestroy(p->desc);
}

void gemm_cache_free(struct gemm_cache *g)
{
    if (!g)
        return;
    for (int i = 0; i < g->n; i++)
        plan_release(&g->plans[i]);
    if (g->lt)
        cublasLtDestroy(g->lt);
    free(g->plans);
    free(g);
}

static cudaDataType_t lt_type(enum dtype t)
{
    switch (t) {
    case DT_BF16: return CUDA_R_16BF;
    case DT_F16: return CUDA_R_16F;
    case DT_E4M3: return CUDA_R_8F_E4M3;
    case DT_E5M2: return CUDA_R_8F_E5M2;
    default: assert(t == DT_F32); return CUDA_R_32F;
    }
}

static int alignment(const void *p)
{
    uintptr_t low = (uintptr_t)p & -(uintptr_t)p;
    return low == 0 || low > 256 ? 256 : (int)low;
}

static struct key key_of(const struct gemm *g)
{
    struct key k;

    memset(&k, 0, sizeof k); /* padding too */
    k.m = g->ta ? g->a.cols : g->a.rows;
    k.k = g->ta ? g->a.rows : g->a.cols;
    k.n = g->tb ? g->b.rows : g->b.cols;
    assert(k.k == (g->tb ? g->b.cols : g->b.rows));
    assert(k.m == g->out.rows && k.n == g->out.cols);
    k.lda = g->lda ? g->lda : g->a.cols;
    k.ldb = g->ldb ? g->ldb : g->b.cols;
    k.ldo = g->ldo ? g->ldo : g->out.cols;
    k.ta = g->ta, k.tb = g->tb;
    k.type_a = lt_type(g->a.dtype), k.type_b = lt_type(g->b.dtype);
    k.type_out = lt_type(g->out.dtype);
    k.align_a = alignment(g->a.data), k.align_b = alignment(g->b.data);
    k.align_out = alignment(g->out.data);
    if (g->add.data && alignment(g->add.data) < k.align_out)
        k.align_out = alignment(g->add.data);
    k.add = g->add.data != NULL;
    k.device_scale = g->scale != NULL;
    k.fast = g->fast, k.alone = g->alone;
    k.batch = g->batch > 1 ? g->batch : 1;
    if (k.batch > 1)
        k.stride_a = g->stride_a, k.stride_b = g->stride_b, k.stride_out = g->stride_out;
    return k;
}

static bool layout(struct cuda_ops *c, cublasLtMatrixLayout_t *l, int32_t type, int64_t rows,
                   int64_t cols, int64_t ld, int32_t batch, int64_t stride)
{
    if (!LT_TRY(c, cublasLtMatrixLayoutCreate(l, (cudaDataType_t)type, rows, cols, ld)))
        return false;
    return batch == 1 ||
           (LT_TRY(c, cublasLtMatrixLayoutSetAttribute(*l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
                                                       &batch, sizeof batch)) &&
            LT_TRY(c,
                   cublasLtMatrixLayoutSetAttribute(*l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                                    &stride, sizeof stride)));
}

static bool set(struct cuda_ops *c, struct plan *p, cublasLtMatmulDescAttributes_t what,
                int32_t value)
{
    return LT_TRY(c, cublasLtMatmulDescSetAttribute(p->desc, what, &value, sizeof value));
}

static bool describe(struct cuda_ops *c, struct plan *p)
{
    const struct key *k = &p->key;
    int8_t fast = (int8_t)k->fast;

    return LT_TRY(c, cublasLtMatmulDescCreate(&p->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F)) &&
           set(c, p, CUBLASLT_MATMUL_DESC_TRANSA, k->tb ? CUBLAS_OP_T : CUBLAS_OP_N) &&
           set(c, p, CUBLASLT_MATMUL_DESC_TRANSB, k->ta ? CUBLAS_OP_T : CUBLAS_OP_N) &&
           set(c, p, CUBLASLT_MATMUL_DESC_POINTER_MODE,
               k->device_scale ? CUBLASLT_POINTER_MODE_DEVICE : CUBLASLT_POINTER_MODE_HOST) &&
           LT_TRY(c, cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast,
                                                    sizeof fast)) &&
           layout(c, &p->a, k->type_b, k->tb ? k->k : k->n, k->tb ? k->n : k->k, k->ldb, k->batch,
                  k->stride_b) &&
           layout(c, &p->b, k->type_a, k->ta ? k->m : k->k, k->ta ? k->k : k->m, k->lda, k->batch,
                  k->stride_a) &&
           layout(c, &p->out, k->type_out, k->n, k->m, k->ldo, k->batch, k->stride_out);
}

static bool demand(struct cuda_ops *c, cublasLtMatmulPreference_t pref,
                   cublasLtMatmulPreferenceAttributes_t what, uint32_t value)
{
    return LT_TRY(c, cublasLtMatmulPreferenceSetAttribute(pref, what, &value, sizeof value));
}

/* Tiles whose rate was measured: columns of our result, rows, rate among each other. */
struct tile {
    int id, columns, rows;
    float rate;
    bool fp8_fast;
};
static const struct tile tiles[] = {
    { CUBLASLT_MATMUL_TILE_128x160, 128, 160, 1.00f, false },
    { CUBLASLT_MATMUL_TILE_144x128, 144, 128, 0.985f, false },
    { CUBLASLT_MATMUL_TILE_128x128, 128, 128, 0.975f, false },
    { CUBLASLT_MATMUL_TILE_128x256, 128, 256, 0.92f, false },
    { CUBLASLT_MATMUL_TILE_256x128, 256, 128, 0.92f, false },
    { CUBLASLT_MATMUL_TILE_192x192, 192, 192, 0.90f, false },
    { CUBLASLT_MATMUL_TILE_176x128, 176, 128, 1.00f, true },
    { CUBLASLT_MATMUL_TILE_168x128, 168, 128, 0.92f, true },
    { CUBLASLT_MATMUL_TILE_128x256, 128, 256, 0.82f, true },
    { CUBLASLT_MATMUL_TILE_192x192, 192, 192, 0.80f, true },
};

static bool of_fp8(const struct key *k)
{
    return k->type_a == CUDA_R_8F_E4M3 || k->type_a == CUDA_R_8F_E5M2;
}

/* Rate of the tile times the share of the last wave of tiles that is useful; 0: not known. */
static double score(const struct key *k, int id, int sms)
{
    bool fp8_fast = k->fast && of_fp8(k);

    for (size_t i = 0; i < sizeof tiles / sizeof tiles[0]; i++) {
        const struct tile *t = &tiles[i];
        if (t->id == id && t->fp8_fast == fp8_fast) {
            int64_t n = (int64_t)div_up(k->n, t->columns) * div_up(k->m, t->rows) * k->batch;
            double useful = (double)k->m * k->n * k->batch / ((double)t->columns * t->rows);
            return t->rate * useful / ((double)div_up(n, sms) * sms);
        }
    }
    return 0;
}

/* Microseconds on an H200, cuBLASLt 13.1, first proposal -> chosen tile:
 *   (49152,2304,768)  247 -> 223 (128x160)   (49152,768,768)   90 -> 81
 *   (49152,3072,768)  359 -> 306             (49152,768,3072) 320 -> 299
 *   fp8 fast (16384,50304,768)  1224 -> 922 (176x128)
 * For sums over tokens (ta), for fp8 without fast accumulation, and for shapes of few tiles the
 * first proposal was the best, or within 2% of it. */
static int prefer(const struct key *k, const cublasLtMatmulHeuristicResult_t *found, int n, int sms)
{
    double best_score = 0;
    int best = 0;

    if (k->ta || (of_fp8(k) && !k->fast) || k->batch > 1)
        return 0;
    for (int i = 0; i < n; i++) {
        int32_t tile = 0, split = 1;
        size_t size;
        cublasLtMatmulAlgoConfigGetAttribute(&found[i].algo, CUBLASLT_ALGO_CONFIG_TILE_ID, &tile,
                                             sizeof tile, &size);
        cublasLtMatmulAlgoConfigGetAttribute(&found[i].algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM,
                                             &split, sizeof split, &size);
        double s = split > 1 ? 0 : score(k, tile, sms);
        if (i == 0 && s == 0)
            return 0; /* a first proposal that was never measured */
        if (s > best_score)
            best = i, best_score = s;
    }
    return best;
}

static bool choose(struct cuda_ops *c, struct plan *p)
{
    enum { PROPOSALS = 16 };
    const struct key *k = &p->key;
    cublasLtMatmulHeuristicResult_t found[PROPOSALS];
    cublasLtMatmulPreference_t pref;
    uint64_t bytes = k->alone ? 0 : LT_WORKSPACE;
    int n = 0;
    bool ok;

    if (!gemm_begin(c) || !LT_TRY(c, cublasLtMatmulPreferenceCreate(&pref)))
        return false;
    ok = LT_TRY(c, cublasLtMatmulPreferenceSetAttribute(
                       pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes)) &&
         demand(c, pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, k->align_b) &&
         demand(c, pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, k->align_a) &&
         demand(c, pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, k->align_out) &&
         demand(c, pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, k->align_out) &&
         LT_TRY(c, cublasLtMatmulAlgoGetHeuristic(c->gemm->lt, p->desc, p->a, p->b, p->out, p->out,
                                                  pref, PROPOSALS, found, &n));
    cublasLtMatmulPreferenceDestroy(pref);
    if (!ok)
        return false;
    if (n == 0) {
        cuda_fail(c, GPT_DEVICE,
                  "cuBLASLt has no product (%lld,%lld) = (%lld,%lld) x (%lld,%lld)"
                  " of these types",
                  (long long)k->m, (long long)k->n, (long long)k->m, (long long)k->k,
                  (long long)k->k, (long long)k->n);
        return false;
    }
    /* The tiles were measured on Hopper: on other GPUs the favourite is taken. */
    p->algo = found[c->capability == 90 ? prefer(k, found, n, c->sms) : 0].algo;
    return true;
}

static struct plan *plan_for(struct cuda_ops *c, const struct key *k)
{
    struct gemm_cache *g = c->gemm;
    struct plan p = {};

    for (int i = 0; i < g->n; i++)
        if (!memcmp(&g->plans[i].key, k, sizeof *k))
            return &g->plans[i];
    if (grow_one(&g->plans, (size_t)g->n, sizeof *g->plans)) {
        cuda_fail(c, GPT_SYSTEM, "cannot allocate memory for %d matrix products", g->n + 1);
        return NULL;
    }
    p.key = *k;
    if (!describe(c, &p) || !choose(c, &p)) {
        plan_release(&p);
        return NULL;
    }
    g->plans[g->n] = p;
    return &g->plans[g->n++];
}

void cuda_gemm(struct cuda_ops *c, const struct gemm *g)
{
    struct key k = key_of(g);
    const struct plan *p;
    float alpha = g->factors ? g->factors[0] : g->alpha ? g->alpha : 1;
    float beta = !g->add.data ? 0 : g->factors ? g->factors[1] : 1;
    const float *alpha_at = g->scale ? g->scale : &alpha;
    const float *beta_at = !g->scale ? &beta : g->add.data ? c->one : c->zero;

    assert(g->alone || c->stream == c->trunk); /* branches would share its workspace */
    assert(!g->scale || !g->factors);
    if (c->failed || c->counting || k.m == 0 || k.n == 0)
        return;
    p = plan_for(c, &k);
    if (!p)
        return;
    LT_TRY(c, cublasLtMatmul(c->gemm->lt, p->desc, alpha_at, g->b.data, p->a, g->a.data, p->b,
                             beta_at, g->add.data ? g->add.data : g->out.data, p->out, g->out.data,
                             p->out, &p->algo, k.alone ? NULL : c->gemm->workspace,
                             k.alone ? 0 : LT_WORKSPACE, c->stream));
}
