/* file_list.c - folders to sorted lists of files. */
#include "data/source.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"

struct list { char **v; int n; };

static int no_memory(void)
{
    return err_set(GPT_SYSTEM, "out of memory for the list of files");
}

static int add(struct list *l, const char *path)
{
    if (!(l->n & (l->n - 1))) {            /* full at each power of two */
        char **v = realloc(l->v, (l->n ? 2 * (size_t)l->n : 1) * sizeof *v);

        if (!v)
            return no_memory();
        l->v = v;
    }
    return (l->v[l->n] = strdup(path)) ? (l->n++, 0) : no_memory();
}

/* Whether the name ends in one of the extensions, perhaps with .zst or .gz. */
static bool wanted(const char *name, const char *extensions)
{
    size_t n = strlen(name);

    if (n > 4 && !strcmp(name + n - 4, ".zst"))
        n -= 4;
    else if (n > 3 && !strcmp(name + n - 3, ".gz"))
        n -= 3;
    for (const char *e = extensions; *e;) {
        size_t k = strcspn(e, ",");

        if (k && n > k && name[n - k - 1] == '.' && !memcmp(name + n - k, e, k))
            return true;
        e += k + (e[k] == ',');
    }
    return false;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int walk(struct list *l, const char *dir, const char *extensions)
{
    struct dirent **entry;
    int n = scandir(dir, &entry, NULL, NULL), rc = 0;
    struct list names = { 0 };

    if (n < 0)
        return err_sys("cannot open '%s'", dir);
    for (int i = 0; i < n; i++) {
        if (!rc && entry[i]->d_name[0] != '.')      /* hidden files are not data */
            rc = add(&names, entry[i]->d_name);
        free(entry[i]);
    }
    free(entry);
    /* By bytes: the same order whatever the locale. */
    qsort(names.v, (size_t)names.n, sizeof *names.v, compare_names);
    for (int i = 0; i < names.n; i++) {
        char *path = path_join(dir, names.v[i]);
        struct stat st;

        if (!rc && !path)
            rc = no_memory();
        if (!rc && stat(path, &st))
            rc = err_sys("cannot open '%s'", path);
        if (!rc && S_ISDIR(st.st_mode))
            rc = walk(l, path, extensions);
        else if (!rc && wanted(names.v[i], extensions))
            rc = add(l, path);
        free(path);
        free(names.v[i]);
    }
    free(names.v);
    return rc;
}

int list_files(const struct source_config *c, char ***files, int *n)
{
    struct list l = { 0 };
    int rc = 0;

    for (int i = 0; i < c->paths && !rc; i++) {
        struct stat st;
        int before = l.n;

        if (!strcmp(c->path[i], "-"))
            rc = add(&l, "-");
        else if (stat(c->path[i], &st))
            rc = err_sys("cannot open '%s'", c->path[i]);
        else if (!S_ISDIR(st.st_mode))
            rc = add(&l, c->path[i]);
        else if (!(rc = walk(&l, c->path[i], c->extensions)) && l.n == before)
            rc = err_set(GPT_INPUT, "%s: expected files named *.{%s}, found none", c->path[i],
                         c->extensions);
    }
    *files = l.v;
    *n = l.n;
    if (rc) {
        for (int i = 0; i < l.n; i++)
            free(l.v[i]);
        free(l.v);
        *files = NULL;
        *n = 0;
    }
    return rc;
}
