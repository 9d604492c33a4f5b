/* backend_cuda.cu - see backend_cuda.h. */
#include <cstdio>
#include <cstdlib>
#include "host/backend_cuda.h"
#include "host/comm_nccl.h"
#include "host/profile.h"
#include "ops_cuda.h"
extern "C" {
#include "base/pool.h"
}

/* group: of NCCL; NULL: one GPU alone. */
static int gpu_of(void *group, int i)
{
    return group ? nccl_group_device((struct nccl_group *)group, i) : i;
}

static int gpu_ops(struct ops **o, int i, void *group)
{
    return group ? nccl_group_ops(o, i, group) : ops_cuda_new(o, i);
}

static int gpu_counting(struct ops **o, int i, void *group)
{
    return ops_cuda_counting(o, gpu_of(group, i));
}

static int gpu_available(double *bytes, int i, void *group)
{
    return ops_cuda_available(bytes, gpu_of(group, i));
}

static int gpu_comm(struct comm **c, struct ops *o, int rank, int world, void *group)
{
    return group ? comm_nccl_new(c, o, rank, world, group) : comm_threads_new(c, 1);
}

static void gpu_release(struct backend *b)
{
    if (b->group)
        nccl_group_free((struct nccl_group *)b->group);
    b->group = NULL;
}

/* stuck, as the group calls it: ctx is where the function stands. */
static void call_stuck(void *ctx, int code, const char *message)
{
    (*(void (**)(int, const char *))ctx)(code, message);
}

/* GPUs of this process that compute in different ways would train different models. */
static int refuse_unlike(const struct backend *b, int ranks, const struct gpu_facts *first)
{
    struct gpu_facts next;

    for (int i = 1; i < ranks; i++) {
        ops_cuda_facts(gpu_of(b->group, i), &next);
        if (next.major != first->major || next.minor != first->minor)
            return err_set(GPT_DEVICE,
                           "GPUs %d and %d differ: compute capability %d.%d and %d.%d; "
                           "CUDA_VISIBLE_DEVICES can choose equal ones",
                           gpu_of(b->group, 0), gpu_of(b->group, i), first->major, first->minor,
                           next.major, next.minor);
    }
    return 0;
}

/* Makes the CUDA context of the i-th GPU, which takes a good part of a second, or, behind the last GPU of a
 * group, starts NCCL. */
static int open_gpu(void *group, int i)
{
    struct nccl_group *g = (struct nccl_group *)group;
    bool portable;
    return g && i == nccl_group_gpus(g) ? nccl_group_begin(g)
                                        : ops_cuda_portable(gpu_of(group, i), &portable);
}

/* Describes this process's GPUs; refuses those that do not do. */
static int describe(struct backend *b, const struct backend_wants *w)
{
    struct gpu_facts f;
    char name[256];
    bool portable;
    int device = gpu_of(b->group, 0), n = w->ranks + (b->group != NULL);
    int rc = parallel_for(n, n, open_gpu, b->group);

    if (rc || (rc = ops_cuda_portable(device, &portable)))
        return rc;
    ops_cuda_facts(device, &f);
    ops_cuda_name(device, name, sizeof name);
    if ((rc = refuse_unlike(b, w->ranks, &f)))
        return rc;
    bool lacks = !gpu_has_fp8(&f);
    if (lacks && w->fp8_required)
        return err_set(GPT_DEVICE,
                       "%s = require: GPU %d has compute capability %d.%d, fp8 needs 8.9 or newer",
                       w->fp8_required, device, f.major, f.minor);
    snprintf(b->about, sizeof b->about, "%s, compute capability %d.%d, %s path%s%s%s", name,
             f.major, f.minor, portable ? "portable" : "native", lacks && w->fp8 ? ", " : "",
             lacks && w->fp8 ? w->fp8 : "", lacks && w->fp8 ? " in bf16: no fp8 below 8.9" : "");
    const struct gpu_software *has = ops_cuda_software();
    b->software.cuda = has->runtime;
    b->software.nccl = b->group ? has->nccl : NULL;
    b->software.driver = has->driver;
    return 0;
}

/* Connects the ranks of all processes. */
static int join(struct backend *b, const struct backend_wants *w)
{
    static void (*stuck)(int code, const char *message);
    struct nccl_group *g;
    int rc = nccl_group_new(&g, w->ranks, w->timeout_s);

    if (rc)
        return rc;
    stuck = w->stuck;
    if (stuck)
        nccl_group_stuck(g, call_stuck, &stuck);
    b->world = nccl_group_world(g);
    b->first = nccl_group_first(g);
    b->abort = nccl_group_abort;
    b->phase = comm_nccl_phase;
    b->group = g;
    return 0;
}

/* Shows the driver as many GPUs as the run has ranks: it starts each that it sees. What the user
 * shows stays. */
static void show_gpus(int ranks)
{
    char list[1024] = "";
    int at = 0;
    for (int i = 0; i < ranks && at < (int)sizeof list - 8; i++)
        at += snprintf(list + at, sizeof list - (size_t)at, "%s%d", i ? "," : "", i);
    setenv("CUDA_VISIBLE_DEVICES", list, 0);
}

int backend_cuda(struct backend *b, const struct backend_wants *w)
{
    int n, rc = 0;

    *b = {};
    if (w->cpu_alone)
        return err_set(GPT_DEVICE, "%s; --device cpu takes others", w->cpu_alone);
    b->name = "cuda";
    b->world = w->world;
    b->ops_counting = gpu_counting;
    ops_cuda_choose_path(w->gpu_path);
    if (w->counting)
        return 0;
    /* The driver reads this variable at its first call. */
    if (w->eager)
        setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    if (w->world == w->ranks)
        show_gpus(w->ranks);
    n = ops_cuda_count();
    if (w->ranks > n && n > 0)
        return err_set(GPT_DEVICE, "%d ranks need as many GPUs; %d visible", w->ranks, n);
    b->queues = true;
    b->ops_new = gpu_ops;
    b->available = gpu_available;
    b->comm_new = gpu_comm;
    b->capture = ops_cuda_capture;
    b->capture_end = ops_cuda_capture_end;
    b->launch = ops_cuda_launch;
    b->graph_free = ops_cuda_graph_free;
    b->profile = profile_begin;
    b->profile_end = profile_end;
    b->mark = ops_cuda_mark;
    b->release = gpu_release;
    if (w->world > 1)
        rc = join(b, w);
    if (!rc && (rc = describe(b, w)))
        gpu_release(b);
    return rc;
}
