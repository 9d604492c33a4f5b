/* vocab_tables.c - pairs, splits and the trie of a vocabulary.
 *
 * A rank file holds tokens but not the merges. Token t is the last merge of
 * encoding its own bytes with the tokens below t, so the pairs come back by
 * encoding each token in the order of ranks with the pairs found so far.
 */
#include "tokenize/vocab.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static void add_pair(struct vocab *v, uint32_t left, uint32_t right, uint32_t id)
{
    uint32_t key = left << 16 | right, hash = vocab_hash(key);
    uint32_t slots = 1u << (32 - v->pair_shift), i = hash >> v->pair_shift;

    v->maybe[hash >> 18] |= UINT64_C(1) << (hash >> 12 & 63);
    while (v->pair[i] != TOKEN_NONE)
        i = (i + 1) & (slots - 1);
    v->pair[i] = (uint16_t)id;
    v->split[id] = key;
}

/* Merges part[0..n) by rank, leftmost first, with the pairs known so far;
 * stops at two parts. Returns how many are left. */
static int merge_parts(const struct vocab *v, uint16_t *part, int n)
{
    while (n > 2) {
        uint32_t best = TOKEN_NONE;
        int at = 0;

        for (int i = 0; i + 1 < n; i++) {
            uint32_t id = vocab_merge(v, part[i], part[i + 1]);

            if (id < best) {
                best = id;
                at = i;
            }
        }
        if (best == TOKEN_NONE)
            break;
        part[at] = (uint16_t)best;
        memmove(part + at + 1, part + at + 2, (size_t)(n - at - 2) * sizeof *part);
        n--;
    }
    return n;
}

static int find_splits(struct vocab *v, const char *path)
{
    uint16_t part[TOKEN_MAX_BYTES];

    for (int t = 0; t < v->tokens; t++) {
        size_t n;
        const uint8_t *s = vocab_token(v, t, &n);

        if (n == 1) {
            v->split[t] = (uint32_t)t << 16 | (uint32_t)t;
            continue;
        }
        for (size_t i = 0; i < n; i++)
            part[i] = v->byte_id[s[i]];
        if (merge_parts(v, part, (int)n) != 2 || vocab_merge(v, part[0], part[1]) != TOKEN_NONE)
            return err_set(GPT_INPUT,
                           "%s: token %d: expected the merge of two tokens of lower "
                           "rank, found %zu bytes that do not merge to it",
                           path, t, n);
        if (v->left_bytes[t] && v->left_bytes[t] != v->begin[part[0] + 1] - v->begin[part[0]])
            return err_set(GPT_INPUT,
                           "%s: token %d: expected the merge of the two tokens that its bytes are "
                           "encoded to before it, found another",
                           path, t);
        add_pair(v, part[0], part[1], (uint32_t)t);
    }
    return 0;
}

struct trie {
    struct vocab *v;
    uint32_t slots;
    uint32_t window; /* where bases are looked for */
    uint32_t fresh; /* all slots from here are free */
    uint64_t *free; /* a bit a slot */
    uint8_t *base_used; /* [slots] */
    uint16_t *sorted; /* tokens in the order of their bytes */
};

#define MAX_SLOTS (1u << 22)

/* At least n slots, free ones zero. */
static int trie_room(struct trie *t, uint32_t n)
{
    uint32_t slots = (n + n / 4) | 255, *e;
    uint16_t *token;
    uint64_t *bits;
    uint8_t *used;

    if (n <= t->slots)
        return 0;
    slots++;
    if (slots > MAX_SLOTS)
        return err_set(GPT_INPUT, "expected a vocabulary of fewer different bytes");
    if ((e = realloc(t->v->trie, slots * sizeof *e)))
        t->v->trie = e;
    if ((token = realloc(t->v->trie_token, slots * sizeof *token)))
        t->v->trie_token = token;
    if ((used = realloc(t->base_used, slots)))
        t->base_used = used;
    if ((bits = realloc(t->free, slots / 8)))
        t->free = bits;
    if (!e || !token || !used || !bits)
        return err_memory();
    memset(e + t->slots, 0, (slots - t->slots) * sizeof *e);
    memset(token + t->slots, 0, (slots - t->slots) * sizeof *token);
    memset(used + t->slots, 0, slots - t->slots);
    memset(bits + t->slots / 64, 0xff, (slots - t->slots) / 8);
    t->slots = slots;
    return 0;
}

static bool is_free(const struct trie *t, uint32_t slot)
{
    return t->free[slot / 64] >> (slot & 63) & 1;
}

static bool base_fits(const struct trie *t, uint32_t base, const uint8_t *child, int n)
{
    if (t->base_used[base])
        return false;
    for (int i = 0; i < n; i++)
        if ((base ^ child[i]) >= t->fresh || !is_free(t, base ^ child[i]))
            return false;
    return true;
}

/* A base for a node with these n children: the first that fits within a window of slots, or one
 * of new slots. The window moves forward, because the slots before it are nearly all taken. */
static int find_base(struct trie *t, const uint8_t *child, int n, uint32_t *base)
{
    int rc;

    while (t->window < t->fresh && !t->free[t->window / 64])
        t->window += 64;
    for (uint32_t w = t->window; w < t->fresh && w < t->window + 64 * 64; w += 64)
        for (uint64_t bits = t->free[w / 64]; bits; bits &= bits - 1) {
            *base = (w + (uint32_t)__builtin_ctzll(bits)) ^ child[0];
            if (base_fits(t, *base, child, n))
                return 0;
        }
    if (t->window + 64 * 64 < t->fresh && n == 1)
        t->window += 64;
    *base = t->fresh;
    if ((rc = trie_room(t, *base + 256)))
        return rc;
    t->fresh = *base + 256;
    return 0;
}

/* Places the children of the node in `slot`, whose tokens are
 * sorted[lo..hi), all with the same first `depth` bytes. */
static int place_children(struct trie *t, uint32_t slot, int lo, int hi, size_t depth)
{
    uint8_t child[256];
    int first[257], n = 0, rc;
    uint32_t base;

    for (int i = lo; i < hi; i++) {
        size_t len;
        const uint8_t *s = vocab_token(t->v, t->sorted[i], &len);

        if (len == depth) { /* the shortest sorts first */
            t->v->trie[slot] |= TRIE_ENDS;
            t->v->trie_token[slot] = t->sorted[i];
            continue;
        }
        if (!n || child[n - 1] != s[depth]) {
            first[n] = i;
            child[n++] = s[depth];
        }
    }
    first[n] = hi;
    if (!n)
        return 0;
    if ((rc = find_base(t, child, n, &base)))
        return rc;
    t->base_used[base] = 1;
    t->v->trie[slot] |= base << 10;
    for (int k = 0; k < n; k++) {
        uint32_t at = base ^ child[k];

        t->v->trie[at] = TRIE_TAKEN | child[k];
        t->free[at / 64] &= ~(UINT64_C(1) << (at & 63));
    }
    for (int k = 0; k < n; k++)
        if ((rc = place_children(t, base ^ child[k], first[k], first[k + 1], depth + 1)))
            return rc;
    return 0;
}

static int compare_tokens(const void *pa, const void *pb, void *ctx)
{
    size_t na, nb;
    const uint8_t *a = vocab_token(ctx, *(const uint16_t *)pa, &na);
    const uint8_t *b = vocab_token(ctx, *(const uint16_t *)pb, &nb);
    int c = memcmp(a, b, na < nb ? na : nb);

    return c ? c : (na > nb) - (na < nb);
}

static int make_trie(struct vocab *v, const char *path)
{
    struct trie t = { .v = v };
    int rc;

    if (!(t.sorted = malloc((size_t)v->tokens * sizeof *t.sorted)))
        return err_memory();
    for (int i = 0; i < v->tokens; i++)
        t.sorted[i] = (uint16_t)i;
    qsort_r(t.sorted, (size_t)v->tokens, sizeof *t.sorted, compare_tokens, v);
    for (int i = 1; i < v->tokens; i++)
        if (!compare_tokens(t.sorted + i - 1, t.sorted + i, v)) {
            rc =
                err_set(GPT_INPUT, "%s: tokens %d and %d: expected different bytes, found the same",
                        path, t.sorted[i - 1], t.sorted[i]);
            goto out;
        }
    if ((rc = trie_room(&t, 1 << 17)))
        goto out;
    /* Leaves have base 0. Slots below 256, but for the root, stay free, so that a leaf has no
     * children. */
    t.fresh = t.window = 256;
    v->trie[0] = TRIE_TAKEN | 0xff; /* and byte 0 does not lead there */
    t.base_used[0] = 1;
    if ((rc = place_children(&t, 0, 0, v->tokens, 0)))
        rc = err_prefix("%s", path);
out:
    free(t.base_used);
    free(t.free);
    free(t.sorted);
    return rc;
}

static void find_shorter(struct vocab *v)
{
    for (int id = 0; id < v->tokens; id++) {
        size_t n;
        const uint8_t *s = vocab_token(v, id, &n);
        uint32_t slot = 0, e = v->trie[0];

        v->shorter[id] = TOKEN_NONE;
        v->length[id] = (uint8_t)n;
        for (size_t i = 0; i + 1 < n && (e = trie_step(v, &slot, e, s[i])); i++)
            if (e & TRIE_ENDS)
                v->shorter[id] = v->trie_token[slot];
    }
}

/* Tabulates the first two steps, which most look-ups take. */
static void find_two(struct vocab *v)
{
    for (int i = 0; i < 65536; i++) {
        uint32_t slot = 0, e = trie_step(v, &slot, v->trie[0], (uint8_t)i);

        v->two[i] = e && (e = trie_step(v, &slot, e, (uint8_t)(i >> 8))) ? slot : 0;
    }
}

static void find_joined(struct vocab *v)
{
    for (int id = 0; id < v->tokens; id++) {
        size_t n;
        const uint8_t *s = vocab_token(v, id, &n);

        for (size_t i = 1; i < n; i++)
            if (s[i] >= 0xc0)
                v->joined[s[i - 1]] |= UINT64_C(1) << (s[i] & 63);
    }
}

static int find_bytes(struct vocab *v, const char *path)
{
    memset(v->byte_id, 0xff, sizeof v->byte_id);
    for (int id = 0; id < v->tokens; id++) {
        size_t n;
        const uint8_t *s = vocab_token(v, id, &n);

        if (n == 1)
            v->byte_id[*s] = (uint16_t)id;
    }
    for (int b = 0; b < 256; b++)
        if (v->byte_id[b] >= 256)
            return err_set(GPT_INPUT,
                           "%s: byte 0x%02x: expected it among tokens 0 to 255, found "
                           "it %s",
                           path, b, v->byte_id[b] == TOKEN_NONE ? "nowhere" : "later");
    return 0;
}

int vocab_make_tables(struct vocab *v, const char *path)
{
    size_t n = (size_t)v->tokens, slots = 1 << 10;
    int rc;

    for (v->pair_shift = 22; slots < 2 * n; v->pair_shift--)
        slots *= 2;
    v->pair = malloc(slots * sizeof *v->pair);
    v->split = malloc(n * sizeof *v->split);
    v->shorter = malloc(n * sizeof *v->shorter);
    v->length = malloc(n);
    v->two = malloc(65536 * sizeof *v->two);
    v->maybe = calloc(1 << 14, sizeof *v->maybe);
    if (!v->pair || !v->maybe || !v->split || !v->shorter || !v->length || !v->two)
        return err_memory();
    memset(v->pair, 0xff, slots * sizeof *v->pair);
    if ((rc = find_bytes(v, path)) || (rc = find_splits(v, path)) || (rc = make_trie(v, path)))
        return rc;
    find_shorter(v);
    find_two(v);
    find_joined(v);
    return 0;
}
