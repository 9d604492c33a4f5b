#include "checkpoint/checkpoint_dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/file.h"
#include "base/lock.h"
#include "base/grow.h"

/* ROOT/<before>step-N<after>; NULL when out of memory, with a message. */
static char *name_of(const char *root, const char *before, int64_t step, const char *after)
{
    char *s = NULL;
    if (asprintf(&s, "%s/%sstep-%06" PRId64 "%s", root, before, step, after) < 0) {
        err_memory();
        return NULL;
    }
    return s;
}

char *ckpt_path(const char *root, int64_t step) { return name_of(root, "", step, ""); }

char *ckpt_temporary(const char *root, int64_t step) { return name_of(root, ".", step, ".tmp"); }

int ckpt_check_free(const char *root, int64_t step)
{
    char *dir = ckpt_path(root, step);
    int rc = dir ? 0 : GPT_SYSTEM;
    if (!rc && !access(dir, F_OK))
        rc = err_set(GPT_SYSTEM, "cannot write '%s': it exists (--force replaces it)", dir);
    free(dir);
    return rc;
}

/* The step of a name "step-000123" (prefix and suffix around it), -1: another name. */
static int64_t step_of(const char *name, const char *before, const char *after)
{
    size_t n = strlen(before);
    if (strncmp(name, before, n) || strncmp(name + n, "step-", 5))
        return -1;
    const char *p = name + n + 5, *digits = p;
    int64_t step = 0;
    for (; *p >= '0' && *p <= '9'; p++)
        if (__builtin_mul_overflow(step, 10, &step) ||
            __builtin_add_overflow(step, *p - '0', &step))
            return -1;
    bool ours = p - digits == 6 || (p - digits > 6 && *digits != '0');
    return ours && !strcmp(p, after) ? step : -1;
}

int64_t ckpt_named_step(const char *dir)
{
    char *path = realpath(dir, NULL);
    const char *slash = path ? strrchr(path, '/') : NULL;
    int64_t step = slash ? step_of(slash + 1, "", "") : -1;
    free(path);
    return step;
}

/* --- one writer a directory --- */

/* ROOT is locked from begin to commit or abort, or from ckpt_hold to ckpt_let_go: of two
 * programs that write into one directory, each would remove the other's temporary files. */
struct hold {
    struct dir_lock lock;
    bool stays; /* until ckpt_let_go */
    struct hold *next;
    char root[];
};
static struct hold *holds;
static pthread_mutex_t holds_lock = PTHREAD_MUTEX_INITIALIZER;

static int new_hold(const char *root, struct hold **out)
{
    struct hold *h = calloc(1, sizeof *h + strlen(root) + 1);
    if (!h)
        return err_memory();
    strcpy(h->root, root);
    int rc = dir_lock_take(&h->lock, root);
    if (rc) {
        free(h);
        return rc;
    }
    *out = h;
    return 0;
}

static int take_hold(const char *root, bool stays)
{
    int rc = 0;
    pthread_mutex_lock(&holds_lock);
    struct hold *h = holds;
    while (h && strcmp(h->root, root))
        h = h->next;
    if (!h && !(rc = new_hold(root, &h))) {
        h->next = holds;
        holds = h;
    }
    if (!rc)
        h->stays |= stays;
    pthread_mutex_unlock(&holds_lock);
    return rc;
}

int ckpt_hold(const char *root) { return take_hold(root, true); }

/* False when this process had not locked root. */
static bool release_hold(const char *root, bool let_go)
{
    pthread_mutex_lock(&holds_lock);
    struct hold **at = &holds;
    while (*at && strcmp((*at)->root, root))
        at = &(*at)->next;
    struct hold *h = *at;
    bool stays = h && h->stays && !let_go;
    if (h && !stays)
        *at = h->next;
    pthread_mutex_unlock(&holds_lock);
    if (!h || stays)
        return stays;
    dir_lock_release(&h->lock);
    free(h);
    return true;
}

void ckpt_let_go(const char *root) { release_hold(root, true); }

/* --- what is there --- */

/* Removes dir and the files in it, MANIFEST first, so that at no moment an incomplete directory
 * has one. A symbolic link is removed itself, not what it points to. */
static int remove_tree(const char *dir)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), rc = 0;
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d) {
        if (errno == ENOENT || ((errno == ENOTDIR || errno == ELOOP) && !unlink(dir)))
            return 0;
        rc = err_sys("cannot open '%s'", dir);
        if (fd >= 0)
            close(fd);
        return rc;
    }
    if (unlinkat(fd, "MANIFEST", 0) && errno != ENOENT)
        rc = err_sys("cannot remove '%s/MANIFEST'", dir);
    for (struct dirent *e; !rc && (e = readdir(d));)
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..") && unlinkat(fd, e->d_name, 0) &&
            errno != ENOENT)
            rc = err_sys("cannot remove '%s/%s'", dir, e->d_name);
    closedir(d);
    if (!rc && rmdir(dir))
        rc = err_sys("cannot remove '%s'", dir);
    return rc;
}

/* Says whether dir has a MANIFEST. What cannot be seen is a failure: a run that took it for missing would
 * begin anew. */
static int is_complete(const char *dir, bool *yes)
{
    struct stat st;
    char *path = path_join(dir, "MANIFEST");
    int rc = path ? 0 : err_memory();
    bool found = !rc && !stat(path, &st);
    if (!rc && !found && errno != ENOENT && errno != ENOTDIR)
        rc = err_sys("cannot look for '%s'", path);
    *yes = found && S_ISREG(st.st_mode);
    free(path);
    return rc;
}

/* The directory that holds a step complete: its own, or .old when the process was killed while it
 * replaced it. */
static int complete_dir(const char *root, int64_t step, char **out)
{
    char *dir = ckpt_path(root, step), *old = name_of(root, ".", step, ".old");
    bool own = false, kept = false;
    int rc = dir && old ? is_complete(dir, &own) : GPT_SYSTEM;
    if (!rc && !own)
        rc = is_complete(old, &kept);
    *out = rc ? NULL : kept ? old : dir;
    if (*out != dir)
        free(dir);
    if (*out != old)
        free(old);
    return rc;
}

static int clear_leftover(const char *root, const char *name, bool all)
{
    static const char *const after[] = { ".gone", ".tmp", ".old" };
    int64_t step = -1;
    int k = 0, rc = 0;
    while (k < (all ? 3 : 1) && (step = step_of(name, ".", after[k])) < 0)
        k++;
    if (step < 0)
        return 0;
    char *path = path_join(root, name), *dir = ckpt_path(root, step);
    bool kept = false, own = true;
    if (!path || !dir)
        rc = err_memory();
    else if (k == 2 && !(rc = is_complete(path, &kept)))
        rc = is_complete(dir, &own);
    if (!rc && kept && !own)
        (void)!rename(path, dir);
    else if (!rc)
        rc = remove_tree(path);
    free(path);
    free(dir);
    return rc;
}

/* Removes what an interrupted prune left; all: and what interrupted writers left, except that a
 * complete .old whose step-N is missing or incomplete is renamed back. */
static int remove_leftovers(const char *root, bool all)
{
    DIR *d = opendir(root);
    if (!d)
        return err_sys("cannot open '%s'", root);
    int rc = 0;
    for (struct dirent *e; !rc && (e = readdir(d));)
        rc = clear_leftover(root, e->d_name, all);
    closedir(d);
    return rc;
}

static int by_number(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

/* The complete steps, ascending; old: also those that complete_dir finds in a .old. */
static int list(const char *root, bool old, int64_t **steps, int *n)
{
    int rc = 0;
    *steps = NULL;
    *n = 0;
    DIR *d = opendir(root);
    if (!d)
        return err_sys("cannot open '%s'", root);
    for (struct dirent *e; !rc && (errno = 0, e = readdir(d));) {
        int64_t step = step_of(e->d_name, "", "");
        if (step < 0 && old)
            step = step_of(e->d_name, ".", ".old");
        char *path = step < 0 ? NULL : path_join(root, e->d_name);
        bool ok = false;
        if (step >= 0)
            rc = path ? is_complete(path, &ok) : err_memory();
        free(path);
        if (ok && !(rc = grow_one(steps, *n, sizeof **steps)))
            (*steps)[(*n)++] = step;
    }
    if (!rc && errno)
        rc = err_sys("cannot read '%s'", root);
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

int ckpt_list(const char *root, int64_t **steps, int *n) { return list(root, false, steps, n); }

int ckpt_latest(const char *root, char **dir)
{
    int64_t *steps;
    int n, rc = list(root, true, &steps, &n);
    *dir = NULL;
    if (rc)
        return rc;
    if (!n)
        rc = err_set(GPT_NO, "%s: holds no complete checkpoint (step-N with a MANIFEST)", root);
    else
        rc = complete_dir(root, steps[n - 1], dir);
    free(steps);
    return rc;
}

int ckpt_at(const char *path, char **dir)
{
    if (!file_is_in(path, "MANIFEST"))
        return ckpt_latest(path, dir);
    return (*dir = strdup(path)) ? 0 : err_memory();
}

int ckpt_prunable(const char *root, int keep_last, int64_t keep_every, int64_t above,
                  int64_t **steps, int *n)
{
    int all, rc;
    *steps = NULL;
    *n = 0;
    if (keep_last < 1)
        return err_set(GPT_USAGE, "checkpoints to keep: expected at least 1, found %d", keep_last);
    if ((rc = ckpt_list(root, steps, &all)))
        return rc;
    for (int i = 0; i < all - keep_last; i++)
        if ((*steps)[i] > above && (keep_every <= 0 || (*steps)[i] % keep_every))
            (*steps)[(*n)++] = (*steps)[i];
    return 0;
}

/* The renames are synced before files are removed, so that no step-N is ever incomplete. */
int ckpt_prune(const char *root, int keep_last, int64_t keep_every, int64_t above, int *removed)
{
    int64_t *steps;
    int n, gone = 0, rc = ckpt_prunable(root, keep_last, keep_every, above, &steps, &n);
    if (!rc)
        rc = remove_leftovers(root, false);
    while (!rc && gone < n) {
        char *dir = ckpt_path(root, steps[gone]);
        char *away = name_of(root, ".", steps[gone], ".gone");
        if (!dir || !away)
            rc = GPT_SYSTEM;
        else if (rename(dir, away))
            rc = err_sys("cannot rename '%s' to '%s'", dir, away);
        else
            gone++;
        free(dir);
        free(away);
    }
    free(steps);
    if (!rc && gone)
        rc = file_sync_dir(root);
    if (!rc)
        rc = remove_leftovers(root, false);
    if (removed)
        *removed = gone;
    return rc;
}

/* --- writing one --- */

/* The one that this process writes: rank 0 alone begins, commits and aborts. */
static struct temporary_dir writing;

int ckpt_begin(const char *root, int64_t step)
{
    int rc = file_mkdirs(root);
    if (rc || (rc = take_hold(root, false)))
        return rc;
    char *tmp = ckpt_temporary(root, step);
    rc = tmp ? remove_leftovers(root, true) : GPT_SYSTEM;
    temporary_dir_keep(&writing);
    if (!rc)
        rc = temporary_dir_make(&writing, tmp);
    if (rc)
        release_hold(root, false);
    free(tmp);
    return rc;
}

void ckpt_abort(const char *root, int64_t step)
{
    int code = err_code();
    char *said = strdup(err_message()), *tmp = ckpt_temporary(root, step);
    if (release_hold(root, false)) {
        if (tmp && remove_tree(tmp))
            err_clear();
        temporary_dir_keep(&writing);
    }
    if (said && code)
        err_set(code, "%s", said);
    free(said);
    free(tmp);
}

/* Renames tmp to step-N. An older step-N is exchanged with it in one step where the file system can
 * do that; where it cannot, the older one is renamed to .old before, where ckpt_latest finds it.
 * The renames are synced before files are removed, so that no power cut brings back an emptied
 * directory. */
static int take_name(const char *root, int64_t step, const char *tmp)
{
    char *dir = ckpt_path(root, step), *old = name_of(root, ".", step, ".old");
    const char *gone = NULL;
    int rc = dir && old ? 0 : GPT_SYSTEM;
    if (!rc && rename(tmp, dir)) {
        if (errno != EEXIST && errno != ENOTEMPTY) {
            rc = err_sys("cannot rename '%s' to '%s'", tmp, dir);
        } else if (!renameat2(AT_FDCWD, tmp, AT_FDCWD, dir, RENAME_EXCHANGE)) {
            gone = tmp;
        } else if (rename(dir, old)) {
            rc = err_sys("cannot rename '%s' to '%s'", dir, old);
        } else if (rename(tmp, dir)) {
            rc = err_sys("cannot rename '%s' to '%s'", tmp, dir);
            (void)!rename(old, dir);
        } else {
            gone = old;
        }
    }
    if (!rc)
        rc = file_sync_dir(root);
    if (!rc && gone)
        rc = remove_tree(gone);
    free(dir);
    free(old);
    return rc;
}

int ckpt_publish(const char *root, int64_t step)
{
    char *tmp = ckpt_temporary(root, step);
    int rc = tmp ? file_sync_dir(tmp) : GPT_SYSTEM;
    if (!rc)
        rc = take_name(root, step, tmp);
    if (!rc) {
        release_hold(root, false);
        temporary_dir_keep(&writing);
    }
    free(tmp);
    return rc;
}
