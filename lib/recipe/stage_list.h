/* stage_list.h - the stages of a rule's chain: word, numbers, words that may follow, where it may stand,
 * FLOPs of a matrix, states.
 *
 * The only place that lists them: rule.h makes an enum of it, rules.c the table that reads a line,
 * optim/rules.c binds each to a function run_WORD. X is the value on its way from the gradient to the
 * weight, in f32; formulas are in optimizers.md 4.7.
 */
#define STATES(...) \
    { \
        __VA_ARGS__ \
    }
#define NO_STATE STATES({ NULL, EACH, DT_NONE, NULL })

/* X <- the running mean of X; nesterov: X + MU (mean - X). sum: MU M + X in place of the mean, X + MU M.
 * corrected: over 1 - MU^t, which is the mean of ones. first: the first update's X is taken as 0. */
STAGE(momentum, "MU", "nesterov sum corrected first", STAGE_BEFORE | STAGE_EACH, NULL,
      STATES({ "momentum", EACH, DT_F32, NULL }, { "momentum_age", ONE, DT_F32, "corrected" },
             { "momentum_begun", ONE, DT_F32, "first" }))
/* A term B*A of a kernel: A times the running mean of X, added to the terms before; c: over 1 - B^t. The last,
 * with nesterov, adds MU (sum - X) to X. One word of a line makes a use of each term. */
STAGE(kernel, "B A MU=0", "c first nesterov", STAGE_BEFORE | STAGE_EACH, NULL,
      STATES({ "kernel", EACH, DT_F32, NULL }, { "kernel_age", ONE, DT_F32, "c" }))
/* X <- B1 M + (1 - B1) X, then M <- B2 M + (1 - B2) X. */
STAGE(lion, "B1 B2", "", STAGE_BEFORE | STAGE_EACH, NULL, STATES({ "lion", EACH, DT_F32, NULL }))
/* X, in bases in which the running means of g g' and g' g become diagonal, over the root of its running second
 * moment there. late: X passes in the first update, and bases are sorted; gate A-B: X moves towards it by as much
 * as the two agree, from step A on less than a part, from B on all of it. short: the shorter side alone, or the left
 * of two, has a basis. */
STAGE(soap, "B eps=1e-8 gate=0 +until=0", "second g X late norm short",
      STAGE_BEFORE | STAGE_PRODUCTS, soap_flops,
      STATES({ "soap_left", LEFT_SQUARE, DT_F32, NULL },
             { "soap_right", RIGHT_SQUARE, DT_F32, NULL },
             { "soap_left_q", LEFT_SQUARE, DT_F32, NULL },
             { "soap_right_q", RIGHT_SQUARE, DT_F32, NULL }, { "soap_second", EACH, DT_F32, NULL },
             { "soap_updates", ONE, DT_F32, NULL }))
/* X, in the bases of covariances that are whitened from the other side, over the root of g's running second moment
 * there + E; the first update moves nothing. */
STAGE(klsoap, "B BS E init=0.1", "", STAGE_BEFORE | STAGE_PRODUCTS, klsoap_flops,
      STATES({ "klsoap_left", LEFT_SQUARE, DT_F32, NULL },
             { "klsoap_right", RIGHT_SQUARE, DT_F32, NULL },
             { "klsoap_left_q", LEFT_SQUARE, DT_F32, NULL },
             { "klsoap_right_q", RIGHT_SQUARE, DT_F32, NULL },
             { "klsoap_second", EACH, DT_F32, NULL }, { "klsoap_left_e", LEFT_LINE, DT_F32, NULL },
             { "klsoap_right_e", RIGHT_LINE, DT_F32, NULL },
             { "klsoap_updates", ONE, DT_F32, NULL }))
/* X times the power -G of its own covariances, from both sides, by their bases, which begin at random. */
STAGE(covpower, "G B", "", STAGE_BEFORE | STAGE_PRODUCTS, covpower_flops,
      STATES({ "covpower_left", LEFT_SQUARE, DT_F32, NULL },
             { "covpower_right", RIGHT_SQUARE, DT_F32, NULL },
             { "covpower_left_q", LEFT_SQUARE, DT_F32, NULL },
             { "covpower_right_q", RIGHT_SQUARE, DT_F32, NULL }))
/* X times the power P of the running means of g g' and g' g, corrected, from both sides. */
STAGE(shampoo, "B P eps=0", "both pinv", STAGE_BEFORE | STAGE_PRODUCTS, eigen_flops,
      STATES({ "shampoo_left", LEFT_SQUARE, DT_F32, NULL },
             { "shampoo_right", RIGHT_SQUARE, DT_F32, NULL }, { "shampoo_age", ONE, DT_F32, NULL }))
/* X, in the eigenvectors of the running means of g g' and g' g, with the squares of its lines made alike N times. */
STAGE(sinkhorn, "B N", "", STAGE_BEFORE | STAGE_PRODUCTS, eigen_flops,
      STATES({ "sinkhorn_left", LEFT_SQUARE, DT_F32, NULL },
             { "sinkhorn_right", RIGHT_SQUARE, DT_F32, NULL }))
/* X whitened by two triangular factors, which move by a step P of PSGD with a random probe. */
STAGE(psgd, "P", "", STAGE_BEFORE | STAGE_PRODUCTS, psgd_flops,
      STATES({ "psgd_left", LEFT_SQUARE, DT_F32, NULL },
             { "psgd_right", RIGHT_SQUARE, DT_F32, NULL }, { "psgd_updates", ONE, DT_F32, NULL }))
/* X <- X / (the root of the running mean of g^2 + EPS). */
STAGE(second, "B EPS", "corrected", STAGE_BEFORE | STAGE_EACH, NULL,
      STATES({ "second", EACH, DT_F32, NULL }, { "second_age", ONE, DT_F32, "corrected" }))
/* M <- M + X; X <- the ceil(F n) lines of the shorter side where M has the largest sum of magnitudes, 0 elsewhere;
 * those of M times D. */
STAGE(select, "F D", "", STAGE_BEFORE, NULL, STATES({ "select", EACH, DT_F32, NULL }))
/* Each row scaled to the root mean square of all. */
STAGE(rows, "", "", STAGE_BEFORE, NULL, NO_STATE)
/* X <- its orthogonal factor, of X / (margin |X| + eps), or with aol of X as AOL scales it, with schatten4 of
 * X / N(X). ROWS stands before the numbers: a name of coefficients. balance: so many times, with the lines of
 * the long side scaled to one norm, as the power `by` of what is missing. */
STAGE(polar, "ROWS margin=1 eps=1e-7 balance=0 +by=0.5", "aol schatten4", STAGE_BEFORE, polar_flops,
      NO_STATE)
/* X <- its singular values to the power P, by a series behind `polar cubic12`. */
STAGE(power, "P", "", STAGE_BEFORE, power_flops, NO_STATE)
/* X less C times what entered polar over its largest singular value (power5: of five power iterations), or over
 * N, to the norm, or N, that X had. */
STAGE(contra, "C", "power5 schatten4", STAGE_BEFORE, contra_flops, NO_STATE)
/* X moved by B (max at most) towards a sum of polar's iterates, N kept. */
STAGE(soft, "PART max=1", "", STAGE_BEFORE, norm_flops, NO_STATE)
/* X scaled by row or column to one running second moment, its norm kept, or with schatten4 N, or with free
 * none; round: to polar's type. */
STAGE(variance, "B", "round free schatten4", STAGE_BEFORE, NULL,
      STATES({ "second_momentum", LONG_SIDE, DT_F32, NULL }))
/* X, or with lr the rate, times sqrt(max(1, R / C)), match: r sqrt(max(R, C)), spectral: sqrt(R / C);
 * stored: R and C as the bank has them. */
STAGE(shape, "match=0", "lr stored spectral", STAGE_BEFORE | STAGE_EACH, NULL, NO_STATE)
/* X <- its signs, 0 at 0. */
STAGE(sign, "", "", STAGE_BEFORE | STAGE_EACH, NULL, NO_STATE)
/* X and the gradient that later stages read, times C. */
STAGE(scale, "C", "", STAGE_BEFORE | STAGE_EACH, NULL, NO_STATE)
/* X to the norm of Adam's step: of the last mean before over the root of g^2's, both corrected. */
STAGE(graft, "B EPS", "", STAGE_BEFORE, NULL,
      STATES({ "graft", EACH, DT_F32, NULL }, { "graft_age", ONE, DT_F32, NULL }))
/* X to the norm sqrt(min(R, C)). */
STAGE(renorm, "", "", STAGE_BEFORE, NULL, NO_STATE)
/* X <- X less (1 - S) of its part along W, where that lengthens W. */
STAGE(radial, "S", "", STAGE_BEFORE, NULL, NO_STATE)
/* X to T |W| where its norm is below that; row: row by row. */
STAGE(floor, "T", "row", STAGE_BEFORE, NULL, NO_STATE)
/* W less its part D lr, with lr2 D lr^2; cautious: where X W >= 0, strict: where X W > 0; multiplied: lr has the
 * matrix's multiplier. The write does it, right before or behind its own part. */
STAGE(decay, "D", "plain cautious strict lr2 multiplied", STAGE_BEFORE | STAGE_BEHIND | STAGE_EACH,
      NULL, NO_STATE)
/* W <- W - lr X; pin: then to the norm that the radial part of the step leaves. */
STAGE(step, "", "pin", STAGE_WRITES | STAGE_EACH, NULL, NO_STATE)
/* W <- W - lr |W| X / |X|, then to the norm that it had. */
STAGE(hyperball, "", "", STAGE_WRITES, NULL, NO_STATE)
/* W = G v / |v| row by row: v moves by momentum and polar, G by Adam, and |v| goes from where it began to NORM in
 * STEPS updates, as the power of the way; all of its chain. */
STAGE(weightnorm, "NORM steps=3165 power=1.2", "", STAGE_WRITES, polar_flops,
      STATES({ "direction", EACH, DT_F32, NULL }, { "gain", LONG_SIDE, DT_F32, NULL },
             { "gain_mean", LONG_SIDE, DT_F32, NULL }, { "gain_second", LONG_SIDE, DT_F32, NULL },
             { "row_norm", LONG_SIDE, DT_F32, NULL }, { "row_norm_first", LONG_SIDE, DT_F32, NULL },
             { "updates", ONE, DT_F32, NULL }))
/* All of optimizers.md 3 in one: moments, decay, write, in the types of [precision] and [states]. */
STAGE(adam, "", "", STAGE_WRITES | STAGE_EACH, NULL, NO_STATE)

#undef STATES
#undef NO_STATE
#undef STAGE
