#!/bin/sh
# The set-up of examples that ask something of a checkpoint, which read this file: the commands, shards and checkpoint that
# the environment names, else those of examples/train-on-text.sh, and a folder for what comes in between.
# shellcheck disable=SC2034
bin=${GPT_BIN:-build/bin}
dir=${OUT:-build/example}
shards=${SHARDS:-$dir/shards}
run=${RUN:-$(find "$dir/run" -maxdepth 1 -name 'step-*' 2>/dev/null | sort | head -1)}
if [ ! -d "$shards" ] || [ ! -e "$run" ]; then
    echo "no $shards or no checkpoint ${RUN:-of it}: run examples/train-on-text.sh first" >&2
    exit 1
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
