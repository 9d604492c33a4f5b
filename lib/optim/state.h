/* state.h - the optimizer's state beside the banks: momenta, mantissas, update counters,
 * and the hyperparameters of one step.
 *
 * A rank holds the states of its own shard of each parameter, in the layout of
 * the bank. All device memory is allocated by optim_init and freed with ops.
 *
 *     struct optim z;
 *     if ((rc = optim_init(&z, recipe, &banks, ops, comm))) return rc;
 *     for (each step) {
 *         schedule_at(recipe, step, &at);
 *         optim_prepare(&z, &at);          // one upload
 *         optim_begin(&z);                 // step.h, as all from here to optim_step
 *         ...                              // backward: banks' gradients
 *         optim_step(&z);                  // step.h; may be captured in a graph
 *         optim_finish(&z, &at);
 *         optim_outcome(&z, &at, skipped); // with a gate, later: when it is known
 *     }
 *     optim_release(&z);
 *
 * Threads: one struct optim belongs to one rank's thread.
 */
#ifndef OPTIM_STATE_H
#define OPTIM_STATE_H

#include "comm/comm.h"
#include "model/bank.h"
#include "recipe/schedule.h"
#include "recipe/states.h"
#include "optim/plan.h"
#include "optim/sparse.h"

/* One rank's shard of a parameter, as collectives of a step see it. */
struct shard_rows {
    int64_t first, rows; /* that are communicated: the shard's, less padding where the recipe says
                            so */
    int64_t final; /* rows of its gradient that are final in this step */
    int64_t ready; /* those at its end, without a gap */
    int64_t sent; /* of these, those whose reduction has started */
    struct span apart; /* final rows that a gap parts from the ready ones */
};

struct optim_param {
    struct state state[MAX_STATES]; /* recipe/states.h; [0] is the weight */
    struct tensor held[MAX_STATES]; /* this rank's part of each */
    int n_states;
    /* Some of them by name; empty where the parameter has none. */
    struct tensor mantissa;
    struct row_scaled exp_avg, exp_avg_sq, master;
    struct tensor stored; /* a weight in f32, f16 or e4m3, of which w is a bf16 copy */
    struct tensor stored_scale; /* e4m3: (rows,1), a fixed one in each row for checkpoints */
    struct tensor aside; /* the rank's weights while validation reads others; none */
    struct tensor amax_history; /* with a delayed scale: (n,1), of all ranks, newest first */

    real *amax; /* e4m3: of struct fp8_copy */
    struct tensor amaxes; /* with a delayed scale: (world,1), of which amax is this rank's */
    real *amax_top; /* its greatest */
    struct tensor tops; /* Adam's moments with one scale for all rows: (world,2) */
    real *top; /* (2): the largest of all ranks' */
    int64_t count; /* Adam: updates done */
    struct compiled *rule; /* rules.h: the chains as launches, and their work buffers */

    bool counted; /* Adam: updated in the last finished step */
    struct shard_rows *shard; /* (world); NULL: replicated */
    struct span *chunk; /* (world): argument of a collective */
    bool uneven; /* not all ranks communicate the same number of rows */

    bool begun; /* the reduction of its gradient has started in this step */
    bool waits; /* its gradient is one of optim_tensors */
    comm_ticket *reduced; /* of each collective of the reduction */
    int n_reduced;
    comm_ticket gathered, gathered_fp8; /* of its weight and of the fp8 copy */
};

/* Device memory: the decision on a step, and the sum of squares that it is made from. */
struct optim_gate {
    struct step_gate gate;
    real squares;
};

/* Numbers of a chain in one step. */
struct chain_hyper {
    struct muon_step write;
    real number[MAX_USES][STAGE_NUMBERS]; /* of each stage, as its op wants them */
};
/* Hyperparameters of one step, by parameter: in device memory, so that a captured graph reads the
 * values of its step. */
struct step_hyper {
    struct adam_step adam[MAX_PARAMS][2]; /* step_gate.late 0 and 1: as if the step before was
                                             applied, or skipped */
    struct chain_hyper chain[MAX_PARAMS][2];
    real tied_mix;
    real around[MAX_PARAMS][3]; /* of op around */
    real read; /* of its AROUND_READ */
};

struct optim {
    const struct recipe *recipe;
    struct banks *banks;
    struct ops *ops;
    struct comm *comm;
    struct optim_param p[MAX_PARAMS];
    double most_lr; /* the schedule's largest multiplier */
    struct free_mean {
        int steps; /* that the sums are of, from 0 */
        double sum, most; /* of schedule-free's weights; the largest rate */
    } free[MAX_PARAMS];
    struct step_plans plans;
    struct tensor
        probe; /* what stage psgd takes in place of a draw, by a test that knows it; or none */
    const struct step_plan *plan; /* of the step that optim_prepare was called for */
    struct step_hyper *hyper; /* device memory */
    struct optim_gate *gate; /* device memory; NULL: steps are applied as they are, but for guard */
    struct step_gate *guard; /* device memory, without a gate: skips a step in which `loss` is not
                              * finite, so that what was not finite before is all that is */
    const real *loss; /* device memory: the step's sum of losses on this rank; NULL: no guard */
    int open; /* finished steps whose outcome is not known on the host: optim_outcome */
    struct sparse *sparse; /* NULL without a sparse parameter or with one rank */
    int sparse_param; /* -1: none */
    /* Called when what is queued so far ends an action on parameter i that a timeline shows: ACT_NEED,
     * ACT_UPDATE, ACT_COPY_TIED; NULL: nothing is. */
    void (*on_done)(void *ctx, enum act act, int i);
    void *ctx;
};

/* GPT_SYSTEM: host memory; else the status of ops. */
int optim_init(struct optim *z, const struct recipe *r, struct banks *b, struct ops *o,
               struct comm *c) MUST_CHECK;
/* Collective, once, before weights: makes the connections between ranks that an exchange of rows and, if the run
 * unties, the untie step need. NCCL makes them at the first, in which a step on eight GPUs took 1.4 to 1.6 s longer.
 * Waits. */
int optim_connect(struct optim *z, bool unties) MUST_CHECK;
void optim_release(struct optim *z);
/* After banks_fill: makes masters the initial weights, exact ones where v has more than w, rounds those
 * that are stored in f16 or e4m3, and makes w their copies. v NULL: w is all there is. Waits. */
int optim_masters(struct optim *z, const struct initial *v) MUST_CHECK;
/* After states were loaded, before optim_gather_weights: makes this rank's w of the stored weights. */
int optim_loaded(struct optim *z) MUST_CHECK;
/* Bytes of a parameter's states on a rank. */
int64_t optim_param_bytes(const struct recipe *r, int param, int world);
int64_t optim_master_bytes(const struct recipe *r, int param, int world); /* of those, the master */
/* And what belongs to a weight in e4m3: its scales, and of delayed ones the history. */
int64_t optim_scale_bytes(const struct recipe *r, int param, int world);
/* Bytes of a weight in f16 or e4m3 on a rank, beside w; without codes that the head reads (bank.h). */
int64_t optim_stored_bytes(const struct recipe *r, int param, int world);
/* Allocates a tensor of the device. */
struct tensor optim_take(struct optim *z, enum dtype t, int64_t rows, int64_t cols,
                         const char *what);
/* This rank's part of a state, by its name or as the which-th of a stage; none: empty. */
struct tensor optim_state(const struct optim_param *q, const char *kind);
/* Returns the same with its scales; empty ones where it has none. */
struct row_scaled optim_scaled(const struct optim_param *q, const char *kind);
struct tensor optim_stage_state(const struct optim_param *q, int chain, int use, int which);
/* Returns what is kept of a bf16 weight besides: its low halves where it is cut, else its master. */
struct row_scaled optim_master(const struct optim_param *q);

/* Returns the gate that every update reads, or NULL. */
static inline const struct step_gate *optim_gate(const struct optim *z)
{
    return z->gate ? &z->gate->gate : z->loss ? z->guard : NULL;
}

/* A weight as it is stored on this rank, its forms beside the exact value, and the gate; copy: made, and
 * pointed to where there are codes. */
struct adam_param optim_weight(const struct optim *z, int i, struct fp8_copy *copy);

/* Returns the exact value of this rank's part of weight i; low: the low halves beside a bf16 one, or none. */
struct tensor optim_exact(const struct optim *z, int i, struct tensor *low);
/* Makes, of the exact value, which has moved, the other forms in which the weight is stored. */
void optim_moved(struct optim *z, int i);

/* Does `around` of [rules] behind an update of parameter i; begin: before the first step. */
void optim_around(struct optim *z, int i, bool begin);

/* Between steps, after optim_settle: makes the banks' weights what is validated, on all ranks; off: what they were
 * before, to the bit. */
void optim_read_apart(struct optim *z, bool on);

/* Chooses the plan of step `at`, and uploads its hyperparameters, from the schedule and the counters. The learning rates
 * are formed in double and rounded once (optimizers.md 2.2). */
void optim_prepare(struct optim *z, const struct step_schedule *at);

/* For checkpoints: a parameter's weight or state as this rank holds it, units first ..
 * first + count - 1 of total along the leading axis (matrices of a bank, else rows). A
 * replicated one is whole on every rank. The counters p[i].count belong to it. */
struct optim_tensor {
    int param;
    const struct state *state; /* its row in states_of */
    const char *kind; /* of that row */
    struct tensor t; /* count units */
    int64_t first, count, total;
    bool replicated;
};
enum { OPTIM_MAX_TENSORS = MAX_STATES * MAX_PARAMS };
/* Fills out (OPTIM_MAX_TENSORS) and returns how many. A resumed run loads into the same tensors.
 * Gradients are among them where they wait: after optim_set_aside or optim_expects (step.h). */
int optim_tensors(const struct optim *z, struct optim_tensor *out);
/* Argument of a collective: the rows of each shard that are communicated; NULL: equal shards. */
static inline const struct span *optim_chunks(struct optim_param *q, const struct comm *c)
{
    for (int r = 0; r < c->world; r++)
        q->chunk[r] = (struct span){ q->shard[r].first, q->shard[r].rows };
    return q->uneven ? q->chunk : NULL;
}
/* After each rank has written its own shards of the weights: gathers them on all ranks and makes
 * the fp8 copies. */
void optim_gather_weights(struct optim *z);

#endif
