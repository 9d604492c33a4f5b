/* around.cu - a weight beside a mean of its moves, or beside what it was some steps ago.
 *
 * Contract: op_list.h, gpt-rules(5). Elementwise. Bytes an element, f32: 24, tail and read 12; bits equal the C
 * reference's.
 */
#include "gpu.h"
#include "optim.h"

enum { THREADS = 256 };

struct place {
    void *w;
    uint16_t *low;
    bool halves;
    __device__ __forceinline__ float get(int64_t i) const
    {
        if (!halves)
            return ((const float *)w)[i];
        return __uint_as_float((uint32_t)((const uint16_t *)w)[i] << 16 | (low ? low[i] : 0));
    }
    __device__ __forceinline__ void set(int64_t i, float x) const
    {
        if (!halves) {
            ((float *)w)[i] = x;
        } else if (low) {
            ((uint16_t *)w)[i] = (uint16_t)(__float_as_uint(x) >> 16);
            low[i] = (uint16_t)__float_as_uint(x);
        } else {
            narrow((bf16 *)w + i, x);
        }
    }
    /* Returns x as a weight holds it. */
    __device__ __forceinline__ float stored(float x) const
    {
        return halves && !low ? as_stored<bf16>(x) : x;
    }
};

static __global__ void __launch_bounds__(THREADS)
    move_around(struct place p, float *mean, float *before, struct place out, int64_t n,
                enum around_how how, const float *number, const struct step_gate *gate)
{
    bool begins = how == AROUND_TAIL && number[0] == 1;
    if ((gate && gate->skip && !begins) || (how == AROUND_OUTWARDS && number[2] == 0) ||
        (how == AROUND_TAIL && number[0] == 0))
        return;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * THREADS) {
        float w = p.get(i), m, d;
        if (how == AROUND_AHEAD) {
            m = add(mean[i], mul(number[0], sub(sub(w, before[i]), mean[i])));
            mean[i] = m, before[i] = w;
            p.set(i, add(w, mul(number[1], m)));
        } else if (how == AROUND_OUTWARDS) {
            d = sub(before[i], w);
            m = add(mul(number[1], mean[i]), mul(number[0], d));
            p.set(i, sub(sub(before[i], mul(number[1], m)), mul(number[0], d)));
            mean[i] = m, before[i] = p.get(i);
        } else if (how == AROUND_APART) {
            d = sub(w, p.stored(add(before[i], mul(number[0], sub(mean[i], before[i])))));
            d = add(before[i], d);
            m = add(mean[i], mul(number[1], sub(d, mean[i])));
            mean[i] = m, before[i] = d;
            p.set(i, add(d, mul(number[0], sub(m, d))));
        } else if (how == AROUND_TAIL) {
            mean[i] = begins ? w : add(mean[i], mul(number[0], sub(w, mean[i])));
        } else if (how == AROUND_READ) {
            m = number[0] == 1 ? mean[i] : add(w, mul(number[0], sub(mean[i], w)));
            out.set(i, m);
        } else {
            before[i] = w;
        }
    }
}

void gpu_around(struct ops *o, struct tensor w, struct tensor low, struct tensor mean,
                struct tensor before, enum around_how how, const real *number,
                const struct step_gate *gate)
{
    struct cuda_ops *c = cuda_of(o);
    int64_t n = tensor_count(w);
    if (c->failed || n == 0 || !CUDA_NEED(c, is_float(w), "w must be f32 or bf16"))
        return;
    struct place p = { w.data, (uint16_t *)low.data, w.dtype == DT_BF16 };
    struct place out = { before.data, NULL, before.dtype == DT_BF16 };
    move_around<<<(int)min((int64_t)8 * c->sms, (n - 1) / THREADS + 1), THREADS, 0, c->stream>>>(
        p, (float *)mean.data, (float *)before.data, out, n, how, number, gate);
    CUDA_LAUNCHED(c);
}
