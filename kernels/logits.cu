/* logits.cu - logits of few rows, softcapped, in f32 (record-61.md 2.9): few_rows.cu with w (D,V).
 * V = 50304, D = 768: 77 MB of weights, 16 us at 4.8 TB/s.
 */
#include "few_rows.h"
#include "gpu.h"

void gpu_logits(struct ops *o, struct tensor out, struct tensor x, struct tensor w,
                const struct head_loss *h)
{
    few_rows(cuda_of(o), { .out = out,
                           .x = x,
                           .w = w,
                           .in_out = true,
                           .end = h->cap_root ? FEW_ROOT_CAP : FEW_SOFTCAP,
                           .cap_a = h->cap_a,
                           .cap_b = h->cap_b,
                           .cap_c = h->cap_c,
                           .bias = h->bias });
}
