#include "base/version.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>
#include <zstd.h>
#ifdef __aarch64__
#include <sys/auxv.h>
#endif

#include "base/err.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "shards and checkpoints are read as they lie: a little-endian processor is needed"
#endif

#ifdef __x86_64__
#define ANY_PROCESSOR __attribute__((target("arch=x86-64")))
#elif defined __aarch64__
#define ANY_PROCESSOR __attribute__((target("arch=armv8-a")))
#else
#define ANY_PROCESSOR
#endif

ANY_PROCESSOR __attribute__((unused)) static void need(bool has, const char *what)
{
    if (has)
        return;
    dprintf(STDERR_FILENO,
            "%s: this processor has no %s, which the program was built to use: "
            "build it here, or with ARCH= for any\n",
            program_invocation_short_name, what);
    _exit(GPT_SYSTEM);
}

/* The first instructions of main() may be ones that this processor lacks (ARCH in the Makefile): so
 * it is before main() that the program says so and ends. */
ANY_PROCESSOR __attribute__((constructor)) static void check_processor(void)
{
#ifdef __x86_64__
    __builtin_cpu_init();
#endif
#ifdef __AVX512F__
    need(__builtin_cpu_supports("avx512f"), "AVX-512");
#endif
#ifdef __AVX2__
    need(__builtin_cpu_supports("avx2"), "AVX2");
#endif
#ifdef __AVX__
    need(__builtin_cpu_supports("avx"), "AVX");
#endif
#ifdef __SSE4_2__
    need(__builtin_cpu_supports("sse4.2"), "SSE4.2");
#endif
#ifdef __ARM_FEATURE_SVE2
    need(getauxval(AT_HWCAP2) & HWCAP2_SVE2, "SVE2");
#endif
#ifdef __ARM_FEATURE_SVE
    need(getauxval(AT_HWCAP) & HWCAP_SVE, "SVE");
#endif
#ifdef __ARM_FEATURE_ATOMICS
    need(getauxval(AT_HWCAP) & HWCAP_ATOMICS, "atomic instructions");
#endif
}

static char text[256];

static void make_text(void)
{
#ifdef __clang__
    const char *compiler = "clang " __clang_version__;
#else
    const char *compiler = "gcc " __VERSION__;
#endif
    snprintf(text, sizeof text, GPT_VERSION "\ncompiler: %s\nzstd: %s\n", compiler,
             ZSTD_versionString());
}

const char *version_text(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_text);
    return text;
}
