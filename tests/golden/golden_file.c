/* golden_file.c - a file of golden numbers, and the line of a comparison; see golden.h. */
#include "golden.h"

#include <stdio.h>
#include <stdlib.h>

int golden_open(struct golden *g, const char *file)
{
    int rc = st_open(&g->r, file);
    if (!rc)
        g->h = st_header(g->r);
    return rc;
}

float *golden_floats(struct golden *g, const char *name, int64_t *n)
{
    const struct st_tensor *t = st_find(g->h, name);
    *n = t ? (int64_t)t->elements : 0;
    if (!t)
        return NULL;
    void *raw = malloc(t->bytes + 1);
    float *x = malloc((t->elements + 1) * sizeof *x);
    if (!raw || !x || st_read(g->r, t, 0, raw, t->bytes)) {
        fprintf(stderr, "golden: %s: %s\n", name, err_message());
        exit(GPT_SYSTEM);
    }
    for (uint64_t i = 0; i < t->elements; i++)
        x[i] = t->dtype == DT_BF16  ? bf16_to_f32(((uint16_t *)raw)[i])
               : t->dtype == DT_I16 ? (float)((uint16_t *)raw)[i]
               : t->dtype == DT_I32 ? (float)((int32_t *)raw)[i]
                                    : ((float *)raw)[i];
    free(raw);
    return x;
}

int golden_int(const struct golden *g, const char *key, int dflt)
{
    const char *v = st_meta(g->h, key);
    return v ? atoi(v) : dflt;
}

bool golden_report(const char *name, double error, double tolerance)
{
    bool ok = error <= tolerance; /* NaN is not */
    printf("  %-34s %9.2e  (%.0e)%s\n", name, error, tolerance, ok ? "" : "  FAILED");
    return ok;
}

const int32_t *golden_device(struct ops *o, const int32_t *host, int64_t n)
{
    int32_t *dev = o->alloc(o, (size_t)n * 4, "golden batch");
    o->upload(o, dev, host, (size_t)n * 4);
    return dev;
}
