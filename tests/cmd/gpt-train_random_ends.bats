# gpt-train: ends that are drawn at random, ten of them, or N=200 of the environment.

bats_require_minimum_version 1.5.0

@test "after any end --continue goes on to the bits of the uninterrupted run" {
    n=${N:-10} half=$(((${N:-10} + 1) / 2))
    bash tests/check/random_ends.bash 1 $half > "$BATS_TEST_TMPDIR/1" 2>&1 &
    first=$! status=0
    bash tests/check/random_ends.bash $((half + 1)) $((n - half)) > "$BATS_TEST_TMPDIR/2" 2>&1 || status=$?
    wait $first || status=$?
    grep -v '^ok ' "$BATS_TEST_TMPDIR/1" "$BATS_TEST_TMPDIR/2"
    [ "$(grep -c '^ok ' "$BATS_TEST_TMPDIR/1")" -eq "$half" ]
    [ "$(grep -c '^ok ' "$BATS_TEST_TMPDIR/2")" -eq $((n - half)) ]
    [ "$status" -eq 0 ]
}
