/* ns-coeffs - derives, fits and judges coefficient tables for orthogonalisation.
 *
 *     ns-coeffs polar > record.coeffs
 *     gpt-ckpt spectrum run --bank mlp | ns-coeffs fit --spectrum - > my.coeffs
 *     ns-coeffs eval record-61 my.coeffs
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/file.h"
#include "base/hash.h"
#include "base/opt.h"
#include "base/version.h"
#include "model/inspect.h"
#include "polar/fit.h"
#include "polar/gather.h"
#include "polar/minimax.h"
#include "polar/sets.h"
#include "polar/svg.h"
#include "polar/verdict.h"
#include "state/report.h"

void openblas_set_num_threads(int n);          /* of OpenBLAS's own cblas.h */

enum { UNSET = -1, BF16_FIT_MATRICES = 4 };

static struct {
    int64_t iters, degree, matrices, seed;
    double lower, upper, safety, cushion, swing;
    const char *objective, *from, *bank, *format, *plot, *output;
    struct opt_list spectrum, checkpoint, shape, distribution;
    bool no_rescale_last, bf16, aol, drop, force, quiet;
} o = { .iters = UNSET, .degree = UNSET, .matrices = UNSET, .seed = UNSET, .lower = NAN,
        .upper = NAN, .safety = NAN, .cushion = NAN, .swing = NAN };

static const struct opt table[] = {
    { 0, NULL, NULL, OPT_GROUP, NULL, "Table", 0, 0, NULL },
    { 0, "iters", "N", OPT_I64, &o.iters, "rows (5; aol 4)", 1, GREEDY_ROWS, NULL },
    { 0, "lower", "X", OPT_F64, &o.lower, "smallest singular value that matters (1e-3; fit, aol: "
      "all)", 0, 0, NULL },
    { 0, "upper", "X", OPT_F64, &o.upper, "largest one (1; aol 1.02)", 0, 0, NULL },
    { 0, "safety", "X", OPT_F64, &o.safety, "rows take inputs too large by this share (0.02; fit, "
      "aol 0.01)", 0, 0, NULL },
    { 0, "cushion", "X", OPT_F64, &o.cushion, "polar: a row's interval is at least this part of "
      "its upper end (0.02)", 0, 0, NULL },
    { 0, "degree", "N", OPT_I64, &o.degree, "polar: 3, 5 or 7 (5)", 0, 0, NULL },
    { 0, "no-rescale-last", NULL, OPT_FLAG, &o.no_rescale_last, "polar: leave the last row as it "
      "is where the cushion acted", 0, 0, NULL },
    { 0, "from", "TABLE", OPT_STR, &o.from, "fit, aol: start here (fit: as polar; aol: as polar "
      "with a row more, its first dropped)", 0, 0, NULL },
    { 0, "drop", NULL, OPT_FLAG, &o.drop, "aol: print that start, fit nothing", 0, 0, NULL },
    { 0, "objective", "WORD", OPT_CHOICE, &o.objective, "fit, aol: what is made small (rms)", 0, 0,
      "max|rms" },
    { 0, "swing", "X", OPT_F64, &o.swing, "fit, aol: how far from 1 the table may be where no "
      "singular value was (0.3)", 0, 0, NULL },
    { 0, NULL, NULL, OPT_GROUP, NULL, "Matrices to fit to or to judge on", 0, 0, NULL },
    { 0, "spectrum", "FILE", OPT_LIST, &o.spectrum, "singular values, as gpt-ckpt spectrum prints "
      "them; may be repeated", 0, 0, NULL },
    { 0, "checkpoint", "PATH", OPT_LIST, &o.checkpoint, "momenta of a checkpoint; may be repeated",
      0, 0, NULL },
    { 0, "bank", "LABEL", OPT_STR, &o.bank, "checkpoint: only this parameter", 0, 0, NULL },
    { 0, "distribution", "WORD", OPT_LIST, &o.distribution, "random matrices: " MATRIX_CHOICES
      "; may be repeated", 0, 0, NULL },
    { 0, "shape", "RxC", OPT_LIST, &o.shape, "their shape (768x768); eval: also that of the work "
      "counted; may be repeated", 0, 0, NULL },
    { 0, "matrices", "N", OPT_I64, &o.matrices, "of each shape and distribution (2)", 1, 1000,
      NULL },
    { 0, "seed", "N", OPT_I64, &o.seed, "of the random matrices (1)", 0, 0x1p62, NULL },
    { 0, "bf16", NULL, OPT_FLAG, &o.bf16, "also in the arithmetic of a GPU", 0, 0, NULL },
    { 0, "aol", NULL, OPT_FLAG, &o.aol, "eval: scale by AOL, not by the Frobenius norm", 0, 0,
      NULL },
    { 0, NULL, NULL, OPT_GROUP, NULL, "Output", 0, 0, NULL },
    { 0, "format", "WORD", OPT_CHOICE, &o.format, "eval, list: table (default on a terminal), tsv "
      "(elsewhere) or json", 0, 0, "table|tsv|json" },
    { 0, "plot", "FILE", OPT_STR, &o.plot, "eval: draw the tables into an SVG", 0, 0, NULL },
    { 'o', "output", "FILE", OPT_STR, &o.output, "write the table to FILE", 0, 0, NULL },
    { 'f', "force", NULL, OPT_FLAG, &o.force, "replace what is there", 0, 0, NULL },
    { 'q', "quiet", NULL, OPT_FLAG, &o.quiet, "no remarks", 0, 0, NULL },
    OPT_END
};

static char *arguments;                         /* for the comment that says what made a table */

static double or_else(double given, double usual)
{
    return isnan(given) ? usual : given;
}

/* -- matrices --------------------------------------------------------------------------- */

static int add_view(struct trials *l, struct tensors *s, const struct view *v, int flags)
{
    struct values x;
    struct matrix m;
    struct trial t;
    double *a = malloc(v->elements * sizeof *a), squares = 0;
    int rc = a ? values_open(&x, s, v->t, v->first) : err_set(GPT_SYSTEM, "out of memory");
    if (!a)
        return rc;
    if (!rc)
        rc = values_read(&x, a, v->elements);
    values_close(&x);
    for (uint64_t i = 0; i < v->elements; i++)
        squares += a[i] * a[i];
    if (rc || squares == 0) {                   /* what no gradient has reached yet */
        free(a);
        return rc;
    }
    if ((rc = matrix_take(&m, (int)v->shape[0], (int)v->shape[1], a)))
        return rc;
    rc = trial_of_matrix(&t, &m, v->name, flags);
    matrix_release(&m);
    return rc ? rc : trials_add(l, &t);
}

static int add_checkpoint(struct trials *l, const char *path, int flags, int few)
{
    struct inspect x;
    struct views v = { .n = 0 };
    int rc = inspect_open(&x, path);
    if (rc)
        return rc;
    rc = views_make(&v, x.tensors, &x.map, o.bank, 0);
    if (!rc)
        views_keep_matrices(&v, "momentum");
    if (!rc && v.n == 0)
        rc = err_set(GPT_INPUT, "%s: holds no such momentum matrix", path);
    int take = few && v.n > few ? few : v.n;
    for (int i = 0; i < take && !rc; i++)
        rc = add_view(l, x.tensors, &v.v[(int)((long)i * v.n / take)], flags);
    views_release(&v);
    inspect_close(&x);
    return rc;
}

static struct gather matrices(void)
{
    return (struct gather){
        .spectrum = o.spectrum.v, .n_spectrum = o.spectrum.n,
        .shape = o.shape.v, .n_shape = o.shape.n,
        .kind = o.distribution.v, .n_kind = o.distribution.n,
        .matrices = o.matrices == UNSET ? 2 : (int)o.matrices,
        .seed = o.seed == UNSET ? 1 : (uint64_t)o.seed,
    };
}

/* few: of a file or checkpoint, that many matrices at most. */
static int gather(const struct gather *g, int flags, int few, struct trials *t)
{
    int rc = gather_trials(g, flags, few, t);
    for (int i = 0; i < o.checkpoint.n && !rc; i++)
        rc = add_checkpoint(t, o.checkpoint.v[i], flags, few);
    return rc;
}

/* Standard input among the spectra, and among n names of tables: not more than once. */
static int check_stdin(const struct gather *g, const char *const *tables, int n)
{
    int used = 0;
    for (int i = 0; i < g->n_spectrum; i++)
        used += !strcmp(g->spectrum[i], "-");
    for (int i = 0; i < n; i++)
        used += tables[i] && !strcmp(tables[i], "-");
    return used < 2 ? 0 : err_set(GPT_USAGE, "standard input can be read once only");
}

/* -- writing a table ---------------------------------------------------------------------- */

static int write_table(const struct coeffs *c, const char *head)
{
    struct output out;
    int rc = output_open(&out, o.output ? o.output : "-", o.force);
    if (rc)
        return rc;
    fprintf(out.f, "# ns-coeffs %s%s%s\n%s", GPT_VERSION, *arguments ? " " : "", arguments, head);
    coeffs_write(c, out.f);
    rc = output_commit(&out);
    output_abort(&out);
    return rc;
}

static struct greedy_options polar_options(void)
{
    struct greedy_options g = GREEDY_DEFAULT;
    g.iters = o.iters == UNSET ? g.iters : (int)o.iters;
    g.degree = o.degree == UNSET ? g.degree : (int)o.degree;
    g.lower = or_else(o.lower, g.lower);
    g.upper = or_else(o.upper, g.upper);
    g.safety = or_else(o.safety, g.safety);
    g.cushion = or_else(o.cushion, g.cushion);
    g.no_rescale_last = o.no_rescale_last;
    return g;
}

static int verb_polar(char **argv, int n)
{
    struct greedy_options opt = polar_options();
    struct greedy g;
    struct output out;
    int rc = greedy_derive(&g, &opt), worst = 17;
    (void)argv;
    (void)n;
    if (rc || (rc = output_open(&out, o.output ? o.output : "-", o.force)))
        return rc;
    for (int t = 0; t < g.n; t++)
        worst = g.row[t].digits < worst ? g.row[t].digits : worst;
    fprintf(out.f, "# ns-coeffs %s %s\n", GPT_VERSION, arguments);
    fprintf(out.f, "# image of [%g, %g]: [%.9g, %.9g]; %d digits of every number are right\n",
            opt.lower, opt.upper, (double)g.row[g.n - 1].lower, (double)g.row[g.n - 1].upper,
            worst);
    for (int t = 0; t < g.n; t++) {
        char text[64];
        for (int i = 0; i < g.terms; i++)
            fprintf(out.f, "%s ", quad_text(text, sizeof text, g.row[t].coef[i], 17));
        for (int i = g.terms; i < 3; i++)
            fputs("0 ", out.f);
        fprintf(out.f, " # from %.12g on, %d digits\n", (double)g.row[t].lower, g.row[t].digits);
    }
    rc = output_commit(&out);
    output_abort(&out);
    return rc;
}

/* -- sets ----------------------------------------------------------------------------------- */

static enum report_format format(void)
{
    if (!o.format)
        return isatty(STDOUT_FILENO) ? REPORT_TABLE : REPORT_TSV;
    return !strcmp(o.format, "json") ? REPORT_JSON
           : !strcmp(o.format, "tsv") ? REPORT_TSV : REPORT_TABLE;
}

static int verb_list(char **argv, int n)
{
    static const struct column c[] = { { "name", 's' }, { "rows", 'i' }, { "input", 's' },
                                       { "about", 's' }, { "source", 's' } };
    struct report r;
    (void)argv;
    (void)n;
    report_begin(&r, stdout, format(), c, 5);
    for (int i = 0; i < set_count(); i++) {
        const struct coeff_set *s = set_at(i);
        report_row(&r, s->name, (int64_t)s->n, s->aol ? "aol" : "norm", s->about, s->source);
    }
    return report_end(&r);
}

static int verb_show(char **argv, int n)
{
    struct coeffs c;
    char head[512];
    (void)n;
    int rc = set_get(&c, argv[0]);
    if (rc)
        return rc;
    const struct coeff_set *s = set_find(argv[0]);
    snprintf(head, sizeof head, "# %s: %s\n# source: %s\n", s->name, s->about, s->source);
    return write_table(&c, head);
}

/* -- fits ------------------------------------------------------------------------------------- */

static void hash_inputs(const struct trials *t, const struct coeffs *start, char hex[33])
{
    struct xxh x;
    strcpy(hex, "-");
    if (xxh_init(&x))
        return;
    for (int i = 0; i < t->n; i++)
        xxh_add(&x, t->v[i].x, (size_t)t->v[i].n * sizeof *t->v[i].x);
    xxh_add(&x, start->row, sizeof start->row[0] * (size_t)start->n);
    xxh_hex(&x, hex);
    xxh_release(&x);
}

static int report_fit(const struct fit *f, const struct coeffs *start, const struct trials *t,
                      const struct fit_options *opt)
{
    char head[1024], hex[33], verdict[256];
    fit_describe(f, start, opt, verdict, sizeof verdict);
    hash_inputs(t, start, hex);
    int at = snprintf(head, sizeof head, "# fitted to %ld singular values of %d matrices%s, %.4g "
                      "to %.4g; xxh3 of values and start: %s\n# %s\n", f->count, t->n,
                      t->v[0].aol ? " after AOL" : "", f->low, f->high, hex, verdict);
    if (o.bf16)
        at += snprintf(head + at, sizeof head - (size_t)at, "# in exact arithmetic %.6g, of the "
                       "start %.6g\n", f->exact_after, f->exact_before);
    if (f->guard_after > 0)
        snprintf(head + at, sizeof head - (size_t)at, "# leaves the guard by %.3g, as the start "
                 "does\n", f->guard_after);
    if (!o.quiet)
        fprintf(stderr, "ns-coeffs: %s\n", verdict);
    return write_table(&f->table, head);
}

static int rows_wanted(void)
{
    return o.iters == UNSET ? 0 : (int)o.iters;
}

static int fit(const struct gather *g, bool aol)
{
    struct fit_options opt = FIT_DEFAULT;
    struct coeffs start;
    struct trials t = { 0, NULL };
    struct fit f;
    int rc = gather_check(g);
    if (rc || (rc = check_stdin(g, &o.from, 1)))
        return rc;
    if ((rc = fit_start(&start, o.from, rows_wanted(), aol)))
        return rc;
    opt.objective = o.objective && !strcmp(o.objective, "max") ? FIT_MAX : FIT_RMS;
    opt.bf16 = o.bf16;
    opt.lower = or_else(o.lower, opt.lower);
    /* AOL reaches 1, the norm stays 2% below; rounding may come in on top. */
    opt.upper = or_else(o.upper, aol ? 1.02 : opt.upper);
    opt.safety = or_else(o.safety, opt.safety);
    opt.swing = or_else(o.swing, opt.swing);
    if ((rc = fit_check(&opt)))
        return rc;
    rc = gather(g, (aol ? TRIAL_AOL : 0) | (o.bf16 ? TRIAL_VECTORS : 0),
                o.bf16 ? BF16_FIT_MATRICES : 0, &t);
    if (!o.bf16)
        openblas_set_num_threads(1);            /* nothing left that is worth a second one */
    if (!rc && !(rc = fit_table(&f, &start, &t, &opt)))
        rc = report_fit(&f, &start, &t, &opt);
    trials_release(&t);
    return rc;
}

static int verb_fit(char **argv, int n)
{
    struct gather g = matrices();
    (void)argv;
    (void)n;
    if (!g.n_spectrum && !o.checkpoint.n && !g.n_kind)
        return err_set(GPT_USAGE, "expected --spectrum, --checkpoint or --distribution: what to "
                       "fit to");
    return fit(&g, false);
}

static int verb_aol(char **argv, int n)
{
    static const char *const usual_shape[] = { "768x768", "768x3072" };
    static const char *const usual_kind[] = { "gaussian", "levy" };
    struct gather g = matrices();
    (void)argv;
    (void)n;
    if (o.drop) {
        struct coeffs c;
        char head[128];
        int rc = fit_start(&c, o.from, rows_wanted(), true);
        snprintf(head, sizeof head, "# %s\n", c.name);
        return rc ? rc : write_table(&c, head);
    }
    /* Without matrices: the shapes of GPT-2's banks, well and ill behaved. */
    if (!g.n_spectrum && !o.checkpoint.n) {
        if (!g.n_shape) {
            g.shape = usual_shape;
            g.n_shape = 2;
        }
        if (!g.n_kind) {
            g.kind = usual_kind;
            g.n_kind = 2;
        }
    }
    return fit(&g, true);
}

/* -- judgement ------------------------------------------------------------------------------ */

static int plot(const struct coeffs *c, int n, const struct judge *j)
{
    struct output out;
    if (n > SVG_TABLES)
        return err_set(GPT_USAGE, "--plot: at most %d tables in one picture", SVG_TABLES);
    int rc = output_open(&out, o.plot, o.force);
    if (rc)
        return rc;
    svg_plot(out.f, c, n, j->lower, j->upper);
    rc = output_commit(&out);
    output_abort(&out);
    return rc;
}

static int judge_all(const struct judge *j, const struct coeffs *c, struct verdict *v, int n)
{
    int rc = 0;
    for (int i = 0; i < n && !rc; i++)
        rc = verdict_of(&v[i], &c[i], j);
    if (!rc && o.plot)
        rc = plot(c, n, j);
    if (!rc)
        verdict_print(stdout, format() == REPORT_JSON ? VERDICT_JSON
                      : format() == REPORT_TSV ? VERDICT_TSV : VERDICT_TABLE, c, v, n);
    return rc;
}

static int verb_eval(char **argv, int n)
{
    struct gather g = matrices();
    struct trials t = { 0, NULL };
    struct judge j = { .lower = or_else(o.lower, 1e-3), .upper = or_else(o.upper, 1),
                       .trials = &t, .bf16 = o.bf16 };
    int rc = gather_check(&g);
    if (rc)
        return rc;
    if (!(j.lower > 0 && j.upper > j.lower && j.upper <= 1e6))
        return err_set(GPT_USAGE, "expected 0 < lower < upper <= 1e6, found %g and %g", j.lower,
                       j.upper);
    if ((o.bf16 || o.aol) && !g.n_spectrum && !o.checkpoint.n && !g.n_kind)
        return err_set(GPT_USAGE, "--bf16 and --aol need matrices: --spectrum, --checkpoint or "
                       "--distribution");
    if (g.n_shape)
        shape_parse(g.shape[0], &j.rows, &j.cols);
    struct coeffs *c = calloc((size_t)n, sizeof *c);
    struct verdict *v = calloc((size_t)n, sizeof *v);
    rc = c && v ? check_stdin(&g, (const char *const *)argv, n)
                : err_set(GPT_SYSTEM, "out of memory");
    for (int i = 0; i < n && !rc; i++)
        rc = set_or_file(&c[i], argv[i]);
    if (!rc)
        rc = gather(&g, (o.aol ? TRIAL_AOL : 0) | (o.bf16 ? TRIAL_VECTORS : 0), 0, &t);
    if (!rc)
        rc = judge_all(&j, c, v, n);
    free(c);
    free(v);
    trials_release(&t);
    return rc;
}

/* -- what was typed ------------------------------------------------------------------------- */

#define MATRICES " spectrum checkpoint bank distribution shape matrices seed bf16 "
#define WRITES " output force quiet "
static const struct verb {
    const char *name;
    int (*run)(char **argv, int n);
    int least, most;                            /* operands */
    const char *operands, *options;
} verbs[] = {
    { "polar", verb_polar, 0, 0, "no operand",
      " iters lower upper safety cushion degree no-rescale-last" WRITES },
    { "list", verb_list, 0, 0, "no operand", " format quiet " },
    { "show", verb_show, 1, 1, "one name", WRITES },
    { "aol", verb_aol, 0, 0, "no operand",
      " iters lower upper safety swing objective from drop" MATRICES WRITES },
    { "fit", verb_fit, 0, 0, "no operand",
      " iters lower upper safety swing objective from" MATRICES WRITES },
    { "eval", verb_eval, 1, 64, "tables", " lower upper aol format plot force quiet" MATRICES },
};

static bool is_given(const struct opt *p)
{
    switch (p->kind) {
    case OPT_FLAG: return *(bool *)p->value;
    case OPT_I64: return *(int64_t *)p->value != UNSET;
    case OPT_F64: return !isnan(*(double *)p->value);
    case OPT_LIST: return ((struct opt_list *)p->value)->n > 0;
    case OPT_GROUP: return false;
    default: return *(const char **)p->value != NULL;
    }
}

static int run(char **argv, int n)
{
    const struct verb *v = NULL;
    if (n < 1)
        return err_set(GPT_USAGE, "expected polar, list, show, aol, fit or eval");
    for (size_t i = 0; i < sizeof verbs / sizeof verbs[0]; i++)
        if (!strcmp(verbs[i].name, argv[0]))
            v = &verbs[i];
    if (!v)
        return err_set(GPT_USAGE, "expected polar, list, show, aol, fit or eval, found '%s'",
                       argv[0]);
    for (const struct opt *p = table; p->name || p->kind == OPT_GROUP; p++) {
        char word[64];
        snprintf(word, sizeof word, " %s ", p->name ? p->name : "");
        if (is_given(p) && !strstr(v->options, word))
            return err_set(GPT_USAGE, "--%s does not go with %s", p->name, v->name);
    }
    if (n - 1 < v->least || n - 1 > v->most)
        return err_set(GPT_USAGE, "%s: expected %s, found %d operands", v->name, v->operands,
                       n - 1);
    return v->run(argv + 1, n - 1);
}

static char *join(int argc, char **argv)
{
    size_t n = 1;
    for (int i = 1; i < argc; i++)
        n += strlen(argv[i]) + 1;
    char *s = calloc(n, 1);
    for (int i = 1; s && i < argc; i++) {
        strcat(s, argv[i]);
        if (i + 1 < argc)
            strcat(s, " ");
    }
    for (char *p = s; p && *p; p++)
        if (*p == '\n')
            *p = ' ';                           /* it becomes one line of a comment */
    return s;
}

int main(int argc, char **argv)
{
    const struct command cmd = {
        "ns-coeffs", "polar|list|show NAME|aol|fit|eval TABLE... [OPTION]...",
        "Derives, fits and judges coefficient tables for orthogonalisation.", table };
    int first;
    arguments = join(argc, argv);               /* before getopt moves them */
    int rc = arguments ? opt_parse(&cmd, argc, argv, &first) : err_set(GPT_SYSTEM, "out of memory");
    output_cleanup_on_signal();
    if (!rc)
        rc = run(argv + first, argc - first);
    free(arguments);
    opt_list_release(&o.spectrum);
    opt_list_release(&o.checkpoint);
    opt_list_release(&o.shape);
    opt_list_release(&o.distribution);
    return opt_exit(&cmd, rc);
}
