/* generate.c - see generate.h.
 *
 * Each of the decoder's sequences is a slot. Texts that wait take free slots; their prompts but the
 * last token go into the cache; then every step gives each row a token. The device makes the rows of
 * the next step itself, so that a step is queued before the tokens of the one before are read. Rows
 * are given anew when a text takes a slot, and when half of the rows belong to finished texts.
 */
#include "sample/generate.h"

#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "base/grow.h"
#include "base/progress.h"
#include "tokenize/bpe.h"
#include "tokenize/unicode.h"

enum { AHEAD = 2 }; /* steps queued before their tokens are read; at most FETCH_MAX */

struct writing {
    int prompt, number; /* of the text */
    char *s; /* its bytes */
    size_t n, room, given;
    int tokens;
    int32_t last, before; /* its last two tokens */
    bool started, done, ended;
};

struct job {
    struct generate *g;
    const struct prompts *p;
    struct writing *w;
    int n, next, head; /* texts; the first that waits; the first that is not handed out */
    int *slot; /* [sequences] text in it, -1: free */
    int *row; /* [rows] slot of each row */
    int rows, live, pending;
    struct decode_row *rows_host;
    void **graph; /* [sequences + 1] by rows */
};

/* -- handing out ------------------------------------------------------------------ */

/* Bytes from s on that are whole characters; *bad: those behind them that never become one. */
static size_t whole(const char *s, size_t n, bool done, size_t *bad)
{
    size_t good = utf8_valid_prefix(s, n);
    *bad = 0;
    if (good < n) {
        size_t k = (size_t)utf8_bad_length((const unsigned char *)s + good, n - good);
        unsigned char lead = (unsigned char)s[good];
        bool may_go_on = good + k == n && lead >= 0xc2 && lead <= 0xf4;
        *bad = may_go_on && !done ? 0 : k;
    }
    return good;
}

static int hand_out_text(struct job *j, struct writing *w)
{
    struct generate *g = j->g;
    int rc = 0;
    while (!rc && w->given < w->n) {
        size_t bad, good = whole(w->s + w->given, w->n - w->given, w->done, &bad);
        if (good)
            rc = g->text(g->arg, w->prompt, w->number, w->s + w->given, good);
        if (!rc && bad)
            rc = g->text(g->arg, w->prompt, w->number, "\xef\xbf\xbd", 3);
        w->given += good + bad;
        if (!good && !bad)
            break;
    }
    return rc;
}

static int hand_out(struct job *j)
{
    int rc = 0;
    for (; !rc && j->head < j->next; j->head++) {
        struct writing *w = &j->w[j->head];
        if (!w->started) /* an empty text, so that the prompt is shown */
            rc = j->g->text(j->g->arg, w->prompt, w->number, "", 0);
        w->started = true;
        if (!rc)
            rc = hand_out_text(j, w);
        if (rc || !w->done)
            break;
        rc = j->g->end(j->g->arg, w->prompt, w->number, w->tokens, w->ended);
        free(w->s);
        w->s = NULL;
    }
    return rc;
}

static int add_token(struct job *j, struct writing *w, int32_t token)
{
    const struct vocab *v = j->g->vocab;
    int rc = grow_to(&w->s, &w->room, w->n + TOKEN_MAX_BYTES, 1);
    if (rc)
        return rc;
    j->g->chosen++;
    w->before = w->last;
    w->last = token;
    w->ended = token == v->bos && !j->g->ignore_end;
    const uint16_t id = (uint16_t)token;
    w->n += bpe_decode(v, &id, 1, w->s + w->n, w->room - w->n);
    w->tokens += !w->ended;
    w->done = w->ended || w->tokens == j->g->tokens;
    return 0;
}

/* -- rows --------------------------------------------------------------------------- */

static int32_t position(const struct job *j, const struct writing *w)
{
    return j->p->v[w->prompt].n + w->tokens - 1;
}

static struct decode_row prompt_row(const struct prompt *q, int slot, int at)
{
    return (struct decode_row){
        .slot = slot, .pos = at, .token = q->token[at], .before = at ? q->token[at - 1] : 0
    };
}

/* The prompts of the texts from..to-1, which have just taken slots, but their last tokens. A call has
 * `most` rows at most, and cuts a prompt only where whole blocks of it end. */
static void fill(struct job *j, const int *slots, int n)
{
    struct decoder *d = j->g->decoder;
    int rows = 0;
    for (int i = 0; i < n; i++) {
        const struct prompt *q = &j->p->v[j->w[j->slot[slots[i]]].prompt];
        for (int at = 0; at < q->n - 1;) {
            int left = q->n - 1 - at, room = (d->most - rows) / DECODE_BLOCK * DECODE_BLOCK;
            int take = left <= d->most - rows ? left : room;
            for (int k = 0; k < take; k++)
                j->rows_host[rows++] = prompt_row(q, slots[i], at + k);
            at += take;
            if (rows == d->most || at < q->n - 1) {
                decoder_rows(d, j->rows_host, rows);
                decoder_fill(d);
                rows = 0;
            }
        }
    }
    if (rows) {
        decoder_rows(d, j->rows_host, rows);
        decoder_fill(d);
    }
}

static int take_slots(struct job *j)
{
    struct decoder *d = j->g->decoder;
    int *taken = j->row, n = 0; /* the rows are given anew below */
    double began = now_seconds();
    for (int s = 0; s < d->sequences && j->next < j->n; s++) {
        if (j->slot[s] >= 0)
            continue;
        struct writing *w = &j->w[j->next];
        const struct prompt *q = &j->p->v[w->prompt];
        w->last = q->token[q->n - 1];
        w->before = q->n > 1 ? q->token[q->n - 2] : 0;
        j->slot[s] = j->next++;
        taken[n++] = s;
        j->live++;
    }
    fill(j, taken, n);
    int rc = n ? d->m->ops->sync(d->m->ops) : 0;
    j->g->fill_seconds += now_seconds() - began;
    return rc;
}

static void give_rows(struct job *j)
{
    struct decoder *d = j->g->decoder;
    j->rows = 0;
    for (int s = 0; s < d->sequences; s++) {
        if (j->slot[s] < 0)
            continue;
        const struct writing *w = &j->w[j->slot[s]];
        j->rows_host[j->rows] = (struct decode_row){ .slot = s,
                                                     .pos = position(j, w),
                                                     .token = w->last,
                                                     .before = w->before,
                                                     .stream = (uint64_t)w->number };
        j->row[j->rows++] = s;
    }
    decoder_rows(d, j->rows_host, j->rows);
}

/* -- steps ---------------------------------------------------------------------------- */

/* Queues a step: as a graph of this number of rows where the device has graphs. */
static int queue_step(struct job *j)
{
    const struct backend *g = j->g->graphs;
    struct ops *o = j->g->decoder->m->ops;
    void **graph = &j->graph[j->rows];
    int rc = 0;
    if (g && !*graph && !(rc = g->capture(o))) {
        decoder_next(j->g->decoder, &j->g->choice);
        rc = g->capture_end(o, graph);
    }
    if (rc)
        return rc;
    if (g)
        g->launch(o, *graph);
    else
        decoder_next(j->g->decoder, &j->g->choice);
    o->fetch(o, j->g->decoder->next.token, (size_t)j->rows * sizeof(int32_t));
    j->pending++;
    j->g->steps++;
    return o->status(o);
}

/* Reads the tokens of the oldest step that is queued. */
static int read_step(struct job *j)
{
    struct ops *o = j->g->decoder->m->ops;
    int32_t token[GENERATE_MAX];
    o->fetched(o, token, (size_t)j->rows * sizeof *token);
    int rc = o->status(o);
    for (int i = 0; i < j->rows && !rc; i++) {
        int s = j->row[i];
        if (s < 0)
            continue;
        struct writing *w = &j->w[j->slot[s]];
        if (!(rc = add_token(j, w, token[i])) && w->done) {
            j->slot[s] = j->row[i] = -1;
            j->live--;
        }
    }
    j->pending--;
    return rc ? rc : hand_out(j);
}

static int steps(struct job *j)
{
    int ahead = j->g->graphs ? AHEAD : 1, rc = 0;
    while (!rc && j->live) {
        bool anew = j->live < j->rows && (j->next < j->n || 2 * j->live <= j->rows);
        if (anew) {
            while (!rc && j->pending)
                rc = read_step(j);
            break;
        }
        while (!rc && j->pending < ahead)
            rc = queue_step(j);
        if (!rc)
            rc = read_step(j);
    }
    while (!rc && j->pending) /* of finished texts */
        rc = read_step(j);
    return rc;
}

static int work(struct job *j)
{
    int rc = 0;
    while (!rc && (j->next < j->n || j->live)) {
        if ((rc = take_slots(j)))
            break;
        double began = now_seconds();
        give_rows(j);
        rc = steps(j);
        j->g->step_seconds += now_seconds() - began;
    }
    return rc;
}

/* -- all --------------------------------------------------------------------------------- */

int64_t generate_context(const struct prompts *p, int tokens)
{
    int64_t most = 1;
    for (int i = 0; i < p->n; i++)
        most = p->v[i].n > most ? p->v[i].n : most;
    return most + 2LL * tokens + AHEAD; /* a row goes on after its text has ended, until rows are
                                           given anew */
}

static void release(struct job *j)
{
    for (int i = 0; i < j->n && j->w; i++)
        free(j->w[i].s);
    for (int i = 0; j->graph && i <= j->g->decoder->sequences; i++)
        if (j->graph[i])
            j->g->graphs->graph_free(j->graph[i]);
    free(j->w), free(j->slot), free(j->row), free(j->rows_host), free(j->graph);
}

bool generate_can_ignore_end(const struct vocab *v) { return v->bos == v->size - 1; }

int generate(struct generate *g, const struct prompts *p)
{
    size_t s = (size_t)g->decoder->sequences, n = (size_t)p->n * (size_t)g->count;
    struct job j = { .g = g,
                     .p = p,
                     .n = (int)n,
                     .w = calloc(n + 1, sizeof *j.w),
                     .slot = malloc(s * sizeof *j.slot),
                     .row = malloc(s * sizeof *j.row),
                     .rows_host = malloc((size_t)g->decoder->most * sizeof *j.rows_host),
                     .graph = calloc(s + 1, sizeof *j.graph) };
    int rc = j.w && j.slot && j.row && j.rows_host && j.graph ? 0 : err_memory();

    for (size_t i = 0; i < s && !rc; i++)
        j.slot[i] = -1;
    for (int i = 0; i < j.n && !rc; i++)
        j.w[i].prompt = i / g->count, j.w[i].number = i % g->count;
    g->choice.classes = g->vocab->size - (g->ignore_end && generate_can_ignore_end(g->vocab));
    if (!rc)
        rc = work(&j);
    release(&j);
    return rc;
}
