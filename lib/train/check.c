/* check.c - checks of a run: the number of ranks, finite values, equal weights on all ranks. */
#include <math.h>
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
        moments <= (size_t)s->rows * dtype_size(recipe_gradient(r, s)))
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

/* Returns the first of this rank's weights and states, or of its gradients, that is not finite, as
 * optim_tensors lists them; -1: none. */
static int first_bad(struct rank *k, const struct optim_tensor *t, int n, bool gradients)
{
    for (int i = 0; i < n; i++) {
        int32_t bad = 0;
        if (t[i].t.dtype == DT_U16 || (t[i].state->role == STATE_GRADIENT) != gradients)
            continue;
        k->ops->upload(k->ops, k->bad, &bad, sizeof bad);
        k->ops->finite(k->ops, k->bad, t[i].t);
        k->ops->download(k->ops, &bad, k->bad, sizeof bad);
        if (bad)
            return i;
    }
    return -1;
}

/* Returns the last step up to `step`, counted from 1, that moved the parameter, or 0. */
static int last_move(const struct param_spec *s, int step)
{
    while (step > 0 && !recipe_moves(s, step - 1))
        step--;
    return step;
}

/* Writes what to try where s, NULL: no weight or state, is not finite. */
static void advise(const struct recipe *r, const struct param_spec *s, char *text, size_t size)
{
    if (!s && r->optimizer.loss_scale != 1)
        snprintf(text, size, "try a smaller optimizer.loss_scale");
    else if (!s)
        snprintf(text, size, "try lower rates, optimizer.adam_lr and muon_lr, or optimizer.clip=1");
    else if (rule_is_adam(&s->rule) && r->optimizer.adam.eps == 0)
        snprintf(text, size, "try an optimizer.adam_eps above 0, 1e-10 for example");
    else
        snprintf(text, size, "try a lower rate, optimizer.%s, or optimizer.clip=1",
                 rule_is_adam(&s->rule) ? "adam_lr" : "muon_lr");
}

int check_origin(struct rank *k, int last, bool own, const char *what)
{
    const struct recipe *r = k->run->recipe;
    struct optim_tensor t[OPTIM_MAX_TENSORS];
    char advice[160];
    int n = optim_tensors(&k->optim, t), first = first_bad(k, t, n, false);
    double mine[2] = { own, first < 0 ? n : first }, all[2 * MAX_RANKS];
    int rc = k->comm->gather_host(k->comm, mine, 2, all), found = n;
    bool some = false;
    for (int i = 0; i < k->world && !rc; i++)
        some |= all[2 * i] != 0;
    for (int i = 0; i < k->world && !rc;
         i++) /* a rank whose loss was sound has taken the others' */
        if ((all[2 * i] != 0 || !some) && all[2 * i + 1] < found)
            found = (int)all[2 * i + 1];
    if (rc)
        return rc;
    const struct param_spec *s = found < n ? k->banks.p[t[found].param].spec : NULL;
    advise(r, s, advice, sizeof advice);
    if (!s)
        return err_set(GPT_DEVICE, "%s; all weights and optimizer states are finite; %s", what,
                       advice);
    return err_set(GPT_DEVICE, "%s; '%s.%s' is not finite since step %d; %s", what, s->label,
                   t[found].kind, last_move(s, last), advice);
}

int check_loss(struct rank *k, int step, double loss, bool own)
{
    char what[80];
    snprintf(what, sizeof what, "step %d: training loss is %f", step, isnan(loss) ? NAN : loss);
    return check_origin(k, step - 1, own, what);
}

int check_states(struct rank *k)
{
    struct optim_tensor t[OPTIM_MAX_TENSORS];
    int n = optim_tensors(&k->optim, t), first = first_bad(k, t, n, false),
        rc = k->ops->status(k->ops);
    if (rc || first < 0)
        return rc;
    const struct param_spec *s = k->banks.p[t[first].param].spec;
    char advice[160];
    advise(k->run->recipe, s, advice, sizeof advice);
    return err_set(GPT_DEVICE, "after step %d: '%s.%s' is not finite; no checkpoint is written; %s",
                   k->step, s->label, t[first].kind, advice);
}

bool check_gradients(struct rank *k)
{
    struct optim_tensor t[OPTIM_MAX_TENSORS];
    int n = optim_tensors(&k->optim, t);
    return first_bad(k, t, n, true) < 0;
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
