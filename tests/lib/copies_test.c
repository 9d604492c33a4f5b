/* copies_test.c - weights kept in f32, of which the model reads bf16 copies: every copy is the nearest, of
 * two as near the even one, by each way that makes one: initial values, a chain's write, Adam's, a
 * checkpoint's numbers. Halfway numbers are put there: of a run's own one in 65,536 is one.
 */
#include <stdlib.h>
#include "check.h"
#include "comm/comm.h"
#include "floats.h"
#include "optim/step.h"

/* Halves above and below, of odd and of even numbers, of both signs; beside one; what carries; zeros. */
static const struct {
    uint32_t exact;
    uint16_t nearest;
} halves[] = {
    { 0x3f808000, 0x3f80 }, { 0x3f818000, 0x3f82 }, { 0xbf808000, 0xbf80 }, { 0xbf818000, 0xbf82 },
    { 0x3f808001, 0x3f81 }, { 0x3f817fff, 0x3f81 }, { 0x3fff8000, 0x4000 }, { 0x3f7f8000, 0x3f80 },
    { 0x3d4c8000, 0x3d4c }, { 0x3d4d8000, 0x3d4e }, { 0x00000000, 0x0000 }, { 0x3dcccccd, 0x3dcd },
};
enum { HALVES = sizeof halves / sizeof *halves };

struct set {
    struct ops *o;
    struct recipe *r;
    struct banks b;
    struct optim z;
    struct comm *comm;
};

/* Nothing moves a weight by this rule but a gradient. */
#define STILL \
    "rules.muon12=lr 0.025 | momentum 0.95 nesterov | polar $coeffs | shape | decay 0 plain | step"

static bool open_set(struct set *s, const char *rule)
{
    const char *set[] = { "model.heads=2",  "model.head_dim=8",    "model.mlp_width=24",
                          "model.vocab=40", "optimizer.adam_wd=0", rule };
    const char *share = getenv("GPT_SHARE");
    char path[512];

    snprintf(path, sizeof path, "%s/recipes/track-3.recipe", share ? share : "share");
    return CHECK_OK(recipe_read(&s->r, path, set, sizeof set / sizeof *set)) &&
           CHECK_OK(ops_cpu_new(&s->o)) && CHECK_OK(comm_threads_new(&s->comm, 1)) &&
           CHECK_OK(banks_init(&s->b, s->r, s->o, 0, 1)) &&
           CHECK_OK(optim_init(&s->z, s->r, &s->b, s->o, s->comm));
}

static void close_set(struct set *s)
{
    optim_release(&s->z);
    s->comm->free(s->comm);
    s->o->free(s->o);
    recipe_free(s->r);
}

static void put_halves(struct set *s, int i)
{
    struct tensor t = s->z.p[i].stored;
    for (int64_t k = 0; k < tensor_count(t); k++)
        ((float *)t.data)[k] = f32_from_bits(halves[k % HALVES].exact);
    memset(s->b.p[i].w.data, 0xff, tensor_bytes(s->b.p[i].w));
}

static void check_copies(struct set *s, const char *by)
{
    for (int i = 0; i < s->r->n_params; i++) {
        const struct param *p = &s->b.p[i];
        const uint32_t *exact = s->z.p[i].stored.data;
        const uint16_t *copy = p->w.data;
        int kept = 0, off = 0;
        if (!exact)
            continue;
        for (int64_t k = 0; k < tensor_count(p->w); k++) {
            kept += exact[k] == halves[k % HALVES].exact;
            off += copy[k] != halves[k % HALVES].nearest;
        }
        check_that(kept == tensor_count(p->w) && off == 0, __FILE__, __LINE__,
                   "%s by %s: %d of %lld numbers as they were, %d copies not the nearest",
                   p->spec->label, by, kept, (long long)tensor_count(p->w), off);
    }
}

static int read_halves(void *arg, int i, float *exact, float *reads)
{
    const struct set *s = arg;
    const struct param_spec *p = &s->r->params[i];
    for (int64_t k = 0; k < p->matrices * p->rows * p->cols; k++)
        exact[k] = reads[k] = f32_from_bits(halves[k % HALVES].exact);
    return 0;
}

static void test_initial(void)
{
    struct set s = { 0 };
    struct initial *v;
    struct initial_source source = { .name = "halves", .read = read_halves, .arg = &s };

    if (!open_set(&s, STILL) || !CHECK_OK(initial_new(&v, s.r, 1, &source)))
        return;
    CHECK_OK(banks_fill(&s.b, v));
    CHECK_OK(optim_masters(&s.z, v));
    check_copies(&s, "initial values");
    initial_free(v);
    close_set(&s);
}

static void test_updates(void)
{
    struct set s = { 0 };
    struct step_schedule at;

    if (!open_set(&s, STILL))
        return;
    schedule_at(s.r, 0, &at);
    for (int i = 0; i < s.r->n_params; i++) {
        s.o->zero(s.o, s.b.p[i].g);
        if (s.z.p[i].stored.data)
            put_halves(&s, i);
        else
            s.o->zero(s.o, s.b.p[i].w);
    }
    optim_prepare(&s.z, &at);
    optim_step(&s.z);
    optim_finish(&s.z, &at);
    CHECK_OK(s.o->sync(s.o));
    check_copies(&s, "an update");
    for (int i = 0; i < s.r->n_params; i++)
        if (s.z.p[i].stored.data)
            put_halves(&s, i);
    CHECK_OK(optim_loaded(&s.z));
    check_copies(&s, "a checkpoint");
    close_set(&s);
}

/* A write that is not a chain's step: rows of gains and directions. The nearest bf16 is formed here by bits. */
static void test_weightnorm(void)
{
    struct set s = { 0 };
    struct step_schedule at;

    if (!open_set(&s, "rules.muon12=lr 0.025 | weightnorm 2.5"))
        return;
    schedule_at(s.r, 0, &at);
    for (int i = 0; i < s.r->n_params; i++) {
        struct tensor g = s.b.p[i].g;
        s.o->zero(s.o, g);
        for (int64_t k = 0; g.dtype == DT_F32 && k < tensor_count(g); k++)
            ((float *)g.data)[k] = (float)(k % 7 - 3) / 8;
        if (s.z.p[i].stored.data)
            put_halves(&s, i);
    }
    optim_prepare(&s.z, &at);
    optim_step(&s.z);
    optim_finish(&s.z, &at);
    CHECK_OK(s.o->sync(s.o));
    for (int i = 0; i < s.r->n_params; i++) {
        const struct param *p = &s.b.p[i];
        const uint32_t *exact = s.z.p[i].stored.data;
        int64_t off = 0, moved = 0;
        for (int64_t k = 0; exact && k < tensor_count(p->w); k++) {
            uint32_t nearest = (exact[k] + 0x7fff + (exact[k] >> 16 & 1)) >> 16;
            off += ((const uint16_t *)p->w.data)[k] != nearest;
            moved += exact[k] != halves[k % HALVES].exact;
        }
        check_that(off == 0 && (!exact || moved > 0), __FILE__, __LINE__,
                   "%s: %lld moved, %lld copies not the nearest", p->spec->label, (long long)moved,
                   (long long)off);
    }
    close_set(&s);
}

int main(void)
{
    test_initial();
    test_updates();
    test_weightnorm();
    return check_done();
}
