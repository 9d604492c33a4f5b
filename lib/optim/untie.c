/* untie.c - the untie step: transposes of tables of which each rank holds rows. */
#include "optim/untie.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A rank's shard (n,V) of a (D,V) matrix becomes its shard (v,D) of the transpose. Equal to
 * all-gather, transpose and reshard, but each rank receives only what it keeps. Scratch memory:
 * the gradients of head and embedding, which are cleared by now. */
static void transpose_shards(struct optim *z, struct tensor dst, struct tensor src)
{
    struct ops *o = z->ops;
    struct comm *c = z->comm;
    struct param *head = &z->banks->p[z->recipe->order.tied_head];
    struct param *embed = &z->banks->p[z->recipe->order.tied_embed];
    const struct shard_rows *of_head = z->p[z->recipe->order.tied_head].shard;
    const struct shard_rows *of_embed = z->p[z->recipe->order.tied_embed].shard;

    if (dst.rows == src.cols) {
        o->transpose(o, dst, src, NULL);
        return;
    }
    int64_t sent[c->world], received[c->world];
    struct tensor send = tensor_of(head->g.data, src.dtype, src.cols, src.rows);
    struct tensor recv = tensor_of(embed->g.data, src.dtype, dst.rows, dst.cols);
    struct tensor turned = tensor_of(head->g.data, src.dtype, dst.cols, dst.rows);
    assert(tensor_bytes(send) <= tensor_bytes(head->g));
    assert(tensor_bytes(recv) <= tensor_bytes(embed->g));
    assert(tensor_bytes(turned) <= tensor_bytes(head->g));

    for (int r = 0; r < c->world; r++) { /* in elements: ranks have blocks of their own widths */
        sent[r] = of_embed[r].rows * src.rows;
        received[r] = dst.rows * of_head[r].rows;
    }
    o->transpose(o, send, src, NULL);
    c->wait(c, c->all_to_all(c, tensor_shape(recv, tensor_count(recv), 1), received,
                             tensor_shape(send, tensor_count(send), 1), sent));
    for (int r = 0; r < c->world; r++) {
        struct tensor block = tensor_rows(turned, of_head[r].first, of_head[r].rows);
        struct tensor from = tensor_shape(recv, dst.rows, block.rows);
        from.data =
            tensor_rows(tensor_shape(recv, tensor_count(recv), 1), of_head[r].first * dst.rows, 0)
                .data;
        o->transpose(o, block, from, NULL);
    }
    o->transpose(o, dst, turned, NULL);
}

/* -- numbers with scales ------------------------------------------------------------------- */

/* A tensor with scales as codes that transpose() moves; the new scale of each row from those of columns. */
struct scaled_rows {
    struct tensor t; /* (rows,cols), host */
    const float *column; /* (cols), of what the codes are now */
    float *scale; /* (rows) */
    bool whole; /* one scale for all rows */
    bool second; /* what is not 0 does not become 0 */
};

static float value_at(const struct scaled_rows *s, int64_t r, int64_t c)
{
    int64_t i = r * s->t.cols + c;
    return s->column[c] * (s->t.dtype == DT_F16 ? f16_to_f32(((const uint16_t *)s->t.data)[i])
                                                : e4m3_to_f32(((const uint8_t *)s->t.data)[i]));
}

static void set_code(const struct scaled_rows *s, int64_t r, int64_t c, float x)
{
    int64_t i = r * s->t.cols + c;
    float y = x / s->scale[r];
    uint16_t code = s->t.dtype == DT_F16 ? f16_from_f32(y) : e4m3_from_f32(y);
    if (s->second && code == 0 && x > 0)
        code = 1;
    if (s->t.dtype == DT_F16)
        ((uint16_t *)s->t.data)[i] = code;
    else
        ((uint8_t *)s->t.data)[i] = (uint8_t)code;
}

/* Chooses scales and rounds to nearest, as Adam does (optimizers.md 3.3). */
static void rescale(const struct scaled_rows *s)
{
    for (int64_t r = 0; r < s->t.rows; r++) {
        float most = 0;
        for (int64_t c = 0; c < s->t.cols; c++) {
            float size = s->whole ? s->column[c] : fabsf(value_at(s, r, c));
            most = most != most || size <= most ? most : size;
        }
        s->scale[r] = s->whole ? most : dtype_scale(s->t.dtype, most);
        for (int64_t c = 0; c < s->t.cols; c++)
            set_code(s, r, c, value_at(s, r, c));
    }
}

/* The scales of all of the head's rows, on the host; those of other ranks by way of the embedding's
 * gradient. */
static void head_scales(struct optim *z, const struct row_scaled *from, float *scale)
{
    struct ops *o = z->ops;
    int head = z->recipe->order.tied_head;
    const struct param *p = &z->banks->p[head];
    if (!z->p[head].shard) {
        o->download(o, scale, from->scale, (size_t)p->w.rows * sizeof *scale);
        return;
    }
    struct tensor all =
        tensor_of(z->banks->p[z->recipe->order.tied_embed].g.data, DT_REAL, p->w.rows, 1);
    assert(tensor_bytes(all) <= tensor_bytes(z->banks->p[z->recipe->order.tied_embed].g));
    o->copy(o, tensor_rows(all, p->own_first * param_unit_rows(p), from->t.rows),
            tensor_of(from->scale, DT_REAL, from->t.rows, 1));
    z->comm->wait(z->comm, z->comm->all_gather(z->comm, all, optim_chunks(&z->p[head], z->comm)));
    o->download(o, scale, all.data, tensor_bytes(all));
}

/* On the host, once in a run. */
static int move_scales(struct optim *z, const struct row_scaled *to, const struct row_scaled *from,
                       bool second)
{
    struct ops *o = z->ops;
    float *column = malloc((size_t)to->t.cols * sizeof *column);
    float *scale = malloc((size_t)to->t.rows * sizeof *scale + 1);
    void *codes = malloc(tensor_bytes(to->t) + 1);
    int rc = column && scale && codes ? 0 : err_memory();

    if (!rc) {
        head_scales(z, from, column);
        o->download(o, codes, to->t.data, tensor_bytes(to->t));
        rc = o->status(o);
    }
    if (!rc) {
        struct tensor t = tensor_of(codes, to->t.dtype, to->t.rows, to->t.cols);
        rescale(&(struct scaled_rows){ t, column, scale, from->top != NULL, second });
        o->upload(o, to->t.data, codes, tensor_bytes(to->t));
        o->upload(o, to->scale, scale, (size_t)to->t.rows * sizeof *scale);
    }
    free(column), free(scale), free(codes);
    return rc;
}

static void move_state(struct optim *z, const struct row_scaled *to, const struct row_scaled *from,
                       bool second)
{
    struct tensor dst = to->t, src = from->t;
    if (!from->t.data)
        return;
    if (tensor_count(dst) == 1 && tensor_count(src) == 1) { /* one number for all elements */
        z->ops->copy(z->ops, dst, src);
        return;
    }
    if (from->scale) /* codes, whatever they stand for */
        dst.dtype = src.dtype = from->t.dtype == DT_F16 ? DT_U16 : DT_U8;
    transpose_shards(z, dst, src);
    if (from->scale && move_scales(z, to, from, second) && !z->ops->status(z->ops))
        z->comm->abort(z->comm, err_code(), err_message());
}

/* Moves the head's states of that role to those of the same names of the embedding; around: only those of what is
 * done around all updates. */
static void move_states(struct optim *z, enum state_role role, bool around)
{
    const struct optim_param *head = &z->p[z->recipe->order.tied_head];
    const struct optim_param *embed = &z->p[z->recipe->order.tied_embed];

    for (int k = 0; k < head->n_states; k++) {
        const char *kind = head->state[k].kind, *dot = strrchr(kind, '.');
        if (head->state[k].role != role || (around && head->state[k].chain >= 0) ||
            (dot && !strcmp(dot, ".scale")))
            continue;
        struct row_scaled to = optim_scaled(embed, kind), from = optim_scaled(head, kind);
        from.top = role == STATE_RULE && z->recipe->precision.adam.whole ? head->top : NULL;
        move_state(z, &to, &from, !strcmp(kind, "exp_avg_sq"));
    }
}

void optim_tie_master(struct optim *z) { move_states(z, STATE_MASTER, false); }

void optim_untie(struct optim *z)
{
    const struct recipe *r = z->recipe;
    struct optim_param *head = &z->p[r->order.tied_head], *embed = &z->p[r->order.tied_embed];

    optim_tie_master(z);
    move_states(z, STATE_RULE, r->schedule.untie_state == UNTIE_ZERO);
    if (r->schedule.untie_state == UNTIE_ZERO)
        return; /* the embedding has had no update: its moments and counter are zero */
    embed->count = head->count;
    embed->counted = true;
}
