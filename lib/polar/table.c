/* table.c - reading a coefficient table. */
#include "polar/table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/file.h"
#include "base/num.h"

static int parse_row(const char *path, int line, char *text, double out[3])
{
    char *save = NULL;
    int n = 0;
    for (char *w = strtok_r(text, " \t\r", &save); w; w = strtok_r(NULL, " \t\r", &save)) {
        if (n == 3)
            return err_set(GPT_INPUT, "%s:%d: expected three numbers, found more", path, line);
        if (num_f64(w, "coefficient", -1e9, 1e9, &out[n++]))
            return err_set(GPT_INPUT, "%s:%d: expected a number, found '%s'", path, line, w);
    }
    if (n != 3)
        return err_set(GPT_INPUT, "%s:%d: expected three numbers, found %d", path, line, n);
    return 0;
}

int coeffs_load(const char *path, double (*row)[3], int max, int *n)
{
    char *text;
    size_t size;
    int line = 0, rc = file_read(path, 1 << 20, &text, &size);
    if (rc)
        return rc;
    *n = 0;
    for (char *s = text, *next; s && !rc; s = next) {
        next = strchr(s, '\n');
        if (next)
            *next++ = 0;
        line++;
        s[strcspn(s, "#")] = 0;
        if (!s[strspn(s, " \t\r")])
            continue;
        if (*n == max)
            rc = err_set(GPT_INPUT, "%s:%d: more than %d rows", path, line, max);
        else
            rc = parse_row(path, line, s, row[(*n)++]);
    }
    if (!rc && *n == 0)
        rc = err_set(GPT_INPUT, "%s: no row of coefficients", path);
    free(text);
    return rc;
}
