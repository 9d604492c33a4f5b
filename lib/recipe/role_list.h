/* role_list.h - the parameters and scalars that the model reads of a recipe, by name.
 *
 * The only place that lists them. Whoever includes this file says what the two macros make of an
 * entry: struct model_params its members (model.h), recipe_check its tables (check.c),
 * model_init the loop that finds them in the banks (model.c).
 *
 * PARAM_ROLE(label, times, rows, cols, added, needed): a parameter of `times` times `rows` rows of
 * `cols`; times 0: of any multiple. Sizes are letters as in a recipe's shapes, 'g', the channels that
 * a gate reads, 'w', the columns of gate_table, and 'u', both; 'l', layers. A size of 0: the recipe
 * has no such parameter. added: ops only add to its gradient, which starts from zero on every rank.
 * SCALAR_ROLE(name, count, needed): learnable numbers, one or one a layer.
 * `needed` says when the recipe must have them. Else they may be there, and are used then; what is
 * not there is 1 (a scalar), 0 (a bias), 1 (a gain), or not done (a gate).
 */
#ifndef PARAM_ROLE
#define PARAM_ROLE(...)
#endif
#ifndef SCALAR_ROLE
#define SCALAR_ROLE(...)
#endif

/* Q, K, V and O of each layer; or Q and K, V and O, in two banks; or each in its own. */
PARAM_ROLE(attn, 0, "4a", "d", false, ALWAYS)
PARAM_ROLE(qk_bank, 0, "2q", "d", false, ALWAYS)
PARAM_ROLE(vo_bank, 0, "2y", "d", false, ALWAYS)
PARAM_ROLE(q_bank, 0, "j", "d", false, ALWAYS)
PARAM_ROLE(k_bank, 0, "j", "d", false, ALWAYS)
PARAM_ROLE(v_bank, 0, "i", "d", false, ALWAYS)
PARAM_ROLE(o_bank, 0, "i", "d", false, ALWAYS)
/* An MLP's two matrices, of which the second is stored (F,D); or each in its own bank, (D,F). */
PARAM_ROLE(mlp, 0, "2m", "d", false, ALWAYS)
PARAM_ROLE(up_bank, 0, "n", "d", false, ALWAYS)
PARAM_ROLE(down_bank, 0, "d", "n", false, ALWAYS)
PARAM_ROLE(lm_head, 1, "d", "v", false, ALWAYS)
PARAM_ROLE(embed, 1, "v", "d", false, ALWAYS)
PARAM_ROLE(bigram_embed, 1, "b", "p", false, ALWAYS)
PARAM_ROLE(bigram_sign_table, 1, "s", "p", true, ALWAYS)
PARAM_ROLE(smear_gate, 1, "1", "g", true, WITH_SMEAR)
PARAM_ROLE(skip_gate, 1, "1", "g", true, WITH_SKIP_GATE)
PARAM_ROLE(attn_gate_bank, 0, "h", "u", true, WITH_GATES)
PARAM_ROLE(ve_gate_bank, 0, "h", "u", true, WITH_VALUES)
PARAM_ROLE(gate_table, 1, "v", "w", false, ALWAYS)
PARAM_ROLE(xsa_alphas, 1, "x", "h", true, ALWAYS)
/* The MLPs of [token_coefs]: products (token_hidden, D), (token_width, token_hidden), biases. */
PARAM_ROLE(mudd_w1, 0, "t", "d", true, ALWAYS)
PARAM_ROLE(mudd_w2, 0, "c", "t", true, ALWAYS)
PARAM_ROLE(mudd_b2, 0, "1", "c", true, ALWAYS)
/* Those whose coefficients other layers use, too. */
PARAM_ROLE(mudd_gate_w1, 0, "r", "d", true, ALWAYS)
PARAM_ROLE(mudd_gate_w2, 0, "z", "r", true, ALWAYS)
PARAM_ROLE(mudd_gate_b2, 0, "1", "z", true, ALWAYS)
/* Biases of products, a row a layer; of the head. */
PARAM_ROLE(qkv_bias, 1, "l", "3i", true, NEVER)
PARAM_ROLE(o_bias, 1, "l", "d", true, NEVER)
PARAM_ROLE(up_bias, 1, "l", "n", true, NEVER)
PARAM_ROLE(down_bias, 1, "l", "k", true, NEVER)
PARAM_ROLE(head_bias, 1, "1", "v", true, NEVER)
/* Gains of norms: of the embedding's rows, of what attention and MLP read, a row a layer, of what the
 * head reads. */
PARAM_ROLE(embed_gain, 1, "1", "d", true, NEVER)
PARAM_ROLE(attn_gain, 1, "l", "d", true, NEVER)
PARAM_ROLE(mlp_gain, 1, "l", "d", true, NEVER)
PARAM_ROLE(head_gain, 1, "1", "d", true, NEVER)

SCALAR_ROLE(smear, 1, WITH_SMEAR)
/* Factor of the coefficients of the second set of MLPs; without it 1/10. */
SCALAR_ROLE(coef_scale, 1, NEVER)
SCALAR_ROLE(backout, 1, WITH_BACKOUT)
SCALAR_ROLE(skip, 1, WITH_SKIP)
/* Coefficients of the stream: in the mix before attention, or in the one after it (inject). */
SCALAR_ROLE(residual, MAX_LAYERS, WITH_AFTER)
/* Factors of x0 and of the bigram rows where they join the stream; of attention's two products. */
SCALAR_ROLE(x0, MAX_LAYERS, WITH_X0)
SCALAR_ROLE(bigram, MAX_LAYERS, WITH_BIGRAMS)
SCALAR_ROLE(qkv, MAX_LAYERS, NEVER)
SCALAR_ROLE(out, MAX_LAYERS, NEVER)
/* Factors of the stream after the MLP; of attention's and the MLP's product in each lane. */
SCALAR_ROLE(residual_mlp, MAX_LAYERS, WITH_LANES)
SCALAR_ROLE(attn_lane0, MAX_LAYERS, WITH_POST)
SCALAR_ROLE(attn_lane1, MAX_LAYERS, WITH_LANES)
SCALAR_ROLE(mlp_lane0, MAX_LAYERS, WITH_FOLD)
SCALAR_ROLE(mlp_lane1, MAX_LAYERS, WITH_LANES)

#undef PARAM_ROLE
#undef SCALAR_ROLE
