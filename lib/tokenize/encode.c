/* encode.c - see encode.h. */
#include "tokenize/encode.h"

#include <stdlib.h>
#include <string.h>
#include "base/grow.h"
#include "tokenize/bpe.h"
#include "tokenize/json_line.h"
#include "tokenize/pretoken.h"
#include "tokenize/unicode.h"

struct encoder {
    const struct encode_config *c;
    struct bpe *bpe;
    struct bpe_run run; /* a pre-token that goes over units */
    char *repaired; /* a document with its bad bytes replaced */
    size_t repaired_room;
};

int encoder_new(struct encoder **out, const struct encode_config *c)
{
    struct encoder *e = calloc(1, sizeof *e);
    int rc;

    *out = NULL;
    if (!e)
        return err_memory();
    e->c = c;
    if ((rc = bpe_new(&e->bpe, c->vocab))) {
        free(e);
        return rc;
    }
    e->run.b = e->bpe;
    *out = e;
    return 0;
}

void encoder_free(struct encoder *e)
{
    if (!e)
        return;
    bpe_run_release(&e->run);
    bpe_free(e->bpe);
    free(e->repaired);
    free(e);
}

/* A document for messages: "x.jsonl: line 7", or "x.txt" with line 0. */
struct place {
    const struct unit *u;
    int64_t line;
};

static int at_place(const struct place *p)
{
    return p->line ? err_prefix("%s: line %lld", p->u->path, (long long)p->line)
                   : err_prefix("%s", p->u->path);
}

/* Replaces what is not UTF-8 in *text; *text and *n become the repaired copy. */
static int repair(struct encoder *e, const struct place *p, const char **text, size_t *n,
                  int64_t *invalid)
{
    /* One bad byte becomes three. */
    int rc = grow_to(&e->repaired, &e->repaired_room, 3 * *n + PRETOKEN_PAD, 1);
    if (rc)
        return rc;
    *n = utf8_repair(e->repaired, *text, *n, p->line != 0, invalid);
    memset(e->repaired + *n, 0, PRETOKEN_PAD);
    *text = e->repaired;
    return 0;
}

static int handle_invalid(struct encoder *e, const struct place *at, const char **text, size_t *n,
                          int64_t *invalid)
{
    int64_t offset = at->u->jsonl ? 0 : at->u->offset;
    size_t good = utf8_valid_prefix(*text, *n);

    if (good == *n)
        return 0;
    if (e->c->invalid == INVALID_ERROR) {
        err_set(GPT_INPUT, "document offset %lld: expected UTF-8, found byte 0x%02x",
                (long long)(offset + (int64_t)good), (unsigned char)(*text)[good]);
        return at_place(at);
    }
    if (e->c->invalid == INVALID_REPLACE)
        return repair(e, at, text, n, invalid);
    utf8_repair(NULL, *text, *n, at->line != 0, invalid);
    return 0;
}

/* Appends the tokens of a part of a document to the unit's. */
static int put_tokens(struct encoder *e, struct unit *u, struct unit_doc *d, const char *text,
                      size_t n)
{
    size_t room = u->run ? bpe_run_room(&e->run, n) : n, m;
    uint16_t *out;
    int rc;

    if ((rc = unit_reserve_tokens(u, 1 + room + BPE_SLACK)))
        return rc;
    d->token = u->tokens;
    out = u->token + u->tokens;
    if (d->begins)
        *out++ = (uint16_t)e->c->vocab->bos;
    if (u->run && e->c->vocab->trie) {
        if ((rc = bpe_run_add(&e->run, text, n, out, &m)))
            return rc;
        out += m;
        if (u->run_ends) {
            bpe_run_end(&e->run, out, &m);
            out += m;
        }
    } else {
        if ((rc = bpe_reserve(e->bpe, n)))
            return rc;
        out += bpe_encode(e->bpe, text, n, !u->jsonl && u->more, out);
    }
    d->tokens = (size_t)(out - u->token) - u->tokens;
    u->tokens += d->tokens;
    return 0;
}

/* Appends one document's part to the unit. d has begins, ends and hash. */
static int put_document(struct encoder *e, struct unit *u, const struct place *at,
                        struct unit_doc d, const char *text, size_t n)
{
    int rc;

    d.bytes = n;
    if ((rc = handle_invalid(e, at, &text, &n, &d.invalid)) || (rc = put_tokens(e, u, &d, text, n)))
        return rc;
    return unit_add_document(u, &d);
}

/* Finds the field of one line and its text, unescaped into u->text. */
static int line_text(struct encoder *e, struct unit *u, const char *line, size_t len,
                     const char **text, size_t *n)
{
    struct json_line l = { .j = { .at = line, .end = line + len },
                           .begin = line,
                           .field = e->c->field };
    int rc;

    if ((rc = grow_to(&u->text, &u->text_room, len + JSON_PAD + PRETOKEN_PAD, 1)))
        return rc;
    if (!json_line_begin(&l) || !json_copy_string(&l.j, u->text, n) || !json_line_end(&l))
        return json_line_error(&l);
    memset(u->text + *n, 0, PRETOKEN_PAD);
    *text = u->text;
    return 0;
}

static int encode_lines(struct encoder *e, struct unit *u)
{
    struct place at = { u, u->line };
    struct unit_doc d = { .begins = true, .ends = true };
    const char *end = u->raw + u->n;

    for (const char *p = u->raw, *eol; p < end; p = eol + 1, at.line++) {
        const char *text = NULL;
        size_t n = 0;
        int rc;

        if (!(eol = memchr(p, '\n', (size_t)(end - p))))
            eol = end;
        if (is_blank_line(p, eol))
            continue;
        if (line_text(e, u, p, (size_t)(eol - p), &text, &n)) {
            rc = at_place(&at);
            if (rc != GPT_INPUT || !e->c->skip_bad)
                return rc;
            unit_skip_line(u);
            continue;
        }
        d.hash = document_hash(text, n);
        if ((rc = put_document(e, u, &at, d, text, n)))
            return rc;
    }
    return 0;
}

int encode_unit(struct encoder *e, struct unit *u)
{
    struct place at = { u, u->line };
    struct unit_doc d = { .begins = u->begins, .ends = u->ends, .hash = u->hash };

    u->docs = 0;
    u->tokens = 0;
    return u->jsonl ? encode_lines(e, u) : put_document(e, u, &at, d, u->raw, u->n);
}
