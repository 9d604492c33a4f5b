/* gpt_safetensors.c - see gpt_safetensors.h. */
#include "checkpoint/gpt_safetensors.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "checkpoint/safetensors.h"

struct gpt_tensors {
    struct st_reader *inside;
    const struct st_header *header;
    struct gpt_tensor *tensor; /* [header->n] */
    bool stream;
    uint64_t read; /* of a stream: bytes of the data up to here are gone */
};

int gpt_tensors_open(struct gpt_tensors **out, const char *path)
{
    struct gpt_tensors *t = calloc(1, sizeof *t);
    int rc = t ? st_open(&t->inside, path) : err_memory();
    *out = NULL;
    if (rc) {
        free(t);
        return rc;
    }
    t->header = st_header(t->inside);
    if (!(t->tensor = calloc(t->header->n + 1, sizeof *t->tensor))) {
        gpt_tensors_close(t);
        return err_memory();
    }
    for (size_t i = 0; i < t->header->n; i++) {
        const struct st_tensor *x = &t->header->tensors[i];
        t->tensor[i] = (struct gpt_tensor){ x->name, x->type, x->rank, x->shape, x->bytes };
        t->stream |= x->bytes > 0 && !st_data(t->inside, x);
    }
    *out = t;
    return 0;
}

int gpt_tensors_count(const struct gpt_tensors *t) { return (int)t->header->n; }

const struct gpt_tensor *gpt_tensors_at(const struct gpt_tensors *t, int i)
{
    return i >= 0 && (size_t)i < t->header->n ? &t->tensor[i] : NULL;
}

int gpt_tensors_find(const struct gpt_tensors *t, const char *name)
{
    for (size_t i = 0; i < t->header->n; i++)
        if (!strcmp(t->tensor[i].name, name))
            return (int)i;
    return -1;
}

const char *gpt_tensors_meta(const struct gpt_tensors *t, const char *key)
{
    return st_meta(t->header, key);
}

int gpt_tensors_read(struct gpt_tensors *t, int i, uint64_t from, void *to, size_t n)
{
    if (i < 0 || (size_t)i >= t->header->n)
        return err_set(GPT_USAGE, "tensor %d of %zu", i, t->header->n);
    const struct st_tensor *x = &t->header->tensors[i];
    if (from > x->bytes || n > x->bytes - from)
        return err_set(GPT_USAGE, "%s: bytes %llu to %llu of %llu", x->name,
                       (unsigned long long)from, (unsigned long long)(from + n),
                       (unsigned long long)x->bytes);
    if (t->stream && x->begin + from < t->read)
        return err_set(GPT_USAGE,
                       "%s: a compressed file is read forward only, and that part is gone",
                       x->name);
    int rc = st_read(t->inside, x, from, to, n);
    if (!rc)
        t->read = x->begin + from + n;
    return rc;
}

void gpt_tensors_close(struct gpt_tensors *t)
{
    if (!t)
        return;
    if (t->inside)
        st_close(t->inside);
    free(t->tensor);
    free(t);
}
