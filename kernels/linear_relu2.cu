/* linear_relu2.cu - post = max(x w^T,0)^2; dpre = 2 scale (dout w2^T) sqrt(post).
 * Record-61.md 2.8, 3.1; the scale (a lane's, on the MLP's output): record-74.md 7.
 *
 * x, dout (T,D), w, w2 (F,D), post, dpre (T,F) bf16. One kernel each, relu2_gemm.cu: the product
 * there, the ReLU on its way out. A cuBLASLt product and a pass after it took 442 us forward,
 * 520 us backward at T = 49152, D = 768, F = 3072.
 */
#include "gpu.h"
#include "sm90/relu2_gemm.h"

static bool can_do(struct cuda_ops *c, struct tensor x, struct tensor w)
{
    return !c->failed && x.rows > 0 &&
           CUDA_NEED(c, w.dtype == DT_BF16, "weights of products are bf16") &&
           CUDA_NEED(c, x.cols % 8 == 0 && w.rows % 8 == 0, "the MLP's widths are multiples of 8");
}

void gpu_linear_relu2(struct ops *o, struct tensor post, struct tensor x, struct tensor w)
{
    struct cuda_ops *c = cuda_of(o);

    assert(post.dtype == DT_BF16 && x.dtype == DT_BF16);
    assert(post.rows == x.rows && post.cols == w.rows && x.cols == w.cols);
    if (can_do(c, x, w))
        relu2_gemm_forward(c, post, x, w);
}

void gpu_linear_relu2_bwd(struct ops *o, struct tensor dpre, struct tensor dout, struct tensor w2,
                          const real *scale, struct tensor post)
{
    struct cuda_ops *c = cuda_of(o);

    assert(dpre.dtype == DT_BF16 && dout.dtype == DT_BF16 && post.dtype == DT_BF16);
    assert(dpre.rows == dout.rows && dpre.cols == w2.rows && dout.cols == w2.cols);
    if (can_do(c, dout, w2))
        relu2_gemm_backward(c, dpre, dout, w2, scale, post);
}
