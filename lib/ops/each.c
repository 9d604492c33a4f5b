/* each.c - elementwise stages one after the other: the ops that they are alone (optimizers.md 4.7). */
#include "ops/cpu.h"

void cpu_each(struct ops *o, struct tensor x, struct tensor g, int n, const struct each_stage *s,
              int count, bool begins, const struct step_gate *gate)
{
    assert(count <= MAX_EACH);
    if (begins && s->what != EACH_MEAN)
        o->momentum(o, x, NO_TENSOR, g, MEAN_GRADIENT, NULL, NULL, gate);
    for (int k = 0; k < count; k++, s++) {
        bool gradient = (begins && k == 0) || s->how & MEAN_TERM;
        switch (s->what) {
        case EACH_MEAN:
            o->momentum(o, x, s->state, gradient ? g : x, s->how | (gradient ? MEAN_GRADIENT : 0),
                        s->number, s->age, gate);
            break;
        case EACH_SECOND: o->second(o, x, s->state, g, s->number, s->age, gate); break;
        case EACH_SCALE: o->scale(o, x, n, s->each, s->number); break;
        case EACH_SIGN: o->sign(o, x); break;
        case EACH_WRITE:
            o->normuon(o, s->state, s->low, NO_TENSOR, x, n, s->each, NULL, NULL, s->how, s->m,
                       gate);
            break;
        }
    }
}
