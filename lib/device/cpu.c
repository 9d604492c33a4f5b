/* cpu.c - the CPU as a backend: ranks are threads in one process. */
#include <stdio.h>
#include <stdlib.h>
#include "base/memory.h"
#include "base/pool.h"
#include "device/backend.h"
#include "ops/gemm.h"

/* The ranks share this. */
struct cpu_group {
    int threads; /* of a rank */
    int ranks;
    struct comm *comm[MAX_RANKS]; /* until its rank takes it */
};

static int cpu_ops(struct ops **o, int i, void *group)
{
    int rc = ops_cpu_new(o);
    (void)i;
    if (!rc)
        ops_cpu_threads(*o, ((struct cpu_group *)group)->threads);
    return rc;
}

static int cpu_counting(struct ops **o, int i, void *group)
{
    (void)i;
    return ops_cpu_counting(o, ((struct cpu_group *)group)->threads);
}

static int cpu_available(double *bytes, int i, void *group)
{
    (void)i;
    (void)group;
    *bytes = memory_available("");
    return 0;
}

static int cpu_comm(struct comm **c, struct ops *o, int rank, int world, void *group)
{
    struct cpu_group *g = group;
    (void)o;
    (void)world;
    *c = g->comm[rank];
    g->comm[rank] = NULL;
    return 0;
}

/* The failing rank has not taken its communicator yet. */
static void cpu_abort(void *group, int rank, int code, const char *message)
{
    struct comm *c = ((struct cpu_group *)group)->comm[rank];
    c->abort(c, code, message);
}

static void cpu_release(struct backend *b)
{
    struct cpu_group *g = b->group;
    for (int i = 0; i < g->ranks; i++)
        if (g->comm[i])
            g->comm[i]->free(g->comm[i]);
    free(g);
    b->group = NULL;
}

int backend_cpu(struct backend *b, const struct backend_wants *w)
{
    struct cpu_group *g = calloc(1, sizeof *g);
    int threads = w->threads ? w->threads : pool_processors() / w->ranks;

    if (!g)
        return err_memory();
    g->threads = threads < 1 ? 1 : threads;
    *b = (struct backend){ .name = "cpu",
                           .world = w->world,
                           .ops_new = cpu_ops,
                           .ops_counting = cpu_counting,
                           .available = cpu_available,
                           .one_memory = true,
                           .comm_new = cpu_comm,
                           .abort = cpu_abort,
                           .group = g,
                           .release = cpu_release };
    snprintf(b->about, sizeof b->about, "%s, threads a rank: %d", gemm_kernels(&b->slow),
             g->threads);
    if (w->counting)
        return 0;
    g->ranks = w->ranks;
    int rc = comm_threads_new(g->comm, w->ranks);
    if (rc)
        cpu_release(b);
    return rc;
}
