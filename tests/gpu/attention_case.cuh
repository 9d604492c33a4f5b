/* attention_case.cuh - inputs for the attention test and benchmark: documents, random tensors.
 *
 *     struct shape_case c = { "one document", 300, 6, 128, 1, 128, ONE };
 *     struct buffers b;
 *     buffers_new(&b, &c, seed);
 *     forward(0, &b);
 *     buffers_free(&b);
 *
 * Include it in one program each; it exits on a CUDA error.
 */
#ifndef TESTS_ATTENTION_CASE_CUH
#define TESTS_ATTENTION_CASE_CUH

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vector>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include "attention.h"
#include "ops_cuda.h"

typedef __nv_bfloat16 bf16;

#define TRY(expr) try_cuda((expr), #expr, __FILE__, __LINE__)
static inline void try_cuda(cudaError_t e, const char *expr, const char *file, int line)
{
    if (e == cudaSuccess)
        return;
    fprintf(stderr, "%s:%d: %s: %s\n", file, line, expr, cudaGetErrorString(e));
    exit(5);
}

static const struct attention_path *path; /* GPT_GPU_PATH's, else the GPU's own */

/* Where no GPU is visible: says so, exits 77. */
static inline void need_gpu(const char *program)
{
    int n = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0) {
        printf("skipped: gpu\n");
        exit(77);
    }
    bool portable;
    if (ops_cuda_portable(0, &portable)) {
        fprintf(stderr, "%s: %s\n", program, err_message());
        exit(5);
    }
    printf("# %s path\n", portable ? "portable" : "native");
    path = portable ? &attention_portable : &attention_native;
}

/* How the tokens are cut into documents. */
enum documents {
    ONE, /* a single one */
    SINGLES, /* each token is one */
    TEXT, /* 100 .. 2048, mean about 600 */
    EVERY_1024,
    SHORT, /* 0 .. 40: empty entries among them */
};
struct shape_case {
    const char *name;
    int tokens, heads, head_dim, cu_mul, window; /* window in rows */
    enum documents documents;
    float scale; /* 0: 0.1 */
};

static inline uint64_t mix(uint64_t x) /* splitmix64 */
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}
static inline double uniform(uint64_t *state)
{
    return (double)(mix((*state)++) >> 11) / 9007199254740992.0;
}

/* Document starts, cu[0] = 0, padded with the token count. */
static inline std::vector<int32_t> documents_of(const struct shape_case *c, uint64_t seed)
{
    std::vector<int32_t> cu;
    for (int at = 0; at < c->tokens || cu.empty();) {
        cu.push_back(at);
        switch (c->documents) {
        case ONE: at = c->tokens; break;
        case SINGLES: at++; break;
        case TEXT: at += (int)fmin(2048, 100 - 520 * log(1 - uniform(&seed))); break;
        case EVERY_1024: at += 1024; break;
        case SHORT: at += (int)(41 * uniform(&seed)); break;
        }
    }
    for (int i = 0; i < 5; i++)
        cu.push_back(c->tokens);
    return cu;
}

/* First key of each query and last query of each key, walked along the documents. */
static inline void bounds_of(const struct shape_case *c, const std::vector<int32_t> &cu,
                             std::vector<int32_t> *start, std::vector<int32_t> *end)
{
    const int rows = c->tokens * c->cu_mul;
    start->resize(rows);
    end->resize(rows);
    for (size_t d = 0; d + 1 < cu.size(); d++) {
        const int from = cu[d] * c->cu_mul, to = cu[d + 1] * c->cu_mul;
        for (int p = from; p < to; p++) {
            (*start)[p] = p - c->window > from ? p - c->window : from;
            (*end)[p] = p + c->window < to - 1 ? p + c->window : to - 1;
        }
    }
}

static __global__ void fill_normal(bf16 *x, int64_t n, uint64_t seed)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x) {
        uint64_t h = seed * 0x9e3779b97f4a7c15u + i * 0xd1342543de82ef95u;
        h = (h ^ h >> 32) * 0xd6e8feb86659fd93u;
        h = (h ^ h >> 32) * 0xd6e8feb86659fd93u;
        h ^= h >> 32;
        const float u = ((uint32_t)h + 1.0f) * 2.3283064e-10f, v = (h >> 32) * 1.4629180e-9f;
        x[i] = __float2bfloat16(sqrtf(-2 * logf(fminf(u, 1.0f))) * cosf(v));
    }
}

/* Device memory of one case. Outputs have a row more than they need, to see writes past it. */
struct buffers {
    struct attn_shape s;
    int64_t count; /* of q */
    double pairs; /* of query and key, one head */
    bf16 *q, *k, *v, *dout, *out, *dq, *dk, *dv;
    float *lse, *delta; /* delta: an input, (heads, rows) */
    int32_t *cu, *start, *end;
    void *workspace;
};

static inline void *device(size_t bytes)
{
    void *p;
    TRY(cudaMalloc(&p, bytes ? bytes : 1));
    return p;
}
template <typename T> static T *on_device(const std::vector<T> &x)
{
    T *p = (T *)device(x.size() * sizeof(T));
    TRY(cudaMemcpy(p, x.data(), x.size() * sizeof(T), cudaMemcpyHostToDevice));
    return p;
}

/* NaN everywhere; in a workspace, bits no kernel may rely on. */
static inline void poison(struct buffers *b)
{
    const size_t bytes = (b->count + (size_t)b->s.heads * b->s.head_dim) * sizeof(bf16);
    bf16 *outs[] = { b->out, b->dq, b->dk, b->dv };
    for (bf16 *p : outs)
        TRY(cudaMemset(p, 0xff, bytes));
    TRY(cudaMemset(b->lse, 0xff, ((size_t)b->s.rows * b->s.heads + 64) * sizeof(float)));
    TRY(cudaMemset(b->workspace, 0xff, attention_workspace_bytes(&b->s, path, true)));
}

static inline void buffers_new(struct buffers *b, const struct shape_case *c, uint64_t seed)
{
    const int rows = c->tokens * c->cu_mul, cols = c->heads * c->head_dim;
    const int blocks = rows * cols / 256 < 1024 ? rows * cols / 256 + 1 : 1024;
    std::vector<int32_t> cu = documents_of(c, mix(seed)), start, end;
    bounds_of(c, cu, &start, &end);

    memset(b, 0, sizeof *b);
    b->count = (int64_t)rows * cols;
    b->cu = on_device(cu);
    b->start = on_device(start);
    b->end = on_device(end);
    for (int p = 0; p < rows; p++)
        b->pairs += p - start[p] + 1;
    b->s = { rows,      c->heads,  c->head_dim,
             0,         b->cu,     (int)cu.size(),
             c->cu_mul, c->window, c->scale > 0 ? c->scale : 0.1f };
    bf16 **in[] = { &b->q, &b->k, &b->v, &b->dout };
    for (int i = 0; i < 4; i++) {
        *in[i] = (bf16 *)device(b->count * sizeof(bf16));
        fill_normal<<<blocks, 256>>>(*in[i], b->count, mix(seed + 1000 + i));
        TRY(cudaGetLastError());
    }
    bf16 **outs[] = { &b->out, &b->dq, &b->dk, &b->dv };
    for (bf16 **p : outs)
        *p = (bf16 *)device((b->count + cols) * sizeof(bf16));
    b->lse = (float *)device(((size_t)rows * c->heads + 64) * sizeof(float));
    b->delta = (float *)device((size_t)rows * c->heads * sizeof(float));
    TRY(cudaMemset(b->delta, 0, (size_t)rows * c->heads * sizeof(float)));
    b->workspace = device(attention_workspace_bytes(&b->s, path, true));
    poison(b);
    TRY(cudaDeviceSynchronize());
}

/* The shape's, for all calls that follow. */
static inline void make_plan(struct buffers *b)
{
    const size_t bytes = attn_plan_bytes(b->s.rows, b->s.heads);
    b->s.plan = device(bytes);
    TRY(cudaMemset(b->s.plan, 0xff, bytes));
    TRY(attention_plans(0, &b->s, 1));
}

static inline void buffers_free(struct buffers *b)
{
    void *all[] = { b->q,   b->k,     b->v,  b->dout,  b->out, b->dq,        b->dk,    b->dv,
                    b->lse, b->delta, b->cu, b->start, b->end, b->workspace, b->s.plan };
    for (void *p : all)
        TRY(cudaFree(p));
}

static inline void forward(cudaStream_t stream, struct buffers *b)
{
    TRY(attention_forward(stream, &b->s, path, b->out, b->lse, b->q, b->k, b->v, b->workspace));
}
static inline void backward_to(cudaStream_t stream, struct buffers *b, bool add_dv)
{
    const int64_t token = (int64_t)b->s.cu_mul * b->s.heads * b->s.head_dim;
    const struct attention_grads g = { b->dq, b->dk, b->dv, token, token, token, add_dv };
    TRY(attention_backward(stream, &b->s, path, &g, b->dout, b->q, b->k, b->v, b->lse, b->delta,
                           b->workspace));
}

static inline void backward(cudaStream_t stream, struct buffers *b)
{
    backward_to(stream, b, false);
}

#endif
