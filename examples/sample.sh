#!/bin/sh
# What a run's model writes: the beginning of a document, a line continued three times, and JSON.
#   run examples/small-world.sh first, for its run
set -eu
bin=${GPT_BIN:-build/bin}
run=${OUT:-build/example}/world/run
[ -d "$run" ] || { echo "no $run: run examples/small-world.sh first" >&2; exit 1; }

echo '== a document'
"$bin/gpt-sample" -m "$run" -n 120 --temperature 0.5 --seed 1 ""
echo '== the same line three times'
"$bin/gpt-sample" -m "$run" -n 30 --top-p 0.9 --count 3 "The opposite of"
echo '== the likeliest, as JSON'
printf '%s\n' '{"id": "next", "text": "After two comes"}' '{"id": "sound", "text": "The lion says"}' |
    "$bin/gpt-sample" -m "$run" -n 7 --temperature 0 --jsonl
