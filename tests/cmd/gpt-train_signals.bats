# gpt-train: one signal, two, those that come while it waits, and a file that may not grow.

bats_require_minimum_version 1.5.0
load tiny_runs
load run_ends
load ../check/needs

setup_file() {
    make_shards
    make_documents
    cd "$BATS_FILE_TMPDIR"
    train -s schedule.steps=40 -s data.checkpoint_every=0 -o whole > whole.log
}
WHOLE=$BATS_FILE_TMPDIR/whole

# A run of 42 steps in the background, where a shell would have it ignore SIGINT, without -q.
begin() { # OPTION...
    env --default-signal=INT "$GPT_BIN/gpt-train" -r tiny "${SMALL[@]}" -s schedule.steps=40 -s data.checkpoint_every=0 -d "$SHARDS" \
        -o run "$@" > run.log 2> err &
    pid=$!
}
teardown() { [ -z "${pid-}" ] || kill -KILL "$pid" 2> /dev/null || true; }
ends() { # STATUS
    status=0
    wait "$pid" || status=$?
    pid=
    sed -i '/: stages\.[0-9, ]*: /d' err   # remarks on the recipe
    echo "status $status: $(cat err)"
    [ "$status" -eq "$1" ]
    [ -z "$(ls -A run | grep tmp)" ]
}
go_on() { "$GPT_BIN/gpt-train" -q --resume run -d "$SHARDS" -o run > rest.log; }

# bats test_tags=long
@test "two signals within a second are one: the run ends at a step's end, and goes on to the same bits" {
    for signals in "INT INT" "TERM INT TERM"; do
        rm -rf run
        begin
        await step:2/ run.log
        for signal in $signals; do kill -$signal "$pid"; done
        ends 0
        [ "$(sed -n 1p err)" = "gpt-train: stopping after this step; another signal, a second from now, ends the run at once" ]
        [ "$(grep -vc ": stages\." err)" -eq 2 ]
        step=$(ls run | sed -n 's/step-0*//p')
        [ "$(sed -n 2p err)" = "gpt-train: stopped by a signal; go on from step $step with --resume run" ]
        grep -q "^step:$step/42 train_loss" run/log.txt
        run ! grep -q "^step:$((step + 1))/42" run/log.txt
    done
    go_on
    diff -r "$WHOLE/step-000042" run/step-000042
}

# bats test_tags=long
@test "timeout(1) in the foreground of a group sends a signal twice: the run is kept" {
    run --separate-stderr timeout -s INT 4 "$GPT_BIN/gpt-train" -q -r tiny "${SMALL[@]}" -s schedule.steps=4000 -d "$SHARDS" -o run
    [ "$status" -eq 124 ]
    ls run/step-*/MANIFEST
    [ -z "$stderr" ]
}

# 14 steps are small, the others take many seconds each.
SLOW=(-s "stages.1=262144 7 32768 1.52 1,0.5>0" -s "stages.2=262144 11 32768 1.73 1")

# bats test_tags=long
@test "a second signal after a second ends the run at once, and says what is lost" {
    begin "${SLOW[@]}" -s data.checkpoint_every=8 -s data.val_tokens=0
    await step:14/ run.log
    kill -INT "$pid"
    sleep 1.1
    kill -INT "$pid"
    ends 130
    [ "$(grep -vc ": stages\." err)" -eq 2 ]
    [ "$(tail -n 1 err)" = "gpt-train: ended at once by a second signal; go on from step 8 with --resume run; lost: steps 9 to 14" ]
    "$GPT_BIN/gpt-ckpt" verify -q run
}

# bats test_tags=long
@test "a validation is left at a signal, which it does not outlast by more than a chunk" {
    long=(--val "$SHARDS/text_train_000001.bin" -s data.val_tokens=749568)
    begin "${long[@]}"                  # at the start: a minute
    await ==== run.log
    sleep 1
    kill -INT "$pid"
    ends 0
    [ "$(tail -n 1 err)" = "gpt-train: stopped by a signal" ]
    run ! grep -q '^step:' run.log
    # at the end: the run is trained, and what is left is to validate
    begin "${long[@]}" --ranks 2 -s schedule.steps=2 -s data.val_every=0
    await step:4/4 run.log
    sleep 1
    kill -INT "$pid"
    ends 0
    [ "$(tail -n 1 err)" = "gpt-train: stopped by a signal; go on from step 4 with --resume run" ]
    [ -f run/step-000004/MANIFEST ]
    "$GPT_BIN/gpt-train" -q --resume run -s data.val_tokens=2048 -d "$SHARDS" > rest.log
    [ "$(losses rest.log | cut -d : -f 1,2,3 | sed 's/:[0-9.]*$//')" = "step:4/4 val_loss" ]
}

@test "a FIFO without a writer: a signal ends the wait" {
    mkfifo shards.bin val.bin
    for data in "-d shards.bin -s data.val_tokens=0" "-d $SHARDS --val val.bin"; do
        rm -rf run
        timeout -k 1 60 "$GPT_BIN/gpt-train" -r tiny "${SMALL[@]}" $data -o run > run.log 2> err &
        pid=$!
        sleep 0.5
        kill -TERM $pid
        status=0
        wait $pid || status=$?
        pid=
        cat err
        [ "$status" -eq 0 ]
        [ "$(tail -n 1 err)" = "gpt-train: stopped by a signal before the first step" ]
        [ ! -e run ]
    done
}

@test "a file that may not grow is an error of writing: no death, no file is left half" {
    few() { (ulimit -f "$1"; shift; exec "$@"); }
    command=("$GPT_BIN/gpt-train" -q -r tiny "${SMALL[@]}" -d "$SHARDS" -o run)
    run --separate-stderr few 200 "${command[@]}"       # KiB: enough for the log, too few for a checkpoint
    [ "$status" -eq 4 ]
    [ "${#stderr_lines[@]}" -eq 3 ]
    [[ ${stderr_lines[0]} == "gpt-train: no checkpoint of step 4: cannot write 'run/.step-000004.tmp/rank0.safetensors.zst': File too large; the run goes on, and the next one is tried" ]]
    [[ ${stderr_lines[2]} == "gpt-train: cannot write 'run/.step-000011.tmp/rank0.safetensors.zst': File too large; lost: steps 1 to 11" ]]
    [ "$(ls run)" = log.txt ]
    grep -q '^step:11/11 val_loss:' run/log.txt
    # of all programs: here a table
    run --separate-stderr few 4 "$GPT_BIN/gpt-tokshard" -q --tokenizer byte -o few "$BATS_FILE_TMPDIR/docs.jsonl"
    [ "$status" -eq 4 ]
    [[ $stderr == "gpt-tokshard: cannot write "*": File too large" ]]
    [ -z "$(ls -A few | grep bin)" ]
}

# bats test_tags=long
@test "a log that finds room again lacks nothing" {
    needs prlimit
    train -s schedule.steps=40 > whole.log
    mkfifo log
    cat log > run.log & reader=$!
    (ulimit -S -f 4
     exec "$GPT_BIN/gpt-train" -q -r tiny "${SMALL[@]}" -s schedule.steps=40 -s data.checkpoint_every=0 -d "$SHARDS" \
         -o run > log 2> err) & pid=$!
    await step:4/ run.log
    prlimit --pid "$pid" --fsize=unlimited
    ends 0
    wait "$reader"
    [ "$(cat err)" = "gpt-train: cannot write 'run/log.txt': File too large; the run goes on, and writes there when it can" ]
    cmp run.log run/log.txt
    diff <(losses run/log.txt) <(losses whole.log)
}
