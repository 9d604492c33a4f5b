/* coeffs.c - reading, writing and evaluating a coefficient table. */
#include "coeffs/coeffs.h"

#include <stdlib.h>
#include <string.h>
#include "base/file.h"
#include "base/num.h"

/* Numbers of one line, min to max of them; how many in *n. */
static int parse_row(const char *path, int line, char *text, int min, int max, double *out, int *n)
{
    static const char *const count[] = { "", "", "", "three", "three or four" };
    char *save = NULL;
    *n = 0;
    for (char *w = strtok_r(text, " \t\r", &save); w; w = strtok_r(NULL, " \t\r", &save)) {
        if (*n == max)
            return err_set(GPT_INPUT, "%s:%d: expected %s numbers, found more", path, line,
                           count[max]);
        if (num_f64(w, "coefficient", -1e9, 1e9, &out[(*n)++]))
            return err_set(GPT_INPUT, "%s:%d: expected a number, found '%s'", path, line, w);
    }
    if (*n < min)
        return err_set(GPT_INPUT, "%s:%d: expected %s numbers, found %d", path, line, count[max],
                       *n);
    return 0;
}

const char *const coeffs_input_names[COEFFS_INPUTS] = { "norm", "spectral", "aol" };

/* Returns the input that n bytes name; COEFFS_INPUTS: none. */
static enum coeffs_input input_named(const char *word, size_t n)
{
    int k = 0;
    while (k < COEFFS_INPUTS &&
           (strlen(coeffs_input_names[k]) != n || memcmp(coeffs_input_names[k], word, n)))
        k++;
    return (enum coeffs_input)k;
}

enum coeffs_input coeffs_input_parse(const char *word) { return input_named(word, strlen(word)); }

static const char input_mark[] = "# input: ";

/* Takes the input that a line "# input: WORD" names, blanks at its end aside. */
static void take_input(struct coeffs *c, const char *line)
{
    const char *word = line + sizeof input_mark - 1;
    if (strncmp(line, input_mark, sizeof input_mark - 1))
        return;
    size_t n = strcspn(word, " \t\r");
    enum coeffs_input input = input_named(word, n);
    if (input < COEFFS_INPUTS && !word[n + strspn(word + n, " \t\r")])
        c->input = input;
}

/* Rows of `max_terms` numbers at most, into c. */
static int parse(const char *path, char *text, int max, int max_terms, struct coeffs *c)
{
    int line = 0, rc = 0, found;
    c->n = 0;
    c->terms = 3;
    c->input = INPUT_NORM;
    for (char *s = text, *next; s && !rc; s = next) {
        next = strchr(s, '\n');
        if (next)
            *next++ = 0;
        line++;
        take_input(c, s);
        s[strcspn(s, "#")] = 0;
        if (!s[strspn(s, " \t\r")])
            continue;
        if (c->n == max)
            return err_set(GPT_INPUT, "%s:%d: more than %d rows", path, line, max);
        memset(c->row[c->n], 0, sizeof c->row[0]);
        rc = parse_row(path, line, s, 3, max_terms, c->row[c->n++], &found);
        if (!rc && found > c->terms)
            c->terms = found;
    }
    if (!rc && c->n == 0)
        rc = err_set(GPT_INPUT, "%s: no row of coefficients", path);
    return rc;
}

static int read_table(const char *path, int max, int max_terms, struct coeffs *c)
{
    char *text;
    size_t size;
    const char *shown = strcmp(path, "-") ? path : "standard input";
    int rc = file_read_text(path, 1 << 20, &text, &size);
    if (rc)
        return rc;
    if (memchr(text, 0, size))
        rc = err_set(GPT_INPUT, "%s: expected text, found a zero byte", shown);
    else
        rc = parse(shown, text, max, max_terms, c);
    free(text);
    return rc;
}

int coeffs_load(const char *path, double (*row)[3], int max, int *n, bool *aol)
{
    struct coeffs c;
    int rc = read_table(path, max < COEFFS_ROWS ? max : COEFFS_ROWS, 3, &c);
    if (!rc && c.input == INPUT_SPECTRAL)
        rc = err_set(GPT_INPUT,
                     "%s: the rows are for input scaled by its largest singular value, and no "
                     "optimizer scales so: expected rows for the norm or for AOL (ns-coeffs fit)",
                     path);
    *n = rc ? 0 : c.n;
    *aol = !rc && c.input == INPUT_AOL;
    for (int i = 0; i < *n; i++)
        memcpy(row[i], c.row[i], sizeof row[i]);
    return rc;
}

int coeffs_read(struct coeffs *c, const char *path)
{
    const char *slash = strrchr(path, '/');
    int rc = read_table(path, COEFFS_ROWS, 4, c);
    snprintf(c->name, sizeof c->name, "%s", slash ? slash + 1 : path);
    char *suffix = strstr(c->name, ".coeffs");
    if (suffix && suffix > c->name && !suffix[7])
        *suffix = 0;
    return rc;
}

int coeffs_drop(struct coeffs *c, bool last)
{
    const char *what = last ? " without its last" : " without its first";
    if (c->n < 2)
        return err_set(GPT_USAGE, "%s: expected two rows or more, one of which is left out",
                       c->name);
    c->n--;
    if (!last) {
        memmove(c->row[0], c->row[1], sizeof c->row[0] * (size_t)c->n);
        c->input = INPUT_AOL;
    }
    size_t at = strnlen(c->name, sizeof c->name - 1 - strlen(what));
    memcpy(c->name + at, what, strlen(what) + 1);
    return 0;
}

/* The fewest digits that read back as the same number: published ones stay as they were. */
static void write_number(FILE *f, double x)
{
    char text[32];
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, x);
        if (strtod(text, NULL) == x)
            break;
    }
    fputs(text, f);
}

void coeffs_write(const struct coeffs *c, FILE *f)
{
    if (c->input != INPUT_NORM)
        fprintf(f, "%s%s\n", input_mark, coeffs_input_names[c->input]);
    for (int t = 0; t < c->n; t++)
        for (int i = 0; i < c->terms; i++) {
            write_number(f, c->row[t][i]);
            fputc(i + 1 < c->terms ? ' ' : '\n', f);
        }
}

double coeffs_value(const struct coeffs *c, double x)
{
    for (int t = 0; t < c->n; t++)
        x = coeffs_clip(coeffs_row_value(c->row[t], x));
    return x;
}
