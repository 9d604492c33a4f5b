/* remarks.c - see remarks.h. */
#include "recipe/remarks.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "coeffs/eval.h"

struct remarks {
    void (*say)(void *ctx, const char *text);
    void *ctx;
};

static void remark(const struct remarks *m, const char *fmt, ...) PRINTF_LIKE(2, 3);
static void remark(const struct remarks *m, const char *fmt, ...)
{
    char text[320];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    m->say(m->ctx, text);
}

/* True if no token of the stage has a loss. */
static bool has_no_loss(const struct stage *s)
{
    bool some = s->prefix_first != 0 || s->prefix_last != 0;
    for (int k = 0; k < s->n_mtp; k++)
        some |= s->mtp_first[k] != 0 || s->mtp_last[k] != 0;
    return !some;
}

/* Windows and sequences that no micro-batch is long enough for; weights and rates of zero. */
static void remark_stage(const struct remarks *m, const struct recipe *r, int i)
{
    const struct stage *s = &r->stages[i];
    long long tokens = s->tokens / r->data.chunks, window = (long long)s->window * r->model.block;
    if (window > tokens)
        remark(
            m,
            "stages.%d: windows of %lld tokens, and a micro-batch has %lld: no token sees so far "
            "back in training",
            i, window, tokens);
    if (s->sequence > tokens)
        remark(m,
               "stages.%d: a sequence of %d tokens, and a micro-batch has %lld: no piece of a "
               "document is so long",
               i, s->sequence, tokens);
    if (has_no_loss(s))
        remark(m, "stages.%d: all losses have weight 0: its steps train nothing", i);
    if ((i + 1 < r->n_stages ? s->lr : r->schedule.lr_floor) == 0)
        remark(m, "stages.%d: the learning rate is 0: its steps train nothing", i);
}

/* Singular values are at most 1 before the first row. */
static void remark_coeffs(const struct remarks *m, const struct recipe *r)
{
    struct coeffs c = { .n = r->optimizer.polar.n, .terms = 3 };
    struct range f;
    for (int k = 0; k < c.n; k++)
        memcpy(c.row[k], r->optimizer.polar.row[k], sizeof r->optimizer.polar.row[k]);
    if (eval_range(&c, 0, 1, &f) || (f.high <= 2 && f.low >= -2))
        return;
    remark(m,
           "optimizer.coeffs: singular values up to 1 become as large as %.3g, where 1 is wanted: "
           "ns-coeffs eval says more",
           f.high > -f.low ? f.high : -f.low);
}

void recipe_remarks(const struct recipe *r, void (*say)(void *ctx, const char *text), void *ctx)
{
    struct remarks m = { say, ctx };
    for (int i = 0; i < r->n_stages; i++)
        if (i + 1 < r->n_stages || r->schedule.extension)
            remark_stage(&m, r, i);
    remark_coeffs(&m, r);
}
