# gpt-train on a GPU: ends that are drawn at random, 20 of them, or N of the environment.

bats_require_minimum_version 1.5.0
load ../check/needs

@test "after any end --continue goes on to the bits of the uninterrupted run" {
    needs gpu
    run bash tests/check/random_ends.bash 1 "${N:-20}" --device cuda
    echo "$output"
    [ "$status" -eq 0 ]
    [ "$(grep -c '^ok ' <<< "$output")" -eq "${N:-20}" ]
}
