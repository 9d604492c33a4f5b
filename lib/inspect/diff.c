#include "inspect/diff.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 8192 };

const char *diff_word(enum diff_what w)
{
    static const char *const words[] = { "same",      "equal",     "within",     "differs",
                                         "only in A", "only in B", "other shape" };
    return words[w];
}

/* --- values --- */

static void add_values(struct diff_sums *s, double *max, const double *a, const double *b, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        double d = b[i] - a[i];
        if (a[i] == b[i] || (isnan(a[i]) && isnan(b[i])))
            d = 0; /* infinities of the same sign, too */
        else if (!isfinite(d))
            d = INFINITY;
        *max = fmax(*max, fabs(d));
        s->dd += d * d;
        if (isfinite(a[i]) && isfinite(b[i])) {
            s->aa += a[i] * a[i];
            s->bb += b[i] * b[i];
            s->ab += a[i] * b[i];
        }
    }
}

/* Fills what follows from the sums. */
static void finish_row(struct diff_row *row)
{
    const struct diff_sums *s = &row->sums;
    row->rms = row->elements ? sqrt(s->dd / (double)row->elements) : 0;
    row->relative = s->dd == 0 ? 0 : sqrt(s->dd / s->aa);
    row->cosine = s->aa == 0 && s->bb == 0 ? 1 : s->ab / sqrt(s->aa * s->bb);
    row->along = s->aa == 0 ? NAN : s->ab / s->aa;
}

static int compare_values(struct tensors *a, const struct view *va, struct tensors *b,
                          const struct view *vb, struct diff_row *row)
{
    struct values x = { 0 }, y = { 0 };
    struct diff_sums s = { 0 };
    double max = 0;
    double *buf = malloc(2 * CHUNK * sizeof *buf);
    int rc = buf ? 0 : err_memory();
    if (!rc && !(rc = values_open(&x, a, va->t, va->first)))
        rc = values_open(&y, b, vb->t, vb->first);
    for (uint64_t left = va->elements, n; !rc && left > 0; left -= n) {
        n = left < CHUNK ? left : CHUNK;
        if (!(rc = values_read(&x, buf, n)) && !(rc = values_read(&y, buf + CHUNK, n)))
            add_values(&s, &max, buf, buf + CHUNK, n);
    }
    values_close(&x);
    values_close(&y);
    free(buf);
    row->max = max;
    row->sums = s;
    finish_row(row);
    return rc;
}

/* --- bits --- */

static bool same_bits(const unsigned char *x, const unsigned char *y, size_t first, unsigned bits)
{
    if (bits % 8 == 0)
        return !memcmp(x + first / 8, y + first / 8, bits / 8);
    for (size_t k = first; k < first + bits; k++)
        if ((x[k / 8] ^ y[k / 8]) >> k % 8 & 1)
            return false;
    return true;
}

/* Marks the elements, of `bits` bits each, of which x and y hold different ones. */
static void mark(const unsigned char *x, const unsigned char *y, size_t n, unsigned bits,
                 unsigned char *differs)
{
    if (!memcmp(x, y, (n * bits + 7) / 8))
        return;
    for (size_t i = 0; i < n; i++)
        if (!same_bits(x, y, i * bits, bits))
            differs[i / 8] |= (unsigned char)(1 << i % 8);
}

/* n elements of ta from first_a on, and those of tb, of the same type. */
static int mark_all(struct tensors *a, const struct stored *ta, uint64_t first_a, struct tensors *b,
                    const struct stored *tb, uint64_t first_b, uint64_t n, unsigned char *differs)
{
    struct tensor_bytes x = { 0 }, y = { 0 };
    unsigned bits = ta->bits;
    unsigned char *buf = malloc(2 * CHUNK * 8);
    int rc = buf ? 0 : err_memory();
    if (!rc && !(rc = bytes_open(&x, a, ta, first_a * bits / 8)))
        rc = bytes_open(&y, b, tb, first_b * bits / 8);
    for (uint64_t at = 0, k; !rc && at < n; at += k) {
        k = n - at < CHUNK ? n - at : CHUNK;
        size_t size = (k * bits + 7) / 8;
        if ((rc = bytes_read(&x, buf, size)) || (rc = bytes_read(&y, buf + CHUNK * 8, size)))
            break;
        mark(buf, buf + CHUNK * 8, k, bits, differs + at / 8);
    }
    bytes_close(&x);
    bytes_close(&y);
    free(buf);
    return rc;
}

static uint64_t count(const unsigned char *marks, uint64_t n)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i <= n / 8; i++)
        sum += (uint64_t)__builtin_popcount(marks[i]);
    return sum;
}

/* Elements whose bits, or those of masters or low halves, differ. *codes: only those of numbers
 * with scales do. */
static int compare_bits(struct tensors *a, const struct view *va, struct tensors *b,
                        const struct view *vb, uint64_t *out, bool *codes)
{
    const struct stored *x[] = { va->t, va->t->low, va->t->master };
    const struct stored *y[] = { vb->t, vb->t->low, vb->t->master };
    unsigned char *differs = calloc(va->elements / 8 + 1, 1);
    int rc = differs ? 0 : err_memory();
    *codes = true;
    for (int scaled = 0; scaled < 2; scaled++) {
        for (int i = 0; !rc && i < 3; i++)
            if (x[i] && (x[i]->scale && y[i]->scale) == scaled)
                rc = mark_all(a, x[i], va->first, b, y[i], vb->first, va->elements, differs);
        *out = rc ? 0 : count(differs, va->elements);
        *codes &= scaled || !*out;
    }
    free(differs);
    return rc;
}

/* Compares the bits of the scales, if any, of tensors whose values are not known. */
static int compare_scales(struct tensors *a, const struct stored *x, struct tensors *b,
                          const struct stored *y, bool *same)
{
    *same = !x == !y && (!x || (!strcmp(x->type, y->type) && x->elements == y->elements));
    if (!x || !*same)
        return 0;
    unsigned char *differs = calloc(x->elements / 8 + 1, 1);
    int rc = differs ? mark_all(a, x, 0, b, y, 0, x->elements, differs) : err_memory();
    *same = !rc && !count(differs, x->elements);
    free(differs);
    return rc;
}

/* --- hashes, which save reading --- */

/* Pieces of the same range and hash hold the same bits. */
static bool same_hashes(struct tensors *a, const struct stored *ta, struct tensors *b,
                        const struct stored *tb)
{
    if (!ta || !tb)
        return ta == tb;
    const struct ckpt_entry *x = tensors_ckpt(a) ? ckpt_find(tensors_ckpt(a), ta->name) : NULL;
    const struct ckpt_entry *y = tensors_ckpt(b) ? ckpt_find(tensors_ckpt(b), tb->name) : NULL;
    if (!x || !y || x->npieces != y->npieces)
        return false;
    for (int i = 0; i < x->npieces; i++)
        if (x->pieces[i].begin != y->pieces[i].begin || x->pieces[i].count != y->pieces[i].count ||
            strcmp(x->pieces[i].hash, y->pieces[i].hash))
            return false;
    return true;
}

static bool same_shape(const struct view *a, const struct view *b)
{
    return a->rank == b->rank && !memcmp(a->shape, b->shape, (size_t)a->rank * sizeof *a->shape);
}

/* Bits are compared only where both are stored alike: in the same type, with a master of the same
 * type, or a low half of the same kind, or neither. */
static bool same_type(const struct stored *a, const struct stored *b)
{
    if (!a->master != !b->master || (a->master && !same_type(a->master, b->master)))
        return false;
    return !strcmp(a->type, b->type) && !a->low == !b->low && a->away == b->away;
}

static bool has_scale(const struct stored *t)
{
    return t->scale || (t->master && t->master->scale);
}

struct job {
    struct tensors *a, *b;
    const struct views *va, *vb;
    bool total; /* is wanted */
    bool alike; /* two checkpoints, or two files */
    double tolerance;
    struct diff_row *rows;
};

static int compare(const struct job *j, const struct view *x, const struct view *y,
                   struct diff_row *row)
{
    bool codes = false;
    int rc = 0;
    if (!same_shape(x, y)) {
        row->what = DIFF_SHAPE;
        return 0;
    }
    if (same_type(x->t, y->t)) {
        if (!same_hashes(j->a, x->t, j->b, y->t) ||
            !same_hashes(j->a, x->t->low, j->b, y->t->low) ||
            !same_hashes(j->a, x->t->master, j->b, y->t->master))
            rc = compare_bits(j->a, x, j->b, y, &row->bits, &codes);
        if (rc || (!row->bits && !j->total && !has_scale(x->t) && !has_scale(y->t))) {
            row->max = row->rms = row->relative = 0;
            row->cosine = row->along = 1;
            return rc;
        }
    } else {
        row->bits = x->elements;
    }
    if (!values_known(x->t) || !values_known(y->t)) {
        bool same = !row->bits;
        rc = same ? compare_scales(j->a, x->t->scale, j->b, y->t->scale, &same) : 0;
        row->what = same ? DIFF_SAME : DIFF_DIFFERS;
        return rc;
    }
    if ((rc = compare_values(j->a, x, j->b, y, row)))
        return rc;
    if (row->max == 0 && (!same_type(x->t, y->t) || (row->bits && codes)))
        row->what = DIFF_EQUAL;
    else if (row->max == 0 && !row->bits)
        row->what = DIFF_SAME; /* scales were compared with the values */
    else
        row->what = j->tolerance > 0 && row->relative <= j->tolerance ? DIFF_WITHIN : DIFF_DIFFERS;
    return 0;
}

static int start_row(const struct job *j, const struct view *v, enum diff_what what,
                     struct diff_row *row)
{
    *row = (struct diff_row){ .name = strdup(v->name),
                              .what = what,
                              .elements = v->elements,
                              .max = NAN,
                              .rms = NAN,
                              .relative = NAN,
                              .cosine = NAN,
                              .along = NAN,
                              .sums = { .aa = NAN } };
    /* Padding need not be in an exported file. */
    row->left_out = what != DIFF_SAME && !j->alike && v->part && v->part->padding;
    return row->name ? 0 : err_memory();
}

static int one(void *arg, int i)
{
    struct job *j = arg;
    const struct view *x = &j->va->v[i], *y = views_find(j->vb, x->name);
    int rc = start_row(j, x, y ? DIFF_SAME : DIFF_ONLY_A, &j->rows[i]);
    return rc || !y ? rc : compare(j, x, y, &j->rows[i]);
}

static int add_only_b(const struct job *j, int *n)
{
    int rc = 0;
    *n = j->va->n;
    for (int i = 0; !rc && i < j->vb->n; i++)
        if (!views_find(j->va, j->vb->v[i].name))
            rc = start_row(j, &j->vb->v[i], DIFF_ONLY_B, &j->rows[(*n)++]);
    return rc;
}

static void leave_out(struct diff_row *rows, int *n)
{
    int k = 0;
    for (int i = 0; i < *n; i++) {
        if (rows[i].left_out)
            free(rows[i].name);
        else
            rows[k++] = rows[i];
    }
    *n = k;
}

/* Adds the row of all tensors whose values were compared. */
static int add_total(struct diff_row *rows, int *n)
{
    struct diff_row t = { .name = strdup("total"), .total = true };
    for (int i = 0; i < *n; i++) {
        const struct diff_sums *s = &rows[i].sums;
        if (isnan(s->aa))
            continue;
        t.what = rows[i].what > t.what ? rows[i].what : t.what;
        t.elements += rows[i].elements;
        t.bits += rows[i].bits;
        t.max = fmax(t.max, rows[i].max);
        t.sums.dd += s->dd, t.sums.aa += s->aa, t.sums.bb += s->bb, t.sums.ab += s->ab;
    }
    finish_row(&t);
    rows[(*n)++] = t;
    return t.name ? 0 : err_memory();
}

static int compare_all(struct job *j, int *n, bool *same)
{
    int threads = tensors_threads(j->a) == 1 || tensors_threads(j->b) == 1;
    int rc = views_each(j->va, threads, one, j);
    if (!rc)
        rc = add_only_b(j, n);
    if (!rc)
        leave_out(j->rows, n);
    *same = true;
    for (int i = 0; !rc && i < *n; i++)
        *same &= j->rows[i].what <= DIFF_WITHIN;
    return rc || !j->total ? rc : add_total(j->rows, n);
}

int diff_tensors(struct tensors *a, struct tensors *b, const struct name_map *map,
                 const char *pattern, double tolerance, bool total, struct diff_row **rows, int *n,
                 bool *same)
{
    struct views va, vb = { .n = 0 };
    *rows = NULL;
    *n = 0;
    bool alike = !tensors_ckpt(a) == !tensors_ckpt(b);
    int flags = VIEWS_PADDING | (alike ? 0 : VIEWS_SCALARS); /* as export names them */
    int rc = views_make(&va, a, map, pattern, flags);
    if (!rc && (rc = views_make(&vb, b, map, pattern, flags)) == GPT_INPUT && pattern)
        rc = 0; /* the pattern matches in A only */
    if (!rc && !(*rows = calloc((size_t)(va.n + vb.n) + 2, sizeof **rows)))
        rc = err_memory();
    if (!rc) {
        struct job j = { a, b, &va, &vb, total, alike, tolerance, *rows };
        *n = va.n;
        rc = compare_all(&j, n, same);
    }
    views_release(&va);
    views_release(&vb);
    if (rc) {
        diff_free(*rows, *n);
        *rows = NULL;
    }
    return rc;
}

void diff_free(struct diff_row *rows, int n)
{
    for (int i = 0; rows && i < n; i++)
        free(rows[i].name);
    free(rows);
}

/* --- what is not a tensor --- */

int diff_info(const struct ckpt_info *a, const struct ckpt_info *b,
              void (*f)(void *arg, const char *key, const char *a, const char *b), void *arg)
{
    char x[24], y[24];
    int n = 0;
    const struct {
        const char *key;
        int64_t a, b;
    } number[] = {
        { "step", a->step, b->step },
        { "tokens", a->tokens, b->tokens },
    };
    for (int i = 0; i < 2; i++) {
        if (number[i].a == number[i].b)
            continue;
        snprintf(x, sizeof x, "%" PRId64, number[i].a);
        snprintf(y, sizeof y, "%" PRId64, number[i].b);
        f(arg, number[i].key, x, y);
        n++;
    }
    if (strcmp(a->recipe, b->recipe)) {
        f(arg, "recipe", "(text)", "(other text)");
        n++;
    }
    for (int i = 0; i < a->nstate; i++) {
        const char *v = ckpt_info_state(b, a->state[i].key);
        if (v && !strcmp(v, a->state[i].value))
            continue;
        f(arg, a->state[i].key, a->state[i].value, v);
        n++;
    }
    for (int i = 0; i < b->nstate; i++)
        if (!ckpt_info_state(a, b->state[i].key)) {
            f(arg, b->state[i].key, NULL, b->state[i].value);
            n++;
        }
    return n;
}
