/* golden [--device cpu|bf16|cuda] FILE... - holds this code against golden numbers. bf16 is the CPU
 * with activations rounded to bf16, at a GPU's tolerances.
 *
 * Exit status: 0 all within tolerance, 1 not, others as every command; 77 when
 * --device cuda finds no GPU.
 */
#include "golden.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/file.h"
#include "base/opt.h"
#ifdef HAVE_CUDA
#include "../kernels/ops_cuda.h"
#endif

const char *golden_name(const char *label)
{
    static const char *const names[][2] = {
        { "attn", "attn_bank" },
        { "mlp", "mlp_bank" },
        { "lm_head", "lm_head.weight" },
        { "embed", "embed.weight" },
        { "ve0", "value_embeds.0.weight" },
        { "ve1", "value_embeds.1.weight" },
        { "ve2", "value_embeds.2.weight" },
        { "smear_gate", "smear_gate.weight" },
        { "skip_gate", "skip_gate.weight" },
        { "value_embed", "value_embeds" },
        { "bigram_embed", "bigram_embed.weight" },
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(names[i][0], label))
            return names[i][1];
    return label;
}

static char *all_f32(const char *text)
{
    char *copy = strdup(text);
    for (char *p = copy; p && (p = strstr(p, " bf16 ")); p += 6)
        memcpy(p, " f32  ", 6);
    return copy;
}

/* The record whose parameters the file has. */
static const char *record_of(const struct golden *g)
{
    bool r84 = st_find(g->h, "param.qk_bank") || st_find(g->h, "init.qk_bank");
    bool r89 = st_find(g->h, "param.mudd_gate_w1") || st_find(g->h, "init.mudd_gate_w1");
    return r89                             ? "record-89"
           : r84                           ? "record-84"
           : st_meta(g->h, "bigram_vocab") ? "record-74"
                                           : "record-61";
}

int golden_recipe(struct recipe **r, const struct golden *g, bool f32)
{
    const char *share = getenv("GPT_SHARE"), *name = record_of(g);
    char path[512], set[20][96];
    const char *overrides[20];
    int n = 0, heads = golden_int(g, "heads", 2), size = golden_int(g, "head_dim", 8);
    char *text;
    size_t bytes;
    snprintf(path, sizeof path, "%s/recipes/%s.recipe", share ? share : "share", name);
    int rc = file_read(path, 1 << 20, &text, &bytes);
    if (rc)
        return rc;
    snprintf(set[n++], 64, "model.heads=%d", heads);
    snprintf(set[n++], 64, "model.head_dim=%d", size);
    snprintf(set[n++], 64, "model.mlp_width=%d", 4 * heads * size);
    snprintf(set[n++], 64, "model.vocab=%d", golden_int(g, "vocab", 128));
    if (st_meta(g->h, "bigram_vocab"))
        snprintf(set[n++], 64, "model.bigram_rows=%d", golden_int(g, "bigram_vocab", 0));
    bool r89 = !strcmp(name, "record-89");
    if (r89) {
        const char *type = f32 ? "f32" : "bf16";
        snprintf(set[n++], 96, "model.compose_window=%d", golden_int(g, "dc_window", 112));
        snprintf(set[n++], 96,
                 "parameters.mudd_gate_w2=2,%d,64 %s zero adam replicated 0.9 0.99 0.1 1 no",
                 5 * heads + 11, type);
        snprintf(set[n++], 96,
                 "parameters.mudd_gate_b2=2,%d %s zero adam replicated 0.9 0.99 0.1 0 no",
                 5 * heads + 11, type);
    }
    if (r89 || !strcmp(name, "record-84")) {
        snprintf(set[n++], 64, "model.bigram_width=%d", heads * size / (r89 ? 1 : 4));
        snprintf(set[n++], 64, "model.bigram_signs=%d", golden_int(g, "sign_rows", 64));
        snprintf(set[n++], 64, "precision.head_sigmoid=f32");
        snprintf(set[n++], 64, "precision.mlp=bf16");
        snprintf(set[n++], 64, "precision.mlp_down=bf16");
    }
    snprintf(set[n++], 64, "model.block=%d", golden_int(g, "block_size", 128));
    snprintf(set[n++], 64, "precision.head_fp8=no");
    for (int i = 0; i < n; i++)
        overrides[i] = set[i];
    char *used = f32 ? all_f32(text) : strdup(text);
    rc = recipe_parse(r, path, used, overrides, n);
    free(used);
    free(text);
    return rc;
}

static int make_ops(struct ops **o, const char *device)
{
    if (!strcmp(device, "cpu"))
        return ops_cpu_new(o);
    if (!strcmp(device, "bf16"))
        return golden_rounded_ops(o, 0);
#ifdef HAVE_CUDA
    return ops_cuda_new(o, 0);
#else
    return err_set(GPT_DEVICE, "built without CUDA");
#endif
}

int main(int argc, char **argv)
{
    const char *device = "cpu";
    const struct opt table[] = { { 'd', "device", "NAME", OPT_CHOICE, &device, "where the ops run",
                                   .choices = "cpu|bf16|cuda" },
                                 OPT_END };
    const struct command cmd = { "golden", "[OPTION]... FILE...",
                                 "Compares with numbers made by a record's own program.", table };
    int first, worst = 0, rc = opt_parse(&cmd, argc, argv, &first);
    if (!rc && first == argc)
        rc = err_set(GPT_USAGE, "expected a golden file");
    if (rc)
        return opt_exit(&cmd, rc);
    for (int i = first; i < argc; i++) {
        struct golden g;
        struct ops *o;
        if ((rc = golden_open(&g, argv[i])))
            return opt_exit(&cmd, rc);
        bool optimizer = st_meta(g.h, "steps") != NULL;
        bool track = st_meta(g.h, "layers") != NULL;
        st_close(g.r);
        if ((rc = make_ops(&o, device))) {
            opt_exit(&cmd, rc);
            return 77;
        }
        printf("%s on %s\n", argv[i], o->device);
        bool bf16 = strcmp(device, "cpu") != 0;
        rc = optimizer ? (track ? golden_track_optimizer : golden_optimizer)(o, argv[i])
                       : (track ? golden_track_forward : golden_forward)(o, argv[i], bf16);
        o->free(o);
        if (rc > 1)
            return opt_exit(&cmd, rc);
        worst |= rc;
    }
    return worst;
}
