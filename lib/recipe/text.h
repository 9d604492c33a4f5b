/* text.h - a recipe as lines, and the steps from lines to fields.
 *
 * Private to lib/recipe. A line is section, key and value, with where it came from; a table row is a
 * line whose key is its first word. Nothing here knows the model's memory or its ops.
 */
#ifndef RECIPE_TEXT_H
#define RECIPE_TEXT_H

#include "recipe/recipe.h"

struct recipe_line {
    char *section, *key, *value;
    int number; /* in the file; 0: from --set; -1: a default */
    bool used; /* a key or a row that is known */
    bool rule_set; /* a row whose rule alone was set: betas that the rule has not go */
};
struct recipe_text {
    char *name; /* file, for messages */
    struct recipe_line *line;
    int n;
    char *canonical;
};

/* recipe.c */
struct recipe_line *recipe_find(const struct recipe *r, const char *section, const char *key);
/* A row's text with another value in a column; caller frees. NULL: out of memory. */
char *recipe_row_with(const char *row, int column, const char *value);
/* Row i of a table whose keys are 0, 1, ... */
struct recipe_line *recipe_find_row(const struct recipe *r, const char *section, int i);
/* Adds the line of a key that the recipe leaves out. */
int recipe_add_default(struct recipe *r, const char *section, const char *key,
                       const char *value) MUST_CHECK;
/* Takes a line out. */
void recipe_drop(struct recipe *r, struct recipe_line *l);
/* "file:line: section.key: " and the message; GPT_INPUT, or GPT_USAGE for an override. */
int recipe_error(const struct recipe *r, const struct recipe_line *l, const char *fmt, ...)
    PRINTF_LIKE(3, 4);

/* keys.c: lines to fields, defaults added as lines; and lines to canonical text */
int recipe_bind(struct recipe *r) MUST_CHECK;
/* GPT_INPUT unless there is such a section; line: of its heading, 0: --set. */
int recipe_check_section(const struct recipe *r, const char *section, int line) MUST_CHECK;
int recipe_print(struct recipe *r) MUST_CHECK;
/* A number, or a fraction such as 100/448, in [lo, hi]. */
int recipe_real(const char *text, const char *what, double lo, double hi, double *out) MUST_CHECK;
/* rules.c: the rule of that name; row: for messages. */
int recipe_read_rule(const struct recipe *r, const struct recipe_line *row, const char *name,
                     struct rule *out) MUST_CHECK;
/* Adds to [rules] the published lines (named.h) that rows of [parameters] and lines of [rules] name. */
int recipe_add_published(struct recipe *r) MUST_CHECK;
/* Reads [schedules], which rows of [parameters] name. */
int recipe_bind_schedules(struct recipe *r) MUST_CHECK;
/* Reads [rules], and each parameter's rule as the keys of [optimizer] have it. */
int recipe_bind_rules(struct recipe *r) MUST_CHECK;
/* After [states]: can all parameters be moved around their updates, where the recipe says so? */
int recipe_check_around(const struct recipe *r) MUST_CHECK;
/* tables.c */
int recipe_bind_layers(struct recipe *r) MUST_CHECK;
int recipe_bind_params(struct recipe *r) MUST_CHECK;
int recipe_bind_scalars(struct recipe *r) MUST_CHECK;
int recipe_bind_token_terms(struct recipe *r) MUST_CHECK;
int recipe_bind_stages(struct recipe *r) MUST_CHECK;
/* After [precision], whose words hold where [states] has no row. */
int recipe_bind_states(struct recipe *r) MUST_CHECK;
/* check.c: the size that a letter stands for in a shape; 1 for another. */
int64_t recipe_size(const struct recipe *r, char letter);
/* Is a row's label one that the model has, or can have? */
int recipe_check_label(const struct recipe *r, const struct recipe_line *l) MUST_CHECK;
/* Can the model run it? */
int recipe_check(const struct recipe *r) MUST_CHECK;

#endif
