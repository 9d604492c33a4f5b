#include "checkpoint/checkpoint_manifest.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "base/grow.h"
#include "base/hash.h"

#define FORMAT 1

/* --- reading --- */

/* A line being parsed; its text is changed in place. */
struct line {
    const char *path;
    int number;
    char *rest;
};

static int bad(const struct line *l, const char *expected, const char *found)
{
    return err_set(GPT_INPUT, "%s: line %d: expected %s, found '%s'", l->path, l->number, expected,
                   found);
}

/* The next word; "" at the end. */
static char *word(struct line *l)
{
    char *s = l->rest, *end = strchr(s, ' ');
    if (end)
        *end = 0;
    l->rest = end ? end + 1 : s + strlen(s);
    return s;
}

static int whole(const struct line *l, const char *s, const char *what, int64_t least, int64_t *out)
{
    int64_t v = 0;
    if (!*s || strlen(s) > 18 || s[strspn(s, "0123456789")])
        return bad(l, what, s);
    for (const char *p = s; *p; p++)
        v = 10 * v + (*p - '0');
    *out = v;
    return v < least ? bad(l, what, s) : 0;
}

static int take_whole(struct line *l, const char *what, int64_t *out)
{
    return whole(l, word(l), what, 0, out);
}

static int take_hash(struct line *l, char out[33])
{
    const char *s = word(l);
    if (strlen(s) != 32 || strspn(s, "0123456789abcdef") != 32)
        return bad(l, "an XXH3 of 32 hexadecimal digits", s);
    memcpy(out, s, 33);
    return 0;
}

static int at_end(const struct line *l)
{
    return *l->rest ? bad(l, "the end of the line", l->rest) : 0;
}

/* Another element of an array (grow.h) of *n: zeroed and counted; NULL when out of memory. */
static void *more(void *array, int *n, size_t size)
{
    char *v;
    if (grow_one(array, *n, size))
        return NULL;
    memcpy(&v, array, sizeof v);
    return memset(v + size * (size_t)(*n)++, 0, size);
}

static int parse_file(struct ckpt_manifest *m, struct line *l)
{
    int64_t bytes;
    char *name = word(l);
    if (!*name || strchr(name, '/') || name[0] == '.')
        return bad(l, "the name of a file", name);
    for (int i = 0; i < m->nfiles; i++)
        if (!strcmp(m->files[i].name, name))
            return bad(l, "each file once", name);
    struct ckpt_file *v = more(&m->files, &m->nfiles, sizeof *v);
    if (!v)
        return GPT_SYSTEM;
    if (!(v->name = strdup(name)))
        return err_memory();
    int rc = take_whole(l, "a number of bytes", &bytes);
    if (!rc)
        rc = take_hash(l, v->hash);
    v->bytes = rc ? 0 : (uint64_t)bytes;
    return rc ? rc : at_end(l);
}

static int parse_state(struct ckpt_manifest *m, struct line *l)
{
    char *key = word(l);
    if (!*key)
        return bad(l, "a key", key);
    if (ckpt_info_state(&m->info, key))
        return bad(l, "each key once", key);
    struct ckpt_kv *v = more(&m->info.state, &m->info.nstate, sizeof *v);
    if (!v)
        return GPT_SYSTEM;
    v->key = strdup(key);
    v->value = strdup(l->rest);
    return v->key && v->value ? 0 : err_memory();
}

static int parse_shape(struct line *l, struct ckpt_entry *e)
{
    char *s = word(l);
    uint64_t total = dtype_size(e->dtype);
    while (s) {
        char *x = strchr(s, 'x');
        if (x)
            *x++ = 0;
        if (e->rank == CKPT_MAX_RANK)
            return bad(l, "at most 4 axes", x ? x : s);
        int rc = whole(l, s, "a shape like 40x768x768", 1, &e->shape[e->rank]);
        if (rc)
            return rc;
        if (e->rank > 0)
            e->unit_bytes *= (uint64_t)e->shape[e->rank];
        else
            e->unit_bytes = total;
        if (__builtin_mul_overflow(total, (uint64_t)e->shape[e->rank++], &total) ||
            total > INT64_MAX)
            return bad(l, "a shape below 2^63 bytes", s);
        s = x;
    }
    return 0;
}

static bool same_tensor(const struct ckpt_entry *a, const struct ckpt_entry *b)
{
    return a->dtype == b->dtype && a->rank == b->rank &&
           !memcmp(a->shape, b->shape, sizeof a->shape);
}

/* tensor NAME DTYPE SHAPE BEGIN COUNT FILE AT HASH; the lines of one tensor follow each other. */
static int parse_tensor(struct ckpt_manifest *m, struct line *l)
{
    struct ckpt_entry e = { 0 };
    struct ckpt_piece p = { .file = -1 };
    int64_t at;
    char *name = word(l), *type, *file;
    const char *dot = strchr(name, '.');
    int rc;
    if (!dot || dot == name || !dot[1])
        return bad(l, "a tensor's name, parameter.kind", name);
    type = word(l);
    if ((e.dtype = dtype_parse(type)) == DT_NONE)
        return bad(l, "a dtype", type);
    if ((rc = parse_shape(l, &e)) || (rc = take_whole(l, "the first unit", &p.begin)) ||
        (rc = whole(l, word(l), "a number of units", 1, &p.count)))
        return rc;
    file = word(l);
    for (int i = 0; i < m->nfiles; i++)
        if (!strcmp(m->files[i].name, file))
            p.file = i;
    if (p.file < 0)
        return bad(l, "a file listed above", file);
    if ((rc = take_whole(l, "an offset", &at)) || (rc = take_hash(l, p.hash)) || (rc = at_end(l)))
        return rc;
    p.at = (uint64_t)at;
    struct ckpt_entry *last = m->nentries ? &m->entries[m->nentries - 1] : NULL;
    int order = last ? strcmp(last->name, name) : -1;
    if (order > 0)
        return bad(l, "tensors by name", name);
    if (order < 0) {
        if (!(last = more(&m->entries, &m->nentries, sizeof *last)))
            return GPT_SYSTEM;
        *last = e;
        if (!(last->name = strdup(name)))
            return err_memory();
    } else if (!same_tensor(last, &e)) {
        return bad(l, "the same dtype and shape as in the line before", name);
    }
    struct ckpt_piece *v = more(&last->pieces, &last->npieces, sizeof *v);
    if (!v)
        return GPT_SYSTEM;
    *v = p;
    return 0;
}

/* The pieces, in order, cover it without gap or overlap. */
static int check_cover(const struct ckpt_entry *e, const char *path)
{
    int64_t at = 0;
    for (int i = 0; i < e->npieces; i++) {
        if (e->pieces[i].begin != at)
            return err_set(GPT_INPUT,
                           "%s: tensor '%s': expected a piece from unit %" PRId64
                           " on, found one from %" PRId64,
                           path, e->name, at, e->pieces[i].begin);
        if (e->pieces[i].count > e->shape[0] - at)
            return err_set(GPT_INPUT,
                           "%s: tensor '%s': its pieces go to unit %" PRId64 " of %" PRId64, path,
                           e->name, at + e->pieces[i].count, e->shape[0]);
        at += e->pieces[i].count;
    }
    if (at != e->shape[0])
        return err_set(GPT_INPUT, "%s: tensor '%s': its pieces end at unit %" PRId64 " of %" PRId64,
                       path, e->name, at, e->shape[0]);
    return 0;
}

/* "KEY rest" for the head lines, which come once and in this order. */
static int parse_head(struct ckpt_manifest *m, struct line *l, const char *key)
{
    static const char *const order[] = { "tool", "step", "tokens", "ranks" };
    int i = l->number - 2;
    int64_t v;
    if (strcmp(key, order[i]))
        return bad(l, order[i], key);
    if (i == 0)
        return (m->info.tool = strdup(l->rest)) ? 0 : err_memory();
    int rc = take_whole(l, "a whole number", &v);
    if (rc || (rc = at_end(l)))
        return rc;
    if (i == 1)
        m->info.step = v;
    else if (i == 2)
        m->info.tokens = v;
    else if (v < 1 || v > CKPT_MAX_RANKS)
        return bad(l, "a number of ranks", key);
    else
        m->info.ranks = (int)v;
    return 0;
}

static int parse_line(struct ckpt_manifest *m, struct line *l)
{
    char first[32];
    snprintf(first, sizeof first, "gpt checkpoint %d", FORMAT);
    if (l->number == 1)
        return strcmp(l->rest, first) ? bad(l, first, l->rest) : 0;
    char *key = word(l);
    if (l->number <= 5)
        return parse_head(m, l, key);
    if (!strcmp(key, "state"))
        return parse_state(m, l);
    if (!strcmp(key, "file") || !strcmp(key, "recipe")) {
        if (*key == 'r' && m->recipe_hash)
            return bad(l, "one line 'recipe'", l->rest);
        int rc = parse_file(m, l);
        if (!rc && *key == 'r' && !(m->recipe_hash = strdup(m->files[m->nfiles - 1].hash)))
            rc = err_memory();
        return rc;
    }
    if (!strcmp(key, "tensor"))
        return parse_tensor(m, l);
    return bad(l, "state, recipe, file, tensor or end", key);
}

/* The last line holds the XXH3 of all lines above it. Checks it and removes it from text and *n. */
static int check_end(const char *path, char *text, size_t *n, char found[33])
{
    size_t above = *n >= 37 ? *n - 37 : 0; /* "end " + 32 digits + newline */
    if (*n < 38 || text[above - 1] != '\n' || strncmp(text + above, "end ", 4) ||
        text[*n - 1] != '\n')
        return err_set(GPT_INPUT,
                       "%s: expected 'end HASH' as its last line: it is cut short or "
                       "damaged",
                       path);
    xxh_hex_of(text, above, found);
    if (strncmp(text + above + 4, found, 32))
        return err_set(GPT_INPUT, "%s: expected XXH3 %.32s, found %s: it is damaged", path,
                       text + above + 4, found);
    text[above] = 0;
    *n = above;
    return 0;
}

static int check_whole(const struct ckpt_manifest *m, const char *path, int lines)
{
    if (lines < 5)
        return err_set(GPT_INPUT, "%s: expected tool, step, tokens and ranks, found %d lines", path,
                       lines);
    if (!m->recipe_hash)
        return err_set(GPT_INPUT, "%s: expected a line 'recipe', found none", path);
    for (int i = 0; i < m->nentries; i++) {
        int rc = check_cover(&m->entries[i], path);
        if (rc)
            return rc;
    }
    return 0;
}

int ckpt_manifest_parse(struct ckpt_manifest *m, const char *path, char *text, size_t n)
{
    struct line l = { path, 0, NULL };
    int rc = 0;
    memset(m, 0, sizeof *m);
    if (strlen(text) != n)
        return err_set(GPT_INPUT, "%s: offset %zu: expected text, found a NUL byte", path,
                       strlen(text));
    if (strncmp(text, "gpt checkpoint ", 15))
        return err_set(GPT_INPUT, "%s: line 1: expected 'gpt checkpoint %d', found '%.*s'", path,
                       FORMAT, (int)(strcspn(text, "\n") & 63), text);
    if ((rc = check_end(path, text, &n, m->hash)))
        return rc;
    for (char *s = text, *end; !rc && *s; s = end + 1) {
        l.number++;
        l.rest = s;
        end = strchr(s, '\n');
        *end = 0; /* check_end found the last one */
        rc = parse_line(m, &l);
    }
    return rc ? rc : check_whole(m, path, l.number);
}

void ckpt_manifest_release(struct ckpt_manifest *m)
{
    for (int i = 0; i < m->nfiles; i++)
        free(m->files[i].name);
    for (int i = 0; i < m->nentries; i++) {
        free(m->entries[i].name);
        free(m->entries[i].pieces);
    }
    for (int i = 0; i < m->info.nstate; i++) {
        free((char *)m->info.state[i].key);
        free((char *)m->info.state[i].value);
    }
    free(m->files);
    free(m->entries);
    free((void *)m->info.state);
    free(m->recipe_hash);
    free((char *)m->info.tool);
    free((char *)m->info.recipe);
}

const char *ckpt_info_state(const struct ckpt_info *info, const char *key)
{
    for (int i = 0; i < info->nstate; i++)
        if (!strcmp(info->state[i].key, key))
            return info->state[i].value;
    return NULL;
}

const struct ckpt_entry *ckpt_manifest_find(const struct ckpt_manifest *m, const char *name)
{
    for (int i = 0; i < m->nentries; i++)
        if (!strcmp(m->entries[i].name, name))
            return &m->entries[i];
    return NULL;
}

/* --- writing --- */

void ckpt_manifest_note_piece(FILE *f, const struct ckpt_entry *e, const struct ckpt_piece *p,
                              const char *file)
{
    fprintf(f, "tensor %s %s ", e->name, dtype_name(e->dtype));
    for (int i = 0; i < e->rank; i++)
        fprintf(f, "%s%" PRId64, i ? "x" : "", e->shape[i]);
    fprintf(f, " %" PRId64 " %" PRId64 " %s %" PRIu64 " %s\n", p->begin, p->count, file, p->at,
            p->hash);
}

void ckpt_manifest_note_file(FILE *f, const struct ckpt_file *file)
{
    fprintf(f, "file %s %" PRIu64 " %s\n", file->name, file->bytes, file->hash);
}

/* Compares by name, then by first unit: fields 2 and 5 of "tensor NAME DTYPE SHAPE BEGIN ...". */
static int by_piece(const void *a, const void *b)
{
    char na[256], nb[256];
    long long x = 0, y = 0;
    sscanf(*(char *const *)a, "tensor %255s %*s %*s %lld", na, &x);
    sscanf(*(char *const *)b, "tensor %255s %*s %*s %lld", nb, &y);
    int d = strcmp(na, nb);
    return d ? d : x < y ? -1 : x > y;
}

/* Files in the order of the notes, pieces sorted; false when out of memory. */
static bool print_notes(FILE *f, char *notes)
{
    size_t lines = 0, n = 0;
    char *save = NULL;
    for (const char *s = notes; (s = strchr(s, '\n')); s++)
        lines++;
    char **pieces = malloc((lines + 1) * sizeof *pieces);
    if (!pieces)
        return false;
    for (char *s = strtok_r(notes, "\n", &save); s; s = strtok_r(NULL, "\n", &save)) {
        if (strncmp(s, "file ", 5))
            pieces[n++] = s;
        else
            fprintf(f, "%s\n", s);
    }
    qsort(pieces, n, sizeof *pieces, by_piece);
    for (size_t i = 0; i < n; i++)
        fprintf(f, "%s\n", pieces[i]);
    free(pieces);
    return true;
}

/* Checks that what is written can be read: parses a copy. */
static int check_text(const char *path, const char *text, size_t n)
{
    struct ckpt_manifest m;
    char *copy = strndup(text, n);
    if (!copy)
        return err_memory();
    int rc = ckpt_manifest_parse(&m, path, copy, n);
    free(copy);
    ckpt_manifest_release(&m);
    return rc;
}

int ckpt_manifest_format(const struct ckpt_info *info, const char *recipe_hash, char *notes,
                         const char *path, char **text, size_t *n)
{
    char hash[33];
    *text = NULL;
    FILE *f = open_memstream(text, n);
    if (!f)
        return err_memory();
    fprintf(f, "gpt checkpoint %d\ntool %s\nstep %" PRId64 "\ntokens %" PRId64 "\nranks %d\n",
            FORMAT, info->tool, info->step, info->tokens, info->ranks);
    for (int i = 0; i < info->nstate; i++)
        fprintf(f, "state %s %s\n", info->state[i].key, info->state[i].value);
    fprintf(f, "recipe recipe.txt %zu %s\n", strlen(info->recipe), recipe_hash);
    bool ok = print_notes(f, notes) && !fflush(f);
    if (ok) {
        xxh_hex_of(*text, *n, hash);
        fprintf(f, "end %s\n", hash);
    }
    if (fclose(f) || !ok)
        return err_memory();
    return check_text(path, *text, *n);
}
