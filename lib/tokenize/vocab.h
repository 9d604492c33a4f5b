/* vocab.h - a byte-level BPE vocabulary and the tables that encoding needs.
 *
 * A token has a rank: ranks 0..255 are the single bytes in GPT-2's order, 256+k is
 * what merge k makes. Ids, which shards hold, are ranks, unless a tokenizer.json
 * has others. The document start ("<|endoftext|>") is the id after the last, or
 * what that file says, and never comes from text; nor do ids without a rank.
 * Shards hold uint16, so a vocabulary of more than 65,535 tokens is refused.
 *
 *     struct vocab *v;
 *     if ((rc = vocab_load(&v, path))) return rc;     // rank file, vocab.bpe or tokenizer.json
 *     s = vocab_token(v, vocab_rank(v, id), &n);
 *     vocab_free(v);
 *
 * Read-only after vocab_load, so any number of threads may use it.
 */
#ifndef TOKENIZE_VOCAB_H
#define TOKENIZE_VOCAB_H

#include <stddef.h>
#include <stdint.h>
#include "base/err.h"

/* SHA-256 of GPT-2's rank file: 50,256 lines "base64 rank". */
#define GPT2_SHA256 "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930"

#define TOKEN_NONE 0xffffu
#define TOKEN_MAX_BYTES 128 /* longest token accepted; GPT-2's longest */

struct vocab {
    const char *name; /* "gpt2", "bytes" or "other" */
    char sha256[65]; /* of the vocabulary written as a rank file, in whatever form it was read */
    int tokens; /* ranks 0 .. tokens-1 have bytes */
    int bos; /* id of the document start */
    int size; /* ids are below it */
    uint16_t *id, *rank; /* of a rank, and of an id (65536; TOKEN_NONE); NULL: they are equal */
    uint8_t *left_bytes; /* while it is read: of a merge's left half; 0: not known */
    uint32_t *begin; /* [tokens+1] into bytes */
    uint8_t *bytes;
    /* What follows is NULL for the byte tokenizer. */
    /* The tables are kept small, because encoding reads them in random order. */
    uint16_t byte_id[256]; /* token of each byte */
    uint8_t *length; /* [tokens] bytes */
    /* [tokens] left << 16 | right it was merged from; a byte: itself */
    uint32_t *split;
    uint16_t *shorter; /* [tokens] longest token that is a proper prefix; TOKEN_NONE */
    uint16_t *pair; /* hash of the pairs: slots of tokens, TOKEN_NONE where free */
    int pair_shift; /* 32 - log2(slots) */
    uint64_t *maybe; /* 2^20 bits by hash: clear where no pair is (95% of them) */
    uint32_t *trie; /* double array, see trie_step */
    uint16_t *trie_token; /* [slots of trie] token that ends there */
    uint64_t joined[256]; /* bit y & 63 of byte x: some token has xy, y from 0xc0 on */
    uint32_t *two; /* [65536] slot after two bytes, the first low; 0: none */
};

static inline uint32_t vocab_left(const struct vocab *v, uint32_t id) { return v->split[id] >> 16; }
static inline uint32_t vocab_right(const struct vocab *v, uint32_t id)
{
    return v->split[id] & 0xffff;
}

static inline uint32_t vocab_id(const struct vocab *v, uint32_t rank)
{
    return v->id ? v->id[rank] : rank;
}
/* TOKEN_NONE: the id has no bytes. */
static inline uint32_t vocab_rank(const struct vocab *v, uint16_t id)
{
    return v->rank ? v->rank[id] : id < v->tokens ? id : TOKEN_NONE;
}

/* The form is detected. GPT_INPUT names file and line; GPT_SYSTEM if it cannot
 * be read. */
int vocab_load(struct vocab **v, const char *path) MUST_CHECK;
/* The built-in byte tokenizer: byte b is token b, document start is 256. */
int vocab_bytes(struct vocab **v) MUST_CHECK;
void vocab_free(struct vocab *v);
/* Where the GPT-2 vocabulary is, the first that exists of: $GPT_VOCAB,
 * DIR/../vocab/gpt2.tiktoken, DIR/../share/gpt-tools/gpt2.tiktoken with DIR the folder
 * of the running program, and $XDG_DATA_HOME (or ~/.local/share)
 * /gpt-tools/gpt2.tiktoken. Malloc'd. GPT_INPUT lists the places. */
int vocab_find(char **path) MUST_CHECK;

static inline const uint8_t *vocab_token(const struct vocab *v, int rank, size_t *n)
{
    *n = v->begin[rank + 1] - v->begin[rank];
    return v->bytes + v->begin[rank];
}

static inline uint32_t vocab_hash(uint32_t key) { return (key ^ key >> 15) * 0x9e3779b1u; }

/* Returns the rank that ranks left and right merge to, or TOKEN_NONE. */
static inline uint32_t vocab_merge(const struct vocab *v, uint32_t left, uint32_t right)
{
    uint32_t key = left << 16 | right, hash = vocab_hash(key);
    uint32_t slots = 1u << (32 - v->pair_shift);

    /* Most pairs that are looked up do not merge; the bitmap rules them out before the table is
     * read. */
    if (!(v->maybe[hash >> 18] >> (hash >> 12 & 63) & 1))
        return TOKEN_NONE;
    for (uint32_t i = hash >> v->pair_shift;; i = (i + 1) & (slots - 1))
        if (v->pair[i] == TOKEN_NONE || v->split[v->pair[i]] == key)
            return v->pair[i];
}

/* The trie of all tokens is a double array (Aoe, 1989, with xor): the child of a
 * node along a byte is at slot base ^ byte, if that slot has this byte as its
 * label. No two nodes have the same base, so the label is proof enough. An entry
 * is base (22 bits), whether a token ends here, whether the slot is taken, label.
 * The root is slot 0. */
#define TRIE_BASE(e) ((e) >> 10)
#define TRIE_ENDS 0x200u
#define TRIE_TAKEN 0x100u

/* The entry along byte, or 0 if there is none; moves *slot. */
static inline uint32_t trie_step(const struct vocab *v, uint32_t *slot, uint32_t entry,
                                 uint8_t byte)
{
    uint32_t child = TRIE_BASE(entry) ^ byte, e = v->trie[child];

    *slot = child;
    return (e & (TRIE_TAKEN | 0xff)) == (TRIE_TAKEN | byte) ? e : 0;
}

/* vocab_tables.c: fills the tables from begin and bytes; path is for messages. */
int vocab_make_tables(struct vocab *v, const char *path) MUST_CHECK;
/* vocab_forms.c: begin and bytes from the text of a file in any form. */
int vocab_parse(struct vocab *v, const char *path, const char *text, size_t n) MUST_CHECK;

#endif
