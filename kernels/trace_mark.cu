/* trace_mark.cu - a kernel that does nothing, whose place in a timeline says when what was queued
 * before it was done (ops_cuda_mark). Which mark it is, and of what part, are its numbers of blocks
 * and threads less one: CUPTI's records have both, also for a kernel inside of a graph.
 */
#include "host/device.h"
#include "ops_cuda.h"

static __global__ void trace_mark(int) {}

void ops_cuda_mark(struct ops *o, int mark, int part)
{
    struct cuda_ops *c = cuda_of(o);
    int most = 1023;

    if (c->failed)
        return;
    trace_mark<<<mark + 1, (part < most ? part : most) + 1, 0, c->stream>>>(mark);
    CUDA_LAUNCHED(c);
}
