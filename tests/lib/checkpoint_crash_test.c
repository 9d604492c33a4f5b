/* Power cuts. The calls that change a file system are counted here, in place of the C library's; a
 * save is stopped before each of them in turn, and then the disk is made as bad as it may be: what
 * a file holds is lost unless it was synced, and names that were moved since their directory was
 * synced stand where they stood before, while removals have happened. Afterwards there must be a
 * newest checkpoint, either the one before or the one that was being written, whole. */
#include <dlfcn.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/file.h"
#include "check.h"
#include "ckpt_fixture.h"

/* --- the calls --- */

enum { STOPPED = 42, INODES = 4096, MOVES = 64 };
/* What a stopped process leaves to the one that looks at its disk. */
static struct log {
    long calls, stop; /* stop: the call that does not happen; 0: all do */
    bool no_exchange; /* the file system cannot exchange two names */
    long fail_rename; /* the rename that fails, counted from 1; 0: none */
    long renames;
    ino_t synced[INODES];
    int nsynced;
    struct {
        char from[256], to[256];
        bool exchange;
    } moved[MOVES];
    int nmoved; /* since the directory was synced */
} * seen;

static void call(void)
{
    if (seen && ++seen->calls == seen->stop)
        _exit(STOPPED);
}

#define REAL(name, ...) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))(__VA_ARGS__)

ssize_t write(int fd, const void *data, size_t n)
{
    if (fd > 2)
        call();
    return REAL(write, fd, data, n);
}

int mkdir(const char *path, mode_t mode)
{
    call();
    return REAL(mkdir, path, mode);
}

int unlink(const char *path)
{
    call();
    return REAL(unlink, path);
}

int unlinkat(int dir, const char *path, int flags)
{
    call();
    return REAL(unlinkat, dir, path, flags);
}

int rmdir(const char *path)
{
    call();
    return REAL(rmdir, path);
}

static void note_move(const char *from, const char *to, bool exchange)
{
    snprintf(seen->moved[seen->nmoved].from, 256, "%s", from);
    snprintf(seen->moved[seen->nmoved].to, 256, "%s", to);
    seen->moved[seen->nmoved++].exchange = exchange;
}

int rename(const char *from, const char *to)
{
    call();
    if (seen && ++seen->renames == seen->fail_rename) {
        errno = EIO;
        return -1;
    }
    int bad = REAL(rename, from, to);
    if (seen && !bad)
        note_move(from, to, false);
    return bad;
}

int renameat2(int a, const char *from, int b, const char *to, unsigned flags)
{
    call();
    if (seen && seen->no_exchange) {
        errno = EINVAL;
        return -1;
    }
    int bad = REAL(renameat2, a, from, b, to, flags);
    if (seen && !bad)
        note_move(from, to, true);
    return bad;
}

int fsync(int fd)
{
    struct stat st;
    call();
    if (seen && !fstat(fd, &st) && S_ISDIR(st.st_mode))
        seen->nmoved = 0;
    else if (seen)
        seen->synced[seen->nsynced++] = st.st_ino;
    return 0;
}

/* --- the disk afterwards --- */

static void lose(const char *path, const struct stat *st)
{
    for (int i = 0; i < seen->nsynced; i++)
        if (seen->synced[i] == st->st_ino)
            return;
    CHECK(!truncate(path, 0));
}

static void lose_below(const char *dir)
{
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));) {
        struct stat st;
        char *path = path_join(dir, e->d_name);
        if (*e->d_name != '.' || !strncmp(e->d_name, ".step", 5)) {
            CHECK(!stat(path, &st));
            if (S_ISDIR(st.st_mode))
                lose_below(path);
            else
                lose(path, &st);
        }
        free(path);
    }
    closedir(d);
}

static void undo_moves(void)
{
    for (int i = seen->nmoved; i-- > 0;)
        (void)!REAL(renameat2, AT_FDCWD, seen->moved[i].to, AT_FDCWD, seen->moved[i].from,
                    seen->moved[i].exchange ? RENAME_EXCHANGE : 0);
}

static void check_disk(const char *top, const struct model_state *before,
                       const struct model_state *after, long stop)
{
    struct model_state got = new_state(9);
    char *dir = NULL;
    int rc = ckpt_latest(top, &dir);
    if (!rc)
        rc = load_state(dir, &got, 1, 1);
    check_that(!rc && (same_state(&got, before) || same_state(&got, after)), __FILE__, __LINE__,
               "stopped before call %ld: code %d, %s", stop, rc, err_message());
    free(dir);
    free_state(&got);
}

static void remove_all(const char *top)
{
    char *command = NULL;
    CHECK(asprintf(&command, "rm -rf %s", top) > 0 && !system(command));
    free(command);
}

/* Saves `after` as step `step` in a folder that holds `before` as step 10, then keeps the last one;
 * stopped before call `stop`. False when it came to its end. */
static bool stopped_save(const char *top, const struct model_state *before,
                         const struct model_state *after, int64_t step, bool undo, long stop)
{
    int status;
    remove_all(top);
    seen->calls = seen->stop = seen->renames = seen->nsynced = seen->nmoved = 0;
    CHECK_OK(save_state(top, before, 10, 2, 1));
    seen->calls = seen->nmoved = 0;
    seen->stop = stop;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0)
        _exit(save_state(top, after, step, 2, 1) || ckpt_prune(top, 1, 0, -1, NULL));
    waitpid(child, &status, 0);
    seen->stop = 0;
    lose_below(top);
    if (undo)
        undo_moves();
    check_disk(top, before, after, stop);
    return WIFEXITED(status) && WEXITSTATUS(status) == STOPPED;
}

static void test_power_cut(void)
{
    struct model_state a = new_state(5), b = new_state(6);
    char *top = strdup(scratch("cut"));
    for (int kind = 0; kind < 6; kind++) { /* another step, the same, without exchange */
        seen->no_exchange = kind / 2 == 2;
        long stop = 1;
        while (stopped_save(top, &a, &b, kind / 2 ? 10 : 20, kind % 2, stop))
            stop++;
        CHECK(stop > 15);
    }
    seen->no_exchange = false;
    free(top);
    free_state(&a);
    free_state(&b);
}

/* Where names cannot be exchanged, the older checkpoint of the step steps aside first. When the new
 * one then cannot take its place, it comes back. */
static void test_second_rename_fails(void)
{
    struct model_state a = new_state(5), b = new_state(6);
    char *top = strdup(scratch("back"));
    CHECK_OK(save_state(top, &a, 10, 2, 1));
    seen->no_exchange = true;
    for (int i = 1; i <= 3; i++) {
        seen->renames = 0;
        seen->fail_rename = i;
        CHECK_ERR(save_state(top, &b, 10, 2, 1), GPT_SYSTEM, "Input/output error");
        seen->fail_rename = 0;
        check_disk(top, &a, &a, i);
    }
    seen->no_exchange = false;
    free(top);
    free_state(&a);
    free_state(&b);
}

int main(void)
{
    seen = mmap(NULL, sizeof *seen, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(seen != MAP_FAILED);
    test_power_cut();
    test_second_rename_fails();
    return check_done();
}
