#!/bin/sh
# Text to a trained model: shards, a run on two ranks, a look at its log.
#   examples/train-on-text.sh FILE...      (default: this project's own words)
set -eu
bin=${GPT_BIN:-build/bin}
dir=${OUT:-build/example}
[ $# -gt 0 ] || set -- man/*.[157] lib/*/*.[ch]

"$bin/gpt-tokshard" --tokenizer byte --val-tokens 8192 --force -o "$dir/shards" "$@"
rm -rf "$dir/run"
"$bin/gpt-train" -r share/recipes/tiny.recipe -d "$dir/shards" --ranks 2 \
    -s model.vocab=272 -s data.val_tokens=8192 -s data.val_chunk=1024 \
    -s schedule.steps=30 -s data.checkpoint_every=10 -o "$dir/run" > "$dir/run.log"
grep val_loss "$dir/run.log"
echo "log: $dir/run.log   checkpoints: $dir/run"
