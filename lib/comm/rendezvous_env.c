/* rendezvous_env.c - this process's index, their number and process 0's address, from the variables
 * that the launcher set. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "comm/rendezvous.h"

enum { DEFAULT_PORT = 29500 }; /* torchrun's, too */

struct launcher {
    const char *name, *process, *processes, *local, *local_size;
};

/* In order of precedence: srun and mpirun may start torchrun, whose variables then hold. */
static const struct launcher launchers[] = {
    { "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE" },
    { "mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
      "OMPI_COMM_WORLD_LOCAL_SIZE" },
    { "srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", NULL },
    { "mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS" },
};

/* A whole number of the environment, within [low, high]; `missing` when it is not set. */
static int number(const char *name, int low, int high, int missing, int *value)
{
    const char *s = name ? getenv(name) : NULL;
    char *end;
    long x;

    if (!s || !*s) {
        *value = missing;
        return GPT_OK;
    }
    x = strtol(s, &end, 10);
    if (*end || x < low || x > high)
        return err_set(GPT_USAGE, "environment: %s=%s: expected a number from %d to %d", name, s,
                       low, high);
    *value = (int)x;
    return GPT_OK;
}

/* The first host of a list as Slurm writes them: n[03-07,12],m1 gives n03. */
static void first_host(char *out, size_t size, const char *list)
{
    size_t n = 0;
    bool digits = false; /* inside brackets */

    for (const char *p = list; *p && n + 1 < size; p++) {
        if (*p == '[')
            digits = true;
        else if (*p == ',' || (digits && (*p == '-' || *p == ']')))
            break;
        else
            out[n++] = *p;
    }
    out[n] = '\0';
    const char *close = strchr(list, ']'), *open = strchr(list, '['), *comma = strchr(list, ',');
    if (open && close && (!comma || open < comma)) /* what follows the bracket: n[1-2]-ib */
        for (const char *p = close + 1; *p && *p != ',' && n + 1 < size; p++)
            out[n++] = *p, out[n] = '\0';
}

static int find_address(struct rendezvous_env *env, const struct launcher *l)
{
    const char *address = getenv("MASTER_ADDR"), *list = getenv("SLURM_STEP_NODELIST");
    int job, together = 0, rc;

    if ((rc = number(l->local_size, 1, 1 << 20, 0, &together)) ||
        (rc = number("SLURM_JOB_ID", 0, 0x7fffffff, -1, &job)) ||
        (rc = number("MASTER_PORT", 1, 65535, job < 0 ? DEFAULT_PORT : 20000 + job % 20000,
                     &env->port)))
        return rc;
    if (address && *address)
        snprintf(env->address, sizeof env->address, "%s", address);
    else if (list && *list)
        first_host(env->address, sizeof env->address, list);
    else if (together == env->processes)
        strcpy(env->address, "127.0.0.1");
    else
        return err_set(GPT_USAGE,
                       "environment: %s says process %d of %d, but nothing says where "
                       "process 0 is: set MASTER_ADDR",
                       l->process, env->process, env->processes);
    return GPT_OK;
}

int rendezvous_environment(struct rendezvous_env *env)
{
    int rc;

    *env = (struct rendezvous_env){ .processes = 1, .port = DEFAULT_PORT, .source = "alone" };
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++) {
        const struct launcher *l = &launchers[i];
        if ((rc = number(l->processes, 1, 1 << 20, 0, &env->processes)))
            return rc;
        if (env->processes == 0)
            continue;
        snprintf(env->source, sizeof env->source, "%s", l->name);
        if ((rc = number(l->process, 0, env->processes - 1, env->processes == 1 ? 0 : -1,
                         &env->process)) ||
            (rc = number(l->local, 0, env->processes - 1, 0, &env->local)))
            return rc;
        if (env->process < 0)
            return err_set(GPT_USAGE, "environment: %s=%d without %s", l->processes, env->processes,
                           l->process);
        return env->processes > 1 ? find_address(env, l) : GPT_OK;
    }
    env->processes = 1;
    return GPT_OK;
}
