/* val_pick.c - see val_pick.h. */
#include "tokenize/val_pick.h"

#include <stdlib.h>
#include "base/grow.h"

static void swap(struct candidate *a, struct candidate *b)
{
    struct candidate t = *a;

    *a = *b;
    *b = t;
}

static void sift_down(struct val_pick *p)
{
    for (int64_t i = 0, k; (k = 2 * i + 1) < p->n; i = k) {
        if (k + 1 < p->n && p->heap[k + 1].hash > p->heap[k].hash)
            k++;
        if (p->heap[i].hash >= p->heap[k].hash)
            break;
        swap(&p->heap[i], &p->heap[k]);
    }
}

int val_pick_add(struct val_pick *p, uint64_t hash, int64_t tokens)
{
    p->all += tokens;
    p->documents++;
    p->highest = hash > p->highest ? hash : p->highest;
    if (p->have >= p->want && hash >= p->heap[0].hash)
        return 0;
    if (grow_one(&p->heap, p->n, sizeof *p->heap))
        return GPT_SYSTEM;
    p->heap[p->n] = (struct candidate){ hash, tokens };
    for (int64_t i = p->n++; i && p->heap[(i - 1) / 2].hash < p->heap[i].hash; i = (i - 1) / 2)
        swap(&p->heap[(i - 1) / 2], &p->heap[i]);
    p->have += tokens;
    while (p->have - p->heap[0].tokens >= p->want) {
        p->have -= p->heap[0].tokens;
        p->heap[0] = p->heap[--p->n];
        sift_down(p);
    }
    return 0;
}

int val_pick_below(const struct val_pick *p, uint64_t *below)
{
    if (p->have < p->want || p->highest == p->heap[0].hash)
        return err_set(GPT_INPUT,
                       "expected whole documents of %lld tokens for validation and more for "
                       "training, found %lld tokens in %lld document%s%s",
                       (long long)p->want, (long long)p->all, (long long)p->documents,
                       p->documents == 1 ? "" : "s",
                       p->documents == 1
                           ? ", and a document is not divided: --val-first takes tokens from "
                             "its start, more files are more documents"
                           : ": a smaller --val-tokens, or more text");
    *below = p->heap[0].hash + 1;
    return 0;
}

void val_pick_release(struct val_pick *p)
{
    free(p->heap);
    p->heap = NULL;
}
