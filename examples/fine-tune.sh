#!/bin/sh
# The example's model goes on with another text, beside a model from scratch: validation losses of both.
#   run examples/train-on-text.sh first; then examples/fine-tune.sh FILE...     (default: the CUDA sources)
set -eu
bin=${GPT_BIN:-build/bin}
dir=${OUT:-build/example}
[ -d "$dir/run" ] || { echo "no $dir/run: run examples/train-on-text.sh first" >&2; exit 1; }
steps=${STEPS:-30}
[ $# -gt 0 ] || set -- kernels/*.cu* kernels/*/*.cu*

"$bin/gpt-tokshard" --tokenizer byte --val-tokens 8192 --force -o "$dir/cuda" "$@"
# The first run ended with windows of 13 blocks: both keep that.
both() {
    "$bin/gpt-train" -q -d "$dir/cuda" --ranks 2 "$@" -s data.val_tokens=8192 -s data.val_chunk=1024 \
        -s data.val_every=5 -s schedule.steps="$steps" -s schedule.extension=0 -s schedule.final_window=13 \
        -s "stages.0=2048 13 256 1 1,0.5,0.25>0" -s "stages.1=2048 13 256 1 1,0.5>0" -s "stages.2=2048 13 256 1 1"
}
rm -rf "$dir/tuned"
both --init "$dir/run" -o "$dir/tuned" > "$dir/tuned.log"
both -r share/recipes/tiny.recipe -s model.vocab=272 > "$dir/scratch.log"
grep '^init:' "$dir/tuned.log"
echo "step  fine-tuned  from scratch"
for log in tuned scratch; do
    sed -n 's|^step:\([0-9]*\)/.* val_loss:\([0-9.]*\) .*|\1 \2|p' "$dir/$log.log" > "$dir/$log.losses"
done
paste -d ' ' "$dir/tuned.losses" "$dir/scratch.losses" | awk '{ printf "%4d  %10s  %12s\n", $1, $2, $4 }'
