/* npz.h - the arrays of an .npz as tensors: .npy files in an uncompressed zip.
 *
 * st_open (safetensors.h) takes such a file. Arrays in C order, of types
 * that safetensors has as well; zip64 is read. An array "__metadata__" of bytes holds the metadata
 * as safetensors has it (inspect/npz_writer.h writes one).
 * Formats: numpy.lib.format, PKWARE APPNOTE 6.3.
 */
#ifndef CHECKPOINT_NPZ_H
#define CHECKPOINT_NPZ_H

#include <stdbool.h>
#include "checkpoint/st_header.h"

/* The type as NumPy writes it, "<f4"; NULL where it has none. */
const char *npz_descr(enum dtype t);
/* Do the n bytes at b begin as a zip does? */
bool npz_is(const unsigned char *b, size_t n);
/* The arrays as h->tensors; their begin is an offset in the file. path is for messages. b begins as
 * npz_is asks: fewer bytes are not checked for again. */
int npz_parse(struct st_header *h, const char *path, const unsigned char *b, size_t n) MUST_CHECK;

#endif
