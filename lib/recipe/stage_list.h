/* stage_list.h - the stages of a rule's chain: word, numbers, words that may follow, where it may stand,
 * FLOPs of a matrix, states.
 *
 * The only place that lists them: rule.h makes an enum of it, rules.c the table that reads a line,
 * optim/rules.c binds each to a function run_WORD. X is the value on its way from the gradient to the
 * weight, in f32; formulas are in optimizers.md 4.7.
 */
#define NO_STATE \
    { \
        { \
            NULL, EACH, DT_NONE \
        } \
    }
#define STATE(...) \
    { \
        { \
            __VA_ARGS__ \
        } \
    }

/* X <- the running mean of X; with nesterov X + MU (mean - X). */
STAGE(momentum, "MU", "nesterov", STAGE_BEFORE | STAGE_EACH | STAGE_MEAN, NULL,
      STATE("momentum", EACH, DT_F32))
/* X <- its orthogonal factor, of X / (margin |X| + eps), or with aol of X as AOL scales it. ROWS stands
 * before the numbers: a name of coefficients. */
STAGE(polar, "ROWS margin=1 eps=1e-7", "aol", STAGE_BEFORE, polar_flops, NO_STATE)
/* X scaled by row or column to one running second moment, its norm kept; round: to polar's type. */
STAGE(variance, "B", "round", STAGE_BEFORE | STAGE_MEAN, NULL,
      STATE("second_momentum", LONG_SIDE, DT_F32))
/* X, or with lr the rate, times sqrt(max(1, R / C)), or match sqrt(max(R, C)) where match is given;
 * stored: R and C as the bank has them. */
STAGE(shape, "match=0", "lr stored", STAGE_BEFORE | STAGE_EACH, NULL, NO_STATE)
/* X <- its signs, 0 at 0. */
STAGE(sign, "", "", STAGE_BEFORE | STAGE_EACH, NULL, NO_STATE)
STAGE(scale, "C", "", STAGE_BEFORE | STAGE_EACH, NULL, NO_STATE)
/* W less its part D lr, with lr2 D lr^2; cautious: where X W >= 0, strict: where X W > 0. The write does
 * it, right before or behind its own part. */
STAGE(decay, "D", "plain cautious strict lr2", STAGE_BEFORE | STAGE_BEHIND | STAGE_EACH, NULL,
      NO_STATE)
STAGE(step, "", "", STAGE_WRITES | STAGE_EACH, NULL, NO_STATE)
/* All of optimizers.md 3 in one: moments, decay, write, in the types of [precision] and [states]. */
STAGE(adam, "", "", STAGE_WRITES | STAGE_EACH, NULL, NO_STATE)

#undef STATE
#undef NO_STATE
#undef STAGE
