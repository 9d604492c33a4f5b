#include "inspect/show.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "inspect/svg.h"

static int written(FILE *f) { return ferror(f) ? err_sys("cannot write the answer") : 0; }

int show_list(FILE *f, enum report_format format, const struct tensors *s, const struct views *v)
{
    static const struct column c[] = { { "name", 's' },  { "stored", 's' }, { "dtype", 's' },
                                       { "shape", 's' }, { "bytes", 'u' },  { "rank", 's' } };
    struct report r;
    char shape[96], ranks[32];
    report_begin(&r, f, format, c, 6);
    for (int i = 0; i < v->n; i++) {
        const struct view *x = &v->v[i];
        report_row(&r, x->name, x->t->name, x->t->dtype ? dtype_name(x->t->dtype) : x->t->type,
                   view_shape(x, shape), view_bytes(x), view_ranks(s, x, ranks));
    }
    return report_end(&r);
}

/* --- info --- */

static void put(struct report *r, const char *key, const char *text) { report_row(r, key, text); }

static void put_number(struct report *r, const char *key, int64_t v)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRId64, v);
    put(r, key, text);
}

static void put_manifest(struct report *r, const struct ckpt *c, const char *recipe)
{
    const struct ckpt_info *info = ckpt_info(c);
    put(r, "tool", info->tool);
    put_number(r, "step", info->step);
    put_number(r, "tokens", info->tokens);
    put_number(r, "ranks", info->ranks);
    put(r, "recipe", recipe);
    put(r, "recipe_hash", ckpt_recipe_hash(c));
    for (int i = 0; i < info->nstate; i++)
        put(r, info->state[i].key, info->state[i].value);
}

/* Numbers and bytes of all tensors of a kind, in order of appearance. */
static void put_kinds(struct report *r, const struct tensors *s)
{
    struct {
        const char *kind;
        uint64_t elements, bytes;
    } sum[TENSOR_KINDS] = { { NULL, 0, 0 } };
    char text[96];
    for (int i = 0; i < tensors_count(s); i++) {
        const struct stored *t = tensors_at(s, i);
        int k = 0;
        while (sum[k].kind && strcmp(sum[k].kind, t->kind))
            k++;
        sum[k].kind = t->kind;
        sum[k].elements += t->elements;
        sum[k].bytes += t->bytes;
    }
    for (int k = 0; k < TENSOR_KINDS && sum[k].kind; k++) {
        snprintf(text, sizeof text, "%" PRIu64 " numbers, %" PRIu64 " bytes", sum[k].elements,
                 sum[k].bytes);
        put(r, *sum[k].kind ? sum[k].kind : "tensors", text);
    }
}

int show_info(FILE *f, enum report_format format, const struct tensors *s, const char *recipe)
{
    static const struct column c[] = { { "key", 's' }, { "value", 's' } };
    struct report r;
    report_begin(&r, f, format, c, 2);
    put(&r, "path", tensors_path(s));
    if (tensors_ckpt(s)) {
        put_manifest(&r, tensors_ckpt(s), recipe);
    } else {
        const struct st_header *h = tensors_header(s);
        for (size_t i = 0; i < h->nmeta; i++)
            put(&r, h->meta[i].key, strchr(h->meta[i].value, '\n') ? "(text)" : h->meta[i].value);
    }
    put_kinds(&r, s);
    return report_end(&r);
}

/* --- numbers --- */

int show_stats(FILE *f, enum report_format format, const struct views *v,
               const struct tensor_stats *rows)
{
    static const struct column c[] = {
        { "name", 's' },      { "type", 's' },           { "elements", 'u' },    { "min", 'g' },
        { "max", 'g' },       { "mean", 'g' },           { "rms", 'g' },         { "zeros", 'u' },
        { "nonfinite", 'u' }, { "bf16_underflow", 'g' }, { "update_ratio", 'g' }
    };
    struct report r;
    char type[64];
    report_begin(&r, f, format, c, 11);
    for (int i = 0; i < v->n; i++) {
        const struct tensor_stats *s = &rows[i];
        report_row(&r, v->v[i].name, values_type(v->v[i].t, type), s->elements, s->min, s->max,
                   s->mean, s->rms, s->zeros, s->nonfinite,
                   (double)s->underflow / (double)s->elements, s->update);
    }
    return report_end(&r);
}

int show_spectra(FILE *f, enum report_format format, const struct views *v,
                 const struct spectrum *sp)
{
    static const struct column c[] = { { "name", 's' },
                                       { "rows", 'u' },
                                       { "cols", 'u' },
                                       { "sigma_max", 'g' },
                                       { "sigma_min", 'g' },
                                       { "condition", 'g' },
                                       { "frobenius", 'g' },
                                       { "stable_rank", 'g' },
                                       { "effective_rank", 'g' },
                                       { "alpha", 'g' },
                                       { "orthogonality_error", 'g' } };
    struct report r;
    report_begin(&r, f, format, c, 11);
    for (int i = 0; i < v->n; i++)
        if (sp[i].n)
            report_row(&r, v->v[i].name, sp[i].rows, sp[i].cols, sp[i].sigma[0],
                       sp[i].sigma[sp[i].n - 1], sp[i].condition, sp[i].frobenius,
                       sp[i].stable_rank, sp[i].effective_rank, sp[i].alpha, sp[i].orthogonality);
    return report_end(&r);
}

int show_values(FILE *f, const struct views *v, const struct spectrum *sp)
{
    for (int i = 0; i < v->n; i++) {
        fprintf(f, "# %s %" PRIu64 "x%" PRIu64 "%s\n", v->v[i].name, sp[i].rows, sp[i].cols,
                sp[i].frobenius > 0 ? "" : " is zero");
        for (int k = 0; k < sp[i].n && sp[i].frobenius > 0; k++)
            fprintf(f, "%.9g\n", sp[i].sigma[k]);
    }
    return written(f);
}

/* The role of a matrix: what stands after "layers.N.". */
static const char *role(const struct view *v)
{
    const char *s = v->part ? v->part->name : v->t->name;
    if (!strncmp(s, "layers.", 7) && strchr(s + 7, '.'))
        return strchr(s + 7, '.') + 1;
    return s;
}

int show_plot(FILE *f, const struct views *v, const struct spectrum *sp, const char *title)
{
    struct svg_curve *c = calloc((size_t)v->n + 1, sizeof *c);
    size_t room = 1, at = 0;
    for (int i = 0; i < v->n; i++)
        room += (size_t)sp[i].n;
    double *y = malloc(room * sizeof *y);
    if (c && y) {
        for (int i = 0; i < v->n; i++) {
            c[i] = (struct svg_curve){ v->v[i].name, role(&v->v[i]), y + at, sp[i].n };
            for (int k = 0; k < sp[i].n; k++)
                y[at++] = sp[i].frobenius > 0 ? sp[i].sigma[k] / sp[i].sigma[0] : 0;
        }
        svg_curves(f, title, "place in the spectrum", "sigma / largest", c, v->n);
    }
    bool ok = c && y;
    free(c);
    free(y);
    return ok ? written(f) : err_set(GPT_SYSTEM, "out of memory");
}

int show_diff(FILE *f, enum report_format format, const struct diff_row *rows, int n, bool all)
{
    static const struct column c[] = { { "name", 's' },     { "verdict", 's' },
                                       { "elements", 'u' }, { "bits_differ", 'u' },
                                       { "max", 'g' },      { "rms", 'g' },
                                       { "relative", 'g' }, { "cosine", 'g' } };
    struct report r;
    report_begin(&r, f, format, c, 8);
    for (int i = 0; i < n; i++)
        if (all || rows[i].what > DIFF_EQUAL)
            report_row(&r, rows[i].name, diff_word(rows[i].what), rows[i].elements, rows[i].bits,
                       rows[i].max, rows[i].rms, rows[i].relative, rows[i].cosine);
    return report_end(&r);
}
