/* rendezvous_test.c - processes that meet over TCP: data exchanged, deaths and silences noticed. */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "check.h"
#include "comm/rendezvous.h"

static int port;

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static struct rendezvous_env env_of(int process, int processes)
{
    struct rendezvous_env at = { .process = process,
                                 .processes = processes,
                                 .port = port,
                                 .address = "localhost",
                                 .source = "test" };
    return at;
}

/* Runs body(process, processes) in that many processes, this one being process `here`; in the
 * others failed checks are their exit status. */
static void with_processes(int n, int here, int (*body)(int process, int processes), int expected)
{
    pid_t pid[8];
    port = 20000 + (int)((unsigned)getpid() * 7 + (unsigned)rand()) % 20000;
    fflush(stdout);
    for (int i = 0; i < n; i++) {
        pid[i] = i == here ? 0 : fork();
        if (i != here && pid[i] == 0)
            _exit(body(i, n));
    }
    CHECK_EQ(body(here, n), 0);
    for (int i = 0; i < n; i++) {
        int status = 0;
        if (i == here)
            continue;
        waitpid(pid[i], &status, 0);
        int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
        CHECK(code == 0 || code == expected);
    }
}

static int gathers(int process, int processes)
{
    struct rendezvous_env at = env_of(process, processes);
    struct rendezvous *r;
    char text[100];
    int bad = 0;

    if (rendezvous_new(&r, &at, 10, 10))
        return fprintf(stderr, "%s\n", err_message()), 1;
    for (int round = 0; round < 50; round++) {
        int mine[3] = { process, round, process * round }, all[8][3];
        memset(all, 0xff, sizeof all);
        bad += rendezvous_gather(r, mine, sizeof mine, all) != GPT_OK;
        for (int i = 0; i < processes; i++)
            bad += all[i][0] != i || all[i][1] != round || all[i][2] != i * round;
    }
    bad += rendezvous_failed(r, text, sizeof text);
    rendezvous_free(r);
    return bad != 0;
}

/* Process 1 ends without a word; the others must know within seconds, in and out of a gather. */
static int sudden_death(int process, int processes)
{
    struct rendezvous_env at = env_of(process, processes);
    struct rendezvous *r;
    int mine = process, all[8];
    double start;

    if (rendezvous_new(&r, &at, 10, 10))
        return 1;
    if (process == 1)
        _exit(42);
    start = seconds();
    int rc = rendezvous_gather(r, &mine, sizeof mine, all);
    bool good =
        rc == GPT_DEVICE && strstr(err_message(), "process 1 of 3") && seconds() - start < 3;
    if (!good)
        fprintf(stderr, "process %d: %d %s after %g s\n", process, rc, err_message(),
                seconds() - start);
    rendezvous_free(r);
    return !good;
}

/* Nothing is said for long, and the shortest --ranks-timeout: all are alive. */
static int quiet(int process, int processes)
{
    struct rendezvous_env at = env_of(process, processes);
    struct rendezvous *r;
    char text[400] = "";
    double start;

    if (rendezvous_new(&r, &at, 10, 1))
        return 1;
    start = seconds();
    while (!rendezvous_failed(r, text, sizeof text) && seconds() - start < 4)
        usleep(20000);
    if (*text)
        fprintf(stderr, "process %d: %s\n", process, text);
    rendezvous_free(r);
    return *text != 0;
}

/* Process 2 is stopped (all of its threads) and is killed by process 0 in the end. */
static int silence(int process, int processes)
{
    struct rendezvous_env at = env_of(process, processes);
    struct rendezvous *r;
    char text[400] = "";
    int pid = (int)getpid(), all[8];
    double start;

    at.ranks = 4;
    if (rendezvous_new(&r, &at, 2, 2) || rendezvous_gather(r, &pid, sizeof pid, all))
        return 1;
    if (process == 2)
        raise(SIGSTOP);
    start = seconds();
    while (!rendezvous_failed(r, text, sizeof text) && seconds() - start < 8)
        usleep(20000);
    bool good =
        strstr(text, "process 2 of 3 (ranks 8 to 11) has sent no heartbeat within 2 seconds") &&
        seconds() - start < 5;
    if (!good)
        fprintf(stderr, "process %d: '%s' after %g s\n", process, text, seconds() - start);
    if (process == 0)
        kill(all[2], SIGKILL);
    rendezvous_free(r);
    return !good;
}

static int told(int process, int processes)
{
    struct rendezvous_env at = env_of(process, processes);
    struct rendezvous *r;
    char text[400] = "";
    double start = seconds();

    if (rendezvous_new(&r, &at, 10, 10))
        return 1;
    if (process == 2)
        rendezvous_tell(r, "rank 5 (GPU 1), step: the moon is full");
    while (!rendezvous_failed(r, text, sizeof text) && seconds() - start < 5)
        usleep(1000);
    rendezvous_free(r);
    return strcmp(text, "rank 5 (GPU 1), step: the moon is full") != 0;
}

static int nobody_comes(int process, int processes)
{
    struct rendezvous_env at = env_of(process, processes);
    struct rendezvous *r;
    double start = seconds();

    if (process == 1)
        return 0;
    int rc = rendezvous_new(&r, &at, 1, 20);
    if (process == 0)
        return !(rc == GPT_DEVICE && strstr(err_message(), "process 1 did not") &&
                 seconds() - start < 4);
    return !(rc == GPT_DEVICE && strstr(err_message(), "process 2 of 3"));
}

static void test_alone(void)
{
    struct rendezvous_env at;
    struct rendezvous *r;
    int mine = 7, all = 0;

    CHECK_OK(rendezvous_environment(&at));
    CHECK_EQ(at.processes, 1);
    CHECK_STR(at.source, "alone");
    CHECK_OK(rendezvous_new(&r, &at, 1, 1));
    CHECK_OK(rendezvous_gather(r, &mine, sizeof mine, &all));
    CHECK_EQ(all, 7);
    rendezvous_free(r);
}

/* -- environments ---------------------------------------------------------------------------- */

static const char *const variables[] = {
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "SLURM_PROCID",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_LOCALID",
    "SLURM_STEP_NODELIST",
    "SLURM_JOB_ID",
    "PMI_RANK",
    "PMI_SIZE",
    "MPI_LOCALRANKID",
    "MPI_LOCALNRANKS",
};

/* Only these are set: "A=1 B=2". */
static void environment(const char *list)
{
    char copy[400], *save = NULL;
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++)
        unsetenv(variables[i]);
    snprintf(copy, sizeof copy, "%s", list);
    for (char *word = strtok_r(copy, " ", &save); word; word = strtok_r(NULL, " ", &save)) {
        char *equals = strchr(word, '=');
        *equals = '\0';
        setenv(word, equals + 1, 1);
    }
}

static void expect(const char *env, const char *source, int process, int processes, int local,
                   const char *address, int at_port)
{
    struct rendezvous_env at;
    environment(env);
    if (!CHECK_OK(rendezvous_environment(&at)))
        return;
    CHECK_STR(at.source, source);
    CHECK_EQ(at.process, process);
    CHECK_EQ(at.processes, processes);
    CHECK_EQ(at.local, local);
    if (processes > 1) {
        CHECK_STR(at.address, address);
        CHECK_EQ(at.port, at_port);
    }
}

static void test_environments(void)
{
    struct rendezvous_env at;

    expect("RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 MASTER_ADDR=10.0.0.7 MASTER_PORT=1234", "torchrun", 3,
           4, 1, "10.0.0.7", 1234);
    expect("RANK=0 WORLD_SIZE=1", "torchrun", 0, 1, 0, "", 0);
    expect("OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 "
           "OMPI_COMM_WORLD_LOCAL_SIZE=2",
           "mpirun", 1, 2, 1, "127.0.0.1", 29500);
    expect("SLURM_PROCID=2 SLURM_STEP_NUM_TASKS=3 SLURM_LOCALID=0 SLURM_JOB_ID=41234 "
           "SLURM_STEP_NODELIST=n[03-07,12],m1",
           "srun", 2, 3, 0, "n03", 21234);
    expect("SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NODELIST=alpha,beta[1-2]", "srun", 0,
           2, 0, "alpha", 29500);
    expect("SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NODELIST=gpu[7,9]-ib,x", "srun", 0, 2,
           0, "gpu7-ib", 29500);
    expect("PMI_RANK=1 PMI_SIZE=2 MASTER_ADDR=h", "mpiexec", 1, 2, 0, "h", 29500);
    expect("RANK=1 WORLD_SIZE=2 MASTER_ADDR=h SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=9", "torchrun", 1,
           2, 0, "h", 29500);

    environment("RANK=2 WORLD_SIZE=2 MASTER_ADDR=h");
    CHECK_ERR(rendezvous_environment(&at), GPT_USAGE, "RANK=2: expected a number from 0 to 1");
    environment("RANK=1x WORLD_SIZE=2 MASTER_ADDR=h");
    CHECK_ERR(rendezvous_environment(&at), GPT_USAGE, "RANK=1x");
    environment("WORLD_SIZE=2 MASTER_ADDR=h");
    CHECK_ERR(rendezvous_environment(&at), GPT_USAGE, "WORLD_SIZE=2 without RANK");
    environment("RANK=1 WORLD_SIZE=2");
    CHECK_ERR(rendezvous_environment(&at), GPT_USAGE, "set MASTER_ADDR");
    environment("RANK=1 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=70000");
    CHECK_ERR(rendezvous_environment(&at), GPT_USAGE, "MASTER_PORT=70000");
    environment("");
}

int main(void)
{
    srand((unsigned)time(NULL));
    environment("");
    test_alone();
    test_environments();
    with_processes(2, 0, gathers, 0);
    with_processes(5, 3, gathers, 0);
    with_processes(3, 0, sudden_death, 42);
    with_processes(3, 2, sudden_death, 42);
    with_processes(3, 1, quiet, 0);
    with_processes(3, 0, silence, 128 + SIGKILL);
    with_processes(3, 1, told, 0);
    with_processes(3, 0, nobody_comes, 0);
    return check_done();
}
