/* schedule.c - record 61's schedule (record-61.md 5) and, with whole_steps, record 74's. */
#include "recipe/schedule.h"

#include <math.h>

int schedule_total(const struct recipe *r) { return r->schedule.steps + r->schedule.extension; }

/* First step of stage i (0 .. n-1, the extension; n: the end), as a real number. */
static double stage_start(const struct recipe *r, int i)
{
    int parts = r->n_stages - 1;
    if (i > parts)
        return schedule_total(r);
    double at = (double)r->schedule.steps * i / parts;
    return r->schedule.whole_steps ? nearbyint(at) : at;
}

/* Stage by x = step / steps: floor(parts x), as the record computes it. */
static int stage_at(const struct recipe *r, int step)
{
    int parts = r->n_stages - 1, i = 0;
    if (step >= r->schedule.steps)
        return parts;
    if (!r->schedule.whole_steps)
        return (int)(parts * ((double)step / r->schedule.steps));
    while (i + 1 < parts && step >= stage_start(r, i + 1))
        i++;
    return i;
}

/* Multiplier of the stage; with exact boundaries it changes strictly after them. */
static double lr_base(const struct recipe *r, int step)
{
    int parts = r->n_stages - 1, i = 0;
    if (r->schedule.whole_steps) {
        int s = stage_at(r, step);
        return r->stages[s < parts ? s : parts - 1].lr;
    }
    while (i + 1 < parts && (double)step / r->schedule.steps > (double)(i + 1) / parts)
        i++;
    return r->stages[i].lr;
}

static double lr_at(const struct recipe *r, int step)
{
    double base = lr_base(r, step);
    if (step >= r->schedule.steps)
        return r->schedule.lr_floor;
    if (r->schedule.whole_steps) {
        double begin = trunc(r->schedule.steps * (1 - r->schedule.cooldown));
        double t = step < begin ? 0 : fmin(1, (step - begin) / (r->schedule.steps - begin));
        return base * (1 - t) + r->schedule.lr_floor * t;
    }
    double x = (double)step / r->schedule.steps;
    if (x < 1 - r->schedule.cooldown)
        return base;
    double c = (1 - x) / r->schedule.cooldown;
    return base * c + r->schedule.lr_floor * (1 - c);
}

static double momentum_at(const struct recipe *r, int step)
{
    double low = r->schedule.momentum.low, high = r->schedule.momentum.high;
    int begin = schedule_total(r) - r->schedule.momentum.cooldown;
    if (step < r->schedule.momentum.warmup)
        return low + (double)step / r->schedule.momentum.warmup * (high - low);
    if (step > begin)
        return high - (double)(step - begin) / r->schedule.momentum.cooldown * (high - low);
    return high;
}

int schedule_point(const struct recipe *r, double point)
{
    return (int)ceil(point <= 2 ? point * r->schedule.steps - 1e-9 : point);
}

bool schedule_validates(const struct recipe *r, int step)
{
    bool late = step >= schedule_point(r, r->data.val.every.from);
    int every = late ? r->data.val.every.late : r->data.val.every.steps;
    return r->data.val.tokens && (step == schedule_total(r) || (every && step % every == 0));
}

bool schedule_reads_apart(const struct recipe *r, int step)
{
    const struct around *a = &r->optimizer.around;
    if (a->kind == AROUND_AVERAGE)
        return step > schedule_point(r, a->number[1]);
    return a->kind == AROUND_FREE && step > 0;
}

unsigned schedule_chains(const struct recipe *r, const struct rule *rule, int step)
{
    if (rule->join != RULE_THEN)
        return rule->join == RULE_SINGLE ? 1 : 3;
    if (step >= schedule_point(r, rule->at))
        return 2;
    return step >= schedule_point(r, rule->moments) ? 3 : 1;
}

/* Counts the different steps, up to `step`, at which a rule passes on. */
static int changes_until(const struct recipe *r, int step)
{
    int seen[2 * MAX_PARAMS], n = 0;
    for (int i = 0; i < 2 * r->n_params; i++) {
        const struct rule *rule = &r->params[i / 2].rule;
        int at = schedule_point(r, i % 2 ? rule->moments : rule->at), k = 0;
        if (rule->join != RULE_THEN || at > step)
            continue;
        while (k < n && seen[k] != at)
            k++;
        if (k == n)
            seen[n++] = at;
    }
    return n;
}

/* AdEMAMix's slow rate beta after t of T updates: the age of its mean goes linearly from b1's to b3's. */
static double lengthening(double b1, double b3, double t, double end)
{
    double young = log(0.5) / log(b1 + 1e-8) - 1, old = log(0.5) / log(b3 + 1e-8) - 1;
    return t < end ? pow(0.5, 1 / (1 + (1 - t / end) * young + t / end * old)) : b3;
}

double schedule_number(const struct recipe *r, const struct param_spec *s, const struct number *n,
                       const struct step_schedule *at)
{
    if (at->step < n->early)
        return n->before;
    if (n->from == NUMBER_HALF)
        return lengthening(n->value[0], n->value[1], at->step + 1, n->value[2]);
    if (n->from == NUMBER_ALPHA)
        return n->value[0] * fmin(1, (at->step + 1) / n->value[1]);
    if (n->from == NUMBER_MOMENTUM)
        return at->momentum;
    if (n->from == NUMBER_BETA2)
        return s->beta2;
    if (n->n == 1)
        return n->value[0];
    int k = n->n > 2 && at->step > schedule_point(r, n->at[2]) ? 2 : 0;
    double first = schedule_point(r, n->at[k]), last = schedule_point(r, n->at[k + 1]);
    double t = at->step <= first ? 0 : at->step >= last ? 1 : (at->step - first) / (last - first);
    return n->value[k] + (n->value[k + 1] - n->value[k]) * t;
}

double schedule_lr(const struct recipe *r, const struct param_spec *s,
                   const struct step_schedule *at)
{
    const struct lr_schedule *q = s->schedule < 0 ? NULL : &r->schedules[s->schedule];
    double f = 1;
    if (!q)
        return at->lr;
    int warmup = schedule_point(r, q->warmup);
    if (warmup)
        f = fmin(1, (double)(at->step + !q->from_zero) / warmup);
    if (q->linear.n)
        f *= schedule_number(r, s, &q->linear, at);
    double left =
        1 - (double)at->step / (q->end > 0 ? schedule_point(r, q->end) : r->schedule.steps);
    if (q->share > 0 && left < q->share)
        f *= q->floor + (1 - q->floor) * pow(fmax(0, left) / q->share, q->power);
    return f;
}

double schedule_second_part(const struct recipe *r, const struct param_spec *s,
                            const struct step_schedule *at)
{
    if (s->rule.join == RULE_THEN)
        return at->step >= schedule_point(r, s->rule.at);
    return s->rule.join == RULE_SUM ? schedule_number(r, s, &s->rule.weight, at) : 0;
}

int schedule_untie_step(const struct recipe *r)
{
    if (r->order.tied_head < 0)
        return -1;
    int every = r->params[r->order.tied_head].every > 2 ? r->params[r->order.tied_head].every : 2;
    int step = schedule_point(r, r->schedule.untie);
    return step + every - 1 - step % every;
}

void schedule_at(const struct recipe *r, int step, struct step_schedule *p)
{
    int i = stage_at(r, step), last = step >= schedule_total(r);
    const struct stage *s = &r->stages[i];
    int blocks = last ? r->schedule.final_window : s->window;
    *p = (struct step_schedule){
        .step = step, .stage = i, .tokens = s->tokens, .sequence = s->sequence
    };
    p->chunk_tokens = (int)(s->tokens / r->data.chunks);
    p->blocks_long = blocks;
    p->blocks_short = s->window / 2;
    p->window_long = blocks * r->model.block;
    p->window_short = p->blocks_short * r->model.block;
    p->lr = lr_at(r, step);
    p->momentum = momentum_at(r, step);
    double start = stage_start(r, i);
    double length = fmax(1, stage_start(r, i + 1) - start);
    double t = (step - start) / length;
    p->n_mtp = s->n_mtp;
    for (int k = 0; k < s->n_mtp; k++)
        p->mtp[k] = s->mtp_first[k] + (s->mtp_last[k] - s->mtp_first[k]) * t;
    p->prefix = s->prefix_first + (s->prefix_last - s->prefix_first) * t;
    p->prefixes = s->prefix_first != 0 || s->prefix_last != 0;
    p->change = changes_until(r, step);
    int untie = schedule_untie_step(r);
    p->tied = untie >= 0 && step <= untie;
    p->untie = step == untie;
    p->tied_mix = r->order.tied_mix[0];
    if (p->tied)
        p->tied_mix += (r->order.tied_mix[1] - r->order.tied_mix[0]) * step / untie;
}

/* The ramp is computed from both ends, in fp32, as in the record: another order of operations
 * changes last bits, and 1% of the bf16 cosines with them. */
void schedule_rope_initial(const struct recipe *r, float *freq)
{
    int n = r->model.rope_dim / 2;
    float step = n > 1 ? 1.0f / (float)(n - 1) : 0;
    for (int m = 0; m < n; m++) {
        float x = m < n / 2 || n == 1 ? (float)m * step : 1.0f - (float)(n - 1 - m) * step;
        freq[m] = powf(1.0f / (float)r->model.rope_base, x);
    }
}

void schedule_rope_yarn(float *freq, int n, int block, int w_old, int w_new, double *scale)
{
    for (int m = 0; m < n; m++) {
        float rotations = (float)(block * w_old) * freq[m] / (float)(2 * M_PI);
        float phi = (rotations - 1.0f) / (32.0f - 1.0f);
        phi = phi < 0 ? 0 : phi > 1 ? 1 : phi;
        float zeta = (float)((double)w_old / w_new);
        freq[m] *= zeta + phi * (1.0f - zeta);
    }
    *scale *= 1 + 0.2 * log((double)w_new / w_old);
}

/* Adds w unless it is the last one. */
static int add_window(int *at, int n, int w)
{
    if (n && at[n - 1] == w)
        return n;
    at[n] = w;
    return n + 1;
}

int schedule_windows(const struct recipe *r, int step, int at[SCHEDULE_WINDOWS])
{
    int n = 0;
    for (int i = 0; i < r->model.rope_windows.n; i++)
        n = add_window(at, n, r->model.rope_windows.at[i]);
    for (int i = 0; i < r->n_stages; i++)
        if (i == 0 || (int)ceil(stage_start(r, i) - 1e-9) <= step)
            n = add_window(at, n, r->stages[i].window);
    return n;
}

int schedule_rope(const struct recipe *r, int step, float *freq, double *scale)
{
    int at[SCHEDULE_WINDOWS], n = schedule_windows(r, step, at);
    schedule_rope_initial(r, freq);
    *scale = r->model.attn_scale;
    for (int i = 1; i < n; i++)
        schedule_rope_yarn(freq, r->model.rope_dim / 2, r->model.block, at[i - 1], at[i], scale);
    return n - 1;
}
