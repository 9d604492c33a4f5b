/* attention.h - attention over packed documents with a causal sliding window.
 *
 * The kernels behind the ops attention and attention_bwd, without struct ops:
 *
 *     struct attn_shape s = { rows, heads, 128, 0, cu, ncu, cu_mul, window, 0.1f };
 *     void *ws = ... attention_workspace_bytes(&s, path, true) bytes, 256-byte aligned ...
 *     e = attention_forward(stream, &s, path, out, lse, q, k, v, ws);
 *     struct attention_grads g = { dq, dk, dv, heads * 128, heads * 128, heads * 128 };
 *     e = attention_backward(stream, &s, path, &g, dout, q, k, v, lse, delta, ws);
 *
 * q, k, v, out and their gradients are bf16 (rows, heads * head_dim), q and k of the shape's qk_dim where it
 * has one, row-major without gaps, 16-byte aligned; lse is f32 (heads, rows), natural logarithm. Query row p sees keys
 * max(start of its document, p - window) .. p. P = softmax(scale q k^T), out = P v; sums and
 * softmax in f32, P and dS rounded to bf16 before their products.
 *
 * Nothing allocates or waits; launch geometry depends on the shape's host numbers only, so
 * the calls may be captured into a graph and replayed with other documents in cu. Blocks
 * of 64 x 64 outside document or window are not visited. Results have the same bits in
 * every run: there is no other mode.
 *
 * Threads: no state of its own beyond constants looked up once; calls may come from several
 * threads, each with its stream and workspace. The workspace may be reused when the call's last
 * kernel has ended.
 */
#ifndef KERNELS_ATTENTION_H
#define KERNELS_ATTENTION_H

#include <stddef.h>
#include "host/device.h"

/* Writes the plans of n <= ATTN_PLANS shapes: s[i].plan, attn_plan_bytes() (ops.h) of device memory
 * each. A shape whose plan is NULL gets one in each call, in the workspace. */
cudaError_t attention_plans(cudaStream_t stream, const struct attn_shape *s, int n);

/* Bytes that a forward or a backward call needs. The shape's head_dim is 32, 64 or 128, its qk_dim the same, or 64 or 96 of
 * 128, or on the portable path 32 of 64; cu is in
 * device memory, not descending from 0, entries past the last document >= all tokens; window >= 0,
 * scale > 0. */
size_t attention_workspace_bytes(const struct attn_shape *s, const struct attention_path *path,
                                 bool backward);

/* cudaErrorInvalidValue for a shape outside the above; else the launches' own errors. path: the
 * kernels for any GPU, attention_portable (attention_mma.cu), or Hopper's, attention_native. */
cudaError_t attention_forward(cudaStream_t stream, const struct attn_shape *s,
                              const struct attention_path *path, void *out, float *lse,
                              const void *q, const void *k, const void *v, void *workspace);

/* Where gradients go: bf16, a token's row each dq_stride numbers and so on; a token has cu_mul
 * rows, side by side. With factor, dq is the gradient of raw q (op_list.h, attention_bwd), with
 * raw_keys dk that of raw k: where path.raw_grads, elsewhere factor is NULL and strides are those of a
 * token's row. Gradients of raw may be codes in e4m3 of the numbers, rounded to bf16, divided by a unit. */
struct attention_grads {
    void *dq, *dk, *dv;
    int64_t dq_stride, dk_stride, dv_stride;
    bool add_dv; /* dv is added to */
    bool raw_keys;
    float dq_unit, dk_unit, dv_unit; /* 0: bf16 */
    const float *factor; /* (2 cu_mul heads, tokens) */
    const void *rope; /* bf16 (rows, head_dim / 2) */
};

struct attention_call; /* attention_plan.cuh */
struct attention_path {
    cudaError_t (*forward)(cudaStream_t stream, const struct attention_call *c, void *out,
                           const void *q, const void *k, const void *v);
    cudaError_t (*backward)(cudaStream_t stream, const struct attention_call *c, const void *dout,
                            const void *q, const void *k, const void *v);
    bool sums_dq; /* in memory, in f32 */
    bool raw_grads; /* backward knows attention_grads.factor */
};

/* delta (heads, rows) f32 = sum over channels of dout * out. */
cudaError_t attention_backward(cudaStream_t stream, const struct attn_shape *s,
                               const struct attention_path *path, const struct attention_grads *g,
                               const void *dout, const void *q, const void *k, const void *v,
                               const float *lse, const float *delta, void *workspace);

#endif
