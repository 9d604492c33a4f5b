/* adam_cases.c - forms of Adam drawn as in adam_test.c, each before and after one update of the CPU,
 * as safetensors for adam_numpy.py.
 *
 *     build/tests/adam_cases FILE [SEED [FORMS]]
 *
 * Tensors FORM.before.NAME and FORM.after.NAME as they are stored. The metadata have for each FORM
 * its types and options, "KEY=VALUE ...".
 */
#include <time.h>
#include "adam_case.h"
#include "check.h"
#include "checkpoint/safetensors.h"

static const char *const names[H_N] = { [H_W] = "w",
                                        [H_G] = "g",
                                        [H_MASTER] = "master",
                                        [H_M] = "m",
                                        [H_V] = "v",
                                        [H_CODES] = "codes",
                                        [H_MASTER_SCALE] = "master_scale",
                                        [H_M_SCALE] = "m_scale",
                                        [H_V_SCALE] = "v_scale",
                                        [H_AMAX] = "amax",
                                        [H_COMPUTE] = "compute",
                                        [H_W_SCALE] = "w_scale",
                                        [H_TOP] = "top" };

struct update {
    struct adam_case c;
    struct adam_held before, after;
};

static const struct adam_step step = { 0.013f, 0.0007f, 1e-6f, 5 };

static struct update update_drawn(struct ops *o, uint64_t *seed)
{
    struct update u;
    struct step_gate gate = { 0 };

    do
        u.c = adam_case_drawn(seed, false);
    while (!u.c.rows);
    uint64_t from = *seed;
    u.before = adam_held_new(&u.c, &from);
    u.after = adam_held_new(&u.c, seed);
    struct adam_param p = adam_param_of(&u.c, &u.after, &step);
    gate.factor = u.c.factor;
    p.gate = &gate;
    o->adam_largest(o, &p, 1);
    o->adam(o, &p, 1);
    return u;
}

static int declare(struct st_writer *w, const struct update *u, int form)
{
    const struct adam_case *c = &u->c;
    char name[64], text[400];
    int rc;

    for (int side = 0; side < 2; side++)
        for (int i = 0; i < H_N; i++) {
            struct tensor t = (side ? &u->after : &u->before)->t[i];
            snprintf(name, sizeof name, "%d.%s.%s", form, side ? "after" : "before", names[i]);
            if (t.data && (rc = st_declare(w, name, t.dtype, 2,
                                           (uint64_t[]){ (uint64_t)t.rows, (uint64_t)t.cols })))
                return rc;
        }
    snprintf(name, sizeof name, "%d", form);
    snprintf(text, sizeof text,
             "w=%s g=%s m=%s v=%s master=%s truncate=%d code_rows=%d whole=%d decay=%d "
             "eps_inside=%d drawn=%d factor=%.9g scale_inv=%.9g beta1=0.9 beta2=0.99 "
             "step_size=%.9g weight_decay=%.9g eps=%.9g",
             dtype_name(c->w), dtype_name(c->g), dtype_name(c->m), dtype_name(c->v),
             dtype_name(c->master), c->truncate, c->code_rows, c->whole, (int)c->decay,
             c->eps_inside, c->rounding == ROUND_STOCHASTIC, (double)c->factor,
             (double)u->before.copy.scale_inv, (double)step.step_size, (double)step.decay,
             (double)step.eps);
    return st_note(w, name, text);
}

static int write_data(struct st_writer *w, const struct update *u)
{
    for (int side = 0; side < 2; side++)
        for (int i = 0; i < H_N; i++) {
            struct tensor t = (side ? &u->after : &u->before)->t[i];
            int rc = t.data ? st_write(w, t.data, tensor_bytes(t)) : 0;
            if (rc)
                return rc;
        }
    return 0;
}

int main(int argc, char **argv)
{
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : (uint64_t)time(NULL);
    int forms = argc > 3 ? atoi(argv[3]) : 500, rc = 0;
    struct update *all = calloc((size_t)forms, sizeof *all);
    struct st_writer *w;
    struct ops *o;
    FILE *f = argc > 1 ? fopen(argv[1], "wb") : NULL;

    if (!f || !all || ops_cpu_new(&o) || st_writer_new(&w, f, argv[1], 0)) {
        fprintf(stderr, "usage: adam_cases FILE [SEED [FORMS]], FILE one that can be written\n");
        return 2;
    }
    printf("seed %llu\n", (unsigned long long)seed);
    for (int i = 0; i < forms; i++)
        all[i] = update_drawn(o, &seed);
    for (int i = 0; i < forms && !rc; i++)
        rc = declare(w, &all[i], i);
    for (int i = 0; i < forms && !rc; i++)
        rc = write_data(w, &all[i]);
    if (rc || (rc = st_writer_finish(w)) || o->status(o))
        fprintf(stderr, "adam_cases: %s\n", err_message());
    st_writer_free(w);
    for (int i = 0; i < forms; i++) {
        adam_held_free(&all[i].c, &all[i].before);
        adam_held_free(&all[i].c, &all[i].after);
    }
    free(all);
    o->free(o);
    return fclose(f) || rc ? 4 : 0;
}
