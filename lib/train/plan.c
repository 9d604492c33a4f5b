/* plan.c - memory, communication and schedule of a run, computed from the recipe (--plan). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/report.h"
#include "comm/rendezvous.h"
#include "optim/rules.h"
#include "recipe/remarks.h"
#include "recipe/share.h"
#include "train/rank.h"

static double mib(double bytes) { return bytes / (1 << 20); }

/* Bytes of a parameter's gradient. */
static double gradient_bytes(const struct recipe *r, const struct param_spec *s)
{
    double n = (double)(s->matrices * s->rows * s->cols);
    return n * (double)dtype_size(recipe_gradient(r, s));
}

/* The share of a parameter that is communicated: all, or what layers read of it. */
static double sent_share(const struct recipe *r, const struct param_spec *s)
{
    double units = (double)(s->matrices > 1 ? s->matrices : s->rows);
    bool whole = r->order.padding || s->comms == COMMS_REPLICATED;
    return whole ? 1 : (double)param_used(r, s) / units;
}

/* Bytes that a rank sends in a ring reduction of the gradient, the mean over ranks. */
static double ring_reduce(const struct recipe *r, const struct param_spec *s, int ranks)
{
    return gradient_bytes(r, s) * sent_share(r, s) * (ranks - 1) / ranks;
}

/* The same with the gather after it: of weights, or, in an all-reduce, of gradients. */
static double ring_bytes(const struct recipe *r, const struct param_spec *s, int ranks)
{
    double after = s->comms == COMMS_REPLICATED ? gradient_bytes(r, s) : (double)param_bytes(s);
    return ring_reduce(r, s, ranks) + after * sent_share(r, s) * (ranks - 1) / ranks;
}

double plan_ring_bytes(const struct recipe *r, int param, int ranks)
{
    double codes = param == recipe_param(r, "lm_head") ? (double)head_fp8_bytes(r) : 0;
    return ring_bytes(r, &r->params[param], ranks) + codes * (ranks - 1) / ranks;
}

static void plan_params(const struct recipe *r, int ranks, struct report *out)
{
    static const char *const comms[] = { "replicated", "sharded", "sparse" };
    report_table(out, "parameters", NULL,
                 "parameter:s shape:s:matrices_x_rows_x_cols dtype:s rule:s comms:s "
                 "units:i:units/rank weight:f2:weight,_MiB gradient:f2:gradient,_MiB "
                 "master:f2:master,_MiB moments:f2:moments,_MiB");
    for (int i = 0; i < r->n_params; i++) {
        const struct param_spec *s = &r->params[i];
        int64_t master = optim_master_bytes(r, i, ranks), scales = optim_scale_bytes(r, i, ranks);
        int64_t moments = optim_param_bytes(r, i, ranks) - master - scales;
        char shape[64], type[16];
        snprintf(type, sizeof type, "%s%s", dtype_name(recipe_stored(s)),
                 s->codes && s->stored != DT_E4M3 ? "/e4m3" : "");
        snprintf(shape, sizeof shape, "%lld x %lld x %lld", (long long)s->matrices,
                 (long long)s->rows, (long long)s->cols);
        report_row(out, s->label, shape, type, s->rule.name, comms[s->comms],
                   share_most(r, i, ranks),
                   mib((double)(param_bytes(s) + optim_stored_bytes(r, i, ranks) + scales)),
                   mib(gradient_bytes(r, s)), mib((double)master), mib((double)moments));
    }
}

/* Each rule that moves a parameter: its line, and the ops that run it. */
static void plan_rules(const struct recipe *r, struct report *out)
{
    for (int i = 0; i < r->n_params; i++) {
        const struct rule *rule = &r->params[i].rule;
        char line[600], ops[600];
        int first = 0;
        while (strcmp(r->params[first].rule.name, rule->name))
            first++;
        if (first < i)
            continue;
        recipe_rule_line(r, rule->name, line, sizeof line);
        report_line(out, "rules", "rule %s = %s", rule->name, line);
        for (int c = 0; c < rule_chains(rule); c++) {
            rules_describe(r, &rule->chain[c], ops, sizeof ops);
            report_line(out, "rules", "  run as %s", ops);
        }
    }
    if (r->optimizer.around.kind) {
        char line[600];
        recipe_rule_line(r, "around", line, sizeof line);
        report_line(out, "rules", "around = %s", line);
    }
    if (around_reads_apart(&r->optimizer.around))
        report_line(
            out, "rules",
            "  validation and gpt-sample read the average; a checkpoint has it, and the weight "
            "that is trained");
}

/* Each schedule of [schedules] that a parameter names: its line, whose it is, and five of its values. */
static void plan_schedules(const struct recipe *r, struct report *out)
{
    for (int k = 0; k < r->n_schedules; k++) {
        char labels[400] = "", line[400];
        const struct param_spec *s = NULL;
        size_t n = 0;
        for (int i = 0; i < r->n_params && n < sizeof labels; i++)
            if (r->params[i].schedule == k) {
                s = &r->params[i];
                n += (size_t)snprintf(labels + n, sizeof labels - n, " %s", s->label);
            }
        if (!s)
            continue;
        recipe_schedule_line(r, k, line, sizeof line);
        report_line(out, "schedules", "schedule %s = %s", r->schedules[k].name, line);
        report_line(out, "schedules", "  of%s", labels);
        for (int i = 0; i < 5; i++) {
            struct step_schedule at;
            schedule_at(r, i * (schedule_total(r) - 1) / 4, &at);
            report_line(out, "schedules", "  step %d: lr times %.4f", at.step,
                        schedule_lr(r, s, &at));
        }
    }
}

static void plan_memory(const struct run_memory *m, bool cpu, struct report *out)
{
    report_table(out, "memory", NULL,
                 cpu ? "part:s:memory_of_a_rank_on_the_CPU bytes:f1:MiB"
                     : "part:s:memory_of_a_rank,_a_GPU bytes:f1:MiB");
    report_row(out, "weights and gradients", mib((double)m->weights));
    report_row(out, "optimizer", mib((double)m->optimizer));
    report_row(out, "activations", mib((double)m->activations));
    report_row(out, "batches", mib((double)m->batches));
    report_row(out, "single ops", mib((double)m->ops));
    report_row(out, "sum", mib(run_memory_sum(m)));
}

/* True if it is matrices that are dealt whole. */
static bool is_bank(const struct param_spec *p)
{
    return !rule_is_adam(&p->rule) && p->matrices > 1;
}

/* What a rank does of a step: its matrices of NorMuon's banks, their FLOPs, and the bytes that it
 * sends in a step in which all parameters move. A rank sends each other one's part of a gradient,
 * and its own part of a weight to each (optimizers.md 2.6). */
struct share {
    char matrices[160];
    double flops, sent;
    int micros;
};

static struct share share_of_rank(const struct recipe *r, int rank, int ranks)
{
    struct share s = { .micros = rank_micros(r->data.chunks, rank, ranks) };
    size_t at = 0;
    for (int i = 0; i < r->n_params; i++) {
        const struct param_spec *p = &r->params[i];
        struct span own = share_of(r, i, rank, ranks);
        double part = (double)own.count / (double)param_units(p);
        if (p->comms == COMMS_REPLICATED) {
            s.sent += ring_bytes(r, p, ranks);
            continue;
        }
        s.sent += gradient_bytes(r, p) * (1 - part) + (double)param_bytes(p) * part * (ranks - 1);
        s.flops += share_cost(r, i) * (double)own.count;
        if (is_bank(p) && at < sizeof s.matrices - 48)
            at += (size_t)snprintf(s.matrices + at, sizeof s.matrices - at, "%s%s %lld",
                                   at ? ", " : "", p->label, (long long)own.count);
    }
    return s;
}

/* Holds the costs of ZeRO-1 on one flat buffer where matrices are orthogonalised whole: each of the k ranks that hold a
 * piece of one gathers the others' in bf16, and orthogonalises it as well. */
struct flat {
    double gathered; /* bytes of all ranks for that */
    double flops, most; /* of all ranks, and of the one with most */
    double once; /* of all matrices, once */
};

static struct flat flat_buffer(const struct recipe *r, int ranks)
{
    struct flat f = { 0 };
    double whole = 0, at = 0, each[MAX_RANKS] = { 0 };
    for (int i = 0; i < r->n_params; i++)
        if (is_bank(&r->params[i]))
            whole += (double)(r->params[i].matrices * r->params[i].rows * r->params[i].cols);
    for (int i = 0; i < r->n_params; i++)
        for (int64_t m = 0; is_bank(&r->params[i]) && m < r->params[i].matrices; m++) {
            double n = (double)(r->params[i].rows * r->params[i].cols), cost = share_cost(r, i);
            int first = (int)floor(at * ranks / whole), end = (int)ceil((at + n) * ranks / whole);
            f.gathered += 2 * n * (end - first - 1);
            f.once += cost;
            for (int k = first; k < end && k < MAX_RANKS; k++)
                each[k] += cost;
            at += n;
        }
    for (int k = 0; k < ranks && k < MAX_RANKS; k++) {
        f.flops += each[k];
        f.most = fmax(f.most, each[k]);
    }
    return f;
}

/* Bytes of NorMuon's parameters beside those of AdamW under ZeRO-1 on one flat buffer, and FLOPs of a step's
 * orthogonalisation: of all ranks, and of the rank with most, here `most`. */
static void plan_ratios(const struct recipe *r, int ranks, double most, struct report *out)
{
    struct flat split = flat_buffer(r, ranks);
    double here = 0, flat = 0;
    for (int i = 0; i < r->n_params; i++) {
        const struct param_spec *p = &r->params[i];
        if (!is_bank(p))
            continue;
        flat += ring_bytes(r, p, ranks) * ranks;
        for (int k = 0; k < ranks && p->comms != COMMS_REPLICATED; k++) {
            double part = (double)share_of(r, i, k, ranks).count / (double)param_units(p);
            here += gradient_bytes(r, p) * (1 - part) + (double)param_bytes(p) * part * (ranks - 1);
        }
        if (p->comms == COMMS_REPLICATED)
            here += ring_bytes(r, p, ranks) * ranks;
    }
    report_table(out, "ratio", NULL,
                 "optimizer:s:bytes_sent_for_NorMuon ratio:f3 "
                 "flops:f1:GFLOP,_all_ranks most:f1:GFLOP,_most_of_a_rank");
    report_row(out, "AdamW, ZeRO-1 on one flat buffer", 1.0, 0.0, 0.0);
    report_row(out, "Muon, ZeRO-1 on one flat buffer, split matrices gathered",
               (flat + split.gathered) / flat, split.flops / 1e9, split.most / 1e9);
    report_row(out, "here: whole matrices", here / flat, split.once / 1e9, most / 1e9);
}

static void plan_shares(const struct recipe *r, int ranks, struct report *out)
{
    double mean = 0, most = 0;
    for (int i = 0; i < r->n_params; i++)
        if (r->params[i].comms != COMMS_REPLICATED)
            mean += share_cost(r, i) * (double)r->params[i].matrices / ranks;
    if (ranks == 1 || mean == 0)
        return;
    report_table(out, "shares", NULL,
                 "ranks:s micro_batches:i:micro-batches matrices:s flops:f1:GFLOP_to_orthogonalise "
                 "sent:f1:MB_sent_with_all_parameters");
    for (int k = 0, next; k < ranks; k = next) {
        struct share s = share_of_rank(r, k, ranks), other = s;
        char range[32];
        for (next = k + 1; next < ranks; next++) {
            other = share_of_rank(r, next, ranks);
            if (other.micros != s.micros || strcmp(other.matrices, s.matrices))
                break;
        }
        snprintf(range, sizeof range, next - k > 1 ? "%d-%d" : "%d", k, next - 1);
        report_row(out, range, (int64_t)s.micros, s.matrices, s.flops / 1e9, s.sent / 1e6);
        most = s.flops > most ? s.flops : most;
    }
    report_line(out, "imbalance", "imbalance of orthogonalisation: %.3f (largest by mean)",
                most / mean);
    plan_ratios(r, ranks, most, out);
}

static void plan_comm(const struct recipe *r, int ranks, struct report *out)
{
    double copy = (double)head_fp8_bytes(r) * (ranks - 1) / ranks; /* gathered only */
    double even = 0, odd = copy, untied = copy, sparse = 0, mean = 0;
    bool parted = false;
    for (int i = 0; i < r->n_params; i++) {
        double b = ring_bytes(r, &r->params[i], ranks);
        if (!rule_is_adam(&r->params[i].rule))
            even += b;
        if (i != r->order.tied_embed)
            odd += b;
        untied += b;
        mean += plan_ring_bytes(r, i, ranks) / r->params[i].every;
        parted |= rule_is_adam(&r->params[i].rule) && r->params[i].every != r->optimizer.adam.every;
        sparse += r->params[i].comms == COMMS_SPARSE ? ring_reduce(r, &r->params[i], ranks) : 0;
    }
    report_table(out, "sent", NULL, "step:s:sent_by_each_rank_(rings) bytes:f1:MB_a_step");
    report_row(out, "step without Adam", even / 1e6);
    report_row(out, "step with Adam, tied", odd / 1e6);
    report_row(out, "step with Adam", untied / 1e6);
    if (parted)
        report_row(out, "mean, untied: not all of Adam's move in the same steps", mean / 1e6);
    if (sparse > 0)
        report_row(out, "of those with Adam, at most, sparse exchange of touched rows",
                   sparse / 1e6);
}

/* A line where the stage, the long window or the tie changes, or the multiplier of the learning rate
 * rises. */
static void plan_schedule(const struct recipe *r, struct report *out)
{
    struct step_schedule p, before = { .stage = -1 };
    int total = schedule_total(r);
    report_line(
        out, "steps",
        "schedule: %d steps; a line where the stage or a window changes, the learning rate's "
        "multiplier (lr) jumps, or head and embedding part",
        total);
    report_table(
        out, "schedule", NULL,
        "step:i tokens:i chunk_tokens:i:micro-batch window_long:i:long_window window_short:i:short_window "
        "sequence:i:longest_piece lr:f4 momentum:f4 mtp:s:weights_of_losses note:s:");
    for (int s = 0; s <= total; s++) {
        schedule_at(r, s, &p);
        bool jump = p.lr > before.lr + 1e-12;
        if (p.stage != before.stage || jump || p.tied != before.tied || s == total ||
            p.blocks_long != before.blocks_long) {
            char mtp[128] = "";
            int n = 0;
            for (int k = 0; k < p.n_mtp; k++)
                n += snprintf(mtp + n, sizeof mtp - (size_t)n, "%s%.4g", k ? "," : "", p.mtp[k]);
            if (p.prefixes)
                snprintf(mtp + n, sizeof mtp - (size_t)n, " prefix %.4g", p.prefix);
            report_row(out, (int64_t)s, (int64_t)p.tokens, (int64_t)p.chunk_tokens,
                       (int64_t)p.window_long, (int64_t)p.window_short, (int64_t)p.sequence,
                       (double)p.lr, (double)p.momentum, mtp,
                       s == total                         ? "last validation"
                       : !p.tied && before.tied && s != 0 ? "head and embedding part"
                                                          : "");
        }
        before = p;
    }
}

/* Names the parameters whose gradients wait after the last step. */
static void plan_waiting(const struct recipe *r, struct report *out)
{
    int total = schedule_total(r);
    char labels[400] = "";
    size_t n = 0;
    for (int i = 0; i < r->n_params && n < sizeof labels; i++)
        if (recipe_waits(&r->params[i], total))
            n += (size_t)snprintf(labels + n, sizeof labels - n, " %s", r->params[i].label);
    if (n)
        report_line(out, "waiting",
                    "after the last step, %d, gradients wait for an update that the run does not "
                    "reach:%s; its last checkpoint keeps them, and a run that gets more steps uses "
                    "them",
                    total, labels);
}

/* Prints text of a part in columns `first` to `width`, what is left from column `rest` on. It breaks at blanks, or
 * before operators. */
static void plan_fold(struct report *out, const char *part, const char *text, int first, int rest,
                      int width, bool operators)
{
    for (int column = first; *text; column = rest) {
        size_t room = (size_t)(width - column), all = strlen(text), n = all;
        for (size_t k = 1; all > room && k <= room; k++)
            if (text[k] == ' ' &&
                (!operators || (text[k + 1] && strchr("+-|", text[k + 1]) && text[k + 2] == ' ')))
                n = k;
        report_line(out, part, "%*s%.*s", column, "", (int)n, text);
        text += n + (text[n] == ' ');
    }
}

/* Prints a line of a kind's list, the rest of a long one below its parameters. */
static void plan_action(struct report *out, const char *text)
{
    plan_fold(out, "kind", text, 4, 27, 78, false);
}

static void plan_early(const struct recipe *r, uint32_t early, struct report *out)
{
    char text[800];
    size_t at = (size_t)snprintf(text, sizeof text, "%-22s", "reduce");
    for (int i = 0; i < r->n_params && at < sizeof text; i++)
        if (early >> i & 1)
            at += (size_t)snprintf(text + at, sizeof text - at, " %s", r->params[i].label);
    report_line(out, "kind", "  in the backward, as rows of the gradient become final");
    plan_action(out, text);
}

/* Prints "580 steps from step 1 on, tied, in phase 1 of 2:". */
static void plan_kind(const struct step_plan *p, int period, struct report *out)
{
    report_line(out, "kind", "%d step%s from step %d on%s, in phase %d of %d%s:", p->steps,
                p->steps == 1 ? "" : "s", p->first, p->kind.tied ? ", tied" : "", p->kind.phase,
                period, p->kind.change ? ", after a change of rules" : "");
}

/* Lines of a part of a kind's list, folded at 78 columns. */
static void plan_part(const struct recipe *r, const struct step_plan *p, enum part part,
                      struct report *out)
{
    static const char *const when[PARTS] = { "before the forward", "after the backward",
                                             "after the exchange" };
    const char *heading = when[part == PART_UPDATE && !p->exchanges ? PART_PAUSE : part];

    if (p->begin[part] < p->begin[part + 1])
        report_line(out, "kind", "  %s", heading);
    for (int a = p->begin[part]; a < p->begin[part + 1];) {
        char text[800];
        a = step_plan_line(r, p, a, text, sizeof text);
        plan_action(out, text);
    }
}

/* Prints what the optimizer does in each kind of step. */
static int plan_actions(const struct recipe *r, int ranks, struct report *out)
{
    struct step_plans s;
    int graphs, kinds = 0, rc = step_plans_make(&s, r, ranks, ranks > 1);
    if (rc)
        return rc;
    graphs = step_plans_graphs(&s);
    for (int k = 0; k < s.n; k++)
        kinds += s.plan[k].steps > 0;
    report_line(out, "graphs", "%d kind%s of step, %d graphs where steps are captured%s", kinds,
                kinds > 1 ? "s" : "", graphs,
                graphs > MAX_GRAPHS ? "; those after the 32nd are queued op by op" : "");
    for (int k = 0; k < s.n; k++) {
        const struct step_plan *p = &s.plan[k];
        if (!p->steps)
            continue;
        plan_kind(p, s.period, out);
        plan_part(r, p, PART_BEGIN, out);
        if (p->early)
            plan_early(r, p->early, out);
        plan_part(r, p, PART_PAUSE, out);
        plan_part(r, p, PART_UPDATE, out);
    }
    step_plans_free(&s);
    return 0;
}

/* Prints the order in which gradients become final, a bank's by matrices, "mlp:20-21". */
static int plan_order(const struct recipe *r, const struct backend *be, struct report *out)
{
    char text[32 * MAX_FINALS];
    size_t at = 0;
    struct run_order *o = malloc(sizeof *o);
    int rc = o ? run_order(o, r, be) : err_memory();
    for (int k = 0; k < (rc ? 0 : o->n) && at < sizeof text; k++) {
        const struct final_rows *f = &o->at[k];
        at += (size_t)snprintf(text + at, sizeof text - at, k ? ", %s" : "%s",
                               r->params[f->param].label);
        if (r->params[f->param].matrices > 1 && at < sizeof text)
            at += (size_t)snprintf(text + at, sizeof text - at, f->n > 1 ? ":%d-%d" : ":%d",
                                   f->first, f->first + f->n - 1);
    }
    free(o);
    if (rc)
        return rc;
    report_line(out, "final", "gradients become final in the backward in this order:");
    plan_fold(out, "final", text, 2, 2, 78, false);
    return 0;
}

static void plan_stream(void *out, const char *text)
{
    plan_fold(out, "streams", text, 0, 4, 80, true);
}

static int plan_streams(const struct recipe *r, struct report *out)
{
    struct streams *s = malloc(sizeof *s);
    if (!s)
        return err_memory();
    streams_make(s, r);
    streams_text(s, plan_stream, out);
    free(s);
    return 0;
}

static void plan_remark(void *out, const char *text)
{
    report_line(out, "remark", "remark: %s", text);
}

/* How much of the data a pass trains on. */
static int plan_data(const struct recipe *r, const char *data, const char *val, struct report *out)
{
    struct loader_config c = loader_config_of(r, data, val);
    struct pass p;
    char text[PASS_TEXT];
    int rc = loader_pass(&c, 0, &p);
    pass_text(&p, text, sizeof text);
    if (!rc)
        report_line(out, "pass", "a pass over the data trains on %s", text);
    return rc;
}

/* Graphs that a run on `world` ranks captures where its backend has them. */
static int graphs_of(int *n, const struct recipe *r, int world)
{
    struct step_plans s;
    int rc = step_plans_make(&s, r, world, world > 1);

    *n = rc ? 0 : step_plans_graphs(&s);
    step_plans_free(&s);
    return rc;
}

int run_wants(struct backend_wants *w, const struct recipe *r, bool no_graph)
{
    static const char *const in_fp8[] = { NULL,
                                          "the head",
                                          "the MLPs",
                                          "head and MLPs",
                                          "attention's projections",
                                          "head and attention's projections",
                                          "MLPs and attention's projections",
                                          "head, MLPs and attention's projections" };
    struct rendezvous_env at;
    int graphs = 0, rc = rendezvous_environment(&at);

    if (rc)
        return rc;
    w->world = w->ranks * at.processes;
    if (w->world > 1 && !no_graph && (rc = graphs_of(&graphs, r, w->world)))
        return rc;
    w->eager = w->world > 1 && (no_graph || graphs > MAX_GRAPHS);
    w->fp8 =
        in_fp8[!!r->precision.head.fp8 + 2 * !!r->precision.mlp.fp8 + 4 * r->precision.attn.fp8];
    w->cpu_alone = recipe_cpu_alone(r);
    w->fp8_required = r->precision.head.fp8 == HEAD_FP8_REQUIRE ? "precision.head_fp8"
                      : r->precision.mlp.fp8 == MLP_FP8_REQUIRE ? "precision.mlp"
                                                                : NULL;
    return 0;
}

int run_plan(const struct recipe *r, const struct backend *be, const char *data, const char *val,
             bool wide, FILE *f)
{
    struct run_memory memory;
    struct report out;
    int ranks = be->world, rc;
    if ((rc = check_ranks(r, ranks)) || (rc = run_memory(&memory, r, be)))
        return rc;
    report_begin(&out, f, wide ? REPORT_WIDE : REPORT_TEXT);
    int most = rank_micros(r->data.chunks, 0, ranks),
        least = rank_micros(r->data.chunks, ranks - 1, ranks);
    report_line(&out, "recipe", "recipe %s %s on %d rank%s, %s%d micro-batch%s a step", r->name,
                r->hash, ranks, ranks > 1 ? "s" : "", least < most ? "at most " : "", most,
                most > 1 ? "es" : "");
    plan_params(r, ranks, &out);
    plan_rules(r, &out);
    plan_schedules(r, &out);
    plan_memory(&memory, !strcmp(be->name, "cpu"), &out);
    plan_shares(r, ranks, &out);
    plan_comm(r, ranks, &out);
    plan_schedule(r, &out);
    plan_waiting(r, &out);
    if (!(rc = plan_streams(r, &out)) && !(rc = plan_order(r, be, &out)))
        rc = plan_actions(r, ranks, &out);
    recipe_remarks(r, plan_remark, &out);
    if (!rc)
        rc = data && strcmp(data, "-") ? plan_data(r, data, val, &out) : 0;
    int end = report_end(&out);
    return end ? end : rc;
}
