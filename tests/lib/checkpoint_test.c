/* Checkpoints: what is written comes back, at any number of ranks; what was
 * interrupted is never taken for complete, and nothing complete is lost. */
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/file.h"
#include "base/rng.h"
#include "check.h"
#include "ckpt_fixture.h"

static void test_round_trip(void)
{
    static const int worlds[] = { 8, 4, 2, 1, 8 };
    struct model_state a = new_state(1), b = new_state(2);
    char *root = strdup(scratch("round-trip"));
    for (int k = 0; k < 5; k++) {
        int64_t step = 10 + k;
        char *dir = ckpt_path(root, step);
        CHECK_OK(save_state(root, &a, step, worlds[k], k % 2));
        for (int r = 1; r <= 8; r *= 2) {
            CHECK_OK(load_state(dir, &b, r, r % 3));
            CHECK(same_state(&a, &b));
        }
        free(dir);
        for (int i = 0; i < CKPT_TENSORS; i++) /* the next world size writes what was read */
            memcpy(a.data[i], b.data[i], whole_bytes(i));
    }
    free(root);
    free_state(&a);
    free_state(&b);
}

/* --- what was interrupted, what cannot be written --- */

static void check_latest(const char *top, int64_t step, const struct model_state *s)
{
    struct model_state b = new_state(9);
    char *dir, *expected = ckpt_path(top, step);
    CHECK_OK(ckpt_latest(top, &dir));
    CHECK_STR(dir, expected);
    CHECK_OK(load_state(dir, &b, 1, 1));
    CHECK(same_state(s, &b));
    free(dir);
    free(expected);
    free_state(&b);
}

/* Stopped between any two calls: the older one stays the newest, and the next save cleans up. */
static void test_stages(void)
{
    struct model_state a = new_state(5), b = new_state(6);
    struct ckpt_info info = info_of(20, 2);
    struct ckpt_tensor t[CKPT_TENSORS];
    char *top = strdup(scratch("stages")), *dir;
    CHECK_OK(file_mkdirs(top));
    CHECK_ERR(ckpt_latest(top, &dir), GPT_NO, "holds no complete checkpoint");
    CHECK_OK(save_state(top, &a, 10, 2, 1));
    for (int stage = 0; stage < 4; stage++) {
        CHECK_OK(ckpt_begin(top, 20));
        for (int r = 0; r < stage && r < 2; r++)
            CHECK_OK(ckpt_write_rank(top, 20, r, t, rank_tensors(&b, r, 2, t), 1));
        if (stage == 3) /* all but the rename */
            spill(in(in(top, ".step-000020.tmp"), "MANIFEST"), (unsigned char *)"gpt", 3);
        check_latest(top, 10, &a);
        CHECK(!access(in(top, ".step-000020.tmp"), F_OK));
    }
    CHECK(!mkdir(in(top, "step-000030"), 0777)); /* made by hand, no MANIFEST */
    CHECK(!mkdir(in(top, "step-40"), 0777));
    check_latest(top, 10, &a);
    CHECK_OK(ckpt_begin(top, 20));
    CHECK_OK(ckpt_write_rank(top, 20, 0, t, rank_tensors(&b, 0, 2, t), 1));
    CHECK_ERR(ckpt_commit(top, &info), GPT_SYSTEM, "rank1.part"); /* a rank is missing */
    CHECK(access(in(top, ".step-000020.tmp"), F_OK));
    CHECK_OK(ckpt_begin(top, 20));
    for (int r = 0; r < 2; r++) /* rank 1 writes rank 0's share again */
        CHECK_OK(ckpt_write_rank(top, 20, r, t, rank_tensors(&b, 0, 2, t), 1));
    CHECK_ERR(ckpt_commit(top, &info), GPT_INPUT, "a piece from unit 4 on, found one from 0");
    check_latest(top, 10, &a);
    CHECK_OK(save_state(top, &a, 20, 2, 1));
    CHECK_OK(save_state(top, &b, 20, 4, 1)); /* the same step again replaces it */
    check_latest(top, 20, &b);
    CHECK(!symlink("MANIFEST", in(in(top, "step-000030"), "MANIFEST"))); /* it cannot be seen */
    CHECK_ERR(ckpt_latest(top, &dir), GPT_SYSTEM, "cannot look for");
    free(top);
    free_state(&a);
    free_state(&b);
}

/* A writer killed at any moment: the newest checkpoint is whole and of its step. */
static void test_kill(void)
{
    char *top = strdup(scratch("kill"));
    struct rng r = rng_make((uint64_t)getpid(), 7);
    struct model_state zero = new_state(100);
    int found = 0;
    CHECK_OK(save_state(top, &zero, 0, 2, 1));
    for (int k = 0; k < 40; k++) {
        pid_t child = fork();
        if (child == 0) {
            for (int64_t step = 1;; step++) {
                struct model_state s = new_state(100 + (uint64_t)step % 7);
                if (save_state(top, &s, step % 7, 2, 1))
                    _exit(1);
                free_state(&s);
            }
        }
        usleep((useconds_t)rng_below(&r, (uint64_t)k, 12000));
        kill(child, SIGKILL);
        int status;
        waitpid(child, &status, 0);
        CHECK(WIFSIGNALED(status));
        int64_t *steps;
        int n;
        CHECK_OK(ckpt_list(top, &steps, &n));
        CHECK(n >= 1);
        for (int i = 0; i < n; i++) {
            struct model_state want = new_state(100 + (uint64_t)steps[i]), got = new_state(9);
            char *dir = ckpt_path(top, steps[i]);
            CHECK_OK(load_state(dir, &got, 1, 1));
            CHECK(same_state(&want, &got));
            found++;
            free(dir);
            free_state(&want);
            free_state(&got);
        }
        free(steps);
    }
    CHECK(found >= 40);
    free(top);
    free_state(&zero);
}

/* No room: GPT_SYSTEM, the temporary goes, the older one stays. A limit on the
 * size of files stands for the full disk. */
static void test_no_room(void)
{
    struct model_state a = new_state(5);
    char *top = strdup(scratch("full"));
    CHECK_OK(save_state(top, &a, 10, 2, 0));
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        long before = check_failures();
        for (rlim_t limit = 0; limit < 2400; limit += 300) {
            struct rlimit l = { limit, RLIM_INFINITY };
            signal(SIGXFSZ, SIG_IGN);
            setrlimit(RLIMIT_FSIZE, &l);
            int rc = save_state(top, &a, 20, 2, 0);
            char said[512];
            snprintf(said, sizeof said, "%s", err_message());
            ckpt_abort(top, 20);
            l.rlim_cur = RLIM_INFINITY;
            setrlimit(RLIMIT_FSIZE, &l);
            CHECK_EQ(rc, GPT_SYSTEM);
            CHECK(strstr(said, "File too large"));
            CHECK_STR(err_message(), said);
            CHECK(access(in(top, ".step-000020.tmp"), F_OK));
            check_latest(top, 10, &a);
        }
        fflush(stdout);
        _exit(check_failures() != before);
    }
    int status;
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK_ERR(ckpt_begin("/dev/null/x", 1), GPT_SYSTEM, "/dev/null");
    free(top);
    free_state(&a);
}

/* Two programs, one folder: the second is refused, and neither harms the other's files. */
static void test_two_writers(void)
{
    struct model_state a = new_state(5);
    char *top = strdup(scratch("two-writers")), c = 0;
    int to[2], from[2], status;
    CHECK(!pipe(to) && !pipe(from));
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) { /* begins, waits, saves */
        struct ckpt_tensor t[CKPT_TENSORS];
        struct ckpt_info info = info_of(10, 1);
        int rc = ckpt_begin(top, 10);
        if (write(from[1], &c, 1) != 1 || read(to[0], &c, 1) != 1)
            _exit(2);
        rc = rc ? rc : ckpt_write_rank(top, 10, 0, t, rank_tensors(&a, 0, 1, t), 1);
        _exit(rc || ckpt_commit(top, &info));
    }
    CHECK(read(from[0], &c, 1) == 1);
    CHECK_ERR(ckpt_begin(top, 10), GPT_SYSTEM, "two-writers' is being written by process");
    ckpt_abort(top, 10);
    CHECK_ERR(ckpt_begin(top, 20), GPT_SYSTEM, "two-writers'");
    CHECK(write(to[1], &c, 1) == 1);
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    check_latest(top, 10, &a);
    CHECK_OK(save_state(top, &a, 20, 2, 1));
    check_latest(top, 20, &a);
    for (int i = 0; i < 2; i++)
        close(to[i]), close(from[i]);
    free(top);
    free_state(&a);
}

/* Links under our names: what they lead to stays. */
static void test_links(void)
{
    struct model_state a = new_state(5);
    char *top = strdup(scratch("links")), *other = strdup(scratch("other"));
    char *link = ckpt_path(top, 10), *target = ckpt_path(other, 10);
    CHECK_OK(save_state(other, &a, 10, 2, 1));
    CHECK_OK(file_mkdirs(top));
    CHECK(!symlink(target, link) && !symlink(target, in(top, ".step-000009.tmp")));
    check_latest(top, 10, &a);
    CHECK_OK(save_state(top, &a, 20, 2, 1));
    CHECK(access(in(top, ".step-000009.tmp"), F_OK));
    CHECK_ERR(save_state(top, &a, 10, 2, 1), GPT_SYSTEM, "Not a directory");
    CHECK_OK(ckpt_prune(top, 1, 0, -1, NULL));
    CHECK(access(link, F_OK));
    check_latest(other, 10, &a);
    free(link);
    free(target);
    free(top);
    free(other);
    free_state(&a);
}

/* --- the rest --- */

static void test_same_bytes(void)
{
    struct model_state a = new_state(8);
    char *one = strdup(scratch("one")), *two = strdup(scratch("two"));
    CHECK_OK(save_state(one, &a, 3, 4, 1));
    CHECK_OK(save_state(two, &a, 3, 4, 1));
    static const char *const names[] = { "MANIFEST", "recipe.txt", "rank0.safetensors.zst",
                                         "rank3.safetensors.zst" };
    for (int i = 0; i < 4; i++) {
        size_t n = 0, m = 1;
        unsigned char *x = slurp(in(in(one, "step-000003"), names[i]), &n);
        unsigned char *y = slurp(in(in(two, "step-000003"), names[i]), &m);
        CHECK(x && y && n == m && !memcmp(x, y, n));
        free(x);
        free(y);
    }
    free(one);
    free(two);
    free_state(&a);
}

static int want(const struct ckpt *c, const char *name, enum dtype t, int64_t begin, int64_t count,
                void *dst)
{
    return ckpt_load(c, &(struct ckpt_want){ name, t, begin, count, dst }, 1, 1);
}

static void test_wants(void)
{
    struct model_state a = new_state(8);
    struct ckpt *c;
    unsigned char dst[4096];
    int64_t v;
    char *top = strdup(scratch("wants"));
    CHECK_OK(save_state(top, &a, 3, 4, 1));
    char *dir = ckpt_path(top, 3);
    CHECK_OK(ckpt_open(&c, dir));
    CHECK_ERR(want(c, "mlp.weight", DT_BF16, 0, 1, dst), GPT_INPUT,
              "expected a tensor 'mlp.weight', found none");
    CHECK_ERR(want(c, "attn.weight", DT_F32, 0, 1, dst), GPT_INPUT, "expected f32, found bf16");
    CHECK_ERR(want(c, "attn.weight", DT_BF16, 6, 3, dst), GPT_INPUT,
              "expected units 6:9, found 0:8");
    for (int64_t begin = 0; begin < 24; begin += 5) /* slices across pieces, 6 rows each */
        for (int64_t count = 0; count <= 24 - begin; count += 3) {
            memset(dst, 0xee, sizeof dst);
            CHECK_OK(want(c, "embed.exp_avg", DT_F32, begin, count, dst));
            CHECK(!memcmp(dst, a.data[5] + 20 * begin, 20 * (size_t)count));
            CHECK(dst[20 * count] == 0xee);
        }
    CHECK_STR(ckpt_state(c, "note"), "two words");
    CHECK_STR(ckpt_state(c, "empty"), "");
    CHECK(!ckpt_state(c, "absent"));
    CHECK_OK(ckpt_state_i64(c, "seed", &v));
    CHECK_EQ(v, 1234);
    CHECK_ERR(ckpt_state_i64(c, "note", &v), GPT_INPUT,
              "a whole number from 0 on, found 'two words'");
    CHECK_ERR(ckpt_state_i64(c, "absent", &v), GPT_INPUT, "expected a line 'state absent'");
    const struct ckpt_info *info = ckpt_info(c);
    CHECK_EQ(info->step, 3);
    CHECK_EQ(info->tokens, 3000);
    CHECK_EQ(info->ranks, 4);
    CHECK_STR(info->tool, "checkpoint_test 1");
    CHECK_STR(info->recipe, "[model]\nlayers = 2\n");
    ckpt_close(c);
    free(dir);
    free(top);
    free_state(&a);
}

static void test_prune(void)
{
    struct model_state a = new_state(8);
    char *top = strdup(scratch("prune"));
    int64_t *steps;
    int n, removed;
    for (int64_t step = 0; step <= 1000; step += 100)
        CHECK_OK(save_state(top, &a, step, 1, 1));
    CHECK_OK(save_state(top, &a, 1234567, 1, 1));
    CHECK(!mkdir(in(top, "step-000050"), 0777)); /* incomplete: not ours to remove */
    CHECK_ERR(ckpt_prune(top, 0, 0, -1, &removed), GPT_USAGE, "at least 1, found 0");
    CHECK_OK(ckpt_prune(top, 2, 500, -1, &removed));
    CHECK_EQ(removed, 8);
    CHECK_OK(ckpt_list(top, &steps, &n));
    CHECK_EQ(n, 4);
    CHECK(n == 4 && steps[0] == 0 && steps[1] == 500 && steps[2] == 1000 && steps[3] == 1234567);
    CHECK(!access(in(top, "step-000050"), F_OK));
    free(steps);
    CHECK_OK(ckpt_prune(top, 1, 0, 500, &removed)); /* those that were there stay */
    CHECK_EQ(removed, 1);
    CHECK_OK(ckpt_list(top, &steps, &n));
    CHECK(n == 3 && steps[0] == 0 && steps[1] == 500 && steps[2] == 1234567);
    free(steps);
    CHECK_OK(ckpt_prune(top, 1, 0, -1, NULL));
    check_latest(top, 1234567, &a);
    free(top);
    free_state(&a);
}

int main(void)
{
    test_round_trip();
    test_same_bytes();
    test_wants();
    test_prune();
    test_stages();
    test_kill();
    test_no_room();
    test_two_writers();
    test_links();
    return check_done();
}
