/* rules.c - lines of rules: the built-in ones, and parsing any into chains of stages. */
#include "recipe/text.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include "base/suggest.h"
#include "coeffs/sets.h"
#include "recipe/named.h"

enum { LINE_SIZE = 512 };

/* Three products a row of coefficients: X X' and the square of it, by symmetry half, and the last. */
static double polar_flops(double rows, double cols, const struct chain *c)
{
    double n = fmin(rows, cols), m = fmax(rows, cols);
    const struct stage_use *u = chain_stage(c, STAGE_polar);
    double times = rows == cols || !u ? 0 : u->number[2].value[0];
    return fmax(times, 1) * c->polar.n * (3 * m + n) * n * n;
}

/* A Gram matrix and two products by it. */
static double power_flops(double rows, double cols, const struct chain *c)
{
    double n = fmin(rows, cols), m = fmax(rows, cols);
    return polar_flops(rows, cols, c) + 6 * m * n * n;
}

/* A Gram matrix for each N. */
static double norm_flops(double rows, double cols, const struct chain *c)
{
    double n = fmin(rows, cols), m = fmax(rows, cols);
    (void)c;
    return 3 * 2 * m * n * n;
}

/* Counts turns of both sides' bases, two matrices rotated into them and one out of them, two Gram matrices. */
static double both_sides_flops(double rows, double cols)
{
    double squares = rows * rows * rows + cols * cols * cols;
    return 16.0 / 3 * squares + 8 * rows * cols * (rows + cols);
}

/* Counts what a soap of both sides does, or one of the shorter side alone. */
static double soap_flops(double rows, double cols, const struct chain *c)
{
    double k = fmin(rows, cols);
    return stage_has(chain_stage(c, STAGE_soap), "short")
               ? 16.0 / 3 * k * k * k + 8 * rows * cols * k
               : both_sides_flops(rows, cols);
}

/* Counts what a soap of both sides does. */
static double klsoap_flops(double rows, double cols, const struct chain *c)
{
    (void)c;
    return both_sides_flops(rows, cols);
}

/* Counts turns, Gram matrices rotated into the bases, X rotated in and out. */
static double covpower_flops(double rows, double cols, const struct chain *c)
{
    double squares = rows * rows * rows + cols * cols * cols;
    (void)c;
    return (16.0 / 3 + 4) * squares + 6 * rows * cols * (rows + cols);
}

/* Counts eigenvectors of both sides, about 9 n^3 each, and powers of them. */
static double eigen_flops(double rows, double cols, const struct chain *c)
{
    double squares = rows * rows * rows + cols * cols * cols;
    (void)c;
    return 11 * squares + 4 * rows * cols * (rows + cols);
}

static double psgd_flops(double rows, double cols, const struct chain *c)
{
    double squares = rows * rows * rows + cols * cols * cols;
    (void)c;
    return 4 * squares + 9 * rows * cols * (rows + cols);
}

static double contra_flops(double rows, double cols, const struct chain *c)
{
    bool gram = stage_has(chain_stage(c, STAGE_contra), "schatten4");
    return gram ? norm_flops(rows, cols, c) : 20 * rows * cols;
}

const struct stage_row stage_rows[N_STAGE_ROWS] = {
#define STAGE(word, ...) [STAGE_##word] = { #word, __VA_ARGS__ },
#include "recipe/stage_list.h"
};

/* -- built-in lines ---------------------------------------------------------------------- */

static const char *const builtin[] = { "normuon",      "adam",         "muon", "sgd",
                                       "normuon>adam", "normuon+adam", NULL };

static bool is_builtin(const char *name)
{
    for (int i = 0; builtin[i]; i++)
        if (!strcmp(builtin[i], name))
            return true;
    return false;
}

/* The fewest digits that are read again as x. */
static const char *shortest(double x, char text[32])
{
    for (int digits = 15; digits < 18; digits++) {
        snprintf(text, 32, "%.*g", digits, x);
        if (strtod(text, NULL) == x)
            break;
    }
    return text;
}

/* The line of a built-in rule, as the keys of [optimizer] have it. */
static void builtin_line(const struct recipe *r, const char *name, char *line)
{
    bool sgd = !strcmp(name, "sgd"), second = !strcmp(name, "normuon");
    bool plain = r->optimizer.muon.decay == MUON_DECAY_RULE
                     ? !second
                     : r->optimizer.muon.decay == MUON_DECAY_PLAIN;
    char match[48] = "", n[4][32];

    if (!strcmp(name, "adam"))
        snprintf(line, LINE_SIZE, "lr %s | adam", shortest(r->optimizer.adam.lr, n[0]));
    else if (!strcmp(name, "normuon>adam"))
        snprintf(line, LINE_SIZE, "normuon then adam at %s moments %s",
                 shortest(r->optimizer.change.at, n[0]),
                 shortest(r->optimizer.change.moments, n[1]));
    else if (!strcmp(name, "normuon+adam"))
        snprintf(line, LINE_SIZE, "normuon + adam weight %s>%s@%s-%s",
                 shortest(r->optimizer.blend.weight[0], n[0]),
                 shortest(r->optimizer.blend.weight[1], n[1]),
                 shortest(r->optimizer.blend.span[0], n[2]),
                 shortest(r->optimizer.blend.span[1], n[3]));
    if (strchr(name, '>') || strchr(name, '+') || !strcmp(name, "adam"))
        return;
    if (r->optimizer.muon.match_rms > 0)
        snprintf(match, sizeof match, " match %s", shortest(r->optimizer.muon.match_rms, n[0]));
    snprintf(line, LINE_SIZE,
             "lr %s | momentum $momentum nesterov |%s%s%s%s%s decay %s %s%s multiplied | step",
             shortest(r->optimizer.muon.lr, n[1]),
             sgd                      ? ""
             : r->optimizer.polar.aol ? " polar $coeffs aol |"
                                      : " polar $coeffs margin 1.02 eps 1e-6 |",
             second ? " variance $beta2 round |" : "", sgd ? "" : " shape lr stored", match,
             sgd ? "" : " |", shortest(r->optimizer.muon.wd, n[2]), plain ? "plain" : "cautious",
             r->optimizer.muon.decay_lr ? "" : " lr2");
}

/* -- parsing ------------------------------------------------------------------------------- */

/* A line being read. */
struct line {
    const struct recipe *r;
    const struct recipe_line *from; /* for messages */
    const char *text, *at; /* `at`: the next word */
};

/* One sentence, the line, and a caret under the word at `at`. */
static int fault(const struct line *l, const char *at, const char *fmt, ...) PRINTF_LIKE(3, 4);
static int fault(const struct line *l, const char *at, const char *fmt, ...)
{
    char said[200];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(said, sizeof said, fmt, ap);
    va_end(ap);
    return recipe_error(l->r, l->from, "%s\n    %s\n    %*s^", said, l->text, (int)(at - l->text),
                        "");
}

/* The next word, "" at the end; "|" is a word. Returns where it begins. */
static const char *next_word(struct line *l, char word[64])
{
    l->at += strspn(l->at, " ");
    const char *begin = l->at;
    size_t n = *begin == '|' ? 1 : strcspn(begin, " |");
    snprintf(word, 64, "%.*s", (int)n, begin);
    l->at += n;
    return begin;
}

static bool peek(const struct line *l, const char *word)
{
    struct line ahead = *l;
    char w[64];
    next_word(&ahead, w);
    return !strcmp(w, word);
}

/* "A>B@S-E" and once more ">C@S-E", linear from S to E; ">B" alone: over the whole run. part: behind A. */
static bool read_knots(char *next, struct number *out)
{
    for (; next; out->n += out->n == 1 ? 1 : 2) {
        char *value = next, *span = strchr(value, '@'), *dash;
        if ((next = strchr(value, '>')))
            *next++ = 0;
        int k = out->n == 1 ? 0 : out->n; /* the knot where this piece begins */
        if (span)
            *span++ = 0;
        dash = span ? strchr(span, '-') : NULL;
        if (dash)
            *dash++ = 0;
        bool whole = !span && !next && !k;
        if (k + 2 > MAX_KNOTS || (!dash && !whole) ||
            recipe_real(value, "number", -1e30, 1e30, &out->value[k + 1]) ||
            recipe_real(whole ? "0" : span, "step", 0, 1e9, &out->at[k]) ||
            recipe_real(whole ? "1" : dash, "step", out->at[k], 1e9, &out->at[k + 1]) ||
            (k && out->at[k] < out->at[k - 1]))
            return false;
        if (k)
            out->value[k] = out->value[k - 1];
    }
    return true;
}

/* "half(B1,B3,T)", "alpha(A,T)": n arguments, the last a count of updates. */
static bool read_call(const char *part, int n, struct number *out)
{
    char arguments[64], *save = NULL, *s;
    int k = 0, length = (int)strcspn(part, "(");
    snprintf(arguments, sizeof arguments, "%s", part + length);
    if (!*arguments || arguments[strlen(arguments) - 1] != ')')
        return false;
    for (s = strtok_r(arguments + 1, ",)", &save); s; s = strtok_r(NULL, ",)", &save), k++)
        if (k == n || recipe_real(s, "number", 0, k < n - 1 && n == 3 ? 1 : 1e9, &out->value[k]))
            return false;
    return k == n && out->value[n - 1] > 0;
}

/* A number, one that moves, or the name of one. */
static int read_number(const struct line *l, const char *at, const char *word, struct number *out)
{
    char part[64], *next;
    snprintf(part, sizeof part, "%s", word);
    *out = (struct number){ .from = NUMBER_GIVEN, .n = 1 };
    if (!strcmp(word, "$momentum") || !strcmp(word, "$beta2")) {
        out->from = word[1] == 'm' ? NUMBER_MOMENTUM : NUMBER_BETA2;
        return 0;
    }
    if (!strncmp(word, "half(", 5) || !strncmp(word, "alpha(", 6)) {
        bool half = *word == 'h';
        out->from = half ? NUMBER_HALF : NUMBER_ALPHA;
        return read_call(word, half ? 3 : 2, out)
                   ? 0
                   : fault(l, at, "expected half(B1,B3,STEPS) or alpha(A,STEPS), found '%s'", word);
    }
    next = strchr(part, '>');
    if (next)
        *next++ = 0;
    if (recipe_real(part, "number", -1e30, 1e30, &out->value[0]))
        return fault(l, at, "expected a number, found '%s'", word);
    return read_knots(next, out)
               ? 0
               : fault(l, at,
                       "expected a number, or A>B, A>B@S-E and at most one >C@S-E more, steps "
                       "rising; found '%s'",
                       word);
}

/* The k-th word of a list "a b=1 c", its length in *n; NULL behind the last. */
static const char *list_word(const char *list, int k, int *n)
{
    for (const char *s = list + strspn(list, " "); *s; s += *n, s += strspn(s, " ")) {
        *n = (int)strcspn(s, " ");
        if (k-- == 0)
            return s;
    }
    return NULL;
}

static int read_rows(const struct line *l, const char *at, const char *name, struct polar_rows *p)
{
    if (!strcmp(name, "$coeffs")) {
        p->n = l->r->optimizer.polar.n;
        p->for_aol = l->r->optimizer.polar.for_aol;
        memcpy(p->row, l->r->optimizer.polar.row, sizeof p->row);
        return 0;
    }
    const struct coeffs_set *s =
        coeffs_set_find(strcmp(name, "polar-express") ? name : "record-61");
    if (!s)
        return fault(l, at, "'%s' is no set of coefficients ($coeffs, or one of `ns-coeffs list`)",
                     name);
    p->n = s->n;
    p->for_aol = s->input == INPUT_AOL;
    memcpy(p->row, s->row, sizeof s->row);
    return 0;
}

/* A number of a stage: its name and, where it may be absent, what it then is. */
struct slot {
    const char *name;
    int length;
    bool optional;
    bool follows; /* is read right behind the one before */
    double preset;
};

static bool slot_of(const struct stage_row *row, int k, struct slot *s)
{
    int n = 0;
    const char *word = list_word(row->numbers, k, &n);
    const char *preset = word ? memchr(word, '=', (size_t)n) : NULL;
    bool follows = word && *word == '+';
    *s = preset ? (struct slot){ word + follows, (int)(preset - word) - follows, true, follows,
                                 strtod(preset + 1, NULL) }
                : (struct slot){ word, n, false, false, 0 };
    return word != NULL;
}

static bool same_word(const char *word, const char *name, int n)
{
    return strlen(word) == (size_t)n && !strncmp(word, name, (size_t)n);
}

/* Slots that are no number of the stage's: polar's rows. */
static int slots_before(const struct stage_use *u) { return u->id == STAGE_polar; }

static int read_constant(struct line *l, const struct slot *s, struct number *x)
{
    char word[64];
    const char *at = next_word(l, word);
    int rc = read_number(l, at, word, x);
    return rc || (x->n == 1 && x->from == NUMBER_GIVEN)
               ? rc
               : fault(l, at, "'%.*s' is one number for the whole run", s->length, s->name);
}

/* Reads "A-B", two steps. */
static int read_span(struct line *l, struct number *x)
{
    char word[64], *dash;
    const char *at = next_word(l, word);
    x[0] = x[1] = (struct number){ .n = 1 };
    dash = strchr(word, '-');
    if (dash)
        *dash++ = 0;
    if (!dash || recipe_real(word, "step", 0, 1e9, &x[0].value[0]) ||
        recipe_real(dash, "step", 0, 1e9, &x[1].value[0]) || !(x[1].value[0] > x[0].value[0]))
        return fault(l, at, "expected two steps A-B, rising");
    return 0;
}

/* Reads a flag, or the name of a number and the number. */
static int read_option(struct line *l, struct stage_use *u)
{
    const struct stage_row *row = &stage_rows[u->id];
    char word[64];
    const char *at = next_word(l, word), *name;
    struct number *x = u->number;
    struct slot s;
    int n = 0, rc;

    for (int k = 0; (name = list_word(row->flags, k, &n)); k++)
        if (same_word(word, name, n)) {
            u->flags |= 1u << k;
            return 0;
        }
    for (int k = slots_before(u); slot_of(row, k, &s); k++, x++)
        if (s.optional && !s.follows && same_word(word, s.name, s.length)) {
            if (u->id == STAGE_soap && *s.name == 'g')
                return read_span(l, x);
            if ((rc = read_constant(l, &s, x)))
                return rc;
            return slot_of(row, k + 1, &s) && s.follows ? read_constant(l, &s, x + 1) : 0;
        }
    return fault(l, at, "%s has no word '%s'", row->word, word);
}

/* The words behind a stage's own: of polar its rows, then its numbers in their order, then options. */
static int read_words(struct line *l, struct chain *c, struct stage_use *u, const char *stage)
{
    const struct stage_row *row = &stage_rows[u->id];
    int rows = slots_before(u), rc = 0;
    char word[64];
    struct slot s;

    for (int k = 0; slot_of(row, k, &s) && !rc; k++) {
        if (s.optional) {
            u->number[k - rows] = (struct number){ .n = 1, .value = { s.preset } };
            continue;
        }
        const char *at = next_word(l, word);
        if (k < rows)
            rc = read_rows(l, at, word, &c->polar);
        else if (!*word || *word == '|')
            rc = fault(l, stage, "%s takes %.*s, a number", row->word, s.length, s.name);
        else
            rc = read_number(l, at, word, &u->number[k - rows]);
    }
    while (!rc && !peek(l, "|") && !peek(l, ""))
        rc = read_option(l, u);
    return rc;
}

static unsigned flag_bit(enum stage_id id, const char *flag)
{
    const char *name;
    int n = 0, k = 0;
    while ((name = list_word(stage_rows[id].flags, k, &n)) && !same_word(flag, name, n))
        k++;
    return 1u << k;
}

/* B*A or B*A:c, the k-th term of a kernel. */
static int read_term(const struct line *l, const char *at, char *word, int k, struct stage_use *u)
{
    char *star = strchr(word, '*'), *colon = star ? strchr(star, ':') : NULL;
    int rc;
    *u = (struct stage_use){ .id = STAGE_kernel };
    if (!star || (colon && strcmp(colon, ":c")))
        return fault(l, at, "a term of a kernel is B*A or B*A:c, found '%s'", word);
    *star = 0;
    if (colon)
        *colon = 0;
    if ((rc = read_number(l, at, word, &u->number[0])) ||
        (rc = read_number(l, at, star + 1, &u->number[1])))
        return rc;
    u->number[2] = (struct number){ .n = 1 };
    u->flags =
        (colon ? flag_bit(STAGE_kernel, "c") : 0) | (k ? 0 : flag_bit(STAGE_kernel, "first"));
    return 0;
}

/* from S MU: up to and with step S all terms are the mean of `momentum MU nesterov`. */
static int read_from(struct line *l, struct stage_use *term, int n)
{
    char word[64];
    double last;
    const char *at = next_word(l, word);
    struct number mu;
    int rc;
    if (recipe_real(word, "step", 0, 1e9, &last))
        return fault(l, at, "expected a step, found '%s'", word);
    at = next_word(l, word);
    if ((rc = read_number(l, at, word, &mu)))
        return rc;
    if (mu.n != 1 || mu.from != NUMBER_GIVEN || !stage_has(&term[n - 1], "nesterov"))
        return fault(l, at,
                     "the plain momentum of a kernel that begins later is one number, and "
                     "the kernel has nesterov");
    for (int k = 0; k < n; k++) {
        for (int i = 0; i < 3; i++)
            term[k].number[i].early = last + 1;
        term[k].number[0].before = term[k].number[2].before = mu.value[0];
        term[k].number[1].before = k == 0;
    }
    return 0;
}

/* kernel B*A B*A ... [nesterov MU] [from S MU]: a use for each term. */
static int read_kernel(struct line *l, struct chain *c, const char *stage)
{
    struct stage_use *term = &c->use[c->n];
    char word[64];
    int n = 0, rc = 0;
    while (!rc && !peek(l, "|") && !peek(l, "")) {
        const char *at = next_word(l, word);
        if (!strcmp(word, "nesterov") && n) {
            at = next_word(l, word);
            term[n - 1].flags |= flag_bit(STAGE_kernel, "nesterov");
            rc = read_number(l, at, word, &term[n - 1].number[2]);
        } else if (!strcmp(word, "from") && n) {
            rc = read_from(l, term, n);
        } else if (c->n + n == MAX_USES) {
            rc = fault(l, at, "more than %d stages", MAX_USES);
        } else {
            rc = read_term(l, at, word, n, &term[n]);
            n++;
        }
    }
    c->n += n;
    return rc || n ? rc : fault(l, stage, "kernel takes terms B*A");
}

/* weightnorm NORM [STEPS POWER], or with its inner stages written out, which are always the same. */
static int read_weightnorm(struct line *l, struct chain *c, struct stage_use *u, const char *stage)
{
    static const char inner[] =
        "( momentum 0.95 nesterov sum | polar long12 | shape match 0.2 ) gains adam 0.9 0.95 1e-8 "
        "norm";
    struct line fixed = { .r = l->r, .from = l->from, .text = inner, .at = inner };
    char word[64], want[64];
    const char *at;
    int rc;
    for (bool written = peek(l, "("); written && !peek(&fixed, "");) {
        next_word(&fixed, want);
        at = next_word(l, word);
        if (strcmp(word, want))
            return fault(l, at, "the inner stages of weightnorm are '%s NORM'", inner);
    }
    at = next_word(l, word);
    if (!*word || *word == '|')
        return fault(l, stage, "weightnorm takes NORM, a number");
    rc = read_number(l, at, word, &u->number[0]);
    u->number[1] = (struct number){ .n = 1, .value = { 3165 } };
    u->number[2] = (struct number){ .n = 1, .value = { 1.2 } };
    for (int k = 1; k < 3 && !rc && !peek(l, "|") && !peek(l, ""); k++) {
        at = next_word(l, word);
        rc = read_number(l, at, word, &u->number[k]);
    }
    return rc ? rc : read_rows(l, stage, "long12", &c->polar);
}

/* Where a stage may not stand, behind what the chain has by now. */
static int check_place(const struct line *l, const char *at, const struct chain *c,
                       enum stage_id id)
{
    const char *word = stage_rows[id].word;
    const struct stage_use *last = c->n ? &c->use[c->n - 1] : NULL;
    bool decay = last && last->id == STAGE_decay;

    if (c->n == MAX_USES)
        return fault(l, at, "more than %d stages", MAX_USES);
    static const enum stage_id once[] = { STAGE_polar,    STAGE_shape,    STAGE_decay,
                                          STAGE_kernel,   STAGE_power,    STAGE_soft,
                                          STAGE_contra,   STAGE_graft,    STAGE_soap,
                                          STAGE_klsoap,   STAGE_covpower, STAGE_shampoo,
                                          STAGE_sinkhorn, STAGE_psgd };
    bool polar = chain_stage(c, STAGE_polar) || chain_stage(c, STAGE_power);
    for (size_t k = 0; k < sizeof once / sizeof *once; k++)
        if (id == once[k] && chain_stage(c, id))
            return fault(l, at, "a chain has one %s", word);
    if ((id == STAGE_polar || id == STAGE_power) && polar)
        return fault(l, at, "a chain has one polar or power");
    if (id == STAGE_contra && !polar)
        return fault(l, at, "%s reads what entered polar, which does not stand before it", word);
    if (id == STAGE_soft && !chain_stage(c, STAGE_polar))
        return fault(l, at, "%s reads what polar went through, which does not stand before it",
                     word);
    if (id == STAGE_graft && !chain_stage(c, STAGE_momentum) && !chain_stage(c, STAGE_kernel))
        return fault(l, at, "%s reads a momentum, which does not stand before it", word);
    if (c->write >= 0 && !(stage_rows[id].what & STAGE_BEHIND))
        return fault(l, at, "%s stands behind %s, which writes the weight", word,
                     stage_rows[c->use[c->write].id].word);
    if (c->write < 0 && decay && !(stage_rows[id].what & STAGE_WRITES))
        return fault(l, at,
                     "decay is part of the write: it stands right in front of step or behind");
    if ((id == STAGE_adam || id == STAGE_weightnorm) && c->n)
        return fault(l, at, "%s is all of its chain", word);
    if (c->write >= 0 && c->use[c->write].id == STAGE_weightnorm)
        return fault(l, at, "weightnorm is all of its chain");
    if (c->write >= 0 && c->use[c->write].id == STAGE_adam)
        return fault(l, at, "adam is all of its chain, and has a decay of its own");
    return 0;
}

/* Words of a stage that exclude each other, or ask for another stage. */
static int check_words(const struct line *l, const char *at, const struct chain *c,
                       const struct stage_use *u)
{
    static const char *const one_of[][3] = { { "plain", "cautious", "strict" },
                                             { "round", "free", "schatten4" } };
    for (int i = 0; i < 2; i++) {
        int n = 0;
        for (int k = 0; k < 3; k++)
            n += stage_has(u, one_of[i][k]);
        if (n > 1)
            return fault(l, at, "a %s is %s, %s or %s", stage_rows[u->id].word, one_of[i][0],
                         one_of[i][1], one_of[i][2]);
    }
    if (u->id == STAGE_contra && stage_has(u, "power5") + stage_has(u, "schatten4") != 1)
        return fault(l, at, "contra is power5 or schatten4");
    if (u->id == STAGE_soap && (!stage_has(u, "second") || stage_has(u, "g") == stage_has(u, "X") ||
                                stage_has(u, "X") != stage_has(u, "late")))
        return fault(l, at, "a soap is 'second g' or 'second X late'");
    if (u->id == STAGE_momentum && stage_has(u, "first") && stage_has(u, "corrected"))
        return fault(l, at, "a momentum is corrected or first");
    if (u->id == STAGE_soap && u->number[3].value[0] > 0 && !stage_has(u, "norm"))
        return fault(l, at, "a gate is of a soap with norm");
    if (u->id == STAGE_polar && c->polar.for_aol && !stage_has(u, "aol"))
        return fault(l, at,
                     "the rows are for input that AOL scales: expected aol behind them, or "
                     "for lines that are not in [rules] optimizer.aol = yes");
    if (stage_has(u, "round") && !chain_stage(c, STAGE_polar))
        return fault(l, at, "round is to the type of polar, which does not stand before it");
    if (u->id == STAGE_shape && stage_has(u, "spectral") && u->number[0].value[0] > 0)
        return fault(l, at, "a shape is spectral or match");
    return 0;
}

static int read_stage(struct line *l, struct chain *c)
{
    char word[64];
    const char *at = next_word(l, word);
    struct suggest s = suggest_for(word);
    int id = 0, rc;
    while (id < N_STAGE_ROWS && strcmp(stage_rows[id].word, word))
        suggest_try(&s, stage_rows[id++].word);
    if (id == N_STAGE_ROWS)
        return fault(l, at, "'%s' is no stage%s", word, suggest_text(&s));
    if ((rc = check_place(l, at, c, (enum stage_id)id)))
        return rc;
    if (id == STAGE_kernel)
        return read_kernel(l, c, at);
    struct stage_use *u = &c->use[c->n];
    *u = (struct stage_use){ .id = (enum stage_id)id };
    rc = id == STAGE_weightnorm ? read_weightnorm(l, c, u, at) : read_words(l, c, u, at);
    if (!rc)
        rc = check_words(l, at, c, u);
    if (!rc && id == STAGE_power)
        rc = read_rows(l, at, "cubic12", &c->polar);
    if (!rc && id == STAGE_soft && c->polar.n != SOFT_ROWS)
        rc = fault(l, at, "soft is for %d rows of polar, as cubic12 has", SOFT_ROWS);
    if (stage_rows[id].what & STAGE_WRITES)
        c->write = c->n;
    c->n++;
    return rc;
}

/* lr NUMBER | stage | stage ... */
static int read_chain(struct line *l, struct chain *c)
{
    char word[64];
    const char *at = next_word(l, word);
    int rc;
    *c = (struct chain){ .write = -1 };
    if (strcmp(word, "lr"))
        return fault(l, at, "a chain begins with its rate: lr NUMBER | ...");
    at = next_word(l, word);
    if ((rc = read_number(l, at, word, &c->lr)))
        return rc;
    do {
        at = next_word(l, word);
        if (strcmp(word, "|"))
            return c->write < 0 ? fault(l, at, "a chain ends with what writes the weight: step")
                                : fault(l, at, "expected '|', found '%s'", word);
        if ((rc = read_stage(l, c)))
            return rc;
    } while (!peek(l, ""));
    return c->write < 0 ? fault(l, l->at, "a chain ends with what writes the weight: step") : 0;
}

/* The line that a name stands for, in `built` if it is built in; NULL: none. */
static const char *line_of(const struct recipe *r, const char *name, char *built,
                           const struct recipe_line **from)
{
    const struct recipe_line *l = recipe_find(r, "rules", name);
    if (is_builtin(name)) {
        builtin_line(r, name, built);
        return built;
    }
    *from = l ? l : *from;
    return l ? l->value : NULL;
}

void recipe_rule_line(const struct recipe *r, const char *name, char *line, size_t size)
{
    char built[LINE_SIZE];
    const struct recipe_line *from = NULL;
    const char *text = line_of(r, name, built, &from);
    snprintf(line, size, "%s", text ? text : "");
}

void recipe_schedule_line(const struct recipe *r, int k, char *line, size_t size)
{
    snprintf(line, size, "%s", recipe_find(r, "schedules", r->schedules[k].name)->value);
}

static bool is_chain(const char *line) { return !strstr(line, " then ") && !strstr(line, " + "); }

/* A chain by its name, as part of a join. */
static int read_named(struct line *l, struct chain *c)
{
    char word[64], built[LINE_SIZE];
    const char *at = next_word(l, word);
    struct line part = { .r = l->r, .from = l->from };
    part.text = part.at = line_of(l->r, word, built, &part.from);
    if (!part.text || !is_chain(part.text))
        return fault(l, at, "'%s' is no chain", word);
    return read_chain(&part, c);
}

/* NAME then NAME at POINT [moments POINT]; NAME + NAME weight NUMBER. */
static int read_join(struct line *l, struct rule *out)
{
    char word[64];
    const char *at;
    int rc = read_named(l, &out->chain[0]);
    if (rc)
        return rc;
    at = next_word(l, word);
    out->join = !strcmp(word, "then") ? RULE_THEN : !strcmp(word, "+") ? RULE_SUM : RULE_SINGLE;
    if (out->join == RULE_SINGLE)
        return fault(l, at, "expected a chain, or 'A then B at STEP', or 'A + B weight NUMBER'");
    if ((rc = read_named(l, &out->chain[1])))
        return rc;
    if (chain_is_adam(&out->chain[0]))
        return fault(l, l->text, "the first of a join is a chain of other stages than adam");
    at = next_word(l, word);
    if (strcmp(word, out->join == RULE_THEN ? "at" : "weight"))
        return fault(l, at, "expected '%s', found '%s'", out->join == RULE_THEN ? "at" : "weight",
                     word);
    at = next_word(l, word);
    if (out->join == RULE_SUM)
        rc = read_number(l, at, word, &out->weight);
    else if (recipe_real(word, "step", 0, 1e9, &out->at))
        rc = fault(l, at, "expected a step or a fraction of the run, found '%s'", word);
    out->moments = out->at;
    at = next_word(l, word);
    if (!rc && out->join == RULE_THEN && !strcmp(word, "moments")) {
        at = next_word(l, word);
        if (recipe_real(word, "step", 0, 1e9, &out->moments))
            rc = fault(l, at, "expected a step or a fraction of the run, found '%s'", word);
        at = next_word(l, word);
    }
    return rc || !*word ? rc : fault(l, at, "'%s' is one word too many", word);
}

int recipe_read_rule(const struct recipe *r, const struct recipe_line *row, const char *name,
                     struct rule *out)
{
    char built[LINE_SIZE];
    struct line l = { .r = r, .from = row };
    struct suggest s = suggest_for(name);

    *out = (struct rule){ .join = RULE_SINGLE };
    snprintf(out->name, sizeof out->name, "%s", name);
    l.text = l.at = line_of(r, name, built, &l.from);
    if (l.text)
        return is_chain(l.text) ? read_chain(&l, &out->chain[0]) : read_join(&l, out);
    for (int i = 0; builtin[i]; i++)
        suggest_try(&s, builtin[i]);
    for (int i = 0; i < r->text->n; i++)
        if (!strcmp(r->text->line[i].section, "rules"))
            suggest_try(&s, r->text->line[i].key);
    return recipe_error(r, row,
                        "expected a rule: normuon|adam|muon|sgd|normuon>adam|normuon+adam, or one "
                        "of [rules]; found '%s'%s",
                        name, suggest_text(&s));
}

/* Adds the line that a word names, unless the recipe has one of that name. */
static int add_published(struct recipe *r, const char *word)
{
    int n;
    const char *line = recipe_rule_published(word, &n);
    if (!line || is_builtin(word) || recipe_find(r, "rules", word))
        return 0;
    char *copy = strndup(line, (size_t)n);
    int rc = copy ? recipe_add_default(r, "rules", word, copy) : err_memory();
    free(copy);
    return rc;
}

int recipe_add_published(struct recipe *r)
{
    int rc = 0;
    for (int i = 0; i < r->text->n && !rc; i++) {
        const char *section = r->text->line[i].section, *value = r->text->line[i].value;
        bool rules = !strcmp(section, "rules");
        if ((!rules || is_chain(value)) && strcmp(section, "parameters"))
            continue;
        char *copy = strdup(value), *save = NULL; /* the table of lines may move */
        int column = 0;
        if (!copy)
            return err_memory();
        for (char *s = strtok_r(copy, " ", &save); s && !rc; s = strtok_r(NULL, " ", &save))
            if (column++ == 3 || rules)
                rc = add_published(r, s);
        free(copy);
    }
    return rc;
}

/* Reads a point of the schedule. */
static int read_point(struct line *l, double least, double *out)
{
    char word[64];
    const char *at = next_word(l, word);
    return recipe_real(word, "step", least, 1e9, out)
               ? fault(l, at, "expected a step or a fraction of the run, found '%s'", word)
               : 0;
}

static int read_between(struct line *l, double least, double most, double *out)
{
    char word[64];
    const char *at = next_word(l, word);
    return recipe_real(word, "number", least, most, out)
               ? fault(l, at, "expected a number in [%g, %g], found '%s'", least, most, word)
               : 0;
}

/* Reads what follows cooldown: SHARE [floor F] [power P] [end T] */
static int read_cooldown(struct line *l, struct lr_schedule *s)
{
    char word[64];
    int rc = read_between(l, 1e-6, 1, &s->share);
    while (!rc) {
        if (peek(l, "floor"))
            next_word(l, word), rc = read_between(l, 0, 1, &s->floor);
        else if (peek(l, "power"))
            next_word(l, word), rc = read_between(l, 1e-6, 100, &s->power);
        else if (peek(l, "end"))
            next_word(l, word), rc = read_point(l, 1e-6, &s->end);
        else
            break;
    }
    return rc;
}

/* Reads flat, or a product of warmup N [zero], linear A>B@S-E, cooldown ... */
static int read_schedule(struct recipe *r, const struct recipe_line *row, struct lr_schedule *s)
{
    struct line l = { .r = r, .from = row, .text = row->value, .at = row->value };
    char word[64];
    int rc = 0;
    *s = (struct lr_schedule){ .power = 1 };
    snprintf(s->name, sizeof s->name, "%s", row->key);
    do {
        const char *at = next_word(&l, word);
        bool again = (!strcmp(word, "warmup") && s->warmup > 0) ||
                     (!strcmp(word, "linear") && s->linear.n) ||
                     (!strcmp(word, "cooldown") && s->share > 0);
        if (again)
            return fault(&l, at, "a schedule has one %s", word);
        if (!strcmp(word, "warmup")) {
            rc = read_point(&l, 1e-6, &s->warmup);
            if ((s->from_zero = !rc && peek(&l, "zero")))
                next_word(&l, word);
        } else if (!strcmp(word, "linear")) {
            at = next_word(&l, word);
            rc = read_number(&l, at, word, &s->linear);
            if (!rc && s->linear.from != NUMBER_GIVEN)
                rc = fault(&l, at, "expected a number, or A>B@S-E, found '%s'", word);
        } else if (!strcmp(word, "cooldown")) {
            rc = read_cooldown(&l, s);
        } else if (strcmp(word, "flat")) {
            rc = fault(&l, at,
                       "expected flat, warmup STEPS [zero], linear A>B@S-E or cooldown SHARE "
                       "[floor F] [power P] [end STEP]%s%s%s",
                       *word ? ", found '" : "", word, *word ? "'" : "");
        }
    } while (!rc && !peek(&l, ""));
    return rc;
}

int recipe_bind_schedules(struct recipe *r)
{
    for (int i = 0; i < r->text->n; i++) {
        struct recipe_line *l = &r->text->line[i];
        if (strcmp(l->section, "schedules"))
            continue;
        if (strlen(l->key) >= RULE_NAME || !strcmp(l->key, "-"))
            return recipe_error(r, l, "expected a name of at most %d characters", RULE_NAME - 1);
        if (r->n_schedules == MAX_SCHEDULES)
            return recipe_error(r, l, "more than %d schedules", MAX_SCHEDULES);
        int rc = read_schedule(r, l, &r->schedules[r->n_schedules]);
        if (rc)
            return rc;
        r->n_schedules++;
        l->used = true;
    }
    return 0;
}

/* True if what is done around updates can be done with the parameter: its exact value is one f32. */
static bool stands_around(const struct param_spec *s)
{
    return (s->stored == DT_NONE || s->stored == DT_F32) && s->every == 1 &&
           (!rule_is_adam(&s->rule) || s->master == DT_NONE || s->master == DT_F32);
}

int recipe_check_around(const struct recipe *r)
{
    const struct around *a = &r->optimizer.around;
    const struct recipe_line *line = recipe_find(r, "rules", "around");
    for (int i = 0; i < r->n_params; i++)
        if (around_takes(a, i) && !stands_around(&r->params[i]))
            return recipe_error(r, line,
                                "%s must move in each step, with weights in f32 or bf16 and "
                                "without low halves of its own",
                                r->params[i].label);
    return around_reads_apart(a) && r->order.tied_head >= 0
               ? recipe_error(r, line, "%s and %s are tied, and validation would read one average",
                              r->params[r->order.tied_head].label,
                              r->params[r->order.tied_embed].label)
               : 0;
}

/* Reads except LABEL... */
static int read_except(struct line *l, struct around *a)
{
    char word[64];
    next_word(l, word);
    do {
        const char *at = next_word(l, word);
        int i = recipe_param(l->r, word);
        if (i < 0)
            return fault(l, at, "expected a parameter, found '%s'", word);
        a->except |= UINT32_C(1) << i;
    } while (!peek(l, ""));
    return 0;
}

/* lookahead A G from S to E; outer LR MU every N; average tail T from S blend A [except LABEL...]; free B [power
 * R]. */
static int read_around(struct recipe *r, const struct recipe_line *row)
{
    static const struct {
        const char *word, *form; /* a "#" for each number, an "N" for a whole one */
        double least[4], most[4];
    } forms[N_AROUND] = {
        [AROUND_LOOKAHEAD] = { "lookahead", "# # from # to #", { 0 }, { 1e9, 1, 1e9, 1e9 } },
        [AROUND_OUTER] = { "outer", "# # every N", { 0, 0, 1 }, { 1e9, 1, 1e9 } },
        [AROUND_AVERAGE] = { "average", "tail N from # blend #", { 1 }, { 1e9, 1e9, 1 } },
        [AROUND_FREE] = { "free", "#", { 0 }, { 1 } },
    };
    struct line l = { .r = r, .from = row, .text = row->value, .at = row->value };
    struct around *a = &r->optimizer.around;
    char word[64], want[64];
    const char *at = next_word(&l, word);
    int k = 1, n = 0;

    while (k < N_AROUND && strcmp(word, forms[k].word))
        k++;
    if (k == N_AROUND)
        return fault(
            &l, at,
            "expected lookahead A G from S to E, outer LR MU every N, average tail T from S "
            "blend A, or free B");
    *a = (struct around){ .kind = (enum around_kind)k };
    struct line form = { .r = r, .from = row, .text = forms[k].form, .at = forms[k].form };
    while (!peek(&form, "")) {
        next_word(&form, want);
        at = next_word(&l, word);
        bool whole = *want == 'N', number = whole || *want == '#';
        double *x = &a->number[n];
        if (!number && strcmp(word, want))
            return fault(&l, at, "expected '%s', found '%s'", want, word);
        if (number && (recipe_real(word, "number", forms[k].least[n], forms[k].most[n], x) ||
                       (whole && *x != floor(*x))))
            return fault(&l, at, "expected a %snumber in [%g, %g], found '%s'",
                         whole ? "whole " : "", forms[k].least[n], forms[k].most[n], word);
        n += number;
    }
    if (k == AROUND_AVERAGE && peek(&l, "except"))
        return read_except(&l, a);
    if (k == AROUND_FREE && peek(&l, "power")) {
        next_word(&l, word);
        int rc = read_between(&l, 0, 100, &a->number[1]);
        if (rc)
            return rc;
    }
    at = next_word(&l, word);
    return *word ? fault(&l, at, "'%s' is one word too many", word) : 0;
}

int recipe_bind_rules(struct recipe *r)
{
    struct rule ignored;
    for (int i = 0; i < r->text->n; i++) {
        struct recipe_line *l = &r->text->line[i];
        if (strcmp(l->section, "rules"))
            continue;
        if (is_builtin(l->key))
            return recipe_error(r, l, "'%s' is built in: give the line another name", l->key);
        if (!strcmp(l->key, "around")) {
            int bad = read_around(r, l);
            if (bad)
                return bad;
            l->used = true;
            continue;
        }
        if (strlen(l->key) >= RULE_NAME || strpbrk(l->key, " |>+"))
            return recipe_error(r, l, "expected a name of at most %d characters, without '|>+'",
                                RULE_NAME - 1);
        int rc = recipe_read_rule(r, l, l->key, &ignored);
        if (rc)
            return rc;
        l->used = true;
    }
    for (int i = 0; i < r->n_params; i++) {
        struct param_spec *p = &r->params[i];
        char name[RULE_NAME];
        snprintf(name, sizeof name, "%s", p->rule.name);
        int rc = recipe_read_rule(r, recipe_find(r, "parameters", p->label), name, &p->rule);
        if (rc)
            return rc;
    }
    return 0;
}

/* -- looking at a rule --------------------------------------------------------------------- */

bool stage_has(const struct stage_use *u, const char *flag)
{
    return u->flags & flag_bit(u->id, flag);
}

bool stage_mean(const struct stage_row *row, int k)
{
    static const char *const means[] = { "MU", "B", "B1", "B2", "BS" };
    struct slot s;
    for (int i = 0; i < 5 && slot_of(row, k, &s); i++)
        if (same_word(means[i], s.name, s.length))
            return true;
    return false;
}

const struct stage_use *chain_stage(const struct chain *c, enum stage_id id)
{
    for (int k = 0; k < c->n; k++)
        if (c->use[k].id == id)
            return &c->use[k];
    return NULL;
}

const struct stage_use *rule_stage(const struct rule *r, enum stage_id id)
{
    const struct stage_use *u = NULL;
    for (int c = 0; c < rule_chains(r) && !u; c++)
        u = chain_stage(&r->chain[c], id);
    return u;
}

const struct stage_use *rule_of_matrices(const struct rule *r)
{
    for (int c = 0; c < rule_chains(r); c++)
        for (int k = 0; k < r->chain[c].n; k++)
            if (!(stage_rows[r->chain[c].use[k].id].what & STAGE_EACH))
                return &r->chain[c].use[k];
    return NULL;
}

const struct stage_use *rule_what(const struct rule *r, unsigned what)
{
    for (int c = 0; c < rule_chains(r); c++)
        for (int k = 0; k < r->chain[c].n; k++)
            if (stage_rows[r->chain[c].use[k].id].what & what)
                return &r->chain[c].use[k];
    return NULL;
}

bool rule_reads_beta2(const struct rule *r)
{
    bool reads = rule_has_adam(r);
    for (int c = 0; c < rule_chains(r); c++)
        for (int k = 0; k < r->chain[c].n; k++)
            for (int i = 0; i < STAGE_NUMBERS; i++)
                reads |= r->chain[c].use[k].number[i].from == NUMBER_BETA2;
    return reads;
}

double chain_flops(const struct chain *c, double rows, double cols)
{
    double sum = 0;
    for (int k = 0; k < c->n; k++) {
        const struct stage_row *row = &stage_rows[c->use[k].id];
        sum += row->flops ? row->flops(rows, cols, c) : 0;
    }
    return sum;
}
