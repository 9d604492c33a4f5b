/* few_rows.cu - y (T,O) = scale x w' (+ add) for T of 1 to some hundred rows, w (O,I) or (I,O).
 *
 * A decoding step reads every weight once and does little else. A block has some columns of y and
 * all of I, cut among its warps, whose sums are added in order. Its weights do not depend on the
 * kernels before (nothing that runs in a decoding step writes weights): their loads are under way
 * before it waits for those (behind.h), into registers where w is (O,I), into shared memory where
 * it is (I,O). After that wait a step's time is latency, so what is read then is asked for at once:
 * x, and what is added. (Held in shared memory, weights (O,I) made a step of record 61 9% longer.)
 *
 * One row on Hopper is sm90/one_row.cu's.
 *
 * Where w is (I,O) and O small, a block of a Hopper GPU has more columns and a part of I: a cluster
 * has all of it. Its blocks' sums are added in order, each row's by one of them. Where O is large
 * and rows are few, as many blocks as are resident go through the columns, and load the next ones
 * meanwhile.
 *
 * A mix whose norm is x, and that has not been launched (few_rows.h), is made by each block in
 * shared memory; the first one stores it.
 *
 * In a fragment of m16n8k16 a lane has four pairs of neighbours in k, eight apart. Which k a pair
 * stands for does not matter as long as both operands agree, so a lane takes the eight (w (I,O):
 * four) neighbours that it can load at once.
 *
 * Sums of a row do not depend on the other rows: for each row the same instructions in the same
 * order, whatever T. Bytes: O I weights; 2 O I T FLOP. O I = 2304 x 768: 3.5 MB, 0.74 us at 4.8
 * TB/s.
 */
#include "behind.h"
#include "cluster.h"
#include "few_rows.cuh"
#include "mma.h"
#include "sm90/one_row.h"

enum { PAD = 16 }; /* numbers between rows of x in shared memory: other banks */

/* -- w (O,I): columns of y are the tiles' rows --------------------------------------- */

enum { WARPS = FEW_WARPS, AHEAD = 4 }; /* chunks of 32 in I that a warp loads before it waits */

/* N tiles of 8 rows of x. MIX: it is made here. Two CTAs an SM, 128 registers: the weights of one are
 * on the way while the other multiplies. */
template <int N, bool MIX>
__global__ static void __launch_bounds__(32 * WARPS, 2) by_column(product_args a)
{
    extern __shared__ __align__(128) char memory[];
    __shared__ float part[WARPS][N][32][4];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
    int o = 16 * blockIdx.x, t = 8 * N * blockIdx.y, chunks = (a.in + 31) / 32;
    const bf16 *w0 = a.w + (int64_t)(o + g) * a.in, *w1 = w0 + 8 * (int64_t)a.in;
    bool in0 = o + g < a.cols, in1 = o + g + 8 < a.cols;
    const bf16 *x_at = a.x;
    int64_t stride = a.in;
    mix_coefs<FEW_MIX_TERMS> coef;
    float d[N][4] = {};

    start_kernel_behind();
    float scale = scale_of(a), add = 0;
    if (MIX)
        coef.load(a.mix);
    for (int q = 0; !q || warp + WARPS * q < chunks; q += AHEAD) {
        uint4 w[AHEAD][2], x[AHEAD];
#pragma unroll
        for (int p = 0; p < AHEAD; p++) {
            int k = 32 * (warp + WARPS * (q + p)) + 8 * c;
            w[p][0] = load_16(w0 + k, in0 && k < a.in);
            w[p][1] = load_16(w1 + k, in1 && k < a.in);
        }
        if (!q) {
            wait_for_kernel_before();
            add = added(a, t + threadIdx.x / 16, o + threadIdx.x % 16);
            if (MIX) {
                bf16 *own = (bf16 *)memory;
                x_at = own, stride = a.in + PAD;
                mix_rows(own, a.in + PAD, (float *)(own + a.rows * (a.in + PAD)), a.mix, coef,
                         blockIdx.x == 0);
            }
        }
#pragma unroll
        for (int n = 0; n < N; n++) {
            int row = t + 8 * n + g;
#pragma unroll
            for (int p = 0; p < AHEAD; p++) {
                int k = 32 * (warp + WARPS * (q + p)) + 8 * c;
                x[p] = load_16(x_at + row * stride + k, row < a.rows && k < a.in);
            }
#pragma unroll
            for (int p = 0; p < AHEAD; p++) {
                uint4 u = w[p][0], v = w[p][1];
                uint32_t low[4] = { u.x, v.x, u.y, v.y }, high[4] = { u.z, v.z, u.w, v.w };
                mma(d[n], low, x[p].x, x[p].y);
                mma(d[n], high, x[p].z, x[p].w);
            }
        }
    }
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            part[warp][n][lane][i] = d[n][i];
    __syncthreads();
    for (int i = threadIdx.x; i < 128 * N; i += 32 * WARPS) {
        int f = i % 16, row = i / 16, n = row / 8, l = f % 8 * 4 + row % 8 / 2;
        float sum = 0;
#pragma unroll
        for (int k = 0; k < WARPS; k++)
            sum += part[k][n][l][f / 8 * 2 + row % 2];
        finish(a, t + row, o + f, sum * scale + add);
        add = added(a, t + row + 2 * WARPS, o + f);
    }
}

/* -- w (I,O): rows of y are the tiles' rows ------------------------------------------- */

/* A block's part of w lies in shared memory as rows of C pieces of eight columns; the pieces are
 * exchanged so that those of one column that a warp reads at once are in different banks. x lies
 * behind them where it has room, else it is read where it is. */
struct held {
    int part; /* rows of w that a block has, a multiple of 16 */
    int rows; /* of these at once, a multiple of 16: the next ones take their place */
    int x_stride; /* 0: x is not held */
    int w_bytes, inbox; /* where the inbox is, for clusters */
};

template <int C> __device__ __forceinline__ static uint32_t piece_at(int row, int piece)
{
    return 16 * (row * C + (piece ^ (row >> 2) % C));
}

template <int C>
__device__ __forceinline__ static void load_rows(const product_args &a, const held &h, uint32_t to,
                                                 int begin, int end, int o)
{
    for (int i = threadIdx.x; i < h.rows * C; i += blockDim.x) {
        int row = i / C, piece = i % C, k = begin + row, column = o + 8 * piece;
        copy_16_line(to + piece_at<C>(row, piece), a.w + (int64_t)k * a.cols + column,
                     k < end && column < a.cols);
    }
    copies_commit();
}

/* 16 rows of w and all of its columns here, as the products' operands. Of a lane's address for
 * load_transposed: rows of k 4 c + i, the order of k in the fragments, and the piece. */
template <int C> struct w_tile {
    uint32_t w[C / 2][4];

    __device__ __forceinline__ void load(uint32_t held, int first)
    {
        int lane = lane_id(), row = lane % 8 / 2 * 4 + lane % 2 + lane / 8 % 2 * 2;
#pragma unroll
        for (int j = 0; j < C / 2; j++)
            load_transposed(w[j], held + piece_at<C>(first + row, 2 * j + lane / 16));
    }
    /* Adds the products with rows g and g + 8 of x. */
    __device__ __forceinline__ void add_to(float (&d)[C][4], uint2 x, uint2 x8) const
    {
        uint32_t v[4] = { x.x, x8.x, x.y, x8.y };
#pragma unroll
        for (int j = 0; j < C; j++)
            mma(d[j], v, w[j / 2][j % 2 * 2], w[j / 2][j % 2 * 2 + 1]);
    }
};

/* What each of W warps has of a tile of sums, in the memory of w, and their sums. */
template <int C, int W> struct warp_sums {
    float (*part)[C][32][4];

    __device__ __forceinline__ warp_sums(char *memory) : part((float (*)[C][32][4])memory) {}
    __device__ __forceinline__ void store(const float (&d)[C][4])
    {
#pragma unroll
        for (int j = 0; j < C; j++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                part[warp_id()][j][lane_id()][i] = d[j][i];
    }
    __device__ __forceinline__ float operator()(int r, int f) const
    {
        int l = r % 8 * 4 + f % 8 / 2;
        float sum = 0;
#pragma unroll
        for (int k = 0; k < W; k++)
            sum += part[k][f / 8][l][r / 8 * 2 + f % 2];
        return sum;
    }
};

/* Block r % S of the cluster finishes row r of y: four sums of it, by block `rank`, go there, into
 * an inbox of S times 8 C numbers for each of its rows. */
template <int C, int S>
__device__ __forceinline__ static void send(const float *inbox, int r, int f, int rank, float4 v)
{
    send4(inbox + (r / S * S + rank) * 8 * C + f, r % S, v);
}

/* M tiles of 16 rows of x; 8 C columns a cluster of S blocks, W warps each. MIX: x is made here. B CTAs an SM:
 * four, 64 registers, where a cluster has little to do. */
template <int M, int C, int W, int S, bool MIX, int B = M == 1 && S == 8 ? 4 : 1>
__global__ static void __launch_bounds__(32 * W, B) by_row(product_args a, held h)
{
    extern __shared__ __align__(128) char memory[];
    int warp = warp_id(), g = lane_id() / 4, c = lane_id() % 4;
    int o = 8 * C * (blockIdx.x / S), t = 16 * M * blockIdx.y, end = min(a.rows - t, 16 * M);
    int rank = blockIdx.x % S, begin = rank * h.part, stop = min(begin + h.part, a.in);
    int own_row = S * (threadIdx.x / (8 * C)) + rank, own_column = threadIdx.x % (8 * C);
    const bf16 *x = a.x + (int64_t)t * a.in + begin;
    int64_t stride = a.in;
    mix_coefs<FEW_MIX_TERMS> coef;
    float d[M][C][4] = {};

    start_kernel_behind();
    load_rows<C>(a, h, address(memory), begin, stop, o);
    float scale = scale_of(a), add = 0;
    if (MIX)
        coef.load(a.mix);
    if (S > 1) /* a block is written to when it has begun */
        all_of_cluster();
    wait_for_kernel_before();
    add = added(a, t + own_row, o + own_column);
    bf16 *own = (bf16 *)(memory + h.w_bytes);
    if (MIX) {
        mix_rows(own, h.x_stride, (float *)(own + a.rows * h.x_stride), a.mix, coef,
                 blockIdx.x == 0);
        x = own, stride = h.x_stride;
    } else if (h.x_stride) {
        int pieces = max(stop - begin, 0) / 8;
        for (int i = threadIdx.x; i < end * pieces; i += blockDim.x) {
            int k = i % pieces * 8, r = i / pieces;
            *(uint4 *)(own + r * h.x_stride + k) = *(const uint4 *)(x + (int64_t)r * a.in + k);
        }
        x = own, stride = h.x_stride;
    }
    for (int first = begin; first < stop; first += h.rows) {
        if (first > begin) {
            __syncthreads();
            load_rows<C>(a, h, address(memory), first, stop, o);
        }
        copies_wait<0>();
        __syncthreads();
        auto x_at = [&](int m, int i, int k) {
            int r = 16 * m + 8 * i + g;
            return r < end && k < stop ? *(const uint2 *)(x + r * stride + k - begin)
                                       : make_uint2(0, 0);
        };
        uint2 u[M][2], next[M][2];
#pragma unroll
        for (int m = 0; m < M; m++)
            u[m][0] = x_at(m, 0, first + 16 * warp + 4 * c),
            u[m][1] = x_at(m, 1, first + 16 * warp + 4 * c);
        for (int s = 16 * warp; s < h.rows && first + s < stop; s += 16 * W) {
            w_tile<C> w;
#pragma unroll
            for (int m = 0; m < M; m++)
                next[m][0] = x_at(m, 0, first + s + 16 * W + 4 * c),
                next[m][1] = x_at(m, 1, first + s + 16 * W + 4 * c);
            w.load(address(memory), s);
#pragma unroll
            for (int m = 0; m < M; m++) {
                w.add_to(d[m], u[m][0], u[m][1]);
                u[m][0] = next[m][0], u[m][1] = next[m][1];
            }
        }
    }
    copies_wait<0>(); /* where the loop was empty: the last blocks' part of a small I */
    warp_sums<C, W> sum_of(memory);
    float *inbox = (float *)(memory + h.inbox);
#pragma unroll
    for (int m = 0; m < M; m++) {
        __syncthreads();
        sum_of.store(d[m]);
        __syncthreads();
        if (S > 1)
            for (int i = threadIdx.x; i < min(end - 16 * m, 16) * 2 * C; i += 32 * W) {
                int f = i % (2 * C) * 4, r = i / (2 * C);
                send<C, S>(inbox, 16 * m + r, f, rank,
                           make_float4(sum_of(r, f), sum_of(r, f + 1), sum_of(r, f + 2),
                                       sum_of(r, f + 3)));
            }
        else
            for (int i = threadIdx.x; i < 128 * C; i += 32 * W) {
                int f = i % (8 * C), r = i / (8 * C);
                if (m || i != threadIdx.x)
                    add = added(a, t + 16 * m + r, o + f);
                finish(a, t + 16 * m + r, o + f, sum_of(r, f) * scale + add);
            }
    }
    if (S == 1)
        return;
    all_of_cluster();
    for (int r = own_row; r < end; r += S * (32 * W / (8 * C))) {
        float sum = 0;
#pragma unroll
        for (int k = 0; k < S; k++)
            sum += inbox[(r / S * S + k) * 8 * C + own_column];
        if (r != own_row)
            add = added(a, t + r, o + own_column);
        finish(a, t + r, o + own_column, sum * scale + add);
    }
}

/* Tiles of 8 C columns with all of I, as many blocks as are resident: while a block has one, the
 * next one comes. At most 16 rows, in shared memory. Two CTAs an SM: 128 registers. */
template <int C, int W, bool MIX>
__global__ static void __launch_bounds__(32 * W, 2) by_tiles(product_args a, held h)
{
    extern __shared__ __align__(128) char memory[];
    int g = lane_id() / 4, c = lane_id() % 4;
    int wide = 8 * C * gridDim.x;
    bf16 *x = (bf16 *)(memory + 2 * h.w_bytes);
    mix_coefs<FEW_MIX_TERMS> coef;

    start_kernel_behind();
    for (int n = 0; n < 2; n++)
        load_rows<C>(a, h, address(memory) + n * h.w_bytes, 0, a.in, 8 * C * blockIdx.x + n * wide);
    float scale = scale_of(a);
    if (MIX)
        coef.load(a.mix);
    wait_for_kernel_before();
    if (MIX)
        mix_rows(x, h.x_stride, (float *)(x + a.rows * h.x_stride), a.mix, coef, blockIdx.x == 0);
    else
        for (int i = threadIdx.x; i < a.rows * (a.in / 8); i += blockDim.x) {
            int k = i % (a.in / 8) * 8, r = i / (a.in / 8);
            *(uint4 *)(x + r * h.x_stride + k) = *(const uint4 *)(a.x + (int64_t)r * a.in + k);
        }
    for (int o = 8 * C * blockIdx.x, n = 0; o < a.cols; o += wide, n ^= 1) {
        char *held = memory + n * h.w_bytes;
        warp_sums<C, W> sum_of(held);
        float d[C][4] = {};
        auto x_at = [&](int r, int k) {
            return r < a.rows && k < a.in ? *(const uint2 *)(x + r * h.x_stride + k)
                                          : make_uint2(0, 0);
        };
        copies_wait<1>();
        __syncthreads();
        for (int s = 16 * warp_id(); s < a.in; s += 16 * W) {
            w_tile<C> w;
            w.load(address(held), s);
            w.add_to(d, x_at(g, s + 4 * c), x_at(8 + g, s + 4 * c));
        }
        __syncthreads();
        sum_of.store(d);
        __syncthreads();
        for (int i = threadIdx.x; i < a.rows * 8 * C; i += 32 * W) {
            int f = i % (8 * C), r = i / (8 * C);
            finish(a, r, o + f, sum_of(r, f) * scale + added(a, r, o + f));
        }
        __syncthreads();
        load_rows<C>(a, h, address(held), 0, a.in, o + 2 * wide);
    }
    copies_wait<0>();
}

/* -- launch ---------------------------------------------------------------------------- */

enum {
    MOST_TILES = 4, /* of 16 rows of x that a block with w (I,O) has */
    X_BYTES = 48 << 10 /* of shared memory for x at most */
};

/* f(tiles<n>()) with the least n of 1, 2, 4, .. most that holds `tiles`. */
template <int N> struct tiles {
    static constexpr int value = N;
};
template <int MOST, int N = 1, typename F> static void with_tiles(int n, F f)
{
    if constexpr (N >= MOST)
        f(tiles<MOST>());
    else if (n <= N)
        f(tiles<N>());
    else
        with_tiles<MOST, 2 * N>(n, f);
}

/* Returns the bytes of x in shared memory, with the sums of the mix that it is made from. */
static int bytes_of_x(int rows, int in, const mix_args &m)
{
    return rows * (in + PAD) * 2 + (m.n ? mix_sums_bytes(m) : 0);
}

/* Returns how many rows of w are held. It must not depend on T, as a row's sums do not: it is that
 * of the most columns, 8 most_c, and tiles, whose inboxes take so many bytes. */
static int rows_at_once(struct cuda_ops *c, int most_c, int warps, int inboxes = 0)
{
    return (c->shared_max - warps * most_c * 512 - inboxes) / (16 * most_c) / 16 * 16;
}

template <int M, int C, int MOST_C, int W, int S, bool MIX>
static void launch_rows(struct cuda_ops *c, const product_args &a)
{
    enum { INBOX = S > 1 ? M * 16 * 8 * C * 4 : 0 };
    int x_rows = a.rows < 16 * M ? a.rows : 16 * M;
    held h = { div_up(a.in, 16 * S) * 16 };
    h.rows = min(rows_at_once(c, MOST_C, W, MOST_TILES / M * INBOX), h.part);
    h.w_bytes = max(h.rows * 16 * C, W * C * 512);
    int x_bytes = bytes_of_x(x_rows, S > 1 ? h.part : a.in, a.mix);
    if (x_bytes <= X_BYTES && h.w_bytes + x_bytes + INBOX <= c->shared_max)
        h.x_stride = (S > 1 ? h.part : a.in) + PAD;
    else
        x_bytes = 0;
    assert(!MIX || h.x_stride);
    h.inbox = h.w_bytes + x_bytes;
    launch_behind_clusters(c, S, h.inbox + INBOX, by_row<M, C, W, S, MIX>,
                           dim3(div_up(a.cols, 8 * C) * S, div_up(a.rows, 16 * M)), 32 * W, a, h);
}

template <bool MIX> static bool launch_tiles(struct cuda_ops *c, const product_args &a)
{
    enum { C = 4, W = 8 };
    held h = { a.in, div_up(a.in, 16) * 16, a.in + PAD };
    h.w_bytes = max(h.rows * 16 * C, W * C * 512);
    int shared = 2 * h.w_bytes + bytes_of_x(a.rows, a.in, a.mix);
    if (shared > c->shared_max || h.rows > rows_at_once(c, 8, W))
        return false;
    int resident = 2 * (shared + 1024) <= c->shared_max ? 2 : 1;
    launch_behind_with(c, shared, by_tiles<C, W, MIX>,
                       dim3(min(div_up(a.cols, 8 * C), resident * c->sms)), 32 * W, a, h);
    return true;
}

static void launch_by_row(struct cuda_ops *c, const product_args &a)
{
    if (a.cols > SOME_COLUMNS && a.rows <= 16 && !c->portable &&
        (a.mix.n ? launch_tiles<true>(c, a) : launch_tiles<false>(c, a)))
        return;
    with_tiles<MOST_TILES>(div_up(a.rows, 16), [&](auto m) {
        constexpr int M = decltype(m)::value;
        if (a.cols <= SOME_COLUMNS && !c->portable)
            launch_rows<M, 8, 8, 8, 8, false>(c, a);
        else if (a.cols <= SOME_COLUMNS)
            launch_rows<M, 2, 2, 16, 1, false>(c, a);
        else if (a.mix.n)
            launch_rows<1, 4, 8, 8, 1, true>(c, a);
        else if constexpr (M == 1) /* enough blocks: several on an SM */
            launch_rows<1, 4, 8, 8, 1, false>(c, a);
        else /* each reads all of x */
            launch_rows<M, 8, 8, 8, 1, false>(c, a);
    });
}

static void launch_by_column(struct cuda_ops *c, const product_args &a)
{
    dim3 grid(div_up(a.cols, 16), 1);

    if (a.mix.n) {
        launch_behind_with(c, bytes_of_x(a.rows, a.in, a.mix), by_column<1, true>, grid, 32 * WARPS,
                           a);
        return;
    }
    with_tiles<8>(div_up(a.rows, 8), [&](auto n) {
        constexpr int N = decltype(n)::value;
        launch_behind(c, by_column<N, false>, dim3(grid.x, div_up(a.rows, 8 * N)), 32 * WARPS, a);
    });
}

/* True if this product makes x by the mix that waits. Each block reads the mix's terms, and one
 * of them writes its sum. */
static bool takes_mix(const struct cuda_ops *c, const struct few_rows &p)
{
    const mix_args &m = c->mix;
    for (int k = 0; k < m.n; k++)
        if (m.x[k] == p.out.data)
            return false;
    return m.n && m.y == p.x.data && m.rows == p.x.rows && m.d == p.x.cols && m.out != p.add.data &&
           bytes_of_x(m.rows, m.d, m) <= X_BYTES && (!p.in_out || p.out.cols > SOME_COLUMNS);
}

void few_rows(struct cuda_ops *c, const struct few_rows &p)
{
    product_args a = { p.out.data,
                       (const bf16 *)p.x.data,
                       (const bf16 *)p.w.data,
                       (const bf16 *)p.add.data,
                       p.scale,
                       (int)p.x.rows,
                       (int)p.x.cols,
                       (int)p.out.cols,
                       p.end,
                       p.cap_a,
                       p.cap_b,
                       p.cap_c,
                       p.bias.data,
                       p.bias.dtype == DT_F32 };

    assert(p.x.dtype == DT_BF16 && p.out.dtype == (p.end >= FEW_SOFTCAP ? DT_F32 : DT_BF16));
    assert((p.in_out ? p.w.rows : p.w.cols) == a.in && (p.in_out ? p.w.cols : p.w.rows) == a.cols);
    if (c->failed || !a.rows ||
        !CUDA_NEED(c, p.w.dtype == DT_BF16, "weights of products are bf16") ||
        !CUDA_NEED(c, a.in % 8 == 0 && a.cols % 8 == 0, "widths are multiples of 8"))
        return;
    if (takes_mix(c, p)) {
        a.mix = c->mix;
        c->mix.n = 0;
    }
    if (a.rows == 1 && !c->portable && one_row(c, a, p.in_out))
        return;
    if (p.in_out)
        launch_by_row(c, a);
    else
        launch_by_column(c, a);
}
