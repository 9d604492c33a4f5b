/* source.c - see source.h. */
#include "tokenize/source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>
#include "base/file.h"
#include "base/grow.h"
#include "base/zio.h"
#include "data/corpus.h"
#include "tokenize/json_line.h"
#include "tokenize/pretoken.h"

#define UNIT_BYTES (1u << 20)
#define LONG_LINE (2u << 20)

struct source {
    struct source_config c;
    char **file;
    struct kind *kind; /* of each file; of a pipe when it is opened */
    int files, next_file;
    struct source_notes notes;
    struct zreader *z; /* of the present file, or NULL */
    const char *path;
    bool jsonl, at_end; /* of the present file */
    int64_t line;
    uint64_t done_bytes, total_bytes;
    char *carry; /* bytes read that come after the last unit */
    size_t carried, carry_room;
    /* A document that is split over several units. */
    bool in_text, text_end; /* begun; all of it was read */
    int64_t offset;
    uint64_t hash;
    bool in_run; /* inside a pre-token longer than a unit */
    int run_class;
    /* If it is a long line: its parser, and the part of the file that has been read. */
    bool in_line, in_string; /* in_string: its text has begun */
    bool line_whole; /* the line's end is in raw, or the file's */
    int failed; /* reading the file, with message */
    struct json_line json;
    char *raw; /* LONG_LINE */
    size_t raw_n;
    FILE *text; /* skip_bad: its whole text; else NULL */
};

uint64_t document_hash(const char *text, size_t n)
{
    return XXH3_64bits(text, n < HASHED_BYTES ? n : HASHED_BYTES);
}

/* --- the files --- */

struct identity {
    dev_t device;
    ino_t inode;
    int number; /* of the file, as given */
};

static int compare_identities(const void *pa, const void *pb)
{
    const struct identity *a = pa, *b = pb;

    return a->device != b->device ? (a->device > b->device) - (a->device < b->device)
           : a->inode != b->inode ? (a->inode > b->inode) - (a->inode < b->inode)
                                  : a->number - b->number;
}

/* Notes the files that were given before. */
static void note_twice(struct source *s, struct identity *id, int n)
{
    int first = s->files;

    qsort(id, (size_t)n, sizeof *id, compare_identities);
    for (int i = 1; i < n; i++)
        if (id[i].device == id[i - 1].device && id[i].inode == id[i - 1].inode) {
            s->notes.twice.n++;
            first = id[i].number < first ? id[i].number : first;
        }
    if (first < s->files)
        snprintf(s->notes.twice.first, sizeof s->notes.twice.first, "%s", s->file[first]);
}

/* Decides the kind of file i, which is open, and notes a guess. */
static int take_kind(struct source *s, int i, struct zreader *z)
{
    struct kind_wanted w = { s->c.format, s->c.field, s->c.utf8 };
    int rc = kind_of(&s->kind[i], z, s->file[i], &w);

    const char *name = strcmp(s->file[i], "-") ? s->file[i] : "standard input";

    if (!rc && s->kind[i].guessed)
        source_note_add(s->kind[i].jsonl ? &s->notes.jsonl : &s->notes.text, name);
    if (!rc && s->kind[i].marked)
        source_note_add(&s->notes.marked, name);
    return rc;
}

/* Decides the kind of a file that can be read twice, before the first is read: one that is no text
 * ends no long job. */
static int look_at_file(struct source *s, int i)
{
    struct zreader *z;
    int rc = zreader_open(&z, s->file[i]);

    if (rc)
        return rc;
    rc = take_kind(s, i, z);
    zreader_close(z);
    return rc;
}

static int look_at_files(struct source *s)
{
    struct identity *id = malloc(((size_t)s->files + 1) * sizeof *id);
    bool known = true;
    int rc = id && (s->kind = calloc((size_t)s->files + 1, sizeof *s->kind)) ? 0 : err_memory();
    int n = 0;

    for (int i = 0; i < s->files && !rc; i++) {
        struct stat st;
        bool standard = !strcmp(s->file[i], "-");

        if (!standard && (stat(s->file[i], &st) || access(s->file[i], R_OK))) {
            rc = err_sys("cannot open '%s'", s->file[i]);
        } else if (standard || !S_ISREG(st.st_mode)) {
            known = false;
        } else {
            id[n++] = (struct identity){ st.st_dev, st.st_ino, i };
            s->total_bytes += (uint64_t)st.st_size;
            rc = look_at_file(s, i);
        }
    }
    if (!rc)
        note_twice(s, id, n);
    if (!known)
        s->total_bytes = 0;
    free(id);
    return rc;
}

int source_open(struct source **out, const struct source_config *c)
{
    struct source *s = calloc(1, sizeof *s);
    int rc;

    *out = NULL;
    if (!s)
        return err_memory();
    s->c = *c;
    if (!s->c.field)
        s->c.field = "text";
    if ((rc = source_list_files(c, &s->file, &s->files, &s->notes.left_out))) {
        source_close(s);
        return rc;
    }
    if ((rc = look_at_files(s))) {
        source_close(s);
        return rc;
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
    free(s->kind);
    free(s->carry);
    free(s->raw);
    if (s->text)
        fclose(s->text);
    zreader_close(s->z);
    free(s);
}

const struct source_notes *source_notes(const struct source *s) { return &s->notes; }

uint64_t source_read_bytes(const struct source *s)
{
    return s->done_bytes + (s->z ? zreader_raw_offset(s->z) : 0);
}

uint64_t source_total_bytes(const struct source *s) { return s->total_bytes; }

static int open_next(struct source *s)
{
    int i = s->next_file++, rc;

    s->path = s->file[i];
    if ((rc = zreader_open(&s->z, s->path)))
        return rc;
    if (!s->kind[i].known && (rc = take_kind(s, i, s->z))) /* a pipe */
        return rc;
    s->jsonl = s->kind[i].jsonl;
    s->at_end = false;
    s->carried = 0;
    s->line = 1;
    return 0;
}

static int make_room(struct unit *u, size_t n)
{
    return grow_to(&u->raw, &u->room, n + PRETOKEN_PAD, 1);
}

/* Adds to a read error the line of .jsonl that it occurred in; the unit has the bytes before it. */
static int at_line(const struct source *s, const struct unit *u, int rc)
{
    int64_t line = s->line;

    if (!s->jsonl)
        return rc;
    for (size_t i = 0; !s->in_line && i < u->n; i++)
        line += u->raw[i] == '\n';
    return err_set(rc, "%s (in or after line %lld)", err_message(), (long long)line);
}

/* --- a long line as text --- */

/* json's refill: reads on, up to the line's end. */
static bool read_line(struct json *j)
{
    struct source *s = j->arg;
    size_t left = (size_t)(j->end - j->at), got;
    const char *eol;

    if (s->line_whole || left == LONG_LINE)
        return false;
    s->json.before += j->at - s->raw;
    memmove(s->raw, j->at, left);
    s->failed = zreader_read(s->z, s->raw + left, LONG_LINE - left, &got);
    got = s->failed ? 0 : got;
    s->at_end = left + got < LONG_LINE;
    s->raw_n = left + got;
    eol = memchr(s->raw + left, '\n', got);
    s->line_whole = eol || s->at_end;
    j->at = s->raw;
    j->end = eol ? eol : s->raw + s->raw_n;
    return true;
}

static int bad_line(const struct source *s)
{
    if (s->failed)
        return s->failed;
    return err_set(json_line_error(&s->json), "%s: line %lld: %s", s->path, (long long)s->line,
                   err_message());
}

/* Text of the line, up to n bytes; but for at most 3 bytes, less only at its end. */
static int read_line_text(struct source *s, char *buf, size_t n, size_t *got)
{
    struct json *j = &s->json.j;

    *got = 0;
    if (!s->in_string && !(json_line_begin(&s->json) && json_begin_text(j)))
        return bad_line(s);
    s->in_string = true;
    s->text_end = json_text(j, buf, n, got);
    return j->bad || (s->text_end && !json_line_end(&s->json)) ? bad_line(s) : 0;
}

/* Writes the text of the line to s->text, through the unit's memory. */
static int keep_text(struct source *s, struct unit *u)
{
    size_t got;
    int rc, fd;

    if ((rc = file_unnamed(temporary_dir(), &fd)))
        return rc;
    if (!(s->text = fdopen(fd, "w+"))) {
        close(fd);
        return err_memory();
    }
    for (s->text_end = false; !s->text_end && !rc;) {
        rc = read_line_text(s, u->raw, UNIT_BYTES, &got);
        if (!rc && fwrite(u->raw, 1, got, s->text) != got)
            rc = err_sys("cannot write a temporary file in '%s'", temporary_dir());
    }
    if (!rc && fseeko(s->text, 0, SEEK_SET))
        rc = err_sys("cannot write a temporary file in '%s'", temporary_dir());
    return rc;
}

/* Reads the kept text, up to n bytes; less only at its end. */
static int read_kept(struct source *s, char *buf, size_t n, size_t *got)
{
    *got = fread(buf, 1, n, s->text);
    s->text_end = *got < n;
    return ferror(s->text) ? err_sys("cannot read a temporary file in '%s'", temporary_dir()) : 0;
}

/* Keeps n bytes for the next unit. */
static int carry(struct source *s, const char *bytes, size_t n)
{
    if (grow_to(&s->carry, &s->carry_room, n, 1))
        return GPT_SYSTEM;
    if (n)
        memcpy(s->carry, bytes, n);
    s->carried = n;
    return 0;
}

/* Carries the bytes that were read after the line's end: they are of the next lines. */
static int end_line(struct source *s)
{
    const char *next = s->json.j.end + (s->json.j.end < s->raw + s->raw_n);

    s->in_line = false;
    s->line++;
    if (s->text)
        fclose(s->text);
    s->text = NULL;
    return carry(s, next, (size_t)(s->raw + s->raw_n - next));
}

/* Passes over the rest of a line that has no text. */
static int skip_line(struct source *s, struct unit *u)
{
    unit_skip_line(u);
    while (!s->line_whole) {
        s->json.j.at = s->json.j.end;
        read_line(&s->json.j);
    }
    return s->failed ? s->failed : end_line(s);
}

/* Begins a line longer than LONG_LINE, of which the unit holds as much. */
static int begin_line(struct source *s, struct unit *u)
{
    int rc = 0;

    if (!s->raw && !(s->raw = malloc(LONG_LINE + JSON_PAD)))
        return err_memory();
    memcpy(s->raw, u->raw, u->n);
    s->raw_n = u->n;
    u->n = 0;
    s->json = (struct json_line){
        .j = { .at = s->raw, .end = s->raw + s->raw_n, .refill = read_line, .arg = s },
        .begin = s->raw,
        .field = s->c.field
    };
    s->in_line = true;
    s->in_string = s->line_whole = false;
    if (s->c.skip_bad && (rc = keep_text(s, u)) == GPT_INPUT && !s->failed)
        rc = skip_line(s, u);
    return rc && s->failed ? at_line(s, u, rc) : rc;
}

/* --- filling a unit --- */

/* Appends bytes of lines, or of the document, to the unit. */
static int read_more(struct source *s, struct unit *u, size_t n)
{
    size_t got;
    int rc;

    if (s->text)
        rc = read_kept(s, u->raw + u->n, n - u->n, &got);
    else if (s->in_line)
        rc = read_line_text(s, u->raw + u->n, n - u->n, &got);
    else if (!(rc = zreader_read(s->z, u->raw + u->n, n - u->n, &got)) && got < n - u->n)
        s->at_end = s->text_end = true;
    u->n += got;
    return rc;
}

/* Fills the unit up to n bytes or to the end of the input, beginning with the carried bytes. */
static int fill(struct source *s, struct unit *u, size_t n)
{
    bool *end = s->in_text ? &s->text_end : &s->at_end;
    int rc;

    if (n < s->carried)
        n = s->carried;
    if ((rc = make_room(u, n)))
        return rc;
    if (s->carried)
        memcpy(u->raw + u->n, s->carry, s->carried);
    u->n += s->carried;
    s->carried = 0;
    /* read_line_text may leave up to three bytes of room. */
    while (n - u->n >= 4 && !*end)
        if ((rc = read_more(s, u, n)))
            return s->in_line && !s->failed ? rc : at_line(s, u, rc);
    return 0;
}

/* Ends the unit at `at` and keeps the bytes behind it for the next. */
static int carry_from(struct source *s, struct unit *u, size_t at)
{
    size_t n = u->n - at;

    u->n = at;
    return carry(s, u->raw + at, n);
}

static void count_lines(struct source *s, const struct unit *u)
{
    for (const char *p = u->raw, *end = p + u->n; p < end; s->line++) {
        const char *eol = memchr(p, '\n', (size_t)(end - p));

        p = eol ? eol + 1 : end;
    }
}

/* A byte-order mark, which some programs write before UTF-8, is not JSON. */
static void drop_byte_order_mark(struct unit *u)
{
    if (u->n < 3 || memcmp(u->raw, "\xef\xbb\xbf", 3))
        return;
    u->n -= 3;
    memmove(u->raw, u->raw + 3, u->n);
}

static int next_lines(struct source *s, struct unit *u)
{
    const char *eol;
    int rc;

    for (size_t n = UNIT_BYTES;; n *= 2) {
        if ((rc = fill(s, u, n)))
            return rc;
        if (s->line == 1 && n == UNIT_BYTES)
            drop_byte_order_mark(u);
        if (s->at_end)
            break;
        if ((eol = memrchr(u->raw, '\n', u->n))) {
            if ((rc = carry_from(s, u, (size_t)(eol + 1 - u->raw))))
                return rc;
            break;
        }
        if (n == LONG_LINE)
            return begin_line(s, u);
    }
    u->line = s->line;
    count_lines(s, u);
    return 0;
}

/* The document ends with this unit. */
static int end_text(struct source *s, struct unit *u)
{
    u->ends = true;
    s->in_text = false;
    return s->in_line ? end_line(s) : 0;
}

/* A part of a document: up to a boundary of pre-tokens, or, if there is none, bytes of one pre-
 * token only. */
static int next_text(struct source *s, struct unit *u)
{
    size_t cut = 0;
    bool ended;
    int rc;

    u->begins = !s->in_text;
    if (u->begins) {
        s->in_text = true;
        s->text_end = !s->in_line && s->at_end;
        s->offset = 0;
    }
    if ((rc = fill(s, u, UNIT_BYTES)))
        return rc;
    if (u->begins)
        s->hash = document_hash(u->raw, u->n);
    u->line = s->jsonl ? s->line : 0;
    u->hash = s->hash;
    u->offset = s->offset;
    u->ends = u->more = u->run = false;
    if (!s->in_run && s->text_end) {
        rc = end_text(s, u);
    } else if (!s->in_run && ((cut = pretoken_cut(u->raw, u->n, &u->more)) ||
                              (cut = pretoken_last_start(u->raw, u->n, &u->more)))) {
        rc = carry_from(s, u, cut);
    } else {
        cut = pretoken_run(u->raw, u->n, !s->in_run, s->text_end, &s->run_class, &ended);
        u->run = true;
        u->run_ends = ended;
        s->in_run = !ended;
        rc = cut == u->n && s->text_end ? end_text(s, u) : carry_from(s, u, cut);
    }
    s->offset += (int64_t)u->n;
    return rc;
}

static int next_unit(struct source *s, struct unit *u)
{
    int rc = 0;

    u->jsonl = s->jsonl && !s->in_text;
    if (u->jsonl)
        rc = next_lines(s, u);
    if (s->in_line)
        u->jsonl = false;
    if (!rc && !u->jsonl)
        rc = next_text(s, u);
    return rc;
}

int source_next(struct source *s, struct unit *u)
{
    int rc;

    u->skipped = 0;
    do {
        u->n = 0;
        if (!s->z && s->next_file == s->files) {
            u->end = true;
            return 0;
        }
        if (!s->z && (rc = open_next(s)))
            return rc;
        u->end = false;
        u->run = false;
        u->path = s->path;
        if ((rc = next_unit(s, u)))
            return rc;
        if (s->at_end && !s->carried && !s->in_text) {
            s->done_bytes += zreader_raw_offset(s->z);
            zreader_close(s->z);
            s->z = NULL;
        }
        /* An empty text file is a document; an empty .jsonl file has none. */
    } while (u->jsonl && !u->n && !u->skipped);
    /* Read by wide loads; the results do not depend on it. */
    memset(u->raw + u->n, 0, PRETOKEN_PAD);
    return 0;
}

int unit_add_document(struct unit *u, const struct unit_doc *d)
{
    if (grow_to(&u->doc, &u->doc_room, u->docs + 1, sizeof *u->doc))
        return GPT_SYSTEM;
    u->doc[u->docs++] = *d;
    return 0;
}

void unit_skip_line(struct unit *u)
{
    if (!u->skipped++)
        snprintf(u->first_skipped, sizeof u->first_skipped, "%s", err_message());
}

int unit_reserve_tokens(struct unit *u, size_t n)
{
    return grow_to(&u->token, &u->token_room, u->tokens + n, sizeof *u->token);
}

void unit_release(struct unit *u)
{
    free(u->raw);
    free(u->doc);
    free(u->token);
    free(u->text);
    memset(u, 0, sizeof *u);
}
