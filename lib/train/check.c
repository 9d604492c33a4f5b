/* check.c - what a run looks into when something is wrong, or when the recipe asks. */
#include <stdlib.h>
#include <string.h>
#include "base/hash.h"
#include "train/rank.h"

/* Names the first parameter with a number that is none. */
int check_finite(struct rank *k, int step, double loss)
{
    for (int i = 0; i < k->banks.n; i++) {
        const struct param *p = &k->banks.p[i];
        int32_t bad = 0;
        k->ops->upload(k->ops, k->bad, &bad, sizeof bad);
        k->ops->finite(k->ops, k->bad, p->w);
        k->ops->download(k->ops, &bad, k->bad, sizeof bad);
        if (bad)
            return err_set(GPT_DEVICE, "step %d: training loss is %f; the weight of '%s' is not finite",
                           step, loss, p->spec->label);
    }
    return err_set(GPT_DEVICE, "step %d: training loss is %f; all weights are still finite", step,
                   loss);
}

/* 48 bits of a weight's hash: exact in a double. The padding of a bank counts where it travels. */
static int weight_hash(struct rank *k, const struct param *p, char *host, double *hash)
{
    char hex[33];
    struct tensor w = p->w;
    if (!k->run->recipe->padding)           /* of which each rank keeps its own */
        w = tensor_rows(w, 0, p->used * param_unit_rows(p));
    k->ops->download(k->ops, host, w.data, tensor_bytes(w));
    int rc = k->ops->status(k->ops);
    xxh_hex_of(host, tensor_bytes(w), hex);
    hex[12] = 0;
    *hash = (double)strtoull(hex, NULL, 16);
    return rc;
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
                rc = err_set(GPT_DEVICE, "after step %d: ranks 0 and %d hold other weights of '%s'",
                             k->step, j, k->banks.p[i].spec->label);
    free(host);
    free(all);
    return rc;
}
