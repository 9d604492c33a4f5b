/* zoo [OPTION]... GRADIENTS FILE... - holds chains of stages against numbers that published optimizers made.
 *
 * GRADIENTS has initial values and gradients of some matrices for all files. A file's metadata have the chain
 * as a line, its rate and the multipliers of each step; the line runs as a rule of a recipe, one matrix after
 * the other, through the program's own optimizer. Weights after a step are compared by what they moved, states
 * by their size. A line that is not read is reported as refused, with the message.
 *
 * Exit status: 0 all within tolerance, 1 not, or one was refused, others as every command; 77 when --device
 * cuda finds no GPU.
 */
#include "golden.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/file.h"
#include "base/opt.h"
#include "comm/comm.h"
#include "optim/step.h"
#ifdef HAVE_CUDA
#include "../kernels/ops_cuda.h"
#endif

enum { MAX_STEPS = 64, MAX_PROBE = 2048 };
static const char *device = "cpu", *polar = "f32", *own_line = NULL, *own_around = NULL;

/* One matrix of one file. */
struct run {
    struct golden *given, *g;
    const char *matrix;
    struct recipe *recipe;
    struct banks banks;
    struct optim z;
    struct ops *o;
    struct comm *comm;
    float probe[MAX_PROBE]; /* of a psgd on a CPU */
    double tolerance;
    double worst, worst_state; /* relative errors */
    int compared;
    bool ok;
};

static float *tensor_named(struct golden *g, int step, const char *what, const char *matrix,
                           int64_t *n)
{
    char name[128];
    if (step)
        snprintf(name, sizeof name, "%d.%s.%s", step, what, matrix);
    else
        snprintf(name, sizeof name, "%s.%s", what, matrix);
    return golden_floats(g, name, n);
}

/* -- recipe -------------------------------------------------------------------------------------- */

/* The k-th number of a JSON list in the metadata; 1 where there is none. */
static double of_list(const struct golden *g, const char *key, int k)
{
    const char *p = st_meta(g->h, key);
    for (p = p ? strchr(p, '[') : NULL; p && k > 0; k--)
        p = strchr(p + 1, ',');
    return p ? atof(p + 1) : 1;
}

/* Finds what is around the chain, which the line does not say; false: nothing is. */
static bool read_around(const struct golden *g, char *text, size_t size)
{
    if (own_around)
        snprintf(text, size, "rules.around=%s", own_around);
    else if (st_meta(g->h, "lookahead"))
        snprintf(text, size, "rules.around=lookahead %s %s from %s to %s",
                 st_meta(g->h, "lookahead"), st_meta(g->h, "ema"), st_meta(g->h, "first"),
                 st_meta(g->h, "last"));
    else if (st_meta(g->h, "outer_lr"))
        snprintf(text, size, "rules.around=outer %s %s every %s", st_meta(g->h, "outer_lr"),
                 st_meta(g->h, "outer_momentum"), st_meta(g->h, "every"));
    else if (st_meta(g->h, "weight_lr_power"))
        snprintf(text, size, "rules.around=free %.*g power %s", 17, of_list(g, "betas", 0),
                 st_meta(g->h, "r"));
    else
        return false;
    return true;
}

/* Returns the chain of a file that has none, by its own numbers; NULL: not known. */
static const char *line_of(const struct golden *g, char *text, size_t size)
{
    if (!st_meta(g->h, "weight_lr_power"))
        return NULL;
    snprintf(text, size, "second %.17g %s corrected | decay %s | step", of_list(g, "betas", 1),
             st_meta(g->h, "eps"), st_meta(g->h, "weight_decay"));
    return text;
}

static int read_recipe(struct run *u, int steps)
{
    const char *share = getenv("GPT_SHARE"), *lr = st_meta(u->g->h, "lr");
    char key[64], path[512], rule[1024], count[64], type[64], around[256], own[256];
    snprintf(key, sizeof key, "line.%s", u->matrix);
    const char *line = own_line ? own_line : st_meta(u->g->h, key);
    if (!line)
        line = st_meta(u->g->h, "line");
    if (!line)
        line = line_of(u->g, own, sizeof own);
    if (!line || !lr)
        return err_set(GPT_USAGE, "the file has no line or no rate");
    snprintf(path, sizeof path, "%s/recipes/tiny.recipe", share ? share : "share");
    snprintf(rule, sizeof rule, "rules.zoo=lr %s | %s", lr, line);
    snprintf(count, sizeof count, "schedule.steps=%d", steps);
    snprintf(type, sizeof type, "optimizer.polar=%s", polar);
    const char *set[8] = { rule, count, type, "schedule.extension=0",
                           "parameters.attn=40,d,d f32 uniform:1 zoo sharded - - 1 1 no" };
    if (read_around(u->g, around, sizeof around)) {
        set[5] = around;
        set[6] = "optimizer.adam_every=1";
        set[7] = "order.tied=-";
    }
    int rc = recipe_read(&u->recipe, path, set, set[5] ? 8 : 5);
    if (rc)
        return rc;
    /* The one parameter of the run. */
    struct param_spec s = u->recipe->params[recipe_param(u->recipe, "attn")];
    char init[64];
    snprintf(init, sizeof init, "init.%s", u->matrix);
    const struct st_tensor *t = st_find(u->given->h, init);
    s.comms = COMMS_REPLICATED; /* whole, though it is one matrix */
    s.matrices = 1, s.rows = t->rank > 1 ? (int64_t)t->shape[0] : 1;
    s.cols = (int64_t)t->shape[t->rank - 1];
    snprintf(s.label, sizeof s.label, "zoo");
    u->recipe->params[0] = s;
    u->recipe->n_params = 1;
    u->recipe->order.scatter[0] = u->recipe->order.work[0] = 0;
    u->recipe->order.n_late = 0;
    u->recipe->order.tied_head = u->recipe->order.tied_embed = -1;
    return 0;
}

/* -- comparisons --------------------------------------------------------------------------------- */

/* |a - b| / |b - from|; from NULL: / |b|. */
static double distance(const float *a, const float *b, const float *from, int64_t n)
{
    double off = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        off += pow((double)a[i] - (double)b[i], 2);
        size += pow((double)b[i] - (from ? (double)from[i] : 0), 2);
    }
    return sqrt(off / size);
}

static void note(struct run *u, double error, double *worst)
{
    u->ok &= error <= u->tolerance;
    *worst = !(error <= *worst) ? error : *worst;
    u->compared++;
}

static void compare_weight(struct run *u, int step)
{
    int64_t n, m;
    float *want = tensor_named(u->g, step, "after", u->matrix, &n);
    if (!want)
        return;
    float *init = tensor_named(u->given, 0, "init", u->matrix, &m);
    /* With lookahead the weight is already where the next gradient is taken. */
    bool ahead = u->recipe->optimizer.around.kind == AROUND_LOOKAHEAD;
    float *got =
        floats_of(u->o, ahead ? optim_state(&u->z.p[0], "around_before") : u->banks.p[0].w);
    bool moved = memcmp(want, init, (size_t)n * sizeof *want);
    note(u, distance(got, want, moved ? init : NULL, n), &u->worst);
    free(want), free(init), free(got);
}

/* Their names of states, and ours. */
static const char *const states[][2] = {
    { "momentum", "momentum" },
    { "momentum", "lion" },
    { "momentum", "select" },
    { "exp_avg", "momentum" },
    { "exp_avg_sq", "second" },
    { "v", "second" },
    { "second_moment", "second_momentum" },
    { "second_momentum", "second_momentum" },
    { "m_fast", "kernel" },
    { "m_slow", "kernel.2" },
    { "slow", "kernel.2" },
    { "g", "gain" },
    { "v_norm", "row_norm" },
    { "lookahead", "around_mean" },
    { "x", "around_mean" },
    { "z", "around_before" },
};

static void compare_states(struct run *u, int step)
{
    for (size_t k = 0; k < sizeof states / sizeof *states; k++) {
        char what[64];
        int64_t n;
        struct tensor t = optim_state(&u->z.p[0], states[k][1]);
        snprintf(what, sizeof what, "state.%s", states[k][0]);
        float *want = tensor_named(u->g, step, what, u->matrix, &n);
        if (want && t.data && tensor_count(t) == n) {
            float *got = floats_of(u->o, t);
            note(u, distance(got, want, NULL, n), &u->worst_state);
            free(got);
        }
        free(want);
    }
}

/* -- bases that a file gives --------------------------------------------------------------------- */

/* to (n,n) = op(a) b. */
static void product(double *to, const double *a, bool turned, const double *b, int n)
{
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) {
            to[i * n + j] = 0;
            for (int k = 0; k < n; k++)
                to[i * n + j] += a[turned ? k * n + i : i * n + k] * b[k * n + j];
        }
}

/* The covariance q s q' of a side, seen in the given basis, which takes q's place. */
static void change_basis(struct run *u, struct tensor s, struct tensor q, const float *given)
{
    int n = (int)q.cols, nn = n * n;
    double *turn = malloc((size_t)nn * 4 * sizeof *turn), *to = turn + nn, *t = to + nn;
    double *inner = t + nn;
    float *old = floats_of(u->o, q), *cov = floats_of(u->o, s);
    for (int i = 0; i < nn; i++)
        t[i] = (double)old[i], to[i] = (double)given[i], inner[i] = (double)cov[i];
    product(turn, t, true, to, n); /* q' given */
    product(t, inner, false, turn, n);
    product(inner, turn, true, t, n);
    for (int i = 0; i < nn; i++)
        cov[i] = (float)inner[i];
    floats_to(u->o, s, cov);
    floats_to(u->o, q, given);
    free(turn), free(old), free(cov);
}

/* Takes the bases after step 1, which are not unique where a gradient has not the rank of a side, and where they
 * were used in step 1, which is then rounding noise, the weights, too. */
static void take_bases(struct run *u)
{
    static const char *const word[] = { "soap", "klsoap" }, *const side[] = { "left", "right" };
    for (int k = 0; k < 4; k++) {
        char s[32], q[32], theirs[32];
        int64_t n;
        snprintf(s, sizeof s, "%s_%s", word[k / 2], side[k % 2]);
        snprintf(q, sizeof q, "%s_%s_q", word[k / 2], side[k % 2]);
        snprintf(theirs, sizeof theirs, "state.q_%s", side[k % 2]);
        struct tensor basis = optim_state(&u->z.p[0], q);
        float *given = tensor_named(u->g, 1, theirs, u->matrix, &n);
        if (given && basis.data)
            change_basis(u, optim_state(&u->z.p[0], s), basis, given);
        free(given);
    }
    char begin[64];
    int64_t n;
    snprintf(begin, sizeof begin, "init.q_left.%s", u->matrix);
    float *after = tensor_named(u->g, 1, "after", u->matrix, &n);
    if (after && st_find(u->g->h, begin))
        floats_to(u->o, u->banks.p[0].w, after);
    free(after);
}

/* -- a run --------------------------------------------------------------------------------------- */

/* Bases that a file begins with: random, or of the first gradient. */
static void take_start(struct run *u)
{
    static const char *const name[][2] = { { "cov_Q", "covpower_right_q" },
                                           { "out_Q", "covpower_left_q" },
                                           { "q_left", "soap_left_q" },
                                           { "q_right", "soap_right_q" } };
    for (int k = 0; k < 4; k++) {
        int64_t n;
        struct tensor q = optim_state(&u->z.p[0], name[k][1]);
        char key[64];
        snprintf(key, sizeof key, "init.%s.%s", name[k][0], u->matrix);
        float *given = golden_floats(u->g, key, &n);
        if (given && q.data)
            floats_to(u->o, q, given);
        free(given);
    }
}

static int start(struct run *u)
{
    int64_t n;
    int rc;
    if ((rc = comm_threads_new(&u->comm, 1)) ||
        (rc = banks_init(&u->banks, u->recipe, u->o, 0, 1)) ||
        (rc = optim_init(&u->z, u->recipe, &u->banks, u->o, u->comm)))
        return rc;
    float *init = tensor_named(u->given, 0, "init", u->matrix, &n);
    floats_to(u->o, u->banks.p[0].w, init);
    free(init);
    take_start(u);
    u->z.most_lr = 1; /* of the file's multipliers */
    if (u->recipe->optimizer.around.kind)
        optim_around(&u->z, 0, true);
    return 0;
}

/* Returns the multiplier of the rate in a step, from 1; schedule-free's rate is constant but for its warm-up. */
static double multiplier(const struct golden *g, int step)
{
    int warmup = st_meta(g->h, "weight_lr_power") ? golden_int(g, "warmup_steps", 0) : 0;
    return !st_meta(g->h, "weight_lr_power") ? of_list(g, "lr_mult", step - 1)
           : step < warmup                   ? (double)step / warmup
                                             : 1;
}

static int one_step(struct run *u, int step)
{
    struct step_schedule at;
    int64_t n;
    int rc;
    float *g = tensor_named(u->given, step, "grad", u->matrix, &n);
    if (!g)
        return err_set(GPT_INPUT, "no gradient of %s in step %d", u->matrix, step);
    schedule_at(u->recipe, step - 1, &at);
    at.lr = multiplier(u->g, step);
    floats_to(u->o, u->banks.p[0].g, g);
    free(g);
    float *probe = tensor_named(u->g, step, "noise", u->matrix, &n);
    if (probe) {
        struct tensor t = u->banks.p[0].w;
        u->z.probe = tensor_of(u->probe, DT_F32, t.rows, t.cols);
        memcpy(u->probe, probe, (size_t)n * sizeof *probe);
    }
    free(probe);
    optim_prepare(&u->z, &at);
    optim_step(&u->z);
    optim_finish(&u->z, &at);
    if ((rc = u->o->sync(u->o)) || (rc = u->comm->status(u->comm)))
        return rc;
    if (step == 1)
        take_bases(u);
    compare_weight(u, step);
    compare_states(u, step);
    return 0;
}

static int make_ops(struct ops **o)
{
    if (!strcmp(device, "cpu"))
        return ops_cpu_new(o);
#ifdef HAVE_CUDA
    return ops_cuda_new(o, 0);
#else
    return err_set(GPT_DEVICE, "built without CUDA");
#endif
}

/* The reference's own precision, or roundings of bf16 products. */
static double tolerance_of(const struct golden *g)
{
    static const char *const loose[] = { "soap", "shampoo", "sinkhorn", "psgd" };
    char own[256];
    const char *line = st_meta(g->h, "line"), *type = st_meta(g->h, "ns_dtype");
    if (!line)
        line = line_of(g, own, sizeof own);
    if (!line || (type && !strcmp(type, "bf16")) || !strcmp(polar, "bf16"))
        return 2e-2;
    for (size_t k = 0; k < sizeof loose / sizeof *loose; k++)
        if (strstr(line, loose[k]))
            return 1e-3;
    return strstr(line, "covpower") || strstr(line, "sign") ? 1e-2 : 1e-4;
}

/* Sets *worst: 0 passed, 1 failed or refused. */
static int run_matrix(struct golden *given, struct golden *g, const char *matrix, int *worst)
{
    struct run u = { .given = given, .g = g, .matrix = matrix, .ok = true };
    int steps = golden_int(given, "steps", 12), rc;
    u.tolerance = tolerance_of(g);
    if ((rc = read_recipe(&u, steps)) == GPT_USAGE || rc == GPT_INPUT) {
        printf("  %-8s refused: %s\n", matrix, err_message());
        *worst = 1;
        return 0;
    }
    if (rc || (rc = make_ops(&u.o)))
        return rc;
    rc = start(&u);
    for (int step = 1; step <= steps && step <= MAX_STEPS && !rc; step++)
        rc = one_step(&u, step);
    if (!rc)
        printf("  %-8s weights %8.1e, states %8.1e  (%.0e, %d tensors)%s\n", matrix, u.worst,
               u.worst_state, u.tolerance, u.compared, u.ok && u.compared ? "" : "  FAILED");
    *worst |= !u.ok || !u.compared;
    optim_release(&u.z);
    if (u.comm)
        u.comm->free(u.comm);
    u.o->free(u.o);
    recipe_free(u.recipe);
    return rc;
}

static int run_file(struct golden *given, const char *file, int *worst)
{
    static const char *const matrices[] = { "square", "tall", "wide", "full", "gain" };
    struct golden g;
    int rc = golden_open(&g, file), seen = 0;
    if (rc)
        return rc;
    printf("%s\n", file);
    for (int k = 0; k < 5 && !rc; k++) {
        char name[64];
        snprintf(name, sizeof name, "1.after.%s", matrices[k]);
        if (!st_find(g.h, name))
            continue;
        rc = run_matrix(given, &g, matrices[k], worst);
        seen++;
    }
    st_close(g.r);
    return rc || seen ? rc : err_set(GPT_INPUT, "%s: no weights of a matrix that is known", file);
}

int main(int argc, char **argv)
{
    const struct opt table[] = {
        { 'd', "device", "NAME", OPT_CHOICE, &device, "where the ops run", .choices = "cpu|cuda" },
        { 'p', "polar", "TYPE", OPT_CHOICE, &polar, "type of the orthogonal map",
          .choices = "f32|bf16" },
        OPT_TEXT('l', "line", "LINE", &own_line, "a chain in place of the files'"),
        OPT_TEXT(0, "around", "LINE", &own_around, "what is around it, in place of the files'"),
        OPT_END
    };
    const struct command cmd = { "zoo", "[OPTION]... GRADIENTS FILE...",
                                 "Compares chains of stages with published optimizers.", table };
    struct golden given;
    struct ops *o;
    int first, worst = 0, rc = opt_parse(&cmd, argc, argv, &first);
    if (!rc && argc - first < 2)
        rc = err_set(GPT_USAGE, "expected the gradients and a file");
    if (!rc)
        rc = golden_open(&given, argv[first]);
    if (rc)
        return opt_exit(&cmd, rc);
    if ((rc = make_ops(&o))) {
        opt_exit(&cmd, rc);
        return 77;
    }
    o->free(o);
    for (int i = first + 1; i < argc && !rc; i++)
        rc = run_file(&given, argv[i], &worst);
    st_close(given.r);
    return rc ? opt_exit(&cmd, rc) : worst;
}
