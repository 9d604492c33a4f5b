/* tokshard_memory_test.c - gpt-tokshard's memory does not grow with its input, and
 * stays below --memory: lines, one text without a boundary, one line without an
 * end, shuffled documents. What is measured is the largest resident set of the
 * program, of which libraries and stacks take a few MiB. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum kind { LINES, ONE_WORD, ONE_LINE, SPACES, LONG_LINES };

static void put(int fd, const char *s, size_t n)
{
    while (n) {
        ssize_t k = write(fd, s, n);

        if (k <= 0)
            return;
        s += k;
        n -= (size_t)k;
    }
}

/* About n bytes of input of a kind. */
static void feed(int fd, enum kind kind, size_t n)
{
    static char block[1 << 20];
    size_t at = 0;

    for (unsigned x = 1; at < sizeof block; at++) {
        x = x * 1664525 + 1013904223;
        block[at] = kind == ONE_WORD ? 'a' : kind == SPACES ? ' ' : "etaoin shrdlu"[(x >> 20) % 13];
        if (kind == LINES && at % 997 == 0 && at + 20 < sizeof block) {
            memcpy(block + at, "\"}\n{\"text\":\"", 12);
            at += 11;
        }
    }
    if (kind == LONG_LINES)
        memcpy(block, "\"}\n{\"text\":\"", 12);
    if (kind == LINES || kind == ONE_LINE || kind == LONG_LINES)
        put(fd, "{\"text\":\"", 9);
    for (at = 0; at < n; at += sizeof block)
        put(fd, block, sizeof block);
    if (kind == LINES || kind == ONE_LINE || kind == LONG_LINES)
        put(fd, "\"}\n", 3);
}

/* Runs it on a pipe; MiB of its largest resident set, or -1. */
static long run(enum kind kind, size_t bytes, const char *memory, const char *more)
{
    const char *bin = getenv("GPT_BIN");
    char program[4096];
    struct rusage use;
    int fd[2], status;
    pid_t child, feeder;

    snprintf(program, sizeof program, "%s/gpt-tokshard", bin);
    if (pipe2(fd, O_CLOEXEC) || (child = fork()) < 0)
        return -1;
    if (!child) {
        dup2(fd[0], 0);
        dup2(open("/dev/null", O_WRONLY), 1);
        execl(program, program, "-q", "--tokenizer", getenv("GPT_TEST_TOKENIZER"), "--format",
              kind == ONE_WORD || kind == SPACES ? "text" : "jsonl", "--stats", "-j", "2",
              "--memory", memory, "-", more, NULL);
        _exit(127);
    }
    if (!(feeder = fork())) {
        close(fd[0]);
        feed(fd[1], kind, bytes);
        _exit(0);
    }
    close(fd[0]);
    close(fd[1]);
    waitpid(feeder, NULL, 0);
    if (wait4(child, &status, 0, &use) != child || !WIFEXITED(status) || WEXITSTATUS(status))
        return -1;
    return use.ru_maxrss / 1024;
}

int main(void)
{
    static const char *const name[] = { "lines", "one word", "one line", "spaces", "long lines" };
    const char *bin = getenv("GPT_BIN");
    char program[4096];

    if (!bin)
        return check_skip("GPT_BIN");
    snprintf(program, sizeof program, "echo a | %s/gpt-tokshard -q --stats - >/dev/null 2>&1", bin);
    setenv("GPT_TEST_TOKENIZER", system(program) ? "byte" : "gpt2", 1);
    printf("tokenizer: %s\n", getenv("GPT_TEST_TOKENIZER"));
    for (int k = LINES; k <= LONG_LINES; k++) {
        long small = run((enum kind)k, 8u << 20, "200Mi", NULL);
        long large = run((enum kind)k, 24u << 20, "200Mi", NULL);

        printf("%-10s %ld MiB of 8, %ld MiB of 24\n", name[k], small, large);
        CHECK(small > 0 && large > 0);
        CHECK(large <= 200);
        /* All buffers are as large as they get after a few MiB; the rest is the
         * allocator's. */
        CHECK(large <= small + 16);
    }
    CHECK(run(LINES, 16u << 20, "280Mi", "--shuffle=1") > 0);
    long kept = run(ONE_LINE, 24u << 20, "200Mi", "--skip-bad"); /* its text is in a file */
    CHECK(kept > 0 && kept <= 200);
    CHECK(run(LINES, 1u << 20, "20Mi", NULL) < 0); /* less than one thread takes: refused */
    return check_done();
}
