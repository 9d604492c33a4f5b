/* wgmma.h - the tensor cores' product of a warpgroup, one function for each number of columns N.
 *
 *     d (64,N) = [d +] a (64,16) b (16,N)       bf16 operands (wgmma_f16: f16), f32 sums
 *
 * d: N / 2 numbers a thread: d[4 q + 2 h + e] is row 16 warp + 8 h + lane / 4, column
 * 8 q + 2 (lane % 4) + e. b is in shared memory, a too (wgmma) or in registers (wgmma_rows): four
 * a thread, laid out as d's columns 0 .. 15 with neighbours packed, so that sums 8 k .. 8 k + 7 of
 * one product are step k of the next. Operands in shared memory are named by descriptors; TA, TB:
 * that one lies with k along its rows. add 0: d is not read.
 *
 *     wgmma_begin();                          // after d or a register operand was touched
 *     for (k ...) wgmma<false, false>(d, operand<false>(a + 32 * k), ..., k > 0);
 *     wgmma_commit();
 *     wgmma_wait<0>();
 *
 * Source: PTX ISA 9.0, asynchronous warpgroup level matrix instructions.
 */
#ifndef KERNELS_SM90_WGMMA_H
#define KERNELS_SM90_WGMMA_H

#include <stdint.h>

namespace sm90
{

/* A matrix descriptor names an operand in panels of rows of ROW_BYTES, 128 or 64 and swizzled like
 * that, 8-row groups side by side. Low word: address / 16 and, used where k runs along the rows, the
 * offset / 16 of the next panel. High word: the offset / 16 of the next 8 rows, and the swizzle. Only
 * the low word varies. */
__device__ __forceinline__ uint32_t descriptor_low(uint32_t address, int next_panel)
{
    return (uint32_t)next_panel / 16 << 16 | (address & 0x3ffff) >> 4;
}
template <int ROW_BYTES> __device__ __forceinline__ uint64_t descriptor(uint32_t low)
{
    uint64_t d; /* a shift and an or cost attention's backward 164 bytes of spills */
    asm("mov.b64 %0, {%1, %2};"
        : "=l"(d)
        : "r"(low), "r"((ROW_BYTES == 64 ? 2u : 1u) << 30 | 8 * ROW_BYTES / 16));
    return d;
}

/* Returns the descriptor of an operand in panels of 64 bf16 a row. k along a row: 16 further along
 * it, + 2 (32 bytes); further rows follow. k along the rows (ROWS_ARE_K): the next 64 columns lie
 * `panel` bytes further. */
template <bool ROWS_ARE_K>
__device__ __forceinline__ uint64_t operand(uint32_t address, int panel = 64 * 128)
{
    return descriptor<128>(descriptor_low(address, ROWS_ARE_K ? panel : 16));
}

__device__ __forceinline__ void wgmma_begin()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/* Waits until at most N of the committed groups are still at work. */
template <int N> __device__ __forceinline__ void wgmma_wait()
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

/* Names of the sums in the instruction, and the sums. */
#define TEN(i) \
    "%" #i "0, %" #i "1, %" #i "2, %" #i "3, %" #i "4, " \
    "%" #i "5, %" #i "6, %" #i "7, %" #i "8, %" #i "9"
#define NAMES_60 TEN() ", " TEN(1) ", " TEN(2) ", " TEN(3) ", " TEN(4) ", " TEN(5)
#define NAMES_16 TEN() ", %10, %11, %12, %13, %14, %15"
#define NAMES_32 TEN() ", " TEN(1) ", " TEN(2) ", %30, %31"
#define NAMES_48 \
    TEN() ", " TEN(1) ", " TEN(2) ", " TEN(3) ", %40, %41, %42, %43, %44, %45, %46, %47"
#define NAMES_64 NAMES_60 ", %60, %61, %62, %63"
#define NAMES_80 NAMES_60 ", " TEN(6) ", " TEN(7)
#define NAMES_96 NAMES_80 ", " TEN(8) ", %90, %91, %92, %93, %94, %95"
#define NAMES_128 \
    NAMES_80 ", " TEN(8) ", " TEN(9) ", " TEN(10) ", " TEN( \
        11) ", %120, %121, %122, %123, %124, %125, %126, %127"
#define SUMS_8(i) \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
        "+f"(d[i + 6]), "+f"(d[i + 7])
#define SUMS_16(i) SUMS_8(i), SUMS_8(i + 8)
#define SUMS_32(i) SUMS_16(i), SUMS_16(i + 16)
#define SUMS_64(i) SUMS_32(i), SUMS_32(i + 32)

/* Define products of types ta and tb. The operands are numbered behind the sums. */
#define ALL(...) __VA_ARGS__ /* one argument that holds commas */
#define PRODUCT(name, ta, tb, columns, n, sums, at_a, at_b, at_add, at_ta, at_tb) \
    template <bool TA, bool TB> \
    __device__ __forceinline__ void name(float(&d)[n], uint64_t a, uint64_t b, int add) \
    { \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #at_add ", 0;\n" \
                     "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." #ta "." #tb \
                     " {" NAMES_##n "}, %" #at_a ", %" #at_b ", p, 1, 1, %" #at_ta ", %" #at_tb \
                                    ";\n}\n" \
                     : sums \
                     : "l"(a), "l"(b), "r"(add), "n"(TA), "n"(TB)); \
    }
PRODUCT(wgmma, bf16, bf16, 64, 32, ALL(SUMS_32(0)), 32, 33, 34, 35, 36)
PRODUCT(wgmma, bf16, bf16, 128, 64, ALL(SUMS_64(0)), 64, 65, 66, 67, 68)
PRODUCT(wgmma, bf16, bf16, 160, 80, ALL(SUMS_64(0), SUMS_16(64)), 80, 81, 82, 83, 84)
PRODUCT(wgmma, bf16, bf16, 192, 96, ALL(SUMS_64(0), SUMS_32(64)), 96, 97, 98, 99, 100)
PRODUCT(wgmma, bf16, bf16, 256, 128, ALL(SUMS_64(0), SUMS_64(64)), 128, 129, 130, 131, 132)
PRODUCT(wgmma_f16, f16, f16, 128, 64, ALL(SUMS_64(0)), 64, 65, 66, 67, 68)

/* Define products of 8-bit types, (64,32) by (32,N); descriptors as for bf16, k along a row: 32 further
 * along it, + 2. */
#define PRODUCT_8(ta, tb, columns, n, sums, at_a, at_b, at_add) \
    __device__ __forceinline__ void wgmma_##ta##_##tb(float(&d)[n], uint64_t a, uint64_t b, \
                                                      int add) \
    { \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #at_add ", 0;\n" \
                     "wgmma.mma_async.sync.aligned.m64n" #columns "k32.f32." #ta "." #tb \
                     " {" NAMES_##n "}, %" #at_a ", %" #at_b ", p, 1, 1;\n}\n" \
                     : sums \
                     : "l"(a), "l"(b), "r"(add)); \
    }
PRODUCT_8(e4m3, e4m3, 160, 80, ALL(SUMS_64(0), SUMS_16(64)), 80, 81, 82)
PRODUCT_8(e4m3, e5m2, 160, 80, ALL(SUMS_64(0), SUMS_16(64)), 80, 81, 82)

#define PRODUCT_OF_ROWS(columns, n, sums, a0, a1, a2, a3, at_b, at_add, at_tb) \
    template <bool TB> \
    __device__ __forceinline__ void wgmma_rows(float(&d)[n], const uint32_t *a, uint64_t b, \
                                               int add) \
    { \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #at_add ", 0;\n" \
                     "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32.bf16.bf16 {" NAMES_##n \
                     "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #at_b ", p, 1, 1, %" #at_tb \
                     ";\n}\n" \
                     : sums \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(TB)); \
    }
PRODUCT_OF_ROWS(32, 16, ALL(SUMS_16(0)), 16, 17, 18, 19, 20, 21, 22)
PRODUCT_OF_ROWS(64, 32, ALL(SUMS_32(0)), 32, 33, 34, 35, 36, 37, 38)
PRODUCT_OF_ROWS(96, 48, ALL(SUMS_32(0), SUMS_16(32)), 48, 49, 50, 51, 52, 53, 54)
PRODUCT_OF_ROWS(128, 64, ALL(SUMS_64(0)), 64, 65, 66, 67, 68, 69, 70)

/* Define products of 8-bit types with a in registers, (64,32) of one by (32,N) of the other: four a
 * thread, of rows lane / 4, + 8, and again 16 of k further, each 4 (lane % 4) .. + 3 of k. */
#define PRODUCT_OF_ROWS_8(ta, tb, columns, n, sums, a0, a1, a2, a3, at_b, at_add) \
    __device__ __forceinline__ void wgmma_rows_##ta##_##tb(float(&d)[n], const uint32_t *a, \
                                                           uint64_t b, int add) \
    { \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #at_add ", 0;\n" \
                     "wgmma.mma_async.sync.aligned.m64n" #columns "k32.f32." #ta "." #tb \
                     " {" NAMES_##n "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #at_b \
                                    ", p, 1, 1;\n}\n" \
                     : sums \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add)); \
    }
PRODUCT_OF_ROWS_8(e5m2, e4m3, 192, 96, ALL(SUMS_64(0), SUMS_32(64)), 96, 97, 98, 99, 100, 101)
PRODUCT_OF_ROWS_8(e4m3, e5m2, 192, 96, ALL(SUMS_64(0), SUMS_32(64)), 96, 97, 98, 99, 100, 101)
PRODUCT_OF_ROWS_8(e4m3, e4m3, 192, 96, ALL(SUMS_64(0), SUMS_32(64)), 96, 97, 98, 99, 100, 101)

#undef TEN
#undef NAMES_60
#undef NAMES_16
#undef NAMES_32
#undef NAMES_48
#undef NAMES_64
#undef NAMES_80
#undef NAMES_96
#undef NAMES_128
#undef SUMS_8
#undef SUMS_16
#undef SUMS_32
#undef SUMS_64
#undef PRODUCT
#undef PRODUCT_8
#undef PRODUCT_OF_ROWS
#undef PRODUCT_OF_ROWS_8
#undef ALL

} /* namespace sm90 */

#endif
