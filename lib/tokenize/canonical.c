/* canonical.c - the pairs of tokens that BPE never writes, merge by merge.
 *
 * Merge k joins x and y. Where a token a ends with x, and b begins with y, the two are never written
 * side by side if k goes before the merges that put x and y into the rest of a and b: those of the
 * smallest token of a's right spine that x is the end of, and of b's left spine that y is the beginning
 * of. (Of equal ranks the left pair goes first.) The tokens on whose left spine y lies are the subtree
 * of y in the tree in which a token's parent is its left half. In an order that walks this tree down,
 * children by rank, they lie together, and those that k goes before are the end of them.
 */
#include "tokenize/canonical.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "base/grow.h"
#include "tokenize/unicode.h"

/* How a token begins, as far as it decides whether the pre-tokeniser can cut before it. */
enum beginning {
    A_LETTER = 1,
    A_NUMBER = 2,
    OTHER = 4,
    SPACES = 8, /* two white spaces, or more */
    ELSE = 16 /* one white space: the last of several stands alone, or with what follows; or not a
                 whole character */
};

struct maker {
    const struct vocab *v;
    struct token_mask *m;
    int32_t *begin, *size, *order; /* the tree: place and size of a subtree; the token at a place */
    int32_t *first, *next; /* merges by their left half */
    uint8_t *beginning;
    uint32_t *joined[32]; /* rows of the tokens that begin with one of a set of beginnings */
    int32_t *slot; /* hash of the rows: numbers, -1: free */
    int slots;
    size_t room; /* words */
};

static int class_of(const uint8_t *s, size_t n, int *length)
{
    uint32_t c;

    *length = utf8_decode(s, n, &c);
    return *length ? (int)unicode_class(c) : -1;
}

static enum beginning beginning_of(const uint8_t *s, size_t n)
{
    int length, class = class_of(s, n, &length);

    if (class == CLASS_LETTER)
        return A_LETTER;
    if (class == CLASS_NUMBER)
        return A_NUMBER;
    if (class == CLASS_OTHER)
        return OTHER;
    if (class < 0 || (size_t)length == n)
        return ELSE;
    return class_of(s + length, n - (size_t)length, &length) == CLASS_SPACE ? SPACES : ELSE;
}

/* May the text that ends with these bytes end with one of the contractions, behind which letters
 * begin anew? */
static bool contracts(const uint8_t *s, size_t n)
{
    static const char *const all[] = { "'s", "'t", "'re", "'ve", "'m", "'ll", "'d" };

    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        size_t k = strlen(all[i]);
        if (n < k ? !memcmp(all[i] + k - n, s, n) : !memcmp(s + n - k, all[i], k))
            return true;
    }
    return false;
}

/* The beginnings before which the pre-tokeniser never cuts behind these bytes. */
static int joined_to(const uint8_t *s, size_t n)
{
    size_t k = 1;
    int length, class;

    while (k < n && k < 4 && (s[n - k] & 0xc0) == 0x80)
        k++;
    class = class_of(s + n - k, k, &length);
    if (class < 0 || (size_t)length != k)
        return 0;
    if (class == CLASS_SPACE) /* of several the last goes with what follows, if it is ' ' */
        return s[n - 1] == ' ' ? A_LETTER | A_NUMBER | OTHER | SPACES : SPACES;
    if (class == CLASS_LETTER)
        return contracts(s, n) ? 0 : A_LETTER;
    return class == CLASS_NUMBER ? A_NUMBER : OTHER;
}

/* -- the tree of left halves ------------------------------------------------------------------ */

static bool is_byte(const struct vocab *v, int id) { return v->length[id] < 2; }

static void plant(struct maker *k)
{
    const struct vocab *v = k->v;
    int32_t at = 0, *free_at = k->next; /* of a subtree: the next free place */

    for (int id = v->tokens - 1; id >= 0; id--) {
        k->size[id]++;
        if (!is_byte(v, id))
            k->size[vocab_left(v, (uint32_t)id)] += k->size[id];
    }
    for (int id = 0; id < v->tokens; id++) {
        int32_t *place = is_byte(v, id) ? &at : &free_at[vocab_left(v, (uint32_t)id)];
        k->begin[id] = *place;
        k->order[*place] = id;
        free_at[id] = *place + 1;
        *place += k->size[id];
    }
    memset(k->first, 0xff, (size_t)v->tokens * sizeof *k->first);
    for (int id = v->tokens - 1; id >= 0; id--) {
        int32_t *first = &k->first[is_byte(v, id) ? id : (int)vocab_left(v, (uint32_t)id)];
        k->next[id] = is_byte(v, id) ? -1 : *first;
        *first = is_byte(v, id) ? *first : id;
    }
}

/* Sets the bit of a rank's id. */
static void set(const struct maker *k, uint32_t *row, int rank)
{
    uint32_t id = vocab_id(k->v, (uint32_t)rank);
    row[id >> 5] |= 1u << (id & 31);
}

/* Merge `id` goes before those that put its right half into tokens of that half's subtree. */
static void bar(const struct maker *k, uint32_t *row, int id)
{
    uint32_t right = vocab_right(k->v, (uint32_t)id);
    int32_t at = k->begin[right], end = at + k->size[right];

    set(k, row, (int)right);
    for (at++; at < end && k->order[at] < id; at += k->size[k->order[at]])
        ;
    for (; at < end; at++)
        set(k, row, k->order[at]);
}

static void bar_after(const struct maker *k, uint32_t *row, int before)
{
    const struct vocab *v = k->v;
    size_t n;
    const uint8_t *s = vocab_token(v, before, &n);
    const uint32_t *joined = k->joined[joined_to(s, n)];
    int limit = v->tokens, end = before;

    for (;;) {
        for (int id = k->first[end]; id >= 0 && id < limit; id = k->next[id])
            bar(k, row, id);
        if (is_byte(v, end))
            break;
        limit = end;
        end = (int)vocab_right(v, (uint32_t)end);
    }
    for (int i = 0; i < k->m->words; i++)
        row[i] &= joined[i];
}

/* -- rows, each once --------------------------------------------------------------------------- */

static uint32_t hash_of(const uint32_t *row, int words)
{
    uint64_t h = 0x9e3779b97f4a7c15u;

    for (int i = 0; i < words; i++) {
        h = (h ^ row[i]) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
    }
    return (uint32_t)h;
}

/* The last row, with which it was made, or an equal one before it. */
static int32_t settle(struct maker *k)
{
    struct token_mask *m = k->m;
    const uint32_t *row = m->bits + (int64_t)m->rows * m->words;
    uint32_t i = hash_of(row, m->words);

    for (;; i++) {
        int32_t *slot = &k->slot[i & (uint32_t)(k->slots - 1)];
        if (*slot < 0)
            return *slot = m->rows++;
        if (!memcmp(m->bits + (int64_t)*slot * m->words, row, (size_t)m->words * sizeof *row))
            return *slot;
    }
}

static int add_row(struct maker *k, int before)
{
    struct token_mask *m = k->m;
    size_t n = (size_t)m->words;
    int rc = grow_to(&m->bits, &k->room, (size_t)(m->rows + 1) * n, sizeof *m->bits);

    if (rc)
        return rc;
    memset(m->bits + (size_t)m->rows * n, 0, n * sizeof *m->bits);
    uint32_t rank = before < k->v->size ? vocab_rank(k->v, (uint16_t)before) : TOKEN_NONE;
    if (rank != TOKEN_NONE && k->v->split)
        bar_after(k, m->bits + (size_t)m->rows * n, (int)rank);
    m->row[before] = settle(k);
    return 0;
}

/* The rows of all tokens that begin with one of a set. */
static void fill_joined(struct maker *k, uint32_t *rows)
{
    for (int kinds = 0; kinds < 32; kinds++) {
        k->joined[kinds] = rows + (int64_t)kinds * k->m->words;
        for (int id = 0; id < k->v->tokens; id++)
            if (k->beginning[id] & kinds)
                set(k, k->joined[kinds], id);
    }
}

int canonical_make(struct token_mask *m, const struct vocab *v, int ids)
{
    size_t n = (size_t)v->tokens;
    struct maker k = { .v = v, .m = m, .slots = 1 };

    while (k.slots < 2 * ids)
        k.slots *= 2;
    *m = (struct token_mask){ .ids = ids, .words = (ids + 31) / 32 };
    m->row = malloc((size_t)ids * sizeof *m->row);
    int32_t *tree = calloc(5 * n, sizeof *tree);
    uint32_t *joined = calloc(32 * (size_t)m->words, sizeof *joined);
    k.slot = malloc((size_t)k.slots * sizeof *k.slot);
    k.beginning = malloc(n);
    int rc = m->row && tree && joined && k.slot && k.beginning ? 0 : err_memory();
    if (!rc) {
        k.begin = tree, k.size = tree + n, k.order = tree + 2 * n;
        k.first = tree + 3 * n, k.next = tree + 4 * n;
        memset(k.slot, 0xff, (size_t)k.slots * sizeof *k.slot);
        unicode_init();
        for (int id = 0; id < v->tokens; id++) {
            size_t length;
            const uint8_t *s = vocab_token(v, id, &length);
            k.beginning[id] = (uint8_t)beginning_of(s, length);
        }
        fill_joined(&k, joined);
        if (v->split)
            plant(&k);
    }
    for (int id = 0; id < ids && !rc; id++)
        rc = add_row(&k, id);
    free(tree);
    free(joined);
    free(k.slot);
    free(k.beginning);
    if (rc)
        canonical_free(m);
    return rc;
}

void canonical_free(struct token_mask *m)
{
    free(m->row);
    free(m->bits);
    *m = (struct token_mask){ 0 };
}
