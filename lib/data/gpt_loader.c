/* gpt_loader.c - see gpt_loader.h. */
#include "data/gpt_loader.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "data/loader.h"

struct gpt_loader {
    struct loader *inside;
    int rank, world;
    bool begun;
    struct loader_pos at; /* of the next step */
    struct gpt_chunk *chunk; /* of this rank */
};

int gpt_loader_open(struct gpt_loader **out, const struct gpt_loader_options *o)
{
    struct gpt_loader *l;
    *out = NULL;
    if (!o->data || o->chunks < 1 || o->tokens < 1 || o->cap < 1 || o->vocab < 1 || o->world < 1 ||
        o->rank < 0 || o->rank >= o->world || o->max_documents < 0)
        return err_set(GPT_USAGE, "loader: expected data, and chunks, tokens, cap, vocab, world of "
                                  "at least 1 and a rank below world");
    struct loader_config c = { .data = o->data,
                               .wake = -1,
                               .world = o->world,
                               .first_rank = o->rank,
                               .local_ranks = 1,
                               .vocab = o->vocab,
                               .bos = -1,
                               .cut = o->pieces ? CUT_PIECES : CUT_DOCUMENT,
                               .piece = o->pieces ? o->cap : 0,
                               .cycle = o->cycle,
                               .repeat = 1,
                               .max = { .chunks = o->chunks,
                                        .tokens = o->tokens,
                                        .bound = cu_bound(o->tokens, o->max_documents),
                                        .cap = o->cap } };
    if (!(l = calloc(1, sizeof *l)) || !(l->chunk = calloc((size_t)o->chunks, sizeof *l->chunk))) {
        free(l);
        return err_memory();
    }
    l->rank = o->rank;
    l->world = o->world;
    int rc = loader_new(&l->inside, &c);
    if (rc) {
        gpt_loader_close(l);
        return rc;
    }
    *out = l;
    return 0;
}

int gpt_loader_next(struct gpt_loader *l, const struct gpt_chunk **chunk, int *n)
{
    const struct step_batch *b;
    int rc = loader_next(l->inside, l->rank, &b);
    if (rc)
        return rc;
    *n = 0;
    for (int k = l->rank; k < b->chunks; k += l->world) {
        const struct chunk *c = &b->chunk[k];
        l->chunk[(*n)++] = (struct gpt_chunk){ c->tokens, c->docs, c->tok, c->tgt, c->cu + 1 };
    }
    *chunk = l->chunk;
    l->at = b->after;
    l->begun = true;
    return 0;
}

void gpt_loader_position(const struct gpt_loader *l, char *text, int size)
{
    const struct loader_pos *p = &l->at;
    snprintf(text, (size_t)size,
             "%s %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64,
             loader_id(l->inside), p->step, p->epoch, p->shard, p->at.document, p->at.round,
             p->at.token, p->used);
}

int gpt_loader_seek(struct gpt_loader *l, const char *position)
{
    struct loader_pos p = { 0 };
    char id[33];
    int n = 0;
    if (l->begun)
        return err_set(GPT_USAGE, "loader: a position is taken before the first step");
    if (sscanf(position,
               "%32s %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64
               " %" SCNd64 "%n",
               id, &p.step, &p.epoch, &p.shard, &p.at.document, &p.at.round, &p.at.token, &p.used,
               &n) != 8 ||
        position[n])
        return err_set(GPT_INPUT, "loader: expected a position, found '%.80s'", position);
    if (strcmp(id, loader_id(l->inside)) != 0)
        return err_set(GPT_INPUT, "loader: a position in other data: '%s', not '%s'", id,
                       loader_id(l->inside));
    l->at = p;
    return loader_seek(l->inside, &p);
}

void gpt_loader_close(struct gpt_loader *l)
{
    if (!l)
        return;
    if (l->inside)
        loader_free(l->inside);
    free(l->chunk);
    free(l);
}
