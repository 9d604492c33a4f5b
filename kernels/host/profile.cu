/* profile.cu - see profile.h. */
#include "host/profile.h"

#include <cupti.h>
#include <cxxabi.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { NAME = 96, BUFFER = 8 << 20 };

static struct {
    struct trace *trace; /* where events go; under the lock */
    pthread_mutex_t lock;
    CUptiResult (*enable)(CUpti_ActivityKind);
    CUptiResult (*disable)(CUpti_ActivityKind);
    CUptiResult (*callbacks)(CUpti_BuffersCallbackRequestFunc, CUpti_BuffersCallbackCompleteFunc);
    CUptiResult (*next)(uint8_t *, size_t, CUpti_Activity **);
    CUptiResult (*flush)(uint32_t);
} p = { NULL, PTHREAD_MUTEX_INITIALIZER };

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

static void add_kernel(const CUpti_ActivityKernel10 *k)
{
    struct trace_event e = {
        NULL, (int)k->deviceId, (int)k->streamId, (int64_t)k->start, (int64_t)k->end, -1, 0
    };
    char name[NAME];

    short_name(k->name, name);
    if (!strcmp(name, "trace_mark"))
        e.mark = k->gridX - 1, e.part = k->blockX - 1;
    trace_add(p.trace, name, &e);
}

/* Records a copy or a clear. */
template <typename T> static void add_memory(const char *name, const T *a)
{
    const struct trace_event e = {
        NULL, (int)a->deviceId, (int)a->streamId, (int64_t)a->start, (int64_t)a->end, -1, 0
    };

    trace_add(p.trace, name, &e);
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
        if (a->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL)
            add_kernel((const CUpti_ActivityKernel10 *)a);
        else if (a->kind == CUPTI_ACTIVITY_KIND_MEMCPY)
            add_memory("[copy]", (const CUpti_ActivityMemcpy6 *)a);
        else if (a->kind == CUPTI_ACTIVITY_KIND_MEMCPY2) /* to another GPU */
            add_memory("comm_copy", (const CUpti_ActivityMemcpyPtoP4 *)a);
        else if (a->kind == CUPTI_ACTIVITY_KIND_MEMSET)
            add_memory("[set]", (const CUpti_ActivityMemset4 *)a);
    }
    pthread_mutex_unlock(&p.lock);
    free(buffer);
}

static const CUpti_ActivityKind kinds[] = { CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                            CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMCPY2,
                                            CUPTI_ACTIVITY_KIND_MEMSET };

static bool find(void *lib, const char *name, void *out)
{
    *(void **)out = dlsym(lib, name);
    return *(void **)out != NULL;
}

int profile_begin(struct trace *t)
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
    p.trace = t;
    CUptiResult e = p.callbacks(buffer_wanted, buffer_full);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds && e == CUPTI_SUCCESS; i++)
        e = p.enable(kinds[i]);
    if (e != CUPTI_SUCCESS)
        return err_set(GPT_DEVICE, "--profile: CUPTI error %d", (int)e);
    return GPT_OK;
}

void profile_end(void)
{
    p.flush(1);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        p.disable(kinds[i]);
}
