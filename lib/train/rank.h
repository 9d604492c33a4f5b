/* rank.h - the state of a run: of one rank, and what all ranks of a process share.
 *
 * Private to lib/train. A struct rank belongs to its thread.
 */
#ifndef TRAIN_RANK_H
#define TRAIN_RANK_H

#include <pthread.h>
#include "data/loader.h"
#include "model/model.h"
#include "optim/step.h"
#include "train/runlog.h"
#include "train/run.h"
#include "train/vocabulary.h"

enum { MAX_MICRO = 64 };
/* A captured step, or a part of one. */
struct graph {
    int stage, slots, queued, part;
    void *captured; /* NULL: not yet */
};

/* Shared by the ranks of this process. */
struct run {
    const struct run_options *opt;
    const struct recipe *recipe;
    struct loader *loader;
    struct val *val;
    struct shard_stream *stream; /* that both read; NULL: files */
    struct run_vocabulary vocabulary;
    int wake; /* eventfd that ends waiting for it; -1: none */
    struct runlog log;
    struct progress progress;
    int total; /* steps */
    int first; /* step to begin with */
    struct loader_pos start; /* position in the data at that step */
    struct pass pass; /* what a pass over the data trains on; tokens 0: not known */
    int64_t repeat_from; /* the step that data.repeat counts from */
    int64_t tokens_seen;
    char saved_data[33]; /* the id of the data of the checkpoint to resume; "": none */
    int64_t saved_bytes; /* of a stream, that the id is of; 0: as many as usual */
    char twice[1024]; /* names of two training shards that are one file; "": there are none */
    int shared; /* a training shard that validates, too; -1: there is none */
    bool old_choice; /* the run's files were chosen by the rule of older versions (corpus.h) */
    char *resume_dir; /* the checkpoint to resume; NULL: none */
    struct initial *initial; /* initial values, unless the run resumes a checkpoint */
    struct begin *from; /* where they come from; NULL: they are drawn */
    char begun
        [80]; /* "HASH step N": of the checkpoint with whose weights the run began; "": drawn */
    int64_t init_ids; /* so many first ids are of there; 0: all */
    double chosen,
        opened; /* times at which its devices had been chosen, and the data were open or not */
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t change; /* of opening or code */
    enum opening { OPENING, OPENING_DONE, OPENING_FAILED } opening; /* of the data */
    int code; /* first failure of any rank, with its message */
    char message[600];
    int unsaved; /* the step of which it was told that it has no checkpoint */
};

enum { LOSSES = 2 };

/* Parts of a rank's start, each as long as the rank was in it (runlog.h). */
enum start_part {
    START_DEVICE,
    START_WEIGHTS,
    START_DATA,
    START_VALUES,
    START_RANKS,
    START_MEMORY,
    START_OTHERS,
    START_PARTS
};

/* A communicator that is made beside the rank's thread. */
struct joining {
    pthread_t thread;
    bool beside;
    struct comm *comm;
    int code;
    char message[600];
    double seconds; /* that it took */
};

struct rank {
    struct run *run;
    int local; /* index among this process's ranks */
    int rank, world, micros; /* micro-batches a step */
    const char *phase; /* for messages: "start", "data", "step", ... */
    bool named; /* the message of its failure names rank and phase already */
    struct ops *ops;
    struct comm *comm;
    struct banks banks;
    struct model model;
    struct optim optim;
    char *slots; /* device: blocks of chunks, two sets of `micros` */
    size_t slot_bytes;
    char *val_slot;
    bool val_seen; /* a validation is over */
    real *
        loss; /* device: LOSSES sums over the step's tokens: of the objective, of their next tokens'
                   losses (with model.next) */
    int32_t *bad; /* device: flag of the op `finite` */
    struct graph graph[MAX_GRAPHS];
    int n_graphs;
    int skips, skips_in_a_row; /* steps whose gradients were not finite */
    int step;
    struct loader_pos after; /* data position after the last step */
    int64_t tokens_seen; /* tokens trained on */
    struct pass ended[2]; /* by the parity of the step in or before which it ended */
    double passes; /* over the data, after the last step; 0: not known */
    struct joining joining;
    double began, lapped; /* times at which the rank began, and its last part of the start ended */
    double start[START_PARTS]; /* seconds */
    double captured; /* seconds in which graphs were made */
    double started, paused; /* time of the first step; seconds in validations and checkpoints */
    double saving; /* of these in checkpoints */
    struct run_order *order; /* set as gradients become final; NULL: not wanted */
    char *aside; /* host: gradients of the last checkpoint (save.c); NULL: they are on the device */
};

/* -- run.c */
/* Tells the user of what does not end the run. */
void run_warn(struct run *run, const char *message);
void run_reaches(int step); /* for run_progress */
void run_keeps(int step);

/* -- start.c: everything of a rank until its first step. Collective. */
int rank_start(struct rank *k) MUST_CHECK;
/* The process has opened the run's data, or could not: the ranks go on, or end. */
void opening_ends(struct run *run, bool open);
/* A rank has failed, or stops: run_failed notes the first failure, opening_interrupt ends the
 * opening of the data and the loader. Any thread. */
void run_failed(struct run *run, int rc, const char *message);
void opening_interrupt(struct run *run);

/* -- loop.c */
/* The first failure of ops or communicator. */
int rank_status(struct rank *k) MUST_CHECK;
/* Names the phase that this rank is in, for messages; watched: it is limited by --ranks-timeout. */
void rank_enter(struct rank *k, const char *phase, bool watched);
/* run_stop also sets this eventfd; -1: none. */
void run_stop_wakes(int fd);
bool run_stopping(void); /* run_stop has been called in this process */
/* From run->first to run->total; RUN_STOPPED after a signal. log_end: the last lines of the log. */
int rank_loop(struct rank *k) MUST_CHECK;
int log_end(struct rank *k) MUST_CHECK;
/* Queues forward, backward and optimizer of one step on its micro-batches. */
int step_launch(struct rank *k, const struct step_schedule *p, const struct batch *b) MUST_CHECK;

/* Queues forward and backward of a step's micro-batches alone: their gradients take the place of all that are
 * there, and none is reduced. */
void step_launch_model(struct rank *k, const struct batch *b);
/* Uploads this rank's micro-batches of a step into one of the two sets of slots, describes them in b, and notes
 * the rows that they read; ahead: as batch_upload. */
void upload_step(struct rank *k, int set, const struct step_batch *s, bool ahead, struct batch *b);
/* Queues a whole step on that batch. */
int train_step(struct rank *k, const struct step_schedule *p,
               const struct step_batch *s) MUST_CHECK;
/* The mean losses of a step's tokens over all ranks. */
struct step_loss {
    double loss, next; /* the objective; of next tokens alone, with model.next, else NaN */
    bool stop; /* some rank has been asked to stop */
};
/* Collective. sum: this rank's LOSSES sums, on the host. */
int gather_loss(struct rank *k, const real *sum, const struct step_schedule *p,
                struct step_loss *l) MUST_CHECK;
/* Waits for step `done`, which train_step has queued, reads its loss and what its gate has decided; GPT_DEVICE
 * where they are not finite and the recipe does not skip the step. Collective. */
int step_outcome(struct rank *k, int done, struct step_loss *l, struct step_gate *gate) MUST_CHECK;

/* The name of a mark that step_launch queues for a timeline; recipe: a struct recipe. */
void rank_mark_label(void *recipe, int mark, int part, char *text, size_t size);

/* Micro-batches of a rank: chunk k of a step is rank k % ranks's. */
static inline int rank_micros(int chunks, int rank, int ranks)
{
    return chunks / ranks + (rank < chunks % ranks);
}
struct chunk_shape batch_chunk(const struct recipe *r, int tokens, bool csr);
size_t batch_slot_bytes(const struct recipe *r, int64_t tokens, bool csr);
/* The shape of a step's batch, for the loader; the largest of all steps. */
struct batch_shape batch_of_step(void *recipe, int64_t step);
struct batch_shape batch_largest(const struct recipe *r);
/* What the loader is told of a recipe and these files, for one rank. */
struct loader_config loader_config_of(const struct recipe *r, const char *data, const char *val);
/* Uploads a chunk's block into slot and describes it. ahead: concurrently with the work queued so
 * far, none of which reads the slot. */
struct batch batch_upload(struct rank *k, char *slot, const struct chunk *c, bool ahead);

/* -- memory.c: take all memory of a rank on k->ops, one after the other; m: the bytes of its parts, but for m->ops */
int rank_weights(struct rank *k,
                 struct run_memory *m) MUST_CHECK; /* and activations: no communicator is needed */
int rank_states(struct rank *k, struct run_memory *m) MUST_CHECK; /* the rest */

/* -- plan.c: bytes of a parameter that a rank sends in a ring, its gradient's reduction and what is gathered */
double plan_ring_bytes(const struct recipe *r, int param, int ranks);

/* -- bench.c: times n pairs of steps a stage; a table on f */
int bench_rank(struct rank *k, int n, FILE *f) MUST_CHECK;

/* -- one_batch.c: does what opt->one says. Collective. */
int one_batch_rank(struct rank *k) MUST_CHECK;
/* Reads a tensor in bf16 or f32 back as f32; *x: the caller's, to free, or NULL on failure. */
int one_batch_floats(struct rank *k, struct tensor t, float **x) MUST_CHECK;
/* -- gradients.c, activations.c: write what they find of a batch to the file one.gradients, or print it on
 * opt->log; the model is set. Collective. */
int gradients_of_batch(struct rank *k, const struct step_batch *s) MUST_CHECK;
int activations_of_batch(struct rank *k, const struct step_batch *s) MUST_CHECK;

/* -- check.c */
/* GPT_USAGE: this number of ranks cannot run the recipe. */
int check_ranks(const struct recipe *r, int ranks) MUST_CHECK;
/* Returns GPT_DEVICE, with the first tensor that is not finite on any rank, the step since which,
 * and what to try. Collective. last: the last step that has been applied; own: this rank's loss is
 * not finite. */
int check_origin(struct rank *k, int last, bool own, const char *what) MUST_CHECK;
/* Does the same for a loss that is not finite. */
int check_loss(struct rank *k, int step, double loss, bool own) MUST_CHECK;
/* GPT_DEVICE unless all weights and optimizer states of this rank are finite. */
int check_states(struct rank *k) MUST_CHECK;
/* True if all gradients of this rank that wait (optim_tensors) are finite. */
bool check_gradients(struct rank *k);
/* Collective. GPT_INPUT unless all ranks begin at the same step. */
int check_first(struct rank *k) MUST_CHECK;
/* Collective. GPT_DEVICE unless all ranks hold the same weights, to the bit. */
int check_weights(struct rank *k) MUST_CHECK;

/* -- begin.c: opens the checkpoint opt->init, checks that its weights are the recipe's, and starts run->initial.
 * Close after a failure, too, and after initial_free. */
int begin_open(struct run *run) MUST_CHECK;
void begin_close(struct run *run);
const char *begin_path(const struct run *run);

/* -- save.c */
/* Collective, between two steps: writes the state before step k->step. Unless required, a failure to
 * write is told and is none. Where a gradient waits, it is reduced, and no step may follow. */
int save_checkpoint(struct rank *k, bool required) MUST_CHECK;
/* True if no gradient waits before step k->step, or the run ends with it. */
bool save_whole(const struct rank *k);
/* GPT_SYSTEM where the disk has no room for a checkpoint; tells where it has none for two. */
int save_room(struct rank *k) MUST_CHECK;
/* GPT_INPUT: the directory of checkpoints holds one of a later step than this run's first. */
int save_check(const struct run *run) MUST_CHECK;
/* Finds the checkpoint to resume and reads its step and the id of its data into run; RUN_ENDED. resume_open reads the data
 * position; resume_rank loads this rank's state. */
int resume_find(struct run *run) MUST_CHECK;
int resume_open(struct run *run) MUST_CHECK;
int resume_rank(struct rank *k) MUST_CHECK;

#endif
