/* gpt-ckpt - looks into checkpoints and other files of tensors.
 *
 *     gpt-ckpt ls run
 *     gpt-ckpt spectrum run --bank mlp | ns-coeffs fit --spectrum - > my.coeffs
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/file.h"
#include "base/opt.h"
#include "base/progress.h"
#include "model/inspect.h"
#include "state/cat.h"
#include "state/reshard.h"
#include "state/show.h"

static struct {
    const char *format, *of, *bank, *plot, *to, *dtype, *output, *recipe, *like, *since;
    int64_t ranks, level, keep_last, keep_every;
    double tolerance;
    bool histogram, values, summary, all, full, states, padding, force, raw, dry_run, quiet,
         progress;
} o = { .dtype = "f32", .to = "safetensors", .level = 1 };

#define GROUP(heading) { 0, NULL, NULL, OPT_GROUP, NULL, heading, 0, 0, NULL }
#define FLAG(letter, name, to, help) { letter, name, NULL, OPT_FLAG, &o.to, help, 0, 0, NULL }
#define TEXT(letter, name, arg, to, help) { letter, name, arg, OPT_STR, &o.to, help, 0, 0, NULL }
#define ONE_OF(name, to, choices, help) \
    { 0, name, "WORD", OPT_CHOICE, &o.to, help, 0, 0, choices }
#define NUMBER(name, arg, to, lo, hi, help) { 0, name, arg, OPT_I64, &o.to, help, lo, hi, NULL }

static const struct opt table[] = {
    GROUP("What is shown"),
    ONE_OF("format", format, "table|tsv|json", "a table (default on a terminal), tsv (elsewhere) "
           "or json"),
    TEXT(0, "bank", "LABEL", bank, "only the parameter of this label"),
    FLAG(0, "histogram", histogram, "stat: draw how many numbers have which size"),
    ONE_OF("of", of, "momentum|weight|update", "spectrum: of what (momentum, where there is one)"),
    TEXT(0, "since", "PATH", since, "spectrum: of the change of the weights since PATH"),
    FLAG(0, "values", values, "spectrum: the values, one a line (default where stdout is no "
         "terminal)"),
    FLAG(0, "summary", summary, "spectrum: a line a matrix (default on a terminal)"),
    TEXT(0, "plot", "FILE", plot, "spectrum: draw the values into an SVG"),
    { 0, "tolerance", "X", OPT_F64, &o.tolerance, "diff: |B - A| / |A| up to X is no difference",
      0, INFINITY, NULL },
    FLAG(0, "all", all, "diff: also list what is the same"),
    FLAG(0, "full", full, "verify: every byte and every number, too"),
    FLAG(0, "raw", raw, "cat: the bytes as they are stored"),
    GROUP("What is written"),
    TEXT('o', "output", "PATH", output, "export: a file; reshard, import: a directory for step-N"),
    NUMBER("ranks", "N", ranks, 1, 65536, "reshard, import: number of ranks"),
    ONE_OF("to", to, "safetensors|npz", "export: safetensors (default) or npz"),
    ONE_OF("dtype", dtype, "f32|bf16", "export: fp32 masters (default), or bf16 weights as the "
           "forward pass sees them"),
    FLAG(0, "states", states, "export: momenta and moments, too"),
    FLAG(0, "padding", padding, "export, spectrum: also matrices that no layer uses"),
    TEXT(0, "recipe", "FILE", recipe, "import: the recipe, where the file carries none"),
    TEXT(0, "like", "PATH", like, "import: step, data position, counters and recipe of the "
         "checkpoint PATH"),
    NUMBER("level", "N", level, 0, 19, "zstd level (1); 0 writes plain files"),
    FLAG('f', "force", force, "replace what is there"),
    NUMBER("keep-last", "N", keep_last, 1, 1e9, "rm: keep the last N"),
    NUMBER("keep-every", "M", keep_every, 1, 1e15, "rm: keep steps that are multiples of M"),
    FLAG('n', "dry-run", dry_run, "rm: only say what would go"),
    GROUP("Besides"),
    FLAG('q', "quiet", quiet, "no progress, no remarks"),
    FLAG(0, "progress", progress, "progress even where stderr is no terminal"),
    OPT_END
};

/* --- what the verbs share --- */

static enum report_format format(void)
{
    if (!o.format)
        return isatty(STDOUT_FILENO) ? REPORT_TABLE : REPORT_TSV;
    return !strcmp(o.format, "json") ? REPORT_JSON : *o.format == 't' && o.format[1] == 'a'
        ? REPORT_TABLE : REPORT_TSV;
}

static void remark(const char *text)
{
    if (!o.quiet && *text)
        fprintf(stderr, "gpt-ckpt: %s\n", text);
}

/* PATH [PATTERN], with --bank as another way to say the pattern. */
static int open_views(struct inspect *x, struct views *v, char **argv, int n, int flags)
{
    *v = (struct views){ .n = 0 };
    int rc = inspect_open(x, argv[0]);
    if (rc)
        return rc;
    remark(x->why);
    if (!(rc = views_make(v, x->tensors, &x->map, n > 1 ? argv[1] : o.bank, flags)))
        return 0;
    inspect_close(x);
    return rc;
}

static int close_views(struct inspect *x, struct views *v, int rc)
{
    views_release(v);
    inspect_close(x);
    return rc;
}

/* --- looking --- */

static int verb_ls(char **argv, int n)
{
    struct inspect x;
    struct views v;
    int rc = open_views(&x, &v, argv, n, VIEWS_PADDING | VIEWS_STORED);
    return rc ? rc : close_views(&x, &v, show_list(stdout, format(), x.tensors, &v));
}

static int verb_info(char **argv, int n)
{
    struct inspect x;
    int rc = inspect_open(&x, argv[0]);
    (void)n;
    if (rc)
        return rc;
    remark(x.why);
    rc = show_info(stdout, format(), x.tensors, x.recipe ? x.recipe->name : NULL);
    inspect_close(&x);
    return rc;
}

static int verb_stat(char **argv, int n)
{
    struct inspect x;
    struct views v;
    int rc = open_views(&x, &v, argv, n, VIEWS_PADDING);
    if (rc)
        return rc;
    struct stat_row *rows = calloc((size_t)v.n + 1, sizeof *rows);
    rc = rows ? stat_views(x.tensors, &v, inspect_update_rule, &x, rows)
              : err_set(GPT_SYSTEM, "out of memory");
    if (!rc && !o.histogram)
        rc = show_stats(stdout, format(), &v, rows);
    for (int i = 0; !rc && o.histogram && i < v.n; i++) {
        printf("%s\n", v.v[i].name);
        stat_histogram(stdout, &rows[i], 50);
    }
    free(rows);
    return close_views(&x, &v, rc);
}

static int verb_cat(char **argv, int n)
{
    struct inspect x;
    int rc = inspect_open(&x, argv[0]);
    (void)n;
    if (rc)
        return rc;
    remark(x.why);
    rc = cat_tensor(x.tensors, &x.map, argv[1], o.raw, stdout);
    inspect_close(&x);
    return rc;
}

static void tell_fault(void *arg, const char *fault)
{
    (void)arg;
    puts(fault);
}

static int verb_verify(char **argv, int n)
{
    (void)n;
    int rc = verify_path(argv[0], o.full, inspect_verify, NULL, tell_fault, NULL);
    if (!rc && !o.quiet)
        printf("%s: sound%s\n", argv[0], o.full ? "" : " as far as the quick look goes (--full)");
    return rc;
}

/* --- diff --- */

static void tell_state(void *arg, const char *key, const char *a, const char *b)
{
    (void)arg;
    if (!o.quiet)
        fprintf(stderr, "gpt-ckpt: %s: %s in A, %s in B\n", key, a ? a : "absent",
                b ? b : "absent");
}

static int compare(struct inspect *a, struct inspect *b, const char *pattern)
{
    struct diff_row *rows;
    bool same;
    int n, rc = diff_tensors(a->tensors, b->tensors, a->map.n ? &a->map : &b->map, pattern,
                             o.tolerance, &rows, &n, &same);
    if (rc)
        return rc;
    rc = show_diff(stdout, format(), rows, n, o.all);
    diff_free(rows, n);
    const struct ckpt *x = tensors_ckpt(a->tensors), *y = tensors_ckpt(b->tensors);
    if (!rc && x && y && !pattern)
        same &= diff_info(ckpt_info(x), ckpt_info(y), tell_state, NULL) == 0;
    return rc ? rc : same ? 0 : err_set(GPT_NO, "they differ");
}

static int verb_diff(char **argv, int n)
{
    struct inspect a = { 0 }, b = { 0 };
    int rc = inspect_open(&a, argv[0]);
    if (!rc && !(rc = inspect_open(&b, argv[1])))
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

static int plot(const struct views *v, const struct spectrum *sp, const char *what)
{
    struct output out;
    char title[128];
    int rc = output_open(&out, o.plot, o.force);
    if (rc)
        return rc;
    snprintf(title, sizeof title, "singular values of %s", what);
    if (!(rc = show_plot(out.f, v, sp, title)))
        rc = output_commit(&out);
    output_abort(&out);
    return rc;
}

static int show(const struct views *v, const struct spectrum *sp, const char *what)
{
    bool summary = o.summary || (!o.values && (o.format || isatty(STDOUT_FILENO)));
    bool only_plot = o.plot && !o.values && !o.summary && !o.format;
    int rc = only_plot ? 0 : summary ? show_spectra(stdout, format(), v, sp)
                                     : show_values(stdout, v, sp);
    return !rc && o.plot ? plot(v, sp, what) : rc;
}

struct shown { struct progress p; int done, n; };

static void one_done(void *arg, int i)
{
    struct shown *s = arg;
    (void)i;
    progress_line(&s->p, "matrix %d of %d", ++s->done, s->n);
}

/* What the update is made of: the recipe's coefficients on the momentum, unless it is measured. */
static int update_rule(const struct inspect *x, struct spectrum_job *j)
{
    if (!x->recipe)
        return err_set(GPT_INPUT, "%s: has no recipe that says how updates are made; --since "
                       "measures them", tensors_path(x->tensors));
    j->coef = (const double (*)[3])x->recipe->polar;
    j->ncoef = x->recipe->n_polar;
    return 0;
}

static int spectra(struct inspect *x, struct views *v, const char *of)
{
    struct inspect since = { 0 };
    struct views since_v = { .n = 0 };
    struct shown shown = { .n = v->n };
    struct spectrum_job j = { .s = x->tensors, .v = v, .done = one_done, .arg = &shown };
    struct spectrum *sp = calloc((size_t)v->n + 1, sizeof *sp);
    int rc = sp ? 0 : err_set(GPT_SYSTEM, "out of memory");
    if (!rc && o.since && !(rc = inspect_open(&since, o.since))) {
        rc = views_make(&since_v, since.tensors, &since.map, NULL, VIEWS_PADDING);
        j.since = since.tensors;
        j.since_v = &since_v;
    } else if (!rc && !strcmp(of, "update")) {
        rc = update_rule(x, &j);
    }
    progress_init(&shown.p, o.quiet ? PROGRESS_OFF : o.progress ? PROGRESS_ON : PROGRESS_AUTO);
    if (!rc)
        rc = spectrum_views(&j, sp);
    progress_end(&shown.p);
    if (!rc)
        rc = show(v, sp, o.since ? "changes of weights" : of);
    for (int i = 0; sp && i < v->n; i++)
        spectrum_release(&sp[i]);
    free(sp);
    views_release(&since_v);
    inspect_close(&since);
    return rc;
}

static int verb_spectrum(char **argv, int n)
{
    struct inspect x;
    struct views v;
    int rc = open_views(&x, &v, argv, n, o.padding ? VIEWS_PADDING : 0);
    if (rc)
        return rc;
    const char *of = o.since ? "weight" : o.of ? o.of : any_momentum(&v) ? "momentum" : "weight";
    const char *kind = strcmp(of, "weight") ? "momentum" : "weight";
    views_keep_matrices(&v, kind);
    if (v.n == 0)
        rc = err_set(GPT_INPUT, "%s: holds no such %s matrix", tensors_path(x.tensors), kind);
    return close_views(&x, &v, rc ? rc : spectra(&x, &v, of));
}

/* --- writing --- */

static int need(const char *value, const char *option)
{
    return value ? 0 : err_set(GPT_USAGE, "expected the option %s", option);
}

/* ROOT/step-N must not be there, unless --force. */
static int may_write(const char *root, int64_t step)
{
    char *dir = ckpt_path(root, step);
    int rc = dir ? 0 : err_set(GPT_SYSTEM, "out of memory");
    if (!rc && !o.force && !access(dir, F_OK))
        rc = err_set(GPT_SYSTEM, "cannot write '%s': it exists (--force replaces it)", dir);
    free(dir);
    return rc;
}

static int verb_reshard(char **argv, int n)
{
    struct inspect x;
    int rc = need(o.output, "--output");
    (void)n;
    if (!rc && !o.ranks)
        rc = need(NULL, "--ranks");
    if (rc || (rc = inspect_open(&x, argv[0])))
        return rc;
    remark(x.why);
    const struct ckpt *c = tensors_ckpt(x.tensors);
    if (c)
        rc = may_write(o.output, ckpt_info(c)->step);
    if (!rc)
        rc = reshard(x.tensors, o.output, (int)o.ranks, (int)o.level, inspect_sharded, &x);
    inspect_close(&x);
    return rc;
}

static int verb_export(char **argv, int n)
{
    struct inspect x;
    struct output out;
    struct export_options e = { .npz = !strcmp(o.to, "npz"), .bf16 = !strcmp(o.dtype, "bf16"),
                                .states = o.states, .padding = o.padding };
    int rc = need(o.output, "--output");
    (void)n;
    if (rc || (rc = inspect_open(&x, argv[0])))
        return rc;
    remark(x.why);
    size_t len = strlen(o.output);
    e.level = len > 4 && !strcmp(o.output + len - 4, ".zst") ? (int)o.level : 0;
    if (!(rc = output_open(&out, o.output, o.force))) {
        if (!(rc = export_tensors(x.tensors, &x.map, &e, out.f, o.output)))
            rc = output_commit(&out);
        output_abort(&out);
    }
    inspect_close(&x);
    return rc;
}

/* The recipe of an import: given, of the checkpoint it shall be like, or the file's own. */
static int import_recipe(const struct inspect *x, const struct inspect *like, struct recipe **r)
{
    const char *text = tensors_ckpt(x->tensors) ? NULL
                     : st_meta(tensors_header(x->tensors), "gpt.recipe");
    *r = NULL;
    if (o.recipe)
        return recipe_read(r, o.recipe, NULL, 0);
    if (like->tensors && tensors_ckpt(like->tensors))
        text = ckpt_info(tensors_ckpt(like->tensors))->recipe;
    if (!text)
        return err_set(GPT_INPUT, "%s: carries no recipe; --recipe or --like gives one",
                       tensors_path(x->tensors));
    return recipe_parse(r, tensors_path(x->tensors), text, NULL, 0);
}

static int import_as(struct inspect *x, const struct recipe *r, const struct ckpt_info *info)
{
    struct expected *e = NULL;
    struct name_map map;
    int n, states, rc = may_write(o.output, info->step);
    if (rc || (rc = tensor_names(r, &map)))
        return rc;
    if (!(rc = inspect_expected(r, &e, &n)))
        rc = import_tensors(x->tensors, &map, e, n, info, o.output, (int)o.level, &states);
    if (!rc && states == 0)
        remark("weights only: momenta, moments and counters begin at zero");
    free(e);
    tensor_names_release(&map);
    return rc;
}

static int verb_import(char **argv, int n)
{
    struct inspect x = { 0 }, like = { 0 };
    struct recipe *r = NULL;
    struct ckpt_info info;
    int rc = need(o.output, "--output");
    (void)n;
    if (!rc)
        rc = inspect_open(&x, argv[0]);
    if (!rc && o.like)
        rc = inspect_open(&like, o.like);
    if (!rc && !(rc = import_recipe(&x, &like, &r))
        && !(rc = inspect_info(o.like ? &like : &x, &info))) {
        info.ranks = o.ranks ? (int)o.ranks : 1;
        info.recipe = recipe_canonical(r);
        rc = import_as(&x, r, &info);
        inspect_info_release(&info);
    }
    recipe_free(r);
    inspect_close(&like);
    inspect_close(&x);
    return rc;
}

static int verb_rm(char **argv, int n)
{
    int64_t *steps;
    int gone = 0, rc = o.keep_last ? 0 : need(NULL, "--keep-last");
    (void)n;
    if (rc || (rc = ckpt_prunable(argv[0], (int)o.keep_last, o.keep_every, &steps, &gone)))
        return rc;
    for (int i = 0; i < gone; i++)
        printf("step-%06" PRId64 "\n", steps[i]);
    free(steps);
    return o.dry_run ? 0 : ckpt_prune(argv[0], (int)o.keep_last, o.keep_every, NULL);
}

/* --- the verbs --- */

static const struct verb {
    const char *name, *operands, *what, *options;
    int lo, hi;                 /* number of operands */
    int (*run)(char **argv, int n);
} verbs[] = {
    { "ls", "PATH [PATTERN]", "tensors as the model knows them", "bank", 1, 2, verb_ls },
    { "info", "PATH", "step, recipe, ranks, data position", "", 1, 1, verb_info },
    { "stat", "PATH [PATTERN]", "range, mean, rms, zeros, size of the next update",
      "bank histogram", 1, 2, verb_stat },
    { "spectrum", "PATH [PATTERN]", "singular values of matrices",
      "bank of since values summary plot force padding progress", 1, 2, verb_spectrum },
    { "diff", "A B [PATTERN]", "what differs, and by how much", "bank tolerance all", 2, 3,
      verb_diff },
    { "verify", "PATH", "is it sound", "full", 1, 1, verb_verify },
    { "cat", "PATH TENSOR[SLICE]", "numbers of a tensor", "raw", 2, 2, verb_cat },
    { "reshard", "PATH -o DIR --ranks N", "the same state for another number of ranks",
      "output ranks level force", 1, 1, verb_reshard },
    { "export", "PATH -o FILE", "named tensors for NumPy and PyTorch",
      "output to dtype states padding level force", 1, 1, verb_export },
    { "import", "FILE -o DIR", "a checkpoint from named tensors",
      "output ranks recipe like level force", 1, 1, verb_import },
    { "rm", "DIR --keep-last N", "remove old checkpoints", "keep-last keep-every dry-run", 1, 1,
      verb_rm },
};
enum { VERBS = sizeof verbs / sizeof verbs[0], OPTIONS = sizeof table / sizeof table[0] };

/* Is the word in a list with blanks between? */
static bool listed(const char *list, const char *word)
{
    size_t n = strlen(word);
    for (const char *s = list; (s = strstr(s, word)); s += n)
        if ((s == list || s[-1] == ' ') && (s[n] == ' ' || !s[n]))
            return true;
    return false;
}

/* The rows of the table that a verb knows. */
static void own_options(const struct verb *v, struct opt *out)
{
    for (int i = 0; i < OPTIONS; i++)
        if (table[i].name && (listed(v->options, table[i].name)
                              || listed("format quiet", table[i].name)))
            *out++ = table[i];
    *out = (struct opt)OPT_END;
}

static int run_verb(const struct verb *v, int argc, char **argv)
{
    struct opt own[OPTIONS + 1];
    char name[32];
    int first;
    snprintf(name, sizeof name, "gpt-ckpt %s", v->name);
    own_options(v, own);
    struct command cmd = { name, v->operands, v->what, own };
    int rc = opt_parse(&cmd, argc - 1, argv + 1, &first);
    argv += 1 + first;
    argc -= 1 + first;
    if (!rc && argc < v->lo)
        rc = err_set(GPT_USAGE, "expected %s", v->operands);
    else if (!rc && argc > v->hi)
        rc = err_set(GPT_USAGE, "'%s' is one operand too many", argv[v->hi]);
    if (!rc)
        rc = v->run(argv, argc);
    return opt_exit(&cmd, rc);
}

int main(int argc, char **argv)
{
    char summary[2048];
    int at = snprintf(summary, sizeof summary, "Looks into checkpoints, and other files of tensors "
                      "(safetensors, npz).\n\nVerbs ('gpt-ckpt VERB --help' tells more):\n"), first;
    for (int i = 0; i < VERBS; i++)
        at += snprintf(summary + at, sizeof summary - (size_t)at, "  %-9s %-24s %s%s",
                       verbs[i].name, verbs[i].operands, verbs[i].what, i + 1 < VERBS ? "\n" : "");
    struct command cmd = { "gpt-ckpt", "VERB [OPTION]... PATH...", summary, table };
    output_cleanup_on_signal();
    for (int i = 0; argc > 1 && i < VERBS; i++)
        if (!strcmp(argv[1], verbs[i].name))
            return run_verb(&verbs[i], argc, argv);
    int rc = opt_parse(&cmd, argc, argv, &first);
    if (!rc)
        rc = first < argc ? err_set(GPT_USAGE, "no verb '%s'", argv[first])
                          : err_set(GPT_USAGE, "expected a verb");
    return opt_exit(&cmd, rc);
}
