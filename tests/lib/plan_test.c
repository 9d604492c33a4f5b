/* plan_test.c - the lists of optim/plan.h are what a step queues: a device that computes nothing and a communicator
 * that sends nothing write down what they are asked for, and that must be the list, action by action, for each kind
 * of step. What each list must hold whatever its order is checked beside it.
 */
#include <stdlib.h>
#include "check.h"
#include "comm/comm.h"
#include "model/bank.h"
#include "optim/step.h"
#include "recipe/named.h"

enum { EVENTS = 1024, TEXT = 48 };

static struct optim *now; /* whose calls are written down */
static char seen[EVENTS][TEXT];
static int n_seen;
/* Kinds of tickets, which are 1 + 4 x parameter + kind. */
enum { T_REDUCE, T_GATHER, T_GATHER8, T_SUM };

static void event(const char *what, const char *label)
{
    CHECK(n_seen < EVENTS);
    if (n_seen < EVENTS)
        snprintf(seen[n_seen++], TEXT, "%s %s", what, label);
}

static const char *label(int i) { return now->recipe->params[i].label; }

/* -- the device and the communicator that write down ------------------------------------------------ */

/* Addresses of no memory, each of its own. */
static void *alloc(struct ops *o, size_t bytes, const char *what)
{
    static uintptr_t next = 4096;
    void *p = (void *)next;
    (void)o, (void)what;
    next += (bytes + 4096) / 4096 * 4096;
    return p;
}

/* The parameter that has memory t: of gradients (0), weights (1), fp8 copies (2); -1: none. */
static int owner(struct tensor t, int which)
{
    for (int i = 0; i < now->banks->n; i++) {
        const struct param *p = &now->banks->p[i];
        const struct tensor x = which == 0 ? p->g : which == 1 ? p->w : p->fp8.codes;
        const char *first = x.data, *at = t.data;
        if (at && at >= first && at < first + tensor_bytes(x))
            return i;
    }
    return -1;
}

static comm_ticket reduce_scatter(struct comm *c, struct tensor full, const struct span *own)
{
    (void)c, (void)own;
    int i = owner(full, 0);
    CHECK(i >= 0);
    event("reduce", label(i));
    return 1 + 4 * i + T_REDUCE;
}

static comm_ticket all_reduce(struct comm *c, struct tensor t)
{
    (void)c;
    int i = owner(t, 0);
    event("reduce", i < 0 ? "squares" : label(i));
    return 1 + 4 * (i < 0 ? 0 : i) + (i < 0 ? T_SUM : T_REDUCE);
}

static void group(struct comm *c, bool open) { (void)c, (void)open; }

static comm_ticket all_gather(struct comm *c, struct tensor full, const struct span *own)
{
    (void)c, (void)own;
    int i = owner(full, 1), i8 = owner(full, 2);
    CHECK(i >= 0 || i8 >= 0);
    event(i >= 0 ? "gather" : "gather8", label(i >= 0 ? i : i8));
    return i >= 0 ? 1 + 4 * i + T_GATHER : 1 + 4 * i8 + T_GATHER8;
}

static void comm_wait(struct comm *c, comm_ticket t)
{
    static const char *const what[] = { "wait", "need", "need8", "wait-sum" };
    (void)c;
    if (t)
        event(what[(t - 1) % 4], (t - 1) % 4 == T_SUM ? "squares" : label((t - 1) / 4));
}

static void branch(struct ops *o, int i)
{
    char text[16];
    (void)o;
    snprintf(text, sizeof text, "%d", i);
    event("branch", text);
}

static void join(struct ops *o)
{
    (void)o;
    event("join", "");
}

static void adam(struct ops *o, const struct adam_param *p, int n)
{
    (void)o;
    for (int k = 0; k < n; k++)
        event(k ? "adam+" : "adam", label(owner(p[k].g, 0)));
}

static void muon_input(struct ops *o, struct tensor x, struct tensor mom, struct tensor g, int n,
                       bool raw, const real *blend, const struct step_gate *gate)
{
    (void)o, (void)x, (void)mom, (void)n, (void)raw, (void)blend, (void)gate;
    event("chain", label(owner(g, 0)));
}

static void momentum(struct ops *o, struct tensor x, struct tensor mom, struct tensor g,
                     unsigned how, const real *number, const real *age,
                     const struct step_gate *gate)
{
    (void)o, (void)x, (void)mom, (void)how, (void)number, (void)age, (void)gate;
    if (owner(g, 0) >= 0)
        event("chain", label(owner(g, 0)));
}

static void transpose(struct ops *o, struct tensor dst, struct tensor src, const real *mix)
{
    (void)o, (void)src;
    event(mix ? "mix" : "copy", label(owner(dst, mix ? 0 : 1)));
}

/* -- what a list says should be queued -------------------------------------------------------------- */

static char want[EVENTS][TEXT];
static int n_want;
static int reducing[MAX_PARAMS]; /* collectives under way */
static bool gathering[MAX_PARAMS];

static void wants(const char *what, const char *name)
{
    CHECK(n_want < EVENTS);
    if (n_want < EVENTS)
        snprintf(want[n_want++], TEXT, "%s %s", what, name);
}

static void wants_need(int i)
{
    if (gathering[i]) {
        wants("need", label(i));
        if (now->banks->p[i].fp8.codes.data)
            wants("need8", label(i));
    }
    gathering[i] = false;
}

static void wants_wait(int i)
{
    for (; reducing[i]; reducing[i]--)
        wants("wait", label(i));
}

static void wants_update(const struct action *a, const struct step_plan *p)
{
    int adams = 0;
    for (int k = 0; k < a->n; k++) {
        int i = a->param[k];
        const struct rule *rule = &now->recipe->params[i].rule;
        for (int c = 0; c < rule_chains(rule); c++)
            if (a->chains >> c & 1 && !chain_is_adam(&rule->chain[c]) && now->banks->p[i].own_count)
                wants("chain", label(i));
    }
    for (int k = 0; k < a->n; k++)
        if (p->adam >> a->param[k] & 1)
            wants(adams++ ? "adam+" : "adam", label(a->param[k]));
}

static void wants_of(const struct action *a, const struct step_plan *p)
{
    char number[16];
    if (a->act == ACT_BRANCH || a->act == ACT_JOIN) {
        snprintf(number, sizeof number, "%d", a->branch);
        wants(a->act == ACT_JOIN ? "join" : "branch", a->act == ACT_JOIN ? "" : number);
    }
    if (a->act == ACT_UPDATE)
        wants_update(a, p);
    if (a->act == ACT_MIX_TIED)
        wants("mix", label(now->recipe->order.tied_head));
    if (a->act == ACT_COPY_TIED)
        wants("copy", label(a->param[0]));
    for (int k = 0; k < a->n; k++) {
        int i = a->param[k];
        if (a->act == ACT_GATHER) {
            wants("gather", label(i));
            if (now->banks->p[i].fp8.codes.data)
                wants("gather8", label(i));
            gathering[i] = true;
        }
        if (a->act == ACT_NEED)
            wants_need(i);
        if (a->act == ACT_WAIT || a->act == ACT_WAIT_BEGUN || a->act == ACT_DECIDE)
            wants_wait(i);
        if (a->act == ACT_REDUCE && !(p->early >> i & 1)) {
            wants("reduce", label(i));
            reducing[i]++;
        }
    }
    if (a->act == ACT_DECIDE) {
        wants("reduce", "squares");
        wants("wait-sum", "squares");
    }
}

/* -- what each list must hold ------------------------------------------------------------------------- */

/* Where parameter i stands in the list with that act, how often, and where it stands first. */
static int count(const struct step_plan *p, enum act act, int i, int from, int *at)
{
    int n = 0;
    for (int k = from; k < p->begin[PARTS]; k++)
        for (int j = 0; j < p->action[k].n; j++)
            if (p->action[k].act == act && p->action[k].param[j] == i) {
                *at = n ? *at : k;
                n++;
            }
    return n;
}

/* A gradient that is applied is reduced, waited for and cleared once, a weight that has moved is gathered, in the step
 * or at the start of the next, and nothing else happens to the others. */
static void check_list(const struct step_plan *p, const struct recipe *r, int step, int world)
{
    int from = p->begin[PART_PAUSE];
    for (int i = 0; i < r->n_params; i++) {
        const struct param_spec *s = &r->params[i];
        bool follows = p->kind.tied && i == r->order.tied_embed, late = false;
        bool moves = recipe_moves(s, step) && !follows;
        int reduce = 0, wait = 0, update = 0, gather = 0, need = 0, at = 0;
        for (int k = 0; k < r->order.n_late; k++)
            late |= r->order.late[k] == i && !(p->kind.tied && i == r->order.tied_head);
        bool sparse = p->exchanges && s->comms == COMMS_SPARSE;
        CHECK_EQ(count(p, ACT_REDUCE, i, from, &reduce), moves && !sparse);
        CHECK_EQ(count(p, ACT_EXCHANGE, i, from, &at), moves && sparse);
        CHECK_EQ(count(p, ACT_WAIT, i, from, &wait), moves && !sparse);
        CHECK_EQ(count(p, ACT_UPDATE, i, from, &update), moves);
        bool alone = world == 1 && rule_is_adam(&s->rule); /* one launch, which nothing waits for */
        CHECK_EQ(count(p, ACT_GATHER, i, from, &gather),
                 moves && !late && s->comms != COMMS_REPLICATED && !alone);
        CHECK_EQ(count(p, ACT_CLEAR, i, from, &at), recipe_moves(s, step));
        if (moves && !sparse)
            CHECK(reduce < wait && wait < update);
        if (gather) {
            CHECK(update < gather);
            CHECK(count(p, ACT_NEED, i, gather, &need) > 0);
        }
        CHECK(!(p->early >> i & 1) || (moves && s->early));
    }
}

/* -- one kind of step ---------------------------------------------------------------------------------- */

static void final(struct optim *z, int i)
{
    const struct param *p = &z->banks->p[i];
    int64_t n = p->spec->matrices > 1 ? p->spec->rows : p->g.rows;
    for (int64_t first = p->g.rows - n; first >= 0; first -= n)
        optim_reduce_early(z, i, first, n);
}

static void check_kind(struct optim *z, const struct step_plan *p)
{
    const struct recipe *r = z->recipe;
    struct step_schedule at;
    int early, k;

    schedule_at(r, p->first, &at);
    n_seen = n_want = 0;
    optim_prepare(z, &at);
    CHECK(z->plan == p);
    optim_begin(z);
    for (k = 0; k < p->begin[PART_PAUSE]; k++)
        wants_of(&p->action[k], p);
    early = n_seen;
    CHECK_EQ(early, n_want);
    for (int i = r->n_params - 1; i >= 0; i--)
        final(z, i);
    for (int e = early; e < n_seen;
         e++) { /* the reductions that began in the backward: of the early ones alone */
        int i = recipe_param(r, seen[e] + 7);
        CHECK(!strncmp(seen[e], "reduce ", 7) && i >= 0 && p->early >> i & 1);
        snprintf(want[n_want++], TEXT, "%s", seen[e]);
        reducing[i]++;
    }
    for (int i = 0; i < r->n_params; i++)
        CHECK(!(p->early >> i & 1) || reducing[i]);
    optim_pause(z);
    optim_step(z);
    for (; k < p->begin[PARTS]; k++)
        wants_of(&p->action[k], p);
    optim_finish(z, &at);
    optim_outcome(z, &at, false);
    CHECK_EQ(n_seen, n_want);
    if (getenv("PLAN_TEST_SHOWS"))
        for (int e = 0; e < n_seen || e < n_want; e++)
            printf("%-24s %s\n", e < n_seen ? seen[e] : "", e < n_want ? want[e] : "");
    for (int e = 0; e < n_seen && e < n_want; e++)
        if (!CHECK_STR(seen[e], want[e]))
            break; /* what follows is off as well */
    check_list(p, r, p->first, z->comm->world);
}

static void check_recipe(const char *name, const char *const *set, int n, int world)
{
    struct recipe *r;
    struct banks b;
    struct ops *o;
    struct comm *c;
    struct optim z;

    for (int rank = 0; rank < world;
         rank += world - 1 ? world - 1 : 1) { /* the first and the last */
        memset(reducing, 0, sizeof reducing);
        memset(gathering, 0, sizeof gathering);
        CHECK_OK(recipe_parse(&r, name, recipe_named_find(name)->text, set, n));
        CHECK_OK(ops_cpu_counting(&o, 1));
        CHECK_OK(comm_threads_new(&c, 1));
        o->alloc = o->alloc_shared = alloc;
        c->rank = rank, c->world = world;
        CHECK_OK(banks_init(&b, r, o, rank, world));
        CHECK_OK(optim_init(&z, r, &b, o, c));
        now = &z;
        c->reduce_scatter = reduce_scatter, c->all_reduce = all_reduce, c->group = group;
        c->all_gather = all_gather, c->wait = comm_wait;
        o->branch = branch, o->join = join, o->adam = adam, o->transpose = transpose;
        o->muon_input = muon_input, o->momentum = momentum;
        for (int k = 0; k < z.plans.n; k++)
            check_kind(&z, &z.plans.plan[k]);
        optim_release(&z);
        c->free(c);
        o->free(o);
        recipe_free(r);
    }
}

int main(void)
{
    static const char *const records[] = { "record-61", "record-74", "record-84", "record-89",
                                           "turbo-muon" };
    static const char *const gate[] = { "optimizer.clip=1", "order.tied_mix=0.5" };
    static const char *const then[] = {
        "parameters.mlp=24,f,d bf16 uniform:0.5 normuon>adam sharded 0.9 0.95 1 1 no",
        "optimizer.change=0.5", "optimizer.change_moments=0.25"
    };
    static const char *const both[] = {
        "parameters.attn=40,d,d bf16 uniform:1 normuon+adam sharded 0.9 0.95 1 1 no"
    };
    static const int worlds[] = { 1, 3, 8 };

    for (int w = 0; w < 3; w++) {
        for (size_t k = 0; k < sizeof records / sizeof *records; k++)
            check_recipe(records[k], NULL, 0, worlds[w]);
        check_recipe("tiny", gate, 2, worlds[w]);
        check_recipe("tiny", then, 3, worlds[w]);
        check_recipe("tiny", both, 1, worlds[w]);
    }
    return check_done();
}
