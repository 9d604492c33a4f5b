/* token_coefs.cu - coefficients of each token from a hidden layer: no kernel yet. Record-84.md 5, 7. */
#include "gpu.h"

static const char need[] = "coefficients of tokens have no kernel yet";

void gpu_token_coefs(struct ops *o, struct tensor, struct tensor, struct tensor, struct tensor)
{
    (void)CUDA_NEED(cuda_of(o), false, need);
}

void gpu_token_coefs_bwd(struct ops *o, struct tensor, struct tensor, struct tensor, struct tensor,
                         struct tensor, struct tensor)
{
    (void)CUDA_NEED(cuda_of(o), false, need);
}
