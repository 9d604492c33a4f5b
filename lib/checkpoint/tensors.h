/* tensors.h - the tensors of a checkpoint, or of a safetensors file, through one interface.
 *
 * Opens ROOT (its newest checkpoint), ROOT/step-N, x.safetensors, x.safetensors.zst
 * or "-". Bytes are streamed in any order of tensors, in bounded memory; reading
 * in file order (tensors_at) costs one pass over the files.
 *
 *     struct tensors *s;
 *     if ((rc = tensors_open(&s, path))) return rc;
 *     for (int i = 0; i < tensors_count(s); i++) {
 *         const struct stored *t = tensors_at(s, i);
 *         rc = values_load(s, t, 0, x, t->elements);       // decoded: numbers, not bits
 *     }
 *     tensors_close(s);
 *
 * Values are what the stored bits stand for: a weight with a mantissa beside it
 * is the fp32 master of both; a tensor with NAME.scale or NAME.scale_inv (also
 * NAME_scale, NAME_scale_inv; one number, one a row, or one a 128x128 block) is
 * multiplied by it, as fused Adam's fp16 and fp8 states and fp8 weights are kept. A NAME.row_scale
 * is only what such a state had where it was exported in f32.
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

enum { TENSOR_KINDS = 20 }; /* and none, "" */
struct stored {
    const char *name; /* "attn.momentum" */
    char *param, *kind; /* "attn", "momentum"; "" when the name ends in no known kind */
    const char *type; /* as safetensors spells it */
    enum dtype dtype; /* DT_NONE: cannot be decoded */
    int rank;
    const uint64_t *shape;
    uint64_t elements, bytes;
    const struct stored *low; /* mantissa (or remainder) of this weight */
    bool rounded; /* low is a remainder: the weight was rounded, not cut */
    const struct stored *scale; /* the values are multiplied by it */
    bool is_part; /* a mantissa or scale that another one has as low or scale */
    int index;
};

struct tensors;
int tensors_open(struct tensors **s, const char *path) MUST_CHECK;
void tensors_close(struct tensors *s);
int tensors_count(const struct tensors *s);
const struct stored *tensors_at(const struct tensors *s, int i); /* in file order */
const struct stored *tensors_find(const struct tensors *s, const char *name); /* NULL: none */
const char *tensors_path(const struct tensors *s); /* the directory or file */
const struct ckpt *tensors_ckpt(const struct tensors *s); /* NULL: a safetensors file */
const struct st_header *tensors_header(const struct tensors *s); /* NULL: a checkpoint */
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

/* Decoded elements from `first` on. GPT_INPUT: a type that cannot be decoded. */
struct values {
    const struct stored *t;
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
