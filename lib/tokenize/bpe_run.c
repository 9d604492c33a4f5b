/* bpe_run.c - pre-tokens of any length in bounded memory; see bpe.h. */
#include "tokenize/bpe.h"

#include <stdlib.h>
#include <string.h>

#define WINDOW (256u << 10)
#define LIMIT (256u << 20) /* without a boundary that stays: no real text is like that */

static size_t window_of(const struct bpe_run *r) { return r->window ? r->window : WINDOW; }

static int make_room(struct bpe_run *r, size_t n)
{
    size_t room = n + n / 2;
    uint8_t *text;
    uint16_t *token;
    int rc;

    if (n <= r->room)
        return 0;
    if (n > LIMIT)
        return err_set(GPT_INPUT,
                       "expected a pre-token to have a boundary that stays in its last "
                       "%u bytes, found none",
                       LIMIT);
    if ((text = realloc(r->text, room + BPE_PAD)))
        r->text = text;
    if ((token = realloc(r->token, (room + BPE_SLACK) * sizeof *token)))
        r->token = token;
    if (!text || !token)
        return err_memory();
    if ((rc = bpe_reserve(r->b, room)))
        return rc;
    r->room = room;
    return 0;
}

static uint32_t before(const struct bpe_run *r) { return r->begun ? r->before : TOKEN_NONE; }

/* Whether every text that ends in the last TOKEN_MAX_BYTES has a boundary at `at`
 * behind the token `last`. */
static bool stays(struct bpe_run *r, size_t at, uint32_t last)
{
    uint16_t token[16 * TOKEN_MAX_BYTES];
    size_t need = r->n - at + BPE_SLACK;
    uint16_t *out = need <= sizeof token / sizeof *token ? token : malloc(need * sizeof *out);
    bool yes = out != NULL;
    size_t m;

    for (size_t end = r->n - TOKEN_MAX_BYTES + 1; end <= r->n && yes; end++)
        yes = bpe_encode_after(r->b, last, r->text + at, end - at, out, &m);
    if (out != token)
        free(out);
    return yes;
}

/* Gives out what is final of the `count` tokens of the text. */
static size_t give_out(struct bpe_run *r, size_t count, uint16_t *tokens)
{
    const struct vocab *v = bpe_vocab(r->b);

    for (size_t back = 4 * TOKEN_MAX_BYTES; back < r->n; back *= 4) {
        size_t at = 0, k = 0;

        while (k < count && at + v->length[r->token[k]] <= r->n - back)
            at += v->length[r->token[k++]];
        if (!k)
            break;
        if (!stays(r, at, r->token[k - 1]))
            continue;
        memcpy(tokens, r->token, k * sizeof *tokens);
        r->before = r->token[k - 1];
        r->begun = true;
        memmove(r->text, r->text + at, r->n - at);
        r->n -= at;
        return k;
    }
    return 0;
}

int bpe_run_add(struct bpe_run *r, const void *s, size_t n, uint16_t *tokens, size_t *m)
{
    size_t count;
    int rc;

    *m = 0;
    if ((rc = make_room(r, r->n + n)))
        return rc;
    memcpy(r->text + r->n, s, n);
    r->n += n;
    if (r->n < window_of(r))
        return 0;
    bpe_encode_after(r->b, before(r), r->text, r->n, r->token, &count);
    *m = give_out(r, count, tokens);
    return 0;
}

void bpe_run_end(struct bpe_run *r, uint16_t *tokens, size_t *m)
{
    *m = 0;
    bpe_encode_after(r->b, before(r), r->text, r->n, tokens, m);
    r->n = 0;
    r->begun = false;
}

size_t bpe_run_room(const struct bpe_run *r, size_t n) { return r->n + n; }

void bpe_run_release(struct bpe_run *r)
{
    free(r->text);
    free(r->token);
    memset(r, 0, sizeof *r);
}
