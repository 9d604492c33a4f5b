/* each.cu - elementwise stages one after the other, X in registers between them.
 *
 * Contract: op_list.h, optimizers.md 4.7. blockIdx.y is a matrix; a thread takes WIDTH elements at a time, through all
 * stages. Bytes an element, f32: X 4 to read unless it begins as the gradient, 4 to write unless the weight is the last
 * stage's; gradient 2 or 4 where it is read; 8 a mean or moment, 8 the weight. Bits equal those of the ops alone.
 */
#include "gpu.h"
#include "stages.h"

enum { THREADS = 256, MAX_MATRICES = 256, FACTORS = 3 };

struct each_row {
    int what, each; /* index into factors; -1: none */
    unsigned how;
    void *state;
    uint16_t *low; /* EACH_WRITE: low halves of a bf16 weight, or NULL */
    const float *number, *age;
};
struct each_args {
    struct each_row row[MAX_EACH];
    int n;
    bool reads_g, begins, leaves; /* x begins as the gradient; is left */
    const struct step_gate *gate;
    float factor[FACTORS][MAX_MATRICES];
};
static_assert(sizeof(struct each_args) <= 4000, "parameters of a kernel are 4 KB");

/* Numbers of a step: of a stage as its op has them, then its matrix's factor. */
struct each_numbers {
    float number[3], age, factor;
};

__device__ static void read_numbers(struct each_numbers *k, const struct each_row *r,
                                    const struct each_args *a)
{
    int count = 0;
    switch (r->what) {
    case each_stage::EACH_MEAN: count = r->how & MEAN_TERM ? 3 : r->how & MEAN_LION ? 2 : 1; break;
    case each_stage::EACH_SECOND: count = 3; break;
    case each_stage::EACH_WRITE: count = 2; break;
    case each_stage::EACH_SCALE: count = r->number != NULL; break;
    }
    for (int i = 0; i < 3; i++)
        k->number[i] = i < count ? r->number[i] : 1;
    k->age = r->age ? *r->age : 1;
    k->factor = r->each < 0 ? 1 : a->factor[r->each][blockIdx.y];
    if (r->what == each_stage::EACH_SECOND && a->gate)
        k->number[2] = mul(a->gate->factor, k->number[2]);
    if (r->what == each_stage::EACH_SCALE)
        k->factor = mul(k->factor, k->number[0]);
    if (r->what == each_stage::EACH_WRITE)
        k->factor = mul(k->number[0], k->factor);
}

/* Moves WIDTH elements of the weight, in f32 or in bf16 with low halves, from i on. */
template <int WIDTH>
__device__ __forceinline__ void write(const struct each_row &r, const struct each_numbers &k,
                                      int64_t i, const float (&x)[WIDTH])
{
    if (!r.low) {
        float w[WIDTH];
        load<WIDTH>(w, (const float *)r.state + i);
#pragma unroll
        for (int e = 0; e < WIDTH; e++)
            w[e] = moved(w[e], x[e], k.factor, k.number[1], r.how);
        store<WIDTH>((float *)r.state + i, w);
        return;
    }
    uint16_t *high = (uint16_t *)r.state + i, *low = r.low + i;
#pragma unroll
    for (int e = 0; e < WIDTH; e++) {
        float p = __uint_as_float((uint32_t)high[e] << 16 | low[e]);
        uint32_t bits = __float_as_uint(moved(p, x[e], k.factor, k.number[1], r.how));
        high[e] = (uint16_t)(bits >> 16), low[e] = (uint16_t)bits;
    }
}

template <int WIDTH>
__device__ __forceinline__ void one_stage(const struct each_row &r, const struct each_numbers &k,
                                          int64_t i, float (&x)[WIDTH], const float (&g)[WIDTH],
                                          float factor)
{
    float s[WIDTH];
    switch (r.what) {
    case each_stage::EACH_MEAN: {
        mean_numbers m = { k.number[0], k.number[1], k.number[2], k.age, 1 };
        load<WIDTH>(s, (const float *)r.state + i);
#pragma unroll
        for (int e = 0; e < WIDTH; e++) /* all terms read the gradient */
            x[e] = mean_of(r.how, m, x[e], &s[e], r.how & MEAN_TERM ? mul(g[e], factor) : x[e]);
        store<WIDTH>((float *)r.state + i, s);
        break;
    }
    case each_stage::EACH_SECOND: load<WIDTH>(s, (const float *)r.state + i);
#pragma unroll
        for (int e = 0; e < WIDTH; e++)
            x[e] = over_root(x[e], &s[e], mul(g[e], k.number[2]), k.number[0], k.number[1], k.age);
        store<WIDTH>((float *)r.state + i, s);
        break;
    case each_stage::EACH_SCALE:
#pragma unroll
        for (int e = 0; e < WIDTH; e++)
            x[e] = mul(x[e], k.factor);
        break;
    case each_stage::EACH_SIGN:
#pragma unroll
        for (int e = 0; e < WIDTH; e++)
            x[e] = sign_of(x[e]);
        break;
    case each_stage::EACH_WRITE: write<WIDTH>(r, k, i, x); break;
    }
}

template <int WIDTH, typename G>
static __global__ void __launch_bounds__(THREADS)
    stages(float *x, const G *g, int64_t count, const __grid_constant__ struct each_args a)
{
    __shared__ each_numbers k[MAX_EACH];
    int64_t stride = (int64_t)gridDim.x * THREADS * WIDTH, base = blockIdx.y * count;
    float factor = a.gate ? a.gate->factor : 1;

    if (a.gate && a.gate->skip)
        return;
    if ((int)threadIdx.x < a.n)
        read_numbers(&k[threadIdx.x], &a.row[threadIdx.x], &a);
    __syncthreads();
    for (int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * WIDTH; i < count;
         i += stride) {
        float v[WIDTH], gradient[WIDTH] = {};
        if (a.reads_g)
            load<WIDTH>(gradient, g + base + i);
        if (!a.begins)
            load<WIDTH>(v, x + base + i);
#pragma unroll
        for (int e = 0; e < WIDTH && a.begins; e++)
            v[e] = mul(gradient[e], factor);
        for (int s = 0; s < a.n; s++)
            one_stage<WIDTH>(a.row[s], k[s], base + i, v, gradient, factor);
        if (a.leaves)
            store<WIDTH>(x + base + i, v);
    }
}

void gpu_each(struct ops *o, struct tensor x, struct tensor g, int n, const struct each_stage *s,
              int count, bool begins, const struct step_gate *gate)
{
    struct cuda_ops *c = cuda_of(o);
    int64_t elements = n ? tensor_count(x) / n : 0;
    struct each_args a = { {}, count, begins, begins, true, gate, {} };
    bool by_8 = wide(x, elements) && wide(g, elements);
    int factors = 0;

    assert(count <= MAX_EACH);
    if (c->failed || elements == 0 || !CUDA_NEED(c, x.dtype == DT_F32, "x must be f32") ||
        !CUDA_NEED(c, is_float(g), "g must be f32 or bf16") ||
        !CUDA_NEED(c, n <= MAX_MATRICES, "a rank may hold 256 matrices of a bank at most"))
        return;
    for (int k = 0; k < count; k++) {
        const float *number = s[k].what == each_stage::EACH_WRITE ? &s[k].m->lr : s[k].number;
        a.row[k] = { s[k].what,       s[k].each ? factors : -1,  s[k].how,
                     s[k].state.data, (uint16_t *)s[k].low.data, number,
                     s[k].age };
        by_8 &= wide(s[k].state, elements);
        a.reads_g |= s[k].what == each_stage::EACH_SECOND || s[k].how & MEAN_TERM;
        a.leaves &= s[k].what != each_stage::EACH_WRITE;
        if (s[k].what == each_stage::EACH_WRITE &&
            !CUDA_NEED(c, (s[k].state.dtype == DT_F32) != (s[k].low.data != NULL),
                       "w must be f32, or bf16 with its low halves"))
            return;
        if (!s[k].each)
            continue;
        assert(factors < FACTORS);
        memcpy(a.factor[factors++], s[k].each, (size_t)n * sizeof *s[k].each);
    }
    dim3 grid = matrices_grid(c, elements, THREADS * 8, n);
    with_type(g, [&](auto *pg) {
        auto *kernel = by_8 ? stages<8, std::remove_pointer_t<decltype(pg)>>
                            : stages<1, std::remove_pointer_t<decltype(pg)>>;
        kernel<<<grid, THREADS, 0, c->stream>>>((float *)x.data, pg, elements, a);
        CUDA_LAUNCHED(c);
    });
}
