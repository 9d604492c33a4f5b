/* trained.h - a trained model: recipe, step, tokenizer and weights of a run's newest checkpoint, of
 * one checkpoint, of a packed one, or of a file that gpt-ckpt exported.
 *
 *     struct trained t;
 *     if ((rc = trained_open(&t, "run", NULL))) return rc;
 *     if ((rc = trained_vocab(&t, NULL, NULL, &vocab))) ...
 *     if ((rc = banks_init_weights(&banks, t.recipe, ops)) || (rc = trained_load(&t, &banks))) ...
 *     trained_close(&t);
 *
 * One thread. GPT_INPUT: damaged, of another version, without a recipe, without a weight.
 */
#ifndef SAMPLE_TRAINED_H
#define SAMPLE_TRAINED_H

#include "base/file.h"
#include "inspect/inspect.h"
#include "model/bank.h"
#include "recipe/schedule.h"
#include "tokenize/vocab.h"

struct trained {
    struct inspect x;
    struct temporary_dir unpacked; /* what was packed, until trained_close or a signal */
    struct recipe *recipe;
    int64_t step;
    char tokenizer[80]; /* as corpus.h has it; "" where the checkpoint does not say */
    char data[33]; /* the id of the run's training data; "" the same */
};

/* path "-": what gpt-ckpt pack wrote, on standard input.
 * recipe: a file or name, for a file of tensors without one of its own; else NULL. */
int trained_open(struct trained *t, const char *path, const char *recipe) MUST_CHECK;
void trained_close(struct trained *t);
/* Windows and rotation of its step: those with which the run would be validated now. */
void trained_schedule(const struct trained *t, struct step_schedule *p);
/* The vocabulary that its tokens are of. name: "gpt2", "byte" or NULL, as the checkpoint says, else
 * as the number of its ids suggests; file: a vocabulary's, or NULL. GPT_INPUT: another one than the
 * checkpoint names, or with more ids than the model has. */
int trained_vocab(const struct trained *t, const char *name, const char *file,
                  struct vocab **v) MUST_CHECK;
/* Weights into banks of one rank. */
int trained_load(struct trained *t, struct banks *b) MUST_CHECK;

#endif
