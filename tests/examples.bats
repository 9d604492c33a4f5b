#!/usr/bin/env bats
# The examples as they stand, in the order in which they build on each other.

bats_require_minimum_version 1.5.0
load check/needs

# The first example's run is what most others look at.
setup_file() {
    cd "$GPT_SHARE/.." || return
    export OUT=$BATS_FILE_TMPDIR/out
    examples/train-on-text.sh >"$BATS_FILE_TMPDIR/train" 2>&1 || {
        cat "$BATS_FILE_TMPDIR/train"
        return 1
    }
}

setup() {
    cd "$GPT_SHARE/.." || return
}

# Options of a narrow model, for tests of what is run and printed: of full width one test trains, and others go on from it.
NARROW='-s model.head_dim=16 -s model.mlp_width=64'

# The first and the last validation loss of a log.
first_loss() {
    sed -n 's/^step:0\/.* val_loss:\([0-9.]*\).*/\1/p' "$1"
}

last_loss() {
    sed -n 's/^step:.* val_loss:\([0-9.]*\).*/\1/p' "$1" | tail -1
}

losses() {
    grep -o '^step:[0-9]*/[0-9]* [a-z_]*loss:[^ ]*' "$1"
}

# less A B: both are numbers, and A < B. awk takes "nan" for a number; it has no digit in front.
less() {
    [[ $1 = [0-9]* && $2 = [0-9]* ]] && awk -v a="$1" -v b="$2" 'BEGIN { exit !(a < b) }'
}

@test "every example has a test here" {
    for e in examples/*.sh; do
        echo "$e"
        grep -q "${e##*/}" "$BATS_TEST_FILENAME"
    done
}

# A uniform guess over 257 tokens costs 5.55 nats; English letters alone, without order, about 3.
@test "train-on-text.sh learns: a nat and more below where it began" {
    cat "$BATS_FILE_TMPDIR/train"
    log=$OUT/run.log
    less "$(last_loss "$log")" "$(awk -v x="$(first_loss "$log")" 'BEGIN { print x - 1 }')"
}

@test "look-inside.sh: 4 ranks hold what 2 ranks held" {
    run --separate-stderr examples/look-inside.sh
    echo "$output $stderr"
    [ "$status" -eq 0 ]
    [ "${lines[-1]}" = "the same on 2 and on 4 ranks" ]
    grep -q '^<svg' "$OUT/change.svg"
}

@test "resume.sh: a resumed run ends with the same bits" {
    run --separate-stderr examples/resume.sh
    echo "$output $stderr"
    [ "$status" -eq 0 ]
    [[ ${lines[-1]} = "the same bits: step-"* ]]
}

@test "fine-tune.sh: ahead of a run from scratch at every validation" {
    run --separate-stderr env STEPS=10 examples/fine-tune.sh
    echo "$output $stderr"
    [ "$status" -eq 0 ]
    [[ ${lines[0]} = "init: $(sed -n 's/^end //p' "$OUT"/run/step-000036/MANIFEST) step 36 of $OUT/run/step-000036" ]]
    [ "${#lines[@]}" -eq 5 ]
    awk 'NR > 2 && !($2 + 0.1 < $3) { bad = 1 } END { exit bad || NR != 5 }' <<<"$output"
}

# gpt-train prints four digits, half a unit of which is 5e-5; the rest is for sums of f32 in another
# order.
@test "export-to-numpy.sh: NumPy's loss is ours to 2e-4" {
    needs numpy
    run --separate-stderr env PYTHON="$(numpy)" examples/export-to-numpy.sh
    echo "$output $stderr"
    [ "$status" -eq 0 ]
    numpy=$(sed -n 's/^NumPy: *//p' <<<"$output")
    ours=$(sed -n 's/^gpt-train: *//p' <<<"$output")
    less "$numpy" "$(awk -v x="$ours" 'BEGIN { print x + 2e-4 }')"
    less "$(awk -v x="$ours" 'BEGIN { print x - 2e-4 }')" "$numpy"
}

@test "fit-coeffs.sh: the run with the fitted table learns too" {
    run --separate-stderr env OUT="$BATS_TEST_TMPDIR" OPTIONS="$NARROW" examples/fit-coeffs.sh
    echo "$output $stderr"
    [ "$status" -eq 0 ]
    grep -q '^<svg' "$BATS_TEST_TMPDIR/coeffs.svg"
    log=$BATS_TEST_TMPDIR/again.log
    less "$(last_loss "$log")" "$(awk -v x="$(first_loss "$log")" 'BEGIN { print x - 1 }')"
}

# Few tokens a step, for tests of what is run and printed, not of what it learns.
FEW=(-s data.chunks=2 -s data.val_tokens=1024)
for i in 0 1 2 3; do FEW+=(-s "stages.$i=512 3 256 $([ $i = 3 ] && echo - || echo 1) 1"); done

# The recipe's schedule goes on for 6 steps after those asked for.
@test "compare-runs.sh: three runs of each rate, and what differs between them" {
    run --separate-stderr env STEPS=2 examples/compare-runs.sh "${FEW[@]}"
    echo "$output $stderr"
    [ "$status" -eq 0 ]
    grep -qE '^lr-0.023 +3 +8 ' <<<"$output"
    grep -qE '^lr-0.030 +3 +8 ' <<<"$output"
    grep -qx -- '-muon_lr = 0.023' <<<"$output"
    grep -qx '+muon_lr = 0.03' <<<"$output"
}

@test "adam-states.sh: runs of each form of the moments, compared with f32" {
    run --separate-stderr env STEPS=2 examples/adam-states.sh "${FEW[@]}"
    echo "$output $stderr"
    [ "$status" -eq 0 ]
    for form in bf16-nearest bf16-stochastic f16-nearest e4m3-nearest e4m3-stochastic; do
        grep -qE "^$form +2 +8 +[0-9.]+ .* [0-9]+[.][0-9]+" <<<"$output"
    done
    grep -qx '+adam_states = e4m3' <<<"$output"
}

@test "optimizers.sh: runs of each rule, two at a time, compared with the record's" {
    run --separate-stderr env SIDES="normuon muon adam-last aol-4 gram f32" examples/optimizers.sh "${FEW[@]}"
    echo "$output $stderr"
    [ "$status" -eq 0 ]
    table=$output
    for side in muon adam-last aol-4 gram f32; do
        grep -qE "^$side +2 +12 +[0-9.]+ .* [0-9]+[.][0-9]+" <<<"$table"
        run ! diff <(losses "$OUT/optimizers-6/normuon/seed-1.log") <(losses "$OUT/optimizers-6/$side/seed-1.log")
    done
}

# Ended at some moment and started again, the sweep has the losses of one that was not.
@test "sweep.sh: a grid by seeds, interrupted and resumed, and its table" {
    grid=(model.vocab=272 model.head_dim=16 model.mlp_width=64 data.val_tokens=2048 data.val_chunk=512 "stages.0=512 3 512 1 1,0.5,0.25>0"
          "stages.1=512 7 512 1 1,0.5>0" "stages.2=512 11 512 1 1" "stages.3=512 13 512 - 1"
          'optimizer.muon_lr=0.01|0.03' 'optimizer.adam_lr=0.008|0.016')
    export STEPS=6 JOBS=2 SHARDS=$OUT/shards
    OUT=$BATS_TEST_TMPDIR/cut setsid examples/sweep.sh "${grid[@]}" >"$BATS_TEST_TMPDIR/first" 2>&1 3>&- &
    pid=$!
    for _ in $(seq 600); do
        [ ! -e "$BATS_TEST_TMPDIR/cut/sweep-6/cell-2/seed-2/log.txt" ] || break
        sleep 0.1
    done
    kill -TERM -- -$pid
    wait $pid || true
    [ "$(grep -l '^step:6/6 val_loss' "$BATS_TEST_TMPDIR"/cut/sweep-6/cell-*/seed-*/log.txt | wc -l)" -lt 8 ]
    OUT=$BATS_TEST_TMPDIR/cut run --separate-stderr examples/sweep.sh "${grid[@]}"
    echo "$output $stderr"
    [ "$status" -eq 0 ]
    cut=$output
    OUT=$BATS_TEST_TMPDIR/whole run --separate-stderr examples/sweep.sh "${grid[@]}"
    [ "$status" -eq 0 ]
    [ "$output" = "$cut" ]
    [ "$(grep -c '/seed-' <<<"$stderr")" -eq 8 ]
    grep -qE '^cell-1 +2 +[0-9.]+ +- +- +- +-  muon_lr=0.01 adam_lr=0.008$' <<<"$output"
    # Holm: the smallest p times 3, none below its own p, none above 1
    awk '/^cell-[234]/ { n++; if (n == 1 || $6 < p) { p = $6; h = $7 } if ($7 < $6 || $7 > 1) bad = 1 }
         END { want = 3 * p > 1 ? 1 : 3 * p; d = h - want; exit bad || n != 3 || !(d * d < 1e-7) }' <<<"$output"
    [ "$(grep -c '^loss over the rate: adam_lr=' <<<"$output")" -eq 2 ]
    OUT=$BATS_TEST_TMPDIR/whole run --separate-stderr examples/sweep.sh "${grid[@]}"
    [ "$output" = "$cut" ]
    [ -z "$stderr" ]                    # every run has ended
    OUT=$BATS_TEST_TMPDIR/whole run --separate-stderr examples/sweep.sh 'optimizer.muon_lr=0.01|0.04'
    [ "$status" -eq 2 ]
    [[ $stderr = *"/grid: of other settings or shards; remove "* ]]
}

# A gpt-train that fails leaves what keep.sh has written down.
@test "what examples keep of a run that was stopped is not taken for an answer on other shards or options" {
    export OUT=$BATS_TEST_TMPDIR GPT_BIN=$BATS_TEST_TMPDIR/bin
    mkdir "$GPT_BIN" "$OUT/shards"
    printf '#!/bin/sh\nexit 3\n' >"$GPT_BIN/gpt-train"
    chmod +x "$GPT_BIN/gpt-train"
    echo 'manifest: 1' >"$OUT/shards/MANIFEST"
    for e in adam-states compare-runs optimizers branch sweep race; do
        run "examples/$e.sh"
        echo "$e: $output"
        [[ $status -ne 2 && $output != *"of other settings"* ]]
    done
    for e in adam-states compare-runs optimizers; do
        run --separate-stderr "examples/$e.sh" -s seed=9
        [[ $status -eq 2 && $stderr = *"/asked: of other settings or shards; remove $OUT/"*", or name another OUT" ]]
    done
    OPTIONS='-s data.chunks=4' run --separate-stderr examples/branch.sh
    [[ $status -eq 2 && $stderr = *"/asked: of other settings"* ]]
    mkdir -p "$OUT/branch-12-6/run/seed-1" "$OUT/branch-12-6/branch-1"
    echo 'step:12/12 val_loss:1' >"$OUT/branch-12-6/run/seed-1/log.txt"
    touch "$OUT/branch-12-6/branch-1/seed-1.log"
    echo schedule.lr_floor=0 >"$OUT/branch-12-6/branch-1/set"
    run --separate-stderr examples/branch.sh optimizer.muon_lr=0.01
    [[ $status -eq 2 && $stderr = *"/branch-1/set: of other settings"* ]]
    echo 'manifest: 2' >"$OUT/shards/MANIFEST"
    for e in adam-states compare-runs optimizers branch sweep race; do
        run --separate-stderr "examples/$e.sh"
        [[ $status -eq 2 && $stderr = *"/asked: of other settings"* ]]
    done
}

# A stand-in for gpt-train says on what it was run.
@test "sweep.sh, race.sh: runs with GPUS take turns on those that are visible" {
    mkdir "$BATS_TEST_TMPDIR/bin"
    echo 'echo "$CUDA_VISIBLE_DEVICES $*" >&2' >"$BATS_TEST_TMPDIR/bin/gpt-train"
    chmod +x "$BATS_TEST_TMPDIR/bin/gpt-train"
    mkdir "$BATS_TEST_TMPDIR/run"
    echo --set=seed=1 >"$BATS_TEST_TMPDIR/run/args"
    for slot in 0 1 2; do
        for visible in '' 5,7; do
            GPT_BIN=$BATS_TEST_TMPDIR/bin SHARDS=s GPUS=2 SLOT=$slot CUDA_VISIBLE_DEVICES=$visible \
                run --separate-stderr examples/sweep.sh --run "$BATS_TEST_TMPDIR/run"
            [ "$status" -eq 0 ]
            cat "$BATS_TEST_TMPDIR/run/err"
        done
    done >"$BATS_TEST_TMPDIR/runs"
    printf '%s -q -d s --continue -o '"$BATS_TEST_TMPDIR"'/run --gpus 1 --set=seed=1\n' 0 5 1 7 0 5 | diff - "$BATS_TEST_TMPDIR/runs"
    # a log without checkpoints; nothing behind UNTIL
    sed -i 's/>&2//' "$BATS_TEST_TMPDIR/bin/gpt-train"
    SHARDS=s GPUS=1 SLOT=0 CHECKPOINTS=0 GPT_BIN=$BATS_TEST_TMPDIR/bin run --separate-stderr examples/sweep.sh --run "$BATS_TEST_TMPDIR/run"
    [ "$status" -eq 0 ]
    [ "$(cat "$BATS_TEST_TMPDIR/run/log.txt")" = "0 -q -d s --gpus 1 --set=seed=1" ]
    rm "$BATS_TEST_TMPDIR/run/log.txt"
    for seconds in -1 100; do
        SHARDS=s GPUS=1 SLOT=0 CHECKPOINTS=0 UNTIL=$(($(date +%s) + seconds)) GPT_BIN=$BATS_TEST_TMPDIR/bin \
            run --separate-stderr examples/sweep.sh --run "$BATS_TEST_TMPDIR/run"
        [ "$status" -eq 0 ]
        [ "$(ls "$BATS_TEST_TMPDIR/run" | grep -c log.txt)" -eq $((seconds > 0)) ]
    done
    # and races of GPUs are no CPU's
    GPUS=1 GPT_BIN=$BATS_TEST_TMPDIR/bin CHOOSE=1 FRESH=2 run --separate-stderr examples/race.sh 'muon 0.1 rules.matrices=lr RATE | step'
    [ "$status" -eq 1 ]
    [ -z "$output" ]
    [ "$stderr" = "$OUT/race-short-gpu/muon/lr-0.1/seed-2"$'\n'"no run has ended" ]
}

# A stand-in for curl keeps what is sent, and answers as the tracker would.
@test "tracker.sh: each step's numbers, to the tracker that is named; else as rows" {
    run --separate-stderr examples/tracker.sh "$OUT/run"
    [ "$status" -eq 0 ]
    [ "${lines[0]}" = group,run,trial,step,train/loss,train/next_loss,val/loss,train/grad_norm,lr,tokens,seconds,epoch ]
    needs jq
    mkdir "$BATS_TEST_TMPDIR/bin"
    echo '#!/bin/sh' >"$BATS_TEST_TMPDIR/bin/curl"
    cat >>"$BATS_TEST_TMPDIR/bin/curl" <<'END'
while [ $# -gt 1 ]; do [ "$1" != -d ] || body=$2; shift; done
printf '%s %s\n' "$1" "$body" >>"$SENT"
case $1 in */runs/create) echo '{"run": {"info": {"run_id": "r1"}}}' ;; *) echo '{}' ;; esac
END
    chmod +x "$BATS_TEST_TMPDIR/bin/curl"
    export SENT=$BATS_TEST_TMPDIR/sent MLFLOW_TRACKING_URI=http://host:5000
    PATH=$BATS_TEST_TMPDIR/bin:$PATH run --separate-stderr examples/tracker.sh "$OUT/run"
    echo "$output $stderr"
    [ "$status" -eq 0 ]
    [ "$output" = "http://host:5000/#/experiments/0/runs/r1" ]
    [ "$(head -n 1 "$SENT" | cut -d ' ' -f 1)" = http://host:5000/api/2.0/mlflow/runs/create ]
    [[ "$(tail -n 1 "$SENT")" = *"/runs/update "*'"FINISHED"'* ]]
    grep /runs/log-batch "$SENT" | cut -d ' ' -f 2- >"$BATS_TEST_TMPDIR/batches"
    jq -e '.run_id == "r1" and (.metrics | length > 2)' "$BATS_TEST_TMPDIR/batches" >"$BATS_TEST_TMPDIR/true"
    jq -r '.metrics[] | select(.key == "val/loss") | "\(.step) \(.value)"' "$BATS_TEST_TMPDIR/batches" >"$BATS_TEST_TMPDIR/vals"
    sed -nE 's/^step:([0-9]+)\/.* val_loss:([0-9.]*[1-9.])0* .*/\1 \2/p' "$OUT/run/log.txt" | diff - "$BATS_TEST_TMPDIR/vals"
}

# Sentences in random order cost about 0.3 nats a byte, whoever knows the facts.
@test "small-world.sh: a model that knows its text, by the end of a curve" {
    run --separate-stderr examples/small-world.sh
    echo "$output $stderr"
    [ "$status" -eq 0 ]
    less "$(last_loss "$OUT/world/run.log")" 0.8
    [[ $output == *"Where the time went"* ]]
}

@test "sample.sh: texts of that model" {
    run --separate-stderr examples/sample.sh
    echo "$output $stderr"
    [ "$status" -eq 0 ]
    [ "$(grep -c '^The opposite of ' <<<"$output")" -ge 3 ]
    # a fact of the text, in its words
    [[ ${lines[-1]} = '{"id": "sound", "sample": 0, "prompt": "The lion says", "text": " roar. ", "tokens": 7, "ended": false}' ]]
}

# Of 13 questions a guesser has 10 or more right once in 8,000 times.
@test "multiple-choice.sh: what the text says it knows, far above chance" {
    run --separate-stderr examples/multiple-choice.sh
    echo "$output $stderr"
    [ "$status" -eq 0 ]
    [ "$(grep -cE '^(right|wrong)' <<<"$output")" -eq 24 ]
    [[ $output =~ seen.tsv:\ ([0-9]+)\ of\ 13\ right\;\ by\ chance\ 3.2 ]]
    [ "${BASH_REMATCH[1]}" -ge 10 ]
    [[ ${lines[-1]} =~ ^unseen.tsv:\ [0-9]+\ of\ 11\ right\;\ by\ chance\ 2.8$ ]]
}

@test "one-pipe.sh: text in, a judged run out, and the checkpoint alone on the disk" {
    cat lib/*/*.c | tr -cd 'a-zA-Z0-9 .,;()\n' |
        awk '{ printf "%s%s", NR % 100 == 1 ? "{\"text\": \"" : "", $0 } NR % 100 == 0 { print "\"}" } END { if (NR % 100) print "\"}" }' |
        zstd -q > "$BATS_TEST_TMPDIR/text.jsonl.zst"
    export OUT=$BATS_TEST_TMPDIR/disk STEPS=4 OPTIONS=$NARROW
    SEED=1 examples/one-pipe.sh < "$BATS_TEST_TMPDIR/text.jsonl.zst" > "$BATS_TEST_TMPDIR/base.log"
    run --separate-stderr examples/one-pipe.sh "$BATS_TEST_TMPDIR/base.log" < "$BATS_TEST_TMPDIR/text.jsonl.zst"
    [ "$status" -eq 0 ]
    [ -z "$stderr" ]
    [[ $output == *$'\nnew: '* ]]
    [ "$(ls "$OUT")" = one-pipe ]
    [[ $(ls "$OUT/one-pipe" | grep -v log.txt) == step-* ]]
}

# A branch has the run's seed and state, so the error of the pairs is far below that of the groups.
@test "branch.sh: from a run's checkpoint, compared in pairs by seed" {
    run --separate-stderr env STEPS=4 AT=2 OPTIONS="$NARROW" examples/branch.sh schedule.lr_floor=0 'optimizer.muon_lr=0.01 ; optimizer.muon_wd=0'
    echo "$output $stderr"
    [ "$status" -eq 0 ] || [ "$status" -eq 1 ]
    grep -qx 'branch-2: optimizer.muon_lr=0.01 ; optimizer.muon_wd=0' <<<"$output"
    for n in 1 2; do
        grep -qE "^branch-$n +3 +seed +0 " <<<"$output"
        grep -E "^branch-$n +3 +seed " <<<"$output" | awk '{ exit !($6 > 0 && $6 < $7) }'
        grep -q '^resumed: step 2 of ' "$OUT/branch-4-2/branch-$n/seed-3.log"
    done
    grep -qx 'muon_wd = 0' "$OUT/branch-4-2/branch-2/seed-1.log"
}

# Gives examples that ask a checkpoint the small world's: a narrow model that has learnt, few tokens a batch.
world() {
    export SHARDS=$OUT/world/shards RUN
    RUN=$(find "$OUT/world/run" -name 'step-*' | sort | head -1)
}

@test "spoil.sh: a step of one part turns the gradient of another, one of neither part none" {
    world
    run --separate-stderr env BATCHES=2 examples/spoil.sh
    echo "$output $stderr"
    [ "$status" -eq 0 ]
    [ "${lines[0]}" = "moved gradient_of batches 1-cos error along error" ]
    [ "${#lines[@]}" -eq 9 ]
    for part in attn mlp; do
        grep -qx "neither $part 2 0.0000 0.0000 1.0000 0.0000" <<<"$output"
        for moved in attn mlp both; do
            grep "^$moved $part 2 " <<<"$output" | awk '{ exit !($4 > 0 && $4 < 1 && $5 < $4 && $6 < 1 && $6 > 0) }'
        done
    done
}

@test "one-batch.sh: a line a rate, its loss below the one before; frozen V is another number; a picture" {
    world
    run --separate-stderr env STEPS=4 BATCHES=2 JOBS=2 examples/one-batch.sh \
        'mine 0.01,0.02,1e6 momentum 0.95 nesterov | polar polar-express | shape | step'
    echo "$output $stderr"
    [ "$status" -eq 0 ]
    [ "${#lines[@]}" -eq 5 ]
    before=${lines[0]#\# before: }
    awk -v before="$before" 'NR == 3 { exit !($1 == "mine" && $2 == "0.01" && $3 == 2 && $4 > 0 && $4 < before - 0.01 && $6 < before - 0.01 && $4 != $6) }' <<<"$output"
    awk 'NR == 3 { d = $6 - $4 - $8; exit !(d * d < 1.1e-8 && $5 > 0 && $7 > 0 && $9 > 0) }' <<<"$output"
    awk -v before="$before" 'NR == 5 { exit !($4 == "nan" || $4 > before) }' <<<"$output"
    [ "$stderr" = "picture: $OUT/one-batch.svg" ]
    # of each two points lie below the loss before, 1e6's does not
    for name in mine 'mine, V frozen'; do
        grep -qE "points='([0-9.]+,[0-9.]+ ){2}'><title>$name</title>" "$OUT/one-batch.svg"
    done
}

@test "one-batch.sh, spoil.sh: what is not there is said in one line, of checkpoint.sh" {
    for e in one-batch spoil; do
        RUN=$BATS_TEST_TMPDIR/none run --separate-stderr examples/$e.sh
        [ "$status" -eq 1 ]
        [ -z "$output" ]
        [ "$stderr" = "no $OUT/shards or no checkpoint $BATS_TEST_TMPDIR/none: run examples/train-on-text.sh first" ]
    done
}

@test "race.sh: a rate for each line, then fresh seeds; more lines go on where it stopped" {
    # of a file: a comment, a line that goes on; then a line of the command
    printf '%s\n' '# lines' '' 'muon 0.01,0.02,0.9 rules.matrices=lr RATE | momentum 0.95 nesterov \' \
        '    | polar record-61 | step' >"$BATS_TEST_TMPDIR/some.lines"
    run --separate-stderr env CHOOSE=1 MORE=1 examples/race.sh "$BATS_TEST_TMPDIR/some.lines" \
        'sgd 0.01,0.02 rules.matrices=lr RATE | momentum 0.95 | step ; seed=5'
    echo "$output $stderr"
    [ "$status" -eq 0 ]
    # the second grid has one rate more
    [ "$(grep -cE '^sgd +0[.][0-9]+ +[0-9.]+$' <<<"$stderr")" -eq 5 ]
    grep -qE '^muon +0[.][0-9]+!? +2 +[0-9.]+ +[0-9.]+ +- ' <<<"$output"
    grep -qE '^sgd +0[.]0[0-9]+!? +2 ' <<<"$output"
    [ "$(xargs <"$OUT/race-short/sgd.rates")" = "0.01 0.02 0.04" ]
    grep -qx 'sgd: the best rate is at the edge of its grid' <<<"$output"
    grep -qx 'matrices = lr 0.02 | momentum 0.95 | step' "$OUT/race-short/sgd/lr-0.02/seed-1/log.txt"
    touch -d 2001-01-01 "$OUT/race-short/sgd/lr-0.02/seed-1/log.txt"
    run --separate-stderr env CHOOSE=1 examples/race.sh \
        'muon 0.01,0.02,0.9 rules.matrices=lr RATE | momentum 0.95 nesterov | polar record-61 | step'
    [ "$status" -eq 0 ]
    [ "$(date -r "$OUT/race-short/sgd/lr-0.02/seed-1/log.txt" +%Y)" = 2001 ]
}

# The lines of such files, one a line.
lines_of() {
    sed -e '/^#/d; /^$/d; :next; /\\$/{N; s/\\\n//; b next;}' "$@"
}

# settings_of RATE SETTINGS: options of gpt-train, into the array set.
settings_of() {
    set=()
    while IFS= read -r s; do
        case $s in '') ;; --*) set+=("$s") ;; *) set+=("--set=$s") ;; esac
    done < <(sed "s/RATE/$1/g; s/ *; */\n/g" <<<"$2")
}

@test "race.lines, aol.lines, keys.lines, soap.lines, coeffs.lines: bench-small can be run with each, at each rate" {
    n=0
    while read -r name rates settings; do
        [[ $rates =~ ^[0-9.]+(,[0-9.]+){0,4}$ ]]
        settings_of "${rates%%,*}" "$settings"
        echo "$name"
        "$GPT_BIN/gpt-train" --plan -r bench-small "${set[@]}" >"$BATS_TEST_TMPDIR/plan"
        grep -qE "^rule matrices = (lr ${rates%%,*} |nor )" "$BATS_TEST_TMPDIR/plan"
        n=$((n + 1))
    done < <(lines_of examples/race.lines examples/aol.lines examples/keys.lines examples/soap.lines examples/coeffs.lines)
    [ $n -ge 55 ]
}

@test "qk-84.lines: record 84 can be run with each, which is another plan" {
    while read -r name rate settings; do
        if [ "$name" = '*' ]; then
            settings_of - "$rate $settings"
            every=("${set[@]}")
            continue
        fi
        settings_of "$rate" "$settings"
        echo "$name"
        "$GPT_BIN/gpt-train" --plan "${every[@]}" "${set[@]}" >"$BATS_TEST_TMPDIR/$name"
    done < <(lines_of examples/qk-84.lines)
    [ "$(cd "$BATS_TEST_TMPDIR" && md5sum -- record-84 qk-* | cut -d ' ' -f 1 | sort -u | wc -l)" -eq 3 ]
}

@test "rounding-61.lines has the lines of rounding.lines, with a block of its own" {
    diff <(lines_of examples/rounding.lines | sed '/^\*/d; s/^tiny /record-61 /; s/=512$/=8192/') \
        <(lines_of examples/rounding-61.lines | sed '/^\*/d')
}

# Narrow; eight steps, or so many that what begins when head and embedding part has moved a weight.
@test "tiny.lines, rounding.lines, those of record 61: each runs, and its losses are not the baseline's" {
    n=0
    declare -A base
    narrow=(model.head_dim=8 model.mlp_width=64 model.vocab=272 data.bos=256 data.chunks=1 schedule.extension=0 data.val_tokens=256 data.val_chunk=256
            "stages.2=256 8 128 1.73 1" "stages.3=256 8 128 - 1")
    while read -r name rate settings; do
        if [ "$name" = '*' ]; then
            settings_of - "$rate $settings"
            every=("${set[@]}")
            continue
        fi
        settings=${settings//131072 3 2048/256 3 128}                   # record 61's stages
        settings_of "${rate%%,*}" "${settings//262144 7 2048/256 7 128}"
        case $settings in *stages*) stages=() ;; *) stages=("stages.0=256 3 128 1 1,0.5,0.25>0" "stages.1=256 7 128 1.52 1,0.5>0") ;; esac
        case $name in portable | head-block | prefix-*) continue ;; esac   # they act on a GPU, or on GPT-2's tokens
        echo "$name"
        for steps in 8 16; do
            case $steps$name in *tiny | *record-61 | 16untie* | 8[!u]*) ;; *) continue ;; esac
            "$GPT_BIN/gpt-train" -q --threads 1 -d "$OUT/shards" "${every[@]}" "${set[@]}" "${narrow[@]/#/--set=}" \
                "${stages[@]/#/--set=}" --set=schedule.steps=$steps >"$BATS_TEST_TMPDIR/log"
            losses=$(sed -n 's/^step:\([0-9]*\).* \(train_loss\|val_loss\):\([0-9.]*\).*/\1 \3/p' "$BATS_TEST_TMPDIR/log")
            [ "$(wc -l <<<"$losses")" -eq $((steps + 1)) ]
            if [[ $name = tiny || $name = record-61 || $name = five ]]; then base[$steps]=$losses; else [ "$losses" != "${base[$steps]}" ]; fi
        done
        n=$((n + 1))
    done < <(lines_of examples/tiny.lines examples/rounding.lines examples/{aol,fp8,keys}-61.lines)
    [ $n -ge 58 ]
}
