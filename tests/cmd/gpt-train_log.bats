# gpt-train's run log and its talk: what each line says, and where it appears.

bats_require_minimum_version 1.5.0
load tiny_runs
load few_steps

@test "a run logs header, recipe and every step, and leaves a checkpoint" {
    run --separate-stderr train -o "$BATS_TEST_TMPDIR/run"
    [ "$status" -eq 0 ]
    [ -z "$stderr" ]
    [ "$(grep -c '^step:[0-9]*/11 train_loss:[0-9.]* next_loss:[0-9.]* train_time:[0-9]*ms step_avg:[0-9.]*ms$' <<< "$output")" -eq 11 ]
    [ "$(grep -c '^step:[0-9]*/11 val_loss:[0-9.]* ' <<< "$output")" -eq 4 ]
    grep -q '^recipe: tiny [0-9a-f]\{32\}$' <<< "$output"
    start=$(grep '^start:' <<< "$output")
    [ "$(sed 's/[0-9]*\.[0-9][0-9]/N/g' <<< "$start")" = "start: N s (contexts N, device N, weights N, data N, values N, ranks N, memory N, others N, first step N; took: data N, ranks N, graph N)" ]
    # the whole is the sum of its nine parts, each rounded
    awk '{ whole = $2; sub(/.*\(/, ""); sub(/;.*/, ""); gsub(/[a-z ]/, ""); k = split($0, part, ",")
           for (i = 1; i <= k; i++) whole -= part[i]
           exit !(k == 9 && whole < 0.055 && whole > -0.055) }' <<< "$start"
    [ -f "$BATS_TEST_TMPDIR/run/step-000011/MANIFEST" ]
}

@test "the log carries a recipe that runs the same experiment again" {
    train > "$BATS_TEST_TMPDIR/a.log"
    awk '/^=+$/ { n++; next } n == 1' "$BATS_TEST_TMPDIR/a.log" > "$BATS_TEST_TMPDIR/again.recipe"
    "$GPT_BIN/gpt-train" -q -r "$BATS_TEST_TMPDIR/again.recipe" -d "$SHARDS" > "$BATS_TEST_TMPDIR/b.log"
    diff <(losses "$BATS_TEST_TMPDIR/a.log") <(losses "$BATS_TEST_TMPDIR/b.log")
}

# bats test_tags=long
@test "on a CPU a step's line is written when that step has ended" {
    # Times of 1, 2 and 3 steps; with each line a step late they are those of 2, 3 and 4 in every try.
    # Other work on the machine can make one step longer, so there are three tries.
    for try in 1 2 3; do
        few -s "stages.0=4096 3 4096 1 1,0.5,0.25>0" -s schedule.steps=12 --threads 1 > "log.$try"
        sed -n 's/^step:[123]\/.*train_time:\([0-9]*\)ms.*/\1/p' "log.$try" |
            awk '{ t[NR] = $1 } END { print t[1], t[2], t[3]
                exit !(NR == 3 && t[1] > 0 && t[1] < 1.6 * (t[3] - t[1]) / 2) }' && return
    done
    return 1
}

# gpt-train on a terminal of so many columns, a line of the screen a line.
on_terminal() { # COLUMNS ARGUMENT...
    script -qec "stty cols $1; $(printf '%q ' "$GPT_BIN/gpt-train" "${FEW[@]}" "${@:2}") $to" /dev/null </dev/null |
        tr '\r' '\n' | sed 's/ *$//'
}

# bats test_tags=long
@test "progress fits a narrow terminal; the log there has no recipe" {
    few_shards
    export TERM=xterm
    to='>log' on_terminal 38 -s schedule.steps=60 | grep -v '^gpt-train: ' >seen # remarks on the recipe
    cat seen
    grep -q '^step [0-9]*/61  loss' seen
    [ "$(awk 'length > 37' seen)" = '' ]
    to='>log' on_terminal 100 -s schedule.steps=60 | grep -q '^step .* left$'
    to='' on_terminal 100 -q >seen
    grep -q '^step:6/6 train_loss' seen
    run ! grep -q '^\[model\]' seen
    grep -q '^\[model\]' log
}
