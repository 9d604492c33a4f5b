/* shard_folder.c - the folder that shards are written to, and what it says of
 * itself while the work goes on. */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/version.h"
#include "data/shard_verify.h"
#include "data/tokjob_impl.h"
#include "data/unicode.h"

static int no_memory(void)
{
    return err_set(GPT_SYSTEM, "out of memory for the manifest");
}

static char *in_folder(const struct tokjob_config *c, const char *name)
{
    return path_join(c->out, name);
}

/* Everything that the bytes depend on, but for the input. */
static char *settings_text(const struct tokjob_config *c)
{
    static const char *const invalid[] = { "replace", "bytes", "error" };
    char *s;
    int n = asprintf(&s, "shard-tokens=%lld level=%d prefix=%s field=%s invalid=%s split=%.17g "
                     "val-tokens=%lld val-first=%lld shuffle=", (long long)c->shard_tokens,
                     c->level, c->prefix, c->encode.field, invalid[c->encode.invalid],
                     c->encode.val_fraction, (long long)c->val_tokens,
                     (long long)c->val_first_tokens), m;
    char *whole = NULL;

    if (n < 0)
        return NULL;
    m = c->shuffle ? asprintf(&whole, "%s%llu", s, (unsigned long long)c->seed)
                   : asprintf(&whole, "%sno", s);
    free(s);
    return m < 0 ? NULL : whole;
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
         ? 0 : no_memory();
}

/* Names the first word in which two lists of settings differ. */
static int differs(const char *path, const char *expected, const char *found)
{
    const char *a = expected, *b = found;

    while (*a && *b && strcspn(a, " ") == strcspn(b, " ") && !strncmp(a, b, strcspn(a, " "))) {
        a += strcspn(a, " ");
        b += strcspn(b, " ");
        a += *a == ' ';
        b += *b == ' ';
    }
    return err_set(GPT_INPUT,
                   "%s: expected '%.*s' as this command has it, found '%.*s': the options "
                   "must be those that made the shards", path, (int)strcspn(a, " "), a,
                   (int)strcspn(b, " "), b);
}

/* Takes over the manifest of an earlier run, if it was the same job. */
static int adopt(struct shard_folder *f, const char *path, struct manifest *old)
{
    struct manifest *m = &f->manifest;
    int rc = 0;

    if (strcmp(m->vocabulary, old->vocabulary))
        rc = differs(path, m->vocabulary, old->vocabulary);
    else if (strcmp(m->unicode, old->unicode))
        rc = differs(path, m->unicode, old->unicode);
    else if (strcmp(m->settings, old->settings))
        rc = differs(path, m->settings, old->settings);
    manifest_release(rc ? old : m);
    if (!rc)
        *m = *old;
    return rc;
}

/* What an interrupted job left. */
static int take_over(struct shard_folder *f, const char *path)
{
    struct manifest old, *m = &f->manifest;
    int rc;

    if ((rc = manifest_read_partial(&old, path)) || (rc = adopt(f, path, &old)))
        return rc;
    f->kept = m->n;
    for (int i = 0; i < m->n && !rc; i++) {
        char *shard = path_join(f->c->out, m->shard[i].name);
        struct stat st;

        if (!shard)
            rc = no_memory();
        else if (stat(shard, &st) || st.st_size != m->shard[i].bytes)
            rc = err_set(GPT_INPUT, "%s: expected %lld bytes as '%s' says: damaged since; --force "
                         "starts again", shard, (long long)m->shard[i].bytes, path);
        free(shard);
    }
    return rc;
}

/* Removes temporary files that a killed job left, and with `all` the shards too. */
static int remove_old(const struct tokjob_config *c, bool all)
{
    DIR *d = opendir(c->out);
    size_t n = strlen(c->prefix);
    struct dirent *e;
    int rc = 0;

    if (!d)
        return err_sys("cannot open '%s'", c->out);
    while (!rc && (e = readdir(d))) {
        const char *s = e->d_name, *bin = strstr(s, ".bin") ? strstr(s, ".bin")
                                                  : strstr(s, ".idx");
        bool ours = !strncmp(s, c->prefix, n)
                    && (!strncmp(s + n, "_train_", 7) || !strncmp(s + n, "_val_", 5)) && bin;
        bool temporary = strlen(s) > 4 && !strcmp(s + strlen(s) - 4, ".tmp");
        bool shard = ours && (!strcmp(bin, ".bin") || !strcmp(bin, ".bin.zst")
                              || !strcmp(bin, ".idx"));
        bool journal = !strncmp(s, "MANIFEST.", 9);

        if (((ours || journal) && temporary) || (all && shard)) {
            char *path = path_join(c->out, s);

            rc = !path ? no_memory() : unlink(path) ? err_sys("cannot remove '%s'", path) : 0;
            free(path);
        }
    }
    closedir(d);
    return rc;
}

/* The journal as it stands is replaced at once, for it may be what an earlier
 * run left; then it is appended to. */
static int start_journal(struct shard_folder *f, const char *path)
{
    struct output o;
    char *text;
    int rc;

    if ((rc = manifest_text(&f->manifest, true, &text)))
        return rc;
    if (!(rc = output_open(&o, path, true))) {
        fputs(text, o.f);
        for (int i = 0; i < f->manifest.n; i++) {
            char line[1024];

            manifest_shard_line(&f->manifest.shard[i], line, sizeof line);
            fprintf(o.f, "%s\n", line);
        }
        rc = output_commit(&o);
    }
    free(text);
    if (!rc && !(f->journal = fopen(path, "ae")))
        rc = err_sys("cannot write '%s'", path);
    return rc;
}

/* Everything is there but what verifying finds damaged. */
static int open_for_repair(struct shard_folder *f, const char *path)
{
    struct manifest old;
    int rc;

    if ((rc = manifest_read(&old, path)) || (rc = adopt(f, path, &old)))
        return rc;
    if (!(f->damaged = calloc((size_t)f->manifest.n + 1, sizeof *f->damaged)))
        return no_memory();
    for (int i = 0; i < f->manifest.n; i++) {
        rc = shard_verify(f->c->out, &f->manifest, i, true);
        if (rc && rc != GPT_NO)
            return rc;
        f->damaged[i] = rc == GPT_NO;
    }
    return remove_old(f->c, false);
}

/* A job that was interrupted before its first shard left nothing to protect. */
static int forget_empty(const char *partial, bool *is_partial)
{
    struct manifest m;
    int rc = manifest_read_partial(&m, partial);

    if (rc)
        return rc;
    *is_partial = m.n > 0;
    manifest_release(&m);
    return 0;
}

static int open_folder(struct shard_folder *f, const char *whole, const char *partial)
{
    const struct tokjob_config *c = f->c;
    bool is_whole, is_partial;
    int rc;

    if ((rc = file_mkdirs(c->out)))
        return rc;
    is_whole = !access(whole, F_OK);
    is_partial = !access(partial, F_OK);
    if (is_partial && !c->resume && !c->force && (rc = forget_empty(partial, &is_partial)))
        return rc;
    if (is_whole && !c->force)
        return err_set(GPT_SYSTEM, "'%s' exists (--force makes the shards anew)", whole);
    if (is_partial && !c->force && !c->resume)
        return err_set(GPT_SYSTEM, "'%s' is of an interrupted job (--resume continues it, --force "
                       "starts again)", partial);
    if (is_whole && unlink(whole))
        return err_sys("cannot remove '%s'", whole);
    if (is_partial && c->resume && (rc = take_over(f, partial)))
        return rc;
    if ((rc = remove_old(c, is_whole || (is_partial && !c->resume))))
        return rc;
    return start_journal(f, partial);
}

int folder_open(struct shard_folder *f, const struct tokjob_config *c)
{
    int rc;

    memset(f, 0, sizeof *f);
    f->c = c;
    rc = new_manifest(&f->manifest, c);
    if (!rc && c->out && strcmp(c->out, "-")) {
        char *whole = in_folder(c, "MANIFEST"), *partial = in_folder(c, "MANIFEST.partial");

        if (!whole || !partial)
            rc = no_memory();
        else
            rc = c->repair ? open_for_repair(f, whole) : open_folder(f, whole, partial);
        free(whole);
        free(partial);
    }
    if (rc)
        folder_release(f);
    return rc;
}

int folder_add(struct shard_folder *f, const struct manifest_shard *s)
{
    char line[1024];
    int rc;

    if ((rc = manifest_add(&f->manifest, s)) || !f->journal)
        return rc;
    manifest_shard_line(s, line, sizeof line);
    if (fprintf(f->journal, "%s\n", line) < 0 || fflush(f->journal) || fsync(fileno(f->journal)))
        return err_sys("cannot write '%s/MANIFEST.partial'", f->c->out);
    return 0;
}

/* Validation first, then by number: not in the order in which they were done. */
static int compare_shards(const void *pa, const void *pb)
{
    const struct manifest_shard *a = pa, *b = pb;

    return a->split != b->split ? (a->split == SPLIT_VAL ? -1 : 1) : strcmp(a->name, b->name);
}

int folder_finish(struct shard_folder *f)
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
    if (!f->journal)
        return 0;
    whole = in_folder(f->c, "MANIFEST");
    partial = in_folder(f->c, "MANIFEST.partial");
    rc = whole && partial ? 0 : no_memory();
    if (!rc) {
        if (!(rc = manifest_text(m, false, &text)) && !(rc = output_open(&o, whole, false))) {
            fputs(text, o.f);
            rc = output_commit(&o);
        }
        if (!rc && unlink(partial))
            rc = err_sys("cannot remove '%s'", partial);
    }
    free(text);
    free(whole);
    free(partial);
    return rc;
}

int folder_find(const struct shard_folder *f, const char *name)
{
    for (int i = 0; i < f->manifest.n; i++)
        if (!strcmp(f->manifest.shard[i].name, name))
            return i;
    return -1;
}

void folder_release(struct shard_folder *f)
{
    free(f->damaged);
    if (f->journal)
        fclose(f->journal);
    manifest_release(&f->manifest);
    memset(f, 0, sizeof *f);
}
