/* gpu_arith_test.cu - root_within and quot_within of kernels/optim.h against the compiler's own: each root of
 * their range, and 2^32 quotients that pair each mantissa of the divisor with 512 dividends.
 */
#include "optim.h"
#include "ops_cuda.h"
#include "check.h"

enum { FIRST = 0x0d000000, LAST = 0x5d800000 }; /* 2^-101, 2^60 */

__global__ static void roots(unsigned long long *differ)
{
    uint64_t step = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t u = FIRST + blockIdx.x * blockDim.x + threadIdx.x; u <= LAST; u += step) {
        float x = __uint_as_float((uint32_t)u);
        if (__float_as_uint(root_within(x)) != __float_as_uint(root(x)))
            atomicAdd(differ, 1);
    }
}

__device__ static uint32_t mixed(uint64_t x)
{
    x = (x ^ x >> 31) * 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9u;
    return (uint32_t)(x >> 32);
}

/* Divisors of 2^-50 to 2^20, dividends of both signs of 2^-80 to 2^60. */
__global__ static void quotients(unsigned long long *differ)
{
    uint64_t step = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < 1ull << 32; i += step) {
        uint32_t r = mixed(i + 1), s = mixed(i + (1ull << 40));
        float b = __uint_as_float((77 + r % 71) << 23 | (uint32_t)(i & 0x7fffff));
        float a = __uint_as_float((r & 0x80000000) | (47 + s % 140) << 23 | s >> 9);
        if (__float_as_uint(quot_within(a, b)) != __float_as_uint(quot(a, b)))
            atomicAdd(differ, 1);
    }
}

int main(void)
{
    unsigned long long *differ, n[2] = { 1, 1 };
    if (ops_cuda_count() == 0)
        return check_skip("gpu");
    CHECK(cudaMalloc((void **)&differ, sizeof n) == cudaSuccess);
    CHECK(cudaMemset(differ, 0, sizeof n) == cudaSuccess);
    roots<<<2048, 256>>>(differ);
    quotients<<<2048, 256>>>(differ + 1);
    CHECK(cudaMemcpy(n, differ, sizeof n, cudaMemcpyDeviceToHost) == cudaSuccess);
    CHECK_EQ((long)n[0], 0);
    CHECK_EQ((long)n[1], 0);
    cudaFree(differ);
    return check_done();
}
