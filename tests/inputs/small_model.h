/* small_model.h - a record's whole model at a small size, in every form that a recipe can ask for.
 *
 *     struct small s;
 *     if ((rc = small_open(&s, o, &small_forms[i], DT_F32, &size, seed))) ...     // takes o
 *     double loss = small_loss(&s);                    // forward and backward of one micro-batch
 *     small_close(&s);
 *
 * The same form, size and seed give the same tokens and parameters (bf16 numbers, exact in both
 * types) on any device. weights: DT_F32, or DT_BF16 for the recipe's own types.
 */
#ifndef TESTS_SMALL_MODEL_H
#define TESTS_SMALL_MODEL_H

#include "model/model.h"

struct small_form {
    const char *recipe, *set[6]; /* {head}: head_dim, {half}: half of it */
};
extern const struct small_form small_forms[];
extern const int n_small_forms;

struct small_size {
    int tokens, heads, head_dim, mlp_width, vocab, rows, document;
};

struct small {
    struct ops *o;
    struct recipe *r;
    struct banks b;
    struct model m;
    struct batch batch;
    real *loss;
    char label[128];
};

int small_open(struct small *s, struct ops *o, const struct small_form *f, enum dtype weights,
               const struct small_size *size, uint64_t seed) MUST_CHECK;
/* The model of any recipe s->r, which s takes, with tokens, vocab, rows and document of size. */
int small_model(struct small *s, struct ops *o, const struct small_size *size,
                uint64_t seed) MUST_CHECK;
/* What the device says of all that was done. */
int small_close(struct small *s) MUST_CHECK;
/* Training loss, gradients in the banks; evaluation loss. */
double small_loss(struct small *s);
double small_eval(struct small *s);
/* From here on with this number of predicted tokens (1 or 2). */
void small_predict(struct small *s, int n_mtp);

#endif
