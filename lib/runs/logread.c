/* logread.c - see logread.h. */
#include "runs/logread.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/grow.h"
#include "base/zio.h"
#include "runs/lists.h"
#include "runs/notecap.h"

#define FNV 14695981039346656037u /* where FNV-1a begins */
enum { LINE_MAX_BYTES = 16384, BUFFER = 1 << 18 };

/* step_avg is time / (step - c), c being 0, 10 or the step resumed from: what lines allow. */
struct average {
    double lo, hi;
};

struct logread {
    const char *name;
    struct logsink sink;
    struct facts facts;
    struct run run;
    bool running; /* step lines of a trial have been seen */
    int trials;
    long line;
    struct notecap notes;
    double last_time;
    bool last_is_val;
    int32_t last_train, last_val;
    struct average train_avg, val_avg;
    long hidden_steps; /* step lines inside program text */
    struct lists lists; /* of a file without step lines */
    bool overlong, overlong_step;
    size_t held;
    char buf[LINE_MAX_BYTES];
};

PRINTF_LIKE(3, 4) static void note(struct logread *r, long line, const char *fmt, ...)
{
    char text[256];
    va_list ap;
    if (!r->sink.note || !notecap_take(&r->notes, fmt, line))
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    r->sink.note(r->sink.arg, r->name, line, text);
}

int logread_new(struct logread **out, const char *name, bool keep_texts, const struct logsink *sink)
{
    struct logread *r = calloc(1, sizeof *r);
    if (!r)
        return err_memory();
    r->name = name;
    r->sink = *sink;
    int rc = facts_init(&r->facts, keep_texts);
    if (rc) {
        free(r);
        return rc;
    }
    *out = r;
    return 0;
}

void logread_free(struct logread *r)
{
    if (!r)
        return;
    facts_release(&r->facts);
    lists_release(&r->lists);
    free(r->run.val);
    free(r->run.tick);
    free(r);
}

/* --- trials --- */

static void begin_trial(struct logread *r, const struct stepline *s)
{
    struct run *u = &r->run;
    struct run_val *val = u->val;
    struct run_tick *tick = u->tick;
    *u = (struct run){ .path = r->name,
                       .trial = ++r->trials,
                       .first_line = r->line,
                       .first = s->step,
                       .total = s->total,
                       .loss = NAN,
                       .time_ms = NAN,
                       .resumed = r->facts.resumed,
                       .loss_digest = FNV,
                       .val = val,
                       .tick = tick,
                       .facts = &r->facts };
    r->running = true;
    r->last_time = NAN;
    r->last_train = r->last_val = -1;
    r->train_avg = r->val_avg = (struct average){ -INFINITY, INFINITY };
}

static int end_trial(struct logread *r)
{
    struct run *u = &r->run;
    if (!r->running)
        return 0;
    r->running = false;
    int rc = facts_finish(&r->facts);
    if (rc)
        return rc;
    const struct run_val *last = u->vals ? &u->val[u->vals - 1] : NULL;
    u->ended = last && r->last_is_val && last->step > 0 && (!u->total || last->step == u->total);
    if (u->ended) {
        u->loss = last->loss;
        u->loss_digits = last->digits;
        u->time_ms = u->resumed ? NAN : last->time_ms;
    }
    if (u->ended && !u->total)
        note(r, u->last_line,
             "the log does not tell the number of steps: step %d is taken for "
             "the end",
             u->last);
    else if (!u->ended && !last)
        note(r, u->last_line, "the run has no validation loss");
    else if (!u->ended && u->total)
        note(r, u->last_line, "the run ends at step %d of %d: no last validation", u->last,
             u->total);
    else if (!u->ended)
        note(r, u->last_line, "the run ends at step %d without a validation", u->last);
    if (u->resumed)
        note(r, u->first_line, "continues a run from step %d: its clock is not the whole run's",
             u->resumed);
    if (u->missing && u->missing < u->ticks)
        note(r, u->first_line, "lines of %d steps are missing", u->missing);
    return r->sink.run ? r->sink.run(r->sink.arg, u) : 0;
}

/* --- step lines --- */

/* Does the average agree with time and step? A digit that was damaged shows here. */
static void check_average(struct logread *r, const struct stepline *s, struct average *a)
{
    double t = s->time_ms.value, v = s->avg_ms.value;
    if (!s->time_ms.given || !s->avg_ms.given || s->step <= 0 || !isfinite(t) || !(v > 0))
        return;
    double ht = 0.5001 * pow(10, -s->time_ms.digits), hv = 0.5001 * pow(10, -s->avg_ms.digits);
    double least = (t - ht) / (v + hv), most = v > hv ? (t + ht) / (v - hv) : INFINITY;
    double lo = fmax(a->lo, s->step - most), hi = fmin(a->hi, s->step - least);
    if (lo > hi + 1e-6) {
        note(r, r->line, "step_avg %g ms does not agree with train_time %g ms at step %d", v, t,
             s->step);
        return;
    }
    *a = (struct average){ lo, hi };
}

static void check_clock(struct logread *r, const struct stepline *s)
{
    double t = s->time_ms.value;
    if (!s->time_ms.given || !isfinite(t))
        return;
    if (t < r->last_time) {
        r->run.clock_restart = s->step;
        r->train_avg = r->val_avg = (struct average){ -INFINITY, INFINITY };
    }
    r->last_time = t;
}

static int add_val(struct logread *r, const struct stepline *s)
{
    struct run *u = &r->run;
    int rc = grow_one(&u->val, u->vals, sizeof *u->val);
    if (rc)
        return rc;
    if (s->step == r->last_val) {
        note(r, r->line, "a second validation of step %d: the first is not used", s->step);
        u->vals--;
    }
    if (!isfinite(s->val.value))
        note(r, r->line, "the validation loss of step %d is not finite", s->step);
    u->val[u->vals++] = (struct run_val){ s->step, s->val.digits, s->val.value,
                                          s->time_ms.given ? s->time_ms.value : NAN };
    r->last_val = s->step;
    check_average(r, s, &r->val_avg);
    return 0;
}

static int add_tick(struct logread *r, const struct stepline *s)
{
    struct run *u = &r->run;
    int rc = grow_one(&u->tick, u->ticks, sizeof *u->tick);
    if (rc)
        return rc;
    if (s->step == r->last_train)
        note(r, r->line, "a second line of step %d", s->step);
    else if (r->last_train >= 0)
        u->missing += s->step - r->last_train - 1;
    if (s->time_ms.given)
        u->tick[u->ticks++] = (struct run_tick){ s->step, s->time_ms.value };
    r->last_train = s->step;
    check_average(r, s, &r->train_avg);
    return 0;
}

/* FNV-1a, a word at a time. */
static uint64_t mix(uint64_t h, double x)
{
    uint64_t word;
    memcpy(&word, &x, sizeof word);
    h = (h ^ word) * 1099511628211u;
    return h ^ h >> 32;
}

static void digest(struct run *u, const struct stepline *s)
{
    const struct printed *loss = s->val.given ? &s->val : &s->train;
    if (!loss->given)
        return;
    u->loss_digest = mix(mix(u->loss_digest, s->step), loss->value);
    u->losses++;
}

static int take_step(struct logread *r, const struct stepline *s)
{
    int rc = 0;
    bool back =
        r->running && (s->step < r->run.last || (s->step == 0 && s->val.given && r->last_val == 0));
    if (r->running && !back && s->total != r->run.total) {
        note(r, r->line, "the number of steps changes from %d to %d: not used", r->run.total,
             s->total);
        return 0;
    }
    if (r->running && back && (rc = end_trial(r)))
        return rc;
    if (!r->running) {
        facts_section(&r->facts);
        begin_trial(r, s);
    } else {
        facts_drop_section(&r->facts);
    }
    r->run.last = s->step;
    r->run.last_line = r->line;
    r->last_is_val = s->val.given;
    digest(&r->run, s);
    check_clock(r, s);
    rc = s->val.given ? add_val(r, s) : add_tick(r, s);
    return rc || !r->sink.step ? rc : r->sink.step(r->sink.arg, &r->run, s);
}

/* --- lines --- */

/* Among program text that follows a run a step line is that run's only if it fits. */
static bool goes_on(const struct logread *r, enum stepline_kind kind, const struct stepline *s)
{
    return r->running && kind == STEP_OK && s->total == r->run.total && s->step >= r->run.last;
}

static int take_line(struct logread *r, const char *line, size_t n, bool terminated)
{
    struct stepline s;
    const char *why = "";
    int rc = 0;
    r->line++;
    if (n && line[n - 1] == '\r')
        n--;
    enum stepline_kind kind = stepline_parse(line, n, &s, &why);
    if (kind != STEP_NONE && facts_in_source(&r->facts) && !goes_on(r, kind, &s)) {
        r->hidden_steps++;
        kind = STEP_NONE;
    }
    if (kind == STEP_OK && !terminated && !s.closed) {
        note(r, r->line, "cut off, it may lack digits: not used");
    } else if (kind == STEP_BAD) {
        note(r, r->line, "not read: %s", terminated ? why : "cut off");
    } else if (kind == STEP_OK) {
        rc = take_step(r, &s);
    } else if (facts_is_rule(line, n)) {
        if (r->running) {
            rc = end_trial(r);
            facts_next_log(&r->facts);
        }
        facts_section(&r->facts);
    } else {
        if (r->running && n >= 15 && !memcmp(line, "tool: gpt-train", 15)) {
            rc = end_trial(r);
            facts_next_log(&r->facts);
            facts_drop_section(&r->facts);
        }
        facts_line(&r->facts, line, n);
        if (!r->trials)
            rc = lists_line(&r->lists, line, n);
    }
    return rc;
}

/* Published losses and times, each a run of which nothing else is known. */
static int take_lists(struct logread *r)
{
    static const struct facts unknown;
    const struct printed *loss = r->lists.of[LIST_LOSSES].v, *time = r->lists.of[LIST_TIMES].v;
    int n = r->lists.of[LIST_LOSSES].n, times = r->lists.of[LIST_TIMES].n, rc = 0;
    if (times && times != n) {
        note(r, 0, "%d losses and %d times: expected as many", n, times);
        return 0;
    }
    for (int i = 0; i < n && !rc; i++) {
        struct run u = { .path = r->name,
                         .trial = ++r->trials,
                         .first_line = r->line,
                         .last_line = r->line,
                         .ended = true,
                         .loss = loss[i].value,
                         .loss_digits = loss[i].digits,
                         .time_ms = times ? 1e3 * time[i].value : NAN,
                         .facts = &unknown };
        u.loss_digest = mix(mix(mix(FNV, i), u.loss), u.time_ms);
        rc = r->sink.run(r->sink.arg, &u);
    }
    return rc;
}

/* A piece of a line, its end not seen yet. */
static void hold(struct logread *r, const char *data, size_t n)
{
    while (n) {
        if (r->held == LINE_MAX_BYTES) {
            struct stepline s;
            const char *why;
            if (!r->overlong)
                r->overlong_step = stepline_parse(r->buf, r->held, &s, &why) != STEP_NONE;
            r->overlong = true;
            if (!r->overlong_step)
                facts_piece(&r->facts, r->buf, r->held);
            r->held = 0;
        }
        size_t k = LINE_MAX_BYTES - r->held < n ? LINE_MAX_BYTES - r->held : n;
        memcpy(r->buf + r->held, data, k);
        r->held += k;
        data += k;
        n -= k;
    }
}

static int take_held(struct logread *r, bool terminated)
{
    size_t n = r->held;
    r->held = 0;
    if (!r->overlong)
        return take_line(r, r->buf, n, terminated);
    r->overlong = false;
    r->line++;
    if (r->overlong_step) {
        note(r, r->line, "not read: a step line of over %d bytes", LINE_MAX_BYTES);
    } else {
        facts_piece(&r->facts, r->buf, n);
        facts_piece(&r->facts, "\n", 1);
    }
    return 0;
}

int logread_feed(struct logread *r, const char *data, size_t n)
{
    int rc = 0;
    while (n && !rc) {
        const char *end = memchr(data, '\n', n);
        size_t k = end ? (size_t)(end - data) : n;
        if (!end || r->held || r->overlong || k > LINE_MAX_BYTES) {
            hold(r, data, k);
            rc = end ? take_held(r, true) : 0;
        } else {
            rc = take_line(r, data, k, true);
        }
        data += k + !!end;
        n -= k + !!end;
    }
    return rc;
}

int logread_end(struct logread *r)
{
    int rc = r->held || r->overlong ? take_held(r, false) : 0;
    if (!rc)
        rc = end_trial(r);
    if (!rc && !r->trials && r->lists.open)
        note(r, r->line, "a list that is not closed by ']'");
    else if (!rc && !r->trials && *r->lists.wrong)
        note(r, 0, "%s", r->lists.wrong);
    else if (!rc && !r->trials && r->lists.of[LIST_LOSSES].n)
        rc = take_lists(r);
    else if (!rc && !r->trials)
        note(r, 0,
             r->hidden_steps ? "step lines in program text only, which are not read"
                             : "no step lines");
    char text[64];
    for (int i = 0; r->sink.note && notecap_rest(&r->notes, i, text, sizeof text); i++)
        r->sink.note(r->sink.arg, r->name, 0, text);
    return rc;
}

int logread_file(const char *path, bool keep_texts, const struct logsink *sink)
{
    struct logread *r = NULL;
    struct zreader *z = NULL;
    char *buf = malloc(BUFFER);
    size_t n = 1;
    int rc = buf ? zreader_open(&z, path) : err_memory();
    if (!rc)
        rc = logread_new(&r, !strcmp(path, "-") ? "stdin" : path, keep_texts, sink);
    while (!rc && !(rc = zreader_read(z, buf, BUFFER, &n)) && n)
        rc = logread_feed(r, buf, n);
    if (!rc)
        rc = logread_end(r);
    logread_free(r);
    zreader_close(z);
    free(buf);
    return rc;
}
