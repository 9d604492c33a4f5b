#include "inspect/show.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/chart.h"

static int written(FILE *f) { return ferror(f) ? err_sys("cannot write the answer") : 0; }

int show_list(FILE *f, enum report_format format, const struct tensors *s, const struct views *v)
{
    struct report r;
    char shape[96], ranks[32];
    report_begin(&r, f, format);
    report_table(&r, NULL, NULL, "name:s stored:s dtype:s shape:s bytes:u rank:s");
    for (int i = 0; i < v->n; i++) {
        const struct view *x = &v->v[i];
        report_row(&r, x->name, x->t->name, x->t->dtype ? dtype_name(x->t->dtype) : x->t->type,
                   view_shape(x, shape), view_bytes(x), view_ranks(s, x, ranks));
    }
    return report_end(&r);
}

/* --- info --- */

static void put_number(struct report *r, const char *key, int64_t v)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRId64, v);
    report_row(r, key, text);
}

static void put_manifest(struct report *r, const struct ckpt *c, const char *recipe)
{
    const struct ckpt_info *info = ckpt_info(c);
    report_row(r, "tool", info->tool);
    put_number(r, "step", info->step);
    put_number(r, "tokens", info->tokens);
    put_number(r, "ranks", info->ranks);
    report_row(r, "recipe", recipe);
    report_row(r, "recipe_hash", ckpt_recipe_hash(c));
    for (int i = 0; i < info->nstate; i++)
        report_row(r, info->state[i].key, info->state[i].value);
}

/* Numbers and bytes of all tensors of a kind, in order of appearance. */
static int put_kinds(struct report *r, const struct tensors *s)
{
    struct sum {
        const char *kind;
        uint64_t elements, bytes;
    } *sum = calloc((size_t)tensors_count(s) + 1, sizeof *sum);
    char text[96];
    if (!sum)
        return err_memory();
    for (int i = 0; i < tensors_count(s); i++) {
        const struct stored *t = tensors_at(s, i);
        int k = 0;
        while (sum[k].kind && strcmp(sum[k].kind, t->kind))
            k++;
        sum[k].kind = t->kind;
        sum[k].elements += t->elements;
        sum[k].bytes += t->bytes;
    }
    for (int k = 0; sum[k].kind; k++) {
        snprintf(text, sizeof text, "%" PRIu64 " numbers, %" PRIu64 " bytes", sum[k].elements,
                 sum[k].bytes);
        report_row(r, *sum[k].kind ? sum[k].kind : "tensors", text);
    }
    free(sum);
    return 0;
}

int show_info(FILE *f, enum report_format format, const struct tensors *s, const char *recipe)
{
    struct report r;
    report_begin(&r, f, format);
    report_table(&r, NULL, NULL, "key:s value:s");
    report_row(&r, "path", tensors_path(s));
    if (tensors_ckpt(s)) {
        put_manifest(&r, tensors_ckpt(s), recipe);
    } else {
        size_t n;
        const struct st_meta *m = tensors_notes(s, &n);
        for (size_t i = 0; i < n; i++)
            report_row(&r, m[i].key, strchr(m[i].value, '\n') ? "(text)" : m[i].value);
    }
    int rc = put_kinds(&r, s), end = report_end(&r);
    return rc ? rc : end;
}

/* --- numbers --- */

int show_stats(FILE *f, enum report_format format, const struct views *v,
               const struct tensor_stats *rows)
{
    struct report r;
    char type[64];
    report_begin(&r, f, format);
    report_table(&r, NULL, NULL,
                 "name:s type:s elements:u min:g5 max:g5 mean:g5 rms:g5 zeros:i nonfinite:i "
                 "bf16_underflow:g5 update_ratio:g5");
    for (int i = 0; i < v->n; i++) {
        const struct tensor_stats *s = &rows[i];
        report_row(&r, v->v[i].name, values_type(v->v[i].t, type), s->elements, s->min, s->max,
                   s->mean, s->rms, s->known ? (int64_t)s->zeros : REPORT_NONE,
                   s->known ? (int64_t)s->nonfinite : REPORT_NONE,
                   s->known ? (double)s->underflow / (double)s->elements : NAN, s->update);
    }
    return report_end(&r);
}

int show_spectra(FILE *f, enum report_format format, const struct views *v,
                 const struct spectrum *sp)
{
    struct report r;
    report_begin(&r, f, format);
    report_table(&r, NULL, NULL,
                 "name:s rows:u cols:u sigma_max:g5 sigma_min:g5 condition:g5 frobenius:g5 "
                 "stable_rank:g5 effective_rank:g5 alpha:g5 orthogonality_error:g5");
    for (int i = 0; i < v->n; i++) {
        const struct view *x = &v->v[i];
        if (sp[i].n)
            report_row(&r, x->name, sp[i].rows, sp[i].cols, sp[i].sigma[0],
                       sp[i].sigma[sp[i].n - 1], sp[i].condition, sp[i].frobenius,
                       sp[i].stable_rank, sp[i].effective_rank, sp[i].alpha, sp[i].orthogonality);
        else if (!values_known(x->t))
            report_row(&r, x->name, x->shape[0], x->shape[1], NAN, NAN, NAN, NAN, NAN, NAN, NAN,
                       NAN);
    }
    return report_end(&r);
}

int show_values(FILE *f, const struct views *v, const struct spectrum *sp)
{
    for (int i = 0; i < v->n; i++) {
        const struct view *x = &v->v[i];
        const char *none = values_known(x->t) ? " is zero" : " is not decoded";
        fprintf(f, "# %s %" PRIu64 "x%" PRIu64 "%s\n", x->name, x->shape[0], x->shape[1],
                sp[i].frobenius > 0 ? "" : none);
        for (int k = 0; k < sp[i].n && sp[i].frobenius > 0; k++)
            fprintf(f, "%.9g\n", sp[i].sigma[k]);
    }
    return written(f);
}

int show_diff(FILE *f, enum report_format format, const struct diff_row *rows, int n, bool all)
{
    struct report r;
    report_begin(&r, f, format);
    report_table(&r, NULL, NULL,
                 "name:s verdict:s elements:u bits_differ:i max:g5 rms:g5 relative:g5 "
                 "cosine:g5 along:g5");
    for (int i = 0; i < n; i++)
        if (all || rows[i].total || rows[i].what > DIFF_EQUAL)
            report_row(&r, rows[i].name, diff_word(rows[i].what), rows[i].elements,
                       rows[i].what < DIFF_ONLY_A ? (int64_t)rows[i].bits : REPORT_NONE,
                       rows[i].max, rows[i].rms, rows[i].relative, rows[i].cosine, rows[i].along);
    return report_end(&r);
}

/* --- the picture --- */

enum {
    WIDTH = 900,
    HEIGHT = 560,
    LEFT = 76,
    RIGHT = 190,
    TOP = 44,
    BOTTOM = 56,
    DECADES = 8,
    ROLES = 64
};

/* The role of a matrix: what follows "layers.N.". */
static const char *role(const struct view *v)
{
    const char *s = v->part ? v->part->name : v->t->name;
    if (!strncmp(s, "layers.", 7) && strchr(s + 7, '.'))
        return strchr(s + 7, '.') + 1;
    return s;
}

/* Its number; a new one is added until there are ROLES of them. */
static int role_index(const char **roles, int *n, const char *name)
{
    for (int i = 0; i < *n; i++)
        if (!strcmp(roles[i], name))
            return i;
    if (*n == ROLES)
        return ROLES - 1;
    roles[*n] = name;
    return (*n)++;
}

/* sigma / largest; zero where all are zero. */
static double relative(const struct spectrum *s, int k)
{
    return s->frobenius > 0 ? s->sigma[k] / s->sigma[0] : 0;
}

/* From the power of ten above the largest value down as far as needed, at most DECADES. */
static void set_decades(struct chart *p, const struct spectrum *s, int n)
{
    double hi = -INFINITY, lo = INFINITY;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < s[i].n; k++) {
            double y = relative(&s[i], k);
            if (y > 0 && isfinite(y)) {
                hi = fmax(hi, log10(y));
                lo = fmin(lo, log10(y));
            }
        }
    if (hi < lo)
        hi = lo = 0;
    p->y1 = ceil(hi);
    p->y0 = fmin(fmax(floor(lo), p->y1 - DECADES), p->y1 - 1);
}

int show_plot(FILE *f, const struct views *v, const struct spectrum *sp, const char *title)
{
    const char *roles[ROLES];
    int n = 0;
    struct chart p = { .f = f,
                       .left = LEFT,
                       .top = TOP,
                       .width = WIDTH - LEFT - RIGHT,
                       .height = HEIGHT - TOP - BOTTOM,
                       .x1 = 1,
                       .log_y = true,
                       .title = title,
                       .x_title = "place in the spectrum",
                       .y_title = "sigma / largest" };
    set_decades(&p, sp, v->n);
    chart_begin(f, WIDTH, HEIGHT);
    chart_axes(&p);
    for (int i = 0; i < v->n; i++) {
        const struct spectrum *s = &sp[i];
        chart_curve(&p, role_index(roles, &n, role(&v->v[i])), 1);
        for (int k = 0; k < s->n; k++)
            chart_to(&p, s->n > 1 ? (double)k / (s->n - 1) : 0,
                     relative(s, k) <= 0 ? p.y0 : fmax(log10(relative(s, k)), p.y0));
        chart_curve_end(&p, v->v[i].name);
    }
    chart_axes_end(&p);
    for (int i = 0; i < n; i++)
        chart_legend(f, WIDTH - RIGHT + 16, TOP + 14 + 18 * i, i, roles[i], "");
    chart_end(f);
    return written(f);
}
