/* start_test.c - ranks that start while the process opens the data: whichever fails ends the other, and the
 * run says what failed. Devices are the CPU's, one of which fails, or takes its time.
 */
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>
#include "base/progress.h"
#include "check.h"
#include "recipe/recipe.h"
#include "train/run.h"

enum { RANKS = 2 };

static struct backend cpu; /* what the devices below call */
static const char *failing; /* of rank 1: "device", "ranks"; or NULL */
static atomic_int devices; /* that there are */
static void (*_Atomic free_cpu)(struct ops *o);

static void free_device(struct ops *o)
{
    devices--;
    free_cpu(o);
}

static int new_device(struct ops **o, int i, void *group)
{
    if (i == 1 && failing && !strcmp(failing, "device"))
        return err_set(GPT_DEVICE, "no device");
    int rc = cpu.ops_new(o, i, group);
    if (!rc) {
        free_cpu = (*o)->free;
        (*o)->free = free_device;
        devices++;
    }
    return rc;
}

/* Makes the communicator later than a rank waits for it. */
static int new_comm(struct comm **c, struct ops *o, int rank, int world, void *group)
{
    nanosleep(&(struct timespec){ .tv_nsec = 200000000 }, NULL);
    if (rank == 1 && failing && !strcmp(failing, "ranks"))
        return err_set(GPT_DEVICE, "rank 1: no connection");
    return cpu.comm_new(c, o, rank, world, group);
}

/* Trains on such devices, and returns the run's code. */
static int run_on(const char *data, const char *fails)
{
    static const char *const set[] = { "model.vocab=272", "data.cycle=no" };
    struct backend_wants w = { .ranks = RANKS, .world = RANKS, .threads = 1 };
    struct recipe *r;
    int rc = recipe_read(&r, "tiny", set, 2);
    if (!CHECK_OK(rc) || !CHECK_OK(backend_cpu(&cpu, &w)))
        return rc;
    struct backend b = cpu;
    b.ops_new = new_device;
    b.comm_new = new_comm;
    b.queues = true;
    failing = fails;
    struct run_options o = { .recipe = r, .data = data, .ranks = RANKS, .backend = &b };
    rc = run_train(&o);
    CHECK_EQ(devices, 0);
    backend_release(&cpu);
    recipe_free(r);
    return rc;
}

static void test_data_fail(void)
{
    CHECK_ERR(run_on("nowhere", NULL), GPT_SYSTEM, "cannot open 'nowhere'");
}

/* The writer of the pipe says nothing, and stays. */
static void test_rank_fails(const char *what, const char *said)
{
    int ends[2], old = dup(0);
    double from = now_seconds();
    CHECK_EQ(pipe(ends), 0);
    dup2(ends[0], 0);
    CHECK_ERR(run_on("-", what), GPT_DEVICE, said);
    CHECK(now_seconds() - from < 30);
    dup2(old, 0);
    close(old);
    close(ends[0]);
    close(ends[1]);
}

int main(void)
{
    alarm(60); /* a run that does not end */
    test_data_fail();
    test_rank_fails("device", "rank 1, start: no device");
    test_rank_fails("ranks", "rank 1: no connection");
    return check_done();
}
