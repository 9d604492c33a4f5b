/* verb.h - programs with verbs: "gpt-ckpt ls run".
 *
 * One table of options for the program, one of verbs, each of which names the options that it
 * takes. Dispatch, what is refused, --help of program and verb, and --completion-words come from
 * these two. The verb is the first word.
 *
 *     static const struct verb verbs[] = {
 *         { "ls", "PATH [PATTERN]", "lists tensors", "format bank", 1, 2, verb_ls },
 *     };
 *     static const struct program program = { "gpt-ckpt", "Looks into checkpoints.", table,
 *                                             verbs, sizeof verbs / sizeof verbs[0] };
 *     int main(int argc, char **argv) { return verb_main(&program, argc, argv); }
 *
 * Main thread only.
 */
#ifndef BASE_VERB_H
#define BASE_VERB_H

#include "base/opt.h"

struct verb {
    const char *name;
    const char *operands; /* as --help shows them, with options that must be given */
    const char *what;
    const char *options; /* names in the program's table, with blanks between */
    int least, most; /* number of operands */
    int (*run)(char **argv, int n);
};
struct program {
    const char *name, *summary;
    const struct opt *options;
    const struct verb *verbs;
    int n;
};
/* All of main(): signals (output_cleanup_on_signal), the verb, the message, the exit code. */
int verb_main(const struct program *p, int argc, char **argv);

#endif
