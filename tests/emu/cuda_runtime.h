/* cuda_runtime.h - the toolkit's header, and CUDA's device language for a C++ compiler: what
 * `translate` makes of a .cu file is compiled with this directory ahead of the toolkit's.
 *
 * A block's threads are fibers (block.cc): each call below that waits for other threads lets others
 * run, in random order. All kernels run on the thread that synchronises.
 */
#ifndef EMU_CUDA_RUNTIME_H
#define EMU_CUDA_RUNTIME_H

#include_next <cuda_runtime.h>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>
#include <typeinfo>

#undef __launch_bounds__
#define __launch_bounds__(...)

using std::isfinite;

extern uint3 threadIdx, blockIdx; /* of the thread that runs */
extern dim3 blockDim, gridDim;

namespace emu
{

/* -- launches ------------------------------------------------------------------------------ */

struct shape {
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
    shape(dim3 g, dim3 b, size_t bytes = 0, cudaStream_t s = 0)
        : grid(g), block(b), shared(bytes), stream(s)
    {
    }
};
/* Queues `thread`, what each thread of the grid does. */
cudaError_t launch_threads(const char *name, const shape &s, int cluster,
                           std::function<void()> thread);

/* With the kernel's type, where its name is not known. */
const char *name_of(const char *where, const std::type_info &type);

/* Arguments are copied now, and once more for each thread: those are its parameters. */
template <class F, class... A>
void launch(const char *name, const shape &s, int cluster, F kernel, A... args)
{
    launch_threads(name, s, cluster, [=] { kernel(args...); });
}
/* static: files have types of the same name among their kernels' parameters. */
template <class... P, class... A>
static cudaError_t launch_ex(const char *name, const cudaLaunchConfig_t *c, void (*kernel)(P...),
                             A... args)
{
    int cluster = 1;
    for (unsigned i = 0; i < c->numAttrs; i++)
        if (c->attrs[i].id == cudaLaunchAttributeClusterDimension)
            cluster = c->attrs[i].val.clusterDim.x;
    return launch_threads(name_of(name, typeid(kernel)),
                          shape(c->gridDim, c->blockDim, c->dynamicSmemBytes, c->stream), cluster,
                          [=] { kernel(args...); });
}

} /* namespace emu */

template <class... P>
cudaError_t cudaFuncSetAttribute(void (*kernel)(P...), cudaFuncAttribute what, int value)
{
    return cudaFuncSetAttribute((const void *)kernel, what, value);
}
template <class... P> cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *a, void (*kernel)(P...))
{
    return cudaFuncGetAttributes(a, (const void *)kernel);
}

namespace emu
{

/* -- shared memory --------------------------------------------------------------------------- */

/* The block's variable that `key` stands for, `name` in messages. */
void *shared_variable(const char *key, const char *name, size_t bytes, size_t align);
void *dynamic_shared();
template <class T> T &shared(const char *key, const char *name, size_t align)
{
    return *(T *)shared_variable(key, name, sizeof(T), align ? align : alignof(T));
}
uint32_t shared_address(const void *p);

/* -- waiting for others ---------------------------------------------------------------------- */

/* The values of all lanes once they are here, until this lane's next call. */
const uint64_t *warp_values(const char *what, unsigned mask, uint64_t mine, int line);
/* True in all threads of the block when it is in one. */
bool block_sync(bool any, const char *file, int line);

template <class T> uint64_t bits_of(T x)
{
    uint64_t u = 0;
    static_assert(sizeof x <= 8, "a register or two");
    memcpy(&u, &x, sizeof x);
    return u;
}
template <class T> T shuffle(unsigned mask, T mine, int from, int line)
{
    uint64_t u = warp_values("a shuffle", mask, bits_of(mine), line)[from];
    memcpy(&mine, &u, sizeof mine);
    return mine;
}
inline int lane()
{
    return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32;
}

} /* namespace emu */

#define __syncthreads() emu::block_sync(false, __FILE__, __LINE__)
#define __syncthreads_or(any) ((int)emu::block_sync((any) != 0, __FILE__, __LINE__))

inline void __syncwarp(unsigned mask = ~0u, int line = __builtin_LINE())
{
    emu::warp_values("__syncwarp", mask, 0, line);
}
template <class T> T __shfl_sync(unsigned mask, T x, int from, int line = __builtin_LINE())
{
    return emu::shuffle(mask, x, from & 31, line);
}
template <class T> T __shfl_xor_sync(unsigned mask, T x, int bits, int line = __builtin_LINE())
{
    return emu::shuffle(mask, x, (emu::lane() ^ bits) & 31, line);
}
template <class T> T __shfl_up_sync(unsigned mask, T x, int by, int line = __builtin_LINE())
{
    return emu::shuffle(mask, x, emu::lane() < by ? emu::lane() : emu::lane() - by, line);
}
inline unsigned __ballot_sync(unsigned mask, bool yes, int line = __builtin_LINE())
{
    const uint64_t *all = emu::warp_values("__ballot_sync", mask, yes, line);
    unsigned set = 0;
    for (int i = 0; i < 32; i++)
        set |= (unsigned)all[i] << i;
    return set;
}
inline int __any_sync(unsigned mask, bool yes, int line = __builtin_LINE())
{
    return __ballot_sync(mask, yes, line) != 0;
}
template <class T> T __reduce_max_sync(unsigned mask, T x, int line = __builtin_LINE())
{
    const uint64_t *all = emu::warp_values("__reduce_max_sync", mask, emu::bits_of(x), line);
    for (int i = 0; i < 32; i++)
        if ((T)all[i] > x)
            x = (T)all[i];
    return x;
}

template <class T> T __reduce_add_sync(unsigned mask, T x, int line = __builtin_LINE())
{
    const uint64_t *all = emu::warp_values("__reduce_add_sync", mask, emu::bits_of(x), line);
    x = 0;
    for (int i = 0; i < 32; i++)
        x += (T)all[i];
    return x;
}

/* -- arithmetic and memory ------------------------------------------------------------------- */

/* One thread runs at a time, and none is interrupted. */
template <class T, class U> T atomicAdd(T *p, U x)
{
    T old = *p;
    *p += (T)x;
    return old;
}
template <class T, class U> T atomicOr(T *p, U x)
{
    T old = *p;
    *p |= (T)x;
    return old;
}
template <class T, class U> T atomicMax(T *p, U x)
{
    T old = *p;
    *p = (T)x > old ? (T)x : old;
    return old;
}
inline void __threadfence() {}
template <class T> T __ldcg(const T *p) { return *p; }
template <class T> T __ldcs(const T *p) { return *p; }

template <class T, class U> std::common_type_t<T, U> min(T a, U b)
{
    return (std::common_type_t<T, U>)a < (std::common_type_t<T, U>)b ? a : b;
}
template <class T, class U> std::common_type_t<T, U> max(T a, U b)
{
    return (std::common_type_t<T, U>)a > (std::common_type_t<T, U>)b ? a : b;
}
inline uint32_t __float_as_uint(float x) { return (uint32_t)emu::bits_of(x); }
inline float __uint_as_float(uint32_t u)
{
    float x;
    memcpy(&x, &u, 4);
    return x;
}
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
/* The sum in double is exact, or off by less than its last bits show in the kernels that call this. */
inline float __fmaf_rz(float a, float b, float c)
{
    double x = (double)a * b + c;
    float y = (float)x;
    return std::fabs((double)y) > std::fabs(x) ? std::nextafterf(y, 0) : y;
}
inline float __fsqrt_rn(float x) { return sqrtf(x); }
/* In place of calls of the C library: the other number, if one is NaN. */
#define fmaxf(a, b) emu::float_max(a, b)
#define fminf(a, b) emu::float_min(a, b)
namespace emu
{
inline float float_max(float a, float b) { return a > b || b != b ? a : b; }
inline float float_min(float a, float b) { return a < b || b != b ? a : b; }
} /* namespace emu */
inline float rsqrtf(float x) { return 1 / sqrtf(x); }
#define __expf(x) expf(x)
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selector)
{
    uint64_t bytes = (uint64_t)b << 32 | a;
    uint32_t r = 0;
    for (int i = 0; i < 4; i++)
        r |= (uint32_t)(bytes >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
    return r;
}
inline uint32_t __cvta_generic_to_shared(const void *p) { return emu::shared_address(p); }

#include "ptx.h"

#endif
