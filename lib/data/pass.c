/* pass.c - what a pass over the data trains on, foretold from where documents begin. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "data/loader.h"
#include "data/shard_read.h"

/* Looked at, at most: document starts of indexes, and tokens where there is none. Either takes some
 * hundredths of a second. */
enum { MOST_STARTS = 2 << 20, MOST_TOKENS = 4 << 20 };

struct look {
    const struct loader_config *c;
    int bos;
    struct cutter cutter;
    int64_t first, step; /* of the pass; whose shape is taken */
    int64_t end; /* steps of the run, as far as is known */
    struct filling filling; /* of that step */
    int64_t used, passed; /* tokens trained on, of those passed over */
    int64_t starts, tokens; /* that may still be looked at */
    bool started; /* a document start was seen, or is not looked for */
};

/* The shape of step `step`, or behind the run's end of its last. A run takes other documents than
 * these if it begins in the middle, and none behind its end: then any number of them may be in a
 * chunk. */
static struct batch_shape shape_of(struct look *k)
{
    struct batch_shape w = k->c->max;

    if (k->c->shape)
        while (w = k->c->shape(k->c->ctx, k->step < k->end ? k->step : k->end - 1),
               !w.tokens && k->end > 1)
            k->end = k->step < k->end ? k->step : k->end - 1;
    if (!w.bound)
        w.bound = cu_bound(w.tokens, 0);
    if (k->first || k->step >= k->end)
        w.bound = INT_MAX;
    return w;
}

static void ignore(void *ctx, const struct filling *f, int64_t begin, int64_t end)
{
    (void)ctx;
    (void)f;
    (void)begin;
    (void)end;
}

/* Passes over the documents of a shard, or of its front alone. */
static int pass_over(struct look *k, const struct documents *d, const char *path, bool front)
{
    struct cut_at at = { 0 };
    bool goes_on = cut_continues(k->c->cut);

    cutter_enter(&k->cutter, d);
    for (;;) {
        struct batch_shape w = shape_of(k);
        int rc = cutter_fill(&k->cutter, &w, w.bound, &k->filling, &at, ignore, NULL);

        if (rc == CUT_CROWDED)
            return cut_crowded(path, k->step, k->filling.chunk, w.bound, w.tokens);
        if (rc && rc != GPT_NO)
            return rc;
        /* A piece that a shard's end interrupts is dropped; after a front alone the rest may
         * follow. */
        if (!rc || front)
            k->used += (int64_t)k->filling.chunk * w.tokens + k->filling.length;
        if (rc) {
            if (!goes_on)
                k->filling = (struct filling){ 0 };
            k->passed += d->tokens;
            return 0;
        }
        k->filling = (struct filling){ 0 };
        k->step += k->c->repeat > 1 ? k->c->repeat : 1;
    }
}

static int find_start(void *index, int64_t i, int64_t limit, int64_t *begin, int64_t *end)
{
    const struct shard_index *x = index; /* with the shard's end behind the last start */

    *begin = *end = -1;
    if (i + 1 >= x->documents)
        return 0;
    *begin = x->start[i];
    *end = x->start[i + 1] - *begin > limit ? *begin + limit : x->start[i + 1];
    return 0;
}

static int look_at_index(struct look *k, const struct corpus_shard *f, const char *index)
{
    struct shard_index x;
    int rc = shard_index_read(&x, index, f->tokens, *f->hash ? f->hash : NULL);

    if (!rc && cut_continues(k->c->cut) && f->tokens)
        rc = shard_index_begin(&x);
    k->starts -= rc ? 0 : x.documents;
    k->started = true;
    if (!rc && !(rc = shard_index_add(&x, f->tokens)))
        rc = pass_over(k, &(struct documents){ find_start, &x, f->tokens, NULL }, f->path, false);
    shard_index_release(&x);
    return rc;
}

static int find_document(void *shard, int64_t i, int64_t limit, int64_t *begin, int64_t *end)
{
    return shard_document(shard, i, limit, begin, end);
}

/* Sets k->started if a document of the shard begins with its start: the first may be without. */
static int look_for_start(struct look *k, struct shard *s)
{
    int64_t begin = 0, end;
    int rc = 0;

    for (int64_t i = 0; i < 2 && !rc && begin >= 0 && !k->started; i++)
        if (!(rc = shard_document(s, i, 1, &begin, &end)) && begin >= 0)
            k->started = shard_tokens(s)[begin] == k->bos;
    return rc;
}

static int look_at_front(struct look *k, const struct corpus_shard *f)
{
    struct shard_want want = { .vocab = k->c->vocab,
                               .bos = k->bos,
                               .whole = cut_reads_on(k->c->cut),
                               .threads = k->c->threads,
                               .limit = k->tokens,
                               .expect = f->tokens,
                               .frames = k->c->no_verify ? NULL : f->frames };
    struct shard *s;
    int rc = shard_open(&s, f->path, &want);

    if (rc)
        return rc;
    k->tokens -= shard_size(s);
    rc = pass_over(k, &(struct documents){ find_document, s, shard_size(s), NULL }, f->path,
                   shard_size(s) < f->tokens);
    if (!rc)
        rc = look_for_start(k, s);
    shard_close(s);
    return rc;
}

static int look_at(struct look *k, const struct corpus_shard *f)
{
    if (k->c->cut == CUT_ROWS) /* wherever documents begin */
        return pass_over(k, &(struct documents){ .tokens = f->tokens }, f->path, false);
    char *index = shard_index_path(f->path);
    int rc = !index                 ? err_memory()
             : !access(index, F_OK) ? look_at_index(k, f, index)
                                    : look_at_front(k, f);

    free(index);
    return rc;
}

/* Concludes from what was looked at on the rest, whose documents a MANIFEST counts. */
static void conclude(struct look *k, const struct corpus *c, struct pass *p)
{
    int cap = shape_of(k).cap;
    int64_t documents = 0;
    bool known = cap;

    p->about = k->passed < p->tokens;
    p->used = !p->about   ? k->used
              : k->passed ? (int64_t)((double)k->used * ((double)p->tokens / (double)k->passed))
                          : 0;
    for (int i = 0; i < c->n; i++) {
        documents += c->shard[i].documents;
        known = known && c->shard[i].documents >= 0;
    }
    if (p->about && known && documents < p->used / cap)
        p->used = documents * cap;
}

int loader_pass(const struct loader_config *c, int64_t step, struct pass *p)
{
    struct corpus data;
    struct look k = { .c = c,
                      .cutter = { .cut = c->cut, .piece = c->piece },
                      .first = step,
                      .end = INT64_MAX,
                      .step = step,
                      .starts = MOST_STARTS,
                      .started = c->cut != CUT_PIECES,
                      .tokens = MOST_TOKENS };
    int rc = corpus_open(&data, c->data, SPLIT_TRAIN, &c->choice);

    *p = (struct pass){ 0 };
    if (rc)
        return rc;
    k.bos = c->bos >= 0 ? c->bos : data.bos;
    for (int i = 0; i < data.n; i++) {
        const struct corpus_shard *f = &data.shard[i];

        p->tokens += f->tokens;
        if (!rc && f->tokens && k.starts > 0 && k.tokens > 0)
            rc = look_at(&k, f);
        /* The last token of a shard is a target alone. */
        p->used += f->tokens ? f->tokens - 1 : 0;
    }
    p->startless = k.started ? 0 : MOST_TOKENS - k.tokens;
    if (!rc && !cut_continues(c->cut))
        conclude(&k, &data, p);
    cutter_release(&k.cutter);
    corpus_release(&data);
    return rc;
}

void pass_text(const struct pass *p, char *text, size_t size)
{
    const char *about = p->about ? "~" : "";

    if (p->used < 0)
        snprintf(text, size, "a part of %lld tokens", (long long)p->tokens);
    else
        snprintf(text, size, "%s%lld of %lld tokens (%s%.3g%%)", about, (long long)p->used,
                 (long long)p->tokens, about,
                 p->tokens ? 100 * (double)p->used / (double)p->tokens : 0);
}
