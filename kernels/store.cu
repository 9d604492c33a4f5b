/* store.cu - a weight in all its forms from its exact value.
 *
 * Contract: op_list.h, optimizers.md 3.2. A block a row, read twice where a scale depends on its largest
 * number. Bytes an element: 4 and those of the forms. Bits equal the C reference's.
 */
#include "adam_form.cuh"

static __global__ void __launch_bounds__(THREADS)
    store_rows(const __grid_constant__ job q, const float *x)
{
    __shared__ uint4 warps[32];
    form<ANY> f = { q };
    int64_t at = blockIdx.x * q.cols;
    uint32_t own = 0, most = 0;

    if (q.gate && q.gate->skip)
        return;
    if (q.rows) {
        for (int64_t c = threadIdx.x; c < q.cols; c += THREADS)
            own = max(own, __float_as_uint(x[at + c]) & 0x7fffffff);
        own = block_most(make_uint3(own, 0, 0), warps).x;
    }
    scales now = new_scales(f, make_uint3(own, 0, 0), own);
    for (int64_t c = threadIdx.x; c < q.cols; c += THREADS) {
        float p[1] = { x[at + c] };
        write_weight<1>(p, f, at + c, now, &most);
    }
    if (threadIdx.x == 0)
        store_scales(f, blockIdx.x, now);
    if (q.out.codes)
        fold_amax(q.out, most);
}

static __global__ void clear_amax(uint32_t *amax, const struct step_gate *gate)
{
    if (!gate || !gate->skip)
        *amax = 0;
}

void gpu_store(struct ops *o, const struct adam_param *p, struct tensor x)
{
    struct cuda_ops *c = cuda_of(o);
    job q = {};
    if (c->failed || tensor_count(x) == 0 ||
        !CUDA_NEED(c, x.dtype == DT_F32 && x.rows < INT_MAX, "x must be f32"))
        return;
    q.w = p->w.data, q.w_type = (uint8_t)(p->w.data ? p->w.dtype : DT_NONE);
    q.master = kept_of(p->master), q.truncate = p->truncate;
    q.compute = (bf16 *)p->compute.data, q.gate = p->gate;
    q.count = tensor_count(x), q.cols = x.cols;
    if (p->copy) {
        q.out = fp8_out{ (uint8_t *)p->copy->codes.data, p->copy->scale_inv,
                         (uint32_t *)p->copy->amax };
        q.w_scale = (float *)p->copy->rows, q.w_top = (const float *)p->copy->top;
        clear_amax<<<1, 1, 0, c->stream>>>(q.out.amax, q.gate);
        CUDA_LAUNCHED(c);
    }
    q.rows = q.master.scale || q.w_scale;
    store_rows<<<(unsigned)x.rows, THREADS, 0, c->stream>>>(q, (const float *)x.data);
    CUDA_LAUNCHED(c);
}
