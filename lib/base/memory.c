/* memory.c - see memory.h. */
#include "base/memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { PATH_SIZE = 4096 };

static FILE *open_in(const char *root, const char *dir, const char *name)
{
    char path[3 * PATH_SIZE];
    snprintf(path, sizeof path, "%s%s/%s", root, dir, name);
    return fopen(path, "r");
}

/* The number after `name` at the beginning of a line, or of the whole file for ""; else NaN ("max"
 * is no number). */
static double number(const char *root, const char *dir, const char *file, const char *name)
{
    FILE *f = open_in(root, dir, file);
    char line[256];
    size_t n = strlen(name);
    double found = NAN;

    while (f && isnan(found) && fgets(line, sizeof line, f)) {
        char *end;
        if (strncmp(line, name, n))
            continue;
        double x = strtod(line + n, &end);
        if (end > line + n)
            found = x;
    }
    if (f)
        fclose(f);
    return found;
}

struct files {
    const char *limit, *usage, *dropped;
};

/* What the limit of one group leaves; INFINITY without one. */
static double left_in(const char *root, const char *dir, const struct files *f)
{
    double limit = number(root, dir, f->limit, ""), used = number(root, dir, f->usage, "");
    double cache = number(root, dir, "memory.stat", f->dropped);

    if (isnan(limit) || isnan(used))
        return INFINITY;
    return fmax(0, limit - fmax(0, used - (isnan(cache) ? 0 : cache)));
}

/* The least of a group and those above it. In a container the path may begin above what is mounted
 * here: such folders do not exist. */
static double left_above(const char *root, const char *mount, const char *group,
                         const struct files *f)
{
    char dir[2 * PATH_SIZE];
    double least = INFINITY;

    snprintf(dir, sizeof dir, "%s%s", mount, group);
    for (;;) {
        least = fmin(least, left_in(root, dir, f));
        char *slash = strrchr(dir, '/');
        if (strlen(dir) <= strlen(mount) || !slash)
            return least;
        *slash = '\0';
    }
}

/* Lines "4:memory:/group" (version 1) and "0::/group" (version 2). */
static double left_by_groups(const char *root)
{
    static const struct files v1 = { "memory.limit_in_bytes", "memory.usage_in_bytes",
                                     "total_inactive_file " };
    static const struct files v2 = { "memory.max", "memory.current", "inactive_file " };
    FILE *f = open_in(root, "/proc/self", "cgroup");
    char line[PATH_SIZE];
    double least = INFINITY;

    while (f && fgets(line, sizeof line, f)) {
        char *list = strchr(line, ':'), *group = list ? strchr(list + 1, ':') : NULL;
        line[strcspn(line, "\n")] = '\0';
        if (!group)
            continue;
        *group++ = '\0';
        if (!strcmp(list, ":memory"))
            least = fmin(least, left_above(root, "/sys/fs/cgroup/memory", group, &v1));
        else if (!strcmp(list, ":"))
            least = fmin(least, left_above(root, "/sys/fs/cgroup", group, &v2));
    }
    if (f)
        fclose(f);
    return least;
}

static double left_by_ulimit(const char *root)
{
    struct rlimit as;
    double pages = number(root, "/proc/self", "statm", "");

    if (getrlimit(RLIMIT_AS, &as) || as.rlim_cur == RLIM_INFINITY || isnan(pages))
        return INFINITY;
    return fmax(0, (double)as.rlim_cur - pages * (double)sysconf(_SC_PAGESIZE));
}

double memory_available(const char *root)
{
    double machine = 1024 * number(root, "/proc", "meminfo", "MemAvailable:");
    double least = fmin(left_by_groups(root), left_by_ulimit(root));
    return isnan(machine) ? least : fmin(machine, least);
}
