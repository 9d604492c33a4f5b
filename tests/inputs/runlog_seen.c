/* runlog_seen.c - see runlog_seen.h. */
#include "runlog_seen.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A test may end on out of memory. */
static void *more(void *p, int n, size_t size)
{
    p = realloc(p, (size_t)(n + 1) * size);
    if (!p)
        abort();
    return p;
}

static void copy_text(char *to, size_t room, const struct fact_text *t)
{
    size_t n = t->n < room - 1 ? t->n : room - 1;
    if (t->text)
        memcpy(to, t->text, n);
    to[t->text ? n : 0] = '\0';
}

static int take_run(void *arg, const struct run *r)
{
    struct seen *s = arg;
    s->run = more(s->run, s->runs, sizeof *s->run);
    s->hash = more(s->hash, s->runs, sizeof *s->hash);
    for (int f = 0; f < FACTS; f++)
        strcpy(s->hash[s->runs][f], r->facts->of[f].hash);
    if (!s->runs) {
        copy_text(s->environment, sizeof s->environment, &r->facts->of[FACT_ENVIRONMENT]);
        copy_text(s->gpu, sizeof s->gpu, &r->facts->of[FACT_GPU]);
        for (int i = 0; i < r->steps; i++) {
            s->step = more(s->step, s->steps, sizeof *s->step);
            s->step[s->steps++] = r->step[i];
        }
    }
    for (int i = 0; i < r->vals; i++) {
        s->val = more(s->val, s->vals, sizeof *s->val);
        s->val[s->vals++] = (struct seen_val){ r->trial, r->val[i] };
    }
    s->run[s->runs++] = *r;
    return 0;
}

static void take_note(void *arg, const char *path, long line, const char *text)
{
    struct seen *s = arg;
    (void)path;
    s->note = more(s->note, s->notes, sizeof *s->note);
    s->note[s->notes].line = line;
    snprintf(s->note[s->notes++].text, sizeof s->note->text, "%s", text);
}

void seen_read(struct seen *s, const char *text, size_t n, size_t piece)
{
    struct logsink sink = { .run = take_run, .note = take_note, .arg = s };
    struct logread *r = NULL;
    memset(s, 0, sizeof *s);
    s->rc = logread_new(&r, "made", true, &sink);
    for (size_t k; !s->rc && n; text += k, n -= k) {
        k = piece && piece < n ? piece : n;
        s->rc = logread_feed(r, text, k);
    }
    if (!s->rc)
        s->rc = logread_end(r);
    logread_free(r);
}

void seen_release(struct seen *s)
{
    free(s->run);
    free(s->val);
    free(s->step);
    free(s->note);
    free(s->hash);
    memset(s, 0, sizeof *s);
}

bool seen_note_has(const struct seen *s, long line, const char *part)
{
    for (int i = 0; i < s->notes; i++)
        if ((line < 0 || s->note[i].line == line) && strstr(s->note[i].text, part))
            return true;
    return false;
}
