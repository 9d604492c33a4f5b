/* Compressed streams: round trips, frames, and every way of being cut or damaged.
 * gzip files are made with zlib, zstd files also by hand, so that the reader is
 * not only held against our own writer. */
#include <stdbool.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>
#include "base/rng.h"
#include "base/zio.h"
#include "check.h"
#include "scratch.h"

static char *path, *path_zst, *path_gz;

/* Text that compresses somewhat: words drawn from few letters. */
static char *make_text(size_t n, uint64_t seed)
{
    struct rng r = rng_make(seed, 0);
    char *text = malloc(n + 1);
    for (size_t i = 0; i < n; i++)
        text[i] = "abcdefgh \n"[rng_below(&r, i, 10)];
    text[n] = '\0';
    return text;
}

/* Reads name in pieces of `piece` bytes; NULL on failure, with its code in *rc. */
static char *get(const char *name, size_t piece, size_t *n, int *rc)
{
    struct zreader *r = NULL;
    size_t room = 1 << 20, got;
    char *data = malloc(room);
    memset(data, 0x55, room); /* a read that writes nothing must show */
    *n = 0;
    *rc = zreader_open(&r, name);
    while (!*rc && !(*rc = zreader_read(r, data + *n, piece, &got)) && got > 0) {
        *n += got;
        if (*n + piece > room) {
            *rc = err_set(GPT_SYSTEM, "longer than the test expects");
            break;
        }
    }
    if (!*rc)
        CHECK_EQ(zreader_offset(r), *n);
    zreader_close(r);
    if (*rc) {
        free(data);
        return NULL;
    }
    return data;
}

static void check_reads_as(const char *name, const char *text, size_t want, size_t piece)
{
    size_t n;
    int rc;
    char *data = get(name, piece, &n, &rc);
    CHECK_OK(rc);
    CHECK_EQ(n, want);
    CHECK(data && n == want && !memcmp(data, text, n));
    free(data);
}

static uint64_t write_frames(const char *name, int level, const char *text, size_t n, size_t frame)
{
    struct zwriter *w;
    FILE *f = fopen(name, "w");
    CHECK_OK(zwriter_new(&w, f, name, level));
    for (size_t i = 0; i < n; i += frame) {
        size_t k = n - i < frame ? n - i : frame;
        CHECK_OK(zwriter_write(w, text + i, k / 2));
        CHECK_OK(zwriter_write(w, text + i + k / 2, k - k / 2));
        CHECK_OK(zwriter_frame(w));
        CHECK_OK(zwriter_frame(w)); /* ends nothing, so it adds nothing */
    }
    CHECK_OK(zwriter_finish(w));
    uint64_t bytes = zwriter_offset(w);
    CHECK_EQ(bytes, ftell(f));
    zwriter_free(w);
    CHECK(!fclose(f));
    return bytes;
}

static void test_round_trips(void)
{
    static const size_t sizes[] = { 0, 1, 2, 3, 4, 1000, 131071, 131072, 131073, 400000 };
    static const int levels[] = { 0, 1, 3, 19 };
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        char *text = make_text(sizes[i], i);
        for (size_t l = 0; l < sizeof levels / sizeof levels[0]; l++) {
            const char *name = levels[l] ? path_zst : path;
            write_frames(name, levels[l], text, sizes[i], sizes[i] + 1);
            check_reads_as(name, text, sizes[i], 65536);
            check_reads_as(name, text, sizes[i], 999);
        }
        write_frames(path_zst, 1, text, sizes[i], 7777);
        check_reads_as(path_zst, text, sizes[i], 65536);
        check_reads_as(path_zst, text, sizes[i], sizes[i] < 2000 ? 1 : 12345);
        free(text);
    }
}

/* A frame begun at zwriter_frame() can be read alone, and the stream from it on;
 * it has a checksum. */
static void test_frames_are_independent(void)
{
    char *text = make_text(3000, 1), *file = malloc(10000), plain[2000];
    uint64_t all = write_frames(path_zst, 3, text, 3000, 1000);
    FILE *f = fopen(path_zst, "r");
    CHECK(fread(file, 1, 10000, f) == all);
    fclose(f);
    size_t pos = 0;
    for (int i = 0; i < 3; i++) {
        size_t n = ZSTD_findFrameCompressedSize(file + pos, all - pos);
        CHECK(!ZSTD_isError(n));
        CHECK(file[pos + 4] & 4); /* frame header: checksum flag */
        CHECK_EQ(ZSTD_decompress(plain, sizeof plain, file + pos, n), 1000);
        CHECK(!memcmp(plain, text + 1000 * i, 1000));

        struct zreader *r;
        size_t rest = 3000 - 1000 * (size_t)i, got;
        char from_here[3000];
        CHECK_OK(zreader_open_at(&r, path_zst, pos));
        CHECK_OK(zreader_read(r, from_here, sizeof from_here, &got));
        CHECK(got == rest && !memcmp(from_here, text + 1000 * i, rest));
        zreader_close(r);
        pos += n;
    }
    CHECK_EQ(pos, all);
    free(file);
    free(text);
}

/* zlib's own writer, two members, then the detection by content under any name. */
static void test_gzip(void)
{
    char *text = make_text(300000, 2);
    gzFile g = gzopen(path_gz, "wb");
    CHECK(gzwrite(g, text, 200000) == 200000 && gzclose(g) == Z_OK);
    g = gzopen(path_gz, "ab");
    CHECK(gzwrite(g, text + 200000, 100000) == 100000 && gzclose(g) == Z_OK);
    check_reads_as(path_gz, text, 300000, 65536);
    check_reads_as(path_gz, text, 300000, 777);
    CHECK(!rename(path_gz, path));
    check_reads_as(path, text, 300000, 65536);
    free(text);
}

/* Zeros after gzip's last member, as tapes and archives of blocks have them; with anything behind
 * them, and after a zstd frame, they are damage. */
static void test_padding(void)
{
    static const size_t zeros[] = { 1, 2, 511, 131072, 1000000 };
    char *text = make_text(1000, 3), buf[2000];
    size_t n;
    for (int i = 0; i < 5; i++) {
        for (int more = 0; more < 2; more++) {
            gzFile g = gzopen(path_gz, "wb");
            CHECK(gzwrite(g, text, 1000) == 1000 && gzclose(g) == Z_OK);
            FILE *f = fopen(path_gz, "a");
            for (size_t k = 0; k < zeros[i]; k++)
                fputc(0, f);
            if (more)
                fputc(0x1f, f);
            fclose(f);
            if (!more) {
                check_reads_as(path_gz, text, 1000, 65536);
                check_reads_as(path_gz, text, 1000, 7);
                continue;
            }
            struct zreader *r;
            CHECK_OK(zreader_open(&r, path_gz));
            CHECK_ERR(zreader_read(r, buf, sizeof buf, &n), GPT_INPUT,
                      "expected a sound gzip frame, found: data behind zero padding");
            zreader_close(r);
        }
    }
    write_frames(path_zst, 1, text, 1000, 1000);
    FILE *f = fopen(path_zst, "a");
    for (int k = 0; k < 8; k++)
        fputc(0, f);
    fclose(f);
    struct zreader *r;
    CHECK_OK(zreader_open(&r, path_zst));
    CHECK_ERR(zreader_read(r, buf, sizeof buf, &n), GPT_INPUT, "expected a sound zstd frame");
    zreader_close(r);
    free(text);
}

static size_t small_file(bool gzip, const char *text, size_t n, unsigned char *file, size_t room)
{
    const char *name = gzip ? path_gz : path_zst;
    if (gzip) {
        gzFile g = gzopen(name, "wb9");
        CHECK(gzwrite(g, text, (unsigned)n) == (int)n && gzclose(g) == Z_OK);
    } else {
        write_frames(name, 3, text, n, n / 2);
    }
    FILE *f = fopen(name, "r");
    size_t size = fread(file, 1, room, f);
    fclose(f);
    return size;
}

/* Cut anywhere but at the end of a frame, a file fails, under its own name and, from
 * two bytes on, under one that says nothing. */
static void test_truncation(bool gzip)
{
    char *text = make_text(500, 3);
    unsigned char file[4096];
    size_t size = small_file(gzip, text, 500, file, sizeof file), n;
    size_t first = gzip ? 0 : ZSTD_findFrameCompressedSize(file, size);
    for (size_t cut = 0; cut < size; cut++) {
        const char *names[] = { gzip ? path_gz : path_zst, path };
        for (int i = 0; i < 2; i++) {
            int rc;
            if (i == 1 && cut < 2)
                continue;
            spill(names[i], file, cut);
            char *data = get(names[i], 100, &n, &rc);
            if (cut && cut == first) {
                CHECK(data && n == 250);
            } else {
                CHECK_EQ(rc, GPT_INPUT);
                CHECK(strstr(err_message(), names[i]) && strstr(err_message(), "offset"));
            }
            free(data);
        }
    }
    free(text);
}

/* One byte changed: the reader either fails or gives what was written (a flag that
 * does not matter), never anything else. */
static void test_damage(bool gzip)
{
    char *text = make_text(500, 4);
    unsigned char file[4096];
    size_t size = small_file(gzip, text, 500, file, sizeof file), n;
    int failures = 0;
    for (size_t i = 0; i < size; i++)
        for (int k = 0; k < 2; k++) {
            int rc;
            unsigned char flip = k ? 0xff : (unsigned char)(1 << i % 8);
            file[i] ^= flip;
            spill(path, file, size);
            file[i] ^= flip;
            char *data = get(path, 333, &n, &rc);
            /* damage to the magic itself makes it a plain file, read as it stands */
            bool plain = data && n == size;
            CHECK(plain || !data || (n == 500 && !memcmp(data, text, n)));
            failures += rc != 0;
            free(data);
        }
    CHECK(failures > (int)size * 7 / 4); /* nearly all of it is noticed */
    spill(path, file, size);
    check_reads_as(path, text, 500, 333);

    FILE *f = fopen(path, "a");
    CHECK(fputs("trailing", f) >= 0 && !fclose(f));
    int rc;
    CHECK(!get(path, 333, &n, &rc));
    CHECK_EQ(rc, GPT_INPUT);
    free(text);
}

static void test_skip_and_offsets(void)
{
    char *text = make_text(200000, 5), buf[100];
    size_t got;
    struct zreader *r;
    uint64_t all = write_frames(path_zst, 1, text, 200000, 30000);
    CHECK_OK(zreader_open(&r, path_zst));
    CHECK_OK(zreader_skip(r, 0));
    CHECK_OK(zreader_skip(r, 123457));
    CHECK_OK(zreader_read(r, buf, 100, &got));
    CHECK(got == 100 && !memcmp(buf, text + 123457, 100));
    CHECK_EQ(zreader_offset(r), 123557);
    CHECK(zreader_raw_offset(r) > 0 && zreader_raw_offset(r) <= all);
    CHECK_ERR(zreader_skip(r, 200000 - 123557 + 1), GPT_INPUT,
              "expected 200001 bytes, found 200000");
    CHECK_OK(zreader_read(r, buf, 100, &got));
    CHECK_EQ(got, 0);
    CHECK_EQ(zreader_raw_offset(r), all);
    zreader_close(r);
    free(text);
}

/* What was peeked into is read all the same; a frame that is there is given before the next comes. */
static void check_peek(void)
{
    struct zreader *r = NULL;
    int fd[2], wake[2];
    char file[256], name[32], buf[16];
    size_t k = ZSTD_compress(file, sizeof file, "hello", 5, 1), got;
    const void *p;
    CHECK(!pipe(fd) && !pipe(wake));
    snprintf(name, sizeof name, "/dev/fd/%d", fd[0]);
    CHECK_EQ(write(fd[1], file, k), (ssize_t)k);
    zio_wake(wake[0]);
    CHECK_OK(zreader_open(&r, name));
    CHECK_OK(zreader_peek(r, 3, &p, &got));
    CHECK(got == 3 && !memcmp(p, "hel", 3));
    CHECK_OK(zreader_peek(r, 1, &p, &got)); /* fewer than are held, which stay */
    CHECK(got == 1 && *(const char *)p == 'h');
    CHECK_OK(zreader_some(r, buf, 2, &got));
    CHECK(got == 2 && !memcmp(buf, "he", 2));
    CHECK_OK(zreader_some(r, buf, sizeof buf, &got));
    CHECK(got == 1 && *buf == 'l');
    CHECK_OK(zreader_some(r, buf, sizeof buf, &got));
    CHECK(got == 2 && !memcmp(buf, "lo", 2));
    CHECK_EQ(zreader_offset(r), 5);
    CHECK_EQ(write(wake[1], "", 1), 1);
    CHECK_ERR(zreader_some(r, buf, sizeof buf, &got), GPT_SYSTEM, "interrupted");
    zreader_close(r);
    /* so of a FIFO without a writer, but not of a file */
    CHECK(!mkfifo(scratch("fifo"), 0600));
    CHECK_ERR(zreader_open(&r, scratch("fifo")), GPT_SYSTEM, "interrupted");
    spill(path, "plain", 5);
    CHECK_OK(zreader_open(&r, path));
    CHECK_OK(zreader_read(r, buf, sizeof buf, &got));
    CHECK_EQ(got, 5);
    zreader_close(r);
    zio_wake(-1);
    for (int i = 0; i < 2; i++) {
        close(fd[i]);
        close(wake[i]);
    }
}

static void test_other_inputs(void)
{
    struct zreader *r;
    size_t n;
    int rc;
    CHECK_ERR(zreader_open(&r, "/none/x"), GPT_SYSTEM, "cannot open '/none/x': No such file");
    CHECK_ERR(zreader_open(&r, scratch("")), GPT_SYSTEM, "cannot read");
    /* Plain bytes that begin like nothing we know; the shortest; a byte of a magic. */
    static const char *const plain[] = { "", "(", "x", "\x1f", "\x28x", "plain text" };
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++) {
        spill(path, plain[i], strlen(plain[i]));
        check_reads_as(path, plain[i], strlen(plain[i]), 10);
    }
    /* Content decides; but an empty file with such a name was cut. */
    spill(path_zst, "plain text", 10);
    check_reads_as(path_zst, "plain text", 10, 10);
    spill(path_zst, "", 0);
    CHECK(!get(path_zst, 10, &n, &rc));
    CHECK_EQ(rc, GPT_INPUT);
    CHECK(strstr(err_message(), "expected a zstd frame, found the end of the file"));
    check_peek();
    /* A skippable frame, as pzstd writes first, then a real one. */
    unsigned char file[4096] = { 0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 'x', 'y', 'z' };
    size_t k = ZSTD_compress(file + 11, sizeof file - 11, "hello", 5, 1);
    spill(path_zst, file, 11 + k);
    check_reads_as(path_zst, "hello", 5, 10);
    /* What failed once fails again, with the same message. */
    spill(path_zst, file, 11 + k - 2);
    char buf[10];
    CHECK_OK(zreader_open(&r, path_zst));
    CHECK_ERR(zreader_read(r, buf, 10, &n), GPT_INPUT, "the end of the file");
    err_clear();
    CHECK_ERR(zreader_read(r, buf, 10, &n), GPT_INPUT, "the end of the file");
    zreader_close(r);
    zreader_close(NULL);
    zwriter_free(NULL);
}

static void test_full_device(void)
{
    struct zwriter *w;
    struct rng rng = rng_make(6, 0);
    static uint32_t noise[1 << 18];
    for (size_t i = 0; i < sizeof noise / sizeof noise[0]; i += 4)
        rng_block(&rng, i, noise + i);
    for (int level = 0; level <= 1; level++) {
        FILE *f = fopen("/dev/full", "w");
        CHECK_OK(zwriter_new(&w, f, "/dev/full", level));
        CHECK_ERR(zwriter_write(w, noise, sizeof noise), GPT_SYSTEM, "No space left on device");
        zwriter_free(w);
        fclose(f);
    }
}

int main(void)
{
    path = strdup(scratch("x"));
    path_zst = strdup(scratch("x.zst"));
    path_gz = strdup(scratch("x.gz"));
    test_round_trips();
    test_frames_are_independent();
    test_gzip();
    test_padding();
    test_truncation(false);
    test_truncation(true);
    test_damage(false);
    test_damage(true);
    test_skip_and_offsets();
    test_other_inputs();
    test_full_device();
    return check_done();
}
