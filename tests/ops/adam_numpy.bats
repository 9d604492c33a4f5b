# Adam against NumPy's float64.

bats_require_minimum_version 1.5.0
load ../check/common

@test "Adam in 500 drawn forms: what is stored is NumPy's result within the types' errors" {
    python=$(numpy)
    [ -n "$python" ] || skip "no NumPy"
    "$GPT_TESTS/adam_cases" "$BATS_TEST_TMPDIR/forms.safetensors"
    "$python" tests/ops/adam_numpy.py "$BATS_TEST_TMPDIR/forms.safetensors"
}
