/* source.c - see source.h. */
#include "data/source.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/zio.h"
#include "data/pretoken.h"

#define UNIT_BYTES (1u << 20)
#define LINE_BYTES (64u << 20)

struct source {
    struct source_config c;
    char **file;
    int files, next_file;
    struct zreader *z;           /* of the present file, or NULL */
    bool jsonl, at_end;          /* of the present file */
    const char *path;
    char *carry;                 /* read, but behind the cut of the last unit */
    size_t carried, carry_room;
    int64_t line, document, offset;
    uint64_t hash;
    uint64_t done_bytes, total_bytes;
};

uint64_t document_hash(const char *text, size_t n)
{
    return XXH3_64bits(text, n < HASHED_BYTES ? n : HASHED_BYTES);
}

static int no_memory(void)
{
    return err_set(GPT_SYSTEM, "out of memory for the input");
}

int source_open(struct source **out, const struct source_config *c)
{
    struct source *s = calloc(1, sizeof *s);
    int rc;

    *out = NULL;
    if (!s)
        return no_memory();
    s->c = *c;
    if (!s->c.line_bytes)
        s->c.line_bytes = LINE_BYTES;
    if ((rc = list_files(c, &s->file, &s->files))) {
        source_close(s);
        return rc;
    }
    for (int i = 0; i < s->files; i++) {
        struct stat st;

        if (!strcmp(s->file[i], "-") || stat(s->file[i], &st) || !S_ISREG(st.st_mode)) {
            s->total_bytes = 0;
            break;
        }
        s->total_bytes += (uint64_t)st.st_size;
    }
    *out = s;
    return 0;
}

void source_close(struct source *s)
{
    if (!s)
        return;
    for (int i = 0; i < s->files; i++)
        free(s->file[i]);
    free(s->file);
    free(s->carry);
    zreader_close(s->z);
    free(s);
}

uint64_t source_read_bytes(const struct source *s)
{
    return s->done_bytes + (s->z ? zreader_raw_offset(s->z) : 0);
}

uint64_t source_total_bytes(const struct source *s) { return s->total_bytes; }

static bool named_jsonl(const char *name)
{
    static const char *const end[] = { ".jsonl", ".ndjson", ".jsonl.zst", ".ndjson.zst",
                                      ".jsonl.gz",
                                       ".ndjson.gz" };
    size_t n = strlen(name);

    for (size_t i = 0; i < sizeof end / sizeof *end; i++)
        if (n >= strlen(end[i]) && !strcmp(name + n - strlen(end[i]), end[i]))
            return true;
    return false;
}

static int open_next(struct source *s)
{
    int rc;

    s->path = s->file[s->next_file++];
    if ((rc = zreader_open(&s->z, s->path)))
        return rc;
    s->jsonl = s->c.format == FORMAT_JSONL || (s->c.format == FORMAT_AUTO && named_jsonl(s->path));
    s->at_end = false;
    s->carried = 0;
    s->line = 1;
    s->offset = 0;
    return 0;
}

static int make_room(struct unit *u, size_t n)
{
    char *p;

    if (n <= u->room)
        return 0;
    if (!(p = realloc(u->raw, n + PRETOKEN_PAD)))
        return no_memory();
    /* What is read past the end decides nothing, but it should not be unset. */
    memset(p + n, 0, PRETOKEN_PAD);
    u->raw = p;
    u->room = n;
    return 0;
}

/* Fills the unit from what was carried and the file, up to n bytes. */
static int fill(struct source *s, struct unit *u, size_t n)
{
    size_t got;
    int rc;

    if (n < s->carried)
        n = s->carried;
    if ((rc = make_room(u, n)))
        return rc;
    if (s->carried)
        memcpy(u->raw + u->n, s->carry, s->carried);
    u->n += s->carried;
    s->carried = 0;
    while (u->n < n && !s->at_end) {
        if ((rc = zreader_read(s->z, u->raw + u->n, n - u->n, &got)))
            return rc;
        u->n += got;
        s->at_end = got == 0;
    }
    return 0;
}

/* Keeps the unit's bytes from `at` on for the next one. */
static int carry_from(struct source *s, struct unit *u, size_t at)
{
    size_t n = u->n - at;

    if (n > s->carry_room) {
        char *p = realloc(s->carry, n);

        if (!p)
            return no_memory();
        s->carry = p;
        s->carry_room = n;
    }
    if (n)
        memcpy(s->carry, u->raw + at, n);
    s->carried = n;
    u->n = at;
    return 0;
}

static void count_lines(struct source *s, const struct unit *u)
{
    for (const char *p = u->raw, *end = p + u->n; p < end; s->line++) {
        const char *eol = memchr(p, '\n', (size_t)(end - p)), *q = p;

        if (!eol)
            eol = end;
        while (q < eol && (*q == ' ' || *q == '\t' || *q == '\r'))
            q++;
        s->document += q < eol;
        p = eol + 1;
    }
}

static int next_lines(struct source *s, struct unit *u)
{
    const char *eol;
    int rc;

    for (size_t n = UNIT_BYTES;; n *= 2) {
        if ((rc = fill(s, u, n)))
            return rc;
        if (s->at_end && u->n < n)
            break;
        if ((eol = memrchr(u->raw, '\n', u->n))) {
            if ((rc = carry_from(s, u, (size_t)(eol + 1 - u->raw))))
                return rc;
            break;
        }
        if (n >= s->c.line_bytes)
            return err_set(GPT_INPUT, "%s: line %lld: expected at most %zu bytes (--memory raises "
                           "it), found more", s->path, (long long)s->line, s->c.line_bytes);
    }
    u->line = s->line;
    count_lines(s, u);
    return 0;
}

static int next_text(struct source *s, struct unit *u)
{
    int rc;

    u->begins = s->offset == 0;
    u->more = false;
    for (size_t n = UNIT_BYTES;; n *= 2) {
        size_t cut;

        if ((rc = fill(s, u, n)))
            return rc;
        if (s->at_end && u->n < n)
            break;
        if ((cut = pretoken_cut(u->raw, u->n, &u->more))) {
            if (u->begins)
                s->hash = document_hash(u->raw, u->n);
            if ((rc = carry_from(s, u, cut)))
                return rc;
            u->hash = s->hash;
            u->offset = s->offset;
            u->ends = false;
            s->offset += (int64_t)u->n;
            return 0;
        }
    }
    if (u->begins)
        s->hash = document_hash(u->raw, u->n);
    u->hash = s->hash;
    u->offset = s->offset;
    u->ends = true;
    s->document++;
    return 0;
}

static int refuse_json_as_text(const struct source *s, const struct unit *u)
{
    if (s->c.format == FORMAT_AUTO && !strcmp(s->path, "-") && u->begins && u->n
        && u->raw[0] == '{')
        return err_set(GPT_INPUT,
                       "-: begins like .jsonl: say --format jsonl, or --format text if it "
                       "is to be taken as it stands");
    return 0;
}

int source_next(struct source *s, struct unit *u)
{
    int rc = 0;

    u->n = 0;
    u->end = false;
    for (;;) {
        if (!s->z) {
            if (s->next_file == s->files) {
                u->end = true;
                return 0;
            }
            if ((rc = open_next(s)))
                return rc;
        }
        u->path = s->path;
        u->jsonl = s->jsonl;
        u->document = s->document;
        rc = s->jsonl ? next_lines(s, u) : next_text(s, u);
        if (!rc && !s->jsonl)
            rc = refuse_json_as_text(s, u);
        if (rc)
            return rc;
        if (s->at_end && !s->carried) {
            s->done_bytes += zreader_raw_offset(s->z);
            zreader_close(s->z);
            s->z = NULL;
        }
        if (!s->jsonl || u->n)       /* an empty text file is a document, no line is none */
            return 0;
    }
}

void unit_release(struct unit *u)
{
    free(u->raw);
    free(u->doc);
    free(u->token);
    free(u->text);
    memset(u, 0, sizeof *u);
}
