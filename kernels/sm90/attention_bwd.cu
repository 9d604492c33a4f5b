/* attention_bwd.cu - dq, dk, dv by two kinds of tile, each product recomputed where it is used.
 *
 * With P = exp(scale q k^T - lse) and dS = P (dout v^T - delta), delta = rowsum(dout out):
 *     dv = P^T dout,   dk = scale dS^T q,   dq = scale dS k.
 * An item is a tile of 128 rows of one head that stays (x1, x2) and the blocks of 64 rows that
 * it meets and that stream past (y1, y2):
 *     by key:   x = k, v       y = q, dout    S' = S^T     dv += P' y2,  dk += dS' y1
 *     by query: x = q, dout    y = k, v       S' = S                     dq += dS' y1
 * where S' = x1 y1^T and dP' = x2 y2^T. The sums stay in registers from the first block to the
 * last and P', dS' go from registers to the next product, so nothing is accumulated in
 * memory: the same bits in every run, no f32 copy of dq, no atomics. The price is S and dP
 * computed twice, 14 E FLOP a pair of query and key in place of 10 E (8 Q + 6 E for 6 Q + 4 E where heads of q and k
 * have Q channels); a pass that adds dq
 * in f32 (written, reduced and converted: 20 bytes a number) was estimated to cost more than
 * these at documents of 600 tokens.
 *
 * Block, warpgroups and item order are as in attention_fwd.cu, one kernel a kind. Each tile buffer
 * is double: the next x is copied while this one is worked on; finished dk, dv, dq leave through
 * the buffer of their own x. With the norms' factors dq and dk become the gradients of raw q and k
 * on their way (raw_rows), which a pass over 8 T D numbers did before.
 */
#include <type_traits>
#include "sm90/attention_block.cuh"

namespace
{

enum { STAGES = 3, CONSUMER_WARPS = 8 };
enum { STAGING = 1 }; /* named barriers, one a consumer warpgroup */

struct backward_maps {
    CUtensorMap k, v, q, dout, dq[2], dk[2], dv, lse2, delta, by_key, by_query;
};

struct alignas(128) backward_item {
    struct reach reach;
};

template <int Q, int E> struct backward_smem {
    struct {
        char x1[2][block<Q>::BYTES], x2[2][block<E>::BYTES]; /* halves of the tile */
    } x[2];
    struct {
        char y1[block<Q>::BYTES], y2[block<E>::BYTES];
    } y[STAGES];
    float lse2[STAGES][BLOCK], delta[STAGES][BLOCK];
    struct backward_item item[2];
    uint64_t x_bars[2 * 2], y_bars[2 * STAGES];
};

/* Describes what passes from producer to consumers: tiles that stay, with their item, and blocks that stream
 * past. A stage of x is released by one thread a warpgroup, whose results leave through it. */
template <int Q, int E> struct backward_pipes {
    enum { FIRST = block<Q>::BYTES, SECOND = block<E>::BYTES };
    pipeline<2, 2 * (FIRST + SECOND)> x;
    pipeline<STAGES, FIRST + SECOND> y;
    __device__ explicit backward_pipes(backward_smem<Q, E> *sm)
        : x{ address(sm->x), address(sm->x_bars) }, y{ address(sm->y), address(sm->y_bars) }
    {
    }
    __device__ __forceinline__ uint32_t x1(uint32_t buffer, int half) const
    {
        return x.slot({ buffer, 0 }) + half * FIRST;
    }
    __device__ __forceinline__ uint32_t x2(uint32_t buffer, int half) const
    {
        /* one form for both spills 4 bytes more of by_query at 128 */
        return Q == E ? x1(buffer, 2 + half) : x1(buffer, 2) + half * SECOND;
    }
    __device__ __forceinline__ uint32_t y1(place at) const { return y.slot(at); }
    __device__ __forceinline__ uint32_t y2(place at) const { return y.slot(at) + FIRST; }
};

template <int Q, int E, bool BY_KEY>
__device__ void produce(const struct attention_call &c, const struct backward_maps &m,
                        backward_smem<Q, E> *sm)
{
    const int items = c.p.items, bytes = block<Q>::BYTES + block<E>::BYTES;
    const CUtensorMap *const xs = BY_KEY ? &m.k : &m.q, *const ys = BY_KEY ? &m.q : &m.k;
    const struct reach *const reaches = BY_KEY ? c.p.by_key : c.p.by_query;
    const CUtensorMap *const list = BY_KEY ? &m.by_key : &m.by_query;
    const backward_pipes<Q, E> pipes(sm);
    auto take = [&] { /* each CTA takes two numbers more than it works on */
                      return take_item(&c.p.next[BY_KEY ? 1 : 2], items + 2 * gridDim.x - 1);
    };
    place x = { 0, 0 }, y = { 0, 0 };
    int item = take(), after = take();
    struct reach reach = reaches[min(item, items)];

    for (;; pipes.x.step(x)) {
        const uint32_t full = pipes.x.full(x);
        pipes.x.acquire(x, item < items ? (int)sizeof reach + 2 * bytes : (int)sizeof reach);
        load_box(address(&sm->item[x.stage]), list, 0, min(item, items), full);
        if (item >= items)
            return;
        const int head = reach.head, row = reach.tile * TILE;
        int blocks = reach_blocks(reach.blocks), at = BY_KEY ? row : row + BLOCK;
        for (int i = 0; i < 2; i++) {
            block<Q>::load(pipes.x1(x.stage, i), xs, head, row + i * BLOCK, full);
            block<E>::load(pipes.x2(x.stage, i), xs + 1, head, row + i * BLOCK, full);
        }
        /* The next item's numbers travel while this one's blocks are copied. */
        item = after;
        after = take();
        reach = reaches[min(item, items)];
        for (; blocks > 0; blocks--, at += BY_KEY ? BLOCK : -BLOCK, pipes.y.step(y)) {
            const uint32_t bar = pipes.y.full(y);
            pipes.y.acquire(y, bytes + (BY_KEY ? 2 * BLOCK * 4 : 0));
            block<Q>::load(pipes.y1(y), ys, head, at, bar);
            if (BY_KEY) {
                load_box(address(&sm->lse2[y.stage]), &m.lse2, at, head, bar);
                load_box(address(&sm->delta[y.stage]), &m.delta, at, head, bar);
            }
            block<E>::load(pipes.y2(y), ys + 1, head, at, bar);
        }
    }
}

/* Packed gradients p of a warp's 16 rows z = R Norm(x) of this head (in shared memory, at x1)
 * become those of x: lib/ops/qkv.c, raw_grad. row: the first of the thread's two. */
template <int E, bool WHOLE>
__device__ __forceinline__ void raw_rows(uint32_t (&p)[E / 4], const struct attention_call &c,
                                         bool key, int head, int row, uint32_t x1)
{
    enum { TURNED = WHOLE ? E / 8 : E / 16 }; /* pairs of a row that a thread has in what turns */
    const int pair = c.s.cu_mul, heads = c.s.heads, tokens = c.s.rows / pair;
    const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
    uint32_t turn[2][TURNED],
        z[4]; /* cosine and sine; 16 channels, read twice for want of registers */
    float r[2], mean[2] = { 0, 0 };

#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int at = min(row + 8 * h, c.s.rows - 1); /* rows past the end are not stored */
        const int t = at / pair, of = at % pair * heads + head;
        const int64_t position = pair * t + (pair == 2 ? of & 1 : 0);
        const uint32_t *rope = (const uint32_t *)c.grads.rope + position * (4 * TURNED) + lane % 4;
        r[h] = c.grads.factor[(int64_t)(key * pair * heads + of) * tokens + t];
#pragma unroll
        for (int q = 0; q < TURNED; q++)
            turn[h][q] = rope[4 * q];
    }
#pragma unroll
    for (int i = 0; i < E / 4; i++) {
        if (i % 4 == 0)
            load_step<E>(z, x1, warp, lane, i / 4);
        mean[i % 2] = fmaf(bf16_lo(p[i]), bf16_lo(z[i % 4]), mean[i % 2]);
        mean[i % 2] = fmaf(bf16_hi(p[i]), bf16_hi(z[i % 4]), mean[i % 2]);
    }
    mean[0] = quad_sum(mean[0]) / E;
    mean[1] = quad_sum(mean[1]) / E;
#pragma unroll
    for (int i = 0; i < E / 4; i++) {
        const int h = i % 2, q = i / 2;
        const bool turned = q < TURNED;
        const float cos = turned ? bf16_lo(turn[h][q % TURNED]) : 1;
        const float sin = turned ? bf16_hi(turn[h][q % TURNED]) : 0;
        /* 1 / (c^2 + s^2) to 2^-16: c and s are off by 2^-9 */
        const float part = turned ? mean[h] * (2 - fmaf(cos, cos, sin * sin)) : mean[h];
        if (i % 4 == 0)
            load_step<E>(z, x1, warp, lane, i / 4);
        const float even = r[h] * fmaf(-part, bf16_lo(z[i % 4]), bf16_lo(p[i]));
        const float odd = r[h] * fmaf(-part, bf16_hi(z[i % 4]), bf16_hi(p[i]));
        p[i] = turned ? bf16_pack(cos * even - sin * odd, cos * odd + sin * even)
                      : bf16_pack(even, odd);
    }
}

/* Results in shared memory at x: bf16, or with a unit codes. */
template <int E, bool CODES>
__device__ __forceinline__ void stage(uint32_t x, const uint32_t (&r)[E / 4], float unit)
{
    const int thread = threadIdx.x % 128;

    if (CODES && unit != 0)
        store_codes<E>(x, r, thread / 32, thread % 32, unit);
    else
        store_rows<E>(x, r, thread / 32, thread % 32);
}

/* Packed results are stored through the tile's own memory, which the half no longer reads. */
template <int Q, int E, bool BY_KEY, bool CODES>
__device__ __forceinline__ void leave(const struct backward_maps &m, backward_smem<Q, E> *sm,
                                      uint32_t buffer, uint32_t (&r1)[Q / 4],
                                      const uint32_t (&r2)[E / 4], const struct attention_call &c)
{
    const int group = threadIdx.x / 128 - 1, thread = threadIdx.x % 128;
    const backward_pipes<Q, E> pipes(sm);
    const uint32_t x1 = pipes.x1(buffer, group), x2 = pipes.x2(buffer, group);
    const int head = sm->item[buffer].reach.head;
    const int row = sm->item[buffer].reach.tile * TILE + group * BLOCK;

    if (BY_KEY ? c.grads.raw_keys : c.grads.factor != NULL)
        raw_rows<Q, 2 * Q == E>(r1, c, BY_KEY, head, row + thread / 32 * 16 + thread % 32 / 4, x1);
    named_wait(STAGING + group, WARPGROUP);
    stage<Q, CODES>(x1, r1, BY_KEY ? c.grads.dk_unit : c.grads.dq_unit);
    if (BY_KEY)
        stage<E, CODES>(x2, r2, c.grads.dv_unit);
    shared_written();
    named_wait(STAGING + group, WARPGROUP);
    if (thread == 0) {
        block<Q>::store_grad(BY_KEY ? m.dk : m.dq, head, row, c.s.cu_mul, x1, false,
                             CODES && (BY_KEY ? c.grads.dk_unit : c.grads.dq_unit) != 0);
        if (BY_KEY)
            block<E>::store_grad(&m.dv, head, row, c.s.cu_mul, x2, c.grads.add_dv,
                                 CODES && c.grads.dv_unit != 0);
        stores_commit();
    }
}
/* Releases a buffer, when what leaves through it has been read. */
template <int Q, int E>
__device__ __forceinline__ void release_x(const backward_pipes<Q, E> &pipes, uint32_t buffer)
{
    if (threadIdx.x % WARPGROUP == 0) {
        stores_read();
        barrier_arrive(pipes.x.empty({ buffer, 0 }));
    }
}

/* Loads lse / ln 2 or delta of two neighbouring columns of S'. */
__device__ __forceinline__ float2 load_pair(uint32_t at)
{
    float2 x;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(at));
    return x;
}

/* What one warpgroup does: its half of each tile. BY_KEY as above. An item's results leave
 * while the first S' of the next is computed. The loop has 240 registers a thread and needs
 * nearly all: what is only used before or behind it is computed there. */
template <int Q, int E, bool BY_KEY, bool CODES>
__device__ __forceinline__ void half_tiles(const struct attention_call &c,
                                           const struct backward_maps &m, backward_smem<Q, E> *sm)
{
    const int group = threadIdx.x / 128 - 1, lane = threadIdx.x % 32;
    const int far = BY_KEY ? group : 1 - group;
    const backward_pipes<Q, E> pipes(sm);
    bool any = false; /* an item before this one */
    place x = { 0, 0 }, y = { 0, 0 };
    float s[32], dp[32], d1[Q / 2], d2[E / 2];
    uint32_t p[16], ds[16], r1[Q / 4], r2[E / 4];
    auto release_before = [&] { /* the stage before y, by a warp that has met */
                                pipes.y.release({ (y.stage ? y.stage : STAGES) - 1, 0 });
    };
    auto skip = [&](int n) { /* blocks that only the other half meets */
                             for (; n > 0; n--, pipes.y.step(y)) {
                                 pipes.y.wait(y);
                                 __syncwarp();
                                 pipes.y.release(y);
                             }
    };

    for (;; pipes.x.step(x)) {
        const uint32_t buffer = x.stage;
        pipes.x.wait(x);
        if (sm->item[buffer].reach.tile < 0)
            break;
        const int row = sm->item[buffer].reach.tile * TILE + group * BLOCK +
                        threadIdx.x % 128 / 32 * 16 + lane / 4;
        const int blocks = reach_part(sm->item[buffer].reach.blocks, far);
        const int whole = reach_part(sm->item[buffer].reach.whole, far);
        const uint32_t x1 = block<Q>::desc(pipes.x1(buffer, group));
        const uint32_t x2 = block<E>::desc(pipes.x2(buffer, group));
        int lo[2], len[2];
        float lse2[2], delta[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            if (BY_KEY) {
                lo[h] = row + 8 * h;
                len[h] = c.p.end[row + 8 * h] - lo[h];
            } else {
                const int64_t at = (int64_t)sm->item[buffer].reach.head * c.p.padded + row + 8 * h;
                lo[h] = c.p.start[row + 8 * h];
                len[h] = row + 8 * h - lo[h];
                lse2[h] = c.p.lse2[at];
                delta[h] = c.p.delta[at];
            }
        }
        /* By query, x fits in registers too; shared memory, which could not feed both operands
         * of a 64-wide product at full rate, then delivers y alone. Not so at 64 channels, where
         * ptxas 13.0 puts dS into the registers of x2 while the loop still needs them. */
        constexpr bool X_IN_REGISTERS = !BY_KEY && E == 128;
        uint32_t x1_rows[Q / 16][4], x2_rows[E / 16][4];
        if (X_IN_REGISTERS) {
            load_rows<Q>(x1_rows, pipes.x1(buffer, group), threadIdx.x % 128 / 32, lane);
            load_rows<E>(x2_rows, pipes.x2(buffer, group), threadIdx.x % 128 / 32, lane);
        }
        auto block_of = [&](auto first, int i) {
            constexpr bool FIRST = decltype(first)::value;
            const uint32_t y1 = block<Q>::desc(pipes.y1(y)), y2 = block<E>::desc(pipes.y2(y));
            pipes.y.wait(y);
            wgmma_begin();
            if (X_IN_REGISTERS)
                dot_rows<Q>(s, x1_rows, y1);
            else
                dot_rows<Q>(s, x1, y1);
            wgmma_commit();
            if (!FIRST) {
                wgmma_wait<1>(); /* the products of the block before are done */
                keep(d1);
                __syncwarp();
                release_before();
            } else if (any) {
                leave<Q, E, BY_KEY, CODES>(m, sm, buffer ^ 1, r1, r2, c);
            }
            wgmma_begin();
            if (X_IN_REGISTERS)
                dot_rows<E>(dp, x2_rows, y2);
            else
                dot_rows<E>(dp, x2, y2);
            wgmma_commit();
            const int col = lane % 4 * 2;
            float2 at[8]; /* of the columns; loaded ahead of the waits */
            if (BY_KEY)
#pragma unroll
                for (int j = 0; j < 8; j++)
                    at[j] = load_pair(address(&sm->lse2[y.stage][8 * j + col]));
            wgmma_wait<1>();
            keep(s);
            if (FIRST || i >= whole)
                mask_block(s, row / BLOCK * BLOCK + (BY_KEY ? i : -i) * BLOCK + col, lo, len);
#pragma unroll
            for (int j = 0; j < 32; j++) {
                float shift = BY_KEY ? (j % 2 ? at[j / 4].y : at[j / 4].x) : lse2[j / 2 % 2];
                s[j] = exp2_approx(fmaf(s[j], c.unit, -shift));
            }
            if (BY_KEY) {
                pack_rows(p, s);
                wgmma_begin();
                add_rows<E>(d2, p, y2, !FIRST);
                wgmma_commit();
#pragma unroll
                for (int j = 0; j < 8; j++) {
                    if (j == 4)
                        wgmma_wait<1>(); /* there are registers for half of them */
                    at[j] = load_pair(address(&sm->delta[y.stage][8 * j + col]));
                }
            } else {
                keep(s); /* the exponentials before the wait */
                wgmma_wait<0>();
            }
            keep(dp);
#pragma unroll
            for (int j = 0; j < 32; j++) {
                float shift = BY_KEY ? (j % 2 ? at[j / 4].y : at[j / 4].x) : delta[j / 2 % 2];
                dp[j] = s[j] * (dp[j] - shift);
            }
            pack_rows(ds, dp);
            wgmma_begin();
            add_rows<Q>(d1, ds, y1, !FIRST);
            wgmma_commit();
            if (FIRST && any)
                release_x(pipes, buffer ^ 1);
            pipes.y.step(y);
        };
        skip(far);
        block_of(std::true_type(), 0);
        for (int i = 1; i < blocks; i++)
            block_of(std::false_type(), i);
        wgmma_wait<0>();
        keep(d1);
        round_rows<Q>(r1, d1, c.s.scale, c.s.scale);
        if (BY_KEY) {
            keep(d2);
            round_rows<E>(r2, d2, 1, 1);
        }
        __syncwarp();
        release_before();
        skip(reach_blocks(sm->item[buffer].reach.blocks) - far - blocks);
        any = true;
    }
    if (any) {
        leave<Q, E, BY_KEY, CODES>(m, sm, x.stage ^ 1, r1, r2, c);
        release_x(pipes, x.stage ^ 1);
    }
}

/* by_key lets by_query start as soon as the plan is done: they share nothing but their input,
 * and blocks of the second take the SMs that the first leaves. By its end, by_query
 * has waited for all of by_key, so that what follows in the stream may read dk and dv. CODES: some gradients may
 * be codes; at 128 channels their stores cost registers that kernels without are spared. */
template <int Q, int E, bool BY_KEY, bool CODES>
__global__ void __launch_bounds__(ROLE_THREADS, 1)
    backward_kernel(const __grid_constant__ struct attention_call c,
                    const __grid_constant__ struct backward_maps m)
{
#ifdef SM90_CODE
    extern __shared__ char raw[];
    backward_smem<Q, E> *sm = (backward_smem<Q, E> *)(((uintptr_t)raw + 1023) & ~(uintptr_t)1023);

    if (threadIdx.x == 0) {
        const backward_pipes<Q, E> pipes(sm);
        pipes.x.init(2);
        pipes.y.init(CONSUMER_WARPS);
        for (const CUtensorMap *map :
             { &m.k, &m.v, &m.q, &m.dout, &m.lse2, &m.delta, BY_KEY ? &m.by_key : &m.by_query })
            prefetch_map(map);
    }
    __syncthreads();
    if (BY_KEY) {
        wait_for_kernel_before(); /* the plan */
        start_kernel_behind();
    }
    with_roles<24, 240>(
        [&] {
            if (threadIdx.x != 0)
                return;
            produce<Q, E, BY_KEY>(c, m, sm);
            if (!BY_KEY)
                wait_for_kernel_before();
        },
        [&](int) {
            half_tiles<Q, E, BY_KEY, CODES>(c, m, sm);
            if (threadIdx.x % WARPGROUP == 0)
                stores_done();
        });
#endif
}

template <int Q, int E>
cudaError_t launch(cudaStream_t stream, const struct attention_call *c, const void *dout,
                   const void *q, const void *k, const void *v)
{
    const int64_t items = (int64_t)c->p.tiles * c->s.heads;
    const cuda_launch l = { dim3(items < c->sms ? items : c->sms),
                            ROLE_THREADS,
                            stream,
                            (int)sizeof(backward_smem<Q, E>) + STAGES_ALIGN,
                            1,
                            true };
    const struct attention_grads *g = &c->grads;
    struct backward_maps m;

    if (!block<Q>::map(&m.q, c->s, q) || !block<Q>::map(&m.k, c->s, k) ||
        !block<E>::map(&m.v, c->s, v) || !block<E>::map(&m.dout, c->s, dout) ||
        !block<Q>::map_grad(m.dq, c->s, g->dq, g->dq_stride, g->dq_unit != 0) ||
        !block<Q>::map_grad(m.dk, c->s, g->dk, g->dk_stride, g->dk_unit != 0) ||
        !block<E>::map_grad(&m.dv, c->s, g->dv, g->dv_stride, g->dv_unit != 0) ||
        !map_stat(&m.lse2, c, c->p.lse2) || !map_stat(&m.delta, c, c->p.delta) ||
        !map_items(&m.by_key, c, c->p.by_key) || !map_items(&m.by_query, c, c->p.by_query))
        return cudaErrorInvalidValue;
    constexpr bool SMALL = Q < 128;
    auto *by_key = backward_kernel<Q, E, true, SMALL>;
    auto *by_query = backward_kernel<Q, E, false, SMALL>;
    if (g->dq_unit != 0 || g->dk_unit != 0 || g->dv_unit != 0)
        by_key = backward_kernel<Q, E, true, true>, by_query = backward_kernel<Q, E, false, true>;
    cudaError_t e = launch_kernel(l, by_key, *c, m);
    return e ? e : launch_kernel(l, by_query, *c, m);
}

} /* namespace */

cudaError_t attention_sm90_backward(cudaStream_t stream, const struct attention_call *c,
                                    const void *dout, const void *q, const void *k, const void *v)
{
    switch (c->s.head_dim) {
    case 32: return launch<32, 32>(stream, c, dout, q, k, v);
    case 64: return launch<64, 64>(stream, c, dout, q, k, v);
    default: break;
    }
    switch (attn_qk_dim(&c->s)) {
    case 64: return launch<64, 128>(stream, c, dout, q, k, v);
    case 96: return launch<96, 128>(stream, c, dout, q, k, v);
    default: return launch<128, 128>(stream, c, dout, q, k, v);
    }
}
