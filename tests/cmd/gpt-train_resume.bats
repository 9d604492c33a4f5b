# gpt-train stopped and continued: by a signal, by kill, on other ranks, with other options.

bats_require_minimum_version 1.5.0
load tiny_runs
load few_steps

# bats test_tags=long
@test "a run killed with SIGKILL and resumed ends with the same bits" {
    train --ranks 2 -o "$BATS_TEST_TMPDIR/whole" > /dev/null
    start --ranks 2 -o "$BATS_TEST_TMPDIR/cut" > "$BATS_TEST_TMPDIR/cut.log" &
    pid=$!
    await_step 6 "$BATS_TEST_TMPDIR/cut.log"
    kill -KILL $pid
    wait $pid || true
    [ -f "$BATS_TEST_TMPDIR/cut/step-000004/MANIFEST" ]
    [ ! -e "$BATS_TEST_TMPDIR/cut/step-000011" ]
    run --separate-stderr resume --ranks 2 --resume "$BATS_TEST_TMPDIR/cut" -o "$BATS_TEST_TMPDIR/cut"
    [ "$status" -eq 0 ]
    grep -q '^resumed: step [48] of ' <<< "$output"
    same_checkpoint "$BATS_TEST_TMPDIR/whole/step-000011" "$BATS_TEST_TMPDIR/cut/step-000011"
}

# bats test_tags=long
@test "SIGTERM leaves a checkpoint, and the resumed run ends with the same bits" {
    train --ranks 2 -s data.checkpoint_every=0 -o "$BATS_TEST_TMPDIR/whole" > /dev/null
    start --ranks 2 -s data.checkpoint_every=0 -o "$BATS_TEST_TMPDIR/cut" > "$BATS_TEST_TMPDIR/cut.log" &
    pid=$!
    await_step 2 "$BATS_TEST_TMPDIR/cut.log"
    kill -TERM $pid
    wait $pid
    ls "$BATS_TEST_TMPDIR"/cut/step-*/MANIFEST
    run --separate-stderr resume --ranks 2 --resume "$BATS_TEST_TMPDIR/cut" -o "$BATS_TEST_TMPDIR/cut"
    [ "$status" -eq 0 ]
    same_checkpoint "$BATS_TEST_TMPDIR/whole/step-000011" "$BATS_TEST_TMPDIR/cut/step-000011"
}

@test "SIGHUP leaves a checkpoint; under nohup it does nothing" {
    start -s schedule.steps=300 -s data.checkpoint_every=0 -o "$BATS_TEST_TMPDIR/hup" > "$BATS_TEST_TMPDIR/hup.log" &
    pid=$!
    await_step 1 "$BATS_TEST_TMPDIR/hup.log"
    kill -HUP $pid
    wait $pid
    ls "$BATS_TEST_TMPDIR"/hup/step-*/MANIFEST
    [ ! -e "$BATS_TEST_TMPDIR/hup/step-000302" ]
    (trap '' HUP; start -s schedule.steps=4) > "$BATS_TEST_TMPDIR/nohup.log" &
    pid=$!
    await_step 1 "$BATS_TEST_TMPDIR/nohup.log"
    kill -HUP $pid
    wait $pid
    grep -q '^step:6/6 val_loss' "$BATS_TEST_TMPDIR/nohup.log"
}

@test "a signal is answered at once" {
    few_shards
    "$GPT_BIN/gpt-train" "${FEW[@]}" -s schedule.steps=3000 >log 2>err &
    pid=$!
    for _ in $(seq 200); do grep -q '^step:1/' log && break; sleep 0.05; done
    kill -TERM $pid
    for _ in $(seq 100); do grep -q 'stopping after this step' err && break; sleep 0.01; done
    grep -q '^gpt-train: stopping after this step' err
    wait $pid
}

# bats test_tags=long
@test "resume on another number of ranks agrees to 1e-5" {
    f32_recipe > "$BATS_TEST_TMPDIR/f32.recipe"
    f32=(-r "$BATS_TEST_TMPDIR/f32.recipe" -s optimizer.polar=f32)
    train "${f32[@]}" --ranks 1 > "$BATS_TEST_TMPDIR/whole.log"
    train "${f32[@]}" --ranks 4 --keep 0 -o "$BATS_TEST_TMPDIR/four" > /dev/null
    resume --ranks 2 --resume "$BATS_TEST_TMPDIR/four/step-000004" > "$BATS_TEST_TMPDIR/two.log"
    grep -v 'step:[1-4]/' "$BATS_TEST_TMPDIR/whole.log" > "$BATS_TEST_TMPDIR/tail.log"
    run worst_difference "$BATS_TEST_TMPDIR/tail.log" "$BATS_TEST_TMPDIR/two.log"
    echo "steps, difference in 1e-7: $output"
    [ "${lines[0]% *}" -eq 7 ]
    [ "${lines[0]#* }" -le 100 ]
}

# bats test_tags=long
@test "resume refuses other data and another recipe, and takes --set" {
    train -o "$BATS_TEST_TMPDIR/run" > /dev/null
    "$GPT_BIN/gpt-tokshard" -q --tokenizer byte --val-tokens 16384 -o "$BATS_TEST_TMPDIR/other" \
        "$BATS_FILE_TMPDIR"/text/0*
    run --separate-stderr "$GPT_BIN/gpt-train" -q -d "$BATS_TEST_TMPDIR/other" --resume "$BATS_TEST_TMPDIR/run/step-000008"
    [ "$status" -eq 3 ]
    [[ "$stderr" == *"made with data "* ]]
    run --separate-stderr resume -r "$GPT_SHARE/recipes/tiny.recipe" --resume "$BATS_TEST_TMPDIR/run"
    [ "$status" -eq 3 ]
    [[ "$stderr" == *"another recipe"* ]]
    run --separate-stderr resume --resume "$BATS_TEST_TMPDIR/run/step-000008" -s schedule.extension=3
    [ "$status" -eq 0 ]
    grep -q '^step:12/12 train_loss' <<< "$output"
}

# Step 11 stands between two moves of Adam.
# bats test_tags=long
@test "a run that ended goes on when it gets more steps" {
    train -o run > a.log
    for n in 1 2; do
        resume --resume run --ranks $n -s schedule.steps=13 > $n.log
        [ "$(losses $n.log | grep -c 'train_loss:[0-9.]*$')" -eq 4 ]
        losses $n.log | grep -q '^step:15/15 val_loss:[0-9.]*$'
    done
    # Weights in bf16: a last bit of a sum may move a rounding, by far less than a step moves the loss.
    run worst_difference 1.log 2.log
    [ "${output#* }" -le 10000 ]
}

@test "a folder with a longer run's checkpoints is not written into" {
    train -o run > a.log
    for again in "train" "resume --resume run/step-000008"; do
        run --separate-stderr $again -o run
        [ "$status" -eq 3 ]
        [ -z "$output" ]
        [[ $stderr == "gpt-train: run: holds step 11 of an earlier run, and this one begins at step "[08]": "* ]]
    done
    [ "$(ls run)" = $'log.txt\nstep-000008\nstep-000011' ]
}

@test "a folder that is read as something else is not written into: shards, a checkpoint" {
    mkdir shards step-000008
    touch shards/MANIFEST step-000008/MANIFEST
    for out in shards step-000008; do
        run --separate-stderr train -o $out
        [ "$status" -eq 3 ]
        [ -z "$output" ]
        [[ $stderr == "gpt-train: $out: has a MANIFEST, as a checkpoint or a folder of shards has: "* ]]
        [ "$(ls -A $out)" = MANIFEST ]
    done
}

@test "two runs do not write into one folder" {
    start -s schedule.steps=300 -o "$BATS_TEST_TMPDIR/run" > "$BATS_TEST_TMPDIR/a.log" &
    pid=$!
    await_step 0 "$BATS_TEST_TMPDIR/a.log"
    run --separate-stderr train -o "$BATS_TEST_TMPDIR/run"
    [ "$status" -eq 4 ]
    [[ "$stderr" == "gpt-train: '$BATS_TEST_TMPDIR/run' is being written by process $pid on "* ]]
    kill -TERM $pid
    wait $pid
    "$GPT_BIN/gpt-ckpt" verify -q "$BATS_TEST_TMPDIR/run"
}

@test "a damaged checkpoint is refused with file and place" {
    train -o "$BATS_TEST_TMPDIR/run" > /dev/null
    f=$BATS_TEST_TMPDIR/run/step-000011/rank0.safetensors.zst
    size=$(stat -c %s "$f")
    printf '\xa5' | dd of="$f" bs=1 seek=$((size / 2)) conv=notrunc status=none
    run --separate-stderr resume --resume "$BATS_TEST_TMPDIR/run/step-000011" -s schedule.extension=4
    [ "$status" -eq 3 ]
    [[ "$stderr" == *rank0.safetensors.zst* ]]
    rm "$BATS_TEST_TMPDIR/run/step-000011/MANIFEST"
    run --separate-stderr resume --resume "$BATS_TEST_TMPDIR/run" -s schedule.extension=2
    [ "$status" -eq 0 ]
    grep -q '^resumed: step 8 ' <<< "$output"
}

# Nothing moves, so equal losses of the next token are equal batches.
@test "data.repeat counts from the step at which a run is resumed with it, also when it is resumed again" {
    flat=(-s data.val_tokens=0 -s data.checkpoint_every=1 -s optimizer.adam_lr=0 -s parameters.attn.lr=0 -s parameters.mlp.lr=0)
    for k in 0 1 2 3; do flat+=(-s "stages.$k=1024 3 512 $([ $k = 3 ] && echo - || echo 1) 1"); done
    groups() { losses "$1" | sed 's/.*loss://' | uniq -c | awk '{ printf "%s ", $1 }'; }
    train "${flat[@]}" --keep 0 -o run > run.log
    [ "$(groups run.log)" = "1 1 1 1 1 1 1 1 1 1 1 " ]
    resume --resume run/step-000004 -s data.repeat=3 --keep 0 -o three > three.log
    [ "$(groups three.log)" = "3 3 1 " ]
    # the first batch is the one that came next, the second the one after that
    diff <(losses run.log | sed -n '5,6s/.*loss://p') <(losses three.log | sed 's/.*loss://' | sed -n '1p;4p')
    resume --resume three/step-000006 --keep 0 -o again > again.log
    [ "$(groups again.log)" = "1 3 1 " ]
    diff -r three/step-000011 again/step-000011
    "$GPT_BIN/gpt-ckpt" verify --full again/step-000011
    # back to a batch a step
    resume --resume three/step-000008 -s data.repeat=1 > one.log
    [ "$(groups one.log)" = "1 1 1 " ]
}

@test "a list of multipliers freezes one matrix of a resumed run alone" {
    train -o run > run.log
    resume --resume run/step-000008 -s parameters.attn.lr=1*14,0,1*25 -o frozen > frozen.log
    "$GPT_BIN/gpt-ckpt" diff --all --format=tsv run/step-000008 frozen/step-000011 'layers.*.attn.?.weight' > diff.tsv || [ $? = 1 ]
    [ "$(awk -F'\t' '$2 == "same" { print $1 }' diff.tsv)" = layers.3.attn.v.weight ]
    [ "$(grep -c differs diff.tsv)" -ge 39 ]
}
