/* ckpt_make - writes a checkpoint of a recipe's shapes with random numbers in it, for tests and
 * measurements of what reads checkpoints.
 *
 *     ckpt_make RECIPE ROOT STEP RANKS [SEED [LEVEL [KEY=VALUE...]]]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/rng.h"
#include "checkpoint/checkpoint_write.h"
#include "inspect/expected.h"

struct maker {
    const char *root;
    int64_t step;
    int ranks, level;
    const struct expected *e;
    int n;
    uint64_t seed;
};

/* The numbers of a tensor are drawn where they are written, from its own stream. */
struct draw {
    struct rng r;
    enum dtype t;
    uint64_t at;
    bool positive, whole;
};

static int draw(void *arg, void *dst, size_t n)
{
    struct draw *d = arg;
    size_t size = dtype_size(d->t);
    unsigned char *out = dst;
    for (size_t i = 0; i < n / size; i++, d->at++) {
        uint32_t w[4];
        rng_block(&d->r, d->at, w);
        float x = ((int)(w[0] >> 8) - (1 << 23)) / (float)(1 << 23) * 0.05f;
        x = d->positive ? x * x : x;
        uint16_t h = d->whole ? (uint16_t)w[1] : bf16_from_f32(x);
        memcpy(out + i * size, size == 2 ? (void *)&h : (void *)&x, size);
    }
    return 0;
}

static int write_rank(const struct maker *m, int rank)
{
    struct ckpt_tensor *t = calloc((size_t)m->n, sizeof *t);
    struct draw *d = calloc((size_t)m->n, sizeof *d);
    int k = 0;
    for (int i = 0; i < m->n; i++) {
        const struct expected *e = &m->e[i];
        if (e->optional && !recipe_waits(e->spec, (int)m->step))
            continue;
        int64_t count = e->sharded ? e->shape[0] / m->ranks : rank ? 0 : e->shape[0], unit = 1;
        for (int a = 1; a < e->rank; a++)
            unit *= e->shape[a];
        t[k] = (struct ckpt_tensor){ .param = e->param,
                                     .kind = e->kind,
                                     .dtype = e->dtype,
                                     .rank = e->rank,
                                     .begin = e->sharded ? count * rank : 0,
                                     .count = count,
                                     .fill = draw,
                                     .arg = &d[k] };
        memcpy(t[k].shape, e->shape, sizeof t[k].shape);
        d[k] = (struct draw){ .r = rng_make(m->seed, (uint64_t)i),
                              .t = e->dtype,
                              .at = (uint64_t)(t[k].begin * unit),
                              .positive = !!strstr(e->kind, "sq") || !!strstr(e->kind, "second"),
                              .whole = !strcmp(e->kind, "mantissa") };
        k++;
    }
    int rc = ckpt_write_rank(m->root, m->step, rank, t, k, m->level);
    free(t);
    free(d);
    return rc;
}

static int make(struct maker *m, const struct recipe *r)
{
    struct expected_state *s;
    struct ckpt_kv kv[MAX_PARAMS + 5] = { { "loader.id", "none" } };
    int n, rc = expected_state(r, &s, &n);
    for (int i = 0; !rc && i < n; i++)
        kv[i + 1] = (struct ckpt_kv){ s[i].key, s[i].param ? "5" : "0" };
    if (!rc)
        rc = ckpt_begin(m->root, m->step);
    for (int rank = 0; !rc && rank < m->ranks; rank++)
        rc = write_rank(m, rank);
    struct ckpt_info info = { m->step, 1000 * m->step, m->ranks, "ckpt_make 1", recipe_canonical(r),
                              kv,      n + 1 };
    if (!rc)
        rc = ckpt_commit(m->root, &info);
    free(s);
    return rc;
}

int main(int argc, char **argv)
{
    struct recipe *r = NULL;
    struct expected *e = NULL;
    if (argc < 5) {
        fprintf(stderr, "usage: ckpt_make RECIPE ROOT STEP RANKS [SEED [LEVEL [KEY=VALUE...]]]\n");
        return 2;
    }
    struct maker m = { .root = argv[2],
                       .step = atoll(argv[3]),
                       .ranks = atoi(argv[4]),
                       .seed = argc > 5 ? (uint64_t)atoll(argv[5]) : 1,
                       .level = argc > 6 ? atoi(argv[6]) : 1 };
    int rc = recipe_read(&r, argv[1], (const char *const *)argv + 7, argc > 7 ? argc - 7 : 0);
    if (!rc && !(rc = expected_tensors(r, &e, &m.n))) {
        m.e = e;
        rc = make(&m, r);
    }
    if (rc)
        fprintf(stderr, "ckpt_make: %s\n", err_message());
    free(e);
    recipe_free(r);
    return rc;
}
