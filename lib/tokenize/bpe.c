/* bpe.c - see bpe.h. */
#include "tokenize/bpe.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#define XXH_INLINE_ALL
#include <xxhash.h>
#include "tokenize/pretoken.h"
#include "tokenize/unicode.h"

/* A pre-token of up to 15 bytes, and its length in the last byte. */
typedef uint64_t word_key __attribute__((vector_size(16)));

/* A word and its tokens. Two words stand together in a cache line, the later first; one that loses its place
 * there moves to the line beside it, where it is looked for next. 2^18 of them are 8 MiB; of the
 * pre-tokens of 24 MB of English text read again and again, 98.7% are found in the first line. */
struct word {
    word_key key;
    uint16_t token[7];
    uint16_t n; /* 0: no entry */
};
#define CACHE_BITS 18
#define CACHE_BYTES (sizeof(struct word) << CACHE_BITS)
#define HUGE_PAGE (2u << 20)
#define WORD_BYTES 15
#define WORD_TOKENS 7

/* Pairs of tokens that may stand side by side, as found out before: long text
 * without a break asks for few of them, again and again. */
#define PAIR_BITS 14

/* A pre-token that is longer or has more tokens than a struct word takes: lines of dashes, white
 * space. 2^13 of them are 2 MiB. */
#define RARE_BYTES 124
#define RARE_TOKENS 64
struct rare {
    uint8_t text[RARE_BYTES];
    uint16_t bytes, n; /* 0: no entry */
    uint16_t token[RARE_TOKENS];
};
#define RARE_BITS 13
#define RARE_SIZE (sizeof(struct rare) << RARE_BITS)

struct bpe {
    const struct vocab *v;
    struct word *cache;
    struct rare *rare;
    uint32_t *neighbours; /* by hash, left << 16 | right; all ones: none */
    uint64_t *blocked; /* a bit a byte boundary of a pre-token */
    size_t reserved; /* bytes that it is enough for */
};

int bpe_new(struct bpe **out, const struct vocab *v)
{
    struct bpe *b = calloc(1, sizeof *b);

    *out = b;
    if (!b || !(b->cache = aligned_alloc(HUGE_PAGE, CACHE_BYTES)) ||
        !(b->rare = aligned_alloc(HUGE_PAGE, RARE_SIZE)) ||
        !(b->neighbours = malloc(sizeof *b->neighbours << PAIR_BITS)) || bpe_reserve(b, 1 << 16)) {
        bpe_free(b);
        *out = NULL;
        return err_memory();
    }
    madvise(b->cache, CACHE_BYTES, MADV_HUGEPAGE); /* before it is touched */
    memset(b->cache, 0, CACHE_BYTES);
    madvise(b->rare, RARE_SIZE, MADV_HUGEPAGE);
    memset(b->rare, 0, RARE_SIZE);
    memset(b->neighbours, 0xff, sizeof *b->neighbours << PAIR_BITS);
    b->v = v;
    unicode_init();
    return 0;
}

int bpe_reserve(struct bpe *b, size_t len)
{
    uint64_t *p;

    if (len <= b->reserved)
        return 0;
    if (!(p = realloc(b->blocked, (len / 64 + 1) * sizeof *p)))
        return err_memory();
    b->blocked = p;
    b->reserved = len;
    return 0;
}

void bpe_free(struct bpe *b)
{
    if (!b)
        return;
    free(b->cache);
    free(b->rare);
    free(b->neighbours);
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
            left = vocab_right(v, left);
            if (left != limit)
                continue;
            /* left is a byte; then right, which is below it, is one too */
            return true;
        }
        limit = right + 1;
        right = vocab_left(v, right);
        if (right + 1 != limit)
            continue;
        /* right is a byte, and left not above it */
        return true;
    }
}

static inline bool may_follow(struct bpe *b, uint32_t left, uint32_t right)
{
    uint32_t key = left << 16 | right;
    uint32_t *known = b->neighbours + (vocab_hash(key) >> (32 - PAIR_BITS));

    if (*known == key)
        return true;
    if (!bpe_may_follow(b->v, left, right))
        return false;
    *known = key;
    return true;
}

/* The longest token that s starts with, and how many bytes it depends on;
 * SIZE_MAX where it depends on the end. */
static uint32_t longest(const struct vocab *v, const uint8_t *s, size_t n, size_t *seen)
{
    uint32_t slot = n > 1 ? v->two[s[0] | s[1] << 8] : 0, at = 0, e;
    size_t i = 2;

    *seen = n > 1 ? 2 : SIZE_MAX;
    if (!slot)
        return v->byte_id[s[0]];
    e = v->trie[slot];
    if (e & TRIE_ENDS)
        at = slot;
    for (; i < n && (e = trie_step(v, &slot, e, s[i])); i++)
        if (e & TRIE_ENDS)
            at = slot;
    *seen = i < n ? i + 1 : SIZE_MAX;
    return at ? v->trie_token[at] : v->byte_id[s[0]];
}

/* The last look-up of a longest token: the same bytes again, as in a line of dashes, need no
 * other. */
struct walk {
    const uint8_t *s;
    size_t seen;
    uint32_t token;
};

static inline uint32_t longest_again(const struct vocab *v, struct walk *w, const uint8_t *s,
                                     size_t n)
{
    uint64_t x, y;

    if (w->seen <= 8 && w->seen <= n) {
        memcpy(&x, w->s, 8);
        memcpy(&y, s, 8);
        if (!((x ^ y) << (64 - 8 * w->seen)))
            return w->token;
    }
    w->s = s;
    return w->token = longest(v, s, n, &w->seen);
}

/* Longest match first. Where no token can follow, the boundary is marked as blocked and the
 * token before it is replaced by a shorter one. */
static bool encode_piece(struct bpe *b, uint32_t before, const uint8_t *s, size_t n, uint16_t *out,
                         size_t *tokens)
{
    const struct vocab *v = b->v;
    uint64_t *blocked = b->blocked;
    size_t at = 0, m = 0;
    struct walk walk = { .seen = SIZE_MAX };
    uint32_t token = n ? longest_again(v, &walk, s, n) : 0, last = before;

    assert(n <= b->reserved);
    memset(blocked, 0, (n / 64 + 1) * sizeof *blocked);
    while (at < n) {
        size_t end = at + v->length[token];

        if (!(blocked[end >> 6] >> (end & 63) & 1) &&
            (last == TOKEN_NONE || may_follow(b, last, token))) {
            out[m++] = (uint16_t)token;
            last = token;
            at = end;
            token = at < n ? longest_again(v, &walk, s + at, n - at) : TOKEN_NONE;
        } else if (v->shorter[token] != TOKEN_NONE) {
            token = v->shorter[token];
        } else if (m == 0) {
            return false;
        } else {
            blocked[at >> 6] |= UINT64_C(1) << (at & 63);
            token = last;
            last = --m ? out[m - 1] : before;
            at -= v->length[token];
        }
    }
    *tokens = m;
    return true;
}

/* Masks of the bytes that a key takes of 16, and the length in its last byte, for a word of n bytes. A
 * table, because a branch on the length of words is mispredicted often. */
#define BYTES(n) ((n) >= 8 ? ~UINT64_C(0) : (UINT64_C(1) << 8 * ((n)&7)) - 1)
#define FORM(n) \
    { \
        { BYTES(n), n > 8 ? BYTES(n - 8) : 0 }, { 0, UINT64_C(n) << 56 } \
    }
static const word_key key_form[WORD_BYTES + 2][2] = {
    FORM(0), FORM(1),  FORM(2),  FORM(3),  FORM(4),  FORM(5),  FORM(6),  FORM(7),  FORM(8),
    FORM(9), FORM(10), FORM(11), FORM(12), FORM(13), FORM(14), FORM(15), FORM(16),
};
#undef FORM
#undef BYTES

/* The key of a pre-token; one that is too long has a key that no word has. */
static inline word_key key_of(const uint8_t *s, size_t n)
{
    const word_key *form = key_form[n <= WORD_BYTES ? n : WORD_BYTES + 1];
    word_key k;

    memcpy(&k, s, sizeof k);
    return (k & form[0]) | form[1];
}

/* The first of the two places where a word can be. */
static inline struct word *word_place(const struct bpe *b, word_key k)
{
    uint64_t h = (k[0] ^ k[1] * UINT64_C(0x9fb21c651e98df25)) * UINT64_C(0x9e3779b97f4a7c15);

    return b->cache + 2 * (h >> (65 - CACHE_BITS));
}

static inline bool is_word(const struct word *w, word_key k)
{
    return !((w->key[0] ^ k[0]) | (w->key[1] ^ k[1]));
}

/* The entry that holds the key, of the two at its place, if one does; the first may do so unseen
 * where the second begins with the same 8 bytes. */
static inline const struct word *word_at(const struct word *place, word_key k)
{
    return place + (place[1].key[0] == k[0]);
}

/* Outputs the tokens of a word, and its `n` behind them: one store of a fixed size. */
static inline size_t put_word(const struct word *w, uint16_t *out)
{
    memcpy(out, w->token, sizeof *w - offsetof(struct word, token));
    return w->n;
}

/* The line beside that of a place. */
static inline struct word *line_beside(const struct bpe *b, const struct word *place)
{
    return b->cache + ((place - b->cache) ^ 2);
}

/* Finds a word that word_at does not: behind one that begins alike, or in the line beside its own,
 * from which it moves; or returns NULL. */
static const struct word *find_beside(struct bpe *b, word_key key)
{
    struct word *place = word_place(b, key), *other = line_beside(b, place);

    if (is_word(place, key))
        return place;
    if (!place[1].n)
        return NULL;
    for (int i = 0; i < 2; i++)
        if (is_word(other + i, key)) {
            struct word w = other[i];
            other[i] = place[1];
            place[1] = place[0];
            place[0] = w;
            return place;
        }
    return NULL;
}

static void keep_word(struct bpe *b, word_key key, const uint16_t *token, size_t m)
{
    struct word w = { .key = key, .n = (uint16_t)m }, *place = word_place(b, key);

    memcpy(w.token, token, m * sizeof *token);
    if (place[1].n)
        line_beside(b, place)[1] = place[1];
    place[1] = place[0];
    place[0] = w;
}

/* Encodes a pre-token, and keeps a short one that the cache of words can hold. */
static size_t encode_whole(struct bpe *b, const uint8_t *s, size_t n, uint16_t *out)
{
    size_t m;

    if (n > WORD_BYTES) {
        bpe_encode_after(b, TOKEN_NONE, s, n, out, &m);
        return m;
    }
    encode_piece(b, TOKEN_NONE, s, n, out, &m); /* without a token before, it always can */
    if (m <= WORD_TOKENS)
        keep_word(b, key_of(s, n), out, m);
    return m;
}

/* Outputs the tokens of a pre-token that is not in the line of its place. */
static size_t __attribute__((noinline))
put_rare(struct bpe *b, const uint8_t *s, size_t n, uint16_t *out)
{
    const struct word *w = NULL;
    struct rare *r;
    size_t m;

    if (n <= WORD_BYTES)
        w = find_beside(b, key_of(s, n));
    if (w)
        return put_word(w, out);
    if (n > RARE_BYTES)
        return encode_whole(b, s, n, out);
    r = b->rare + (XXH3_64bits(s, n) >> (64 - RARE_BITS));
    if (r->bytes == n && !memcmp(r->text, s, n)) {
        memcpy(out, r->token, r->n * sizeof *out);
        return r->n;
    }
    m = encode_whole(b, s, n, out);
    if (m <= RARE_TOKENS && (n > WORD_BYTES || m > WORD_TOKENS)) {
        memcpy(r->text, s, n);
        memcpy(r->token, out, m * sizeof *out);
        r->bytes = (uint16_t)n;
        r->n = (uint16_t)m;
    }
    return m;
}

/* The first boundary behind `at` that no token can cross and that a multi-byte character
 * follows; n if there is none. */
static size_t next_split(const struct vocab *v, const uint8_t *s, size_t at, size_t n)
{
    for (size_t i = at + 1; i < n; i += 8) {
        uint64_t x, first;

        memcpy(&x, s + i, 8);
        first = x & x << 1 & UINT64_C(0x8080808080808080); /* 0xc0 and above */
        for (; first; first &= first - 1) {
            size_t k = i + (size_t)__builtin_ctzll(first) / 8;

            if (k >= n)
                break;
            if (!(v->joined[s[k - 1]] >> (s[k] & 63) & 1))
                return k;
        }
    }
    return n;
}

/* The two sides of a boundary that no token can cross are encoded independently. In CJK text
 * most characters are pieces of their own. */
bool bpe_encode_after(struct bpe *b, uint32_t before, const uint8_t *s, size_t n, uint16_t *out,
                      size_t *tokens)
{
    uint16_t *end = out;

    for (size_t at = 0, to; at < n; at = to, before = TOKEN_NONE) {
        size_t m;

        to = next_split(b->v, s, at, n);
        if (to - at <= WORD_BYTES && before == TOKEN_NONE) {
            word_key key = key_of(s + at, to - at);
            const struct word *w = word_at(word_place(b, key), key);

            m = is_word(w, key) ? put_word(w, end) : put_rare(b, s + at, to - at, end);
        } else if (!encode_piece(b, before, s + at, to - at, end, &m)) {
            return false;
        }
        end += m;
    }
    *tokens = (size_t)(end - out);
    return true;
}

/* Pre-tokens that are looked up together, in two passes: the first computes all keys and
 * prefetches their places, the second reads them. The table is larger than the processor's caches,
 * so that without this most of the time would be memory latency; and the end of a loop of a fixed
 * length is not mispredicted. */
#define BATCH 256

/* Outputs the tokens of n pre-tokens, of which the i-th is s[start[i]] to s[start[i + 1]]; stores
 * up to BPE_SLACK behind them. */
static uint16_t *put_batch(struct bpe *b, const uint8_t *s, const size_t *start, size_t n,
                           uint16_t *out)
{
    word_key key[BATCH];
    const struct word *place[BATCH];

    for (size_t i = 0; i < n; i++) {
        key[i] = key_of(s + start[i], start[i + 1] - start[i]);
        place[i] = word_place(b, key[i]);
        __builtin_prefetch(place[i]);
    }
    for (size_t i = 0; i < n; i++) {
        const struct word *w = word_at(place[i], key[i]);

        if (is_word(w, key[i]))
            out += put_word(w, out);
        else
            out += put_rare(b, s + start[i], start[i + 1] - start[i], out);
    }
    return out;
}

/* Outputs `at` plus the place of each bit set, and returns how many; stores up to USUAL of any
 * value. Few blocks of text have more starts than USUAL, so that both loops' ends are predicted. */
#define USUAL 20
static inline size_t put_bits(uint64_t bits, size_t at, size_t *out)
{
    size_t n = (size_t)__builtin_popcountll(bits);

#pragma GCC unroll 20
    for (int i = 0; i < USUAL; i++, bits &= bits - 1)
        *out++ = at + (size_t)__builtin_ctzll(bits | UINT64_C(1) << 63);
    for (; bits; bits &= bits - 1)
        *out++ = at + (size_t)__builtin_ctzll(bits);
    return n;
}

/* Puts ids in place of n ranks. */
static void to_ids(const struct vocab *v, uint16_t *tokens, size_t n)
{
    for (size_t i = 0; v->id && i < n; i++)
        tokens[i] = v->id[tokens[i]];
}

size_t bpe_encode(struct bpe *b, const char *text, size_t len, bool more, uint16_t *tokens)
{
    const uint8_t *s = (const uint8_t *)text;
    uint16_t *out = tokens;
    size_t start[BATCH + 64], n = 0; /* the pre-tokens not put yet */
    struct pretoken p;

    if (!b->v->trie) {
        for (size_t i = 0; i < len; i++)
            out[i] = s[i];
        return len;
    }
    if (!len)
        return 0;
    pretoken_init(&p, text, len, more);
    for (size_t at = 0; at < len; at += 64) {
        n += put_bits(pretoken_block(&p), at, start + n);
        if (n > BATCH) {
            out = put_batch(b, s, start, BATCH, out);
            n -= BATCH;
            memcpy(start, start + BATCH, n * sizeof *start);
        }
    }
    start[n] = len;
    out = put_batch(b, s, start, n, out);
    to_ids(b->v, tokens, (size_t)(out - tokens));
    return (size_t)(out - tokens);
}

size_t bpe_decode(const struct vocab *v, const uint16_t *tokens, size_t n, char *out, size_t room)
{
    size_t m = 0;

    for (size_t i = 0; i < n; i++) {
        uint32_t rank = vocab_rank(v, tokens[i]);
        size_t k;
        const uint8_t *s;

        if (rank == TOKEN_NONE)
            continue;
        s = vocab_token(v, (int)rank, &k);
        if (k > room - m)
            break;
        memcpy(out + m, s, k);
        m += k;
    }
    return m;
}

/* --- pre-tokens of any length, in bounded memory --- */

#define WINDOW (256u << 10)
#define LIMIT (256u << 20) /* bytes of one pre-token held without a final boundary */

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

/* Whether the encoding of every prefix that ends in the last TOKEN_MAX_BYTES has a boundary at
 * `at` behind the token `last`. */
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

/* Outputs those of the text's `count` tokens that are final. */
static size_t give_out(struct bpe_run *r, size_t count, uint16_t *tokens)
{
    const struct vocab *v = r->b->v;

    for (size_t back = 4 * TOKEN_MAX_BYTES; back < r->n; back *= 4) {
        size_t at = 0, k = 0;

        while (k < count && at + v->length[r->token[k]] <= r->n - back)
            at += v->length[r->token[k++]];
        if (!k)
            break;
        if (!stays(r, at, r->token[k - 1]))
            continue;
        memcpy(tokens, r->token, k * sizeof *tokens);
        to_ids(v, tokens, k);
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
    to_ids(r->b->v, tokens, *m);
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
