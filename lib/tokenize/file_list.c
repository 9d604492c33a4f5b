/* file_list.c - folders to sorted lists of files. */
#include "tokenize/source.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/file.h"
#include "base/grow.h"

struct list {
    char **v;
    int n;
    struct source_note *left_out;
};

static int add(struct list *l, const char *path)
{
    if (grow_one(&l->v, l->n, sizeof *l->v))
        return GPT_SYSTEM;
    return (l->v[l->n] = strdup(path)) ? (l->n++, 0) : err_memory();
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* A folder that is being walked, and those it is in. */
struct folder {
    struct stat st;
    const struct folder *above;
};

static bool leads_back(const struct folder *f, const struct stat *st)
{
    while (f && (f->st.st_dev != st->st_dev || f->st.st_ino != st->st_ino))
        f = f->above;
    return f != NULL;
}

static int cannot_open(const char *path)
{
    char target[4096];
    int e = errno;
    ssize_t n = readlink(path, target, sizeof target - 1);

    errno = e;
    if (n < 0)
        return err_sys("cannot open '%s'", path);
    target[n] = 0;
    return err_sys("cannot open '%s', a link to '%s'", path, target);
}

static int walk(struct list *l, const char *dir, const struct folder *f, const char *extensions);

/* An entry of a folder. A dangling link is an error only if its name is of a file that is
 * wanted. */
static int walk_entry(struct list *l, const char *dir, const struct folder *f, const char *name,
                      const char *extensions)
{
    struct folder inner = { .above = f };
    char *path = path_join(dir, name);
    int rc = 0;

    if (!path)
        return err_memory();
    if (stat(path, &inner.st))
        rc = has_extension(name, extensions) ? cannot_open(path) : 0;
    else if (S_ISDIR(inner.st.st_mode))
        rc = leads_back(f, &inner.st) ? 0 : walk(l, path, &inner, extensions);
    else if (S_ISREG(inner.st.st_mode) && has_extension(name, extensions))
        rc = add(l, path);
    else if (S_ISREG(inner.st.st_mode))
        source_note_add(l->left_out, path);
    free(path);
    return rc;
}

static int walk(struct list *l, const char *dir, const struct folder *f, const char *extensions)
{
    struct dirent **entry;
    int n = scandir(dir, &entry, NULL, NULL), rc = 0;
    struct list names = { 0 };

    if (n < 0)
        return err_sys("cannot open '%s'", dir);
    for (int i = 0; i < n; i++) {
        if (!rc && entry[i]->d_name[0] != '.') /* hidden files are not data */
            rc = add(&names, entry[i]->d_name);
        free(entry[i]);
    }
    free(entry);
    /* By bytes: the same order whatever the locale. */
    qsort(names.v, (size_t)names.n, sizeof *names.v, compare_names);
    for (int i = 0; i < names.n; i++) {
        rc = rc ? rc : walk_entry(l, dir, f, names.v[i], extensions);
        free(names.v[i]);
    }
    free(names.v);
    return rc;
}

void source_note_add(struct source_note *n, const char *path)
{
    if (!n->n++)
        snprintf(n->first, sizeof n->first, "%s", path);
}

/* Refuses a folder of which no file is taken. */
static int none_of(const struct list *l, const char *dir, const char *extensions)
{
    return l->left_out->n
               ? err_set(GPT_INPUT,
                         "%s: expected files named *.{%s}, found others, as '%s': --ext says "
                         "which are taken",
                         dir, extensions, l->left_out->first)
               : err_set(GPT_INPUT, "%s: expected files named *.{%s}, found none", dir, extensions);
}

int source_list_files(const struct source_config *c, char ***files, int *n,
                      struct source_note *left_out)
{
    struct list l = { .left_out = left_out };
    int rc = 0;

    for (int i = 0; i < c->paths && !rc; i++) {
        struct folder f = { 0 };
        int before = l.n;

        if (!strcmp(c->path[i], "-"))
            rc = add(&l, "-");
        else if (stat(c->path[i], &f.st))
            rc = cannot_open(c->path[i]);
        else if (!S_ISDIR(f.st.st_mode))
            rc = add(&l, c->path[i]);
        else if (!(rc = walk(&l, c->path[i], &f, c->extensions)) && l.n == before)
            rc = none_of(&l, c->path[i], c->extensions);
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
