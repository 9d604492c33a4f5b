#include "inspect/reshard.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/pool.h"
#include "checkpoint/checkpoint_write.h"

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

/* Is the tensor cut by rank? Without a recipe, one that is in several pieces is. */
static bool sharded(const struct job *j, const struct stored *t)
{
    int i = j->recipe ? recipe_param(j->recipe, t->param) : -1;
    if (i >= 0)
        return j->recipe->params[i].comms != COMMS_REPLICATED;
    for (int k = 0; k < tensors_count(j->from); k++) {
        const struct stored *x = tensors_at(j->from, k);
        if (!strcmp(x->param, t->param) && ckpt_find(tensors_ckpt(j->from), x->name)->npieces > 1)
            return true;
    }
    return false;
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
        int64_t count = cut ? e[i].shape[0] / j->ranks : rank ? 0 : e[i].shape[0];
        int64_t begin = cut ? count * rank : 0;
        f[i] = (struct feed){ .s = j->from, .t = s, .from = e[i].unit_bytes * (uint64_t)begin };
        t[i] = (struct ckpt_tensor){ .param = s->param,
                                     .kind = s->kind,
                                     .dtype = s->dtype,
                                     .rank = e[i].rank,
                                     .begin = begin,
                                     .count = count,
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

static int64_t gcd(int64_t a, int64_t b)
{
    while (b) {
        int64_t r = a % b;
        a = b;
        b = r;
    }
    return a;
}

/* Every tensor that is cut must have a multiple of `ranks` units. */
static int check_ranks(const struct job *j)
{
    const struct ckpt_entry *e, *bad = NULL;
    int n = ckpt_entries(tensors_ckpt(j->from), &e);
    int64_t common = 0;
    char may[256] = "";
    size_t at = 0;
    for (int i = 0; i < n; i++) {
        if (!sharded(j, tensors_at(j->from, i)))
            continue;
        common = gcd(common, e[i].shape[0]);
        if (!bad && e[i].shape[0] % j->ranks)
            bad = &e[i];
    }
    if (!bad)
        return 0;
    for (int64_t k = 1; k <= common && k <= CKPT_MAX_RANKS && at < sizeof may - 32; k++)
        if (common % k == 0)
            at += (size_t)snprintf(may + at, sizeof may - at, "%s%" PRId64, at ? ", " : "", k);
    return err_set(GPT_INPUT,
                   "%s: %d ranks do not divide the %" PRId64 " units of '%s'; expected "
                   "one of %s",
                   tensors_path(j->from), j->ranks, bad->shape[0], bad->name, may);
}

int reshard(struct tensors *from, const char *root, int ranks, int level, const struct recipe *r)
{
    const struct ckpt *c = tensors_ckpt(from);
    if (!c)
        return err_set(GPT_INPUT, "%s: is no checkpoint", tensors_path(from));
    struct ckpt_info info = *ckpt_info(c);
    struct job j = { from, root, info.step, ranks, level, r };
    int rc = check_ranks(&j);
    if (rc || (rc = ckpt_verify_files(c, 0)) || (rc = ckpt_begin(root, info.step)))
        return rc;
    info.ranks = ranks;
    if ((rc = parallel_for(ranks, 0, write_rank, &j)))
        ckpt_abort(root, info.step);
    else
        rc = ckpt_commit(root, &info);
    return rc;
}
