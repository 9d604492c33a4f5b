/* attention_fwd.cu - out = softmax(scale q k^T) v by tiles of 128 queries.
 *
 * A block of 384 threads stays on its multiprocessor and takes items (tile, head), longest
 * first, until none is left. Warpgroup 0 is the producer: one thread copies the item's q and
 * the blocks of 64 keys and values that its queries meet, STAGES deep, running ahead into the
 * next item. Warpgroups 1 and 2 own 64 queries each: q in registers, and for each block
 *
 *     S = q k^T (wgmma), while P v of the block before still runs
 *     online softmax in base 2; out and the sums are rescaled only when a row's maximum
 *     grows by more than 2^8 (the result is the same, P is just not <= 1)
 *     P (bf16, registers) v is added to out
 *
 * Work: 4 E FLOP a pair of query and key. Bytes: q, k, v read and out written once (2 E each a
 * row and head); k and v come again from the L2 for each tile that meets them.
 */
#include "attention_sm90.cuh"
#include "attention_plan.cuh"

namespace {

#ifndef TURNS
#define TURNS 0
#endif

enum { STAGES = 4, THREADS = 384, CONSUMER_WARPS = 8 };

struct forward_item { int tile, head; uint32_t blocks, whole; };   /* tile < 0: no more */

template <int E> struct forward_smem {
    char q[2][block<E>::BYTES];
    char out[2][block<E>::BYTES];
    char k[STAGES][block<E>::BYTES];
    char v[STAGES][block<E>::BYTES];
    struct forward_item item;
    uint64_t q_full, q_empty, k_full[STAGES], k_empty[STAGES], v_full[STAGES], v_empty[STAGES];
};

/* A place in a ring of stages and the parity of its present use. */
struct ring {
    int at;
    uint32_t parity;
    __device__ void step()
    {
        if (++at == STAGES)
            at = 0, parity ^= 1;
    }
};

template <int E>
__device__ void produce(const struct attention_call &c, const struct forward_maps &m,
                        forward_smem<E> *sm)
{
    const int items = c.p.tiles * c.s.heads;
    const int bytes = block<E>::BYTES;
    struct ring r = { 0, 1 };               /* all stages are empty: parity of the phase before */
    int item = atomicAdd(&c.p.next[0], 1), after = atomicAdd(&c.p.next[0], 1);
    struct reach reach = c.p.by_query[item < items ? item / c.s.heads : 0];

    for (uint32_t turn = 1;; turn ^= 1) {
        bar_wait(smem_addr(&sm->q_empty), turn);
        if (item >= items) {
            sm->item.tile = -1;
            bar_arrive(smem_addr(&sm->q_full));
            return;
        }
        const int head = item % c.s.heads, row = reach.tile * TILE;
        const int blocks = reach_blocks(reach.blocks);
        sm->item = { reach.tile, head, reach.blocks, reach.whole };
        bar_expect(smem_addr(&sm->q_full), 2 * bytes);
        block<E>::load(smem_addr(sm->q[0]), &m.q, head, row, smem_addr(&sm->q_full));
        block<E>::load(smem_addr(sm->q[1]), &m.q, head, row + BLOCK, smem_addr(&sm->q_full));

        /* The next item's numbers travel while this one's blocks are copied. */
        item = after;
        after = atomicAdd(&c.p.next[0], 1);
        reach = c.p.by_query[item < items ? item / c.s.heads : 0];
        for (int i = 0; i < blocks; i++, r.step()) {
            const int key = row + BLOCK - i * BLOCK;
            uint32_t full = smem_addr(&sm->k_full[r.at]);
            bar_wait(smem_addr(&sm->k_empty[r.at]), r.parity);
            bar_expect(full, bytes);
            block<E>::load(smem_addr(sm->k[r.at]), &m.k, head, key, full);
            full = smem_addr(&sm->v_full[r.at]);
            bar_wait(smem_addr(&sm->v_empty[r.at]), r.parity);
            bar_expect(full, bytes);
            block<E>::load(smem_addr(sm->v[r.at]), &m.v, head, key, full);
        }
    }
}

/* A thread's two rows in the online softmax; base 2, in units of scale log2(e). */
struct online {
    float max[2], sum[2], alpha[2];
    bool rescale;

    /* S becomes P = 2^(unit S - unit max); alpha is what older sums are to be scaled by. */
    __device__ void block(float (&s)[32], float unit)
    {
        float m[2] = { -INFINITY, -INFINITY };
#pragma unroll
        for (int i = 0; i < 32; i++)
            m[i / 2 % 2] = fmaxf(m[i / 2 % 2], s[i]);
        m[0] = quad_max(m[0]);
        m[1] = quad_max(m[1]);
        rescale = __any_sync(~0u, (m[0] - max[0]) * unit > 8 || (m[1] - max[1]) * unit > 8);
        if (rescale) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float top = fmaxf(max[r], m[r]);
                alpha[r] = exp2_approx((max[r] - top) * unit);
                max[r] = top;
                sum[r] *= alpha[r];
            }
        }
        const float shift[2] = { max[0] * unit, max[1] * unit };
#pragma unroll
        for (int i = 0; i < 32; i++) {
            s[i] = exp2_approx(fmaf(s[i], unit, -shift[i / 2 % 2]));
            sum[i / 2 % 2] += s[i];
        }
    }
};

template <int E>
__device__ void consume(const struct attention_call &c, const struct forward_maps &m,
                        forward_smem<E> *sm, int group)
{
    const int thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
    const uint32_t staging = smem_addr(sm->out[group]);
    struct ring r = { 0, 0 };

    auto begin_turn = [&] {
        if (TURNS)
            named_barrier(3 + group, 256);
    };
    auto end_turn = [&] {
        if (TURNS)
            named_barrier_arrive(4 - group, 256);
    };
    auto skip = [&](int n) {                /* blocks that only the other half meets */
        for (; n > 0; n--, r.step()) {
            begin_turn();
            end_turn();
            bar_wait(smem_addr(&sm->k_full[r.at]), r.parity);
            bar_wait(smem_addr(&sm->v_full[r.at]), r.parity);
            if (lane == 0) {
                bar_arrive(smem_addr(&sm->k_empty[r.at]));
                bar_arrive(smem_addr(&sm->v_empty[r.at]));
            }
        }
    };

    if (group == 1)
        end_turn();                         /* group 0 has the first */
    for (uint32_t turn = 0;; turn ^= 1) {
        uint32_t q[E / 16][4];
        bar_wait(smem_addr(&sm->q_full), turn);
        const int tile = sm->item.tile, head = sm->item.head, far = 1 - group;
        const int brought = reach_blocks(sm->item.blocks);
        const int blocks = reach_part(sm->item.blocks, far);
        const int whole = reach_part(sm->item.whole, far);
        if (tile < 0)
            break;
        load_rows<E>(q, smem_addr(sm->q[group]), warp, lane);
        __syncwarp();
        if (lane == 0)
            bar_arrive(smem_addr(&sm->q_empty));

        const int first_row = tile * TILE + group * BLOCK;
        const int row = first_row + 16 * warp + lane / 4;
        const int lo[2] = { c.p.start[row], c.p.start[row + 8] };
        const int len[2] = { row - lo[0], row + 8 - lo[1] };
        float s[32], out[E / 2];
        uint32_t p[16];
        struct online o = { { -INFINITY, -INFINITY }, { 0, 0 }, { 0, 0 }, false };

        skip(far);
        bar_wait(smem_addr(&sm->k_full[r.at]), r.parity);
        begin_turn();
        mma_fence();
        dot_rows<E>(s, q, block<E>::desc(smem_addr(sm->k[r.at])));
        mma_commit();
        end_turn();
        mma_wait<0>();
        keep(s);
        if (lane == 0)
            bar_arrive(smem_addr(&sm->k_empty[r.at]));
        mask_block(s, first_row + lane % 4 * 2, lo, len);
        o.block(s, c.unit);
        pack_rows(p, s);

        for (int i = 1; i < blocks; i++) {
            struct ring next = r;
            next.step();
            bar_wait(smem_addr(&sm->k_full[next.at]), next.parity);
            begin_turn();
            mma_fence();
            dot_rows<E>(s, q, block<E>::desc(smem_addr(sm->k[next.at])));
            mma_commit();
            bar_wait(smem_addr(&sm->v_full[r.at]), r.parity);
            mma_fence();
            add_rows<E>(out, p, block<E>::desc(smem_addr(sm->v[r.at])), i > 1);
            mma_commit();
            end_turn();
            mma_wait<1>();
            keep(s);
            if (lane == 0)
                bar_arrive(smem_addr(&sm->k_empty[next.at]));
            if (i >= whole)
                mask_block(s, first_row - i * BLOCK + lane % 4 * 2, lo, len);
            o.block(s, c.unit);
            keep(s);                        /* the exponentials before the wait, not behind it */
            mma_wait<0>();
            keep(out);
            if (lane == 0)
                bar_arrive(smem_addr(&sm->v_empty[r.at]));
            if (o.rescale) {
#pragma unroll
                for (int j = 0; j < E / 2; j++)
                    out[j] *= o.alpha[j / 2 % 2];
            }
            pack_rows(p, s);
            r = next;
        }
        bar_wait(smem_addr(&sm->v_full[r.at]), r.parity);
        mma_fence();
        add_rows<E>(out, p, block<E>::desc(smem_addr(sm->v[r.at])), blocks > 1);
        mma_commit();
        o.sum[0] = quad_sum(o.sum[0]);
        o.sum[1] = quad_sum(o.sum[1]);
        if (thread == 0)
            store_wait_read();              /* the staging of the item before is free */
        mma_wait<0>();
        keep(out);
        if (lane == 0)
            bar_arrive(smem_addr(&sm->v_empty[r.at]));
        r.step();

        named_barrier(1 + group, 128);
        store_rows<E>(staging, out, 1.0f / o.sum[0], 1.0f / o.sum[1], warp, lane);
        fence_async();
        named_barrier(1 + group, 128);
        if (thread == 0) {
            block<E>::store(&m.out, head, first_row, staging);
            store_commit();
        }
        if (lane % 4 == 0) {
            float *lse = c.lse + (int64_t)head * c.s.rows;
#pragma unroll
            for (int h = 0; h < 2; h++)
                if (row + 8 * h < c.s.rows)
                    lse[row + 8 * h] = o.max[h] * c.s.scale + logf(o.sum[h]);
        }
        skip(brought - far - blocks);
    }
    if (thread == 0)
        store_wait();
}

template <int E>
__global__ void __launch_bounds__(THREADS, 1)
forward_kernel(const __grid_constant__ struct attention_call c,
               const __grid_constant__ struct forward_maps m)
{
    extern __shared__ char raw[];
    forward_smem<E> *sm = (forward_smem<E> *)(((uintptr_t)raw + 1023) & ~(uintptr_t)1023);

    if (threadIdx.x == 0) {
        bar_init(smem_addr(&sm->q_full), 1);
        bar_init(smem_addr(&sm->q_empty), CONSUMER_WARPS);
        for (int i = 0; i < STAGES; i++) {
            bar_init(smem_addr(&sm->k_full[i]), 1);
            bar_init(smem_addr(&sm->k_empty[i]), CONSUMER_WARPS);
            bar_init(smem_addr(&sm->v_full[i]), 1);
            bar_init(smem_addr(&sm->v_empty[i]), CONSUMER_WARPS);
        }
        fence_async();
        for (const CUtensorMap *map : { &m.q, &m.k, &m.v, &m.out })
            prefetch_map(map);
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        regs_dec<40>();
        if (threadIdx.x == 0)
            produce<E>(c, m, sm);
    } else {
        regs_inc<232>();
        consume<E>(c, m, sm, threadIdx.x / 128 - 1);
    }
}

template <int E>
cudaError_t launch(cudaStream_t stream, const struct attention_call *c,
                   const struct forward_maps *maps)
{
    const int bytes = (int)sizeof(forward_smem<E>) + 1024;
    const int64_t items = (int64_t)c->p.tiles * c->s.heads;
    cudaError_t e = cudaFuncSetAttribute(forward_kernel<E>,
                                         cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (e != cudaSuccess)
        return e;
    forward_kernel<E><<<(int)(items < c->sms ? items : c->sms), THREADS, bytes, stream>>>(*c, *maps);
    return cudaGetLastError();
}

}   /* namespace */

cudaError_t attention_launch_forward(cudaStream_t stream, const struct attention_call *c,
                                     const struct forward_maps *maps)
{
    switch (c->s.head_dim) {
    case 32: return launch<32>(stream, c, maps);
    case 64: return launch<64>(stream, c, maps);
    default: return launch<128>(stream, c, maps);
    }
}
