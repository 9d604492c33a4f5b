/* corpus.c - see corpus.h. */
#include "data/corpus.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/file.h"
#include "base/grow.h"
#include "base/hash.h"
#include "base/le.h"
#include "base/text.h"
#include "base/zio.h"

bool shard_begins(const void *bytes, size_t n)
{
    const unsigned char *b = bytes;

    return n >= 8 && le32(b) == SHARD_MAGIC && le32(b + 4) == SHARD_VERSION;
}

int shard_header_tokens(const void *header, size_t n, const char *path, int64_t *tokens)
{
    const unsigned char *h = header;

    if (n < SHARD_HEADER_BYTES)
        return err_set(GPT_INPUT,
                       "%s: expected a token shard, with a header of 1024 bytes, found %zu; "
                       "gpt-tokshard makes shards of text, gpt-shard(5) of other programs' tokens",
                       path, n);
    if (!shard_begins(h, n))
        return err_set(GPT_INPUT,
                       "%s: offset 0: expected a token shard (numbers %d, %d), found "
                       "%d, %d; gpt-tokshard makes shards of text, gpt-shard(5) of other programs' "
                       "tokens",
                       path, SHARD_MAGIC, SHARD_VERSION, (int32_t)le32(h), (int32_t)le32(h + 4));
    *tokens = (int32_t)le32(h + 8);
    if (*tokens < 0)
        return err_set(GPT_INPUT, "%s: offset 8: expected a number of tokens, found %d", path,
                       (int)*tokens);
    return 0;
}

int shard_check_end(const void *beyond, size_t n, const char *path)
{
    return !shard_begins(beyond, n)
               ? 0
               : err_set(GPT_INPUT,
                         "%s: expected one shard, found another behind it: of several in a file "
                         "all are read with - in its place (-d -) and the file on standard input",
                         path);
}

/* Checks the size of a plain file of `bytes` bytes. */
static int check_size(const char *path, int64_t bytes, int64_t tokens)
{
    int64_t end = SHARD_HEADER_BYTES + 2 * tokens;
    char beyond[8];
    int fd;

    if (bytes < end)
        return err_set(GPT_INPUT, "%s: truncated: expected %lld bytes for %lld tokens, found %lld",
                       path, (long long)end, (long long)tokens, (long long)bytes);
    if (bytes == end)
        return 0;
    if (bytes == SHARD_HEADER_BYTES + 4 * tokens)
        return err_set(GPT_INPUT,
                       "%s: expected %lld tokens of 16 bits, found 32 bits for each: ids that fit "
                       "into 16 can be written so, gpt-shard(5)",
                       path, (long long)tokens);
    if ((fd = open(path, O_RDONLY | O_CLOEXEC)) < 0)
        return err_sys("cannot open '%s'", path);
    ssize_t n = pread(fd, beyond, sizeof beyond, (off_t)end);
    close(fd);
    return n < 0 ? err_sys("cannot read '%s'", path) : shard_check_end(beyond, (size_t)n, path);
}

int shard_check_header(const char *path, int64_t *tokens)
{
    const void *h;
    struct zreader *z;
    struct stat st;
    size_t got;
    int rc;

    if ((rc = zreader_open(&z, path)))
        return rc;
    if (!(rc = zreader_peek(z, SHARD_HEADER_BYTES, &h, &got)))
        rc = shard_header_tokens(h, got, path, tokens);
    bool plain = zreader_plain(z);
    zreader_close(z);
    if (rc || !plain || !strcmp(path, "-")) /* the others' length is known at their end */
        return rc;
    if (stat(path, &st))
        return err_sys("cannot open '%s'", path);
    return S_ISREG(st.st_mode) ? check_size(path, st.st_size, *tokens) : 0;
}

/* Takes what the MANIFEST says of the shard's documents and frames; at most once for a shard. */
static int take_facts(struct corpus_shard *p, const struct manifest_shard *s)
{
    p->documents = s->documents;
    return !s->frames || (p->frames = strdup(s->frames)) ? 0 : err_memory();
}

static int add_shard(struct corpus *c, const char *path, bool val, int64_t tokens, const char *hash)
{
    struct corpus_shard *p;

    if (grow_one(&c->shard, c->n, sizeof *p))
        return GPT_SYSTEM;
    p = &c->shard[c->n];
    if (!(p->path = strdup(path)))
        return err_memory();
    p->name = strrchr(p->path, '/') ? strrchr(p->path, '/') + 1 : p->path;
    p->val = val;
    p->tokens = tokens;
    p->documents = -1;
    p->frames = NULL;
    snprintf(p->hash, sizeof p->hash, "%s", hash);
    c->n++;
    return 0;
}

static int add_other(struct corpus *c, const char *path)
{
    if (grow_one(&c->other, (size_t)c->others, sizeof *c->other))
        return GPT_SYSTEM;
    return (c->other[c->others] = strdup(path)) ? c->others++, 0 : err_memory();
}

static void id_add(struct xxh *x, const char *name, int64_t tokens, const char *hash)
{
    char line[1024];
    int n = snprintf(line, sizeof line, "%s %lld %s\n", name, (long long)tokens, hash);

    xxh_add(x, line, (size_t)n < sizeof line ? (size_t)n : sizeof line - 1);
}

int corpus_check_shard(const char *path, const struct manifest_shard *s)
{
    struct stat st;
    int64_t tokens;
    int rc;

    if (stat(path, &st))
        return errno != ENOENT
                   ? err_sys("cannot open '%s'", path)
                   : err_set(GPT_INPUT, "%s: in the MANIFEST, but there is no such file", path);
    if ((int64_t)st.st_size != s->bytes)
        return err_set(GPT_INPUT, "%s: %s: expected %lld bytes as the MANIFEST says, found %lld",
                       path, st.st_size < s->bytes ? "truncated" : "changed", (long long)s->bytes,
                       (long long)st.st_size);
    if ((rc = shard_check_header(path, &tokens)))
        return rc;
    if (tokens != s->tokens)
        return err_set(GPT_INPUT,
                       "%s: offset 8: expected %lld tokens as the MANIFEST says, found "
                       "%lld",
                       path, (long long)s->tokens, (long long)tokens);
    return 0;
}

static void take_tokenizer(struct corpus *c, const struct manifest *m)
{
    c->bos = (int)m->bos;
    c->vocab_size = (int)m->vocab_size;
    snprintf(c->tokenizer, sizeof c->tokenizer, "%s %s", m->tokenizer, m->vocabulary);
}

/* True if a MANIFEST's tokens are those of c, as far as is known. */
static bool is_tokenizer(const struct corpus *c, const struct manifest *m)
{
    struct corpus other = { 0 };

    take_tokenizer(&other, m);
    return other.bos == c->bos && (!*c->tokenizer || !strcmp(other.tokenizer, c->tokenizer));
}

/* --- which files train and which validate --- */

/* A file that may have several names. */
struct file_id {
    dev_t device;
    ino_t inode;
    int i; /* its shard */
};

static int by_file(const void *a, const void *b)
{
    const struct file_id *x = a, *y = b;

    return x->device != y->device ? x->device < y->device ? -1 : 1
           : x->inode != y->inode ? x->inode < y->inode ? -1 : 1
                                  : 0;
}

static int by_file_and_shard(const void *a, const void *b)
{
    const struct file_id *x = a, *y = b;
    int order = by_file(a, b);

    return order ? order : x->i - y->i;
}

static bool identify(const char *path, int i, struct file_id *f)
{
    struct stat st;

    if (stat(path, &st))
        return false;
    *f = (struct file_id){ st.st_dev, st.st_ino, i };
    return true;
}

/* Files by device and inode, sorted. */
struct files {
    struct file_id *file;
    size_t n;
};

/* Lists the files of c's shards that can be looked up; the caller frees e->file. */
static int identify_all(const struct corpus *c, struct files *e)
{
    *e = (struct files){ .file = calloc((size_t)c->n + 1, sizeof *e->file) };
    if (!e->file)
        return err_memory();
    for (int i = 0; i < c->n; i++)
        e->n += identify(c->shard[i].path, i, &e->file[e->n]);
    qsort(e->file, e->n, sizeof *e->file, by_file_and_shard);
    return 0;
}

static int open_one(struct corpus *c, const char *data, enum split split,
                    const struct corpus_choice *choice, const struct files *val);

static int find_elsewhere(struct files *e, const struct corpus_choice *choice)
{
    struct corpus c;
    int rc;

    *e = (struct files){ 0 };
    if (!choice->val || choice->old)
        return 0;
    if ((rc = open_one(&c, choice->val, SPLIT_ONLY_VAL, &(struct corpus_choice){ 0 }, e)))
        return rc;
    rc = identify_all(&c, e);
    corpus_release(&c);
    return rc;
}

static bool is_elsewhere(const struct files *e, const char *path)
{
    struct file_id f;

    return e->n && identify(path, 0, &f) && bsearch(&f, e->file, e->n, sizeof f, by_file);
}

static bool word_in(const char *word, size_t n, const char *const *list)
{
    for (; *list; list++)
        if (strlen(*list) == n && !strncasecmp(word, *list, n))
            return true;
    return false;
}

/* The role that the last word of a name marks: a word is letters alone. */
static enum corpus_role name_role(const char *name, size_t n)
{
    static const char *const train[] = { "train", "training", NULL };
    static const char *const val[] = { "val", "valid", "validation", NULL };
    static const char *const test[] = { "test", NULL };
    static const char *const no[] = { "bin",  "zst",   "gz",    "idx", "of",
                                      "part", "shard", "chunk", NULL };
    enum corpus_role role = ROLE_UNMARKED;

    for (size_t i = 0; i < n;) {
        size_t k = i;

        while (k < n && isalpha((unsigned char)name[k]))
            k++;
        if (k > i && !word_in(name + i, k - i, no))
            role = word_in(name + i, k - i, train)  ? ROLE_TRAIN
                   : word_in(name + i, k - i, val)  ? ROLE_VAL
                   : word_in(name + i, k - i, test) ? ROLE_TEST
                                                    : ROLE_UNMARKED;
        i = k > i ? k : k + 1;
    }
    return role;
}

static const char *base_name(const char *path)
{
    return strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
}

enum corpus_role corpus_role(const char *path)
{
    const char *name = base_name(path), *folder = name > path ? name - 1 : path;
    enum corpus_role role = name_role(name, strlen(name));
    size_t n = 0;

    if (role)
        return role;
    while (folder > path && folder[-1] != '/')
        folder--, n++;
    return name_role(folder, n);
}

/* True if a file named so is of that split by the rule of older versions. */
static bool is_of_old(const char *path, size_t i, size_t n, bool named, enum split split)
{
    const char *name = base_name(path);
    bool val = named ? strstr(name, "_val_") != NULL : n > 1 && i == 0;
    bool train = named ? strstr(name, "_train_") != NULL : !val;

    return split == SPLIT_TRAIN ? train : split == SPLIT_VAL ? val : true;
}

static bool any_named(char **path, size_t n)
{
    bool named = false;

    for (size_t i = 0; i < n; i++)
        named |= strstr(base_name(path[i]), "_val_") || strstr(base_name(path[i]), "_train_");
    return named;
}

/* True if a file of this role, among n with so many of each role, is of that split. */
static bool is_of(enum corpus_role role, size_t n, const int *count, enum split split,
                  bool elsewhere)
{
    enum corpus_role val = count[ROLE_VAL] ? ROLE_VAL : ROLE_TEST;

    switch (split) {
    case SPLIT_TRAIN:
        return n == 1 || (!elsewhere && (role == ROLE_TRAIN || role == ROLE_UNMARKED));
    case SPLIT_VAL: return role == val;
    case SPLIT_ONLY_VAL: return n == 1 || role == (count[val] ? val : ROLE_UNMARKED);
    default: return true;
    }
}

/* Refuses files of which it is not known whether they train. */
static int check_known(const char *data, char **path, size_t n, const int *count,
                       const struct corpus_choice *choice)
{
    size_t i = 0;
    int64_t tokens;
    int rc;

    if (!choice->wants_val)
        return 0;
    if (n == 1 && (count[ROLE_VAL] || count[ROLE_TEST]))
        return err_set(
            GPT_INPUT,
            "%s: expected training shards beside those of validation, found one file, "
            "marked as validation: name it with --val, too, or train without validation: "
            "-s data.val_tokens=0",
            data);
    if (!count[ROLE_UNMARKED])
        return 0;
    while (corpus_role(path[i]))
        i++;
    if ((rc = shard_check_header(path[i], &tokens))) /* no shard at all */
        return rc;
    return err_set(
        GPT_INPUT,
        "%s: expected a mark of training or validation in each name, of %zu file%s found "
        "%d without (%s%s): --val FILE says which validates, -s data.val_tokens=0 trains "
        "without",
        data, n, n == 1 ? "" : "s", count[ROLE_UNMARKED], base_name(path[i]),
        count[ROLE_UNMARKED] > 1 ? ", ..." : "");
}

static int add_files(struct corpus *c, const char *data, char **path, size_t n, enum split split,
                     const struct corpus_choice *choice, const struct files *val, struct xxh *x)
{
    bool named = any_named(path, n);
    int count[4] = { 0 }, rc = 0;

    for (size_t i = 0; i < n; i++)
        count[corpus_role(path[i])]++;
    if (split == SPLIT_TRAIN && !choice->old)
        rc = check_known(data, path, n, count, choice);
    for (size_t i = 0; i < n && !rc; i++) {
        int64_t tokens;

        if (choice->old ? !is_of_old(path[i], i, n, named, split)
                        : !is_of(corpus_role(path[i]), n, count, split, is_elsewhere(val, path[i])))
            rc = add_other(c, path[i]);
        else if (!(rc = shard_check_header(path[i], &tokens)) &&
                 !(rc = add_shard(c, path[i], corpus_role(path[i]) > ROLE_TRAIN, tokens, "")))
            id_add(x, base_name(path[i]), tokens, "-");
    }
    return rc;
}

/* --- opening --- */

static int add_listed(struct corpus *c, const char *dir, const struct manifest *m, enum split split,
                      const struct files *val, struct xxh *x)
{
    int left = 0, rc = 0;

    for (int i = 0; i < m->n; i++)
        left += m->shard[i].split == SPLIT_TRAIN;
    for (int i = 0; i < m->n && !rc; i++) {
        const struct manifest_shard *s = &m->shard[i];
        bool train = s->split == SPLIT_TRAIN;
        char *path = path_join(dir, s->name);

        if (!path)
            rc = err_memory();
        else if (split != SPLIT_ALL && train != (split == SPLIT_TRAIN))
            ;
        else if (split == SPLIT_TRAIN && left > 1 && is_elsewhere(val, path))
            rc = add_other(c, path);
        else if (!(rc = corpus_check_shard(path, s)) &&
                 !(rc = add_shard(c, path, !train, s->tokens, s->hash)) &&
                 !(rc = take_facts(&c->shard[c->n - 1], s)))
            id_add(x, s->name, s->tokens, s->hash);
        free(path);
    }
    return rc;
}

/* Adds to `other` the shards in dir that its MANIFEST does not name. */
static int add_strays(struct corpus *c, const char *dir, const struct manifest *m)
{
    char **name;
    int n, rc = manifest_strays(m, dir, &name, &n);

    for (int i = 0; i < n; i++) {
        if (!rc && !text_ends(name[i], ".idx")) {
            char *path = path_join(dir, name[i]);
            rc = path ? add_other(c, path) : err_memory();
            free(path);
        }
        free(name[i]);
    }
    free(name);
    return rc;
}

static int open_folder(struct corpus *c, const char *dir, enum split split, const struct files *val,
                       struct xxh *x)
{
    struct manifest m;
    int rc = manifest_read_in(&m, dir, "'");

    if (rc)
        return rc;
    take_tokenizer(c, &m);
    rc = add_listed(c, dir, &m, split, val, x);
    if (!rc && split == SPLIT_TRAIN)
        rc = add_strays(c, dir, &m);
    manifest_release(&m);
    return rc;
}

static bool same_folder(const struct corpus_shard *a, const struct corpus_shard *b)
{
    size_t n = (size_t)(a->name - a->path);

    return (size_t)(b->name - b->path) == n && !memcmp(a->path, b->path, n);
}

/* Paths, sorted. */
struct paths {
    struct path_of {
        const char *path;
        int i; /* its shard */
    } * of;
    size_t n;
};

static int by_path(const void *a, const void *b)
{
    return strcmp(((const struct path_of *)a)->path, ((const struct path_of *)b)->path);
}

/* Adds the shards of c, which may be NULL, to a list that has room for them. */
static void add_paths(struct paths *p, const struct corpus *c)
{
    for (int i = 0; c && i < c->n; i++)
        p->of[p->n++] = (struct path_of){ c->shard[i].path, i };
}

static void sort_paths(struct paths *p) { qsort(p->of, p->n, sizeof *p->of, by_path); }

static const struct path_of *find_path(const struct paths *p, const char *path)
{
    struct path_of key = { path, 0 };

    return bsearch(&key, p->of, p->n, sizeof key, by_path);
}

/* Finds the shard of c in the folder of `first` that a line of the MANIFEST there means; *found NULL: there is none. */
static int named_in(struct corpus *c, const struct paths *paths, const struct corpus_shard *first,
                    const struct manifest_shard *s, struct corpus_shard **found)
{
    char *path;

    if (asprintf(&path, "%.*s%s", (int)(first->name - first->path), first->path, s->name) < 0)
        return err_memory();
    const struct path_of *at = find_path(paths, path);
    *found = at ? &c->shard[at->i] : NULL;
    free(path);
    return 0;
}

/* Takes from the MANIFEST at path, in the folder of `first`, what it says of the shards that it names. */
static int take_beside(struct corpus *c, const struct paths *paths,
                       const struct corpus_shard *first, const char *path)
{
    struct manifest m;
    bool named = false;
    int rc = manifest_read(&m, path);

    if (rc)
        return rc;
    for (int i = 0; i < m.n && !rc; i++) {
        struct corpus_shard *p = NULL;

        rc = named_in(c, paths, first, &m.shard[i], &p);
        named |= p != NULL;
        if (p && p->tokens == m.shard[i].tokens && !p->frames)
            rc = take_facts(p, &m.shard[i]);
    }
    if (named && !rc && first == c->shard)
        take_tokenizer(c, &m);
    else if (named && !rc && !is_tokenizer(c, &m))
        rc = err_set(
            GPT_INPUT,
            "%s: expected shards of one tokenizer, '%s', whose documents start with %d, found "
            "'%s %s' and %lld",
            path, *c->tokenizer ? c->tokenizer : "not known", c->bos, m.tokenizer, m.vocabulary,
            (long long)m.bos);
    manifest_release(&m);
    return rc;
}

/* Files that are named may still stand beside the MANIFEST that names them too:
 * then it says which tokens they hold, and their hashes. */
static int look_beside(struct corpus *c)
{
    struct paths paths = { .of = malloc((size_t)c->n * sizeof *paths.of) };
    int rc = paths.of ? 0 : err_memory();

    if (!rc) {
        add_paths(&paths, c);
        sort_paths(&paths);
    }
    for (int i = 0; i < c->n && !rc; i++) {
        const struct corpus_shard *s = &c->shard[i];
        char *path;

        if (i && same_folder(s, s - 1)) /* they are sorted by their paths */
            continue;
        if (asprintf(&path, "%.*sMANIFEST", (int)(s->name - s->path), s->path) < 0) {
            rc = err_memory();
            break;
        }
        if (!access(path, R_OK))
            rc = take_beside(c, &paths, s, path);
        free(path);
    }
    free(paths.of);
    return rc;
}

static int open_pattern(struct corpus *c, const char *pattern, enum split split,
                        const struct corpus_choice *choice, const struct files *val, struct xxh *x)
{
    glob_t g;
    int rc, e = glob(pattern, GLOB_TILDE, NULL, &g);

    if (e == GLOB_NOMATCH)
        return err_set(GPT_SYSTEM, "cannot open '%s': No such file or directory", pattern);
    if (e)
        return err_set(GPT_SYSTEM, "cannot list '%s'", pattern);
    rc = add_files(c, pattern, g.gl_pathv, g.gl_pathc, split, choice, val, x);
    globfree(&g);
    return rc;
}

/* The message of a corpus without a shard. */
static int none_of(enum split split, const char *data, bool left_out)
{
    if (split == SPLIT_ALL)
        return err_set(GPT_INPUT, "%s: expected shards, found none", data);
    if (split != SPLIT_TRAIN)
        return err_set(GPT_INPUT,
                       "%s: expected a validation shard, found none: name one with --val, make the "
                       "shards with gpt-tokshard --val-tokens N, or train without validation: "
                       "-s data.val_tokens=0",
                       data);
    return err_set(GPT_INPUT,
                   left_out
                       ? "%s: expected a training shard, found none: all are for validation, by "
                         "their names or by --val"
                       : "%s: expected a training shard, found none: make the shards of more "
                         "text, or with less of it for validation",
                   data);
}

static int open_one(struct corpus *c, const char *data, enum split split,
                    const struct corpus_choice *choice, const struct files *val)
{
    struct stat st;
    struct xxh x;
    int rc;

    memset(c, 0, sizeof *c);
    c->bos = CORPUS_BOS;
    if ((rc = xxh_init(&x)))
        return rc;
    if (!stat(data, &st) && S_ISDIR(st.st_mode)) {
        rc = open_folder(c, data, split, val, &x);
    } else {
        rc = stat(data, &st) ? open_pattern(c, data, split, choice, val, &x)
                             : add_files(c, data, (char **)&data, 1, split, choice, val, &x);
        if (!rc && c->n)
            rc = look_beside(c);
    }
    if (!rc && !c->n)
        rc = none_of(split, data, c->others);
    xxh_hex(&x, c->id);
    xxh_release(&x);
    if (rc)
        corpus_release(c);
    return rc;
}

int corpus_open(struct corpus *c, const char *data, enum split split,
                const struct corpus_choice *choice)
{
    static const struct corpus_choice none;
    struct files val = { 0 };
    int rc;

    memset(c, 0, sizeof *c);
    if (!choice)
        choice = &none;
    rc = split == SPLIT_TRAIN ? find_elsewhere(&val, choice) : 0;
    if (!rc)
        rc = open_one(c, data, split, choice, &val);
    free(val.file);
    return rc;
}

bool corpus_twice(const struct corpus *c, int *a, int *b)
{
    struct files e;
    bool found = false;

    if (identify_all(c, &e))
        return false;
    for (size_t k = 1; k < e.n; k++) {
        const struct file_id *f = &e.file[k - 1];

        if (!by_file(f, f + 1) && (!found || f[1].i < *b)) {
            *a = f[0].i, *b = f[1].i;
            found = true;
        }
    }
    free(e.file);
    return found;
}

int corpus_shared(const struct corpus *train, const struct corpus *val)
{
    struct files e;
    int i = 0;

    if (identify_all(val, &e))
        return -1;
    while (i < train->n && !is_elsewhere(&e, train->shard[i].path))
        i++;
    free(e.file);
    return i < train->n ? i : -1;
}

static bool has_id(const char *data, const struct corpus_choice *choice, const char *id)
{
    struct corpus c;
    bool same = !corpus_open(&c, data, SPLIT_TRAIN, choice) && !strcmp(c.id, id);

    corpus_release(&c);
    return same;
}

bool corpus_was_old(const char *data, const struct corpus_choice *choice, const char *id)
{
    struct corpus_choice old = *choice;

    old.old = true;
    return !has_id(data, choice, id) && has_id(data, &old, id);
}

/* The text of a list of n names, as far as it has room. */
struct names {
    char *text;
    size_t size, at;
    int n, shown;
    const char *last;
};

static void name_one(struct names *l, const char *name)
{
    enum { MOST = 8 };

    l->last = name;
    if (l->n++ >= MOST || l->at >= l->size)
        return;
    l->at +=
        (size_t)snprintf(l->text + l->at, l->size - l->at, "%s%s", l->shown++ ? " " : "", name);
}

static void name_rest(const struct names *l)
{
    if (l->n > l->shown && l->at < l->size)
        snprintf(l->text + l->at, l->size - l->at, " ... %s (%d files)", l->last, l->n);
}

void corpus_names(const struct corpus *c, char *text, size_t size)
{
    struct names l = { .text = text, .size = size };

    *text = 0;
    for (int i = 0; i < c->n; i++)
        name_one(&l, c->shard[i].name);
    name_rest(&l);
}

int corpus_unused(const struct corpus *train, const struct corpus *val, char *text, size_t size)
{
    struct names l = { .text = text, .size = size };
    size_t room = (size_t)train->n + (size_t)train->others + (val ? (size_t)val->n : 0);
    struct paths known = { .of = malloc(room * sizeof *known.of) };

    *text = 0;
    if (known.of) {
        add_paths(&known, train);
        add_paths(&known, val);
    }
    for (int k = 0; known.of && k < 2; k++) {
        const struct corpus *c = k ? val : train;

        sort_paths(&known);
        for (int i = 0; c && i < c->others; i++)
            if (!find_path(&known, c->other[i]))
                name_one(&l, base_name(c->other[i]));
        for (int i = 0; !k && i < train->others; i++) /* named once */
            known.of[known.n++] = (struct path_of){ train->other[i], 0 };
    }
    free(known.of);
    name_rest(&l);
    return l.n;
}

void corpus_release(struct corpus *c)
{
    for (int i = 0; i < c->n; i++) {
        free(c->shard[i].path);
        free(c->shard[i].frames);
    }
    for (int i = 0; i < c->others; i++)
        free(c->other[i]);
    free(c->other);
    free(c->shard);
    memset(c, 0, sizeof *c);
}

int corpus_check_vocab(const struct corpus *c, const char *data, int vocab, int bos)
{
    if (c->vocab_size > vocab)
        return err_set(GPT_INPUT,
                       "%s: expected tokens for a model of %d ids, found a vocabulary of %d", data,
                       vocab, c->vocab_size);
    if (bos >= vocab)
        return err_set(GPT_INPUT,
                       "%s: expected a document start below the model's %d ids, found %d", data,
                       vocab, bos);
    return 0;
}
