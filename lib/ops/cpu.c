/* cpu.c - the plain C device: memory, order, arithmetic, and its start. */
#include "ops/cpu.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include "base/grow.h"
#include "ops/gemm.h"

enum { ALIGN = 64 };
enum { PIECE = 1 << 16 }; /* elements a thread takes at a time */
enum { NAN_BYTE = 0xff }; /* all ones is a NaN in f64, f32 and bf16 */

static struct cpu *cpu_of(struct ops *o) { return (struct cpu *)o; }

/* -- failure ------------------------------------------------------------------- */

bool cpu_failed(const struct ops *o)
{
    const struct cpu *c = (const struct cpu *)o;
    return c->failure || c->counting;
}

void cpu_fail(struct ops *o, int code, const char *fmt, ...)
{
    struct cpu *c = cpu_of(o);
    va_list ap;

    if (c->failure)
        return;
    c->failure = code;
    va_start(ap, fmt);
    vsnprintf(c->message, sizeof c->message, fmt, ap);
    va_end(ap);
}

static int cpu_status(struct ops *o)
{
    struct cpu *c = cpu_of(o);
    return c->failure ? err_set(c->failure, "%s", c->message) : GPT_OK;
}

/* -- memory -------------------------------------------------------------------- */

static void *aligned(size_t bytes)
{
    size_t rounded = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    return rounded < bytes ? NULL : aligned_alloc(ALIGN, rounded ? rounded : ALIGN);
}

static bool remember(struct cpu *c, void *block)
{
    if (grow_one(&c->blocks, c->n_blocks, sizeof *c->blocks))
        return false;
    c->blocks[c->n_blocks++] = block;
    return true;
}

static void *cpu_alloc(struct ops *o, size_t bytes, const char *what)
{
    struct cpu *c = cpu_of(o);
    void *p;

    if (c->failure)
        return NULL;
    if (c->counting) { /* an address of no memory */
        c->bytes += bytes;
        return (void *)(((uintptr_t)c->bytes + ALIGN) / ALIGN * ALIGN);
    }
    p = aligned(bytes);
    if (!p || !remember(c, p)) {
        free(p);
        cpu_fail(o, GPT_SYSTEM, "cannot allocate %zu bytes for %s after %zu bytes", bytes, what,
                 c->bytes);
        return NULL;
    }
    memset(p, NAN_BYTE, bytes);
    c->bytes += bytes;
    return p;
}

void *cpu_scratch_bytes(struct ops *o, int slot, size_t bytes)
{
    struct cpu *c = cpu_of(o);
    assert(slot >= 0 && slot < CPU_SLOTS);
    struct cpu_scratch *s = &c->scratch[slot];

    if (c->failure)
        return NULL;
    if (c->counting) {
        c->bytes += s->bytes < bytes ? bytes - s->bytes : 0;
        s->bytes = s->bytes < bytes ? bytes : s->bytes;
    } else if (s->bytes < bytes || !s->data) {
        free(s->data);
        c->bytes -= s->bytes;
        s->data = aligned(bytes);
        s->bytes = s->data ? bytes : 0;
        c->bytes += s->bytes;
        if (!s->data)
            cpu_fail(o, GPT_SYSTEM, "cannot allocate %zu bytes of scratch memory after %zu bytes",
                     bytes, c->bytes);
    }
    return s->data;
}

real *cpu_scratch(struct ops *o, int slot, int64_t count)
{
    return cpu_scratch_bytes(o, slot, (size_t)count * sizeof(real));
}

static size_t cpu_allocated(const struct ops *o) { return ((const struct cpu *)o)->bytes; }

/* Does nothing: a slot that grows wastes nothing. */
static void cpu_reserve(struct ops *o, size_t bytes) { (void)o, (void)bytes; }
static void cpu_branch(struct ops *o, int i) { (void)o, (void)i; }
static void cpu_join(struct ops *o) { (void)o; }

static void cpu_free(struct ops *o)
{
    struct cpu *c = cpu_of(o);

    if (!c)
        return;
    for (int i = 0; i < c->n_blocks; i++)
        free(c->blocks[i]);
    for (int i = 0; i < CPU_SLOTS; i++)
        free(c->scratch[i].data);
    free(c->blocks);
    pool_free(c->pool);
    free(c);
}

/* -- moving -------------------------------------------------------------------- */

static void cpu_upload(struct ops *o, void *dst, const void *host, size_t bytes)
{
    if (!cpu_failed(o) && bytes)
        memcpy(dst, host, bytes);
}

static void cpu_download(struct ops *o, void *host, const void *src, size_t bytes)
{
    if (!cpu_failed(o) && bytes)
        memcpy(host, src, bytes);
}

/* Copies at once into a ring, from which fetched() reads. */
static void cpu_fetch(struct ops *o, const void *src, size_t bytes)
{
    struct cpu *c = cpu_of(o);

    assert(bytes <= FETCH_BYTES && c->fetch_in - c->fetch_out < FETCH_MAX);
    if (!cpu_failed(o))
        memcpy(c->fetch[c->fetch_in % FETCH_MAX], src, bytes);
    c->fetch_in++;
}

static void cpu_fetched(struct ops *o, void *host, size_t bytes)
{
    struct cpu *c = cpu_of(o);

    assert(bytes <= FETCH_BYTES && c->fetch_out < c->fetch_in);
    memcpy(host, c->fetch[c->fetch_out++ % FETCH_MAX], bytes);
}

static void zero_piece(void *arg, int64_t first, int64_t count, int thread)
{
    (void)thread;
    memset((char *)arg + first, 0, (size_t)count);
}

void cpu_zero(struct ops *o, struct tensor t)
{
    if (!cpu_failed(o))
        cpu_split(o, (int64_t)tensor_bytes(t), 4 * PIECE, zero_piece, t.data);
}

static void cpu_copy(struct ops *o, struct tensor dst, struct tensor src)
{
    enum { CHUNK = 1024 };
    real chunk[CHUNK];
    int64_t n = tensor_count(src);

    assert(tensor_count(dst) == n);
    if (cpu_failed(o) || !n)
        return;
    if (dst.dtype == src.dtype) {
        memmove(dst.data, src.data, tensor_bytes(src));
        return;
    }
    for (int64_t i = 0; i < n; i += CHUNK) {
        int64_t m = n - i < CHUNK ? n - i : CHUNK;
        real_read(chunk, src, i, m);
        real_write(dst, i, chunk, m, false);
    }
}

/* -- arithmetic ------------------------------------------------------------------ */

void real_read(real *dst, struct tensor t, int64_t first, int64_t n)
{
    if (is_real(t)) {
        memcpy(dst, (const real *)t.data + first, (size_t)n * sizeof(real));
    } else if (t.dtype == DT_BF16) {
        const uint16_t *s = (const uint16_t *)t.data + first;
        for (int64_t i = 0; i < n; i++)
            dst[i] = bf16_to_f32(s[i]);
    } else {
        for (int64_t i = 0; i < n; i++)
            dst[i] = real_get(t, first + i);
    }
}

void real_write(struct tensor t, int64_t first, const real *src, int64_t n, bool add)
{
    if (is_real(t)) {
        real *d = (real *)t.data + first;
        for (int64_t i = 0; i < n; i++)
            d[i] = add ? d[i] + src[i] : src[i];
    } else if (t.dtype == DT_BF16) {
        uint16_t *d = (uint16_t *)t.data + first;
        for (int64_t i = 0; i < n; i++)
            d[i] = bf16_from_f32((float)(add ? bf16_to_f32(d[i]) + src[i] : src[i]));
    } else {
        for (int64_t i = 0; i < n; i++)
            real_set(t, first + i, add ? real_get(t, first + i) + src[i] : src[i]);
    }
}

void real_round(real *x, int64_t n)
{
    for (int64_t i = 0; i < n && DT_REAL == DT_F32; i++)
        x[i] = bf16_round((float)x[i]);
}

struct view {
    struct tensor t;
    real *copy;
};

static void view_piece(void *arg, int64_t first, int64_t count, int thread)
{
    const struct view *v = arg;
    (void)thread;
    real_read(v->copy + first, v->t, first, count);
}

const real *real_view(struct ops *o, int slot, struct tensor t)
{
    struct view v = { t, NULL };

    if (!has(t))
        return NULL;
    if (is_real(t))
        return t.data;
    v.copy = cpu_scratch(o, slot, tensor_count(t));
    if (v.copy)
        cpu_split(o, tensor_count(t), PIECE, view_piece, &v);
    return v.copy;
}

void real_gemm_here(bool bf16, bool ta, bool tb, int64_t m, int64_t n, int64_t k, real alpha,
                    const real *a, int64_t lda, const real *b, int64_t ldb, real beta, real *c,
                    int64_t ldc)
{
#ifdef GPT_OPS_DOUBLE
    (void)bf16;
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            real sum = 0, *out = c + i * ldc + j;
            for (int64_t t = 0; t < k; t++)
                sum += a[ta ? t * lda + i : i * lda + t] * b[tb ? j * ldb + t : t * ldb + j];
            *out = beta == 0 ? alpha * sum : alpha * sum + beta * *out;
        }
#else
    (bf16 ? gemm_bf16 : gemm)(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
#endif
}

struct product {
    bool bf16, ta, tb;
    int64_t m, n, k, lda, ldb, ldc;
    real alpha, beta;
    const real *a, *b;
    real *c;
    int64_t rows, cols, across; /* of a part; parts side by side */
};

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static void product_part(void *arg, int64_t part, int64_t count, int thread)
{
    const struct product *p = arg;
    int64_t i = part / p->across * p->rows, j = part % p->across * p->cols;

    (void)count, (void)thread;
    real_gemm_here(p->bf16, p->ta, p->tb, least(p->m - i, p->rows), least(p->n - j, p->cols), p->k,
                   p->alpha, p->a + (p->ta ? i : i * p->lda), p->lda,
                   p->b + (p->tb ? j * p->ldb : j), p->ldb, p->beta, p->c + i * p->ldc + j, p->ldc);
}

/* Cuts c into at most `parts` pieces such that the threads' last is done soonest. An element costs
 * a piece what a row or a column of it costs in reading and packing a fraction of. */
static void cut_product(struct product *p, int64_t parts, int threads)
{
    enum { COLS = 32, ROWS = 14, COLUMN = 13, ROW = 6 };
    int64_t panels = (p->n + COLS - 1) / COLS, best = INT64_MAX;

    for (int64_t across = 1; across <= least(parts, panels); across++)
        for (int64_t pieces = threads; pieces <= parts; pieces += threads) {
            int64_t down = pieces / across, cols = (panels + across - 1) / across * COLS;
            if (down < 1)
                continue;
            int64_t rows = ((p->m + down - 1) / down + ROWS - 1) / ROWS * ROWS;
            int64_t made = ((p->m + rows - 1) / rows) * ((p->n + cols - 1) / cols);
            int64_t cost =
                (made + threads - 1) / threads * (rows * cols + COLUMN * cols + ROW * rows);
            if (cost < best) {
                best = cost;
                p->rows = rows;
                p->cols = cols;
            }
        }
}

void real_gemm(struct ops *o, bool ta, bool tb, int64_t m, int64_t n, int64_t k, real alpha,
               const real *a, int64_t lda, const real *b, int64_t ldb, real beta, real *c,
               int64_t ldc)
{
    enum { WORTH = 1 << 19 /* multiply-adds */ };
    struct product p = {
        o->bf16_products, ta, tb, m, n, k, lda, ldb, ldc, alpha, beta, a, b, c, m, n, 1
    };
    int threads = cpu_threads(o);
    int64_t parts = m * n * k / WORTH, down;

    if (threads > 1 && parts > 1)
        cut_product(&p, least(parts, 2 * threads), (int)least(parts, threads));
    p.across = n ? (n + p.cols - 1) / p.cols : 1;
    down = m ? (m + p.rows - 1) / p.rows : 1;
    if (p.across * down == 1)
        product_part(&p, 0, 1, 0);
    else
        cpu_split(o, p.across * down, 1, product_part, &p);
}

real real_dot(const real *a, const real *b, int64_t n)
{
    enum { LANES = 16 };
    real lane[LANES] = { 0 }, sum = 0;
    int64_t i = 0;

    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++)
            lane[j] += a[i + j] * b[i + j];
    for (; i < n; i++)
        lane[i % LANES] += a[i] * b[i];
    for (int j = 0; j < LANES; j++)
        sum += lane[j];
    return sum;
}

/* -- threads --------------------------------------------------------------------- */

struct split {
    int64_t n, block, each; /* each: blocks that a thread takes at a time */
    void (*work)(void *arg, int64_t first, int64_t count, int thread);
    void *arg;
};

static void split_part(void *arg, int i, int thread)
{
    const struct split *s = arg;
    int64_t first = i * s->each * s->block, end = least(s->n, first + s->each * s->block);

    for (; first < end; first += s->block)
        s->work(s->arg, first, least(end - first, s->block), thread);
}

void cpu_split(struct ops *o, int64_t n, int64_t block,
               void (*work)(void *arg, int64_t first, int64_t count, int thread), void *arg)
{
    enum { TURNS = 8 }; /* of each thread, of equal ones */
    int64_t blocks = (n + block - 1) / block, each = blocks / (TURNS * (int64_t)cpu_threads(o));
    struct split s = { n, block, each > 1 ? each : 1, work, arg };

    pool_for(cpu_of(o)->pool, (int)((blocks + s.each - 1) / s.each), split_part, &s);
}

int cpu_threads(const struct ops *o)
{
    const struct cpu *c = (const struct cpu *)o;
    return c->counting ? c->counting : pool_threads(c->pool);
}

void ops_cpu_threads(struct ops *o, int threads)
{
    pool_free(cpu_of(o)->pool);
    cpu_of(o)->pool = pool_new(threads);
}

/* -- start ----------------------------------------------------------------------- */

static const struct ops memory_and_order = {
    .device = "cpu",
    .act = DT_REAL,
    .free = cpu_free,
    .status = cpu_status,
    .sync = cpu_status,
    .alloc = cpu_alloc,
    .alloc_shared = cpu_alloc,
    .allocated = cpu_allocated,
    .reserve = cpu_reserve,
    .branch = cpu_branch,
    .join = cpu_join,
    .upload = cpu_upload,
    .upload_ahead = cpu_upload,
    .download = cpu_download,
    .fetch = cpu_fetch,
    .fetched = cpu_fetched,
    .zero = cpu_zero,
    .copy = cpu_copy,
};

int ops_cpu_new(struct ops **o)
{
    struct cpu *c;
    int rc = simd_check();

    *o = NULL;
    if (rc)
        return rc;
    if (!(c = calloc(1, sizeof *c)))
        return err_set(GPT_SYSTEM, "cannot allocate %zu bytes for the CPU device", sizeof *c);
    c->o = memory_and_order;
#define OP(name, ...) c->o.name = cpu_##name
#include "ops/op_list.h"
    *o = &c->o;
    return GPT_OK;
}

int ops_cpu_counting(struct ops **o, int threads)
{
    int rc = ops_cpu_new(o);

    if (!rc)
        cpu_of(*o)->counting = threads;
    return rc;
}
