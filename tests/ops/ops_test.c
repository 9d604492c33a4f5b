/* ops_test.c - the plain C ops in f32: by hand, against f64, and the same bits whenever repeated. The tests of
 * an op are in NAME_test.c (op_test.h).
 *
 *     ops_test [SEED]         SEED: of the random inputs by_hand, as printed
 */
#include "check.h"
#include <pthread.h>
#include <unistd.h>
#include "hand_tensors.h"
#include "op_test.h"
#include "ops/simd.h"

enum { SEED = 7 };

/* -- f32 against f64 ---------------------------------------------------------------------- */

/* f32 results are off by some 6e-8 a rounding; sums of up to 600 terms and the cancellations
 * of the norms' derivative make that 100 times more of the tensor's norm. The inputs' size stands
 * in where a result cancels to almost nothing. Gradients kept in bf16 are off by one rounding,
 * 2^-9 of each element. */
static const double f32_tolerance = 1e-5, f32_floor = 1e-2, bf16_rounding = 0x1p-9;

static FILE *f64_results(void)
{
    char self[4000], command[4200], *slash;
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);

    if (n < 0)
        return NULL;
    self[n] = '\0';
    slash = strrchr(self, '/');
    snprintf(command, sizeof command, "'%.*s/ops_fd_test' --dump %d", (int)(slash - self), self,
             SEED);
    return popen(command, "r");
}

static void compare(struct ops_case *c, struct var *v, const double *want)
{
    int64_t n = tensor_count(v->t);
    double *got = case_download(c, v->t), off = 0, size = 0;

    for (int64_t i = 0; i < n; i++) {
        double d = got[i] - want[i], allowed = 0;
        if (v->t.dtype == DT_BF16) /* two when it rounds f32's error over an edge */
            allowed = 2 * bf16_rounding * fabs(want[i]);
        d = fabs(d) <= allowed ? 0 : d;
        off += d * d;
        size += want[i] * want[i];
    }
    off = sqrt(off), size = sqrt(size);
    check_that(off <= f32_tolerance * (size + f32_floor), __FILE__, __LINE__,
               "%s, %s weights: %s: norm %g is off by %g", c->label, dtype_name(c->weights),
               v->name, size, off);
    free(got);
}

static void test_f64(FILE *f64, enum dtype weights)
{
    for (struct op_case_at at = { 0, 0, -1 }; op_case_next(&at);) {
        struct ops_case c;
        op_case_make(&c, cpu(), &at, weights, SEED);
        case_load(&c);
        c.forward(&c);
        c.backward(&c);
        for (int k = 0; k < c.n_vars; k++) {
            size_t n = (size_t)tensor_count(c.var[k].t);
            double *want = malloc(n * sizeof *want);
            if (case_is_result(&c.var[k]) && CHECK(fread(want, sizeof *want, n, f64) == n))
                compare(&c, &c.var[k], want);
            free(want);
        }
        case_release(&c);
    }
}

static void test_against_f64(void)
{
    static const enum dtype weights[] = { DT_F32, DT_BF16 };

    for (int i = 0; i < 2; i++) {
        FILE *f64 = f64_results();
        if (!CHECK(f64 != NULL))
            return;
        test_f64(f64, weights[i]);
        CHECK(fgetc(f64) == EOF);
        CHECK(pclose(f64) == 0);
    }
}

/* -- the same bits ------------------------------------------------------------------------ */

static uint64_t hash(uint64_t h, const void *data, size_t n)
{
    const unsigned char *p = data;
    for (size_t i = 0; i < n; i++)
        h = (h ^ p[i]) * 1099511628211u; /* FNV-1a */
    return h;
}

/* One hash of all results of all cases, each run `times` times on one device of `threads`. */
static uint64_t hash_of_all(int times, int threads)
{
    uint64_t h = 14695981039346656037u;

    for (struct op_case_at at = { 0, 0, -1 }; op_case_next(&at);) {
        struct ops_case c;
        struct ops *o;
        if (ops_cpu_new(&o))
            return 0;
        ops_cpu_threads(o, threads);
        op_case_make(&c, o, &at, DT_BF16, SEED);
        for (int t = 0; t < times; t++) {
            case_load(&c);
            c.forward(&c);
            c.backward(&c);
        }
        for (int k = 0; k < c.n_vars; k++)
            h = hash(h, c.var[k].t.data, tensor_bytes(c.var[k].t));
        case_release(&c);
    }
    return h;
}

static void *hash_thread(void *out)
{
    *(uint64_t *)out = hash_of_all(1, 1);
    return NULL;
}

static void test_same_bits(void)
{
    enum { THREADS = 4 };
    uint64_t alone = hash_of_all(1, 1), got[THREADS] = { 0 };
    pthread_t thread[THREADS];

    CHECK(alone == hash_of_all(2, 1));
    CHECK(alone == hash_of_all(1, 2));
    CHECK(alone == hash_of_all(1, 3));
    CHECK(alone == hash_of_all(2, 8));
    if (simd_get() > SIMD_FMA) {
        simd_limit(SIMD_FMA);
        CHECK(alone == hash_of_all(1, 1));
        simd_limit(SIMD_SETS);
    }
    for (int i = 0; i < THREADS; i++)
        CHECK(!pthread_create(&thread[i], NULL, hash_thread, &got[i]));
    for (int i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
    for (int i = 0; i < THREADS; i++)
        CHECK(got[i] == alone);
}

int main(int argc, char **argv)
{
    op_test_begin(argc, argv);
    for (int i = 0; i < n_op_tests; i++)
        if (op_tests[i]->by_hand && check_of(op_tests[i]->name))
            op_tests[i]->by_hand();
    test_against_f64();
    test_same_bits();
    return check_done();
}
