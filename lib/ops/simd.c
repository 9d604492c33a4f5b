#include "ops/simd.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[SIMD_SETS] = { "none", "fma", "avx512" };
static enum simd most = SIMD_NONE;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static enum simd of_processor(void)
{
#ifdef __x86_64__
    bool fma = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return fma ? wide ? SIMD_AVX512 : SIMD_FMA : SIMD_NONE;
#elif defined __aarch64__
    return SIMD_FMA;
#else
    return SIMD_NONE;
#endif
}

/* Returns the set that a limit names; SIMD_SETS: none. */
static enum simd set_named(const char *limit)
{
    int s = 0;
    while (s < SIMD_SETS && strcmp(limit, names[s]))
        s++;
    return (enum simd)s;
}

int simd_check(void)
{
    const char *limit = getenv("GPT_SIMD");
    if (!limit || set_named(limit) < SIMD_SETS)
        return 0;
    return err_set(GPT_USAGE, "GPT_SIMD: expected none, fma or avx512, found '%s'", limit);
}

static void look(void)
{
    const char *limit = getenv("GPT_SIMD");
    most = of_processor();
    if (limit && set_named(limit) < most)
        most = set_named(limit);
}

enum simd simd_get(void)
{
    pthread_once(&once, look);
    return most;
}

void simd_limit(enum simd limit)
{
    enum simd have = of_processor();
    pthread_once(&once, look);
    most = limit < have ? limit : have;
}
