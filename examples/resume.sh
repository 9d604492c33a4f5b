#!/bin/sh
# A run that is stopped and goes on: its last checkpoint is that of an undisturbed run, bit for bit.
#   run examples/train-on-text.sh first
set -eu
bin=${GPT_BIN:-build/bin}
dir=${OUT:-build/example}
[ -d "$dir/run" ] || { echo "no $dir/run: run examples/train-on-text.sh first" >&2; exit 1; }

first=$(printf '%s\n' "$dir"/run/step-* | head -1)
echo "from $first"
rm -rf "$dir/again"
"$bin/gpt-train" -d "$dir/shards" --ranks 2 --resume "$first" -o "$dir/again" > "$dir/again.log"
last=$(printf '%s\n' "$dir"/run/step-* | tail -1)
diff -r "$last" "$dir/again/${last##*/}" && echo "the same bits: ${last##*/}"
