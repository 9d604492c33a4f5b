/* stages.h - what elementwise stages make of one element: momentum.cu and normuon.cu alone, each.cu several. */
#ifndef KERNELS_STAGES_H
#define KERNELS_STAGES_H

#include "optim.h"

/* Numbers of a mean's step. */
struct mean_numbers {
    float b, second, third, age, factor;
};

/* Returns the new x of one that was before, as op momentum has it. */
__device__ __forceinline__ float mean_of(unsigned how, const mean_numbers &k, float before,
                                         float *mom, float g)
{
    float old = *mom, x;

    if (how & MEAN_LION) {
        *mom = add(old, mul(k.second, sub(g, old)));
        return add(old, mul(k.b, sub(g, old)));
    }
    if (how & MEAN_SUM) {
        float mu = sub(1, k.b);
        *mom = add(mul(mu, old), g);
        return quot(how & MEAN_NESTEROV ? add(g, mul(mu, *mom)) : *mom, k.age);
    }
    *mom = add(old, mul(k.b, sub(g, old)));
    if (how & MEAN_TERM) {
        x = mul(k.second, quot(*mom, k.age));
        if (how & MEAN_ADD)
            x = add(before, x);
        return how & MEAN_NESTEROV ? sub(x, mul(k.third, sub(x, g))) : x;
    }
    x = how & MEAN_NESTEROV ? sub(*mom, mul(k.b, sub(*mom, g))) : *mom;
    return k.age == 1 ? x : quot(x, k.age);
}

/* Returns x over the root of the mean of g^2, as op second has it. */
__device__ __forceinline__ float over_root(float x, float *v, float g, float blend, float eps,
                                           float age)
{
    *v = add(*v, mul(blend, sub(mul(g, g), *v)));
    return quot(x, add(root(quot(*v, age)), eps));
}

__device__ __forceinline__ float sign_of(float x) { return x > 0 ? 1 : x < 0 ? -1 : x; }

/* Returns p - shrink - d lr, in the order of the C reference of op normuon. */
__device__ __forceinline__ float moved(float p, float d, float lr, float decay, unsigned how)
{
    float product = mul(d, p);
    bool shrinks = how & MUON_PLAIN || (how & MUON_STRICT ? product > 0 : product >= 0);
    if (how & MUON_BEHIND) {
        p = sub(p, mul(d, lr));
        return sub(p, shrinks ? mul(mul(p, decay), lr) : 0);
    }
    return sub(sub(p, shrinks ? mul(mul(p, decay), lr) : 0), mul(d, lr));
}

#endif
