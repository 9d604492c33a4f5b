/* profile.cu - see profile.h. */
#include "host/profile.h"

#include <cupti.h>
#include <cxxabi.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_KERNELS = 1024, NAME = 96, BUFFER = 8 << 20 };

struct row {
    char name[NAME];
    long calls;
    double ns;
};

static struct {
    struct row row[MAX_KERNELS];
    int n;
    pthread_mutex_t lock;
    CUptiResult (*enable)(CUpti_ActivityKind);
    CUptiResult (*disable)(CUpti_ActivityKind);
    CUptiResult (*callbacks)(CUpti_BuffersCallbackRequestFunc, CUpti_BuffersCallbackCompleteFunc);
    CUptiResult (*next)(uint8_t *, size_t, CUpti_Activity **);
    CUptiResult (*flush)(uint32_t);
} p = { {}, 0, PTHREAD_MUTEX_INITIALIZER };

/* "void ns::kernel<128, true>(int*)" -> "kernel<128, true>": what distinguishes kernels. */
static void short_name(const char *mangled, char out[NAME])
{
    int status = 0;
    char *full = abi::__cxa_demangle(mangled, NULL, NULL, &status);
    const char *s = full ? full : mangled;
    if (!strncmp(s, "void ", 5))
        s += 5;
    size_t n = 0, depth = 0;
    while (s[n] && (s[n] != '(' || depth || !strncmp(s + n, "(anonymous", 10))) {
        depth += s[n] == '<';
        depth -= s[n] == '>' && depth;
        n++;
    }
    snprintf(out, NAME, "%.*s", (int)n, s);
    free(full);
}

static void count(const char *name, double ns)
{
    char key[NAME];
    short_name(name, key);
    int i = 0;
    while (i < p.n && strcmp(p.row[i].name, key))
        i++;
    if (i == MAX_KERNELS)
        return;
    if (i == p.n)
        strcpy(p.row[p.n++].name, key);
    p.row[i].calls++;
    p.row[i].ns += ns;
}

static void CUPTIAPI buffer_wanted(uint8_t **buffer, size_t *size, size_t *max)
{
    *buffer = (uint8_t *)aligned_alloc(8, BUFFER);
    *size = *buffer ? BUFFER : 0;
    *max = 0;
}

static void CUPTIAPI buffer_full(CUcontext, uint32_t, uint8_t *buffer, size_t, size_t valid)
{
    CUpti_Activity *a = NULL;
    pthread_mutex_lock(&p.lock);
    while (p.next(buffer, valid, &a) == CUPTI_SUCCESS) {
        if (a->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
            const CUpti_ActivityKernel10 *k = (const CUpti_ActivityKernel10 *)a;
            count(k->name, (double)(k->end - k->start));
        } else if (a->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
            const CUpti_ActivityMemcpy6 *m = (const CUpti_ActivityMemcpy6 *)a;
            count("[copy]", (double)(m->end - m->start));
        } else if (a->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
            const CUpti_ActivityMemset4 *m = (const CUpti_ActivityMemset4 *)a;
            count("[set]", (double)(m->end - m->start));
        }
    }
    pthread_mutex_unlock(&p.lock);
    free(buffer);
}

static const CUpti_ActivityKind kinds[] = { CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                            CUPTI_ACTIVITY_KIND_MEMCPY,
                                            CUPTI_ACTIVITY_KIND_MEMSET };

static bool find(void *lib, const char *name, void *out)
{
    *(void **)out = dlsym(lib, name);
    return *(void **)out != NULL;
}

int profile_begin(void)
{
    void *lib = dlopen("libcupti.so.13", RTLD_NOW);
    if (!lib)
        lib = dlopen("libcupti.so", RTLD_NOW);
    if (!lib)
        return err_set(GPT_DEVICE, "--profile needs CUPTI, which comes with the CUDA Toolkit: %s",
                       dlerror());
    if (!find(lib, "cuptiActivityEnable", &p.enable) ||
        !find(lib, "cuptiActivityDisable", &p.disable) ||
        !find(lib, "cuptiActivityRegisterCallbacks", &p.callbacks) ||
        !find(lib, "cuptiActivityGetNextRecord", &p.next) ||
        !find(lib, "cuptiActivityFlushAll", &p.flush))
        return err_set(GPT_DEVICE, "--profile: this libcupti lacks a function");
    CUptiResult e = p.callbacks(buffer_wanted, buffer_full);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds && e == CUPTI_SUCCESS; i++)
        e = p.enable(kinds[i]);
    if (e != CUPTI_SUCCESS)
        return err_set(GPT_DEVICE, "--profile: CUPTI error %d", (int)e);
    p.n = 0;
    return GPT_OK;
}

static int by_time(const void *a, const void *b)
{
    double x = ((const struct row *)a)->ns, y = ((const struct row *)b)->ns;
    return (x < y) - (x > y);
}

int profile_end(FILE *f, int steps)
{
    double sum = 0;
    p.flush(1);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        p.disable(kinds[i]);
    pthread_mutex_lock(&p.lock);
    qsort(p.row, (size_t)p.n, sizeof *p.row, by_time);
    for (int i = 0; i < p.n; i++)
        sum += p.row[i].ns;
    fprintf(f, "kernel\tcalls_step\tus_step\tus_call\tshare\n");
    for (int i = 0; i < p.n; i++)
        fprintf(f, "%s\t%.1f\t%.1f\t%.2f\t%.4f\n", p.row[i].name, (double)p.row[i].calls / steps,
                p.row[i].ns / 1e3 / steps, p.row[i].ns / 1e3 / (double)p.row[i].calls,
                p.row[i].ns / sum);
    fprintf(f, "sum\t\t%.1f\t\t1\n", sum / 1e3 / steps);
    pthread_mutex_unlock(&p.lock);
    return fflush(f) ? err_sys("profile") : GPT_OK;
}
