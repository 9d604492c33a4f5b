/* score.c - see score.h. */
#include "sample/score.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include "data/bigram.h"
#include "data/loader.h"

static struct chunk_shape shape_of(const struct recipe *r, int tokens)
{
    return (struct chunk_shape){ .tokens = tokens,
                                 .bound = cu_bound(tokens, r->data.max_documents),
                                 .vocab = r->model.vocab,
                                 .bigram_rows = r->model.bigram.rows };
}

int scorer_init(struct scorer *s, struct model *m, int tokens)
{
    struct ops *o = m->ops;
    struct chunk_shape shape = shape_of(m->recipe, tokens);
    size_t bytes = chunk_block_bytes(&shape);
    *s = (struct scorer){ .m = m, .tokens = tokens, .host = malloc(bytes) };
    s->slot = o->alloc(o, bytes, "texts");
    s->loss = o->alloc(o, sizeof *s->loss, "loss");
    return s->host ? o->status(o) : err_memory();
}

void scorer_release(struct scorer *s)
{
    free(s->host);
    s->host = NULL;
}

/* Adds the loss of n tokens of the chunk to s->loss. */
static void evaluate(struct scorer *s, const struct chunk *c, int first, int n)
{
    struct ops *o = s->m->ops;
    const char *base = c->block;
    struct batch b = { .tokens = c->tokens,
                       .tgt = (int32_t *)(s->slot + ((char *)c->tgt - base)),
                       .cu = (int32_t *)(s->slot + ((char *)c->cu - base)),
                       .ncu = c->bound,
                       .token = { .tokens = c->tokens,
                                  .row = (int32_t *)(s->slot + ((char *)c->tok - base)) } };
    if (c->bigram)
        b.bigram = (struct lookup){ .tokens = c->tokens,
                                    .row = (int32_t *)(s->slot + ((char *)c->bigram - base)) };
    o->upload(o, s->slot, c->block, c->block_bytes);
    model_eval_part(s->m, &b, first, n, s->loss);
}

static int take_loss(struct scorer *s, double *loss)
{
    struct ops *o = s->m->ops;
    real sum = 0;
    o->download(o, &sum, s->loss, sizeof sum);
    *loss = (double)sum;
    return o->status(o);
}

static void begin(struct scorer *s)
{
    s->m->ops->zero(s->m->ops, tensor_of(s->loss, DT_REAL, 1, 1));
}

int score_text(struct scorer *s, const struct prompt *p, struct score *out)
{
    int T = p->n - 1, first = T - p->scored;
    struct chunk_shape shape = shape_of(s->m->recipe, T);
    struct chunk c;
    double loss = 0;
    int rc = 0;

    assert(T <= s->tokens && first >= 0);
    if (p->scored) {
        chunk_place(&c, s->host, &shape);
        memcpy((int32_t *)c.tok, p->token, (size_t)T * sizeof *p->token);
        memcpy((int32_t *)c.tgt, p->token + 1, (size_t)T * sizeof *p->token);
        for (int i = 0; i < c.bound; i++)
            ((int32_t *)c.cu)[i] = i ? T : 0;
        chunk_index(&c, &shape);
        begin(s);
        evaluate(s, &c, first, p->scored);
        rc = take_loss(s, &loss);
    }
    *out = (struct score){ .tokens = p->scored,
                           .bytes = (int64_t)p->scored_bytes,
                           .nats = p->scored ? -loss : 0 };
    return rc;
}

int score_shards(struct scorer *s, const char *data, const char *run, const struct vocab *v,
                 struct score *out)
{
    bool old = *run && corpus_was_old(data, &(struct corpus_choice){ .wants_val = true }, run);
    const struct recipe *r = s->m->recipe;
    int64_t n = r->data.val.tokens / r->data.val.chunk;
    struct val_config config = { .data = data,
                                 .only_val = !old,
                                 .choice = { .old = old },
                                 .ranks = 1,
                                 .vocab = r->model.vocab,
                                 .bos = r->data.bos,
                                 .bigram_rows = r->model.bigram.rows,
                                 .row = recipe_row(r),
                                 .shape = { .chunks = recipe_val_group(r),
                                            .tokens = (int)r->data.val.chunk,
                                            .bound = cu_bound((int)r->data.val.chunk,
                                                              r->data.max_documents) },
                                 .total = n };
    struct val *val = NULL;
    double loss = 0;
    int rc = val_new(&val, &config);
    const char *made = rc ? "" : strchr(val_files(val)->tokenizer, ' ');
    if (!rc && made && strcmp(made + 1, v->sha256))
        rc = err_set(GPT_INPUT, "%s: the shards were made with the vocabulary %s, found %s %s",
                     data, val_files(val)->tokenizer, v->name, v->sha256);

    *out = (struct score){ .tokens = n * r->data.val.chunk };
    begin(s);
    for (int64_t k = 0; k < n && !rc; k++) {
        struct chunk c;
        if ((rc = val_chunk(val, 0, k, &c)))
            break;
        evaluate(s, &c, 0, c.tokens);
        for (int t = 0; t < c.tokens; t++) {
            uint32_t rank = vocab_rank(v, (uint16_t)c.tgt[t]);
            size_t bytes = 0;
            if (rank != TOKEN_NONE)
                vocab_token(v, (int)rank, &bytes);
            out->bytes += (int64_t)bytes;
        }
        rc = s->m->ops->status(s->m->ops);
    }
    if (!rc && !(rc = take_loss(s, &loss)))
        out->nats = -loss;
    val_free(val);
    return rc;
}
