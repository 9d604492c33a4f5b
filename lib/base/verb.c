#include "base/verb.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/file.h"
#include "base/suggest.h"

/* True if the word is in a list with blanks between. */
static bool listed(const char *list, const char *word)
{
    size_t n = strlen(word);
    for (const char *s = list; (s = strstr(s, word)); s += n)
        if ((s == list || s[-1] == ' ') && (s[n] == ' ' || !s[n]))
            return true;
    return false;
}

static bool is_end(const struct opt *o) { return !o->name && o->kind != OPT_GROUP; }

/* The rows of the program's table that a verb takes; caller frees. */
static struct opt *own_options(const struct program *p, const struct verb *v)
{
    int n = 0, k = 0;
    while (!is_end(&p->options[n]))
        n++;
    struct opt *own = calloc((size_t)n + 1, sizeof *own);
    for (int i = 0; own && i < n; i++)
        if (p->options[i].name && listed(v->options, p->options[i].name))
            own[k++] = p->options[i];
    if (own)
        own[k] = (struct opt)OPT_END;
    return own;
}

static int run_verb(const struct program *p, const struct verb *v, int argc, char **argv)
{
    char name[64], usage[128];
    struct opt *own = own_options(p, v);
    struct command cmd = { name, usage, v->what, own };
    int first = 0, rc;
    snprintf(name, sizeof name, "%s %s", p->name, v->name);
    snprintf(usage, sizeof usage, "%s%s[OPTION]...", v->operands, *v->operands ? " " : "");
    rc = own ? opt_parse_verb(&cmd, v->name, p->options, argc, argv, &first) : err_memory();
    int n = argc - first;
    argv += first;
    if (!rc && n < v->least)
        rc = err_set(GPT_USAGE, "expected %s, found %d operand%s", v->operands, n,
                     n == 1 ? "" : "s");
    else if (!rc && n > v->most)
        rc = err_set(GPT_USAGE, "'%s' is one operand too many", argv[v->most]);
    if (!rc)
        rc = v->run(argv, n);
    rc = opt_exit(&cmd, rc);
    free(own);
    return rc;
}

/* --- without a verb --- */

static void describe(const struct program *p, char *text, size_t size)
{
    size_t at = (size_t)snprintf(text, size,
                                 "%s\n\nVerbs ('%s VERB --help' tells more):", p->summary, p->name);
    for (int i = 0; i < p->n && at < size; i++)
        at += (size_t)snprintf(text + at, size - at, "\n  %-9s %-24s %s", p->verbs[i].name,
                               p->verbs[i].operands, p->verbs[i].what);
}

static int no_verb(const struct program *p, const char *found)
{
    char names[512] = "";
    size_t at = 0;
    for (int i = 0; i < p->n && at < sizeof names; i++)
        at += (size_t)snprintf(names + at, sizeof names - at, "%s%s",
                               !i             ? ""
                               : i + 1 < p->n ? ", "
                                              : " or ",
                               p->verbs[i].name);
    struct suggest s = suggest_for(found ? found : "");
    for (int i = 0; i < p->n; i++)
        suggest_try(&s, p->verbs[i].name);
    return found ? err_set(GPT_USAGE, "expected %s first, found '%s'%s", names, found,
                           suggest_text(&s))
                 : err_set(GPT_USAGE, "expected %s", names);
}

int verb_main(const struct program *p, int argc, char **argv)
{
    char summary[4096];
    const char *word = argc > 1 ? argv[1] : NULL;
    int first;
    output_cleanup_on_signal();
    for (int i = 0; word && i < p->n; i++)
        if (!strcmp(word, p->verbs[i].name))
            return run_verb(p, &p->verbs[i], argc - 1, argv + 1);
    describe(p, summary, sizeof summary);
    struct command cmd = { p->name, "VERB [OPTION]... [OPERAND]...", summary, p->options };
    if (word && !strcmp(word, "--completion-words"))
        for (int i = 0; i < p->n; i++)
            printf("%s\n", p->verbs[i].name);
    /* --help after an unknown verb does not hide the error. */
    int rc = word && *word != '-' ? 0 : opt_parse(&cmd, argc, argv, &first);
    return opt_exit(&cmd, rc ? rc : no_verb(p, word));
}
