/* gpu_bases_test.c - products, turns of bases and what else the stages soap, klsoap and covpower do, on a GPU
 * against the plain C ops.
 *
 * The C op turns by Householder's factor in double, the GPU by Cholesky factors and products in 22 bits. Bounds of a
 * turn, as |gpu - cpu| / |cpu|: 1e-5 where the condition of S, its diagonal scaled to 1, is near 1, growing with it; S
 * itself, which is a similarity, and |Q'Q - I| stay near rounding. Where S is singular Q-factors differ, and what
 * they stand for, Q S Q', is compared. BASES_LARGE=N: 50 steps with sides of
 * 768, N with 3072, of which the C op takes some ten seconds each on a core; with BASES_CONDITION=X covariances of that
 * condition alone, and OPENBLAS_NUM_THREADS cores for them. Exit 77 without a GPU.
 */
#include "base/blas.h"
#include "gpu_pair.h"
#include "ops/eigen.h"

int openblas_get_num_threads(void);
void openblas_set_num_threads(int n);

/* Leaves BLAS as many threads as its environment says, in place of lib/base/blas.c's, if one matrix is all there is. */
int blas_threads(int n)
{
    int before = openblas_get_num_threads();
    if (!getenv("BASES_CONDITION"))
        openblas_set_num_threads(n);
    return before;
}

/* -- what a turn keeps -------------------------------------------------------------------------- */

static void to_cpu(struct both b) { gpu->download(gpu, b.c.data, b.g.data, tensor_bytes(b.c)); }

static struct tensor alike(struct tensor t)
{
    t.data = cpu->alloc(cpu, tensor_bytes(t), "test");
    return t;
}

/* The largest |Q'Q - I| of the GPU's n bases. */
static double lost_angles(struct both q, int n)
{
    int64_t k = q.c.cols;
    struct tensor x = fetched(q.g), e = alike(q.c);
    double most = 0;
    cpu->multiply(cpu, e, x, x, n, &(struct multiply){ .ta = true });
    for (int64_t i = 0; i < tensor_count(e); i++) {
        double off = fabs(get(e, i) - (i % (k * k) / k == i % k));
        most = off <= most ? most : off == off ? off : INFINITY;
    }
    free(x.data);
    return most;
}

/* Return what a turn of k lines may leave of Q'Q - I, and of S: sums in f32, of which a GPU's products lose 2^-24 at
 * most in each of their 3 k / 16 additions. */
static double angles_of(int k) { return 3e-6 + k * 0x1p-26; }
static double rounding_of(int k) { return 1e-5 + k * 0x1p-25; }

/* Q S Q' of the GPU's. */
static struct tensor covariance(struct both q, struct both s, int n)
{
    struct tensor x = fetched(q.g), y = fetched(s.g), t = alike(q.c), l = alike(q.c);
    cpu->multiply(cpu, t, x, y, n, &(struct multiply){ 0 });
    cpu->multiply(cpu, l, t, x, n, &(struct multiply){ .tb = true });
    free(x.data), free(y.data);
    return l;
}

/* |Q S Q' - L| / |L|. */
static double lost_covariance(struct both q, struct both s, struct tensor l, int n)
{
    struct tensor now = covariance(q, s, n);
    double off = 0, size = 0;
    for (int64_t i = 0; i < tensor_count(l); i++)
        off += pow(get(now, i) - get(l, i), 2), size += pow(get(l, i), 2);
    return sqrt(off / size);
}

/* -- turn ---------------------------------------------------------------------------------------- */

/* Bases, and matrices in them whose lines have sizes from 1 to `least`, of so many random terms, whose sizes fall to
 * `faint`; zero: a line that has nothing. */
static void draw_bases(struct both q, struct both s, int n, double least, int terms, double faint,
                       int zero)
{
    int k = (int)q.c.cols;
    double *term = malloc((size_t)terms * k * sizeof *term),
           *sum = malloc((size_t)k * k * sizeof *sum);
    memset(q.c.data, 0, tensor_bytes(q.c));
    cpu->cosine_basis(cpu, q.c, n, 3, 5, NULL);
    for (int m = 0; m < n; m++) {
        for (int i = 0; i < terms * k; i++)
            term[i] = i % k == zero ? 0
                                    : normal() * pow(least, (double)(i % k) / k) *
                                          pow(faint, (double)(i / k) / terms);
        times(sum, term, false, term, true, k, k, terms);
        for (int64_t i = 0; i < (int64_t)k * k; i++)
            set(s.c, (int64_t)m * k * k + i, sum[i] / terms);
    }
    free(term), free(sum);
    to_gpu(q), to_gpu(s);
}

static void turn_both(struct both q, struct both s, struct both v, int n, struct basis_turn t)
{
    struct basis_turn u = t;
    t.v = v.c, u.v = v.g;
    cpu->turn(cpu, q.c, s.c, n, &t), gpu->turn(gpu, q.g, s.g, n, &u);
}

static void test_turn(int n, int k, double least, double bound)
{
    struct both q = blank(DT_F32, (int64_t)n * k, k), s = blank(DT_F32, (int64_t)n * k, k);
    struct both rows = drawn(DT_F32, (int64_t)n * k, 24, 1);
    struct both columns = drawn(DT_F32, (int64_t)n * 24, k, 1);

    draw_bases(q, s, n, least, 3 * k, 1, -1);
    struct tensor l = covariance(q, s, n);
    for (int step = 0; step < 3; step++) {
        struct basis_turn t = { .sort = step > 0, .right = step == 2 };
        struct both v = step == 2 ? columns : rows;
        turn_both(q, s, v, n, t);
        if (!CHECK(distance(q) <= bound && distance(s) <= rounding_of(k)) ||
            !CHECK(lost_angles(q, n) <= angles_of(k)) || !CHECK_EQ(different_bytes(v), 0))
            printf("    turn %d of %d x %d, lines to %g: q %.1e, s %.1e, angles %.1e\n", step, n, k,
                   least, distance(q), distance(s), lost_angles(q, n));
        to_gpu(q), to_gpu(s);
    }
    CHECK(lost_covariance(q, s, l, n) <= rounding_of(k));
}

/* Both sides of square matrices in a call. */
static void test_both_sides(int n, int k)
{
    struct both q[2], s[2], v = drawn(DT_F32, (int64_t)n * k, k, 1);
    for (int i = 0; i < 2; i++) {
        q[i] = blank(DT_F32, (int64_t)n * k, k), s[i] = blank(DT_F32, (int64_t)n * k, k);
        draw_bases(q[i], s[i], n, i ? 0.5 : 0.2, 3 * k, 1, -1);
    }
    struct basis_turn t = { .sort = true, .v = v.c, .other_q = q[1].c, .other_s = s[1].c }, u = t;
    u.v = v.g, u.other_q = q[1].g, u.other_s = s[1].g;
    cpu->turn(cpu, q[0].c, s[0].c, n, &t), gpu->turn(gpu, q[0].g, s[0].g, n, &u);
    for (int i = 0; i < 2; i++)
        CHECK(distance(q[i]) <= 5e-5 && distance(s[i]) <= rounding_of(k) &&
              lost_angles(q[i], n) <= angles_of(k));
    CHECK_EQ(different_bytes(v), 0);
}

/* Matrix i of n. */
static struct both one_of(struct both b, int n, int i)
{
    int64_t rows = b.c.rows / n;
    size_t at = (size_t)i * tensor_bytes(b.c) / (size_t)n;
    return (struct both){ tensor_of((char *)b.c.data + at, b.c.dtype, rows, b.c.cols),
                          tensor_of((char *)b.g.data + at, b.g.dtype, rows, b.g.cols) };
}

/* Steps of soap's rotated state on both devices, from the same gradients (k,2 k), of n matrices at once, since the C op
 * takes a core a matrix. Rows' sizes fall so that the covariances have those conditions. Each device goes on from its own
 * basis. In f32 alone, which a CPU keeps too, S loses 2^-24 of each line a step, and what a turn makes of it grows with the
 * condition: it is printed, and bounded by 2^-24 sqrt of the condition times the steps, and 100. */
static void test_steps(int k, int n, const double *condition, int steps)
{
    int64_t rows = (int64_t)n * k;
    struct both q = blank(DT_F32, rows, k), s = blank(DT_F32, rows, k);
    struct both p = blank(DT_F32, rows, 2 * k), g = blank(DT_F32, rows, 2 * k);
    real number[1] = { 0.1f };
    void *c, *d;
    numbers(number, sizeof number, &c, &d);
    cpu->zero(cpu, s.c), gpu->zero(gpu, s.g);
    for (int64_t i = 0; i < rows * k; i++)
        set(q.c, i, i / k % k == i % k);
    to_gpu(q);
    for (int step = 0; step < steps; step++) {
        for (int64_t row = 0; row < rows; row++) {
            double size = pow(condition[row / k], -0.5 * (double)(row % k) / k);
            for (int64_t i = 0; i < 2 * k; i++)
                set(g.c, row * 2 * k + i, normal() * size);
        }
        to_gpu(g);
        struct multiply into = { .ta = true }, grow = { .tb = true, .blend = c };
        cpu->multiply(cpu, p.c, q.c, g.c, n, &into), gpu->multiply(gpu, p.g, q.g, g.g, n, &into);
        cpu->multiply(cpu, s.c, p.c, p.c, n, &grow);
        grow.blend = d;
        gpu->multiply(gpu, s.g, p.g, p.g, n, &grow);
        turn_both(q, s, (struct both){ 0 }, n, (struct basis_turn){ 0 });
        for (int i = 0; i < n && (k > 1000 || step + 1 == steps); i++) {
            struct both at = one_of(q, n, i);
            double off = distance(at), angles = lost_angles(at, 1);
            double bound = 100 * 0x1p-24 * sqrt(condition[i]) * (step + 1);
            printf("  %d lines, condition %.0e, %d steps: bases apart %.1e (%.1e), S %.1e, angles "
                   "%.1e\n",
                   k, condition[i], step + 1, off, bound, distance(one_of(s, n, i)), angles);
            CHECK(off <= bound && angles <= angles_of(k));
        }
        fflush(stdout);
    }
}

/* A dense matrix, seen in the basis first. */
static void test_dense(int n, int k)
{
    struct both q = blank(DT_F32, (int64_t)n * k, k), s = blank(DT_F32, (int64_t)n * k, k);
    draw_bases(q, s, n, 0.2, 3 * k, 1, -1);
    turn_both(q, s, (struct both){ 0 }, n, (struct basis_turn){ .dense = true });
    CHECK(distance(q) <= 1e-4 && distance(s) <= rounding_of(k) &&
          lost_angles(q, n) <= angles_of(k));
}

/* Turns covariances of fewer terms than lines, with a line of zeros, of terms that fall by eight decades (S by 16, as
 * gradients' do), and of zeros alone. A pivot below its bound drops what is left below it, of 2^-10 of the lines; Q is
 * orthogonal all the same. */
static void test_singular(int n, int k)
{
    struct both q = blank(DT_F32, (int64_t)n * k, k), s = blank(DT_F32, (int64_t)n * k, k);
    double dropped = 2e-3 * fmax(1, k / 130.0); /* by each of 2/3 k pivots */
    for (int step = 0; step < 9; step++) {
        if (step % 3 == 0)
            draw_bases(q, s, n, 1, step ? 2 * k : k / 3 + 1, step == 6 ? 1e-8 : 1,
                       step == 3 ? k / 2 : -1);
        struct tensor l = covariance(q, s, n);
        gpu->turn(gpu, q.g, s.g, n, &(struct basis_turn){ .sort = step < 3 });
        to_cpu(q), to_cpu(s);
        if (!CHECK(lost_angles(q, n) <= angles_of(k)) ||
            !CHECK(lost_covariance(q, s, l, n) <= dropped))
            printf("    step %d of %d x %d: angles %.1e, covariance %.1e\n", step, n, k,
                   lost_angles(q, n), lost_covariance(q, s, l, n));
    }
    struct both before = blank(DT_F32, (int64_t)n * k, k);
    gpu->copy(gpu, before.g, q.g);
    for (int64_t i = 0; i < tensor_count(s.c); i++)
        set(s.c, i, 0);
    to_gpu(s);
    gpu->turn(gpu, q.g, s.g, n, &(struct basis_turn){ .sort = true });
    to_cpu(q), to_cpu(before);
    double off = 0;
    for (int64_t i = 0; i < tensor_count(q.c); i++)
        off = fmax(off, fabs(get(q.c, i) - get(before.c, i)));
    CHECK(off <= 1e-6);
}

/* Bases that have lost their angles, of columns that nearly agree and of some beyond what f16 hold, have them again behind
 * a turn. */
static void test_lost(int n, int k)
{
    struct both q = blank(DT_F32, (int64_t)n * k, k), s = blank(DT_F32, (int64_t)n * k, k);
    draw_bases(q, s, n, 1, 2 * k, 1, -1);
    for (int64_t row = 0; row < (int64_t)n * k; row++) {
        double first = get(q.c, row * k);
        set(q.c, row * k + 1, first + 0.01 * get(q.c, row * k + 1));
        set(q.c, row * k + 2, 1000 * get(q.c, row * k + 2));
    }
    to_gpu(q);
    gpu->turn(gpu, q.g, s.g, n, &(struct basis_turn){ .sort = true });
    double angles = lost_angles(q, n);
    if (!CHECK(angles <= angles_of(k)))
        printf("    lost angles of %d x %d: %.1e\n", n, k, angles);
}

/* A step that is skipped changes no byte; NaN ends nothing. */
static void test_skipped(int n, int k)
{
    struct both q = blank(DT_F32, (int64_t)n * k, k), s = blank(DT_F32, (int64_t)n * k, k);
    struct both v = drawn(DT_F32, (int64_t)n * k, 24, 1);
    struct step_gate gate = { .factor = 1, .skip = 1 };
    void *c, *g;
    numbers(&gate, sizeof gate, &c, &g);
    draw_bases(q, s, n, 1, 2 * k, 1, -1);
    gpu->turn(gpu, q.g, s.g, n, &(struct basis_turn){ .sort = true, .v = v.g, .gate = g });
    CHECK_EQ(different_bytes(q) + different_bytes(s) + different_bytes(v), 0);
    set(s.c, k + 1, NAN);
    to_gpu(s);
    gpu->turn(gpu, q.g, s.g, n, &(struct basis_turn){ .sort = true, .v = v.g });
    CHECK_OK(gpu->sync(gpu));
}

/* -- multiply ------------------------------------------------------------------------------------- */

static void test_multiply(int n, int rows, int cols, int k)
{
    struct both c = drawn(DT_F32, (int64_t)n * rows, cols, 1);
    real number[1] = { 0.1f };
    void *cn, *gn;
    numbers(number, sizeof number, &cn, &gn);
    struct both first = drawn(DT_F32, n, 1, 1);
    set(first.c, 0, 0), to_gpu(first);
    for (int how = 0; how < 8; how++) {
        bool ta = how & 1, tb = how >> 1 & 1;
        struct both a = drawn(DT_F32, (int64_t)n * (ta ? k : rows), ta ? rows : k, 1);
        struct both b = drawn(DT_F32, (int64_t)n * (tb ? cols : k), tb ? k : cols, 1);
        struct multiply m = { .ta = ta, .tb = tb, .alpha = how > 3 ? 0.5 : 0 }, w;
        m.diagonal = how == 5 ? 3 : 0, m.sum = how == 6;
        w = m;
        if (how > 3) {
            m.blend = cn, w.blend = gn;
            m.whole = first.c.data, w.whole = first.g.data;
        }
        cpu->multiply(cpu, c.c, a.c, b.c, n, &m), gpu->multiply(gpu, c.g, a.g, b.g, n, &w);
        if (!CHECK(distance(c) <= 2e-6 + k * 0x1p-26)) /* f32, and what sums lose */
            printf("    multiply %d x %d x %d, %d: %.1e\n", rows, cols, k, how, distance(c));
    }
}

/* A matrix by itself, towards one that is not symmetric. */
static void test_own_product(int n, int lines, int k)
{
    real number[1] = { 0.1f };
    void *cn, *gn;
    numbers(number, sizeof number, &cn, &gn);
    for (int how = 0; how < 4; how++) {
        bool ta = how & 1;
        struct both c = drawn(DT_F32, (int64_t)n * lines, lines, 1);
        struct both a = drawn(DT_F32, (int64_t)n * (ta ? k : lines), ta ? lines : k, 1);
        struct multiply m = { .ta = ta, .tb = !ta, .blend = how > 1 ? cn : NULL, .diagonal = 2 },
                        w = m;
        w.blend = how > 1 ? gn : NULL;
        cpu->multiply(cpu, c.c, a.c, a.c, n, &m), gpu->multiply(gpu, c.g, a.g, a.g, n, &w);
        if (!CHECK(distance(c) <= 2e-6 + k * 0x1p-26))
            printf("    own product %d x %d, %d: %.1e\n", lines, k, how, distance(c));
    }
}

/* Lines whose sizes differ by 40 decades, and one of zeros, each held to 22 bits of its own size. */
static void test_sizes(int rows, int cols, int k)
{
    struct both a = drawn(DT_F32, rows, k, 1), b = drawn(DT_F32, cols, k, 1);
    struct both c = blank(DT_F32, rows, cols);
    double size_a[rows], size_b[cols];
    for (int which = 0; which < 2; which++) {
        struct both x = which ? b : a;
        for (int row = 0; row < x.c.rows; row++) {
            double sum = 0;
            for (int i = 0; i < k; i++) {
                double by = row == 3 ? 0 : pow(10, (double)row / (double)x.c.rows * 40 - 30);
                set(x.c, (int64_t)row * k + i, by * get(x.c, (int64_t)row * k + i));
                sum += pow(get(x.c, (int64_t)row * k + i), 2);
            }
            (which ? size_b : size_a)[row] = sqrt(sum);
        }
        to_gpu(x);
    }
    gpu->multiply(gpu, c.g, a.g, b.g, 1, &(struct multiply){ .tb = true });
    struct tensor now = fetched(c.g);
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < cols; j++) {
            double sum = 0;
            for (int i = 0; i < k; i++)
                sum += get(a.c, (int64_t)r * k + i) * get(b.c, (int64_t)j * k + i);
            double off = fabs(get(now, (int64_t)r * cols + j) - sum);
            CHECK(off <= (0x1p-21 + k * 0x1p-26) * size_a[r] * size_b[j] + 1e-44);
        }
    free(now.data);
}

/* -- by elements and lines -------------------------------------------------------------------------- */

static void test_lines(int n, int rows, int cols)
{
    struct both x = drawn(DT_F32, (int64_t)n * rows, cols, 1);
    struct both p = drawn(DT_F32, (int64_t)n * rows, cols, 1);
    struct both v = drawn(DT_F32, (int64_t)n * rows, cols, 0);
    struct both g = drawn(DT_F32, (int64_t)n * rows, cols, 1);
    struct both left = drawn(DT_F32, (int64_t)n * rows, 1, 1);
    struct both right = drawn(DT_F32, (int64_t)n * cols, 1, 1), updates = drawn(DT_F32, n, 1, 1);
    struct both q = drawn(DT_F32, (int64_t)n * rows, rows, 0);
    struct both s = drawn(DT_F32, (int64_t)n * rows, rows, 1);
    real number[6] = { 0.1f, 1e-8f, 0.1f, 0.3f, 0.45f, 0.85f };
    void *c, *d;

    numbers(number, sizeof number, &c, &d);
    const real *cn = c, *dn = d;
    set(updates.c, n - 1, 0), to_gpu(updates);
    const real *uc = updates.c.data, *ug = updates.g.data;
    for (unsigned how = 0; how < 3; how++) {
        cpu->whiten(cpu, x.c, v.c, p.c, n, how, cn, cn + 1, uc, NULL);
        gpu->whiten(gpu, x.g, v.g, p.g, n, how, dn, dn + 1, ug, NULL);
        CHECK_EQ(different_bytes(x) + different_bytes(v), 0);
    }
    cpu->by_lines(cpu, x.c, left.c, right.c, n, uc);
    gpu->by_lines(gpu, x.g, left.g, right.g, n, ug);
    cpu->by_lines(cpu, x.c, left.c, NO_TENSOR, n, NULL);
    gpu->by_lines(gpu, x.g, left.g, NO_TENSOR, n, NULL);
    CHECK_EQ(different_bytes(x), 0);
    for (int step = 0; step < 2; step++) {
        cpu->kl_scales(cpu, left.c, p.c, n, false, cn, uc, NULL);
        gpu->kl_scales(gpu, left.g, p.g, n, false, dn, ug, NULL);
        cpu->kl_scales(cpu, right.c, p.c, n, true, cn, uc, NULL);
        gpu->kl_scales(gpu, right.g, p.g, n, true, dn, ug, NULL);
        CHECK(distance(left) <= 1e-6 && distance(right) <= 1e-6);
    }
    cpu->trust(cpu, p.c, v.c, g.c, n, cn + 4), gpu->trust(gpu, p.g, v.g, g.g, n, dn + 4);
    CHECK(distance(p) <= 1e-6);
    cpu->line_powers(cpu, left.c, s.c, n, cn + 3), gpu->line_powers(gpu, left.g, s.g, n, dn + 3);
    CHECK(distance(left) <= 1e-6);
    cpu->cosine_basis(cpu, q.c, n, 3, 8, NULL), gpu->cosine_basis(gpu, q.g, n, 3, 8, NULL);
    CHECK(distance(q) <= 1e-6 && lost_angles(q, n) <= 2e-6);
    gpu->cosine_basis(gpu, q.g, n, 4, 8, NULL); /* has begun */
    CHECK(distance(q) <= 1e-6);
    gpu->first_basis(gpu, q.g, x.g, n, false, NULL);
    CHECK(distance(q) <= 1e-6);
    memset(q.c.data, 0, tensor_bytes(q.c)), to_gpu(q);
    gpu->first_basis(gpu, q.g, x.g, n, false, NULL);
    to_cpu(q);
    for (int64_t i = 0; i < (int64_t)n * rows * rows; i++)
        CHECK(get(q.c, i) == (i % (rows * rows) / rows == i % rows));
}

/* -- on the host ----------------------------------------------------------------------------------- */

/* Calls twice, since what a call has taken stays: the same bits. */
static void test_host(int n, int rows, int cols, bool last)
{
    struct both x = drawn(DT_F32, (int64_t)n * rows, cols, 1);
    struct both g = drawn(DT_F32, (int64_t)n * rows, cols, 1);
    struct both q = blank(DT_F32, (int64_t)n * rows, rows), left[3], right[3];
    struct both age = drawn(DT_F32, 1, 1, 0), updates = drawn(DT_F32, n, 1, 0);
    real number[3] = { 0.1f, -0.25f, 1e-6f }, balance[2] = { 0.1f, 5 }, step = 0.1f;
    struct step_gate gate = { .factor = 1 };
    void *c[4], *d[4];
    bool turned[8];

    for (int i = 0; i < 3; i++) {
        left[i] = blank(DT_F32, (int64_t)n * rows, rows);
        right[i] = blank(DT_F32, (int64_t)n * cols, cols);
        draw_bases(q, left[i], n, 0.2, 2 * rows, 1, -1);
        draw_bases(blank(DT_F32, (int64_t)n * cols, cols), right[i], n, 0.2, 2 * cols, 1, -1);
    }
    for (int i = 0; i < n; i++)
        turned[i] = i % 2;
    numbers(number, sizeof number, &c[0], &d[0]), numbers(balance, sizeof balance, &c[1], &d[1]);
    numbers(&step, sizeof step, &c[2], &d[2]), numbers(&gate, sizeof gate, &c[3], &d[3]);
    set(age.c, 0, 0.3), to_gpu(age);
    for (int times = 0; times < 2; times++) {
        bool *rows_are = times ? turned : NULL;
        cpu->shampoo(cpu, x.c, left[0].c, right[0].c, n, times, c[0], age.c.data);
        gpu->shampoo(gpu, x.g, left[0].g, right[0].g, n, times, d[0], age.g.data);
        CHECK_EQ(different_bytes(x), 0);
        cpu->sinkhorn(cpu, x.c, left[1].c, right[1].c, n, rows_are, c[1]);
        gpu->sinkhorn(gpu, x.g, left[1].g, right[1].g, n, rows_are, d[1]);
        CHECK_EQ(different_bytes(x), 0);
        for (int i = 0; i < n; i++)
            set(updates.c, i, times);
        to_gpu(updates);
        struct psgd a = { .g = g.c,
                          .seed = 5,
                          .stream = 2,
                          .step = c[2],
                          .updates = updates.c.data,
                          .gate = c[3] },
                    b = a;
        b.g = g.g, b.step = d[2], b.updates = updates.g.data, b.gate = d[3];
        cpu->psgd(cpu, x.c, left[2].c, right[2].c, n, &a);
        gpu->psgd(gpu, x.g, left[2].g, right[2].g, n, &b);
        CHECK_EQ(different_bytes(x) + different_bytes(left[2]) + different_bytes(right[2]), 0);
    }
    if (!last) /* a failure of the host's ops stays */
        return;
    set(left[0].c, 0, NAN), to_gpu(left[0]);
    gpu->shampoo(gpu, x.g, left[0].g, right[0].g, n, false, d[0], age.g.data);
    CHECK_OK(gpu->sync(gpu));
    struct tensor now = fetched(x.g);
    CHECK(get(now, 0) != get(now, 0));
    free(now.data);
}

int main(void)
{
    if (!pair_begin())
        return pair_end();
    bool small = check_small();
    int large = getenv("BASES_LARGE") ? atoi(getenv("BASES_LARGE")) : 0;
    if (check_of("multiply")) {
        test_multiply(3, 40, 24, 33);
        test_multiply(2, 1, 130, 257);
        test_own_product(3, 40, 33);
        test_own_product(1, 500, 70);
        test_sizes(40, 24, 33);
        test_sizes(33, 40, 257);
        if (!small)
            test_multiply(2, 300, 768, 3072);
        clear();
    }
    if (check_of("turn")) {
        static const int sides[] = { 1, 5, 33, 130, 300, 768 };
        for (int i = 0; i < (small ? 4 : 6); i++) {
            test_turn(i < 5 ? 3 : 2, sides[i], 0.5, 1e-5);
            test_turn(2, sides[i], 0.01, 1e-4);
            test_dense(2, sides[i]);
            if (i)
                test_singular(2, sides[i]);
            clear();
        }
        static const double condition[] = { 1, 1e3, 1e6 }, large_ones[] = { 1, 1e2, 1e4, 1e6 };
        test_steps(small ? 40 : 256, 3, condition, 5);
        clear();
        if (large) {
            const char *one = getenv("BASES_CONDITION");
            double of_one = one ? atof(one) : 1;
            const double *of = one ? &of_one : large_ones;
            test_steps(768, one ? 1 : 4, of, 50);
            clear();
            test_steps(3072, one ? 1 : 4, of, large);
            clear();
        }
        test_both_sides(3, 40);
        test_both_sides(2, 130);
        test_lost(2, 40);
        test_lost(2, 300);
        test_skipped(2, 40);
        clear();
    }
    if (check_of("whiten by_lines kl_scales trust line_powers cosine_basis first_basis")) {
        test_lines(1, 1, 1);
        test_lines(3, 40, 24);
        test_lines(2, 33, 200);
        clear();
    }
    if (check_of("shampoo sinkhorn psgd")) {
        test_host(1, 1, 1, false);
        test_host(3, 40, 24, false);
        test_host(2, 33, 130, true);
        clear();
    }
    return pair_end();
}
