/* attention_sm90.cuh - the Hopper instructions that attention uses: mbarriers, bulk copies, wgmma.
 *
 * Only what attention needs, each a thin name for one PTX instruction.
 *
 * Tiles in shared memory. A block of 64 rows by E channels of bf16 is stored as
 * the bulk tensor copy writes it: panels of 64 channels (E / 64 of them, or one
 * of 32 channels), a panel being 64 rows of 128 (64) bytes whose 16-byte chunks
 * are swizzled. struct block<E> knows the addresses; wgmma reads such a block
 *   K-major  (its rows are M or N, its channels are K): products over channels,
 *   MN-major (its rows are K, its channels are N):      products over rows.
 */
#ifndef KERNELS_ATTENTION_SM90_CUH
#define KERNELS_ATTENTION_SM90_CUH

#include <cuda.h>
#include <stdint.h>

__device__ __forceinline__ uint32_t smem_addr(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* -- mbarriers, by shared-memory address --------------------------------- */
__device__ __forceinline__ void bar_init(uint32_t bar, int count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}
__device__ __forceinline__ void bar_arrive(uint32_t bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
__device__ __forceinline__ void bar_expect(uint32_t bar, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
                 : "memory");
}
/* Waits until the phase of this parity is complete. */
__device__ __forceinline__ void bar_wait(uint32_t bar, uint32_t parity)
{
    uint32_t done;
    do {
        asm volatile("{\n.reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n}\n"
                     : "=r"(done)
                     : "r"(bar), "r"(parity)
                     : "memory");
    } while (!done);
}
/* Among `threads` threads of the block that use the same id (1 .. 15). */
__device__ __forceinline__ void named_barrier(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* -- bulk copies ----------------------------------------------------------- */
/* Box of the map at channel x, row y; rows outside the tensor are zeros. */
__device__ __forceinline__ void tma_load(uint32_t dst, const CUtensorMap *map, int x, int y,
                                         uint32_t bar)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];" ::"r"(dst),
                 "l"(map), "r"(x), "r"(y), "r"(bar)
                 : "memory");
}
/* Rows outside the tensor are not written. */
__device__ __forceinline__ void tma_store(const CUtensorMap *map, int x, int y, uint32_t src)
{
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group "
                 "[%0, {%1, %2}], [%3];" ::"l"(map),
                 "r"(x), "r"(y), "r"(src)
                 : "memory");
}
__device__ __forceinline__ void store_commit() { asm volatile("cp.async.bulk.commit_group;"); }
/* Until the committed stores have read their shared memory. */
__device__ __forceinline__ void store_wait_read()
{
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
__device__ __forceinline__ void store_wait()
{
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
/* Ordinary writes to shared memory become visible to bulk copies and wgmma. */
__device__ __forceinline__ void fence_async()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void prefetch_map(const CUtensorMap *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* -- between kernels: one launched as a programmatic dependent of the kernel before it ----- */
/* Until the kernel before is done and its writes are seen. */
__device__ __forceinline__ void wait_for_kernel_before()
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
}
/* The kernel behind may start, as far as it does not wait. */
__device__ __forceinline__ void start_kernel_behind()
{
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

/* -- registers ------------------------------------------------------------- */
template <int N> __device__ __forceinline__ void regs_inc()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> __device__ __forceinline__ void regs_dec()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
__device__ __forceinline__ float exp2_approx(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* -- blocks of 64 rows ------------------------------------------------------ */
template <int E> struct block {
    static_assert(E == 32 || E == 64 || E == 128, "head sizes that attention knows");
    enum {
        ROWS = 64,
        PANELS = E < 64 ? 1 : E / 64,
        PANEL_COLS = E < 64 ? E : 64,
        ROW_BYTES = PANEL_COLS * 2,
        PANEL_BYTES = ROWS * ROW_BYTES,
        BYTES = PANELS * PANEL_BYTES,
        K_STEPS = E / 16,                   /* wgmma steps over the channels */
    };
    /* Byte offset of the 16-byte chunk c (8 channels) of row r. */
    static __device__ __forceinline__ uint32_t at(int r, int c)
    {
        if (E < 64)
            return r * ROW_BYTES + ((c ^ ((r >> 1) & 3)) << 4);
        return (c >> 3) * PANEL_BYTES + r * ROW_BYTES + (((c & 7) ^ (r & 7)) << 4);
    }
    /* wgmma matrix descriptor of a block at this address. Low word: address / 16 and, used
     * MN-major only, the offset / 16 of the next panel; high word: offset / 16 of the next 8
     * rows and the swizzle (64 or 128 bytes). Only the low word varies: 32-bit sums suffice. */
    static __device__ __forceinline__ uint32_t desc(uint32_t addr)
    {
        return PANEL_BYTES / 16 << 16 | (addr & 0x3ffff) >> 4;
    }
    static constexpr uint32_t DESC_HIGH = (E < 64 ? 2u : 1u) << 30 | 8 * ROW_BYTES / 16;
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
            tma_load(dst + p * PANEL_BYTES, map, head * E + p * PANEL_COLS, row, bar);
    }
    static __device__ __forceinline__ void store(const CUtensorMap *map, int head, int row,
                                                 uint32_t src)
    {
        for (int p = 0; p < PANELS; p++)
            tma_store(map, head * E + p * PANEL_COLS, row, src + p * PANEL_BYTES);
    }
};

/* -- wgmma: 64 x N x 16, bf16 in, f32 sums in registers -------------------------
 * Sum i of a thread is row 16 warp + lane / 4 + 8 (i / 2 % 2), column
 * 8 (i / 4) + 2 (lane % 4) + i % 2. Operand A from registers is the same with
 * pairs packed: sums 8 k .. 8 k + 7 of a product are step k of the next. */
__device__ __forceinline__ void mma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void mma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/* Until at most N committed groups run. */
template <int N> __device__ __forceinline__ void mma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
/* Keeps the compiler from touching sums before the wait that stands above. */
template <int N> __device__ __forceinline__ void keep(float (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

#define F4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define F16(i) F4(i), F4(i + 4), F4(i + 8), F4(i + 12)
#define D16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define D32 D16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define D64 D32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, " \
    "%47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define WGMMA(n) "wgmma.mma_async.sync.aligned.m64n" n "k16.f32.bf16.bf16 "

/* rs: A in four registers a thread, B by descriptor, MN-major when TRANS. ss: both by
 * descriptor, K-major. Descriptors by their low words. add: 0 overwrites d. */
#define DESC(d, low, high) ".reg .b64 " d ";\nmov.b64 " d ", {" low ", " high "};\n"
template <int N> struct mma;
template <> struct mma<32> {
    template <int TRANS>
    static __device__ __forceinline__ void rs(float (&d)[16], const uint32_t *a, uint32_t b,
                                              uint32_t high, int add)
    {
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %22, 0;\n" DESC("b", "%20", "%21")
                     WGMMA("32") "{" D16 "}, {%16, %17, %18, %19}, b, p, 1, 1, %23;\n}\n"
                     : F16(0)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(high), "r"(add),
                       "n"(TRANS));
    }
};
template <> struct mma<64> {
    template <int TRANS>
    static __device__ __forceinline__ void rs(float (&d)[32], const uint32_t *a, uint32_t b,
                                              uint32_t high, int add)
    {
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %38, 0;\n" DESC("b", "%36", "%37")
                     WGMMA("64") "{" D32 "}, {%32, %33, %34, %35}, b, p, 1, 1, %39;\n}\n"
                     : F16(0), F16(16)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(high), "r"(add),
                       "n"(TRANS));
    }
    static __device__ __forceinline__ void ss(float (&d)[32], uint32_t a, uint32_t b,
                                              uint32_t high, int add)
    {
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %35, 0;\n" DESC("a", "%32", "%34")
                     DESC("b", "%33", "%34") WGMMA("64") "{" D32 "}, a, b, p, 1, 1, 0, 0;\n}\n"
                     : F16(0), F16(16)
                     : "r"(a), "r"(b), "r"(high), "r"(add));
    }
};
template <> struct mma<128> {
    template <int TRANS>
    static __device__ __forceinline__ void rs(float (&d)[64], const uint32_t *a, uint32_t b,
                                              uint32_t high, int add)
    {
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %70, 0;\n" DESC("b", "%68", "%69")
                     WGMMA("128") "{" D64 "}, {%64, %65, %66, %67}, b, p, 1, 1, %71;\n}\n"
                     : F16(0), F16(16), F16(32), F16(48)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(high), "r"(add),
                       "n"(TRANS));
    }
};

/* d (64 x 64) = A B^T over E channels, both blocks of 64 rows. */
template <int E>
__device__ __forceinline__ void dot_rows(float (&d)[32], uint32_t a, uint32_t b)
{
#pragma unroll
    for (int k = 0; k < block<E>::K_STEPS; k++)
        mma<64>::ss(d, a + block<E>::step_k(k), b + block<E>::step_k(k), block<E>::DESC_HIGH,
                    k > 0);
}
/* The same with A in registers. */
template <int E>
__device__ __forceinline__ void dot_rows(float (&d)[32], const uint32_t (&a)[E / 16][4],
                                         uint32_t b)
{
#pragma unroll
    for (int k = 0; k < block<E>::K_STEPS; k++)
        mma<64>::template rs<0>(d, a[k], b + block<E>::step_k(k), block<E>::DESC_HIGH, k > 0);
}
/* d (64 x E) (+)= P B, P 64 x 64 packed in registers, B a block. */
template <int E>
__device__ __forceinline__ void add_rows(float (&d)[E / 2], const uint32_t (&p)[16], uint32_t b,
                                         bool add)
{
#pragma unroll
    for (int k = 0; k < 4; k++)
        mma<E>::template rs<1>(d, p + 4 * k, b + block<E>::step_mn(k), block<E>::DESC_HIGH,
                               add || k > 0);
}

/* -- fragments between registers and blocks -------------------------------------- */
/* This warp's 16 rows of a block as operand A. */
template <int E>
__device__ __forceinline__ void load_rows(uint32_t (&a)[E / 16][4], uint32_t src, int warp,
                                          int lane)
{
#pragma unroll
    for (int k = 0; k < E / 16; k++) {
        uint32_t at = src + block<E>::at(16 * warp + lane % 16, 2 * k + lane / 16);
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(a[k][0]), "=r"(a[k][1]), "=r"(a[k][2]), "=r"(a[k][3])
                     : "r"(at)
                     : "memory");
    }
}
__device__ __forceinline__ uint32_t pack2(float lo, float hi)
{
    uint32_t u;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(u) : "f"(hi), "f"(lo));
    return u;
}
/* Sums times scale (by row half) as bf16, */
template <int E>
__device__ __forceinline__ void round_rows(uint32_t (&p)[E / 4], const float (&d)[E / 2],
                                           float scale0, float scale1)
{
#pragma unroll
    for (int i = 0; i < E / 4; i++) {
        const float scale = i % 2 ? scale1 : scale0;
        p[i] = pack2(d[2 * i] * scale, d[2 * i + 1] * scale);
    }
}
/* and these into this warp's 16 rows of a block. */
template <int E>
__device__ __forceinline__ void store_rows(uint32_t dst, const uint32_t (&p)[E / 4], int warp,
                                           int lane)
{
#pragma unroll
    for (int k = 0; k < E / 16; k++) {
        uint32_t at = dst + block<E>::at(16 * warp + lane % 16, 2 * k + lane / 16);
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at),
                     "r"(p[4 * k]), "r"(p[4 * k + 1]), "r"(p[4 * k + 2]), "r"(p[4 * k + 3])
                     : "memory");
    }
}
__device__ __forceinline__ void pack_rows(uint32_t (&p)[16], const float (&s)[32])
{
#pragma unroll
    for (int i = 0; i < 16; i++)
        p[i] = pack2(s[2 * i], s[2 * i + 1]);
}

#undef F4
#undef F16
#undef D16
#undef D32
#undef D64
#undef WGMMA
#undef DESC

#endif
