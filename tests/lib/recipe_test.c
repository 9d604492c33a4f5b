/* recipe_test.c - recipes as text, and record 61's schedule against its published values. */
#include "check.h"

#include <math.h>
#include <stdlib.h>
#include "base/file.h"
#include "ops/ops.h"
#include "recipe/schedule.h"

static const char *recipe_path(const char *name)
{
    static char path[512];
    const char *share = getenv("GPT_SHARE");
    snprintf(path, sizeof path, "%s/recipes/%s.recipe", share ? share : "share", name);
    return path;
}

static struct recipe *read_recipe(const char *name, const char *set)
{
    struct recipe *r = NULL;
    CHECK_OK(recipe_read(&r, recipe_path(name), &set, set != NULL));
    return r;
}

/* The canonical text reads back to the same recipe. */
static void test_canonical(const char *name)
{
    struct recipe *a = read_recipe(name, NULL), *b = NULL;
    if (!a)
        return;
    CHECK_OK(recipe_parse(&b, "copy", recipe_canonical(a), NULL, 0));
    CHECK_STR(recipe_canonical(b), recipe_canonical(a));
    CHECK_STR(b->hash, a->hash);
    recipe_free(a);
    recipe_free(b);
}

/* A list of multipliers longer than a pattern freezes one matrix of forty. */
static void test_multipliers(void)
{
    struct recipe *r = read_recipe("record-61", "parameters.attn.lr=1*26,0,1*13"), *copy = NULL;
    if (!r)
        return;
    const struct param_spec *p = &r->params[recipe_param(r, "attn")];
    CHECK_EQ(p->n_lr, 40);
    for (int i = 0; i < p->n_lr; i++)
        CHECK(p->lr_mul[i] == (i == 26 ? 0 : 1));
    CHECK_OK(recipe_parse(&copy, "copy", recipe_canonical(r), NULL, 0));
    CHECK_EQ(copy ? copy->params[recipe_param(copy, "attn")].n_lr : 0, 40);
    recipe_free(r);
    recipe_free(copy);
}

static void refuse_in(const char *recipe, const char *set, int code, const char *part)
{
    struct recipe *r = NULL;
    CHECK_ERR(recipe_read(&r, recipe_path(recipe), &set, 1), code, part);
    CHECK(r == NULL);
}

static void refuse(const char *set, int code, const char *part)
{
    refuse_in("record-61", set, code, part);
}

static void test_refused(void)
{
    refuse("model.depth=3", GPT_USAGE, "model.depth");
    refuse("model.hedas=3", GPT_USAGE, "unknown key, did you mean 'heads'?");
    refuse("heads=3", GPT_USAGE, "unknown key, did you mean 'model.heads'?");
    refuse("modle.heads=3", GPT_USAGE, "unknown section 'modle', did you mean 'model'?");
    refuse("scalars.skpi=scalars 0 1", GPT_USAGE, "did you mean 'skip'?");
    refuse("parameters.lm_haed=40,d,d", GPT_USAGE, "did you mean 'lm_head'?");
    refuse("layers.x=3", GPT_USAGE, "the number of a row, found 'x'");
    refuse("model.head_dim=7", GPT_USAGE, "multiple of 4");
    refuse("model.rope_windows=3 0", GPT_USAGE,
           "expected '-' or up to 32 numbers in [1, 65536], found '3 0'");
    refuse(
        "model.rope_windows=1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 "
        "28 29 30 31 32 33",
        GPT_USAGE, "up to 32 numbers");
    refuse("schedule.steps=0", GPT_USAGE, "[1, 10000000]");
    refuse("schedule.steps=-1450", GPT_USAGE, "'-1450'");
    refuse("optimizer.adam_lr=nan", GPT_USAGE, "'nan'");
    refuse("model.heads", GPT_USAGE, "section.key=value");
    refuse("model.heads=0", GPT_USAGE, "[1, 1024]");
    refuse("model.heads=six", GPT_USAGE, "'six'");
    refuse("model.heads=5", GPT_USAGE, "layers.0: paired heads need an even number, found 5");
    refuse("model.softcap=1 2", GPT_USAGE, "expected 3 numbers");
    refuse("model.softcap=100 5 7.5", GPT_USAGE, "a <= 70");
    refuse("model.bigram_rows=1", GPT_USAGE, "two rows");
    refuse("parameters.ve0=b,d bf16 zero adam sharded 0.75 0.95 75 5 no", GPT_USAGE, "bigram_rows");
    refuse("parameters.ve0=v,d bf16 zero adam sparse 0.75 0.95 75 5 no", GPT_USAGE, "bigram_embed");
    refuse("precision.adam_states=e5m2", GPT_USAGE, "weight|f32|bf16|f16|e4m3");
    refuse("states.embed=f32 - - -", GPT_USAGE,
           "order.tied: tied parameters take the same master and moments");
    refuse("states.embed=truncate - - -", GPT_USAGE,
           "order.tied: tied parameters take the same master and moments");
    refuse("states.ve0=f32 f32 f32", GPT_USAGE, "4");
    refuse("states.ve0=f32 f32 f32 - 2 3", GPT_USAGE, "expected 5 columns");
    refuse("states.ve0=- - - - 0", GPT_USAGE, "a number of steps in [1, 1024], found '0'");
    refuse("states.ve0=- - - - 1023", GPT_USAGE, "after 2046 steps, more than 1024");
    refuse("states.embed=- - - - 4", GPT_USAGE, "move in the same steps");
    refuse("states.ve9=f32 f32 f32 nearest", GPT_USAGE, "'ve9' is no parameter");
    refuse("states.attn=f32 f32 f32 nearest", GPT_USAGE, "'attn' is not under adam");
    refuse("states.scalars=f32 - - -", GPT_USAGE,
           "a master is for a narrower weight, and 'scalars' is in f32");
    refuse("parameters.ve0=v,d fp8 zero adam sharded 0.75 0.95 75 5 no", GPT_USAGE,
           "expected bf16|f32|f16|e4m3|bf16/e4m3|f32/e4m3|f32/bf16, found 'fp8'");
    refuse("parameters.ve0=v,d bf16/e4m3 zero adam sharded 0.75 0.95 75 5 no", GPT_USAGE,
           "a copy in e4m3 is for lm_head, with head_fp8 = yes");
    refuse("parameters.embed=v,d e4m3 transpose:lm_head adam sharded 0.5 0.95 1 150 no", GPT_USAGE,
           "order.tied: tied parameters have weights in f32 or bf16");
    refuse("precision.mlp_down=fp8", GPT_USAGE, "mlp = fp8");
    refuse("precision.mlp_backward=fp8", GPT_USAGE, "mlp = fp8");
    refuse("precision.mlp_grads=up", GPT_USAGE, "mlp_backward = fp8");
    refuse("precision.mlp_grads=both", GPT_USAGE, "mlp_backward = fp8");
    refuse("precision.mlp_grads=fp8", GPT_USAGE, "bf16|up|both");
    refuse("precision.attn_backward=fp8", GPT_USAGE, "where the projections are: attn = fp8");
    refuse("precision.attn_out=fp8", GPT_USAGE, "where the others are, attn = fp8");
    refuse("precision.attn=e4m3", GPT_USAGE, "bf16|fp8");
    refuse("precision.attn_input_scale=0", GPT_USAGE, "attn_input_scale");
    refuse("precision.head_weight=f8", GPT_USAGE, "expected bf16|fp8, found 'f8'");
    refuse("states.embed=- e4m3 - -", GPT_USAGE,
           "order.tied: tied parameters take the same master and moments");
    refuse("model.attn_scale=nan", GPT_USAGE, "nan");
    refuse("order.work=attn attn", GPT_USAGE, "twice");
    refuse("order.work=attn", GPT_USAGE, "missing");
    refuse("order.scatter=attn mlp foo", GPT_USAGE, "'foo' is no parameter");
    refuse("order.tied=attn embed", GPT_USAGE, "transposes");
    refuse("parameters.embed=v,d bf16 zero adam replicated 0.5 0.95 1 150 no", GPT_USAGE,
           "order.tied: expected both of one type, rule and comms");
    refuse("parameters.embed=v,d bf16 zero sgd sharded - - 1 150 no", GPT_USAGE,
           "order.tied: expected both of one type, rule and comms");
    refuse("parameters.ve0=v,d bf16 zero sgd sharded - - 1,2 1 no", GPT_USAGE,
           "one matrix takes one multiplier, found 2");
    refuse("parameters.ve0=v,d bf16 zero muon sharded - - 1 1 no", GPT_USAGE,
           "muon is for banks, by its stage polar");
    refuse("order.late=smear_gate", GPT_USAGE, "does not wait for 'smear_gate'");
    refuse("optimizer.coeffs=1 2", GPT_USAGE, "rows of three");
    refuse("optimizer.coeffs=1 2 x", GPT_USAGE, "not a number");
    refuse("optimizer.coeffs=no-such-table", GPT_SYSTEM, "no-such-table");
    refuse("optimizer.coeffs=./no-such-table", GPT_SYSTEM, "./no-such-table");
    refuse("data.cycle=maybe", GPT_USAGE, "yes or no");
    refuse("model.skip=3.5 6", GPT_USAGE, "expected whole numbers, found '3.5 6'");
    refuse("precision.head_scales=1/0 1 1", GPT_USAGE, "1/0");
    refuse("layers.3=plain 3 long yes nope - 3 3", GPT_USAGE, "'nope' is no parameter");
    refuse("layers.3=plain 3 long", GPT_USAGE, "8 columns");
    refuse("layers.3=plain 10 long yes - - 3 3", GPT_USAGE, "attention bank 10 is outside 'attn'");
    refuse("layers.3=plain 2 long yes - - 3 3", GPT_USAGE, "layer 2 has the same attention bank");
    refuse("model.gate_table=8", GPT_USAGE, "expected a multiple of 6 rows of 20, found 60 of 12");
    refuse("model.gate_table=4", GPT_USAGE, "expected a multiple of 8, 12 heads at most");
    refuse("layers.3=plain mlp:24 long yes - - 3 3", GPT_USAGE, "matrix 24 is outside 'mlp'");
    refuse("layers.3=plain mlp:21 long yes - - 3 3", GPT_USAGE,
           "layer 10 has the same matrix of 'mlp'");
    refuse("layers.3=plain mlp:-1 long yes - - 3 3", GPT_USAGE, "index in [0, 65535], found '-1'");
    refuse("layers.3=plain mlp:- long yes - - 3 3", GPT_USAGE, "attention needs a bank");
    refuse("layers.3=plain mlp:22 long yes - - 3 2", GPT_USAGE, "layer 2 has the same MLP");
    refuse("layers.3=plain 3 long yes - - 3 2", GPT_USAGE, "layer 2 has the same MLP");
    refuse("layers.3=plain 3 long yes ve1 1 3 3", GPT_USAGE, "more than two layers read table 0");
    refuse("layers.3=plain 3 long yes embed 1 3 3", GPT_USAGE, "'embed' has another role");
    refuse("layers.6=none - - no ve1 1 - 6", GPT_USAGE, "more than two layers");
    refuse("layers.8=plain 7 short no - - 7 8", GPT_USAGE, "does not wait for 've0'");
    refuse("layers.8=none 7 short no ve0 2 7 8", GPT_USAGE, "a value embedding needs attention");
    refuse("model.skip=-1 6", GPT_USAGE, "layer 6 cannot receive layer -1");
    refuse("model.skip=3 11", GPT_USAGE, "layers below 11");
    refuse("scalars.qkv=scalars - 2", GPT_USAGE, "found '-'");
    refuse("scalars.qkv=scalars 16 2", GPT_USAGE, "elements up to 36, 'scalars' has 36");
    refuse("scalars.qkv=smear_gate 0 1", GPT_USAGE, "must be f32");
    refuse("scalars.qvk=scalars 0 1", GPT_USAGE, "no scalar of this name");
    refuse("stages.0=131070 3 2048 1 1", GPT_USAGE, "divide into 8 chunks");
    refuse("stages.0=1000000000000 3 2048 1 1", GPT_USAGE, "at most 67108864");
    refuse("stages.0=131072 0 2048 1 1", GPT_USAGE, "window");
    refuse("stages.0=131072 10000000 2048 1 1", GPT_USAGE, "window");
    refuse("stages.0=131072 3 2048 - 1", GPT_USAGE, "learning rate: expected a number");
    refuse("stages.0=131072 3 2048 -1 1", GPT_USAGE, "[0, 1e6]");
    refuse("stages.3=393216 13 2048 1 1", GPT_USAGE, "'-' in the last row");
    refuse("stages.0=131072 3 2048 1 ,", GPT_USAGE, "weights of predicted tokens");
    struct recipe *r = NULL;
    CHECK_ERR(recipe_parse(&r, "x", "name = a\nname = b\n", NULL, 0), GPT_INPUT, "x:2");
    CHECK_ERR(recipe_parse(&r, "x", "[model\n", NULL, 0), GPT_INPUT, "x:1");
    CHECK_ERR(recipe_parse(&r, "x", "name = a\n", NULL, 0), GPT_INPUT, "missing");
    CHECK_ERR(recipe_parse(&r, "x", "nmae = a\n", NULL, 0), GPT_INPUT,
              "x:1: nmae: unknown key, did you mean 'name'?");
    CHECK_ERR(recipe_parse(&r, "x", "name = a\n[data]\nzzz = 1\n", NULL, 0), GPT_INPUT,
              "x:3: data.zzz: unknown key");
    CHECK_ERR(recipe_parse(&r, "x", "\n[paramters]\n", NULL, 0), GPT_INPUT,
              "x:2: unknown section 'paramters', did you mean 'parameters'?");
    CHECK_ERR(recipe_read(&r, "recrod-61", NULL, 0), GPT_USAGE, "did you mean 'record-61'?");
    const char *unread[] = { "layers.8=plain 7 short no - - 7 8", "order.late=-" };
    CHECK_ERR(recipe_read(&r, recipe_path("record-61"), unread, 2), GPT_USAGE,
              "ve0: nothing in the model reads it");
    CHECK_ERR(recipe_parse(&r, "x", "name\n", NULL, 0), GPT_INPUT, "key = value");
}

/* A row of [parameters], the whole of it but for its label. */
static void test_refused_parameters(void)
{
    refuse("parameters.attn=1G,1G,1G bf16 zero normuon sharded - 0.95 1 1 no", GPT_USAGE,
           "elements");
    refuse("parameters.attn=41,d,d bf16 zero normuon sharded - 0.95 1 1 no", GPT_USAGE,
           "a multiple of 3072 rows of 768, found 31488 of 768");
    refuse("parameters.attn=30720,768 bf16 zero normuon sharded - 0.95 1 1 no", GPT_USAGE,
           "normuon is for banks");
    refuse("parameters.attn=40,d,d bf16 , normuon sharded - 0.95 1 1 no", GPT_USAGE,
           "expected 1 to 8 initial values");
    refuse("parameters.attn=40,d,d bf16 zero normuon sharded 0.9 0.95 1 1 no", GPT_USAGE,
           "expected '-'");
    refuse("parameters.attn=40,d,d bf16 zero normuon sharded - 1 1 1 no", GPT_USAGE, "[0, 1)");
    refuse("parameters.attn=40,d,d bf16 zero normuon sharded - 0.95 , 1 no", GPT_USAGE,
           "expected 1 to 256 multipliers");
    refuse("parameters.attn.lr=1*200,2*57", GPT_USAGE, "expected 1 to 256 multipliers");
    refuse("parameters.attn.lr=1,0*0", GPT_USAGE, "expected a number from 1 to 256, found '0'");
    refuse("parameters.attn=40,d,d bf16 zero normuon sharded - 0.95 nan 1 no", GPT_USAGE, "'nan'");
    refuse("parameters.ve0=v,d bf16 zero adam sharded 0.75 0.95 75,5 5 no", GPT_USAGE,
           "adam takes one multiplier, found 2");
    refuse("parameters.ve0=v,d bf16 zero adam sharded - 0.95 75 5 no", GPT_USAGE, "[0, 1)");
    refuse("parameters.ve0=v,d bf16 transpose:ve1 adam sharded 0.75 0.95 75 5 no", GPT_USAGE,
           "transposed shape");
    refuse("parameters.ve0=v,f bf16 zero adam sharded 0.75 0.95 75 5 no", GPT_USAGE,
           "table 0 of 've0' needs 50304 rows of 768");
    refuse("parameters.ve0=2v,d bf16 zero adam sharded 0.75 0.95 75 5 no", GPT_USAGE,
           "no layer reads table 1 of it");
    refuse("parameters.skip_gate=1,12 bf16 zero adam sharded 0.9 0.99 0.05 0 no", GPT_USAGE,
           "replicated");
    refuse("parameters.x0_lambdas=1,11 f32 values:1*12 adam replicated 0.65 0.95 5 0 no", GPT_USAGE,
           "12 initial values for 11 elements");
    refuse("parameters.x0_lambdas=1,11 f32 zero adam sharded 0.65 0.95 5 0 no", GPT_USAGE,
           "'x0_lambdas' must be f32 and replicated");
}

/* What must hold between the forms of record 84. */
static void test_refused_forms(void)
{
    static const char *const cases[][2] = {
        { "parameters.vo_bank=20,d,d bf16 zero adam sharded 0.9 0.95 1 1 no",
          "expected the type, rule and steps of 'qk_bank'" },
        { "parameters.vo_bank=20,d,d f32 zero normuon sharded - 0.9 1 1 no",
          "expected the type, rule and steps of 'qk_bank'" },
        { "parameters.vo_bank=18,d,d bf16 zero normuon sharded - 0.9 1 1 no",
          "attention bank 9 is outside 'vo_bank'" },
        { "model.attend_as=6", "has attention as all after it" },
        { "model.attend_as=10", "receives no skip or term before its attention" },
        { "model.xsa=no", "nothing in the model reads it" },
        { "model.bigram_signs=0", "there is no model.bigram_signs" },
        { "token_coefs.1=10 value layer:10 1", "layer 10's output is not there" },
        { "token_coefs.1=10 value layer:5 1", "layer 5's output is not there" },
        { "token_coefs.1=10 value x0 1", "a layer has each term once" },
        { "token_coefs.6=10 value value_embeds:1 2", "no layer reads table 4 of it" },
        { "token_coefs.17=9 stream layer:3 1", "a layer of plain attention" },
        { "model.backout=3", "the model needs" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        refuse_in("record-84", cases[i][0], GPT_USAGE, cases[i][1]);
}

/* Checks what must hold between coefficients of tokens and the layers that use them. */
static void test_refused_coefs(void)
{
    static const char *const cases[][2] = {
        { "token_coefs.18=1 xsa - 1 x0", "'xsa' has a coefficient a head: expected h parts" },
        { "token_coefs.18=0 xsa - h x0", "expected a layer of plain attention" },
        { "token_coefs.21=6 x0 - 1 x0", "the model needs 'x0'" },
        { "token_coefs.42=7 skip - 1 layer:3", "the model needs 'skip_gate'" },
        { "token_coefs.29=3 xsa - h layer:3", "layer 3's output is not there" },
        { "token_coefs.29=4 xsa - h start", "expected -|x0|layer:N, found 'start'" },
        { "token_coefs.43=9 dc1 - h layer:3", "expected a layer of plain attention" },
        { "token_coefs.44=7 dc2 - h layer:3", "expected a layer of plain attention" },
        { "model.compose_window=0", "expected a layer of plain attention" },
        { "model.bigram_in_x0=yes", "expected a layer of plain attention" },
        { "token_coefs.9=10 x0 layer:3 1", "the other roles '-' and one part" },
        { "parameters.mudd_gate_b2=2,40 bf16 zero adam replicated 0.9 0.99 0.1 0 no",
          "expected a multiple of 40 rows of 64" },
        { "token_coefs.0=4 value start 1", "need as many matrices" },
        { "token_coefs.29=7 xsa - h layer:3", "a layer has each term once" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        refuse_in("record-89", cases[i][0], GPT_USAGE, cases[i][1]);
}

/* Weights of prefixes: a column of [stages] that may be absent. */
static void test_prefixes(void)
{
    static const double weight[][2] = { { 0, 0.25 }, { 459, 0.25 }, { 460, 0.5 }, { 690, 0.25 } };
    const char *set[] = { "stages.0=131072 3 896 1 1,0.5,0.25>0 0.25",
                          "stages.1=262144 7 2048 1.52 1,0.5>0 0.5>0" };
    struct recipe *r = read_recipe("record-84", NULL);
    struct step_schedule p;

    if (!r)
        return;
    CHECK(!recipe_prefixes(r));
    recipe_free(r);
    if (!CHECK_OK(recipe_read(&r, recipe_path("record-84"), set, 2)))
        return;
    CHECK(recipe_prefixes(r));
    for (size_t i = 0; i < sizeof weight / sizeof *weight; i++) {
        schedule_at(r, (int)weight[i][0], &p);
        CHECK(p.prefixes);
        CHECK_NEAR(p.prefix, weight[i][1], 1e-12);
    }
    schedule_at(r, 920, &p);
    CHECK(!p.prefixes);
    CHECK(p.prefix == 0);
    recipe_free(r);
    refuse("stages.0=131072 3 896 1 1 0.25 1", GPT_USAGE, "expected 6 columns after the key");
    refuse("stages.0=131072 3 896 1", GPT_USAGE, "expected 5 columns after the key, found 4");
    refuse("stages.0=131072 3 896 1 1 0.25>", GPT_USAGE, "stages.0");
    refuse("stages.0=131072 3 896 1 1 -0.5", GPT_USAGE, "stages.0");
}

/* A table of bigram rows, its size by letter. */
static void test_bigram_rows(void)
{
    const char *set = "model.bigram_rows=1281";
    struct recipe *r = read_recipe("record-61", NULL);
    if (r)
        CHECK_EQ(r->model.bigram.rows, 0);
    recipe_free(r);
    if (!(r = read_recipe("record-74", set)))
        return;
    CHECK_EQ(r->model.bigram.rows, 1281);
    CHECK_EQ(r->params[recipe_param(r, "bigram_embed")].rows, 1281);
    recipe_free(r);
}

static void test_fields(void)
{
    struct recipe *r = read_recipe("record-61", NULL);
    if (!r)
        return;
    CHECK_EQ(r->model.width, 768);
    CHECK_EQ(r->n_layers, 11);
    CHECK_EQ(r->layers[6].attention, ATTN_NONE);
    CHECK_EQ(r->layers[9].value, recipe_param(r, "ve1"));
    CHECK_EQ(r->params[0].matrices, 40);
    CHECK_EQ(r->params[1].rows, 3072);
    CHECK_EQ(r->optimizer.polar.n, 5);
    CHECK_EQ(POLAR_GRAM + POLAR_RESTART * r->optimizer.polar.restart, POLAR_GRAM_FORM);
    CHECK_NEAR(r->optimizer.polar.row[4][2], 0.42323551169305323, 0);
    CHECK_NEAR(r->precision.head.g_scale, 0.75 / 448, 0);
    /* The sum of record-61.md 1.1. */
    int64_t n = 0;
    for (int i = 0; i < r->n_params; i++)
        n += r->params[i].matrices * r->params[i].rows * r->params[i].cols;
    CHECK_EQ(n, 273384575);
    recipe_free(r);
}

/* A table by its header's names. */
struct columns {
    char *name[16], *value[16];
    int n;
};

static const char *column(const struct columns *c, const char *name)
{
    for (int i = 0; i < c->n; i++)
        if (!strcmp(c->name[i], name))
            return c->value[i];
    return NULL;
}

static int split(char *line, char **out)
{
    char *save = NULL;
    int n = 0;
    for (char *w = strtok_r(line, "\t\n", &save); w && n < 16; w = strtok_r(NULL, "\t\n", &save))
        out[n++] = w;
    return n;
}

static void check_mtp(const struct step_schedule *p, const char *text)
{
    char copy[64], *save = NULL;
    int k = 0;
    snprintf(copy, sizeof copy, "%s", text);
    for (char *w = strtok_r(copy, ",", &save); w; w = strtok_r(NULL, ",", &save), k++)
        CHECK_NEAR(p->mtp[k < MAX_MTP ? k : 0], atof(w), 1e-7);
    CHECK_EQ(k, p->n_mtp);
}

static void check_step(const struct recipe *r, const struct columns *c)
{
    int step = atoi(column(c, "step"));
    const char *longest = column(c, "max_seq_len"), *prefix = column(c, "prefix");
    double scale;
    float freq[32];
    struct step_schedule p;
    schedule_at(r, step, &p);
    schedule_rope(r, step, freq, &scale);
    CHECK_EQ(p.tokens, atoll(column(c, "batch")));
    CHECK_EQ(p.blocks_short, atoi(column(c, "ws_short")));
    if (longest)
        CHECK_EQ(p.sequence, atoi(longest));
    if (step < schedule_total(r)) /* the last row is before its window is widened */
        CHECK_EQ(p.blocks_long, atoi(column(c, "ws_long")));
    /* The table prints nine digits. */
    CHECK_NEAR(p.lr, atof(column(c, "lr")), 1e-8);
    CHECK_NEAR(p.momentum, atof(column(c, "momentum")), 1e-8);
    CHECK_NEAR(scale, atof(column(c, "attn_scale")), 1e-9);
    CHECK_EQ(recipe_moves(&r->params[recipe_param(r, "lm_head")], step), atoi(column(c, "adam")));
    check_mtp(&p, column(c, "mtp"));
    if (prefix)
        CHECK_NEAR(p.prefix, atof(prefix), 1e-9);
}

/* Every row of the record's own schedule. */
static void test_golden_schedule(const char *recipe, const char *path, int rows)
{
    struct recipe *r = read_recipe(recipe, NULL);
    FILE *f = fopen(path, "r");
    char head[256], line[256];
    struct columns c = { .n = 0 };
    CHECK(f != NULL);
    if (!f || !r || !fgets(head, sizeof head, f))
        return;
    c.n = split(head, c.name);
    while (fgets(line, sizeof line, f)) {
        CHECK_EQ(split(line, c.value), c.n);
        check_step(r, &c);
        rows--;
    }
    fclose(f);
    CHECK_EQ(rows, 0);
    recipe_free(r);
}

/* The rate that a rule of this recipe gives at a step, without the column lr. */
static double rate_of(const struct recipe *r, const char *label, const struct step_schedule *at)
{
    const struct param_spec *s = &r->params[recipe_param(r, label)];
    return schedule_number(r, s, &s->rule.chain[0].lr, at) * at->lr;
}

/* Track 3's: exact, multiplier and rates; step 3250 moves nothing. */
static void test_track_schedule(void)
{
    static const char *const label[] = { "embed", "lm_head", "head_bias", "q_bank" };
    struct recipe *r = read_recipe("track-3", NULL);
    FILE *f = fopen("tests/golden/t3-schedule.tsv", "r");
    char line[256];
    int step, validates, rows = 0;
    double lr, rate[4];

    if (!CHECK(f && r && fgets(line, sizeof line, f)))
        return;
    for (; fgets(line, sizeof line, f); rows++) {
        struct step_schedule at;
        CHECK_EQ(sscanf(line, "%d %lf %lf %lf %lf %lf %d", &step, &lr, &rate[0], &rate[1], &rate[2],
                        &rate[3], &validates),
                 7);
        schedule_at(r, step, &at);
        CHECK(at.lr == lr);
        CHECK(at.momentum == 0.95 && at.tokens == 524288 && at.window_long == 1024);
        for (int k = 0; k < 4; k++)
            CHECK(rate_of(r, label[k], &at) == rate[k]);
        for (int k = 0; k < 4; k++)
            CHECK(r->params[recipe_param(r, label[k])].lr_mul[0] == 1);
    }
    CHECK_EQ(rows, 3251);
    CHECK_EQ(schedule_total(r), 3250);
    fclose(f);
    recipe_free(r);
}

/* Compares the multipliers of a schedule's line in each step with a formula; a bank without it keeps the run's. */
static void each_multiplier(const char *line, double (*want)(int step))
{
    char text[256];
    const char *const set[] = { text, "parameters.mlp.schedule=s", "schedule.steps=3040" };
    struct recipe *r = NULL, *again = NULL;
    snprintf(text, sizeof text, "schedules.s=%s", line);
    if (!CHECK_OK(recipe_read(&r, recipe_path("bench-small"), set, 3)) ||
        !CHECK_OK(recipe_parse(&again, "again", recipe_canonical(r), NULL, 0)))
        return;
    CHECK_STR(again->hash, r->hash);
    const struct param_spec *mlp = &again->params[recipe_param(again, "mlp")],
                            *attn = &again->params[recipe_param(again, "attn")];
    for (int step = 0; step < 3040; step++) {
        struct step_schedule at;
        schedule_at(again, step, &at);
        CHECK_NEAR(schedule_lr(again, mlp, &at), want(step), 1e-12);
        CHECK(schedule_lr(again, attn, &at) == at.lr);
    }
    recipe_free(r);
    recipe_free(again);
}

/* Schedules of track 3's results, as their programs write them: of 4, 2, 25 (matrices), 30 (PowerCool), and 30's
 * momentum as a rate. */
static double of_result_4(int s) { return s < 250 ? s / 250.0 : 1; }
static double of_result_2(int s)
{
    double left = (1 - s / 3040.0) / 0.7;
    return (s + 1 < 250 ? (s + 1) / 250.0 : 1) * (left < 1 ? left : 1);
}
static double of_result_25(int s) { return 0.017 + 0.983 * pow(1 - s / 3125.0, 1.5); }
static double of_result_30(int s)
{
    double rate = 3.3169534699576625e-6 * pow(s < 2900 ? 2900 - s : 0, 1.2);
    return (rate < 0.0375 ? rate : 0.0375) / 0.0375;
}
static double of_momentum_30(int s)
{
    return s < 300    ? 0.85 + s / 3000.0
           : s < 2800 ? 0.95
           : s < 2900 ? 0.95 - (s - 2800) / 1000.0
                      : 0.85;
}
static double always_one(int s) { return s >= 0; }

static void test_named_schedules(void)
{
    char line[128];
    each_multiplier("flat", always_one);
    each_multiplier("warmup 250 zero", of_result_4);
    each_multiplier("cooldown 0.7 warmup 250", of_result_2);
    each_multiplier("cooldown 1 floor 0.017 power 1.5 end 3125", of_result_25);
    /* It falls from where the power is the rate. */
    snprintf(line, sizeof line, "cooldown %.17g power 1.2 end 2900",
             pow(0.0375 / 3.3169534699576625e-6, 1 / 1.2) / 2900);
    each_multiplier(line, of_result_30);
    each_multiplier("linear 0.85>0.95@0-300>0.85@2800-2900", of_momentum_30);
    refuse("schedules.s=cooldown 2", GPT_USAGE, "expected a number in [1e-06, 1], found '2'");
    refuse("schedules.s=warmup 3 warmup 4", GPT_USAGE, "a schedule has one warmup");
    refuse("schedules.s=warmup x", GPT_USAGE, "expected a step or a fraction of the run");
    refuse("schedules.s=linear $momentum", GPT_USAGE, "expected a number, or A>B@S-E");
    refuse("schedules.s=cool 0.3", GPT_USAGE, "expected flat, warmup STEPS");
    refuse("schedules.s=", GPT_USAGE, "expected flat, warmup STEPS");
    refuse("parameters.mlp.schedule=s", GPT_USAGE, "a line of [schedules], found 's'");
}

/* Check values of record-61.md 2.5, 4.7, 5.3, 5.4. */
static void test_published_values(void)
{
    struct recipe *r = read_recipe("record-61", NULL);
    if (!r)
        return;
    static const struct {
        int step;
        double scale;
        float f1, f4, f8, f12, f16, f24, f31;
    } rope[] = {
        { 0, 0.1, .79963823f, .4088596f, .16716617f, .068347494f, .027944529f, .00467138f,
          9.765625e-4f },
        { 575, 0.11694595720774409, .79963823f, .35601051f, .10004223f, .033294479f, .012340842f,
          .00200202f, 4.1852679e-4f },
        { 1150, 0.12751752379570258, .79963823f, .35601051f, .07923146f, .022651137f, .0079632577f,
          .0012740127f, 2.6633523e-4f },
        { 1725, 0.1317779884389435, .79963823f, .35601051f, .073630205f, .019624529f, .006769144f,
          .0010780108f, 2.2536058e-4f },
    };
    for (int i = 0; i < 4; i++) {
        float f[32];
        double scale;
        CHECK_EQ(schedule_rope(r, rope[i].step, f, &scale), i);
        CHECK_NEAR(scale, rope[i].scale, 1e-15);
        /* The published values were computed in double from exact exponents; ours, as the
         * program's, from an fp32 ramp: up to 2 ulp (2.4e-7) apart. */
        CHECK_NEAR(f[0], 1, 0);
        CHECK_NEAR(f[1], rope[i].f1, 2.5e-7 * rope[i].f1);
        CHECK_NEAR(f[4], rope[i].f4, 2.5e-7 * rope[i].f4);
        CHECK_NEAR(f[8], rope[i].f8, 2.5e-7 * rope[i].f8);
        CHECK_NEAR(f[12], rope[i].f12, 2.5e-7 * rope[i].f12);
        CHECK_NEAR(f[16], rope[i].f16, 2.5e-7 * rope[i].f16);
        CHECK_NEAR(f[24], rope[i].f24, 2.5e-7 * rope[i].f24);
        CHECK_NEAR(f[31], rope[i].f31, 2.5e-7 * rope[i].f31);
    }
    static const struct {
        int step;
        double lr;
    } lr[] = {
        { 0, 1 },
        { 575, 1 },
        { 576, 1.52 },
        { 862, 1.52 },
        { 863, 1.5191768115942028 },
        { 1150, 1.0466666666666669 },
        { 1151, 1.184776811594203 },
        { 1500, 0.5252173913043479 },
        { 1724, 0.10188985507246374 },
        { 1725, 0.1 },
        { 1764, 0.1 },
    };
    for (size_t i = 0; i < sizeof lr / sizeof *lr; i++) {
        struct step_schedule p;
        schedule_at(r, lr[i].step, &p);
        CHECK_NEAR(p.lr, lr[i].lr, 1e-14);
    }
    struct step_schedule p;
    CHECK_EQ(schedule_untie_step(r), 1151);
    schedule_at(r, 1151, &p);
    CHECK(p.tied && p.untie && recipe_moves(&r->params[r->order.tied_head], 1151));
    schedule_at(r, 1152, &p);
    CHECK(!p.tied && !p.untie);
    schedule_at(r, 1765, &p);
    CHECK_EQ(p.window_long, 2560);
    CHECK_EQ(p.window_short, 768);
    recipe_free(r);
}

/* The golden curve's schedule: 60 and 6 steps; changes at 20, 40, 60; untie step 41. */
static void test_short_schedule(void)
{
    const char *set[] = { "schedule.steps=60", "schedule.extension=6" };
    struct recipe *r = NULL;
    CHECK_OK(recipe_read(&r, recipe_path("record-61"), set, 2));
    if (!r)
        return;
    for (int s = 0; s < 66; s++) {
        struct step_schedule p;
        schedule_at(r, s, &p);
        CHECK_EQ(p.tokens, s < 20 ? 131072 : s < 40 ? 262144 : 393216);
        CHECK_EQ(p.n_mtp, s < 20 ? 3 : s < 40 ? 2 : 1);
        CHECK_NEAR(p.momentum, 0.85 + s / 300.0 * 0.1, 1e-12);
        CHECK_EQ(p.untie, s == 41);
    }
    recipe_free(r);
}

/* Without a cooldown the multiplier falls to the floor when the scheduled steps are over. */
static void test_no_cooldown(void)
{
    struct recipe *r = read_recipe("record-61", "schedule.cooldown=0");
    if (!r)
        return;
    for (int s = 0; s <= schedule_total(r); s += 5) {
        struct step_schedule p;
        schedule_at(r, s, &p);
        CHECK_NEAR(p.lr, s >= 1725 ? 0.1 : s > 1150 ? 1.73 : s > 575 ? 1.52 : 1, 1e-15);
    }
    recipe_free(r);
}

/* precision.deterministic is read by nothing. Its line stays where logs and checkpoints have it, and in
 * recipes without it, so that each keeps its hash. */
static void test_unread_key(void)
{
    struct recipe *without = read_recipe("tiny", NULL);
    struct recipe *no = read_recipe("tiny", "precision.deterministic=no");
    struct recipe *yes = read_recipe("tiny", "precision.deterministic=yes");
    if (CHECK(without && no && yes)) {
        CHECK(
            strstr(recipe_canonical(without), "\ncpu_products = f32\ndeterministic = no\ncheck_"));
        CHECK_STR(recipe_canonical(no), recipe_canonical(without));
        CHECK_STR(no->hash, without->hash);
        CHECK(strstr(recipe_canonical(yes), "\ncpu_products = f32\ndeterministic = yes\ncheck_"));
        CHECK(strcmp(yes->hash, no->hash));
        CHECK(!memcmp(&yes->precision, &no->precision, sizeof yes->precision));
    }
    recipe_free(without), recipe_free(no), recipe_free(yes);
    refuse("precision.deterministic=maybe", GPT_USAGE, "expected yes or no, found 'maybe'");
}

/* Checkpoints and logs from before carry precision.head_weight: it is one row's type, and no key. */
static void test_old_head_weight(void)
{
    struct recipe *now = read_recipe("record-61", NULL);
    struct recipe *plain = read_recipe("record-61", "precision.head_weight=bf16");
    struct recipe *old = read_recipe("record-61", "precision.head_weight=fp8");
    struct recipe *row = read_recipe(
        "record-61",
        "parameters.lm_head=d,v bf16/e4m3 normal:0.005 adam sharded 0.5 0.95 1 150 yes");
    if (CHECK(now && plain && old && row)) {
        CHECK(!strcmp(recipe_canonical(now), recipe_canonical(plain)));
        CHECK(!strcmp(recipe_canonical(old), recipe_canonical(row)));
        CHECK(!strstr(recipe_canonical(old), "head_weight"));
        CHECK(old->params[recipe_param(old, "lm_head")].codes);
        CHECK(!now->params[recipe_param(now, "lm_head")].codes);
    }
    recipe_free(now), recipe_free(plain), recipe_free(old), recipe_free(row);
}

/* Of 1725 steps two thirds are 1150: the next odd step, or the next that Adam moves in. */
static void test_untie_step(void)
{
    static const int untie[][2] = { { 1, 1151 }, { 2, 1151 }, { 3, 1151 },   { 4, 1151 },
                                    { 5, 1154 }, { 7, 1154 }, { 1000, 1999 } };
    for (size_t i = 0; i < sizeof untie / sizeof *untie; i++) {
        char set[40];
        struct step_schedule p;
        snprintf(set, sizeof set, "optimizer.adam_every=%d", untie[i][0]);
        struct recipe *r = read_recipe("record-61", set);
        if (!r)
            return;
        CHECK_EQ(schedule_untie_step(r), untie[i][1]);
        schedule_at(r, untie[i][1], &p);
        CHECK(recipe_moves(&r->params[r->order.tied_head], p.step) && p.tied && p.untie);
        recipe_free(r);
    }
}

/* A point above 2 is a step; while tied, tied_mix is linear between its ends. */
static void test_untie_at(void)
{
    static const struct {
        const char *untie;
        int step;
    } at[] = { { "7", 7 }, { "8", 9 }, { "3", 3 }, { "2", 3451 }, { "0", 1 }, { "0.004", 7 } };
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        char set[40];
        struct step_schedule p;
        snprintf(set, sizeof set, "schedule.untie=%s", at[i].untie);
        struct recipe *r = read_recipe("record-61", set);
        if (!r)
            return;
        CHECK_EQ(schedule_untie_step(r), at[i].step);
        r->order.tied_mix[0] = 0.25, r->order.tied_mix[1] = -3;
        schedule_at(r, at[i].step, &p);
        CHECK(p.tied_mix == -3);
        schedule_at(r, 0, &p);
        CHECK(p.tied_mix == 0.25);
        schedule_at(r, 1, &p);
        CHECK_NEAR(p.tied_mix, 0.25 - 3.25 / at[i].step, 1e-15);
        recipe_free(r);
    }
}

/* One frequency, of the smallest heads: where a ramp of more begins. */
static void test_one_frequency(void)
{
    struct recipe *r = read_recipe("record-61", "model.head_dim=4");
    float f;
    if (!r)
        return;
    schedule_rope_initial(r, &f);
    CHECK_NEAR(f, 1, 0);
    recipe_free(r);
}

/* Heads of q and k of 96 channels, of which 48 turn by 1024^(-i/23); and of 64, all of which turn by 1024^(-i/31), beside
 * two layers of 128 with the same frequencies: modded-nanogpt's pull requests 344 and 349. */
static void test_narrow_heads(void)
{
    static const char *const alike[] = { "model.qk_head_dim=96", "model.attn_scale=0.11547" };
    static const char *const mixed[] = {
        "model.qk_head_dim=64",
        "model.rope_dim=64",
        "model.attn_scale=0.12",
        "layers.3=plain 3 long yes - - 3 3 128:0.085",
        "layers.10=plain 9 long yes - - 9 10 128:0.085",
        "parameters.qk_bank=12h,2e,d bf16 uniform:0.5 normuon sharded - 0.9 1 1 yes"
    };
    struct recipe *a = NULL, *b = NULL;
    float f[32];
    double scale;

    if (!CHECK_OK(recipe_read(&a, recipe_path("record-84"), alike, 2)) ||
        !CHECK_OK(recipe_read(&b, recipe_path("record-84"), mixed, 6)))
        return;
    const struct param_spec *p = &a->params[recipe_param(a, "qk_bank")];
    CHECK(p->matrices == 60 && p->rows == 192 && p->cols == 768);
    CHECK_EQ(schedule_rope(a, 0, f, &scale), 0);
    for (int i = 0; i < 24; i++) /* powf and the ramp round a few times */
        CHECK_NEAR(f[i], pow(1024, -i / 23.0), 1e-6 * f[i]);
    CHECK(scale == 0.11547);
    for (int i = 0; i < a->n_layers; i++)
        CHECK(recipe_qk_rows(a, i) == 576 && recipe_qkv_rows(a, i) == 1920);
    CHECK(recipe_narrow(a) && !recipe_cpu_alone(a));

    p = &b->params[recipe_param(b, "qk_bank")];
    CHECK(p->matrices == 72 && p->rows == 128);
    schedule_rope(b, 0, f, &scale);
    for (int i = 0; i < 32; i++)
        CHECK_NEAR(f[i], pow(1024, -i / 31.0), 1e-6 * f[i]);
    for (int i = 0; i < b->n_layers; i++) {
        bool wide = i == 3 || i == 10;
        CHECK_EQ(recipe_qkv_rows(b, i), wide ? 2304 : 1536);
        CHECK(b->layers[i].attn_scale == (wide ? 0.085 : 0));
    }
    CHECK(recipe_narrow(b) && !recipe_cpu_alone(b));
    CHECK_EQ(recipe_qk_extra(b, 3), 0); /* layer 3 has index 3, layer 10 index 9 */
    CHECK_EQ(recipe_qk_extra(b, 4), 384);
    CHECK_EQ(recipe_qk_extra(b, 10), 768);
    struct recipe *copy = NULL;
    CHECK_OK(recipe_parse(&copy, "copy", recipe_canonical(b), NULL, 0));
    CHECK_STR(copy->hash, b->hash);
    recipe_free(a), recipe_free(b), recipe_free(copy);
    struct recipe *plain = read_recipe("record-84", "model.qk_head_dim=0");
    CHECK(plain && !recipe_narrow(plain) && !strstr(recipe_canonical(plain), "qk_head_dim"));
    recipe_free(plain);
}

/* A recipe that no GPU has kernels for is known when it is read. */
static void test_narrow_on_gpu(void)
{
    static const struct {
        const char *recipe, *set[2], *part;
    } of[] = { { "record-84", { "model.qk_head_dim=32", "model.attn_scale=0.2" }, "or 96 of 128" },
               { "record-84", { "model.head_dim=32", "model.qk_head_dim=16" }, "32, 64 or 96" },
               { "record-84", { "model.qk_head_dim=64", "model.rope_dim=36" }, "multiple of 8" },
               { "record-89", { "model.qk_head_dim=64", "model.attn_scale=0.2" }, "role dc1" },
               { "record-89", { "model.rope_dim=128", "model.attn_scale=0.2" }, NULL },
               { "record-84", { "model.head_dim=64", "model.qk_head_dim=32" }, NULL },
               { "record-61", { "model.head_dim=12", "model.attn_scale=0.2" }, NULL } };
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        struct recipe *r = NULL;
        if (!CHECK_OK(recipe_read(&r, recipe_path(of[i].recipe), of[i].set, 2)))
            continue;
        const char *why = recipe_cpu_alone(r);
        CHECK(of[i].part ? why && strstr(why, of[i].part) : !why);
        recipe_free(r);
    }
}

static void test_refused_narrow(void)
{
    refuse("model.qk_head_dim=6", GPT_USAGE, "a multiple of 4, at most head_dim, 128; found 6");
    refuse("model.qk_head_dim=132", GPT_USAGE, "at most head_dim, 128; found 132");
    refuse("model.qk_head_dim=64", GPT_USAGE, "layers.0: heads of q and k narrower than head_dim");
    refuse_in("track-3", "layers.0=plain 0 short no - - - 0 64", GPT_USAGE,
              "layers' widths of q and k differ: expected 8832 rows, or a multiple of 768 more");
    refuse("model.rope_dim=130", GPT_USAGE, "at most qk_head_dim, 128; found 130");
    refuse("model.rope_dim=3", GPT_USAGE, "an even number");
    refuse_in("record-84", "layers.3=plain 3 long yes - - 3 3 6", GPT_USAGE,
              "expected '-', N or N:SCALE, N a multiple of 4 from 4 to head_dim, 128; found '6'");
    refuse_in("record-84", "layers.3=plain 3 long yes - - 3 3 64:0", GPT_USAGE,
              "expected a scale in [1e-6, 1e3], found '0'");
    refuse_in("record-84", "layers.3=plain 3 long yes - - 3 3 32", GPT_USAGE,
              "layers' widths of q and k differ: expected 14208 rows, or a multiple of 1536 more, "
              "found 15360");
    static const char *const set[] = {
        "layers.3=plain 3 long yes - - 3 3 32",
        "parameters.qk_bank=111,128,d bf16 uniform:0.5 normuon sharded - 0.9 1 1 yes"
    };
    struct recipe *r = NULL;
    CHECK_ERR(recipe_read(&r, recipe_path("record-84"), set, 2), GPT_USAGE,
              "rope_dim says that 64 channels of a head of q and k turn, and it has 32");
    static const char *const spans[] = {
        "model.qk_head_dim=64",
        "parameters.qk_bank=40,192,d bf16 uniform:0.5 normuon sharded - 0.9 1 1 yes",
        "parameters.qk_bank=30,256,d bf16 uniform:0.5 normuon sharded - 0.9 1 1 yes",
        "parameters.qk_bank=15,512,d bf16 uniform:0.5 normuon sharded - 0.9 1 1 yes"
    };
    for (int i = 1; i < 4; i++) {
        const char *two[] = { spans[0], spans[i] };
        if (i < 3 && CHECK_OK(recipe_read(&r, recipe_path("record-84"), two, 2)))
            recipe_free(r), r = NULL;
        else
            CHECK_ERR(recipe_read(&r, recipe_path("record-84"), two, 2), GPT_USAGE,
                      "layer 0 has 768 rows of it: expected matrices of so many, or of a divisor, "
                      "found 512");
    }
}

/* A run that goes on with the weights of one that has gone through windows 3, 7, 11, 13 has its
 * frequencies and scale, and moves both further when its own windows do. */
static void test_rope_windows(void)
{
    static const char *const chained[] = { "model.rope_windows=3 7 11 13",
                                           "stages.0=2048 13 256 1 1", "stages.1=2048 13 256 1 1",
                                           "stages.2=2048 20 256 1 1", "stages.3=2048 20 256 - 1" };
    static const char *const before[] = { "stages.2=2048 11 256 1 1", "stages.3=2048 13 256 - 1" };
    struct recipe *whole = NULL, *next = NULL;
    float f[8], g[8];
    double scale, other;
    int at[SCHEDULE_WINDOWS];
    if (!CHECK_OK(recipe_read(&whole, recipe_path("tiny"), before, 2)) ||
        !CHECK_OK(recipe_read(&next, recipe_path("tiny"), chained, 5)))
        return;
    CHECK_EQ(schedule_windows(whole, schedule_total(whole), at), 4);
    CHECK(at[0] == 3 && at[1] == 7 && at[2] == 11 && at[3] == 13);
    CHECK_EQ(schedule_windows(whole, 0, at), 1);
    CHECK_EQ(schedule_windows(next, 0, at), 4);
    CHECK_EQ(schedule_windows(next, schedule_total(next), at), 5);
    CHECK(at[3] == 13 && at[4] == 20);
    CHECK_EQ(schedule_rope(whole, schedule_total(whole), f, &scale), 3);
    CHECK_EQ(schedule_rope(next, 0, g, &other), 3);
    CHECK(scale == other && !memcmp(f, g, sizeof f));
    schedule_rope_yarn(f, 8, whole->model.block, 13, 20, &scale);
    CHECK_EQ(schedule_rope(next, schedule_total(next), g, &other), 4);
    CHECK(scale == other && !memcmp(f, g, sizeof f));
    recipe_free(whole);
    recipe_free(next);
}

/* Track 3's validations: before step s if s = N, or s mod 125 = 0 where s/N < 0.9, or s mod 25 = 0 elsewhere. */
static void test_validations(void)
{
    static const char *const track_3[] = { "schedule.steps=3250", "schedule.extension=0",
                                           "data.val_every=125>25@0.9" };
    struct recipe *r = NULL, *again = NULL;
    CHECK_OK(recipe_read(&r, recipe_path("tiny"), track_3, 3));
    int n = 0, wrong = 0;
    for (int s = 0; s <= 3250; s++) {
        n += schedule_validates(r, s);
        wrong += schedule_validates(r, s) !=
                 (s == 3250 || s % (s < 2925 ? 125 : 25) == 0); /* 0.9 N = 2925 */
    }
    CHECK_EQ(n, 38);
    CHECK_EQ(wrong, 0);
    CHECK(!schedule_validates(r, 2900) && schedule_validates(r, 2950));
    CHECK_OK(recipe_parse(&again, "copy", recipe_canonical(r), NULL, 0));
    CHECK_STR(again->hash, r->hash);
    recipe_free(r);
    recipe_free(again);
    r = read_recipe("tiny", "data.val_every=100>7@203"); /* a step, none of the multiples */
    CHECK(schedule_validates(r, 200) && schedule_validates(r, 203) && schedule_validates(r, 210));
    CHECK(!schedule_validates(r, 196) && !schedule_validates(r, 300));
    CHECK(schedule_validates(r, schedule_total(r)));
    recipe_free(r);
    r = read_recipe("tiny", "data.val_every=0");
    CHECK(!schedule_validates(r, 0) && schedule_validates(r, schedule_total(r)));
    recipe_free(r);
    r = read_recipe("tiny", "data.val_tokens=0");
    CHECK(!schedule_validates(r, 0) && !schedule_validates(r, schedule_total(r)));
    recipe_free(r);
    static const char *const bad[] = { "125>25",    "125@0.9",  "0>25@0.9", "125>0@0.9",
                                       "125>25@-1", "125>25@x", "",         "x" };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char set[64];
        snprintf(set, sizeof set, "data.val_every=%s", bad[i]);
        refuse(set, GPT_USAGE, "data.val_every");
    }
}

/* The id of the data is 32 hexadecimal digits, and no part of the hash where there is none. */
static void test_expected_data(void)
{
    struct recipe *a = read_recipe("tiny", NULL), *b = read_recipe("tiny", "data.expect=-");
    CHECK_STR(a->hash, b->hash);
    CHECK_STR(a->data.expect, "");
    recipe_free(b);
    b = read_recipe("tiny", "data.expect=0123456789abcdef0123456789abcdef");
    CHECK_STR(b->data.expect, "0123456789abcdef0123456789abcdef");
    CHECK(strcmp(a->hash, b->hash) != 0);
    recipe_free(a);
    recipe_free(b);
    refuse("data.expect=0123", GPT_USAGE, "expected '-' or 32 hexadecimal digits, found '0123'");
}

int main(void)
{
    test_validations();
    test_expected_data();
    test_canonical("record-61");
    test_canonical("tiny");
    test_canonical("bench-small");
    test_refused();
    test_refused_parameters();
    test_multipliers();
    test_refused_forms();
    test_refused_coefs();
    test_prefixes();
    test_bigram_rows();
    test_fields();
    test_golden_schedule("record-61", "tests/golden/r61-schedule.tsv", 1766);
    test_golden_schedule("record-74", "tests/golden/r74-schedule.tsv", 1491);
    test_golden_schedule("record-84", "tests/golden/r84-schedule.tsv", 1391);
    test_golden_schedule("record-89", "tests/golden/r89-schedule.tsv", 1286);
    test_track_schedule();
    test_named_schedules();
    test_published_values();
    test_short_schedule();
    test_no_cooldown();
    test_old_head_weight();
    test_unread_key();
    test_untie_step();
    test_untie_at();
    test_one_frequency();
    test_narrow_heads();
    test_refused_narrow();
    test_narrow_on_gpu();
    test_rope_windows();
    return check_done();
}
