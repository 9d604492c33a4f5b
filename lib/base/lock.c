/* lock.c - see lock.h. */
#include "base/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/file.h"

enum { HOST_MAX = 256, FREE = 0, HELD = 1 };

struct holder {
    long pid; /* 0: the file does not say */
    char host[HOST_MAX];
};

static void this_host(char host[HOST_MAX])
{
    if (gethostname(host, HOST_MAX) || !*host)
        strcpy(host, "?");
    host[HOST_MAX - 1] = '\0';
}

static void read_holder(int fd, struct holder *h)
{
    char text[HOST_MAX + 32];
    ssize_t n = pread(fd, text, sizeof text - 1, 0);

    text[n > 0 ? n : 0] = '\0';
    if (sscanf(text, "%ld %255s", &h->pid, h->host) != 2 || h->pid <= 0)
        h->pid = 0;
}

/* Without flock: whether the writer that the file names may still be at work. */
static bool may_live(int fd)
{
    struct holder h;
    char here[HOST_MAX];

    read_holder(fd, &h);
    this_host(here);
    return h.pid && h.pid != getpid() &&
           (strcmp(h.host, here) || !kill((pid_t)h.pid, 0) || errno != ESRCH);
}

/* FREE and locked, HELD, or a code above those on an error. */
static int try_lock(int fd)
{
    if (!flock(fd, LOCK_EX | LOCK_NB))
        return FREE;
    if (errno == EWOULDBLOCK)
        return HELD;
    return errno == ENOSYS || errno == ENOTSUP || errno == EINVAL || errno == ENOLCK ? may_live(fd)
                                                                                     : GPT_SYSTEM;
}

/* Whether path is still the file that was opened: its holder removes it before letting go. */
static bool is_same(int fd, const char *path)
{
    struct stat a, b;

    return !fstat(fd, &a) && !stat(path, &b) && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

static int held_by_other(const char *dir, const char *path, int fd)
{
    struct holder h;

    read_holder(fd, &h);
    if (!h.pid)
        return err_set(GPT_SYSTEM, "'%s' is being written by another program (it holds '%s')", dir,
                       path);
    return err_set(GPT_SYSTEM, "'%s' is being written by process %ld on %s (it holds '%s')", dir,
                   h.pid, h.host, path);
}

static int write_holder(int fd)
{
    char host[HOST_MAX], text[HOST_MAX + 32];

    this_host(host);
    int n = snprintf(text, sizeof text, "%ld %s\n", (long)getpid(), host);
    return ftruncate(fd, 0) || pwrite(fd, text, (size_t)n, 0) != n ? -1 : 0;
}

int dir_lock_take(struct dir_lock *l, const char *dir)
{
    char *path = path_join(dir, ".lock");
    int rc, fd;

    *l = (struct dir_lock){ .fd = -1 };
    if (!path)
        return err_memory();
    for (;;) {
        if ((fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666)) < 0) {
            rc = err_sys("cannot write into '%s'", dir);
            break;
        }
        if ((rc = try_lock(fd)) == HELD)
            rc = held_by_other(dir, path, fd);
        else if (rc)
            rc = err_sys("cannot lock '%s'", path);
        else if (is_same(fd, path)) {
            if (!write_holder(fd)) {
                *l = (struct dir_lock){ fd, path };
                output_remember(path);
                return GPT_OK;
            }
            rc = err_sys("cannot write '%s'", path);
        }
        close(fd);
        if (rc)
            break;
    }
    free(path);
    return rc;
}

void dir_lock_release(struct dir_lock *l)
{
    if (!l->path)
        return;
    unlink(l->path);
    output_forget(l->path);
    close(l->fd);
    free(l->path);
    *l = (struct dir_lock){ .fd = -1 };
}
