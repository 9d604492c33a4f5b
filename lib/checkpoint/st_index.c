/* st_index.c - see st_index.h. */
#include "checkpoint/st_index.h"

#include <stdlib.h>
#include <string.h>
#include "base/file.h"
#include "base/grow.h"
#include "base/zio.h"
#include "checkpoint/st_text.h"

int st_index_detect(const char *path, bool *is)
{
    enum { BEGIN = 64 };
    struct zreader *z;
    const void *p;
    size_t n, i = 0;
    int rc = zreader_open(&z, path);
    *is = false;
    if (rc)
        return rc;
    if (!(rc = zreader_peek(z, BEGIN, &p, &n))) {
        const char *b = p;
        while (i < n && (b[i] == ' ' || b[i] == '\n' || b[i] == '\r' || b[i] == '\t'))
            i++;
        *is = i < n && b[i] == '{' && !memchr(b, 0, n < 8 ? n : 8);
    }
    zreader_close(z);
    return rc;
}

/* The value that comes next: the text of a string, any other as it is written. */
static int value(struct st_text *c, char **out)
{
    char first = json_peek(&c->j);
    const char *at = c->j.at;
    if (first == '"')
        return st_text_string(c, out);
    json_skip(&c->j);
    int rc = st_text_end(c);
    if (!rc && !(*out = strndup(at, (size_t)(c->j.at - at))))
        rc = err_memory();
    return rc;
}

/* An object of names and values. */
static int pairs(struct st_text *c, struct st_meta **v, size_t *n)
{
    struct json_string key;
    int rc = 0;
    json_open(&c->j, '{');
    while (!rc && json_key(&c->j, &key)) {
        if ((rc = grow_one(v, *n, sizeof **v)))
            break;
        struct st_meta *m = &(*v)[(*n)++];
        *m = (struct st_meta){ NULL, NULL };
        if (!(rc = st_text_decode(c, &key, &m->key)))
            rc = value(c, &m->value);
    }
    return rc ? rc : st_text_end(c);
}

static int by_key(const void *a, const void *b)
{
    return strcmp(((const struct st_meta *)a)->key, ((const struct st_meta *)b)->key);
}

static int check_map(const struct st_index *x, const char *path)
{
    for (size_t i = 0; i < x->n; i++) {
        const char *file = x->map[i].value;
        if (i && !strcmp(x->map[i - 1].key, x->map[i].key))
            return err_set(GPT_INPUT, "%s: weight_map: tensor '%s' comes twice", path,
                           x->map[i].key);
        if (!*file || *file == '.' || strchr(file, '/'))
            return err_set(GPT_INPUT,
                           "%s: weight_map: tensor '%s': expected the name of a file beside this "
                           "one, found '%s'",
                           path, x->map[i].key, file);
    }
    return 0;
}

static int parse(struct st_index *x, struct st_text *c)
{
    struct json_string key;
    bool mapped = false;
    int rc = 0;
    json_open(&c->j, '{');
    while (!rc && json_key(&c->j, &key)) {
        bool map = json_equal(&key, "weight_map");
        mapped |= map;
        if (map)
            rc = pairs(c, &x->map, &x->n);
        else if (json_equal(&key, "metadata") && json_peek(&c->j) == '{')
            rc = pairs(c, &x->meta, &x->nmeta);
        else
            json_skip(&c->j);
    }
    rc = rc ? rc : st_text_end(c);
    rc = rc ? rc : st_text_nothing_more(c);
    if (!rc && !mapped)
        rc = err_set(GPT_INPUT,
                     "%s: JSON without 'weight_map': expected safetensors, or the index of some",
                     c->path);
    return rc;
}

int st_index_read(struct st_index *x, const char *path)
{
    char *text = NULL;
    size_t n;
    *x = (struct st_index){ 0 };
    int rc = file_read(path, ST_HEADER_MAX, &text, &n);
    if (!rc)
        rc = parse(x, &(struct st_text){ { .at = text, .end = text + n }, path, "index", text, 0 });
    free(text);
    if (!rc && x->n) {
        qsort(x->map, x->n, sizeof *x->map, by_key);
        rc = check_map(x, path);
    }
    if (rc)
        st_index_release(x);
    return rc;
}

static void free_pairs(struct st_meta *v, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        free(v[i].key);
        free(v[i].value);
    }
    free(v);
}

void st_index_release(struct st_index *x)
{
    free_pairs(x->map, x->n);
    free_pairs(x->meta, x->nmeta);
    *x = (struct st_index){ 0 };
}

const char *st_index_file(const struct st_index *x, const char *name)
{
    struct st_meta key = { (char *)name, NULL };
    const struct st_meta *m = x->n ? bsearch(&key, x->map, x->n, sizeof key, by_key) : NULL;
    return m ? m->value : NULL;
}
