/* shard_folder.c - see shard_folder.h. */
#include "tokenize/shard_folder.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/version.h"
#include "data/shard_index.h"
#include "tokenize/unicode.h"

/* --- what the MANIFEST says of the job --- */

/* Returns all settings that the shards' bytes depend on. */
static char *settings_text(const struct tokjob_config *c)
{
    static const char *const invalid[] = { "replace", "bytes", "error" };
    static const char *const format[] = { "auto", "text", "jsonl" };
    char *s = NULL;
    size_t n;
    FILE *f = open_memstream(&s, &n);

    if (!f)
        return NULL;
    fprintf(f,
            "format=%s ext=%s field=%s invalid=%s prefix=%s shard-tokens=%lld level=%d index=%s "
            "split=%.15g val-tokens=%lld val-first=%lld shuffle=",
            format[c->source.format], c->source.extensions, c->encode.field,
            invalid[c->encode.invalid], c->prefix, (long long)c->shard_tokens, c->level,
            c->with_index ? "yes" : "no", c->val_fraction, (long long)c->val_tokens,
            (long long)c->val_first_tokens);
    if (c->shuffle)
        fprintf(f, "%llu", (unsigned long long)c->seed);
    else
        fprintf(f, "no");
    if (!file_close(f)) {
        free(s);
        return NULL;
    }
    return s;
}

static int new_manifest(struct manifest *m, const struct tokjob_config *c)
{
    const struct vocab *v = c->encode.vocab;

    memset(m, 0, sizeof *m);
    m->tool = strdup("gpt-tokshard " GPT_VERSION);
    m->arguments = strdup(c->arguments);
    m->tokenizer = strdup(v->name);
    m->vocabulary = strdup(v->sha256);
    m->unicode = strdup(unicode_version);
    m->settings = settings_text(c);
    m->vocab_size = v->size;
    m->bos = v->bos;
    return m->tool && m->arguments && m->tokenizer && m->vocabulary && m->unicode && m->settings
               ? 0
               : err_memory();
}

/* Order of the MANIFEST's lines: validation first, then by number. */
static int compare_shards(const void *pa, const void *pb)
{
    const struct manifest_shard *a = pa, *b = pb;

    return a->split != b->split ? (a->split == SPLIT_VAL ? -1 : 1) : strcmp(a->name, b->name);
}

static void sum_up(struct manifest *m)
{
    m->documents = m->tokens = m->invalid = 0;
    for (int i = 0; i < m->n; i++) {
        m->documents += m->shard[i].documents;
        m->tokens += m->shard[i].tokens;
        m->invalid += m->shard[i].invalid;
    }
    qsort(m->shard, (size_t)m->n, sizeof *m->shard, compare_shards);
}

static int write_manifest(const struct shard_folder *f)
{
    char *path = path_join(f->dir, "MANIFEST"), *text = NULL;
    struct output o;
    int rc = path ? manifest_text(&f->manifest, &text) : err_memory();

    if (!rc && !(rc = output_open(&o, path, false))) {
        fputs(text, o.f);
        rc = output_commit(&o);
    }
    free(text);
    free(path);
    return rc;
}

/* --- the folder --- */

/* True if a job of this prefix gives the name to a shard or an index. */
static bool is_shard(const char *prefix, const char *name)
{
    size_t n = strlen(prefix), digits;
    const char *p = name + n;

    if (strncmp(name, prefix, n) || (strncmp(p, "_train_", 7) && strncmp(p, "_val_", 5)))
        return false;
    p = strchr(p + 1, '_') + 1;
    digits = strspn(p, "0123456789");
    p += digits;
    return digits >= 6 && (!strcmp(p, ".bin") || !strcmp(p, ".bin.zst") || !strcmp(p, ".idx"));
}

/* Refuses a file of the folder that exists; with --force, removes it. */
static int make_way(const struct tokjob_config *c, const char *name, const char *without)
{
    char *path = path_join(c->out, name);
    int rc = 0;

    if (!path)
        return err_memory();
    if (c->force && unlink(path) && errno != ENOENT)
        rc = err_sys("cannot remove '%s'", path);
    else if (!c->force && !access(path, F_OK))
        rc = err_set(GPT_SYSTEM, "'%s' exists%s (--force makes the shards anew)", path, without);
    free(path);
    return rc;
}

/* Refuses or removes MANIFEST and all shards. MANIFEST goes first, so that it names none that is gone. */
static int make_way_for_all(const struct tokjob_config *c)
{
    int rc = make_way(c, "MANIFEST", "");
    DIR *d = rc ? NULL : opendir(c->out);
    struct dirent *e;

    if (!rc && !d)
        return err_sys("cannot open '%s'", c->out);
    while (!rc && (e = readdir(d)))
        if (is_shard(c->prefix, e->d_name))
            rc = make_way(c, e->d_name, " without a MANIFEST");
    if (d)
        closedir(d);
    return rc;
}

/* Makes .shards.tmp, in place of one that is there: as this job holds the lock, no other is at
 * work in it. */
static int make_tmp(struct shard_folder *f)
{
    char *path = path_join(f->c->out, SHARDS_TMP);
    int rc = path ? 0 : err_memory();

    if (!rc && !access(path, F_OK)) {
        struct temporary_dir left = { strdup(path) };

        temporary_dir_remove(&left);
        f->cleared = access(path, F_OK) != 0;
    }
    if (!rc)
        rc = temporary_dir_make(&f->tmp, path);
    f->dir = f->tmp.path;
    free(path);
    return rc;
}

int shard_folder_open(struct shard_folder *f, const struct tokjob_config *c)
{
    int rc;

    *f = (struct shard_folder){ .c = c, .dir = c->out, .lock.fd = -1 };
    if ((rc = new_manifest(&f->manifest, c)) || !c->out || !strcmp(c->out, "-"))
        return rc;
    if ((rc = file_mkdirs(c->out)) || (rc = dir_lock_take(&f->lock, c->out)) || (rc = make_tmp(f)))
        return rc;
    return c->force ? 0 : make_way_for_all(c);
}

static int move(const struct shard_folder *f, const char *name)
{
    char *from = path_join(f->dir, name), *to = path_join(f->c->out, name);
    int rc = !from || !to       ? err_memory()
             : rename(from, to) ? err_sys("cannot rename '%s' to '%s'", from, to)
                                : 0;

    free(from);
    free(to);
    return rc;
}

static int move_index(const struct shard_folder *f, const char *shard)
{
    char *name = shard_index_path(shard);
    int rc = name ? move(f, name) : err_memory();

    free(name);
    return rc;
}

static int move_all(const struct shard_folder *f)
{
    const struct manifest *m = &f->manifest;
    int rc = make_way_for_all(f->c);

    if (!rc) /* an old MANIFEST is gone before a new shard is there */
        rc = file_sync_dir(f->c->out);
    for (int i = 0; i < m->n && !rc; i++) {
        rc = f->c->with_index ? move_index(f, m->shard[i].name) : 0;
        rc = rc ? rc : move(f, m->shard[i].name);
    }
    if (rc || (rc = file_sync_dir(f->c->out)) || (rc = move(f, "MANIFEST")))
        return rc;
    return file_sync_dir(f->c->out);
}

int shard_folder_finish(struct shard_folder *f)
{
    sigset_t all, old;
    int rc;

    sum_up(&f->manifest);
    if (!f->tmp.path)
        return 0;
    if ((rc = write_manifest(f)))
        return rc;
    sigfillset(&all); /* a signal waits until all or none is in place */
    pthread_sigmask(SIG_BLOCK, &all, &old);
    rc = move_all(f);
    temporary_dir_remove(&f->tmp);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc;
}

void shard_folder_release(struct shard_folder *f)
{
    temporary_dir_remove(&f->tmp);
    manifest_release(&f->manifest);
    dir_lock_release(&f->lock);
    f->dir = NULL;
}
