#!/bin/sh
# What a run's model writes: the beginning of a document, continued lines, and as JSON.
#   run examples/train-on-text.sh first, for its run
set -eu
bin=${GPT_BIN:-build/bin}
dir=${OUT:-build/example}
[ -d "$dir/run" ] || { echo "no $dir/run: run examples/train-on-text.sh first" >&2; exit 1; }

echo '== a document'
"$bin/gpt-sample" -m "$dir/run" -n 80 --temperature 0.8 --seed 1 ""
echo '== the same line three times'
"$bin/gpt-sample" -m "$dir/run" -n 40 --top-p 0.9 --count 3 "static int "
echo '== the likeliest, as JSON'
printf '%s\n' '{"id": "c", "text": "/* "}' '{"id": "man", "text": ".It Fl "}' |
    "$bin/gpt-sample" -m "$dir/run" -n 20 --temperature 0 --jsonl
