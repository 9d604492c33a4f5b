/* rank.h - inside of a run: what one rank has, and what all of them share.
 *
 * Private to lib/train. A struct rank belongs to its thread.
 */
#ifndef TRAIN_RANK_H
#define TRAIN_RANK_H

#include <pthread.h>
#include "data/loader.h"
#include "model/model.h"
#include "optim/state.h"
#include "optim/step.h"
#include "train/runlog.h"
#include "train/run.h"

enum { MAX_MICRO = 64 };
enum { GRAPHS = 2 * 2 * 2 * MAX_STAGES }; /* stage, parity, tied or not, part of the step */

/* Everything that the ranks of a run share. */
struct run {
    const struct run_options *opt;
    const struct recipe *recipe;
    struct loader *loader;
    struct val *val;
    struct runlog log;
    struct progress progress;
    int total; /* steps */
    int first; /* step to begin with */
    struct loader_pos start; /* where its data begin */
    int64_t tokens_seen;
    char *resume_dir; /* the checkpoint that is resumed */
    struct initial *initial; /* values of a run that resumes none */
    double opened; /* clock: the data are open */
    pthread_mutex_t lock; /* of what follows */
    int code; /* first failure of any rank, with its message */
    char message[600];
    int save_code; /* rank 0's verdict between the steps of a checkpoint */
};

struct rank {
    struct run *run;
    int local; /* which of this process's ranks */
    int rank, world, micros; /* micro-batches a step */
    const char *phase; /* what it is doing, for messages */
    bool named; /* its failure's message names rank and phase already */
    struct ops *ops;
    struct comm *comm;
    struct banks banks;
    struct model model;
    struct optim optim;
    char *slots; /* device: blocks of chunks, two sets of micros */
    size_t slot_bytes;
    char *val_slot;
    real *loss; /* device: sum of token losses of the step */
    int32_t *bad; /* device flag of finite() */
    void *graph[GRAPHS];
    int step;
    const struct step_schedule *at; /* of the step that is being launched */
    struct loader_pos after; /* data position after the last step */
    int64_t tokens_seen; /* tokens trained on */
    double device, memory, values; /* clock: each of them is there */
    double started, paused; /* clock: start, and time spent in validations and checkpoints */
};

/* -- launch.c: a step's launches, as graphs where the backend has them */
int step_launch(struct rank *k, const struct step_schedule *p, const struct batch *b) MUST_CHECK;
/* -- bench.c: n pairs of steps a stage, one TSV row each on f */
int bench_rank(struct rank *k, int n, FILE *f) MUST_CHECK;

/* -- check.c: can so many ranks run this recipe? the message for a loss that is not finite; is
 * everything that a checkpoint would hold finite? are all ranks' weights the same bits? */
int check_ranks(const struct recipe *r, int ranks) MUST_CHECK;
int check_loss(struct rank *k, int step, double loss) MUST_CHECK;
int check_states(struct rank *k) MUST_CHECK;
int check_weights(struct rank *k) MUST_CHECK;

/* -- feed.c */
struct chunk_shape feed_chunk(const struct recipe *r, int tokens, bool csr);
size_t feed_slot_bytes(const struct recipe *r, int64_t tokens, bool csr);
/* Uploads a chunk's block into slot and describes it; ahead: beside the work queued so far, none
 * of which reads the slot. */
struct batch feed_batch(struct rank *k, char *slot, const struct chunk *c, bool ahead);
struct batch_shape feed_shape(void *recipe, int64_t step);
struct batch_shape feed_largest(const struct recipe *r);

/* -- save.c */
/* All ranks together, between two steps: the state before step k->step. */
int save_checkpoint(struct rank *k) MUST_CHECK;
/* GPT_INPUT: the folder of checkpoints holds one that is further than where this run begins. */
int save_check(const struct run *run) MUST_CHECK;
/* Finds the checkpoint to resume and reads its position into run. */
int resume_open(struct run *run) MUST_CHECK;
int resume_rank(struct rank *k) MUST_CHECK;

#endif
