#!/bin/sh
# Two learning rates, three seeds each: is the second better, and by more than noise?
#   run examples/train-on-text.sh first, for its shards
set -eu
bin=${GPT_BIN:-build/bin}
dir=${OUT:-build/example}
[ -d "$dir/shards" ] || { echo "no $dir/shards: run examples/train-on-text.sh first" >&2; exit 1; }
steps=${STEPS:-30}

for lr in 0.023 0.030; do
    mkdir -p "$dir/lr-$lr"
    for seed in 1 2 3; do
        log=$dir/lr-$lr/seed-$seed.log
        [ -s "$log" ] || "$bin/gpt-train" -q -r share/recipes/tiny.recipe -d "$dir/shards" --ranks 2 \
            -s model.vocab=272 -s data.val_tokens=8192 -s data.val_chunk=1024 -s data.val_every=10 \
            -s schedule.steps="$steps" -s optimizer.muon_lr=$lr -s seed=$seed > "$log"
    done
done
# 1 is an answer, too: not a record
"$bin/gpt-logdiff" --target 5 --curves --why "$dir/lr-0.023" "$dir/lr-0.030" || [ $? = 1 ]
