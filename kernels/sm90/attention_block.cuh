/* attention_block.cuh - blocks of 64 rows in shared memory, and their products.
 *
 * A block of 64 rows by E channels of bf16 is stored as
 * the bulk tensor copy writes it: panels of 64 channels (E / 64 of them, or one
 * of 32 channels), a panel being 64 rows of 128 (64) bytes whose 16-byte chunks
 * are swizzled. Of 96 channels the second panel's other half has the next head's, which no product reads, and
 * gradients leave as a panel of 64 and one of 32. struct block<E> computes the addresses; wgmma reads such a block
 *   K-major  (its rows are M or N, its channels are K): products over channels,
 *   MN-major (its rows are K, its channels are N):      products over rows.
 */
#ifndef KERNELS_SM90_ATTENTION_BLOCK_CUH
#define KERNELS_SM90_ATTENTION_BLOCK_CUH

#include "attention_plan.cuh"
#include "attention_rows.cuh"
#include "head_fp8.h"
#include "host/launch.h"
#include "sm90/pipeline.h"
#include "sm90/tensor_map.h"
#include "sm90/wgmma.h"

using namespace sm90;

template <int E> struct block {
    static_assert(E == 32 || E == 64 || E == 96 || E == 128, "head sizes that attention knows");
    enum {
        ROWS = 64,
        PANELS = (E + 63) / 64,
        PANEL_COLS = E < 64 ? E : 64,
        ROW_BYTES = PANEL_COLS * 2,
        PANEL_BYTES = ROWS * ROW_BYTES,
        BYTES = PANELS * PANEL_BYTES,
        K_STEPS = E / 16, /* wgmma steps over the channels */
        TAIL = E < 64 ? 0 : E % 64, /* channels of a last panel that is no whole one */
        WHOLE = TAIL ? PANELS - 1 : PANELS
    };
    static constexpr CUtensorMapSwizzle SWIZZLE =
        E < 64 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B;

    /* Makes the map of x (rows, heads E) in boxes of 64 rows and one panel. */
    static bool map(CUtensorMap *m, const struct attn_shape &s, const void *x)
    {
        const cuuint64_t d = (cuuint64_t)s.heads * E;
        return encode_map<2>(m, { CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                                  x,
                                  { d, (cuuint64_t)s.rows },
                                  { 2 * d },
                                  { PANEL_COLS, ROWS },
                                  SWIZZLE });
    }
    /* Makes the map of the gradients of x, a token's rows each `stride` numbers, bf16 or codes: channels by rows of
     * a token by tokens; of bf16 m[1]: in boxes of the tail, where there is one. */
    static bool map_grad(CUtensorMap *m, const struct attn_shape &s, const void *x, int64_t stride,
                         bool codes)
    {
        const cuuint64_t d = (cuuint64_t)s.heads * E, bytes = codes ? 1 : 2;
        const cuuint32_t pair = s.cu_mul;
        auto boxes = [&](CUtensorMap *to, cuuint32_t cols, CUtensorMapSwizzle swizzle) {
            return encode_map<3>(
                to, { codes ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                      x,
                      { d, pair, (cuuint64_t)s.rows / pair },
                      { bytes * d, bytes * stride },
                      { cols, pair, ROWS / pair },
                      swizzle });
        };
        if (codes)
            return pair <= 2 && boxes(m, E, E < 128 ? CU_TENSOR_MAP_SWIZZLE_NONE : SWIZZLE);
        return pair <= 2 && boxes(m, PANEL_COLS, SWIZZLE) &&
               (!TAIL || boxes(m + 1, TAIL, CU_TENSOR_MAP_SWIZZLE_64B));
    }
    /* Byte offset of the 16-byte chunk c (8 channels) of row r. */
    static __device__ __forceinline__ uint32_t at(int r, int c)
    {
        if (E < 64)
            return r * ROW_BYTES + ((c ^ ((r >> 1) & 3)) << 4);
        return (c >> 3) * PANEL_BYTES + swizzle128(r, c & 7);
    }
    /* Returns the same offset in a block that leaves by store_grad. */
    static __device__ __forceinline__ uint32_t left_at(int r, int c)
    {
        if (TAIL && c >= 8 * WHOLE)
            return WHOLE * PANEL_BYTES + block<32>::at(r, c - 8 * WHOLE);
        return at(r, c);
    }
    /* Low word of the descriptor of a block at this address (wgmma.h), and the descriptor. */
    static __device__ __forceinline__ uint32_t desc(uint32_t addr)
    {
        return descriptor_low(addr, PANEL_BYTES);
    }
    static __device__ __forceinline__ uint64_t operand(uint32_t desc)
    {
        return descriptor<ROW_BYTES>(desc);
    }
    /* Added to a descriptor: step k of 16 channels (K-major), of 16 rows (MN-major). */
    static __device__ __forceinline__ constexpr int step_k(int k)
    {
        return (k * 32 / ROW_BYTES * PANEL_BYTES + k * 32 % ROW_BYTES) / 16;
    }
    static __device__ __forceinline__ constexpr int step_mn(int k) { return k * ROW_BYTES; }

    static __device__ __forceinline__ void load(uint32_t dst, const CUtensorMap *map, int head,
                                                int row, uint32_t bar)
    {
        for (int p = 0; p < PANELS; p++)
            load_box(dst + p * PANEL_BYTES, map, head * E + p * PANEL_COLS, row, bar);
    }
    static __device__ __forceinline__ void store(const CUtensorMap *map, int head, int row,
                                                 uint32_t src)
    {
        for (int p = 0; p < PANELS; p++)
            store_box(map, head * E + p * PANEL_COLS, row, src + p * PANEL_BYTES);
    }
    /* Stores to the gradients of tokens of `pair` rows, or adds to them; codes as store_codes() leaves them. */
    static __device__ __forceinline__ void store_grad(const CUtensorMap *map, int head, int row,
                                                      int pair, uint32_t src, bool add, bool codes)
    {
        if (codes) {
            store_box(map, head * E, 0, row >> (pair == 2), src);
            return;
        }
        for (int p = 0; p < PANELS; p++) {
            int column = head * E + p * PANEL_COLS;
            const CUtensorMap *const boxes = map + (p == WHOLE);
            if (add)
                add_box(boxes, column, 0, row >> (pair == 2), src + p * PANEL_BYTES);
            else
                store_box(boxes, column, 0, row >> (pair == 2), src + p * PANEL_BYTES);
        }
    }
};

/* Make the maps of statistics (heads, padded) f32, in boxes of 64, and of items (items + 1, 4) int32, by
 * rows: work reaches the consumers as their data does, which racecheck can follow. */
static inline bool map_words(CUtensorMap *m, CUtensorMapDataType type, const void *x, int rows,
                             int cols, cuuint32_t box)
{
    return encode_map<2>(m, { type,
                              x,
                              { (cuuint64_t)cols, (cuuint64_t)rows },
                              { 4 * (cuuint64_t)cols },
                              { box, 1 },
                              CU_TENSOR_MAP_SWIZZLE_NONE,
                              CU_TENSOR_MAP_L2_PROMOTION_NONE });
}
static inline bool map_stat(CUtensorMap *m, const struct attention_call *c, const float *x)
{
    return map_words(m, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, x, c->s.heads, c->p.padded, BLOCK);
}
static inline bool map_items(CUtensorMap *m, const struct attention_call *c, const struct reach *x)
{
    return map_words(m, CU_TENSOR_MAP_DATA_TYPE_INT32, x, c->p.items + 1, 4, 4);
}

/* d (64 x 64) = A B^T over E channels, both blocks of 64 rows. */
template <int E> __device__ __forceinline__ void dot_rows(float (&d)[32], uint32_t a, uint32_t b)
{
#pragma unroll
    for (int k = 0; k < block<E>::K_STEPS; k++)
        wgmma<false, false>(d, block<E>::operand(a + block<E>::step_k(k)),
                            block<E>::operand(b + block<E>::step_k(k)), k > 0);
}
/* Computes d = A B^T with A in registers. */
template <int E>
__device__ __forceinline__ void dot_rows(float (&d)[32], const uint32_t (&a)[E / 16][4], uint32_t b)
{
#pragma unroll
    for (int k = 0; k < block<E>::K_STEPS; k++)
        wgmma_rows<false>(d, a[k], block<E>::operand(b + block<E>::step_k(k)), k > 0);
}
/* d (64 x E) (+)= P B, P 64 x 64 packed in registers, B a block. */
template <int E>
__device__ __forceinline__ void add_rows(float (&d)[E / 2], const uint32_t (&p)[16], uint32_t b,
                                         bool add)
{
#pragma unroll
    for (int k = 0; k < 4; k++)
        wgmma_rows<true>(d, p + 4 * k, block<E>::operand(b + block<E>::step_mn(k)), add || k > 0);
}

/* -- fragments between registers and blocks -------------------------------------- */
/* Step k of 16 channels of this warp's 16 rows of a block, as operand A; all of them. */
template <int E>
__device__ __forceinline__ void load_step(uint32_t (&a)[4], uint32_t src, int warp, int lane, int k)
{
    load_matrices(a, src + block<E>::at(16 * warp + lane % 16, 2 * k + lane / 16));
}
template <int E>
__device__ __forceinline__ void load_rows(uint32_t (&a)[E / 16][4], uint32_t src, int warp,
                                          int lane)
{
#pragma unroll
    for (int k = 0; k < E / 16; k++)
        load_step<E>(a[k], src, warp, lane, k);
}
/* Packed rows of results (round_rows) into this warp's 16 rows of a block. */
template <int E>
__device__ __forceinline__ void store_rows(uint32_t dst, const uint32_t (&p)[E / 4], int warp,
                                           int lane)
{
#pragma unroll
    for (int k = 0; k < E / 16; k++) {
        uint32_t at = dst + block<E>::left_at(16 * warp + lane % 16, 2 * k + lane / 16);
        store_matrices(at, p + 4 * k);
    }
}
/* Stores a block's numbers as codes of their quotients by unit: 64 rows of E bytes, swizzled like a panel if they are 128. */
template <int E>
__device__ __forceinline__ void store_codes(uint32_t dst, const uint32_t (&p)[E / 4], int warp,
                                            int lane, float unit)
{
    const float inverse = 1 / unit;
#pragma unroll
    for (int i = 0; i < E / 4; i++) {
        const int row = 16 * warp + lane / 4 + 8 * (i % 2), byte = 8 * (i / 2) + lane % 4 * 2;
        const int at = E == 128 ? swizzle128(row, byte / 16) + byte % 16 : row * E + byte;
        store_shared(dst + at, quotients_e4m3x2(bf16_lo(p[i]), bf16_hi(p[i]), unit, inverse));
    }
}

#endif
