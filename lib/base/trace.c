/* trace.c - see trace.h. The format: "Trace Event Format", Google, 2016. */
#include "base/trace.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>
#include "base/grow.h"
#include "base/text.h"
#include "base/zio.h"

/* -- events ------------------------------------------------------------------------------ */

/* The one copy of a name; NULL when memory is out. */
static const char *kept(struct trace *t, const char *name)
{
    char *copy;

    for (size_t i = 0; i < t->n_names; i++)
        if (!strcmp(t->name[i], name))
            return t->name[i];
    if ((t->rc = grow_one(&t->name, t->n_names, sizeof *t->name)))
        return NULL;
    if (!(copy = strdup(name)))
        t->rc = err_memory();
    else
        t->name[t->n_names++] = copy;
    return copy;
}

void trace_add(struct trace *t, const char *name, const struct trace_event *e)
{
    const char *copy = t->rc ? NULL : kept(t, name);

    if (!copy || (t->rc = grow_one(&t->event, t->n, sizeof *t->event)))
        return;
    t->event[t->n] = *e;
    t->event[t->n++].name = copy;
}

void trace_release(struct trace *t)
{
    for (size_t i = 0; i < t->n_names; i++)
        free(t->name[i]);
    free(t->name);
    free(t->event);
    *t = (struct trace){ 0 };
}

/* -- the table --------------------------------------------------------------------------- */

struct row {
    const char *name;
    int64_t calls;
    double ns;
};

static int by_time(const void *a, const void *b)
{
    double x = ((const struct row *)a)->ns, y = ((const struct row *)b)->ns;
    return (x < y) - (x > y);
}

int trace_table(struct trace *t, FILE *f, int steps)
{
    struct row *row = calloc(t->n_names + 1, sizeof *row);
    double sum = 0;

    if (t->rc || !row) {
        free(row);
        return t->rc ? t->rc : err_memory();
    }
    for (size_t i = 0; i < t->n_names; i++)
        row[i].name = t->name[i];
    for (size_t k = 0; k < t->n; k++) {
        const struct trace_event *e = &t->event[k];
        size_t i = 0;
        while (row[i].name != e->name)
            i++;
        row[i].calls += e->mark < 0;
        row[i].ns += e->mark < 0 ? (double)(e->end_ns - e->begin_ns) : 0;
    }
    qsort(row, t->n_names, sizeof *row, by_time);
    for (size_t i = 0; i < t->n_names; i++)
        sum += row[i].ns;
    fprintf(f, "kernel\tcalls_step\tus_step\tus_call\tshare\n");
    for (size_t i = 0; i < t->n_names && row[i].calls; i++)
        fprintf(f, "%s\t%.1f\t%.1f\t%.2f\t%.4f\n", row[i].name, (double)row[i].calls / steps,
                row[i].ns / 1e3 / steps, row[i].ns / 1e3 / (double)row[i].calls, row[i].ns / sum);
    fprintf(f, "sum\t\t%.1f\t\t1\n", sum / 1e3 / steps);
    free(row);
    return fflush(f) ? err_sys("profile") : GPT_OK;
}

/* -- the file: tracks ---------------------------------------------------------------------- */

/* A track of a rank: what does not overlap on a stream. Collectives have tracks of their own, as a
 * graph's may run on any stream. */
struct track {
    int device, stream;
    bool collective;
    int64_t end_ns; /* of its last event */
};

struct writer {
    FILE *f;
    const struct trace_about *about;
    int64_t zero; /* ns: time 0 of the file */
    struct track *track;
    size_t n; /* tracks; their tid is 1 + index */
    /* The collective that ended last on the rank at hand, and the end of all its work so far. */
    const struct trace_event *collective;
    int64_t work_end_ns;
    int steps, rank; /* of the rank at hand; steps: begun so far */
    bool some; /* there is an event before */
    int rc;
};

static int by_begin(const void *a, const void *b)
{
    const struct trace_event *x = a, *y = b;
    int64_t d = x->device - y->device;

    d = d ? d : x->begin_ns - y->begin_ns;
    d = d ? d : y->end_ns - x->end_ns;
    return (d > 0) - (d < 0);
}

static bool is_collective(const struct trace_event *e)
{
    return !strncmp(e->name, TRACE_COLLECTIVE, strlen(TRACE_COLLECTIVE)) ||
           !strncmp(e->name, TRACE_COPIES, strlen(TRACE_COPIES));
}

/* One member of traceEvents up to its name: the caller adds args, if any, and ends it. */
static void put_event(struct writer *w, const char *phase, size_t tid, int64_t ns, const char *name)
{
    fprintf(w->f,
            "%s\n{\"ph\":\"%s\",\"pid\":%d,\"tid\":%zu,\"ts\":%.3f,\"name\":", w->some ? "," : "",
            phase, w->rank, tid, (double)(ns - w->zero) / 1e3);
    w->some = true;
    text_json(w->f, name, strlen(name), false);
}

static void put_span(struct writer *w, size_t tid, int64_t begin, int64_t end, const char *kind,
                     const char *name)
{
    put_event(w, "X", tid, begin, name);
    fprintf(w->f, ",\"cat\":\"%s\",\"dur\":%.3f}", kind, (double)(end - begin) / 1e3);
}

static void put_name(struct writer *w, size_t tid, const char *what, const char *name)
{
    put_event(w, "M", tid, w->zero, what);
    fprintf(w->f, ",\"args\":{\"name\":\"%s\"}}", name);
}

static struct track *new_track(struct writer *w, const struct trace_event *e, int copy)
{
    char name[64], number[16] = "";

    if ((w->rc = grow_one(&w->track, w->n, sizeof *w->track)))
        return NULL;
    w->track[w->n] = (struct track){ .device = e->device,
                                     .stream = e->stream,
                                     .collective = is_collective(e),
                                     .end_ns = e->begin_ns };
    if (copy > 1)
        snprintf(number, sizeof number, " (%d)", copy);
    snprintf(name, sizeof name, "%s, stream %d%s", is_collective(e) ? "collectives" : "work",
             e->stream, number);
    put_name(w, w->n + 1, "thread_name", name);
    return &w->track[w->n++];
}

/* The first of its stream's tracks that is free when e begins. */
static struct track *track_of(struct writer *w, const struct trace_event *e)
{
    int copies = 0;

    for (size_t i = 0; i < w->n; i++) {
        struct track *k = &w->track[i];
        if (k->device != e->device || k->stream != e->stream || k->collective != is_collective(e))
            continue;
        copies++;
        if (k->end_ns <= e->begin_ns)
            return k;
    }
    return new_track(w, e, copies + 1);
}

/* -- the file: a rank ---------------------------------------------------------------------- */

/* Between what a rank worked on and e, which is work. A graph may run on several streams in turns,
 * so a gap of one stream says nothing. */
static void put_gap(struct writer *w, const struct track *k, const struct trace_event *e)
{
    const struct trace_event *c = w->collective;
    int64_t from = w->work_end_ns;
    char name[160] = "idle";

    if (e->begin_ns - from < TRACE_WAIT_NS)
        return;
    if (c && c->end_ns > from && c->end_ns <= e->begin_ns)
        snprintf(name, sizeof name, "wait: %s", c->name);
    put_span(w, (size_t)(k - w->track) + 1, from, e->begin_ns, "wait", name);
}

static void put_step(struct writer *w, int64_t ns, bool begin, bool end)
{
    char name[32];

    if (end) {
        snprintf(name, sizeof name, "step %d", w->steps - 1);
        put_event(w, "E", 0, ns, name);
        fputc('}', w->f);
    }
    if (begin) {
        snprintf(name, sizeof name, "step %d", w->steps++);
        put_event(w, "B", 0, ns, name);
        fputc('}', w->f);
    }
}

static void put_mark(struct writer *w, const struct track *k, const struct trace_event *e)
{
    char name[160] = "";

    if (e->mark == TRACE_STEP)
        return;
    w->about->label(w->about->ctx, e->mark, e->part, name, sizeof name);
    put_event(w, "i", (size_t)(k - w->track) + 1, e->begin_ns, name);
    fprintf(w->f, ",\"cat\":\"mark\",\"s\":\"t\"}");
}

static void put_one(struct writer *w, const struct trace_event *e)
{
    struct track *k = track_of(w, e);

    if (!k)
        return;
    if (!k->collective) {
        put_gap(w, k, e);
        w->work_end_ns = e->end_ns > w->work_end_ns ? e->end_ns : w->work_end_ns;
    }
    if (e->mark >= 0)
        put_mark(w, k, e);
    else
        put_span(w, (size_t)(k - w->track) + 1, e->begin_ns, e->end_ns,
                 is_collective(e)    ? "collective"
                 : e->name[0] == '[' ? "memory"
                                     : "kernel",
                 e->name);
    k->end_ns = e->end_ns;
    if (is_collective(e) && (!w->collective || e->end_ns > w->collective->end_ns))
        w->collective = e;
}

/* The events of a device; steps follow each other without a gap, the first from the first event on,
 * the last until the end of all. */
static void put_rank(struct writer *w, const struct trace_event *e, size_t n)
{
    char name[64];
    int64_t last = e->end_ns;

    snprintf(name, sizeof name, "rank %d, GPU %d", w->rank, e->device);
    put_name(w, 0, "process_name", name);
    put_name(w, 0, "thread_name", "steps");
    w->steps = 0;
    w->collective = NULL;
    w->work_end_ns = e->begin_ns;
    put_step(w, e->begin_ns, true, false);
    for (size_t i = 0, begun = 0; i < n && !w->rc; i++) {
        if (e[i].mark == TRACE_STEP && begun++)
            put_step(w, e[i].begin_ns, true, true);
        put_one(w, &e[i]);
        last = e[i].end_ns > last ? e[i].end_ns : last;
    }
    put_step(w, last, false, true);
}

static int put_all(struct trace *t, const struct trace_about *about, FILE *f)
{
    struct writer w = { .f = f, .about = about, .rank = about->first_rank };

    if (t->n)
        qsort(t->event, t->n, sizeof *t->event, by_begin);
    w.zero = t->n ? t->event[0].begin_ns : 0;
    for (size_t i = 0; i < t->n; i++)
        w.zero = t->event[i].begin_ns < w.zero ? t->event[i].begin_ns : w.zero;
    fputs("{\"displayTimeUnit\":\"ns\",\"otherData\":{\"made_by\":", f);
    text_json(f, about->made_by, strlen(about->made_by), false);
    fputs("},\"traceEvents\":[", f);
    for (size_t from = 0, to; from < t->n && !w.rc; from = to, w.rank++) {
        for (to = from; to < t->n && t->event[to].device == t->event[from].device; to++)
            ;
        put_rank(&w, t->event + from, to - from);
    }
    fputs("\n]}\n", f);
    free(w.track);
    return w.rc;
}

/* -- the file: its bytes ------------------------------------------------------------------- */

static int gzip(const char *text, size_t n, FILE *f, const char *path)
{
    z_stream z = { 0 };
    size_t room;
    unsigned char *out;
    int rc = 0;

    if (deflateInit2(&z, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY) != Z_OK)
        return err_memory();
    room = deflateBound(&z, n);
    out = malloc(room);
    z.next_in = (unsigned char *)(uintptr_t)text;
    z.next_out = out;
    z.avail_in = (unsigned)n;
    z.avail_out = (unsigned)room;
    if (!out || n > UINT32_MAX || room > UINT32_MAX || deflate(&z, Z_FINISH) != Z_STREAM_END)
        rc = err_memory();
    else if (fwrite(out, 1, z.total_out, f) != z.total_out)
        rc = err_sys("%s", path);
    deflateEnd(&z);
    free(out);
    return rc;
}

static int zstd_or_plain(const char *text, size_t n, FILE *f, const char *path, int level)
{
    struct zwriter *z;
    int rc = zwriter_new(&z, f, path, level);

    if (rc)
        return rc;
    if (!(rc = zwriter_write(z, text, n)))
        rc = zwriter_finish(z);
    zwriter_free(z);
    return rc;
}

static bool ends_in(const char *path, const char *end)
{
    size_t n = strlen(path), m = strlen(end);
    return n >= m && !strcmp(path + n - m, end);
}

int trace_write(struct trace *t, const struct trace_about *about, FILE *f, const char *path)
{
    char *text = NULL;
    size_t n = 0;
    FILE *memory = open_memstream(&text, &n);
    int rc = t->rc;

    if (!memory)
        return err_memory();
    if (!rc)
        rc = put_all(t, about, memory);
    if (fclose(memory) && !rc)
        rc = err_memory();
    if (!rc)
        rc = ends_in(path, ".gz") ? gzip(text, n, f, path)
                                  : zstd_or_plain(text, n, f, path, ends_in(path, ".zst") ? 3 : 0);
    free(text);
    return rc;
}
