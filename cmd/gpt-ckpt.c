/* gpt-ckpt - looks into checkpoints and other files of tensors.
 *
 *     gpt-ckpt ls run
 *     gpt-ckpt spectrum run | ns-coeffs fit --spectrum - --upper 1.01 > my.coeffs
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/chart.h"
#include "base/file.h"
#include "base/progress.h"
#include "base/text.h"
#include "base/verb.h"
#include "checkpoint/checkpoint_dir.h"
#include "checkpoint/pack.h"
#include "inspect/cat.h"
#include "inspect/export.h"
#include "inspect/import.h"
#include "inspect/inspect.h"
#include "inspect/reshard.h"
#include "inspect/show.h"
#include "inspect/verify.h"
#include "recipe/named.h"

static struct {
    const char *format, *of, *bank, *plot, *dtype, *output, *recipe, *like, *since;
    int64_t ranks, level, keep_last, keep_every;
    double tolerance;
    bool histogram, values, summary, all, total, full, states, padding, force, raw, dry_run, wide,
        quiet, progress;
} o = { .dtype = "f32", .level = -1 };

static const struct opt table[] = {
    OPT_HEADING("What is shown"),
    OPT_WORD("format", &o.format, "table|tsv|json",
             "a table (default on a terminal), tsv (elsewhere) or json"),
    OPT_SWITCH(0, "wide", &o.wide, "tables as wide as they are, not broken for the terminal"),
    OPT_TEXT(0, "bank", "LABEL", &o.bank, "only the parameter of this label"),
    OPT_SWITCH(0, "histogram", &o.histogram, "stat: draw how many numbers have which size"),
    OPT_WORD("of", &o.of, "momentum|weight|aol|update",
             "spectrum: of which matrices of a parameter (momentum, where there is one)"),
    OPT_TEXT(0, "since", "PATH", &o.since, "spectrum: of the change of the weights since PATH"),
    OPT_SWITCH(0, "values", &o.values,
               "spectrum: the values, one a line (default where stdout is no terminal)"),
    OPT_SWITCH(0, "summary", &o.summary, "spectrum: a line a matrix (default on a terminal)"),
    OPT_TEXT(0, "plot", "FILE", &o.plot, "spectrum: draw the values into an SVG"),
    OPT_REAL("tolerance", "X", &o.tolerance, 0, INFINITY,
             "diff: |B - A| / |A| up to X is no difference"),
    OPT_SWITCH(0, "all", &o.all, "diff: also list what is the same"),
    OPT_SWITCH(0, "total", &o.total, "diff: a last line of all tensors together"),
    OPT_SWITCH(0, "full", &o.full, "verify: every byte and every number, too"),
    OPT_SWITCH(0, "raw", &o.raw,
               "cat: the bytes as they are stored, of a weight without its master"),
    OPT_HEADING("What is written"),
    OPT_TEXT('o', "output", "PATH", &o.output,
             "export: a file; reshard, import: a directory for step-N"),
    OPT_NUMBER("ranks", "N", &o.ranks, 1, 65536, "reshard, import: number of ranks"),
    OPT_WORD("dtype", &o.dtype, "f32|bf16",
             "export: exact weights in fp32 (default), or bf16 as the forward pass sees them"),
    OPT_SWITCH(0, "states", &o.states, "export: momenta and moments, too"),
    OPT_SWITCH(0, "padding", &o.padding, "export, spectrum: also matrices that no layer uses"),
    OPT_TEXT(0, "recipe", "RECIPE", &o.recipe,
             "import: the recipe, in place of that in the file or in --like"),
    OPT_TEXT(0, "like", "PATH", &o.like,
             "import: step, data position, counters and recipe of the checkpoint PATH"),
    OPT_NUMBER("level", "N", &o.level, 0, 19, "zstd level (1); 0 writes plain files"),
    OPT_SWITCH('f', "force", &o.force, "replace what is there"),
    OPT_NUMBER("keep-last", "N", &o.keep_last, 1, 1e9, "rm: keep the last N"),
    OPT_NUMBER("keep-every", "M", &o.keep_every, 1, 1e15, "rm: keep steps that are multiples of M"),
    OPT_SWITCH('n', "dry-run", &o.dry_run, "rm: only say what would go"),
    OPT_HEADING("Other"),
    OPT_SWITCH('q', "quiet", &o.quiet, "no progress, no remarks"),
    OPT_SWITCH(0, "progress", &o.progress, "progress even where stderr is no terminal"),
    OPT_END
};

/* --- what the verbs share --- */

static bool is_standard(const char *path) { return path && !strcmp(path, "-"); }

/* Both inputs cannot be standard input. */
static int choose_input(const char *a, const char *b)
{
    return is_standard(a) && is_standard(b)
               ? err_set(GPT_USAGE, "standard input can be read once only")
               : 0;
}

static void remark(const char *text)
{
    if (!o.quiet && *text)
        text_line(stderr, "gpt-ckpt: %s", text);
}

/* Close after a failure, too. */
static int open_path(struct inspect *x, const char *path)
{
    int rc = inspect_open(x, path);
    if (!rc)
        remark(x->why);
    return rc;
}

/* PATH [PATTERN], with --bank as another way to say the pattern. Close after a failure, too. */
static int open_views(struct inspect *x, struct views *v, char **argv, int n, int flags)
{
    int rc = opt_choose(n > 1, "a pattern", o.bank, "--bank");
    if (rc || (rc = open_path(x, argv[0])))
        return rc;
    return views_make(v, x->tensors, &x->map, n > 1 ? argv[1] : o.bank, flags);
}

static int close_views(struct inspect *x, struct views *v, int rc)
{
    views_release(v);
    inspect_close(x);
    return rc;
}

/* --- reading --- */

static int verb_ls(char **argv, int n)
{
    struct inspect x = { 0 };
    struct views v = { .n = 0 };
    int rc = open_views(&x, &v, argv, n, VIEWS_PADDING | VIEWS_STORED);
    if (!rc)
        rc = show_list(stdout, report_format_of(o.format, o.wide), x.tensors, &v);
    return close_views(&x, &v, rc);
}

static int verb_info(char **argv, int n)
{
    struct inspect x = { 0 };
    int rc = open_path(&x, argv[0]);
    (void)n;
    if (!rc)
        rc = show_info(stdout, report_format_of(o.format, o.wide), x.tensors,
                       x.recipe ? x.recipe->name : NULL);
    inspect_close(&x);
    return rc;
}

static int verb_stat(char **argv, int n)
{
    struct inspect x = { 0 };
    struct views v = { .n = 0 };
    int rc = opt_choose(o.histogram, "--histogram", o.format, "--format");
    if (rc || (rc = open_views(&x, &v, argv, n, VIEWS_PADDING)))
        return close_views(&x, &v, rc);
    struct tensor_stats *rows = calloc((size_t)v.n + 1, sizeof *rows);
    rc = rows ? tensor_stats_views(x.tensors, &v, x.recipe, rows) : err_memory();
    if (!rc && !o.histogram)
        rc = show_stats(stdout, report_format_of(o.format, o.wide), &v, rows);
    for (int i = 0; !rc && o.histogram && i < v.n; i++) {
        printf("%s\n", v.v[i].name);
        tensor_stats_histogram(stdout, &rows[i], 50);
    }
    free(rows);
    return close_views(&x, &v, rc);
}

static int verb_cat(char **argv, int n)
{
    struct inspect x = { 0 };
    int rc = open_path(&x, argv[0]);
    (void)n;
    if (!rc)
        rc = cat_tensor(x.tensors, &x.map, argv[1], o.raw, stdout);
    inspect_close(&x);
    return rc;
}

static void print_fault(void *arg, const char *fault)
{
    (void)arg;
    text_line(stdout, "%s", fault);
}

static int verb_verify(char **argv, int n)
{
    char *checked;
    (void)n;
    int rc = verify_path(argv[0], o.full, print_fault, NULL, &checked);
    if (!rc && !o.quiet)
        text_line(stdout, "%s: sound%s", checked,
                  o.full ? "" : " by headers and sizes (--full reads all data)");
    free(checked);
    return rc;
}

/* --- diff --- */

static void print_difference(void *arg, const char *key, const char *a, const char *b)
{
    (void)arg;
    if (!o.quiet)
        text_line(stderr, "gpt-ckpt: %s: %s in A, %s in B", key, a ? a : "absent",
                  b ? b : "absent");
}

static int compare(struct inspect *a, struct inspect *b, const char *pattern)
{
    struct diff_row *rows;
    bool same;
    int n, rc = diff_tensors(a->tensors, b->tensors, a->map.n ? &a->map : &b->map, pattern,
                             o.tolerance, o.total, &rows, &n, &same);
    if (rc)
        return rc;
    rc = show_diff(stdout, report_format_of(o.format, o.wide), rows, n, o.all);
    diff_free(rows, n);
    const struct ckpt *x = tensors_ckpt(a->tensors), *y = tensors_ckpt(b->tensors);
    if (!rc && x && y && !pattern)
        same &= diff_info(ckpt_info(x), ckpt_info(y), print_difference, NULL) == 0;
    return rc ? rc : same ? 0 : err_set(GPT_NO, "they differ");
}

static int verb_diff(char **argv, int n)
{
    struct inspect a = { 0 }, b = { 0 };
    int rc = opt_choose(n > 2, "a pattern", o.bank, "--bank");
    if (!rc && !(rc = choose_input(argv[0], argv[1])) && !(rc = inspect_open(&a, argv[0])) &&
        !(rc = inspect_open(&b, argv[1])))
        rc = compare(&a, &b, n > 2 ? argv[2] : o.bank);
    inspect_close(&a);
    inspect_close(&b);
    return rc;
}

/* --- spectrum --- */

static bool any_momentum(const struct views *v)
{
    for (int i = 0; i < v->n; i++)
        if (!strcmp(v->v[i].t->kind, "momentum"))
            return true;
    return false;
}

static int show(const struct views *v, const struct spectrum *sp, const char *what,
                struct output *plot)
{
    bool summary = o.summary || (!o.values && (o.format || isatty(STDOUT_FILENO)));
    bool only_plot = o.plot && !o.values && !o.summary && !o.format;
    char title[128];
    int rc = 0;
    if (o.plot) {
        snprintf(title, sizeof title, "singular values of %s", what);
        if (!(rc = show_plot(plot->f, v, sp, title)))
            rc = output_commit(plot);
    }
    return rc || only_plot ? rc
           : summary       ? show_spectra(stdout, report_format_of(o.format, o.wide), v, sp)
                           : show_values(stdout, v, sp);
}

struct shown {
    struct progress p;
    int done, n;
};

static void one_done(void *arg, int i)
{
    struct shown *s = arg;
    (void)i;
    progress_line(&s->p, "matrix %d of %d", ++s->done, s->n);
}

/* Says that the parameters' rules make updates of the momenta. */
static int update_rule(const struct inspect *x, struct spectrum_job *j)
{
    if (!x->recipe)
        return err_set(GPT_INPUT,
                       "%s: has no recipe that says how updates are made; --since "
                       "measures them",
                       tensors_path(x->tensors));
    j->update = x->recipe;
    return 0;
}

static int spectra(struct inspect *x, struct views *v, const char *of)
{
    struct inspect since = { 0 };
    struct views since_v = { .n = 0 };
    struct shown shown = { .n = v->n };
    struct output plot = { 0 };
    struct spectrum_job j = { .s = x->tensors, .v = v, .done = one_done, .arg = &shown };
    struct spectrum *sp = calloc((size_t)v->n + 1, sizeof *sp);
    int rc = sp ? 0 : err_memory();
    if (!rc && o.plot) /* before the computation: the file may exist */
        rc = chart_open(&plot, o.plot, o.force);
    if (!rc && o.since && !(rc = inspect_open(&since, o.since))) {
        rc = views_make(&since_v, since.tensors, &since.map, NULL, VIEWS_PADDING);
        j.since = since.tensors;
        j.since_v = &since_v;
    } else if (!rc && !strcmp(of, "update")) {
        rc = update_rule(x, &j);
    }
    j.aol = !strcmp(of, "aol");
    progress_init(&shown.p, o.quiet ? PROGRESS_OFF : o.progress ? PROGRESS_ON : PROGRESS_AUTO);
    if (!rc)
        rc = spectrum_views(&j, sp);
    progress_end(&shown.p);
    if (!rc)
        rc = show(v, sp, o.since ? "changes of weights" : of, &plot);
    output_abort(&plot);
    for (int i = 0; sp && i < v->n; i++)
        spectrum_release(&sp[i]);
    free(sp);
    views_release(&since_v);
    inspect_close(&since);
    return rc;
}

static int verb_spectrum(char **argv, int n)
{
    struct inspect x = { 0 };
    struct views v = { .n = 0 };
    int rc =
        opt_choose(o.of && strcmp(o.of, "weight"), "--of", o.since, "--since, which is of weights");
    if (!rc)
        rc = opt_choose(o.values, "--values", o.summary || o.format,
                        o.summary ? "--summary" : "--format");
    if (!rc)
        rc = opt_choose(is_standard(o.plot), "--plot -", o.values || o.summary || o.format,
                        o.values    ? "--values"
                        : o.summary ? "--summary"
                                    : "--format");
    if (!rc)
        rc = opt_choose(o.quiet, "--quiet", o.progress, "--progress");
    if (!rc)
        rc = choose_input(argv[0], o.since);
    if (rc || (rc = open_views(&x, &v, argv, n, o.padding ? VIEWS_PADDING : 0)))
        return close_views(&x, &v, rc);
    const char *of = o.since ? "weight" : o.of ? o.of : any_momentum(&v) ? "momentum" : "weight";
    bool weight = !strcmp(of, "weight") || (!strcmp(of, "aol") && !any_momentum(&v));
    const char *kind = weight ? "weight" : "momentum";
    views_keep_matrices(&v, kind);
    if (v.n == 0)
        rc = err_set(GPT_INPUT, "%s: holds no %s matrix%s", tensors_path(x.tensors), kind,
                     n > 1 || o.bank ? " of that name" : "");
    return close_views(&x, &v, rc ? rc : spectra(&x, &v, of));
}

/* --- writing --- */

static int need(const char *value, const char *option)
{
    return value ? 0 : err_set(GPT_USAGE, "expected %s", option);
}

static int level(int usual) { return o.level < 0 ? usual : (int)o.level; }

static int verb_reshard(char **argv, int n)
{
    struct inspect x = { 0 };
    int rc = need(o.output, "-o DIR");
    (void)n;
    if (!rc && !o.ranks)
        rc = need(NULL, "--ranks N");
    if (!rc)
        rc = open_path(&x, argv[0]);
    const struct ckpt *c = rc ? NULL : tensors_ckpt(x.tensors);
    if (c && !o.force)
        rc = ckpt_check_free(o.output, ckpt_info(c)->step);
    if (!rc)
        rc = reshard(x.tensors, o.output, (int)o.ranks, level(1), x.recipe);
    inspect_close(&x);
    return rc;
}

/* Takes the level of --output from --level and from its name, which must agree. */
static int export_form(struct export_options *e)
{
    static const char *const others[] = { ".npz", ".npz.zst", ".npy", ".pt",
                                          ".pth", ".gz",      ".xz",  ".bz2" };
    bool zst = text_ends(o.output, ".zst") || (is_standard(o.output) && o.level > 0);
    e->level = zst ? level(1) : 0;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (text_ends(o.output, others[i]))
            return err_set(GPT_USAGE,
                           "-o %s: expected another name, for safetensors, plain or .zst: an "
                           "example of gpt-ckpt(1) reads it with NumPy",
                           o.output);
    if (!zst && o.level > 0)
        return err_set(GPT_USAGE,
                       "--level: '%s' is written plain; a name that ends in .zst is compressed",
                       o.output);
    return 0;
}

static int verb_export(char **argv, int n)
{
    struct inspect x = { 0 };
    struct output out;
    struct export_options e = { .bf16 = !strcmp(o.dtype, "bf16"),
                                .states = o.states,
                                .padding = o.padding };
    int rc = need(o.output, "-o FILE");
    (void)n;
    if (!rc && !(rc = export_form(&e)) && !(rc = open_path(&x, argv[0])) &&
        !(rc = output_open(&out, o.output, o.force))) {
        if (!(rc = export_tensors(x.tensors, &x.map, &e, out.f, o.output)))
            rc = output_commit(&out);
        output_abort(&out);
    }
    inspect_close(&x);
    return rc;
}

static int verb_import(char **argv, int n)
{
    struct import_job job = { .file = argv[0],
                              .like = o.like,
                              .recipe = o.recipe,
                              .root = o.output,
                              .ranks = o.ranks ? (int)o.ranks : 1,
                              .level = level(1),
                              .force = o.force };
    bool only_weights;
    int rc = need(o.output, "-o DIR");
    (void)n;
    if (!rc)
        rc = import_checkpoint(&job, &only_weights);
    if (!rc && only_weights)
        remark("weights only: momenta, moments and counters begin at zero");
    return rc;
}

static int verb_pack(char **argv, int n)
{
    const char *path = o.output ? o.output : "-";
    struct inspect x = { 0 };
    struct output out;
    int rc = is_standard(path) && isatty(STDOUT_FILENO)
                 ? err_set(GPT_USAGE, "standard output is a terminal: expected a pipe, or -o FILE")
                 : open_path(&x, argv[0]);
    const struct ckpt *c = rc ? NULL : tensors_ckpt(x.tensors);
    (void)n;
    if (!rc && !c)
        rc = err_set(GPT_INPUT, "%s: expected a checkpoint, found a file", argv[0]);
    if (!rc && !(rc = output_open(&out, path, o.force))) {
        if (!(rc = ckpt_pack(c, out.f, is_standard(path) ? "standard output" : path, level(1))))
            rc = output_commit(&out);
        output_abort(&out);
    }
    inspect_close(&x);
    return rc;
}

static int verb_unpack(char **argv, int n)
{
    int rc = need(o.output, "-o DIR");
    return rc ? rc : ckpt_unpack(n ? argv[0] : "-", o.output, o.force);
}

static int verb_rm(char **argv, int n)
{
    int64_t *steps;
    int gone = 0, there = 0, rc = o.keep_last ? 0 : need(NULL, "--keep-last N");
    (void)n;
    if (rc || (rc = ckpt_list(argv[0], &steps, &there)))
        return rc;
    free(steps);
    if (!there)
        return err_set(GPT_INPUT, "%s: holds no complete checkpoint (step-N with a MANIFEST)",
                       argv[0]);
    if ((rc = ckpt_prunable(argv[0], (int)o.keep_last, o.keep_every, -1, &steps, &gone)))
        return rc;
    for (int i = 0; i < gone; i++)
        printf("step-%06" PRId64 "\n", steps[i]);
    free(steps);
    if (fflush(stdout) || ferror(stdout)) /* names first, then removal */
        return err_sys("cannot write standard output");
    return o.dry_run ? 0 : ckpt_prune(argv[0], (int)o.keep_last, o.keep_every, -1, NULL);
}

/* --- the verbs --- */

#define SHOWN "format wide quiet"
static const struct verb verbs[] = {
    { "ls", "PATH [PATTERN]", "tensors as the model knows them", "bank " SHOWN, 1, 2, verb_ls },
    { "info", "PATH", "step, recipe, ranks, data position", SHOWN, 1, 1, verb_info },
    { "stat", "PATH [PATTERN]", "range, mean, rms, size of the next update",
      "bank histogram " SHOWN, 1, 2, verb_stat },
    { "spectrum", "PATH [PATTERN]", "singular values of matrices",
      "bank of since values summary plot force padding progress " SHOWN, 1, 2, verb_spectrum },
    { "diff", "A B [PATTERN]", "what differs, and by how much", "bank tolerance all total " SHOWN,
      2, 3, verb_diff },
    { "verify", "PATH", "whether a checkpoint is sound", "full quiet", 1, 1, verb_verify },
    { "cat", "PATH TENSOR[SLICE]", "numbers of a tensor", "raw quiet", 2, 2, verb_cat },
    { "reshard", "PATH -o DIR --ranks N", "the same state for another number of ranks",
      "output ranks level force quiet", 1, 1, verb_reshard },
    { "export", "PATH -o FILE", "named tensors for NumPy and PyTorch",
      "output dtype states padding level force quiet", 1, 1, verb_export },
    { "import", "FILE -o DIR", "a checkpoint from named tensors",
      "output ranks recipe like level force quiet", 1, 1, verb_import },
    { "pack", "PATH", "a checkpoint as a stream: tar, on stdout", "output level force quiet", 1, 1,
      verb_pack },
    { "unpack", "[FILE] -o DIR", "the checkpoint of such a stream", "output force quiet", 0, 1,
      verb_unpack },
    { "rm", "DIR --keep-last N", "remove old checkpoints", "keep-last keep-every dry-run quiet", 1,
      1, verb_rm },
};
static const struct program program = {
    "gpt-ckpt", "Looks into checkpoints, and other files of tensors (safetensors).", table, verbs,
    sizeof verbs / sizeof verbs[0]
};

int main(int argc, char **argv)
{
    opt_words = recipe_words;
    return verb_main(&program, argc, argv);
}
