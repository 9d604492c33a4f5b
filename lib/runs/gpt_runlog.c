/* gpt_runlog.c - see gpt_runlog.h. */
#include "runs/gpt_runlog.h"

#include <stdlib.h>
#include "runs/logread.h"

struct caller {
    int (*f)(void *arg, const struct gpt_run *r);
    void *arg;
};

static int give(void *arg, const struct run *u)
{
    const struct caller *c = arg;
    struct gpt_run_point *p = calloc((size_t)(u->vals + u->steps) + 1, sizeof *p);
    if (!p)
        return err_memory();
    for (int i = 0; i < u->vals; i++)
        p[i] = (struct gpt_run_point){ u->val[i].step, u->val[i].loss, u->val[i].time_ms };
    for (int i = 0; i < u->steps; i++)
        p[u->vals + i] =
            (struct gpt_run_point){ u->step[i].step, u->step[i].loss, u->step[i].time_ms };
    struct gpt_run out = { u->path,    u->first, u->last,  u->total, u->ended,   u->loss,
                           u->time_ms, u->vals,  u->steps, p,        p + u->vals };
    int rc = c->f(c->arg, &out);
    free(p);
    return rc;
}

int gpt_runlog_read(const char *path, int (*f)(void *arg, const struct gpt_run *r), void *arg)
{
    struct caller c = { f, arg };
    struct logsink sink = { .run = give, .arg = &c };
    return logread_file(path, false, &sink);
}
