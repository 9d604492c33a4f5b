# gpt-train --continue: one command that begins a run and goes on with it.

bats_require_minimum_version 1.5.0
load tiny_runs
load run_ends

setup_file() {
    make_shards
    cd "$BATS_FILE_TMPDIR"
    train -o whole > whole.log
}
WHOLE=$BATS_FILE_TMPDIR/whole
# With exec, so that the process of `going ... &` is the program itself.
going() { exec "$GPT_BIN/gpt-train" --threads 1 -q -r tiny "${SMALL[@]}" -d "$SHARDS" -o run --continue "$@"; }
go() { "$GPT_BIN/gpt-train" --threads 1 -q -r tiny "${SMALL[@]}" -d "$SHARDS" -o run --continue "$@"; }

# bats test_tags=long
@test "it begins where nothing is: no folder, an empty one, one with a log, an interrupted writer's files" {
    empty() { mkdir run; }
    log() { mkdir run; echo 'tool: gpt-train 0.1.0' > run/log.txt; }
    half() { mkdir -p run/.step-000004.tmp run/step-000008; touch run/.step-000004.tmp/rank0.part run/step-000008/recipe.txt; }
    for there in true empty log; do
        rm -rf run
        $there
        go > a.log
        run ! grep -q '^resumed:' a.log
        same_checkpoint "$WHOLE/step-000011" run/step-000011
    done
    rm -rf run
    half
    run --separate-stderr go -s data.checkpoint_every=0
    [ "$status" -eq 0 ]
    [ "$(ls -A run | tr '\n' ' ')" = "log.txt step-000008 step-000011 " ]
}

@test "the same command, killed again and again, ends with the bits of the uninterrupted run" {
    for step in 5 9; do
        going -s data.checkpoint_every=2 > a.log & pid=$!
        await step:$step/ run/log.txt
        kill -KILL $pid
        wait $pid || true
    done
    go -s data.checkpoint_every=2 --ranks 1 > last.log
    grep -q '^resumed: step 8 of run/step-000008$' last.log
    [ "$(grep -c '^tool: ' run/log.txt)" -eq 3 ]
    run --separate-stderr "$GPT_BIN/gpt-logdiff" run # its parts are one run, which has ended
    [ "$status" -eq 0 ]
    [ -z "$stderr" ]
    diff -r -x recipe.txt -x MANIFEST "$WHOLE/step-000011" run/step-000011
    diff <(losses "$WHOLE/../whole.log" | tail -n 5) <(losses last.log | tail -n 5)
}

@test "a run that has ended: nothing to do, status 0, without data; more steps go on" {
    cp -r "$WHOLE" run
    for how in "--continue -o run -r tiny" "--resume run" "--resume run/step-000011 -o run"; do
        run --separate-stderr "$GPT_BIN/gpt-train" $how "${SMALL[@]}" -d nosuch
        echo "$how: $status $stderr"
        [ "$status" -eq 0 ]
        [ -z "$output" ]
        [ "$stderr" = "gpt-train: nothing to do: the run has ended at step 11; -s schedule.steps=N with N above 9 goes on" ]
        cmp "$WHOLE/log.txt" run/log.txt
    done
    more() { resume --continue -o run -s schedule.steps=11; }
    more > more.log
    [ "$(losses more.log | grep -c train_loss)" -eq 2 ]
    # the last validation was left at a signal: it is made
    grep -v '^step:13/13 val_loss' run/log.txt > log && cp log run/log.txt
    more > again.log
    [ "$(losses again.log)" = "$(losses more.log | tail -n 1)" ]
}

@test "another value of a key than the run there has is no run to go on with" {
    cp -r "$WHOLE" run
    run --separate-stderr go -s optimizer.muon_lr=0.5
    [ "$status" -eq 3 ]
    [ -z "$output" ]
    [[ $stderr == "gpt-train: run: the run there was made with another recipe "*"there 'muon_lr = 0.023', here 'muon_lr = 0.5'; leave -r out "* ]]
    cmp "$WHOLE/log.txt" run/log.txt
}

@test "the same command again: of a pipe, which passes once, and of a run that began with other weights" {
    for _ in 1 2; do
        cat "$SHARDS"/text_val_*.bin "$SHARDS"/text_train_*.bin |
            train -d - -s data.bos=256 -s data.val_every=0 -s data.checkpoint_every=0 -o pipe --continue
        for recipe in "" "-r $GPT_SHARE/recipes/tiny.recipe"; do
            resume --init "$WHOLE" $recipe "${SMALL[@]}" -s order.tied=- -s data.val_every=0 -s data.checkpoint_every=0 \
                -o "init${recipe%% *}" --continue
        done
    done > log
    [ "$(grep -c '^step:11/' log)" -eq 6 ] # a training and a validation loss of each run, once
    grep -q '^rope_windows = ' log
}

@test "what cannot be continued is refused" {
    run --separate-stderr "$GPT_BIN/gpt-train" --continue -o none -d "$SHARDS"
    [ "$status" -eq 2 ]
    [ "${stderr_lines[0]}" = "gpt-train: expected -r RECIPE: none holds no checkpoint to continue" ]
    [ ! -e none ]
    run --separate-stderr "$GPT_BIN/gpt-train" --continue -r tiny -d "$SHARDS"
    [ "$status" -eq 2 ]
    [ "${stderr_lines[0]}" = "gpt-train: --continue needs -o DIR" ]
    run --separate-stderr go --resume run
    [ "$status" -eq 2 ]
    touch file
    run --separate-stderr "$GPT_BIN/gpt-train" --continue -r tiny -d "$SHARDS" -o file
    [ "$status" -eq 4 ]
    [[ $stderr == "gpt-train: cannot open 'file': Not a directory" ]]
    cp -r "$WHOLE" run
    rm -r run/step-000011
    sed 's/^muon_lr = .*/muon_lr = 0.5/' "$GPT_SHARE/recipes/tiny.recipe" > my.recipe
    run --separate-stderr go -r my.recipe
    [ "$status" -eq 3 ]
    [[ $stderr == "gpt-train: run: the run there was made with another recipe (tiny "*") than my.recipe (tiny "*"): there 'muon_lr = 0.023', here 'muon_lr = 0.5'; leave -r out"* ]]
}

# bats test_tags=long
@test "with --fit: the keys that it has set are the run's" {
    big=(-s "stages.0=16384 3 512 1 1,0.5,0.25>0" -s "stages.1=16384 7 512 1.52 1,0.5>0"
         -s "stages.2=16384 11 512 1.73 1" -s "stages.3=16384 13 512 - 1" -s schedule.steps=2 -s data.checkpoint_every=2)
    run --separate-stderr go "${big[@]}" --memory 40M
    echo "$stderr"
    [ "$status" -eq 4 ]
    [[ $stderr == *"data.chunks="*" would need "*" (--fit takes it)"* ]]
    go "${big[@]}" --memory 40M --fit > a.log
    rm -r run/step-000004
    go "${big[@]}" --memory 40M --fit > b.log
    grep -q '^resumed: step 2 ' b.log
}
