/* choose.c - the next token of each row from its logits: the greatest, or one that is drawn. */
#include "ops/cpu.h"

#include "types/bigram.h"
#include "base/rng.h"

/* A row: logits, their order as unsigned numbers, and exp((z - greatest) / temperature). */
struct row {
    int n;
    const real *z;
    uint32_t *order;
    double *weight;
};

/* Increases with x, for any x but NaN. */
static uint32_t order_of(float x)
{
    uint32_t bits = f32_bits(x);
    return bits >> 31 ? ~bits : bits | 1u << 31;
}

static int greatest(const struct row *r)
{
    int best = 0;
    for (int v = 1; v < r->n; v++)
        if (r->z[v] > r->z[best])
            best = v;
    return best;
}

/* Returns how many are not below `least`, or the sum of their weights. */
static double count_from(const struct row *r, uint32_t least)
{
    int n = 0;
    for (int v = 0; v < r->n; v++)
        n += r->order[v] >= least;
    return n;
}
static double weight_from(const struct row *r, uint32_t least)
{
    double sum = 0;
    for (int v = 0; v < r->n; v++)
        sum += r->order[v] >= least ? r->weight[v] : 0;
    return sum;
}

/* The highest bound from which on `measure` still reaches `enough`: bit by bit. */
static uint32_t highest(const struct row *r, double (*measure)(const struct row *, uint32_t),
                        double enough)
{
    uint32_t bound = 0;
    for (int bit = 31; bit >= 0; bit--)
        if (measure(r, bound | 1u << bit) >= enough)
            bound |= 1u << bit;
    return bound;
}

static uint32_t least_kept(const struct row *r, const struct choice *c)
{
    uint32_t least = 0, by_weight;
    if (c->top_k > 0 && c->top_k < r->n)
        least = highest(r, count_from, c->top_k);
    if (c->top_p >= 1)
        return least;
    by_weight = highest(r, weight_from, (double)c->top_p * weight_from(r, least));
    return by_weight > least ? by_weight : least;
}

static int drawn(struct row *r, const struct choice *c, uint64_t stream, int64_t at)
{
    struct rng rng = rng_make(c->seed, stream);
    uint32_t word[4], least;
    double sum = 0, target;
    real max = r->z[greatest(r)];
    int last = 0;

    for (int v = 0; v < r->n; v++) {
        r->order[v] = order_of((float)r->z[v]);
        r->weight[v] = (double)real_exp(false, (r->z[v] - max) / c->temperature);
    }
    least = least_kept(r, c);
    rng_block(&rng, (uint64_t)at, word);
    target = (double)((uint64_t)word[0] << 21 | word[1] >> 11) * 0x1p-53 * weight_from(r, least);
    for (int v = 0; v < r->n; v++) {
        if (r->order[v] < least)
            continue;
        sum += r->weight[v];
        last = v;
        if (sum > target)
            break;
    }
    return last;
}

struct work {
    const struct next_rows *next;
    struct tensor logits;
    const struct choice *c;
    uint32_t *order;
    double *weight;
};

static void choose_row(void *arg, int64_t t, int64_t count, int thread)
{
    const struct work *w = arg;
    const struct next_rows *n = w->next;
    int classes = w->c->classes;
    struct row r = { classes, real_ptr(w->logits) + t * w->logits.cols,
                     w->order + (int64_t)thread * classes, w->weight + (int64_t)thread * classes };
    int token = w->c->temperature > 0 ? drawn(&r, w->c, w->c->stream[t], n->pos[t]) : greatest(&r);

    (void)count;
    n->before[t] = n->token[t];
    n->token[t] = token;
    n->pos[t]++;
    if (n->bigram)
        n->bigram[t] =
            bigram_row(token, n->pos[t] == 1 ? n->bigram_rows - 1 : n->before[t], n->bigram_rows);
}

void cpu_choose(struct ops *o, const struct next_rows *n, struct tensor logits,
                const struct choice *c)
{
    size_t room = (size_t)cpu_threads(o) * (size_t)c->classes;
    struct work w = { n, logits, c, cpu_scratch_bytes(o, 0, room * sizeof *w.order),
                      cpu_scratch_bytes(o, 1, room * sizeof *w.weight) };

    if (cpu_failed(o))
        return;
    assert(c->classes > 0 && c->classes <= logits.cols);
    cpu_split(o, logits.rows, 1, choose_row, &w);
}
