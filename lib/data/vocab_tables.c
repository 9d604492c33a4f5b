/* vocab_tables.c - pairs, splits and the trie of a vocabulary.
 *
 * A rank file holds tokens but not the merges. Token t is the last merge of
 * encoding its own bytes with the tokens below t, so the pairs come back by
 * encoding each token in the order of ranks with the pairs found so far.
 */
#include "data/vocab.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static void add_pair(struct vocab *v, uint32_t left, uint32_t right, uint32_t id)
{
    uint32_t key = left << 16 | right, i = vocab_hash(key) >> 7 & v->pair_mask;

    while (v->pair[i].id != TOKEN_NONE)
        i = (i + 1) & v->pair_mask;
    v->pair[i].key = key;
    v->pair[i].id = id;
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
            v->left[t] = v->right[t] = (uint16_t)t;
            continue;
        }
        for (size_t i = 0; i < n; i++)
            part[i] = v->byte_id[s[i]];
        if (merge_parts(v, part, (int)n) != 2 || vocab_merge(v, part[0], part[1]) != TOKEN_NONE)
            return err_set(GPT_INPUT, "%s: token %d: expected the merge of two tokens of lower "
                           "rank, found %zu bytes that do not merge to it", path, t, n);
        v->left[t] = part[0];
        v->right[t] = part[1];
        add_pair(v, part[0], part[1], (uint32_t)t);
    }
    return 0;
}

struct trie {
    uint64_t *slot;
    uint32_t slots;
    uint32_t used_below;               /* all slots below are taken */
    uint32_t fresh;                    /* all slots from here are free */
    const struct vocab *v;
    uint16_t *sorted;                  /* tokens in the order of their bytes */
};

#define SLOT_FREE UINT64_MAX

static int trie_room(struct trie *t, uint32_t slots)
{
    uint64_t *p;

    if (slots <= t->slots)
        return 0;
    slots = (slots + slots / 4) | 255;
    if (!(p = realloc(t->slot, (slots + 1) * sizeof *p)))
        return err_set(GPT_SYSTEM, "out of memory for the vocabulary");
    memset(p + t->slots, 0xff, (slots + 1 - t->slots) * sizeof *p);
    t->slot = p;
    t->slots = slots + 1;
    return 0;
}

static bool base_fits(const struct trie *t, uint32_t base, const uint8_t *child, int n)
{
    for (int i = 0; i < n; i++)
        if ((base ^ child[i]) >= t->fresh || t->slot[base ^ child[i]] != SLOT_FREE)
            return false;
    return true;
}

/* A base for a node with these n children: first fit, or after some tries a
 * fresh block of 256 slots. */
static int find_base(struct trie *t, const uint8_t *child, int n, uint32_t *base)
{
    int tries = 0;

    while (t->used_below < t->slots && t->slot[t->used_below] != SLOT_FREE)
        t->used_below++;
    for (uint32_t s = t->used_below; s < t->fresh && tries < 64; s++) {
        if (t->slot[s] != SLOT_FREE)
            continue;
        tries++;
        *base = s ^ child[0];
        if (base_fits(t, *base, child, n))
            return 0;
    }
    *base = t->fresh;
    return trie_room(t, *base + 256);
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

        if (len == depth) {            /* the shortest sorts first */
            t->slot[slot] = (t->slot[slot] & ~UINT64_C(0xffff)) | t->sorted[i];
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
    t->slot[slot] = (t->slot[slot] & ~(UINT64_C(0xffffff) << 16)) | (uint64_t)base << 16;
    for (int k = 0; k < n; k++) {
        t->slot[base ^ child[k]] = (uint64_t)slot << 40 | TOKEN_NONE;
        if ((base ^ child[k]) >= t->fresh)
            t->fresh = ((base ^ child[k]) | 255) + 1;
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
        return err_set(GPT_SYSTEM, "out of memory for the vocabulary");
    for (int i = 0; i < v->tokens; i++)
        t.sorted[i] = (uint16_t)i;
    qsort_r(t.sorted, (size_t)v->tokens, sizeof *t.sorted, compare_tokens, v);
    for (int i = 1; i < v->tokens; i++)
        if (!compare_tokens(t.sorted + i - 1, t.sorted + i, v)) {
            rc = err_set(GPT_INPUT,
                         "%s: tokens %d and %d: expected different bytes, found the same",
                         path, t.sorted[i - 1], t.sorted[i]);
            goto out;
        }
    if ((rc = trie_room(&t, 1 << 17)))
        goto out;
    t.slot[0] = UINT64_C(0xffffff) << 40 | TOKEN_NONE;     /* the root has no parent */
    t.fresh = 256;
    rc = place_children(&t, 0, 0, v->tokens, 0);
    /* A walk may look at any slot of the block of a base. */
    if (!rc)
        rc = trie_room(&t, t.fresh + 256);
out:
    free(t.sorted);
    v->trie = t.slot;
    return rc;
}

static void find_shorter(struct vocab *v)
{
    for (int id = 0; id < v->tokens; id++) {
        size_t n;
        const uint8_t *s = vocab_token(v, id, &n);
        uint64_t e = v->trie[0];
        uint32_t slot = 0;

        v->shorter[id] = TOKEN_NONE;
        for (size_t i = 0; i + 1 < n && trie_step(v, &slot, &e, s[i]); i++)
            if (TRIE_TOKEN(e) != TOKEN_NONE)
                v->shorter[id] = (uint16_t)TRIE_TOKEN(e);
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
            return err_set(GPT_INPUT, "%s: byte 0x%02x: expected it among tokens 0 to 255, found "
                           "it %s", path, b, v->byte_id[b] == TOKEN_NONE ? "nowhere" : "later");
    return 0;
}

int vocab_make_tables(struct vocab *v, const char *path)
{
    size_t n = (size_t)v->tokens;
    uint32_t pairs = 1024;
    int rc;

    while (pairs < 2 * n)
        pairs *= 2;
    v->pair_mask = pairs - 1;
    v->pair = malloc(pairs * sizeof *v->pair);
    v->left = malloc(n * sizeof *v->left);
    v->right = malloc(n * sizeof *v->right);
    v->shorter = malloc(n * sizeof *v->shorter);
    if (!v->pair || !v->left || !v->right || !v->shorter)
        return err_set(GPT_SYSTEM, "out of memory for the vocabulary");
    /* 0xffffffff is no key: it would be the pair of two absent tokens. */
    for (uint32_t i = 0; i < pairs; i++)
        v->pair[i] = (struct vocab_pair){ UINT32_MAX, TOKEN_NONE };
    if ((rc = find_bytes(v, path)) || (rc = find_splits(v, path)) || (rc = make_trie(v, path)))
        return rc;
    find_shorter(v);
    return 0;
}
