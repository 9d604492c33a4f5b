/* head_loss.c - logits, softcap, multi-token cross entropy, and back (record-61.md 2.9, 2.10, 3.2).
 *
 * Logits (T,V) never exist whole. Rows are taken in blocks of 256, and a block's columns in chunks
 * that stay in a core's cache:
 *
 *     pass 1   chunk of w as numbers; of logits l -> s = sigmoid((l + b)/c), z = a s ->
 *              e^z s (1 - s), kept; row sums of e^z
 *     pass 2   dl from what is kept and the sums; dx += dl w^T; dw += x^T dl
 *
 * Nothing is exponentiated twice, because a row's sum is but a factor of its dl; and a chunk is kept
 * in one piece, which is written and read as fast as memory goes. Evaluation needs pass 1 only, and
 * keeps nothing.
 */
#include "ops/cpu.h"

enum { ROWS = 256, COLS = 256, LANES = 16, MAX_TERMS = MAX_MTP + 1 };
enum { LD = COLS + 16 }; /* of a chunk in the cache: its rows do not share cache sets (gemm.c) */

/* The vocabulary in parts, for threads: sums over columns are formed in each part, then over parts
 * in order, whatever the number of threads. */
enum { PARTS = 16 };

/* exp(z - z_shift) with 0 < z < a can neither overflow nor vanish, whatever the row: no maximum
 * is needed. */
enum { CAP_MAX = 150 };

struct head {
    const struct head_loss *h;
    int64_t tokens, width, vocab;
    const real *x; /* as it enters the products: in fp8, codes as numbers */
    struct tensor w;
    bool fp8, bf16, round; /* bf16: products round operands; round: the sigmoid, to bf16 */
    real number[256]; /* of the codes h->w8 */
    real scale; /* of the logits: 1, or x_scale w_scale */
    int n_mtp, terms; /* of a row's loss: predicted tokens, with a table of prefixes one more */
    real mtp[MAX_TERMS];
    real *kept; /* (V / COLS) chunks of (ROWS,COLS), with a gradient */
    real *chunk, *weights; /* (ROWS,LD), (D,LD) of each thread */
    int64_t part; /* columns, a multiple of COLS */
    int parts;
    double *sum; /* (parts,ROWS): sums of exp(z - shift) */
    real *dx_part; /* (parts,ROWS,D), with a gradient */
    real *rest, *target; /* (ROWS): 1 / sum; (ROWS, MAX_TERMS): z of the targets */
};

static real shift_of(const struct head *f) { return f->h->cap_a / 2; }

/* t / scale in e4m3, as numbers. */
static const real *e4m3_view(struct ops *o, int slot, struct tensor t, real scale)
{
    int64_t n = tensor_count(t);
    real *q = cpu_scratch(o, slot, n);

    if (!q)
        return NULL;
    real_read(q, t, 0, n);
    for (int64_t i = 0; i < n; i++)
        q[i] = e4m3_round((float)(q[i] / scale));
    return q;
}

static void head_init(struct head *f, struct ops *o, struct tensor x, struct tensor w,
                      const struct head_loss *h, bool training)
{
    /* The double build has no roundings at all, so fp8 is off there. */
    bool fp8 = training && DT_REAL == DT_F32 && h->fp8;

    assert(!has(h->w8) || (h->w8.dtype == DT_E4M3 && h->w8.rows == w.rows && h->w8.cols == w.cols));
    assert(x.cols == w.rows && h->cap_a <= CAP_MAX && h->n_mtp <= MAX_MTP);
    *f = (struct head){ .h = h, .tokens = x.rows, .width = x.cols, .vocab = w.cols, .w = w };
    f->x = fp8 ? e4m3_view(o, 0, x, h->x_scale) : real_ptr(x);
    f->fp8 = fp8;
    f->round = training && h->bf16_sigmoid;
    f->bf16 = o->bf16_products;
    for (int i = 0; i < 256; i++) /* as in e4m3_round, -0 is +0 */
        f->number[i] = e4m3_to_f32((uint8_t)i) + 0.0f;
    f->scale = fp8 ? h->x_scale * h->w_scale : 1;
    f->part = (f->vocab + PARTS * COLS - 1) / (PARTS * COLS) * COLS;
    f->parts = (int)((f->vocab + f->part - 1) / f->part);
    f->kept = training ? cpu_scratch(o, 2, ROWS * (f->vocab + COLS)) : NULL;
    f->chunk = cpu_scratch(o, 8, (int64_t)cpu_threads(o) * ROWS * LD);
    f->weights = cpu_scratch(o, 1, cpu_threads(o) * f->width * LD);
    f->sum = cpu_scratch_bytes(o, 3, (size_t)f->parts * ROWS * sizeof *f->sum);
    f->dx_part = training ? cpu_scratch(o, 7, f->parts * ROWS * f->width) : NULL;
    f->rest = cpu_scratch(o, 4, ROWS);
    f->target = cpu_scratch(o, 5, ROWS * MAX_TERMS);
    f->n_mtp = training ? h->n_mtp : 1;
    f->terms = f->n_mtp + (training && h->prefix);
    for (int k = 0; k < f->terms; k++)
        f->mtp[k] = training && !cpu_failed(o) ? h->mtp[k] : 1;
}

/* The class of term k of position t, -1: none. The last positions look over the batch's end. */
static int64_t target_of(const struct head *f, int64_t t, int k)
{
    const struct head_loss *h = f->h;
    return k == f->n_mtp ? h->prefix[h->tgt[t]] : t + k < f->tokens ? h->tgt[t + k] : -1;
}

/* Columns first .. first+n-1 of w as they enter the products; *ld from row to row. */
static const real *weights(const struct head *f, int64_t first, int64_t n, int thread, int64_t *ld)
{
    real *out = f->weights + thread * f->width * LD;
    const uint8_t *code = f->h->w8.data;

    *ld = f->vocab;
    if (is_real(f->w) && !f->fp8)
        return real_ptr(f->w) + first;
    *ld = LD;
    for (int64_t d = 0; d < f->width; d++) {
        int64_t at = d * f->vocab + first;
        real *row = out + d * LD;
        if (!f->fp8 || !code)
            real_read(row, f->w, at, n);
        for (int64_t i = 0; f->fp8 && i < n; i++)
            row[i] = code ? f->number[code[at + i]] : e4m3_round((float)(row[i] / f->h->w_scale));
    }
    return out;
}

/* -- pass 1 ------------------------------------------------------------------------ */

static void round_logits(real *l, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        l[i] = bf16_round((float)l[i]);
}

/* To bf16; not in the double build, which has no roundings. The branch-free form of bf16_round, for
 * numbers in (0, 1]. */
SIMD_INLINE real rounded_sigmoid(real s)
{
#ifdef GPT_OPS_DOUBLE
    return s;
#else
    uint32_t bits = f32_bits(s);
    return f32_from_bits((bits + 0x7fffu + (bits >> 16 & 1)) & 0xffff0000u);
#endif
}

static real softcapped(const struct head *f, real l)
{
    real s = sigmoid((l + f->h->cap_b) / f->h->cap_c);
    return f->h->cap_a * (f->round ? rounded_sigmoid(s) : s);
}

/* Makes e^(z - shift) s (1 - s) of a logit l, and returns e^(z - shift). */
SIMD_INLINE real softcap_one(const bool fused, const bool round, real *out, real l,
                             const struct head_loss *h, real shift)
{
    real c = -1 / h->cap_c, u = real_mad(fused, l, c, h->cap_b * c);
    real s = real_inverse(fused, 1 + real_exp(fused, u));
    s = round ? rounded_sigmoid(s) : s;
    real e = real_exp_small(fused, real_mad(fused, h->cap_a, s, -shift)); /* within a / 2 */
    *out = e * s * (1 - s);
    return e;
}

/* That of a row; adds to *sum. */
SIMD_INLINE void softcap_row(const bool fused, const bool round, real *restrict out,
                             const real *restrict l, int64_t n, const struct head_loss *h,
                             real shift, double *sum)
{
    const struct head_loss local = *h; /* which out cannot alias */
    real lane[LANES] = { 0 };
    int64_t i = 0;

    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++)
            lane[j] += softcap_one(fused, round, &out[i + j], l[i + j], &local, shift);
    for (; i < n; i++)
        lane[i % LANES] += softcap_one(fused, round, &out[i], l[i], &local, shift);
    for (int j = 0; j < LANES; j++)
        *sum += lane[j];
}
SIMD_VERSIONS(softcap,
              (real *restrict out, const real *restrict l, int64_t n, bool round,
               const struct head_loss *h, real shift, double *sum),
              (out, l, n, round, h, shift, sum))
{
    if (round)
        softcap_row(fused, true, out, l, n, h, shift, sum);
    else
        softcap_row(fused, false, out, l, n, h, shift, sum);
}

/* Columns first .. first+n-1 of rows `row` .. row+rows-1: what is kept, sums and targets. */
static void forward_chunk(const struct head *f, int64_t row, int64_t rows, int64_t first, int64_t n,
                          int thread)
{
    real *chunk = f->chunk + (int64_t)thread * ROWS * LD, out[COLS];
    int64_t ld;
    const real *w = weights(f, first, n, thread, &ld);

    real_gemm_here(f->bf16, false, false, rows, n, f->width, f->scale, f->x + row * f->width,
                   f->width, w, ld, 0, chunk, LD);
    for (int64_t i = 0; i < rows; i++) {
        real *l = chunk + i * LD;
        if (f->fp8)
            round_logits(l, n);
        for (int k = 0; k < f->terms; k++) {
            int64_t v = target_of(f, row + i, k) - first;
            if (v >= 0 && v < n)
                f->target[i * MAX_TERMS + k] = softcapped(f, l[v]);
        }
        softcap(out, l, n, f->round, f->h, shift_of(f), &f->sum[first / f->part * ROWS + i]);
        if (f->kept)
            memcpy(f->kept + first * ROWS + i * COLS, out, (size_t)n * sizeof *out);
    }
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* What the threads share while they go through a block of rows. */
struct rows {
    struct head *f;
    int64_t row, rows;
    real *dw;
    bool add;
};

static void forward_part(void *arg, int64_t first, int64_t n, int thread)
{
    const struct rows *r = arg;
    double *sum = r->f->sum + first / r->f->part * ROWS;

    memset(sum, 0, (size_t)r->rows * sizeof *sum);
    for (int64_t c = first; c < first + n; c += COLS)
        forward_chunk(r->f, r->row, r->rows, c, least(first + n - c, COLS), thread);
}

/* Returns the sum of the rows' losses, without the seed. */
static double forward_rows(struct ops *o, struct rows *r)
{
    struct head *f = r->f;
    double loss = 0;

    cpu_split(o, f->vocab, f->part, forward_part, r);
    for (int64_t i = 0; i < r->rows; i++) {
        double sum = f->sum[i];
        for (int p = 1; p < f->parts; p++)
            sum += f->sum[p * ROWS + i];
        f->rest[i] = (real)(1 / sum);
        for (int k = 0; k < f->terms; k++)
            if (target_of(f, r->row + i, k) >= 0)
                loss += f->mtp[k] * (real)(log(sum) + shift_of(f) - f->target[i * MAX_TERMS + k]);
    }
    return loss;
}

static int64_t rows_from(const struct head *f, int64_t row) { return least(f->tokens - row, ROWS); }

void cpu_head_eval(struct ops *o, real *loss, struct tensor x, struct tensor w,
                   const struct head_loss *h)
{
    struct head f;
    double sum = 0;

    head_init(&f, o, x, w, h, false);
    if (cpu_failed(o))
        return;
    for (int64_t row = 0; row < f.tokens; row += ROWS)
        sum += forward_rows(o, &(struct rows){ .f = &f, .row = row, .rows = rows_from(&f, row) });
    *loss += (real)sum;
}

/* -- pass 2 ------------------------------------------------------------------------- */

/* dl of n columns of row i of the block: seed a/c (weights e^z / sum - weight where a class is a
 * target) s (1 - s). A class may be the target of several predictions. */
static void row_grad(const struct rows *r, real *dl, const real *kept, int64_t i, int64_t first,
                     int64_t n)
{
    const struct head *f = r->f;
    const struct head_loss *h = f->h;
    real seed = h->seed * h->cap_a / h->cap_c, all = 0;

    for (int k = 0; k < f->terms; k++)
        if (target_of(f, r->row + i, k) >= 0 || (h->whole && k < f->n_mtp))
            all += f->mtp[k];
    all *= seed * f->rest[i];
    for (int64_t j = 0; j < n; j++)
        dl[j] = all * kept[j];
    for (int k = 0; k < f->terms; k++) {
        int64_t v = target_of(f, r->row + i, k) - first;
        real s = f->target[i * MAX_TERMS + k] / h->cap_a;
        if (v >= 0 && v < n)
            dl[v] -= seed * f->mtp[k] * s * (1 - s);
    }
}

/* The gradient as the fp8 products see it: rounded to bf16, then e5m2 of dl / scale, as in record
 * 61. Record 74 rounds once, from f32 (record-74.md 8); that differs, by one code, only where bf16
 * lands in the middle between two codes, and we make no difference between the records here. */
static void round_grad(real *dl, int64_t n, real scale)
{
    for (int64_t i = 0; i < n; i++)
        dl[i] = e5m2_round(bf16_round((float)dl[i]) / (float)scale);
}

static void backward_chunk(const struct rows *r, real *dx, bool begin, int64_t first, int64_t n,
                           int thread)
{
    const struct head *f = r->f;
    const struct head_loss *h = f->h;
    real *dl = f->chunk + (int64_t)thread * ROWS * LD;
    real dx_scale = f->fp8 ? h->g_scale * h->w_scale : 1;
    real dw_scale = f->fp8 ? h->g_scale * h->x_scale : 1;
    int64_t ld;
    const real *w = weights(f, first, n, thread, &ld);

    for (int64_t i = 0; i < r->rows; i++) {
        row_grad(r, dl + i * LD, f->kept + first * ROWS + i * COLS, i, first, n);
        if (f->fp8)
            round_grad(dl + i * LD, n, h->g_scale);
    }
    real_gemm_here(f->bf16, false, true, r->rows, f->width, n, dx_scale, dl, LD, w, ld, !begin, dx,
                   f->width);
    real_gemm_here(f->bf16, true, false, f->width, n, r->rows, dw_scale, f->x + r->row * f->width,
                   f->width, dl, LD, r->add, r->dw + first, f->vocab);
}

static void backward_part(void *arg, int64_t first, int64_t n, int thread)
{
    const struct rows *r = arg;
    real *dx = r->f->dx_part + first / r->f->part * ROWS * r->f->width;

    for (int64_t c = first; c < first + n; c += COLS)
        backward_chunk(r, dx, c == first, c, least(first + n - c, COLS), thread);
}

static void backward_rows(struct ops *o, struct rows *r, real *dx)
{
    const struct head *f = r->f;
    int64_t n = r->rows * f->width;

    cpu_split(o, f->vocab, f->part, backward_part, r);
    memcpy(dx, f->dx_part, (size_t)n * sizeof *dx);
    for (int p = 1; p < f->parts; p++)
        for (int64_t i = 0; i < n; i++)
            dx[i] += f->dx_part[p * ROWS * f->width + i];
}

void cpu_head_loss(struct ops *o, real *loss, struct tensor dx, struct tensor dw, bool add,
                   struct tensor x, struct tensor w, const struct head_loss *h)
{
    bool direct = is_real(dw); /* else sum in scratch, so that dw is rounded once */
    real *g = direct ? real_ptr(dw) : cpu_scratch(o, 6, tensor_count(dw));
    struct head f;
    double sum = 0;

    head_init(&f, o, x, w, h, true);
    if (cpu_failed(o))
        return;
    assert(dx.rows == x.rows && dx.cols == x.cols && dw.rows == w.rows && dw.cols == w.cols);
    for (int64_t row = 0; row < f.tokens; row += ROWS) {
        struct rows r = { &f, row, rows_from(&f, row), g, (direct && add) || row > 0 };
        sum += forward_rows(o, &r);
        backward_rows(o, &r, real_ptr(dx) + row * f.width);
    }
    *loss += (real)sum;
    if (!direct)
        real_write(dw, 0, g, tensor_count(dw), add);
}
