/* state.h - what the optimizer keeps beside the banks: momenta, mantissas, counters,
 * and the numbers of one step.
 *
 * A rank keeps the states of its own part of each parameter, in the layout of
 * the bank. All memory is taken by optim_init from ops and goes with it.
 *
 *     struct optim z;
 *     if ((rc = optim_init(&z, recipe, &banks, ops, comm))) return rc;
 *     for (each step) {
 *         schedule_at(recipe, step, &at);
 *         optim_prepare(&z, &at);          // one upload
 *         optim_begin(&z, &at);            // step.h, as all from here to optim_step
 *         ...                              // backward: banks' gradients
 *         optim_step(&z, &at);             // step.h; may be captured in a graph
 *         optim_finish(&z, &at);
 *     }
 *     optim_release(&z);
 *
 * Threads: one struct optim belongs to one rank's thread.
 */
#ifndef OPTIM_STATE_H
#define OPTIM_STATE_H

#include "comm/comm.h"
#include "model/bank.h"
#include "model/schedule.h"
#include "optim/sparse.h"

/* One rank's place in a sharded parameter: what of it travels, and how much of its gradient is
 * final. */
struct place {
    int64_t rows, final;
    bool sent;
};

struct optim_param {
    struct tensor momentum; /* NorMuon: f32, as w_own */
    struct tensor second; /* NorMuon: f32, one number a row */
    struct tensor mantissa; /* NorMuon, w bf16: u16, the low halves of f32 weights */
    struct tensor exp_avg, exp_avg_sq; /* Adam: f32 or bf16, as w_own */
    int64_t count; /* Adam: updates done */
    float *lr_mul; /* NorMuon: of the own matrices, shape included */

    bool late; /* gathered at the start of the next step */
    struct place *place; /* world of them; NULL: replicated */
    int64_t *rows; /* world, for a call of the communicator */
    bool padded; /* some places do not travel whole */

    bool reducing; /* its gradient is on the way, this step */
    comm_ticket *reduced; /* of each collective that it takes, world at most */
    int n_reduced;
    comm_ticket gathered, gathered_fp8; /* its weight, and the copy of it */
};

/* What changes from step to step, by parameter: in device memory, so that a graph sees it. */
struct step_numbers {
    struct adam_step adam[MAX_PARAMS];
    struct muon_step muon[MAX_PARAMS];
};

struct optim {
    const struct recipe *recipe;
    struct banks *banks;
    struct ops *ops;
    struct comm *comm;
    struct optim_param p[MAX_PARAMS];
    struct step_numbers *numbers; /* device */
    struct tensor x; /* the update of one NorMuon parameter at work */
    struct sparse *sparse; /* of the recipe's sparse parameter, with several ranks */
    int sparse_param;
};

/* Memory, or what ops reports. */
int optim_init(struct optim *z, const struct recipe *r, struct banks *b, struct ops *o,
               struct comm *c) MUST_CHECK;
void optim_release(struct optim *z);
/* States zero, counters zero: as after optim_init. */
void optim_reset(struct optim *z);
/* Bytes that optim_init takes on a rank: the states of a parameter, and the work space. */
int64_t optim_param_bytes(const struct recipe *r, int param, int world);
int64_t optim_work_bytes(const struct recipe *r, int world);
/* Of a NorMuon parameter's update while it is orthogonalised. */
enum dtype optim_update_dtype(const struct recipe *r, const struct param_spec *s);

/* The numbers of step `at`, from the schedule and the counters, to the device. The learning
 * rates are formed in double and rounded once (optimizers.md 2.2). */
void optim_prepare(struct optim *z, const struct point *at);

/* For checkpoints: a parameter's weight or state as this rank holds it, units first ..
 * first + count - 1 of total along the leading axis (matrices of a bank, else rows). A
 * replicated one is whole on every rank. The counters p[i].count belong to it. */
struct optim_tensor {
    int param;
    const char *kind; /* "weight", "mantissa", "momentum", "second_momentum",
                                           "exp_avg", "exp_avg_sq" */
    struct tensor t; /* count units */
    int64_t first, count, total;
    bool replicated;
};
enum { OPTIM_MAX_TENSORS = 4 * MAX_PARAMS };
/* Fills out (OPTIM_MAX_TENSORS); how many. Loading writes into the same tensors. */
int optim_tensors(const struct optim *z, struct optim_tensor *out);
/* For the communicator: rows of each place that travel, NULL when all do. */
static inline const int64_t *optim_rows(struct optim_param *q, const struct comm *c)
{
    for (int r = 0; r < c->world; r++)
        q->rows[r] = q->place[r].rows;
    return q->padded ? q->rows : NULL;
}
/* After own parts of weights were written: every rank gets the others' parts, and the fp8 copies
 * are made from whole weights. */
void optim_gather_weights(struct optim *z);

#endif
