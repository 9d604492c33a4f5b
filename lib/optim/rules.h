/* rules.h - chains of stages (recipe/rule.h) as launches of ops.
 *
 * A chain is compiled once: each stage's word is bound to a function, and neighbours that have an op
 * of their own (momentum and polar's input; variance, shape, decay and step) to that, the longest match
 * first. precision.fuse = no leaves every stage alone. Stages leave X in f32, in the parameter's work
 * buffer, and read numbers that move from struct step_hyper; the write alone knows how a weight is
 * stored. A step that is skipped (step_gate) leaves every byte of every state.
 *
 *     if ((rc = rules_init(z, i))) return rc;      // optim_init: memory and launches
 *     rules_update(z, i, chains);                  // optim_step: all chains but adam's
 *     rules_release(&z->p[i]);
 *
 * Threads: as struct optim.
 */
#ifndef OPTIM_RULES_H
#define OPTIM_RULES_H

#include "optim/state.h"

int rules_init(struct optim *z, int i) MUST_CHECK;
void rules_release(struct optim_param *q);
/* Forms the numbers of a chain in one step as its ops want them. */
void rules_hyper(const struct recipe *r, int i, int chain, const struct step_schedule *at,
                 struct chain_hyper *h);
/* Moves this rank's matrices of parameter i by those of its chains whose bits are set and that are not adam's. */
void rules_update(struct optim *z, int i, unsigned chains);
/* Writes the launches of a chain, "momentum+polar, variance+shape+decay+step". */
void rules_describe(const struct recipe *r, const struct chain *c, char *text, size_t size);

#endif
