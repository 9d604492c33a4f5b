/* safetensors.h - reading and writing the public tensor format.
 *
 * A file is a u64 (little-endian) header size N <= 100,000,000, N bytes of JSON
 * and the data: {"name":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},
 * "__metadata__":{"key":"value"}}. Every rule is checked before anything is
 * returned: offsets are contiguous from 0 without hole or overlap, end - begin
 * is product(shape)*bits/8, no key comes twice, the file ends where the data do.
 * A broken rule is GPT_INPUT with file, offset, expected and found.
 * Source: https://github.com/huggingface/safetensors#format
 *
 *     struct st_reader *r;
 *     const struct st_tensor *t;
 *     if ((rc = st_open(&r, "model.safetensors.zst"))) return rc;
 *     while ((t = st_next(r)))                        // file order
 *         if ((rc = st_read(r, t, 0, buf, t->bytes))) break;
 *     if (!rc) rc = st_finish(r);                     // nothing follows the data
 *     st_close(r);
 *
 * A plain file is mapped and read in any order. A compressed file, or "-", is a
 * stream: it is read forward only, in bounded memory. A reader or a writer belongs
 * to one thread; a header may be read by all.
 */
#ifndef CHECKPOINT_SAFETENSORS_H
#define CHECKPOINT_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "checkpoint/st_header.h"

/* True if the first n bytes (9 decide) say that a file of tensors is compressed. */
bool st_compressed(const unsigned char *b, size_t n);

struct st_reader;
int st_open(struct st_reader **r, const char *path) MUST_CHECK;
const struct st_header *st_header(const struct st_reader *r);
/* The mapped data of a plain file, aligned as the file has it; NULL in a stream. */
const void *st_data(const struct st_reader *r, const struct st_tensor *t);
/* The next tensor in file order, NULL after the last. In a stream it is read
 * next; what was left of the one before is skipped. */
const struct st_tensor *st_next(struct st_reader *r);
/* n bytes of t from byte `from`. In a stream it must not lie before what was
 * read already (asserted). */
int st_read(struct st_reader *r, const struct st_tensor *t, uint64_t from, void *dst,
            size_t n) MUST_CHECK;
/* Reads to the end: a stream that is shorter or longer than its header says is
 * GPT_INPUT. (A plain file's size is checked by st_open.) */
int st_finish(struct st_reader *r) MUST_CHECK;
void st_close(struct st_reader *r);

/* Writing: declare everything, then give the data in the order of declaration.
 *
 *     if ((rc = st_writer_new(&w, out.f, "x.safetensors", 0))) return rc;   // level 0: plain
 *     if ((rc = st_declare(w, "a", DT_F32, 2, (uint64_t[]){ 2, 3 }))) ...
 *     if ((rc = st_note(w, "step", "12"))) ...        // __metadata__
 *     if ((rc = st_write(w, data, 24))) ...           // any pieces; never more than declared
 *     if ((rc = st_writer_finish(w))) ...             // all data given? else GPT_INPUT
 *     st_writer_free(w);
 *
 * Same calls, same bytes. The header is padded so that the data begin at a
 * multiple of 8; for aligned tensors declare larger element sizes first. A
 * compressed file starts a zstd frame at each tensor and every 4 MiB in it. */
struct st_writer;
int st_writer_new(struct st_writer **w, FILE *f, const char *name, int level) MUST_CHECK;
int st_declare(struct st_writer *w, const char *name, enum dtype t, int rank,
               const uint64_t *shape) MUST_CHECK;
int st_note(struct st_writer *w, const char *key, const char *value) MUST_CHECK;
int st_write(struct st_writer *w, const void *data, size_t n) MUST_CHECK;
int st_writer_finish(struct st_writer *w) MUST_CHECK;
void st_writer_free(struct st_writer *w);

#endif
