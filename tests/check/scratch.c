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
    FILE *f = fopen(path, "rb"), *to;
    char *data = NULL, buf[65536];
    *n = 0;
    if (!f)
        return NULL;
    if (!(to = open_memstream(&data, n)))
        abort();
    for (size_t k; (k = fread(buf, 1, sizeof buf, f)) > 0;)
        fwrite(buf, 1, k, to);
    fclose(f);
    fclose(to);
    return (unsigned char *)data;
}

void spill(const char *path, const void *data, size_t n)
{
    int fd = open(path, O_WRONLY | O_CREAT, 0666);
    if (fd < 0 || write(fd, data, n) != (ssize_t)n || ftruncate(fd, (off_t)n) || close(fd)) {
        perror(path);
        abort();
    }
}
