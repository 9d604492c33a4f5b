/* trace_test.c - the timeline of made-up events (base/trace.h) held against the Trace Event Format, and
 * against the table of the same events.
 *
 * The file is read back by json.h: strict JSON; each "B" has its "E", in order; each span lies in
 * its rank's steps; spans of one track do not overlap; spans of a name last as long as the table says,
 * and there are as many. Events are drawn at random, in any order, on two devices.
 */
#include "base/trace.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "base/file.h"
#include "base/json.h"
#include "base/num.h"
#include "base/rng.h"
#include "check.h"

enum { DEVICES = 2, MOST = 4000, TRACKS = 64 };

static struct rng rng;
static uint64_t draws;
static int64_t below(int n) { return (int64_t)rng_below(&rng, draws++, (uint64_t)n); }

/* -- made-up events ------------------------------------------------------------------------ */

static void add(struct trace *t, const char *name, int device, int stream, int64_t at, int64_t ns,
                int mark)
{
    trace_add(t, name,
              &(struct trace_event){ .device = device,
                                     .stream = stream,
                                     .begin_ns = at,
                                     .end_ns = at + ns,
                                     .mark = mark,
                                     .part = mark });
}

/* Some steps of a device: kernels and gaps on two streams in turns, as a graph may run, collectives on another, a
 * few that overlap. */
static void make_device(struct trace *t, int device, int steps)
{
    static const char *const kernels[] = { "gemm<128, true>", "say \"hi\" \\", "[copy]", "[set]" };
    int64_t at = 1700000000000000000 + below(5000), ends = at;

    for (int s = 0; s < steps; s++) {
        add(t, "trace_mark", device, 7, at, 900, TRACE_STEP);
        at += 900;
        for (int i = 0; i < 20; i++) {
            int64_t ns = 1 + below(40000);
            add(t, kernels[below(4)], device, 7 + (int)below(2), at, ns, -1);
            if (below(5) == 0 && at > ends) {
                ends = at + below(60000);
                add(t, TRACE_COLLECTIVE "_AllGather(x)", device, 9, at, ends - at, -1);
            }
            if (below(6) == 0)
                add(t, "beside", device, 7, at + ns / 3, 1 + below(50000), -1);
            at += ns + (below(3) ? below(800) : 1000 + below(9000));
            add(t, "trace_mark", device, 7, at, 700, 1 + (int)below(9));
            at += 700;
        }
        int64_t from = ends > at ? ends : at; /* a wait, in any case */
        add(t, s % 2 ? "comm_copy" : TRACE_COLLECTIVE "_AllGather(x)", device, 9, from, 2000, -1);
        ends = from + 2000;
        at = ends + 3000;
    }
}

static void label(void *ctx, int mark, int part, char *text, size_t size)
{
    CHECK(mark == part && mark > 0 && ctx == &rng);
    snprintf(text, size, "mark %d", mark);
}

/* -- the file read back ---------------------------------------------------------------------- */

struct seen {
    char phase[4], name[200], cat[32], inner[200];
    double ts, dur;
    int64_t pid, tid;
};
static struct seen event[MOST];
static int n_events;

static void text_of(struct json *j, char *out, size_t size)
{
    struct json_string s;
    char text[512];
    size_t n = json_string(j, &s) && s.n < sizeof text ? json_unescape(&s, text) : 0;

    snprintf(out, size, "%.*s", (int)n, text);
}

static double number_of(struct json *j)
{
    char text[64];
    json_peek(j); /* past space */
    const char *from = j->at;
    double x = 0;

    CHECK(json_skip(j));
    snprintf(text, sizeof text, "%.*s", (int)(j->at - from), from);
    CHECK_OK(num_f64(text, "a number", -1e18, 1e18, &x));
    return x;
}

static void read_event(struct json *j, struct seen *e)
{
    struct json_string key;

    *e = (struct seen){ .dur = -1, .ts = -1, .pid = -1, .tid = -1 };
    CHECK(json_open(j, '{'));
    while (json_key(j, &key)) {
        if (json_equal(&key, "ph"))
            text_of(j, e->phase, sizeof e->phase);
        else if (json_equal(&key, "name"))
            text_of(j, e->name, sizeof e->name);
        else if (json_equal(&key, "cat"))
            text_of(j, e->cat, sizeof e->cat);
        else if (json_equal(&key, "ts"))
            e->ts = number_of(j);
        else if (json_equal(&key, "dur"))
            e->dur = number_of(j);
        else if (json_equal(&key, "pid"))
            e->pid = (int64_t)number_of(j);
        else if (json_equal(&key, "tid"))
            e->tid = (int64_t)number_of(j);
        else
            CHECK(json_skip(j));
    }
}

static void read_file(const char *path)
{
    struct json j = { 0 };
    struct json_string key;
    char *text = NULL;
    size_t n = 0;

    n_events = 0;
    if (!CHECK_OK(file_read(path, 0, &text, &n)))
        return;
    j.at = text, j.end = text + n;
    CHECK(json_open(&j, '{'));
    while (json_key(&j, &key)) {
        if (!json_equal(&key, "traceEvents")) {
            CHECK(json_skip(&j));
            continue;
        }
        CHECK(json_open(&j, '['));
        while (json_element(&j) && n_events < MOST)
            read_event(&j, &event[n_events++]);
    }
    CHECK(!j.bad && !json_more(&j));
    free(text);
}

/* -- what must hold -------------------------------------------------------------------------- */

static const double ROUNDED =
    1e-3 + 1e-6; /* us: times are written to a ns, relative ones are doubles */

static void check_steps(int steps, double from[], double to[])
{
    for (int d = 0; d < DEVICES; d++) {
        int begun = 0, ended = 0;
        for (int i = 0; i < n_events; i++) {
            const struct seen *e = &event[i];
            if (e->pid != d + 4 || (strcmp(e->phase, "B") && strcmp(e->phase, "E")))
                continue;
            bool begins = !strcmp(e->phase, "B");
            char want[32];
            snprintf(want, sizeof want, "step %d", begins ? begun : ended);
            CHECK_STR(e->name, want);
            CHECK(e->tid == 0 && (begins ? begun == ended : begun == ended + 1));
            if (begins && !begun)
                from[d] = e->ts;
            to[d] = e->ts;
            begins ? begun++ : ended++;
        }
        CHECK_EQ(begun, steps);
        CHECK_EQ(ended, steps);
    }
}

static void check_spans(const double from[], const double to[])
{
    double end[DEVICES][TRACKS] = { 0 };

    for (int i = 0; i < n_events; i++) {
        const struct seen *e = &event[i];
        int d = (int)e->pid - 4;
        bool known = strlen(e->phase) == 1 && strchr("BEXiM", e->phase[0]);
        CHECK(known && d >= 0 && d < DEVICES && e->tid >= 0 && e->tid < TRACKS && e->ts >= 0);
        if (!strcmp(e->phase, "i"))
            CHECK(e->ts >= from[d] && e->ts <= to[d] && !strncmp(e->name, "mark ", 5));
        if (strcmp(e->phase, "X"))
            continue;
        CHECK(e->dur >= 0 && e->ts >= from[d] && e->ts + e->dur <= to[d] + ROUNDED);
        CHECK(e->ts >= end[d][e->tid] - ROUNDED);
        end[d][e->tid] = e->ts + e->dur;
    }
}

/* Each row of the table: calls, and time in us a step. */
static void check_table(struct trace *t, int steps)
{
    char *text = NULL, *line, *rest;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    int rows = 0;

    CHECK_OK(trace_table(t, f, steps));
    fclose(f);
    for (line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        char *tab = strchr(line, '\t');
        double calls, us, sum = 0;
        int found = 0;
        if (!tab || sscanf(tab, "%lf %lf", &calls, &us) != 2 || !strncmp(line, "sum", 3))
            continue;
        for (int i = 0; i < n_events; i++)
            if (!strcmp(event[i].phase, "X") &&
                !strncmp(event[i].name, line, (size_t)(tab - line)) && !event[i].name[tab - line]) {
                found++;
                sum += event[i].dur;
            }
        /* the table has one digit behind the point */
        CHECK_NEAR(sum / steps, us, 0.0501 + found * ROUNDED);
        CHECK_NEAR((double)found / steps, calls, 0.0501);
        rows++;
    }
    CHECK_EQ(rows, 7);
    free(text);
}

static void check_waits(void)
{
    int idle = 0, waits = 0, copies = 0;

    for (int i = 0; i < n_events; i++)
        if (!strcmp(event[i].cat, "wait")) {
            CHECK(event[i].dur >= TRACE_WAIT_NS / 1e3 - ROUNDED);
            idle += !strcmp(event[i].name, "idle");
            waits += !strcmp(event[i].name, "wait: " TRACE_COLLECTIVE "_AllGather(x)");
            copies += !strcmp(event[i].name, "wait: comm_copy");
        }
    CHECK(idle > 0 && waits > 0 && copies > 0);
    for (int i = 0; i < n_events; i++)
        for (int k = 0; k < n_events && !strcmp(event[i].cat, "wait"); k++)
            if (event[k].pid == event[i].pid &&
                (!strcmp(event[k].cat, "kernel") || !strcmp(event[k].cat, "memory")))
                CHECK(event[k].ts + event[k].dur <= event[i].ts + ROUNDED ||
                      event[k].ts >= event[i].ts + event[i].dur - ROUNDED);
}

static void test_made_up(const char *path)
{
    const struct trace_about about = { "a \"test\"", 4, label, &rng };
    const int steps = 6;
    struct trace t = { 0 };
    struct output o;
    double from[DEVICES] = { 0 }, to[DEVICES] = { 0 };

    for (int d = 0; d < DEVICES; d++)
        make_device(&t, d, steps);
    for (size_t i = t.n; i > 1; i--) { /* in any order */
        size_t k = (size_t)below((int)i);
        struct trace_event e = t.event[k];
        t.event[k] = t.event[i - 1], t.event[i - 1] = e;
    }
    if (!CHECK_OK(output_open(&o, path, true)))
        return;
    CHECK_OK(trace_write(&t, &about, o.f, path));
    CHECK_OK(output_commit(&o));
    read_file(path);
    CHECK(n_events > 300 && n_events < MOST);
    check_steps(steps, from, to);
    check_spans(from, to);
    check_table(&t, steps);
    check_waits();
    trace_release(&t);
}

/* The first bytes say how the file is compressed. */
static void check_magic(const char *path, const char *magic, size_t n)
{
    char found[4] = { 0 };
    FILE *f = fopen(path, "rb");

    CHECK(f && fread(found, 1, n, f) == n && !memcmp(found, magic, n));
    if (f)
        fclose(f);
}

static void test_empty(const char *path)
{
    const struct trace_about about = { "", 0, label, NULL };
    struct trace t = { 0 };
    struct output o;

    if (!CHECK_OK(output_open(&o, path, true)))
        return;
    CHECK_OK(trace_write(&t, &about, o.f, path));
    CHECK_OK(output_commit(&o));
    read_file(path);
    CHECK_EQ(n_events, 0);
}

/* trace_test [SEED]: that seed again. */
int main(int argc, char **argv)
{
    static const char *const names[] = { "t.json", "t.json.gz", "t.json.zst" };
    static const char *const magic[] = { "{", "\x1f\x8b", "\x28\xb5\x2f\xfd" };
    struct temporary_dir dir;

    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : (uint64_t)time(NULL);
    printf("seed %llu\n", (unsigned long long)seed);
    rng = rng_make(seed, 5);
    if (!CHECK_OK(temporary_dir_new(&dir)))
        return check_done();
    for (int i = 0; i < 3; i++) {
        char *path = path_join(dir.path, names[i]);
        test_made_up(path);
        check_magic(path, magic[i], strlen(magic[i]));
        test_empty(path);
        free(path);
    }
    temporary_dir_remove(&dir);
    return check_done();
}
