/* around.c - a weight beside a mean of its moves, or beside what it was some steps ago (gpt-rules(5)). */
#include "ops/cpu.h"

struct job {
    struct tensor w, low;
    real *mean, *before, number[3];
    struct tensor out; /* of AROUND_READ */
    enum around_how how;
};

static real exact(const struct job *j, int64_t i)
{
    real x = real_get(j->w, i);
    return j->low.data ? f32_from_bits(f32_bits((float)x) | ((const uint16_t *)j->low.data)[i]) : x;
}

static void set_exact(const struct job *j, int64_t i, real x)
{
    uint32_t bits = f32_bits((float)x);
    if (!j->low.data) {
        real_set(j->w, i, x);
        return;
    }
    ((uint16_t *)j->w.data)[i] = (uint16_t)(bits >> 16);
    ((uint16_t *)j->low.data)[i] = (uint16_t)bits;
}

/* Returns x as a weight holds it. */
static real as_stored(const struct job *j, real x)
{
    return j->w.dtype == DT_BF16 && !j->low.data ? (real)bf16_round((float)x) : x;
}

static void some(void *arg, int64_t first, int64_t n, int thread)
{
    const struct job *j = arg;
    const real *k = j->number;

    (void)thread;
    for (int64_t i = first; i < first + n; i++) {
        real w = exact(j, i), d;
        if (j->how == AROUND_AHEAD) {
            j->mean[i] += k[0] * (w - j->before[i] - j->mean[i]);
            j->before[i] = w;
            set_exact(j, i, w + k[1] * j->mean[i]);
        } else if (j->how == AROUND_OUTWARDS) {
            d = j->before[i] - w;
            j->mean[i] = k[1] * j->mean[i] + k[0] * d;
            set_exact(j, i, j->before[i] - k[1] * j->mean[i] - k[0] * d);
            j->before[i] = exact(j, i);
        } else if (j->how == AROUND_APART) {
            d = w - as_stored(j, j->before[i] + k[0] * (j->mean[i] - j->before[i]));
            j->before[i] += d;
            j->mean[i] += k[1] * (j->before[i] - j->mean[i]);
            set_exact(j, i, j->before[i] + k[0] * (j->mean[i] - j->before[i]));
        } else if (j->how == AROUND_TAIL) {
            j->mean[i] = k[0] == 1 ? w : j->mean[i] + k[0] * (w - j->mean[i]);
        } else if (j->how == AROUND_READ) {
            real_set(j->out, i, k[0] == 1 ? j->mean[i] : w + k[0] * (j->mean[i] - w));
        } else {
            j->before[i] = w;
        }
    }
}

void cpu_around(struct ops *o, struct tensor w, struct tensor low, struct tensor mean,
                struct tensor before, enum around_how how, const real *number,
                const struct step_gate *gate)
{
    static const int numbers[] = { 0, 2, 3, 1, 2, 1 };
    assert(how == AROUND_BEGIN || tensor_count(mean) == tensor_count(w));
    assert(how == AROUND_TAIL || tensor_count(before) == tensor_count(w));
    if (cpu_failed(o))
        return;
    struct job job = { w, low, mean.data, before.data, { 0 }, before, how };
    for (int k = 0; k < numbers[how]; k++)
        job.number[k] = number[k];
    bool begins = how == AROUND_TAIL && job.number[0] == 1;
    bool idle = (how == AROUND_OUTWARDS && job.number[2] == 0) ||
                (how == AROUND_TAIL && job.number[0] == 0);
    if (!idle && (begins || !gate || !gate->skip))
        cpu_split(o, tensor_count(w), 4096, some, &job);
}
