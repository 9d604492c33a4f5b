# The model and the optimizer against numbers that the record's own program made.

bats_require_minimum_version 1.5.0

@test "the CPU, in f32" {
    "$GPT_TESTS/golden" tests/golden/*.safetensors
}

# A GPU's tolerances hold for its precision itself, without any GPU.
# bats test_tags=long
@test "the CPU with weights and activations in bf16" {
    "$GPT_TESTS/golden" --device bf16 tests/golden/*-forward-*.safetensors
}
