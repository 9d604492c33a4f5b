/* trace.h - what devices did and when: a table by kernel, and a timeline as a file.
 *
 *     struct trace t = { 0 };
 *     trace_add(&t, "gemm", &(struct trace_event){ .device = 0, .stream = 7, .begin_ns = 10,
 *                                                  .end_ns = 30, .mark = -1 });     // any order
 *     if ((rc = trace_table(&t, stdout, steps))) ...         // TSV: kernel calls us_step share
 *     if ((rc = trace_write(&t, &about, out.f, "step.json.zst"))) ...
 *     trace_release(&t);
 *
 * The file is JSON in the Trace Event Format, as Perfetto and chrome://tracing read it; gzip or
 * zstd by its name's end. A process is a rank. Its track 0 has the steps, one track each stream has
 * kernels, copies and clears ("X"), and marks at the end of what is queued before them ("i"). Where
 * a rank has nothing to do for WAIT_NS but collectives, events whose names begin with
 * TRACE_COLLECTIVE or TRACE_COPIES, there is an event "idle" on the track of what comes next, or
 * "wait: NAME" if a collective ends meanwhile. What overlaps on one stream is put on further
 * tracks. Times begin at the first event.
 *
 * Threads: a trace belongs to one.
 */
#ifndef BASE_TRACE_H
#define BASE_TRACE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "base/err.h"

#define TRACE_COLLECTIVE "ncclDevKernel"
#define TRACE_COPIES "comm_" /* of a collective that is not one kernel */
enum { TRACE_WAIT_NS = 1000, TRACE_STEP = 0 };

struct trace_event {
    const char *name; /* set by trace_add */
    int device, stream;
    int64_t begin_ns, end_ns;
    int mark,
        part; /* mark: -1, or which; TRACE_STEP: a step begins. part: of what, for its label */
};

struct trace {
    struct trace_event *event;
    size_t n;
    char **name;
    size_t n_names;
    int rc; /* of the first failure, which the table and the file return */
};

struct trace_about {
    const char *made_by;
    int first_rank; /* of the device with the smallest number; the others follow */
    /* Names a mark that is not TRACE_STEP. */
    void (*label)(void *ctx, int mark, int part, char *text, size_t size);
    void *ctx;
};

void trace_add(struct trace *t, const char *name, const struct trace_event *e);
/* Without marks; sums over `steps` steps. */
int trace_table(struct trace *t, FILE *f, int steps) MUST_CHECK;
/* To f, which is the caller's; path: for messages and its end. Sorts the events. */
int trace_write(struct trace *t, const struct trace_about *about, FILE *f,
                const char *path) MUST_CHECK;
void trace_release(struct trace *t);

#endif
