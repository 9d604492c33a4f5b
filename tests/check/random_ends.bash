#!/bin/bash
# Runs of gpt-train that are ended at random, and continued: a seed is one run.
#   tests/check/random_ends.bash FIRST COUNT [OPTION...]     options of gpt-train: --device cuda
# After each end `gpt-train --continue` must go on to the checkpoint of the uninterrupted run: to its
# bits, or, where a run was left between two moves of Adam, to losses within 1e-5; or the end was a
# refusal before the first step. A seed that fails is printed with what it drew; status 1.
# Environment: GPT_BIN, GPT_SHARE; TMPDIR. A seed takes two to ten seconds.
set -u
first=$1 count=$2
shift 2
device=("$@")
cd "$(dirname "$0")/../.." || exit 4
dir=$(mktemp -d) || exit 4
pid=
trap '[ -z "$pid" ] || kill -KILL "$pid" 2> /dev/null; rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM
on_gpu=false
[[ " ${device[*]-} " != *" cuda "* && " ${device[*]-} " != *" --gpus "* ]] || on_gpu=true

# Documents of 400 bytes, of which a step takes eight where they are cut: some 36 steps, 6, 12 and 20.
mkdir "$dir/text"
tests/inputs/text "$dir/text"
for n in 300 60 110 170; do
    cat "$dir"/text/* | tr -cd 'a-zA-Z0-9 .,\n' | tr '\n' ' ' | fold -w 400 | head -n $n | sed 's/.*/{"text":"&"}/' > "$dir/docs.jsonl"
    "$GPT_BIN/gpt-tokshard" -q --tokenizer byte --val-tokens 2100 -o "$dir/$n" "$dir/docs.jsonl" || exit 4
done

# With all in f32, ranks and a gradient that was put aside differ by the order of sums alone. GPUs have bf16.
cp "$GPT_SHARE/recipes/tiny.recipe" "$dir/my.recipe"
$on_gpu || sed -i 's/ bf16 / f32  /' "$dir/my.recipe"
steps=24
base=(-q -r "$dir/my.recipe" "${device[@]}" -s model.vocab=272 -s schedule.steps=$((steps - 2)) -s schedule.extension=2
      -s data.val_tokens=2048 -s data.val_chunk=256 -s data.bos=256 -s optimizer.adam_lr=0.002 -s optimizer.muon_lr=0.008
      -s "stages.0=1024 3 512 1 1,0.5,0.25>0" -s "stages.1=1024 7 512 1.52 1,0.5>0"
      -s "stages.2=1024 11 512 1.73 1" -s "stages.3=1024 13 512 - 1")
if ! $on_gpu; then
    base+=(-s optimizer.polar=f32 -s model.head_dim=16 -s model.mlp_width=64 --threads 1)
fi

within=()
# Sets drawn to a number from $1 to $2. Not in a subshell, where RANDOM would not move on.
draw() { drawn=$(($1 + (RANDOM * 32768 + RANDOM) % ($2 - $1 + 1))); }
pick() { draw 1 $#; drawn=${!drawn}; }

run() { # of this seed, in $dir/run; with exec, so that the process of `run &` is the program, or what $within names
    exec env --default-signal=INT "${within[@]}" "$GPT_BIN/gpt-train" "${base[@]}" "${options[@]}" -o "$dir/run" --continue "$@"
}
# Waits until the run's log has step $1, or the run has ended.
await() {
    until grep -q "^step:$1/" "$dir/run/log.txt" 2> /dev/null; do
        kill -0 "$pid" 2> /dev/null || return 0
        sleep 0.01
    done
}
ended() { status=0; wait "$pid" || status=$?; pid=; }

# Each strikes a run at step $at and a little later, and leaves its status.
strike_signals() { # SIGNAL... with pauses in seconds between them
    (run "${on_files[@]}") > "$dir/out" 2> "$dir/err" & pid=$!
    await "$at"
    sleep "0.0$delay"
    for it; do
        case $it in [0-9]*) sleep "$it" ;; *) kill "-$it" "$pid" 2> /dev/null || : ;; esac
    done
    ended
}
strike() {
    case $kind in
    one) strike_signals "$signal" ;;
    two) strike_signals "$signal" "$signal" ;;
    second) strike_signals "$signal" 1.1 "$signal" ;;
    kill) strike_signals KILL ;;
    reader)
        mkfifo "$dir/fifo"
        head -n $((200 + at)) "$dir/fifo" > /dev/null & local reader=$!
        (run "${on_files[@]}") > "$dir/fifo" 2> "$dir/err" & pid=$!
        ended
        wait "$reader"
        rm "$dir/fifo" ;;
    log) (run "${on_files[@]}") > /dev/full 2> "$dir/err" & pid=$!
        ended ;;
    copy)
        mkdir "$dir/run"
        ln -s /dev/full "$dir/run/log.txt"
        (run "${on_files[@]}") > "$dir/out" 2> "$dir/err" & pid=$!
        ended
        rm "$dir/run/log.txt" ;;
    disk) (ulimit -f $((limit % 1500)); run "${on_files[@]}") > "$dir/out" 2> "$dir/err" & pid=$!
        ended ;;
    memory) (ulimit -v $((60000 + limit % 40000)); within=(timeout 300); run "${on_files[@]}") > "$dir/out" 2> "$dir/err" & pid=$!
        ended ;;
    stream) # within the 64 KiB that tell which stream it is, or beyond
        (head -c $((1100 + limit % 165000)) "$docs"/*_train_*.bin | run -d - --val "$docs") > "$dir/out" 2> "$dir/err" & pid=$!
        ended ;;
    used) (run "${on_files[@]}" -s data.cycle=no) > "$dir/out" 2> "$dir/err" & pid=$!
        ended ;;
    esac
}
kinds=(one two second kill reader log copy disk stream used memory)
! $on_gpu || kinds=(one two second kill reader log copy disk stream used)   # CUDA maps more than there is
# Statuses that each end may have; of a kill the signal's, and a run may have ended before it.
allowed() {
    case $kind in
    one | two) [[ $status = 0 ]] ;;
    second) [[ $status = 0 || $status = 130 || $status = 143 || $status = 129 ]] ;;
    kill) [[ $status = 0 || $status = 137 ]] ;;
    reader | log | copy | disk) [[ $status = 0 || $status = 4 ]] ;;
    stream) [[ $status = 0 || $status = 3 ]] ;;
    used) [[ $status = 3 || $cut = pieces ]] ;;
    memory) [[ $status != 0 && $status != 124 || -f "$dir/run/step-0000$steps/MANIFEST" ]] ;;
    esac
}

# The uninterrupted run, once for each that differs in what it computes.
whole() {
    reference=$dir/whole.$ranks.$every.$cut.${docs##*/}
    [ -d "$reference" ] || "$GPT_BIN/gpt-train" "${base[@]}" "${options[@]}" "${on_files[@]}" -o "$reference" > "$reference.log" 2> "$dir/err"
}

# Losses of two logs over the steps that both have, the last of each step: the worst relative difference.
worst() {
    awk 'FNR == 1 { file++ }
         match($0, /^step:[0-9]+\/[0-9]+ [a-z_]*loss:/) { split($2, v, ":"); loss[file, $1 " " v[1]] = v[2]; if (file == 2) seen[$1 " " v[1]] }
         END { for (k in seen) if ((1, k) in loss) { d = (loss[1, k] - loss[2, k]) / loss[1, k]; if (d < 0) d = -d; if (!(d <= w)) w = d; n++ }
               if (!n) exit 1
               print w + 0 }' "$1" "$2"
}

try() { # SEED
    RANDOM=$1
    rm -rf "$dir/run" "$dir/err" "$dir/out"
    pick "${kinds[@]}"; kind=$drawn
    pick INT TERM HUP; signal=$drawn
    draw 1 3; ranks=$drawn
    ! $on_gpu || ranks=1
    pick 1 2; every=$drawn
    pick document pieces; cut=$drawn
    pick 0 2 4 6; checkpoint=$drawn
    pick 0 3 5; validate=$drawn
    draw 0 $((steps - 2)); at=$drawn
    draw 0 9; delay=$drawn
    draw 0 1000000; limit=$drawn
    docs=$dir/300 cycle=no
    [ "$kind" != used ] || { pick 60 110 170; docs=$dir/$drawn cycle=yes; }
    on_files=(-d "$docs")
    options=(--ranks "$ranks" -s optimizer.adam_every="$every" -s data.checkpoint_every="$checkpoint" -s data.val_every="$validate"
             -s data.cycle="$cycle" -s data.cut="$cut")
    drew="seed $1: $kind ($signal) at step $at + 0.0$delay s, limit $limit, ranks $ranks, adam_every $every, cut $cut, checkpoint_every $checkpoint, val_every $validate"

    whole || { why="the uninterrupted run failed"; return 1; }
    strike
    allowed || { why="status $status: $(tail -n 1 "$dir/err")"; return 1; }
    [ "$kind" = kill ] || [ "$kind" = memory ] || [ -z "$(find "$dir/run" -name '*.tmp' 2> /dev/null)" ] || { why="a temporary file stays"; return 1; }
    local newest odd=false data=("${on_files[@]}")
    newest=$(find "$dir/run" -maxdepth 1 -name 'step-*' 2> /dev/null | sort | tail -n 1)
    [ -z "$newest" ] || [ $((10#${newest##*-} % every)) -eq 0 ] || odd=true
    [ "$kind" != stream ] || data=(-d - --val "$docs")
    local goes_on=0
    cat "$docs"/*_train_*.bin | (run "${data[@]}") > "$dir/rest" 2> "$dir/err" || goes_on=$?
    [ "$goes_on" -eq 0 ] || { why="--continue: status $goes_on: $(tail -n 1 "$dir/err")"; return 1; }
    if $odd; then
        why="worst relative difference of a loss: $(worst "$reference.log" "$dir/run/log.txt")"
        awk -v w="${why##* }" 'BEGIN { exit !(w <= 1e-5) }'
    else
        why=$(diff -r -x MANIFEST -x recipe.txt "$reference/step-0000$steps" "$dir/run/step-0000$steps" 2>&1)
    fi
}

failed=0
for ((seed = first; seed < first + count; seed++)); do
    if try "$seed"; then
        echo "ok     $drew: status $status"
    else
        echo "FAILED $drew: $why"
        failed=$((failed + 1))
    fi
done
echo "$((count - failed)) passed, $failed failed"
((failed == 0))
