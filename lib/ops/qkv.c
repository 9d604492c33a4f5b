/* qkv.c - from projections to what attention reads: QK norm, rotary, key offset, value
 * embedding (record-61.md 2.4 to 2.6, 3.1, 3.3; record-74.md 6 and 7). */
#include "ops/norm.h"

/* Pointers and sizes that both directions use. */
struct layout {
    int64_t tokens, width; /* T, D */
    int heads, size; /* H, E */
    bool paired, split_gate;
    enum key_offset key_offset;
    const real *rope; /* rows of size/2: cosines, then sines */
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
        .heads = s->heads,
        .size = s->head_dim,
        .paired = s->paired,
        .split_gate = s->split_gate,
        .key_offset = s->key_offset,
        .y = real_ptr(y),
        .y_width = y.cols,
        .table = table,
    };
    int64_t positions = b->pos ? r.table.rows : s->paired ? 2 * l.tokens : l.tokens;

    assert(s->head_dim % 4 == 0 && r.table.rows >= positions && r.table.cols == s->head_dim / 2);
    assert(!b->pos || s->key_offset == KEY_OFFSET_NONE);
    l.pos = b->pos;
    assert(!has(table) || (table.cols == l.width && has(y) && y.cols >= GATE_WIDTH &&
                           gate.rows == s->heads && gate.cols == GATE_WIDTH));
    l.rope = real_view(o, 0, tensor_rows(r.table, 0, positions));
    l.gate = has(table) ? real_view(o, 1, gate) : NULL;
    return l;
}

static const real *rope_row(const struct layout *l, int64_t t, int h)
{
    int64_t p = l->pos ? l->pos[t] : t;
    return l->rope + (l->paired ? 2 * p + (h & 1) : p) * (l->size / 2);
}

/* Channels whose key comes from the token before. */
static bool is_offset(const struct layout *l, int c)
{
    if (l->key_offset == KEY_OFFSET_NONE)
        return false;
    int part = c / (l->size / 4);
    return part == 3 || part == (l->key_offset == KEY_OFFSET_HALF ? 2 : 1);
}

/* x turned by -theta (turn = 1) on channel pairs (2m, 2m+1), m < E/4; in place. turn = -1: by
 * +theta, the transpose. */
static void rotate(real *x, const real *rope, int size, real turn)
{
    for (int m = 0; m < size / 4; m++) {
        real c = rope[m], s = turn * rope[size / 4 + m], even = x[2 * m], odd = x[2 * m + 1];
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
    for (int c = 0; c < l->size; c++) {
        if (!is_offset(l, c) || t == 0)
            k[c] = key[c];
        if (is_offset(l, c) && t + 1 < l->tokens)
            k[l->width + c] = key[c];
    }
}

void cpu_qkv(struct ops *o, struct tensor q, struct tensor k, struct tensor v, struct tensor qkv,
             const struct qkv_shape *s, struct rope r, struct tensor y, struct tensor gate,
             struct tensor table, const struct batch *b)
{
    struct layout l = layout_of(o, s, r, y, gate, table, b);
    real *row = cpu_scratch(o, 2, l.width), *key = cpu_scratch(o, 3, l.size), u[GATE_WIDTH];

    if (cpu_failed(o))
        return;
    assert(qkv.rows == l.tokens && qkv.cols == 3 * l.width);
    bool apart = !s->cache || s->cache->values_apart;
    if (s->cache)
        k = s->cache->k;
    if (!apart)
        v = s->cache->v;
    for (int64_t t = 0; t < l.tokens; t++) {
        if (has(table)) {
            value_row(&l, row, b->token.row[t]);
            gate_input(&l, u, row, t);
        }
        for (int h = 0; h < l.heads; h++) {
            const real *in = real_ptr(qkv) + t * 3 * l.width + h * l.size;
            int64_t at = t * l.width + h * l.size;
            int64_t to = s->cache ? cached_row(s->cache, t) * l.width + h * l.size : at;
            real *qh = real_ptr(q) + at, *vh = real_ptr(v) + (apart ? at : to);
            norm_row(qh, in, l.size);
            rotate(qh, rope_row(&l, t, h), l.size, 1);
            norm_row(key, in + l.width, l.size);
            rotate(key, rope_row(&l, t, h), l.size, 1);
            put_key(&l, real_ptr(k) + to, key, t);
            memcpy(vh, in + 2 * l.width, (size_t)l.size * sizeof *vh);
            if (has(table)) {
                real g = value_gate(&l, u, h);
                for (int i = 0; i < l.size; i++)
                    vh[i] += g * row[h * l.size + i];
            }
        }
    }
}

/* -- backward ---------------------------------------------------------------------- */

/* The gradient of the head's key of token t, from the rows that it went to. */
static void get_key_grad(const struct layout *l, real *dkey, const real *dk, int64_t t)
{
    for (int c = 0; c < l->size; c++) {
        real own = !is_offset(l, c) || t == 0 ? dk[c] : 0;
        real next = is_offset(l, c) && t + 1 < l->tokens ? dk[l->width + c] : 0;
        dkey[c] = own + next;
    }
}

/* Value embedding of one head: drow written, dgate and du (gradient of u) added to. */
static void value_grad(const struct layout *l, real *drow, real *dgate, real *du, const real *dv,
                       const real *row, const real *u, int h)
{
    const real *w = l->gate + h * GATE_WIDTH;
    real g = value_gate(l, u, h);
    real dz = real_dot(dv, row, l->size) * g * (1 - g / 2);

    for (int j = 0; j < GATE_WIDTH; j++) {
        dgate[h * GATE_WIDTH + j] += dz * u[j];
        du[j] += dz * w[j];
    }
    for (int i = 0; i < l->size; i++)
        drow[i] = g * dv[i];
}

/* Of the gates' inputs the first are y's, the others (when split) the table row's. */
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

void cpu_qkv_bwd(struct ops *o, struct tensor dqkv, struct tensor dtable_rows, struct tensor dgate,
                 struct tensor dy12, struct tensor dq, struct tensor dk, struct tensor dv,
                 struct tensor qkv, const struct qkv_shape *s, struct rope r, struct tensor y,
                 struct tensor gate, struct tensor table, const struct batch *b)
{
    struct layout l = layout_of(o, s, r, y, gate, table, b);
    int64_t n_gate = (int64_t)l.heads * GATE_WIDTH;
    real *row = cpu_scratch(o, 2, l.width), *dw = cpu_scratch(o, 3, n_gate);

    if (cpu_failed(o))
        return;
    assert(dqkv.rows == l.tokens && dqkv.cols == 3 * l.width);
    memset(dw, 0, (size_t)n_gate * sizeof *dw);
    for (int64_t t = 0; t < l.tokens; t++) {
        real u[GATE_WIDTH], du[GATE_WIDTH];
        real *dy = has(table) ? real_ptr(dy12) + t * GATE_WIDTH : NULL;
        if (has(table)) {
            value_row(&l, row, b->token.row[t]);
            gate_input(&l, u, row, t);
            gate_input_grad_begin(&l, du, dy);
        }
        for (int h = 0; h < l.heads; h++) {
            int64_t at = t * l.width + h * l.size, at3 = t * 3 * l.width + h * l.size;
            const real *in = real_ptr(qkv) + at3, *dvh = real_ptr(dv) + at;
            real *dqh = real_ptr(dqkv) + at3, *dkh = dqh + l.width;
            memcpy(dqh, real_ptr(dq) + at, (size_t)l.size * sizeof *dqh);
            rotate(dqh, rope_row(&l, t, h), l.size, -1);
            norm_row_bwd(dqh, dqh, in, l.size);
            get_key_grad(&l, dkh, real_ptr(dk) + at, t);
            rotate(dkh, rope_row(&l, t, h), l.size, -1);
            norm_row_bwd(dkh, dkh, in + l.width, l.size);
            memcpy(dqh + 2 * l.width, dvh, (size_t)l.size * sizeof *dqh);
            if (has(table))
                value_grad(&l, real_ptr(dtable_rows) + at, dw, du, dvh, row + h * l.size, u, h);
        }
        if (has(table))
            gate_input_grad_end(&l, du, dy, real_ptr(dtable_rows) + t * l.width);
    }
    if (has(table))
        real_write(dgate, 0, dw, n_gate, true);
}
