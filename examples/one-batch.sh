#!/bin/sh
# How well an optimizer of matrices fits one batch from a checkpoint's weights, with and without attention's value
# projections frozen: a table of losses over learning rates.
#   run examples/train-on-text.sh first, for its shards and its run, or name some: SHARDS=dir RUN=dir/step-N
#   examples/one-batch.sh ['NAME RATE,RATE... STAGES']...    lines of gpt-rules(5) without rate; default: the four below
# STEPS (8) steps at a constant rate on one batch, from momenta of zero; attn and mlp move, all else stands. The recipe
# has these two banks, as tiny. The loss is that of the next token after the last step. 100 s.
set -eu
bin=${GPT_BIN:-build/bin}
dir=${OUT:-build/example}
shards=${SHARDS:-$dir/shards}
run=${RUN:-$(find "$dir/run" -maxdepth 1 -name 'step-*' 2>/dev/null | sort | head -1)}
steps=${STEPS:-8}
if [ ! -d "$shards" ] || [ -z "$run" ]; then
    echo "no $shards or no checkpoint: run examples/train-on-text.sh first" >&2
    exit 1
fi
[ $# -gt 0 ] || set -- \
    'muon 0.04,0.08,0.16,0.32 momentum 0.95 nesterov | polar polar-express | shape | step' \
    'normuon 0.04,0.08,0.16,0.32 momentum 0.95 nesterov | polar polar-express | shape | variance 0.95 | step' \
    'sgd 0.032,0.064,0.128,0.256 momentum 0.95 nesterov | step' \
    'adam 0.004,0.008,0.016,0.032 momentum 0.9 corrected | second 0.95 1e-10 corrected | step'
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# fit RATE STAGES MULTIPLIERS [STEPS]: the loss on the batch after so many steps; nan where it is no number
fit() {
    rm -f "$work/gradients"
    # the first of three stages is long enough, and what comes after is not run
    # shellcheck disable=SC2086
    "$bin/gpt-train" -q --init "$run" -d "$shards" -s schedule.steps=$((3 * steps + 3)) -s optimizer.adam_lr=0 \
        -s "rules.fit=lr $1 | $2" -s parameters.attn.rule=fit -s parameters.mlp.rule=fit -s parameters.attn.beta2=- \
        -s parameters.mlp.beta2=- -s parameters.attn.lr="$3" -s parameters.mlp.lr=1 --gradients "$work/gradients" \
        ${4+--after "$4"} ${OPTIONS:-} 2>"$work/err" || { [ $? = 5 ] && echo nan && return; cat "$work/err" >&2; exit 1; }
    "$bin/gpt-ckpt" info --format=tsv "$work/gradients" |
        awk -F'\t' '$1 ~ /^gpt\.(next_)?loss$/ { loss = $2 } END { printf "%.4f\n", loss }'
}

echo "# before: $(fit 0 step 1)"
echo "rule rate loss loss_v_frozen"
for line in "$@"; do
    name=${line%% *} rest=${line#* }
    for rate in $(echo "${rest%% *}" | tr , ' '); do
        echo "$name $rate $(fit "$rate" "${rest#* }" 1 "$steps") $(fit "$rate" "${rest#* }" 1,1,0,1 "$steps")"
    done
done
