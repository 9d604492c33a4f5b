/* gpt-tokshard - text to shards of tokens.
 *
 *     gpt-tokshard -o shards corpus.jsonl.zst
 *     gpt-tokshard --decode shards/text_train_000001.bin 0:100
 */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/num.h"
#include "base/opt.h"
#include "base/pool.h"
#include "base/progress.h"
#include "base/report.h"
#include "base/text.h"
#include "base/zio.h"
#include "tokenize/bpe.h"
#include "data/corpus.h"
#include "data/shard_stream.h"
#include "tokenize/shard_describe.h"
#include "tokenize/shard_verify.h"
#include "tokenize/tokjob.h"

static struct {
    const char *output, *prefix, *tokenizer, *vocab, *format, *field, *extensions, *invalid;
    double split;
    int64_t val_tokens, shard_tokens, level, threads, shuffle, memory;
    bool skip_bad, val_first, stats, index, decode, verify, manifest, full, force, quiet, progress;
} o = { .prefix = "text",
        .tokenizer = "gpt2",
        .format = "auto",
        .field = "text",
        .extensions = "txt,md,jsonl",
        .shuffle = -1 };

static const struct opt table[] = {
    OPT_HEADING("Input"),
    { .name = "format",
      .arg = "FORMAT",
      .kind = OPT_CHOICE,
      .value = &o.format,
      .help = "text, jsonl, or what it looks like (auto)",
      .choices = "auto|text|jsonl" },
    OPT_TEXT(0, "field", "NAME", &o.field, "field of .jsonl that holds the text (text)"),
    OPT_TEXT(0, "ext", "LIST", &o.extensions,
             "files taken from folders (txt,md,jsonl), each also .zst and .gz"),
    { .name = "invalid",
      .arg = "HOW",
      .kind = OPT_CHOICE,
      .value = &o.invalid,
      .help = "what is not UTF-8: replace by U+FFFD (default), keep as bytes, or error",
      .choices = "replace|bytes|error" },
    OPT_SWITCH(0, "skip-bad", &o.skip_bad,
               "pass over lines of .jsonl without a text, and count them"),
    OPT_HEADING("Tokens"),
    { .name = "tokenizer",
      .arg = "NAME",
      .kind = OPT_CHOICE,
      .value = &o.tokenizer,
      .help = "gpt2 (default), or byte: a token a byte",
      .choices = "gpt2|byte" },
    OPT_TEXT(0, "vocab", "FILE", &o.vocab, "vocabulary: rank file, vocab.bpe or tokenizer.json"),
    OPT_HEADING("Output"),
    OPT_TEXT('o', "output", "DIR", &o.output,
             "write shards to DIR; -: one shard to stdout, or several of --shard-tokens"),
    OPT_TEXT(0, "name", "PREFIX", &o.prefix, "names begin with it (text): PREFIX_train_000001.bin"),
    OPT_NUMBER("shard-tokens", "N", &o.shard_tokens, 2, INT32_MAX, "tokens a shard (100M)"),
    OPT_NUMBER("level", "N", &o.level, 0, 19, "zstd level of .bin.zst; 0 (default) writes .bin"),
    OPT_REAL("split", "X", &o.split, 0, 1, "fraction of documents for validation, by their hash"),
    OPT_SWITCH(0, "val-first", &o.val_first,
               "validation is the first shard, or the first tokens, as many as --val-tokens"),
    OPT_NUMBER("val-tokens", "N", &o.val_tokens, 1, 1e15,
               "as many documents for validation, by their hash, as give N tokens"),
    OPT_NUMBER("shuffle", "SEED", &o.shuffle, 0, 1e18, "documents in an order drawn from SEED"),
    OPT_SWITCH(0, "index", &o.index, "also write where documents begin, to resume runs faster"),
    OPT_SWITCH('f', "force", &o.force, "replace shards that are there"),
    OPT_HEADING("Instead of making shards"),
    OPT_SWITCH(0, "stats", &o.stats, "print counts, entropy and lengths; -o is not needed"),
    OPT_SWITCH(0, "verify", &o.verify, "list damaged and missing shards: of folders, shards, or -"),
    OPT_SWITCH(0, "full", &o.full, "verify: every byte and every token, too"),
    OPT_SWITCH(0, "manifest", &o.manifest,
               "write the MANIFEST of shards in DIR that another program made"),
    OPT_SWITCH(0, "decode", &o.decode,
               "print the text of a shard: FILE [FROM:TO], in tokens; -: of all in a pipe"),
    OPT_HEADING("Other"),
    { .letter = 'j',
      .name = "threads",
      .arg = "N",
      .kind = OPT_I64,
      .value = &o.threads,
      .help = "threads (default: processors)",
      .lo = 1,
      .hi = 256 },
    OPT_NUMBER("memory", "BYTES", &o.memory, 1, 1e18,
               "stay below this, with fewer threads if need be"),
    OPT_SWITCH('q', "quiet", &o.quiet, "no progress, no summary"),
    OPT_SWITCH(0, "progress", &o.progress, "progress even where stderr is no terminal"),
    OPT_END
};
static const struct command command = { "gpt-tokshard", "[OPTION]... -o DIR INPUT...",
                                        "Makes shards of tokens from text and .jsonl files.",
                                        table };

/* --- the vocabulary --- */

static int load_vocab(struct vocab **v, bool bytes)
{
    char *path = NULL;
    int rc;

    if (bytes)
        return vocab_bytes(v);
    if (o.vocab)
        return vocab_load(v, o.vocab);
    if ((rc = vocab_find(&path)))
        return rc;
    rc = vocab_load(v, path);
    free(path);
    return rc;
}

/* --- --decode --- */

/* "FROM:TO", either may be left out. */
static int parse_range(const char *text, int64_t n, int64_t *from, int64_t *to)
{
    const char *colon = strchr(text, ':');
    char *head;
    int rc = 0;

    *from = 0;
    *to = n;
    if (!colon)
        return err_set(GPT_USAGE, "expected a range FROM:TO, found '%s'", text);
    if (!(head = strndup(text, (size_t)(colon - text))))
        return err_memory();
    if (*head)
        rc = num_i64(head, "FROM", 0, n, from);
    if (!rc && colon[1])
        rc = num_i64(colon + 1, "TO", *from, n, to);
    free(head);
    return rc ? err_set(GPT_USAGE, "%s", err_message()) : 0;
}

/* Loads the vocabulary of a shard, that of the MANIFEST beside it where there is one. */
static int load_vocab_of(struct vocab **v, const char *shard)
{
    const char *slash = strrchr(shard, '/');
    struct manifest m = { 0 };
    char *path;
    int rc = 0;

    if (!strcmp(shard, "-"))
        return load_vocab(v, !strcmp(o.tokenizer, "byte"));
    if (asprintf(&path, "%.*sMANIFEST", slash ? (int)(slash + 1 - shard) : 0, shard) < 0)
        return err_memory();
    if (!access(path, F_OK))
        rc = manifest_read(&m, path);
    if (!rc)
        rc = load_vocab(v, !strcmp(o.tokenizer, "byte") ||
                               (m.tokenizer && !strcmp(m.tokenizer, "bytes")));
    if (!rc && m.tokenizer && strcmp(m.vocabulary, (*v)->sha256))
        rc = err_set(GPT_INPUT, "%s: made with the vocabulary %s %s, found %s %s (--vocab)", path,
                     m.tokenizer, m.vocabulary, (*v)->name, (*v)->sha256);
    manifest_release(&m);
    free(path);
    return rc;
}

static int print_tokens(struct shard *s, const struct vocab *v, int64_t from, int64_t to)
{
    char text[4096 + TOKEN_MAX_BYTES];
    int rc;

    for (int64_t at = from; at < to;) {
        size_t n = 0;

        if ((rc = shard_wait(s, at + 32 < to ? at + 32 : to)))
            return rc;
        for (int k = 0; k < 32 && at < to; k++, at++) {
            uint16_t id = shard_tokens(s)[at];

            if (id == v->bos)
                n += (size_t)sprintf(text + n, "<|endoftext|>");
            else if (vocab_rank(v, id) == TOKEN_NONE)
                return err_set(GPT_INPUT,
                               "%s: token %lld: expected an id up to %d that has a text, found %d",
                               shard_path(s), (long long)at, v->size - 1, id);
            else
                n += bpe_decode(v, &id, 1, text + n, sizeof text - n);
        }
        shard_forget(s, at);
        if (fwrite(text, 1, n, stdout) != n)
            return err_sys("cannot write standard output");
    }
    return 0;
}

static int decode_file(const char *path, const char *range, const struct vocab *v)
{
    struct shard_want want = { .vocab = 65536, .bos = v->bos };
    struct shard *s = NULL;
    int64_t from, to, tokens;
    int rc;

    if ((rc = shard_check_header(path, &tokens)) || (rc = parse_range(range, tokens, &from, &to)))
        return rc;
    want.limit = to ? to : 1;
    if (!(rc = shard_open(&s, path, &want)))
        rc = print_tokens(s, v, from, to);
    shard_close(s);
    return rc;
}

/* The shards of a pipe, whose tokens are counted through all of them. */
static int decode_stream(const char *range, const struct vocab *v)
{
    struct shard_want want = { .vocab = 65536, .bos = v->bos, .window = 1 << 20 };
    struct shard_stream *t = NULL;
    struct shard *s;
    int64_t from, to, at = 0;
    int rc = parse_range(range, INT64_MAX, &from, &to);

    if (!rc)
        rc = shard_stream_open(&t, "-", 0);
    for (; !rc && at < to; at += want.limit) {
        want.limit = to - at;
        if ((rc = shard_stream_next(t, &s, &want)))
            break;
        want.limit = shard_size(s);
        if (!(rc = shard_skip(s, from > at ? from - at : 0)))
            rc = print_tokens(s, v, from > at ? from - at : 0, want.limit);
        shard_close(s);
    }
    shard_stream_close(t);
    return rc == GPT_NO ? 0 : rc;
}

static int decode(int argc, char **argv)
{
    const char *range = argc > 1 ? argv[1] : ":";
    struct vocab *v = NULL;
    int rc;

    if (argc < 1 || argc > 2)
        return err_set(GPT_USAGE, "--decode: expected FILE [FROM:TO], found %d operands", argc);
    if (!(rc = load_vocab_of(&v, argv[0])))
        rc = strcmp(argv[0], "-") ? decode_file(argv[0], range, v) : decode_stream(range, v);
    vocab_free(v);
    return rc;
}

/* --- --manifest --- */

static int write_manifest(const struct manifest *m, const char *path)
{
    struct output out;
    char *text = NULL;
    int rc = manifest_text(m, &text);
    if (!rc && !(rc = output_open(&out, path, o.force))) {
        fputs(text, out.f);
        rc = output_commit(&out);
    }
    free(text);
    return rc;
}

static int describe(int argc, char **argv, const char *arguments)
{
    struct manifest m = { 0 };
    char *path = argc == 1 ? path_join(argv[0], "MANIFEST") : NULL;
    if (argc != 1)
        return err_set(GPT_USAGE, "--manifest: expected a folder, found %d operands", argc);
    bool bytes = !strcmp(o.tokenizer, "byte");
    struct vocab *v = NULL;
    int left_out = 0, rc = path ? 0 : err_memory();
    if (!rc && !o.force && !access(path, F_OK))
        rc = err_set(GPT_SYSTEM, "%s: exists; --force replaces it", path);
    if (!rc && (o.vocab || bytes)) /* GPT-2's need not be here */
        rc = load_vocab(&v, bytes);
    if (!rc)
        rc = shard_describe(&m, argv[0], arguments, v, &left_out);
    vocab_free(v);
    if (!rc)
        rc = write_manifest(&m, path);
    if (!rc && !o.quiet)
        text_line(stderr, "gpt-tokshard: %s: %d shards, %lld documents, %lld tokens", path, m.n,
                  (long long)m.documents, (long long)m.tokens);
    if (!rc && !o.quiet && !m.documents)
        text_line(stderr,
                  "gpt-tokshard: token %lld, which begins a document of %s, is not in the shards: "
                  "--tokenizer or --vocab names what made them",
                  (long long)m.bos, m.tokenizer);
    if (!rc && !o.quiet && left_out)
        text_line(stderr,
                  "gpt-tokshard: %d marked as a test's beside validation: not in the MANIFEST, so "
                  "no run reads %s",
                  left_out, left_out > 1 ? "them" : "it");
    manifest_release(&m);
    free(path);
    return rc;
}

/* --- --verify --- */

/* Tells shards that MANIFEST does not name: a run on all .bin files of the folder would read them. */
static int tell_strays(const char *dir, const struct manifest *m, int *bad)
{
    char **name;
    int n, rc = manifest_strays(m, dir, &name, &n);

    for (int i = 0; i < n; i++) {
        if (!rc)
            text_line(stdout, "%s/%s: not in the MANIFEST", dir, name[i]);
        free(name[i]);
    }
    free(name);
    *bad += n;
    return rc;
}

static int verify_folder(const char *dir)
{
    struct manifest m;
    const char *slash = *dir && dir[strlen(dir) - 1] != '/' ? "/" : "";
    int bad = 0, rc = manifest_read_in(&m, dir, "");

    if (rc)
        return rc;
    for (int i = 0; i < m.n; i++) {
        rc = shard_verify(dir, &m, i, o.full);
        if (rc && rc != GPT_NO)
            break;
        bad += rc == GPT_NO;
        if (rc)
            text_line(stdout, "%s", err_message());
        else if (!o.quiet)
            text_line(stdout, "%s%s%s: ok", dir, slash, m.shard[i].name);
        rc = 0;
    }
    if (!rc)
        rc = tell_strays(dir, &m, &bad);
    manifest_release(&m);
    return rc ? rc : bad ? GPT_NO : 0;
}

/* GPT_NO with a message where a shard is damaged, or a file holds more than one. */
static int verify_shards(struct shard_stream *t, const char *path)
{
    struct shard_want want = { .vocab = 65536, .window = 1 << 20 };
    struct shard *s;
    int rc, shards = 0;

    while (!(rc = shard_stream_next(t, &s, &want))) {
        if (shards++ && strcmp(path, "-"))
            rc = err_set(GPT_NO,
                         "%s: expected the end after one shard, found another (of several, "
                         "-d - reads all, -d FILE none)",
                         path);
        else if (!(rc = shard_skip(s, shard_size(s))) && !o.quiet)
            text_line(stdout, "%s: ok", strcmp(path, "-") ? path : shard_path(s));
        shard_close(s);
        if (rc)
            return rc == GPT_INPUT ? err_set(GPT_NO, "%s", err_message()) : rc;
    }
    return rc == GPT_NO ? 0 : rc == GPT_INPUT ? err_set(GPT_NO, "%s", err_message()) : rc;
}

static int verify_file(const char *path)
{
    struct shard_stream *t;
    int rc = shard_stream_open(&t, path, 0);

    if (rc)
        return rc;
    rc = verify_shards(t, path);
    shard_stream_close(t);
    if (rc == GPT_NO)
        text_line(stdout, "%s", err_message());
    return rc;
}

static int verify(int argc, char **argv)
{
    int rc = argc ? 0 : err_set(GPT_USAGE, "--verify: expected folders, shards or -"), bad = 0;

    for (int i = 0; i < argc && !rc; i++) {
        struct stat st;

        rc = strcmp(argv[i], "-") && (stat(argv[i], &st) || S_ISDIR(st.st_mode))
                 ? verify_folder(argv[i])
                 : verify_file(argv[i]);
        bad |= rc == GPT_NO;
        rc = rc == GPT_NO ? 0 : rc;
    }
    return rc ? rc : bad ? GPT_NO : 0;
}

/* --- --stats --- */

/* A token's bytes in quotes; in hexadecimal what is not printable or not UTF-8. */
static void quote_token(const struct vocab *v, uint16_t id, char *out)
{
    char text[TOKEN_MAX_BYTES];
    size_t n = bpe_decode(v, &id, 1, text, sizeof text);

    *out++ = '"';
    for (size_t i = 0, k; i < n; i += k) {
        unsigned char b = (unsigned char)text[i];

        k = text_utf8(text + i, n - i);
        if (!k || b < 0x20 || b == 0x7f || b == '"' || b == '\\')
            out += sprintf(out, "\\x%02x", b);
        else
            out += sprintf(out, "%.*s", (int)k, text + i);
        k = k ? k : 1;
    }
    strcpy(out, "\"");
}

static int print_stats(const struct token_stats *s, const struct vocab *v)
{
    uint16_t top[20];
    char text[4 * TOKEN_MAX_BYTES + 3];
    int n = token_stats_top(s, 20, top);
    int64_t of_text = s->tokens - s->documents;
    struct report r;

    report_begin(&r, stdout, report_format_of(NULL, false));
    report_table(&r, "totals", NULL,
                 "documents:i tokens:i text_bytes:i:text_bytes bytes_per_token:f4:bytes_a_token "
                 "entropy_nats:f4:unigram_entropy,_nats/token");
    report_row(&r, s->documents, s->tokens, s->text_bytes,
               of_text > 0 ? (double)s->text_bytes / (double)of_text : NAN, token_stats_entropy(s));
    report_table(&r, "lengths", NULL, "from:i:tokens_from to:i documents:i");
    for (int i = 0; i < 63; i++)
        if (s->lengths[i])
            report_row(&r, INT64_C(1) << i, (INT64_C(1) << i) - 1 + (INT64_C(1) << i),
                       s->lengths[i]);
    report_table(&r, "tokens", NULL, "id:i:token text:s count:i");
    for (int i = 0; i < n; i++) {
        if (top[i] == v->bos)
            strcpy(text, "<|endoftext|>");
        else
            quote_token(v, top[i], text);
        report_row(&r, (int64_t)top[i], text, s->count[top[i]]);
    }
    return report_end(&r);
}

/* Existing shards: a folder with a MANIFEST, or what begins as a shard does. */
static bool is_shards(const char *path)
{
    bool yes = file_is_in(path, "MANIFEST");
    struct zreader *z = NULL;
    const void *begin;
    size_t n;

    if (!yes && !zreader_open(&z, path))
        yes = !zreader_peek(z, 8, &begin, &n) && shard_begins(begin, n);
    zreader_close(z);
    return yes;
}

static int stats_of_shards(const char *data)
{
    struct token_stats stats;
    struct vocab *v = NULL;
    char *inside = path_join(data, "MANIFEST");
    int rc = inside ? 0 : err_memory();

    if (rc || (rc = load_vocab_of(&v, access(inside, F_OK) ? data : inside)) ||
        (rc = token_stats_init(&stats)))
        goto out;
    if (!(rc = token_stats_read(&stats, data, v)))
        rc = print_stats(&stats, v);
    token_stats_release(&stats);
out:
    vocab_free(v);
    free(inside);
    return rc;
}

/* --- the job --- */

/* In the second pass of two: the share of the stored tokens that has been read back. */
static void show_progress(void *ctx, const struct tokjob_progress *p)
{
    double done = p->put_tokens    ? (double)p->put_tokens / (double)p->tokens
                  : p->total_bytes ? (double)p->read_bytes / (double)p->total_bytes
                                   : 0;
    char left[16] = "", put[32] = "";

    if (done > 0.01 && p->pass_seconds > 0.5)
        format_duration(left, p->pass_seconds * (1 - done) / done);
    if (p->put_tokens)
        snprintf(put, sizeof put, "%.2fM of ", (double)p->put_tokens / 1e6);
    progress_line(ctx, "%.1f MB  %s%.2fM tokens%s  %.1f MB/s%s%s%s", (double)p->text_bytes / 1e6,
                  put, (double)p->tokens / 1e6, *put ? " written" : "",
                  (double)p->text_bytes / 1e6 / (p->seconds + 1e-9), *left ? "  left " : "", left,
                  *left && !*put && (o.shuffle >= 0 || (o.val_tokens && !o.val_first))
                      ? ", then writing"
                      : "");
}

/* Refuses options that contradict each other or would have no effect. */
static int check_options(void)
{
    const char *instead = o.decode ? "--decode" : o.verify ? "--verify" : "--manifest";
    int rc;

    if ((rc = opt_choose(o.decode, "--decode", o.verify, "--verify")) ||
        (rc = opt_choose(o.decode || o.verify, instead, o.manifest, "--manifest")) ||
        (rc = opt_choose(o.decode || o.verify || o.manifest, instead, o.stats, "--stats")) ||
        (rc = opt_choose(o.decode || o.verify || o.manifest, instead, o.output, "-o")) ||
        (rc = opt_choose(o.quiet, "--quiet", o.progress, "--progress")) ||
        (rc = opt_choose(o.vocab, "--vocab", !strcmp(o.tokenizer, "byte"), "--tokenizer byte")))
        return rc;
    return o.full && !o.verify ? err_set(GPT_USAGE, "--full needs --verify") : 0;
}

static int check_usage(int inputs, char **input)
{
    if (!inputs)
        return err_set(GPT_USAGE, "expected input files, folders, or -");
    if (!o.output && o.index)
        return err_set(GPT_USAGE, "--index needs -o DIR");
    if (!o.output && !o.stats)
        return err_set(GPT_USAGE, "expected -o DIR (or --stats, --verify or --decode)");
    if (o.split > 0 && (o.val_first || o.val_tokens))
        return err_set(GPT_USAGE, "--split beside --val-first or --val-tokens: choose one");
    if (o.output && !strcmp(o.output, "-") &&
        (o.split > 0 || o.val_first || o.val_tokens || o.index))
        return err_set(GPT_USAGE, "-o -: shards in a pipe have no split and no index");
    if (o.output && !strcmp(o.output, "-") && o.stats)
        return err_set(GPT_USAGE, "-o - beside --stats: standard output takes one of them");
    for (int i = 0, standard = 0; i < inputs; i++)
        if (!strcmp(input[i], "-") && standard++)
            return err_set(GPT_USAGE, "'-' is given twice");
    for (int i = 0; o.stats && !o.output && i < inputs; i++)
        if (is_shards(input[i]))
            return err_set(GPT_USAGE,
                           "--stats: '%s' is of shards: expected it alone, found %d "
                           "inputs",
                           input[i], inputs);
    if (!*o.prefix || strlen(o.prefix) > 200 || strpbrk(o.prefix, "/ \t\n"))
        return err_set(GPT_USAGE, "--name: expected a part of a file name, found '%s'", o.prefix);
    return 0;
}

/* Prints "a.json.gz and 3 more: TEXT". */
static void say_note(const struct source_note *n, const char *text)
{
    char more[32] = "";

    if (n->n > 1)
        snprintf(more, sizeof more, " and %d more", n->n - 1);
    if (n->n)
        text_line(stderr, "gpt-tokshard: %s%s: %s", n->first, more, text);
}

static void say_notes(const struct source_notes *n)
{
    say_note(&n->jsonl, "taken for JSON lines");
    say_note(&n->text, "taken for text, which begins with '{'");
    say_note(&n->twice, "given before; its documents come twice");
    say_note(&n->left_out, "left out for its name: --ext says which are taken");
}

/* What the user should know of a job, also of one that failed. */
static void say_result(const struct tokjob_result *r, bool done)
{
    if (r->cleared)
        text_line(stderr, "gpt-tokshard: removed '%s/" SHARDS_TMP "', which a killed job had left",
                  o.output);
    if (done)
        say_notes(&r->notes);
    say_note(&r->notes.marked,
             "one document, in which '<|endoftext|>' is text; documents of what is between: "
             "jq -cRs 'split(\"<|endoftext|>\")[] | {text: .}' FILE | gpt-tokshard ... -");
    if (r->skipped)
        text_line(stderr,
                  "gpt-tokshard: %" PRId64 " line%s without a text passed over, the first: %s",
                  r->skipped, r->skipped == 1 ? "" : "s", r->first_skipped);
    if (done && r->invalid)
        text_line(stderr, "gpt-tokshard: %" PRId64 " sequence%s not UTF-8: %s", r->invalid,
                  r->invalid == 1 ? " is" : "s are",
                  o.invalid && !strcmp(o.invalid, "bytes") ? "kept as bytes"
                                                           : "replaced by U+FFFD");
    if (done && o.output && (r->val_tokens || o.split > 0))
        text_line(stderr,
                  "gpt-tokshard: for validation %" PRId64 " document%s, %" PRId64
                  " tokens, %.3g%% of all; for training %" PRId64 " and %" PRId64,
                  r->val_documents, r->val_documents == 1 ? "" : "s", r->val_tokens,
                  100 * (double)r->val_tokens / (double)r->tokens, r->documents - r->val_documents,
                  r->tokens - r->val_tokens);
    if (done && o.output)
        text_line(stderr,
                  "gpt-tokshard: %" PRId64 " document%s, %" PRId64 " token%s in %d shard%s; %.1f "
                  "MB of text in %.1f s, %.1f MB/s",
                  r->documents, r->documents == 1 ? "" : "s", r->tokens, r->tokens == 1 ? "" : "s",
                  r->shards, r->shards == 1 ? "" : "s", (double)r->text_bytes / 1e6, r->seconds,
                  (double)r->text_bytes / 1e6 / r->seconds);
}

static int make_shards(int inputs, char **input, const char *arguments)
{
    if (!o.shard_tokens)
        o.shard_tokens = o.output && !strcmp(o.output, "-") ? INT32_MAX : 100000000;
    struct progress bar;
    struct token_stats stats = { 0 };
    struct vocab *vocab = NULL;
    struct tokjob_result r;
    struct tokjob_config c = {
        .source = { .path = (const char **)input,
                    .paths = inputs,
                    .extensions = o.extensions,
                    .field = o.field,
                    .skip_bad = o.skip_bad,
                    .utf8 = !o.invalid,
                    .format = !strcmp(o.format, "text")    ? FORMAT_TEXT
                              : !strcmp(o.format, "jsonl") ? FORMAT_JSONL
                                                           : FORMAT_AUTO },
        .encode = { .field = o.field,
                    .skip_bad = o.skip_bad,
                    .invalid = !o.invalid || !strcmp(o.invalid, "replace") ? INVALID_REPLACE
                               : !strcmp(o.invalid, "bytes")               ? INVALID_BYTES
                                                                           : INVALID_ERROR },
        .out = o.output,
        .prefix = o.prefix,
        .arguments = arguments,
        .level = (int)o.level,
        .shard_tokens = o.shard_tokens,
        .val_fraction = o.split,
        /* One token more than asked for: each needs the next as its target. */
        .val_first_tokens = !o.val_first   ? 0
                            : o.val_tokens ? o.val_tokens + 1
                                           : o.shard_tokens,
        .val_tokens = o.val_tokens && !o.val_first ? o.val_tokens + 1 : 0,
        .shuffle = o.shuffle >= 0,
        .seed = (uint64_t)o.shuffle,
        .memory = o.memory,
        .with_index = o.index,
        .threads = o.threads ? (int)o.threads : pool_processors(),
        .force = o.force,
        .stats = o.stats ? &stats : NULL,
        .progress = show_progress,
        .ctx = &bar,
    };
    int rc;

    if (c.threads > 256)
        c.threads = 256;
    if ((rc = load_vocab(&vocab, !strcmp(o.tokenizer, "byte"))) ||
        (o.stats && (rc = token_stats_init(&stats))))
        goto out;
    c.encode.vocab = vocab;
    progress_init(&bar, o.quiet ? PROGRESS_OFF : o.progress ? PROGRESS_ON : PROGRESS_AUTO);
    rc = tokjob_run(&c, &r);
    progress_end(&bar);
    if (!rc && o.stats)
        rc = print_stats(&stats, vocab);
    if (!o.quiet)
        say_result(&r, rc == 0);
out:
    token_stats_release(&stats);
    vocab_free(vocab);
    return rc;
}

int main(int argc, char **argv)
{
    char *arguments = opt_arguments(argc, argv);
    int first, rc;

    if (!(rc = opt_parse(&command, argc, argv, &first)))
        rc = arguments ? check_options() : err_memory();
    if (!rc) {
        output_cleanup_on_signal();
        if (o.decode)
            rc = decode(argc - first, argv + first);
        else if (o.verify)
            rc = verify(argc - first, argv + first);
        else if (o.manifest)
            rc = describe(argc - first, argv + first, arguments);
        else if (o.stats && !o.output && argc - first == 1 && is_shards(argv[first]))
            rc = stats_of_shards(argv[first]);
        else if (!(rc = check_usage(argc - first, argv + first)))
            rc = make_shards(argc - first, argv + first, arguments);
    }
    free(arguments);
    return opt_exit(&command, rc);
}
