/* choose_test.c - choose: how often each class is drawn, against the probabilities. */
#include "hand_tensors.h"
#include "op_test.h"

/* How often each class is drawn in ROWS x CALLS draws. */
enum { CLASSES = 20, ROWS = 1000, CALLS = 100 };
static void draw_many(const float *z, struct choice c, int *drawn)
{
    struct ops *o = cpu();
    struct tensor logits = floats(o, ROWS, CLASSES + 1, NULL);
    int32_t token[ROWS] = { 0 }, before[ROWS], pos[ROWS];
    uint64_t stream[ROWS];
    struct next_rows n = { .token = token, .before = before, .pos = pos };

    for (int t = 0; t < ROWS; t++) {
        stream[t] = (uint64_t)t, pos[t] = 5;
        memcpy((float *)logits.data + t * (CLASSES + 1), z, (CLASSES + 1) * sizeof *z);
    }
    memset(drawn, 0, CLASSES * sizeof *drawn);
    c.stream = stream;
    c.classes = CLASSES; /* the last number, the greatest, is of no token */
    for (int k = 0; k < CALLS; k++) {
        o->choose(o, &n, logits, &c);
        for (int t = 0; t < ROWS; t++)
            if (CHECK(token[t] >= 0 && token[t] < CLASSES))
                drawn[token[t]]++;
    }
    CHECK_EQ(pos[0], 5 + CALLS);
    o->free(o);
}

/* Pearson's statistic of what was drawn against p, and its degrees of freedom. */
static double chi_squared(const int *drawn, const double *p, int *freedom)
{
    double sum = 0, all = 0;
    *freedom = -1;
    for (int v = 0; v < CLASSES; v++)
        all += p[v];
    for (int v = 0; v < CLASSES; v++) {
        double want = p[v] / all * ROWS * CALLS;
        if (p[v] == 0) {
            CHECK_EQ(drawn[v], 0);
            continue;
        }
        sum += (drawn[v] - want) * (drawn[v] - want) / want;
        ++*freedom;
    }
    return sum;
}

/* Beyond mean + 5 standard deviations (n + 5 sqrt(2n)) chi-squared lies in less than one of a
 * thousand seeds; this one is fixed. */
static void check_draws(const float *z, const double *p, struct choice c)
{
    int drawn[CLASSES], n;
    draw_many(z, c, drawn);
    double chi = chi_squared(drawn, p, &n);
    printf("temperature %g top_k %d top_p %g: chi-squared %.1f of %d\n", (double)c.temperature,
           c.top_k, (double)c.top_p, chi, n);
    CHECK(chi <= n + 5 * sqrt(2.0 * n) + 1e-9);
}

/* Classes from the likeliest on: 0, 7, 14, 1, 8, ...; p_v falls by a fifth from one to the next. */
static void by_hand(void)
{
    float z[CLASSES + 1], again[CLASSES + 1];
    double p[CLASSES], cut[CLASSES] = { 0 };
    int rank[CLASSES], order[CLASSES];

    for (int k = 0; k < CLASSES; k++)
        order[k] = 7 * k % CLASSES, rank[order[k]] = k;
    for (int v = 0; v < CLASSES; v++)
        p[v] = pow(0.8, rank[v]), z[v] = again[v] = (float)(3 + log(p[v]));
    z[CLASSES] = 23;
    check_draws(z, p, (struct choice){ .temperature = 1, .top_p = 1, .seed = 1 });
    for (int v = 0; v < CLASSES; v++)
        again[v] = 2 * z[v];
    again[CLASSES] = 23;
    check_draws(again, p, (struct choice){ .temperature = 2, .top_p = 1, .seed = 2 });
    for (int k = 0; k < 3; k++)
        cut[order[k]] = p[order[k]];
    check_draws(z, cut, (struct choice){ .temperature = 1, .top_k = 3, .top_p = 1, .seed = 3 });
    /* 1, 1.8, 2.44, 2.952 of 4.94: the fourth reaches 0.55 */
    cut[order[3]] = p[order[3]];
    check_draws(z, cut, (struct choice){ .temperature = 1, .top_p = 0.55f, .seed = 4 });
    /* of the first three, 2.44 together, the second reaches 0.7 */
    cut[order[2]] = cut[order[3]] = 0;
    check_draws(z, cut, (struct choice){ .temperature = 1, .top_k = 3, .top_p = 0.7f, .seed = 5 });
    /* equal ones of the last that is kept stay */
    z[order[2]] = z[order[1]];
    cut[order[2]] = p[order[1]];
    check_draws(z, cut, (struct choice){ .temperature = 1, .top_k = 2, .top_p = 1, .seed = 6 });
    memset(cut, 0, sizeof cut);
    z[order[1]] = z[order[0]]; /* the first of equal ones: 0 */
    cut[0] = 1;
    check_draws(z, cut, (struct choice){ .temperature = 0, .top_p = 1 });
}

const struct op_test choose_test = {
    .name = "choose",
    .by_hand = by_hand,
};
