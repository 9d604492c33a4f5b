/* gpu_model_test.c - the whole model on a GPU against the CPU's, in every form that a recipe can
 * ask for and at each head size: losses and every gradient.
 *
 * The CPU's model is held against the records' own numbers (golden) and against slopes of its loss
 * (backward_test). The GPU's differs by bf16 activations: losses by 1e-2 at most, gradients by
 * 5e-2, or, where sums cancel (gradients of lambdas), by three times what the CPU's ops differ from
 * themselves once each activation is rounded to bf16 (golden_rounded.c), the worse of two draws.
 * Exit 77 without a GPU.
 */
#include <stdlib.h>
#include "../kernels/ops_cuda.h"
#include "check.h"
#include "floats.h"
#include "golden.h"
#include "small_model.h"

static const struct small_size sizes[] = {
    { .tokens = 333,
      .heads = 2,
      .head_dim = 32,
      .mlp_width = 256,
      .vocab = 120,
      .rows = 257,
      .document = 40 },
    { .tokens = 257,
      .heads = 4,
      .head_dim = 64,
      .mlp_width = 512,
      .vocab = 504,
      .rows = 999,
      .document = 100 },
    { .tokens = 512,
      .heads = 2,
      .head_dim = 128,
      .mlp_width = 1024,
      .vocab = 1000,
      .rows = 5000,
      .document = 200 },
};
static const struct small_size tiny = { /* on a slow device (tests/emu) */
                                        .tokens = 75, .heads = 2,  .head_dim = 32, .mlp_width = 128,
                                        .vocab = 120, .rows = 257, .document = 40
};
static const struct small_size tiny_wide = { .tokens = 75,
                                             .heads = 2,
                                             .head_dim = 64,
                                             .mlp_width = 128,
                                             .vocab = 120,
                                             .rows = 257,
                                             .document = 40 };
static const double loss_tolerance = 1e-2, gradient_tolerance = 5e-2, noises = 3;

enum { EXACT, ROUNDED, ROUNDED_AGAIN, GPU, KINDS };

static bool open_kind(struct small *s, int kind, const struct small_form *f,
                      const struct small_size *z)
{
    struct ops *o;
    int rc = kind == EXACT ? ops_cpu_new(&o)
             : kind == GPU ? ops_cuda_new(&o, 0)
                           : golden_rounded_ops(&o, (uint64_t)kind);
    enum dtype weights = kind == EXACT ? DT_F32 : DT_BF16;
    if (!rc && kind != GPU)
        ops_cpu_threads(o, check_threads());
    return CHECK_OK(rc) && CHECK_OK(small_open(s, o, f, weights, z, 11));
}

static double gradient_error(struct small *s, struct small *exact, int i)
{
    float *g = floats_of(s->o, s->b.p[i].g), *want = floats_of(exact->o, exact->b.p[i].g);
    double e = relative_error(g, want, tensor_count(exact->b.p[i].g));
    free(g), free(want);
    return e;
}

static void check_form(const struct small_form *f, const struct small_size *z)
{
    struct small s[KINDS];
    double loss[KINDS], eval[KINDS];

    for (int k = 0; k < KINDS; k++) {
        if (!open_kind(&s[k], k, f, z))
            return;
        if (recipe_cpu_alone(s[k].r)) { /* heads of q and k that no GPU computes */
            CHECK_OK(small_close(&s[k]));
            return;
        }
        loss[k] = small_loss(&s[k]);
    }
    CHECK_NEAR(loss[GPU] / loss[EXACT], 1, loss_tolerance);
    for (int i = 0; i < s[EXACT].b.n; i++) {
        double found = gradient_error(&s[GPU], &s[EXACT], i);
        double noise = fmax(gradient_error(&s[ROUNDED], &s[EXACT], i),
                            gradient_error(&s[ROUNDED_AGAIN], &s[EXACT], i));
        double allowed = fmax(gradient_tolerance, noises * noise);
        check_that(found <= allowed, __FILE__, __LINE__,
                   "%s, heads of %d: gradient of %s: off by %.2g, allowed %.2g", s[EXACT].label,
                   z->head_dim, s[EXACT].b.p[i].spec->label, found, allowed);
    }
    for (int k = 0; k < KINDS; k++) {
        eval[k] = small_eval(&s[k]);
        CHECK_OK(small_close(&s[k]));
    }
    CHECK_NEAR(eval[GPU] / eval[EXACT], 1, loss_tolerance);
}

/* MLPs in fp8: the three kinds on the CPU quantise as the GPU does, each from activations that are
 * rounded in its own way; what that changes codes by is in the noise. */
static const struct small_form in_fp8[] = {
    { "record-61", { "precision.mlp=fp8" } },
    { "record-61", { "precision.mlp=fp8", "precision.mlp_down=fp8" } },
    { "record-74",
      { "precision.mlp=fp8", "precision.mlp_down=fp8", "model.post_single=yes",
        "model.fold_mlp=yes" } },
    { "record-61", { "precision.mlp=fp8", "precision.mlp_backward=fp8" } },
    { "record-74",
      { "precision.mlp=fp8", "precision.mlp_down=fp8", "precision.mlp_backward=fp8",
        "model.post_single=yes", "model.fold_mlp=yes" } },
};
enum { IN_FP8 = sizeof in_fp8 / sizeof *in_fp8 };

/* Heads of q and k of half of v's channels beside whole ones; and 96 of 128. */
static const struct small_form narrow[] = {
    { "record-84",
      { "model.qk_head_dim={half}", "model.rope_dim={half}",
        "layers.3=plain 3 long yes - - 3 3 {head}:0.4",
        "layers.10=plain 9 long yes - - 9 10 {head}:0.4",
        "parameters.qk_bank=12h,2e,d bf16 uniform:0.5 normuon sharded - 0.9 1 1 yes" } },
    { "record-84", { "model.qk_head_dim=96", "model.attn_scale=0.11547" } },
};
enum { NARROW = sizeof narrow / sizeof *narrow };

int main(void)
{
    if (ops_cuda_count() == 0)
        return check_skip("gpu");
    if (!check_of("model"))
        return check_done();
    if (check_small()) {
        for (int i = 0; i < n_small_forms; i += 2)
            check_form(&small_forms[i], &tiny);
        for (int i = 0; i < IN_FP8; i++)
            check_form(&in_fp8[i], &tiny);
        check_form(&narrow[0], &tiny_wide);
        return check_done();
    }
    for (int i = 0; i < n_small_forms; i++)
        check_form(&small_forms[i], &sizes[0]);
    for (int i = 0; i < IN_FP8; i++)
        for (int k = 0; k < 3; k++)
            check_form(&in_fp8[i], &sizes[k]);
    for (int i = 0; i < NARROW; i++)
        check_form(&narrow[i], &sizes[2]);
    for (int i = 0; i < n_small_forms; i += 2)
        for (int k = 1; k < 3; k++)
            check_form(&small_forms[i], &sizes[k]);
    return check_done();
}
