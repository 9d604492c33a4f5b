#!/bin/sh
# From .jsonl.zst on standard input to a judged run in one pipeline. On the disk is the checkpoint alone.
#   examples/one-pipe.sh BASELINE.log < corpus.jsonl.zst      (the baseline: log of a run of the same options)
#   examples/one-pipe.sh < corpus.jsonl.zst > baseline.log    without one: the log itself
# STEPS (30), SEED, options of gpt-train in OPTIONS.
set -eu
bin=${GPT_BIN:-build/bin}
dir=${OUT:-build/example}/one-pipe
rm -rf "$dir"

run() {
    # shellcheck disable=SC2086
    "$bin/gpt-tokshard" -q --tokenizer byte --format jsonl -o - --shard-tokens 1M - |
        "$bin/gpt-train" -q -r share/recipes/tiny.recipe -d - -o "$dir" \
            -s model.vocab=272 -s data.bos=256 -s seed="${SEED:-2}" \
            -s data.val_tokens=8192 -s data.val_chunk=1024 -s data.val_every=10 \
            -s schedule.steps="${STEPS:-30}" -s data.checkpoint_every=10 ${OPTIONS:-}
}
if [ $# -eq 0 ]; then
    run
else # status 1 is a verdict, too: not better
    run | "$bin/gpt-logdiff" --follow --rules loss --mixed base="$1" new=- || [ $? -eq 1 ]
fi
