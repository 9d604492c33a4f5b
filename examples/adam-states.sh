#!/bin/sh
# Adam's moments in f32, bf16, f16 and e4m3, to nearest and drawn, some seeds each: is the loss of f32 kept?
#   run examples/train-on-text.sh first, for its shards; options of gpt-train may follow
# As it stands a few steps of a narrow model, 15 s on two cores, which answer nothing; in earnest:
#   STEPS=200 SEEDS="1 2 3 4" examples/adam-states.sh -s model.head_dim=32 -s model.mlp_width=256
set -eu
# shellcheck source=examples/keep.sh
. "$(dirname "$0")/keep.sh"
bin=${GPT_BIN:-build/bin}
dir=${OUT:-build/example}
[ -d "$dir/shards" ] || { echo "no $dir/shards: run examples/train-on-text.sh first" >&2; exit 1; }
steps=${STEPS:-6}
seeds=${SEEDS:-1 2}
runs=$dir/adam-states-$steps
keep_asked "$runs" "$dir/shards" "$@"

# type and rounding of both moments; without a tie, whose moments are rounded once more when it ends
for form in f32-nearest bf16-nearest bf16-stochastic f16-nearest e4m3-nearest e4m3-stochastic; do
    mkdir -p "$runs/$form"
    for seed in $seeds; do
        log=$runs/$form/seed-$seed.log
        [ -e "$log" ] && continue           # of a run of this script that was stopped
        echo "$log" >&2
        "$bin/gpt-train" -q -r share/recipes/tiny.recipe -d "$dir/shards" --ranks 2 \
            -s model.vocab=272 -s model.head_dim=16 -s model.mlp_width=64 \
            -s data.val_tokens=8192 -s data.val_chunk=1024 -s data.val_every=10 \
            -s schedule.steps="$steps" -s order.tied=- -s precision.adam_states="${form%-*}" \
            -s precision.adam_rounding="${form#*-}" -s seed="$seed" "$@" > "$log.part"
        mv "$log.part" "$log"
    done
done
for form in bf16-nearest bf16-stochastic f16-nearest e4m3-nearest e4m3-stochastic; do
    # 1 is an answer, too: not demonstrated to be as good
    "$bin/gpt-logdiff" --rules loss --why "$runs/f32-nearest" "$runs/$form" || [ $? = 1 ]
done
