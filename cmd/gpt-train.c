/* gpt-train - trains a GPT from shards as a recipe says.
 *
 *     gpt-train -r tiny -d shards -o run --ranks 2 > run.log
 */
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "base/file.h"
#include "base/memory.h"
#include "base/opt.h"
#include "base/progress.h"
#include "base/text.h"
#include "base/version.h"
#include "checkpoint/pack.h"
#include "recipe/named.h"
#include "recipe/schedule.h"
#include "ops/gemm.h"
#include "tokenize/canonical.h"
#include "train/run.h"
#include "kernel_versions.h"
#ifdef HAVE_CUDA
#include "comm/rendezvous.h"
#include "../kernels/host/comm_nccl.h"
#include "../kernels/ops_cuda.h"
#include "../kernels/host/profile.h"
#endif

struct options {
    const char *recipe, *data, *val, *vocab, *out, *resume, *init, *device, *trace;
    int64_t ranks, threads, gpus, memory, keep, bench, stage;
    double ranks_timeout;
    char *gpu_path;
    struct opt_list set;
    bool plan, recipes, rules, profile, no_graph, no_verify, wide, quiet, progress, fit;
    bool go_on; /* --continue */
    bool any_device; /* neither --device nor --gpus was given */
};

/* -- the CPU: ranks are threads in one process ------------------------------------- */

static struct comm *threads[MAX_RANKS];

static int cpu_threads; /* of a rank */

static int cpu_ops(struct ops **o, int i, void *group)
{
    int rc = ops_cpu_new(o);
    (void)i;
    (void)group;
    if (!rc)
        ops_cpu_threads(*o, cpu_threads);
    return rc;
}

static int cpu_counting(struct ops **o, int i, void *group)
{
    (void)i;
    (void)group;
    return ops_cpu_counting(o, cpu_threads);
}

static int cpu_available(double *bytes, int i, void *group)
{
    (void)i;
    (void)group;
    *bytes = memory_available("");
    return 0;
}

static int cpu_comm(struct comm **c, struct ops *o, int rank, int world, void *group)
{
    (void)o;
    (void)world;
    *c = ((struct comm **)group)[rank];
    return 0;
}

static void cpu_abort(void *group, int rank, int code, const char *message)
{
    struct comm *c = ((struct comm **)group)[rank];
    c->abort(c, code, message);
}

static void choose_threads(const struct options *o)
{
    int64_t n = o->threads ? o->threads : sysconf(_SC_NPROCESSORS_ONLN) / o->ranks;
    cpu_threads = n < 1 ? 1 : (int)n;
}

static int cpu_backend(struct backend *b, const struct options *o)
{
    bool slow;
    const char *kernels = gemm_kernels(&slow);
    static char about[80];
    int ranks = (int)o->ranks;

    choose_threads(o);
    snprintf(about, sizeof about, "%s, threads a rank: %d", kernels, cpu_threads);
    if (slow && !o->quiet)
        text_line(
            stderr,
            "gpt-train: this processor has no fused multiply-add that we use: products run on "
            "%s, at a fraction of what AVX2 or NEON give",
            kernels);
    *b = (struct backend){ .name = "cpu",
                           .about = about,
                           .world = ranks,
                           .ops_new = cpu_ops,
                           .ops_counting = cpu_counting,
                           .available = cpu_available,
                           .one_memory = true,
                           .comm_new = cpu_comm,
                           .abort = cpu_abort,
                           .group = threads };
    return comm_threads_new(threads, ranks);
}

/* -- NVIDIA GPUs: one thread a GPU in one process ------------------------------------ */

#ifdef HAVE_CUDA
static int gpu_ops_new(struct ops **o, int i, void *group)
{
    return group ? nccl_group_ops(o, i, group) : ops_cuda_new(o, i);
}

static int gpu_counting(struct ops **o, int i, void *group)
{
    return ops_cuda_counting(o, group ? nccl_group_device(group, i) : i);
}

static int gpu_available(double *bytes, int i, void *group)
{
    return ops_cuda_available(bytes, group ? nccl_group_device(group, i) : i);
}

static int gpu_comm_new(struct comm **c, struct ops *o, int rank, int world, void *group)
{
    return group ? comm_nccl_new(c, o, rank, world, group) : comm_threads_new(c, 1);
}

/* A rank is still inside CUDA after all communicators were aborted: its thread cannot be ended. */
static void gpu_stuck(void *ctx, int code, const char *message)
{
    (void)ctx;
    text_line(stderr, "gpt-train: %s", message);
    _exit(code);
}

/* Refuses to compute in bf16 on this GPU, which has no fp8, what the recipe requires in fp8. */
static int refuse_bf16(const struct recipe *r, const struct gpu_facts *f, int device)
{
    const char *key = r->precision.head.fp8 == HEAD_FP8_REQUIRE ? "head_fp8"
                      : r->precision.mlp.fp8 == MLP_FP8_REQUIRE ? "mlp"
                                                                : NULL;
    return !key ? 0
                : err_set(GPT_DEVICE,
                          "precision.%s = require: GPU %d has compute capability %d.%d, fp8 needs "
                          "8.9 or newer",
                          key, device, f->major, f->minor);
}

/* What the log says of this process's GPUs; refuses those that differ, and to compute in bf16 what
 * the recipe requires in fp8. */
static int about_gpus(struct backend *b, int ranks, const struct recipe *r)
{
    static char text[512];
    struct gpu_facts first, next;
    int device = b->group ? nccl_group_device(b->group, 0) : 0, rc;
    bool portable;

    if ((rc = ops_cuda_portable(device, &portable)))
        return rc;
    ops_cuda_facts(device, &first);
    for (int i = 1; i < ranks; i++) {
        int other = nccl_group_device(b->group, i);
        ops_cuda_facts(other, &next);
        if (next.major != first.major || next.minor != first.minor)
            return err_set(GPT_DEVICE,
                           "GPUs %d and %d differ: compute capability %d.%d and %d.%d; "
                           "CUDA_VISIBLE_DEVICES can choose equal ones",
                           device, other, first.major, first.minor, next.major, next.minor);
    }
    if (!gpu_has_fp8(&first) && (rc = refuse_bf16(r, &first, device)))
        return rc;
    const char *in_bf16 = gpu_has_fp8(&first) || (!r->precision.head.fp8 && !r->precision.mlp.fp8)
                              ? ""
                          : !r->precision.mlp.fp8  ? ", the head in bf16: no fp8 below 8.9"
                          : !r->precision.head.fp8 ? ", the MLPs in bf16: no fp8 below 8.9"
                                                   : ", head and MLPs in bf16: no fp8 below 8.9";
    snprintf(text, sizeof text, "%s, compute capability %d.%d, %s path%s", first.name, first.major,
             first.minor, portable ? "portable" : "native", in_bf16);
    b->about = text;
    const struct gpu_software *has = ops_cuda_software();
    b->software =
        (struct backend_software){ has->runtime, b->group ? has->nccl : NULL, has->driver };
    return 0;
}

/* One GPU of one process needs no NCCL. */
static int cuda_backend(struct backend *b, const struct options *o, const struct recipe *r)
{
    struct rendezvous_env at;
    struct nccl_group *g = NULL;
    int n, graphs = 0, ranks = (int)o->ranks, rc = rendezvous_environment(&at);
    if (rc)
        return rc;
    bool alone = ranks == 1 && at.processes == 1;
    /* With lazy module loading the first launch of a kernel can deadlock against a pending
     * collective. The driver reads this variable at its first call. */
    if (!alone && !o->no_graph && (rc = run_graphs(&graphs, r, ranks * at.processes)))
        return rc;
    if (!alone && (o->no_graph || graphs > MAX_GRAPHS))
        setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    n = ops_cuda_count();
    if (ranks > n && n > 0)
        return err_set(GPT_DEVICE, "%d ranks need as many GPUs; %d visible", ranks, n);
    *b = (struct backend){ .name = "cuda",
                           .queues = true,
                           .world = ranks,
                           .ops_new = gpu_ops_new,
                           .available = gpu_available,
                           .ops_counting = gpu_counting,
                           .comm_new = gpu_comm_new,
                           .capture = ops_cuda_capture,
                           .capture_end = ops_cuda_capture_end,
                           .launch = ops_cuda_launch,
                           .graph_free = ops_cuda_graph_free,
                           .profile = profile_begin,
                           .profile_end = profile_end,
                           .mark = ops_cuda_mark };
    ops_cuda_choose_path(o->gpu_path);
    if (alone)
        return about_gpus(b, 1, r);
    if ((rc = nccl_group_new(&g, ranks, o->ranks_timeout)))
        return rc;
    nccl_group_stuck(g, gpu_stuck, NULL);
    b->world = nccl_group_world(g);
    b->first = nccl_group_first(g);
    b->abort = nccl_group_abort;
    b->phase = comm_nccl_phase;
    b->group = g;
    if ((rc = about_gpus(b, ranks, r)))
        nccl_group_free(g);
    return rc;
}

static void release_backend(struct backend *b)
{
    if (!strcmp(b->name, "cuda") && b->group)
        nccl_group_free(b->group);
}
#else
static void release_backend(struct backend *b) { (void)b; }
#endif

#ifndef HAVE_CUDA
static int no_cuda(void)
{
    return err_set(GPT_DEVICE, "this gpt-train was built without CUDA: --device cpu is "
                               "all it has (with nvcc on the path, make builds the other)");
}
#endif

static int pick_backend(struct backend *b, const struct options *o, const struct recipe *r)
{
    if (!strcmp(o->device, "cpu")) {
#ifdef HAVE_CUDA
        int gpus = o->any_device && !o->quiet ? ops_cuda_count() : 0;
        if (gpus)
            text_line(stderr,
                      "gpt-train: training on the CPU; %d GPU%s visible: --gpus N uses them, "
                      "--device cpu silences this message",
                      gpus, gpus > 1 ? "s are" : " is");
#endif
        return cpu_backend(b, o);
    }
#ifdef HAVE_CUDA
    return cuda_backend(b, o, r);
#else
    (void)r;
    return no_cuda();
#endif
}

/* Needs no GPU: where there is none, one of Hopper is planned for. */
static int plan(const struct options *o, const struct recipe *r)
{
    struct backend b = { .name = o->device, .world = (int)o->ranks, .ops_counting = cpu_counting };
    choose_threads(o);
    if (strcmp(o->device, "cpu")) {
#ifdef HAVE_CUDA
        ops_cuda_choose_path(o->gpu_path);
        b.ops_counting = gpu_counting;
#else
        return no_cuda();
#endif
    }
    return run_plan(r, &b, o->data, o->val, o->wide, stdout);
}

static bool is_standard(const char *path) { return path && !strcmp(path, "-"); }

/* -- options -------------------------------------------------------------------------- */

/* For the handler of signals. */
static bool silent; /* --quiet */
static bool on_terminal; /* standard error is one, and may have ^C or progress in the line */
static const char *output; /* -o */
static bool continued; /* --continue */
static _Atomic int64_t signalled; /* time of the first signal in ms; 0: none has come */

/* Text made without snprintf, which a handler of signals may not call. */
struct words {
    char text[1024];
    size_t n;
};

static void say(struct words *w, const char *s)
{
    for (; *s && w->n < sizeof w->text; s++)
        w->text[w->n++] = *s;
}

static void say_number(struct words *w, int v)
{
    char digits[12];
    int i = sizeof digits - 1;
    digits[i] = 0;
    do
        digits[--i] = (char)('0' + v % 10);
    while (v /= 10);
    say(w, digits + i);
}

/* Where a run that ends can go on, and which steps are lost. */
static void say_what_is_left(struct words *w)
{
    struct run_progress p = run_progress();
    int first = p.kept < 0 ? 1 : p.kept + 1;
    if (p.kept >= 0 && output) {
        say(w, continued ? "; the same command goes on from step " : "; go on from step ");
        say_number(w, p.kept);
        say(w, continued ? "" : " with --resume ");
        say(w, continued ? "" : output);
    }
    if (p.reached < first)
        return;
    say(w, p.reached > first ? "; lost: steps " : "; lost: step ");
    say_number(w, first);
    if (p.reached > first) {
        say(w, " to ");
        say_number(w, p.reached);
    }
}

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1 + (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Terminals, timeout(1), mpirun and srun may each send the same signal: within a second they are one. */
static void on_signal(int sig)
{
    struct words w = { 0 };
    int64_t none = 0, now = now_ms();
    bool first = atomic_compare_exchange_strong(&signalled, &none, now);
    if (!first && now - none < 1000)
        return;
    say(&w, on_terminal ? "\ngpt-train: " : "gpt-train: ");
    say(&w,
        first ? "stopping after this step; another signal, a second from now, ends the run at once"
              : "ended at once by a second signal");
    if (!first)
        say_what_is_left(&w);
    say(&w, "\n");
    int saved = errno;
    if ((!silent || !first) && write(STDERR_FILENO, w.text, w.n) < 0) {
        /* nobody reads it: the run stops all the same */
    }
    errno = saved;
    if (first)
        run_stop();
    else
        output_end_by_signal(sig);
}

static void stop_on_signals(void)
{
    static const int signals[] = { SIGINT, SIGTERM, SIGHUP };
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
        if (signal(signals[i], on_signal) == SIG_IGN)
            signal(signals[i], SIG_IGN); /* nohup stays nohup */
    signal(SIGPIPE, SIG_IGN); /* a closed stdout is an error with a message */
}

/* Creates the directory of checkpoints and tests that one can be written there, so that a run does
 * not fail at its first checkpoint. */
static int try_output(const char *dir, bool *made)
{
    struct stat st;
    *made = stat(dir, &st) && errno == ENOENT;
    int rc = file_mkdirs(dir);
    char *probe = rc ? NULL : path_join(dir, ".probe.tmp");
    if (!rc && !probe)
        return err_memory();
    if (!rc && mkdir(probe, 0777) && errno != EEXIST)
        rc = err_sys("cannot write into '%s'", dir);
    else if (!rc)
        rmdir(probe);
    free(probe);
    return rc;
}

/* Of --resume - or --init -: the checkpoint that gpt-ckpt pack wrote, in a folder that goes with this
 * process. */
static int unpack(const char **path, struct temporary_dir *t)
{
    if (!is_standard(*path))
        return 0;
    output_cleanup_on_signal();
    int rc = temporary_dir_new(t);
    if (!rc)
        rc = ckpt_unpack_into("-", t->path);
    *path = t->path;
    return rc;
}

/* -r, or the recipe in the checkpoint whose weights are taken; says where that has another model. */
static int get_init_recipe(const struct options *o, struct recipe **r)
{
    char said[400];
    int rc = run_init_recipe(r, o->init, o->recipe, o->set.v, o->set.n, said, sizeof said);
    if (!rc && *said && !o->quiet)
        text_line(stderr, "gpt-train: %s", said);
    return rc;
}

/* --continue: where -o holds a checkpoint that is what to resume, else there is nothing. */
static int find_continued(struct options *o)
{
    if (!o->go_on)
        return 0;
    int rc = run_begun(o->out);
    if (!rc)
        o->resume = o->out, o->init = NULL; /* it has begun already */
    else if (rc == GPT_NO && !o->recipe)
        return err_set(GPT_USAGE, "expected -r RECIPE: %s holds no checkpoint to continue", o->out);
    return rc == GPT_NO ? 0 : rc;
}

/* The first line of a that b has not, where they part; its end in *n. */
static const char *first_difference(const char *a, const char *b, int *n)
{
    const char *line = a;
    for (; *a && *a == *b; a++, b++)
        if (*a == '\n')
            line = a + 1;
    *n = (int)strcspn(line, "\n");
    return line;
}

static int another_recipe(const struct options *o, const struct recipe *given,
                          const struct recipe *saved)
{
    int n, m;
    const char *there = recipe_canonical(saved), *here = recipe_canonical(given);
    const char *in_there = first_difference(there, here, &n);
    const char *in_here = first_difference(here, there, &m);
    return err_set(
        GPT_INPUT,
        "%s: the run there was made with another recipe (%s %s) than %s (%s %s): there "
        "'%.*s', here '%.*s'; leave -r out to continue it, with --set for what shall differ",
        o->resume, saved->name, saved->hash, o->recipe, given->name, given->hash, n, in_there, m,
        in_here);
}

/* -r, where it is a run's folder: the recipe of its newest checkpoint, else of its log. */
static int read_recipe(struct recipe **r, const char *from, const char *const *set, int n)
{
    struct stat st;
    if (recipe_named_find(from) || stat(from, &st) || !S_ISDIR(st.st_mode))
        return recipe_read(r, from, set, n);
    char *manifest = path_join(from, "MANIFEST"), *log = path_join(from, "log.txt");
    int rc = !manifest || !log ? err_memory() : !access(manifest, F_OK) ? 0 : run_begun(from);
    if (!rc)
        rc = run_recipe(r, from, set, n);
    else if (rc == GPT_NO && !access(log, F_OK))
        rc = recipe_read(r, log, set, n);
    else if (rc == GPT_NO)
        rc = err_set(GPT_INPUT,
                     "%s: expected a recipe, or a run's folder with a checkpoint or log.txt", from);
    free(manifest);
    free(log);
    return rc;
}

/* -r as it is when --fit has set what it set in the run that is resumed. */
static int read_fitted(const struct options *o, const struct recipe *saved, struct recipe **r)
{
    char chunks[FIT_KEY_SIZE], block[FIT_KEY_SIZE];
    const char **set = calloc((size_t)o->set.n + FIT_KEYS, sizeof *set);
    int n = o->set.n;
    if (!set)
        return err_memory();
    for (int i = 0; i < n; i++)
        set[i] = o->set.v[i];
    snprintf(chunks, sizeof chunks, "data.chunks=%d", saved->data.chunks);
    snprintf(block, sizeof block, "precision.head_block=%d", saved->precision.head.block);
    if (o->fit) {
        set[n++] = chunks;
        set[n++] = block;
    }
    int rc = read_recipe(r, o->recipe, set, n);
    free(set);
    return rc;
}

/* -r, or the recipe in the checkpoint; with both, they must be equal. */
static int get_recipe(const struct options *o, struct recipe **r)
{
    struct recipe *saved;
    int rc;
    if (!o->recipe && !o->resume && !o->init)
        return err_set(GPT_USAGE, "expected -r RECIPE (or --resume DIR)");
    if (o->init)
        return get_init_recipe(o, r);
    if (!o->resume)
        return read_recipe(r, o->recipe, o->set.v, o->set.n);
    if ((rc = run_recipe(&saved, o->resume, o->set.v, o->set.n)))
        return rc;
    if (!o->recipe) {
        *r = saved;
        return 0;
    }
    rc = read_fitted(o, saved, r);
    if (!rc && strcmp((*r)->hash, saved->hash)) {
        rc = another_recipe(o, *r, saved);
        recipe_free(*r);
        *r = NULL;
    }
    recipe_free(saved);
    return rc;
}

/* Before anything is begun: does the run fit into memory? With --fit it is made to, by keys that are
 * set as --set would. */
static int fit_memory(struct options *o, const struct backend *b, struct recipe **r,
                      size_t *ops_bytes)
{
    struct run_fit fit;
    int ranks = (int)o->ranks, rc = run_fits(*r, b, ranks, &fit);
    *ops_bytes = fit.memory.ops;
    if (!rc || !o->fit || !fit.n)
        return rc;
    if (b->world > ranks)
        return err_set(GPT_USAGE, "--fit is for one process: others may have other memory");
    if (!o->quiet)
        text_line(stderr, "gpt-train: %s", err_message());
    struct recipe *fitted;
    const char *set[FIT_KEYS];
    for (int i = 0; i < fit.n; i++)
        set[i] = fit.set[i];
    rc = recipe_parse(&fitted, (*r)->name, recipe_canonical(*r), set, fit.n);
    if (rc)
        return rc;
    recipe_free(*r);
    *r = fitted;
    return 0;
}

/* True if an override is this, or, of "KEY=", any of the key. */
static bool is_set(const struct options *o, const char *word)
{
    bool any = word[strlen(word) - 1] == '=';
    for (int i = 0; i < o->set.n; i++)
        if (any ? !strncmp(o->set.v[i], word, strlen(word)) : !strcmp(o->set.v[i], word))
            return true;
    return false;
}

/* A pipe passes once: of a recipe that would begin anew where its data end, another one. */
static int pass_once(const struct options *o, struct recipe **r)
{
    static const char *const once[] = { "data.cycle=no" };
    struct recipe *made;
    if (!is_standard(o->data) || !(*r)->data.cycle || is_set(o, "data.cycle="))
        return 0;
    int rc = recipe_parse(&made, (*r)->name, recipe_canonical(*r), once, 1);
    if (rc)
        return rc;
    recipe_free(*r);
    *r = made;
    if (!o->quiet)
        text_line(stderr, "gpt-train: -d - passes once: data.cycle=no");
    return 0;
}

/* What losses need of the vocabulary; to be freed. */
struct of_vocabulary {
    int32_t *prefix; /* of each of the recipe's ids; NULL: not wanted */
    struct token_mask never; /* the same */
    char tokenizer[80];
};

static void of_vocabulary_free(struct of_vocabulary *p)
{
    free(p->prefix);
    canonical_free(&p->never);
}

static int fill_prefixes(const struct vocab *v, const struct recipe *r, struct of_vocabulary *p)
{
    if (!(p->prefix = malloc((size_t)r->model.vocab * sizeof *p->prefix)))
        return err_memory();
    for (int i = 0; i < r->model.vocab; i++) {
        uint32_t rank = i < v->size ? vocab_rank(v, (uint16_t)i) : TOKEN_NONE;
        bool some = rank != TOKEN_NONE && v->shorter[rank] != TOKEN_NONE;
        p->prefix[i] = some ? (int32_t)vocab_id(v, v->shorter[rank]) : -1;
    }
    return 0;
}

static int read_vocabulary(const char *file, const struct recipe *r, struct of_vocabulary *p)
{
    struct vocab *v = NULL;
    char *found = NULL;
    int rc = file ? 0 : vocab_find(&found);
    if (!rc)
        rc = vocab_load(&v, file ? file : found);
    if (!rc && v->size > r->model.vocab)
        rc = err_set(GPT_INPUT, "%s: the recipe has %d ids, the vocabulary %s has %d",
                     file ? file : found, r->model.vocab, v->name, v->size);
    if (!rc && recipe_prefixes(r))
        rc = fill_prefixes(v, r, p);
    if (!rc && r->data.val.canonical)
        rc = canonical_make(&p->never, v, r->model.vocab);
    if (!rc)
        snprintf(p->tokenizer, sizeof p->tokenizer, "%s %s", v->name, v->sha256);
    vocab_free(v);
    free(found);
    return rc;
}

static void warn(const char *message) { text_line(stderr, "gpt-train: %s", message); }

static int train_on(struct backend *b, const struct options *o, const struct recipe *r,
                    size_t ops_bytes, const char *arguments, double began, int64_t *used)
{
    bool wanted = recipe_prefixes(r) || r->data.val.canonical;
    struct of_vocabulary vocab = { 0 };
    int rc = 0;
    if (wanted && !o->bench)
        rc = read_vocabulary(o->vocab, r, &vocab);
    else if (o->vocab)
        rc = err_set(GPT_USAGE, "--vocab: no stage of the recipe has a weight for prefixes, and "
                                "data.val_canonical is no");
    if (rc) {
        of_vocabulary_free(&vocab);
        return rc;
    }
    struct run_options run = {
        .recipe = r,
        .prefixes = vocab.prefix,
        .never = vocab.never.bits ? &vocab.never : NULL,
        .tokenizer = *vocab.tokenizer ? vocab.tokenizer : NULL,
        .data = o->data,
        .val = o->val,
        .used = used,
        .out = o->out,
        .resume = o->bench ? NULL : o->resume,
        .init = o->bench ? NULL : o->init,
        .ranks = (int)o->ranks,
        .ops_bytes = ops_bytes,
        .no_graph = o->no_graph,
        .no_verify = o->no_verify,
        .bench = (int)o->bench,
        .profile = o->profile,
        .wide = o->wide,
        .trace = o->trace,
        .stage = o->stage > 0 ? (int)o->stage : 0,
        .keep = o->keep < 0 ? 2 : (int)o->keep,
        .keep_all_else = o->keep < 0,
        .backend = b,
        .log = b->first ? NULL : stdout,
        .warn = warn,
        .note = o->quiet ? NULL : warn,
        .arguments = arguments,
        .began = began,
        /* A log on the terminal shows progress itself, and a progress line would mix with it. */
        .progress = o->quiet                ? PROGRESS_OFF
                    : o->progress           ? PROGRESS_ON
                    : isatty(STDOUT_FILENO) ? PROGRESS_OFF
                                            : PROGRESS_AUTO,
    };
    silent = o->quiet;
    output = o->out;
    continued = o->go_on;
    on_terminal = isatty(STDERR_FILENO);
    stop_on_signals();
    rc = run_train(&run);
    of_vocabulary_free(&vocab);
    return rc;
}

static void say_stopped(const struct options *o, int64_t used)
{
    struct words w = { 0 };
    say_what_is_left(&w);
    text_line(stderr, "gpt-train: stopped by a signal%s%.*s",
              run_progress().reached < 0 ? " before the first step"
              : o->out                   ? ""
                                         : "; without -o nothing is kept",
              (int)w.n, w.text);
    if (o->out && run_progress().kept >= 0 && is_standard(o->data))
        text_line(stderr,
                  "gpt-train: -d - takes the stream from its beginning: the resumed run skips the "
                  "%lld tokens used so far",
                  (long long)used);
}

static int train(struct options *o, struct recipe **r, const char *arguments, double began)
{
    struct backend backend;
    int64_t used = 0;
    size_t ops_bytes;
    bool made = false;
    int rc = 0;
    if (!o->data && !o->bench)
        return err_set(GPT_USAGE, "expected -d SHARDS");
    if (o->out && !o->bench)
        rc = try_output(o->out, &made);
    if (!rc && !(rc = pick_backend(&backend, o, *r))) {
        backend.memory = (double)o->memory;
        if (!(rc = fit_memory(o, &backend, r, &ops_bytes)))
            rc = train_on(&backend, o, *r, ops_bytes, arguments, began, &used);
        release_backend(&backend);
    }
    if (made && rc)
        rmdir(o->out); /* only if nothing is in it */
    struct words w = { 0 };
    if (rc > 0 && o->out && !o->bench && run_progress().kept < schedule_total(*r)) {
        say_what_is_left(&w);
        return err_set(rc, "%s%.*s", err_message(), (int)w.n, w.text);
    }
    if (rc == RUN_ENDED) {
        if (!o->quiet)
            text_line(stderr,
                      "gpt-train: nothing to do: the run has ended at step %d; -s schedule.steps=N "
                      "with N above %d goes on",
                      schedule_total(*r), schedule_total(*r) - (*r)->schedule.extension);
        return 0;
    }
    if (rc != RUN_STOPPED)
        return rc;
    clearerr(stdout); /* the log is whole in its copy */
    if (!o->quiet)
        say_stopped(o, used);
    return 0;
}

/* Rejects options that contradict each other or have no effect. --gpus N: N ranks on GPUs. */
static int check_options(struct options *o)
{
    int rc = opt_choose(o->plan, "--plan", o->bench, "--bench");
    if (!rc)
        rc = opt_choose(o->quiet, "--quiet", o->progress, "--progress");
    if (!rc)
        rc = opt_choose(o->go_on, "--continue", o->resume, "--resume");
    if (!rc && o->go_on && !o->out)
        rc = err_set(GPT_USAGE, "--continue needs -o DIR");
    if (rc)
        return rc;
    if ((rc = opt_choose(o->init, "--init", o->resume, "--resume")))
        return rc;
    if (o->wide && !o->plan && !o->bench)
        return err_set(GPT_USAGE, "--wide needs --plan or --bench");
    if (is_standard(o->recipe) + is_standard(o->data) + is_standard(o->resume) +
            is_standard(o->init) + is_set(o, "optimizer.coeffs=-") >
        1)
        return err_set(GPT_USAGE, "'-' twice among -r, -d, --resume, --init and -s "
                                  "optimizer.coeffs=-: standard input is read once");
    if (is_standard(o->val))
        return err_set(GPT_USAGE, "--val -: expected files or a folder of shards");
    if (o->gpus && (o->ranks || (o->device && strcmp(o->device, "cuda"))))
        return err_set(GPT_USAGE, "--gpus %lld beside %s: choose one", (long long)o->gpus,
                       o->ranks ? "--ranks" : "--device cpu");
    o->any_device = !o->device && !o->gpus;
    if (!o->device)
        o->device = o->gpus ? "cuda" : "cpu";
    if (!o->ranks)
        o->ranks = o->gpus ? o->gpus : 1;
    bool cuda = !strcmp(o->device, "cuda");
    if ((o->profile || o->trace) && !(o->bench && cuda))
        return err_set(GPT_USAGE, "%s needs --bench and --device cuda",
                       o->profile ? "--profile" : "--trace");
    if (o->stage >= 0 && !o->profile && !o->trace)
        return err_set(GPT_USAGE, "--stage needs --profile or --trace");
    if ((o->no_graph || o->ranks_timeout > 0 || o->gpu_path) && !cuda)
        return err_set(GPT_USAGE, "%s needs --device cuda",
                       o->no_graph   ? "--no-graph"
                       : o->gpu_path ? "--gpu-path"
                                     : "--ranks-timeout");
    if (o->threads && cuda)
        return err_set(GPT_USAGE, "--threads is for --device cpu alone");
    if (o->keep >= 0 && !o->out)
        return err_set(GPT_USAGE, "--keep needs -o DIR");
    if (!(o->ranks_timeout > 0))
        o->ranks_timeout = 6;
    return 0;
}

int main(int argc, char **argv)
{
    struct options o = { .keep = -1, .stage = -1 };
    const struct opt table[] = {
        { 0, NULL, NULL, OPT_GROUP, NULL, "Experiment", 0, 0, NULL },
        { 'r', "recipe", "RECIPE", OPT_STR, &o.recipe,
          "the experiment, gpt-recipe(5): a file, a run's folder, or a name of --recipes", 0, 0,
          NULL },
        OPT_SWITCH(0, "recipes", &o.recipes, "list the recipes that have names, and exit"),
        OPT_SWITCH(0, "rules", &o.rules, "list published optimizers as lines of [rules], and exit"),
        { 's', "set", "KEY=VALUE", OPT_LIST, &o.set,
          "override section.key of the recipe; may be repeated", 0, 0, NULL },
        { 'd', "data", "SHARDS", OPT_STR, &o.data,
          "folder of shards, a file or pattern of public .bin shards, or - (a pipe)", 0, 0, NULL },
        { 0, "val", "SHARDS", OPT_STR, &o.val, "validation shards (of -d; of a pipe its beginning)",
          0, 0, NULL },
        { 0, "vocab", "FILE", OPT_STR, &o.vocab,
          "vocabulary for prefixes, canonical tokens: rank file, vocab.bpe or tokenizer.json", 0, 0,
          NULL },
        OPT_SWITCH(0, "no-verify", &o.no_verify,
                   "do not check what is read of SHARDS against the hashes of its MANIFEST"),
        { 'p', "plan", NULL, OPT_FLAG, &o.plan,
          "print parameters, memory, communication and schedule; train nothing", 0, 0, NULL },
        { 0, NULL, NULL, OPT_GROUP, NULL, "Run", 0, 0, NULL },
        { 0, "memory", "BYTES", OPT_I64, &o.memory,
          "memory that the run may take, of the CPU's or of each GPU's (all that is left)", 1, 1e18,
          NULL },
        OPT_SWITCH(0, "fit", &o.fit,
                   "where memory is short, set the keys that the message would propose"),
        { 'o', "output", "DIR", OPT_STR, &o.out, "write checkpoints and a copy of the log into DIR",
          0, 0, NULL },
        { 0, "resume", "DIR", OPT_STR, &o.resume,
          "continue from the newest checkpoint in DIR, from DIR itself, or from a packed one (-)",
          0, 0, NULL },
        OPT_SWITCH(0, "continue", &o.go_on,
                   "resume what DIR of -o holds; where it holds no checkpoint, begin"),
        { 0, "init", "DIR", OPT_STR, &o.init,
          "begin a new run with the weights of a checkpoint, named as for --resume", 0, 0, NULL },
        { 0, "keep", "N", OPT_I64, &o.keep,
          "how many checkpoints DIR keeps, the newest; 0: all (2 of "
          "this process's own)",
          0, 1e6, NULL },
        { 0, "device", "NAME", OPT_CHOICE, &o.device, "where to compute (cpu)", 0, 0, "cpu|cuda" },
        { 0, "ranks", "N", OPT_I64, &o.ranks,
          "ranks: threads on a CPU, GPUs with --device cuda (1)", 1, MAX_RANKS, NULL },
        { 0, "threads", "N", OPT_I64, &o.threads, "threads of a rank on a CPU (processors / ranks)",
          1, 1024, NULL },
        { 0, "gpus", "N", OPT_I64, &o.gpus, "the same as --device cuda --ranks N", 1, 64, NULL },
        { 0, "gpu-path", "PATH", OPT_CHOICE, &o.gpu_path,
          "kernels: native (Hopper's own) or portable (what the GPU has)", 0, 0,
          "native|portable" },
        { 0, "ranks-timeout", "SECONDS", OPT_F64, &o.ranks_timeout,
          "GPUs: a rank silent for so long in a step ends the run (6)", 1, 1e6, NULL },
        { 0, "no-graph", NULL, OPT_FLAG, &o.no_graph,
          "GPUs: launch each kernel instead of one graph a step", 0, 0, NULL },
        { 0, "bench", "N", OPT_I64, &o.bench,
          "time N pairs of steps of each stage without data; print a table", 1, 1e6, NULL },
        { 0, "profile", NULL, OPT_FLAG, &o.profile, "with --bench on a GPU: a row for each kernel",
          0, 0, NULL },
        { 0, "trace", "FILE", OPT_STR, &o.trace,
          "with --bench on GPUs: a timeline for Perfetto; .gz and .zst compress", 0, 0, NULL },
        { 0, "stage", "K", OPT_I64, &o.stage, "of which stage --profile and --trace are (0)", 0,
          MAX_STAGES, NULL },
        OPT_SWITCH(
            0, "wide", &o.wide,
            "with --plan or --bench: tables as wide as they are, not broken for the terminal"),
        { 0, NULL, NULL, OPT_GROUP, NULL, "Messages", 0, 0, NULL },
        { 0, "progress", NULL, OPT_FLAG, &o.progress,
          "show progress even when stderr is no terminal", 0, 0, NULL },
        { 'q', "quiet", NULL, OPT_FLAG, &o.quiet, "no progress, errors only", 0, 0, NULL },
        OPT_END
    };
    const struct command cmd = { "gpt-train", "[OPTION]... -r RECIPE -d SHARDS [-o DIR]",
                                 "Trains a GPT from shards as a recipe says; the run log goes to "
                                 "stdout.",
                                 table };
    struct recipe *r = NULL;
    struct temporary_dir unpacked = { 0 };
    double began = now_seconds();
    opt_words = recipe_words;
    opt_version_extra = kernel_versions;
    char *arguments = opt_arguments(argc, argv);
    int first, rc = opt_parse(&cmd, argc, argv, &first);
    if (!rc && first < argc)
        rc = err_set(GPT_USAGE, "unexpected operand '%s'", argv[first]);
    if (!rc && (o.recipes || o.rules)) {
        (o.recipes ? recipe_named_list : recipe_rules_list)(stdout);
        rc = OPT_DONE;
    }
    if (!rc)
        rc = check_options(&o);
    if (!rc)
        rc = unpack(o.resume ? &o.resume : &o.init, &unpacked);
    if (!rc)
        rc = find_continued(&o);
    if (!rc)
        rc = get_recipe(&o, &r);
    if (!rc)
        rc = pass_once(&o, &r);
    if (!rc && o.stage > r->n_stages - 2)
        rc = err_set(GPT_USAGE, "--stage %lld: the recipe has stages 0 to %d", (long long)o.stage,
                     r->n_stages - 2);
    if (!rc)
        rc = o.plan ? plan(&o, r) : train(&o, &r, arguments, began);
    temporary_dir_remove(&unpacked);
    recipe_free(r);
    free(arguments);
    opt_list_release(&o.set);
    return opt_exit(&cmd, rc);
}
