/* gpt-train - trains a GPT from shards as a recipe says.
 *
 *     gpt-train -r tiny -d shards -o run --ranks 2 > run.log
 */
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "base/file.h"
#include "base/opt.h"
#include "base/progress.h"
#include "base/text.h"
#include "checkpoint/pack.h"
#include "recipe/initial.h"
#include "recipe/named.h"
#include "recipe/schedule.h"
#include "train/run.h"
#include "devices.h"

struct options {
    const char *recipe, *data, *val, *vocab, *out, *resume, *init, *device, *trace, *gradients,
        *format;
    int64_t ranks, threads, gpus, memory, keep, bench, stage, estimate, batch, after;
    double ranks_timeout, bandwidth;
    char *gpu_path;
    struct opt_list set;
    bool plan, recipes, rules, profile, no_graph, no_verify, wide, stats, quiet, progress, fit;
    bool go_on; /* --continue */
    bool any_device; /* neither --device nor --gpus was given */
};

static void warn(const char *message) { text_line(stderr, "gpt-train: %s", message); }

/* -- devices --------------------------------------------------------------------------- */

/* Ends the process: a thread is still inside CUDA after all communicators were aborted. */
static void stuck(int code, const char *message)
{
    warn(message);
    _exit(code);
}

static struct backend_wants wants_of(const struct options *o)
{
    return (struct backend_wants){ .ranks = (int)o->ranks,
                                   .world = (int)o->ranks,
                                   .threads = (int)o->threads,
                                   .gpu_path = o->gpu_path,
                                   .timeout_s = o->ranks_timeout,
                                   .stuck = stuck };
}

static int pick_backend(struct backend *b, const struct options *o, const struct recipe *r)
{
    struct backend_wants w = wants_of(o);
    bool cpu = !strcmp(o->device, "cpu");
    int gpus = cpu && o->any_device && !o->quiet ? devices_gpus() : 0;
    int rc = cpu ? 0 : run_wants(&w, r, o->no_graph);

    if (gpus)
        text_line(stderr,
                  "gpt-train: training on the CPU; %d GPU%s visible: --gpus N uses them, "
                  "--device cpu silences this message",
                  gpus, gpus > 1 ? "s are" : " is");
    if (!rc)
        rc = devices_choose(b, o->device, &w);
    if (!rc && b->slow && !o->quiet)
        text_line(stderr,
                  "gpt-train: this processor has no fused multiply-add that we use: products run "
                  "at a fraction of what AVX2 or NEON give (%s)",
                  b->about);
    b->memory = (double)o->memory;
    return rc;
}

/* Needs no GPU. */
static int plan(const struct options *o, const struct recipe *r)
{
    struct backend_wants w = wants_of(o);
    struct backend b;
    w.counting = true;
    w.cpu_alone = recipe_cpu_alone(r);
    int rc = devices_choose(&b, o->device, &w);
    if (rc)
        return rc;
    rc = run_plan(r, &b, o->data, o->val, o->wide, stdout);
    backend_release(&b);
    return rc;
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

/* --continue: where -o holds a checkpoint that is what to resume, else there is nothing. */
static int find_continued(struct options *o)
{
    if (!o->go_on)
        return 0;
    int rc = run_begun(o->out);
    if (!rc)
        o->resume = o->out;
    else if (rc == GPT_NO && !o->recipe && !o->init)
        return err_set(GPT_USAGE, "expected -r RECIPE: %s holds no checkpoint to continue", o->out);
    return rc == GPT_NO ? 0 : rc;
}

/* -r, or the recipe in the checkpoint. */
static int get_recipe(const struct options *o, struct recipe **r)
{
    struct run_source from = { .recipe = o->recipe,
                               .resume = o->resume,
                               .init = o->init,
                               .set = o->set.v,
                               .n = o->set.n,
                               .again = o->go_on,
                               .fit = o->fit,
                               .pipe = is_standard(o->data),
                               .note = o->quiet ? NULL : warn };
    if (!o->recipe && !o->resume && !o->init)
        return err_set(GPT_USAGE, "expected -r RECIPE (or --resume DIR)");
    return run_source_recipe(r, &from);
}

static bool is_set(const struct options *o, const char *word)
{
    for (int i = 0; i < o->set.n; i++)
        if (!strcmp(o->set.v[i], word))
            return true;
    return false;
}

static int train_on(struct backend *b, const struct options *o, const struct recipe *r,
                    struct initial *drawn, size_t ops_bytes, const char *arguments, double began,
                    int64_t *used)
{
    struct run_options run = {
        .recipe = r,
        .drawn = drawn,
        .vocab = o->vocab,
        .data = o->data,
        .val = o->val,
        .used = used,
        .out = o->out,
        .resume = o->bench ? NULL : o->resume,
        .init = o->bench || o->resume ? NULL : o->init,
        .ranks = (int)o->ranks,
        .ops_bytes = ops_bytes,
        .no_graph = o->no_graph,
        .no_verify = o->no_verify,
        .bench = (int)o->bench,
        .estimate = (int)o->estimate,
        .bandwidth = o->bandwidth,
        .one = { o->gradients, o->stats, o->batch > 0 ? (int)o->batch : 0, (int)o->after },
        .format = o->format,
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
    return run_train(&run);
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
    struct initial *drawn = NULL;
    int64_t used = 0;
    size_t ops_bytes;
    bool made = false;
    int rc = 0;
    if (!o->data && !o->bench)
        return err_set(GPT_USAGE, "expected -d SHARDS");
    if (o->out && !o->bench)
        rc = run_try_output(o->out, &made);
    /* While GPUs start; not on a CPU, whose free memory is measured. --fit may replace the recipe. */
    bool draws = o->bench || (!o->resume && !o->init);
    if (!rc && draws && !o->fit && !strcmp(o->device, "cuda"))
        rc = initial_new(&drawn, *r, (uint64_t)(*r)->seed, NULL);
    if (!rc && !(rc = pick_backend(&backend, o, *r))) {
        rc = run_fit_recipe(r, &backend, (int)o->ranks, o->fit, o->quiet ? NULL : warn, &ops_bytes);
        if (!rc) {
            rc = train_on(&backend, o, *r, drawn, ops_bytes, arguments, began, &used);
            drawn = NULL; /* run_train has freed them */
        }
        backend_release(&backend);
    }
    initial_free(drawn);
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

/* Does the same to --gradients, --stats and what belongs to them. */
static int check_look(const struct options *o)
{
    const char *look = o->stats ? "--stats" : "--gradients";
    bool looks = o->stats || o->gradients;
    int rc = opt_choose(o->stats, look, o->gradients, "--gradients");
    if (!rc)
        rc = opt_choose(looks, look, o->out, "-o");
    if (!rc)
        rc = opt_choose(looks, look, o->bench, "--bench");
    if (!rc)
        rc = opt_choose(looks, look, o->plan, "--plan");
    if (rc)
        return rc;
    if ((o->batch >= 0 || o->after) && !looks)
        return err_set(GPT_USAGE, "%s needs --gradients FILE or --stats",
                       o->after ? "--after" : "--batch");
    if (o->format && !o->stats && !o->bench)
        return err_set(GPT_USAGE, "--format needs --stats or --bench");
    if (o->wide && !o->plan && !o->bench && !o->stats)
        return err_set(GPT_USAGE, "--wide needs --plan, --bench or --stats");
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
    if ((rc = check_look(o)))
        return rc;
    if (o->vocab && o->bench)
        return err_set(GPT_USAGE, "--vocab has no effect on --bench");
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
    if (o->estimate && !o->bench)
        return err_set(GPT_USAGE, "--estimate needs --bench");
    if (o->bandwidth > 0 && !o->estimate)
        return err_set(GPT_USAGE, "--bandwidth needs --estimate");
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
    struct options o = { .keep = -1, .stage = -1, .batch = -1 };
    const struct opt table[] = {
        OPT_HEADING("Experiment"),
        OPT_TEXT('r', "recipe", "RECIPE", &o.recipe,
                 "the experiment, gpt-recipe(5): a file, a run's folder, or a name of --recipes"),
        OPT_SWITCH(0, "recipes", &o.recipes, "list the recipes that have names, and exit"),
        OPT_SWITCH(0, "rules", &o.rules, "list published optimizers as lines of [rules], and exit"),
        { .letter = 's',
          .name = "set",
          .arg = "KEY=VALUE",
          .kind = OPT_LIST,
          .value = &o.set,
          .help = "override section.key of the recipe; may be repeated" },
        OPT_TEXT('d', "data", "SHARDS", &o.data,
                 "folder of shards, a file or pattern of public .bin shards, or - (a pipe)"),
        OPT_TEXT(0, "val", "SHARDS", &o.val, "validation shards (of -d; of a pipe its beginning)"),
        OPT_TEXT(
            0, "vocab", "FILE", &o.vocab,
            "vocabulary for prefixes, canonical tokens: rank file, vocab.bpe or tokenizer.json"),
        OPT_SWITCH(0, "no-verify", &o.no_verify,
                   "do not check what is read of SHARDS against the hashes of its MANIFEST"),
        OPT_SWITCH('p', "plan", &o.plan,
                   "print parameters, memory, communication and schedule; train nothing"),
        OPT_HEADING("Run"),
        OPT_NUMBER(
            "memory", "BYTES", &o.memory, 1, 1e18,
            "memory that the run may take, of the CPU's or of each GPU's (all that is left)"),
        OPT_SWITCH(0, "fit", &o.fit,
                   "where memory is short, set the keys that the message would propose"),
        OPT_TEXT('o', "output", "DIR", &o.out, "write checkpoints and a copy of the log into DIR"),
        OPT_TEXT(
            0, "resume", "DIR", &o.resume,
            "continue from the newest checkpoint in DIR, from DIR itself, or from a packed one (-)"),
        OPT_SWITCH(0, "continue", &o.go_on,
                   "resume what DIR of -o holds; where it holds no checkpoint, begin"),
        OPT_TEXT(0, "init", "DIR", &o.init,
                 "begin a new run with the weights of a checkpoint, named as for --resume"),
        OPT_NUMBER("keep", "N", &o.keep, 0, 1e6,
                   "how many checkpoints DIR keeps, the newest; 0: all (2 of "
                   "this process's own)"),
        OPT_TEXT(0, "gradients", "FILE", &o.gradients,
                 "write the gradients of one batch as safetensors (-: stdout); train nothing"),
        OPT_SWITCH(
            0, "stats", &o.stats,
            "print a table of the activations of one batch, by layer and site; train nothing"),
        OPT_NUMBER("batch", "M", &o.batch, 0, 1e6,
                   "with these two: the M-th batch after that of the next step (0)"),
        OPT_NUMBER("after", "K", &o.after, 1, 1e6,
                   "with these two: K steps on that batch come first (none)"),
        DEVICES_NAME(&o.device),
        OPT_NUMBER("ranks", "N", &o.ranks, 1, MAX_RANKS,
                   "ranks: threads on a CPU, GPUs with --device cuda (1)"),
        OPT_NUMBER("threads", "N", &o.threads, 1, 1024,
                   "threads of a rank on a CPU (processors / ranks)"),
        OPT_NUMBER("gpus", "N", &o.gpus, 1, 64, "the same as --device cuda --ranks N"),
        DEVICES_PATH(&o.gpu_path),
        OPT_REAL("ranks-timeout", "SECONDS", &o.ranks_timeout, 1, 1e6,
                 "GPUs: a rank silent for so long in a step ends the run (6)"),
        OPT_SWITCH(0, "no-graph", &o.no_graph,
                   "GPUs: launch each kernel instead of one graph a step"),
        OPT_NUMBER("bench", "N", &o.bench, 1, 1e6,
                   "time N pairs of steps of each stage without data; print a table"),
        OPT_NUMBER("estimate", "N", &o.estimate, 1, MAX_RANKS,
                   "with --bench: the whole run's time on N ranks, from these"),
        OPT_REAL("bandwidth", "GB/S", &o.bandwidth, 0, 1e6,
                 "with --estimate: what a rank sends (294; on a CPU half of a copy)"),
        OPT_SWITCH(0, "profile", &o.profile, "with --bench on a GPU: a row for each kernel"),
        OPT_TEXT(0, "trace", "FILE", &o.trace,
                 "with --bench on GPUs: a timeline for Perfetto; .gz and .zst compress"),
        OPT_NUMBER("stage", "K", &o.stage, 0, MAX_STAGES,
                   "of which stage --profile and --trace are (0)"),
        OPT_WORD(
            "format", &o.format, "table|tsv|json",
            "with --stats or --bench: a table (default on a terminal), tsv (elsewhere) or json"),
        OPT_SWITCH(
            0, "wide", &o.wide,
            "with --plan, --bench, --stats: tables as wide as they are, not broken for the terminal"),
        OPT_HEADING("Messages"),
        OPT_SWITCH(0, "progress", &o.progress, "show progress even when stderr is no terminal"),
        OPT_SWITCH('q', "quiet", &o.quiet, "no progress, errors only"),
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
    opt_version_extra = device_versions;
    char *arguments = opt_arguments(argc, argv);
    int first, rc = opt_parse(&cmd, argc, argv, &first);
    if (!rc && first < argc)
        rc = err_set(GPT_USAGE, "unexpected operand '%s'%s", argv[first],
                     o.data ? ": -d takes one name, a pattern of several in quotes" : "");
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
