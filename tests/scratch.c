#include "scratch.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "base/file.h"

static char folder[] = "/tmp/gpt_test.XXXXXX";
static pid_t owner;

static void remove_folder(void)
{
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    if (getpid() == owner && system(command))
        perror(folder);
}

char *in(const char *dir, const char *name)
{
    static char buf[8][512];
    static int k;
    char *s = buf[k++ % 8];
    snprintf(s, sizeof buf[0], "%s/%s", dir, name);
    return s;
}

char *scratch(const char *name)
{
    if (!owner) {
        if (!mkdtemp(folder) || atexit(remove_folder)) {
            perror(folder);
            abort();
        }
        owner = getpid();
    }
    return in(folder, name);
}

unsigned char *slurp(const char *path, size_t *n)
{
    char *data;
    return file_read(path, 0, &data, n) ? NULL : (unsigned char *)data;
}

/* Over what is there: a file cut to nothing and written anew makes some file systems sync. */
void spill(const char *path, const void *data, size_t n)
{
    int fd = open(path, O_WRONLY | O_CREAT, 0666);
    if (fd < 0 || write(fd, data, n) != (ssize_t)n || ftruncate(fd, (off_t)n) || close(fd)) {
        perror(path);
        abort();
    }
}
