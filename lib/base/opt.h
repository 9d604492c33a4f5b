/* opt.h - one table for parsing, --help and completion.
 *
 * Long names for all options, a letter for few. GNU conventions (getopt_long):
 * "--name=v", "--name v", "-xv", "-x v", bundled flags, "--" ends options,
 * unambiguous prefixes are accepted. --help (-h) and --version (-V) are handled
 * here and printed on stdout; --completion-words prints, for the shell
 * completions, a line for each option and for each letter: the name, a tab, then
 * its argument: nothing, a metavariable, or choices "a|b|c". After these, for a
 * metavariable of opt_words, "=" and its name, a tab and its words; once more
 * with "=" alone where operands have it.
 *
 *     static const struct opt table[] = {
 *         OPT_TEXT('o', "output", "DIR", &o.out, "write shards to DIR"),
 *         OPT_NUMBER("threads", "N", &o.threads, 1, 256, "worker threads"),
 *         OPT_SWITCH('q', "quiet", &o.quiet, "errors only"),
 *         OPT_END
 *     };
 *     static const struct command cmd = { "gpt-x", "[OPTION]... FILE...", "What it does.", table };
 *     int first;                                // index of the first operand
 *     if ((rc = opt_parse(&cmd, argc, argv, &first))) return opt_exit(&cmd, rc);
 *
 * opt_parse permutes argv so that operands stand last. OPT_DONE means help or
 * version was printed: exit 0. It also sees to it that descriptors 0 to 2 are
 * open, so that no file opened later is taken for stdout. Main thread only.
 */
#ifndef BASE_OPT_H
#define BASE_OPT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include "base/err.h"

enum opt_kind {
    OPT_FLAG, /* bool *: set to true */
    OPT_STR, /* const char ** */
    OPT_I64, /* int64_t *, in [lo, hi], num.h suffixes */
    OPT_F64, /* double *, in [lo, hi] */
    OPT_CHOICE, /* const char **, one of choices "a|b|c" */
    OPT_LIST, /* struct opt_list *: may be given again; with choices, each is one of them */
    OPT_GROUP, /* a heading in --help; text in help */
};
struct opt_list {
    const char **v;
    int n;
};
struct opt {
    char letter;
    const char *name, *arg;
    enum opt_kind kind;
    void *value;
    const char *help;
    double lo, hi; /* both 0: any; hi may be INFINITY */
    const char *choices;
};
#define OPT_END \
    { \
        .name = NULL \
    }
/* Rows of the usual kinds; `to` is where the value goes. */
#define OPT_HEADING(text) \
    { \
        .kind = OPT_GROUP, .help = text \
    }
#define OPT_SWITCH(l, long_name, to, text) \
    { \
        .letter = l, .name = long_name, .kind = OPT_FLAG, .value = to, .help = text \
    }
#define OPT_TEXT(l, long_name, metavariable, to, text) \
    { \
        .letter = l, .name = long_name, .arg = metavariable, .kind = OPT_STR, .value = to, \
        .help = text \
    }
#define OPT_WORD(long_name, to, words, text) \
    { \
        .name = long_name, .arg = "WORD", .kind = OPT_CHOICE, .value = to, .help = text, \
        .choices = words \
    }
#define OPT_NUMBER(long_name, metavariable, to, least, most, text) \
    { \
        .name = long_name, .arg = metavariable, .kind = OPT_I64, .value = to, .help = text, \
        .lo = least, .hi = most \
    }
#define OPT_REAL(long_name, metavariable, to, least, most, text) \
    { \
        .name = long_name, .arg = metavariable, .kind = OPT_F64, .value = to, .help = text, \
        .lo = least, .hi = most \
    }
#define OPT_DONE (-1)

/* Checks that one of two options that ask for different things is given: GPT_USAGE, naming both,
 * where a and b say that both are. */
int opt_choose(bool a, const char *first, bool b, const char *second) MUST_CHECK;

struct command {
    const char *name, *usage, *summary;
    const struct opt *options;
};

int opt_parse(const struct command *c, int argc, char **argv, int *first) MUST_CHECK;
/* Does opt_parse for a verb of a program: an option in `all`, the program's table, that is not in
 * c's is refused as none of the verb. */
int opt_parse_verb(const struct command *c, const char *verb, const struct opt *all, int argc,
                   char **argv, int *first) MUST_CHECK;
/* For the last line of main(), whatever rc: closes stdout, prints "name: message"
 * on stderr for a failure (for GPT_USAGE also the hint to try --help), returns the
 * exit code. GPT_NO is an answer and not a failure: nothing is added to it. exit()
 * then passes over destructors of libraries. */
int opt_exit(const struct command *c, int rc);
void opt_list_release(struct opt_list *l);
/* The arguments joined by blanks in one line, for the provenance in an output; to be called
 * before opt_parse, which permutes argv. Caller frees; NULL when out of memory. */
char *opt_arguments(int argc, char **argv);

/* Words that a metavariable can be, each printed with a blank before; ends with arg NULL. */
struct opt_words {
    const char *arg;
    void (*print)(FILE *f);
};
extern const struct opt_words *opt_words; /* set by programs that have some */

/* Set by programs that link CUDA and NCCL, for --version; NULL otherwise. */
extern const char *(*opt_version_extra)(void);

#endif
