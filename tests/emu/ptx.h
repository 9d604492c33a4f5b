/* ptx.h - the PTX instructions of the kernels' asm, one function each, named by `translate`.
 * Operands are those of the asm: first what it writes, then what it reads. Source: PTX ISA 9.0.
 */
#ifndef EMU_PTX_H
#define EMU_PTX_H

#include <cuda_bf16.h>
#include <cuda_fp8.h>

struct CUtensorMap_st;

namespace emu
{ /* hopper.cc */

void *shared_pointer(uint32_t address, size_t bytes);
void barrier_init(uint32_t bar, int arrivals);
void barrier_expect(uint32_t bar, int bytes); /* and arrives */
void barrier_arrive(uint32_t bar, int rank); /* -1: this block's */
void barrier_wait(uint32_t bar, uint32_t parity);
void named_barrier(int id, int threads, bool wait, int line);
void cluster_sync(int line);
int cluster_rank();
/* Of the blocks in `mask`, 0: this one. */
struct place { /* of a box, the fastest dimension first */
    int at[5];
};
void load_box(unsigned mask, uint32_t to, const void *map, place at, uint32_t bar);
void load_bytes(uint32_t to, const void *from, uint32_t bytes, uint32_t bar);
void store_box(const void *map, place at, uint32_t from, bool add = false);
void send(uint32_t to, float x, uint32_t bar);
void stores_commit();
void stores_wait(int left);
void load_matrices(uint32_t *const r[4], uint32_t from, bool turned);
void store_matrices(uint32_t to, const uint32_t r[4], bool turned);
/* d (64, 2 n) [+]= a b; rows: four registers of a, NULL: a is in shared memory. */
enum product_type { PRODUCT_BF16, PRODUCT_F16, PRODUCT_E4M3, PRODUCT_E4M3_E5M2, PRODUCT_E5M2_E4M3 };
void product(float *d, int n, const uint32_t *rows, uint64_t a, uint64_t b, bool add, bool ta,
             bool tb, product_type type = PRODUCT_BF16);
void products_commit();
void products_wait(int left);
/* Into shared memory, when this thread waits for the copy's group at the latest; NULL: zeros. */
void copy_16(uint32_t to, const void *from);
void copies_commit();
void copies_wait(int left);
void warp_product(float *const d[4], const uint32_t a[4], const uint32_t b[2]);

template <class T, class... A> constexpr int count_of() { return (std::is_same_v<T, A> + ... + 0); }

} /* namespace emu */

namespace ptx
{

/* -- arithmetic ------------------------------------------------------------------------------ */

inline void cvt_rn_bf16x2_f32(uint32_t &d, float high, float low)
{
    __nv_bfloat16_raw h = __float2bfloat16_rn(high), l = __float2bfloat16_rn(low);
    d = (uint32_t)h.x << 16 | l.x;
}
inline void cvt_rn_satfinite_e4m3x2_f32(uint16_t &d, float high, float low)
{
    d = __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE, __NV_E4M3);
}
inline void cvt_rn_satfinite_e5m2x2_f32(uint16_t &d, float high, float low)
{
    d = __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE, __NV_E5M2);
}
inline void ex2_approx_ftz_f32(float &d, float x) { d = exp2f(x); }
inline void rcp_approx_ftz_f32(float &d, float x) { d = 1 / x; }
inline void sqrt_approx_ftz_f32(float &d, float x) { d = sqrtf(x); }
inline void tanh_approx_f32(float &d, float x) { d = tanhf(x); }
inline void mov_b64(uint64_t &d, uint32_t low, uint32_t high) { d = (uint64_t)high << 32 | low; }

/* -- shared memory --------------------------------------------------------------------------- */

inline void ld_shared_b32(uint32_t &d, uint32_t at) { d = *(uint32_t *)emu::shared_pointer(at, 4); }
inline void st_shared_b16(uint32_t at, uint16_t x) { *(uint16_t *)emu::shared_pointer(at, 2) = x; }
inline void st_shared_b32(uint32_t at, uint32_t x) { *(uint32_t *)emu::shared_pointer(at, 4) = x; }
inline void ld_shared_v2_f32(float &a, float &b, uint32_t at)
{
    const float *p = (float *)emu::shared_pointer(at, 8);
    a = p[0], b = p[1];
}
inline void ld_shared_v4_f32(float &a, float &b, float &c, float &d, uint32_t at)
{
    const float *p = (float *)emu::shared_pointer(at, 16);
    a = p[0], b = p[1], c = p[2], d = p[3];
}
inline void ld_shared_v4_b32(uint32_t &a, uint32_t &b, uint32_t &c, uint32_t &d, uint32_t at)
{
    const uint32_t *p = (uint32_t *)emu::shared_pointer(at, 16);
    a = p[0], b = p[1], c = p[2], d = p[3];
}
/* An address with a block of the cluster in it: its rank + 1 above the bits of the address. */
inline void mapa_shared_cluster_u32(uint32_t &d, uint32_t at, int rank)
{
    d = at | (uint32_t)(rank + 1) << 24;
}
inline void st_async_shared_cluster_mbarrier_complete_tx_bytes_f32(uint32_t at, float a,
                                                                   uint32_t bar)
{
    emu::send(at, a, bar);
}
inline void st_shared_cluster_v4_f32(uint32_t at, float a, float b, float c, float d)
{
    float *p = (float *)emu::shared_pointer(at, 16);
    p[0] = a, p[1] = b, p[2] = c, p[3] = d;
}
inline void ldmatrix_sync_aligned_m8n8_x4_shared_b16(uint32_t &a, uint32_t &b, uint32_t &c,
                                                     uint32_t &d, uint32_t from)
{
    uint32_t *const r[4] = { &a, &b, &c, &d };
    emu::load_matrices(r, from, false);
}
inline void ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(uint32_t &a, uint32_t &b, uint32_t &c,
                                                           uint32_t &d, uint32_t from)
{
    uint32_t *const r[4] = { &a, &b, &c, &d };
    emu::load_matrices(r, from, true);
}
inline void stmatrix_sync_aligned_m8n8_x4_shared_b16(uint32_t to, uint32_t a, uint32_t b,
                                                     uint32_t c, uint32_t d)
{
    const uint32_t r[4] = { a, b, c, d };
    emu::store_matrices(to, r, false);
}
inline void stmatrix_sync_aligned_m8n8_x4_trans_shared_b16(uint32_t to, uint32_t a, uint32_t b,
                                                           uint32_t c, uint32_t d)
{
    const uint32_t r[4] = { a, b, c, d };
    emu::store_matrices(to, r, true);
}

/* -- barriers -------------------------------------------------------------------------------- */

inline void mbarrier_init_shared_cta_b64(uint32_t bar, int n) { emu::barrier_init(bar, n); }
inline void fence_mbarrier_init_release_cluster() {}
inline void mbarrier_arrive_expect_tx_shared_cta_b64(uint32_t bar, int bytes)
{
    emu::barrier_expect(bar, bytes);
}
inline void mbarrier_arrive_shared_cta_b64(uint32_t bar) { emu::barrier_arrive(bar, -1); }
inline void mapa_shared_cluster_u32__mbarrier_arrive_shared_cluster_b64(uint32_t bar, int rank)
{
    emu::barrier_arrive(bar, rank);
}
inline void mbarrier_try_wait_parity_shared_cta_b64__selp_u32(uint32_t &done, uint32_t bar,
                                                              uint32_t parity)
{
    emu::barrier_wait(bar, parity);
    done = 1;
}
inline void bar_sync(int id, int n, int line = __builtin_LINE())
{
    emu::named_barrier(id, n, true, line);
}
inline void bar_arrive(int id, int n, int line = __builtin_LINE())
{
    emu::named_barrier(id, n, false, line);
}
inline void barrier_cluster_arrive_release_aligned__barrier_cluster_wait_acquire_aligned(
    int line = __builtin_LINE())
{
    emu::cluster_sync(line);
}
inline void mov_u32_cluster_ctarank(uint32_t &d) { d = emu::cluster_rank(); }

/* -- TMA ------------------------------------------------------------------------- */

inline void cp_async_bulk_tensor_2d_shared_cluster_global_mbarrier_complete_tx_bytes(
    uint32_t to, const CUtensorMap_st *map, int x, int y, uint32_t bar)
{
    emu::load_box(0, to, map, { { x, y } }, bar);
}
inline void cp_async_bulk_tensor_3d_shared_cluster_global_mbarrier_complete_tx_bytes(
    uint32_t to, const CUtensorMap_st *map, int x, int y, int z, uint32_t bar)
{
    emu::load_box(0, to, map, { { x, y, z } }, bar);
}
inline void cp_async_bulk_tensor_5d_shared_cluster_global_mbarrier_complete_tx_bytes_L2_cache_hint(
    uint32_t to, const CUtensorMap_st *map, int x, int y, int z, int u, int v, uint32_t bar,
    uint64_t)
{
    emu::load_box(0, to, map, { { x, y, z, u, v } }, bar);
}
inline void cp_async_bulk_shared_cluster_global_mbarrier_complete_tx_bytes_L2_cache_hint(
    uint32_t to, const void *from, int bytes, uint32_t bar, uint64_t)
{
    emu::load_bytes(to, from, (uint32_t)bytes, bar);
}
inline void
cp_async_bulk_tensor_2d_shared_cluster_global_mbarrier_complete_tx_bytes_multicast_cluster(
    uint32_t to, const CUtensorMap_st *map, int x, int y, uint32_t bar, uint16_t mask)
{
    emu::load_box(mask, to, map, { { x, y } }, bar);
}
inline void cp_async_bulk_tensor_2d_global_shared_cta_bulk_group(const CUtensorMap_st *map, int x,
                                                                 int y, uint32_t from)
{
    emu::store_box(map, { { x, y } }, from);
}
inline void cp_async_bulk_tensor_3d_global_shared_cta_bulk_group(const CUtensorMap_st *map, int x,
                                                                 int y, int z, uint32_t from)
{
    emu::store_box(map, { { x, y, z } }, from);
}
inline void cp_reduce_async_bulk_tensor_3d_global_shared_cta_add_tile_bulk_group(
    const CUtensorMap_st *map, int x, int y, int z, uint32_t from)
{
    emu::store_box(map, { { x, y, z } }, from, true);
}
inline void cp_async_bulk_commit_group() { emu::stores_commit(); }
inline void cp_async_bulk_wait_group_read(int left) { emu::stores_wait(left); }
inline void cp_async_bulk_wait_group() { emu::stores_wait(0); }
inline void prefetch_tensormap(const CUtensorMap_st *) {}
inline void prefetch_global_L2(const void *at) { (void)*(const volatile char *)at; }
inline void fence_proxy_async_shared_cta() {}

/* -- products -------------------------------------------------------------------------------- */

inline void wgmma_fence_sync_aligned() {}
inline void wgmma_commit_group_sync_aligned() { emu::products_commit(); }
inline void wgmma_wait_group_sync_aligned(int left) { emu::products_wait(left); }

/* Sums; a and b in shared memory, or four registers of a and b; add, turned a, turned b. */
template <class... A>
void setp_ne_b32__wgmma_mma_async_sync_aligned_m64nk16_f32_bf16_bf16(float &first, A &&...more)
{
    constexpr int N = 1 + emu::count_of<float, std::decay_t<A>...>();
    auto all = std::forward_as_tuple(first, more...);
    if constexpr (sizeof...(A) + 1 - N == 5) {
        emu::product(&first, N, NULL, std::get<N>(all), std::get<N + 1>(all), std::get<N + 2>(all),
                     std::get<N + 3>(all), std::get<N + 4>(all));
    } else {
        const uint32_t a[4] = { std::get<N>(all), std::get<N + 1>(all), std::get<N + 2>(all),
                                std::get<N + 3>(all) };
        emu::product(&first, N, a, 0, std::get<N + 4>(all), std::get<N + 5>(all), false,
                     std::get<N + 6>(all));
    }
}

/* Sums of codes; a and b in shared memory, or four registers of a and b; add. */
template <emu::product_type TYPE, class... A> void product_of_codes(float &first, A &&...more)
{
    constexpr int N = 1 + emu::count_of<float, std::decay_t<A>...>();
    auto all = std::forward_as_tuple(first, more...);
    if constexpr (sizeof...(A) + 1 - N == 3) {
        emu::product(&first, N, NULL, std::get<N>(all), std::get<N + 1>(all), std::get<N + 2>(all),
                     false, false, TYPE);
    } else {
        const uint32_t a[4] = { std::get<N>(all), std::get<N + 1>(all), std::get<N + 2>(all),
                                std::get<N + 3>(all) };
        emu::product(&first, N, a, 0, std::get<N + 4>(all), std::get<N + 5>(all), false, false,
                     TYPE);
    }
}
template <class... A>
void setp_ne_b32__wgmma_mma_async_sync_aligned_m64nk32_f32_e4m3_e4m3(A &&...all)
{
    product_of_codes<emu::PRODUCT_E4M3>(std::forward<A>(all)...);
}
template <class... A>
void setp_ne_b32__wgmma_mma_async_sync_aligned_m64nk32_f32_e4m3_e5m2(A &&...all)
{
    product_of_codes<emu::PRODUCT_E4M3_E5M2>(std::forward<A>(all)...);
}
template <class... A>
void setp_ne_b32__wgmma_mma_async_sync_aligned_m64nk32_f32_e5m2_e4m3(A &&...all)
{
    product_of_codes<emu::PRODUCT_E5M2_E4M3>(std::forward<A>(all)...);
}

/* Sums of f16; a, b in shared memory; add, turned a, turned b. */
template <class... A>
void setp_ne_b32__wgmma_mma_async_sync_aligned_m64nk16_f32_f16_f16(float &first, A &&...more)
{
    constexpr int N = 1 + emu::count_of<float, std::decay_t<A>...>();
    auto all = std::forward_as_tuple(first, more...);
    emu::product(&first, N, NULL, std::get<N>(all), std::get<N + 1>(all), std::get<N + 2>(all),
                 std::get<N + 3>(all), std::get<N + 4>(all), emu::PRODUCT_F16);
}

inline void mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32(float &d0, float &d1, float &d2,
                                                                float &d3, uint32_t a0, uint32_t a1,
                                                                uint32_t a2, uint32_t a3,
                                                                uint32_t b0, uint32_t b1)
{
    float *const d[4] = { &d0, &d1, &d2, &d3 };
    const uint32_t a[4] = { a0, a1, a2, a3 }, b[2] = { b0, b1 };
    emu::warp_product(d, a, b);
}

/* -- copies of a thread ---------------------------------------------------------------------- */

inline void cp_async_cg_shared_global(uint32_t to, const void *from, int bytes)
{
    emu::copy_16(to, bytes ? from : NULL);
}
inline void cp_async_cg_shared_global_L2_128B(uint32_t to, const void *from, int bytes)
{
    cp_async_cg_shared_global(to, from, bytes);
}
inline void cp_async_cg_shared_global_L2_cache_hint(uint32_t to, const void *from, int bytes,
                                                    uint64_t)
{
    cp_async_cg_shared_global(to, from, bytes);
}
inline void cp_async_commit_group() { emu::copies_commit(); }
inline void cp_async_wait_group(int left) { emu::copies_wait(left); }

/* -- nothing here ---------------------------------------------------------------------------- */

inline void createpolicy_fractional_L2_evict_first_b64(uint64_t &policy) { policy = 0; }
inline void createpolicy_fractional_L2_evict_normal_b64(uint64_t &policy) { policy = 0; }
inline void setmaxnreg_inc_sync_aligned_u32(int) {}
inline void setmaxnreg_dec_sync_aligned_u32(int) {}
inline void griddepcontrol_wait() {} /* launches run one after another */
inline void griddepcontrol_launch_dependents() {}

} /* namespace ptx */

#endif
