/* npz_writer.h - NumPy's archives of arrays: .npy files (format 1.0) in an uncompressed zip.
 *
 *     struct npz_writer *w;
 *     if ((rc = npz_new(&w, f, "x.npz"))) return rc;
 *     if ((rc = npz_note(w, "step", "12"))) ...           // kept in an array "__metadata__"
 *     if ((rc = npz_begin(w, "a", DT_F32, 2, (uint64_t[]){ 2, 3 }))) ...
 *     if ((rc = npz_write(w, data, 24))) ...              // any pieces
 *     if ((rc = npz_finish(w))) ...
 *     npz_free(w);
 *
 * The archive is written in order, without seeking; arrays above 4 GiB are fine (zip64). Dates are
 * 1980-01-01, so that the same arrays make the same bytes. bf16 and fp8 have no NumPy type: widen
 * them. A writer belongs to one thread. st_open (checkpoint/safetensors.h) reads such a file.
 * Formats: numpy.lib.format, PKWARE APPNOTE 6.3.
 */
#ifndef INSPECT_NPZ_WRITER_H
#define INSPECT_NPZ_WRITER_H

#include <stdint.h>
#include <stdio.h>
#include "base/dtype.h"
#include "base/err.h"

struct npz_writer;
int npz_new(struct npz_writer **w, FILE *f, const char *name) MUST_CHECK;
int npz_note(struct npz_writer *w, const char *key, const char *value) MUST_CHECK;
int npz_begin(struct npz_writer *w, const char *name, enum dtype t, int rank,
              const uint64_t *shape) MUST_CHECK;
int npz_write(struct npz_writer *w, const void *data, size_t n) MUST_CHECK;
int npz_finish(struct npz_writer *w) MUST_CHECK;
void npz_free(struct npz_writer *w);

#endif
