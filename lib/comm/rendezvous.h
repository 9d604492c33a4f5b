/* rendezvous.h - connections between the processes of a run, one a node or one a GPU.
 *
 * Started by srun, mpirun, torchrun or by hand: each process reads from its
 * environment its index, the number of processes and the address of process 0.
 * They connect over TCP and stay connected: to exchange small data, and to
 * learn within seconds that another process fails, ends or sends no heartbeat.
 * The collectives' data is not sent here.
 *
 *     struct rendezvous_env env;
 *     struct rendezvous *r;
 *     if ((rc = rendezvous_environment(&env))) return rc;
 *     if ((rc = rendezvous_new(&r, &env, 60, 10))) return rc;   // all processes are connected
 *     rc = rendezvous_gather(r, &mine, sizeof mine, all);      // all[process]
 *     ...
 *     if (rendezvous_failed(r, text, sizeof text)) ...         // from any thread, at any time
 *     rendezvous_free(r);
 *
 * One process: nothing is opened, gather copies.
 *
 * Threads: gather by one at a time; tell and failed by any.
 */
#ifndef COMM_RENDEZVOUS_H
#define COMM_RENDEZVOUS_H

#include <stdbool.h>
#include <stddef.h>
#include "base/err.h"

struct rendezvous_env {
    int process, processes;
    int local; /* which of the processes on this machine: which GPUs are ours */
    int ranks; /* of each process, for messages; 0: messages do not name ranks */
    char address[256]; /* of process 0 */
    int port;
    char source[24]; /* the launcher: "torchrun", "mpirun", "srun", "mpiexec"; or "alone" */
};

/* Fills env from the first of these that is set:
 *     RANK, WORLD_SIZE, LOCAL_RANK                                        torchrun, or by hand
 *     OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE               mpirun of Open MPI
 *     SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID                   srun
 *     PMI_RANK, PMI_SIZE, MPI_LOCALRANKID                                 mpiexec of MPICH
 * The address is MASTER_ADDR, else the first host of SLURM_STEP_NODELIST, else this machine when
 * all processes are on it; the port MASTER_PORT, else one made from SLURM_JOB_ID, else 29500.
 * GPT_USAGE: a variable is no number, out of range, or missing. */
int rendezvous_environment(struct rendezvous_env *env) MUST_CHECK;

struct rendezvous;

/* Waits up to connect_s for all processes; GPT_DEVICE names a missing one. Later a process that
 * sends no heartbeat for timeout_s (1 at least) has failed. */
int rendezvous_new(struct rendezvous **r, const struct rendezvous_env *env, double connect_s,
                   double timeout_s) MUST_CHECK;
/* bytes of every process to every process, in order of processes; at most 64 KiB. */
int rendezvous_gather(struct rendezvous *r, const void *mine, size_t bytes, void *all) MUST_CHECK;
/* Tells the others that this process failed: rendezvous_failed returns the message there. */
void rendezvous_tell(struct rendezvous *r, const char *message);
/* True once a process has failed; message: what it told, or how its failure was detected. */
bool rendezvous_failed(struct rendezvous *r, char *message, size_t size);
void rendezvous_free(struct rendezvous *r);

#endif
