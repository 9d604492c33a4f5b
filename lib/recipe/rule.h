/* rule.h - how a parameter moves: a chain of stages from its gradient to its weight, or two joined.
 *
 * A chain is a line of text, `lr 0.0375 | momentum 0.95 nesterov | polar cubic12 | step`: a rate, then
 * stages from left to right, of which one writes the weight. stage_list.h has a row a stage. Section
 * [rules] of a recipe names lines of its own; normuon, muon, sgd, adam and their joins are lines built
 * in (rules.c), whose numbers are keys of [optimizer] and columns of [parameters].
 * gpt-rules(5) has the grammar and the formulas, optimizers.md 4.7 the rest.
 *
 *     const struct stage_use *u = rule_stage(&spec->rule, STAGE_polar);      // NULL: it has none
 *     double lr = number_at(r, &chain->lr, step);
 *
 * Data alone: what runs a chain is optim/rules.h. Threads: read-only.
 */
#ifndef RECIPE_RULE_H
#define RECIPE_RULE_H

#include <stdbool.h>
#include <stdint.h>
#include "types/dtype.h"

enum {
    MAX_KNOTS = 4,
    STAGE_NUMBERS = 6, /* of one stage */
    STAGE_STATES = 8,
    MAX_USES = 20, /* stages of a chain; of a kernel each term is one */
    MAX_POLAR = 12, /* rows of coefficients */
    SOFT_ROWS = 12, /* of polar, whose iterates soft adds */
    RULE_NAME = 32,
    MAX_SCHEDULES = 16,
    KIND_SIZE = 24
};

/* Numbers of a state: as many as the matrix has, one a row or column of its long side, one a matrix; a square of
 * its rows or of its columns, one a row, one a column, as the bank has them. */
enum extent { EACH, LONG_SIDE, ONE, LEFT_SQUARE, RIGHT_SQUARE, LEFT_LINE, RIGHT_LINE };
struct state_row {
    const char *kind; /* its name in checkpoints is LABEL.KIND */
    enum extent extent;
    enum dtype dtype;
    const char *flag; /* the state exists where the stage has that word; NULL: always */
};

/* A number of a chain: constant, or linear between knots at steps (points of the schedule), or AdEMAMix's:
 * a rate that lengthens from value[0] to value[1] over value[2] updates, a weight that rises to value[0] over
 * value[1] (optimizers.md 4.7). */
struct number {
    enum number_from {
        NUMBER_GIVEN,
        NUMBER_MOMENTUM,
        NUMBER_BETA2,
        NUMBER_HALF,
        NUMBER_ALPHA
    } from;
    int n; /* 1: constant */
    double value[MAX_KNOTS], at[MAX_KNOTS];
    double early, before; /* in so many first steps it is `before` */
};

/* Where a stage may stand, and what it is. */
enum {
    STAGE_BEFORE = 1, /* before the write: works on X */
    STAGE_WRITES = 2,
    STAGE_BEHIND = 4, /* also behind the write */
    STAGE_EACH = 8, /* reads no other element: for tables and vectors, too */
    STAGE_PRODUCTS = 16 /* on a GPU takes cuBLASLt, or the branches, so beside no other bank */
};

enum stage_id {
#define STAGE(word, ...) STAGE_##word,
#include "recipe/stage_list.h"
    N_STAGE_ROWS
};

struct chain;
struct stage_row {
    const char *word;
    const char
        *numbers; /* names, in order; behind them "name=default" for those that may be absent */
    const char *flags; /* words that may follow, in the order of their bits */
    unsigned what;
    double (*flops)(double rows, double cols, const struct chain *c); /* a matrix; NULL: few */
    struct state_row state[STAGE_STATES]; /* up to the first without a kind */
};
extern const struct stage_row stage_rows[N_STAGE_ROWS];

struct stage_use {
    enum stage_id id;
    struct number number[STAGE_NUMBERS];
    unsigned flags; /* bit k: the k-th word of the row's flags */
};

/* Rows of coefficients for polar. */
struct polar_rows {
    double row[MAX_POLAR][3];
    int n;
    bool for_aol; /* made for input that AOL scales */
};

struct chain {
    struct number lr;
    int n, write; /* stages; index of the one that writes */
    struct stage_use use[MAX_USES];
    struct polar_rows polar;
};

/* A line of [schedules]: what multiplies the rates of the parameters that name it, a product of factors. */
struct lr_schedule {
    char name[RULE_NAME];
    double warmup; /* a point of the schedule, up to which it rises; 0: none */
    bool from_zero; /* in step 0, not from a step's part */
    struct number linear; /* n 0: none */
    double share, floor, power; /* a cooldown in the last share; 0: none */
    double end; /* a point at which it ends; 0: the run's steps */
};

/* `around` of [rules] is done around the updates of all parameters. */
struct around {
    enum around_kind {
        AROUND_NONE,
        AROUND_LOOKAHEAD, /* A, G, first step before whose forward it is added, the first without */
        AROUND_OUTER, /* LR, MU, N */
        AROUND_AVERAGE, /* T, the step (a point) behind which it begins, A */
        AROUND_FREE, /* B, R */
        N_AROUND
    } kind;
    double number[4];
    uint32_t except; /* parameters that it leaves out, a bit each */
};
/* True if validation reads other weights than those that the next gradient is taken at. */
static inline bool around_reads_apart(const struct around *a)
{
    return a->kind == AROUND_AVERAGE || a->kind == AROUND_FREE;
}
/* Returns the average's part in what validation reads. */
static inline double around_part(const struct around *a)
{
    return a->kind == AROUND_AVERAGE ? a->number[2] : 1;
}
/* True if it is done with parameter i. */
static inline bool around_takes(const struct around *a, int i)
{
    return a->kind && !(a->except >> i & 1);
}

/* SINGLE: chain[0]. THEN: chain[0] before step `at`, then chain[1], whose states are kept from step
 * `moments` on. SUM: both, chain[1] with weight `weight` and chain[0] with the rest. */
struct rule {
    char name[RULE_NAME];
    enum rule_join { RULE_SINGLE, RULE_THEN, RULE_SUM } join;
    struct chain chain[2];
    struct number weight;
    double at, moments; /* points of the schedule */
};

/* True if number k of the stage is the past's weight in a running mean: MU, B, B1 or B2. */
bool stage_mean(const struct stage_row *row, int k);
/* True if the word follows the stage: stage_has(u, "nesterov"). */
bool stage_has(const struct stage_use *u, const char *flag);
static inline int rule_chains(const struct rule *r) { return r->join == RULE_SINGLE ? 1 : 2; }
/* The first stage of its chains that needs whole matrices, or NULL. */
const struct stage_use *rule_of_matrices(const struct rule *r);
/* The first stage of its chains that is one of those bits of `what`, or NULL. */
const struct stage_use *rule_what(const struct rule *r, unsigned what);
/* The first use of a stage in any of the rule's chains, or NULL. */
const struct stage_use *rule_stage(const struct rule *r, enum stage_id id);
/* The stage's use in a chain, or NULL. */
const struct stage_use *chain_stage(const struct chain *c, enum stage_id id);
/* FLOPs of the chain's stages on a matrix, elementwise work left out. */
double chain_flops(const struct chain *c, double rows, double cols);
static inline bool chain_is_adam(const struct chain *c)
{
    return c->use[c->write].id == STAGE_adam;
}
/* True if adam alone moves the parameter. */
static inline bool rule_is_adam(const struct rule *r)
{
    return r->join == RULE_SINGLE && chain_is_adam(&r->chain[0]);
}
/* True if one of the chains is adam. */
static inline bool rule_has_adam(const struct rule *r) { return rule_stage(r, STAGE_adam) != NULL; }
/* True if a chain reads the column beta2. */
bool rule_reads_beta2(const struct rule *r);

#endif
