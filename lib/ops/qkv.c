/* qkv.c - from a layer's input to what attention reads: projections, QK norm, rotary, key offset,
 * value embedding (record-61.md 2.4 to 2.6, 3.1, 3.3; record-74.md 6 and 7). */
#include "ops/norm.h"
#include "ops/qkv.h"

/* Pointers and sizes that both directions use. */
struct layout {
    int64_t tokens, width, qk_width; /* T, D, Q */
    int heads, size, qk_size; /* H, E, Eq */
    int turned; /* channels of a head of q and k, from the first on */
    int64_t key_rows; /* of k: T, or T + 1 */
    bool paired, split_gate;
    enum key_offset key_offset;
    const real *rope; /* rows of size/2 */
    const int32_t *pos; /* NULL: row t is at position t */
    const real *y, *gate; /* with a table only */
    int64_t y_width;
    struct tensor table;
};

static struct layout layout_of(struct ops *o, const struct qkv_shape *s, struct rope r,
                               struct tensor y, struct tensor gate, struct tensor table,
                               const struct batch *b)
{
    struct layout l = {
        .tokens = b->tokens,
        .width = (int64_t)s->heads * s->head_dim,
        .qk_width = (int64_t)s->heads * qkv_qk_dim(s),
        .heads = s->heads,
        .size = s->head_dim,
        .qk_size = qkv_qk_dim(s),
        .turned = (int)r.table.cols,
        .paired = s->paired,
        .split_gate = s->split_gate,
        .key_offset = s->key_offset,
        .y = real_ptr(y),
        .y_width = y.cols,
        .table = table,
    };
    int64_t positions = b->pos ? r.table.rows : s->paired ? 2 * l.tokens : l.tokens;

    assert(!has(r.table) ||
           (l.qk_size % 4 == 0 && r.table.rows >= positions && l.turned <= l.qk_size));
    assert(!b->pos || s->key_offset == KEY_OFFSET_NONE);
    l.pos = b->pos;
    assert(!has(table) || (table.cols == l.width && has(y) && y.cols >= GATE_WIDTH &&
                           gate.rows == s->heads && gate.cols == GATE_WIDTH));
    l.rope = has(r.table) ? real_view(o, 0, tensor_rows(r.table, 0, positions)) : NULL;
    l.gate = has(table) ? real_view(o, 1, gate) : NULL;
    return l;
}

static const real *rope_row(const struct layout *l, int64_t t, int h)
{
    int64_t p = l->pos ? l->pos[t] : t;
    return l->rope + (l->paired ? 2 * p + (h & 1) : p) * l->turned;
}

/* Channels whose key comes from the token before. */
static bool is_offset(const struct layout *l, int c)
{
    if (l->key_offset == KEY_OFFSET_NONE)
        return false;
    int part = c / (l->qk_size / 4);
    return part == 3 || part == (l->key_offset == KEY_OFFSET_HALF ? 2 : 1);
}

/* x turned by -theta on channel pairs (2m, 2m+1) of the first `turned`; in place. */
static void rotate(real *x, const real *rope, int turned)
{
    for (int m = 0; m < turned / 2; m++) {
        real c = rope[2 * m], s = rope[2 * m + 1], even = x[2 * m], odd = x[2 * m + 1];
        x[2 * m] = c * even + s * odd;
        x[2 * m + 1] = c * odd - s * even;
    }
}

/* u: input of token t's value gates; row is its row of the table. */
static void gate_input(const struct layout *l, real *u, const real *row, int64_t t)
{
    memcpy(u, l->y + t * l->y_width, GATE_WIDTH * sizeof *u);
    if (l->split_gate)
        memcpy(u + GATE_WIDTH / 2, row, GATE_WIDTH / 2 * sizeof *u);
}

static real value_gate(const struct layout *l, const real *u, int h)
{
    return 2 * sigmoid(real_dot(l->gate + h * GATE_WIDTH, u, GATE_WIDTH));
}

static void value_row(const struct layout *l, real *row, int32_t v)
{
    assert(v >= 0 && v < l->table.rows);
    real_read(row, l->table, v * l->width, l->width);
}

/* -- forward ---------------------------------------------------------------------- */

/* Writes the head's key of token t to row t, in the offset channels to row t + 1 (and for t = 0 to
 * row 0 as well). k points to the head in row t. */
static void put_key(const struct layout *l, real *k, const real *key, int64_t t)
{
    for (int c = 0; c < l->qk_size; c++) {
        if (!is_offset(l, c) || t == 0)
            k[c] = key[c];
        if (is_offset(l, c) && t + 1 < l->key_rows)
            k[l->qk_width + c] = key[c];
    }
}

/* y = Norm(x), turned; the factor of the norm goes to *factor, if that is given. */
static void make_head(const struct layout *l, real *y, real *factor, const real *x, int64_t t,
                      int h)
{
    real r = norm_factor(x, l->qk_size);

    for (int i = 0; i < l->qk_size; i++)
        y[i] = r * x[i];
    rotate(y, rope_row(l, t, h), l->turned);
    if (factor)
        *factor = r;
}

/* Rows of the product on their way to q, k and v. */
struct finish {
    struct layout l;
    const struct kv_cache *cache; /* or NULL */
    bool apart; /* values do not go into the cache */
    const int32_t *token; /* with a table: its rows */
    const real *raw;
    real *of_q; /* factors, or NULL */
    real *q, *k, *v;
    real *row, *key; /* (D), (Eq) of each thread */
};

static void finish_head(const struct finish *f, int64_t t, int h, const real *row, const real *u,
                        real *key)
{
    const struct layout *l = &f->l;
    const real *raw = f->raw + t * (2 * l->qk_width + l->width), *in = raw + h * l->qk_size;
    int64_t n = h * l->tokens + t, kept = f->cache ? cached_row(f->cache, t) : t;
    real *vh = f->v + (f->apart ? t : kept) * l->width + h * l->size;
    real *of_k = f->of_q ? f->of_q + l->heads * l->tokens + n : NULL;

    make_head(l, f->q + t * l->qk_width + h * l->qk_size, f->of_q ? f->of_q + n : NULL, in, t, h);
    make_head(l, key, of_k, in + l->qk_width, t, h);
    put_key(l, f->k + kept * l->qk_width + h * l->qk_size, key, t);
    memcpy(vh, raw + 2 * l->qk_width + h * l->size, (size_t)l->size * sizeof *vh);
    if (f->token) {
        real g = value_gate(l, u, h);
        for (int i = 0; i < l->size; i++)
            vh[i] += g * row[h * l->size + i];
    }
}

static void finish_rows(void *arg, int64_t first, int64_t count, int thread)
{
    const struct finish *f = arg;
    const struct layout *l = &f->l;
    real *row = f->row + thread * l->width, *key = f->key + thread * l->qk_size, u[GATE_WIDTH];

    for (int64_t t = first; t < first + count; t++) {
        if (f->token) {
            value_row(l, row, f->token[t]);
            gate_input(l, u, row, t);
        }
        for (int h = 0; h < l->heads; h++)
            finish_head(f, t, h, row, u, key);
    }
}

void cpu_qkv(struct ops *o, struct tensor q, struct tensor k, struct tensor v, struct tensor factor,
             struct tensor raw, struct tensor x, struct tensor w, const real *scale,
             struct tensor bias, const struct qkv_shape *s, struct rope r, struct tensor y,
             struct tensor gate, struct tensor table, const struct batch *b)
{
    assert(!s->fp8 || !has(bias));
    if (s->fp8 && DT_REAL == DT_F32)
        cpu_linear_codes(o, raw, s->fp8, scale);
    else if (has(bias))
        cpu_linear_bias(o, raw, x, w, scale, bias, NO_TENSOR, false);
    else
        cpu_linear(o, raw, x, w, scale, NO_TENSOR);
    struct finish f = {
        .l = layout_of(o, s, r, y, gate, table, b),
        .cache = s->cache,
        .apart = !s->cache || s->cache->values_apart,
        .token = has(table) ? b->token.row : NULL,
        .raw = real_ptr(raw),
        .of_q = real_ptr(factor),
        .q = real_ptr(q),
    };

    f.row = cpu_scratch(o, 2, cpu_threads(o) * f.l.width);
    f.key = cpu_scratch(o, 3, cpu_threads(o) * f.l.qk_size);
    if (cpu_failed(o))
        return;
    assert(raw.rows == f.l.tokens && raw.cols == 2 * f.l.qk_width + f.l.width);
    f.l.key_rows = s->cache ? 0 : k.rows;
    f.k = real_ptr(s->cache ? s->cache->k : k);
    f.v = real_ptr(f.apart ? v : s->cache->v);
    cpu_split(o, f.l.tokens, CPU_ROWS, finish_rows, &f);
}

/* -- backward ---------------------------------------------------------------------- */

/* dx of raw x from dz of z = R Norm(x), R being the rotation, and from z. With xn = Norm(x) the
 * gradient of x is r (R' dz - xn mean(xn R' dz)); xn R' dz is z dz, and R' R multiplies a turned
 * pair by c^2 + s^2, which is 1 but for the rounding of c and s to bf16. */
static void raw_grad(real *dx, const real *dz, const real *z, real r, const real *rope,
                     const struct layout *l)
{
    real mean = real_dot(dz, z, l->qk_size) / (real)l->qk_size;

    for (int m = 0; m < l->turned / 2; m++) {
        real c = rope[2 * m], s = rope[2 * m + 1], part = mean / (c * c + s * s);
        real even = dz[2 * m] - part * z[2 * m], odd = dz[2 * m + 1] - part * z[2 * m + 1];
        dx[2 * m] = r * (c * even - s * odd);
        dx[2 * m + 1] = r * (c * odd + s * even);
    }
    for (int i = l->turned; i < l->qk_size; i++)
        dx[i] = r * (dz[i] - mean * z[i]);
}

/* A head of token t's key, and its gradient, from the rows that they went to. */
static void get_key(const struct layout *l, real *z, real *dz, const real *k, const real *dk,
                    int64_t t)
{
    for (int c = 0; c < l->qk_size; c++) {
        bool moved = is_offset(l, c);
        real own = !moved || t == 0 ? dk[c] : 0;
        real next = moved && t + 1 < l->tokens ? dk[l->qk_width + c] : 0;
        dz[c] = own + next;
        z[c] = k[moved ? l->qk_width + c : c];
    }
}

struct raw_grads {
    struct layout l;
    struct tensor dqkv;
    const real *dq, *dk, *q, *k, *factor;
    real *z; /* (2,Eq) of each thread */
};

static void raw_grad_rows(void *arg, int64_t first, int64_t count, int thread)
{
    const struct raw_grads *g = arg;
    const struct layout *l = &g->l;
    real *z = g->z + thread * 2 * l->qk_size, *dz = z + l->qk_size;

    for (int64_t t = first; t < first + count; t++)
        for (int h = 0; h < l->heads; h++) {
            int64_t at = t * l->qk_width + h * l->qk_size;
            const real *r = g->factor + h * l->tokens + t, *rope = rope_row(l, t, h);
            real *dx = real_ptr(g->dqkv) + t * g->dqkv.cols + h * l->qk_size;
            raw_grad(dx, g->dq + at, g->q + at, *r, rope, l);
            get_key(l, z, dz, g->k + at, g->dk + at, t);
            raw_grad(dx + l->qk_width, dz, z, r[l->heads * l->tokens], rope, l);
        }
}

void cpu_raw_grads(struct ops *o, struct tensor dqkv, struct tensor dq, struct tensor dk,
                   struct tensor q, struct tensor k, const struct qk_made *m, int tokens)
{
    struct raw_grads g = {
        .l = layout_of(o, &m->shape, m->rope, NO_TENSOR, NO_TENSOR, NO_TENSOR,
                       &(struct batch){ .tokens = tokens }),
        .dqkv = dqkv,
        .dq = real_ptr(dq),
        .dk = real_ptr(dk),
        .q = real_ptr(q),
        .k = real_ptr(k),
        .factor = real_ptr(m->factor),
    };

    g.z = cpu_scratch(o, 2, cpu_threads(o) * 2 * g.l.qk_size);
    if (cpu_failed(o))
        return;
    assert(dqkv.rows == g.l.tokens && dqkv.cols == 2 * g.l.qk_width + g.l.width);
    assert(k.rows == g.l.tokens + (g.l.key_offset != KEY_OFFSET_NONE));
    assert(m->factor.rows == 2 * g.l.heads && m->factor.cols == g.l.tokens);
    cpu_split(o, g.l.tokens, CPU_ROWS, raw_grad_rows, &g);
}

/* Value embedding of one head: drow written, du (gradient of u) added to; returns the gradient of the
 * gate's sum. */
static real value_grad(const struct layout *l, real *drow, real *du, const real *dv,
                       const real *row, const real *u, int h)
{
    const real *w = l->gate + h * GATE_WIDTH;
    real g = value_gate(l, u, h);
    real dz = real_dot(dv, row, l->size) * g * (1 - g / 2);

    for (int j = 0; j < GATE_WIDTH; j++)
        du[j] += dz * w[j];
    for (int i = 0; i < l->size; i++)
        drow[i] = g * dv[i];
    return dz;
}

/* Returns how many of the gates' inputs are y's; the others (when split) are the table row's. */
static int inputs_of_y(const struct layout *l)
{
    return l->split_gate ? GATE_WIDTH / 2 : GATE_WIDTH;
}

/* du starts from dy12; at the end its parts are stored where the inputs came from. */
static void gate_input_grad_begin(const struct layout *l, real *du, const real *dy12)
{
    memset(du, 0, GATE_WIDTH * sizeof *du);
    memcpy(du, dy12, (size_t)inputs_of_y(l) * sizeof *du);
}

static void gate_input_grad_end(const struct layout *l, const real *du, real *dy12, real *drow)
{
    int of_y = inputs_of_y(l);

    memcpy(dy12, du, (size_t)of_y * sizeof *du);
    for (int j = of_y; j < GATE_WIDTH; j++)
        drow[j - of_y] += du[j];
}

static void join_rows(void *arg, int64_t first, int64_t count, int thread)
{
    const struct tensor *in = arg;
    int64_t d = tensor_count(in[1]) / in[0].rows;

    (void)thread;
    for (int64_t t = first; t < first + count; t++)
        memcpy(real_ptr(in[0]) + (t + 1) * in[0].cols - d, real_ptr(in[1]) + t * d,
               (size_t)d * sizeof(real));
}

void cpu_join_values(struct ops *o, struct tensor dqkv, struct tensor dv)
{
    cpu_split(o, dqkv.rows, CPU_ROWS, join_rows, (struct tensor[]){ dqkv, dv });
}

void cpu_gradient_codes(const struct fp8_gradient *g, int64_t first, struct tensor x, int64_t n)
{
    uint8_t *codes = g->codes.data;

    assert(g->codes.dtype == DT_E4M3 && g->codes.rows == x.rows);
    for (int64_t t = 0; t < x.rows; t++)
        for (int64_t i = 0; i < n; i++)
            codes[t * g->codes.cols + first + i] =
                e4m3_from_f32((float)(real_ptr(x)[t * x.cols + i] / g->scale));
}

struct value_grads {
    struct layout l;
    struct tensor dqkv, dtable_rows, dy12, dv; /* dv none: in dqkv */
    const int32_t *token;
    real *row; /* (D) of each thread */
    real *u, *dz; /* (T,GATE_WIDTH), (T,H): inputs of gates, and gradients of their sums */
};

static void value_bwd_rows(void *arg, int64_t first, int64_t count, int thread)
{
    const struct value_grads *g = arg;
    const struct layout *l = &g->l;
    real *row = g->row + thread * l->width, du[GATE_WIDTH];

    for (int64_t t = first; t < first + count; t++) {
        const real *dv = has(g->dv) ? real_ptr(g->dv) + t * l->width
                                    : real_ptr(g->dqkv) + (t + 1) * g->dqkv.cols - l->width;
        real *dy = real_ptr(g->dy12) + t * GATE_WIDTH, *u = g->u + t * GATE_WIDTH;
        real *drow = real_ptr(g->dtable_rows) + t * l->width;
        value_row(l, row, g->token[t]);
        gate_input(l, u, row, t);
        gate_input_grad_begin(l, du, dy);
        for (int h = 0; h < l->heads; h++)
            g->dz[t * l->heads + h] =
                value_grad(l, drow + h * l->size, du, dv + h * l->size, row + h * l->size, u, h);
        gate_input_grad_end(l, du, dy, drow);
    }
}

void cpu_value_bwd(struct ops *o, struct tensor dqkv, struct tensor dtable_rows,
                   struct tensor dgate, struct tensor dy12, struct tensor dv,
                   const struct qkv_shape *s, struct tensor y, struct tensor gate,
                   struct tensor table, const struct batch *b)
{
    struct value_grads g = { .l = layout_of(o, s, (struct rope){ NO_TENSOR }, y, gate, table, b),
                             .dqkv = dqkv,
                             .dtable_rows = dtable_rows,
                             .dy12 = dy12,
                             .dv = dv };
    const struct layout *l = &g.l;
    int64_t n_gate = (int64_t)l->heads * GATE_WIDTH;
    real *dw = cpu_scratch(o, 3, n_gate);

    g.row = cpu_scratch(o, 2, cpu_threads(o) * l->width);
    g.u = cpu_scratch(o, 4, l->tokens * GATE_WIDTH);
    g.dz = cpu_scratch(o, 5, l->tokens * l->heads);
    if (cpu_failed(o))
        return;
    assert(dqkv.rows == l->tokens && dqkv.cols == 2 * l->qk_width + l->width);
    assert(has(dv) || !cpu_dqkv8(s));
    if (cpu_dqkv8(s))
        cpu_gradient_codes(cpu_dqkv8(s), 2 * l->qk_width, dv, l->width);
    else if (has(dv))
        cpu_join_values(o, dqkv, dv);
    if (!has(table))
        return;
    g.token = b->token.row;
    cpu_split(o, l->tokens, CPU_ROWS, value_bwd_rows, &g);
    memset(dw, 0, (size_t)n_gate * sizeof *dw);
    for (int64_t k = 0; k < l->tokens * l->heads; k++)
        for (int j = 0; j < GATE_WIDTH; j++)
            dw[k % l->heads * GATE_WIDTH + j] += g.dz[k] * g.u[k / l->heads * GATE_WIDTH + j];
    real_write(dgate, 0, dw, n_gate, true);
}
