/* cutter.h - which tokens of a shard a step takes, and in which order.
 *
 * A step has `chunks` chunks of `tokens` tokens, filled one after the other with pieces of
 * documents. Each rule of types/cut.h is a row of the table in cutter.c:
 *
 *   document  piece i begins document i and ends after `cap` tokens at most, or with its chunk, of
 *             which the last token is a target alone; the rest is not used (record-61.md 6.2).
 *   pieces    round r takes tokens [r P, (r + 1) P) of every document that has them, in the order of
 *             documents; of a stream, document by document. What `cap` or the end of a chunk cuts
 *             off comes next. The target of a token is the one behind it in the shard, so the
 *             shard's last token is a target alone. Tokens before the first document start are a
 *             document, too.
 *   rows      tokens one behind the other, in rows of `cap`, from the shard's first on; targets as in
 *             pieces. A step is of one shard: where p + B + 1 >= n, of its first token p, its B tokens
 *             and the shard's n, the next shard's step begins at its first token, and what is left
 *             is not used.
 *
 *     struct cutter c = { .cut = CUT_PIECES, .piece = 1024 };
 *     struct filling f = { 0 };
 *     cutter_enter(&c, &(struct documents){ find, shard, tokens });
 *     rc = cutter_fill(&c, &shape, &f, &at, take, ctx);        // GPT_NO: the shard has ended
 *     cutter_release(&c);
 *
 * Threads: one.
 */
#ifndef DATA_CUTTER_H
#define DATA_CUTTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"
#include "types/cut.h"

/* Shape of a step's batch. tokens = 0: there is no such step. */
struct batch_shape {
    int chunks; /* chunks a step, one a rank at least: chunk k is rank k % world's */
    int tokens; /* T: tokens a chunk */
    int cap; /* longest piece of a document; 0: no limit */
    int bound; /* M: entries of cu; 0: cu_bound(tokens, 0) */
};

/* Where the next piece begins within a shard. */
struct cut_at {
    int64_t document; /* number of its document; 0 with CUT_ROWS */
    int64_t round; /* number of the piece in its document; 0 with CUT_DOCUMENT and CUT_ROWS */
    int64_t
        token; /* tokens of that piece, with CUT_ROWS of the shard, already used; 0 with CUT_DOCUMENT */
};

/* The documents of one shard. find: begin and end of document i, which is cut at begin + limit;
 * *begin = -1 if there is no document i. */
struct documents {
    int (*find)(void *ctx, int64_t i, int64_t limit, int64_t *begin, int64_t *end);
    void *ctx;
    int64_t tokens; /* of the shard */
    /* Waits until the shard's first n tokens are there; NULL: they are. */
    int (*wait)(void *ctx, int64_t n);
};

struct cutter {
    enum cut cut;
    int piece; /* P, of CUT_PIECES */
    bool stream; /* documents pass once: a document's pieces follow each other */
    struct documents from;
    uint32_t *left; /* the documents that have a piece in `round`, from round 1 on */
    int64_t n;
    size_t room;
    int64_t round;
};

/* How much of a step is filled. */
struct filling {
    int chunk; /* the one to fill */
    int64_t length; /* its tokens so far */
    int pieces; /* its pieces so far */
};

/* True if nothing is left out: what a chunk or a shard's end cuts off comes next, a step goes on in
 * the next shard, and the tokens before a shard's first document start count as a document. */
bool cut_continues(enum cut cut);
/* True if the target of a chunk's last token is the one behind it in the shard, and a shard is used from
 * its first token on. */
bool cut_reads_on(enum cut cut);
/* Goes to a shard's documents; none of the cutter's memory is of another shard after it. */
void cutter_enter(struct cutter *c, const struct documents *from);

enum { CUT_CROWDED = -4 }; /* chunk f->chunk has more than bound - 1 pieces; without a message */
/* Fills the rest of a step from *at on. take gets each piece: tokens begin .. end-1 of the shard,
 * for positions `length` .. of chunk `chunk`. f->chunk = w->chunks: the step is full. GPT_NO,
 * without a message: the shard has ended before. Errors are those of find. */
typedef void take_piece(void *ctx, const struct filling *f, int64_t begin, int64_t end);
int cutter_fill(struct cutter *c, const struct batch_shape *w, int bound, struct filling *f,
                struct cut_at *at, take_piece *take, void *ctx) MUST_CHECK;
/* The message of CUT_CROWDED, with what helps: GPT_INPUT. */
int cut_crowded(const char *path, int64_t step, int chunk, int bound, int tokens) MUST_CHECK;
void cutter_release(struct cutter *c);

#endif
