/* ns-coeffs - derives, fits and judges coefficient tables for orthogonalisation.
 *
 *     ns-coeffs polar > record.coeffs
 *     gpt-ckpt spectrum run | ns-coeffs fit --spectrum - --upper 1.01 > my.coeffs
 *     ns-coeffs eval record-61 my.coeffs
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/chart.h"
#include "base/file.h"
#include "base/text.h"
#include "base/verb.h"
#include "base/version.h"
#include "inspect/momenta.h"
#include "coeffs/fit.h"
#include "coeffs/sources.h"
#include "coeffs/minimax.h"
#include "coeffs/sets.h"
#include "coeffs/verdict.h"
#include "base/blas.h"
#include "base/report.h"

enum { UNSET = -1, BF16_FIT_MATRICES = 4 };

static struct {
    int64_t iters, degree, matrices, seed;
    double lower, upper, safety, cushion, swing;
    const char *objective, *from, *bank, *format, *plot, *output;
    struct opt_list spectrum, checkpoint, shape, distribution, drop, input;
    bool no_rescale_last, bf16, gram, force, wide, quiet;
} o = { .iters = UNSET,
        .degree = UNSET,
        .matrices = UNSET,
        .seed = 1,
        .lower = NAN,
        .upper = NAN,
        .safety = NAN,
        .cushion = NAN,
        .swing = NAN };

static const struct opt table[] = {
    OPT_HEADING("Table"),
    OPT_NUMBER("iters", "N", &o.iters, 1, GREEDY_ROWS, "rows of the table (5; aol: 4)"),
    OPT_REAL("lower", "X", &o.lower, 0, 0,
             "smallest singular value that matters (1e-3; fit, aol: the smallest given)"),
    OPT_REAL("upper", "X", &o.upper, 0, 0, "largest one (1; aol 1.02)"),
    OPT_REAL("safety", "X", &o.safety, 0, 0,
             "rows take inputs too large by this share (0.02; fit, aol 0.01)"),
    OPT_REAL("cushion", "X", &o.cushion, 0, 0,
             "polar: a row's interval begins at X times its end, or above (0.02)"),
    OPT_NUMBER("degree", "N", &o.degree, 0, 0, "polar: 3, 5 or 7 (5)"),
    OPT_SWITCH(0, "no-rescale-last", &o.no_rescale_last,
               "polar: leave the last row as it is where the cushion acted"),
    OPT_TEXT(0, "from", "TABLE", &o.from,
             "fit, aol: start here (fit: as polar; aol: as polar with a row more, its "
             "first dropped)"),
    { .name = "drop",
      .arg = "ROW",
      .kind = OPT_LIST,
      .value = &o.drop,
      .help = "eval, show: the table without its first or last row; eval: may be repeated",
      .choices = "first|last" },
    OPT_WORD("objective", &o.objective, "max|rms", "fit, aol: what is made small (rms)"),
    OPT_REAL("swing", "X", &o.swing, 0, 0,
             "fit, aol: how far from 1 the table may be where no singular value was (0.3)"),
    OPT_HEADING("Matrices to fit to or to judge on"),
    { .name = "spectrum",
      .arg = "FILE",
      .kind = OPT_LIST,
      .value = &o.spectrum,
      .help = "singular values, as gpt-ckpt spectrum prints them; may be repeated" },
    { .name = "checkpoint",
      .arg = "PATH",
      .kind = OPT_LIST,
      .value = &o.checkpoint,
      .help = "momenta of a checkpoint; may be repeated" },
    OPT_TEXT(0, "bank", "LABEL", &o.bank, "checkpoint: only this parameter"),
    { .name = "distribution",
      .arg = "WORD",
      .kind = OPT_LIST,
      .value = &o.distribution,
      .help = "random matrices; may be repeated",
      .choices = MATRIX_CHOICES },
    { .name = "shape",
      .arg = "RxC",
      .kind = OPT_LIST,
      .value = &o.shape,
      .help = "their shape (768x768); eval: also that of the work counted; may be repeated" },
    OPT_NUMBER("matrices", "N", &o.matrices, 1, 1000, "of each shape and distribution (2)"),
    OPT_NUMBER("seed", "N", &o.seed, 0, 0x1p62, "of the random matrices (1)"),
    OPT_SWITCH(0, "bf16", &o.bf16, "also in bf16, as the optimizer's kernels compute"),
    OPT_SWITCH(0, "gram", &o.gram,
               "eval: with --bf16, the Gram form, too, and its restarts; fit, aol: for that form"),
    { .name = "input",
      .arg = "WORD",
      .kind = OPT_LIST,
      .value = &o.input,
      .help = "eval: what the matrices are scaled by (what the table is made for; with --drop norm "
              "and aol); may be repeated",
      .choices = INPUT_CHOICES },
    OPT_HEADING("Output"),
    OPT_WORD("format", &o.format, "table|tsv|json",
             "eval, list: table (default on a terminal), tsv (elsewhere) or json"),
    OPT_SWITCH(0, "wide", &o.wide,
               "eval, list: tables as wide as they are, not broken for the terminal"),
    OPT_TEXT(0, "plot", "FILE", &o.plot, "eval: draw the tables into an SVG"),
    OPT_TEXT('o', "output", "FILE", &o.output, "write the table to FILE"),
    OPT_SWITCH('f', "force", &o.force, "replace what is there"),
    OPT_SWITCH('q', "quiet", &o.quiet, "no remarks"),
    OPT_END
};

static char *arguments; /* for the comment that says what made a table */

static double or_else(double given, double usual) { return isnan(given) ? usual : given; }

/* --- matrices --- */

static struct trial_sources matrices(void)
{
    return (struct trial_sources){
        .spectrum = o.spectrum,
        .shape = o.shape,
        .kind = o.distribution,
        .matrices = o.matrices == UNSET ? 2 : (int)o.matrices,
        .seed = (uint64_t)o.seed,
    };
}

/* few: of a file or checkpoint, that many matrices at most. */
static int read_trials(const struct trial_sources *g, int flags, int few, struct trials *t)
{
    int rc = trial_sources_read(g, flags, few, t);
    for (int i = 0; i < o.checkpoint.n && !rc; i++)
        rc = momenta_trials(o.checkpoint.v[i], o.bank, flags, few, t);
    return rc;
}

/* Refuses options that would have no effect, and standard input named more than once among the
 * spectra and the n tables. */
static int check_matrices(const struct trial_sources *g, const char *const *tables, int n)
{
    int used = 0, rc = trial_sources_check(g);
    if (rc)
        return rc;
    if (o.gram && !o.bf16)
        return err_set(GPT_USAGE, "--gram is a matter of rounding: expected --bf16, too");
    if (o.bank && !o.checkpoint.n)
        return err_set(GPT_USAGE, "--bank is of a --checkpoint, and there is none");
    if (o.matrices != UNSET && !g->kind.n)
        return err_set(GPT_USAGE, "--matrices is of random ones: expected --distribution, too");
    for (int i = 0; i < g->spectrum.n; i++)
        used += !strcmp(g->spectrum.v[i], "-");
    for (int i = 0; i < n; i++)
        used += tables[i] && !strcmp(tables[i], "-");
    return used < 2 ? 0 : err_set(GPT_USAGE, "standard input can be read once only");
}

/* --- writing a table --- */

/* Before the work, so that a file that cannot be written is reported at once. */
static int open_table(struct output *out)
{
    return output_open(out, o.output ? o.output : "-", o.force);
}

static void write_origin(FILE *f)
{
    fprintf(f, "# ns-coeffs %s%s%s\n", GPT_VERSION, *arguments ? " " : "", arguments);
}

static int close_table(struct output *out, int rc)
{
    if (!rc)
        rc = output_commit(out);
    output_abort(out);
    return rc;
}

/* A table as it is, with a line of comment or two. */
static int write_table(const struct coeffs *c, const char *head)
{
    struct output out;
    int rc = open_table(&out);
    if (rc)
        return rc;
    write_origin(out.f);
    fputs(head, out.f);
    coeffs_write(c, out.f);
    return close_table(&out, 0);
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
    int rc = open_table(&out);
    (void)argv;
    (void)n;
    if (!rc && !(rc = greedy_derive(&g, &opt))) {
        write_origin(out.f);
        greedy_write(&g, &opt, out.f);
        if (!o.quiet && !greedy_reaches(&g))
            text_line(stderr,
                      "ns-coeffs: %d rows do not reach %g: it stays at %.3g (--iters, --lower)",
                      g.n, opt.lower, (double)g.row[g.n - 1].lower);
    }
    return close_table(&out, rc);
}

/* --- sets --- */

static int verb_list(char **argv, int n)
{
    struct report r;
    (void)argv;
    (void)n;
    report_begin(&r, stdout, report_format_of(o.format, o.wide));
    report_table(&r, NULL, NULL, "name:s rows:i input:s about:s source:s");
    for (int i = 0; i < coeffs_set_count(); i++) {
        const struct coeffs_set *s = coeffs_set_at(i);
        report_row(&r, s->name, (int64_t)s->n, coeffs_input_names[s->input], s->about, s->source);
    }
    return report_end(&r);
}

static int verb_show(char **argv, int n)
{
    struct coeffs c;
    char head[512];
    (void)n;
    int rc = coeffs_set_or_file(&c, argv[0]);
    if (!rc && o.drop.n > 1)
        rc = err_set(GPT_USAGE, "--drop: expected one row");
    if (!rc && o.drop.n)
        rc = coeffs_drop(&c, !strcmp(o.drop.v[0], "last"));
    if (rc)
        return rc;
    const struct coeffs_set *s = coeffs_set_find(argv[0]);
    int at = snprintf(head, sizeof head, "# %s%s%s\n", c.name, s ? ": " : "", s ? s->about : "");
    if (s)
        snprintf(head + at, sizeof head - (size_t)at, "# source: %s\n", s->source);
    return write_table(&c, head);
}

/* --- fits --- */

static int rows_wanted(void) { return o.iters == UNSET ? 0 : (int)o.iters; }

static struct fit_options fit_options(bool aol)
{
    struct fit_options opt = FIT_DEFAULT;
    opt.objective = o.objective && !strcmp(o.objective, "max") ? FIT_MAX : FIT_RMS;
    opt.rounded = o.bf16;
    if (o.gram)
        opt.how = POLAR_GRAM_FORM;
    opt.lower = or_else(o.lower, opt.lower);
    /* AOL reaches 1, the norm stays 2% below; rounding may come in on top. */
    opt.upper = or_else(o.upper, aol ? 1.02 : opt.upper);
    opt.safety = or_else(o.safety, opt.safety);
    opt.swing = or_else(o.swing, opt.swing);
    return opt;
}

static int fit_and_write(const struct coeffs *start, const struct trials *t,
                         const struct fit_options *opt, FILE *to)
{
    struct fit f;
    char verdict[256];
    int rc = fit_table(&f, start, t, opt);
    if (rc)
        return rc;
    write_origin(to);
    if ((rc = fit_write(&f, start, t, opt, to)))
        return rc;
    fit_describe(&f, start, opt, verdict, sizeof verdict);
    if (!o.quiet)
        text_line(stderr, "ns-coeffs: %s", verdict);
    return 0;
}

static int fit(const struct trial_sources *g, bool aol)
{
    struct fit_options opt = fit_options(aol);
    struct coeffs start;
    struct trials t = { 0, NULL };
    struct output out;
    int rc = check_matrices(g, &o.from, 1);
    if (rc || (rc = fit_start(&start, o.from, rows_wanted(), aol)) || (rc = fit_check(&opt)) ||
        (rc = open_table(&out)))
        return rc;
    rc = read_trials(g, (aol ? TRIAL_AOL : 0) | (o.bf16 ? TRIAL_VECTORS : 0),
                     o.bf16 ? BF16_FIT_MATRICES : 0, &t);
    if (!o.bf16)
        blas_threads(1); /* products are too small for more */
    if (!rc)
        rc = fit_and_write(&start, &t, &opt, out.f);
    trials_release(&t);
    return close_table(&out, rc);
}

static int verb_fit(char **argv, int n)
{
    struct trial_sources g = matrices();
    (void)argv;
    (void)n;
    if (!g.spectrum.n && !o.checkpoint.n && !g.kind.n)
        return err_set(GPT_USAGE, "expected --spectrum, --checkpoint or --distribution: what to "
                                  "fit to");
    return fit(&g, false);
}

static int verb_aol(char **argv, int n)
{
    static const char *usual_shape[] = { "768x768", "768x3072" };
    static const char *usual_kind[] = { "gaussian", "levy" };
    struct trial_sources g = matrices();
    (void)argv;
    (void)n;
    /* Without matrices: the shapes of GPT-2's banks, well and ill behaved. */
    if (!g.spectrum.n && !o.checkpoint.n) {
        if (!g.shape.n)
            g.shape = (struct opt_list){ usual_shape, 2 };
        if (!g.kind.n)
            g.kind = (struct opt_list){ usual_kind, 2 };
    }
    return fit(&g, true);
}

/* --- judgement --- */

/* Tables, each with what it is judged under, and the matrices scaled by each input that is asked for. */
struct eval {
    struct judge j;
    struct candidate *c;
    struct verdict *v;
    int n;
    struct trials t[COEFFS_INPUTS];
};

static int judge_all(struct eval *e, struct output *plot)
{
    int rc = 0;
    for (int i = 0; i < e->n && !rc; i++)
        rc = verdict_of(&e->v[i], &e->c[i], &e->j);
    if (!rc && o.plot) {
        verdict_plot(plot->f, e->c, e->n, e->j.lower, e->j.upper);
        rc = output_commit(plot);
    }
    return rc ? rc : verdict_print(stdout, report_format_of(o.format, o.wide), e->c, e->v, e->n);
}

/* True if --input names it, or names nothing and it is what is judged then. */
static bool input_wanted(enum coeffs_input input, bool otherwise)
{
    bool named = false;
    for (int i = 0; i < o.input.n; i++)
        named |= coeffs_input_parse(o.input.v[i]) == input;
    return o.input.n ? named : otherwise;
}

static void add(struct eval *e, const struct coeffs *table, const char *drop,
                enum coeffs_input input)
{
    e->c[e->n++] =
        (struct candidate){ .table = *table, .drop = drop, .input = input, .trials = &e->t[input] };
}

/* The table as it is, under what it is made for, or without the rows of --drop under each --input. */
static int add_table(struct eval *e, const struct coeffs *table)
{
    static const char *const scaled[COEFFS_INPUTS] = { "its Frobenius norm",
                                                       "its largest singular value", "AOL" };
    if (!o.drop.n && !input_wanted(table->input, true))
        return err_set(GPT_USAGE,
                       "%s is made for input scaled by %s: leave --input out, or try it without a "
                       "row (--drop), or judge a copy with the line '# input: %s'",
                       table->name, scaled[table->input], o.input.v[0]);
    if (!o.drop.n)
        add(e, table, NULL, table->input);
    for (int d = 0; d < o.drop.n; d++) {
        struct coeffs less = *table;
        int rc = coeffs_drop(&less, !strcmp(o.drop.v[d], "last"));
        if (rc)
            return rc;
        for (int k = 0; k < COEFFS_INPUTS; k++)
            if (input_wanted((enum coeffs_input)k, k != INPUT_SPECTRAL))
                add(e, &less, o.drop.v[d], (enum coeffs_input)k);
    }
    return 0;
}

static int read_tables(struct eval *e, char **argv, int n)
{
    size_t most = (size_t)n * (1 + (size_t)o.drop.n * COEFFS_INPUTS);
    e->c = calloc(most, sizeof *e->c);
    e->v = calloc(most, sizeof *e->v);
    int rc = e->c && e->v ? 0 : err_memory();
    for (int i = 0; i < n && !rc; i++) {
        struct coeffs table;
        if (!(rc = coeffs_set_or_file(&table, argv[i])))
            rc = add_table(e, &table);
    }
    if (!rc && o.plot && e->n > VERDICT_CURVES)
        rc = err_set(GPT_USAGE, "--plot: at most %d tables in one picture, found %d",
                     VERDICT_CURVES, e->n);
    return rc;
}

/* Matrices under each input of a candidate. */
static int read_inputs(struct eval *e, const struct trial_sources *g)
{
    static const int flag[COEFFS_INPUTS] = { 0, TRIAL_SPECTRAL, TRIAL_AOL | TRIAL_VECTORS };
    int rc = 0;
    for (int i = 0; i < e->n && !rc; i++)
        if (!e->c[i].trials->n)
            rc = read_trials(g, flag[e->c[i].input] | (o.bf16 ? TRIAL_VECTORS : 0), 0,
                             &e->t[e->c[i].input]);
    return rc;
}

static int check_eval(const struct trial_sources *g, const struct judge *j, char **tables, int n)
{
    if (!(j->lower > 0 && j->upper > j->lower && j->upper <= 1e6))
        return err_set(GPT_USAGE,
                       "--lower, --upper: expected 0 < lower < upper <= 1e6, found %g and %g",
                       j->lower, j->upper);
    bool none = !g->spectrum.n && !o.checkpoint.n && !g->kind.n;
    if ((o.bf16 || o.input.n || o.drop.n) && none)
        return err_set(GPT_USAGE, "%s needs matrices: --spectrum, --checkpoint or --distribution",
                       o.bf16     ? "--bf16"
                       : o.drop.n ? "--drop"
                                  : "--input");
    if (o.plot && !strcmp(o.plot, "-"))
        return err_set(GPT_USAGE, "--plot: standard output takes the verdict, so expected a file");
    return check_matrices(g, (const char *const *)tables, n);
}

static int verb_eval(char **argv, int n)
{
    struct trial_sources g = matrices();
    struct output plot = { 0 };
    struct eval e = { .j = { .lower = or_else(o.lower, 1e-3),
                             .upper = or_else(o.upper, 1),
                             .bf16 = o.bf16,
                             .gram = o.gram } };
    int rc = check_eval(&g, &e.j, argv, n);
    if (rc || (o.plot && (rc = chart_open(&plot, o.plot, o.force))))
        return rc;
    if (g.shape.n)
        shape_parse(g.shape.v[0], &e.j.rows, &e.j.cols);
    if (!(rc = read_tables(&e, argv, n)) && !(rc = read_inputs(&e, &g)))
        rc = judge_all(&e, &plot);
    output_abort(&plot);
    free(e.c);
    free(e.v);
    for (int i = 0; i < COEFFS_INPUTS; i++)
        trials_release(&e.t[i]);
    return rc;
}

/* --- the verbs --- */

#define MATRICES " spectrum checkpoint bank distribution shape matrices seed bf16 gram "
#define WRITES " output force quiet"
static const struct verb verbs[] = {
    { "polar", "", "Polar Express's table, with all its digits",
      "iters lower upper safety cushion degree no-rescale-last" WRITES, 0, 0, verb_polar },
    { "list", "", "the published tables", "format wide quiet", 0, 0, verb_list },
    { "show", "TABLE", "a table, by name or file", "drop" WRITES, 1, 1, verb_show },
    { "aol", "", "rows for input that AOL has scaled",
      "iters lower upper safety swing objective from" MATRICES WRITES, 0, 0, verb_aol },
    { "fit", "", "rows for given singular values",
      "iters lower upper safety swing objective from" MATRICES WRITES, 0, 0, verb_fit },
    { "eval", "TABLE...", "what tables do, by name or file",
      "lower upper drop input format wide plot force quiet" MATRICES, 1, 64, verb_eval },
};
static const struct program program = {
    "ns-coeffs", "Derives, fits and judges coefficient tables for orthogonalisation.", table, verbs,
    sizeof verbs / sizeof verbs[0]
};

static void set_names(FILE *f)
{
    for (int i = 0; i < coeffs_set_count(); i++)
        fprintf(f, " %s", coeffs_set_at(i)->name);
}

int main(int argc, char **argv)
{
    static const struct opt_words words[] = { { "TABLE", set_names }, { NULL, NULL } };
    opt_words = words;
    if (!(arguments = opt_arguments(argc, argv))) {
        fputs("ns-coeffs: out of memory\n", stderr);
        return GPT_SYSTEM;
    }
    return verb_main(&program, argc, argv);
}
