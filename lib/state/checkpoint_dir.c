/* Directories of checkpoints: names, what is complete, what may go. */
#include "state/checkpoint_impl.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/file.h"

char *ckpt_name(const char *root, const char *before, int64_t step, const char *after)
{
    char *s = NULL;
    if (asprintf(&s, "%s/%sstep-%06" PRId64 "%s", root, before, step, after) < 0) {
        err_set(GPT_SYSTEM, "out of memory");
        return NULL;
    }
    return s;
}

char *ckpt_path(const char *root, int64_t step) { return ckpt_name(root, "", step, ""); }

/* The step of a name "step-000123" (prefix and suffix around it), -1: another name. */
static int64_t step_of(const char *name, const char *before, const char *after)
{
    size_t n = strlen(before);
    if (strncmp(name, before, n) || strncmp(name + n, "step-", 5))
        return -1;
    const char *p = name + n + 5, *digits = p;
    int64_t step = 0;
    for (; *p >= '0' && *p <= '9'; p++)
        if (__builtin_mul_overflow(step, 10, &step)
            || __builtin_add_overflow(step, *p - '0', &step))
            return -1;
    bool ours = p - digits == 6 || (p - digits > 6 && *digits != '0');
    return ours && !strcmp(p, after) ? step : -1;
}

int ckpt_remove_tree(const char *dir)
{
    DIR *d = opendir(dir);
    if (!d)
        return errno == ENOENT ? 0 : err_sys("cannot open '%s'", dir);
    int rc = 0;
    for (struct dirent *e; !rc && (e = readdir(d));)
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..") && unlinkat(dirfd(d), e->d_name, 0))
            rc = err_sys("cannot remove '%s/%s'", dir, e->d_name);
    closedir(d);
    if (!rc && rmdir(dir))
        rc = err_sys("cannot remove '%s'", dir);
    return rc;
}

/* Removes every .step-N<after> in root. */
int ckpt_remove_leftovers(const char *root, const char *after)
{
    DIR *d = opendir(root);
    if (!d)
        return err_sys("cannot open '%s'", root);
    int rc = 0;
    for (struct dirent *e; !rc && (e = readdir(d));) {
        if (step_of(e->d_name, ".", after) < 0)
            continue;
        char *path = path_join(root, e->d_name);
        rc = path ? ckpt_remove_tree(path) : err_set(GPT_SYSTEM, "out of memory");
        free(path);
    }
    closedir(d);
    return rc;
}

static bool complete(const char *root, const char *name)
{
    char *path = NULL;
    struct stat st;
    bool ok = asprintf(&path, "%s/%s/MANIFEST", root, name) >= 0 && !stat(path, &st)
        && S_ISREG(st.st_mode);
    free(path);
    return ok;
}

static int by_number(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

int ckpt_list(const char *root, int64_t **steps, int *n)
{
    int room = 0, rc = 0;
    *steps = NULL;
    *n = 0;
    DIR *d = opendir(root);
    if (!d)
        return err_sys("cannot open '%s'", root);
    for (struct dirent *e; !rc && (e = readdir(d));) {
        int64_t step = step_of(e->d_name, "", "");
        if (step < 0 || !complete(root, e->d_name))
            continue;
        if (*n == room) {
            int64_t *p = realloc(*steps, (room = room ? 2 * room : 16) * sizeof *p);
            if (!p) {
                rc = err_set(GPT_SYSTEM, "out of memory");
                break;
            }
            *steps = p;
        }
        (*steps)[(*n)++] = step;
    }
    closedir(d);
    if (rc) {
        free(*steps);
        *steps = NULL;
        *n = 0;
    } else if (*n) {
        qsort(*steps, (size_t)*n, sizeof **steps, by_number);
    }
    return rc;
}

int ckpt_latest(const char *root, char **dir)
{
    int64_t *steps;
    int n, rc = ckpt_list(root, &steps, &n);
    *dir = NULL;
    if (rc)
        return rc;
    if (!n)
        rc = err_set(GPT_NO, "%s: holds no complete checkpoint (step-N with a MANIFEST)", root);
    else if (!(*dir = ckpt_path(root, steps[n - 1])))
        rc = GPT_SYSTEM;
    free(steps);
    return rc;
}

/* Renamed first, so that at no moment something incomplete bears a good name. */
static int remove_step(const char *root, int64_t step)
{
    char *dir = ckpt_path(root, step), *old = ckpt_name(root, ".", step, ".old");
    int rc = dir && old ? ckpt_remove_tree(old) : GPT_SYSTEM;
    if (!rc && rename(dir, old))
        rc = err_sys("cannot rename '%s' to '%s'", dir, old);
    if (!rc)
        rc = ckpt_remove_tree(old);
    free(dir);
    free(old);
    return rc;
}

int ckpt_prunable(const char *root, int keep_last, int64_t keep_every, int64_t **steps, int *n)
{
    int all, rc;
    *steps = NULL;
    *n = 0;
    if (keep_last < 1)
        return err_set(GPT_USAGE, "checkpoints to keep: expected at least 1, found %d", keep_last);
    if ((rc = ckpt_list(root, steps, &all)))
        return rc;
    for (int i = 0; i < all - keep_last; i++)
        if (keep_every <= 0 || (*steps)[i] % keep_every)
            (*steps)[(*n)++] = (*steps)[i];
    return 0;
}

int ckpt_prune(const char *root, int keep_last, int64_t keep_every, int *removed)
{
    int64_t *steps;
    int n, gone = 0, rc = ckpt_prunable(root, keep_last, keep_every, &steps, &n);
    while (!rc && gone < n)
        if (!(rc = remove_step(root, steps[gone])))
            gone++;
    free(steps);
    if (!rc)
        rc = ckpt_remove_leftovers(root, ".old");
    if (!rc && gone)
        rc = file_sync_dir(root);
    if (removed)
        *removed = gone;
    return rc;
}
