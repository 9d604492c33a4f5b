/* device.h - what every kernel file needs of its GPU: stream, workspace, sticky error.
 *
 * An op is one file kernels/NAME.cu: how it is carried out, static kernels, and
 * one launcher gpu_NAME with the parameters that op_list.h gives (gpu.h):
 *
 *     void gpu_out_gate(struct ops *o, struct tensor out, ...)
 *     {
 *         struct cuda_ops *c = cuda_of(o);
 *         if (c->failed) return;
 *         float *partial = (float *)cuda_workspace(c, bytes);
 *         if (!partial) return;                       // the failure is recorded
 *         out_gate_kernel<<<blocks, 256, 0, c->stream>>>(...);
 *         CUDA_LAUNCHED(c);
 *         cuda_add_partials(c, dgate.data, dgate.dtype, partial, blocks, n);
 *     }
 *
 * Rules. Work goes to c->stream in order. An op may be captured into a graph:
 * no synchronisation, no host decision on device data, no allocation but
 * cuda_workspace. Per-step numbers are read on the device, through pointers.
 * Sums are deterministic: partial sums in the workspace, added in a fixed
 * order; no float atomics.
 *
 * Threads: as ops.h, one struct cuda_ops belongs to one rank's thread.
 */
#ifndef KERNELS_HOST_DEVICE_H
#define KERNELS_HOST_DEVICE_H

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cuda_runtime.h>
#include <cuda_bf16.h>
extern "C" {
#include "base/err.h"
#include "base/grow.h"
#include "ops/ops.h"
}

struct gemm_cache; /* gemm.cu */
enum { STAGING_HALF = 4 << 20 }; /* bytes; one half is filled while the other is copied */

/* Pinned ring that uploads on one stream go through. */
struct staging {
    char *memory;
    size_t at;
    cudaEvent_t done[2]; /* when each half was last read */
    cudaStream_t stream;
};

/* out = sum_k sign_k coef_k x_k, y = Norm(out): rows of d numbers (op_list.h, mix_norm). */
struct mix_args {
    const __nv_bfloat16 *x[MIX_MAX];
    const float *coef[MIX_MAX];
    float sign[MIX_MAX];
    __nv_bfloat16 *out, *y;
    int n, rows, d; /* n 0: no mix */
    bool write_out;
    uint8_t *y8; /* NULL, or where e4m3(y / y8_scale) goes */
    float y8_scale;
};

struct gates { /* (H,12) */
    const void *w;
    bool is_f32;
};

/* What qkv (op_list.h) does. */
struct qkv_args {
    const __nv_bfloat16 *qkv; /* raw */
    __nv_bfloat16 *q, *k, *v;
    float *factor; /* NULL: none */
    int tokens, heads, head_dim; /* tokens 0: nothing */
    int qk_dim, turned; /* channels of a head of q and k, and how many of them turn */
    int key_rows;
    bool paired, split_gate;
    enum key_offset key_offset;
    const int32_t *pos; /* NULL: row t is at position t */
    const int32_t *slot; /* of a cache of this capacity, where k and v go; NULL: to their rows */
    int capacity;
    bool values_apart; /* v goes to its rows also with a cache */
    const void *rope; /* bf16, or f32 */
    bool rope_f32;
    const void *bias; /* (2Q+D), bf16 or f32, added to raw; NULL: none, or raw has it */
    bool bias_f32;
    const __nv_bfloat16 *y; /* with a table only: y, gate, table, tok */
    int y_width;
    struct gates gate;
    const __nv_bfloat16 *table;
    const int32_t *tok;
};

/* Names the kernels that Hopper has of its own and other GPUs replace by others: the native path and the
 * portable one (ops_cuda.h), of which a device has one from its start. Each table is in the file of
 * its ops. */
struct path {
    const struct attention_path *attention; /* attention.cu */
    const struct product_path *product; /* linear.cu */
    const struct relu2_path *relu2; /* linear_relu2.cu */
    const struct head_path *head; /* head_loss.cu */
    const struct bias_path *bias; /* bias.cu */
};
extern const struct attention_path attention_native, attention_portable;
extern const struct product_path product_native, product_portable;
extern const struct relu2_path relu2_native, relu2_portable;
extern const struct head_path head_native, head_portable;
extern const struct bias_path bias_native, bias_portable;

enum { SHARED_LEAST = 2 << 20 }; /* such memory comes in multiples of as much */
struct memory_block {
    void *p;
    bool shared;
};

struct cuda_ops {
    struct ops ops; /* first: struct ops * is struct cuda_ops * */
    int device; /* ordinal; also names the rank in messages */
    int sms; /* streaming multiprocessors */
    int capability; /* 10 major + minor */
    int shared_max; /* bytes of shared memory that a block may have */
    bool fp8; /* it has fp8 products */
    bool portable; /* no clusters and early starts, and polar by cuBLASLt (ops_cuda.h) */
    const struct path *path;
    cudaStream_t stream; /* of the next op: the trunk's, or a branch's (ops.h) */
    cudaStream_t trunk, branch[BRANCHES];
    cudaEvent_t forked, branch_done[BRANCHES];
    unsigned branches; /* bit i: branch i was used since the last join */
    bool failed;
    int code; /* enum gpt_code, with message: the first failure */
    char message[512];

    bool capturing;
    bool counting; /* memory alone: allocated grows, nothing is taken or launched */

    void *workspace; /* of the running op: undefined after its last launch */
    size_t workspace_bytes;
    size_t in_use; /* bytes at its front that other branches' ops may use until the next join */
    size_t most_used; /* these, and what ops of the branch at hand have used behind them */

    const float *one, *zero, *post_unit; /* constants in device memory; the last: FP8_POST_UNIT */
    float *codes_factor; /* of a product of codes (linear.cu), in device memory */
    unsigned *ticket; /* for last_block (vec.h), in the trunk alone; 0 between kernels */
    struct gemm_cache *gemm;
    /* The mix of a decoding step that has not been launched yet. The product that reads it makes
     * it, if that is next (few_rows.cu); whatever else is queued launches it first. */
    struct mix_args mix;
    /* The qkv of a decoding step that has not been launched yet, for attention_cached. */
    struct qkv_args qkv;

    /* NULL: cudaMalloc and cudaFree; else shared blocks of SHARED_LEAST bytes or more come from
     * here, as other GPUs read and write them (comm_nccl.h). */
    cudaError_t (*take_shared)(void **p, size_t bytes), (*give_shared)(void *p);
    struct memory_block *blocks; /* everything allocated, for free() */
    int n_blocks;
    size_t allocated, own; /* own: of it, what the device took at its start */
    struct host_call *on_host; /* on_host.cu, and the host's ops that it runs */
    struct ops *host;
    struct staging staging, ahead; /* of upload() on stream, of upload_ahead() on its own */
    cudaEvent_t ahead_done;
    char *fetch_host; /* pinned ring of FETCH_MAX slots for fetch() */
    cudaEvent_t fetch_done[FETCH_MAX];
    unsigned fetch_in, fetch_out;
};

/* True if an op has been queued and not launched. */
static inline bool cuda_waiting(const struct cuda_ops *c) { return c->mix.n || c->qkv.tokens; }

static inline struct cuda_ops *cuda_of(struct ops *o) { return (struct cuda_ops *)o; }

/* Records the first failure; later ones are its consequence. */
void cuda_fail(struct cuda_ops *c, int code, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* Returns false, and records it, when e is an error; for the macros below. */
bool cuda_ok(struct cuda_ops *c, cudaError_t e, const char *expr, const char *file, int line);

#define CUDA_TRY(c, expr) cuda_ok((c), (expr), #expr, __FILE__, __LINE__)
#define CUDA_LAUNCHED(c) \
    (assert(!cuda_waiting(c)), cuda_ok((c), cudaGetLastError(), __func__, __FILE__, __LINE__))
/* A dtype or a size that this device cannot do: a recipe can ask for it, so no assert. */
#define CUDA_NEED(c, cond, what) \
    ((cond) ? true : (cuda_fail((c), GPT_DEVICE, "%s: on a GPU, %s", __func__, (what)), false))

/* Returns at least `bytes` of scratch, 256-byte aligned, contents undefined; one call an op,
 * the op cuts it up itself. Grows on demand (old memory stays until free(), graphs
 * may hold it). NULL when memory is out: recorded. */
void *cuda_workspace(struct cuda_ops *c, size_t bytes);

/* Takes `bytes` from the front of a workspace that the op cuts up; *at advances, 256-aligned. */
static inline void *cuda_cut(char **at, size_t bytes)
{
    char *p = *at;
    *at += (bytes + 255) / 256 * 256;
    return p;
}
static inline size_t cuda_round(size_t bytes) { return (bytes + 255) / 256 * 256; }

/* dst[i] += sum over r < rows of partial[r * n + i], i < n, always in the same order.
 * dst is f32 or bf16 (one rounding of the sum). */
void cuda_add_partials(struct cuda_ops *c, void *dst, enum dtype dtype, const float *partial,
                       int rows, int n);

/* Returns the codes that stand for the gradient of raw q, k and v, or NULL. */
static inline const struct fp8_gradient *cuda_dqkv8(const struct cuda_ops *c,
                                                    const struct qkv_shape *s)
{
    return c->fp8 ? s->dqkv8 : NULL;
}

/* Launches what has not been; in mix_norm.cu and qkv.cu. */
void cuda_launch_waiting(struct cuda_ops *c);
void cuda_launch_qkv(struct cuda_ops *c);

/* Frees what calls of the host's ops hold; in on_host.cu. */
void cuda_free_host_calls(struct cuda_ops *c);

/* dw (+)= sum (f32, as many), one rounding; in linear.cu. */
void cuda_write_sum(struct cuda_ops *c, struct tensor dw, const float *sum, bool add);
/* With g = *unit sum: dw (+)= scale g, dscale += sum of g w. unit, scale, dscale in device memory, or NULL: 1, 1,
 * none. partial: cuda_partial_bytes of workspace, with a dscale. parts: sums of dw's shape, one behind the other, that
 * are added up; 0: one. */
struct summed {
    const float *sum, *unit;
    int parts;
    struct tensor w;
    const float *scale;
    float *dscale, *partial;
    bool add;
};
void cuda_write_product(struct cuda_ops *c, struct tensor dw, const struct summed *s);
size_t cuda_partial_bytes(const struct cuda_ops *c, struct tensor dw);

/* A weight gradient's sums, of codes a (T,O) and b_t (I,T'), T' >= T a multiple of 16, both as they lie: alpha a^T b in
 * parts to be added up (struct summed), `sum` (parts O,I) f32. turned (O,T'): where a is transposed first; none on
 * Hopper, whose kernel (sm90/transposed_gemm.cu) does it in registers. In linear.cu. */
struct codes_product {
    struct tensor sum, turned;
    int parts;
};
/* Describes the product's operands by their shapes, without memory. */
struct codes_product cuda_codes_product(const struct cuda_ops *c, struct tensor a, int64_t in);
void cuda_multiply_codes(struct cuda_ops *c, const struct codes_product *p, struct tensor a,
                         struct tensor b_t, float alpha);

/* y = scale *x_scale *w8.scale x8 w8^T (+ residual): codes in fp8, along their sums; in linear.cu. */
void cuda_gemm_codes(struct cuda_ops *c, struct tensor y, struct tensor x8, const float *x_scale,
                     struct fp8_weight w8, const float *scale, struct tensor residual);

/* y = scale (x_scale *w.scale) x8 w8^T of codes in e4m3; in linear.cu. */
void cuda_gemm_operands(struct cuda_ops *c, struct tensor y, const struct fp8_operands *in,
                        const float *scale);

/* Row-major product out(M,N) = alpha op(a) op(b) + beta c through cuBLASLt (gemm.cu). */
struct gemm {
    struct tensor out; /* (M,N): bf16 or f32 */
    struct tensor a; /* (M,K), or (K,M) when ta */
    struct tensor b; /* (K,N), or (N,K) when tb */
    bool ta, tb;
    struct tensor add; /* (M,N) of out's dtype, added; may be out; or none */
    const float *scale; /* device; NULL: alpha below */
    float alpha; /* 0 stands for 1 */
    const float *factors; /* in host memory: alpha, also 0, and beta, of `add`; NULL: as above, 1 */
    int64_t lda, ldb, ldo; /* elements a row; 0: the tensor's own columns */
    bool fast; /* fp8: accumulate in the tensor cores alone */
    bool alone; /* without workspace, so that it may stand in a branch */
    int batch; /* 0 or 1: one product; else strides below, in elements */
    int64_t stride_a, stride_b, stride_out;
};
void cuda_gemm(struct cuda_ops *c, const struct gemm *g);
bool gemm_cache_new(struct cuda_ops *c);
bool gemm_begin(struct cuda_ops *c); /* starts the library, if no product has */
void gemm_cache_free(struct gemm_cache *g);

/* device.cu: memory that lives until free(); NULL (recorded) when there is none. */
void *cuda_take(struct cuda_ops *c, size_t bytes, const char *what);

static inline int div_up(int64_t a, int64_t b) { return (int)((a + b - 1) / b); }

#endif
