/* prompts.h - texts to continue or to score: operands, lines, or JSON lines; as tokens.
 *
 *     struct prompts p = { .vocab = v };
 *     if ((rc = prompts_add(&p, "Once upon", NULL))) ...                  // a text alone, or
 *     if ((rc = prompts_read(&p, "-", true, false))) ...                  // lines of a file
 *     use(p.v[i].token, p.v[i].n, p.v[i].scored);
 *     prompts_release(&p);
 *
 * A prompt's tokens begin with the document start. Bytes that are not UTF-8 become U+FFFD, as
 * gpt-tokshard makes them, and are counted. One thread.
 */
#ifndef SAMPLE_PROMPTS_H
#define SAMPLE_PROMPTS_H

#include <stdbool.h>
#include "tokenize/vocab.h"

struct prompt {
    char *id; /* NULL: its number, from 1 on */
    char *text; /* without the continuation; UTF-8 */
    size_t bytes; /* of text */
    int32_t *token;
    int n; /* tokens, the document start included */
    int scored; /* of them, the last so many are the continuation's */
    size_t scored_bytes; /* of its text */
};

struct prompts {
    const struct vocab *vocab;
    struct prompt *v;
    int n;
    int64_t invalid; /* sequences of bytes that were not UTF-8 */
    struct bpe *bpe; /* made with the first text */
};

/* continuation: what is scored; NULL: all of the text, behind the document start. */
int prompts_add(struct prompts *p, const char *text, const char *continuation) MUST_CHECK;
/* A prompt a line of a file, maybe compressed; "-" is standard input. tabs: what follows a line's
 * first tab is its continuation. jsonl: each line is an object with "text", maybe "continuation" and
 * "id", a string or a number; blank lines are passed over. GPT_INPUT names file and line. */
int prompts_read(struct prompts *p, const char *path, bool jsonl, bool tabs) MUST_CHECK;
void prompts_release(struct prompts *p);

#endif
