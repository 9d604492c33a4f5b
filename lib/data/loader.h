/* loader.h - batches for training (BOS-aligned) and validation (unaligned).
 *
 * A step takes `chunks` chunks of `tokens` tokens each (record 61: 8 chunks,
 * whatever the number of ranks). With N ranks, rank r gets chunk m*N + r in
 * micro-step m; which tokens a chunk holds does not depend on N. cutter.h says
 * which they are. CUT_DOCUMENT is the packing of modded-nanogpt's record 61
 * (and, with the cap given by step, of record 74): if a shard ends inside a step,
 * the whole step is dropped and made again from the next shard. (The record
 * drops one micro-step; with 8 ranks that is the same, and a whole step is what
 * makes 1, 2, 4 and 8 ranks see the same data.) So a shard without a document
 * start, all of it the middle of one document, is passed over. With CUT_PIECES
 * the step goes on in the next shard, but of a stream with `repeat`. With CUT_ROWS
 * a step that the rest of a shard is too short for begins in the next one.
 *
 *     struct loader_config c = { .data = "shards", .world = 8, .local_ranks = 8, .vocab = 50304,
 *                                .bos = -1, .csr = true, .shape = plan_shape, .ctx = &plan,
 *                                .max = { .chunks = 8, .tokens = 49152 } };
 *     if ((rc = loader_new(&l, &c))) return rc;
 *     if (resume && (rc = loader_seek(l, &ckpt.pos))) return rc;
 *     for (s = ...) {                                    // in each rank's thread
 *         const struct step_batch *b;
 *         if ((rc = loader_next(l, rank, &b))) return rc;
 *         for (k = rank; k < b->chunks; k += world)
 *             train(b->chunk[k], ...);    // b->after goes to the checkpoint
 *     }
 *     loader_free(l);
 *
 * Threads: loader_next may be called by all local ranks at once, each with its
 * own rank number; everything else by one thread. A batch stays valid until
 * every local rank has asked for the next one. The next batch is prepared, and
 * the next shard read and indexed, by threads of the loader. After loader_next
 * has returned a batch, nothing is allocated but for a new shard.
 */
#ifndef DATA_LOADER_H
#define DATA_LOADER_H

#include "base/err.h"
#include "data/chunk.h"
#include "data/corpus.h"
#include "data/cutter.h"

/* Where the next step begins: the whole state of a loader that a checkpoint must hold. */
struct loader_pos {
    int64_t step; /* steps served before */
    int64_t epoch; /* times that the list of shards was used up */
    int64_t shard; /* index in the list of training shards */
    struct cut_at at; /* in that shard */
    int64_t used; /* tokens trained on since the list began; -1: not known */
};

/* What one pass over the data trains on. */
struct pass {
    int64_t number; /* of passes that have ended; 0: none */
    int64_t used, tokens; /* tokens trained on (-1: not known), of so many */
    bool about; /* of what was looked at: the rest may be otherwise */
    int64_t startless; /* of loader_pass: first tokens, without a document start; 0: one is there */
};

struct step_batch {
    int64_t step;
    int chunks;
    const struct chunk *chunk; /* [chunks] */
    struct loader_pos at, after; /* of this step, and of the one after */
    struct pass ended; /* the pass that ended before this step or in it */
    double passes; /* over the data, up to the end of this step */
    /* In a stream: its tokens before the step's first piece, and up to the end of its last. */
    int64_t from, upto;
};

struct shard_stream;
struct loader_config {
    const char *data; /* see corpus.h: folder with MANIFEST, or file, or glob of files */
    struct corpus_choice choice; /* of its files */
    /* In place of files: what is left of this stream, which data names for messages. Positions count
     * its shards. It cannot cycle: GPT_USAGE. */
    struct shard_stream *stream;
    int wake; /* with a stream: the eventfd of zio_wake, set also by loader_stop; -1: none */
    int world; /* N: ranks of the whole job */
    int first_rank, local_ranks; /* those that this process serves */
    int vocab; /* V: a token >= vocab is an error; size of the csr */
    int bos; /* document start; -1: as the MANIFEST says, else 50256 */
    enum cut cut;
    int piece; /* P of CUT_PIECES */
    bool cycle; /* start again when the shards are used up; else that is an error */
    int repeat; /* N: so many steps, from repeat_from on, get the same documents; 0: as 1 */
    int64_t repeat_from;
    int bigram_rows; /* rows of the bigram table; 0: there is none */
    bool csr; /* make start and order, and bigram's */
    int threads; /* to decode .zst shards; 0: 2 */
    bool no_verify; /* do not hold what is read against the MANIFEST */
    /* Shape of a step, a pure function of it, called from the loader's thread.
     * NULL: every step is `max`. */
    struct batch_shape (*shape)(void *ctx, int64_t step);
    void *ctx;
    struct batch_shape max; /* largest of each; what is allocated (cap is ignored) */
};

enum { LOADER_STOPPED = -3 }; /* waiting for a stream was ended by `wake` */

struct loader;

/* Finds the shards and checks their headers and sizes; reads no tokens yet
 * (the record's clock includes the first shard, and so does the first
 * loader_next). GPT_INPUT: no MANIFEST, wrong magic, truncated shard, no
 * training shard. GPT_USAGE: fewer chunks than ranks. */
int loader_new(struct loader **l, const struct loader_config *c) MUST_CHECK;
/* Continues at a position from batch.after, before the first loader_next. A stream is read up to there
 * by the first loader_next. */
int loader_seek(struct loader *l, const struct loader_pos *at) MUST_CHECK;
/* The step that data which do not cycle cannot reach the end of, as far as sizes of shards tell; else,
 * and of a stream, INT64_MAX. Before the first loader_next. */
int64_t loader_most_steps(const struct loader *l);
/* GPT_INPUT: token >= vocab, no shard that holds a batch, more than M-1 pieces in a chunk, data
 * used up. LOADER_STOPPED, without a message. The same error is given to every rank that asks. */
int loader_next(struct loader *l, int rank, const struct step_batch **b) MUST_CHECK;
/* What a pass that begins with step `step` will train on: counted by the indexes beside the shards,
 * else by what their front has, and the MANIFEST, which is about. Reads 4 Mi tokens at most. GPT_INPUT
 * also for more documents in a chunk than its bound. Of files; needs no loader. */
int loader_pass(const struct loader_config *c, int64_t step, struct pass *p) MUST_CHECK;
/* "N of M tokens (P%)", with ~ where it is about. */
enum { PASS_TEXT = 96 };
void pass_text(const struct pass *p, char *text, size_t size);
/* Wakes all who wait in loader_next with GPT_SYSTEM "stopped"; any thread. */
void loader_stop(struct loader *l);
void loader_free(struct loader *l);
/* Which data this is: XXH3-128 over name, tokens and hash of the training
 * shards. A position holds only for data with the same id. */
const char *loader_id(const struct loader *l);
/* The files; none of a stream. */
const struct corpus *loader_files(const struct loader *l);
/* Which tokenizer made it (corpus.h); "" where no MANIFEST says. */
const char *loader_tokenizer(const struct loader *l);

/* Validation: chunk k holds tokens [k*T, (k+1)*T) of the validation shards and
 * the targets one later; micro-step m of rank r is chunk m*N + r, so that any N
 * sees the same tokens. Documents are not capped; cu has the positions of
 * document starts in tok. A group of `chunks` chunks never spans two files
 * (record 61 §6.3).
 *
 *     struct val_config c = { .data = "shards", .ranks = 8, .vocab = 50304, .bos = -1,
 *                             .shape = { .chunks = 8, .tokens = 262144 }, .total = 40 };
 *     if ((rc = val_new(&v, &c))) return rc;
 *     for (k = rank; k < 40; k += world)
 *         if ((rc = val_chunk(v, rank, k, &chunk))) return rc;
 *
 * Threads: val_chunk by all ranks at once, each with its own number; a chunk is
 * valid until the same rank asks again. No csr, no pieces.
 */
struct val_config {
    const char *data;
    bool only_val; /* it holds nothing else (SPLIT_ONLY_VAL) */
    struct corpus_choice choice; /* of its files */
    struct shard_stream *stream; /* in place of files: its first tokens, which are read here */
    int ranks; /* local ones: 0 .. ranks-1 may call */
    int vocab, bos;
    int bigram_rows; /* 0: none */
    int row; /* rows of so many tokens in place of documents; 0: documents */
    struct batch_shape shape; /* chunks a group (8), tokens, bound; cap is ignored */
    int64_t total; /* chunks wanted; fewer in the data is GPT_INPUT */
    int threads;
    bool no_verify;
};
struct val;
int val_new(struct val **v, const struct val_config *c) MUST_CHECK;
int val_chunk(struct val *v, int rank, int64_t k, struct chunk *out) MUST_CHECK;
const struct corpus *val_files(const struct val *v); /* none of a stream */
void val_free(struct val *v);

#endif
