/* graph.cu - what is queued into a graph once and launched as a whole (ops_cuda.h). */
#include "host/device.h"
#include "ops_cuda.h"

int ops_cuda_capture(struct ops *o)
{
    struct cuda_ops *c = cuda_of(o);

    cuda_launch_waiting(c);
    if (!c->failed && CUDA_TRY(c, cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeRelaxed)))
        c->capturing = true;
    return o->status(o);
}

int ops_cuda_capture_end(struct ops *o, void **graph)
{
    struct cuda_ops *c = cuda_of(o);
    cudaGraph_t g = NULL;
    cudaGraphExec_t exec = NULL;
    cudaError_t e;

    *graph = NULL;
    cuda_launch_waiting(c);
    if (c->capturing) { /* also after a failure, so that the stream is usable */
        c->capturing = false;
        e = cudaStreamEndCapture(c->stream, &g);
        if (!c->failed && CUDA_TRY(c, e))
            CUDA_TRY(c, cudaGraphInstantiate(&exec, g, 0));
        if (g)
            cudaGraphDestroy(g);
    }
    if (!c->failed && exec)
        CUDA_TRY(c, cudaGraphUpload(exec, c->stream));
    *graph = exec;
    return o->status(o);
}

void ops_cuda_launch(struct ops *o, void *graph)
{
    struct cuda_ops *c = cuda_of(o);

    cuda_launch_waiting(c);
    if (!c->failed)
        CUDA_TRY(c, cudaGraphLaunch((cudaGraphExec_t)graph, c->stream));
}

void ops_cuda_graph_free(void *graph)
{
    if (graph)
        cudaGraphExecDestroy((cudaGraphExec_t)graph);
}
