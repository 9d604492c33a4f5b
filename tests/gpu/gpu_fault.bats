# Ranks, processes, disks and GPUs that go wrong: the run ends within 10 seconds, says who it was,
# and its last checkpoint stands. Run by `make check-gpu`; skipped where two GPUs are not visible.

bats_require_minimum_version 1.5.0
load ../check/needs

setup_file() {
    export SHARDS=$BATS_FILE_TMPDIR/shards
    "$GPT_BIN/gpt-tokshard" -q --tokenizer byte -o "$SHARDS" man/*.[157] lib/*/*.h lib/*/*.c
}

setup() {
    needs gpus-2
    OUT=$BATS_TEST_TMPDIR/out LOG=$BATS_TEST_TMPDIR/log ERR=$BATS_TEST_TMPDIR/err
}

SET=(model.vocab=384 data.val_tokens=0 data.checkpoint_every=10 data.cycle=yes schedule.steps=4000)
# With exec, so that the process of `start ... &` is the program itself.
start() { exec "$GPT_BIN/gpt-train" -q -r "$GPT_SHARE/recipes/tiny.recipe" "${SET[@]/#/-s}" -d "$SHARDS" --gpus "$@"; }

# Waits for a step in the log, then for process $2; its status, and the seconds in between.
ends() {
    local begin
    until grep -q "^step:$1/" "$LOG" || ! kill -0 "$2"; do sleep 0.05; done
    begin=$(date +%s%N)
    status=0
    wait "$2" || status=$?
    took=$((($(date +%s%N) - begin) / 1000000))
    echo "status $status after $took ms: $(cat "$ERR")"
}

newest() { ls -d "$1"/step-* | tail -n 1; }

# The checkpoint is whole, and a run goes on from it on 1, 2 and, where there are as many, 4 GPUs.
stands() {
    local dir; dir=$(newest "$1")
    "$GPT_BIN/gpt-ckpt" verify "$dir"
    local step=$((10#${dir##*-}))
    for gpus in 1 2 4; do
        [ "$(gpus)" -ge $gpus ] || break
        "$GPT_BIN/gpt-train" -q -d "$SHARDS" --gpus $gpus --resume "$dir" -s schedule.steps=$((step + 4)) \
            -s schedule.extension=2 > "$LOG.$gpus"
        [ "$(grep -c '^step:[0-9]*/.* train_loss:[0-9]' "$LOG.$gpus")" -eq 6 ]
    done
}

rank_1() {
    "$GPT_TESTS/gpu_fault" "$1" 1 25 2 "$GPT_SHARE/recipes/tiny.recipe" "$SHARDS" "$OUT" "${SET[@]}" > "$LOG" 2> "$ERR" &
    ends 23 $!
    [ "$status" -eq 5 ]
    [ "$took" -lt 10000 ]
    [ "$(wc -l < "$ERR")" -eq 1 ]
    stands "$OUT"
}

@test "a rank fails on the host" {
    rank_1 refuse
    grep -q 'rank 1, step: GPU 1: copy: on a GPU, copies convert f32 and bf16 only' "$ERR"
}

@test "a rank fails while its first step is captured, and the other waits for it" {
    local begin; begin=$(date +%s%N)
    run --separate-stderr "$GPT_TESTS/gpu_fault" capture 1 0 2 "$GPT_SHARE/recipes/tiny.recipe" "$SHARDS" "$OUT" "${SET[@]}"
    took=$((($(date +%s%N) - begin) / 1000000))
    echo "status $status after $took ms: $stderr"
    [ "$status" -eq 5 ]
    [ "$took" -lt 14000 ]               # 10 seconds and a start
    [ "$stderr" = "gpu_fault: rank 1, step: GPU 1: copy: on a GPU, copies convert f32 and bf16 only" ]
}

@test "a rank fails on its GPU" {
    rank_1 fault
    # Every GPU of the process reports it.
    grep -q 'rank [01], step: GPU [01]:.* an illegal memory access .* (on this GPU or another one of this process)' "$ERR"
}

@test "a rank in a process of its own fails on its GPU" {
    local fault=("$GPT_TESTS/gpu_fault" fault 1 25 1 "$GPT_SHARE/recipes/tiny.recipe" "$SHARDS" "$OUT" "${SET[@]}")
    export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + $$ % 20000))
    RANK=1 LOCAL_RANK=1 "${fault[@]}" 2> "$ERR.1" & other=$!
    RANK=0 LOCAL_RANK=0 "${fault[@]}" > "$LOG" 2> "$ERR" & first=$!
    unset WORLD_SIZE MASTER_ADDR MASTER_PORT
    ends 23 $first
    code=0
    wait $other || code=$?
    cat "$ERR.1"
    [ "$status" -eq 5 ]
    [ "$code" -eq 5 ]
    [ "$took" -lt 10000 ]
    grep -q 'rank 1, step: GPU 1:.* an illegal memory access was encountered$' "$ERR.1"
    stands "$OUT"
}

@test "a rank's thread stops" {
    rank_1 sleep
    grep -q 'rank 1 (GPU 1), step: still inside CUDA.*no progress' "$ERR"
}

@test "a rank's GPU stops" {
    rank_1 hang
    grep -q 'gpu_fault: rank 1 (GPU 1), step: still inside CUDA' "$ERR"
}

@test "one process of two is killed" {
    export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + $$ % 20000))
    RANK=1 LOCAL_RANK=1 start 1 -o "$OUT" > /dev/null 2>&1 & other=$!
    RANK=0 LOCAL_RANK=0 start 1 -o "$OUT" > "$LOG" 2> "$ERR" & first=$!
    unset WORLD_SIZE MASTER_ADDR MASTER_PORT
    until grep -q '^step:23/' "$LOG" || ! kill -0 $first; do sleep 0.05; done
    kill -KILL $other
    ends 23 $first
    [ "$status" -eq 5 ]
    [ "$took" -lt 10000 ]
    grep -q 'process 1 of 2 (rank 1) is gone' "$ERR"
    stands "$OUT"
}

@test "the disk is full" {
    (start 2 -s schedule.steps=14 -s schedule.extension=0 -o "$BATS_TEST_TMPDIR/size" > "$LOG")
    mkdir "$OUT"
    mount -t tmpfs -o size=$(($(du -sk "$(newest "$BATS_TEST_TMPDIR/size")" | cut -f 1) * 7 / 4))k tmpfs "$OUT" || skip "needs mount-right"
    start 2 --keep 0 -s schedule.steps=24 -s schedule.extension=0 -o "$OUT" > "$LOG" 2> "$ERR" &
    ends 18 $!
    cp -r "$OUT" "$BATS_TEST_TMPDIR/left"
    umount "$OUT"
    [ "$(ls "$BATS_TEST_TMPDIR/left")" = $'log.txt\nstep-000010' ]
    [ "$status" -eq 4 ]
    [ "$took" -lt 10000 ]
    grep -q '^gpt-train: no checkpoint of step 20: cannot write .*: No space left on device; the run goes on' "$ERR"
    grep -q 'No space left on device; go on from step 10 with --resume .*; lost: steps 11 to 24$' "$ERR"
    stands "$BATS_TEST_TMPDIR/left"
}

# What is left is too little for the model, for NCCL, for CUDA itself.
@test "a GPU's memory is taken by another program" {
    for left in 2000 700 100; do
        "$GPT_TESTS/gpu_fault" fill 1 $left > "$BATS_TEST_TMPDIR/full.$left" & hog=$!
        until grep -q full "$BATS_TEST_TMPDIR/full.$left" || ! kill -0 $hog; do sleep 0.05; done
        begin=$(date +%s%N)
        run --separate-stderr "$GPT_BIN/gpt-train" -r "$GPT_SHARE/recipes/record-61.recipe" --gpus 2 --bench 1
        kill -KILL $hog
        wait $hog || true
        took=$((($(date +%s%N) - begin) / 1000000))
        echo "$left MiB left: status $status after $took ms: $stderr"
        [ "$took" -lt 10000 ]
        [ "${#stderr_lines[@]}" -eq 1 ]
        case $status in
        4) [[ $stderr == *"too little memory: the run needs "*" available to rank 1;"* ]] ;;
        5) [[ $left -eq 100 && $stderr == *"GPU 1"* ]] ;;
        *) false ;;
        esac
    done
}
