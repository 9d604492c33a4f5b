/* cutter.c - see cutter.h. */
#include "data/cutter.h"

#include <stdlib.h>
#include "base/grow.h"

struct span {
    int64_t begin, end;
};

/* Finds the next piece of at most `most` tokens and moves *at behind it. GPT_NO: there is none. */
typedef int next_piece(struct cutter *c, struct cut_at *at, int64_t most, struct span *piece);

static int next_document(struct cutter *c, struct cut_at *at, int64_t most, struct span *piece)
{
    int rc = c->from.find(c->from.ctx, at->document, most, &piece->begin, &piece->end);

    if (rc || piece->begin < 0)
        return rc ? rc : GPT_NO;
    at->document++;
    return 0;
}

/* Finds piece `round` of document i. It is empty if the document is shorter; begin < 0: there is no
 * document i. */
static int find_piece(struct cutter *c, int64_t i, int64_t round, struct span *piece)
{
    int64_t begin, end, last = c->from.tokens - 1;
    int rc = c->from.find(c->from.ctx, i, (round + 1) * c->piece + 1, &begin, &end);

    *piece = (struct span){ begin, begin };
    if (rc || begin < 0)
        return rc;
    piece->begin += round * c->piece;
    piece->end = piece->begin + c->piece < end ? piece->begin + c->piece : end;
    if (piece->end > last)
        piece->end = last;
    if (piece->end < piece->begin)
        piece->end = piece->begin;
    return 0;
}

/* Lists the documents that have a piece in that round, of those of the round before or of all. */
static int begin_round(struct cutter *c, int64_t round)
{
    bool all = round != c->round + 1 || round == 1;
    int64_t n = 0;

    for (int64_t i = 0; all || i < c->n; i++) {
        int64_t document = all ? i : c->left[i];
        struct span piece;
        int rc = find_piece(c, document, round, &piece);

        if (rc)
            return rc;
        if (piece.begin < 0)
            break;
        if (piece.end == piece.begin)
            continue;
        if (grow_to(&c->left, &c->room, n + 1, sizeof *c->left))
            return GPT_SYSTEM;
        c->left[n++] = (uint32_t)document;
    }
    c->n = n;
    c->round = round;
    return 0;
}

/* The first of the round's documents that is not before `document`; -1: none. */
static int64_t first_left(const struct cutter *c, int64_t document)
{
    int64_t lo = 0, hi = c->n;

    while (lo < hi) {
        int64_t mid = (lo + hi) / 2;

        if (c->left[mid] < document)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < c->n ? (int64_t)c->left[lo] : -1;
}

/* Finds the piece that *at is in, passing over documents that have none. Document by document a
 * piece that is not there means the next document, in rounds the next of the round. */
static int piece_at(struct cutter *c, struct cut_at *at, struct span *piece)
{
    for (;;) {
        int rc = 0;

        if (at->round && !c->stream) {
            int64_t i;

            if (at->round != c->round && (rc = begin_round(c, at->round)))
                return rc;
            if (!c->n)
                return GPT_NO;
            if ((i = first_left(c, at->document)) < 0) {
                *at = (struct cut_at){ .round = at->round + 1 };
                continue;
            }
            at->document = i;
        }
        if ((rc = find_piece(c, at->document, at->round, piece)))
            return rc;
        if (piece->begin >= 0 && piece->begin + at->token < piece->end)
            return 0;
        if (piece->begin >= 0)
            *at = (struct cut_at){ at->document + 1, c->stream ? 0 : at->round, 0 };
        else if (c->stream)
            return GPT_NO;
        else
            *at = (struct cut_at){ .round = at->round + 1 };
    }
}

static int next_of_round(struct cutter *c, struct cut_at *at, int64_t most, struct span *piece)
{
    struct span whole;
    int rc = piece_at(c, at, &whole);

    if (rc)
        return rc;
    piece->begin = whole.begin + at->token;
    piece->end = piece->begin + most < whole.end ? piece->begin + most : whole.end;
    at->token = piece->end - whole.begin;
    if (piece->end < whole.end)
        return 0;
    if (c->stream)
        *at = (struct cut_at){ at->document, at->round + 1, 0 };
    else
        *at = (struct cut_at){ at->document + 1, at->round, 0 };
    return 0;
}

static int next_row(struct cutter *c, struct cut_at *at, int64_t most, struct span *piece)
{
    int rc = c->from.wait ? c->from.wait(c->from.ctx, at->token + most + 1) : 0;

    *piece = (struct span){ at->token, at->token + most };
    at->token += most;
    return rc;
}

static const struct rule {
    next_piece *next;
    bool continues, reads_on;
    bool whole_steps; /* a step of which the shard has too few tokens left does not begin */
} rules[] = {
    [CUT_DOCUMENT] = { next_document, false, false, false },
    [CUT_PIECES] = { next_of_round, true, true, false },
    [CUT_ROWS] = { next_row, false, true, true },
};

bool cut_continues(enum cut cut) { return rules[cut].continues; }

bool cut_reads_on(enum cut cut) { return rules[cut].reads_on; }

void cutter_enter(struct cutter *c, const struct documents *from)
{
    c->from = *from;
    c->round = 0;
}

int cutter_fill(struct cutter *c, const struct batch_shape *w, int bound, struct filling *f,
                struct cut_at *at, take_piece *take, void *ctx)
{
    /* The target of a chunk's last token is in the chunk, unless targets are the shard's. */
    int64_t whole = w->tokens + !rules[c->cut].reads_on;

    if (rules[c->cut].whole_steps && !f->chunk && !f->length &&
        at->token + (int64_t)w->chunks * w->tokens + 1 >= c->from.tokens)
        return GPT_NO;

    for (; f->chunk < w->chunks; *f = (struct filling){ .chunk = f->chunk + 1 })
        while (f->length < whole) {
            int64_t room = whole - f->length;
            struct span piece;
            int rc = rules[c->cut].next(c, at, w->cap && w->cap < room ? w->cap : room, &piece);

            if (rc)
                return rc;
            if (f->pieces == bound - 1)
                return CUT_CROWDED;
            take(ctx, f, piece.begin, piece.end);
            f->pieces++;
            f->length += piece.end - piece.begin;
        }
    return 0;
}

int cut_crowded(const char *path, int64_t step, int chunk, int bound, int tokens)
{
    return err_set(GPT_INPUT,
                   "%s: step %lld, chunk %d: expected at most %d documents in %d tokens, "
                   "found more: allow for them (-s data.max_documents=%d), or join short documents",
                   path, (long long)step + 1, chunk, bound - 1, tokens, tokens);
}

void cutter_release(struct cutter *c)
{
    free(c->left);
    c->left = NULL;
}
