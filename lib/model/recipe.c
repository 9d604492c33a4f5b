/* recipe.c - lines of a recipe: reading, overriding, finding; the public entry points. */
#include "model/recipe_text.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include "base/file.h"
#include "base/hash.h"

static bool is_table(const char *section)
{
    return !strcmp(section, "layers") || !strcmp(section, "parameters") ||
           !strcmp(section, "scalars") || !strcmp(section, "stages");
}

static char *trim(char *s)
{
    while (isspace((unsigned char)*s))
        s++;
    char *end = s + strlen(s);
    while (end > s && isspace((unsigned char)end[-1]))
        end--;
    *end = 0;
    return s;
}

/* Blanks between words become one. */
static void squeeze(char *s)
{
    char *out = s;
    for (; *s; s++)
        if (!isspace((unsigned char)*s))
            *out++ = *s;
        else if (out[-1] != ' ')
            *out++ = ' ';
    *out = 0;
}

struct recipe_entry *text_find(struct recipe_text *t, const char *section, const char *key)
{
    for (int i = 0; i < t->n; i++)
        if (!strcmp(t->e[i].section, section) && !strcmp(t->e[i].key, key))
            return &t->e[i];
    return NULL;
}

int text_error(const struct recipe_text *t, const struct recipe_entry *e, const char *fmt, ...)
{
    char msg[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    const char *dot = e && e->section[0] ? "." : "";
    if (!e)
        return err_set(GPT_INPUT, "%s: %s", t->name, msg);
    if (!e->line)
        return err_set(GPT_USAGE, "--set %s%s%s=%s: %s", e->section, dot, e->key, e->value, msg);
    return err_set(GPT_INPUT, "%s:%d: %s%s%s: %s", t->name, e->line, e->section, dot, e->key, msg);
}

static int text_add(struct recipe_text *t, const char *section, const char *key, const char *value,
                    int line)
{
    struct recipe_entry *e = realloc(t->e, (size_t)(t->n + 1) * sizeof *e);
    if (!e)
        return err_sys("%s", t->name);
    t->e = e;
    e += t->n;
    *e = (struct recipe_entry){ strdup(section), strdup(key), strdup(value), line, false };
    if (!e->section || !e->key || !e->value)
        return err_sys("%s", t->name);
    t->n++;
    squeeze(e->value);
    return 0;
}

static int parse_line(struct recipe_text *t, char *section, char *line, int number)
{
    char *comment = strchr(line, '#');
    if (comment)
        *comment = 0;
    line = trim(line);
    if (!*line)
        return 0;
    if (*line == '[') {
        size_t n = strlen(line);
        if (line[n - 1] != ']' || n < 3 || n > 31)
            return err_set(GPT_INPUT, "%s:%d: expected '[section]', found '%s'", t->name, number,
                           line);
        memcpy(section, line + 1, n - 2);
        section[n - 2] = 0;
        return 0;
    }
    char *value = line + strcspn(line, is_table(section) ? " \t" : "=");
    if (!*value)
        return err_set(GPT_INPUT, "%s:%d: expected '%s', found '%s'", t->name, number,
                       is_table(section) ? "key column ..." : "key = value", line);
    *value++ = 0;
    char *key = trim(line);
    const struct recipe_entry *old = text_find(t, section, key);
    if (old)
        return err_set(GPT_INPUT, "%s:%d: %s.%s stands already in line %d", t->name, number,
                       section, key, old->line);
    return text_add(t, section, key, trim(value), number);
}

int text_parse(struct recipe_text *t, const char *name, const char *text)
{
    char section[32] = "";
    int number = 0, rc = 0;
    t->name = strdup(name);
    char *copy = strdup(text);
    if (!t->name || !copy) {
        free(copy);
        return err_sys("%s", name);
    }
    for (char *line = copy, *next; line && !rc; line = next) {
        next = strchr(line, '\n');
        if (next)
            *next++ = 0;
        rc = parse_line(t, section, line, ++number);
    }
    free(copy);
    return rc;
}

/* "section.key=value"; keys above the first section stand alone. */
int text_override(struct recipe_text *t, const char *assignment)
{
    char section[32] = "", key[64];
    const char *eq = strchr(assignment, '='), *dot = strchr(assignment, '.');
    if (!eq || eq == assignment)
        return err_set(GPT_USAGE, "--set '%s': expected section.key=value", assignment);
    const char *start = assignment;
    if (dot && dot < eq) {
        if (dot - assignment >= (long)sizeof section)
            return err_set(GPT_USAGE, "--set '%s': no such section", assignment);
        memcpy(section, assignment, (size_t)(dot - assignment));
        start = dot + 1;
    }
    snprintf(key, sizeof key, "%.*s", (int)(eq - start), start);
    char *value = strdup(eq + 1);
    if (!value)
        return err_sys("--set");
    struct recipe_entry *e = text_find(t, section, key);
    int rc = 0;
    if (e) {
        free(e->value);
        e->value = strdup(trim(value));
        e->line = 0;
        if (e->value)
            squeeze(e->value);
        else
            rc = err_sys("--set");
    } else {
        rc = text_add(t, section, key, trim(value), 0);
    }
    free(value);
    return rc;
}

void text_release(struct recipe_text *t)
{
    for (int i = 0; i < t->n; i++) {
        free(t->e[i].section);
        free(t->e[i].key);
        free(t->e[i].value);
    }
    free(t->e);
    free(t->name);
    free(t->canonical);
}

int recipe_parse(struct recipe **out, const char *name, const char *text,
                 const char *const *overrides, int n)
{
    struct recipe *r = calloc(1, sizeof *r);
    int rc = 0;
    *out = NULL;
    if (!r || !(r->text = calloc(1, sizeof *r->text))) {
        free(r);
        return err_sys("%s", name);
    }
    rc = text_parse(r->text, name, text);
    for (int i = 0; i < n && !rc; i++)
        rc = text_override(r->text, overrides[i]);
    if (!rc)
        rc = recipe_bind(r);
    if (!rc)
        rc = recipe_print(r);
    if (rc) {
        recipe_free(r);
        return rc;
    }
    xxh_hex_of(r->text->canonical, strlen(r->text->canonical), r->hash);
    *out = r;
    return 0;
}

int recipe_read(struct recipe **r, const char *path, const char *const *overrides, int n)
{
    char *text;
    size_t size;
    int rc = file_read(path, 1 << 20, &text, &size);
    if (rc)
        return rc;
    if (strlen(text) != size)
        rc = err_set(GPT_INPUT, "%s: offset %zu: a NUL byte; a recipe is text", path, strlen(text));
    else
        rc = recipe_parse(r, path, text, overrides, n);
    free(text);
    return rc;
}

const char *recipe_canonical(const struct recipe *r) { return r->text->canonical; }

void recipe_free(struct recipe *r)
{
    if (!r)
        return;
    text_release(r->text);
    free(r->text);
    free(r);
}

int recipe_param(const struct recipe *r, const char *label)
{
    for (int i = 0; i < r->n_params; i++)
        if (!strcmp(r->params[i].label, label))
            return i;
    return -1;
}

const struct scalar_spec *recipe_scalar(const struct recipe *r, const char *name)
{
    for (int i = 0; i < r->n_scalars; i++)
        if (!strcmp(r->scalars[i].name, name))
            return &r->scalars[i];
    return NULL;
}
