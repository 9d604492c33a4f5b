/* Opening a checkpoint, and what MANIFEST says of it. */
#include "checkpoint/checkpoint_impl.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "base/file.h"
#include "base/hash.h"
#include "base/num.h"

#define MANIFEST_MAX (256u << 20)

static int check_sizes(struct ckpt *c)
{
    for (int i = 0; i < c->nfiles; i++) {
        struct stat st;
        char *path = path_join(c->dir, c->files[i].name);
        int rc = path ? 0 : err_set(GPT_SYSTEM, "out of memory");
        if (!rc && stat(path, &st))
            rc = errno != ENOENT
                     ? err_sys("cannot read '%s'", path)
                     : err_set(GPT_INPUT, "%s: MANIFEST lists it, but it is missing", path);
        else if (!rc && (uint64_t)st.st_size != c->files[i].bytes)
            rc = err_set(GPT_INPUT, "%s: expected %" PRIu64 " bytes, found %lld", path,
                         c->files[i].bytes, (long long)st.st_size);
        free(path);
        if (rc)
            return rc;
    }
    return 0;
}

static int read_manifest(struct ckpt *c)
{
    struct stat st;
    char *text = NULL, *path = path_join(c->dir, "MANIFEST");
    size_t n;
    if (!path)
        return err_set(GPT_SYSTEM, "out of memory");
    int rc = 0;
    if (stat(c->dir, &st))
        rc = err_sys("cannot open '%s'", c->dir);
    else if (stat(path, &st) && errno == ENOENT)
        rc = err_set(GPT_INPUT, "%s: has no MANIFEST: not a complete checkpoint", c->dir);
    else
        rc = file_read(path, MANIFEST_MAX, &text, &n);
    if (!rc)
        rc = ckpt_parse_manifest(c, path, text, n);
    free(text);
    free(path);
    return rc;
}

static int read_recipe(struct ckpt *c)
{
    const struct ckpt_file *f = NULL;
    char *text = NULL, hash[33];
    size_t n;
    for (int i = 0; i < c->nfiles; i++)
        if (!strcmp(c->files[i].hash, c->recipe_hash) && !strcmp(c->files[i].name, "recipe.txt"))
            f = &c->files[i];
    if (!f)
        return err_set(GPT_INPUT, "%s/MANIFEST: expected the recipe in recipe.txt", c->dir);
    char *path = path_join(c->dir, f->name);
    int rc = path ? file_read(path, f->bytes, &text, &n) : err_set(GPT_SYSTEM, "out of memory");
    if (!rc) {
        xxh_hex_of(text, n, hash);
        if (strcmp(hash, f->hash))
            rc = err_set(GPT_INPUT, "%s: expected XXH3 %s, found %s: it is damaged", path, f->hash,
                         hash);
    }
    c->info.recipe = text;
    free(path);
    return rc;
}

int ckpt_open(struct ckpt **out, const char *dir)
{
    struct ckpt *c = calloc(1, sizeof *c);
    *out = NULL;
    if (!c || !(c->dir = strdup(dir))) {
        free(c);
        return err_set(GPT_SYSTEM, "%s: out of memory", dir);
    }
    pthread_mutex_init(&c->lock, NULL);
    int rc = read_manifest(c);
    if (!rc)
        rc = check_sizes(c);
    if (!rc)
        rc = read_recipe(c);
    if (!rc && !(c->checked = calloc((size_t)c->nfiles + 1, sizeof *c->checked)))
        rc = err_set(GPT_SYSTEM, "%s: out of memory", dir);
    if (rc)
        ckpt_close(c);
    else
        *out = c;
    return rc;
}

void ckpt_release(struct ckpt *c)
{
    for (int i = 0; i < c->nfiles; i++)
        free(c->files[i].name);
    for (int i = 0; i < c->nentries; i++) {
        free(c->entries[i].name);
        free(c->entries[i].pieces);
    }
    for (int i = 0; i < c->info.nstate; i++) {
        free((char *)c->state[i].key);
        free((char *)c->state[i].value);
    }
    free(c->files);
    free(c->entries);
    free(c->state);
    free(c->checked);
    free(c->recipe_hash);
    free((char *)c->info.tool);
    free((char *)c->info.recipe);
    free(c->dir);
}

void ckpt_close(struct ckpt *c)
{
    if (!c)
        return;
    ckpt_release(c);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

const char *ckpt_dir(const struct ckpt *c) { return c->dir; }
const struct ckpt_info *ckpt_info(const struct ckpt *c) { return &c->info; }
const char *ckpt_recipe_hash(const struct ckpt *c) { return c->recipe_hash; }

const char *ckpt_state(const struct ckpt *c, const char *key)
{
    for (int i = 0; i < c->info.nstate; i++)
        if (!strcmp(c->state[i].key, key))
            return c->state[i].value;
    return NULL;
}

int ckpt_state_i64(const struct ckpt *c, const char *key, int64_t *out)
{
    const char *s = ckpt_state(c, key);
    if (!s)
        return err_set(GPT_INPUT, "%s/MANIFEST: expected a line 'state %s', found none", c->dir,
                       key);
    if (num_i64(s, key, INT64_MIN, INT64_MAX, out))
        return err_set(GPT_INPUT, "%s/MANIFEST: state %s: expected a whole number, found '%s'",
                       c->dir, key, s);
    return 0;
}

int ckpt_entries(const struct ckpt *c, const struct ckpt_entry **e)
{
    *e = c->entries;
    return c->nentries;
}

int ckpt_files(const struct ckpt *c, const struct ckpt_file **f)
{
    *f = c->files;
    return c->nfiles;
}

const struct ckpt_entry *ckpt_find(const struct ckpt *c, const char *name)
{
    for (int i = 0; i < c->nentries; i++)
        if (!strcmp(c->entries[i].name, name))
            return &c->entries[i];
    return NULL;
}
