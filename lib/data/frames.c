/* frames.c - see frames.h. */
#include "data/frames.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/grow.h"
#include "base/le.h"

#define SKIPPABLE 0x184D2A5Eu
#define SEEKABLE 0x8F92EAB1u
#define FOOTER 9

int frames_add(struct frames *t, uint32_t raw_bytes, uint32_t plain_bytes)
{
    struct frame f = { 0, 0, raw_bytes, plain_bytes };

    if (grow_one(&t->frame, t->n, sizeof *t->frame))
        return GPT_SYSTEM;
    if (t->n) {
        const struct frame *last = &t->frame[t->n - 1];

        f.raw = last->raw + last->raw_bytes;
        f.plain = last->plain + last->plain_bytes;
    }
    t->frame[t->n++] = f;
    t->plain_bytes = f.plain + plain_bytes;
    return 0;
}

int frames_table(const struct frames *t, char **bytes, size_t *n)
{
    unsigned char *p;

    *n = 8 + 8 * (size_t)t->n + FOOTER;
    if (!(*bytes = malloc(*n)))
        return err_memory();
    p = put_le32((unsigned char *)*bytes, SKIPPABLE);
    p = put_le32(p, (uint32_t)(*n - 8));
    for (int i = 0; i < t->n; i++) {
        p = put_le32(p, t->frame[i].raw_bytes);
        p = put_le32(p, t->frame[i].plain_bytes);
    }
    p = put_le32(p, (uint32_t)t->n);
    *p++ = 0;
    put_le32(p, SEEKABLE);
    return 0;
}

static int read_entries(struct frames *t, const unsigned char *p, uint32_t n, size_t entry,
                        uint64_t frames_end, const char *path)
{
    int rc;

    for (uint32_t i = 0; i < n; i++, p += entry)
        if ((rc = frames_add(t, le32(p), le32(p + 4))))
            return rc;
    if (n && t->frame[n - 1].raw + t->frame[n - 1].raw_bytes != frames_end)
        return err_set(GPT_INPUT,
                       "%s: expected frames of %llu bytes as their table says, found "
                       "%llu: damaged, or several shards (these with - and on standard input)",
                       path, (unsigned long long)(t->frame[n - 1].raw + t->frame[n - 1].raw_bytes),
                       (unsigned long long)frames_end);
    return 0;
}

int frames_read(struct frames *t, int fd, const char *path)
{
    unsigned char foot[FOOTER], *table;
    struct stat st;
    uint32_t n;
    size_t entry, bytes;
    int rc = 0;

    memset(t, 0, sizeof *t);
    if (fstat(fd, &st))
        return err_sys("cannot read '%s'", path);
    if (st.st_size < 8 + FOOTER || pread(fd, foot, FOOTER, st.st_size - FOOTER) != FOOTER ||
        le32(foot + 5) != SEEKABLE)
        return 0;
    n = le32(foot);
    entry = foot[4] & 0x80 ? 12 : 8;
    bytes = 8 + entry * n + FOOTER;
    if (n > INT32_MAX / 16 || bytes > (size_t)st.st_size)
        return err_set(GPT_INPUT,
                       "%s: offset %lld: a table of %u frames does not fit the file: "
                       "damaged",
                       path, (long long)st.st_size - FOOTER, n);
    if (!(table = malloc(bytes)))
        return err_memory();
    if (pread(fd, table, bytes, st.st_size - (off_t)bytes) != (ssize_t)bytes)
        rc = err_sys("cannot read '%s'", path);
    else if (le32(table) != SKIPPABLE || le32(table + 4) != bytes - 8)
        rc = err_set(GPT_INPUT,
                     "%s: offset %lld: expected the table of %u frames, found something "
                     "else: damaged",
                     path, (long long)st.st_size - (long long)bytes, n);
    else
        rc = read_entries(t, table + 8, n, entry, (uint64_t)st.st_size - bytes, path);
    free(table);
    if (rc)
        frames_release(t);
    return rc;
}

void frames_release(struct frames *t)
{
    free(t->frame);
    memset(t, 0, sizeof *t);
}
