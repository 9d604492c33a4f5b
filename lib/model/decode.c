/* decode.c - see decode.h. */
#include "model/decode.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include "types/bigram.h"

/* Tokens of a sequence that layer i keeps: what a query of a whole block sees, the token before for
 * a key offset, and the rows of a call. */
static int64_t capacity(const struct model *m, int i, int most, int64_t context)
{
    const struct layer_spec *l = &m->recipe->layers[i];
    int pair = l->attention == ATTN_PAIRED ? 2 : 1;
    int64_t window = l->long_window ? m->schedule.window_long : m->schedule.window_short;
    if (recipe_token_role(m->recipe, i, TOKEN_DC1) && window < m->recipe->model.compose_window)
        window = m->recipe->model.compose_window;
    int64_t n = (window + pair - 1) / pair + 1 + DECODE_BLOCK + most;
    return n < context ? n : context;
}

static int64_t cache_rows(const struct model *m, int i, int sequences, int most, int64_t context)
{
    return layer_attends(m->recipe, i) ? sequences * capacity(m, i, most, context) : 0;
}

/* Integers of a row, in one block: five arrays of int32 behind the streams. */
enum { ROW_INTS = 5 };
static size_t row_bytes(int n) { return (size_t)n * (sizeof(uint64_t) + ROW_INTS * 4); }

static void init_rows(struct decoder *d)
{
    struct ops *o = d->m->ops;
    char *at = o->alloc(o, row_bytes(d->most), "rows");
    if (!at)
        return;
    int32_t *ints = (int32_t *)(at + (size_t)d->most * sizeof(uint64_t));
    d->stream = (uint64_t *)at;
    d->slot = ints;
    d->next = (struct next_rows){ .token = ints + d->most,
                                  .before = ints + 2 * d->most,
                                  .pos = ints + 3 * d->most,
                                  .bigram = d->m->p.bigram_embed ? ints + 4 * d->most : NULL,
                                  .bigram_rows = d->m->recipe->model.bigram.rows };
}

static void init_cache(struct decoder *d, int i)
{
    struct ops *o = d->m->ops;
    int64_t rows = cache_rows(d->m, i, d->sequences, d->most, d->context);
    struct tensor k = tensor_of(NULL, o->act, rows, recipe_qk_rows(d->m->recipe, i));
    struct tensor v = tensor_of(NULL, o->act, rows, d->m->recipe->model.width);
    if (!rows)
        return;
    k.data = o->alloc(o, tensor_bytes(k), "cached keys");
    v.data = o->alloc(o, tensor_bytes(v), "cached values");
    d->cache[i] =
        (struct kv_cache){ .k = k,
                           .v = v,
                           .capacity = (int)(rows / d->sequences),
                           .key_offset = layer_key_offset(d->m->recipe, i),
                           .slot = d->slot,
                           .pos = d->next.pos,
                           .values_apart =
                               streams_at(&d->m->streams, STREAM_FORWARD, STREAM_VALUES, i).n > 0 ||
                               recipe_token_role(d->m->recipe, i, TOKEN_DC1) };
}

int decoder_init(struct decoder *d, struct model *m, int sequences, int most, int64_t context)
{
    struct ops *o = m->ops;
    assert(most >= sequences && most % DECODE_BLOCK == 0 && context > 0);
    *d = (struct decoder){ .m = m, .sequences = sequences, .most = most, .context = (int)context };
    init_rows(d);
    for (int i = 0; i < m->recipe->n_layers; i++)
        init_cache(d, i);
    d->logits = tensor_of(NULL, DT_REAL, sequences, m->recipe->model.vocab);
    d->logits.data = o->alloc(o, tensor_bytes(d->logits), "logits");
    if (!(d->staged = malloc(row_bytes(most))))
        return err_memory();
    return o->status(o);
}

void decoder_release(struct decoder *d)
{
    free(d->staged);
    d->staged = NULL;
}

void decoder_rows(struct decoder *d, const struct decode_row *row, int n)
{
    struct ops *o = d->m->ops;
    int most = d->most, bigrams = d->m->recipe->model.bigram.rows;
    uint64_t *stream = d->staged;
    int32_t *ints = (int32_t *)(stream + most);

    assert(n <= most);
    memset(d->staged, 0, row_bytes(most));
    d->apart = true;
    for (int t = 0; t < n; t++) {
        const struct decode_row *r = &row[t];
        assert(r->slot < d->sequences && r->pos < d->context);
        d->apart &= !t || r->slot != row[t - 1].slot;
        stream[t] = r->stream;
        ints[t] = r->slot;
        ints[most + t] = r->token;
        ints[2 * most + t] = r->pos ? r->before : -1;
        ints[3 * most + t] = r->pos;
        if (bigrams)
            ints[4 * most + t] =
                !r->pos ? bigrams - 1
                        : bigram_row(r->token, r->pos > 1 ? r->before : bigrams - 1, bigrams);
    }
    o->upload(o, d->stream, d->staged, row_bytes(most));
    d->rows = n;
}

static struct acts *forward(struct decoder *d)
{
    struct model *m = d->m;
    struct batch b = { .tokens = d->rows,
                       .token = { .tokens = d->rows, .row = d->next.token },
                       .bigram = { .tokens = d->next.bigram ? d->rows : 0, .row = d->next.bigram },
                       .pos = d->next.pos,
                       .before = d->next.before,
                       .apart = d->apart };
    struct acts *a = model_acts(m, d->rows, false);
    m->cache = d->cache;
    model_forward(m, a, &b);
    m->cache = NULL;
    return a;
}

void decoder_fill(struct decoder *d) { forward(d); }

void decoder_logits(struct decoder *d)
{
    struct model *m = d->m;
    struct head_loss h = model_head(m, &(struct batch){ 0 });
    assert(d->rows <= d->sequences);
    struct acts *a = forward(d);
    m->ops->logits(m->ops, tensor_rows(d->logits, 0, d->rows), a->head, m->p.lm_head->w, &h);
}

void decoder_next(struct decoder *d, const struct choice *c)
{
    struct choice with = *c;
    with.stream = d->stream;
    decoder_logits(d);
    d->m->ops->choose(d->m->ops, &d->next, tensor_rows(d->logits, 0, d->rows), &with);
}
