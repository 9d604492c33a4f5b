/* generate.h - texts that a model writes: prompts continued token by token, many at a time.
 *
 *     struct generate g = { .decoder = &d, .vocab = v, .choice = { ... }, .tokens = 100, .count = 1,
 *                           .text = on_text, .end = on_end, .arg = x };
 *     rc = generate(&g, prompts, n);
 *
 * A text ends after `tokens` tokens, or where the model ends the document. The draws of a text depend
 * on seed and number among the `count` of its prompt alone, and its logits on no other text
 * (ops.rows_apart): so which texts are computed together changes nothing. Texts are
 * handed out in order; the first one that is not finished as it comes, in whole characters of
 * UTF-8. One thread.
 */
#ifndef SAMPLE_GENERATE_H
#define SAMPLE_GENERATE_H

#include "device/backend.h"
#include "model/decode.h"
#include "sample/prompts.h"

enum { GENERATE_MAX = FETCH_BYTES / 4 }; /* sequences at a time */

struct generate {
    struct decoder *decoder;
    const struct backend *graphs; /* whose graphs are used; NULL: ops are queued one by one */
    const struct vocab *vocab;
    struct choice choice; /* classes and stream are set here */
    int tokens, count;
    bool ignore_end; /* the end of the document is not chosen */
    /* n bytes of prompt p's text number k; after the last ones, that it ended after so many
     * tokens, by itself or not. Not 0: no more is generated. */
    int (*text)(void *arg, int p, int k, const char *s, size_t n);
    int (*end)(void *arg, int p, int k, int tokens, bool ended);
    void *arg;
    int64_t steps, chosen; /* set: decoding steps, tokens that they gave */
    double fill_seconds, step_seconds; /* set: spent on prompts, on steps */
};

/* The longest that a sequence may become: what the decoder's context and the model's rotary table
 * must hold. */
int64_t generate_context(const struct prompts *p, int tokens);
/* True if the end of a text is an id that can be left out: the last. */
bool generate_can_ignore_end(const struct vocab *v);
int generate(struct generate *g, const struct prompts *p) MUST_CHECK;

#endif
