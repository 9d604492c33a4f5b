/* npz.h - the arrays of an .npz as tensors: .npy files in an uncompressed zip.
 *
 * st_open and st_writer_new (safetensors.h) read and write such files through this. Arrays in C
 * order, of types that safetensors has as well; zip64. An array "__metadata__" of bytes holds the
 * metadata as safetensors has it. bf16 and fp8 have no NumPy type: widen them. What is written is
 * of .npy format 1.0, in order, without seeking; dates are 1980-01-01, so that the same arrays make
 * the same bytes.
 * Formats: numpy.lib.format, PKWARE APPNOTE 6.3.
 */
#ifndef CHECKPOINT_NPZ_H
#define CHECKPOINT_NPZ_H

#include <stdbool.h>
#include "base/zio.h"
#include "checkpoint/st_header.h"

/* The type as NumPy writes it, "<f4"; NULL where it has none. */
const char *npz_descr(enum dtype t);
/* Do the n bytes at b begin as a zip does? */
bool npz_is(const unsigned char *b, size_t n);
/* The arrays as h->tensors; their begin is an offset in the file. path is for messages. b begins as
 * npz_is asks: fewer bytes are not checked for again. */
int npz_parse(struct st_header *h, const char *path, const unsigned char *b, size_t n) MUST_CHECK;

/* An array in the archive that z writes plain: begun, its data in any pieces, ended; then, behind
 * the last, the directory of those of h. */
struct npz_array {
    uint64_t at, bytes;
    uint32_t crc;
};
int npz_begin(struct zwriter *z, const struct st_tensor *t, struct npz_array *a) MUST_CHECK;
int npz_write(struct zwriter *z, struct npz_array *a, const void *p, size_t n) MUST_CHECK;
int npz_end(struct zwriter *z, const struct npz_array *a) MUST_CHECK;
int npz_directory(struct zwriter *z, const struct st_header *h,
                  const struct npz_array *a) MUST_CHECK;

#endif
