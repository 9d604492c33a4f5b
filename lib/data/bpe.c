/* bpe.c - see bpe.h. */
#include "data/bpe.h"

#include <stdlib.h>
#include <string.h>

#include "data/pretoken.h"
#include "data/unicode.h"

/* A pre-token of up to 15 bytes, its length in the last byte of the key, and
 * its tokens: 32 bytes, two a cache line. Measured on English: 2^15 entries,
 * which is 1 MiB, hit 98% of the time. */
struct word {
    uint64_t key[2];
    uint16_t token[7];
    uint16_t n;              /* 0: no entry */
};
#define CACHE_BITS 15
#define WORD_BYTES 15
#define WORD_TOKENS 7

struct bpe {
    const struct vocab *v;
    struct word *cache;
    uint64_t *blocked;       /* a bit a byte boundary of a long pre-token */
    size_t blocked_bytes;
};

int bpe_new(struct bpe **out, const struct vocab *v)
{
    struct bpe *b = calloc(1, sizeof *b);

    *out = b;
    if (!b || !(b->cache = aligned_alloc(64, sizeof *b->cache << CACHE_BITS))) {
        bpe_free(b);
        *out = NULL;
        return err_set(GPT_SYSTEM, "out of memory for the encoder");
    }
    memset(b->cache, 0, sizeof *b->cache << CACHE_BITS);
    b->v = v;
    unicode_init();
    return 0;
}

void bpe_free(struct bpe *b)
{
    if (!b)
        return;
    free(b->cache);
    free(b->blocked);
    free(b);
}

/* Undoes the merges on both sides of the boundary, latest first. `limit` is the
 * rank of the merge undone last: a pair that stood across the boundary before
 * it and has a lower rank would have been merged instead. Of two equal ranks
 * the left pair goes first, which is what the + 1 says. */
bool bpe_may_follow(const struct vocab *v, uint32_t left, uint32_t right)
{
    uint32_t limit = UINT32_MAX;

    for (;;) {
        uint32_t across = vocab_merge(v, left, right);

        if (across != TOKEN_NONE && across < limit)
            return false;
        if (left > right) {
            limit = left;
            left = v->right[left];
            if (left != limit)
                continue;
            /* left is a byte; then right, which is below it, is one too */
            return true;
        }
        limit = right + 1;
        right = v->left[right];
        if (right + 1 != limit)
            continue;
        /* right is a byte, and left not above it */
        return true;
    }
}

/* The longest token that s starts with. */
static uint32_t longest(const struct vocab *v, const uint8_t *s, size_t n)
{
    uint32_t slot = 0, token = TOKEN_NONE;
    uint64_t e = v->trie[0];

    for (size_t i = 0; i < n && trie_step(v, &slot, &e, s[i]); i++)
        if (TRIE_TOKEN(e) != TOKEN_NONE)
            token = TRIE_TOKEN(e);
    return token;
}

static inline size_t token_bytes(const struct vocab *v, uint32_t id)
{
    return v->begin[id + 1] - v->begin[id];
}

/* One boundary bit a byte, all clear, for a pre-token of n bytes. */
static uint64_t *clear_blocked(struct bpe *b, size_t n)
{
    size_t words = n / 64 + 1;

    if (words * 8 > b->blocked_bytes) {
        uint64_t *p = realloc(b->blocked, words * 8);

        if (!p)
            return NULL;
        b->blocked = p;
        b->blocked_bytes = words * 8;
    }
    memset(b->blocked, 0, words * 8);
    return b->blocked;
}

/* Longest match first; where no token can follow, this boundary is blocked for
 * good and the token before it is made shorter. */
static size_t encode_backtracking(struct bpe *b, const uint8_t *s, size_t n, uint16_t *out)
{
    const struct vocab *v = b->v;
    uint64_t *blocked = clear_blocked(b, n);
    size_t at = 0, m = 0;
    uint32_t token = longest(v, s, n);

    while (at < n) {
        size_t end = at + token_bytes(v, token);

        if (!(blocked[end >> 6] >> (end & 63) & 1)
            && (m == 0 || bpe_may_follow(v, out[m - 1], token))) {
            out[m++] = (uint16_t)token;
            at = end;
            token = at < n ? longest(v, s + at, n - at) : TOKEN_NONE;
        } else if (v->shorter[token] != TOKEN_NONE) {
            token = v->shorter[token];
        } else {
            blocked[at >> 6] |= UINT64_C(1) << (at & 63);
            token = out[--m];
            at -= token_bytes(v, token);
        }
    }
    return m;
}

static inline void word_key(const uint8_t *s, size_t n, uint64_t key[2])
{
    memcpy(key, s, 16);
    if (n < 8) {
        key[0] &= (UINT64_C(1) << 8 * n) - 1;
        key[1] = 0;
    } else {
        key[1] &= (UINT64_C(1) << 8 * (n - 8)) - 1;
    }
    key[1] |= (uint64_t)n << 56;
}

static inline struct word *word_slot(const struct bpe *b, const uint64_t key[2])
{
    uint64_t h = (key[0] ^ key[1] * UINT64_C(0x9fb21c651e98df25)) * UINT64_C(0x9e3779b97f4a7c15);

    return b->cache + (h >> (64 - CACHE_BITS));
}

static size_t __attribute__((noinline)) encode_word(struct bpe *b, const uint8_t *s, size_t n,
                                                    uint16_t *out)
{
    size_t m = encode_backtracking(b, s, n, out);

    if (n <= WORD_BYTES && m <= WORD_TOKENS) {
        struct word w = { .n = (uint16_t)m };

        word_key(s, n, w.key);
        memcpy(w.token, out, m * sizeof *out);
        *word_slot(b, w.key) = w;
    }
    return m;
}

/* Tokens of one pre-token; stores up to BPE_SLACK tokens. */
static inline size_t put_word(struct bpe *b, const uint8_t *s, size_t n, uint16_t *out)
{
    if (n <= WORD_BYTES) {
        uint64_t key[2];
        const struct word *w;

        word_key(s, n, key);
        w = word_slot(b, key);
        if (w->key[0] == key[0] && w->key[1] == key[1]) {
            memcpy(out, w->token, 16);       /* with n as the eighth, beyond what counts */
            return w->n;
        }
    }
    return encode_word(b, s, n, out);
}

size_t bpe_encode(struct bpe *b, const char *text, size_t len, bool more, uint16_t *tokens)
{
    const uint8_t *s = (const uint8_t *)text;
    uint16_t *out = tokens;
    struct pretoken p;
    size_t from = 0;

    if (!b->v->trie) {
        for (size_t i = 0; i < len; i++)
            out[i] = s[i];
        return len;
    }
    if (!len)
        return 0;
    pretoken_init(&p, text, len, more);
    for (size_t at = 0; at < len; at += 64) {
        uint64_t starts = pretoken_block(&p);

        if (at == 0)
            starts &= ~UINT64_C(1);
        for (; starts; starts &= starts - 1) {
            size_t end = at + (size_t)__builtin_ctzll(starts);

            out += put_word(b, s + from, end - from, out);
            from = end;
        }
    }
    out += put_word(b, s + from, len - from, out);
    return (size_t)(out - tokens);
}

size_t bpe_decode(const struct vocab *v, const uint16_t *tokens, size_t n, char *out, size_t room)
{
    size_t m = 0;

    for (size_t i = 0; i < n; i++) {
        size_t k;
        const uint8_t *s;

        if (tokens[i] >= v->tokens)
            continue;
        s = vocab_token(v, tokens[i], &k);
        if (k > room - m)
            break;
        memcpy(out + m, s, k);
        m += k;
    }
    return m;
}
