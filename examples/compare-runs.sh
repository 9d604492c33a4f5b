#!/bin/sh
# Two learning rates, three seeds each: is the second's loss lower, and by more than noise?
#   run examples/train-on-text.sh first, for its shards; options of gpt-train may follow. A few steps, 15 s on two
#   cores; more: STEPS=200
set -eu
# shellcheck source=examples/keep.sh
. "$(dirname "$0")/keep.sh"
bin=${GPT_BIN:-build/bin}
dir=${OUT:-build/example}
[ -d "$dir/shards" ] || { echo "no $dir/shards: run examples/train-on-text.sh first" >&2; exit 1; }
steps=${STEPS:-10}
runs=$dir/compare-$steps
keep_asked "$runs" "$dir/shards" "$@"

for lr in 0.023 0.030; do
    mkdir -p "$runs/lr-$lr"
    for seed in 1 2 3; do
        log=$runs/lr-$lr/seed-$seed.log
        [ -e "$log" ] && continue           # of a run of this script that was stopped
        echo "$log" >&2
        "$bin/gpt-train" -q -r share/recipes/tiny.recipe -d "$dir/shards" --ranks 2 \
            -s model.vocab=272 -s data.val_tokens=8192 -s data.val_chunk=1024 -s data.val_every=10 \
            -s schedule.steps="$steps" -s optimizer.muon_lr=$lr -s seed=$seed "$@" > "$log.part"
        mv "$log.part" "$log"
    done
done
# 1 is an answer, too: not demonstrated to be better
"$bin/gpt-logdiff" --rules loss --curves --why "$runs/lr-0.023" "$runs/lr-0.030" || [ $? = 1 ]
