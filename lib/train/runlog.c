/* runlog.c - see runlog.h. */
#include "train/runlog.h"

#include <math.h>
#include <stdarg.h>

static const char rule[] =
    "====================================================================================================\n";

void runlog_key(struct runlog *l, const char *key, const char *fmt, ...)
{
    if (!l->f)
        return;
    va_list ap;
    va_start(ap, fmt);
    fprintf(l->f, "%s: ", key);
    vfprintf(l->f, fmt, ap);
    fputc('\n', l->f);
    va_end(ap);
}

void runlog_recipe(struct runlog *l, const char *text)
{
    if (l->f)
        fprintf(l->f, "%s%s%s", rule, text, rule);
}

void runlog_start(struct runlog *l, double total, const struct runlog_start *s)
{
    if (l->f)
        fprintf(l->f,
                "start: %.2f s (data %.2f, device %.2f, memory %.2f, values %.2f, "
                "first step %.2f)\n",
                total, s->data, s->device, s->memory, s->values, s->first_step);
}

void runlog_step(struct runlog *l, int done, double loss, double next, double norm, double time_ms,
                 double avg_ms)
{
    if (!l->f)
        return;
    fprintf(l->f, "step:%d/%d train_loss:%.6f", done, l->total, loss);
    if (!isnan(next))
        fprintf(l->f, " next_loss:%.6f", next);
    if (norm >= 0)
        fprintf(l->f, " grad_norm:%.6g", norm);
    fprintf(l->f, " train_time:%.0fms step_avg:%.2fms\n", time_ms, avg_ms);
}

void runlog_skip(struct runlog *l, int done, int skips, double time_ms, double avg_ms)
{
    if (l->f)
        fprintf(l->f, "step:%d/%d skipped:%d train_time:%.0fms step_avg:%.2fms\n", done, l->total,
                skips, time_ms, avg_ms);
}

void runlog_val(struct runlog *l, int step, double loss, double time_ms, double avg_ms)
{
    if (l->f)
        fprintf(l->f, "step:%d/%d val_loss:%.4f train_time:%.0fms step_avg:%.2fms\n", step,
                l->total, loss, time_ms, avg_ms);
}

void runlog_sparse(struct runlog *l, int exchanges, int dense, double sent_mb, double dense_mb)
{
    if (l->f)
        fprintf(l->f, "sparse: %d exchanges, %d dense; a rank sent %.4g MB in place of %.4g MB\n",
                exchanges, dense, sent_mb, dense_mb);
}

void runlog_head(struct runlog *l, double amax, double limit)
{
    if (l->f)
        fprintf(l->f, "head: largest weight %.4g, fp8 ends at %.4g\n", amax, limit);
}

void runlog_spent(struct runlog *l, const struct runlog_spent *e)
{
    if (l->f)
        fprintf(l->f, "end: %.2f s (start %.2f, steps %.2f, validation %.2f, checkpoints %.2f)\n",
                e->whole, e->start, e->steps, e->validation, e->checkpoints);
}

void runlog_memory(struct runlog *l, double allocated_mib)
{
    if (l->f)
        fprintf(l->f, "peak memory allocated: %.0f MiB reserved: %.0f MiB\n", allocated_mib,
                allocated_mib);
}

int runlog_status(struct runlog *l)
{
    if (l->f && (fflush(l->f) || ferror(l->f)))
        return err_sys("cannot write the run log");
    return 0;
}
