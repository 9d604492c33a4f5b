# The same bits from gpt-train: again, with any number of threads, with other vector instructions.

bats_require_minimum_version 1.5.0
load tiny_runs

# bats test_tags=long
@test "the same command twice gives the same bits" {
    train --ranks 2 -o "$BATS_TEST_TMPDIR/a" > "$BATS_TEST_TMPDIR/a.log"
    train --ranks 2 -o "$BATS_TEST_TMPDIR/b" > "$BATS_TEST_TMPDIR/b.log"
    diff <(losses "$BATS_TEST_TMPDIR/a.log") <(losses "$BATS_TEST_TMPDIR/b.log")
    same_checkpoint "$BATS_TEST_TMPDIR/a" "$BATS_TEST_TMPDIR/b"
}

# bats test_tags=long
@test "any number of threads, and AVX2 in place of AVX-512, give the same bits" {
    # more columns than a part of the head has, and products that are worth being split
    wide() {
        train -s model.vocab=2064 -s model.head_dim=32 -s model.mlp_width=256 -s schedule.steps=4 \
            -s schedule.extension=1 -s data.chunks=2 --keep 1 "$@"
    }
    wide --ranks 2 --threads 1 -o 1 > 1.log
    for n in 2 3 8; do
        wide --ranks 2 --threads $n -o $n > $n.log
        grep -q "^kernels: .*, threads a rank: $n\$" $n.log
        diff <(losses 1.log) <(losses $n.log)
        same_checkpoint 1 $n
    done
    GPT_SIMD=fma wide --ranks 2 --threads 2 -o fma > fma.log
    if ! grep -q '^kernels: SSE2' fma.log; then
        diff <(losses 1.log) <(losses fma.log)
        same_checkpoint 1 fma
    fi
}

# Operands are rounded to 8 bits, by 2^-9 at most, which a loss that changed by as much would show as 0.2%. AMX
# and plain sums differ by f32's rounding, and by bf16's where that decides an operand: a tenth is allowed.
# bats test_tags=long
@test "precision.cpu_products = bf16: losses near those of f32, the same bits with any number of threads" {
    few() { train -s model.mlp_width=256 -s schedule.steps=3 -s schedule.extension=1 "$@"; }
    few > f32.log
    few -s precision.cpu_products=bf16 --threads 1 > 1.log
    few -s precision.cpu_products=bf16 --threads 3 > 3.log
    GPT_SIMD=fma few -s precision.cpu_products=bf16 --threads 1 > fma.log
    diff <(losses 1.log) <(losses 3.log)
    run ! diff <(losses 1.log) <(losses f32.log)
    read -r n worst <<< "$(worst_difference 1.log f32.log)"
    [ "$n" -eq 4 ] && [ "$worst" -le 20000 ]
    read -r n worst <<< "$(worst_difference 1.log fma.log)"
    [ "$n" -eq 4 ] && [ "$worst" -le 2000 ]
    run -2 --separate-stderr few -s precision.cpu_products=f16
    [[ "$stderr" == *"precision.cpu_products=f16: expected f32|bf16"* ]]
}
