/* bench_rules [OPTION]... [RULE]... - times of rules on track 3's 72 matrices, stage by stage and fused.
 *
 *     bench_rules                                    the lines below
 *     bench_rules skylight "lr 0.1 | sign | step"    names of `gpt-train --rules`, or lines
 *
 * The banks of recipe track-3, one after the other as on one rank: 48 matrices of 768 x 768, 24 of 3072 x 768,
 * weights in f32 with a bf16 copy. A GPU replays a captured graph, whose buffers are beyond L2; a CPU takes a model
 * of an eighth of the width. A row a rule: launches and microseconds (median of RUNS, least) without and with
 * `precision.fuse`, then a floor: bytes that one pass must move (gradient, states, weight and copy) at 4.25 TB/s,
 * and the products of its stages at 600 TFLOP/s, symmetric ones counted half.
 *
 * Exit status: as every command; 77 when --device cuda finds no GPU.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/opt.h"
#include "base/progress.h"
#include "comm/comm.h"
#include "golden.h"
#include "optim/rules.h"
#include "recipe/named.h"
#ifdef HAVE_CUDA
#include "../kernels/ops_cuda.h"
#endif

enum { RUNS = 9, BANKS = 6 };
static const double BANDWIDTH = 4.25e12, RATE = 600e12;
static const char *const bank[BANKS] = { "q_bank", "k_bank",  "v_bank",
                                         "o_bank", "up_bank", "down_bank" };
static const char *device = NULL;

struct bench {
    struct recipe *recipe;
    struct ops *o;
    struct comm *comm;
    struct banks banks;
    struct optim z;
    bool gpu;
};

/* -- setup --------------------------------------------------------------------------------------- */

/* Reads track-3 with that rule, a name or a line, for its six banks. */
static int read_rule(struct bench *b, const char *rule, bool fuse)
{
    char set[BANKS * 2 + 8][1100];
    const char *list[BANKS * 2 + 8];
    bool line = !strncmp(rule, "lr ", 3), second = !strcmp(rule, "normuon");
    int n = 0;
    for (int i = 0; i < BANKS; i++) {
        snprintf(set[n++], sizeof *set, "parameters.%s.init=normal:0.02", bank[i]);
        snprintf(set[n++], sizeof *set,
                 "parameters.%s=12,%s f32/bf16 normal:0.02 %s sharded - %s 1 1 no", bank[i],
                 i == 4   ? "f,d"
                 : i == 5 ? "d,f"
                          : "d,d",
                 line ? "bench" : rule, second ? "0.95" : "-");
    }
    if (line)
        snprintf(set[n++], sizeof *set, "rules.bench=%s", rule);
    snprintf(set[n++], sizeof *set, "model.vocab=256");
    snprintf(set[n++], sizeof *set, "precision.fuse=%s", fuse ? "yes" : "no");
    if (!b->gpu) {
        snprintf(set[n++], sizeof *set, "model.head_dim=16");
        snprintf(set[n++], sizeof *set, "model.mlp_width=384");
    }
    for (int i = 0; i < n; i++)
        list[i] = set[i];
    return recipe_parse(&b->recipe, "track-3", recipe_named_find("track-3")->text, list, n);
}

/* Fills t with random numbers of that root mean square. */
static void fill(struct ops *o, struct tensor t, float size)
{
    int64_t n = tensor_count(t);
    float *x = malloc((size_t)n * sizeof *x);
    uint64_t h = 88172645463325252u;
    for (int64_t i = 0; i < n && x; i++) {
        h ^= h << 13, h ^= h >> 7, h ^= h << 17;
        x[i] = size * 3.46f * ((float)(h >> 40) * 0x1p-24f - 0.5f);
    }
    if (x)
        floats_to(o, t, x);
    free(x);
}

static int make_ops(struct bench *b)
{
    b->gpu = !strcmp(device, "cuda");
#ifdef HAVE_CUDA
    if (b->gpu)
        return ops_cuda_new(&b->o, 0);
#endif
    return b->gpu ? err_set(GPT_DEVICE, "built without CUDA") : ops_cpu_new(&b->o);
}

static int start(struct bench *b)
{
    struct step_schedule at;
    int rc;
    if ((rc = comm_threads_new(&b->comm, 1)) ||
        (rc = banks_init(&b->banks, b->recipe, b->o, 0, 1)) ||
        (rc = optim_init(&b->z, b->recipe, &b->banks, b->o, b->comm)))
        return rc;
    for (int i = 0; i < BANKS; i++) {
        int p = recipe_param(b->recipe, bank[i]);
        struct tensor low, exact = optim_exact(&b->z, p, &low);
        fill(b->o, exact, 0.02f);
        fill(b->o, b->banks.p[p].g, 1e-3f);
    }
    schedule_at(b->recipe, 10, &at);
    optim_prepare(&b->z, &at);
    return b->o->status(b->o);
}

/* -- times --------------------------------------------------------------------------------------- */

static void update(struct bench *b)
{
    for (int i = 0; i < BANKS; i++)
        rules_update(&b->z, recipe_param(b->recipe, bank[i]), 1);
}

static int by_time(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Measures an update of all banks: its median and least time in us. */
static int time_updates(struct bench *b, double us[2])
{
    double all[RUNS];
    int rc;
    update(b); /* workspace, modules */
    if ((rc = b->o->sync(b->o)))
        return rc;
#ifdef HAVE_CUDA
    void *graph = NULL;
    if (b->gpu) {
        if ((rc = ops_cuda_capture(b->o)))
            return rc;
        update(b);
        if ((rc = ops_cuda_capture_end(b->o, &graph)))
            return rc;
    }
#endif
    for (int k = -1; k < RUNS && !rc; k++) {
        enum { TIMES = 10 };
        int times = b->gpu ? TIMES : 1;
        double begin = now_seconds();
        for (int i = 0; i < times; i++)
            if (!b->gpu)
                update(b);
#ifdef HAVE_CUDA
            else
                ops_cuda_launch(b->o, graph);
#endif
        rc = b->o->sync(b->o);
        if (k >= 0)
            all[k] = (now_seconds() - begin) / times * 1e6;
    }
#ifdef HAVE_CUDA
    if (graph)
        ops_cuda_graph_free(graph);
#endif
    qsort(all, RUNS, sizeof *all, by_time);
    us[0] = all[RUNS / 2], us[1] = all[0];
    return rc;
}

/* Computes the bytes that one pass over the banks moves at least, and the FLOPs of the rule's products. */
static void floors(const struct bench *b, double *bytes, double *flops)
{
    *bytes = *flops = 0;
    for (int i = 0; i < BANKS; i++) {
        int p = recipe_param(b->recipe, bank[i]);
        const struct param_spec *s = &b->recipe->params[p];
        struct state states[MAX_STATES];
        int n = states_of(b->recipe, p, states);
        *bytes += (double)tensor_bytes(b->banks.p[p].g) + (double)tensor_bytes(b->banks.p[p].w);
        for (int k = 0; k < n; k++) /* the weight is the first */
            if (states[k].role != STATE_GRADIENT)
                *bytes += 2 * (double)states_bytes(b->recipe, p, &states[k], 1);
        *flops +=
            (double)s->matrices * chain_flops(&s->rule.chain[0], (double)s->rows, (double)s->cols);
    }
}

static int launches(const struct bench *b)
{
    char text[600];
    const struct rule *rule = &b->recipe->params[recipe_param(b->recipe, bank[0])].rule;
    int n = 1;
    rules_describe(b->recipe, &rule->chain[0], text, sizeof text);
    for (const char *s = text; (s = strchr(s, ',')); s++)
        n++;
    return n;
}

static int one_rule(const char *rule)
{
    double us[2][2] = { { 0 } }, bytes = 0, flops = 0;
    int n[2] = { 0 }, rc = 0;
    for (int fuse = 0; fuse < 2 && !rc; fuse++) {
        struct bench b = { 0 };
        if ((rc = make_ops(&b)))
            return rc;
        if (!(rc = read_rule(&b, rule, fuse)) && !(rc = start(&b)) &&
            !(rc = time_updates(&b, us[fuse]))) {
            floors(&b, &bytes, &flops);
            n[fuse] = launches(&b);
        }
        optim_release(&b.z);
        if (b.comm)
            b.comm->free(b.comm);
        b.o->free(b.o);
        recipe_free(b.recipe);
    }
    double floor = 1e6 * (bytes / BANDWIDTH + flops / RATE);
    if (!rc)
        printf("%-40.40s %3d %9.1f %9.1f %3d %9.1f %9.1f %9.1f %9.1f %6.2f\n", rule, n[0], us[0][0],
               us[0][1], n[1], us[1][0], us[1][1], 1e6 * bytes / BANDWIDTH, 1e6 * flops / RATE,
               us[1][0] / floor);
    fflush(stdout);
    return rc;
}

int main(int argc, char **argv)
{
    static const char *const rules[] = { "muon",     "normuon",  "muon-t3", "muonh",
                                         "skylight", "contra",   "aurora",  "muonsq",
                                         "adamw",    "ademamix", "lion",    "signsgd" };
    const struct opt table[] = { { 'd', "device", "NAME", OPT_CHOICE, &device,
                                   "where the ops run (a GPU if there is one)",
                                   .choices = "cpu|cuda" },
                                 OPT_END };
    const struct command cmd = { "bench_rules", "[OPTION]... [RULE]...",
                                 "Times rules on track 3's matrices.", table };
    int first, rc = opt_parse(&cmd, argc, argv, &first), given = argc - first;
    if (rc)
        return opt_exit(&cmd, rc);
#ifdef HAVE_CUDA
    if (!device)
        device = ops_cuda_count() ? "cuda" : "cpu";
    if (!strcmp(device, "cuda") && !ops_cuda_count())
        return 77;
#endif
    if (!device)
        device = "cpu";
    printf("%-40s %3s %9s %9s %3s %9s %9s %9s %9s %6s\n", "rule", "ops", "median_us", "least_us",
           "ops", "fused_us", "least_us", "bytes_us", "products", "ratio");
    for (int i = 0; i < (given ? given : (int)(sizeof rules / sizeof *rules)) && !rc; i++)
        rc = one_rule(given ? argv[first + i] : rules[i]);
    return rc ? opt_exit(&cmd, rc) : 0;
}
