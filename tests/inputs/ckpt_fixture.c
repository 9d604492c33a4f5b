#include "ckpt_fixture.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/rng.h"

const struct ckpt_whole ckpt_model[CKPT_TENSORS] = {
    { "attn", "weight", DT_BF16, 3, { 8, 6, 6 }, false },
    { "attn", "mantissa", DT_U16, 3, { 8, 6, 6 }, false },
    { "attn", "momentum", DT_F32, 3, { 8, 6, 6 }, false },
    { "attn", "second_momentum", DT_F32, 2, { 8, 6 }, false },
    { "embed", "weight", DT_BF16, 2, { 24, 5 }, false },
    { "embed", "exp_avg", DT_F32, 2, { 24, 5 }, false },
    { "scalars", "weight", DT_F32, 1, { 7 }, true },
    { "scalars", "exp_avg", DT_F32, 1, { 7 }, true },
};
static size_t unit_bytes(const struct ckpt_whole *w)
{
    size_t n = dtype_size(w->dtype);
    for (int i = 1; i < w->rank; i++)
        n *= (size_t)w->shape[i];
    return n;
}

size_t whole_bytes(int i) { return unit_bytes(&ckpt_model[i]) * (size_t)ckpt_model[i].shape[0]; }

struct model_state new_state(uint64_t seed)
{
    struct model_state s;
    for (int i = 0; i < CKPT_TENSORS; i++) {
        struct rng r = rng_make(seed, (uint64_t)i);
        s.data[i] = malloc(whole_bytes(i));
        for (size_t k = 0; k < whole_bytes(i); k++)
            s.data[i][k] = (unsigned char)rng_below(&r, k, 256);
    }
    return s;
}

void free_state(struct model_state *s)
{
    for (int i = 0; i < CKPT_TENSORS; i++)
        free(s->data[i]);
}

int rank_tensors(const struct model_state *s, int rank, int ranks, struct ckpt_tensor *t)
{
    int n = 0;
    for (int i = 0; i < CKPT_TENSORS; i++) {
        const struct ckpt_whole *w = &ckpt_model[i];
        int64_t count = w->replicated ? (rank ? 0 : w->shape[0]) : w->shape[0] / ranks;
        int64_t begin = w->replicated ? 0 : count * rank;
        t[n++] = (struct ckpt_tensor){ w->param,
                                       w->kind,
                                       w->dtype,
                                       w->rank,
                                       { w->shape[0], w->shape[1], w->shape[2] },
                                       begin,
                                       count,
                                       s->data[i] + unit_bytes(w) * (size_t)begin,
                                       NULL,
                                       NULL };
    }
    return n;
}

struct writer {
    const char *root;
    const struct model_state *s;
    int64_t step;
    int rank, ranks, level, rc;
    char said[512];
};

static void *write_rank(void *arg)
{
    struct writer *w = arg;
    struct ckpt_tensor t[CKPT_TENSORS];
    int n = rank_tensors(w->s, w->rank, w->ranks, t);
    w->rc = ckpt_write_rank(w->root, w->step, w->rank, t, n, w->level);
    snprintf(w->said, sizeof w->said, "%s", err_message());
    return NULL;
}

struct ckpt_info info_of(int64_t step, int ranks)
{
    static const struct ckpt_kv kv[] = {
        { "seed", "1234" }, { "loader.shard", "3" }, { "note", "two words" }, { "empty", "" }
    };
    return (struct ckpt_info){
        step, 1000 * step, ranks, "checkpoint_test 1", "[model]\nlayers = 2\n", kv, 4
    };
}

int save_state(const char *dir, const struct model_state *s, int64_t step, int ranks, int level)
{
    struct writer w[8];
    pthread_t id[8];
    struct ckpt_info info = info_of(step, ranks);
    int rc = ckpt_begin(dir, step);
    for (int r = 0; r < ranks; r++) {
        w[r] = (struct writer){ dir, s, step, r, ranks, level, 0, "" };
        pthread_create(&id[r], NULL, write_rank, &w[r]);
    }
    for (int r = 0; r < ranks; r++) {
        pthread_join(id[r], NULL);
        if (!rc && w[r].rc)
            rc = err_set(w[r].rc, "%s", w[r].said);
    }
    return rc ? rc : ckpt_commit(dir, &info);
}

int load_state(const char *dir, struct model_state *s, int ranks, int threads)
{
    struct ckpt *c;
    int rc = ckpt_open(&c, dir);
    for (int i = 0; i < CKPT_TENSORS; i++)
        memset(s->data[i], 0xee, whole_bytes(i));
    for (int r = 0; !rc && r < ranks; r++) {
        struct ckpt_tensor t[CKPT_TENSORS];
        struct ckpt_want w[CKPT_TENSORS];
        char names[CKPT_TENSORS][64];
        int n = rank_tensors(s, r, ranks, t);
        for (int i = 0; i < n; i++) {
            snprintf(names[i], sizeof names[i], "%s.%s", t[i].param, t[i].kind);
            w[i] = (struct ckpt_want){ names[i], t[i].dtype, t[i].begin, t[i].count,
                                       (void *)t[i].data };
        }
        rc = ckpt_load(c, w, n, threads);
    }
    ckpt_close(c);
    return rc;
}

bool same_state(const struct model_state *a, const struct model_state *b)
{
    for (int i = 0; i < CKPT_TENSORS; i++)
        if (memcmp(a->data[i], b->data[i], whole_bytes(i)))
            return false;
    return true;
}
