/* device.cu - the GPU under struct ops: choice of device, memory, order, failure. */
#include "host/device.h"

#include <cublasLt.h>
#include <stdarg.h>
#include <stdlib.h>
#include "gpu.h"
#include "ops_cuda.h"
#include "vec.h"

static int instances; /* of struct cuda_ops in this process, through __atomic */

enum { NAN_BYTE = 0xff }; /* all ones is a NaN in f32 and bf16 */

/* -- failure -------------------------------------------------------------------- */

void cuda_fail(struct cuda_ops *c, int code, const char *fmt, ...)
{
    va_list ap;
    int n;

    if (c->failed)
        return;
    c->failed = true;
    c->code = code;
    n = snprintf(c->message, sizeof c->message, "GPU %d: ", c->device);
    va_start(ap, fmt);
    vsnprintf(c->message + n, sizeof c->message - n, fmt, ap);
    va_end(ap);
}

/* Sticky CUDA errors: every later call of the process returns them, whichever GPU it is for. */
static bool is_fault(cudaError_t e)
{
    return e == cudaErrorIllegalAddress || e == cudaErrorLaunchFailure || e == cudaErrorAssert ||
           e == cudaErrorHardwareStackError || e == cudaErrorIllegalInstruction ||
           e == cudaErrorMisalignedAddress || e == cudaErrorInvalidAddressSpace ||
           e == cudaErrorInvalidPc;
}

bool cuda_ok(struct cuda_ops *c, cudaError_t e, const char *expr, const char *file, int line)
{
    if (e == cudaSuccess)
        return true;
    bool which = is_fault(e) && __atomic_load_n(&instances, __ATOMIC_RELAXED) > 1;
    cuda_fail(c, GPT_DEVICE, "%s:%d: %s: %s%s", file, line, expr, cudaGetErrorString(e),
              which ? " (on this GPU or another one of this process)" : "");
    return false;
}

static int status(struct ops *o)
{
    struct cuda_ops *c = cuda_of(o);
    return c->failed ? err_set(c->code, "%s", c->message) : GPT_OK;
}

static int sync(struct ops *o)
{
    struct cuda_ops *c = cuda_of(o);

    if (!c->failed && c->capturing)
        cuda_fail(c, GPT_DEVICE, "cannot wait while a graph is captured");
    cuda_launch_waiting(c);
    if (!c->failed)
        CUDA_TRY(c, cudaStreamSynchronize(c->stream));
    return status(o);
}

/* -- memory ---------------------------------------------------------------------- */

static void give(struct cuda_ops *c, struct memory_block b)
{
    if (b.shared)
        c->give_shared(b.p);
    else
        cudaFree(b.p);
}

static void *take(struct cuda_ops *c, size_t bytes, const char *what, bool for_others)
{
    size_t left = 0, total = 0;
    void *p = NULL;
    cudaError_t e;

    if (c->failed)
        return NULL;
    if (c->counting) { /* an address of no memory */
        c->allocated += bytes;
        return (void *)(cuda_round(c->allocated) + 256);
    }
    bool shared = for_others && c->take_shared && bytes >= SHARED_LEAST;
    e = shared ? c->take_shared(&p, bytes) : cudaMalloc(&p, bytes ? bytes : 1);
    if (e == cudaErrorMemoryAllocation) {
        cudaMemGetInfo(&left, &total);
        cuda_fail(c, GPT_DEVICE,
                  "too little memory: %zu MiB for %s after %zu MiB, with %zu of "
                  "%zu MiB free",
                  bytes >> 20, what, c->allocated >> 20, left >> 20, total >> 20);
        return NULL;
    }
    if (!CUDA_TRY(c, e))
        return NULL;
    if (grow_one(&c->blocks, (size_t)c->n_blocks, sizeof *c->blocks)) {
        give(c, { p, shared });
        cuda_fail(c, GPT_SYSTEM, "cannot allocate memory for the list of blocks");
        return NULL;
    }
    c->blocks[c->n_blocks++] = { p, shared };
    c->allocated += bytes;
    return p;
}

void *cuda_take(struct cuda_ops *c, size_t bytes, const char *what)
{
    return take(c, bytes, what, false);
}

static void *alloc_any(struct ops *o, size_t bytes, const char *what, bool shared)
{
    struct cuda_ops *c = cuda_of(o);
    void *p;

    if (c->capturing)
        cuda_fail(c, GPT_DEVICE, "memory for %s asked for while a graph is captured", what);
    p = take(c, bytes, what, shared);
    if (p && bytes && !c->counting)
        CUDA_TRY(c, cudaMemsetAsync(p, NAN_BYTE, bytes, c->stream));
    return p;
}

static void *alloc(struct ops *o, size_t bytes, const char *what)
{
    return alloc_any(o, bytes, what, false);
}

static void *alloc_shared(struct ops *o, size_t bytes, const char *what)
{
    return alloc_any(o, bytes, what, true);
}

static size_t allocated(const struct ops *o) { return ((const struct cuda_ops *)o)->allocated; }

/* cudaMalloc is allowed in a relaxed capture, so the first run of an op may be a captured one. */
void *cuda_workspace(struct cuda_ops *c, size_t bytes)
{
    void *p;

    if (c->failed)
        return NULL;
    bytes = c->in_use + cuda_round(bytes);
    c->most_used = bytes > c->most_used ? bytes : c->most_used;
    if (c->counting) { /* what ops_cuda_new's device has reserved by then */
        c->allocated += bytes > c->workspace_bytes ? bytes - c->workspace_bytes : 0;
        c->workspace_bytes = bytes > c->workspace_bytes ? bytes : c->workspace_bytes;
        return NULL;
    }
    if (bytes > c->workspace_bytes) {
        p = cuda_take(c, bytes, "workspace");
        if (!p)
            return NULL;
        c->workspace = p;
        c->workspace_bytes = bytes;
    }
    return (char *)c->workspace + c->in_use;
}

/* A workspace that grows leaves the smaller one behind: so the largest is the first. */
static void reserve(struct ops *o, size_t bytes)
{
    struct cuda_ops *c = cuda_of(o);

    if (bytes > c->own)
        cuda_workspace(c, bytes - c->own);
    if (!c->failed)
        gemm_begin(c);
}

static void staging_free(struct staging *s)
{
    for (int i = 0; i < 2; i++)
        if (s->done[i])
            cudaEventDestroy(s->done[i]);
    cudaFreeHost(s->memory);
}

static void free_all(struct ops *o)
{
    struct cuda_ops *c = cuda_of(o);

    if (!c)
        return;
    cudaStreamSynchronize(c->trunk);
    gemm_cache_free(c->gemm);
    cuda_free_host_calls(c);
    for (int i = 0; i < c->n_blocks; i++)
        give(c, c->blocks[i]);
    staging_free(&c->staging);
    staging_free(&c->ahead);
    if (c->ahead_done)
        cudaEventDestroy(c->ahead_done);
    if (c->ahead.stream)
        cudaStreamDestroy(c->ahead.stream);
    for (int i = 0; i < FETCH_MAX; i++)
        if (c->fetch_done[i])
            cudaEventDestroy(c->fetch_done[i]);
    cudaFreeHost(c->fetch_host);
    for (int i = 0; i < BRANCHES; i++) {
        if (c->branch_done[i])
            cudaEventDestroy(c->branch_done[i]);
        if (c->branch[i])
            cudaStreamDestroy(c->branch[i]);
    }
    if (c->forked)
        cudaEventDestroy(c->forked);
    if (c->trunk)
        cudaStreamDestroy(c->trunk);
    free(c->blocks);
    free(c);
    __atomic_sub_fetch(&instances, 1, __ATOMIC_RELAXED);
}

/* -- branches -------------------------------------------------------------------- */

/* Branches keep their parts of the workspace until they are joined. The portable path has none: its
 * products share cuBLASLt's workspace. */
static void branch(struct ops *o, int i)
{
    struct cuda_ops *c = cuda_of(o);

    cuda_launch_waiting(c);
    c->stream = c->trunk;
    if (c->portable)
        return;
    c->in_use = c->most_used = c->branches ? c->most_used : 0;
    if (i == TRUNK)
        return;
    c->branches |= 1u << i;
    if (!c->failed && !c->counting && CUDA_TRY(c, cudaEventRecord(c->forked, c->trunk)) &&
        CUDA_TRY(c, cudaStreamWaitEvent(c->branch[i], c->forked, 0)))
        c->stream = c->branch[i];
}

static void join(struct ops *o)
{
    struct cuda_ops *c = cuda_of(o);

    cuda_launch_waiting(c);
    for (int i = 0; i < BRANCHES; i++)
        if (!c->failed && !c->counting && c->branches >> i & 1 &&
            CUDA_TRY(c, cudaEventRecord(c->branch_done[i], c->branch[i])))
            CUDA_TRY(c, cudaStreamWaitEvent(c->trunk, c->branch_done[i], 0));
    c->stream = c->trunk;
    c->branches = 0;
    c->in_use = c->most_used = 0;
}

/* -- moving ---------------------------------------------------------------------- */

/* Through a pinned ring, so that the caller's memory is free at once. */
static void send(struct cuda_ops *c, struct staging *s, void *dst, const void *host, size_t bytes)
{
    cuda_launch_waiting(c);
    if (c->capturing)
        cuda_fail(c, GPT_DEVICE, "upload while a graph is captured: replays would not see it");
    for (size_t done = 0; !c->failed && done < bytes;) {
        int half = (int)(s->at / STAGING_HALF);
        size_t room = STAGING_HALF - s->at % STAGING_HALF;
        size_t n = bytes - done < room ? bytes - done : room;

        if (room == STAGING_HALF && !CUDA_TRY(c, cudaEventSynchronize(s->done[half])))
            return;
        memcpy(s->memory + s->at, (const char *)host + done, n);
        CUDA_TRY(c, cudaMemcpyAsync((char *)dst + done, s->memory + s->at, n,
                                    cudaMemcpyHostToDevice, s->stream));
        done += n;
        s->at += cuda_round(n) < room ? cuda_round(n) : room;
        if (s->at % STAGING_HALF == 0)
            CUDA_TRY(c, cudaEventRecord(s->done[half], s->stream));
        s->at %= 2 * STAGING_HALF;
    }
}

static void upload(struct ops *o, void *dst, const void *host, size_t bytes)
{
    send(cuda_of(o), &cuda_of(o)->staging, dst, host, bytes);
}

/* Uploads on a second stream, concurrent with the queued work; work queued later waits for it. */
static void upload_ahead(struct ops *o, void *dst, const void *host, size_t bytes)
{
    struct cuda_ops *c = cuda_of(o);

    send(c, &c->ahead, dst, host, bytes);
    if (!c->failed && CUDA_TRY(c, cudaEventRecord(c->ahead_done, c->ahead.stream)))
        CUDA_TRY(c, cudaStreamWaitEvent(c->stream, c->ahead_done, 0));
}

static void download(struct ops *o, void *host, const void *src, size_t bytes)
{
    struct cuda_ops *c = cuda_of(o);

    if (c->capturing)
        cuda_fail(c, GPT_DEVICE, "download while a graph is captured");
    cuda_launch_waiting(c);
    if (c->failed || !bytes)
        return;
    if (CUDA_TRY(c, cudaMemcpyAsync(host, src, bytes, cudaMemcpyDeviceToHost, c->stream)))
        CUDA_TRY(c, cudaStreamSynchronize(c->stream));
}

static void fetch(struct ops *o, const void *src, size_t bytes)
{
    struct cuda_ops *c = cuda_of(o);
    unsigned slot = c->fetch_in++ % FETCH_MAX;

    assert(bytes <= FETCH_BYTES && c->fetch_in - c->fetch_out <= FETCH_MAX);
    cuda_launch_waiting(c);
    if (!c->failed && CUDA_TRY(c, cudaMemcpyAsync(c->fetch_host + slot * FETCH_BYTES, src, bytes,
                                                  cudaMemcpyDeviceToHost, c->stream)))
        CUDA_TRY(c, cudaEventRecord(c->fetch_done[slot], c->stream));
}

static void fetched(struct ops *o, void *host, size_t bytes)
{
    struct cuda_ops *c = cuda_of(o);
    unsigned slot = c->fetch_out % FETCH_MAX;

    assert(bytes <= FETCH_BYTES && c->fetch_out < c->fetch_in);
    c->fetch_out++;
    memset(host, NAN_BYTE, bytes);
    if (!c->failed && CUDA_TRY(c, cudaEventSynchronize(c->fetch_done[slot])))
        memcpy(host, c->fetch_host + slot * FETCH_BYTES, bytes);
}

static void zero(struct ops *o, struct tensor t)
{
    struct cuda_ops *c = cuda_of(o);

    cuda_launch_waiting(c);
    if (!c->failed && tensor_count(t))
        CUDA_TRY(c, cudaMemsetAsync(t.data, 0, tensor_bytes(t), c->stream));
}

__global__ static void convert(void *dst, bool dst_f32, const void *src, bool src_f32, int64_t n)
{
    int64_t stride = (int64_t)gridDim.x * blockDim.x;

    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
        float x = src_f32 ? ((const float *)src)[i] : __bfloat162float(((const bf16 *)src)[i]);
        if (dst_f32)
            ((float *)dst)[i] = x;
        else
            ((bf16 *)dst)[i] = __float2bfloat16(x);
    }
}

static bool is_float(struct tensor t) { return t.dtype == DT_F32 || t.dtype == DT_BF16; }

static void copy(struct ops *o, struct tensor dst, struct tensor src)
{
    struct cuda_ops *c = cuda_of(o);
    int64_t n = tensor_count(src);

    assert(tensor_count(dst) == n);
    cuda_launch_waiting(c);
    if (c->failed || !n || dst.data == src.data)
        return;
    if (dst.dtype == src.dtype) {
        CUDA_TRY(c, cudaMemcpyAsync(dst.data, src.data, tensor_bytes(src), cudaMemcpyDeviceToDevice,
                                    c->stream));
        return;
    }
    if (!CUDA_NEED(c, is_float(dst) && is_float(src), "copies convert f32 and bf16 only"))
        return;
    convert<<<8 * c->sms, 256, 0, c->stream>>>(dst.data, dst.dtype == DT_F32, src.data,
                                               src.dtype == DT_F32, n);
    CUDA_LAUNCHED(c);
}

/* -- small sums -------------------------------------------------------------------- */

/* One block a column: the rows are cut into 256 runs, a run is a thread's, and the runs are
 * added in one order. */
__global__ static void __launch_bounds__(256)
    add_partials(void *dst, bool is_f32, const float *partial, int rows, int n)
{
    __shared__ float warps[32];
    int column = blockIdx.x;
    float sum = 0;

    for (int r = threadIdx.x; r < rows; r += 256)
        sum += partial[(int64_t)r * n + column];
    sum = block_sum(sum, warps);
    if (threadIdx.x)
        return;
    if (is_f32)
        ((float *)dst)[column] += sum;
    else
        ((bf16 *)dst)[column] = __float2bfloat16(__bfloat162float(((bf16 *)dst)[column]) + sum);
}

void cuda_add_partials(struct cuda_ops *c, void *dst, enum dtype dtype, const float *partial,
                       int rows, int n)
{
    assert(dtype == DT_F32 || dtype == DT_BF16);
    if (c->failed || !n)
        return;
    add_partials<<<n, 256, 0, c->stream>>>(dst, dtype == DT_F32, partial, rows, n);
    CUDA_LAUNCHED(c);
}

/* -- start ------------------------------------------------------------------------- */

int ops_cuda_count(void)
{
    int n = 0;

    if (cudaGetDeviceCount(&n) != cudaSuccess) {
        cudaGetLastError();
        return 0;
    }
    return n;
}

/* A version is 1000 major + 10 minor. */
int ops_cuda_fits(const struct gpu_facts *f, int device)
{
    if (!f->driver)
        return err_set(GPT_DEVICE, "no GPU: no NVIDIA driver is installed");
    if (f->driver / 1000 < f->runtime / 1000)
        return err_set(GPT_DEVICE,
                       "the GPU driver is too old: it supports CUDA %d.%d, this "
                       "program needs %d.0",
                       f->driver / 1000, f->driver % 1000 / 10, f->runtime / 1000);
    if (f->error)
        return err_set(GPT_DEVICE, "no GPU: %s", f->error);
    if (!f->visible)
        return err_set(GPT_DEVICE, "no GPU is visible");
    if (device < 0 || device >= f->visible)
        return err_set(GPT_DEVICE, "GPU %d asked for, %d visible", device, f->visible);
    if (f->major < 8)
        return err_set(GPT_DEVICE,
                       "GPU %d has compute capability %d.%d, this program needs 8.0 or newer "
                       "(Ampere: A100, RTX 30)",
                       device, f->major, f->minor);
    if (!f->code)
        return err_set(GPT_DEVICE,
                       "this program holds no code for GPU %d of compute capability %d.%d: "
                       "build it with ARCH_GPU=%d%d",
                       device, f->major, f->minor, f->major, f->minor);
    return GPT_OK;
}

/* Code for compute_90a is what Hopper's own kernels are in; code of another version for the same
 * GPU (from PTX) holds them empty. */
int ops_cuda_path(const struct gpu_facts *f, int device, const char *wanted, bool *portable)
{
    bool native = f->major == 9 && f->minor == 0 && f->code == 90;

    if (wanted && strcmp(wanted, "native") && strcmp(wanted, "portable"))
        return err_set(GPT_USAGE, "GPU path '%s': it is native or portable", wanted);
    *portable = wanted ? !strcmp(wanted, "portable") : !native;
    if (native || *portable)
        return GPT_OK;
    if (f->major == 9 && f->minor == 0)
        return err_set(GPT_DEVICE,
                       "no native path on GPU %d: this program was built without sm_90a", device);
    return err_set(GPT_DEVICE,
                   "no native path on GPU %d: it has compute capability %d.%d, the native path is "
                   "Hopper's (9.0)",
                   device, f->major, f->minor);
}

static const char *chosen_path;

void ops_cuda_choose_path(const char *path) { chosen_path = path; }

/* The capability that the code which this GPU runs was compiled for; 0: there is none. */
static int code_for(int device)
{
    cudaFuncAttributes a;

    if (cudaSetDevice(device) == cudaSuccess && cudaFuncGetAttributes(&a, convert) == cudaSuccess)
        return a.ptxVersion;
    cudaGetLastError();
    return 0;
}

void ops_cuda_facts(int device, struct gpu_facts *facts)
{
    struct gpu_facts f = {};

    if (cudaDriverGetVersion(&f.driver) != cudaSuccess)
        f.driver = 0;
    cudaRuntimeGetVersion(&f.runtime);
    cudaError_t e = cudaGetDeviceCount(&f.visible);
    if (e != cudaSuccess) {
        cudaGetLastError();
        f.visible = 0;
        f.error = e == cudaErrorNoDevice ? NULL : cudaGetErrorString(e);
    }
    if (device >= 0 && device < f.visible) {
        cudaDeviceGetAttribute(&f.major, cudaDevAttrComputeCapabilityMajor, device);
        cudaDeviceGetAttribute(&f.minor, cudaDevAttrComputeCapabilityMinor, device);
    }
    *facts = f;
}

void ops_cuda_name(int device, char *text, size_t size)
{
    cudaDeviceProp prop;
    bool known = cudaGetDeviceProperties(&prop, device) == cudaSuccess;
    snprintf(text, size, "%s", known ? prop.name : "GPU");
}

static bool staging_take(struct cuda_ops *c, struct staging *s)
{
    return CUDA_TRY(c, cudaMallocHost((void **)&s->memory, 2 * STAGING_HALF)) &&
           CUDA_TRY(c, cudaEventCreateWithFlags(&s->done[0], cudaEventDisableTiming)) &&
           CUDA_TRY(c, cudaEventCreateWithFlags(&s->done[1], cudaEventDisableTiming));
}

/* Allocates what the device takes for itself, whatever it runs. */
static bool take_own(struct cuda_ops *c)
{
    static const float constants[] = { 1, 0, FP8_POST_UNIT, 0, 0 }; /* 0: also the ticket's bits */
    float *device_constants = (float *)cuda_take(c, sizeof constants, "constants");

    if (!device_constants)
        return false;
    c->ops.upload(&c->ops, device_constants, constants, sizeof constants);
    c->one = device_constants;
    c->zero = device_constants + 1;
    c->post_unit = device_constants + 2;
    c->ticket = (unsigned *)(device_constants + 3);
    c->codes_factor = device_constants + 4;
    bool ok = gemm_cache_new(c);
    c->own = c->allocated;
    return ok;
}

static bool start(struct cuda_ops *c)
{
    cudaGetLastError(); /* what failed in this thread before would turn up at a launch */
    if (!CUDA_TRY(c, cudaSetDevice(c->device)) ||
        !CUDA_TRY(c, cudaDeviceGetAttribute(&c->sms, cudaDevAttrMultiProcessorCount, c->device)) ||
        !CUDA_TRY(c, cudaDeviceGetAttribute(&c->shared_max, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                                            c->device)) ||
        !CUDA_TRY(c, cudaStreamCreateWithFlags(&c->trunk, cudaStreamNonBlocking)) ||
        !CUDA_TRY(c, cudaStreamCreateWithFlags(&c->ahead.stream, cudaStreamNonBlocking)) ||
        !CUDA_TRY(c, cudaEventCreateWithFlags(&c->ahead_done, cudaEventDisableTiming)) ||
        !CUDA_TRY(c, cudaMallocHost((void **)&c->fetch_host, FETCH_MAX * FETCH_BYTES)))
        return false;
    for (int i = 0; i < FETCH_MAX; i++)
        if (!CUDA_TRY(c, cudaEventCreateWithFlags(&c->fetch_done[i], cudaEventDisableTiming)))
            return false;
    for (int i = 0; i < BRANCHES; i++)
        if (!CUDA_TRY(c, cudaStreamCreateWithFlags(&c->branch[i], cudaStreamNonBlocking)) ||
            !CUDA_TRY(c, cudaEventCreateWithFlags(&c->branch_done[i], cudaEventDisableTiming)))
            return false;
    if (!CUDA_TRY(c, cudaEventCreateWithFlags(&c->forked, cudaEventDisableTiming)))
        return false;
    c->stream = c->staging.stream = c->trunk;
    return staging_take(c, &c->staging) && staging_take(c, &c->ahead) && take_own(c);
}

static int facts_and_path(int device, struct gpu_facts *f, bool *portable)
{
    ops_cuda_facts(device, f);
    if (device >= 0 && device < f->visible && f->major >= 8)
        f->code = code_for(device);
    int rc = ops_cuda_fits(f, device);
    return rc ? rc
              : ops_cuda_path(f, device, chosen_path ? chosen_path : getenv("GPT_GPU_PATH"),
                              portable);
}

int ops_cuda_portable(int device, bool *portable)
{
    struct gpu_facts facts;

    return facts_and_path(device, &facts, portable);
}

static void choose_path(struct cuda_ops *c, bool portable)
{
    static const struct path native = { &attention_native, &product_native, &relu2_native,
                                        &head_native, &bias_native };
    static const struct path any_gpu = { &attention_portable, &product_portable, &relu2_portable,
                                         &head_portable, &bias_portable };

    c->portable = portable;
    c->path = portable ? &any_gpu : &native;
}

int ops_cuda_new(struct ops **o, int device)
{
    struct gpu_facts facts;
    struct cuda_ops *c;
    bool portable;
    int rc = facts_and_path(device, &facts, &portable);

    *o = NULL;
    if (rc)
        return rc;
    c = (struct cuda_ops *)calloc(1, sizeof *c);
    if (!c)
        return err_set(GPT_SYSTEM, "cannot allocate %zu bytes for GPU %d", sizeof *c, device);
    __atomic_add_fetch(&instances, 1, __ATOMIC_RELAXED);
    c->ops.device = "cuda";
    c->ops.act = DT_BF16;
    c->ops.free = free_all;
    c->ops.status = status;
    c->ops.sync = sync;
    c->ops.alloc = alloc;
    c->ops.alloc_shared = alloc_shared;
    c->ops.allocated = allocated;
    c->ops.reserve = reserve;
    c->ops.branch = branch;
    c->ops.join = join;
    c->ops.upload = upload;
    c->ops.upload_ahead = upload_ahead;
    c->ops.download = download;
    c->ops.fetch = fetch;
    c->ops.fetched = fetched;
    c->ops.zero = zero;
    c->ops.copy = copy;
#define OP(name, ...) c->ops.name = gpu_##name
#include "ops/op_list.h"
    c->device = device;
    choose_path(c, portable);
    c->fp8 = gpu_has_fp8(&facts);
    c->capability = 10 * facts.major + facts.minor;
    if (!start(c)) {
        rc = status(&c->ops);
        free_all(&c->ops);
        return rc;
    }
    *o = &c->ops;
    return GPT_OK;
}

/* -- a device that counts ------------------------------------------------------------ */

template <typename... A> static void idle(struct ops *, A...) {}
static void counting_free(struct ops *o) { free(o); }

/* Ops that take a workspace get none and return; the others would only launch. */
static void count_ops(struct cuda_ops *c)
{
    struct ops *o = &c->ops;
#define OP(name, ...) o->name = idle
#define OPW(name, ...) o->name = gpu_##name
#include "ops/op_list.h"
    if (!c->fp8) /* it is linear_relu2 */
        o->linear_relu2_fp8 = idle;
}

/* Sets what launch sizes depend on, of a GPU that need not be there. */
static void count_like(struct cuda_ops *c, const struct gpu_facts *facts)
{
    bool seen = facts->visible > c->device, portable = false;
    c->sms = 132, c->shared_max = 227 << 10, c->capability = 90, c->fp8 = true;
    if (seen) {
        cudaDeviceGetAttribute(&c->sms, cudaDevAttrMultiProcessorCount, c->device);
        cudaDeviceGetAttribute(&c->shared_max, cudaDevAttrMaxSharedMemoryPerBlockOptin, c->device);
        c->capability = 10 * facts->major + facts->minor;
        c->fp8 = gpu_has_fp8(facts);
    }
    if (!seen || ops_cuda_portable(c->device, &portable))
        portable = chosen_path && !strcmp(chosen_path, "portable");
    choose_path(c, portable);
}

int ops_cuda_counting(struct ops **o, int device)
{
    struct cuda_ops *c = (struct cuda_ops *)calloc(1, sizeof *c);
    struct gpu_facts facts;

    if (!c)
        return err_memory();
    c->device = device;
    c->counting = true;
    ops_cuda_facts(device, &facts);
    count_like(c, &facts);
    count_ops(c);
    c->ops.device = "cuda";
    c->ops.act = DT_BF16;
    c->ops.free = counting_free;
    c->ops.status = c->ops.sync = status;
    c->ops.alloc = alloc;
    c->ops.alloc_shared = alloc_shared;
    c->ops.allocated = allocated;
    c->ops.reserve = idle;
    c->ops.branch = branch;
    c->ops.join = join;
    c->ops.upload = c->ops.upload_ahead = idle;
    c->ops.download = idle;
    c->ops.fetch = idle;
    c->ops.fetched = idle;
    c->ops.zero = idle;
    c->ops.copy = idle;
    take_own(c);
    *o = &c->ops;
    return GPT_OK;
}

int ops_cuda_available(double *bytes, int device)
{
    static const double CUDA_TAKES = 512 << 20;
    struct gpu_facts facts;
    size_t left, total;
    bool portable;
    int rc = facts_and_path(device, &facts, &portable);

    if (rc)
        return rc;
    cudaError_t e = cudaSetDevice(device);
    if (e == cudaSuccess)
        e = cudaMemGetInfo(&left, &total);
    if (e != cudaSuccess)
        return err_set(GPT_DEVICE, "GPU %d: free memory: %s", device, cudaGetErrorString(e));
    *bytes = fmax(0, (double)left - CUDA_TAKES);
    return GPT_OK;
}

/* Only in programs that link NCCL. */
extern "C" __attribute__((weak)) int ncclGetVersion(int *version);

/* The first number with a point in the line that the kernel's module has there. */
static bool module_version(char *out, size_t size)
{
    char line[256] = "";
    FILE *f = fopen("/proc/driver/nvidia/version", "r");
    if (f && !fgets(line, sizeof line, f))
        line[0] = 0;
    if (f)
        fclose(f);
    for (char *save, *w = strtok_r(line, " \t\n", &save); w; w = strtok_r(NULL, " \t\n", &save))
        if (*w >= '0' && *w <= '9' && strchr(w, '.')) {
            snprintf(out, size, "%s", w);
            return true;
        }
    return false;
}

static void cuda_number(char *out, size_t size, int version)
{
    snprintf(out, size, "%d.%d", version / 1000, version % 1000 / 10);
}

const struct gpu_software *ops_cuda_software(void)
{
    static gpu_software s;
    int driver = 0, runtime = 0, nccl = 0;
    size_t lt = cublasLtGetVersion();
    char cuda[32];

    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    cuda_number(s.runtime, sizeof s.runtime, runtime);
    cuda_number(cuda, sizeof cuda, driver);
    if (!driver)
        snprintf(s.driver, sizeof s.driver, "none");
    else if (!module_version(s.driver, sizeof s.driver))
        snprintf(s.driver, sizeof s.driver, "CUDA %s", cuda);
    if (!lt)
        snprintf(s.cublaslt, sizeof s.cublaslt, "none");
    else
        snprintf(s.cublaslt, sizeof s.cublaslt, "%zu.%zu.%zu", lt / 10000, lt % 10000 / 100,
                 lt % 100);
    snprintf(s.nccl, sizeof s.nccl, "none");
    if (ncclGetVersion && ncclGetVersion(&nccl) == 0)
        snprintf(s.nccl, sizeof s.nccl, "%d.%d.%d", nccl / 10000, nccl % 10000 / 100, nccl % 100);
    return &s;
}

const char *ops_cuda_version(void)
{
    static char text[256];
    const gpu_software *s = ops_cuda_software();

    snprintf(text, sizeof text, "CUDA runtime: %s\nGPU driver: %s\ncuBLASLt: %s\nNCCL: %s\n",
             s->runtime, s->driver, s->cublaslt, s->nccl);
    return text;
}

void *ops_cuda_stream(struct ops *o) { return cuda_of(o)->stream; }
