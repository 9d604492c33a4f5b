/* one_row.cu - y (O) = scale x w' (+ add), x one row, w (O,I) or (I,O): few_rows.cu's sums to the
 * bit.
 *
 * What counts is latency: the time from the end of the kernel before to the end of this one. So
 *   - one warp fetches the weights by TMA: loads by all threads delayed those of the previous kernel;
 *   - where a CTA has one tile of weights, they are in registers, as operands, before x arrives; they
 *     are the 16 rows of the product, and x its columns;
 *   - a mix whose norm is x is made by each warp in its registers, without a barrier;
 *   - blocks are at most one an SM where that can be, for two are in each other's way;
 *   - what a cluster's blocks send to their first one counts on a barrier that it alone waits for;
 *   - weights are read once a step and leave the L2 first; what stays there of a step before is some of
 *     the weights of many columns, which come last and for which a step waits.
 * What each gained: share/doc/performance.md, "Decoding"; what gained nothing: rejected.md.
 *
 * In a fragment of m16n8k16 a lane has four pairs of neighbours in k, eight apart; which k they
 * stand for is few_rows.cu's choice. All eight columns of the other operand are x; one of them is
 * read.
 */
#include "sm90/one_row.h"
#include "cluster.h"
#include "few_rows.cuh"
#include "sm90/tensor_map.h"

namespace
{

using namespace sm90;

enum {
    MOST_V = 4, /* vectors of x that a lane has */
    COLUMNS = 64, /* that a block has of w (I,O) */
    STRIPE = 2 * COLUMNS, /* bytes of them: all banks, once */
    CLUSTER = 8, /* blocks that have all of I */
    MOST_STEPS = 4, /* tiles of 16 rows of w (I,O) that a warp has in registers */
    UNIT = 384, /* rows of w (I,O) at a time, where columns are many */
    RING = 3, /* of those units */
    KEEP = 3, /* of so many of them one stays in the L2: of 77 MB 20 */
    SHARED =
        227 << 10 /* with less few_rows.cu has fewer rows of w at once, sums of another order */
};

/* x, or the mix of N terms whose norm is x: V vectors of eight a lane, as struct row has them. */
template <int V, int N>
__device__ __forceinline__ void read_x(uint4 (&x)[V], const product_args &a,
                                       const mix_coefs<N ? N : 1> &coef, bool store)
{
    row<V> y;
    if constexpr (N > 0) {
        mix_row(y, a.mix, coef, 0, store);
#pragma unroll
        for (int p = 0; p < V; p++)
            x[p] = pack8(y.x[p]);
    } else {
#pragma unroll
        for (int p = 0; p < V; p++)
            x[p] = load_16(a.x + y.at(p), y.at(p) < a.in);
    }
}

__device__ __forceinline__ uint4 of_lane(uint4 x, int lane)
{
    return make_uint4(__shfl_sync(~0u, x.x, lane), __shfl_sync(~0u, x.y, lane),
                      __shfl_sync(~0u, x.z, lane), __shfl_sync(~0u, x.w, lane));
}

/* The sum of a column's part of each warp. */
__device__ __forceinline__ float sum_of(const float *part, int stride)
{
    float sum = 0;
#pragma unroll
    for (int k = 0; k < FEW_WARPS; k++)
        sum += part[k * stride];
    return sum;
}

__device__ __forceinline__ void begin(uint32_t bar)
{
    barrier_init(bar, 1);
    barrier_init_done();
}

/* -- w (O,I) ------------------------------------------------------------------------------- */

/* Between rows of w in shared memory, of which neighbours are in different halves of the banks. */
__host__ __device__ __forceinline__ int row_stride(int in)
{
    return (2 * in + STRIPE - 1) / STRIPE * STRIPE + STRIPE / 2;
}

/* 8 R columns of y a block. I is at most 256 V. */
template <int V, int N, int R>
__global__ void __launch_bounds__(32 * FEW_WARPS) by_column(const product_args a)
{
#ifdef SM90_CODE
    static_assert(R % 2 == 0, "16 columns a product");
    enum { COLUMNS = 8 * R };
    extern __shared__ __align__(128) char memory[];
    __shared__ float part[FEW_WARPS][COLUMNS];
    __shared__ uint64_t full;
    int warp = warp_id(), g = lane_id() / 4, c = lane_id() % 4, o = COLUMNS * blockIdx.x;
    int stride = row_stride(a.in), f = threadIdx.x;
    uint4 w[V][R], x[V];
    mix_coefs<N ? N : 1> coef;
    float d[R / 2][4] = {}, scale, add = 0;

    start_kernel_behind();
    if (warp == 0) {
        int rows = min(COLUMNS, a.cols - o), bytes = a.in * 2;
        if (lane_id() == 0) {
            begin(address(&full));
            barrier_expect(address(&full), rows * bytes);
        }
        __syncwarp();
        if (lane_id() < rows)
            load_bytes(address(memory) + lane_id() * stride, a.w + (int64_t)(o + lane_id()) * a.in,
                       bytes, address(&full), read_once());
    }
    __syncthreads();
    scale = scale_of(a);
    if (N)
        coef.load(a.mix);
    barrier_wait(address(&full), 0);
#pragma unroll
    for (int p = 0; p < V; p++) {
        int k = 32 * (warp + FEW_WARPS * p) + 8 * c;
#pragma unroll
        for (int r = 0; r < R; r++)
            w[p][r] = load_16((const bf16 *)(memory + (g + 8 * r) * stride) + k, k < a.in);
    }
    wait_for_kernel_before();
    if (f < COLUMNS)
        add = added(a, 0, o + f);
    read_x<V, N>(x, a, coef, blockIdx.x == 0 && warp == 0);
#pragma unroll
    for (int p = 0; p < V; p++) {
        uint4 b = of_lane(x[p], 4 * warp + c);
#pragma unroll
        for (int r = 0; r < R; r += 2) {
            uint4 u = w[p][r], v = w[p][r + 1];
            uint32_t low[4] = { u.x, v.x, u.y, v.y }, high[4] = { u.z, v.z, u.w, v.w };
            mma(d[r / 2], low, b.x, b.y);
            mma(d[r / 2], high, b.z, b.w);
        }
    }
    if (c == 0)
#pragma unroll
        for (int r = 0; r < R; r++)
            part[warp][g + 8 * r] = d[r / 2][r % 2 * 2];
    __syncthreads();
    if (f < COLUMNS)
        finish(a, 0, o + f, sum_of(&part[0][f], COLUMNS) * scale + add);
#endif
}

/* -- w (I,O) ------------------------------------------------------------------------------- */

/* `rows` rows of 64 columns, a box of a map of w as (I / 16, 4, 2, 2, O): two halves, each of one
 * number of the third dimension, (rows / 8, 4, 2, 64): eight neighbours, their pieces of eight
 * columns exchanged, are a matrix that load_transposed reads at once. */
__device__ __forceinline__ void load_part(uint32_t to, const CUtensorMap *map, int o, int first,
                                          int rows, uint32_t bar, uint64_t policy)
{
    barrier_expect(bar, rows * STRIPE);
    for (int i = 0; i < 2; i++)
        load_box(to + i * rows / 2 * STRIPE, map, { o, 0, i, 0, first / 16 }, bar, policy);
}

/* The 16 rows from s on, 16 columns a register set, and their products with x. */
struct tile {
    uint32_t w[COLUMNS / 16][4];

    __device__ __forceinline__ void load(uint32_t part, int rows, int s)
    {
        int lane = lane_id();
        uint32_t from = part + (lane / 8 % 2 * (rows / 2) + s / 2 + lane % 8) * STRIPE;
#pragma unroll
        for (int j = 0; j < COLUMNS / 16; j++)
            load_transposed(w[j], from + 16 * ((2 * j + lane / 16) ^ lane % 8));
    }
    __device__ __forceinline__ void add_to(float (&d)[COLUMNS / 16][4], uint2 x) const
    {
#pragma unroll
        for (int j = 0; j < COLUMNS / 16; j++) {
            uint32_t a[4] = { w[j][0], w[j][2], w[j][1], w[j][3] };
            mma(d[j], a, x.x, x.y);
        }
    }
};
__device__ __forceinline__ void store_sums(float *part, const float (&d)[COLUMNS / 16][4])
{
    int g = lane_id() / 4;
    if (lane_id() % 4 == 0)
#pragma unroll
        for (int j = 0; j < COLUMNS / 16; j++)
            part[16 * j + g] = d[j][0], part[16 * j + 8 + g] = d[j][2];
}

/* A cluster has 64 columns, each of its blocks so many rows of w, a warp STEPS tiles. */
template <int STEPS>
__global__ void __launch_bounds__(32 * FEW_WARPS)
    by_row(const __grid_constant__ CUtensorMap map, const product_args a, int rows)
{
#ifdef SM90_CODE
    extern __shared__ char memory[];
    __shared__ float part[FEW_WARPS][COLUMNS], inbox[CLUSTER][COLUMNS];
    __shared__ uint64_t full, joined;
    int f = threadIdx.x, rank = blockIdx.x % CLUSTER, o = COLUMNS * (blockIdx.x / CLUSTER);
    int first = rank * rows, end = min(rows, a.in - first);
    uint32_t held = (address(memory) + 1023) & ~1023u;
    tile w[STEPS] = {};
    uint2 x[STEPS];
    float d[COLUMNS / 16][4] = {}, scale, add = 0;

    start_kernel_behind();
    if (f == 0) {
        begin(address(&full));
        load_part(held, &map, o, first, rows, address(&full), read_once());
        begin(address(&joined));
        barrier_expect(address(&joined), sizeof inbox);
    }
    scale = scale_of(a);
    all_of_cluster(); /* a block is written to when it has begun */
    barrier_wait(address(&full), 0);
    auto row_of = [](int i) { return 16 * (warp_id() + FEW_WARPS * i); };
#pragma unroll
    for (int i = 0; i < STEPS; i++)
        if (row_of(i) < end)
            w[i].load(held, rows, row_of(i));
    wait_for_kernel_before();
    if (rank == 0 && f < COLUMNS)
        add = added(a, 0, o + f);
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        int k = row_of(i) + lane_id() % 4 * 4;
        x[i] = k < end ? *(const uint2 *)(a.x + first + k) : make_uint2(0, 0);
    }
#pragma unroll
    for (int i = 0; i < STEPS; i++)
        w[i].add_to(d, x[i]);
    store_sums(part[warp_id()], d);
    __syncthreads();
    if (f >= COLUMNS)
        return;
    send1(&inbox[rank][f], 0, sum_of(&part[0][f], COLUMNS), address(&joined));
    if (rank)
        return;
    barrier_wait(address(&joined), 0);
    finish(a, 0, o + f, sum_of(&inbox[0][f], COLUMNS) * scale + add);
#endif
}

/* Where columns are many: a block goes through tiles of 64 with all of I, units of UNIT rows, of
 * which RING are there or on the way. N terms of a mix, as by_column. */
template <int V, int N>
__global__ void __launch_bounds__(32 * FEW_WARPS)
    by_tiles(const __grid_constant__ CUtensorMap map, const product_args a)
{
#ifdef SM90_CODE
    enum { UNITS = (256 * V + UNIT - 1) / UNIT, STEPS = UNIT / 16 / FEW_WARPS };
    extern __shared__ char memory[];
    __shared__ float part[2][FEW_WARPS][COLUMNS];
    __shared__ uint64_t full[RING];
    int warp = warp_id(), c = lane_id() % 4, f = threadIdx.x;
    int all = (a.cols + COLUMNS - 1) / COLUMNS;
    int tiles = (all - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x;
    uint32_t held = (address(memory) + 1023) & ~1023u, bar = address(full);
    uint4 x[V];
    uint2 part_of_x[UNITS][STEPS];
    mix_coefs<N ? N : 1> coef;
    float scale;

    auto column_of = [&](int t) { return COLUMNS * ((int)blockIdx.x + t * (int)gridDim.x); };
    auto place = [&](int n) { return held + n % RING * UNIT * STRIPE; };
    auto fetch = [&](int n) {
        if (n < tiles * UNITS)
            load_part(place(n), &map, column_of(n / UNITS), n % UNITS * UNIT, UNIT,
                      bar + n % RING * 8, n >= RING && n % KEEP == 1 ? read_again() : read_once());
    };
    start_kernel_behind();
    if (f == 0) {
        for (int n = 0; n < RING; n++)
            begin(bar + 8 * n);
        for (int n = 0; n < RING; n++)
            fetch(n);
    }
    __syncthreads();
    scale = scale_of(a);
    if (N)
        coef.load(a.mix);
    wait_for_kernel_before();
    read_x<V, N>(x, a, coef, blockIdx.x == 0 && warp == 0);
#pragma unroll
    for (int s = 0; s < UNITS * STEPS; s++) { /* k = 16 (warp + 8 s) + 4 c on */
        uint4 v = s / 2 < V ? of_lane(x[s / 2 % V], 16 * (s % 2) + 2 * warp + c / 2)
                            : make_uint4(0, 0, 0, 0);
        part_of_x[s / STEPS][s % STEPS] = c % 2 ? make_uint2(v.z, v.w) : make_uint2(v.x, v.y);
    }
    for (int t = 0; t < tiles; t++) {
        float d[COLUMNS / 16][4] = {};
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
            int n = t * UNITS + u;
            barrier_wait(bar + n % RING * 8, n / RING & 1);
#pragma unroll
            for (int i = 0; i < STEPS; i++) {
                tile w;
                w.load(place(n), UNIT, 16 * (warp + FEW_WARPS * i));
                w.add_to(d, part_of_x[u][i]);
            }
            if (u == UNITS - 1)
                store_sums(part[t % 2][warp], d);
            __syncthreads();
            if (f == 0)
                fetch(n + RING);
        }
        int o = column_of(t) + f;
        if (f < COLUMNS)
            finish(a, 0, o, sum_of(&part[t % 2][0][f], COLUMNS) * scale + added(a, 0, o));
    }
#endif
}

/* -- launch ---------------------------------------------------------------------------------- */

/* f(times<n>()) for n of 1 .. MOST. */
template <int N> struct times {
    static constexpr int value = N;
};
template <int MOST, int N = 1, typename F> void with_times(int n, F f)
{
    if constexpr (N >= MOST)
        f(times<MOST>());
    else if (n <= N)
        f(times<N>());
    else
        with_times<MOST, N + 1>(n, f);
}
/* f(times<V>(), times<N>()). */
template <typename F> void with_x(const product_args &a, F f)
{
    with_times<MOST_V>(div_up(a.in, 256), [&](auto v) {
        if (a.mix.n == 2)
            f(v, times<2>());
        else if (a.mix.n == 1)
            f(v, times<1>());
        else
            f(v, times<0>());
    });
}

template <int R> void launch_by_column(struct cuda_ops *c, const product_args &a)
{
    with_x(a, [&](auto v, auto n) {
        launch_behind_with(c, 8 * R * row_stride(a.in),
                           by_column<decltype(v)::value, decltype(n)::value, R>,
                           dim3(div_up(a.cols, 8 * R)), 32 * FEW_WARPS, a);
    });
}

/* Makes the tensor map of w (I,O) for load_part of so many rows. */
bool map_of(CUtensorMap *map, const product_args &a, int rows)
{
    const cuuint64_t line = 2 * (cuuint64_t)a.cols;
    return encode_map<5>(map, { CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                                a.w,
                                { (cuuint64_t)a.cols, 2, 2, 4, (cuuint64_t)a.in / 16 },
                                { line, 2 * line, 4 * line, 16 * line },
                                { COLUMNS, 2, 1, 4, (cuuint32_t)rows / 16 },
                                CU_TENSOR_MAP_SWIZZLE_128B,
                                CU_TENSOR_MAP_L2_PROMOTION_L2_128B });
}

bool launch_by_row(struct cuda_ops *c, const product_args &a)
{
    int rows = div_up(a.in, 16 * CLUSTER) * 16;
    CUtensorMap map;
    if (rows > 16 * FEW_WARPS * MOST_STEPS || !map_of(&map, a, rows))
        return false;
    with_times<MOST_STEPS>(div_up(rows, 16 * FEW_WARPS), [&](auto n) {
        launch_behind_clusters(c, CLUSTER, rows * STRIPE + 1024, by_row<decltype(n)::value>,
                               dim3(div_up(a.cols, COLUMNS) * CLUSTER), 32 * FEW_WARPS, map, a,
                               rows);
    });
    return true;
}

bool launch_by_tiles(struct cuda_ops *c, const product_args &a)
{
    CUtensorMap map;
    if (!map_of(&map, a, UNIT))
        return false;
    with_x(a, [&](auto v, auto n) {
        int tiles = div_up(a.cols, COLUMNS);
        launch_behind_with(c, RING * UNIT * STRIPE + 1024,
                           by_tiles<decltype(v)::value, decltype(n)::value>,
                           dim3(tiles < c->sms ? tiles : c->sms), 32 * FEW_WARPS, map, a);
    });
    return true;
}

} /* namespace */

bool one_row(struct cuda_ops *c, const product_args &a, bool in_out)
{
    bool held = a.in <= 256 * MOST_V;
    if (c->shared_max < SHARED || (in_out && a.in % 16))
        return false;
    if (in_out && a.cols <= SOME_COLUMNS)
        return launch_by_row(c, a);
    if (!held)
        return false;
    if (in_out)
        return launch_by_tiles(c, a);
    if (a.cols > 16 * c->sms)
        launch_by_column<4>(c, a);
    else
        launch_by_column<2>(c, a);
    return true;
}
