#include "base/opt.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/num.h"
#include "base/text.h"
#include "base/version.h"
#include "base/grow.h"
#include "base/suggest.h"

const char *(*opt_version_extra)(void);
const struct opt_words *opt_words;

/* Options of every command. --help lists those that have a help text. */
enum { HELP = -2, VERSION = -3, WORDS = -4 }; /* -1 is getopt's end */
static const struct opt common[] = { OPT_SWITCH('h', "help", NULL, "show this help and exit"),
                                     OPT_SWITCH('V', "version", NULL, "show versions and exit"),
                                     OPT_SWITCH(0, "completion-words", NULL, NULL), OPT_END };

static bool is_end(const struct opt *o) { return !o->name && o->kind != OPT_GROUP; }

static bool has_letter(const struct command *c, char letter)
{
    for (const struct opt *o = c->options; !is_end(o); o++)
        if (o->letter == letter)
            return true;
    return false;
}

/* A letter that the command's table uses is not a common option's. */
static char common_letter(const struct command *c, const struct opt *o)
{
    return o->letter && !has_letter(c, o->letter) ? o->letter : 0;
}

/* --- help, version, completion --- */

enum { HELP_COLUMN = 28, HELP_WIDTH = 80 };

/* Prints text from column HELP_COLUMN on, broken between words. */
static void print_wrapped(int column, const char *text)
{
    if (column + 2 > HELP_COLUMN) {
        putchar('\n');
        column = 0;
    }
    column += printf("%*s", HELP_COLUMN - column, "");
    for (const char *word = text; *word;) {
        int n = (int)strcspn(word, " ");
        if (column > HELP_COLUMN && column + 1 + n > HELP_WIDTH) {
            printf("\n%*s", HELP_COLUMN, "");
            column = HELP_COLUMN;
        } else if (column > HELP_COLUMN) {
            column += printf(" ");
        }
        column += printf("%.*s", n, word);
        word += n + strspn(word + n, " ");
    }
    putchar('\n');
}

static const char *argument(const struct opt *o)
{
    return o->kind == OPT_FLAG ? "" : o->choices ? o->choices : o->arg;
}

static void print_option(const struct opt *o, char letter)
{
    if (o->kind == OPT_GROUP) {
        printf("\n%s:\n", o->help);
        return;
    }
    if (!o->help)
        return;
    int column = letter ? printf("  -%c, ", letter) : printf("      ");
    column += printf("--%s", o->name);
    if (o->kind != OPT_FLAG)
        column += printf("=%s", argument(o));
    print_wrapped(column, o->help);
}

static void print_help(const struct command *c)
{
    printf("Usage: %s %s\n%s\n", c->name, c->usage, c->summary);
    if (c->options->kind != OPT_GROUP) /* a heading brings its own blank line */
        putchar('\n');
    bool grouped = false;
    for (const struct opt *o = c->options; !is_end(o); o++) {
        print_option(o, o->letter);
        grouped |= o->kind == OPT_GROUP;
    }
    if (grouped)
        putchar('\n');
    for (const struct opt *o = common; !is_end(o); o++)
        print_option(o, common_letter(c, o));
}

static void print_version(const struct command *c)
{
    printf("%s %s", c->name, version_text());
    if (opt_version_extra) {
        const char *extra = opt_version_extra();
        size_t n = strlen(extra);
        printf("%s%s", extra, n && extra[n - 1] != '\n' ? "\n" : "");
    }
}

/* True if the usage line has arg, but not behind a letter, as "-r RECIPE" has it. */
static bool is_operand(const struct command *c, const char *arg)
{
    const char *s = strstr(c->usage, arg);
    return s && !(s - c->usage >= 3 && s[-3] == '-');
}

static void print_words(const struct command *c)
{
    const struct opt *tables[] = { c->options, common };
    for (int t = 0; t < 2; t++)
        for (const struct opt *o = tables[t]; !is_end(o); o++)
            if (o->name && o->help) {
                char letter = t ? common_letter(c, o) : o->letter;
                printf("--%s\t%s\n", o->name, argument(o));
                if (letter)
                    printf("-%c\t%s\n", letter, argument(o));
            }
    for (const struct opt_words *w = opt_words; w && w->arg; w++)
        for (int operand = 0; operand < (is_operand(c, w->arg) ? 2 : 1); operand++) {
            printf("=%s\t", operand ? "" : w->arg);
            w->print(stdout);
            putchar('\n');
        }
}

/* --- parsing --- */

static int check_choice(const struct opt *o, const char *name, const char *text)
{
    size_t n = strlen(text);
    for (const char *s = o->choices; n && s;) {
        size_t m = strcspn(s, "|");
        if (m == n && !memcmp(s, text, n))
            return GPT_OK;
        s = s[m] ? s + m + 1 : NULL;
    }
    return err_set(GPT_USAGE, "%s: expected one of %s, found '%s'", name, o->choices, text);
}

static int take_i64(const struct opt *o, const char *name, const char *text)
{
    bool any = o->lo == 0 && o->hi == 0;
    int64_t lo = any || o->lo <= -0x1p63 ? INT64_MIN : (int64_t)o->lo;
    int64_t hi = any || o->hi >= 0x1p63 ? INT64_MAX : (int64_t)o->hi;
    return num_i64(text, name, lo, hi, o->value) ? err_set(GPT_USAGE, "%s", err_message()) : GPT_OK;
}

static int take_f64(const struct opt *o, const char *name, const char *text)
{
    bool any = o->lo == 0 && o->hi == 0;
    int rc = num_f64(text, name, any ? -INFINITY : o->lo, any ? INFINITY : o->hi, o->value);
    return rc ? err_set(GPT_USAGE, "%s", err_message()) : GPT_OK;
}

static int take_choice(const struct opt *o, const char *name, const char *text)
{
    int rc = check_choice(o, name, text);
    if (!rc)
        *(const char **)o->value = text;
    return rc;
}

static int take_list(const struct opt *o, const char *name, const char *text)
{
    struct opt_list *l = o->value;
    int rc = o->choices ? check_choice(o, name, text) : GPT_OK;
    if (rc)
        return rc;
    if (!(rc = grow_one(&l->v, l->n, sizeof *l->v)))
        l->v[l->n++] = text;
    return rc;
}

static int take(const struct opt *o, const char *text)
{
    char name[64];
    snprintf(name, sizeof name, "--%s", o->name);
    switch (o->kind) {
    case OPT_FLAG: *(bool *)o->value = true; return GPT_OK;
    case OPT_STR: *(const char **)o->value = text; return GPT_OK;
    case OPT_I64: return take_i64(o, name, text);
    case OPT_F64: return take_f64(o, name, text);
    case OPT_CHOICE: return take_choice(o, name, text);
    case OPT_LIST: return take_list(o, name, text);
    case OPT_GROUP: break;
    }
    return GPT_OK;
}

/* getopt_long's tables: value i + OWN names row i of the options, negative the common ones. */
enum { OWN = 256 };
struct tables {
    const char *verb; /* of opt_parse_verb, or NULL */
    const struct opt *all;
    struct option *longs;
    char *letters;
};

static int make_tables(const struct command *c, struct tables *t)
{
    int n = 0, k = 0;
    for (const struct opt *o = c->options; !is_end(o); o++)
        n++;
    t->longs = calloc((size_t)n + 4, sizeof *t->longs);
    char *s = t->letters = calloc((size_t)n * 2 + 8, 1);
    if (!t->longs || !s)
        return err_memory();
    *s++ = ':'; /* a missing argument is reported as ':' */
    for (int i = 0; i < n; i++) {
        const struct opt *o = &c->options[i];
        if (!o->name)
            continue;
        int has_arg = o->kind != OPT_FLAG;
        t->longs[k++] = (struct option){ o->name, has_arg, NULL, OWN + i };
        if (o->letter) {
            *s++ = o->letter;
            if (has_arg)
                *s++ = ':';
        }
    }
    for (int i = 0; common[i].name; i++) {
        t->longs[k++] = (struct option){ common[i].name, 0, NULL, HELP - i };
        if (common_letter(c, &common[i]))
            *s++ = common[i].letter;
    }
    return GPT_OK;
}

/* The option is not of this command: `shown`, a letter or the name after "--", of n characters. */
static int unknown_option(const struct tables *t, const char *shown, int n)
{
    for (const struct opt *o = t->all; o && !is_end(o); o++)
        if (o->name && (shown[1] == '-' ? !strncmp(o->name, shown + 2, (size_t)n - 2) &&
                                              strlen(o->name) == (size_t)n - 2
                                        : o->letter == shown[1]))
            return err_set(GPT_USAGE, "--%s is not an option of %s", o->name, t->verb);
    char word[64];
    snprintf(word, sizeof word, "%.*s", n, shown);
    struct suggest s = suggest_for(word + 2 * (shown[1] == '-'));
    for (const struct option *l = t->longs; shown[1] == '-' && l->name; l++)
        suggest_try(&s, l->name);
    return err_set(GPT_USAGE, "unknown option %.*s%s%s%s", n, shown,
                   s.best ? ", did you mean '--" : "", s.best ? s.best : "", s.best ? "'?" : "");
}

/* What was wrong, from what getopt_long leaves behind. */
static int usage_error(const struct tables *t, int got, char *const *argv)
{
    char letter[] = { '-', (char)optopt, 0 };
    if (optopt > 0 && optopt < OWN) /* a letter, perhaps one of a bundle */
        return got == ':' ? err_set(GPT_USAGE, "option %s needs an argument", letter)
                          : unknown_option(t, letter, 2);
    const char *word = argv[optind - 1];
    int n = (int)strcspn(word, "=");
    if (got == ':')
        return err_set(GPT_USAGE, "option %.*s needs an argument", n, word);
    if (optopt)
        return err_set(GPT_USAGE, "option %.*s takes no argument", n, word);
    char could[256] = "";
    size_t used = 0;
    for (const struct option *l = t->longs; l->name; l++)
        if (!strncmp(l->name, word + 2, (size_t)n - 2) && used < sizeof could)
            used += (size_t)snprintf(could + used, sizeof could - used, " --%s", l->name);
    return used ? err_set(GPT_USAGE, "option %.*s is ambiguous:%s", n, word, could)
                : unknown_option(t, word, n);
}

/* A standard descriptor that is closed at the start would be given to the next file opened. It
 * is opened as /dev/null in the wrong direction, so that using it is an error. */
static void hold_standard_descriptors(void)
{
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF) {
            int held = open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY);
            if (held > fd)
                close(held);
        }
}

static int parse(const struct command *c, const struct tables *t, int argc, char **argv)
{
    optind = 0; /* glibc: start anew */
    opterr = 0;
    for (;;) {
        int got = getopt_long(argc, argv, t->letters, t->longs, NULL);
        if (got == -1)
            return GPT_OK;
        if (got == '?' || got == ':')
            return usage_error(t, got, argv);
        if (got > 0 && got < OWN) { /* a letter */
            int i = 0;
            while (!is_end(&c->options[i]) && c->options[i].letter != got)
                i++;
            if (!is_end(&c->options[i]))
                got = OWN + i;
            else
                got = got == 'h' ? HELP : VERSION;
        }
        switch (got) {
        case HELP: print_help(c); return OPT_DONE;
        case VERSION: print_version(c); return OPT_DONE;
        case WORDS: print_words(c); return OPT_DONE;
        }
        int rc = take(&c->options[got - OWN], optarg);
        if (rc)
            return rc;
    }
}

int opt_parse(const struct command *c, int argc, char **argv, int *first)
{
    return opt_parse_verb(c, NULL, NULL, argc, argv, first);
}

int opt_parse_verb(const struct command *c, const char *verb, const struct opt *all, int argc,
                   char **argv, int *first)
{
    struct tables t = { .verb = verb, .all = all };
    hold_standard_descriptors();
    signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is an error of writing, with a message */
    int rc = make_tables(c, &t);
    if (!rc)
        rc = parse(c, &t, argc, argv);
    *first = optind;
    free(t.longs);
    free(t.letters);
    return rc;
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* these report at exit */
/* Ends the process without destructors of libraries. OpenBLAS's waits for its threads, and where a
 * limit of address space leaves them no memory they ask for it without end. */
static void end_process(int status, void *unused)
{
    (void)unused;
    fflush(NULL);
    _exit(status);
}
#endif

int opt_exit(const struct command *c, int rc)
{
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* these report at exit */
    on_exit(end_process, NULL);
#endif
    if (rc == OPT_DONE)
        rc = GPT_OK;
    char said[2048];
    snprintf(said, sizeof said, "%s", err_message());
    bool failed = rc > GPT_NO;
    if (stdout_close() && !failed) {
        /* Standard output failed: the answer was not written in full. */
        rc = GPT_SYSTEM;
        failed = true;
        snprintf(said, sizeof said, "%s", err_message());
    }
    if (failed)
        text_line(stderr, "%s: %s", c->name, said);
    if (rc == GPT_USAGE)
        fprintf(stderr, "Try '%s --help'.\n", c->name);
    return rc;
}

void opt_list_release(struct opt_list *l)
{
    free(l->v);
    *l = (struct opt_list){ 0 };
}

char *opt_arguments(int argc, char **argv)
{
    char *s = NULL;
    size_t n;
    FILE *f = open_memstream(&s, &n);
    if (!f)
        return NULL;
    for (int i = 1; i < argc; i++) {
        if (i > 1)
            fputc(' ', f);
        text_plain(f, argv[i], strlen(argv[i])); /* a line break would end the comment or header */
    }
    if (!file_close(f)) {
        free(s);
        return NULL;
    }
    return s;
}

int opt_choose(bool a, const char *first, bool b, const char *second)
{
    return a && b ? err_set(GPT_USAGE, "%s beside %s: choose one", first, second) : GPT_OK;
}
