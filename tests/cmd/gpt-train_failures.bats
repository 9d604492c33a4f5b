# gpt-train where the system fails it: folders, disks, threads. One message, no half checkpoint.

bats_require_minimum_version 1.5.0
load tiny_runs

@test "an output folder that cannot be written is told before the first step, and none is left empty" {
    for out in - /proc; do
        run --separate-stderr train -o "$out"
        echo "$out: $status $stderr"
        [[ $status == [24] && -z "$output" && "${stderr_lines[0]}" == *"'$out'"* ]]
    done
    run --separate-stderr "$GPT_BIN/gpt-train" -r "$GPT_SHARE/recipes/tiny.recipe" -d nosuch -o "$BATS_TEST_TMPDIR/new"
    [ "$status" -eq 4 ]
    [ ! -e "$BATS_TEST_TMPDIR/new" ]
    # an empty one that was there stays
    mkdir "$BATS_TEST_TMPDIR/mine"
    run --separate-stderr "$GPT_BIN/gpt-train" -r "$GPT_SHARE/recipes/tiny.recipe" -d nosuch -o "$BATS_TEST_TMPDIR/mine"
    [ "$status" -eq 4 ]
    [ -d "$BATS_TEST_TMPDIR/mine" ]
}

@test "a closed stdout and a full disk end the run with one message and no half checkpoint" {
    to_full() { train > /dev/full; }
    run --separate-stderr to_full
    [ "$status" -eq 4 ]
    [[ "$stderr" == gpt-train:*"run log"* ]]
    mkdir "$BATS_TEST_TMPDIR/ro"
    ln -s /dev/full "$BATS_TEST_TMPDIR/file"
    run --separate-stderr train -o "$BATS_TEST_TMPDIR/file"
    [ "$status" -eq 4 ]
    [ "$(wc -l <<< "$stderr")" -eq 1 ]
}

@test "ranks that get no thread end the run at once, and the message says why" {
    few() {                     # stacks of 500 MB: there is room for some of them
        ulimit -s 500000 -v 4000000
        OPENBLAS_NUM_THREADS=1 exec timeout -s KILL 30 "$GPT_BIN/gpt-train" -q -d "$SHARDS" \
            -r "$GPT_SHARE/recipes/tiny.recipe" "${SMALL[@]}" -s data.val_tokens=0 --ranks 8
    }
    run --separate-stderr few
    [ "$status" -eq 4 ]
    [ "${#stderr_lines[@]}" -eq 1 ]
    [[ $stderr =~ ^gpt-train:\ cannot\ start\ .*:\ Resource\ temporarily\ unavailable$ ]]
}

@test "one rank cannot write a checkpoint: the message says why, whoever hears of it first" {
    mkdir "$BATS_TEST_TMPDIR/run"
    touch "$BATS_TEST_TMPDIR/run/step-000011"
    for _ in 1 2 3 4; do
        rm -rf "$BATS_TEST_TMPDIR/run/step-000008" "$BATS_TEST_TMPDIR/run/step-000004"
        run --separate-stderr train --ranks 8 -o "$BATS_TEST_TMPDIR/run"
        [ "$status" -eq 4 ]
        [ "${#stderr_lines[@]}" -eq 1 ]
        [[ $stderr == "gpt-train: rank 0, checkpoint: cannot rename '"*"step-000011': Not a directory; go on from step 8 with "* ]]
    done
}
