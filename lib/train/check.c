/* check.c - checks of a run: the number of ranks, finite values, equal weights on all ranks. */
#include <stdlib.h>
#include <string.h>
#include "base/hash.h"
#include "recipe/share.h"
#include "train/rank.h"

/* At the untie step moments and masters of tied tables pass through memory of their gradients. */
static int check_tied(const struct recipe *r, int i, int ranks)
{
    const struct param_spec *s = &r->params[i];
    enum dtype widest = s->master == DT_F32 ? DT_F32 : s->exp_avg;
    size_t moments = (size_t)share_most(r, i, ranks) * dtype_size(widest);
    if (ranks == 1 || s->comms == COMMS_REPLICATED ||
        moments <= (size_t)s->rows * dtype_size(gradient_dtype(r, s)))
        return 0;
    return err_set(GPT_USAGE,
                   "tied tables on %d ranks: expected an even number of rows of '%s', "
                   "found %lld",
                   ranks, s->label, (long long)s->rows);
}

int check_ranks(const struct recipe *r, int ranks)
{
    if (ranks > MAX_RANKS)
        return err_set(GPT_USAGE, "%d ranks: at most %d", ranks, MAX_RANKS);
    if (r->data.chunks < ranks)
        return err_set(GPT_USAGE,
                       "%d ranks, and a step has %d chunks: expected one a rank at least "
                       "(data.chunks)",
                       ranks, r->data.chunks);
    if (rank_micros(r->data.chunks, 0, ranks) > MAX_MICRO)
        return err_set(GPT_USAGE, "%d chunks a step on %d ranks: at most %d micro-batches",
                       r->data.chunks, ranks, MAX_MICRO);
    int rc = r->order.tied_head < 0 ? 0 : check_tied(r, r->order.tied_head, ranks);
    return rc || r->order.tied_head < 0 ? rc : check_tied(r, r->order.tied_embed, ranks);
}

/* Label and kind of the first of this rank's weights and states that is not finite; NULL: none. */
static const char *first_bad(struct rank *k, const char **kind)
{
    struct optim_tensor t[OPTIM_MAX_TENSORS];
    int n = optim_tensors(&k->optim, t);
    for (int i = 0; i < n; i++) {
        int32_t bad = 0;
        if (t[i].t.dtype == DT_U16)
            continue;
        k->ops->upload(k->ops, k->bad, &bad, sizeof bad);
        k->ops->finite(k->ops, k->bad, t[i].t);
        k->ops->download(k->ops, &bad, k->bad, sizeof bad);
        *kind = t[i].kind;
        if (bad)
            return k->banks.p[t[i].param].spec->label;
    }
    return NULL;
}

int check_loss(struct rank *k, int step, double loss)
{
    const char *kind, *label = first_bad(k, &kind);
    if (!label)
        return err_set(GPT_DEVICE,
                       "step %d: training loss is %f; all weights and optimizer states "
                       "are finite",
                       step, loss);
    return err_set(GPT_DEVICE,
                   "step %d: training loss is %f; the first tensor that is not finite "
                   "is '%s.%s'",
                   step, loss, label, kind);
}

int check_states(struct rank *k)
{
    const char *kind, *label = first_bad(k, &kind);
    int rc = k->ops->status(k->ops);
    if (rc || !label)
        return rc;
    return err_set(GPT_DEVICE, "after step %d: '%s.%s' is not finite; no checkpoint is written",
                   k->step, label, kind);
}

int check_first(struct rank *k)
{
    double mine = k->run->first, all[MAX_RANKS];
    int rc = k->comm->gather_host(k->comm, &mine, 1, all);
    for (int i = 1; i < k->world && !rc; i++)
        if (all[i] != all[0])
            rc =
                err_set(GPT_INPUT,
                        "rank 0 begins at step %.0f, rank %d at step %.0f: expected processes that "
                        "see the same checkpoints",
                        all[0], i, all[i]);
    return rc;
}

/* 48 bits of a tensor's hash. */
static uint64_t tensor_hash(struct rank *k, struct tensor t, char *host)
{
    char hex[33];
    k->ops->download(k->ops, host, t.data, tensor_bytes(t));
    xxh_hex_of(host, tensor_bytes(t), hex);
    hex[12] = 0;
    return strtoull(hex, NULL, 16);
}

/* Of a weight and its fp8 copy; the sum is exact in a double. Padding of a bank is included only if
 * it is communicated: otherwise each rank has its own. */
static int weight_hash(struct rank *k, const struct param *p, char *host, double *hash)
{
    struct tensor w = p->w;
    if (!k->run->recipe->order.padding)
        w = tensor_rows(w, 0, p->used * param_unit_rows(p));
    *hash = (double)tensor_hash(k, w, host);
    if (p->fp8.codes.data)
        *hash += (double)tensor_hash(k, p->fp8.codes, host);
    return k->ops->status(k->ops);
}

int check_weights(struct rank *k)
{
    double mine[MAX_PARAMS], *all = malloc((size_t)k->world * MAX_PARAMS * sizeof *all);
    size_t largest = 0;
    for (int i = 0; i < k->banks.n; i++)
        if (tensor_bytes(k->banks.p[i].w) > largest)
            largest = tensor_bytes(k->banks.p[i].w);
    char *host = malloc(largest);
    int rc = host && all ? 0 : err_sys("comparing weights");
    optim_settle(&k->optim);
    for (int i = 0; i < k->banks.n && !rc; i++)
        rc = weight_hash(k, &k->banks.p[i], host, &mine[i]);
    if (!rc)
        rc = k->comm->gather_host(k->comm, mine, k->banks.n, all);
    for (int j = 1; j < k->world && !rc; j++)
        for (int i = 0; i < k->banks.n && !rc; i++)
            if (all[j * k->banks.n + i] != all[i])
                rc = err_set(GPT_DEVICE,
                             "after step %d: ranks 0 and %d hold different weights of '%s'",
                             k->step, j, k->banks.p[i].spec->label);
    free(host);
    free(all);
    return rc;
}
