/* solo.c - the communicator of a single rank: every collective is done when it is called.
 *
 * The mean over one rank is the tensor itself, so nothing moves; only
 * all_to_all has two buffers and copies, in host memory.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include "comm/comm.h"

struct solo {
    struct comm c;
    int code; /* first abort(); sticks */
    char message[400];
};

static comm_ticket in_place(struct comm *c, struct tensor t)
{
    (void)c, (void)t;
    return 0;
}

static comm_ticket rows_in_place(struct comm *c, struct tensor t, const int64_t *rows)
{
    assert(!rows || (rows[0] >= 0 && rows[0] <= t.rows));
    return in_place(c, t);
}

static comm_ticket solo_broadcast(struct comm *c, struct tensor t, int root)
{
    assert(root == 0);
    return in_place(c, t);
}

static comm_ticket solo_all_to_all(struct comm *c, struct tensor recv, const int64_t *recv_rows,
                                   struct tensor send, const int64_t *send_rows)
{
    (void)c;
    assert(recv_rows[0] == send_rows[0] && recv.cols == send.cols && recv.dtype == send.dtype);
    if (recv.data != send.data)
        memcpy(recv.data, send.data, tensor_bytes(tensor_rows(send, 0, send_rows[0])));
    return 0;
}

static void solo_wait(struct comm *c, comm_ticket t) { (void)c, (void)t; }

static int solo_status(struct comm *c)
{
    struct solo *s = (struct solo *)c;
    return s->code ? err_set(s->code, "%s", s->message) : GPT_OK;
}

static int solo_gather_host(struct comm *c, const double *mine, int n, double *all)
{
    memmove(all, mine, (size_t)n * sizeof *all);
    return solo_status(c);
}

static void solo_abort(struct comm *c, int code, const char *message)
{
    struct solo *s = (struct solo *)c;
    if (s->code)
        return;
    strncpy(s->message, message, sizeof s->message - 1);
    s->code = code;
}

static void solo_free(struct comm *c) { free(c); }

int comm_solo_new(struct comm **out)
{
    struct solo *s = calloc(1, sizeof *s);
    if (!s)
        return err_sys("communicator");
    s->c = (struct comm){
        .kind = "solo",
        .world = 1,
        .reduce_scatter = rows_in_place,
        .all_gather = rows_in_place,
        .all_reduce = in_place,
        .broadcast = solo_broadcast,
        .all_to_all = solo_all_to_all,
        .wait = solo_wait,
        .barrier = solo_status,
        .gather_host = solo_gather_host,
        .status = solo_status,
        .abort = solo_abort,
        .free = solo_free,
    };
    *out = &s->c;
    return GPT_OK;
}
