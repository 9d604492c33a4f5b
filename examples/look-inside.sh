#!/bin/sh
# What a run has made: numbers and spectra of its matrices, what the last steps changed, and the
# same state for another number of ranks.
#   run examples/train-on-text.sh first
set -eu
bin=${GPT_BIN:-build/bin}
dir=${OUT:-build/example}
[ -d "$dir/run" ] || { echo "no $dir/run: run examples/train-on-text.sh first" >&2; exit 1; }
first=$(printf '%s\n' "$dir"/run/step-* | head -1)
last=$(printf '%s\n' "$dir"/run/step-* | tail -1)

"$bin/gpt-ckpt" verify --full "$last"
"$bin/gpt-ckpt" stat --format table "$last" 'layers.0.*.weight'
"$bin/gpt-ckpt" spectrum --format table "$last" 'layers.0.*'
"$bin/gpt-ckpt" spectrum --since "$first" --plot "$dir/change.svg" --force "$last"
"$bin/gpt-ckpt" reshard --ranks 4 -o "$dir/run4" --force "$last"
"$bin/gpt-ckpt" diff "$last" "$dir/run4" && echo "the same on 2 and on 4 ranks"
