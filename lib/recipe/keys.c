/* keys.c - the table of keys: name, kind, range, default, field. */
#include "recipe/text.h"

#include <ctype.h>
#include <float.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include "base/num.h"
#include "base/suggest.h"
#include "coeffs/coeffs.h"
#include "recipe/named.h"

enum kind {
    K_NAME,
    K_INT,
    K_I64,
    K_REAL,
    K_SCALE, /* a number, or "row": 0, or "delayed": SCALE_DELAYED */
    K_REAL3,
    K_HASH, /* 32 hexadecimal digits, or "-" */
    K_EVERY, /* "N" or "N>M@P": whole numbers, a point of the schedule */
    K_RANGE, /* "A" or "A>B": two numbers */
    K_INT2,
    K_BOOL,
    K_UNREAD, /* yes or no of earlier versions: its line stays, so that recipes keep their hashes */
    K_WORD,
    K_TRUTH, /* one of two words: a bool */
    K_DTYPE,
    K_COEFFS,
    K_COUNTS,
    K_WINDOWS,
    K_TIED,
    K_ORDER,
    K_LABELS
};

/* Limits of a micro-batch and of a window, in tokens. */
enum { MAX_CHUNK_TOKENS = 1 << 26, MAX_WINDOW = 1 << 30 };

struct key {
    const char *section, *key;
    enum kind kind;
    size_t field;
    double lo, hi;
    const char *dflt; /* NULL: the recipe must say it */
    const char *choices; /* K_WORD, K_DTYPE: words in the order of the values */
};

#define F(f) offsetof(struct recipe, f)
static const char DTYPE_CHOICES[] = "weight|f32|bf16";
static const char STATE_CHOICES[] = "weight|f32|bf16|f16|e4m3";
static const struct key keys[] = {
    { "", "name", K_NAME, F(name), 0, 0, NULL, NULL },
    { "", "seed", K_I64, F(seed), 0, 9e15, "1", NULL },
    { "model", "vocab", K_INT, F(model.vocab), 2, 1 << 24, NULL, NULL },
    { "model", "bigram_rows", K_INT, F(model.bigram.rows), 0, 1 << 24, "0", NULL },
    { "model", "bigram_width", K_INT, F(model.bigram.width), 0, 1 << 20, "0", NULL },
    { "model", "bigram_signs", K_INT, F(model.bigram.signs), 0, 1 << 24, "0", NULL },
    { "model", "bigram_in_x0", K_BOOL, F(model.bigram.in_x0), 0, 0, "no", NULL },
    { "model", "heads", K_INT, F(model.heads), 1, 1024, NULL, NULL },
    { "model", "head_dim", K_INT, F(model.head_dim), 4, 1024, NULL, NULL },
    { "model", "qk_head_dim", K_INT, F(model.qk_dim), 0, 1024, "0", NULL },
    { "model", "rope_dim", K_INT, F(model.rope_dim), 0, 1024, "0", NULL },
    { "model", "mlp_width", K_INT, F(model.mlp_width), 1, 1 << 20, NULL, NULL },
    { "model", "block", K_INT, F(model.block), 1, 1 << 16, NULL, NULL },
    { "model", "attn_scale", K_REAL, F(model.attn_scale), 1e-6, 1e3, NULL, NULL },
    { "model", "rope_base", K_REAL, F(model.rope_base), 1, 1e9, NULL, NULL },
    { "model", "rope_windows", K_WINDOWS, F(model.rope_windows), 1, 1 << 16, "-", NULL },
    { "model", "softcap", K_REAL3, F(model.softcap.a), -1e6, 1e6, NULL, NULL },
    { "model", "softcap_form", K_TRUTH, F(model.softcap.root), 0, 0, "sigmoid", "sigmoid|root" },
    { "model", "rope_pairs", K_TRUTH, F(model.rope_halves), 0, 0, "neighbours",
      "neighbours|halves" },
    { "model", "skip", K_INT2, F(model.skip.from), -1, MAX_LAYERS, NULL, NULL },
    { "model", "skip_tap", K_WORD, F(model.skip.tap), 0, 0, "layer", "layer|attention" },
    { "model", "backout", K_INT, F(model.backout), -1, MAX_LAYERS, NULL, NULL },
    { "model", "attend_as", K_INT, F(model.attend_as), -1, MAX_LAYERS, "-1", NULL },
    { "model", "xsa", K_BOOL, F(model.xsa), 0, 0, "no", NULL },
    { "model", "compose_window", K_INT, F(model.compose_window), 0, 4096, "0", NULL },
    { "model", "mtp_end", K_TRUTH, F(model.mtp_whole), 0, 0, "cut", "cut|whole" },
    { "model", "inject", K_WORD, F(model.inject), 0, 0, "before", "before|after" },
    { "model", "inject_bare", K_BOOL, F(model.inject_bare), 0, 0, "yes", NULL },
    { "model", "lanes", K_INT, F(model.lanes), -1, MAX_LAYERS, "-1", NULL },
    { "model", "post_single", K_BOOL, F(model.post_single), 0, 0, "no", NULL },
    { "model", "fold_mlp", K_BOOL, F(model.fold_mlp), 0, 0, "no", NULL },
    { "model", "key_channels", K_WORD, F(model.key_channels), 0, 0, "quarters", "quarters|half" },
    { "model", "gate_table", K_INT, F(model.gate_table), 0, 32, "0", NULL },
    { "model", "value_input", K_WORD, F(model.value_input), 0, 0, "input",
      "input|split|split_all" },
    { "order", "tied", K_TIED, F(order.tied_head), 0, 0, NULL, NULL },
    { "order", "scatter", K_ORDER, F(order.scatter), 0, 0, NULL, NULL },
    { "order", "work", K_ORDER, F(order.work), 0, 0, NULL, NULL },
    { "order", "tied_mix", K_RANGE, F(order.tied_mix), -1e3, 1e3, "1", NULL },
    { "order", "late", K_LABELS, F(order.late), 0, 0, "-", NULL },
    { "order", "padding", K_BOOL, F(order.padding), 0, 0, "yes", NULL },
    { "order", "transpose_sms", K_INT, F(order.transpose_sms), 0, 1 << 16, "0", NULL },
    { "optimizer", "adam_lr", K_REAL, F(optimizer.adam.lr), 0, 1e3, NULL, NULL },
    { "optimizer", "adam_eps", K_REAL, F(optimizer.adam.eps), 0, 1, NULL, NULL },
    { "optimizer", "adam_wd", K_REAL, F(optimizer.adam.wd), 0, 1e3, NULL, NULL },
    { "optimizer", "adam_every", K_INT, F(optimizer.adam.every), 1, MAX_PERIOD, NULL, NULL },
    { "optimizer", "adam_decay", K_WORD, F(optimizer.adam.decay), 0, 0, "cautious",
      "cautious|adamw|l2" },
    { "optimizer", "adam_decay_rate", K_TRUTH, F(optimizer.adam.decay_lr), 0, 0, "lr2", "lr2|lr" },
    { "optimizer", "adam_eps_at", K_WORD, F(optimizer.adam.eps_at), 0, 0, "root",
      "root|corrected|inside" },
    { "optimizer", "adam_correction", K_BOOL, F(optimizer.adam.correction), 0, 0, "yes", NULL },
    { "optimizer", "clip", K_REAL, F(optimizer.clip), 0, 1e30, "0", NULL },
    { "optimizer", "loss_scale", K_REAL, F(optimizer.loss_scale), 1e-30, 1e30, "1", NULL },
    { "optimizer", "loss", K_TRUTH, F(optimizer.loss_sum), 0, 0, "mean", "mean|sum" },
    { "optimizer", "max_skips", K_INT, F(optimizer.max_skips), 0, 1e9, "0", NULL },
    { "optimizer", "grad_norm", K_BOOL, F(optimizer.grad_norm), 0, 0, "no", NULL },
    { "optimizer", "muon_lr", K_REAL, F(optimizer.muon.lr), 0, 1e3, NULL, NULL },
    { "optimizer", "muon_wd", K_REAL, F(optimizer.muon.wd), 0, 1e3, NULL, NULL },
    { "optimizer", "muon_decay", K_WORD, F(optimizer.muon.decay), 0, 0, "rule",
      "rule|cautious|plain" },
    { "optimizer", "muon_decay_rate", K_TRUTH, F(optimizer.muon.decay_lr), 0, 0, "lr2", "lr2|lr" },
    { "optimizer", "change", K_REAL, F(optimizer.change.at), 0, 1e9, "0.9", NULL },
    { "optimizer", "change_moments", K_REAL, F(optimizer.change.moments), 0, 1e9, "1e9", NULL },
    { "optimizer", "blend", K_RANGE, F(optimizer.blend.weight), 0, 1, "0.5", NULL },
    { "optimizer", "blend_span", K_RANGE, F(optimizer.blend.span), 0, 1e9, "0>1", NULL },
    { "optimizer", "mixed_adam_lr", K_REAL, F(optimizer.mixed_lr), 0, 1e6, "1", NULL },
    { "optimizer", "match_rms", K_REAL, F(optimizer.muon.match_rms), 0, 1e3, "0", NULL },
    { "optimizer", "coeffs", K_COEFFS, F(optimizer.polar.row), 0, 0, NULL, NULL },
    { "optimizer", "polar", K_DTYPE, F(optimizer.polar.dtype), 0, 0, "bf16", DTYPE_CHOICES },
    { "optimizer", "polar_form", K_WORD, F(optimizer.polar.form), 0, 0, "direct", "direct|gram" },
    { "optimizer", "restart", K_COUNTS, F(optimizer.polar.restart), 1, MAX_POLAR - 1, "1,3", NULL },
    { "optimizer", "blend_f32", K_BOOL, F(optimizer.muon.blend_f32), 0, 0, "no", NULL },
    { "optimizer", "aol", K_BOOL, F(optimizer.polar.aol), 0, 0, "no", NULL },
    { "schedule", "steps", K_INT, F(schedule.steps), 1, 1e7, NULL, NULL },
    { "schedule", "extension", K_INT, F(schedule.extension), 0, 1e7, NULL, NULL },
    { "schedule", "whole_steps", K_BOOL, F(schedule.whole_steps), 0, 0, "no", NULL },
    { "schedule", "final_window", K_INT, F(schedule.final_window), 1, 1 << 16, NULL, NULL },
    { "schedule", "cooldown", K_REAL, F(schedule.cooldown), 0, 1, NULL, NULL },
    { "schedule", "lr_floor", K_REAL, F(schedule.lr_floor), 0, 1e3, NULL, NULL },
    { "schedule", "momentum_low", K_REAL, F(schedule.momentum.low), 0, 1, NULL, NULL },
    { "schedule", "momentum_high", K_REAL, F(schedule.momentum.high), 0, 1, NULL, NULL },
    { "schedule", "momentum_warmup", K_INT, F(schedule.momentum.warmup), 0, 1e9, NULL, NULL },
    { "schedule", "momentum_cooldown", K_INT, F(schedule.momentum.cooldown), 0, 1e9, NULL, NULL },
    { "schedule", "untie", K_REAL, F(schedule.untie), 0, 1e9, NULL, NULL },
    { "schedule", "untie_state", K_WORD, F(schedule.untie_state), 0, 0, "carry", "carry|zero" },
    { "data", "chunks", K_INT, F(data.chunks), 1, 1 << 16, NULL, NULL },
    { "data", "bos", K_INT, F(data.bos), -1, 1 << 24, "-1", NULL },
    { "data", "cut", K_WORD, F(data.cut), 0, 0, "document", "document|pieces|rows" },
    { "data", "piece", K_INT, F(data.piece), 0, MAX_CHUNK_TOKENS, "0", NULL },
    { "data", "max_documents", K_INT, F(data.max_documents), 0, MAX_CHUNK_TOKENS, "0", NULL },
    { "data", "expect", K_HASH, F(data.expect), 0, 0, "-", NULL },
    { "data", "cycle", K_BOOL, F(data.cycle), 0, 0, "no", NULL },
    { "data", "repeat", K_INT, F(data.repeat), 1, 1e9, "1", NULL },
    { "data", "val_tokens", K_I64, F(data.val.tokens), 0, 1e15, NULL, NULL },
    { "data", "val_chunk", K_I64, F(data.val.chunk), 1, MAX_CHUNK_TOKENS, NULL, NULL },
    { "data", "val_every", K_EVERY, F(data.val.every), 0, 1e9, NULL, NULL },
    { "data", "val_canonical", K_BOOL, F(data.val.canonical), 0, 0, "no", NULL },
    { "data", "checkpoint_every", K_I64, F(data.checkpoint_every), 0, 1e9, "0", NULL },
    { "precision", "gradients", K_DTYPE, F(precision.gradients), 0, 0, "weight", DTYPE_CHOICES },
    { "precision", "micro_gradients", K_TRUTH, F(precision.bf16_grads), 0, 0, "f32", "f32|bf16" },
    { "precision", "adam_states", K_DTYPE, F(precision.adam.states), 0, 0, "f32", STATE_CHOICES },
    { "precision", "adam_master", K_WORD, F(precision.adam.master), 0, 0, "none",
      "none|f32|nearest|truncate|f16" },
    { "precision", "adam_rounding", K_TRUTH, F(precision.adam.stochastic), 0, 0, "nearest",
      "nearest|stochastic" },
    { "precision", "adam_scale", K_TRUTH, F(precision.adam.whole), 0, 0, "row", "row|tensor" },
    { "precision", "head_fp8", K_WORD, F(precision.head.fp8), 0, 0, NULL, "no|yes|require" },
    { "precision", "head_scales", K_REAL3, F(precision.head.x_scale), 1e-12, 1e12, NULL, NULL },
    { "precision", "weight_scale", K_SCALE, F(precision.weight_scale), 1e-12, 1e12, "row", NULL },
    { "precision", "amax_history", K_INT, F(precision.amax_history), 1, 1024, "16", NULL },
    { "precision", "mlp", K_WORD, F(precision.mlp.fp8), 0, 0, "bf16", "bf16|fp8|require" },
    { "precision", "mlp_down", K_WORD, F(precision.mlp.down_fp8), 0, 0, "bf16",
      "bf16|fp8|delayed" },
    { "precision", "mlp_delayed", K_REAL3, F(precision.mlp.delayed), 0, 1e6, "1.8 1.12 16", NULL },
    { "precision", "mlp_backward", K_TRUTH, F(precision.mlp.backward_fp8), 0, 0, "bf16",
      "bf16|fp8" },
    { "precision", "mlp_grads", K_WORD, F(precision.mlp.grads), 0, 0, "bf16", "bf16|up|both" },
    { "precision", "attn", K_TRUTH, F(precision.attn.fp8), 0, 0, "bf16", "bf16|fp8" },
    { "precision", "attn_backward", K_TRUTH, F(precision.attn.backward_fp8), 0, 0, "bf16",
      "bf16|fp8" },
    { "precision", "attn_out", K_TRUTH, F(precision.attn.out_fp8), 0, 0, "bf16", "bf16|fp8" },
    { "precision", "attn_input_scale", K_REAL, F(precision.attn.x_scale), 1e-12, 1e12, "8/448",
      NULL },
    { "precision", "attn_gradient_scale", K_REAL, F(precision.attn.g_scale), 1e-12, 1e12, "1/448",
      NULL },
    { "precision", "head_sigmoid", K_TRUTH, F(precision.head.sigmoid_bf16), 0, 0, "f32",
      "f32|bf16" },
    { "precision", "rope", K_TRUTH, F(precision.f32_rope), 0, 0, "bf16", "bf16|f32" },
    { "precision", "head_block", K_INT, F(precision.head.block), 0, MAX_CHUNK_TOKENS, "0", NULL },
    { "precision", "head_scale_micro", K_BOOL, F(precision.head.scale_micro), 0, 0, "no", NULL },
    { "precision", "cpu_products", K_TRUTH, F(precision.bf16_products), 0, 0, "f32", "f32|bf16" },
    { "precision", "deterministic", K_UNREAD, 0, 0, 0, "no", NULL },
    { "precision", "fuse", K_BOOL, F(precision.fuse), 0, 0, "yes", NULL },
    { "precision", "check_weights", K_BOOL, F(precision.check_weights), 0, 0, "no", NULL },
};
enum { N_KEYS = sizeof keys / sizeof keys[0] };

/* Keys that the canonical text leaves out at their default: they came when recipes already had hashes,
 * which must stay. A new key stands here. */
static const char *const quiet[] = { "model.rope_windows",
                                     "model.softcap_form",
                                     "model.rope_pairs",
                                     "data.cut",
                                     "data.piece",
                                     "data.max_documents",
                                     "precision.fuse",
                                     "precision.micro_gradients",
                                     "precision.rope",
                                     "optimizer.grad_norm",
                                     "optimizer.loss",
                                     "data.expect",
                                     "precision.mlp_delayed",
                                     "precision.mlp_grads",
                                     "precision.attn",
                                     "precision.attn_backward",
                                     "precision.attn_out",
                                     "precision.attn_input_scale",
                                     "precision.attn_gradient_scale",
                                     "model.compose_window",
                                     "model.qk_head_dim",
                                     "model.rope_dim",
                                     NULL };

/* A number, or a fraction such as 100/448. */
int recipe_real(const char *text, const char *what, double lo, double hi, double *out)
{
    char head[64];
    const char *slash = strchr(text, '/');
    if (!slash || slash - text >= (long)sizeof head)
        return num_f64(text, what, lo, hi, out);
    double a, b;
    snprintf(head, sizeof head, "%.*s", (int)(slash - text), text);
    if (num_f64(head, what, -DBL_MAX, DBL_MAX, &a) ||
        num_f64(slash + 1, what, -DBL_MAX, DBL_MAX, &b))
        return err_code();
    snprintf(head, sizeof head, "%.17g", a / b);
    return num_f64(head, what, lo, hi, out);
}

static int reals(struct recipe *r, const struct recipe_line *l, const struct key *k, double *out,
                 int want)
{
    char *copy = strdup(l->value), *save = NULL;
    int n = 0, rc = copy ? 0 : err_sys("recipe");
    for (char *w = copy ? strtok_r(copy, " ", &save) : NULL; w && !rc;
         w = strtok_r(NULL, " ", &save))
        if (n == want || recipe_real(w, k->key, k->lo, k->hi, &out[n++]))
            rc = recipe_error(r, l, "expected %d number%s in [%g, %g], found '%s'", want,
                              want > 1 ? "s" : "", k->lo, k->hi, l->value);
    free(copy);
    if (!rc && n != want)
        rc = recipe_error(r, l, "expected %d numbers, found %d", want, n);
    return rc;
}

static int range(struct recipe *r, const struct recipe_line *l, const struct key *k, double out[2])
{
    char *copy = strdup(l->value), *last = copy ? strchr(copy, '>') : NULL;
    int rc = copy ? 0 : err_sys("recipe");
    if (last)
        *last++ = 0;
    if (!rc && (recipe_real(copy, k->key, k->lo, k->hi, &out[0]) ||
                recipe_real(last ? last : copy, k->key, k->lo, k->hi, &out[1])))
        rc = recipe_error(r, l, "expected 'A' or 'A>B' of numbers in [%g, %g], found '%s'", k->lo,
                          k->hi, l->value);
    free(copy);
    return rc;
}

static int whole(struct recipe *r, const struct recipe_line *l, const struct key *k, int64_t *out)
{
    if (num_i64(l->value, k->key, (int64_t)k->lo, (int64_t)k->hi, out))
        return recipe_error(r, l, "expected a whole number in [%.0f, %.0f], found '%s'", k->lo,
                            k->hi, l->value);
    return 0;
}

/* Every N steps, or from a point on every M. */
static int every(struct recipe *r, const struct recipe_line *l, const struct key *k)
{
    char *copy = strdup(l->value), *late = copy ? strchr(copy, '>') : NULL, *at = NULL;
    int64_t first, then = 0;
    double from = 0;
    int rc = copy ? 0 : err_sys("recipe");
    if (late) {
        *late++ = 0;
        if ((at = strchr(late, '@')))
            *at++ = 0;
    }
    if (!rc && (num_i64(copy, k->key, late ? 1 : 0, (int64_t)k->hi, &first) || (late && !at) ||
                (late && (num_i64(late, k->key, 1, (int64_t)k->hi, &then) ||
                          recipe_real(at, k->key, 0, 1e9, &from)))))
        rc = recipe_error(r, l,
                          "expected 'N' or 'N>M@P', whole numbers of steps up to %.0f and a point, "
                          "found '%s'",
                          k->hi, l->value);
    free(copy);
    if (rc)
        return rc;
    r->data.val.every.steps = (int)first;
    r->data.val.every.late = (int)(late ? then : first);
    r->data.val.every.from = from;
    return 0;
}

/* The index of the word, or the type that it stands for. */
static int choice(struct recipe *r, const struct recipe_line *l, const struct key *k)
{
    static const enum dtype types[] = { DT_NONE, DT_F32, DT_BF16, DT_F16, DT_E4M3 };
    void *field = (char *)r + k->field;
    const char *c = k->choices;
    for (int i = 0; c; i++, c = strchr(c, '|') ? strchr(c, '|') + 1 : NULL) {
        size_t n = strcspn(c, "|");
        if (strlen(l->value) == n && !strncmp(c, l->value, n)) {
            if (k->kind == K_DTYPE)
                *(enum dtype *)field = types[i];
            else if (k->kind == K_TRUTH)
                *(bool *)field = i;
            else
                *(int *)field = i;
            return 0;
        }
    }
    return recipe_error(r, l, "expected %s, found '%s'", k->choices, l->value);
}

/* A file of rows (a coefficient table) becomes the rows themselves. */
static int inline_coeffs(struct recipe_line *l)
{
    double row[MAX_POLAR][3];
    char text[MAX_POLAR * 80 + 8];
    bool aol;
    int n, used = 0, rc = coeffs_load(l->value, row, MAX_POLAR, &n, &aol);
    if (rc)
        return err_prefix("optimizer.coeffs");
    for (int i = 0; i < n; i++)
        used += snprintf(text + used, sizeof text - (size_t)used, "%s%.17g %.17g %.17g",
                         i     ? " / "
                         : aol ? "aol "
                               : "",
                         row[i][0], row[i][1], row[i][2]);
    free(l->value);
    l->value = strdup(text);
    return l->value ? 0 : err_sys("optimizer.coeffs");
}

/* Rows "a b c / a b c ...", behind "aol" those for AOL, or the name of a file of such rows. */
static int coeffs(struct recipe *r, struct recipe_line *l)
{
    int n = 0, rc = 0;
    const char *first = l->value + (strncmp(l->value, "aol ", 4) ? 0 : 4);
    first += strspn(first, "+-");
    first += *first == '.'; /* "./x.coeffs" begins like a number and is none */
    if (!isdigit((unsigned char)*first) && (rc = inline_coeffs(l)))
        return rc;
    r->optimizer.polar.for_aol = !strncmp(l->value, "aol ", 4);
    char *copy = strdup(l->value + (r->optimizer.polar.for_aol ? 4 : 0)), *save = NULL;
    if (!copy)
        return err_sys("recipe");
    for (char *w = strtok_r(copy, " /", &save); w && !rc; w = strtok_r(NULL, " /", &save)) {
        if (n == 3 * MAX_POLAR)
            rc = recipe_error(r, l, "more than %d rows", MAX_POLAR);
        else if (num_f64(w, "coeffs", -1e6, 1e6, &r->optimizer.polar.row[n / 3][n % 3]))
            rc = recipe_error(r, l, "row %d: not a number: '%s'", n / 3 + 1, w);
        n++;
    }
    free(copy);
    if (!rc && (n == 0 || n % 3))
        rc = recipe_error(r, l, "expected rows of three numbers, found %d numbers", n);
    r->optimizer.polar.n = n / 3;
    return rc;
}

/* Whole numbers between commas as bits; "-": none. */
static int counts(struct recipe *r, const struct recipe_line *l, const struct key *k, unsigned *out)
{
    char *copy = strdup(strcmp(l->value, "-") ? l->value : ""), *save = NULL;
    int64_t n;
    int rc = copy ? 0 : err_sys("recipe");
    *out = 0;
    for (char *w = copy ? strtok_r(copy, ",", &save) : NULL; w && !rc;
         w = strtok_r(NULL, ",", &save))
        if (num_i64(w, k->key, (int64_t)k->lo, (int64_t)k->hi, &n))
            rc = recipe_error(r, l,
                              "expected '-' or numbers from %.0f to %.0f between commas, found "
                              "'%s'",
                              k->lo, k->hi, l->value);
        else
            *out |= 1u << n;
    free(copy);
    return rc;
}

/* Numbers of blocks between blanks; "-": none. */
static int windows(struct recipe *r, const struct recipe_line *l, const struct key *k)
{
    char *copy = strdup(strcmp(l->value, "-") ? l->value : ""), *save = NULL;
    int *n = &r->model.rope_windows.n, rc = copy ? 0 : err_sys("recipe");
    int64_t at;
    *n = 0;
    for (char *w = copy ? strtok_r(copy, " ", &save) : NULL; w && !rc;
         w = strtok_r(NULL, " ", &save))
        if (*n == MAX_ROPE_WINDOWS || num_i64(w, k->key, (int64_t)k->lo, (int64_t)k->hi, &at))
            rc = recipe_error(r, l, "expected '-' or up to %d numbers in [%.0f, %.0f], found '%s'",
                              MAX_ROPE_WINDOWS, k->lo, k->hi, l->value);
        else
            r->model.rope_windows.at[(*n)++] = (int)at;
    free(copy);
    return rc;
}

static int tied(struct recipe *r, const struct recipe_line *l)
{
    char a[LABEL_SIZE], b[LABEL_SIZE], rest;
    r->order.tied_head = r->order.tied_embed = -1;
    if (!strcmp(l->value, "-"))
        return 0;
    if (sscanf(l->value, "%31s %31s %c", a, b, &rest) != 2)
        return recipe_error(r, l, "expected 'HEAD EMBEDDING' or '-', found '%s'", l->value);
    r->order.tied_head = recipe_param(r, a);
    r->order.tied_embed = recipe_param(r, b);
    if (r->order.tied_head < 0 || r->order.tied_embed < 0)
        return recipe_error(r, l, "'%s' is no parameter", r->order.tied_head < 0 ? a : b);
    const struct param_spec *h = &r->params[r->order.tied_head],
                            *t = &r->params[r->order.tied_embed];
    if (h->matrices * t->matrices != 1 || h->rows != t->cols || h->cols != t->rows || h == t)
        return recipe_error(r, l, "shapes %lldx%lldx%lld and %lldx%lldx%lld are not transposes",
                            (long long)h->matrices, (long long)h->rows, (long long)h->cols,
                            (long long)t->matrices, (long long)t->rows, (long long)t->cols);
    bool alike =
        !strcmp(h->rule.name, t->rule.name) || (rule_is_adam(&h->rule) && rule_is_adam(&t->rule));
    if (h->dtype != t->dtype || !alike || h->comms != t->comms)
        return recipe_error(r, l, "expected both of one type, rule and comms");
    return 0;
}

/* Labels, each at most once; "-": none. */
static int labels(struct recipe *r, const struct recipe_line *l, int *list, int *n)
{
    bool seen[MAX_PARAMS] = { false };
    char *copy = strdup(strcmp(l->value, "-") ? l->value : ""), *save = NULL;
    int rc = 0;
    if (!copy)
        return err_sys("recipe");
    *n = 0;
    for (char *s = strtok_r(copy, " ", &save); s && !rc; s = strtok_r(NULL, " ", &save)) {
        int p = recipe_param(r, s);
        if (p < 0)
            rc = recipe_error(r, l, "'%s' is no parameter", s);
        else if (seen[p])
            rc = recipe_error(r, l, "'%s' stands twice", s);
        else
            seen[list[(*n)++] = p] = true;
    }
    free(copy);
    return rc;
}

/* All labels, each once. */
static int order(struct recipe *r, const struct recipe_line *l, int *list)
{
    bool listed[MAX_PARAMS] = { false };
    int n, rc = labels(r, l, list, &n);
    for (int k = 0; k < n && !rc; k++)
        listed[list[k]] = true;
    for (int i = 0; i < r->n_params && !rc; i++)
        if (!listed[i])
            rc = recipe_error(r, l, "'%s' is missing", r->params[i].label);
    return rc;
}

static int bind_key(struct recipe *r, const struct key *k, struct recipe_line *l)
{
    void *field = (char *)r + k->field;
    int64_t v;
    double d[3];
    int rc;
    switch (k->kind) {
    case K_NAME:
        if (strlen(l->value) >= sizeof r->name)
            return recipe_error(r, l, "longer than %zu characters", sizeof r->name - 1);
        strcpy(field, l->value);
        return 0;
    case K_HASH:
        if (strcmp(l->value, "-") &&
            (strlen(l->value) != 32 || strspn(l->value, "0123456789abcdef") != 32))
            return recipe_error(r, l, "expected '-' or 32 hexadecimal digits, found '%s'",
                                l->value);
        strcpy(field, strcmp(l->value, "-") ? l->value : "");
        return 0;
    case K_INT:
        if ((rc = whole(r, l, k, &v)) == 0)
            *(int *)field = (int)v;
        return rc;
    case K_I64: return whole(r, l, k, field);
    case K_REAL: return reals(r, l, k, field, 1);
    case K_SCALE:
        *(double *)field = strcmp(l->value, "delayed") ? 0 : SCALE_DELAYED;
        if (*(double *)field != 0 || !strcmp(l->value, "row") ||
            !recipe_real(l->value, k->key, k->lo, k->hi, field))
            return 0;
        return recipe_error(r, l, "expected row, delayed or a number in [%g, %g], found '%s'",
                            k->lo, k->hi, l->value);
    case K_EVERY: return every(r, l, k);
    case K_RANGE: return range(r, l, k, field);
    case K_REAL3: return reals(r, l, k, field, 3);
    case K_INT2:
        if (!strcmp(l->value, "-"))
            d[0] = d[1] = -1;
        else if ((rc = reals(r, l, k, d, 2)))
            return rc;
        if (d[0] != (int)d[0] || d[1] != (int)d[1])
            return recipe_error(r, l, "expected whole numbers, found '%s'", l->value);
        ((int *)field)[0] = (int)d[0];
        ((int *)field)[1] = (int)d[1];
        return 0;
    case K_BOOL:
    case K_UNREAD:
        if (strcmp(l->value, "yes") && strcmp(l->value, "no"))
            return recipe_error(r, l, "expected yes or no, found '%s'", l->value);
        if (k->kind == K_BOOL)
            *(bool *)field = !strcmp(l->value, "yes");
        return 0;
    case K_WORD:
    case K_TRUTH:
    case K_DTYPE: return choice(r, l, k);
    case K_COEFFS: return coeffs(r, l);
    case K_COUNTS: return counts(r, l, k, field);
    case K_WINDOWS: return windows(r, l, k);
    case K_TIED: return tied(r, l);
    case K_ORDER: return order(r, l, field);
    case K_LABELS: return labels(r, l, field, &r->order.n_late);
    }
    return 0;
}

/* A key that the recipe leaves out gets its default, as a line of its own. */
static int default_key(struct recipe *r, const struct key *k)
{
    if (!k->dflt)
        return recipe_error(r, NULL, "%s%s%s is missing", k->section, *k->section ? "." : "",
                            k->key);
    return recipe_add_default(r, k->section, k->key, k->dflt);
}

static int bind_section(struct recipe *r, const char *section)
{
    for (int i = 0; i < N_KEYS; i++) {
        const struct key *k = &keys[i];
        if (strcmp(k->section, section))
            continue;
        int rc = recipe_find(r, section, k->key) ? 0 : default_key(r, k);
        struct recipe_line *l = recipe_find(r, section, k->key);
        if (!rc && !(rc = bind_key(r, k, l)))
            l->used = true;
        if (rc)
            return rc;
    }
    return 0;
}

/* A table for the norm is of no use after AOL, unless the word says so; a restart is between two rows. */
static int check_optimizer(struct recipe *r)
{
    if (r->optimizer.polar.form == POLAR_FORM_GRAM &&
        r->optimizer.polar.restart >> r->optimizer.polar.n)
        return recipe_error(r, recipe_find(r, "optimizer", "restart"),
                            "the table has %d rows: expected '-' or counts below that",
                            r->optimizer.polar.n);
    if (!r->optimizer.polar.aol || r->optimizer.polar.for_aol)
        return 0;
    return recipe_error(r, recipe_find(r, "optimizer", "coeffs"),
                        "the rows are for input scaled by its norm, and aol = yes: expected 'aol' "
                        "and rows made for it (ns-coeffs aol)");
}

static int check_model(struct recipe *r)
{
    /* exp(z) must stay in range in f32, summed over the vocabulary: |z| <= a < 88 - log(V). */
    if (r->model.softcap.a <= 0 || r->model.softcap.a > 70 || r->model.softcap.c == 0)
        return recipe_error(r, recipe_find(r, "model", "softcap"),
                            "expected 0 < a <= 70 and c not 0, found %g and %g", r->model.softcap.a,
                            r->model.softcap.c);
    if (r->model.head_dim % 4)
        return recipe_error(r, recipe_find(r, "model", "head_dim"),
                            "expected a multiple of 4, found %d", r->model.head_dim);
    if (r->model.qk_dim % 4 || r->model.qk_dim > r->model.head_dim)
        return recipe_error(r, recipe_find(r, "model", "qk_head_dim"),
                            "expected a multiple of 4, at most head_dim, %d; found %d",
                            r->model.head_dim, r->model.qk_dim);
    if (r->model.rope_dim % 2 || r->model.rope_dim > r->model.qk_dim)
        return recipe_error(r, recipe_find(r, "model", "rope_dim"),
                            "expected an even number, at most qk_head_dim, %d; found %d",
                            r->model.qk_dim, r->model.rope_dim);
    if (r->model.bigram.width > r->model.width)
        return recipe_error(r, recipe_find(r, "model", "bigram_width"),
                            "expected at most the model's width, %d", r->model.width);
    if (r->model.bigram.signs && !r->model.bigram.rows)
        return recipe_error(r, recipe_find(r, "model", "bigram_signs"),
                            "signs need a bigram table, but model.bigram_rows is 0: "
                            "model.bigram_rows=N makes one");
    if (r->model.bigram.rows == 1)
        return recipe_error(r, recipe_find(r, "model", "bigram_rows"),
                            "expected 0 or two rows at least, found 1");
    return 0;
}

/* Proposes the nearest numbers of chunks, below and above. */
static int undivided(struct recipe *r, const struct recipe_line *l, int64_t tokens)
{
    int64_t above = r->data.chunks, below = above;
    while (tokens % below)
        below--;
    while (above < tokens && tokens % above)
        above++;
    return recipe_error(
        r, l,
        "%lld tokens a step do not divide into %d chunks (data.chunks); %lld and %lld "
        "divide them",
        (long long)tokens, r->data.chunks, (long long)below, (long long)above);
}

/* Tokens of a micro-batch and keys of a window are counted in ints, some of them twice. */
static int check_stages(struct recipe *r)
{
    for (int i = 0; i < r->n_stages; i++) {
        const struct stage *s = &r->stages[i];
        int window = s->window > r->schedule.final_window ? s->window : r->schedule.final_window;
        const struct recipe_line *l = recipe_find_row(r, "stages", i);
        if (s->tokens % r->data.chunks)
            return undivided(r, l, s->tokens);
        if (s->tokens / r->data.chunks > MAX_CHUNK_TOKENS)
            return recipe_error(r, l, "%lld tokens in %d chunks: expected at most %d in each",
                                (long long)s->tokens, r->data.chunks, MAX_CHUNK_TOKENS);
        if ((int64_t)window * r->model.block > MAX_WINDOW)
            return recipe_error(r, l,
                                "windows of %d blocks of %d tokens: expected at most %d "
                                "tokens",
                                window, r->model.block, MAX_WINDOW);
    }
    return 0;
}

/* Rows have one length, of which all batches are made. */
static int check_rows(struct recipe *r)
{
    int row = r->stages[0].sequence;
    for (int i = 0; i < r->n_stages; i++)
        if (r->stages[i].sequence != row || r->stages[i].tokens / r->data.chunks % row)
            return recipe_error(r, recipe_find_row(r, "stages", i),
                                "cut = rows: expected rows of one length, that of stage 0, %d, "
                                "which divides the %lld tokens of a micro-batch; found %d",
                                row, (long long)(r->stages[i].tokens / r->data.chunks),
                                r->stages[i].sequence);
    int64_t most = r->data.val.chunk;
    for (int i = 0; i < r->n_stages; i++)
        if (r->stages[i].tokens / r->data.chunks > most)
            most = r->stages[i].tokens / r->data.chunks;
    if (r->data.max_documents < most / row)
        r->data.max_documents = (int)(most / row);
    if (r->data.val.chunk % row)
        return recipe_error(r, recipe_find(r, "data", "val_chunk"),
                            "cut = rows: expected a multiple of a row, %d tokens, found %lld", row,
                            (long long)r->data.val.chunk);
    return 0;
}

static int check_data(struct recipe *r)
{
    bool said = r->data.piece;
    int rc = r->data.cut == CUT_ROWS ? check_rows(r) : 0;
    if (rc)
        return rc;
    if (r->data.cut != CUT_PIECES && r->data.piece)
        return recipe_error(r, recipe_find(r, "data", "piece"),
                            "pieces are of cut = pieces, and cut is another");
    for (int i = 0; r->data.cut == CUT_PIECES && i < r->n_stages && !said; i++)
        if (r->stages[i].sequence > r->data.piece)
            r->data.piece = r->stages[i].sequence;
    if (r->data.val.tokens % r->data.val.chunk)
        return recipe_error(r, recipe_find(r, "data", "val_tokens"),
                            "expected a multiple of val_chunk, %lld tokens, found %lld",
                            (long long)r->data.val.chunk, (long long)r->data.val.tokens);
    return 0;
}

static int check_precision(struct recipe *r)
{
    for (int i = 0; i < r->n_params; i++) {
        struct param_spec *p = &r->params[i];
        bool head = !strcmp(p->label, "lm_head");
        if (p->codes && (!head || !r->precision.head.fp8))
            return recipe_error(r, recipe_find(r, "parameters", p->label),
                                "a copy in e4m3 is for lm_head, with head_fp8 = yes: nothing else "
                                "reads it");
        p->codes |= head && r->precision.head.fp8 && p->stored == DT_E4M3;
    }
    int bias = recipe_param(r, "head_bias");
    if (bias >= 0 && recipe_gradient(r, &r->params[bias]) != DT_F32)
        return recipe_error(r, recipe_find(r, "parameters", "head_bias"),
                            "expected a gradient in f32: f32, f32/bf16, or gradients = f32");
    if (r->precision.mlp.fp8 && recipe_own_mlp(r))
        return recipe_error(r, recipe_find(r, "precision", "mlp"),
                            "products in fp8 read 'mlp', and the recipe has 'up_bank'");
    if ((r->precision.mlp.down_fp8 || r->precision.mlp.backward_fp8) && !r->precision.mlp.fp8)
        return recipe_error(
            r, recipe_find(r, "precision", r->precision.mlp.down_fp8 ? "mlp_down" : "mlp_backward"),
            "the MLPs' other products are in fp8 where the first is: mlp = fp8");
    if (r->precision.mlp.down_fp8 == DOWN_DELAYED && r->precision.mlp.backward_fp8)
        return recipe_error(r, recipe_find(r, "precision", "mlp_backward"),
                            "the backward in fp8 has scales of its own: mlp_down = bf16 or fp8");
    if (r->precision.mlp.grads && !r->precision.mlp.backward_fp8)
        return recipe_error(r, recipe_find(r, "precision", "mlp_grads"),
                            "weight gradients in fp8 are of the codes of mlp_backward = fp8");
    if (r->precision.attn.backward_fp8 && !r->precision.attn.fp8)
        return recipe_error(r, recipe_find(r, "precision", "attn_backward"),
                            "the gradients' products are in fp8 where the projections are: attn = "
                            "fp8");
    if (r->precision.attn.out_fp8 && (!r->precision.attn.fp8 || recipe_param(r, "o_bias") >= 0))
        return recipe_error(r, recipe_find(r, "precision", "attn_out"),
                            "the output projection is in fp8 where the others are, attn = fp8, "
                            "without a bias");
    if (r->precision.attn.fp8 && recipe_param(r, "qkv_bias") >= 0)
        return recipe_error(r, recipe_find(r, "precision", "attn"),
                            "projections in fp8 have no biases, and the recipe has 'qkv_bias'");
    return 0;
}

/* In the order of the canonical text. */
static const char *const sections[] = { "",          "model",     "layers",      "parameters",
                                        "scalars",   "rules",     "token_coefs", "order",
                                        "optimizer", "schedule",  "schedules",   "stages",
                                        "data",      "precision", "states" };
enum { N_SECTIONS = sizeof sections / sizeof *sections };

int recipe_check_section(const struct recipe *r, const char *section, int line)
{
    struct suggest s = suggest_for(section);
    for (int i = 0; i < N_SECTIONS; i++) {
        if (!strcmp(sections[i], section))
            return 0;
        suggest_try(&s, sections[i]);
    }
    return line ? err_set(GPT_INPUT, "%s:%d: unknown section '%s'%s", r->text->name, line, section,
                          suggest_text(&s))
                : err_set(GPT_USAGE, "--set %s: unknown section '%s'%s", section, section,
                          suggest_text(&s));
}

static bool is_numbered(const char *section)
{
    return !strcmp(section, "layers") || !strcmp(section, "stages") ||
           !strcmp(section, "token_coefs");
}

static int unknown_key(const struct recipe *r, const struct recipe_line *l)
{
    struct suggest s = suggest_for(l->key);
    char elsewhere[64];
    for (int i = 0; i < N_KEYS; i++)
        if (!strcmp(keys[i].section, l->section))
            suggest_try(&s, keys[i].key);
    for (int i = 0; i < N_KEYS && !s.best; i++)
        if (!strcmp(keys[i].key, l->key)) { /* in another section */
            snprintf(elsewhere, sizeof elsewhere, "%s%s%s", keys[i].section,
                     *keys[i].section ? "." : "", l->key);
            s.best = elsewhere;
        }
    return recipe_error(r, l, "unknown key%s", suggest_text(&s));
}

static bool is_key(const struct recipe_line *l)
{
    for (int i = 0; i < N_KEYS; i++)
        if (!strcmp(keys[i].section, l->section) && !strcmp(keys[i].key, l->key))
            return true;
    return false;
}

/* The n rows of such a table are 0 to n - 1, in any order. */
static int check_row_number(const struct recipe *r, const struct recipe_line *l)
{
    int n = 0, missing = 0;
    char key[12];
    if (!*l->key || l->key[strspn(l->key, "0123456789")])
        return recipe_error(r, l, "expected the number of a row, found '%s'", l->key);
    for (int i = 0; i < r->text->n; i++)
        n += !strcmp(r->text->line[i].section, l->section);
    for (int i = 0; i < n; i++) {
        snprintf(key, sizeof key, "%d", i);
        if (!strcmp(key, l->key))
            return 0;
    }
    while (recipe_find_row(r, l->section, missing))
        missing++;
    return recipe_error(r, l, "expected row %d: the %d rows of [%s] are 0, 1, 2 ..., one each",
                        missing, n, l->section);
}

/* True if the section's keys are names that the recipe gives. */
static bool has_lines(const char *section)
{
    return !strcmp(section, "rules") || !strcmp(section, "schedules");
}

/* Before anything is bound, so that a mistyped name is not reported as another that is missing. */
static int check_names(const struct recipe *r)
{
    for (int i = 0; i < r->text->n; i++) {
        const struct recipe_line *l = &r->text->line[i];
        int rc = recipe_check_section(r, l->section, l->number);
        if (rc)
            return rc;
        if (is_numbered(l->section)) {
            if ((rc = check_row_number(r, l)))
                return rc;
        } else if (!strcmp(l->section, "parameters") || !strcmp(l->section, "scalars")) {
            if ((rc = recipe_check_label(r, l)))
                return rc;
        } else if (strcmp(l->section, "states") && !has_lines(l->section) && !is_key(l)) {
            return unknown_key(r, l);
        }
    }
    return 0;
}

/* States of tied parameters change hands (optimizers.md 5). */
static int check_tied_states(struct recipe *r)
{
    if (r->order.tied_head < 0)
        return 0;
    const struct param_spec *h = &r->params[r->order.tied_head],
                            *t = &r->params[r->order.tied_embed];
    if (h->stored != DT_NONE || t->stored != DT_NONE)
        return recipe_error(r, recipe_find(r, "order", "tied"),
                            "tied parameters have weights in f32 or bf16");
    bool alike = h->exp_avg == t->exp_avg && h->exp_avg_sq == t->exp_avg_sq &&
                 h->master == t->master && h->truncate == t->truncate && h->every == t->every;
    return alike ? 0
                 : recipe_error(r, recipe_find(r, "order", "tied"),
                                "tied parameters take the same master and moments, and move in "
                                "the same steps: say so in [states]");
}

/* Recipes before weights had types of their own: precision.head_weight, bf16 or fp8. The latter becomes
 * a copy in e4m3 in the row of lm_head. */
static int old_head_weight(struct recipe *r)
{
    struct recipe_line *l = recipe_find(r, "precision", "head_weight");
    struct recipe_line *row = recipe_find(r, "parameters", "lm_head");
    char *type, *end, *with;
    if (!l)
        return 0;
    if (strcmp(l->value, "bf16") && strcmp(l->value, "fp8"))
        return recipe_error(r, l, "expected bf16|fp8, found '%s'", l->value);
    if (!strcmp(l->value, "fp8") && row && (type = strchr(row->value, ' '))) {
        end = type + 1 + strcspn(type + 1, " ");
        if (!(with = malloc(strlen(row->value) + sizeof "/e4m3")))
            return err_memory();
        sprintf(with, "%.*s/e4m3%s", (int)(end - row->value), row->value, end);
        free(row->value);
        row->value = with;
    }
    recipe_drop(r, l);
    return 0;
}

int recipe_bind(struct recipe *r)
{
    int rc = old_head_weight(r);
    if (!rc)
        rc = check_names(r);
    if (!rc)
        rc = recipe_add_published(r);
    if (rc)
        return rc;
    if ((rc = bind_section(r, "")) || (rc = bind_section(r, "model")))
        return rc;
    r->model.width = r->model.heads * r->model.head_dim;
    if (!r->model.qk_dim)
        r->model.qk_dim = r->model.head_dim;
    if (!r->model.rope_dim)
        r->model.rope_dim = r->model.qk_dim / 2;
    if (!r->model.bigram.width)
        r->model.bigram.width = r->model.width;
    if ((rc = recipe_bind_schedules(r)) || (rc = recipe_bind_params(r)) ||
        (rc = recipe_bind_layers(r)) || (rc = recipe_bind_scalars(r)) ||
        (rc = recipe_bind_token_terms(r)) || (rc = bind_section(r, "order")) ||
        (rc = bind_section(r, "optimizer")) || (rc = recipe_bind_rules(r)) ||
        (rc = bind_section(r, "schedule")) || (rc = recipe_bind_stages(r)) ||
        (rc = bind_section(r, "data")) || (rc = bind_section(r, "precision")) ||
        (rc = recipe_bind_states(r)) || (rc = recipe_check_around(r)) ||
        (rc = check_tied_states(r)) || (rc = check_model(r)) || (rc = check_optimizer(r)) ||
        (rc = check_stages(r)) || (rc = check_data(r)) || (rc = check_precision(r)) ||
        (rc = recipe_check(r)))
        return rc;
    for (int i = 0; i < r->text->n; i++)
        if (!r->text->line[i].used)
            return recipe_error(r, &r->text->line[i], "expected rows 0, 1, 2 ..., one each");
    return 0;
}

static bool has_section(const struct recipe *r, const char *section)
{
    for (int i = 0; i < r->text->n; i++)
        if (!strcmp(r->text->line[i].section, section))
            return true;
    return false;
}

static bool is_quiet(const struct key *k, const struct recipe_line *l)
{
    char name[64];
    snprintf(name, sizeof name, "%s.%s", k->section, k->key);
    for (int i = 0; quiet[i]; i++)
        if (!strcmp(quiet[i], name))
            return !strcmp(l->value, k->dflt);
    return false;
}

/* Sections in a fixed order; keys in the order of the table, rows in the order read. */
int recipe_print(struct recipe *r)
{
    char *buf = NULL;
    size_t size;
    FILE *f = open_memstream(&buf, &size);
    if (!f)
        return err_sys("recipe");
    for (size_t s = 0; s < N_SECTIONS; s++) {
        bool table = true;
        bool lines = has_lines(sections[s]);
        if ((lines || !strcmp(sections[s], "states") || !strcmp(sections[s], "token_coefs")) &&
            !has_section(r, sections[s]))
            continue;
        if (*sections[s])
            fprintf(f, "\n[%s]\n", sections[s]);
        for (int i = 0; i < N_KEYS; i++)
            if (!strcmp(keys[i].section, sections[s])) {
                table = false;
                if (is_quiet(&keys[i], recipe_find(r, sections[s], keys[i].key)))
                    continue;
                fprintf(f, "%s = %s\n", keys[i].key,
                        recipe_find(r, sections[s], keys[i].key)->value);
            }
        for (int i = 0; table && i < r->text->n; i++)
            if (!strcmp(r->text->line[i].section, sections[s]))
                fprintf(f, lines ? "%s = %s\n" : "%s %s\n", r->text->line[i].key,
                        r->text->line[i].value);
    }
    if (fclose(f))
        return err_sys("recipe");
    r->text->canonical = buf;
    return 0;
}

void recipe_key_words(FILE *f)
{
    for (int i = 0; i < N_KEYS; i++)
        if (keys[i].kind != K_UNREAD)
            fprintf(f, " %s%s%s=", keys[i].section, *keys[i].section ? "." : "", keys[i].key);
}
