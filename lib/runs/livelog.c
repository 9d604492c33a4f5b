/* livelog.c - see livelog.h. */
#include "runs/livelog.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int livelog_open(struct livelog *t, const char *path)
{
    unsigned char first[4];
    *t = (struct livelog){ .path = path, .fd = -1 };
    if (!strcmp(path, "-"))
        return zreader_open(&t->z, path);
    if ((t->fd = open(path, O_RDONLY | O_CLOEXEC)) < 0)
        return err_sys("cannot open '%s'", path);
    if (pread(t->fd, first, sizeof first, 0) == sizeof first && zio_compressed(first, sizeof first))
        return err_set(GPT_INPUT,
                       "'%s' is compressed: followed is plain text, or standard input: "
                       "tail -c +1 -f FILE | gpt-logdiff --follow -",
                       path);
    return 0;
}

int livelog_some(struct livelog *t, char *buf, size_t size, size_t *n)
{
    struct stat st;
    *n = 0;
    if (t->z) {
        int rc = zreader_some(t->z, buf, size, n);
        t->ended = !rc && !*n;
        return rc;
    }
    ssize_t k;
    do
        k = read(t->fd, buf, size);
    while (k < 0 && errno == EINTR);
    if (k < 0 || fstat(t->fd, &st))
        return err_sys("cannot read '%s'", t->path);
    t->at += k;
    *n = (size_t)k;
    return S_ISREG(st.st_mode) && st.st_size < t->at
               ? err_set(GPT_INPUT, "'%s' became shorter while it was read", t->path)
               : 0;
}

void livelog_close(struct livelog *t)
{
    zreader_close(t->z);
    if (t->fd >= 0)
        close(t->fd);
    *t = (struct livelog){ .fd = -1 };
}
