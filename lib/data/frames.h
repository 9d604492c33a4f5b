/* frames.h - the table of frames at the end of a .zst file.
 *
 * zstd's seekable format (contrib/seekable_format in zstd): a skippable frame,
 * which every zstd reader ignores, with compressed and plain size of each
 * frame. All numbers little-endian:
 *   u32 0x184D2A5E, u32 bytes that follow, per frame { u32 compressed, u32 plain },
 *   u32 frames, u8 descriptor (bit 7: entries carry a checksum too), u32 0x8F92EAB1
 *
 * Pure functions; a struct belongs to one thread at a time.
 */
#ifndef DATA_FRAMES_H
#define DATA_FRAMES_H

#include <stddef.h>
#include <stdint.h>
#include "base/err.h"

struct frame {
    uint64_t raw, plain;
    uint32_t raw_bytes, plain_bytes;
}; /* offsets and sizes */
struct frames {
    struct frame *frame;
    int n;
    uint64_t plain_bytes;
};

/* Reads the table of an open file. n = 0 if it has none (that is no error).
 * GPT_INPUT if the table contradicts the file's size. */
int frames_read(struct frames *t, int fd, const char *path) MUST_CHECK;
int frames_add(struct frames *t, uint32_t raw_bytes, uint32_t plain_bytes) MUST_CHECK;
/* The skippable frame; caller frees. */
int frames_table(const struct frames *t, char **bytes, size_t *n) MUST_CHECK;
void frames_release(struct frames *t);

#endif
