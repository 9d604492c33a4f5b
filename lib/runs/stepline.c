/* stepline.c - see stepline.h. */
#include "runs/stepline.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "runs/prefix.h"

enum { NUMBER_MAX = 40 }; /* characters of a number */

struct cursor {
    const char *at, *end;
};

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static bool take_text(struct cursor *c, const char *word)
{
    size_t n = strlen(word);
    if ((size_t)(c->end - c->at) < n || memcmp(c->at, word, n))
        return false;
    c->at += n;
    return true;
}

static bool take_count(struct cursor *c, int32_t *out)
{
    int64_t v = 0;
    if (c->at == c->end || !is_digit(*c->at))
        return false;
    for (; c->at < c->end && is_digit(*c->at); c->at++)
        if ((v = 10 * v + (*c->at - '0')) > STEP_MAX)
            return false;
    *out = (int32_t)v;
    return true;
}

/* [-+] digits [. digits] [e[-+]digits] or nan or inf, as Python prints a float. */
static bool take_number(struct cursor *c, struct printed *p)
{
    const char *start = c->at;
    static const double power[] = { 1,   1e1, 1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                    1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15 };
    bool negative = c->at < c->end && *c->at == '-', exponent = false;
    if (c->at < c->end && (*c->at == '-' || *c->at == '+'))
        c->at++;
    p->given = true;
    p->digits = 0;
    if (take_text(c, "nan") || take_text(c, "inf")) {
        p->value = c->at[-1] == 'n' ? NAN : negative ? -INFINITY : INFINITY;
        return true;
    }
    uint64_t v = 0;
    int n = 0;
    bool point = false;
    for (; c->at < c->end && (is_digit(*c->at) || (*c->at == '.' && !point && n)); c->at++) {
        if (*c->at == '.') {
            point = true;
            continue;
        }
        v = n < 18 ? 10 * v + (uint64_t)(*c->at - '0') : v;
        n++;
        p->digits += point;
    }
    if (!n || c->at - start > NUMBER_MAX || (point && !p->digits))
        return false;
    if (c->at < c->end && (*c->at == 'e' || *c->at == 'E')) {
        struct cursor e = { c->at + 1, c->end };
        int32_t digits;
        if (e.at < e.end && (*e.at == '-' || *e.at == '+'))
            e.at++;
        if (!take_count(&e, &digits))
            return false;
        exponent = true;
        c->at = e.at;
    }
    if (n <= 15 && !exponent) { /* both exact, so the quotient is rounded once */
        p->value = (double)v / power[p->digits];
        p->value = negative ? -p->value : p->value;
        return true;
    }
    char text[2 * NUMBER_MAX];
    if (c->at - start >= (ptrdiff_t)sizeof text)
        return false;
    memcpy(text, start, (size_t)(c->at - start));
    text[c->at - start] = '\0';
    p->value = strtod(text, NULL);
    if (exponent) /* digits behind the point tell no resolution then */
        p->digits = 17;
    return true;
}

static bool take_ms(struct cursor *c, struct printed *p)
{
    if (!take_number(c, p))
        return false;
    if (take_text(c, "ms"))
        return true;
    if (!take_text(c, "s"))
        return false;
    /* "105.607s" is 105607 ms to the last digit: 1000 * 105.607 is not */
    double scaled = p->digits <= 15 ? round(p->value * pow(10, p->digits)) : NAN;
    if (isfinite(scaled) && fabs(scaled) < 9e15)
        p->value =
            p->digits <= 3 ? scaled * pow(10, 3 - p->digits) : scaled / pow(10, p->digits - 3);
    else
        p->value *= 1000;
    p->digits = p->digits > 3 ? p->digits - 3 : 0;
    return true;
}

static bool at_pair_end(const struct cursor *c)
{
    return c->at == c->end || *c->at == ' ' || *c->at == '\t';
}

/* A value that means nothing here: printable, not empty. */
static bool skip_value(struct cursor *c)
{
    const char *start = c->at;
    while (!at_pair_end(c)) {
        if ((unsigned char)*c->at <= 0x20 || *c->at == 0x7f)
            return false;
        c->at++;
    }
    return c->at > start;
}

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '-' || c == '/' ||
           c == '.' || is_digit(c);
}

static bool same(const char *name, size_t n, const char *word)
{
    return n == strlen(word) && !memcmp(name, word, n);
}

static struct printed *loss_named(struct stepline *s, const char *name, size_t n)
{
    return same(name, n, "val_loss") || same(name, n, "tel")     ? &s->val
           : same(name, n, "train_loss") || same(name, n, "trl") ? &s->train
           : same(name, n, "next_loss")                          ? &s->next
                                                                 : NULL;
}

/* One `name:value`; NULL, or what is wrong with it. */
static const char *take_pair(struct cursor *c, struct stepline *s)
{
    const char *name = c->at;
    while (c->at < c->end && is_name(*c->at))
        c->at++;
    size_t n = (size_t)(c->at - name);
    if (!n || c->at == c->end || *c->at != ':')
        return "expected name:value";
    c->at++;
    const char *value = c->at;
    struct printed *loss = loss_named(s, name, n);
    struct printed *time = same(name, n, "train_time") ? &s->time_ms
                           : same(name, n, "step_avg") ? &s->avg_ms
                                                       : NULL;
    bool norm = same(name, n, "grad_norm") || same(name, n, "norm");
    if ((loss && loss->given) || (time && time->given))
        return "the same name twice";
    if (loss && (!take_number(c, loss) || !at_pair_end(c)))
        return "a loss that is no number";
    if (time && (!take_ms(c, time) || !at_pair_end(c)))
        return "a time that is no number of ms or s";
    if (norm && (!take_number(c, &s->norm) || !at_pair_end(c)))
        s->norm.given = false;
    if (!loss && !time && !at_pair_end(c) && !skip_value(c))
        return "a name without a value";
    if (c->at == value)
        return "a name without a value";
    s->closed = !is_digit(c->at[-1]) && c->at[-1] != '.';
    return NULL;
}

static void skip_blanks(struct cursor *c)
{
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\t'))
        c->at++;
}

static enum stepline_kind bad(const char **why, const char *what)
{
    *why = what;
    return STEP_BAD;
}

/* `step:N/M name:value ...`, from N on */
static enum stepline_kind parse_pairs(struct cursor c, struct stepline *s, const char **why)
{
    if (!take_count(&c, &s->step))
        return bad(why, "a step number that is too large");
    if (c.at < c.end && *c.at == '/') {
        c.at++;
        if (!take_count(&c, &s->total) || !s->total)
            return bad(why, "no number of steps behind '/'");
    }
    if (s->total && s->step > s->total)
        return bad(why, "a step beyond the last");
    int pairs = 0;
    for (; c.at < c.end; pairs++) {
        if (!at_pair_end(&c))
            return bad(why, "no blank behind the step number");
        skip_blanks(&c);
        if (c.at == c.end)
            break;
        if ((*why = take_pair(&c, s)))
            return STEP_BAD;
    }
    if (!pairs)
        return bad(why, "a step number and nothing else");
    return STEP_OK;
}

/* --- other programs' output --- */

static bool take_word(struct cursor *c, const char *word)
{
    skip_blanks(c);
    return take_text(c, word);
}

static bool take_value(struct cursor *c, const char *word, struct printed *p)
{
    struct cursor t = *c;
    if (!take_word(&t, word))
        return false;
    skip_blanks(&t);
    if (!take_number(&t, p)) {
        p->given = false;
        return false;
    }
    *c = t;
    return true;
}

/* `step N/M | loss X (..)| norm X (..)| lr X | X ms | ...`, from behind N/M on; in another version the
 * time is in parentheses. */
static enum stepline_kind parse_fields(struct cursor c, struct stepline *s, const char **why)
{
    s->layout = LAYOUT_LLMC_OUTPUT;
    while (c.at < c.end && take_word(&c, "|")) {
        const char *bar = memchr(c.at, '|', (size_t)(c.end - c.at));
        struct cursor field = { c.at, bar ? bar : c.end };
        if (!take_value(&field, "train loss", &s->train) &&
            !take_value(&field, "loss", &s->train) && !take_value(&field, "norm", &s->norm)) {
            struct printed ms;
            take_word(&field, "(");
            if (take_number(&field, &ms) && take_text(&field, " ms"))
                s->own_ms = ms;
        }
        c.at = bar ? bar : c.end;
    }
    s->closed = s->own_ms.given;
    if (c.at < c.end || !s->train.given || !s->total || s->step > s->total)
        return bad(why, "a step line of llm.c without its loss, or with other fields");
    return STEP_OK;
}

/* Behind `step N:`. */
static enum stepline_kind parse_estimate(struct cursor c, struct stepline *s)
{
    s->layout = LAYOUT_NANOGPT;
    struct printed estimate;
    if (!take_value(&c, "train loss", &estimate))
        return STEP_NONE;
    if (!take_text(&c, ",") || !take_value(&c, "val loss", &s->val) || c.at < c.end)
        return STEP_NONE;
    return STEP_OK;
}

/* Behind `iter N:`. */
static enum stepline_kind parse_iteration(struct cursor c, struct stepline *s)
{
    s->layout = LAYOUT_NANOGPT;
    if (!take_value(&c, "loss", &s->train))
        return STEP_NONE;
    s->step++;
    if (take_text(&c, ",") && take_value(&c, "time", &s->own_ms))
        s->own_ms.given = s->closed = take_text(&c, "ms");
    return STEP_OK;
}

static enum stepline_kind parse_words(struct cursor c, struct stepline *s, const char **why)
{
    *s = (struct stepline){ .layout = LAYOUT_LLMC_OUTPUT, .step = -1 };
    if (take_value(&c, "val loss", &s->val))
        return c.at == c.end ? STEP_OK : STEP_NONE;
    bool iteration = take_text(&c, "iter ");
    if (!iteration && !take_text(&c, "step "))
        return STEP_NONE;
    skip_blanks(&c);
    if (!take_count(&c, &s->step))
        return STEP_NONE;
    if (take_text(&c, ":"))
        return iteration ? parse_iteration(c, s) : parse_estimate(c, s);
    if (iteration || !take_text(&c, "/") || !take_count(&c, &s->total) || !take_word(&c, "|"))
        return STEP_NONE;
    c.at--;
    return parse_fields(c, s, why);
}

static enum stepline_kind parse(struct cursor c, struct stepline *s, const char **why)
{
    if (c.at == c.end || !strchr("siv", *c.at))
        return STEP_NONE;
    struct cursor pairs = c;
    bool llmc = !take_text(&pairs, "step:");
    if ((llmc && !take_text(&pairs, "s:")) || pairs.at == pairs.end || !is_digit(*pairs.at))
        return parse_words(c, s, why);
    *s = (struct stepline){ .layout = llmc ? LAYOUT_LLMC : LAYOUT_PAIRS };
    return parse_pairs(pairs, s, why);
}

enum stepline_kind stepline_parse(const char *text, size_t n, struct stepline *s, const char **why)
{
    enum stepline_kind kind =
        parse((struct cursor){ text + prefix_of(text, n, PREFIX_ALL).bytes, text + n }, s, why);
    return kind == STEP_OK && s->val.value < 0 ? bad(why, "a loss below 0") : kind;
}
