/* tensors.h - the tensors of a checkpoint, or of safetensors files, through one interface.
 *
 * Opens ROOT (its newest checkpoint), ROOT/step-N, x.safetensors, x.safetensors.zst, the files of a
 * model.safetensors.index.json, or "-". Bytes are streamed in any order of tensors, in bounded
 * memory; reading in file order (tensors_at) costs one pass over the files.
 *
 *     struct tensors *s;
 *     if ((rc = tensors_open(&s, path))) return rc;
 *     for (int i = 0; i < tensors_count(s); i++) {
 *         const struct stored *t = tensors_at(s, i);
 *         rc = values_load(s, t, 0, x, t->elements);       // decoded: numbers, not bits
 *     }
 *     tensors_close(s);
 *
 * Values are what the stored bits stand for. Those of a weight are the exact ones, which the
 * optimizer keeps: of a separate PARAM.master, or of both halves where a mantissa or remainder lies
 * beside it; stored_forward() gives what the forward pass reads instead. A tensor with NAME.scale or
 * NAME.scale_inv (also NAME_scale, NAME_scale_inv; one number, one a row, or one a 128x128 block) is
 * multiplied by it, as fused Adam's fp16 and fp8 states and fp8 weights are kept. A NAME.row_scale
 * is only what such a state had where it was exported in f32, a PARAM.rounded what the forward pass
 * read of a weight that was exported exactly.
 *
 * Threads: a struct tensors may be shared; a reader belongs to one thread. A
 * compressed safetensors file is one stream: many readers of it mean many passes.
 */
#ifndef CHECKPOINT_TENSORS_H
#define CHECKPOINT_TENSORS_H

#include <stdbool.h>
#include <stdint.h>
#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"

enum { TENSOR_KINDS = 24 }; /* and none, "" */
struct stored {
    const char *name; /* "attn.momentum" */
    char *param, *kind; /* "attn", "momentum"; "" when the name ends in no known kind */
    const char *type; /* as safetensors spells it */
    enum dtype dtype; /* DT_NONE: cannot be decoded */
    unsigned bits; /* an element */
    int rank;
    const uint64_t *shape;
    uint64_t elements, bytes;
    const struct stored *master; /* of this weight, a tensor of its own */
    const struct stored *low; /* mantissa (or remainder) of this weight */
    bool away; /* low is a remainder: the weight was rounded, not cut */
    const struct stored *forward; /* rounded, of this weight that is exact */
    const struct stored *scale; /* the values are multiplied by it */
    bool is_part; /* one that another has as one of these */
    int index;
    int file, place; /* of an index: which of its files; and which tensor of the file */
};

struct tensors;
int tensors_open(struct tensors **s, const char *path) MUST_CHECK;
void tensors_close(struct tensors *s);
int tensors_count(const struct tensors *s);
const struct stored *tensors_at(const struct tensors *s, int i); /* in file order */
const struct stored *tensors_find(const struct tensors *s, const char *name); /* NULL: none */
const char *tensors_path(const struct tensors *s); /* the directory or file */
const struct ckpt *tensors_ckpt(const struct tensors *s); /* NULL: safetensors files */
/* Returns a file's or an index's metadata, as st_meta; none for a checkpoint. */
const struct st_meta *tensors_notes(const struct tensors *s, size_t *n);
const char *tensors_note(const struct tensors *s, const char *key); /* NULL: none */
/* Files of tensors: of an index all, by name; else one, or of a checkpoint none. */
int tensors_files(const struct tensors *s);
const char *tensors_file(const struct tensors *s, int i);
/* Threads that reading gains from: 1 for a compressed file, else 0 (all processors). */
int tensors_threads(const struct tensors *s);

/* Raw bytes of a tensor from byte `from` on. Close after a failed open, too. */
struct tensor_bytes {
    struct tensors *s;
    const struct stored *t;
    struct byte_source *src;
    uint64_t at;
};
int bytes_open(struct tensor_bytes *b, struct tensors *s, const struct stored *t,
               uint64_t from) MUST_CHECK;
int bytes_read(struct tensor_bytes *b, void *dst, size_t n) MUST_CHECK;
void bytes_close(struct tensor_bytes *b);

/* True if the values can be decoded: type and types of what belongs to it are known, and scales fit. */
bool values_known(const struct stored *t);
/* The weight t as the forward pass reads it: without master and low half. Any other tensor as it is. */
struct stored stored_forward(const struct stored *t);
/* Decoded elements from `first` on. GPT_INPUT: not values_known. t stays until values_close. */
struct values {
    const struct stored *t; /* what is read: a weight's master where it has one */
    struct tensor_bytes main, low;
    uint64_t at; /* next element */
    double *scales;
    uint64_t nscales;
    void *buf;
};
int values_open(struct values *v, struct tensors *s, const struct stored *t,
                uint64_t first) MUST_CHECK;
int values_read(struct values *v, double *dst, size_t n) MUST_CHECK;
void values_close(struct values *v);
/* n elements from `first` on, opened and closed. */
int values_load(struct tensors *s, const struct stored *t, uint64_t first, double *dst,
                size_t n) MUST_CHECK;
/* The type for a reader: "f32 (bf16 + mantissa)", "e4m3 x scale", ...; buf of 64. */
const char *values_type(const struct stored *t, char *buf);

#endif
