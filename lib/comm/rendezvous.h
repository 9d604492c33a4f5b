/* rendezvous.h - several processes, one a node or one a GPU, find each other and stay in touch.
 *
 * Started by srun, mpirun, torchrun or by hand: each process learns from its
 * environment which of how many it is and where process 0 listens. They meet
 * over TCP and keep the connections: to exchange small data, and so that each
 * learns within seconds when another fails, dies or falls silent. The bulk of
 * the traffic is not sent here.
 *
 *     struct rendezvous_place at;
 *     struct rendezvous *r;
 *     if ((rc = rendezvous_environment(&at))) return rc;
 *     if ((rc = rendezvous_new(&r, &at, 60, 10))) return rc;   // all processes are there
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

struct rendezvous_place {
    int process, processes;
    int local; /* which of the processes on this machine: which GPUs are ours */
    int ranks; /* of each process, for messages; 0: they are not named */
    char address[256]; /* of process 0 */
    int port;
    char source[24]; /* who said so: "torchrun", "mpirun", "srun", "mpiexec", "alone" */
};

/* From the first of these that is set:
 *     RANK, WORLD_SIZE, LOCAL_RANK                                        torchrun, or by hand
 *     OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE               mpirun of Open MPI
 *     SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID                   srun
 *     PMI_RANK, PMI_SIZE, MPI_LOCALRANKID                                 mpiexec of MPICH
 * The address is MASTER_ADDR, else the first host of SLURM_STEP_NODELIST, else this machine when
 * all processes are on it; the port MASTER_PORT, else one made from SLURM_JOB_ID, else 29500.
 * GPT_USAGE: a variable is no number, out of range, or missing. */
int rendezvous_environment(struct rendezvous_place *at) MUST_CHECK;

struct rendezvous;

/* Waits up to meet_s for all processes; later a process that is silent for timeout_s (1 at least)
 * has failed. GPT_DEVICE: names what was waited for. */
int rendezvous_new(struct rendezvous **r, const struct rendezvous_place *at, double meet_s,
                   double timeout_s) MUST_CHECK;
/* bytes of every process to every process, in order of processes; at most 64 KiB. */
int rendezvous_gather(struct rendezvous *r, const void *mine, size_t bytes, void *all) MUST_CHECK;
/* This process failed: the others' rendezvous_failed says so. */
void rendezvous_tell(struct rendezvous *r, const char *message);
/* Has any process failed? Then what it told, or that it is gone. */
bool rendezvous_failed(struct rendezvous *r, char *message, size_t size);
void rendezvous_free(struct rendezvous *r);

#endif
