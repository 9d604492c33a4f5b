/* plan.c - what a run will take, before it takes it. */
#include <string.h>
#include "train/rank.h"

static double mib(double bytes) { return bytes / (1 << 20); }

/* Bytes of a parameter's gradient. */
static double gradient_bytes(const struct recipe *r, const struct param_spec *s)
{
    double n = (double)(s->matrices * s->rows * s->cols);
    return n * (double)dtype_size(gradient_dtype(r, s));
}

/* Bytes that a rank sends for one reduction of the gradient, by a ring. */
static double ring_reduce(const struct recipe *r, const struct param_spec *s, int ranks)
{
    return gradient_bytes(r, s) * (ranks - 1) / ranks;
}

/* And with the gather after it, of weights; of an all-reduce, of gradients. */
static double ring_bytes(const struct recipe *r, const struct param_spec *s, int ranks)
{
    double after = s->comms == COMMS_REPLICATED ? gradient_bytes(r, s) : (double)param_bytes(s);
    return ring_reduce(r, s, ranks) + after * (ranks - 1) / ranks;
}

static int plan_params(const struct recipe *r, int ranks, FILE *f)
{
    static const char *const rules[] = { "normuon", "adam" };
    static const char *const comms[] = { "replicated", "sharded", "sparse" };
    fprintf(f, "parameter       matrices x rows x cols    dtype rule    comms      units/rank "
               "  MiB/rank (weight+gradient, state)\n");
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
        fprintf(f, "%-15s %-25s %-5s %-7s %-10s %10lld %9.2f %9.2f\n", s->label, shape,
                dtype_name(s->dtype), rules[s->rule], comms[s->comms],
                (long long)(whole ? units : units / ranks),
                mib((double)param_bytes(s) + gradient_bytes(r, s)),
                mib((double)optim_param_bytes(r, i, ranks)));
    }
    return 0;
}

static void plan_memory(const struct recipe *r, int ranks, enum dtype act, FILE *f)
{
    struct batch_shape big = feed_largest(r);
    double weights = (double)head_fp8_bytes(r), state = 0;
    double acts =
        (double)model_arena_bytes(r, act, big.tokens, r->val_tokens ? (int)r->val_chunk : 0);
    double work = (double)optim_work_bytes(r, ranks);
    double batches = 2.0 * r->chunks / ranks * (double)feed_slot_bytes(r, big.tokens, true) +
                     (double)feed_slot_bytes(r, r->val_chunk, false);
    for (int i = 0; i < r->n_params; i++) {
        weights += (double)param_bytes(&r->params[i]) + gradient_bytes(r, &r->params[i]);
        state += (double)optim_param_bytes(r, i, ranks);
    }
    fprintf(f, "\nmemory a rank, MiB\n");
    fprintf(f, "weights and gradients %10.1f\n", mib(weights));
    fprintf(f, "optimizer state       %10.1f\n", mib(state));
    fprintf(f, "optimizer work        %10.1f\n", mib(work));
    fprintf(f, "activations           %10.1f\n", mib(acts));
    fprintf(f, "batches               %10.1f\n", mib(batches));
    fprintf(f, "sum                   %10.1f  (and what single ops need for themselves)\n",
            mib(weights + state + work + acts + batches));
}

static void plan_comm(const struct recipe *r, int ranks, FILE *f)
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
    fprintf(f, "\nsent by each rank, MB a step (rings)\n");
    fprintf(f, "step without Adam     %10.1f\n", even / 1e6);
    fprintf(f, "step with Adam, tied  %10.1f\n", odd / 1e6);
    fprintf(f, "step with Adam        %10.1f\n", untied / 1e6);
    if (sparse > 0)
        fprintf(f,
                "of the latter two     %10.1f at most by the sparse exchange, which sends rows "
                "that were touched\n",
                sparse / 1e6);
}

/* One line where something other than the steady drift of the numbers changes. */
static void plan_schedule(const struct recipe *r, FILE *f)
{
    struct point p, before = { .stage = -1 };
    int total = schedule_total(r);
    fprintf(f,
            "\nschedule: %d steps; one line where the stage, the multiplier's stage or the tie "
            "changes\n",
            total);
    fprintf(f, "  step   tokens  T/chunk  long short  sequence      lr momentum  mtp\n");
    for (int s = 0; s <= total; s++) {
        schedule_at(r, s, &p);
        bool jump = p.lr > before.lr + 1e-12;
        if (p.stage != before.stage || jump || p.tied != before.tied || s == total ||
            p.blocks_long != before.blocks_long) {
            fprintf(f, "%6d %8lld %8d %5d %5d %9d %7.4f %8.4f  ", s, (long long)p.tokens,
                    p.chunk_tokens, p.window_long, p.window_short, p.sequence, p.lr, p.momentum);
            for (int k = 0; k < p.n_mtp; k++)
                fprintf(f, "%s%.4g", k ? "," : "", p.mtp[k]);
            fprintf(f, "%s%s\n", !p.tied && before.tied && s ? "  head and embedding part" : "",
                    s == total ? "  last validation" : "");
        }
        before = p;
    }
}

int run_plan(const struct recipe *r, int ranks, enum dtype act, FILE *f)
{
    int rc = check_ranks(r, ranks);
    if (rc)
        return rc;
    fprintf(f, "recipe %s %s on %d rank%s, %d micro-batch%s a step\n\n", r->name, r->hash, ranks,
            ranks > 1 ? "s" : "", r->chunks / ranks, r->chunks / ranks > 1 ? "es" : "");
    if ((rc = plan_params(r, ranks, f)))
        return rc;
    plan_memory(r, ranks, act, f);
    plan_comm(r, ranks, f);
    plan_schedule(r, f);
    return 0;
}
