/* bench_tokshard.c - speed of the tokenizer, beside tiktoken's on the same text.
 * What runs on one thread is timed by its processor time, which other programs
 * on the machine do not lengthen much; tiktoken by that or the clock, the less.
 *
 *     build/tests/bench_tokshard [FILE.jsonl[.zst]]     (our man pages and headers)
 *
 * 1. bpe_encode on one thread: median, fastest and slowest of the runs; copying
 *    the text is the floor.
 * 2. tiktoken (the npm package) on one thread, the best of three, where it can be
 *    had: tests/cmd/npm-folder tiktoken@1.0.22.
 * 3. The whole of gpt-tokshard's work but for the writing - read, parse, encode,
 *    cut - with 1 and 2 threads, and more where there are processors, on the text
 *    many times over.
 * 4. Worst cases, a mebibyte each, in times of what a byte of the text takes.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/progress.h"
#include "tokenize/bpe.h"
#include "tokenize/encode.h"
#include "tokenize/tokjob.h"
#include "scratch.h"

#define RUNS 15
#define BIG_BYTES (400u << 20)

static struct vocab *vocab;
static struct bpe *bpe;
static char *text; /* the documents one after the other */
static size_t *begin; /* [documents + 1] */
static size_t documents, bytes;
static uint16_t *tokens;

static void die(const char *what)
{
    fprintf(stderr, "bench_tokshard: %s: %s\n", what, err_message());
    exit(4);
}

/* The texts of all documents, through the readers that the program has. */
static void load(const char **paths, int n)
{
    struct source_config c = { .path = paths, .paths = n, .extensions = "1,5,7,h" };
    struct vocab *plain;
    struct encode_config e = { .field = "text" };
    struct encoder *enc;
    struct source *s;
    struct unit u = { 0 };
    size_t room = 0, doc_room = 0;

    if (vocab_bytes(&plain))
        die("bytes");
    e.vocab = plain;
    if (encoder_new(&enc, &e) || source_open(&s, &c))
        die("input");
    for (;;) {
        if (source_next(s, &u) || (!u.end && encode_unit(enc, &u)))
            die("input");
        if (u.end)
            break;
        if (bytes + u.tokens + BPE_PAD > room)
            text = realloc(text, room = 2 * (bytes + u.tokens) + (1u << 20));
        for (int d = 0; d < u.docs; d++) {
            const struct unit_doc *k = &u.doc[d];

            if (documents + 2 > doc_room)
                begin = realloc(begin, (doc_room = 2 * doc_room + 1024) * sizeof *begin);
            if (k->begins)
                begin[documents++] = bytes;
            for (size_t t = k->begins; t < k->tokens; t++)
                text[bytes++] = (char)u.token[k->token + t];
        }
    }
    begin[documents] = bytes;
    memset(text + bytes, 0, BPE_PAD);
    source_close(s);
    unit_release(&u);
    encoder_free(enc);
    vocab_free(plain);
}

static double cpu_seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static size_t encode_all(void)
{
    size_t n = 0;

    for (size_t i = 0; i < documents; i++)
        n += bpe_encode(bpe, text + begin[i], begin[i + 1] - begin[i], false, tokens + n);
    return n;
}

static double bench_encode(void)
{
    double t[RUNS], copy = 1e9;
    size_t n = 0;

    for (int i = 0; i < RUNS; i++) {
        double start = cpu_seconds();

        n = encode_all();
        t[i] = cpu_seconds() - start;
    }
    for (int i = 0; i < RUNS; i++) {
        double start = cpu_seconds(), took;

        memcpy((char *)tokens, text, bytes);
        took = cpu_seconds() - start;
        copy = took < copy ? took : copy;
    }
    qsort(t, RUNS, sizeof *t, compare);
    printf("%zu documents, %.1f MB, %.3f tokens a byte\n", documents, (double)bytes / 1e6,
           (double)n / (double)bytes);
    printf("bpe_encode, 1 thread   %8.1f MB/s   (%.1f slowest, %.1f fastest of %d; copying %.0f)\n",
           (double)bytes / 1e6 / t[RUNS / 2], (double)bytes / 1e6 / t[RUNS - 1],
           (double)bytes / 1e6 / t[0], RUNS, (double)bytes / 1e6 / copy);
    return t[RUNS / 2];
}

/* The documents as .jsonl, `times` over. */
static void put_jsonl(FILE *f, int times)
{
    for (size_t i = 0; i < documents * (size_t)times; i++) {
        size_t d = i % documents;

        fputs("{\"text\":\"", f);
        for (size_t k = begin[d]; k < begin[d + 1]; k++) {
            unsigned char c = (unsigned char)text[k];

            if (c == '"' || c == '\\')
                fprintf(f, "\\%c", c);
            else if (c == '\n')
                fputs("\\n", f);
            else if (c < 0x20)
                fprintf(f, "\\u%04x", c);
            else
                putc(c, f);
        }
        fputs("\"}\n", f);
    }
}

static void bench_tiktoken(const char *jsonl, double ours)
{
    char command[1024];
    FILE *f;
    double b = 0, seconds = 0;

    snprintf(command, sizeof command,
             "F=$(tests/cmd/npm-folder tiktoken@1.0.22) || { echo \"tiktoken: $F\" >&2; exit 1; }; "
             "node tests/cmd/tiktoken.mjs \"$F\" speed < %s",
             jsonl);
    fflush(stdout);
    f = popen(command, "r");
    if (f && fscanf(f, "%lf %lf", &b, &seconds) == 2 && b > 0)
        printf("tiktoken, 1 thread     %8.1f MB/s   (best of 3): "
               "bpe_encode is %.1f times as fast\n",
               b / 1e6 / seconds, (double)bytes / ours / (b / seconds));
    else
        printf("tiktoken               not measured\n");
    if (f)
        pclose(f);
}

static double job(const char *path, int threads, int64_t *text_bytes)
{
    struct tokjob_config c = {
        .source = { .path = &path, .paths = 1 },
        .encode = { .vocab = vocab, .field = "text" },
        .prefix = "x",
        .arguments = "",
        .shard_tokens = 100000000,
        .threads = threads,
    };
    struct tokjob_result r;

    if (tokjob_run(&c, &r))
        die(path);
    *text_bytes = r.text_bytes;
    return r.seconds;
}

static void bench_job(const char *path)
{
    static const int threads[] = { 1, 2, 4, 8, 16 };
    double best[5] = { 1e9, 1e9, 1e9, 1e9, 1e9 };
    int64_t n = 0;
    int kinds = 2;

    while (kinds < 5 && threads[kinds] <= sysconf(_SC_NPROCESSORS_ONLN))
        kinds++;
    for (int run = 0; run < 5; run++)
        for (int i = 0; i < kinds; i++) {
            double t = job(path, threads[i], &n);

            best[i] = t < best[i] ? t : best[i];
        }
    for (int i = 0; i < kinds; i++)
        printf("whole job, %2d thread%s %8.1f MB/s, %5.2f times one   (best of 5, %.0f MB of text "
               "as .jsonl)\n",
               threads[i], i ? "s" : " ", (double)n / 1e6 / best[i], best[0] / best[i],
               (double)n / 1e6);
}

static void bench_worst(double byte)
{
    static const struct {
        const char *name, *unit;
    } worst[] = {
        { "a", "a" },
        { "^", "^" },
        { "spaces", " " },
        { "line breaks", "\n" },
        { "one emoji", "\xf0\x9f\x98\x80" },
        { "one CJK character", "\xe6\xbc\xa2" },
        { "CJK", NULL },
    };
    size_t n = 1u << 20;
    char *s = malloc(n + BPE_PAD);

    if (!s || bpe_reserve(bpe, n))
        die("memory");
    memset(s + n, 0, BPE_PAD);
    for (size_t k = 0; k < sizeof worst / sizeof *worst; k++) {
        size_t m = 0, len = 0, unit = worst[k].unit ? strlen(worst[k].unit) : 3;
        double best = 1e9;

        /* CJK without a space: 3,000 characters, the frequent ones more often. */
        for (unsigned x = 1; len + unit <= n; len += unit) {
            unsigned c;

            x = x * 1664525 + 1013904223;
            c = 0x4e00 + (x >> 20) * (x >> 20) / 5600;
            if (worst[k].unit)
                memcpy(s + len, worst[k].unit, unit);
            else
                memcpy(s + len,
                       (char[]){ (char)(0xe0 | c >> 12), (char)(0x80 | (c >> 6 & 63)),
                                 (char)(0x80 | (c & 63)) },
                       3);
        }
        for (int run = 0; run < 5; run++) {
            double start = cpu_seconds(), took;

            m = bpe_encode(bpe, s, len, false, tokens);
            took = cpu_seconds() - start;
            best = took < best ? took : best;
        }
        printf("1 MiB of %-18s %7.1f MB/s, %5.2f times the time of a byte above, "
               "%.2f tokens a byte\n",
               worst[k].name, (double)len / 1e6 / best, best / (double)len / byte,
               (double)m / (double)len);
    }
    free(s);
}

int main(int argc, char **argv)
{
    const char *ours[] = { "man", "lib" };
    char *small = scratch("small.jsonl"), *big = scratch("big.jsonl"), *path;
    double seconds;
    FILE *f;

    if (vocab_find(&path) || vocab_load(&vocab, path) || bpe_new(&bpe, vocab))
        die("vocabulary");
    if (argc > 1)
        load((const char **)argv + 1, argc - 1);
    else
        load(ours, 2);
    tokens = malloc(2 * ((bytes > (1u << 20) ? bytes : 1u << 20) + BPE_SLACK));
    if (!tokens || !bytes || bpe_reserve(bpe, bytes))
        die("start");
    seconds = bench_encode();
    f = fopen(small, "w");
    put_jsonl(f, 1);
    fclose(f);
    bench_tiktoken(small, seconds);
    f = fopen(big, "w");
    put_jsonl(f, (int)(BIG_BYTES / bytes) + 1);
    fclose(f);
    bench_job(big);
    bench_worst(seconds / (double)bytes);
    return 0;
}
