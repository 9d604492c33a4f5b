# gpt-train: how a run ends. Any end but a fault of the state leaves the last whole step in -o, with the
# status that the end has; what can be known before the first step is said before it.

bats_require_minimum_version 1.5.0
load tiny_runs
load run_ends

setup_file() {
    make_shards
    make_documents
    cd "$BATS_FILE_TMPDIR"
    train --keep 0 -o whole > whole.log
}
WHOLE=$BATS_FILE_TMPDIR/whole

# The message, its status, and the checkpoint that is left, which is the uninterrupted run's.
ended() { # STATUS STEP TEXT
    echo "$status: $stderr"
    [ "$status" -eq "$1" ]
    [[ ${stderr_lines[-1]} == "gpt-train: "*"$3"*"; go on from step $2 with --resume run"* ]]
    [ "$(ls -A run | grep -v '^\.lock$' | tail -n 1)" = "$(printf 'step-%06d' "$2")" ]
    "$GPT_BIN/gpt-ckpt" verify -q run
}

last_step() { sed -n 's/^step:\([0-9]*\)\/.*/\1/p' <<< "$output" | tail -n 1; }

@test "tokens that are known to be too few are told before the first step" {
    run --separate-stderr train -s data.cycle=no -s schedule.steps=1500 -o run
    [ "$status" -eq 3 ]
    [ -z "$output" ]
    [[ $stderr =~ ^gpt-train:\ .*shards:\ expected\ tokens\ for\ 1502\ steps,\ found\ enough\ for\ ([0-9]+)\ at\ most,\ and\ data.cycle\ is\ no:\ -s\ data.cycle=yes\ starts\ over,\ -s\ schedule.steps=([0-9]+)\ ends\ before\ that$ ]]
    [ "${BASH_REMATCH[2]}" -eq $((BASH_REMATCH[1] - 2)) ]
    # 750,595 tokens; two thirds of the steps take 512, the rest and the extension 1024
    [ "${BASH_REMATCH[1]}" -eq $((1000 + (750595 - 1000 * 512) / 1024)) ]
    [ ! -e run ]
}

# Each chunk takes the beginning of a document, so that data last for fewer steps than their size tells.
# bats test_tags=long
@test "data used up: status 3, and the last step is kept; with more data the run goes on" {
    once=(-d "$DOCS" -s data.cut=document -s data.checkpoint_every=0 -s data.val_every=0 -s optimizer.adam_every=1)
    run --separate-stderr train "${once[@]}" -s schedule.steps=60 -s data.cycle=no -o run
    last=$(last_step)
    [ "$last" -ge 20 ]
    ended 3 "$last" "is used up"
    train "${once[@]}" -s schedule.steps=60 > whole.log
    "$GPT_BIN/gpt-train" -q --resume run -d "$DOCS" -s data.cycle=yes > rest.log
    diff <(losses whole.log | tail -n +$((last + 1))) <(losses rest.log)
}

# bats test_tags=long
@test "a stream that ends: status 3, and the last step is kept" {
    for ranks in 1 2; do
        rm -rf run
        cut() { (cat "$DOCS"/*_val_*.bin; head -c 120000 "$DOCS"/*_train_*.bin) | train -d - -s data.bos=256 \
            -s data.cycle=no -s data.checkpoint_every=0 -s schedule.steps=100 --ranks $ranks -o run; }
        run --separate-stderr cut
        last=$(last_step)
        [ "$last" -ge 8 ]
        ended 3 "$last" "truncated"
    done
}

# bats test_tags=long
@test "a stream that was cut near its beginning goes on when it comes whole, and another one does not" {
    on() { train -d - --val "$DOCS" -s data.bos=256 -s data.cycle=no -s data.checkpoint_every=0 -s data.val_every=0 -s schedule.steps=28 "$@"; }
    cat "$DOCS"/*_train_*.bin > all
    on -o whole < all > whole.log
    for bytes in 9000 30000; do
        rm -rf run
        run --separate-stderr on -o run < <(head -c $bytes all)
        last=$(last_step)
        [ "$last" -ge 2 ]
        ended 3 "$last" "truncated"
        "$GPT_BIN/gpt-ckpt" verify --full run
        grep -qx "state loader.bytes $bytes" run/step-*/MANIFEST
        { head -c 5000 all; printf '\xa5'; tail -c +5002 all; } > other
        run --separate-stderr on --continue -o run < other
        [ "$status" -eq 3 ]
        [[ $stderr == *"made with data "*", but -d - is "* ]]
        on --continue -o run < all > rest.log
        diff <(losses whole.log | tail -n +$((last + 1))) <(losses rest.log)
        diff -r -x MANIFEST -x recipe.txt whole/step-000030 run/step-000030
    done
}

@test "a shard that is damaged behind others: status 3 before the first step" {
    "$GPT_BIN/gpt-tokshard" -q --tokenizer byte --val-tokens 8192 --shard-tokens 30k -o bad "$BATS_FILE_TMPDIR/docs.jsonl"
    printf '\xa5' | dd of=bad/text_train_000003.bin bs=1 seek=30000 conv=notrunc status=none
    run --separate-stderr train -d bad -s data.cut=document -s data.checkpoint_every=0 -s data.val_every=0 -s schedule.steps=60 \
        -s optimizer.adam_every=1 -o run
    [ "$status" -eq 3 ]
    [[ $stderr == "gpt-train: "*"text_train_000003.bin: frame 1"* ]]
    run ! grep -q '^step:1/' <<< "$output"
}

@test "a shard that is damaged before the run comes to it: status 3, and the last step is kept" {
    "$GPT_BIN/gpt-tokshard" -q --tokenizer byte --val-tokens 8192 --shard-tokens 30k -o bad "$BATS_FILE_TMPDIR/docs.jsonl"
    start -d bad -s data.cut=document -s data.checkpoint_every=0 -s data.val_every=0 -s schedule.steps=60 \
        -s optimizer.adam_every=1 -o run > run.log 2> err & pid=$!
    await step:1/ run.log
    printf '\xa5' | dd of=bad/text_train_000004.bin bs=1 seek=10000 conv=notrunc status=none
    status=0
    wait $pid || status=$?
    output=$(<run.log) stderr=$(<err) stderr_lines=("$(<err)")
    [ "$(last_step)" -ge 20 ]
    ended 3 "$(last_step)" "text_train_000004.bin: frame 1"
}

@test "validation that cannot be read: status 3, and what was kept stays" {
    cp -r "$WHOLE" run
    rm -r run/step-000011
    cp -r "$SHARDS" bad
    printf '\xa5' | dd of=bad/text_val_000000.bin bs=1 seek=1500 conv=notrunc status=none
    for ranks in 1 3; do
        run --separate-stderr "$GPT_BIN/gpt-train" -q -d bad --resume run --ranks $ranks -s data.checkpoint_every=0 -o run
        [ "$status" -eq 3 ]
        [[ $stderr == "gpt-train: "*"text_val_000000.bin"* ]]
        "$GPT_BIN/gpt-ckpt" verify -q run
        [ "$(ls -A run | grep '^step' | tail -n 1)" = step-000008 ]
    done
}

# bats test_tags=long
@test "a checkpoint that cannot be written is told, and the next one is" {
    mkdir run
    touch run/step-000004
    for ranks in 1 4; do
        rm -rf run/step-000008 run/step-000011
        run --separate-stderr train --ranks $ranks -o run
        echo "$status $stderr"
        [ "$status" -eq 0 ]
        [ "${#stderr_lines[@]}" -eq 1 ]
        [[ $stderr == "gpt-train: no checkpoint of step 4: cannot rename 'run/.step-000004.tmp' to 'run/step-000004': Not a directory; the run goes on, and the next one is tried" ]]
        [ "$(ls -A run | tr '\n' ' ')" = "log.txt step-000004 step-000008 step-000011 " ]
    done
    "$GPT_BIN/gpt-ckpt" verify -q run/step-000008
    "$GPT_BIN/gpt-ckpt" verify -q run/step-000011
}

@test "the last checkpoint that cannot be written: status 4, and what is lost" {
    mkdir run
    touch run/step-000011
    run --separate-stderr train -o run
    [ "$status" -eq 4 ]
    [[ $stderr == "gpt-train: cannot rename 'run/.step-000011.tmp' to 'run/step-000011': Not a directory; go on from step 8 with --resume run; lost: steps 9 to 11" ]]
    rm run/step-000011
    "$GPT_BIN/gpt-train" -q -d "$SHARDS" --resume run -o run > rest.log
    diff -r "$WHOLE/step-000011" run/step-000011
}

# OpenBLAS starts threads before main(), which ask for memory until they have it.
@test "every limit of memory is one under which the program ends" {
    status=1
    for ((kib = 60000; kib <= 400000 || status; kib += 20000)); do # with the GPU's libraries 2 GB until it starts
        [ $kib -lt 8000000 ]
        status=0
        (ulimit -v $kib; OPENBLAS_NUM_THREADS=4 timeout -k 1 20 "$GPT_BIN/gpt-train" -V > out 2> err) 2> /dev/null || status=$?
        echo "$kib KiB: status $status"
        [ "$status" -ne 124 ]
        [ "$status" -ne 137 ]
    done
    [ "$status" -eq 0 ]
    grep -q '^gpt-train ' out
}

# A file system of so many KiB in `run`, for a command: in a name space of mounts, where that is allowed.
with_disk() { # KIB COMMAND...
    export DISK=$1
    shift
    unshare -rm bash -c 'mkdir -p run && mount -t tmpfs -o size=${DISK}k tmpfs run && { "$@"; status=$?; cp -a run/. left; exit $status; }' - "$@"
}

@test "a disk without room for a checkpoint is told before the first step, one for less than two, too" {
    unshare -rm true || skip "needs mount-right"
    command=("$GPT_BIN/gpt-train" -q -r tiny "${SMALL[@]}" -d "$SHARDS" -o run)
    mkdir left
    run --separate-stderr with_disk 600 "${command[@]}"
    [ "$status" -eq 4 ]
    [ -z "$output" ]
    [[ $stderr == "gpt-train: run: 0.6 MiB free, and a checkpoint may take "*": name a folder on another disk" ]]
    [ -z "$(ls left | grep -v '^\.')" ]
    run --separate-stderr with_disk 1400 "${command[@]}" -s data.checkpoint_every=2
    echo "$status $stderr"; ls left
    [ "$status" -eq 4 ]
    [[ ${stderr_lines[0]} == "gpt-train: run: 1.4 MiB free, and a checkpoint may take "*": a second beside it, as the next one is written, may not fit" ]]
    [[ ${stderr_lines[1]} == "gpt-train: no checkpoint of step "*": cannot write 'run/.step-00000"*"': No space left on device; the run goes on, and the next one is tried" ]]
    [ -z "$(ls -A left | grep tmp)" ]
    "$GPT_BIN/gpt-ckpt" verify -q left
}

@test "a disk that has room for two checkpoints as they are is enough: the oldest that goes in time goes before" {
    unshare -rm true || skip "needs mount-right"
    mkdir left
    run --separate-stderr with_disk 2250 "$GPT_BIN/gpt-train" -q -r tiny "${SMALL[@]}" -d "$SHARDS" -o run -s data.checkpoint_every=2
    [ "$status" -eq 0 ]
    # the last one, with gradients that wait, may be larger
    [[ ${stderr_lines[0]} == "gpt-train: run: 2.2 MiB free, and a checkpoint may take 1.3: a second beside it, "*", may not fit" ]]
    [ "${stderr_lines[1]}" = "gpt-train: run: the disk is full; removed: step 2, for step 6" ]
    [ "$(ls left | tr '\n' ' ')" = "log.txt step-000010 step-000011 " ]
    diff -r -x MANIFEST -x recipe.txt "$WHOLE/step-000011" left/step-000011
}
