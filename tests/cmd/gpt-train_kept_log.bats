# gpt-train: the copy of the run log in the run's folder, and what becomes of a run whose log cannot be written.

bats_require_minimum_version 1.5.0
load tiny_runs
load ../check/needs

@test "the folder has the log, header and recipe too; a resumed run goes on in it" {
    train -o run > a.log
    cmp a.log run/log.txt
    "$GPT_BIN/gpt-train" -q --resume run -s schedule.steps=13 -d "$SHARDS" -o run > b.log
    cat a.log b.log | cmp - run/log.txt
    grep -q '^resumed: step 11 of run/step-000011$' b.log
}

@test "the same command again is refused, and the folder keeps the log" {
    train -o run > run.log
    cp run.log first
    run --separate-stderr train -o run
    [ "$status" -eq 3 ]
    [ -z "$output" ]
    cmp first run/log.txt
}

@test "a line that was cut off is ended before a resumed run goes on" {
    train -s schedule.steps=6 -o run > a.log
    printf 'step:9/11 train_lo' >> run/log.txt
    "$GPT_BIN/gpt-train" -q --resume run -s schedule.steps=9 -d "$SHARDS" -o run > b.log
    (cat a.log; echo 'step:9/11 train_lo'; cat b.log) | cmp - run/log.txt
}

@test "standard output that is the log in the folder has each line once" {
    mkdir run
    train -o run > run/log.txt
    [ "$(grep -c '^step:11/11 train_loss' run/log.txt)" -eq 1 ]
    [ "$(grep -c '^tool: ' run/log.txt)" -eq 1 ]
}

@test "on a terminal the folder's log has the recipe all the same" {
    needs script
    command=$(printf '%q ' "$GPT_BIN/gpt-train" -r tiny "${SMALL[@]}" -s schedule.steps=2 -d "$SHARDS" -o run)
    script -qec "$command" typescript > /dev/null < /dev/null
    [ "$(grep -c '^====' run/log.txt)" -eq 2 ]
    run ! grep -q '^====' typescript
    "$GPT_BIN/gpt-train" -q -r run/log.txt -d "$SHARDS" > again.log
    diff <(losses run/log.txt) <(losses again.log)
}

# bats test_tags=long
@test "a reader that leaves, a full disk: the run goes on, its log in the folder, and ends with status 4" {
    train -o whole > whole.log
    gone() { train -o gone | head -n 1 > /dev/null; return "${PIPESTATUS[0]}"; }
    full() { train -o full > /dev/full; }
    for end in gone full; do
        run --separate-stderr $end
        echo "$end: $status $stderr"
        [ "$status" -eq 4 ]
        [ "${#stderr_lines[@]}" -eq 2 ]
        [[ ${stderr_lines[0]} == "gpt-train: cannot write the run log to standard output: "*"; the run goes on, its log in '$end/log.txt'" ]]
        [[ ${stderr_lines[1]} == "gpt-train: cannot write the run log to standard output: "*"; '$end/log.txt' has it in full" ]]
        diff <(losses whole.log) <(losses $end/log.txt)
        diff -r whole/step-000011 $end/step-000011
    done
    # without -o the log has no other place
    to_full() { train > /dev/full; }
    run --separate-stderr to_full
    [ "$status" -eq 4 ]
    [[ $stderr == "gpt-train: cannot write the run log to standard output: No space left on device" ]]
}

@test "a log in the folder that cannot be written: told once, the run goes on, status 4" {
    mkdir run
    ln -s /dev/full run/log.txt
    run --separate-stderr train -o run
    [ "$status" -eq 4 ]
    [ "${#stderr_lines[@]}" -eq 2 ]
    [[ ${stderr_lines[0]} == "gpt-train: cannot write 'run/log.txt': No space left on device; the run goes on, and writes there when it can" ]]
    [[ ${stderr_lines[1]} == "gpt-train: cannot write 'run/log.txt': No space left on device" ]]
    grep -q '^step:11/11 val_loss:' <<< "$output"
    [ -f run/step-000011/MANIFEST ]
}

@test "a log in the folder that cannot be opened is told before the first step" {
    mkdir -p run/log.txt
    run --separate-stderr train -o run
    [ "$status" -eq 4 ]
    [ -z "$output" ]
    [[ $stderr == "gpt-train: cannot open 'run/log.txt' for the run log: Is a directory" ]]
}
