/* turn_test.c - turn, first_basis and trust by hand: what they do to a covariance, beside a dense one in double that
 * Gram-Schmidt turns, and to those that are singular, zero or tied.
 */
#include "base/rng.h"
#include "hand_tensors.h"
#include "op_test.h"

enum { K = 24, WIDE = 3 * K };
static struct rng rng;
static uint64_t drawn;

/* -- a dense covariance, in double ------------------------------------------------------------- */

static void times_square(double *to, const double *a, const double *b)
{
    for (int i = 0; i < K; i++)
        for (int j = 0; j < K; j++) {
            to[i * K + j] = 0;
            for (int e = 0; e < K; e++)
                to[i * K + j] += a[i * K + e] * b[e * K + j];
        }
}

/* Columns to length 1 and at right angles, from the left, twice. */
static void gram_schmidt(double *q)
{
    for (int j = 0; j < K; j++)
        for (int pass = 0; pass < 2; pass++) {
            double size = 0;
            for (int m = 0; m < j; m++) {
                double along = 0;
                for (int i = 0; i < K; i++)
                    along += q[i * K + m] * q[i * K + j];
                for (int i = 0; i < K; i++)
                    q[i * K + j] -= along * q[i * K + m];
            }
            for (int i = 0; i < K; i++)
                size += q[i * K + j] * q[i * K + j];
            for (int i = 0; i < K; i++)
                q[i * K + j] /= sqrt(size);
        }
}

/* Columns of q, rows of v by the falling diagonal of q' l q. */
static void sort_dense(double *q, double *v, const double *l)
{
    double key[K], t[K * K], new_q[K * K], new_v[K * K];
    times_square(t, l, q);
    for (int j = 0; j < K; j++) {
        key[j] = 0;
        for (int i = 0; i < K; i++)
            key[j] += q[i * K + j] * t[i * K + j];
    }
    for (int j = 0; j < K; j++) {
        int at = 0;
        for (int m = 0; m < K; m++)
            at += key[m] > key[j] || (key[m] == key[j] && m < j);
        for (int i = 0; i < K; i++)
            new_q[i * K + at] = q[i * K + j], new_v[at * K + i] = v[j * K + i];
    }
    memcpy(q, new_q, sizeof new_q), memcpy(v, new_v, sizeof new_v);
}

static double largest_difference(struct tensor a, const double *b)
{
    double most = 0;
    for (int i = 0; i < K * K; i++) {
        double off = fabs((double)f32_at(a, i) - b[i]);
        most = off <= most ? most : off;
    }
    return most;
}

static double lost_angles(struct ops *o, struct tensor q)
{
    struct tensor e = floats(o, K, K, NULL);
    double most = 0;
    o->multiply(o, e, q, q, 1, &(struct multiply){ .ta = true, .diagonal = -1 });
    for (int i = 0; i < K * K; i++)
        most = fabs((double)f32_at(e, i)) <= most ? most : fabs((double)f32_at(e, i));
    return most;
}

static struct tensor identity(struct ops *o)
{
    struct tensor q = floats(o, K, K, NULL);
    for (int i = 0; i < K * K; i++)
        ((float *)q.data)[i] = i / K == i % K;
    return q;
}

/* A gradient (K,WIDE) whose rows have sizes from 1 to `least`, of so many terms. */
static void draw(struct tensor g, double least, int terms)
{
    float x[K * WIDE], y[WIDE * WIDE];
    for (int i = 0; i < K * WIDE; i++)
        x[i] = rng_normal(&rng, drawn++);
    for (int i = 0; i < WIDE * WIDE; i++)
        y[i] = terms < K ? rng_normal(&rng, drawn++) : i / WIDE == i % WIDE;
    for (int i = 0; i < K; i++)
        for (int j = 0; j < WIDE; j++) {
            double sum = 0;
            for (int e = 0; e < (terms < K ? terms : WIDE); e++)
                sum += (double)x[i * WIDE + e] * (double)y[e * WIDE + j];
            ((float *)g.data)[i * WIDE + j] = (float)(sum * pow(least, (double)i / K));
        }
}

/* Ten steps of S = Q' L Q in place of L. f32 loses 2^-24 of each line of S a step, and what a turn makes of it grows
 * with the ratio of lines, here 10. */
static void test_turns(bool sort)
{
    struct ops *o = cpu();
    struct tensor q = identity(o), s = floats(o, K, K, NULL), v = floats(o, K, K, NULL);
    struct tensor g = floats(o, K, WIDE, NULL), p = floats(o, K, WIDE, NULL);
    double l[K * K] = { 0 }, basis[K * K], second[K * K], t[K * K];
    real blend = (real)0.1f;

    for (int i = 0; i < K * K; i++) {
        ((float *)v.data)[i] = (float)i, ((float *)s.data)[i] = 0;
        basis[i] = i / K == i % K, second[i] = i;
    }
    for (int step = 0; step < 10; step++) {
        draw(g, 0.1, K);
        o->multiply(o, p, q, g, 1, &(struct multiply){ .ta = true });
        o->multiply(o, s, p, p, 1, &(struct multiply){ .tb = true, .blend = &blend });
        o->turn(o, q, s, 1, &(struct basis_turn){ .sort = sort, .v = v });
        for (int i = 0; i < K; i++)
            for (int j = 0; j < K; j++) {
                double sum = 0;
                for (int e = 0; e < WIDE; e++)
                    sum += (double)f32_at(g, i * WIDE + e) * (double)f32_at(g, j * WIDE + e);
                l[i * K + j] += (double)blend * (sum - l[i * K + j]);
            }
        if (sort)
            sort_dense(basis, second, l);
        times_square(t, l, basis);
        memcpy(basis, t, sizeof t);
        gram_schmidt(basis);
        CHECK(largest_difference(q, basis) <= 1e-4);
        CHECK(largest_difference(v, second) == 0);
        CHECK(lost_angles(o, q) <= 1e-6);
    }
    o->free(o);
}

/* Turns covariances of lower rank, then with a line of zeros: Q stays orthogonal, also in 50 turns, and Q S Q' what it was. */
static void test_singular(void)
{
    struct ops *o = cpu();
    struct tensor q = identity(o), s = floats(o, K, K, NULL), g = floats(o, K, WIDE, NULL);
    struct tensor before = floats(o, K, K, NULL), after = floats(o, K, K, NULL);
    struct tensor half = floats(o, K, K, NULL);

    for (int step = 0; step < 50; step++) {
        if (step % 10 == 0) {
            draw(g, 1, step % 20 ? K : 3);
            for (int j = 0; j < WIDE && step % 20; j++)
                ((float *)g.data)[7 * WIDE + j] = 0;
            o->multiply(o, s, g, g, 1, &(struct multiply){ .tb = true });
        }
        o->multiply(o, half, q, s, 1, &(struct multiply){ 0 });
        o->multiply(o, before, half, q, 1, &(struct multiply){ .tb = true });
        o->turn(o, q, s, 1, &(struct basis_turn){ .sort = step % 2 });
        o->multiply(o, half, q, s, 1, &(struct multiply){ 0 });
        o->multiply(o, after, half, q, 1, &(struct multiply){ .tb = true });
        double off = 0, size = 0;
        for (int i = 0; i < K * K; i++) {
            off += pow((double)f32_at(after, i) - (double)f32_at(before, i), 2);
            size += pow((double)f32_at(before, i), 2);
        }
        CHECK(sqrt(off) <= 1e-5 * sqrt(size));
        CHECK(lost_angles(o, q) <= 1e-6);
    }
    o->free(o);
}

/* Both sides of square matrices in a call, to the bits of a call each. */
static void test_both_sides(void)
{
    struct ops *o = cpu();
    struct tensor q[4], s[4], v[2], g = floats(o, K, WIDE, NULL);
    for (int i = 0; i < 4; i++) {
        q[i] = identity(o), s[i] = floats(o, K, K, NULL);
        if (i < 2) {
            draw(g, i ? 0.3 : 0.1, K);
            o->multiply(o, s[i], g, g, 1, &(struct multiply){ .tb = true });
            v[i] = floats(o, K, K, NULL);
        } else
            memcpy(s[i].data, s[i - 2].data, tensor_bytes(s[i]));
    }
    for (int i = 0; i < K * K; i++)
        ((float *)v[0].data)[i] = ((float *)v[1].data)[i] = (float)i;
    o->turn(o, q[0], s[0], 1,
            &(struct basis_turn){ .sort = true, .v = v[0], .other_q = q[1], .other_s = s[1] });
    for (int side = 0; side < 2; side++)
        o->turn(o, q[2 + side], s[2 + side], 1,
                &(struct basis_turn){ .sort = true, .v = v[1], .right = side });
    for (int i = 0; i < 2; i++)
        CHECK(!memcmp(q[i].data, q[i + 2].data, tensor_bytes(q[i])) &&
              !memcmp(s[i].data, s[i + 2].data, tensor_bytes(s[i])));
    CHECK(!memcmp(v[0].data, v[1].data, tensor_bytes(v[0])));
    CHECK(memcmp(q[0].data, q[1].data, tensor_bytes(q[0])) != 0);
    o->free(o);
}

/* Zeros leave the basis; equal lines keep their places; a NaN has one, too. */
static void test_edges(void)
{
    static const float diagonal[4] = { 1, 2, 2, 3 }, order[4] = { 3, 1, 2, 0 };
    struct ops *o = cpu();
    struct tensor q = floats(o, 4, 4, NULL), s = floats(o, 4, 4, NULL), v = floats(o, 4, 1, NULL);
    float *pq = q.data, *ps = s.data, *pv = v.data;

    for (int i = 0; i < 16; i++)
        pq[i] = i / 4 == i % 4, ps[i] = 0;
    o->turn(o, q, s, 1, &(struct basis_turn){ .sort = true });
    for (int i = 0; i < 16; i++)
        CHECK(pq[i] == (i / 4 == i % 4) && ps[i] == 0);
    for (int i = 0; i < 4; i++)
        ps[i * 5] = diagonal[i], pv[i] = (float)i;
    o->turn(o, q, s, 1, &(struct basis_turn){ .sort = true, .v = v });
    for (int i = 0; i < 4; i++) {
        CHECK(pv[i] == order[i] && ps[i * 5] == diagonal[(int)order[i]]);
        for (int r = 0; r < 4; r++)
            CHECK(pq[r * 4 + i] == (r == (int)order[i]));
    }
    ps[5] = NAN;
    o->turn(o, q, s, 1, &(struct basis_turn){ .sort = true, .v = v });
    double sum = 0;
    for (int i = 0; i < 4; i++)
        sum += (double)pv[i];
    CHECK(sum == 6); /* a permutation still */
    o->free(o);
}

/* Checks first bases: of a gradient with orthogonal rows the eigenvectors are unit vectors, by falling length; of
 * zeros they are I, and a basis that is there stays. */
static void test_first(void)
{
    struct ops *o = cpu();
    struct tensor q = floats(o, 3, 3, NULL), x = floats(o, 3, 5, NULL);
    float *pq = q.data, *px = x.data;
    struct step_gate gate = { .factor = 1, .skip = 1 };

    for (int i = 0; i < 9; i++)
        pq[i] = 0;
    for (int i = 0; i < 15; i++)
        px[i] = 0;
    px[0] = 1, px[6] = 3, px[14] = 2;
    o->first_basis(o, q, x, 1, false, &gate);
    CHECK(pq[0] == 0 && pq[3] == 0);
    o->first_basis(o, q, x, 1, false, NULL);
    for (int i = 0; i < 9; i++)
        CHECK_NEAR(fabs((double)pq[i]), i == 3 || i == 7 || i == 2, 1e-12);
    float first = pq[3];
    px[0] = 9;
    o->first_basis(o, q, x, 1, false, NULL);
    CHECK(pq[3] == first && pq[0] == 0);
    for (int i = 0; i < 15; i++)
        px[i] = 0;
    for (int i = 0; i < 9; i++)
        pq[i] = 0;
    o->first_basis(o, q, x, 1, false, NULL);
    for (int i = 0; i < 9; i++)
        CHECK(pq[i] == (i / 3 == i % 3));
    o->free(o);
}

/* At right angles the least part is taken, along each other the largest; between them (cos - 0.2) / 0.8, where g stands
 * alike to both: 0.6 and 0.8 make 0.5, g along the mean of the two. */
static void test_trust(void)
{
    static const float before[6] = { 1, 0, 1, 0, 1, 0 }, x[6] = { 0, 1, 2, 0, 0.6f, 0.8f };
    static const float g[6] = { 1, 1, 1, 1, 0.8f, 0.4f };
    static const double want[6] = { 0.55, 0.45, 1.85, 0, 0.8, 0.4 };
    struct ops *o = cpu();
    struct tensor t = floats(o, 3, 2, x), b = floats(o, 3, 2, before), d = floats(o, 3, 2, g);
    const real number[2] = { (real)0.45, (real)0.85 };

    o->trust(o, t, b, d, 3, number);
    for (int i = 0; i < 6; i++)
        CHECK_NEAR(f32_at(t, i), want[i], 1e-6);
    o->free(o);
}

static void by_hand(void)
{
    rng = rng_make(op_test_seed(), 77);
    test_turns(false);
    test_turns(true);
    test_singular();
    test_both_sides();
    test_edges();
    test_first();
    test_trust();
}

const struct op_test turn_test = {
    .name = "turn first_basis multiply trust",
    .by_hand = by_hand,
};
