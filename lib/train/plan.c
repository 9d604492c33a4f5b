/* plan.c - memory, communication and schedule of a run, computed from the recipe (--plan). */
#include <stdio.h>
#include "base/report.h"
#include "train/rank.h"

static double mib(double bytes) { return bytes / (1 << 20); }

/* Bytes of a parameter's gradient. */
static double gradient_bytes(const struct recipe *r, const struct param_spec *s)
{
    double n = (double)(s->matrices * s->rows * s->cols);
    return n * (double)dtype_size(gradient_dtype(r, s));
}

/* Bytes that a rank sends in a ring reduction of the gradient. */
static double ring_reduce(const struct recipe *r, const struct param_spec *s, int ranks)
{
    return gradient_bytes(r, s) * (ranks - 1) / ranks;
}

/* The same with the gather after it: of weights, or, in an all-reduce, of gradients. */
static double ring_bytes(const struct recipe *r, const struct param_spec *s, int ranks)
{
    double after = s->comms == COMMS_REPLICATED ? gradient_bytes(r, s) : (double)param_bytes(s);
    return ring_reduce(r, s, ranks) + after * (ranks - 1) / ranks;
}

static int plan_params(const struct recipe *r, int ranks, struct report *out)
{
    static const char *const rules[] = { "normuon", "adam" };
    static const char *const comms[] = { "replicated", "sharded", "sparse" };
    report_table(out, "parameters", NULL,
                 "parameter:s shape:s:matrices_x_rows_x_cols dtype:s rule:s comms:s "
                 "units:i:units/rank weight_gradient:f2:weight+gradient,_MiB state:f2:state,_MiB "
                 "master:f2:of_it_master,_MiB");
    for (int i = 0; i < r->n_params; i++) {
        const struct param_spec *s = &r->params[i];
        int64_t units = s->matrices > 1 ? s->matrices : s->rows;
        bool whole = s->comms == COMMS_REPLICATED;
        char shape[64];
        if (!whole && units % ranks)
            return err_set(GPT_USAGE, "%s: %lld %s do not divide among %d ranks", s->label,
                           (long long)units, s->matrices > 1 ? "matrices" : "rows", ranks);
        snprintf(shape, sizeof shape, "%lld x %lld x %lld", (long long)s->matrices,
                 (long long)s->rows, (long long)s->cols);
        report_row(out, s->label, shape, dtype_name(s->dtype), rules[s->rule], comms[s->comms],
                   whole ? units : units / ranks,
                   mib((double)param_bytes(s) + gradient_bytes(r, s)),
                   mib((double)optim_param_bytes(r, i, ranks)),
                   mib((double)optim_master_bytes(r, i, ranks)));
    }
    return 0;
}

static void plan_memory(const struct recipe *r, int ranks, enum dtype act, struct report *out)
{
    struct batch_shape big = batch_largest(r);
    double weights = (double)head_fp8_bytes(r), state = 0;
    double acts =
        (double)model_arena_bytes(r, act, big.tokens, r->val_tokens ? (int)r->val_chunk : 0);
    double work = (double)optim_work_bytes(r, ranks);
    double batches = 2.0 * r->chunks / ranks * (double)batch_slot_bytes(r, big.tokens, true) +
                     (double)batch_slot_bytes(r, r->val_chunk, false);
    for (int i = 0; i < r->n_params; i++) {
        weights += (double)param_bytes(&r->params[i]) + gradient_bytes(r, &r->params[i]);
        state += (double)optim_param_bytes(r, i, ranks);
    }
    report_table(out, "memory", NULL, "part:s:memory_a_rank bytes:f1:MiB");
    report_row(out, "weights and gradients", mib(weights));
    report_row(out, "optimizer state", mib(state));
    report_row(out, "optimizer work", mib(work));
    report_row(out, "activations", mib(acts));
    report_row(out, "batches", mib(batches));
    report_row(out, "sum, without what single ops take",
               mib(weights + state + work + acts + batches));
}

static void plan_comm(const struct recipe *r, int ranks, struct report *out)
{
    double copy = (double)head_fp8_bytes(r) * (ranks - 1) / ranks; /* gathered only */
    double even = 0, odd = copy, untied = copy, sparse = 0;
    for (int i = 0; i < r->n_params; i++) {
        double b = ring_bytes(r, &r->params[i], ranks);
        if (r->params[i].rule == RULE_NORMUON)
            even += b;
        if (i != r->tied_embed)
            odd += b;
        untied += b;
        sparse += r->params[i].comms == COMMS_SPARSE ? ring_reduce(r, &r->params[i], ranks) : 0;
    }
    report_table(out, "sent", NULL, "step:s:sent_by_each_rank_(rings) bytes:f1:MB_a_step");
    report_row(out, "step without Adam", even / 1e6);
    report_row(out, "step with Adam, tied", odd / 1e6);
    report_row(out, "step with Adam", untied / 1e6);
    if (sparse > 0)
        report_row(out, "of the latter two, at most, sparse exchange of touched rows",
                   sparse / 1e6);
}

/* A line where the stage, the long window or the tie changes, or the multiplier of the learning rate
 * rises. */
static void plan_schedule(const struct recipe *r, struct report *out)
{
    struct step_schedule p, before = { .stage = -1 };
    int total = schedule_total(r);
    report_line(out, "steps",
                "schedule: %d steps; one line where the stage, the multiplier's stage or the tie "
                "changes",
                total);
    report_table(out, "schedule", NULL,
                 "step:i tokens:i chunk_tokens:i:T/chunk window_long:i:long window_short:i:short "
                 "sequence:i lr:f4 momentum:f4 mtp:s note:s:");
    for (int s = 0; s <= total; s++) {
        schedule_at(r, s, &p);
        bool jump = p.lr > before.lr + 1e-12;
        if (p.stage != before.stage || jump || p.tied != before.tied || s == total ||
            p.blocks_long != before.blocks_long) {
            char mtp[128] = "";
            for (int k = 0, n = 0; k < p.n_mtp; k++)
                n += snprintf(mtp + n, sizeof mtp - (size_t)n, "%s%.4g", k ? "," : "", p.mtp[k]);
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

int run_plan(const struct recipe *r, int ranks, enum dtype act, FILE *f)
{
    struct report out;
    int rc = check_ranks(r, ranks);
    if (rc)
        return rc;
    report_begin(&out, f, REPORT_TEXT);
    report_line(&out, "recipe", "recipe %s %s on %d rank%s, %d micro-batch%s a step", r->name,
                r->hash, ranks, ranks > 1 ? "s" : "", r->chunks / ranks,
                r->chunks / ranks > 1 ? "es" : "");
    if (!(rc = plan_params(r, ranks, &out))) {
        plan_memory(r, ranks, act, &out);
        plan_comm(r, ranks, &out);
        plan_schedule(r, &out);
    }
    int end = report_end(&out);
    return rc ? rc : end;
}
