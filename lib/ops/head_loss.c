/* head_loss.c - logits, softcap, multi-token cross entropy, and back (record-61.md 2.9, 2.10, 3.2).
 *
 * Logits (T,V) never exist whole. Rows are taken in blocks of 256, and a block's columns in chunks
 * that stay in a core's cache:
 *
 *     pass 1   chunk of w as numbers; of logits l -> s = sigmoid((l + b)/c), z = a s ->
 *              K = e^z s (1 - s), kept; row sums of e^z; dx += K w^T
 *     pass 2   dw += (r x)^T K
 *
 * With h->cap_root s is u / sqrt(1 + u^2), u = (l + b)/c, and K = e^z (1 - s^2)^(3/2) (track-3.md 2).
 *
 * Nothing is exponentiated twice, because a row's sum is but a factor r of its gradient, which rows
 * of dx and x take as well; what targets subtract is subtracted from dx, and from K before pass 2.
 * A gradient that fp8 rounds has to be whole before: then pass 2 makes dl = r K of a chunk, and dx
 * of that. A chunk is kept in one piece. Evaluation needs pass 1 only, and keeps nothing.
 */
#include "ops/cpu.h"

enum { ROWS = 256, COLS = 256, LANES = 16, MAX_TERMS = MAX_MTP + 1 };
enum { LD = COLS + 16 }; /* of a chunk in the cache: its rows do not share cache sets (gemm.c) */

/* The vocabulary in parts, for threads: sums over columns are formed in each part, then over parts
 * in order, whatever the number of threads. */
enum { PARTS = 16 };
enum { SMALL = 4 * COLS }; /* a vocabulary of which all of w is made numbers once */

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
    const real *bias; /* (V), or NULL */
    real scale; /* of the logits: 1, or x_scale w_scale */
    int n_mtp, terms; /* of a row's loss: predicted tokens, with a table of prefixes one more */
    real mtp[MAX_TERMS];
    int32_t class[ROWS][MAX_TERMS]; /* of the terms of the block's rows, -1: none */
    real *kept; /* (V / COLS) chunks of (ROWS,LD), with a gradient */
    real *chunk, *weights; /* (ROWS,LD), (D,LD) of each thread */
    int64_t part; /* columns, a multiple of COLS */
    int parts;
    double *sum; /* (parts,ROWS): sums of exp(z - shift) */
    real *dx_part; /* (parts,ROWS,D), with a gradient: without the rows' factors and targets */
    real *factor, *target; /* (ROWS): r above; (ROWS,MAX_TERMS): z of the targets */
    real *x_row, *w_target; /* (ROWS,D): r x; (ROWS,MAX_TERMS,D): columns of w, for dx */
};

static real shift_of(const struct head *f) { return f->h->cap_root ? 0 : f->h->cap_a / 2; }

/* Computes the slope of root_cap from its value s. */
SIMD_INLINE real root_slope(real s)
{
    real rest = 1 - s * s;
    return rest * real_sqrt(rest);
}

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
    f->bias = real_view(o, 11, h->bias);
    f->kept = training ? cpu_scratch(o, 2, ROWS * (f->vocab + COLS) / COLS * LD) : NULL;
    f->chunk = cpu_scratch(o, 8, (int64_t)cpu_threads(o) * ROWS * LD);
    if (!fp8 && f->vocab <= SMALL)
        f->w = tensor_of((real *)real_view(o, 1, w), DT_REAL, w.rows, w.cols);
    else
        f->weights = cpu_scratch(o, 1, cpu_threads(o) * f->width * LD);
    f->sum = cpu_scratch_bytes(o, 3, (size_t)f->parts * ROWS * sizeof *f->sum);
    f->dx_part = training ? cpu_scratch(o, 7, f->parts * ROWS * f->width) : NULL;
    f->factor = cpu_scratch(o, 4, ROWS);
    f->target = cpu_scratch(o, 5, ROWS * MAX_TERMS);
    f->x_row = training ? cpu_scratch(o, 9, ROWS * f->width) : NULL;
    f->w_target = training ? cpu_scratch(o, 10, ROWS * MAX_TERMS * f->width) : NULL;
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

/* Rounds s in (0, 1] to bf16, without a branch; not in the double build, which has no roundings. */
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
    real u = (l + f->h->cap_b) / f->h->cap_c, s = f->h->cap_root ? root_cap(u) : sigmoid(u);
    return f->h->cap_a * (f->round ? rounded_sigmoid(s) : s);
}

/* Makes e^(z - shift) s (1 - s) of a sigmoid s with z - shift = (a s + middle) ln 2, and returns
 * e^(z - shift). */
SIMD_INLINE real softcap_one(const bool fused, real *out, real s, real a, real middle)
{
    real e = real_exp2(fused, real_mad(fused, a, s, middle)), t = e * s;

    *out = real_mad(fused, -t, s, t);
    return e;
}

/* Computes the softcap of the n <= COLS logits l of a row; adds to *sum. In three loops, because a
 * processor looks ahead over a fixed number of operations: of one long chain that is two or three
 * elements, of short ones enough to keep its units busy. */
SIMD_VERSIONS(softcap,
              (real *restrict out, const real *restrict l, int64_t n, bool round,
               const struct head_loss *h, real shift, double *sum),
              (out, l, n, round, h, shift, sum))
{
    const real log2_e = (real)1.4426950408889634, c = -log2_e / h->cap_c, b = h->cap_b * c;
    const real a = h->cap_a * log2_e, middle = -shift * log2_e;
    real s[COLS], lane[LANES] = { 0 };
    int64_t i = 0;

    for (int64_t j = 0; j < n; j++)
        s[j] = 1 + real_exp2(fused, real_limit(fused, real_mad(fused, l[j], c, b)));
    for (int64_t j = 0; j < n; j++)
        s[j] = round ? rounded_sigmoid(1 / s[j]) : 1 / s[j];
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++)
            lane[j] += softcap_one(fused, &out[i + j], s[i + j], a, middle);
    for (; i < n; i++)
        lane[i % LANES] += softcap_one(fused, &out[i], s[i], a, middle);
    for (int j = 0; j < LANES; j++)
        *sum += lane[j];
}

/* Computes what softcap() does with the root form of h->cap_root. */
static void softcap_root(real *restrict out, const real *restrict l, int64_t n,
                         const struct head_loss *h, double *sum)
{
    for (int64_t i = 0; i < n; i++) {
        real s = root_cap((l[i] + h->cap_b) / h->cap_c), e = real_exp(false, h->cap_a * s);
        out[i] = e * root_slope(s);
        *sum += e;
    }
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* What the threads share while they go through a block of rows. */
struct rows {
    struct head *f;
    int64_t row, rows;
    int bands; /* of rows in pass 1, for threads; a row's numbers are its own */
    real *dx; /* (rows,D) */
    real *dw;
    real *dbias; /* (V), or NULL */
    bool add;
};

/* A band's rows begin here, counted from the block's first. */
static int64_t band_begin(const struct rows *r, int64_t band) { return r->rows * band / r->bands; }

/* The kept numbers of the chunk that column v is in. */
static real *kept_chunk(const struct head *f, int64_t v) { return f->kept + v / COLS * ROWS * LD; }

/* Takes z and w's columns of the targets of rows top .. end-1 among columns first .. first+n-1. */
static void take_targets(const struct rows *r, int64_t top, int64_t end, int64_t first, int64_t n,
                         const real *chunk, const real *w, int64_t ld)
{
    const struct head *f = r->f;

    for (int64_t i = top; i < end; i++)
        for (int k = 0; k < f->terms; k++) {
            int64_t v = f->class[i][k] - first, at = i * MAX_TERMS + k;
            if (v < 0 || v >= n)
                continue;
            f->target[at] = softcapped(f, chunk[i * LD + v]);
            for (int64_t d = 0; d < f->width && f->kept && !f->fp8; d++)
                f->w_target[at * f->width + d] = w[d * ld + v];
        }
}

/* Takes what the mask bars of columns first .. first+n-1 out of the sums: as logits so low that
 * their sigmoid is 0, which gives the least e^(z - shift), and the sums then lose that again. */
static void bar_classes(const struct rows *r, int64_t top, int64_t end, int64_t first, int64_t n,
                        real *chunk, double *sum)
{
    const struct head_loss *h = r->f->h;
    const double least_of = exp(-(double)shift_of(r->f) - (h->cap_root ? (double)h->cap_a : 0));
    const real low = -1000 * h->cap_c;

    for (int64_t i = top; i < end; i++) {
        const uint32_t *row = token_mask_row(&h->never, h->before[r->row + i]);
        for (int64_t at = 0; at < n; at += 32)
            for (uint32_t bits = row[(first + at) / 32]; bits; bits &= bits - 1) {
                chunk[i * LD + at + __builtin_ctz(bits)] = low;
                sum[i] -= least_of;
            }
    }
}

/* Columns first .. first+n-1 of rows top .. end-1: what is kept, sums, targets and dx. */
static void forward_chunk(const struct rows *r, int64_t top, int64_t end, int64_t first, int64_t n,
                          int thread)
{
    const struct head *f = r->f;
    int64_t rows = end - top;
    real *chunk = f->chunk + (int64_t)thread * ROWS * LD,
         none[COLS] __attribute__((aligned(64))) = { 0 };
    double *sum = f->sum + first / f->part * ROWS;
    int64_t ld;
    const real *w = weights(f, first, n, thread, &ld);

    real_gemm_here(f->bf16, false, false, rows, n, f->width, f->scale,
                   f->x + (r->row + top) * f->width, f->width, w, ld, 0, chunk + top * LD, LD);
    for (int64_t i = top; f->fp8 && i < end; i++)
        round_logits(chunk + i * LD, n);
    for (int64_t i = top; f->bias && i < end; i++)
        for (int64_t j = 0; j < n; j++)
            chunk[i * LD + j] += f->bias[first + j];
    take_targets(r, top, end, first, n, chunk, w, ld);
    if (f->h->never.bits && !f->kept)
        bar_classes(r, top, end, first, n, chunk, sum);
    for (int64_t i = top; i < end; i++) {
        real *out = f->kept ? kept_chunk(f, first) + i * LD : none;
        if (f->h->cap_root)
            softcap_root(out, chunk + i * LD, n, f->h, &sum[i]);
        else
            softcap(out, chunk + i * LD, n, f->round, f->h, shift_of(f), &sum[i]);
    }
    if (f->kept && !f->fp8)
        real_gemm_here(f->bf16, false, true, rows, f->width, n, 1, kept_chunk(f, first) + top * LD,
                       LD, w, ld, first % f->part != 0,
                       f->dx_part + (first / f->part * ROWS + top) * f->width, f->width);
}

/* Part `at` / bands of the columns, for a band of the rows. */
static void forward_part(void *arg, int64_t at, int64_t count, int thread)
{
    const struct rows *r = arg;
    const struct head *f = r->f;
    int64_t part = at / r->bands, first = part * f->part, last = least(f->vocab, first + f->part);
    int64_t top = band_begin(r, at % r->bands), end = band_begin(r, at % r->bands + 1);

    (void)count;
    for (int64_t i = top; i < end; i++)
        f->sum[part * ROWS + i] = 0;
    for (int64_t c = first; c < last; c += COLS)
        forward_chunk(r, top, end, c, least(last - c, COLS), thread);
}

/* Returns the sum of the rows' losses, without the seed; adds that of their next tokens to *next. */
static double forward_rows(struct ops *o, struct rows *r, double *next)
{
    struct head *f = r->f;
    const struct head_loss *h = f->h;
    double loss = 0;

    for (int64_t i = 0; i < r->rows; i++)
        for (int k = 0; k < f->terms; k++)
            f->class[i][k] = (int32_t)target_of(f, r->row + i, k);
    cpu_split(o, (int64_t)f->parts * r->bands, 1, forward_part, r);
    for (int64_t i = 0; i < r->rows; i++) {
        double sum = f->sum[i];
        real weights = 0;
        for (int p = 1; p < f->parts; p++)
            sum += f->sum[p * ROWS + i];
        for (int k = 0; k < f->terms; k++) {
            bool there = f->class[i][k] >= 0;
            real term = there ? (real)(log(sum) + shift_of(f) - f->target[i * MAX_TERMS + k]) : 0;
            if (there)
                loss += f->mtp[k] * term;
            if (k == 0)
                *next += term;
            if (there || (h->whole && k < f->n_mtp))
                weights += f->mtp[k];
        }
        f->factor[i] = h->seed * h->cap_a / h->cap_c * weights * (real)(1 / sum);
    }
    return loss;
}

/* Returns the block of rows from `row` on, in as many bands as keep all threads busy: numbers of w
 * are made for each band again, so of no fewer than 32 rows. */
static struct rows rows_from(struct ops *o, struct head *f, int64_t row)
{
    struct rows r = { .f = f, .row = row, .rows = least(f->tokens - row, ROWS) };
    int threads = cpu_threads(o),
        wanted = threads > 1 ? (4 * threads + f->parts - 1) / f->parts : 1;

    r.bands = (int)least(wanted, r.rows < 64 ? 1 : r.rows / 32);
    return r;
}

void cpu_head_eval(struct ops *o, real *loss, struct tensor x, struct tensor w,
                   const struct head_loss *h)
{
    struct head f;
    double sum = 0, next = 0;

    head_init(&f, o, x, w, h, false);
    if (cpu_failed(o))
        return;
    for (int64_t row = 0; row < f.tokens; row += ROWS) {
        struct rows r = rows_from(o, &f, row);
        sum += forward_rows(o, &r, &next);
    }
    *loss += (real)sum;
}

/* -- pass 2 ------------------------------------------------------------------------- */

/* The gradient as the fp8 products see it: rounded to bf16, then e5m2 of dl / scale, as in record
 * 61. Record 74 rounds once, from f32 (record-74.md 8); that differs, by one code, only where bf16
 * lands in the middle between two codes, and we make no difference between the records here. */
static void round_grad(real *dl, int64_t n, real scale)
{
    for (int64_t i = 0; i < n; i++)
        dl[i] = e5m2_round(bf16_round((float)dl[i]) / (float)scale);
}

/* Returns what term k of row i subtracts from dl: seed a/c weight s (1 - s) of its target. A class
 * may be the target of several. */
static real target_grad(const struct rows *r, int64_t i, int k)
{
    const struct head_loss *h = r->f->h;
    real s = r->f->target[i * MAX_TERMS + k] / h->cap_a;

    real g = h->seed * h->cap_a / h->cap_c * r->f->mtp[k];

    return h->cap_root ? g * root_slope(s) : g * s * (1 - s);
}

/* Begins the gradient of row i: takes targets out of what is kept, and r x. A row whose weights are
 * 0 has no gradient. */
static void begin_row(const struct rows *r, int64_t i)
{
    const struct head *f = r->f;
    const real *x = f->x + (r->row + i) * f->width;

    for (int k = 0; k < f->terms && f->factor[i] != 0; k++) {
        int64_t v = f->class[i][k];
        if (v >= 0)
            kept_chunk(f, v)[i * LD + v % COLS] -= target_grad(r, i, k) / f->factor[i];
    }
    for (int64_t d = 0; d < f->width; d++)
        f->x_row[i * f->width + d] = f->factor[i] * x[d];
}

/* dx of row i, without fp8: the sum of the parts is in dx. */
static void end_row(const struct rows *r, int64_t i, real *dx)
{
    const struct head *f = r->f;

    for (int64_t d = 0; d < f->width; d++)
        dx[d] *= f->factor[i];
    for (int k = 0; k < f->terms; k++) {
        const real *w = f->w_target + (i * MAX_TERMS + k) * f->width;
        real g = f->class[i][k] >= 0 ? target_grad(r, i, k) : 0;
        for (int64_t d = 0; d < f->width && g != 0; d++)
            dx[d] -= g * w[d];
    }
}

/* dl of a chunk in fp8, and dx of it. */
static const real *rounded_chunk(const struct rows *r, int64_t first, int64_t n, int thread)
{
    const struct head *f = r->f;
    const struct head_loss *h = f->h;
    const real *kept = kept_chunk(f, first);
    real *dl = f->chunk + (int64_t)thread * ROWS * LD;
    int64_t ld;
    const real *w = weights(f, first, n, thread, &ld);

    for (int64_t i = 0; i < r->rows; i++) {
        for (int64_t j = 0; j < n; j++)
            dl[i * LD + j] = f->factor[i] * kept[i * LD + j];
        round_grad(dl + i * LD, n, h->g_scale);
    }
    real_gemm_here(f->bf16, false, true, r->rows, f->width, n, h->g_scale * h->w_scale, dl, LD, w,
                   ld, first % f->part != 0, f->dx_part + first / f->part * ROWS * f->width,
                   f->width);
    return dl;
}

/* Columns first .. first+n-1: of a part, or without fp8 of a chunk. */
static void backward_part(void *arg, int64_t first, int64_t n, int thread)
{
    const struct rows *r = arg;
    const struct head *f = r->f;

    for (int64_t c = first, cols; c < first + n; c += cols) {
        cols = least(first + n - c, COLS);
        const real *dl = f->fp8 ? rounded_chunk(r, c, cols, thread) : kept_chunk(f, c) + c % COLS;
        for (int64_t i = 0; r->dbias && i < r->rows; i++)
            for (int64_t j = 0; j < cols; j++)
                r->dbias[c + j] += (f->fp8 ? f->h->g_scale : f->factor[i]) * dl[i * LD + j];
        real_gemm_here(f->bf16, true, false, f->width, cols, r->rows,
                       f->fp8 ? f->h->g_scale * f->h->x_scale : 1,
                       f->fp8 ? f->x + r->row * f->width : f->x_row, f->width, dl, LD, r->add,
                       r->dw + c, f->vocab);
    }
}

static void begin_rows(void *arg, int64_t first, int64_t count, int thread)
{
    (void)thread;
    for (int64_t i = first; i < first + count; i++)
        begin_row(arg, i);
}

static void end_rows(void *arg, int64_t first, int64_t count, int thread)
{
    const struct rows *r = arg;
    const struct head *f = r->f;

    (void)thread;
    for (int64_t i = first; i < first + count; i++) {
        real *dx = r->dx + i * f->width;
        memcpy(dx, f->dx_part + i * f->width, (size_t)f->width * sizeof *dx);
        for (int p = 1; p < f->parts; p++)
            for (int64_t d = 0; d < f->width; d++)
                dx[d] += f->dx_part[(p * ROWS + i) * f->width + d];
        if (!f->fp8)
            end_row(r, i, dx);
    }
}

/* Columns of dw depend on nothing else: so few at a time that all threads have some. */
static void backward_rows(struct ops *o, struct rows *r)
{
    enum { FEW = 32, BAND = 32 };
    const struct head *f = r->f;
    int64_t columns = f->fp8 ? f->part : f->vocab <= SMALL ? FEW : COLS;

    cpu_split(o, r->rows, BAND, begin_rows, r);
    cpu_split(o, f->vocab, columns, backward_part, r);
    cpu_split(o, r->rows, BAND, end_rows, r);
}

void cpu_head_loss(struct ops *o, real *loss, struct tensor dx, struct tensor dw, bool add,
                   struct tensor x, struct tensor w, const struct head_loss *h)
{
    /* Sums in scratch, so that dw is rounded once, or what is added to it. */
    bool direct = is_real(dw) && !o->bf16_grads;
    real *g = direct ? real_ptr(dw) : cpu_scratch(o, 6, tensor_count(dw));
    struct head f;
    double sum = 0, next = 0;

    head_init(&f, o, x, w, h, true);
    if (cpu_failed(o))
        return;
    assert(dx.rows == x.rows && dx.cols == x.cols && dw.rows == w.rows && dw.cols == w.cols);
    for (int64_t row = 0; row < f.tokens; row += ROWS) {
        struct rows r = rows_from(o, &f, row);
        r.dx = real_ptr(dx) + row * f.width;
        r.dw = g;
        r.dbias = real_ptr(h->dbias);
        r.add = (direct && add) || row > 0;
        sum += forward_rows(o, &r, &next);
        backward_rows(o, &r);
    }
    loss[0] += (real)sum;
    if (h->next)
        loss[1] += (real)next;
    if (!direct && o->bf16_grads)
        real_round(g, tensor_count(dw));
    if (!direct)
        real_write(dw, 0, g, tensor_count(dw), add);
}
