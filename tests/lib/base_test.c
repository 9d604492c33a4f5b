/* Errors, hashes, random numbers, numbers from users, files, durations. */
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/file.h"
#include "base/grow.h"
#include "base/hash.h"
#include "base/memory.h"
#include "base/num.h"
#include "base/progress.h"
#include "base/rng.h"
#include "base/version.h"
#include "base/suggest.h"
#include "check.h"
#include "scratch.h"

/* --- err --- */

static void *other_thread(void *arg)
{
    CHECK_EQ(err_code(), GPT_OK); /* nothing of main's */
    CHECK_STR(err_message(), "");
    err_set(GPT_DEVICE, "rank %d", *(int *)arg);
    CHECK_STR(err_message(), "rank 3");
    return NULL;
}

static void test_err(void)
{
    CHECK_EQ(err_set(GPT_INPUT, "%s: offset %d", "x", 7), GPT_INPUT);
    CHECK_STR(err_message(), "x: offset 7");
    CHECK_EQ(err_prefix("batch %d", 2), GPT_INPUT);
    CHECK_STR(err_message(), "batch 2: x: offset 7");
    /* its own message as an argument */
    CHECK_EQ(err_set(GPT_NO, "again: %s", err_message()), GPT_NO);
    CHECK_STR(err_message(), "again: batch 2: x: offset 7");
    errno = ENOENT;
    CHECK_EQ(err_sys("cannot open '%s'", "y"), GPT_SYSTEM);
    CHECK_STR(err_message(), "cannot open 'y': No such file or directory");
    errno = 99999;
    CHECK_EQ(err_sys("z"), GPT_SYSTEM);
    CHECK_STR(err_message(), "z: unknown error");

    pthread_t t;
    int rank = 3;
    CHECK(!pthread_create(&t, NULL, other_thread, &rank));
    pthread_join(t, NULL);
    CHECK_STR(err_message(), "z: unknown error");
    err_clear();
    CHECK_EQ(err_code(), GPT_OK);
    CHECK_STR(err_message(), "");

    char *big = malloc(100000);
    memset(big, 'x', 99999);
    big[99999] = '\0';
    CHECK_EQ(err_set(GPT_INPUT, "%s", big), GPT_INPUT);
    CHECK_EQ(err_prefix("%s", big), GPT_INPUT);
    CHECK(strlen(err_message()) > 500);
    free(big);
}

/* --- hash --- */

static void sha256_of(const void *data, size_t n, size_t piece, char out[65])
{
    struct sha256 s;
    sha256_init(&s);
    for (size_t i = 0; i < n; i += piece)
        sha256_add(&s, (const char *)data + i, n - i < piece ? n - i : piece);
    sha256_hex(&s, out);
}

/* FIPS 180-4's examples, published by NIST with the standard. */
static void test_sha256(void)
{
    static const struct {
        const char *text, *hex;
    } want[] = {
        { "", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" },
        { "abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" },
        { "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
          "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1" },
        { "abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmn"
          "hijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu",
          "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1" },
    };
    char hex[65], whole[65];
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        sha256_of(want[i].text, strlen(want[i].text), 1000, hex);
        CHECK_STR(hex, want[i].hex);
    }
    char *a = malloc(1000000);
    memset(a, 'a', 1000000);
    static const size_t pieces[] = { 1, 63, 64, 65, 997, 1000000 };
    for (size_t i = 0; i < sizeof pieces / sizeof pieces[0]; i++) {
        sha256_of(a, 1000000, pieces[i], hex);
        CHECK_STR(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    }
    /* All lengths around the padding's seams: in one piece and byte by byte. */
    for (size_t n = 0; n < 200; n++) {
        sha256_of(a, n, 1, hex);
        sha256_of(a, n, 1000, whole);
        CHECK_STR(hex, whole);
    }
    free(a);
}

/* xxHash's own sanity-check vectors: XXH3 128-bit, seed 0, on its test buffer. */
static void test_xxh(void)
{
    static const struct {
        size_t n;
        const char *hex;
    } want[] = {
        { 0, "99aa06d3014798d86001c324468d497f" },    { 1, "a6cd5e9392000f6ac44bdff4074eecdb" },
        { 6, "082afe0b8162d12a3e7039bdda43cfc6" },    { 12, "6e3efd8fc7802b18061a192713f69ad9" },
        { 24, "0ce966e4678d37611e7044d28b1b901d" },   { 48, "a002ac4e5478227ef942219aed80f67b" },
        { 81, "4952f58181ab00425e8bafb9f95fb803" },   { 222, "337e09641b948717f1aebd597cec6b3a" },
        { 403, "1b6de21e332dd73dcdeb804d65c6dea4" },  { 512, "18d2d110dcc9bca1617e49599013cb6b" },
        { 2048, "f736557fd47073a5dd59e2c3a5f038e0" },
    };
    unsigned char buf[2048];
    uint64_t gen = 2654435761u;
    for (size_t i = 0; i < sizeof buf; i++, gen *= 11400714785074694797ull)
        buf[i] = (unsigned char)(gen >> 56);
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        char hex[33];
        xxh_hex_of(buf, want[i].n, hex);
        CHECK_STR(hex, want[i].hex);
        struct xxh x;
        CHECK_OK(xxh_init(&x));
        for (size_t j = 0; j < want[i].n; j += 7)
            xxh_add(&x, buf + j, want[i].n - j < 7 ? want[i].n - j : 7);
        xxh_hex(&x, hex);
        CHECK_STR(hex, want[i].hex);
        xxh_release(&x);
        xxh_release(&x); /* twice does no harm */
    }
}

/* --- rng --- */

/* Random123's known-answer vectors for philox4x32 with 10 rounds. */
static void test_philox(void)
{
    static const struct {
        uint64_t seed, stream, index;
        uint32_t out[4];
    } want[] = {
        { 0, 0, 0, { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 } },
        { UINT64_MAX, UINT64_MAX, UINT64_MAX, { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd } },
        { 0x299f31d0a4093822,
          0x0370734413198a2e,
          0x85a308d3243f6a88,
          { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 } },
    };
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        struct rng r = rng_make(want[i].seed, want[i].stream);
        uint32_t out[4];
        rng_block(&r, want[i].index, out);
        CHECK(!memcmp(out, want[i].out, sizeof out));
    }
}

/* Rounded once from what their words say. */
static void test_normals(void)
{
    const long double pi = 3.14159265358979323846264338327950288L;
    struct rng r = rng_make(5, 6);
    double worst = 0;
    for (uint64_t i = 0; i < 300000; i++) {
        uint32_t w[4];
        rng_block(&r, i, w);
        long double u = (w[0] + 1.0L) / 4294967296, v = w[1] / 4294967296.0L;
        long double want = sqrtl(-2 * logl(u)) * cosl(2 * pi * v);
        double ulp = ldexp(1, ilogb((double)want) - 23);
        worst = fmax(worst, (double)fabsl(rng_normal(&r, i) - want) / ulp);
    }
    CHECK(worst <= 0.5 + 1e-6); /* of doubles with an error of a few 2^-53 */
}

static void test_many(void)
{
    static const int64_t lengths[] = { 1, 63, 64, 65, 1000 };
    static const uint64_t firsts[] = { 0, 7, 0xffffffd0, UINT64_MAX - 20 };
    struct rng r = rng_make(8, 9);
    float u[1001], z[1001];
    for (int k = 0; k < 5 * 4; k++) {
        int64_t n = lengths[k % 5];
        uint64_t first = firsts[k / 5];
        int same = 0;
        u[n] = z[n] = 42;
        rng_uniforms(&r, first, n, u);
        rng_normals(&r, first, n, z);
        for (int64_t i = 0; i < n; i++)
            same += u[i] == rng_uniform(&r, first + (uint64_t)i) &&
                    z[i] == rng_normal(&r, first + (uint64_t)i);
        CHECK_EQ(same, n);
        CHECK(u[n] == 42 && z[n] == 42);
    }
}

static void test_distributions(void)
{
    enum { N = 1000000 };
    struct rng r = rng_make(1, 2), other = rng_make(1, 3);
    double sum = 0, sum2 = 0, usum = 0, product = 0, lowest = 1, highest = 0;
    int tails = 0, counts[7] = { 0 };
    for (int i = 0; i < N; i++) {
        double z = rng_normal(&r, (uint64_t)i), u = rng_uniform(&r, (uint64_t)i);
        sum += z;
        sum2 += z * z;
        product += z * rng_normal(&other, (uint64_t)i);
        tails += fabs(z) > 3;
        usum += u;
        lowest = fmin(lowest, u);
        highest = fmax(highest, u);
        counts[rng_below(&r, (uint64_t)i, 7)]++;
    }
    /* Five standard errors of each estimate: 1/sqrt(N) for the mean, sqrt(2/N)
     * for the variance, sqrt(1/12N) for the uniform's mean. The draws are fixed, so
     * that this passes always or never. */
    CHECK_NEAR(sum / N, 0, 5e-3);
    CHECK_NEAR(sum2 / N, 1, 5 * sqrt(2.0 / N));
    CHECK_NEAR(product / N, 0, 5e-3);
    CHECK_NEAR(usum / N, 0.5, 5 * sqrt(1 / 12.0 / N));
    CHECK(lowest >= 0 && lowest < 1e-4 && highest < 1 && highest > 1 - 1e-4);
    CHECK_NEAR(tails, N * 0.0026998, 5 * sqrt(N * 0.0027));
    for (int i = 0; i < 7; i++)
        CHECK_NEAR(counts[i], N / 7.0, 5 * sqrt(N / 7.0));
    CHECK_EQ(rng_below(&r, 5, 1), 0);
    CHECK(rng_below(&r, 5, UINT64_MAX) > UINT32_MAX);
}

/* --- num --- */

static void test_i64(void)
{
    static const struct {
        const char *text;
        int64_t want;
    } good[] = {
        { "0", 0 },
        { "-0", 0 },
        { "+7", 7 },
        { "007", 7 },
        { "1.000", 1 },
        { "7.", 7 },
        { "1k", 1000 },
        { "1.5k", 1500 },
        { ".5k", 500 },
        { "2M", 2000000 },
        { "3G", 3000000000 },
        { "1Ki", 1024 },
        { "1.5Ki", 1536 },
        { "-2Mi", -(2 << 20) },
        { "4Gi", 4ll << 30 },
        { "9223372036854775807", INT64_MAX },
        { "-9223372036854775808", INT64_MIN },
        { "9223372036.854775807G", INT64_MAX },
    };
    static const char *const bad[] = {
        "",
        "-",
        "+",
        ".",
        "k",
        "1.5",
        "1x",
        "1 k",
        " 1",
        "1 ",
        "1kk",
        "1K",
        "1ki",
        "0x10",
        "1e3",
        "--1",
        "1.2.3k",
        "1.0005k",
        "nan",
        "1,000",
        "9223372036854775808",
        "-9223372036854775809",
        "9223372036854775807k",
        "99999999999999999999999999999999999999999999999999",
        "0.00000000000000000000000000000000000001k",
    };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        int64_t v = -1;
        CHECK_OK(num_i64(good[i].text, "n", INT64_MIN, INT64_MAX, &v));
        CHECK_EQ(v, good[i].want);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        int64_t v = 42;
        CHECK_ERR(num_i64(bad[i], "n", INT64_MIN, INT64_MAX, &v), GPT_INPUT, bad[i]);
        CHECK_EQ(v, 42);
    }
    int64_t v;
    CHECK_OK(num_i64("8", "--ranks", 1, 8, &v));
    CHECK_ERR(num_i64("9", "--ranks", 1, 8, &v), GPT_INPUT,
              "--ranks: expected a whole number from 1 to 8, found '9'");
    CHECK_ERR(num_i64("0", "--ranks", 1, INT64_MAX, &v), GPT_INPUT, "of at least 1, found '0'");
}

static void test_f64(void)
{
    static const struct {
        const char *text;
        double want;
    } good[] = {
        { "0", 0 },    { "-1.5", -1.5 }, { "1e-3", 1e-3 }, { "2.5k", 2500 }, { "1Ki", 1024 },
        { ".5", 0.5 }, { "1e3M", 1e9 },  { "0.1", 0.1 },   { "+4", 4 },
    };
    static const char *const bad[] = {
        "",   "x",  "nan",  "inf", "-inf", "infinity", "1e999", "0x1p3",
        " 1", "1 ", "1..2", "1e",  "1kk",  "1e308k",   ".",     "-",
    };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        double v = -1;
        CHECK_OK(num_f64(good[i].text, "n", -INFINITY, INFINITY, &v));
        CHECK(v == good[i].want);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        double v = 42;
        CHECK_ERR(num_f64(bad[i], "n", -INFINITY, INFINITY, &v), GPT_INPUT, bad[i]);
        CHECK(v == 42);
    }
    double v;
    CHECK_ERR(num_f64("1.5", "--beta", 0, 1, &v), GPT_INPUT,
              "--beta: expected a number from 0 to 1, found '1.5'");
    CHECK_ERR(num_f64("1e308", "lr", -INFINITY, 1e300, &v), GPT_INPUT, "lr");
    CHECK_ERR(num_f64("-1", "lr", 0, INFINITY, &v), GPT_INPUT,
              "lr: expected a number of at least 0, found '-1'");
}

/* --- file --- */

static void check_content(const char *path, const char *want)
{
    char *data = NULL;
    size_t n = 0;
    CHECK_OK(file_read(path, 0, &data, &n));
    CHECK_STR(data, want);
    CHECK_EQ(n, strlen(want));
    free(data);
}

static int files_in_dir(void)
{
    char cmd[PATH_MAX];
    snprintf(cmd, sizeof cmd, "ls -A %s | wc -l", scratch(""));
    FILE *p = popen(cmd, "r");
    int n = -1;
    CHECK(p && fscanf(p, "%d", &n) == 1);
    pclose(p);
    return n;
}

static void test_output(void)
{
    struct output o, o2;
    const char *path = scratch("a");
    /* Nothing at the target before the commit; all of it after. */
    CHECK_OK(output_open(&o, path, false));
    fprintf(o.f, "new\n");
    CHECK(access(path, F_OK));
    CHECK_OK(output_commit(&o));
    check_content(path, "new\n");
    output_abort(&o); /* idempotent after a commit */
    check_content(path, "new\n");
    struct stat st;
    mode_t mask = umask(0);
    umask(mask);
    CHECK(!stat(path, &st) && (st.st_mode & 0777) == (0666 & ~mask));

    CHECK_ERR(output_open(&o, path, false), GPT_SYSTEM, "it exists");
    /* Two at a time; the aborted one leaves no trace. */
    CHECK_OK(output_open(&o, path, true));
    CHECK_OK(output_open(&o2, path, true));
    fprintf(o.f, "first\n");
    fprintf(o2.f, "second\n");
    check_content(path, "new\n");
    output_abort(&o);
    output_abort(&o);
    CHECK_OK(output_commit(&o2));
    check_content(path, "second\n");
    CHECK_EQ(files_in_dir(), 1);

    /* A file that appears meanwhile is not lost either. */
    const char *late = scratch("late");
    CHECK_OK(output_open(&o, late, false));
    spill(late, "theirs\n", 7);
    CHECK_ERR(output_commit(&o), GPT_SYSTEM, "File exists");
    check_content(late, "theirs\n");
    CHECK_EQ(files_in_dir(), 2);
    unlink(late);

    CHECK_ERR(output_open(&o, scratch(""), true), GPT_SYSTEM, "is a directory");
    CHECK_ERR(output_open(&o, scratch("no/such/dir"), true), GPT_SYSTEM, "No such file");
    CHECK_EQ(files_in_dir(), 1);

    /* A link keeps pointing where it did. */
    const char *link = scratch("link");
    CHECK(!symlink("a", link));
    CHECK_OK(output_open(&o, link, true));
    fprintf(o.f, "through\n");
    CHECK_OK(output_commit(&o));
    CHECK(!lstat(link, &st) && S_ISLNK(st.st_mode));
    check_content(path, "through\n");
    unlink(link);

    /* A full device: the write fails, and the device is no file to be replaced. */
    CHECK_OK(output_open(&o, "/dev/full", false));
    fprintf(o.f, "x");
    CHECK_ERR(output_commit(&o), GPT_SYSTEM, "No space left on device");
    CHECK(!stat("/dev/full", &st) && S_ISCHR(st.st_mode));
    unlink(path);
}

static void test_files(void)
{
    char *data = NULL;
    size_t n = 0;
    CHECK_ERR(file_read(scratch("none"), 0, &data, &n), GPT_SYSTEM, "cannot open");
    CHECK_ERR(file_read(scratch(""), 0, &data, &n), GPT_SYSTEM, "cannot read");
    const char *path = scratch("ten");
    spill(path, "0123456789", 10);
    CHECK_OK(file_read(path, 10, &data, &n));
    CHECK_EQ(n, 10);
    free(data);
    CHECK_ERR(file_read(path, 9, &data, &n), GPT_INPUT, "at most 9 bytes");
    CHECK_ERR(file_mkdirs(scratch("ten/x")), GPT_SYSTEM, "ten");
    unlink(path);
    spill(path, "", 0);
    CHECK_OK(file_read(path, 0, &data, &n));
    CHECK(n == 0 && data[0] == '\0');
    free(data);
    unlink(path);

    CHECK_OK(file_mkdirs(scratch("p/q//r/")));
    CHECK(!access(scratch("p/q/r"), F_OK));
    CHECK_OK(file_mkdirs(scratch("p/q/r"))); /* again */
    CHECK_OK(file_sync_dir(scratch("p/q/r")));
    CHECK_ERR(file_sync_dir(scratch("p/x")), GPT_SYSTEM, "p/x");
    rmdir(scratch("p/q/r"));
    rmdir(scratch("p/q"));
    rmdir(scratch("p"));
    CHECK_OK(file_mkdirs("/"));
    CHECK_EQ(files_in_dir(), 0);

    static const char *const joins[][3] = {
        { "a", "b", "a/b" }, { "a/", "b", "a/b" }, { "/", "b", "/b" },
        { "", "b", "b" },    { ".", "b", "./b" },
    };
    for (size_t i = 0; i < sizeof joins / sizeof joins[0]; i++) {
        char *p = path_join(joins[i][0], joins[i][1]);
        CHECK_STR(p, joins[i][2]);
        free(p);
    }
}

/* --- progress, version --- */

/* A process that has two files in a new directory, and another directory that is kept, ends by a
 * signal: the first is gone. */
static void test_temporary_dir(int sig)
{
    struct temporary_dir gone, kept;
    char *first = scratch("gone"), *second = scratch("kept");
    int status = 0;
    pid_t child = fork();
    if (!child) {
        signal(sig, SIG_DFL);
        output_cleanup_on_signal();
        int rc = temporary_dir_make(&gone, first) || temporary_dir_make(&kept, second);
        temporary_dir_keep(&kept);
        for (int i = 0; i < 300 && !rc; i++) { /* more than one read of the directory gives */
            char name[64];
            snprintf(name, sizeof name, "gone/a-file-with-a-long-name-%d", i);
            FILE *f = fopen(scratch(name), "w");
            rc = !f || fclose(f);
        }
        if (!rc)
            raise(sig);
        _exit(1);
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == sig);
    CHECK(access(first, F_OK) && errno == ENOENT);
    CHECK(!rmdir(second));
    CHECK_ERR(temporary_dir_make(&gone, scratch("none/x")), GPT_SYSTEM, "cannot make directory");
    CHECK_ERR(file_mkdirs("-"), GPT_USAGE, "'-': expected a directory");
    CHECK_OK(temporary_dir_new(&gone)); /* which is in no other one's way */
    CHECK_OK(temporary_dir_new(&kept));
    temporary_dir_remove(&kept);
    temporary_dir_remove(&gone);
}

/* The address sanitizer sees an array that is too short. */
static void test_grow(void)
{
    int *one = NULL;
    char *to = NULL;
    size_t room = 0;
    for (int n = 0; n < 1000; n++) {
        CHECK(!grow_one(&one, n, sizeof *one));
        one[n] = n;
    }
    for (int n = 0; n < 1000; n++)
        CHECK(one[n] == n);
    CHECK(!grow_to(&to, &room, 0, 1) && !to && !room);
    CHECK(!grow_to(&to, &room, 5, 1) && room == 5);
    strcpy(to, "four");
    CHECK(!grow_to(&to, &room, 6, 1) && room == 10);
    CHECK(!grow_to(&to, &room, 100, 1) && room == 100);
    CHECK_STR(to, "four");
    CHECK_ERR(grow_to(&to, &room, SIZE_MAX / 2, 4), GPT_SYSTEM, "out of memory");
    CHECK(room == 100 && !strcmp(to, "four"));
    free(one);
    free(to);
}

static void test_progress(void)
{
    static const struct {
        double s;
        const char *want;
    } durations[] = {
        { 0, "0:00" },       { 59.6, "1:00" },      { 187, "3:07" },
        { 3599.4, "59:59" }, { 3599.6, "1:00:00" }, { 3765, "1:02:45" },
        { -1, "-:--" },      { NAN, "-:--" },       { INFINITY, "-:--" },
    };
    char buf[16];
    for (size_t i = 0; i < sizeof durations / sizeof durations[0]; i++)
        CHECK_STR(format_duration(buf, durations[i].s), durations[i].want);
    double t = now_seconds();
    usleep(2000);
    CHECK(now_seconds() - t >= 0.002);
    CHECK(!strncmp(version_text(), GPT_VERSION "\n", strlen(GPT_VERSION) + 1));
    CHECK(strstr(version_text(), "zstd: 1."));
}

static void test_suggest(void)
{
    CHECK_EQ(suggest_edits("", "abc"), 3);
    CHECK_EQ(suggest_edits("hedas", "heads"), 1);
    CHECK_EQ(suggest_edits("kitten", "sitting"), 3);
    CHECK_EQ(suggest_edits("heads", "heads"), 0);
    static const char *const words[] = { "head_dim", "heads", "lanes" };
    static const char *const pairs[][2] = {
        { "head", "heads" }, { "haeds", "heads" }, { "headdim", "head_dim" }, { "lane", "lanes" },
        { "x", NULL },       { "", NULL },         { "widths", NULL },
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        struct suggest s = suggest_for(pairs[i][0]);
        for (int k = 0; k < 3; k++)
            suggest_try(&s, words[k]);
        CHECK_STR(s.best ? s.best : "", pairs[i][1] ? pairs[i][1] : "");
        CHECK_EQ(!*suggest_text(&s), !pairs[i][1]);
    }
}

/* -- memory ---- */

/* The folder has proc/ and sys/, as a machine's root; only what is written there counts. */
static void put(const char *root, const char *name, const char *text)
{
    char path[500];
    snprintf(path, sizeof path, "%s/%s", root, name);
    *strrchr(path, '/') = '\0';
    CHECK_OK(file_mkdirs(path));
    snprintf(path, sizeof path, "%s/%s", root, name);
    spill(path, text, strlen(text));
}

static void test_memory(void)
{
    const char *root = strdup(scratch("machine"));
    CHECK(isinf(memory_available(root)));
    put(root, "proc/meminfo", "MemTotal: 9000 kB\nMemFree:  10 kB\nMemAvailable:    8000 kB\n");
    CHECK(memory_available(root) == 8000 * 1024);
    /* version 2, the limit in the group above; of its use some is cache that can be dropped */
    put(root, "proc/self/cgroup", "0::/a/b\n");
    put(root, "sys/fs/cgroup/a/b/memory.max", "max\n");
    put(root, "sys/fs/cgroup/a/b/memory.current", "1000\n");
    CHECK(memory_available(root) == 8000 * 1024);
    put(root, "sys/fs/cgroup/a/memory.max", "5000000\n");
    put(root, "sys/fs/cgroup/a/memory.current", "2000000\n");
    CHECK(memory_available(root) == 3000000);
    put(root, "sys/fs/cgroup/a/memory.stat", "anon 5\ninactive_file 500000\nactive_file 7\n");
    CHECK(memory_available(root) == 3500000);
    /* version 1, in a container: the group's own folder is not mounted */
    put(root, "proc/self/cgroup", "9:cpuset,cpu:/c\n4:memory:/c/d\n0::/\n");
    put(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", "4000000\n");
    put(root, "sys/fs/cgroup/memory/memory.usage_in_bytes", "4500000\n");
    CHECK(memory_available(root) == 0);
    put(root, "sys/fs/cgroup/memory/memory.stat", "inactive_file 3\ntotal_inactive_file 600000\n");
    CHECK(memory_available(root) == 100000);
    CHECK(memory_available("") > 0);
    free((char *)root);
}

/* A mark at the begin and a CR before a LF are of no line; any other stays. */
static void test_lines(void)
{
    static const struct {
        const char *from, *to;
    } cases[] = {
        { "", "" },
        { "a\nb", "a\nb" },
        { "\xef\xbb\xbf"
          "a\r\nb\rc\r\n\r",
          "a\nb\rc\n\r" },
        { "\r\r\n\n\r\n", "\r\n\n\n" },
        { "a\xef\xbb\xbf\r\n", "a\xef\xbb\xbf\n" },
        { "\xef\xbb", "\xef\xbb" },
    };
    char *data;
    size_t n;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        spill(scratch("lines"), cases[i].from, strlen(cases[i].from));
        if (CHECK_OK(file_read_text(scratch("lines"), 100, &data, &n))) {
            CHECK_EQ(n, strlen(cases[i].to));
            CHECK_STR(data, cases[i].to);
            free(data);
        }
    }
    static const char *const wide[] = { "\xff\xfe"
                                        "a",
                                        "\xfe\xff"
                                        "\0a" };
    for (int i = 0; i < 2; i++) {
        spill(scratch("lines"), wide[i], 4);
        CHECK_ERR(file_read_text(scratch("lines"), 100, &data, &n), GPT_INPUT,
                  "lines': expected UTF-8, found UTF-16 or UTF-32: 'iconv -f UTF-16 -t UTF-8'");
    }
}

int main(void)
{
    test_suggest();
    test_err();
    test_sha256();
    test_xxh();
    test_philox();
    test_normals();
    test_many();
    test_distributions();
    test_i64();
    test_f64();
    test_output();
    test_files();
    test_temporary_dir(SIGTERM);
    test_temporary_dir(SIGHUP);
    test_grow();
    test_progress();
    test_memory();
    test_lines();
    return check_done();
}
