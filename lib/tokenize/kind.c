/* kind.c - see kind.h. */
#include "tokenize/kind.h"

#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include "data/corpus.h"
#include "tokenize/json_line.h"
#include "tokenize/unicode.h"

enum { LOOK = 64 << 10, LOOK_MORE = 2 << 20 }; /* bytes; the second where a line does not end */

/* --- what is known by a magic number --- */

/* In a remedy FILE is the file and "..." the options. */
#define PIPE(command) "'" command " | gpt-tokshard ... -'"
#define UNPACK(command) "'" command "', then gpt-tokshard takes the folder"
#define CSV(options) \
    PIPE("python3 -c 'import csv,json,sys; csv.field_size_limit(1<<30); " \
         "[print(json.dumps(r)) for r in csv.DictReader(sys.stdin" options ")]' < FILE") \
    ", with --field COLUMN"
#define DUCKDB(from) \
    "'duckdb -c \"COPY (SELECT text FROM " from ") TO '/dev/stdout' (FORMAT JSON)\" | " \
    "gpt-tokshard ... -'"
#define ARROW \
    "datasets.Dataset.from_file(\"FILE\").to_json(\"x.jsonl\") of Python's datasets makes JSON " \
    "lines of it"
#define NO_TEXT "there is no text in it to take: leave it out"

static const struct magic {
    const char *what, *bytes;
    short n, at;
    const char *remedy;
} magics[] = {
    /* compression; zstd and gzip inside zstd or gzip */
    { "xz",
      "\xfd"
      "7zXZ",
      6, 0, PIPE("xz -dc FILE") },
    { "lzma", "]\0\0", 3, 0, PIPE("xz -dc FILE") },
    { "bzip2", "1AY&SY", 6, 4, PIPE("bzip2 -dc FILE") },
    { "bzip2", "\x17\x72\x45\x38\x50\x90", 6, 4, PIPE("bzip2 -dc FILE") },
    { "lz4", "\x04\x22\x4d\x18", 4, 0, PIPE("lz4 -dc FILE") },
    { "lz4", "\x02\x21\x4c\x18", 4, 0, PIPE("lz4 -dc FILE") },
    { "lzip", "LZIP", 4, 0, PIPE("lzip -dc FILE") },
    { "lzop", "\x89LZO", 4, 0, PIPE("lzop -dc FILE") },
    { "compress (.Z)", "\x1f\x9d", 2, 0, PIPE("gzip -dc FILE") },
    { "snappy", "\xff\x06\0\0sNaPpY", 10, 0, PIPE("snzip -dc FILE") },
    { "gzip", "\x1f\x8b", 2, 0, PIPE("gzip -dc FILE") },
    { "zstd", "\x28\xb5\x2f\xfd", 4, 0, PIPE("zstd -dc FILE") },
    /* archives */
    { "a zip archive (so are .docx, .odt, .epub, .npz)", "PK\3\4", 4, 0,
      UNPACK("unzip FILE -d FOLDER") },
    { "a zip archive", "PK\5\6", 4, 0, UNPACK("unzip FILE -d FOLDER") },
    { "a tar archive", "ustar", 5, 257, UNPACK("mkdir FOLDER && tar -xf FILE -C FOLDER") },
    { "a 7z archive", "7z\xbc\xaf\x27\x1c", 6, 0, UNPACK("7z x FILE -oFOLDER") },
    { "a rar archive", "Rar!\x1a\7", 6, 0, UNPACK("unrar x FILE FOLDER/") },
    { "an ar archive", "!<arch>\n", 8, 0, UNPACK("mkdir FOLDER && ar x FILE --output FOLDER") },
    { "a cpio archive", "07070100", 8, 0, UNPACK("mkdir FOLDER && cpio -i -D FOLDER < FILE") },
    { "an rpm package", "\xed\xab\xee\xdb", 4, 0,
      UNPACK("mkdir FOLDER && bsdtar -xf FILE -C FOLDER") },
    /* tables */
    { "a parquet table", "PAR1", 4, 0, DUCKDB("'FILE'") },
    { "an encrypted parquet table", "PARE", 4, 0, NO_TEXT },
    { "an Arrow table", "ARROW1\0\0", 8, 0, ARROW },
    { "an Arrow stream", "\xff\xff\xff\xff", 4, 0, ARROW },
    { "an Avro table", "Obj\1", 4, 0, PIPE("avro-tools tojson FILE") },
    { "an ORC table", "ORC", 3, 0, PIPE("orc-contents FILE") },
    { "a SQLite database", "SQLite format 3", 16, 0,
      PIPE("sqlite3 FILE \"SELECT json_object('text', COLUMN) FROM TABLE\"") },
    { "an HDF5 file", "\x89HDF\r\n", 6, 0, NO_TEXT },
    { "a NumPy array", "\x93NUMPY", 6, 0, NO_TEXT },
    { "a pickle of Python", "\x80\4\x95", 3, 0, NO_TEXT },
    { "a pickle of Python", "\x80\5\x95", 3, 0, NO_TEXT },
    { "a GGUF model", "GGUF", 4, 0, NO_TEXT },
    /* documents */
    { "a PDF document", "%PDF-", 5, 0, PIPE("pdftotext FILE -") },
    { "PostScript", "%!PS-Adobe", 10, 0, PIPE("ps2ascii FILE") },
    { "RTF", "{\\rtf", 5, 0, PIPE("pandoc -f rtf -t plain FILE") },
    { "an Office document (.doc, .xls, .ppt)", "\xd0\xcf\x11\xe0", 4, 0, PIPE("catdoc FILE") },
    { "a DjVu document", "AT&TFORM", 8, 0, PIPE("djvutxt FILE") },
    { "a web archive (WARC)", "WARC/1.", 7, 0,
      "warcio takes the texts out of its records; --format text takes all as it stands" },
    /* programs */
    { "an ELF program",
      "\x7f"
      "ELF",
      4, 0, NO_TEXT },
    { "a Windows program", "MZ\x90", 3, 0, NO_TEXT },
    { "a Mach-O program", "\xcf\xfa\xed\xfe", 4, 0, NO_TEXT },
    { "a Java class or Mach-O program", "\xca\xfe\xba\xbe", 4, 0, NO_TEXT },
    { "WebAssembly", "\0asm", 4, 0, NO_TEXT },
    /* pictures, sound, films */
    { "a PNG picture", "\x89PNG", 4, 0, NO_TEXT },
    { "a JPEG picture", "\xff\xd8\xff", 3, 0, NO_TEXT },
    { "a GIF picture", "GIF8", 4, 0, NO_TEXT },
    { "a TIFF picture", "II*", 4, 0, NO_TEXT },
    { "a TIFF picture", "MM\0*", 4, 0, NO_TEXT },
    { "a WebP picture", "WEBP", 4, 8, NO_TEXT },
    { "WAVE sound", "WAVE", 4, 8, NO_TEXT },
    { "Ogg sound", "OggS", 4, 0, NO_TEXT },
    { "FLAC sound", "fLaC", 4, 0, NO_TEXT },
    { "MP3 sound", "ID3", 3, 0, NO_TEXT },
    { "an MP4 film", "ftyp", 4, 4, NO_TEXT },
    { "a Matroska film", "\x1a\x45\xdf\xa3", 4, 0, NO_TEXT },
    /* encodings; UTF-32 begins as UTF-16 */
    { "text in UTF-32", "\xff\xfe\0\0", 4, 0, PIPE("iconv -f UTF-32 -t UTF-8 FILE") },
    { "text in UTF-32", "\0\0\xfe\xff", 4, 0, PIPE("iconv -f UTF-32 -t UTF-8 FILE") },
    { "text in UTF-16", "\xff\xfe", 2, 0, PIPE("iconv -f UTF-16 -t UTF-8 FILE") },
    { "text in UTF-16", "\xfe\xff", 2, 0, PIPE("iconv -f UTF-16 -t UTF-8 FILE") },
};

/* Remedies of what a name or a look at all bytes says. */
#define AS_IT_STANDS "--format text takes it as it stands"
static const char csv[] = CSV("") "; " AS_IT_STANDS;
static const char tsv[] = CSV(", delimiter=\"\\t\"") "; " AS_IT_STANDS;
static const char array[] = PIPE("jq -c '.[]' FILE") "; " AS_IT_STANDS;
static const char object[] = PIPE("jq -c . FILE") "; " AS_IT_STANDS;
static const char either[] = "--format jsonl or --format text says what it is";

/* --- refusing --- */

struct look {
    const char *path, *s;
    size_t n;
    bool whole; /* those are all bytes */
    bool plain; /* not compressed */
};

static const char *shown(const struct look *l)
{
    return strcmp(l->path, "-") ? l->path : "standard input";
}

/* Writes the remedy with the file's name for FILE, where no shell would take it apart. */
static void put_remedy(const struct look *l, const char *remedy, char *text, size_t size)
{
    bool name = strcmp(l->path, "-") && *l->path != '-' &&
                !l->path[strspn(l->path, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                         "0123456789._/+,:@%=-")];
    size_t k = 0;

    *text = 0;
    for (const char *at; remedy && k < size; remedy = at ? at + 4 : NULL) {
        at = strstr(remedy, "FILE");
        int n = at ? (int)(at - remedy) : (int)strlen(remedy);
        k += (size_t)snprintf(text + k, size - k, "%.*s%s", n, remedy,
                              !at    ? ""
                              : name ? l->path
                                     : "FILE");
    }
}

static int refuse(const struct look *l, const char *what, const char *remedy)
{
    char text[700];

    if (!l->plain && strstr(remedy, "FILE") && !strstr(remedy, "tar -xf"))
        remedy = "'gzip -dc FILE', or zstd, decompresses it once: give that";
    put_remedy(l, remedy, text, sizeof text);
    return err_set(GPT_INPUT, "%s: expected text, found %s%s: %s", shown(l), what,
                   l->plain ? "" : ", compressed", text);
}

/* --- bytes --- */

/* True if a text could begin with the magic number, and what follows does not say otherwise. */
static bool by_chance(const struct look *l, const struct magic *m)
{
    if (m->n == 6 && m->at == 4) /* bzip2's number of a block stands behind "BZh" and a digit */
        return memcmp(l->s, "BZh", 3) != 0;
    for (int i = 0; i < m->n; i++)
        if (m->n > 4 || m->bytes[i] < ' ' || m->bytes[i] > '~')
            return false;
    for (size_t i = 0; i < l->n && i < 512; i++)
        if ((unsigned char)l->s[i] < '\t')
            return false;
    return true;
}

static const struct magic *find_magic(const struct look *l)
{
    for (size_t i = 0; i < sizeof magics / sizeof *magics; i++) {
        const struct magic *m = &magics[i];

        if (l->n >= (size_t)m->at + m->n && !memcmp(l->s + m->at, m->bytes, m->n) &&
            !by_chance(l, m))
            return m;
    }
    return NULL;
}

/* Returns the remedy for text of two or four bytes a letter without a mark, by where NUL bytes
 * stand in fours: of Latin letters the high bytes are 0. NULL: it is none. */
static const char *wide_encoding(const size_t nul[4], size_t n)
{
    size_t even = nul[0] + nul[2], odd = nul[1] + nul[3];

    if (nul[0] + nul[1] > n * 7 / 16 && nul[3] <= n / 64)
        return PIPE("iconv -f UTF-32BE -t UTF-8 FILE");
    if (nul[2] + nul[3] > n * 7 / 16 && nul[0] <= n / 64)
        return PIPE("iconv -f UTF-32LE -t UTF-8 FILE");
    if (odd > n / 8 && even <= n / 64)
        return PIPE("iconv -f UTF-16LE -t UTF-8 FILE");
    if (even > n / 8 && odd <= n / 64)
        return PIPE("iconv -f UTF-16BE -t UTF-8 FILE");
    return NULL;
}

static int check_nul(const struct look *l)
{
    size_t n = l->n < LOOK ? l->n : LOOK, nul[4] = { 0 }, all;
    const char *wide;
    char what[80];

    for (size_t i = 0; i < n; i++)
        nul[i & 3] += !l->s[i];
    all = nul[0] + nul[1] + nul[2] + nul[3];
    if (all < 2 || all * 1000 <= n)
        return 0;
    if ((wide = wide_encoding(nul, n)))
        return refuse(l, "text in UTF-16 or UTF-32", wide);
    snprintf(what, sizeof what, "%zu NUL bytes in the first %zu", all, n);
    return refuse(l, what, AS_IT_STANDS);
}

static int check_utf8(const struct look *l)
{
    size_t n = l->n < LOOK ? l->n : LOOK;
    int64_t bad = 0;
    char what[80];

    utf8_repair(NULL, l->s, n, false, &bad);
    if (bad < 16 || (size_t)bad * 10 <= n)
        return 0;
    snprintf(what, sizeof what, "%lld sequences in %zu bytes that are not UTF-8", (long long)bad,
             n);
    return refuse(l, what,
                  PIPE("iconv -f ENCODING -t UTF-8 FILE") " if it is of another encoding, and "
                                                          "--invalid takes it as it stands");
}

/* --- JSON --- */

enum json_kind { JSON_NONE, JSON_CUT, JSON_CUT_TEXT, JSON_FIELD, JSON_OTHER };

/* Returns what a line is: no object, one that does not end in what was read (behind the beginning
 * of its text, or before it), one with the field, one without. */
static enum json_kind line_kind(const char *s, size_t n, bool cut, const char *field)
{
    struct json_line l = { .j = { .at = s, .end = s + n }, .begin = s, .field = field };
    bool text = json_line_begin(&l);

    if (text && json_skip(&l.j) && json_line_end(&l))
        return JSON_FIELD;
    if (l.wrong == LINE_WITHOUT)
        return JSON_OTHER;
    if (l.wrong == LINE_TWICE || (l.wrong && json_skip(&l.j)))
        return JSON_FIELD; /* its fault is said in reading */
    if (cut && l.j.end - l.j.at < 12) /* an escape or a word may be cut */
        return text ? JSON_CUT_TEXT : JSON_CUT;
    return JSON_NONE;
}

/* True if the bytes are JSON values one behind the other, or the beginning of some. */
static bool is_json(const struct look *l, const char *s, char bracket)
{
    struct json j = { .at = s, .end = l->s + l->n };
    int n = 0;

    while (json_peek(&j) == bracket && json_skip(&j))
        n++;
    return j.bad ? !l->whole && j.end - j.at < 12 && j.at > s + 1 : n && !json_more(&j);
}

static const char *skip_blanks(const char *s, const char *end)
{
    while (s < end && (*s == ' ' || *s == '\t' || *s == '\r' || *s == '\n'))
        s++;
    return s;
}

/* Writes "'id', 'content'", the fields of an object that hold strings. */
static void list_fields(const char *s, const char *end, char *text, size_t size)
{
    struct json j = { .at = s, .end = end };
    struct json_string key;
    size_t k = 0;

    *text = 0;
    json_open(&j, '{');
    while (k + 80 < size && json_key(&j, &key)) {
        if (json_peek(&j) == '"' && key.s && key.n <= 40)
            k += (size_t)snprintf(text + k, size - k, "%s'%.*s'", k ? ", " : "", (int)key.n, key.s);
        json_skip(&j);
    }
}

static int refuse_fields(const struct look *l, const char *line, const char *field)
{
    char fields[400], what[600];

    list_fields(line, l->s + l->n, fields, sizeof fields);
    snprintf(what, sizeof what, "JSON lines without a field '%s' (text is in: %s)", field,
             *fields ? fields : "none");
    return refuse(l, what, "--field NAME says which; " AS_IT_STANDS);
}

/* Returns the kind of the line at *s, which moves to the next that is not blank; at the end
 * JSON_FIELD. */
static enum json_kind next_line(const struct look *l, const char **s, const char *field)
{
    const char *end = l->s + l->n, *line = skip_blanks(*s, end);
    const char *eol = line < end ? memchr(line, '\n', (size_t)(end - line)) : NULL;

    *s = eol ? skip_blanks(eol + 1, end) : end;
    return line == end
               ? JSON_FIELD
               : line_kind(line, (size_t)((eol ? eol : end) - line), !eol && !l->whole, field);
}

/* Decides what a file is that begins with '{'. *more: its first line does not end in what was
 * read. */
static int look_at_lines(const struct look *l, const char *s, const char *field, struct kind *k,
                         bool *more)
{
    const char *second = s, *rest;
    enum json_kind one = next_line(l, &second, field), two;

    rest = second;
    two = next_line(l, &rest, field);
    *more = one == JSON_CUT || one == JSON_CUT_TEXT;
    *k = (struct kind){ .jsonl = one == JSON_FIELD || one == JSON_CUT_TEXT, .guessed = true };
    if (one == JSON_CUT)
        return refuse(l, "a line of JSON whose text does not begin in 2 MiB", either);
    if (one == JSON_NONE && is_json(l, s, '{'))
        return refuse(l, "a JSON object over several lines", object);
    if (one == JSON_OTHER && two != JSON_NONE)
        return refuse_fields(l, s, field);
    if (one == JSON_FIELD && two == JSON_OTHER)
        return refuse_fields(l, second, field);
    if (one == JSON_FIELD && two == JSON_NONE)
        return refuse(l, "a JSON line, and behind it one that is none", either);
    if (one == JSON_NONE && two == JSON_FIELD && second < l->s + l->n)
        return refuse(l, "a line that is no JSON, and behind it a JSON line", either);
    return 0;
}

/* --- all --- */

static int look(const struct look *l, const struct kind_wanted *w, struct kind *k, bool *more)
{
    const char *end = l->s + l->n, *s = l->s;
    const struct magic *m = find_magic(l);
    bool named = has_extension(l->path, "jsonl,ndjson,jl");
    int rc;

    *more = false;
    *k = (struct kind){ .jsonl = named };
    if (m)
        return refuse(l, m->what, m->remedy);
    if ((rc = check_nul(l)))
        return rc;
    if (l->n >= 3 && !memcmp(s, "\xef\xbb\xbf", 3))
        s += 3;
    s = skip_blanks(s, end);
    if (s < end && *s == '[' && is_json(l, s, '['))
        return refuse(l, "a JSON array", array);
    if (named)
        return 0;
    if (has_extension(l->path, "csv"))
        return refuse(l, "a table of comma-separated values", csv);
    if (has_extension(l->path, "tsv"))
        return refuse(l, "a table of tab-separated values", tsv);
    if (s < end && *s == '{' && (rc = look_at_lines(l, s, w->field, k, more)))
        return rc;
    k->marked = !k->jsonl && memmem(l->s, l->n < LOOK ? l->n : LOOK, "\n<|endoftext|>", 14);
    return k->jsonl || !w->utf8 ? 0 : check_utf8(l);
}

static bool is_pipe(const char *path)
{
    struct stat st;

    return strcmp(path, "-") ? !stat(path, &st) && !S_ISREG(st.st_mode)
                             : !fstat(0, &st) && !S_ISREG(st.st_mode);
}

int kind_of(struct kind *k, struct zreader *z, const char *path, const struct kind_wanted *w)
{
    struct look l = { .path = path, .plain = zreader_plain(z) };
    const void *begin;
    bool more = true;
    int rc = 0;

    *k = (struct kind){ .jsonl = w->format == FORMAT_JSONL };
    for (size_t n = LOOK; more; n = LOOK_MORE) {
        if ((rc = zreader_peek(z, n, &begin, &l.n)))
            return rc;
        l.s = begin;
        l.whole = l.n < n;
        more = false;
        if (shard_begins(begin, l.n))
            return err_set(GPT_INPUT,
                           "%s: expected text, found a shard of tokens (--stats, --decode and "
                           "--verify take one; gpt-train -d trains on it)",
                           path);
        if (!l.n && is_pipe(path))
            return err_set(GPT_INPUT,
                           "%s: expected text, found nothing: has what writes it failed?",
                           shown(&l));
        if (w->format == FORMAT_AUTO)
            rc = look(&l, w, k, &more);
        more &= n == LOOK;
    }
    k->known = !rc;
    return rc;
}

bool has_extension(const char *name, const char *extensions)
{
    size_t n = strlen(name);

    if (n > 4 && !strcasecmp(name + n - 4, ".zst"))
        n -= 4;
    else if (n > 3 && !strcasecmp(name + n - 3, ".gz"))
        n -= 3;
    for (const char *e = extensions; *e;) {
        size_t k = strcspn(e, ",");

        if (k && n > k && name[n - k - 1] == '.' && !strncasecmp(name + n - k, e, k))
            return true;
        e += k + (e[k] == ',');
    }
    return false;
}
