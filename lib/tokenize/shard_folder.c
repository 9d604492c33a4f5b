/* shard_folder.c - see shard_folder.h. */
#include "tokenize/shard_folder.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/file.h"
#include "base/text.h"
#include "base/version.h"
#include "data/shard_index.h"
#include "data/shard_write.h"
#include "tokenize/shard_verify.h"
#include "tokenize/unicode.h"

static char *in_folder(const struct tokjob_config *c, const char *name)
{
    return path_join(c->out, name);
}

/* All settings that the shards' bytes depend on. */
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
            c->with_index ? "yes" : "no", c->encode.val_fraction, (long long)c->val_tokens,
            (long long)c->val_first_tokens);
    if (c->shuffle)
        fprintf(f, "%llu", (unsigned long long)c->seed);
    else
        fprintf(f, "no");
    if (ferror(f) | fclose(f)) {
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

/* Names the first word in which two lists of settings, or the values of a key, differ. */
static int differs(const char *path, const char *key, const char *expected, const char *found)
{
    const char *a = expected, *b = found;

    while (*a && *b && strcspn(a, " ") == strcspn(b, " ") && !strncmp(a, b, strcspn(a, " "))) {
        a += strcspn(a, " ");
        b += strcspn(b, " ");
        a += *a == ' ';
        b += *b == ' ';
    }
    return err_set(GPT_INPUT,
                   "%s: expected '%s%.*s' as this command has it, found '%s%.*s': the options "
                   "must be those that made the shards",
                   path, key, (int)strcspn(a, " "), a, key, (int)strcspn(b, " "), b);
}

/* Takes ownership of the manifest of an earlier run, if it was the same job. */
static int adopt(struct shard_folder *f, const char *path, struct manifest *old)
{
    struct manifest *m = &f->manifest;
    int rc = 0;

    if (strcmp(m->tokenizer, old->tokenizer))
        rc = differs(path, "tokenizer=", m->tokenizer, old->tokenizer);
    else if (strcmp(m->vocabulary, old->vocabulary))
        rc = differs(path, "vocabulary=", m->vocabulary, old->vocabulary);
    else if (strcmp(m->unicode, old->unicode))
        rc = differs(path, "unicode=", m->unicode, old->unicode);
    else if (strcmp(m->settings, old->settings))
        rc = differs(path, "", m->settings, old->settings);
    manifest_release(rc ? old : m);
    if (!rc)
        *m = *old;
    return rc;
}

/* Checks what an interrupted job left: the shards of each split, numbered without a gap. */
static int take_over(struct shard_folder *f, const char *path)
{
    struct manifest old, *m = &f->manifest;
    int next[2] = { [SPLIT_TRAIN] = 1, [SPLIT_VAL] = 0 }, rc;

    if ((rc = manifest_read_partial(&old, path)) || (rc = adopt(f, path, &old)))
        return rc;
    f->kept = m->n;
    for (int i = 0; i < m->n && !rc; i++) {
        const struct manifest_shard *s = &m->shard[i];
        char *shard = path_join(f->c->out, s->name), name[256];
        struct stat st;

        shard_name(name, sizeof name, f->c->prefix, s->split, next[s->split]++, f->c->level);
        if (!shard)
            rc = err_memory();
        else if (strcmp(name, s->name))
            rc = err_set(GPT_INPUT,
                         "%s: expected a line of '%s', found '%s': damaged since; "
                         "--force starts again",
                         path, name, s->name);
        else if (stat(shard, &st) || st.st_size != s->bytes)
            rc = err_set(GPT_INPUT,
                         "%s: expected %lld bytes as '%s' says: damaged since; --force "
                         "starts again",
                         shard, (long long)s->bytes, path);
        free(shard);
    }
    return rc;
}

/* Whether a name in the folder is that of a shard or index, or that of a temporary file
 * (.PID.N.tmp) which a killed job left of a shard, index or manifest. */
static void tell_name(const struct tokjob_config *c, const char *name, bool *shard, bool *temporary)
{
    size_t n = strlen(c->prefix);
    bool ours = !strncmp(name, c->prefix, n) &&
                (!strncmp(name + n, "_train_", 7) || !strncmp(name + n, "_val_", 5));
    const char *end = !ours                      ? NULL
                      : strstr(name + n, ".bin") ? strstr(name + n, ".bin")
                                                 : strstr(name + n, ".idx");

    *shard = end && (!strcmp(end, ".bin") || !strcmp(end, ".bin.zst") || !strcmp(end, ".idx"));
    *temporary = (end || !strncmp(name, "MANIFEST.", 9)) && text_ends(name, ".tmp");
}

static int interrupted(const char *partial)
{
    return err_set(GPT_SYSTEM,
                   "'%s' is of an interrupted job (--resume continues it, --force "
                   "starts again)",
                   partial);
}

enum old_shards { OLD_KEEP, OLD_REMOVE, OLD_REFUSE };

/* Removes temporary files that a killed job left, and keeps, removes or refuses shards. */
static int clear_folder(const struct tokjob_config *c, enum old_shards what)
{
    DIR *d = opendir(c->out);
    struct dirent *e;
    int rc = 0;

    if (!d)
        return err_sys("cannot open '%s'", c->out);
    while (!rc && (e = readdir(d))) {
        bool shard, temporary;
        char *path;

        tell_name(c, e->d_name, &shard, &temporary);
        if (!temporary && (!shard || what == OLD_KEEP))
            continue;
        if (!(path = path_join(c->out, e->d_name)))
            rc = err_memory();
        else if (shard && what == OLD_REFUSE)
            rc = err_set(GPT_SYSTEM,
                         "'%s' exists without a MANIFEST (--repair makes that again, "
                         "--force the shards anew)",
                         path);
        else if (unlink(path))
            rc = err_sys("cannot remove '%s'", path);
        free(path);
    }
    closedir(d);
    return rc;
}

/* Replaces the journal of an earlier run atomically by one of the manifest so far; later lines
 * are appended. */
static int start_journal(struct shard_folder *f, const char *path)
{
    struct output o;
    char *text;
    int rc;

    if ((rc = manifest_text(&f->manifest, true, &text)))
        return rc;
    if (!(rc = output_open(&o, path, true))) {
        fputs(text, o.f);
        for (int i = 0; i < f->manifest.n; i++)
            manifest_put_shard(&f->manifest.shard[i], o.f);
        rc = output_commit(&o);
    }
    free(text);
    if (!rc && !(f->journal = fopen(path, "ae")))
        rc = err_sys("cannot write '%s'", path);
    return rc;
}

static bool has_index(const struct shard_folder *f, int i)
{
    char *shard = path_join(f->c->out, f->manifest.shard[i].name);
    char *path = shard ? shard_index_path(shard) : NULL;
    bool has = path && !access(path, F_OK);

    free(shard);
    free(path);
    return has;
}

/* Checks the shards of a folder without a MANIFEST. Before the repair: there are some, and all
 * are of the kind that these options make. After it (`made`): there are no others than those
 * made. */
static int check_unnamed(const struct shard_folder *f, bool made)
{
    const struct tokjob_config *c = f->c;
    DIR *d = opendir(c->out);
    struct dirent *e;
    int rc = 0, found = 0;

    if (!d)
        return err_sys("cannot open '%s'", c->out);
    while (!rc && (e = readdir(d))) {
        char name[sizeof e->d_name + 8];
        bool shard, temporary, index = text_ends(e->d_name, ".idx");

        tell_name(c, e->d_name, &shard, &temporary);
        found += shard && !index;
        snprintf(name, sizeof name, "%.*s%s", (int)strlen(e->d_name) - 4 * index, e->d_name,
                 !index     ? ""
                 : c->level ? ".bin.zst"
                            : ".bin");
        if (shard && ((index && !c->with_index) || text_ends(name, ".zst") != (c->level > 0) ||
                      (made && shard_folder_find(f, name) < 0)))
            rc = err_set(GPT_INPUT,
                         "%s/%s: is there, but this input and these options do not make "
                         "it",
                         c->out, e->d_name);
    }
    closedir(d);
    if (!rc && !found)
        rc = err_set(GPT_INPUT, "%s: holds neither a MANIFEST nor a shard: nothing to repair",
                     c->out);
    return rc;
}

/* Marks the shards that verification finds damaged, or that lack their index. Without a valid
 * MANIFEST all shards are made again and compared, for nothing else says what they hold. */
static int open_for_repair(struct shard_folder *f, const char *path, const char *partial)
{
    struct manifest old;
    int rc;

    if ((rc = manifest_read(&old, path)) == GPT_INPUT || (rc && access(path, F_OK))) {
        if (!access(partial, F_OK))
            return interrupted(partial);
        f->remaking = true;
        rc = check_unnamed(f, false);
        return rc ? rc : clear_folder(f->c, OLD_KEEP);
    }
    if (rc || (rc = adopt(f, path, &old)))
        return rc;
    if (!(f->damaged = calloc((size_t)f->manifest.n + 1, sizeof *f->damaged)))
        return err_memory();
    for (int i = 0; i < f->manifest.n; i++) {
        rc = shard_verify(f->c->out, &f->manifest, i, true);
        if (rc && rc != GPT_NO)
            return rc;
        f->damaged[i] = rc == GPT_NO || (f->c->with_index && !has_index(f, i));
    }
    return clear_folder(f->c, OLD_KEEP);
}

/* How many shards an interrupted job has finished. Without one, starting again loses nothing. */
static int count_finished(const char *partial, int *n)
{
    struct manifest m;
    int rc = manifest_read_partial(&m, partial);

    *n = rc ? 0 : m.n;
    if (!rc)
        manifest_release(&m);
    return rc;
}

/* The job is complete. If it was killed before it removed its journal, that is removed. */
static int find_complete(struct shard_folder *f, const char *whole, const char *partial)
{
    struct manifest old;
    int rc;

    if ((rc = manifest_read(&old, whole)) || (rc = adopt(f, whole, &old)))
        return rc;
    if (unlink(partial) && errno != ENOENT)
        return err_sys("cannot remove '%s'", partial);
    f->kept = f->manifest.n;
    f->complete = true;
    return 0;
}

static int open_folder(struct shard_folder *f, const char *whole, const char *partial)
{
    const struct tokjob_config *c = f->c;
    bool is_whole, is_partial;
    int rc, finished;

    is_whole = !access(whole, F_OK);
    is_partial = !access(partial, F_OK);
    if (is_whole && c->resume && !c->force)
        return find_complete(f, whole, partial);
    if (is_whole && !c->force)
        return err_set(GPT_SYSTEM, "'%s' exists (--force makes the shards anew)", whole);
    if (is_partial && !c->force && !c->resume) {
        if ((rc = count_finished(partial, &finished)))
            return rc;
        if (finished)
            return interrupted(partial);
    }
    if (is_whole && unlink(whole))
        return err_sys("cannot remove '%s'", whole);
    if (is_partial && c->resume && (rc = take_over(f, partial)))
        return rc;
    if ((rc = clear_folder(c, is_partial && c->resume  ? OLD_KEEP
                              : is_partial || c->force ? OLD_REMOVE
                                                       : OLD_REFUSE)))
        return rc;
    return start_journal(f, partial);
}

int shard_folder_open(struct shard_folder *f, const struct tokjob_config *c)
{
    int rc;

    memset(f, 0, sizeof *f);
    f->c = c;
    f->lock.fd = -1;
    rc = new_manifest(&f->manifest, c);
    if (!rc && c->out && strcmp(c->out, "-")) {
        char *whole = in_folder(c, "MANIFEST"), *partial = in_folder(c, "MANIFEST.partial");

        if (!whole || !partial)
            rc = err_memory();
        else if ((c->repair || !(rc = file_mkdirs(c->out))) &&
                 !(rc = dir_lock_take(&f->lock, c->out)))
            rc = c->repair ? open_for_repair(f, whole, partial) : open_folder(f, whole, partial);
        free(whole);
        free(partial);
    }
    if (rc)
        shard_folder_release(f);
    return rc;
}

int shard_folder_add(struct shard_folder *f, const struct manifest_shard *s)
{
    int rc;

    if ((rc = manifest_add(&f->manifest, s)) || !f->journal)
        return rc;
    manifest_put_shard(s, f->journal);
    if (ferror(f->journal) || fflush(f->journal) || fsync(fileno(f->journal)))
        return err_sys("cannot write '%s/MANIFEST.partial'", f->c->out);
    return 0;
}

/* Order of the MANIFEST's lines: validation first, then by number. */
static int compare_shards(const void *pa, const void *pb)
{
    const struct manifest_shard *a = pa, *b = pb;

    return a->split != b->split ? (a->split == SPLIT_VAL ? -1 : 1) : strcmp(a->name, b->name);
}

int shard_folder_finish(struct shard_folder *f)
{
    struct manifest *m = &f->manifest;
    char *text = NULL, *whole, *partial;
    struct output o;
    int rc;

    m->documents = m->tokens = m->invalid = 0;
    for (int i = 0; i < m->n; i++) {
        m->documents += m->shard[i].documents;
        m->tokens += m->shard[i].tokens;
        m->invalid += m->shard[i].invalid;
    }
    qsort(m->shard, (size_t)m->n, sizeof *m->shard, compare_shards);
    if (!f->journal && !f->remaking)
        return 0;
    if (f->remaking && (rc = check_unnamed(f, true)))
        return rc;
    whole = in_folder(f->c, "MANIFEST");
    partial = in_folder(f->c, "MANIFEST.partial");
    rc = whole && partial ? 0 : err_memory();
    if (!rc) {
        if (!(rc = manifest_text(m, false, &text)) && !(rc = output_open(&o, whole, f->remaking))) {
            fputs(text, o.f);
            rc = output_commit(&o);
        }
        if (!rc && f->journal && unlink(partial))
            rc = err_sys("cannot remove '%s'", partial);
    }
    free(text);
    free(whole);
    free(partial);
    return rc;
}

int shard_folder_find(const struct shard_folder *f, const char *name)
{
    for (int i = 0; i < f->manifest.n; i++)
        if (!strcmp(f->manifest.shard[i].name, name))
            return i;
    return -1;
}

void shard_folder_release(struct shard_folder *f)
{
    free(f->damaged);
    if (f->journal)
        fclose(f->journal);
    manifest_release(&f->manifest);
    dir_lock_release(&f->lock);
    memset(f, 0, sizeof *f);
}
