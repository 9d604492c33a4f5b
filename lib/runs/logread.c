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
#include "runs/prefix.h"

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
    struct broken_off {
        long line; /* 0: there is none */
        int32_t last, total;
    } broken_off; /* the trial before, which did not reach its end */
    bool last_is_val;
    int32_t last_train, last_val;
    struct average train_avg, val_avg;
    enum step_layout layout; /* of the trial's lines */
    struct stepline first_val; /* llm.c's, which stands before its first step */
    double clock; /* the sum of the steps' own times, where each has one; NaN: it has not */
    int prefix; /* parts of a prefix that all lines have, known from the header's first one */
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
    free(r->run.step);
    free(r);
}

/* --- trials --- */

/* Tells of a run that broke off, unless what follows it in the log goes on from there. */
static void tell_broken_off(struct logread *r, bool goes_on)
{
    if (r->broken_off.line && !goes_on)
        note(r, r->broken_off.line, "the run ends at step %d of %d: no last validation",
             r->broken_off.last, r->broken_off.total);
    r->broken_off.line = 0;
}

static void begin_trial(struct logread *r, const struct stepline *s)
{
    struct run *u = &r->run;
    struct run_val *val = u->val;
    struct run_step *step = u->step;
    bool published = s->layout == LAYOUT_PAIRS || s->layout == LAYOUT_LLMC;
    *u = (struct run){ .path = r->name,
                       .trial = ++r->trials,
                       .first_line = r->line,
                       .first = s->step,
                       .total = s->total,
                       .record = r->facts.own ? r->facts.record : published,
                       .loss = NAN,
                       .time_ms = NAN,
                       .fine_clock = true,
                       .cost = { NAN, NAN, NAN, NAN },
                       .resumed = r->facts.resumed,
                       .pass_tokens = r->facts.own ? r->facts.pass_tokens : 0,
                       .seed = r->facts.own ? r->facts.seed : -1,
                       .identity = r->facts.own ? r->facts.identity : 0,
                       .val = val,
                       .step = step,
                       .facts = &r->facts };
    tell_broken_off(r, r->facts.own && u->resumed && u->resumed <= r->broken_off.last);
    r->running = true;
    r->layout = s->layout;
    r->clock = s->step <= 1 ? 0 : NAN;
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
    /* nanoGPT does one more iteration after its last validation */
    if (last && r->layout == LAYOUT_NANOGPT && u->last == last->step + 1) {
        u->last = last->step;
        r->last_is_val = true;
        while (u->steps && u->step[u->steps - 1].step > u->last)
            u->steps--;
    }
    u->ended = last && r->last_is_val && last->step > 0 && (!u->total || last->step == u->total);
    if (u->ended) {
        u->loss = last->loss;
        u->loss_digits = last->digits;
        u->time_ms = u->resumed ? NAN : last->time_ms;
    }
    run_digest(u);
    if (u->ended && !u->total)
        note(r, u->last_line,
             "the log does not tell the number of steps: step %d is taken for "
             "the end",
             u->last);
    else if (!u->ended && !last)
        note(r, u->last_line, "the run has no validation loss");
    else if (!u->ended && u->total)
        r->broken_off = (struct broken_off){ u->last_line, u->last, u->total };
    else if (!u->ended)
        note(r, u->last_line, "the run ends at step %d without a validation", u->last);
    if (u->missing && u->missing < u->steps)
        note(r, u->first_line, "step lines missing: %d", u->missing);
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

static double value_of(const struct printed *p) { return p->given ? p->value : NAN; }

/* The clock of a line: as it says, or, where lines have each step's own time, their sum. */
static double clock_of(const struct logread *r, const struct stepline *s)
{
    return r->layout == LAYOUT_LLMC_OUTPUT ? r->clock : value_of(&s->time_ms);
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
    u->val[u->vals++] = (struct run_val){ s->step, s->val.digits, s->val.value, clock_of(r, s) };
    r->last_val = s->step;
    check_average(r, s, &r->val_avg);
    return 0;
}

static int add_step(struct logread *r, const struct stepline *s)
{
    struct run *u = &r->run;
    int rc = grow_one(&u->step, u->steps, sizeof *u->step);
    if (rc)
        return rc;
    if (s->step == r->last_train)
        note(r, r->line, "a second line of step %d", s->step);
    else if (r->last_train >= 0)
        u->missing += s->step - r->last_train - 1;
    r->clock += s->step == (r->last_train < 0 ? 1 : r->last_train + 1) ? value_of(&s->own_ms) : NAN;
    u->step[u->steps++] = (struct run_step){ .step = s->step,
                                             .loss = value_of(&s->train),
                                             .next = value_of(&s->next),
                                             .norm = value_of(&s->norm),
                                             .time_ms = clock_of(r, s),
                                             .own_ms = value_of(&s->own_ms) };
    r->last_train = s->step;
    check_average(r, s, &r->train_avg);
    return 0;
}

/* Takes a step line of the trial that goes on, or of the one that it begins. */
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
    check_clock(r, s);
    rc = s->val.given ? add_val(r, s) : add_step(r, s);
    return rc || !r->sink.step ? rc : r->sink.step(r->sink.arg, &r->run, s);
}

/* llm.c's validation tells no step: it is that of the line before, and before the first line 0. */
static int take_open_val(struct logread *r, struct stepline *s)
{
    if (!r->running) {
        r->first_val = *s;
        return 0;
    }
    if (r->layout != LAYOUT_LLMC_OUTPUT)
        return 0;
    s->step = r->run.last;
    s->total = r->run.total;
    return take_step(r, s);
}

static int take_output_step(struct logread *r, const struct stepline *s)
{
    struct stepline first = r->first_val;
    r->first_val.val.given = false;
    if (!r->running && s->step == 1 && first.val.given) {
        first.step = 0;
        first.total = s->total;
        int rc = take_step(r, &first);
        if (rc)
            return rc;
    }
    return take_step(r, s);
}

/* --- lines --- */

/* Among program text that follows a run a step line is that run's only if it fits. */
static bool goes_on(const struct logread *r, enum stepline_kind kind, const struct stepline *s)
{
    return r->running && kind == STEP_OK && s->total == r->run.total && s->step >= r->run.last;
}

/* gpt-train's `end:` line. */
static void take_cost(struct run_cost *cost, const char *line, size_t n)
{
    char text[256];
    struct run_cost c;
    snprintf(text, sizeof text, "%.*s", n < sizeof text ? (int)n : 0, line);
    if (sscanf(text, "end: %lf s (start %lf, steps %*f, validation %lf, checkpoints %lf)", &c.whole,
               &c.start, &c.validation, &c.checkpoints) == 4)
        *cost = c;
}

static int take_text(struct logread *r, const char *line, size_t n)
{
    int rc = 0;
    struct prefix all = prefix_of(line, n, PREFIX_ALL);
    bool header = n >= all.bytes + 15 && !memcmp(line + all.bytes, "tool: gpt-train", 15);
    if (header)
        r->prefix = all.parts;
    size_t k = r->prefix ? prefix_of(line, n, r->prefix).bytes : 0;
    line += k, n -= k;
    if (facts_is_rule(line, n)) {
        if (r->running) {
            rc = end_trial(r);
            facts_next_log(&r->facts);
        }
        facts_section(&r->facts);
        return rc;
    }
    if (r->running && header) {
        rc = end_trial(r);
        facts_next_log(&r->facts);
        facts_drop_section(&r->facts);
    }
    if (r->running && r->facts.own)
        take_cost(&r->run.cost, line, n);
    facts_line(&r->facts, line, n);
    return rc || r->trials ? rc : lists_line(&r->lists, line, n, r->line);
}

static int take_line(struct logread *r, const char *line, size_t n, bool terminated)
{
    struct stepline s;
    const char *why = "";
    r->line++;
    if (n && line[n - 1] == '\r') /* as text_plain_lines has it, of a text that is not held */
        n--;
    if (r->line == 1 && n >= 3 && !memcmp(line, "\xef\xbb\xbf", 3)) {
        line += 3;
        n -= 3;
    }
    if (n <= LINE_MAX_BYTES && memchr(line, '\033', n)) {
        memmove(r->buf, line, n);
        line = r->buf;
        n = prefix_uncolour(r->buf, n);
    }
    enum stepline_kind kind = stepline_parse(line, n, &s, &why);
    if (kind != STEP_NONE && facts_in_source(&r->facts) && !goes_on(r, kind, &s)) {
        r->hidden_steps++;
        kind = STEP_NONE;
    }
    if (kind == STEP_NONE)
        return take_text(r, line, n);
    if (kind == STEP_OK && !terminated && !s.closed)
        note(r, r->line, "cut off, it may lack digits: not used");
    else if (kind == STEP_BAD)
        note(r, r->line, "not read: %s", terminated ? why : "cut off");
    else if (s.step < 0)
        return take_open_val(r, &s);
    else
        return s.layout == LAYOUT_LLMC_OUTPUT ? take_output_step(r, &s) : take_step(r, &s);
    return 0;
}

/* The runs of a published list, of which nothing else is known. */
static int take_set(struct logread *r, const struct list_set *set)
{
    static const struct facts unknown;
    const struct list *loss = &set->of[LIST_LOSSES], *time = &set->of[LIST_TIMES];
    int digits = lists_digits(loss), rc = 0;
    uint64_t digest = 0;
    if (*set->wrong || (time->n && time->n != loss->n)) {
        if (*set->wrong)
            note(r, set->line, "not used: %s", set->wrong);
        else
            note(r, set->line, "%d losses and %d times: expected as many", loss->n, time->n);
        return 0;
    }
    for (int i = 0; i < loss->n; i++)
        digest = run_mix(digest, loss->v[i].value);
    for (int i = 0; i < loss->n && !rc; i++) {
        struct run u = { .path = r->name,
                         .trial = ++r->trials,
                         .first_line = set->line,
                         .last_line = r->line,
                         .ended = true,
                         .record = true,
                         .loss = loss->v[i].value,
                         .loss_digits = digits ? digits : loss->v[i].digits,
                         .time_ms = time->n ? 1e3 * time->v[i].value : NAN,
                         .cost = { NAN, NAN, NAN, NAN },
                         .seed = -1,
                         .fine_clock = time->n && time->v[i].digits >= 3,
                         .list = r->lists.n > 1 ? set->name : "",
                         .list_digest = digest,
                         .list_at = i,
                         .facts = &unknown };
        run_digest(&u);
        rc = r->sink.run(r->sink.arg, &u);
    }
    return rc;
}

/* A text with several sets names those that have no name. */
static int take_lists(struct logread *r)
{
    int rc = 0;
    for (int i = 0; i < r->lists.n && !rc; i++) {
        struct list_set *s = &r->lists.set[i];
        bool taken = !*s->name;
        for (int k = 0; k < i; k++)
            taken |= !strcmp(r->lists.set[k].name, s->name);
        if (taken)
            snprintf(s->name, sizeof s->name, "%d", i + 1);
        rc = take_set(r, s);
    }
    if (r->lists.times)
        note(r, 0, "times without losses: not used");
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
    tell_broken_off(r, false);
    if (!rc && !r->trials && lists_open(&r->lists))
        note(r, r->line, "a list that is not closed by ']'");
    else if (!rc && !r->trials && r->lists.n)
        rc = take_lists(r);
    else if (!rc && !r->trials)
        note(r, 0,
             r->hidden_steps ? "step lines in program text only, which are not read"
                             : "no step lines, of which gpt-runlog(5) has the forms");
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
