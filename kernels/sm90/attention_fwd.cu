/* attention_fwd.cu - out = softmax(scale q k^T) v by tiles of 128 queries.
 *
 * A CTA of 384 threads stays on its SM and takes items (tile, head), in the order
 * of the plan, until none is left. Warpgroup 0 is the producer: one thread copies the item's q and
 * the blocks of 64 keys and values that its queries meet, STAGES deep, running ahead into the
 * next item. Warpgroups 1 and 2 own 64 queries each: q in registers, and for each block
 *
 *     S = q k^T (wgmma), while P v of the block before still runs
 *     online softmax in base 2 by the maximum of the blocks before; out and the sums are
 *     rescaled only when it grows by more than 2^8 (the result is the same, P is just not <= 1)
 *     P (bf16, registers) v is added to out
 *
 * Work: 2 (Q + E) FLOP a pair of query and key, Q and E the channels of a head of q and k, and of v. Bytes: q, k, v
 * read and out written once (2 Q or 2 E each a row and head); k and v come again from the L2 for each tile that meets them.
 */
#include "sm90/attention_block.cuh"

namespace
{

enum { STAGES = 4, CONSUMER_WARPS = 8 };
enum { STAGING = 1 }; /* named barriers, one a consumer warpgroup */

struct forward_maps {
    CUtensorMap q, k, v, out, by_query;
};

template <int Q, int E> struct forward_smem {
    char q[2][block<Q>::BYTES];
    char out[2][block<E>::BYTES];
    char k[STAGES][block<Q>::BYTES];
    char v[STAGES][block<E>::BYTES];
    alignas(128) struct reach item;
    uint64_t q_bars[2], k_bars[2 * STAGES], v_bars[2 * STAGES];
};

/* Describes what passes from producer to consumers: q with its item, and blocks of keys and of values, which
 * are counted through all items. */
template <int Q, int E> struct forward_pipes {
    pipeline<1, 2 * block<Q>::BYTES> q;
    pipeline<STAGES, block<Q>::BYTES> k;
    pipeline<STAGES, block<E>::BYTES> v;
    __device__ explicit forward_pipes(forward_smem<Q, E> *sm)
        : q{ address(sm->q), address(sm->q_bars) }, k{ address(sm->k), address(sm->k_bars) }, v{
              address(sm->v), address(sm->v_bars)
          }
    {
    }
};

template <int Q, int E>
__device__ void produce(const struct attention_call &c, const struct forward_maps &m,
                        forward_smem<Q, E> *sm)
{
    const int items = c.p.items, bytes = block<Q>::BYTES;
    const forward_pipes<Q, E> pipes(sm);
    uint32_t n = 0;
    auto take = [&] { /* each CTA takes two numbers more than it works on */
                      return take_item(&c.p.next[0], items + 2 * gridDim.x - 1);
    };
    int item = take(), after = take();
    struct reach reach = c.p.by_query[min(item, items)];

    for (place x = { 0, 0 };; pipes.q.step(x)) {
        const uint32_t full = pipes.q.full(x);
        pipes.q.acquire(x, item < items ? (int)sizeof reach + 2 * bytes : (int)sizeof reach);
        load_box(address(&sm->item), &m.by_query, 0, min(item, items), full);
        if (item >= items)
            return;
        const int head = reach.head, row = reach.tile * TILE, blocks = reach_blocks(reach.blocks);
        block<Q>::load(address(sm->q[0]), &m.q, head, row, full);
        block<Q>::load(address(sm->q[1]), &m.q, head, row + BLOCK, full);

        /* The next item's numbers travel while this one's blocks are copied. */
        item = after;
        after = take();
        reach = c.p.by_query[min(item, items)];
        for (int i = 0; i < blocks; i++, n++) {
            const place at = pipes.k.at(n);
            const int key = row + BLOCK - i * BLOCK;
            pipes.k.acquire(at);
            block<Q>::load(pipes.k.slot(at), &m.k, head, key, pipes.k.full(at));
            pipes.v.acquire(at);
            block<E>::load(pipes.v.slot(at), &m.v, head, key, pipes.v.full(at));
        }
    }
}

/* One warpgroup's half of a tile that is through, packed: leaves through staging. */
template <int Q, int E>
__device__ __forceinline__ void leave(const struct forward_maps &m, forward_smem<Q, E> *sm,
                                      int group, int head, int first_row,
                                      const uint32_t (&result)[E / 4])
{
    const int thread = threadIdx.x % 128;
    const uint32_t staging = address(sm->out[group]);

    if (thread == 0)
        stores_read(); /* the staging of the item before is free */
    named_wait(STAGING + group, WARPGROUP);
    store_rows<E>(staging, result, thread / 32, thread % 32);
    shared_written();
    named_wait(STAGING + group, WARPGROUP);
    if (thread == 0) {
        block<E>::store(&m.out, head, first_row, staging);
        stores_commit();
    }
}

/* Results of an item leave while the first S of the next is computed. */
template <int Q, int E>
__device__ void consume(const struct attention_call &c, const struct forward_maps &m,
                        forward_smem<Q, E> *sm, int group)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32, far = 1 - group;
    uint32_t n = 0; /* the present block */
    int head_before = 0, row_before = -1; /* the item before: none */
    uint32_t q[Q / 16][4], packed[16], result[E / 4];
    float s[32], p[32], out[E / 2];
    struct online o;

    const forward_pipes<Q, E> pipes(sm);
    auto wait_k = [&](uint32_t i) { pipes.k.wait(pipes.k.at(i)); };
    auto wait_v = [&](uint32_t i) { pipes.v.wait(pipes.v.at(i)); };
    auto done_k = [&](uint32_t i) { pipes.k.release(pipes.k.at(i)); };
    auto done_v = [&](uint32_t i) { pipes.v.release(pipes.v.at(i)); };
    auto k_at = [&](uint32_t i) { return block<Q>::desc(pipes.k.slot(pipes.k.at(i))); };
    auto v_at = [&](uint32_t i) { return block<E>::desc(pipes.v.slot(pipes.v.at(i))); };
    auto skip =
        [&](int blocks) { /* that only the other half meets */
                          for (; blocks > 0; blocks--, n++) {
                              wait_k(n);
                              wait_v(n);
                              __syncwarp(); /* all lanes have seen both before one frees them */
                              done_k(n);
                              done_v(n);
                          }
        };

    for (place x = { 0, 0 };; pipes.q.step(x)) {
        pipes.q.wait(x);
        const int tile = sm->item.tile, head = sm->item.head;
        const int blocks = reach_part(sm->item.blocks, far);
        const int whole = reach_part(sm->item.whole, far);
        const int behind = reach_blocks(sm->item.blocks) - far - blocks;
        if (tile < 0)
            break;
        load_rows<Q>(q, address(sm->q[group]), warp, lane);
        __syncwarp();
        pipes.q.release(x);

        const int first_row = tile * TILE + group * BLOCK, col = first_row + lane % 4 * 2;
        const int row = first_row + 16 * warp + lane / 4;
        const int lo[2] = { c.p.start[row], c.p.start[row + 8] };
        const int len[2] = { row - lo[0], row + 8 - lo[1] };

        skip(far);
        wait_k(n);
        wgmma_begin();
        dot_rows<Q>(s, q, k_at(n));
        wgmma_commit();
        if (row_before >= 0)
            leave<Q, E>(m, sm, group, head_before, row_before, result);
        wgmma_wait<0>();
        keep(s);
        done_k(n);
        mask_block(s, col, lo, len);
        o.begin(p, s, c.unit);
        pack_rows(packed, p);

        for (int i = 1; i < blocks; i++, n++) {
            wait_k(n + 1);
            wgmma_begin();
            dot_rows<Q>(s, q, k_at(n + 1));
            wgmma_commit();
            wait_v(n);
            wgmma_begin();
            add_rows<E>(out, packed, v_at(n), i > 1);
            wgmma_commit();
            wgmma_wait<1>();
            keep(s);
            done_k(n + 1);
            if (i >= whole)
                mask_block(s, col - i * BLOCK, lo, len);
            o.go_on(p, s, c.unit);
            keep(p); /* the exponentials before the wait, not behind it */
            wgmma_wait<0>();
            keep(out);
            done_v(n);
            if (o.rescale) {
#pragma unroll
                for (int j = 0; j < E / 2; j++)
                    out[j] *= o.alpha[j / 2 % 2];
            }
            pack_rows(packed, p);
        }
        wait_v(n);
        wgmma_begin();
        add_rows<E>(out, packed, v_at(n), blocks > 1);
        wgmma_commit();
        o.sum[0] = quad_sum(o.sum[0]);
        o.sum[1] = quad_sum(o.sum[1]);
        if (lane % 4 == 0) {
            float *lse = c.lse + (int64_t)head * c.s.rows;
#pragma unroll
            for (int h = 0; h < 2; h++)
                if (row + 8 * h < c.s.rows)
                    lse[row + 8 * h] = o.max[h] * c.s.scale + logf(o.sum[h]);
        }
        wgmma_wait<0>();
        keep(out);
        done_v(n++);
        round_rows<E>(result, out, 1.0f / o.sum[0], 1.0f / o.sum[1]);
        skip(behind);
        head_before = head;
        row_before = first_row;
    }
    if (row_before >= 0)
        leave<Q, E>(m, sm, group, head_before, row_before, result);
    if (threadIdx.x % 128 == 0)
        stores_done();
}

template <int Q, int E>
__global__ void __launch_bounds__(ROLE_THREADS, 1)
    forward_kernel(const __grid_constant__ struct attention_call c,
                   const __grid_constant__ struct forward_maps m)
{
#ifdef SM90_CODE
    extern __shared__ char raw[];
    forward_smem<Q, E> *sm = (forward_smem<Q, E> *)(((uintptr_t)raw + 1023) & ~(uintptr_t)1023);

    if (threadIdx.x == 0) {
        const forward_pipes<Q, E> pipes(sm);
        pipes.q.init(CONSUMER_WARPS);
        pipes.k.init(CONSUMER_WARPS);
        pipes.v.init(CONSUMER_WARPS);
        for (const CUtensorMap *map : { &m.q, &m.k, &m.v, &m.out, &m.by_query })
            prefetch_map(map);
    }
    __syncthreads();
    wait_for_kernel_before(); /* the plan */
    with_roles<40, 232>(
        [&] {
            if (threadIdx.x == 0)
                produce<Q, E>(c, m, sm);
        },
        [&](int group) { consume<Q, E>(c, m, sm, group); });
#endif
}

template <int Q, int E>
cudaError_t launch(cudaStream_t stream, const struct attention_call *c, void *out, const void *q,
                   const void *k, const void *v)
{
    const int bytes = (int)sizeof(forward_smem<Q, E>) + STAGES_ALIGN;
    const int64_t items = (int64_t)c->p.tiles * c->s.heads;
    const dim3 grid(items < c->sms ? items : c->sms);
    struct forward_maps m;

    if (!block<Q>::map(&m.q, c->s, q) || !block<Q>::map(&m.k, c->s, k) ||
        !block<E>::map(&m.v, c->s, v) || !block<E>::map(&m.out, c->s, out) ||
        !map_items(&m.by_query, c, c->p.by_query))
        return cudaErrorInvalidValue;
    return launch_kernel({ grid, ROLE_THREADS, stream, bytes, 1, true }, forward_kernel<Q, E>, *c,
                         m);
}

} /* namespace */

cudaError_t attention_sm90_forward(cudaStream_t stream, const struct attention_call *c, void *out,
                                   const void *q, const void *k, const void *v)
{
    switch (c->s.head_dim) {
    case 32: return launch<32, 32>(stream, c, out, q, k, v);
    case 64: return launch<64, 64>(stream, c, out, q, k, v);
    default: break;
    }
    switch (attn_qk_dim(&c->s)) {
    case 64: return launch<64, 128>(stream, c, out, q, k, v);
    case 96: return launch<96, 128>(stream, c, out, q, k, v);
    default: return launch<128, 128>(stream, c, out, q, k, v);
    }
}
