/* runlog.c - see runlog.h. */
#include "train/runlog.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/file.h"
#include "base/grow.h"

static const char rule[] =
    "====================================================================================================\n";

/* -- where a line goes ---------------------------------------------------------------- */

/* Adds to what the copy does not hold yet. */
static void keep(struct runlog *l, const char *text, size_t n)
{
    if (!l->path)
        return;
    if (grow_to(&l->rest, &l->room, l->n + n, 1)) {
        l->torn = true;
        return;
    }
    memcpy(l->rest + l->n, text, n);
    l->n += n;
}

static void vline(struct runlog *l, const char *fmt, va_list ap)
{
    char *text;
    int n = vasprintf(&text, fmt, ap);
    if (n < 0) {
        l->torn = true;
        return;
    }
    if (!l->broken && fwrite(text, 1, (size_t)n, l->f) < (size_t)n)
        l->error = errno;
    keep(l, text, (size_t)n);
    free(text);
}

static void line(struct runlog *l, const char *fmt, ...) PRINTF_LIKE(2, 3);
static void line(struct runlog *l, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    if (l->f)
        vline(l, fmt, ap);
    va_end(ap);
}

static bool same_file(int a, int b)
{
    struct stat s, t;
    return !fstat(a, &s) && !fstat(b, &t) && s.st_dev == t.st_dev && s.st_ino == t.st_ino;
}

/* True if the last writer of a file was interrupted within a line. */
static bool ends_in_a_line(int fd)
{
    struct stat st;
    char last = '\n';
    return !fstat(fd, &st) && st.st_size > 0 && pread(fd, &last, 1, st.st_size - 1) == 1 &&
           last != '\n';
}

int runlog_keep(struct runlog *l, const char *dir)
{
    if (!l->f)
        return 0;
    if (!(l->path = path_join(dir, RUNLOG_NAME)))
        return err_memory();
    l->fd = open(l->path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (l->fd < 0) {
        int rc = err_sys("cannot open '%s' for the run log", l->path);
        free(l->path);
        l->path = NULL;
        return rc;
    }
    if (same_file(l->fd, fileno(l->f))) /* standard output is that file */
        runlog_release(l);
    else if (ends_in_a_line(l->fd))
        keep(l, "\n", 1);
    return 0;
}

/* Writes to the copy what it lacks. */
static int write_copy(struct runlog *l)
{
    size_t done = 0;
    int rc = 0;
    while (l->path && done < l->n && !rc) {
        ssize_t k = write(l->fd, l->rest + done, l->n - done);
        if (k < 0 && errno != EINTR)
            rc = err_sys("cannot write '%s'", l->path);
        done += k > 0 ? (size_t)k : 0;
    }
    if (done)
        memmove(l->rest, l->rest + done, l->n - done);
    l->n -= done;
    return rc;
}

static void warn(struct runlog *l, bool *said)
{
    if (!*said && l->warn)
        l->warn(l->ctx, err_message());
    *said = true;
}

/* f takes no more: a reader has left, or its disk is full. */
static int set_broken(struct runlog *l)
{
    l->broken = true;
    __fpurge(l->f);
    errno = l->error;
    int rc = err_sys("cannot write the run log to standard output");
    if (!l->path)
        return rc;
    snprintf(l->why, sizeof l->why, "%s", err_message());
    err_set(rc, "%s; the run goes on, its log in '%s'", l->why, l->path);
    warn(l, &l->said);
    return 0;
}

int runlog_status(struct runlog *l)
{
    int rc = 0;
    if (l->f && !l->broken && (fflush(l->f) || ferror(l->f))) {
        l->error = l->error ? l->error : errno;
        rc = set_broken(l);
    }
    if (write_copy(l)) {
        err_set(GPT_SYSTEM, "%s; the run goes on, and writes there when it can", err_message());
        warn(l, &l->said_copy);
    } else {
        l->said_copy = false;
    }
    return rc;
}

int runlog_end(struct runlog *l)
{
    int rc = runlog_status(l);
    if (!rc && l->torn)
        rc = err_set(GPT_SYSTEM, "the run log lacks lines: out of memory");
    if (!rc)
        rc = write_copy(l);
    if (!rc && l->broken && l->path)
        rc = err_set(GPT_SYSTEM, "%s; '%s' has it in full", l->why, l->path);
    return rc;
}

bool runlog_kept(const struct runlog *l) { return l->path && !l->n && !l->torn; }

void runlog_sync(struct runlog *l)
{
    if (l->path)
        fdatasync(l->fd);
}

void runlog_release(struct runlog *l)
{
    if (l->path)
        close(l->fd);
    free(l->path);
    free(l->rest);
    l->path = l->rest = NULL;
    l->n = l->room = 0;
}

bool runlog_validated(const char *dir, int step)
{
    char *path = path_join(dir, RUNLOG_NAME), *text = NULL, *at, want[64];
    size_t n;
    bool found = true; /* without a log nothing says that it was not */
    snprintf(want, sizeof want, "\nstep:%d/%d val_loss:", step, step);
    if (path && !access(path, R_OK) && !file_read(path, 0, &text, &n)) {
        for (at = text; (at = memchr(at, 0, (size_t)(text + n - at)));)
            *at++ = '?';
        found = strstr(text, want) != NULL;
    }
    free(text);
    free(path);
    return found;
}

/* -- lines ------------------------------------------------------------------------------ */

void runlog_key(struct runlog *l, const char *key, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    line(l, "%s: ", key);
    if (l->f)
        vline(l, fmt, ap);
    line(l, "\n");
    va_end(ap);
}

void runlog_recipe(struct runlog *l, const char *text)
{
    bool hidden = l->f && isatty(fileno(l->f)), broken = l->broken;
    l->broken |= hidden; /* there it would push the header out of sight */
    line(l, "%s%s%s", rule, text, rule);
    l->broken = broken;
}

void runlog_start(struct runlog *l, double total, const struct runlog_start *s)
{
    line(
        l,
        "start: %.2f s (contexts %.2f, device %.2f, weights %.2f, data %.2f, values %.2f, ranks %.2f, "
        "memory %.2f, others %.2f, first step %.2f; took: data %.2f, ranks %.2f, graph %.2f)\n",
        total, s->contexts, s->device, s->weights, s->data, s->values, s->ranks, s->memory,
        s->others, s->first_step, s->opening, s->joining, s->capture);
}

/* Returns x, or a NaN without its sign, which printf would show. */
static double printed(double x) { return isnan(x) ? NAN : x; }

void runlog_step(struct runlog *l, int done, double loss, double next, double norm, double time_ms,
                 double avg_ms)
{
    line(l, "step:%d/%d train_loss:%.6f", done, l->total, printed(loss));
    if (!isnan(next))
        line(l, " next_loss:%.6f", next);
    if (norm >= 0)
        line(l, " grad_norm:%.6g", norm);
    line(l, " train_time:%.0fms step_avg:%.2fms\n", time_ms, avg_ms);
}

void runlog_skip(struct runlog *l, int done, int skips, double time_ms, double avg_ms)
{
    line(l, "step:%d/%d skipped:%d train_time:%.0fms step_avg:%.2fms\n", done, l->total, skips,
         time_ms, avg_ms);
}

void runlog_val(struct runlog *l, int step, double loss, double time_ms, double avg_ms)
{
    line(l, "step:%d/%d val_loss:%.4f train_time:%.0fms step_avg:%.2fms\n", step, l->total,
         printed(loss), time_ms, avg_ms);
}

void runlog_sparse(struct runlog *l, int exchanges, int dense, double sent_mb, double dense_mb)
{
    line(l, "sparse: %d exchanges, %d dense; a rank sent %.4g MB in place of %.4g MB\n", exchanges,
         dense, sent_mb, dense_mb);
}

void runlog_head(struct runlog *l, double amax, double limit)
{
    line(l, "head: largest weight %.4g, fp8 ends at %.4g\n", amax, limit);
}

void runlog_clock(struct runlog *l, const struct runlog_clock *e)
{
    line(l, "end: %.2f s (start %.2f, steps %.2f, validation %.2f, checkpoints %.2f)\n", e->whole,
         e->start, e->steps, e->validation, e->checkpoints);
}

void runlog_memory(struct runlog *l, double allocated_mib)
{
    line(l, "peak memory allocated: %.0f MiB reserved: %.0f MiB\n", allocated_mib, allocated_mib);
}
