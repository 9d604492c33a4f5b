/* plan.c - decides what each kind of step does (optimizers.md 2.3). */
#include "optim/plan.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "ops/ops.h"

_Static_assert(MAX_PARAMS <= 32, "a set of parameters is 32 bits");
_Static_assert(2 * MAX_STAGES <= 32, "met has a bit for each");

/* -- what a step of the kind asks of each parameter ------------------------------------------------ */

struct maker {
    const struct recipe *r;
    int world, step; /* a step of the kind */
    bool tied, gate;
    int sparse; /* the parameter that is exchanged; -1: none */
    uint32_t moves; /* parameters that are updated; a tied embedding follows the head */
    uint32_t late; /* gathered at the start of the next step */
    uint8_t chains[MAX_PARAMS]; /* that run */
    struct action *action;
    int n, room;
    bool failed;
    struct action none; /* takes what is added after a failure */
};

/* True if a chain that runs is Adam's: to move the parameter, or for its moments alone. */
static bool adam_runs(const struct maker *m, int i)
{
    const struct rule *rule = &m->r->params[i].rule;
    for (int c = 0; c < rule_chains(rule); c++)
        if (m->chains[i] >> c & 1 && chain_is_adam(&rule->chain[c]))
            return true;
    return false;
}

static bool is_tied_head(const struct maker *m, int i)
{
    return m->tied && i == m->r->order.tied_head;
}

/* The late ones, but for a tied head, which the step copies to the embedding. */
static bool gathered_late(const struct maker *m, int i)
{
    return in_set(m->late, i) && !is_tied_head(m, i);
}

/* Updated in one launch with those that follow: nothing waits for a replicated parameter, or on one rank. */
static bool is_listed(const struct maker *m, int i)
{
    const struct param_spec *s = &m->r->params[i];
    return rule_is_adam(&s->rule) && (s->comms == COMMS_REPLICATED || m->world == 1);
}

static bool is_bank(const struct maker *m, int i)
{
    return in_set(m->moves, i) && !rule_is_adam(&m->r->params[i].rule);
}

/* True of a bank whose update may stand in a branch. */
static bool may_branch(const struct maker *m, int i)
{
    return is_bank(m, i) && !rule_what(&m->r->params[i].rule, STAGE_PRODUCTS);
}

/* True if two banks are updated concurrently: products of a few matrices leave multiprocessors idle at their
 * ends. But a gather within the step hides behind the update of a bank that is late, so it must not start
 * later for it. */
static bool beside(const struct maker *m, int i, int j)
{
    bool alike = m->world == 1 || gathered_late(m, i) == gathered_late(m, j);
    return i != j && may_branch(m, i) && may_branch(m, j) && alike;
}

static bool in_branch(const struct maker *m, int i)
{
    for (int j = 0; j < m->r->n_params; j++)
        if (beside(m, i, j))
            return true;
    return false;
}

/* -- the list ------------------------------------------------------------------------------------- */

static struct action *add(struct maker *m, enum act act, const char *why)
{
    if (m->n == m->room && !m->failed) {
        int room = m->room ? 2 * m->room : 32;
        struct action *more = realloc(m->action, (size_t)room * sizeof *more);
        if (more)
            m->action = more, m->room = room;
        m->failed = !more;
    }
    if (m->failed) {
        m->none.n = 0;
        return &m->none;
    }
    m->action[m->n] = (struct action){ .act = act, .why = why };
    return &m->action[m->n++];
}

/* Adds parameter i to the action before, if that is the same, or to a new one. from: actions before it stay. */
static void put(struct maker *m, int from, enum act act, int i, const char *why)
{
    struct action *a = m->n > from && !m->failed ? &m->action[m->n - 1] : NULL;
    if (!a || a->act != act || a->why != why || a->n == MAX_PARAMS)
        a = add(m, act, why);
    a->param[a->n++] = (uint8_t)i;
}

static void queue_branch(struct maker *m, int branch, const char *why)
{
    add(m, ACT_BRANCH, why)->branch = branch;
}

static void update(struct maker *m, const int *list, int n, const char *why)
{
    if (!n)
        return;
    struct action *a = add(m, ACT_UPDATE, why);
    for (int k = 0; k < n; k++)
        a->param[a->n++] = (uint8_t)list[k];
    a->chains = m->chains[list[0]];
    int from = m->n;
    for (int k = 0; k < n; k++)
        if (around_takes(&m->r->optimizer.around, list[k]))
            put(m, from, ACT_AROUND, list[k], "around in [rules]");
}

static void update_and_gather(struct maker *m, int i)
{
    const struct param_spec *s = &m->r->params[i];
    int from = m->n;
    if (i != m->sparse)
        put(m, from, ACT_WAIT, i, NULL);
    update(m, &i, 1, NULL);
    if (s->comms != COMMS_REPLICATED && !gathered_late(m, i))
        put(m, from, ACT_GATHER, i, is_tied_head(m, i) ? "tied: copied below" : NULL);
}

static void make_begin(struct maker *m)
{
    const struct recipe *r = m->r;
    const char *why = "applied in the step before";
    int from = m->n;

    add(m, ACT_FRESH, why); /* also of none */
    for (int i = 0; i < r->n_params; i++)
        if (recipe_moves(&r->params[i], m->step - 1))
            put(m, from, ACT_FRESH, i, why);
    for (int k = 0; k < r->order.n_late; k++) {
        int i = r->order.late[k];
        bool follows = m->tied && i == r->order.tied_embed;
        if (recipe_moves(&r->params[i], m->step - 1) && gathered_late(m, i) && !follows)
            put(m, from, ACT_GATHER, i, "late: updated in the step before");
    }
}

static void make_pause(struct maker *m)
{
    int from = m->n;
    for (int i = 0; i < m->r->n_params; i++)
        put(m, from, ACT_NEED, i, "the host waits next");
    for (int i = 0; i < m->r->n_params; i++)
        put(m, from, ACT_WAIT_BEGUN, i, "the host waits next");
    put(m, from, ACT_EXCHANGE, m->sparse, "sparse: the rows that tokens touched");
}

static void make_reductions(struct maker *m)
{
    const struct recipe *r = m->r;
    const double *mix = r->order.tied_mix;
    int from = m->n;

    for (int k = 0; k < r->order.n_late; k++)
        put(m, from, ACT_NEED, r->order.late[k], "late: that no layer has waited for");
    for (int k = 0; k < r->n_params; k++) {
        int i = r->order.scatter[k];
        if (!in_set(m->moves, i) || i == m->sparse)
            continue;
        if (is_tied_head(m, i) && (mix[0] != 0 || mix[1] != 0))
            put(m, from, ACT_MIX_TIED, r->order.tied_embed, "tied_mix");
        put(m, from, ACT_REDUCE, i, NULL);
    }
    if (!m->gate)
        return;
    from = m->n;
    for (int i = 0; i < r->n_params; i++)
        if (in_set(m->moves, i))
            put(m, from, ACT_DECIDE, i, "clip or max_skips");
}

/* Bank i, the step's n-th from 0; before: the one updated last, -1: none. */
static void make_bank(struct maker *m, int i, int before, int n)
{
    bool branch = in_branch(m, i);

    if (before >= 0 && !beside(m, i, before))
        add(m, ACT_JOIN, "gathers differ: one is late");
    if (branch)
        queue_branch(m, n % BRANCHES, "beside other banks");
    update_and_gather(m, i);
    if (branch)
        queue_branch(m, TRUNK, NULL);
}

static void make_updates(struct maker *m)
{
    const struct recipe *r = m->r;
    int listed[MAX_PARAMS], n_listed = 0, n_banks = 0, before = -1, from = m->n;
    const char *why = m->world > 1 ? "replicated: one launch" : "one rank: one launch";

    for (int k = 0; k < r->n_params; k++) {
        int i = r->order.work[k];
        if (!in_set(m->moves, i))
            continue;
        if (is_listed(m, i)) {
            put(m, from, ACT_WAIT, i, NULL);
            listed[n_listed++] = i;
            continue;
        }
        if (m->world > 1) {
            update(m, listed, n_listed, why);
            n_listed = 0;
        }
        from = m->n;
        if (is_bank(m, i)) {
            make_bank(m, i, before, n_banks++);
            before = i;
        } else {
            update_and_gather(m, i);
        }
        from = m->n;
    }
    update(m, listed, n_listed, why);
    add(m, ACT_JOIN, NULL);
}

static void make_end(struct maker *m)
{
    const struct recipe *r = m->r;
    int head = r->order.tied_head, from = m->n;

    if (m->tied && head >= 0 && recipe_moves(&r->params[head], m->step)) {
        put(m, from, ACT_NEED, head, NULL);
        put(m, from, ACT_COPY_TIED, r->order.tied_embed, "tied");
        from = m->n;
    }
    for (int k = 0; k < r->n_params; k++) {
        int i = r->order.work[k];
        bool copied = is_tied_head(m, i); /* and waited for above */
        if (in_set(m->moves, i) && r->params[i].comms != COMMS_REPLICATED && !gathered_late(m, i) &&
            !copied)
            put(m, from, ACT_NEED, i, NULL);
    }
    for (int i = 0; i < r->n_params; i++)
        if (recipe_moves(&r->params[i], m->step))
            put(m, from, ACT_CLEAR, i, NULL);
}

static void make(struct maker *m, struct step_plan *p)
{
    const struct recipe *r = m->r;

    for (int i = 0; i < r->n_params; i++) {
        bool follows = m->tied && i == r->order.tied_embed;
        m->moves |= (uint32_t)(recipe_moves(&r->params[i], m->step) && !follows) << i;
        m->chains[i] = (uint8_t)schedule_chains(m->r, &m->r->params[i].rule, m->step);
    }
    for (int k = 0; k < r->order.n_late; k++)
        m->late |= UINT32_C(1) << r->order.late[k];
    for (int i = 0; i < r->n_params; i++) {
        bool early = r->params[i].early && !is_tied_head(m, i) && i != m->sparse;
        p->early |= (uint32_t)(early && in_set(m->moves, i)) << i;
        p->adam |= (uint32_t)(in_set(m->moves, i) && adam_runs(m, i)) << i;
    }
    p->exchanges = m->sparse >= 0 && in_set(m->moves, m->sparse);
    if (!p->exchanges)
        m->sparse = -1;
    make_begin(m);
    p->begin[PART_PAUSE] = m->n;
    if (p->exchanges)
        make_pause(m);
    p->begin[PART_UPDATE] = m->n;
    make_reductions(m);
    make_updates(m);
    make_end(m);
    p->begin[PARTS] = m->n;
    p->action = m->action;
}

/* -- all kinds ------------------------------------------------------------------------------------- */

static bool same_kind(const struct step_kind *a, const struct step_kind *b)
{
    return a->tied == b->tied && a->change == b->change && a->phase == b->phase;
}

static bool same_action(const struct action *a, const struct action *b)
{
    return a->act == b->act && a->branch == b->branch && a->n == b->n && a->chains == b->chains &&
           !memcmp(a->param, b->param, (size_t)a->n);
}

/* True if both queue the same work; the model, too, asks whether a step is tied. */
static bool same_work(const struct step_plan *a, const struct step_plan *b)
{
    bool same = a->kind.tied == b->kind.tied && a->early == b->early &&
                !memcmp(a->begin, b->begin, sizeof a->begin);
    for (int k = 0; same && k < a->begin[PARTS]; k++)
        same = same_action(&a->action[k], &b->action[k]);
    return same;
}

static struct step_plan *find(const struct step_plans *s, const struct step_schedule *at)
{
    struct step_kind kind = { at->tied, at->change, at->step % s->period };
    for (int k = 0; k < s->n; k++)
        if (same_kind(&s->plan[k].kind, &kind))
            return &s->plan[k];
    return NULL;
}

const struct step_plan *step_plan_of(const struct step_plans *s, const struct step_schedule *at)
{
    const struct step_plan *p = find(s, at);
    assert(p);
    return p;
}

static int make_kind(struct step_plans *s, const struct recipe *r, int world, bool sparse,
                     const struct step_schedule *at)
{
    struct step_plan *more = realloc(s->plan, (size_t)(s->n + 1) * sizeof *more);
    struct maker m = { .r = r, .world = world, .step = at->step, .tied = at->tied };
    if (!more)
        return err_memory();
    s->plan = more;
    struct step_plan *p = &s->plan[s->n];
    *p = (struct step_plan){ .kind = { at->tied, at->change, at->step % s->period },
                             .first = at->step };
    m.gate = recipe_has_gate(r);
    m.sparse = sparse ? recipe_sparse(r) : -1;
    make(&m, p);
    s->n++;
    if (m.failed)
        return err_memory();
    while (!same_work(&s->plan[p->queued], p))
        p->queued++;
    return 0;
}

int step_plans_make(struct step_plans *s, const struct recipe *r, int world, bool sparse)
{
    struct step_schedule at;
    int rc = 0, total = schedule_total(r);

    *s = (struct step_plans){ .period = r->optimizer.period };
    for (int step = 0; step <= total + 2 && !rc; step++) { /* --bench takes two of each stage */
        schedule_at(r, step, &at);
        struct step_plan *p = find(s, &at);
        if (!p && !(rc = make_kind(s, r, world, sparse, &at)))
            p = &s->plan[s->n - 1];
        if (rc || step >= total)
            continue;
        p->steps++;
        p->met |= UINT32_C(1) << (2 * at.stage + step % 2);
    }
    if (rc)
        step_plans_free(s);
    return rc;
}

int step_plans_graphs(const struct step_plans *s)
{
    int n = 0;
    for (int k = 0; k < s->n; k++) {
        uint32_t met = 0;
        for (int j = k; j < s->n && s->plan[k].queued == k; j++)
            met |= s->plan[j].queued == k ? s->plan[j].met : 0;
        n += __builtin_popcount(met) * (1 + s->plan[k].exchanges);
    }
    return n;
}

void step_plans_free(struct step_plans *s)
{
    for (int k = 0; k < s->n; k++)
        free(s->plan[k].action);
    free(s->plan);
    *s = (struct step_plans){ 0 };
}

/* -- in words ---------------------------------------------------------------------------------------- */

static const char *const words[ACTS] = {
    [ACT_FRESH] = "fresh",     [ACT_GATHER] = "gather",     [ACT_NEED] = "need",
    [ACT_WAIT_BEGUN] = "wait", [ACT_EXCHANGE] = "exchange", [ACT_MIX_TIED] = "mix",
    [ACT_REDUCE] = "reduce",   [ACT_WAIT] = "wait",         [ACT_DECIDE] = "decide",
    [ACT_BRANCH] = "branch",   [ACT_JOIN] = "join",         [ACT_UPDATE] = "update",
    [ACT_AROUND] = "around",   [ACT_COPY_TIED] = "copy",    [ACT_CLEAR] = "clear",
};

const char *step_plan_word(enum act act) { return words[act]; }

static bool one_line(const struct action *a, const struct action *b)
{
    return a->n == b->n && a->n > 0 && !memcmp(a->param, b->param, (size_t)a->n);
}

int step_plan_line(const struct recipe *r, const struct step_plan *p, int a, char *text,
                   size_t size)
{
    const struct action *first = &p->action[a];
    const char *why = first->why;
    char acts[64];
    size_t at = 0;
    int end = 0, next = a + 1;

    for (int k = 0; k < PARTS; k++)
        if (a >= p->begin[k])
            end = p->begin[k + 1];
    at += (size_t)snprintf(acts, sizeof acts, "%s", words[first->act]);
    for (; next < end && one_line(first, &p->action[next]); next++) {
        at += (size_t)snprintf(acts + at, sizeof acts - at, ", %s", words[p->action[next].act]);
        why = why ? why : p->action[next].why;
    }
    at = (size_t)snprintf(text, size, "%-22s", acts);
    if (first->act == ACT_BRANCH && first->branch != TRUNK)
        at += (size_t)snprintf(text + at, size - at, " %d", first->branch);
    else if (first->act == ACT_BRANCH)
        at += (size_t)snprintf(text + at, size - at, " none");
    for (int k = 0; k < first->n && at < size; k++)
        at += (size_t)snprintf(text + at, size - at, " %s", r->params[first->param[k]].label);
    if (why && at < size)
        snprintf(text + at, size - at, "  (%s)", why);
    return next;
}
