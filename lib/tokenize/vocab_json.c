/* vocab_json.c - tokenizer.json, of Hugging Face's tokenizers: the file of which the model gives
 * the merges and their ids, and the other fields what is done to text before and after.
 *
 * Taken is what gives the ids that bpe_encode gives but for their numbers: byte-level BPE with
 * GPT-2's pattern, special tokens at any id. What would give others is refused by the name of its
 * field. Special tokens come from no text. The one that starts documents is the first in `starts`
 * that is there, or the only one; without any it is the id after the last.
 */
#include "tokenize/vocab_forms.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/grow.h"
#include "base/json.h"

static const char *const starts[] = { "<|endoftext|>", "<s>",   "<bos>",
                                      "<|bos|>",       "[BOS]", "<|begin_of_text|>" };

struct special {
    char *name;
    uint64_t id;
};

struct reader {
    struct vocab *v;
    struct vocab_text *t;
    struct json j;
    struct special *special;
    int specials;
    uint16_t *sorted; /* ranks, by their bytes */
    bool byte_level; /* a pre-tokenizer makes bytes of text */
    bool has_ids, has_merges;
    struct json ids; /* at model.vocab */
};

/* --- faults --- */

static int line_of(const struct reader *r)
{
    r->t->at = r->j.at;
    return vocab_line(r->t);
}

static int fault(struct reader *r, const char *field, const char *expected, const char *found)
{
    if (r->j.bad)
        expected = r->j.bad, found = NULL;
    return err_set(GPT_INPUT, "%s: line %d: %s%sexpected %s%s%s", r->t->path, line_of(r), field,
                   *field ? ": " : "", expected, found ? ", found " : "", found ? found : "");
}

static int twice(const struct reader *r, const char *name)
{
    return err_set(GPT_INPUT, "%s: line %d: field '%s' comes twice", r->t->path, line_of(r), name);
}

static int model_fault(struct reader *r)
{
    return fault(r, "", "model.vocab and model.merges of a byte-level BPE", NULL);
}

/* --- fields whose values are what they must be --- */

struct rule {
    const char *name;
    const char *allowed; /* values as JSON, "null|false"; NULL: any */
    int (*read)(struct reader *r, const char *name); /* or what reads it */
    bool needed;
};

/* True if the n bytes are one of a list "null|false". */
static bool is_one_of(const char *s, size_t n, const char *list)
{
    for (size_t k; *list; list += k + (list[k] == '|')) {
        k = strcspn(list, "|");
        if (k == n && !memcmp(s, list, k))
            return true;
    }
    return false;
}

static int read_value(struct reader *r, const struct rule *rule, const char *name)
{
    char found[48];
    const char *at;

    if (rule->read)
        return rule->read(r, name);
    json_peek(&r->j);
    at = r->j.at;
    json_skip(&r->j);
    size_t n = (size_t)(r->j.at - at);
    if (r->j.bad)
        return fault(r, name, "", NULL);
    snprintf(found, sizeof found, "%.*s", (int)(n < 40 ? n : 40), at);
    return !rule->allowed || is_one_of(at, n, rule->allowed) ? 0
                                                             : fault(r, name, rule->allowed, found);
}

/* Reads an object of which each field has a rule; `where` is its name. */
static int read_object(struct reader *r, const char *where, const struct rule *rules, int n)
{
    unsigned seen = 0;
    struct json_string key;
    char name[128];
    int rc;

    json_open(&r->j, '{');
    while (json_key(&r->j, &key)) {
        int i = 0;

        while (i < n && !json_equal(&key, rules[i].name))
            i++;
        snprintf(name, sizeof name, "%s%s%.*s", where, *where ? "." : "",
                 (int)(key.n < 60 ? key.n : 60), key.s);
        if (i == n && !*where && json_peek(&r->j) >= '0' && json_peek(&r->j) <= '9')
            return fault(r, "", "merges beside a vocabulary, as in tokenizer.json or merges.txt",
                         "ids alone, as in vocab.json");
        if (i == n)
            return fault(r, name, "no such field", NULL);
        if (seen >> i & 1)
            return twice(r, name);
        seen |= 1u << i;
        if ((rc = read_value(r, &rules[i], name)))
            return rc;
    }
    if (r->j.bad)
        return fault(r, "", "", NULL);
    for (int i = 0; i < n; i++)
        if (rules[i].needed && !(seen >> i & 1)) {
            snprintf(name, sizeof name, "%s%s%s", where, *where ? "." : "", rules[i].name);
            return fault(r, name, rules[i].allowed ? rules[i].allowed : "it", "none");
        }
    return 0;
}

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))

/* --- what is done before and after --- */

/* True if an object of this type is next. */
static bool has_type(const struct reader *r, const char *type)
{
    struct json j = r->j;
    struct json_string key, value;

    if (json_peek(&j) != '{' || !json_open(&j, '{'))
        return false;
    while (json_key(&j, &key)) {
        if (json_equal(&key, "type"))
            return json_peek(&j) == '"' && json_string(&j, &value) && json_equal(&value, type);
        json_skip(&j);
    }
    return false;
}

static const struct rule splitting[] = {
    { "type", "\"ByteLevel\"", NULL, true },
    { "add_prefix_space", "false", NULL, true },
    { "trim_offsets", NULL, NULL, false },
    { "use_regex", "true", NULL, false },
};
static const struct rule bytes_alone[] = {
    { "type", "\"ByteLevel\"", NULL, true },
    { "add_prefix_space", "false", NULL, true },
    { "trim_offsets", NULL, NULL, false },
    { "use_regex", "false", NULL, true },
};
/* Fields of a decoder and a post-processor, which change no ids. */
static const struct rule no_ids[] = {
    { "type", "\"ByteLevel\"", NULL, true },
    { "add_prefix_space", NULL, NULL, false },
    { "trim_offsets", NULL, NULL, false },
    { "use_regex", NULL, NULL, false },
};

/* Reads {"Regex": GPT-2's}. */
static int read_pattern(struct reader *r, const char *name)
{
    static const char gpt2[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|"
                               "\\s+(?!\\S)|\\s+";
    struct json_string key, value;
    bool good = json_peek(&r->j) == '{' && json_open(&r->j, '{') && json_key(&r->j, &key) &&
                json_equal(&key, "Regex") && json_peek(&r->j) == '"' &&
                json_string(&r->j, &value) && json_equal(&value, gpt2) && !json_key(&r->j, &key);

    return good && !r->j.bad ? 0 : fault(r, name, "GPT-2's regular expression", "another");
}

static const struct rule split[] = {
    { "type", "\"Split\"", NULL, true },
    { "pattern", NULL, read_pattern, true },
    { "behavior", "\"Isolated\"", NULL, true },
    { "invert", "false", NULL, true },
};

/* Reads an array of ByteLevel, or of Split and ByteLevel. */
static int read_steps(struct reader *r, const char *name)
{
    bool cut = false;
    int rc = 0;

    if (json_peek(&r->j) != '[')
        return fault(r, name, "an array", NULL);
    json_open(&r->j, '[');
    for (int i = 0; !rc && json_element(&r->j); i++) {
        if (i == 0 && has_type(r, "Split")) {
            cut = true;
            rc = read_object(r, name, split, COUNT(split));
        } else if (i == cut) {
            rc = read_object(r, name, cut ? bytes_alone : splitting, COUNT(splitting));
            r->byte_level = true;
        } else {
            rc = fault(r, name, "Split and ByteLevel, or ByteLevel alone", "more");
        }
    }
    if (!rc && !r->byte_level)
        rc = fault(r, name, "ByteLevel", "none");
    return rc;
}

static const struct rule sequence[] = {
    { "type", "\"Sequence\"", NULL, true },
    { "pretokenizers", NULL, read_steps, true },
};

static int read_pre_tokenizer(struct reader *r, const char *name)
{
    if (has_type(r, "Sequence"))
        return read_object(r, name, sequence, COUNT(sequence));
    if (!has_type(r, "ByteLevel"))
        return fault(r, name, "ByteLevel, or Split by GPT-2's pattern and ByteLevel", "another");
    r->byte_level = true;
    return read_object(r, name, splitting, COUNT(splitting));
}

static int read_no_ids(struct reader *r, const char *name)
{
    if (json_peek(&r->j) == 'n') {
        json_skip(&r->j);
        return 0;
    }
    if (!has_type(r, "ByteLevel"))
        return fault(r, name, "null or ByteLevel (no text gives a document's start)", "another");
    return read_object(r, name, no_ids, COUNT(no_ids));
}

/* --- special tokens --- */

static int read_name(struct reader *r, const char *name)
{
    struct special *s = &r->special[r->specials - 1];
    struct json_string text;

    if (json_peek(&r->j) != '"' || !json_string(&r->j, &text))
        return fault(r, name, "a string", NULL);
    if (!(s->name = calloc(text.n + 1, 1)))
        return err_memory();
    json_unescape(&text, s->name);
    return 0;
}

static int read_special_id(struct reader *r, const char *name)
{
    return json_u64(&r->j, &r->special[r->specials - 1].id) ? 0 : fault(r, name, "an id", NULL);
}

/* Fields of a special token, which comes from no text: how it would be found there does not matter. */
static const struct rule added[] = {
    { "id", NULL, read_special_id, true }, { "content", NULL, read_name, true },
    { "special", "true", NULL, true },     { "single_word", NULL, NULL, false },
    { "lstrip", NULL, NULL, false },       { "rstrip", NULL, NULL, false },
    { "normalized", NULL, NULL, false },
};

static int read_added(struct reader *r, const char *name)
{
    int rc = 0;

    if (json_peek(&r->j) != '[')
        return fault(r, name, "an array", NULL);
    json_open(&r->j, '[');
    while (!rc && json_element(&r->j)) {
        if ((rc = grow_one(&r->special, (size_t)r->specials, sizeof *r->special)))
            break;
        r->special[r->specials++] = (struct special){ NULL, 0 };
        rc = read_object(r, name, added, COUNT(added));
    }
    return rc || !r->j.bad ? rc : fault(r, name, "", NULL);
}

/* --- the model --- */

/* Reads one merge: "left right" or ["left", "right"]. */
static int read_merge(struct reader *r)
{
    struct json_string s[2];
    char buf[2][8 * TOKEN_MAX_BYTES];
    size_t n[2] = { 0, 0 };
    struct json *j = &r->j;
    int k = 1;

    if (json_peek(j) == '[') {
        json_open(j, '[');
        for (k = 0; json_element(j) && k < 2 && json_string(j, &s[k]); k++)
            ;
    } else {
        json_string(j, &s[0]);
    }
    r->t->at = j->at;
    for (int i = 0; !j->bad && i < k; i++) {
        if (s[i].n > sizeof buf[i])
            return vocab_too_long(r->t, r->v->tokens, s[i].n);
        n[i] = json_unescape(&s[i], buf[i]);
    }
    if (!j->bad && k == 2)
        return vocab_put_merge(r->v, r->t, buf[0], n[0], buf[1], n[1]);
    if (!j->bad && k == 1) {
        const char *space = memchr(buf[0], ' ', n[0]);

        if (space)
            return vocab_put_merge(r->v, r->t, buf[0], (size_t)(space - buf[0]), space + 1,
                                   n[0] - (size_t)(space - buf[0]) - 1);
    }
    return model_fault(r);
}

static int read_merges(struct reader *r, const char *name)
{
    int rc = 0;

    (void)name;
    if (json_peek(&r->j) != '[')
        return model_fault(r);
    r->has_merges = true;
    json_open(&r->j, '[');
    while (!rc && json_element(&r->j))
        rc = read_merge(r);
    return rc || !r->j.bad ? rc : model_fault(r);
}

/* Passes over the ids, which are read when merges are known. */
static int read_ids_later(struct reader *r, const char *name)
{
    (void)name;
    r->has_ids = json_peek(&r->j) == '{';
    r->ids = r->j;
    return r->has_ids && json_skip(&r->j) ? 0 : model_fault(r);
}

/* All bytes have tokens, so none is unknown; each token is what its own bytes are encoded to
 * (vocab_tables.c), so that ignore_merges changes nothing. */
static const struct rule model[] = {
    { "type", "\"BPE\"", NULL, false },
    { "dropout", "null|0|0.0", NULL, false },
    { "unk_token", NULL, NULL, false },
    { "continuing_subword_prefix", "null|\"\"", NULL, false },
    { "end_of_word_suffix", "null|\"\"", NULL, false },
    { "fuse_unk", NULL, NULL, false },
    { "byte_fallback", "null|false", NULL, false },
    { "ignore_merges", NULL, NULL, false },
    { "vocab", NULL, read_ids_later, false },
    { "merges", NULL, read_merges, false },
};

static int read_model(struct reader *r, const char *name)
{
    return json_peek(&r->j) == '{' ? read_object(r, name, model, COUNT(model)) : model_fault(r);
}

static const struct rule all[] = {
    { "version", NULL, NULL, false },
    { "truncation", "null", NULL, false },
    { "padding", "null", NULL, false },
    { "added_tokens", NULL, read_added, false },
    { "normalizer", "null", NULL, false },
    { "pre_tokenizer", NULL, read_pre_tokenizer, false },
    { "post_processor", NULL, read_no_ids, false },
    { "decoder", NULL, read_no_ids, false },
    { "model", NULL, read_model, false },
};

/* --- ids --- */

static int compare_bytes(const struct vocab *v, int rank, const uint8_t *s, size_t n)
{
    size_t k;
    const uint8_t *b = vocab_token(v, rank, &k);
    int c = memcmp(b, s, k < n ? k : n);

    return c ? c : (k > n) - (k < n);
}

static int compare_ranks(const void *a, const void *b, void *ctx)
{
    const struct vocab *v = ctx;
    size_t n;
    const uint8_t *s = vocab_token(v, *(const uint16_t *)b, &n);

    return compare_bytes(v, *(const uint16_t *)a, s, n);
}

/* Returns the rank of the token with these bytes, or TOKEN_NONE. */
static uint32_t find_rank(const struct reader *r, const uint8_t *s, size_t n)
{
    int low = 0, high = r->v->tokens;

    while (low < high) {
        int mid = (low + high) / 2, c = compare_bytes(r->v, r->sorted[mid], s, n);

        if (!c)
            return r->sorted[mid];
        if (c < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return TOKEN_NONE;
}

static const struct special *find_special(const struct reader *r, const char *name, size_t n)
{
    for (int i = 0; i < r->specials; i++)
        if (strlen(r->special[i].name) == n && !memcmp(r->special[i].name, name, n))
            return &r->special[i];
    return NULL;
}

/* Gives the id to the token, or to the special token, with this name. */
static int take_id(struct reader *r, const struct json_string *key, uint64_t id)
{
    struct vocab *v = r->v;
    char name[8 * TOKEN_MAX_BYTES];
    uint8_t bytes[8 * TOKEN_MAX_BYTES];
    size_t n;
    int m;

    if (key->n > sizeof name)
        return vocab_too_long(r->t, (int)(id < TOKEN_NONE ? id : TOKEN_NONE), key->n);
    n = json_unescape(key, name);
    int shown = (int)(n < 80 ? n : 80);
    const struct special *s = find_special(r, name, n);
    if (s)
        return s->id == id
                   ? 0
                   : err_set(GPT_INPUT,
                             "%s: '%.*s': expected the id of added_tokens, %llu, found %llu "
                             "in model.vocab",
                             r->t->path, shown, name, (unsigned long long)s->id,
                             (unsigned long long)id);
    if (id >= TOKEN_NONE)
        return vocab_too_many(r->t);
    m = vocab_unmap(name, n, bytes);
    uint32_t rank = m < 1 ? TOKEN_NONE : find_rank(r, bytes, (size_t)m);
    if (rank == TOKEN_NONE)
        return err_set(
            GPT_INPUT,
            "%s: model.vocab: expected a byte, what a merge makes or a special token, found "
            "'%.*s'",
            r->t->path, shown, name);
    if (v->id[rank] != TOKEN_NONE || v->rank[id] != TOKEN_NONE)
        return err_set(GPT_INPUT, "%s: model.vocab: '%.*s': expected an id of its own, found %llu",
                       r->t->path, shown, name, (unsigned long long)id);
    v->id[rank] = (uint16_t)id;
    v->rank[id] = (uint16_t)rank;
    v->size = (int)id >= v->size ? (int)id + 1 : v->size;
    return 0;
}

static int read_ids(struct reader *r)
{
    struct vocab *v = r->v;
    struct json_string key;
    uint64_t id;
    int rc = 0, n = 0;

    v->id = malloc((TOKEN_NONE + 1) * sizeof *v->id);
    v->rank = malloc((TOKEN_NONE + 1) * sizeof *v->rank);
    r->sorted = malloc((size_t)v->tokens * sizeof *r->sorted);
    if (!v->id || !v->rank || !r->sorted)
        return err_memory();
    memset(v->id, 0xff, (TOKEN_NONE + 1) * sizeof *v->id);
    memset(v->rank, 0xff, (TOKEN_NONE + 1) * sizeof *v->rank);
    for (int i = 0; i < v->tokens; i++)
        r->sorted[i] = (uint16_t)i;
    qsort_r(r->sorted, (size_t)v->tokens, sizeof *r->sorted, compare_ranks, v);
    r->j = r->ids;
    json_open(&r->j, '{');
    while (!rc && json_key(&r->j, &key) && json_u64(&r->j, &id)) {
        r->t->at = r->j.at;
        rc = take_id(r, &key, id);
    }
    if (rc || r->j.bad)
        return rc ? rc : model_fault(r);
    for (int i = 0; i < v->tokens; i++)
        n += v->id[i] != TOKEN_NONE;
    return n == v->tokens ? 0
                          : err_set(GPT_INPUT, "%s: expected an id for each of %d tokens, found %d",
                                    r->t->path, v->tokens, n);
}

/* --- the start of documents --- */

static int too_many_starts(const struct reader *r)
{
    return err_set(
        GPT_INPUT,
        "%s: added_tokens: expected one that starts documents, as '<|endoftext|>', or one "
        "alone, found %d, the first '%.60s'",
        r->t->path, r->specials, r->special[0].name);
}

static int choose_start(struct reader *r)
{
    struct vocab *v = r->v;
    const struct special *start = NULL;

    for (int i = 0; i < r->specials; i++) {
        const struct special *s = &r->special[i];

        if (s->id >= TOKEN_NONE)
            return vocab_too_many(r->t);
        if (v->rank[s->id] != TOKEN_NONE)
            return err_set(GPT_INPUT,
                           "%s: added_tokens: '%.60s': expected an id of its own, found %llu",
                           r->t->path, s->name, (unsigned long long)s->id);
        v->size = (int)s->id >= v->size ? (int)s->id + 1 : v->size;
    }
    for (int i = 0; i < COUNT(starts) && !start; i++)
        start = find_special(r, starts[i], strlen(starts[i]));
    if (!start && r->specials > 1)
        return too_many_starts(r);
    if (!start && r->specials == 1)
        start = r->special;
    if (!start && v->size == TOKEN_NONE)
        return vocab_too_many(r->t);
    v->bos = start ? (int)start->id : v->size++;
    return 0;
}

/* Frees the tables of ids where ids are ranks. */
static void drop_plain_ids(struct vocab *v)
{
    for (int i = 0; i < v->tokens; i++)
        if (v->id[i] != i)
            return;
    free(v->id);
    free(v->rank);
    v->id = v->rank = NULL;
}

static int parse(struct reader *r)
{
    int rc;

    if ((rc = read_object(r, "", all, COUNT(all))))
        return rc;
    if (json_more(&r->j))
        return fault(r, "", "the end of the file", NULL);
    if (!r->has_merges || !r->has_ids)
        return model_fault(r);
    if (!r->byte_level)
        return fault(r, "pre_tokenizer", "ByteLevel", "none");
    if ((rc = read_ids(r)) || (rc = choose_start(r)))
        return rc;
    drop_plain_ids(r->v);
    return 0;
}

int vocab_parse_json(struct vocab *v, struct vocab_text *t)
{
    struct reader r = { .v = v, .t = t, .j = { .at = t->begin, .end = t->end } };
    int rc = vocab_reserve(v, TOKEN_NONE, 256 + (size_t)(t->end - t->begin));

    if (!rc) {
        vocab_put_bytes(v);
        rc = parse(&r);
    }
    for (int i = 0; i < r.specials; i++)
        free(r.special[i].name);
    free(r.special);
    free(r.sorted);
    return rc;
}
