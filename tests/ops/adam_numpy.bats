# Adam against NumPy's float64.

bats_require_minimum_version 1.5.0
load ../check/needs

@test "Adam in 500 drawn forms: what is stored is NumPy's result within the types' errors" {
    needs numpy
    "$GPT_TESTS/adam_cases" "$BATS_TEST_TMPDIR/forms.safetensors"
    "$(numpy)" tests/ops/adam_numpy.py "$BATS_TEST_TMPDIR/forms.safetensors"
}
