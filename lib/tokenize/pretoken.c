/* pretoken.c - see pretoken.h. */
#include "tokenize/pretoken.h"

#include <string.h>
#ifdef __AVX2__
#include <immintrin.h>
#endif

#include "tokenize/unicode.h"

/* One bit a byte of a block. */
struct masks {
    uint64_t letter, number, space, sp, apostrophe, high;
};

#ifdef __AVX2__
/* 0xff where lo <= x <= lo + width, unsigned. */
static inline __m256i in_range(__m256i x, int lo, int width)
{
    __m256i d = _mm256_sub_epi8(x, _mm256_set1_epi8((char)lo));

    return _mm256_cmpeq_epi8(_mm256_min_epu8(d, _mm256_set1_epi8((char)width)), d);
}

static inline uint64_t top_bits(__m256i low, __m256i high)
{
    return (uint64_t)(uint32_t)_mm256_movemask_epi8(high) << 32 |
           (uint32_t)_mm256_movemask_epi8(low);
}

static void classify(const unsigned char *p, struct masks *m)
{
    __m256i x[2], letter[2], number[2], space[2], sp[2], apostrophe[2];

    for (int k = 0; k < 2; k++) {
        x[k] = _mm256_loadu_si256((const __m256i *)(p + 32 * k));
        letter[k] = in_range(_mm256_or_si256(x[k], _mm256_set1_epi8(0x20)), 'a', 25);
        number[k] = in_range(x[k], '0', 9);
        sp[k] = _mm256_cmpeq_epi8(x[k], _mm256_set1_epi8(' '));
        space[k] = _mm256_or_si256(sp[k], in_range(x[k], '\t', 4));
        apostrophe[k] = _mm256_cmpeq_epi8(x[k], _mm256_set1_epi8('\''));
    }
    *m = (struct masks){ .letter = top_bits(letter[0], letter[1]),
                         .number = top_bits(number[0], number[1]),
                         .space = top_bits(space[0], space[1]),
                         .sp = top_bits(sp[0], sp[1]),
                         .apostrophe = top_bits(apostrophe[0], apostrophe[1]),
                         .high = top_bits(x[0], x[1]) };
}
#else
static void classify(const unsigned char *p, struct masks *m)
{
    memset(m, 0, sizeof *m);
    for (int i = 0; i < 64; i++) {
        unsigned c = p[i], lower = c | 0x20;

        m->letter |= (uint64_t)(lower - 'a' < 26) << i;
        m->number |= (uint64_t)(c - '0' < 10) << i;
        m->space |= (uint64_t)(c == ' ' || c - '\t' < 5) << i;
        m->sp |= (uint64_t)(c == ' ') << i;
        m->apostrophe |= (uint64_t)(c == '\'') << i;
        m->high |= (uint64_t)(c >> 7) << i;
    }
}
#endif

/* Class and length of the character at i < n. A byte that is not UTF-8 is a character of class
 * other. */
static int char_at(const struct pretoken *p, size_t i, int *length)
{
    uint32_t c;
    int k = utf8_decode(p->text + i, p->n - i, &c);

    *length = k ? k : 1;
    return k ? (int)unicode_class(c) : CLASS_OTHER;
}

static bool space_at(const struct pretoken *p, size_t i)
{
    int k;

    return i < p->n ? char_at(p, i, &k) == CLASS_SPACE : !p->more;
}

/* Bits first .. first+count-1, as far as they lie in the block. */
static uint64_t bits(int first, int count)
{
    uint64_t run = count >= 64 ? ~UINT64_C(0) : (UINT64_C(1) << count) - 1;

    return first > 63 ? 0 : run << first;
}

/* Puts the characters of several bytes into the masks. Returns where one
 * starts that is the last white space before something else; their bytes are
 * taken out of *single. */
static uint64_t classify_high(struct pretoken *p, struct masks *m, uint64_t *single)
{
    uint64_t todo = m->high, last = 0;
    int i = 0, k = p->spill, class = p->spill_class;

    p->spill = 0;
    for (;;) {
        if (k) {
            uint64_t b = bits(i, k);

            if (class == CLASS_LETTER)
                m->letter |= b;
            else if (class == CLASS_NUMBER)
                m->number |= b;
            else if (class == CLASS_SPACE)
                m->space |= b;
            todo &= ~b;
            *single &= ~b;
        }
        if (!todo)
            break;
        i = __builtin_ctzll(todo);
        class = char_at(p, p->at + (size_t)i, &k);
        if (class == CLASS_SPACE && !space_at(p, p->at + (size_t)(i + k)))
            last |= UINT64_C(1) << i;
        if (i + k > 64) {
            p->spill = i + k - 64;
            p->spill_class = class;
        }
    }
    return last;
}

/* Length of the contraction at text[i], which is an apostrophe; 0: none. */
static int contraction(const struct pretoken *p, size_t i)
{
    const unsigned char *s = p->text + i;
    size_t n = p->n - i;

    if (n < 2)
        return 0;
    if (s[1] == 's' || s[1] == 't' || s[1] == 'm' || s[1] == 'd')
        return 2;
    if (n > 2 && ((s[1] == 'r' && s[2] == 'e') || (s[1] == 'v' && s[2] == 'e') ||
                  (s[1] == 'l' && s[2] == 'l')))
        return 3;
    return 0;
}

/* A contraction at a start is a pre-token: no start after its apostrophe, one
 * after its letters. */
static uint64_t contractions(struct pretoken *p, uint64_t starts, uint64_t apostrophes)
{
    for (uint64_t c = starts & apostrophes; c; c &= c - 1) {
        int i = __builtin_ctzll(c), k = contraction(p, p->at + (size_t)i);

        if (!k)
            continue;
        starts &= ~bits(i + 1, 1);
        starts |= bits(i + k, 1);
        p->clear |= i + 1 > 63;
        p->set |= i + k > 63 ? UINT64_C(1) << (i + k - 64) : 0;
    }
    return starts;
}

void pretoken_init(struct pretoken *p, const char *text, size_t n, bool more)
{
    memset(p, 0, sizeof *p);
    p->text = (const unsigned char *)text;
    p->n = n;
    p->more = more;
    p->set = 1; /* the first byte */
}

uint64_t pretoken_block(struct pretoken *p)
{
    size_t left = p->n - p->at;
    uint64_t valid = left >= 64 ? ~UINT64_C(0) : (UINT64_C(1) << left) - 1;
    uint64_t S, next_S, a, b, change, starts, single = ~UINT64_C(0), last = 0;
    struct masks m;

    classify(p->text + p->at, &m);
    m.high &= valid;
    if (m.high | (uint64_t)p->spill)
        last = classify_high(p, &m, &single);
    S = m.space & valid;
    /* Two bits tell the four classes apart; white space has neither. */
    a = ~(m.space | m.letter) & valid;
    b = ~(m.space | m.number) & valid;
    change = (a ^ (a << 1 | p->a)) | (b ^ (b << 1 | p->b));
    next_S = S >> 1;
    if (left > 64) {
        unsigned c = p->text[p->at + 64];
        bool s = p->spill   ? p->spill_class == CLASS_SPACE
                 : c < 0x80 ? c == ' ' || c - '\t' < 5
                            : space_at(p, p->at + 64);

        next_S |= (uint64_t)s << 63;
    } else if (!p->more) {
        next_S |= UINT64_C(1) << (left - 1); /* the end is no start */
    }
    /* Where the class changes, except behind a leading space, and the last white space of a run. */
    starts = (change & (S | ~(m.sp << 1 | p->sp))) | (S & ~next_S & single) | last;
    starts = (starts & ~p->clear) | p->set;
    p->clear = p->set = 0;
    if (m.apostrophe)
        starts = contractions(p, starts & valid, m.apostrophe);
    p->a = a >> 63;
    p->b = b >> 63;
    p->sp = m.sp >> 63;
    p->at += 64;
    return starts & valid;
}

/* Class of the character that ends before text[i]. */
static int class_before(const unsigned char *s, size_t i)
{
    size_t k = 1;
    uint32_t c;

    while (k < 4 && k < i && (s[i - k] & 0xc0) == 0x80)
        k++;
    return utf8_decode(s + i - k, k, &c) == (int)k ? (int)unicode_class(c) : CLASS_OTHER;
}

size_t pretoken_cut(const char *text, size_t n, bool *more)
{
    const unsigned char *s = (const unsigned char *)text;

    for (size_t i = n; i > 1; i--) {
        unsigned a = s[i - 2], b = s[i - 1]; /* would be cut between these */
        uint32_t c;

        if (b == ' ' || b - '\t' < 5) {
            *more = false; /* the left side does not end in white space */
            if (class_before(s, i - 1) != CLASS_SPACE)
                return i - 1;
        } else if (a - '\t' < 5 && utf8_decode(s + i - 1, n - i + 1, &c) &&
                   unicode_class(c) != CLASS_SPACE) {
            *more = true;
            return i - 1;
        }
    }
    return 0;
}

size_t pretoken_last_start(const char *text, size_t n, bool *more)
{
    struct pretoken p;
    /* longer than any contraction or character */
    size_t last = 0, sure = n > 16 ? n - 16 : 0;
    int k;

    pretoken_init(&p, text, n, true);
    for (size_t at = 0; at < sure; at += 64) {
        uint64_t starts = pretoken_block(&p);

        if (sure - at < 64)
            starts &= (UINT64_C(1) << (sure - at)) - 1;
        if (starts)
            last = at + 63 - (size_t)__builtin_clzll(starts);
    }
    *more = char_at(&p, last, &k) != CLASS_SPACE;
    return last;
}

size_t pretoken_run(const char *text, size_t n, bool first, bool end, int *class, bool *ended)
{
    struct pretoken p;
    size_t i = 0, before = 0;
    int k, c;

    pretoken_init(&p, text, n, false);
    *ended = end;
    if (first) {
        i = n > 1 && text[0] == ' ' && char_at(&p, 1, &k) != CLASS_SPACE;
        *class = char_at(&p, i, &k);
    }
    for (; i < n; i += (size_t)k) {
        if (!end && n - i < 4) /* a character may be cut */
            break;
        c = char_at(&p, i, &k);
        if (utf8_is_surrogate((const unsigned char *)text + i, n - i)) /* stays in one unit */
            k = 3;
        if (c != *class) {
            *ended = true;
            break;
        }
        before = i;
    }
    /* The last of white space before something else is a pre-token of its own. */
    if (*class == CLASS_SPACE && (i < n || !end))
        return before;
    return i;
}
