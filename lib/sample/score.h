/* score.h - how likely texts are to a model: the sum of the log-likelihoods of their tokens.
 *
 *     struct scorer s;
 *     if ((rc = scorer_init(&s, &model))) return rc;
 *     rc = score_text(&s, &prompts.v[i], &score);          // score.nats <= 0
 *     rc = score_shards(&s, "shards", "", vocab, &score);      // the run's validation
 *
 * A text is computed by itself, by the full forward; shards as gpt-train validates: chunks of the
 * recipe's data.val_chunk tokens, the first data.val_tokens. m was made for the longest of them.
 * One thread.
 */
#ifndef SAMPLE_SCORE_H
#define SAMPLE_SCORE_H

#include "model/model.h"
#include "sample/prompts.h"

struct score {
    int64_t tokens, bytes; /* scored, and the bytes of their text */
    double nats; /* the sum of log p */
};
static inline double score_bits_a_byte(const struct score *s)
{
    return -s->nats / 0.69314718055994531 / (double)s->bytes;
}

struct scorer {
    struct model *m;
    int tokens; /* of the longest text */
    char *slot; /* device: tokens, targets and so on of a batch */
    real *loss; /* device */
    int32_t *host;
};

/* tokens: the most that m's arena is for. */
int scorer_init(struct scorer *s, struct model *m, int tokens) MUST_CHECK;
void scorer_release(struct scorer *s);
int score_text(struct scorer *s, const struct prompt *p, struct score *out) MUST_CHECK;
/* Scores data that hold validation alone, or the run's, whose training data have the id `run` (""
 * where it is not known): then the files that it validates on. */
int score_shards(struct scorer *s, const char *data, const char *run, const struct vocab *v,
                 struct score *out) MUST_CHECK;

#endif
