/* gpu_fault.c - a training run in which one rank goes wrong, for gpu_fault.bats.
 *
 *     gpu_fault KIND RANK STEP GPUS RECIPE SHARDS OUT [section.key=value]...
 *
 * As gpt-train --gpus GPUS, but when rank RANK launches its STEP-th step (from 0):
 *     refuse   an op is asked for what it cannot do: the rank fails on the host
 *     fault    a kernel reads where no memory is: the rank fails on its GPU
 *     sleep    the rank's thread does not go on
 *     hang     the rank's GPU does not go on
 * or, whatever STEP is,
 *     capture  an op is refused as above while the rank's first step is captured
 * RANK -1: nothing.
 *
 *     gpu_fault fill GPU MIB
 *
 * Takes all memory of a GPU but MIB, says "full" and stays until it is killed.
 *
 * The backend of the run is wrapped: nothing in the program knows of this.
 */
#include <cuda.h>
#include <cuda_runtime.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../kernels/host/comm_nccl.h"
#include "../kernels/ops_cuda.h"
#include "base/file.h"
#include "train/run.h"

enum { MAX_GPUS = 16 };

static const char *kind;
static int bad_rank, bad_step, first; /* first: rank of this process */
static struct ops *rank_ops[MAX_GPUS]; /* each written and read by its rank's thread */
static int launched[MAX_GPUS];

static int count_ops(struct ops **o, int i, void *group)
{
    return ops_cuda_counting(o, nccl_group_device(group, i));
}

static int new_ops(struct ops **o, int i, void *group)
{
    int rc = nccl_group_ops(o, i, group);
    rank_ops[i] = *o;
    return rc;
}

/* The rank's stream waits for a value that nothing writes. A host function that never returns would
 * block the driver's thread for those of all GPUs as well. */
static void hang(struct ops *o)
{
    CUresult (*wait_value)(CUstream, CUdeviceptr, cuuint32_t, unsigned) = NULL;
    enum cudaDriverEntryPointQueryResult found;
    void *word = NULL;

    if (cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", (void **)&wait_value, 12000,
                                         cudaEnableDefault, &found) ||
        !wait_value || cudaHostAlloc(&word, sizeof(cuuint32_t), cudaHostAllocMapped))
        return;
    *(volatile cuuint32_t *)word = 0;
    wait_value(ops_cuda_stream(o), (CUdeviceptr)(uintptr_t)word, 1, CU_STREAM_WAIT_VALUE_EQ);
}

static void go_wrong(struct ops *o)
{
    static int32_t number;
    if (!strcmp(kind, "refuse") || !strcmp(kind, "capture"))
        o->copy(o, tensor_of(&number, DT_I32, 1, 1), tensor_of(&launched[0], DT_F32, 1, 1));
    else if (!strcmp(kind, "fault"))
        o->finite(o, (int32_t *)4096, tensor_of((void *)4096, DT_F32, 1024, 1024));
    else if (!strcmp(kind, "sleep"))
        sleep(120);
    else if (!strcmp(kind, "hang"))
        hang(o);
}

/* Which of this process's ranks. */
static int rank_of(const struct ops *o)
{
    int i = 0;
    while (rank_ops[i] != o)
        i++;
    return i;
}

static int capture(struct ops *o)
{
    int rc = ops_cuda_capture(o);
    if (!strcmp(kind, "capture") && first + rank_of(o) == bad_rank)
        go_wrong(o);
    return rc;
}

static void launch(struct ops *o, void *graph)
{
    int i = rank_of(o);
    if (first + i == bad_rank && launched[i] == bad_step)
        go_wrong(o);
    launched[i]++;
    ops_cuda_launch(o, graph);
}

static void stuck(void *ctx, int code, const char *message)
{
    (void)ctx;
    fprintf(stderr, "gpu_fault: %s\n", message);
    _exit(code);
}

static int fill(int gpu, size_t mib)
{
    size_t left, total;
    void *p;

    if (cudaSetDevice(gpu) || cudaMemGetInfo(&left, &total) || cudaMalloc(&p, left - (mib << 20)))
        return GPT_DEVICE;
    puts("full");
    fflush(stdout);
    for (;;)
        pause();
}

int main(int argc, char **argv)
{
    struct nccl_group *g;
    struct recipe *r;
    int rc, gpus;

    if (argc == 4 && !strcmp(argv[1], "fill"))
        return fill(atoi(argv[2]), (size_t)atoi(argv[3]));
    if (argc < 8 || (gpus = atoi(argv[4])) < 1 || gpus > MAX_GPUS) {
        fputs("usage: gpu_fault KIND RANK STEP GPUS RECIPE SHARDS OUT [section.key=value]...\n"
              "       gpu_fault fill GPU MIB\n",
              stderr);
        return GPT_USAGE;
    }
    if (ops_cuda_count() < gpus)
        return 77;
    kind = argv[1];
    bad_rank = atoi(argv[2]);
    bad_step = atoi(argv[3]);
    struct backend b = { .name = "cuda",
                         .queues = true,
                         .ops_new = new_ops,
                         .ops_counting = count_ops,
                         .comm_new = comm_nccl_new,
                         .abort = nccl_group_abort,
                         .phase = comm_nccl_phase,
                         .capture = capture,
                         .capture_end = ops_cuda_capture_end,
                         .launch = launch,
                         .graph_free = ops_cuda_graph_free };
    struct run_options o = {
        .data = argv[6], .out = argv[7], .ranks = gpus, .backend = &b, .progress = PROGRESS_OFF
    };
    if (!(rc = recipe_read(&r, argv[5], (const char *const *)argv + 8, argc - 8)) &&
        !(rc = file_mkdirs(argv[7])) && !(rc = nccl_group_new(&g, gpus, 6))) {
        nccl_group_stuck(g, stuck, NULL);
        b.group = g;
        b.world = nccl_group_world(g);
        b.first = first = nccl_group_first(g);
        o.recipe = r;
        o.log = first ? NULL : stdout;
        struct run_memory m;
        if (!(rc = run_memory(&m, r, &b))) {
            o.ops_bytes = m.ops;
            rc = run_train(&o);
        }
        nccl_group_free(g);
        recipe_free(r);
    }
    if (rc)
        fprintf(stderr, "gpu_fault: %s\n", err_message());
    return rc;
}
