#include "inspect/reshard.h"

#include <stdlib.h>
#include <string.h>
#include "base/pool.h"
#include "checkpoint/checkpoint_write.h"
#include "recipe/share.h"

/* Where a piece's bytes come from; opened when they are first asked for. */
struct feed {
    struct tensors *s;
    const struct stored *t;
    uint64_t from;
    struct tensor_bytes b;
    bool open;
};

static int feed(void *arg, void *dst, size_t n)
{
    struct feed *f = arg;
    int rc = 0;
    if (!f->open) {
        f->open = true;
        rc = bytes_open(&f->b, f->s, f->t, f->from);
    }
    if (!rc)
        rc = bytes_read(&f->b, dst, n);
    if (f->b.at == f->t->bytes || rc) {
        bytes_close(&f->b);
        f->b.src = NULL;
    }
    return rc;
}

struct job {
    struct tensors *from;
    const char *root;
    int64_t step;
    int ranks, level;
    const struct recipe *recipe;
};

/* True if the tensor is cut by rank; without a recipe, if it is in several pieces. */
static bool sharded(const struct job *j, const struct stored *t)
{
    int i = j->recipe ? recipe_param(j->recipe, t->param) : -1;
    if (!strcmp(t->kind, "weight.amax") || !strcmp(t->kind, "next_scale") ||
        !strcmp(t->kind, "post_scale"))
        return false;
    if (i >= 0)
        return j->recipe->params[i].comms != COMMS_REPLICATED;
    for (int k = 0; k < tensors_count(j->from); k++) {
        const struct stored *x = tensors_at(j->from, k);
        if (!strcmp(x->param, t->param) && ckpt_find(tensors_ckpt(j->from), x->name)->npieces > 1)
            return true;
    }
    return false;
}

/* A rank's units of a tensor that is cut: as gpt-train cuts it, where the recipe tells. */
static struct span share(const struct job *j, const struct stored *t, int64_t units, int rank)
{
    int i = j->recipe ? recipe_param(j->recipe, t->param) : -1;
    if (i < 0 || param_units(&j->recipe->params[i]) != units)
        return share_even(units, rank, j->ranks);
    return share_of(j->recipe, i, rank, j->ranks);
}

static int write_rank(void *arg, int rank)
{
    struct job *j = arg;
    const struct ckpt_entry *e;
    int n = ckpt_entries(tensors_ckpt(j->from), &e);
    struct ckpt_tensor *t = calloc((size_t)n + 1, sizeof *t);
    struct feed *f = calloc((size_t)n + 1, sizeof *f);
    int rc = t && f ? 0 : err_memory();
    for (int i = 0; !rc && i < n; i++) {
        const struct stored *s = tensors_at(j->from, i);
        bool cut = sharded(j, s);
        struct span own =
            cut ? share(j, s, e[i].shape[0], rank) : (struct span){ 0, rank ? 0 : e[i].shape[0] };
        f[i] = (struct feed){ .s = j->from, .t = s, .from = e[i].unit_bytes * (uint64_t)own.first };
        t[i] = (struct ckpt_tensor){ .param = s->param,
                                     .kind = s->kind,
                                     .dtype = s->dtype,
                                     .rank = e[i].rank,
                                     .begin = own.first,
                                     .count = own.count,
                                     .fill = feed,
                                     .arg = &f[i] };
        memcpy(t[i].shape, e[i].shape, sizeof t[i].shape);
    }
    if (!rc)
        rc = ckpt_write_rank(j->root, j->step, rank, t, n, j->level);
    for (int i = 0; f && i < n; i++)
        if (f[i].open)
            bytes_close(&f[i].b);
    free(t);
    free(f);
    return rc;
}

int reshard(struct tensors *from, const char *root, int ranks, int level, const struct recipe *r)
{
    const struct ckpt *c = tensors_ckpt(from);
    if (!c)
        return err_set(GPT_INPUT, "%s: is no checkpoint", tensors_path(from));
    struct ckpt_info info = *ckpt_info(c);
    struct job j = { from, root, info.step, ranks, level, r };
    int rc = ckpt_verify_files(c, 0);
    if (rc || (rc = ckpt_begin(root, info.step)))
        return rc;
    info.ranks = ranks;
    if ((rc = parallel_for(ranks, 0, write_rank, &j)))
        ckpt_abort(root, info.step);
    else
        rc = ckpt_commit(root, &info);
    return rc;
}
