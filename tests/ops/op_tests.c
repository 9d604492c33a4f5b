/* op_tests.c - the ops that are tested, and steps through their cases. */
#include "op_test.h"
#include <time.h>

extern const struct op_test adam_test, amax_history_test, attention_test, choose_test, compose_test,
    cpu_test, embed_test, gate_logits_test, head_coefs_test, head_loss_test, inject_test,
    lanes_test, linear_test, linear_relu2_test, merge_rows_test, mix_norm_test, muon_input_test,
    normuon_test, out_gate_test, pair_signs_test, norm_test, bias_test, pair_rows_test, polar_test,
    qkv_test, quantize_test, rope_table_test, skip_gate_test, step_gate_test, store_test,
    table_grad_test, token_coefs_test, transpose_test, turn_test;

const struct op_test *const op_tests[] = {
    &cpu_test,        &embed_test,       &table_grad_test, &mix_norm_test,  &lanes_test,
    &inject_test,     &skip_gate_test,   &out_gate_test,   &linear_test,    &linear_relu2_test,
    &rope_table_test, &qkv_test,         &attention_test,  &head_loss_test, &token_coefs_test,
    &pair_signs_test, &gate_logits_test, &transpose_test,  &step_gate_test, &amax_history_test,
    &adam_test,       &quantize_test,    &muon_input_test, &polar_test,     &normuon_test,
    &merge_rows_test, &choose_test,      &store_test,      &norm_test,      &bias_test,
    &pair_rows_test,  &turn_test,        &head_coefs_test, &compose_test,
};
const int n_op_tests = COUNT(op_tests);

static uint64_t seed;

bool op_case_next(struct op_case_at *at)
{
    at->variant++;
    for (; at->test < n_op_tests; at->test++, at->cases = 0) {
        const struct op_test *t = op_tests[at->test];
        if (!check_of(t->name))
            continue;
        for (; at->cases < OP_CASES; at->cases++, at->variant = 0)
            if (at->variant < t->cases[at->cases].variants)
                return true;
    }
    return false;
}

/* Numbers are drawn by the table's place among those of all ops, whichever are asked for. */
void op_case_make(struct ops_case *c, struct ops *o, const struct op_case_at *at,
                  enum dtype weights, uint64_t case_seed)
{
    int table = at->cases;

    for (int i = 0; i < at->test; i++)
        for (int k = 0; k < OP_CASES; k++)
            table += op_tests[i]->cases[k].variants > 0;
    memset(c, 0, sizeof *c);
    c->o = o;
    c->weights = weights;
    c->rng = rng_make(case_seed, (uint64_t)(table * 100 + at->variant));
    op_tests[at->test]->cases[at->cases].make(c, at->variant);
}

uint64_t op_test_seed(void) { return seed; }

void op_test_begin(int argc, char **argv)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    seed = argc > 1 ? strtoull(argv[1], NULL, 10)
                    : (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
    printf("seed %llu\n", (unsigned long long)seed);
}
