/* corpus.h - which shards a `-d DATA` means.
 *
 * DATA is a folder with a MANIFEST (gpt-tokshard's), which says it, or a file, or
 * a pattern of files in the public format ('data/fineweb_*.bin'; .bin.zst too),
 * which are taken in lexicographic order. Headers and sizes are checked, tokens
 * are not read.
 *
 * A file is marked by the last word of its name, else by that of the folder it is
 * named in: train, training; val, valid, validation; test. Numbers, endings and
 * the words part, shard, chunk and of do not count. Of files
 *   SPLIT_TRAIN  are those marked as training, and those not marked if validation
 *                is elsewhere (`val`) or not wanted; else these are refused. A
 *                single file is, however it is marked. Files of `val`, by device
 *                and inode, are not, unless a single one was named.
 *   SPLIT_VAL    are those marked as validation; without one, as test.
 *   SPLIT_ONLY_VAL  those, else those not marked, or a single file.
 * gpt-train(1) says so, too.
 *
 *     struct corpus c;
 *     struct corpus_choice choice = { .wants_val = true };
 *     if ((rc = corpus_open(&c, "shards", SPLIT_TRAIN, &choice))) return rc;
 *     for (i = 0; i < c.n; i++) use(c.shard[i].path);
 *     corpus_release(&c);
 */
#ifndef DATA_CORPUS_H
#define DATA_CORPUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"
#include "data/manifest.h"

#define SHARD_MAGIC 20240520
#define SHARD_VERSION 1
#define SHARD_HEADER_BYTES 1024
#define CORPUS_BOS 50256 /* of shards without a MANIFEST: GPT-2's */

struct corpus_shard {
    char *path;
    const char *name; /* in path */
    bool val; /* of the MANIFEST's validation, or a file so marked */
    int64_t tokens;
    int64_t documents; /* that begin in it, of the MANIFEST; -1: not known */
    char hash[33]; /* of the MANIFEST; "" without one */
    char *frames; /* of the MANIFEST, also one beside the files; or NULL */
};
struct corpus {
    struct corpus_shard *shard;
    int n;
    char **other; /* paths of what DATA names or, a folder, has, and this split leaves out */
    int others;
    int bos; /* of the MANIFEST, also one beside the files; else CORPUS_BOS */
    int vocab_size; /* of the MANIFEST; 0 without one */
    char tokenizer[80]; /* of the MANIFEST: its name, a blank and the vocabulary's SHA-256; "" */
    char id[33]; /* XXH3-128 over name, tokens and (MANIFEST's) hash of each shard */
};

struct corpus_choice {
    const char *val; /* where validation is, if not in the same DATA; NULL */
    bool wants_val; /* it is to be in the same DATA */
    /* True for checkpoints made before names were read so: of files those named *_val_* are
     * validation and *_train_* training; of several named neither way the first is validation, the
     * rest training. */
    bool old;
};

/* GPT_INPUT: no MANIFEST, MANIFESTs of different tokenizers beside the files, no shard of this
 * split, files of which it is not known whether they train, a bad header, a file shorter than its
 * header says or of another size than the MANIFEST says. choice NULL: validation is not wanted. */
int corpus_open(struct corpus *c, const char *data, enum split split,
                const struct corpus_choice *choice) MUST_CHECK;
/* True if the training files of a run, whose id that is, were chosen of data by the old rule. */
bool corpus_was_old(const char *data, const struct corpus_choice *choice, const char *id);
/* Writes names of shards, of many the first and the last and how many there are. */
void corpus_names(const struct corpus *c, char *text, size_t size);
/* Writes the names of the files that train or val leave out, and that are in neither; returns how
 * many. val may be NULL. */
int corpus_unused(const struct corpus *train, const struct corpus *val, char *text, size_t size);
/* Finds two shards that are one file, by device and inode: *a < *b; false: there are none. */
bool corpus_twice(const struct corpus *c, int *a, int *b);
/* Returns the first shard of train that val has, too, by device and inode; -1: there is none. */
int corpus_shared(const struct corpus *train, const struct corpus *val);
/* Returns the role that the last word of a file's name, else its folder's, marks: train, training; val, valid,
 * validation; test. */
enum corpus_role { ROLE_UNMARKED, ROLE_TRAIN, ROLE_VAL, ROLE_TEST };
enum corpus_role corpus_role(const char *path);
/* A vocabulary, or a document start, that a model of `vocab` ids cannot take is GPT_INPUT. */
int corpus_check_vocab(const struct corpus *c, const char *data, int vocab, int bos) MUST_CHECK;
void corpus_release(struct corpus *c);

/* Checks that a file exists and has the size and number of tokens of its MANIFEST line; else
 * GPT_INPUT. */
int corpus_check_shard(const char *path, const struct manifest_shard *s) MUST_CHECK;
/* True if the first n bytes begin a shard. */
bool shard_begins(const void *bytes, size_t n);
/* *tokens of a header; path is for messages. GPT_INPUT: it is none. */
int shard_header_tokens(const void *header, size_t n, const char *path, int64_t *tokens) MUST_CHECK;
/* GPT_INPUT: what follows a shard's last token in its file, n bytes of it, begins another shard. */
int shard_check_end(const void *beyond, size_t n, const char *path) MUST_CHECK;
/* Header and size of one file, which holds no second shard as far as can be told without decoding;
 * *tokens from the header. "-" can still be read afterwards. */
int shard_check_header(const char *path, int64_t *tokens) MUST_CHECK;

#endif
