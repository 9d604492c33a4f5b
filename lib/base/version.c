#undef _FORTIFY_SOURCE /* whose inline functions are of one processor: ANY_PROCESSOR below cannot call them */
#include "base/version.h"

#include <elf.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
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

/* The Makefile's commit.c has another. */
__attribute__((weak)) const char gpt_commit[] = "unknown";

const char *version_commit(void) { return gpt_commit; }

/* --- the build ID --- */

static char program[65] = "unknown";

static void take_note(const char *at, const char *end)
{
    while (end - at >= (ptrdiff_t)sizeof(ElfW(Nhdr))) {
        const ElfW(Nhdr) *n = (const void *)at;
        const char *name = at + sizeof *n, *id = name + (n->n_namesz + 3) / 4 * 4;
        if (n->n_type == NT_GNU_BUILD_ID && n->n_namesz == 4 && !memcmp(name, "GNU", 4)) {
            for (unsigned i = 0; i < n->n_descsz && i < 32; i++)
                snprintf(program + 2 * i, 3, "%02x", (unsigned char)id[i]);
            return;
        }
        at = id + (n->n_descsz + 3) / 4 * 4;
    }
}

/* Takes the build hash of the program itself, which the loader lists first. */
static int take_object(struct dl_phdr_info *o, size_t size, void *arg)
{
    (void)size, (void)arg;
    for (int i = 0; i < o->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &o->dlpi_phdr[i];
        const char *at = (const char *)(o->dlpi_addr + p->p_vaddr);
        if (p->p_type == PT_NOTE)
            take_note(at, at + p->p_filesz);
    }
    return 1;
}

/* --- texts --- */

static char text[512];

static void make_text(void)
{
#ifdef __clang__
    const char *compiler = "clang " __clang_version__;
#else
    const char *compiler = "gcc " __VERSION__;
#endif
    dl_iterate_phdr(take_object, NULL);
    snprintf(text, sizeof text, GPT_VERSION "\ncommit: %s\nprogram: %s\ncompiler: %s\nzstd: %s\n",
             gpt_commit, program, compiler, ZSTD_versionString());
}

const char *version_text(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_text);
    return text;
}

const char *version_program(void)
{
    version_text();
    return program;
}

const char *version_tool(const char *name, char *out, int size)
{
    bool known = strcmp(gpt_commit, "unknown") != 0;
    snprintf(out, (size_t)size, "%s " GPT_VERSION "%s%s", name, known ? ", commit " : "",
             known ? gpt_commit : "");
    return out;
}
