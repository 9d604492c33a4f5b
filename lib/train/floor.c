/* floor.c - see floor.h. Units: FLOPs, bytes, ms. */
#include "train/floor.h"
#include "model/model.h"

/* Measured on an H200: FLOP/s of large products, bytes/s of a copy (read and written). */
static const double BF16_FLOPS = 772e12, FP8_FLOPS = 1198e12, ATTENTION_FLOPS = 600e12;
static const double COPY_BYTES = 4.25e12;
/* Passes over a (T,D) bf16 stream that fused element-wise kernels need a layer, both ways, in
 * record 61's form; and what record 74's adds, where a mix of its own takes attention's and the
 * MLP's product (1 forward, 7 backward), on two lanes (5 and 20). */
static const double PASSES_PER_LAYER = 25, PASSES_OF_MIXES = 8, PASSES_OF_LANES = 25;

struct step_floor step_floor(const struct recipe *r, const struct step_schedule *p, int ranks,
                             double attn_flops)
{
    struct step_floor f = { 0 };
    double T = (double)p->tokens / ranks, d = r->width, layers = r->n_layers, attn = 0, passes = 0;
    for (int i = 0; i < r->n_layers; i++) {
        attn += layer_attends(r, i);
        passes += PASSES_PER_LAYER + (layer_two_lanes(r, i)   ? PASSES_OF_LANES
                                      : attention_mixes(r, i) ? PASSES_OF_MIXES
                                                              : 0);
    }
    double products = 6 * T * (attn * 4 * d * d + layers * 2 * d * r->mlp_width);
    double head = 6 * T * d * r->vocab;
    f.flops = products + head + attn_flops;
    f.products_ms = 1e3 * products / BF16_FLOPS;
    f.head_ms = 1e3 * head / (r->head_fp8 ? FP8_FLOPS : BF16_FLOPS);
    f.attention_ms = 1e3 * attn_flops / ATTENTION_FLOPS;
    f.elementwise_ms = 1e3 * passes * T * d * 2 / COPY_BYTES;
    /* bf16 logits written and read once, fp8 gradient written once and read twice. */
    f.logits_ms = 1e3 * T * r->vocab * (r->head_fp8 ? 7 : 10) / COPY_BYTES;
    f.ms = f.products_ms + f.head_ms + f.attention_ms + f.elementwise_ms + f.logits_ms;
    return f;
}
