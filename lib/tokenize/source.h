/* source.h - documents from files, folders and pipes, in units of work.
 *
 * A text file is a document; JSON lines have one a line, in a string field; kind.h tells which it
 * is, of files before the first is read. Either may be zstd or gzip (by its first bytes). A unit
 * is about a mebibyte: whole lines of .jsonl, or text of one document: a file, or a line longer
 * than 2 MiB, cut where the pre-tokeniser cuts too, so that units are encoded apart. With skip_bad
 * a line that long is first read to its end, and its text kept in an unnamed file in TMPDIR. A
 * pre-token longer than a unit goes over several (run), which are to be encoded in their order.
 * Cuts depend on the text alone; memory does not depend on it.
 *
 *     struct source *s;
 *     if ((rc = source_open(&s, &(struct source_config){ .path = paths, .paths = n })))
 *         return rc;
 *     while (!(rc = source_next(s, &unit)) && !unit.end) ...
 *
 * Threads: one thread at a time.
 */
#ifndef TOKENIZE_SOURCE_H
#define TOKENIZE_SOURCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"
#include "tokenize/kind.h"

struct source_config {
    const char **path; /* files, folders (walked in order of bytes), or "-" */
    int paths;
    /* of files taken from folders: "txt,md,jsonl"; .zst and .gz may follow */
    const char *extensions;
    enum source_format format;
    const char *field; /* of .jsonl; "text" if NULL */
    bool utf8; /* as kind.h has it */
    bool skip_bad; /* as encode_config has it; for lines longer than 2 MiB */
};

/* What one document has in a unit. */
struct unit_doc {
    bool begins, ends; /* here */
    uint64_t hash; /* document_hash of it */
    size_t bytes; /* of its text in this unit */
    size_t token, tokens; /* where in unit.token its tokens are, and how many */
    int64_t invalid; /* bad UTF-8 sequences in these bytes */
};

#define SKIPPED_MESSAGE 1024 /* bytes of a skipped line's message: file, line and fault */

struct unit {
    /* Set by source_next. */
    bool jsonl; /* whole lines; else text of one document */
    const char *path;
    int64_t line; /* of the file, from 1: the first; 0: it is a text file */
    int64_t offset; /* text: bytes of the document before this unit */
    bool begins, ends, more; /* text: document begins, ends here; more as pretoken_init has it */
    bool run, run_ends; /* text: all of it is of one pre-token, which ends here */
    uint64_t hash; /* text: document_hash */
    char *raw; /* n bytes, and PRETOKEN_PAD more */
    size_t n, room;
    bool end; /* nothing more: the unit is empty */
    /* Set by source_next and encode_unit: lines that were passed over; the first, and its fault. */
    int64_t skipped;
    char first_skipped[SKIPPED_MESSAGE];
    /* Set by encode_unit. */
    struct unit_doc *doc;
    int docs;
    size_t doc_room;
    uint16_t *token; /* of the documents one after the other, each with its start token */
    size_t tokens, token_room;
    char *text; /* a document out of its JSON */
    size_t text_room;
};

struct source;
/* Lists the files, and looks at each; GPT_SYSTEM if one cannot be opened, GPT_INPUT if there is
 * none, or one is no text. */
int source_open(struct source **s, const struct source_config *c) MUST_CHECK;
int source_next(struct source *s, struct unit *u) MUST_CHECK;
void source_close(struct source *s);
/* A decision that nobody asked for: of how many files, and the first of them. */
struct source_notes {
    struct source_note {
        int n;
        char first[256];
    } jsonl,
        text; /* taken for JSON lines, whatever their names; for text, though they begin with '{' */
    struct source_note marked; /* one document, though it has '<|endoftext|>' */
    struct source_note twice; /* given before, under this name or another */
    struct source_note left_out; /* of folders, for their names */
};
const struct source_notes *source_notes(const struct source *s);
/* For progress: bytes of the files read so far and in all (0: unknown, a pipe). */
uint64_t source_read_bytes(const struct source *s);
uint64_t source_total_bytes(const struct source *s);

/* Appends a document. */
int unit_add_document(struct unit *u, const struct unit_doc *d) MUST_CHECK;
/* Counts a line that is passed over; the thread's message says why. */
void unit_skip_line(struct unit *u);
/* Makes room for n more tokens. */
int unit_reserve_tokens(struct unit *u, size_t n) MUST_CHECK;
void unit_release(struct unit *u);

/* True if a line of .jsonl holds no document. */
static inline bool is_blank_line(const char *p, const char *eol)
{
    while (p < eol && (*p == ' ' || *p == '\t' || *p == '\r'))
        p++;
    return p == eol;
}

/* XXH3-64 of the first 65,536 bytes of a document's text as it stands in the
 * input; what --split goes by. */
#define HASHED_BYTES 65536
uint64_t document_hash(const char *text, size_t n);

/* file_list.c: expands the paths into files; notes what folders hold besides. Caller frees each
 * and the list. */
int source_list_files(const struct source_config *c, char ***files, int *n,
                      struct source_note *left_out) MUST_CHECK;
void source_note_add(struct source_note *n, const char *path);

#endif
