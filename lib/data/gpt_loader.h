/* gpt_loader.h - batches of documents for training, as gpt-train takes them, for programs outside of
 * this tree.
 *
 *     struct gpt_loader_options o = { .data = "shards", .chunks = 8, .tokens = 2048, .cap = 2048,
 *                                     .vocab = 50304, .world = 1 };
 *     struct gpt_loader *l;
 *     const struct gpt_chunk *c;
 *     if (gpt_loader_open(&l, &o)) return 1;
 *     for (int step = 0, n; step < 100 && !gpt_loader_next(l, &c, &n); step++)
 *         for (int k = 0; k < n; k++)
 *             use(c[k].token, c[k].target, c[k].tokens);
 *     gpt_loader_close(l);
 *
 * The tokens of a step do not depend on the number of ranks. One thread a loader; the next step is read
 * ahead by a thread of its own.
 */
#ifndef GPT_LOADER_H
#define GPT_LOADER_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct gpt_loader_options {
    const char *
        data; /* a folder of gpt-tokshard, a file, or a pattern of files; what validates is left out */
    int chunks, tokens; /* chunks a step over all ranks, tokens of each */
    int cap; /* tokens of a document that are used; with pieces: tokens of a piece */
    bool pieces; /* documents are cut into pieces, all of which are used */
    bool cycle; /* begin again where the data end; else that is GPT_ERROR_INPUT */
    int max_documents; /* of a chunk; 0: 128, or a 300th of its tokens */
    int vocab; /* a token of vocab or above is GPT_ERROR_INPUT */
    int rank, world; /* this process's of how many: it gets chunks rank, rank + world, ... */
};
struct gpt_chunk {
    int tokens, documents;
    const int32_t *token, *target; /* [tokens]; target[t] follows token[t] */
    const int32_t *end; /* [documents] where each ends: attention does not cross it */
};

struct gpt_loader;
int gpt_loader_open(struct gpt_loader **l, const struct gpt_loader_options *o);
/* The n chunks of this rank in the next step; valid until the next call. */
int gpt_loader_next(struct gpt_loader *l, const struct gpt_chunk **chunk, int *n);
/* Writes where the next step begins, to be kept with a checkpoint: text of at most 160 bytes. */
void gpt_loader_position(const struct gpt_loader *l, char *text, int size);
/* Goes on from there, with the same data and options but rank and world; before the first next. */
int gpt_loader_seek(struct gpt_loader *l, const char *position);
void gpt_loader_close(struct gpt_loader *l); /* NULL: nothing */

#ifdef __cplusplus
}
#endif
#endif
