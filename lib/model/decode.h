/* decode.h - incremental decoding: sequences that grow by a token, with a cache of keys and values.
 *
 * It is the flattened forward of forward.c over rows that are tokens of sequences, each at its
 * position, in any mixture: a prompt's many rows, or one row of each of many sequences. What the
 * records carry from token to token is in the row (the token before, for smear, bigram hash and
 * signs; the position, for rotation) or in the cache: raw keys, to which attention_cached applies the
 * key offset, and values, terms of them included, so that paired heads, windows, offsets and exclusive
 * attention need no other state. The logits are those of
 * the full forward.
 *
 *     struct decoder d;
 *     if ((rc = banks_init_weights(&b, r, o)) || ... load them ...
 *         (rc = model_init_to(&m, &b, 0, 512, context))) return rc;
 *     model_set(&m, &schedule);                                 // before decoder_init: windows
 *     if ((rc = decoder_init(&d, &m, sequences, 512, context))) return rc;
 *     decoder_rows(&d, rows, n), decoder_fill(&d);              // prompts but their last tokens
 *     decoder_rows(&d, last, sequences);
 *     for (;;) {
 *         decoder_next(&d, &choice);                            // d.next.token: the tokens after
 *         o->fetch(o, d.next.token, bytes);
 *     }
 *
 * decoder_next only queues ops and depends on device memory alone, so it can be captured as a graph
 * and replayed. Memory is taken from ops by decoder_init and freed with it. Threads: as struct model.
 */
#ifndef MODEL_DECODE_H
#define MODEL_DECODE_H

#include "model/model.h"

enum { DECODE_BLOCK = 64 }; /* rows of a prompt come in multiples of it, but for the last ones */

/* A token of a sequence. */
struct decode_row {
    int slot; /* which sequence, from 0 on */
    int32_t pos, token;
    int32_t before; /* the token before; not read at position 0 */
    uint64_t stream; /* of random draws */
};

struct decoder {
    struct model *m;
    int sequences, most, context;
    int rows; /* that decoder_rows gave */
    bool apart; /* no two of them are of one sequence */
    struct kv_cache cache[MAX_LAYERS];
    struct next_rows next; /* device: rows of the next call */
    int32_t *slot;
    uint64_t *stream;
    struct tensor logits; /* (sequences,V) f32 of the last call */
    void *staged; /* host: a copy of what is uploaded */
};

/* Sequences of at most `context` tokens, calls of at most `most` rows; most >= sequences. m was made
 * for most tokens and context positions, and model_set. */
int decoder_init(struct decoder *d, struct model *m, int sequences, int most,
                 int64_t context) MUST_CHECK;
void decoder_release(struct decoder *d);
/* The rows of the next call: a sequence's in order of position, one after the other, beginning
 * where its last call ended. */
void decoder_rows(struct decoder *d, const struct decode_row *row, int n);
void decoder_fill(struct decoder *d); /* keys and values of the rows into the cache */
void decoder_logits(struct decoder *d); /* and the logits of each row: at most `sequences` rows */
void decoder_next(struct decoder *d, const struct choice *c); /* and the next token of each */

#endif
