/* gpu_group_test.cu - who is to blame when ranks wait for each other, over two processes of one
 * rank each. Host code of the NCCL communicator only: it needs no GPU.
 *
 * Both ranks say that they are at work and meet in a gather. The first comes at once, the second
 * LATE seconds later, more than twice what a silent rank is given.
 */
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
#include "host/comm_group.h"
#include "check.h"

static const double TIMEOUT = 2; /* processes say each second that they are alive */
enum { LATE = 5 };

struct outcome {
    int rc;
    char message[200];
};

/* at_work: the late rank says so meanwhile, and is the one that hangs; else it may take long. */
static struct outcome be_rank(int rank, bool at_work)
{
    struct outcome out = { 0, "" };
    struct nccl_group *g;
    double mine = rank, all[2] = { -1, -1 };
    struct member m = {};
    char text[8];

    snprintf(text, sizeof text, "%d", rank);
    setenv("RANK", text, 1);
    setenv("LOCAL_RANK", "0", 1);
    if ((out.rc = nccl_group_new(&g, 1, TIMEOUT))) {
        snprintf(out.message, sizeof out.message, "%s", err_message());
        return out;
    }
    m.c.rank = rank;
    m.group = g;
    pthread_mutex_init(&m.calling, NULL);
    nccl_group_join(&m);
    m.phase = rank == 0 || at_work ? "step" : NULL;
    if (rank)
        sleep(LATE);
    out.rc = nccl_group_gather(g, rank, &mine, sizeof mine, all);
    if (!out.rc && (all[0] != 0 || all[1] != 1))
        out.rc = -1;
    snprintf(out.message, sizeof out.message, "%s", out.rc ? err_message() : "");
    m.phase = NULL;
    nccl_group_leave(&m);
    nccl_group_free(g);
    return out;
}

static void run(bool at_work, struct outcome out[2])
{
    for (int i = 0; i < 2; i++) {
        int pipes[2];
        if (!CHECK(pipe(pipes) == 0))
            exit(check_done());
        if (fork() == 0) {
            struct outcome o = be_rank(i, at_work);
            _exit(write(pipes[1], &o, sizeof o) != sizeof o);
        }
        close(pipes[1]);
        out[i].rc = pipes[0];
    }
    for (int i = 0; i < 2; i++) {
        int fd = out[i].rc;
        CHECK(read(fd, &out[i], sizeof out[i]) == sizeof out[i]);
        close(fd);
    }
    while (wait(NULL) > 0)
        ;
}

int main(void)
{
    struct outcome out[2];
    char port[16];

    snprintf(port, sizeof port, "%d", 20000 + (int)getpid() % 20000);
    setenv("WORLD_SIZE", "2", 1);
    setenv("LOCAL_WORLD_SIZE", "2", 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", port, 1);
    run(false, out);
    CHECK_STR(out[0].message, "");
    CHECK_STR(out[1].message, "");
    CHECK(out[0].rc == 0 && out[1].rc == 0);
    run(true, out);
    for (int i = 0; i < 2; i++)
        CHECK(out[i].rc == GPT_DEVICE &&
              strstr(out[i].message, "rank 1 (GPU 0), step: no progress"));
    return check_done();
}
