/* zio.h - reading and writing streams that may be zstd- or gzip-compressed.
 *
 * Readers detect the format by its first bytes, whatever the name; only an empty
 * file whose name ends in .zst or .gz is GPT_INPUT, for it was cut. Any number of
 * concatenated frames is one stream, zeros may follow gzip's; a stream that ends inside a frame or
 * fails its checksum is GPT_INPUT with path and offset. "-" is stdin; who closes it
 * without having read from it leaves it whole to the next to open it.
 *
 *     struct zreader *r;
 *     if ((rc = zreader_open(&r, path))) return rc;
 *     while (!(rc = zreader_read(r, buf, sizeof buf, &n)) && n > 0) ...
 *     zreader_close(r);
 *
 * A writer with level 0 writes plain bytes. zwriter_frame() ends the present
 * frame so that the next begins at a byte from which a reader can start.
 * A reader or writer belongs to one thread.
 */
#ifndef BASE_ZIO_H
#define BASE_ZIO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "base/err.h"

struct zreader;
int zreader_open(struct zreader **r, const char *path) MUST_CHECK;
int zio_lfs_pointer(const char *path); /* the refusal of such a file, which begins "version " */
/* From byte `raw` of the file on, where a frame must begin (zwriter_frame). */
int zreader_open_at(struct zreader **r, const char *path, uint64_t raw) MUST_CHECK;
/* From now on reading what is no regular file, a pipe that may stand still or a FIFO without a
 * writer, fails (GPT_SYSTEM) as soon as the descriptor is readable; -1: none. Another thread, or
 * the handler of a signal, can end the waiting thus. Before readers are opened. */
void zio_wake(int fd);
bool zreader_plain(const struct zreader *r); /* not compressed */
/* The first n bytes, or all there are, without taking them; before the first read only. *p is valid
 * until that. */
int zreader_peek(struct zreader *r, size_t n, const void **p, size_t *got) MUST_CHECK;
/* Reads as many of the n bytes as are there, waiting for one; *got = 0 at the end. */
int zreader_some(struct zreader *r, void *buf, size_t n, size_t *got) MUST_CHECK;
/* Reads up to n bytes into buf; *got = 0 at the end. Short reads only at the end.
 * A stream that failed once fails again. */
int zreader_read(struct zreader *r, void *buf, size_t n, size_t *got) MUST_CHECK;
/* n decompressed bytes; past the end is GPT_INPUT. */
int zreader_skip(struct zreader *r, uint64_t n) MUST_CHECK;
uint64_t zreader_offset(const struct zreader *r); /* decompressed bytes so far */
uint64_t zreader_raw_offset(const struct zreader *r); /* bytes of the file, for progress */
void zreader_close(struct zreader *r);
/* True if the first n bytes of a file (4 decide) say that it is compressed. */
bool zio_compressed(const unsigned char *b, size_t n);

struct zwriter;
/* f stays the caller's, and so does its flush; name is for messages. Level 0 is
 * plain, 1..19 zstd with content checksums. */
int zwriter_new(struct zwriter **w, FILE *f, const char *name, int level) MUST_CHECK;
int zwriter_write(struct zwriter *w, const void *buf, size_t n) MUST_CHECK;
int zwriter_frame(struct zwriter *w) MUST_CHECK;
int zwriter_finish(struct zwriter *w) MUST_CHECK; /* ends the stream; then free */
uint64_t zwriter_offset(const struct zwriter *w); /* bytes given to f so far */
void zwriter_free(struct zwriter *w);

#endif
