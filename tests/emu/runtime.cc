/* runtime.cc - CUDA's runtime in memory of the host, in place of libcudart: an H200, or what the
 * environment says: GPT_EMU_GPU="8.0 8.9" two GPUs of these compute capabilities, "" none;
 * GPT_EMU_DRIVER=12080 a driver for CUDA 12.8, 0 none. With GPT_EMU_GPU memory is given before the first
 * step alone.
 *
 * A stream is a queue that runs when someone waits for it, so that host memory is read as late as
 * may be; a capture keeps the queue instead, also of other streams that wait for an event of it,
 * and fails unless the stream that it began on has itself waited for all of their work. Each
 * allocation ends (or, by chance, begins) where nothing is mapped; what else lies on its pages is
 * checked when it is freed. New memory is NaN.
 */
#include "emu.h"

#include <cuda.h>
#include <deque>
#include <map>
#include <stdlib.h>
#include <sys/mman.h>

/* captured: the length of the capture's work when the stream added its last; joined: the same of
 * the stream's last event that the stream which the capture began on waits for. */
struct CUstream_st {
    std::deque<std::function<void()>> queue;
    uint64_t queued, done;
    bool running;
    CUgraph_st *capture;
    size_t captured, joined;
};
struct CUevent_st {
    cudaStream_t stream;
    uint64_t at;
    CUgraph_st *capture;
    size_t captured;
};
struct CUgraph_st {
    cudaStream_t origin;
    std::vector<std::function<void()>> work; /* in the order of the calls, one of those allowed */
};
struct CUgraphExec_st {
    std::vector<std::function<void()>> work;
};

/* A test that takes it means what has shapes for a slow machine. */
__attribute__((constructor)) static void be_small() { setenv("GPT_TEST_SMALL", "1", 0); }

namespace emu
{

enum { PAGE = 4096, UNTOUCHED = 32 << 20 }; /* larger ones stay zero: filling takes a while */
static const size_t TOTAL = (size_t)140 << 30;

struct allocation {
    char *pages;
    size_t all, bytes;
}; /* all: with the pages that are not there */
static std::map<char *, allocation> allocations;
static size_t taken;
static bool stepping;
static cudaError_t sticky, last;
static CUstream_st default_stream;

static cudaError_t result(cudaError_t e)
{
    if (sticky)
        e = sticky;
    if (e)
        last = e;
    return e;
}

/* -- streams --------------------------------------------------------------------------------- */

static cudaStream_t stream_of(cudaStream_t s) { return s ? s : &default_stream; }

static void run_until(cudaStream_t s, uint64_t at)
{
    if (s->done >= at)
        return;
    if (s->running)
        fail("a stream waits for itself");
    s->running = true;
    while (s->done < at) {
        auto work = std::move(s->queue.front());
        s->queue.pop_front();
        if (!sticky)
            work();
        s->done++;
    }
    s->running = false;
}

static cudaError_t enqueue(cudaStream_t s, std::function<void()> work)
{
    s = stream_of(s);
    if (sticky)
        return result(sticky);
    if (s->capture) {
        s->capture->work.push_back(work);
        s->captured = s->capture->work.size();
    } else {
        s->queue.push_back(work);
        s->queued++;
    }
    return cudaSuccess;
}

cudaError_t launch_threads(const char *name, const shape &s, int cluster,
                           std::function<void()> thread)
{
    uint64_t threads = (uint64_t)s.block.x * s.block.y * s.block.z;
    if (!s.grid.x || !s.grid.y || !s.grid.z || !threads || threads > 1024 || s.grid.y > 65535 ||
        s.grid.z > 65535 || s.shared > (size_t)shared_max() || s.grid.x % cluster) {
        fprintf(stderr, "emulated GPU: %s: grid %u x %u x %u, block %u x %u x %u, %zu bytes\n",
                name, s.grid.x, s.grid.y, s.grid.z, s.block.x, s.block.y, s.block.z, s.shared);
        return result(cudaErrorInvalidConfiguration);
    }
    /* The first kernel of a step. */
    stepping |=
        getenv("GPT_EMU_GPU") && (!strncmp(name, "embed", 5) || !strncmp(name, "gather", 6));
    return enqueue(s.stream, [=] {
        if (!run_grid(name, s, cluster, thread))
            sticky = cudaErrorIllegalAddress;
    });
}

/* -- memory ---------------------------------------------------------------------------------- */

void describe_address(const void *p, char *text, size_t size)
{
    *text = '\0';
    for (const auto &a : allocations) {
        ptrdiff_t at = (const char *)p - a.first;
        if (at >= -2 * PAGE && at < (ptrdiff_t)(a.second.bytes + 2 * PAGE))
            snprintf(text, size, ", byte %td of %zu allocated", at, a.second.bytes);
    }
}

static cudaError_t take(void **p, size_t bytes)
{
    size_t body = (bytes + PAGE - 1) / PAGE * PAGE;
    *p = NULL;
    if (stepping)
        fail("%zu bytes of memory are taken in a step", bytes);
    if (!bytes || bytes > TOTAL - taken)
        return result(bytes ? cudaErrorMemoryAllocation : cudaSuccess);
    char *pages = (char *)mmap(NULL, body + 2 * PAGE, PROT_NONE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED || mprotect(pages + PAGE, body, PROT_READ | PROT_WRITE))
        return result(cudaErrorMemoryAllocation);
    bool at_end = random_below(4) > 0;
    char *start = pages + PAGE + (at_end ? body - (bytes + 15) / 16 * 16 : 0);
    if (body <= UNTOUCHED)
        memset(pages + PAGE, 0xff, body);
    allocations[start] = { pages, body + 2 * PAGE, bytes };
    taken += bytes;
    *p = start;
    return result(cudaSuccess);
}

/* What no one may write, around the allocation at `start`. */
static void check_around(char *start, const allocation &a)
{
    char *from = a.pages + PAGE, *to = a.pages + a.all - PAGE;
    for (char *p = from; to - from <= UNTOUCHED && p < to;
         p = p == start - 1 ? start + a.bytes : p + 1)
        if ((p < start || p >= start + a.bytes) && (unsigned char)*p != 0xff)
            fail("byte %td of an allocation of %zu was written", p - start, a.bytes);
}

static void release(char *p)
{
    auto found = allocations.find(p);
    if (found == allocations.end())
        fail("cudaFree(%p): not an allocation", (void *)p);
    check_around(p, found->second);
    munmap(found->second.pages, found->second.all);
    taken -= found->second.bytes;
    allocations.erase(found);
}

/* cuda_workspace (device.cu) keeps a block from op to op; here each op gets one of its own, so
 * that reading what it did not write, or beyond, shows. The linker puts this in its place. */
struct cuda_ops;
} /* namespace emu */

struct cuda_ops;
void *cuda_take(struct cuda_ops *c, size_t bytes, const char *what);
extern "C" void *__wrap__Z14cuda_workspaceP8cuda_opsm(struct cuda_ops *c, size_t bytes)
{
    return cuda_take(c, bytes, "workspace");
}

using namespace emu;
extern "C" {

cudaError_t cudaMalloc(void **p, size_t bytes) { return take(p, bytes); }
cudaError_t cudaMallocHost(void **p, size_t bytes) { return take(p, bytes); }
cudaError_t cudaFree(void *p)
{
    cudaDeviceSynchronize();
    if (p)
        release((char *)p);
    return result(cudaSuccess);
}
cudaError_t cudaFreeHost(void *p) { return cudaFree(p); }
cudaError_t cudaMemGetInfo(size_t *left, size_t *total)
{
    *left = TOTAL - taken, *total = TOTAL;
    return result(cudaSuccess);
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, cudaMemcpyKind, cudaStream_t s)
{
    return enqueue(s, [=] { memcpy(to, from, n); });
}
cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t fn, void *arg)
{
    return enqueue(s, [=] { fn(arg); });
}
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                              size_t width, size_t height, cudaMemcpyKind, cudaStream_t s)
{
    return enqueue(s, [=] {
        for (size_t i = 0; i < height; i++)
            memcpy((char *)to + i * to_pitch, (const char *)from + i * from_pitch, width);
    });
}
cudaError_t cudaMemsetAsync(void *p, int value, size_t n, cudaStream_t s)
{
    return enqueue(s, [=] { memset(p, value, n); });
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t n, cudaMemcpyKind kind)
{
    cudaError_t e = cudaMemcpyAsync(to, from, n, kind, 0);
    return e ? e : cudaStreamSynchronize(0);
}
cudaError_t cudaMemset(void *p, int value, size_t n) { return cudaMemsetAsync(p, value, n, 0); }

/* -- streams, events, graphs ----------------------------------------------------------------- */

static std::vector<cudaStream_t> streams;

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned)
{
    *s = new CUstream_st();
    streams.push_back(*s);
    return result(cudaSuccess);
}
cudaError_t cudaStreamCreate(cudaStream_t *s) { return cudaStreamCreateWithFlags(s, 0); }
/* Of the communicator, which one GPU does without. */
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *, unsigned, int)
{
    return result(cudaErrorNotSupported);
}
cudaError_t cudaDeviceCanAccessPeer(int *, int, int) { return result(cudaErrorNotSupported); }
cudaError_t cudaDeviceGetStreamPriorityRange(int *, int *) { return result(cudaErrorNotSupported); }
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus *, unsigned long long *,
                                     cudaGraph_t *, const cudaGraphNode_t **,
                                     const cudaGraphEdgeData **, size_t *)
{
    return result(cudaErrorNotSupported);
}
cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    s = stream_of(s);
    if (s->capture)
        return result(cudaErrorStreamCaptureUnsupported);
    run_until(s, s->queued);
    return result(cudaSuccess);
}
cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    cudaError_t e = cudaStreamSynchronize(s);
    for (size_t i = 0; i < streams.size(); i++)
        if (streams[i] == s)
            streams.erase(streams.begin() + i);
    delete s;
    return e;
}
cudaError_t cudaDeviceSynchronize(void)
{
    cudaStreamSynchronize(0);
    for (cudaStream_t s : streams)
        if (!s->capture)
            cudaStreamSynchronize(s);
    return result(cudaSuccess);
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned)
{
    *e = new CUevent_st();
    return result(cudaSuccess);
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    e->stream = stream_of(s);
    e->at = e->stream->queued;
    e->capture = e->stream->capture;
    e->captured = e->stream->captured;
    return result(cudaSuccess);
}
cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    if (e->stream)
        run_until(e->stream, e->at);
    return result(cudaSuccess);
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned)
{
    cudaStream_t before = e->stream;
    uint64_t at = e->at;
    if (!before || before == stream_of(s))
        return result(cudaSuccess);
    if (e->capture) {
        if (e->capture == before->capture && !s->capture) {
            s->capture = e->capture;
            s->captured = s->joined = 0;
        }
        if (e->capture != s->capture)
            return result(cudaErrorStreamCaptureIsolation);
        if (s == s->capture->origin && e->captured > before->joined)
            before->joined = e->captured;
        return result(cudaSuccess);
    }
    if (s->capture)
        return result(cudaErrorStreamCaptureIsolation);
    return enqueue(s, [=] { run_until(before, at); });
}
cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    delete e;
    return result(cudaSuccess);
}
cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode)
{
    s->capture = new CUgraph_st();
    s->capture->origin = s;
    return result(cudaSuccess);
}
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *g)
{
    bool joined = true;
    *g = s->capture;
    for (cudaStream_t other : streams)
        if (*g && other != s && other->capture == *g) {
            joined &= other->joined == other->captured;
            other->capture = NULL;
        }
    s->capture = NULL;
    return result(!*g      ? cudaErrorIllegalState
                  : joined ? cudaSuccess
                           : cudaErrorStreamCaptureUnjoined);
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t g, unsigned long long)
{
    *exec = new CUgraphExec_st{ g->work };
    return result(cudaSuccess);
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return result(cudaSuccess); }
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s)
{
    for (const auto &work : exec->work)
        enqueue(s, work);
    return result(cudaSuccess);
}
cudaError_t cudaGraphDestroy(cudaGraph_t g)
{
    delete g;
    return result(cudaSuccess);
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    delete exec;
    return result(cudaSuccess);
}

/* -- the device ------------------------------------------------------------------------------ */

} /* extern "C" */

/* Compute capability of GPU d of GPT_EMU_GPU, 10 major + minor; 0: there is none. */
static int capability(int d)
{
    static const char *const gpus = getenv("GPT_EMU_GPU");
    const char *at = gpus ? gpus : "9.0";
    int major, minor, length;
    for (; sscanf(at, "%d.%d%n", &major, &minor, &length) == 2; at += length)
        if (d-- == 0)
            return 10 * major + minor;
    return 0;
}

/* Shared memory that a block may have (CUDA C++ Programming Guide, compute capabilities). */
static int shared_of(int capability)
{
    return capability == 80 ? 163 << 10 : capability == 90 ? shared_max() : 99 << 10;
}

extern "C" {

cudaError_t cudaGetDeviceCount(int *n)
{
    for (*n = 0; capability(*n);)
        ++*n;
    return result(*n ? cudaSuccess : cudaErrorNoDevice);
}
cudaError_t cudaGetDevice(int *d) { return *d = 0, result(cudaSuccess); }
cudaError_t cudaSetDevice(int) { return result(cudaSuccess); }
cudaError_t cudaDriverGetVersion(int *v)
{
    const char *driver = getenv("GPT_EMU_DRIVER");
    return *v = driver ? atoi(driver) : CUDART_VERSION, cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int *v) { return *v = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int *v, cudaDeviceAttr what, int d)
{
    static const bool given = getenv("GPT_EMU_GPU"); /* then they do not change by chance */
    switch (what) {
    case cudaDevAttrMultiProcessorCount: /* few: blocks that take more than one tile */
        *v = given ? 8 : random_below(2) ? 132 : 2 + random_below(6);
        break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: /* or what the smallest of GPUs has */
        *v = given ? shared_of(capability(d)) : random_below(2) ? shared_max() : 99 << 10;
        break;
    case cudaDevAttrL2CacheSize: *v = 60 << 20; break;
    case cudaDevAttrComputeCapabilityMajor: *v = capability(d) / 10; break;
    case cudaDevAttrComputeCapabilityMinor: *v = capability(d) % 10; break;
    default: return result(cudaErrorInvalidValue);
    }
    return result(cudaSuccess);
}
cudaError_t cudaFuncSetAttribute(const void *, cudaFuncAttribute what, int bytes)
{
    return result(
        what == cudaFuncAttributePreferredSharedMemoryCarveout ||
                (what == cudaFuncAttributeMaxDynamicSharedMemorySize && bytes <= shared_max())
            ? cudaSuccess
            : cudaErrorInvalidValue);
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int)
{
    memset(p, 0, sizeof *p);
    strcpy(p->name, "emulated GPU");
    return result(cudaSuccess);
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *a, const void *)
{
    memset(a, 0, sizeof *a);
    a->ptxVersion = capability(0);
    return result(cudaSuccess);
}
cudaError_t cudaGetLastError(void)
{
    cudaError_t e = last;
    last = sticky;
    return e;
}
const char *cudaGetErrorString(cudaError_t e)
{
    return e == cudaErrorIllegalAddress         ? "an illegal memory access was encountered"
           : e == cudaErrorMemoryAllocation     ? "out of memory"
           : e == cudaErrorInvalidConfiguration ? "invalid configuration argument"
                                                : "an error";
}
CUresult CUDAAPI encode_tensor_map(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                                   const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                                   const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                                   CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **f, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult *found)
{
    bool known = !strcmp(name, "cuTensorMapEncodeTiled");
    *f = known ? (void *)encode_tensor_map : NULL;
    *found = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return result(cudaSuccess);
}

} /* extern "C" */
