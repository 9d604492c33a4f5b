#include "coeffs/svals.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/file.h"
#include "base/grow.h"
#include "base/num.h"

enum { TEXT_MAX = 1 << 30 };

bool shape_parse(const char *text, int *rows, int *cols)
{
    long v[2] = { 0, 0 };
    for (int k = 0; k < 2; k++, text++) {
        const char *digits = text;
        for (; *text >= '0' && *text <= '9' && v[k] <= SHAPE_MAX; text++)
            v[k] = 10 * v[k] + (*text - '0');
        if (text == digits || v[k] < 1 || v[k] > SHAPE_MAX || *text != (k ? 0 : 'x'))
            return false;
    }
    *rows = (int)v[0];
    *cols = (int)v[1];
    return true;
}

/* Adds a matrix, with the name and shape that its comment gives. */
static int begin(struct svals_list *l, const char *comment)
{
    if (grow_one(&l->v, l->n, sizeof *l->v))
        return GPT_SYSTEM;
    struct svals *v = &l->v[l->n++];
    memset(v, 0, sizeof *v);
    snprintf(v->name, sizeof v->name, "%d", l->n);
    comment += strspn(comment, "# \t");
    for (bool first = true; *comment; first = false) {
        char word[96];
        int n = (int)strcspn(comment, " \t");
        snprintf(word, sizeof word, "%.*s", n, comment);
        if (!shape_parse(word, &v->rows, &v->cols) && first)
            snprintf(v->name, sizeof v->name, "%s", word);
        comment += n + (int)strspn(comment + n, " \t");
    }
    return 0;
}

static int add(struct svals *v, const char *path, int line, const char *text)
{
    double x;
    if (num_f64(text, "singular value", -INFINITY, INFINITY, &x))
        return err_set(GPT_INPUT, "%s:%d: expected one singular value, found '%.40s'", path, line,
                       text);
    if (x < 0)
        return err_set(GPT_INPUT, "%s:%d: a singular value is not negative: %s", path, line, text);
    if ((v->zeros && x > 0) || (v->n && x > v->sigma[v->n - 1]))
        return err_set(GPT_INPUT,
                       "%s:%d: expected at most %.9g (descending order; a blank line "
                       "begins another matrix), found %s",
                       path, line, v->zeros ? 0 : v->sigma[v->n - 1], text);
    int most = v->rows < v->cols ? v->rows : v->cols;
    if (most && v->n + v->zeros == most)
        return err_set(GPT_INPUT, "%s:%d: a matrix of %dx%d has %d singular values, found more",
                       path, line, v->rows, v->cols, most);
    if (!(x > 0)) {
        v->zeros++;
        return 0;
    }
    if (grow_one(&v->sigma, v->n, sizeof *v->sigma))
        return GPT_SYSTEM;
    v->sigma[v->n++] = x;
    return 0;
}

static int parse(struct svals_list *l, const char *path, char *text)
{
    int rc = 0, line = 0;
    bool fresh = true; /* the next number begins a matrix */
    const char *comment = "";
    for (char *s = text, *next; s && !rc; s = next) {
        if ((next = strchr(s, '\n')))
            *next++ = 0;
        line++;
        s += strspn(s, " \t\r");
        size_t n = strlen(s);
        while (n && strchr(" \t\r", s[n - 1]))
            s[--n] = 0;
        if (!n || *s == '#') {
            if (n || !fresh)
                comment = s;
            fresh = true;
            continue;
        }
        if (fresh && (rc = begin(l, comment)))
            break;
        fresh = false;
        comment = "";
        rc = add(&l->v[l->n - 1], path, line, s);
    }
    int all = 0;
    for (int i = 0; i < l->n; i++)
        all += l->v[i].n;
    return rc || all ? rc
                     : err_set(GPT_INPUT, "%s: expected singular values, found %s", path,
                               l->n ? "only zeros" : "none");
}

int svals_read(struct svals_list *l, const char *path)
{
    char *text = NULL;
    size_t n;
    const char *shown = strcmp(path, "-") ? path : "standard input";
    memset(l, 0, sizeof *l);
    int rc = file_read_text(path, TEXT_MAX, &text, &n);
    if (rc)
        return rc;
    rc = memchr(text, 0, n) ? err_set(GPT_INPUT, "%s: expected text, found a zero byte", shown)
                            : parse(l, shown, text);
    free(text);
    if (rc) {
        svals_release(l);
        return rc;
    }
    int kept = 0; /* matrices of zeros are left out */
    for (int i = 0; i < l->n; i++) {
        if (l->v[i].n)
            l->v[kept++] = l->v[i];
    }
    l->n = kept;
    return 0;
}

void svals_release(struct svals_list *l)
{
    for (int i = 0; i < l->n; i++)
        free(l->v[i].sigma);
    free(l->v);
    memset(l, 0, sizeof *l);
}
