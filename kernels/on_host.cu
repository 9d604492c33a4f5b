/* on_host.cu - stages whose factorisations are LAPACK's: the host's ops move their matrices, between two copies.
 *
 * Contracts: op_list.h, optimizers.md 4.8; results are the C reference's, to the bit. What a call reads is copied into
 * pinned memory in the order of the stream, a node of the stream runs the op on the host's processors, and what it wrote is
 * copied back: a graph holds all of it. Bytes: the matrices' to the host and, of x and psgd's factors, back.
 * The pinned copies stay until the device is freed, as graphs may hold them. An op that fails leaves NaN in x.
 */
#include <math.h>
#include <stdlib.h>
#include "gpu.h"
#include "optim.h"
extern "C" {
#include "base/pool.h"
}

/* A call as the host sees it, of one stage of one parameter. */
struct host_call {
    struct host_call *next;
    const void *key; /* the left factors on the device */
    struct ops *cpu;
    void (*run)(struct host_call *h);
    struct tensor x, left, right, g, probe; /* pinned */
    int n;
    real *number, *more; /* pinned: the stage's numbers; shampoo's age, psgd's updates (n) */
    struct step_gate *gate;
    bool pinv, *turned;
    struct psgd psgd;
};

/* Returns the call of these factors, new the first time; NULL when memory is out: recorded. */
static struct host_call *call_of(struct cuda_ops *c, struct tensor left, int n)
{
    struct host_call *h = c->on_host;

    while (h && h->key != left.data)
        h = h->next;
    if (c->failed || h)
        return c->failed ? NULL : h;
    if (!c->host) {
        if (ops_cpu_new(&c->host)) {
            cuda_fail(c, GPT_SYSTEM, "%s", err_message());
            return NULL;
        }
        int gpus = 1;
        cudaGetDeviceCount(&gpus);
        int processors = pool_processors() / (gpus > 0 ? gpus : 1);
        ops_cpu_threads(c->host, processors > 1 ? processors : 1);
    }
    h = (struct host_call *)calloc(1, sizeof *h);
    if (!h) {
        cuda_fail(c, GPT_SYSTEM, "cannot allocate %zu bytes", sizeof *h);
        return NULL;
    }
    h->next = c->on_host, h->key = left.data, h->cpu = c->host, h->n = n;
    c->on_host = h;
    return h;
}

/* Copies to *at on the host, which is taken the first time; a probe that a test gives is on the host already. */
static void bring(struct cuda_ops *c, void **at, const void *from, size_t bytes)
{
    if (!c->failed && (*at || CUDA_TRY(c, cudaMallocHost(at, bytes))))
        CUDA_TRY(c, cudaMemcpyAsync(*at, from, bytes, cudaMemcpyDefault, c->stream));
}
static void bring_tensor(struct cuda_ops *c, struct tensor *at, struct tensor from)
{
    void *data = at->data;
    if (from.data)
        bring(c, &data, from.data, tensor_bytes(from));
    *at = from, at->data = data;
}
static void take_back(struct cuda_ops *c, struct tensor to, struct tensor from)
{
    if (!c->failed)
        CUDA_TRY(c, cudaMemcpyAsync(to.data, from.data, tensor_bytes(to), cudaMemcpyHostToDevice,
                                    c->stream));
}

static void CUDART_CB run_call(void *arg)
{
    struct host_call *h = (struct host_call *)arg;
    h->run(h);
    if (h->cpu->status(h->cpu))
        for (int64_t i = 0; i < tensor_count(h->x); i++)
            ((real *)h->x.data)[i] = NAN;
}

static void queue(struct cuda_ops *c, struct host_call *h, void (*run)(struct host_call *h))
{
    h->run = run;
    if (!c->failed)
        CUDA_TRY(c, cudaLaunchHostFunc(c->stream, run_call, h));
}

static void run_shampoo(struct host_call *h)
{
    h->cpu->shampoo(h->cpu, h->x, h->left, h->right, h->n, h->pinv, h->number, h->more);
}

void gpu_shampoo(struct ops *o, struct tensor x, struct tensor left, struct tensor right, int n,
                 bool pinv, const real *number, const real *age)
{
    struct cuda_ops *c = cuda_of(o);
    struct host_call *h = call_of(c, left, n);
    if (!h)
        return;
    h->pinv = pinv;
    bring_tensor(c, &h->x, x), bring_tensor(c, &h->left, left), bring_tensor(c, &h->right, right);
    bring(c, (void **)&h->number, number, 3 * sizeof *number);
    bring(c, (void **)&h->more, age, sizeof *age);
    queue(c, h, run_shampoo);
    take_back(c, x, h->x);
}

static void run_sinkhorn(struct host_call *h)
{
    h->cpu->sinkhorn(h->cpu, h->x, h->left, h->right, h->n, h->turned, h->number);
}

void gpu_sinkhorn(struct ops *o, struct tensor x, struct tensor left, struct tensor right, int n,
                  const bool *turned, const real *number)
{
    struct cuda_ops *c = cuda_of(o);
    struct host_call *h = call_of(c, left, n);
    if (!h)
        return;
    if (turned && !h->turned && !(h->turned = (bool *)malloc((size_t)n * sizeof *turned + 1))) {
        cuda_fail(c, GPT_SYSTEM, "cannot allocate %d bytes", n);
        return;
    }
    if (turned)
        memcpy(h->turned, turned, (size_t)n * sizeof *turned);
    bring_tensor(c, &h->x, x), bring_tensor(c, &h->left, left), bring_tensor(c, &h->right, right);
    bring(c, (void **)&h->number, number, 2 * sizeof *number);
    queue(c, h, run_sinkhorn);
    take_back(c, x, h->x);
}

static void run_psgd(struct host_call *h)
{
    h->cpu->psgd(h->cpu, h->x, h->left, h->right, h->n, &h->psgd);
}

void gpu_psgd(struct ops *o, struct tensor x, struct tensor left, struct tensor right, int n,
              const struct psgd *p)
{
    struct cuda_ops *c = cuda_of(o);
    struct host_call *h = call_of(c, left, n);
    if (!h)
        return;
    bring_tensor(c, &h->x, x), bring_tensor(c, &h->left, left), bring_tensor(c, &h->right, right);
    bring_tensor(c, &h->g, p->g), bring_tensor(c, &h->probe, p->probe);
    bring(c, (void **)&h->number, p->step, sizeof *p->step);
    bring(c, (void **)&h->more, p->updates, (size_t)n * sizeof *p->updates);
    if (p->gate)
        bring(c, (void **)&h->gate, p->gate, sizeof *p->gate);
    h->psgd = *p;
    h->psgd.g = h->g, h->psgd.probe = h->probe;
    h->psgd.step = h->number, h->psgd.updates = h->more, h->psgd.gate = h->gate;
    queue(c, h, run_psgd);
    take_back(c, x, h->x), take_back(c, left, h->left), take_back(c, right, h->right);
}

void cuda_free_host_calls(struct cuda_ops *c)
{
    while (c->on_host) {
        struct host_call *h = c->on_host;
        void *pinned[] = { h->x.data,     h->left.data, h->right.data, h->g.data,
                           h->probe.data, h->number,    h->more,       h->gate };
        for (void *p : pinned)
            cudaFreeHost(p);
        c->on_host = h->next;
        free(h->turned);
        free(h);
    }
    if (c->host)
        c->host->free(c->host);
}
