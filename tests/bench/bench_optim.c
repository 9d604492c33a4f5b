/* bench_optim.c - time of an optimizer step on the CPU: bench_optim [RECIPE [RANKS [STEPS]]]
 *
 * Even steps update the banks alone, odd ones everything. Prints median, least and spread over
 * the steps, for rank 0, in milliseconds; the floor is the bytes that an update has to move at
 * what a copy of them takes here.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/progress.h"
#include "optim/step.h"

enum { MAX_WORLD = 64, MAX_TIMES = 1000 };
struct rank {
    const struct recipe *r;
    struct comm *c;
    int steps;
};

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void show(const char *what, double *ms, int n)
{
    qsort(ms, (size_t)n, sizeof *ms, by_value);
    printf("%-28s median %8.2f ms  least %8.2f  most %8.2f  (%d steps)\n", what, ms[n / 2], ms[0],
           ms[n - 1], n);
}

static void check(int rc)
{
    if (rc) {
        fprintf(stderr, "bench_optim: %s\n", err_message());
        exit(rc);
    }
}

/* Bytes that Adam reads and writes on a rank: weight and both states twice, the gradient once. */
static double adam_bytes(const struct banks *b)
{
    double bytes = 0;
    for (int i = 0; i < b->n; i++)
        if (rule_is_adam(&b->p[i].spec->rule))
            bytes += (double)tensor_count(b->p[i].w_own) *
                     (double)(2 * dtype_size(b->p[i].w.dtype) + dtype_size(b->p[i].g.dtype) + 16);
    return bytes;
}

static double copy_ms(double bytes)
{
    size_t half = (size_t)(bytes / 2) + 1;
    char *from = malloc(half), *to = malloc(half);
    memset(from, 1, half);
    memset(to, 2, half);
    double start = now_seconds();
    memcpy(to, from, half);
    double ms = (now_seconds() - start) * 1e3;
    ms += to[half / 2] == 3; /* the copy is used */
    free(from), free(to);
    return ms;
}

static void *run_rank(void *arg)
{
    struct rank *k = arg;
    struct ops *o;
    struct banks b;
    struct initial *v;
    struct optim z;
    double even[MAX_TIMES], odd[MAX_TIMES];
    int n[2] = { 0 };

    check(ops_cpu_new(&o));
    check(banks_init(&b, k->r, o, k->c->rank, k->c->world));
    check(initial_new(&v, k->r, 1, NULL));
    check(banks_fill(&b, v));
    initial_free(v);
    check(optim_init(&z, k->r, &b, o, k->c));
    for (int step = 0; step < k->steps; step++) {
        struct step_schedule at;
        schedule_at(k->r, step, &at);
        for (int i = 0; i < b.n; i++) /* any finite gradient will do */
            o->copy(o, b.p[i].g, b.p[i].w);
        check(k->c->barrier(k->c));
        double start = now_seconds();
        optim_prepare(&z, &at);
        optim_step(&z);
        optim_finish(&z, &at);
        check(o->sync(o));
        check(k->c->status(k->c));
        double ms = (now_seconds() - start) * 1e3;
        bool adam = (step + 1) % k->r->optimizer.adam.every == 0;
        (adam ? odd : even)[n[adam]++] = ms;
    }
    if (k->c->rank == 0) {
        double bytes = adam_bytes(&b);
        show("banks (even steps)", even, n[0]);
        show("banks and Adam (odd steps)", odd, n[1]);
        printf("Adam: %.0f MB a rank; copying as many takes %.2f ms\n", bytes / 1e6,
               copy_ms(bytes));
    }
    optim_release(&z);
    o->free(o);
    return NULL;
}

int main(int argc, char **argv)
{
    const char *path = argc > 1 ? argv[1] : "share/recipes/tiny.recipe";
    int world = argc > 2 ? atoi(argv[2]) : 1, steps = argc > 3 ? atoi(argv[3]) : 20;
    struct comm *c[MAX_WORLD];
    struct rank k[MAX_WORLD];
    pthread_t t[MAX_WORLD];
    struct recipe *r;

    if (world < 1 || world > MAX_WORLD || steps < 4 || steps > MAX_TIMES) {
        fprintf(stderr, "usage: bench_optim [RECIPE [RANKS [STEPS]]]\n");
        return GPT_USAGE;
    }
    check(recipe_read(&r, path, NULL, 0));
    check(comm_threads_new(c, world));
    printf("%s, %d ranks\n", path, world);
    for (int i = 0; i < world; i++) {
        k[i] = (struct rank){ r, c[i], steps };
        pthread_create(&t[i], NULL, run_rank, &k[i]);
    }
    for (int i = 0; i < world; i++)
        pthread_join(t[i], NULL);
    for (int i = 0; i < world; i++)
        c[i]->free(c[i]);
    recipe_free(r);
    return 0;
}
