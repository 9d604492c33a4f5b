#!/bin/sh
# A model that has learnt something in 10 seconds: text about a small world (examples/small-world.awk), shards by a
# pipe, a run on two ranks; sample.sh and multiple-choice.sh ask what it knows.
set -eu
bin=${GPT_BIN:-build/bin}
dir=${OUT:-build/example}/world

awk -v seed=1 -v documents=6000 -f examples/small-world.awk |
    "$bin/gpt-tokshard" --tokenizer byte --format jsonl --val-tokens 4096 --force -o "$dir/shards" -
for ask in seen unseen; do
    awk -v seed=1 -v ask=$ask -f examples/small-world.awk > "$dir/$ask.tsv"
done
rm -rf "$dir/run"
"$bin/gpt-train" -r share/recipes/tiny.recipe -d "$dir/shards" --ranks 2 \
    -s model.vocab=272 -s model.head_dim=16 -s model.mlp_width=128 -s optimizer.muon_lr=0.035 \
    -s "stages.0=1024 3 256 1 1,0.5,0.25>0" -s "stages.1=1024 7 256 1.52 1,0.5>0" \
    -s "stages.2=1024 8 256 1.73 1" -s "stages.3=1024 8 256 - 1" \
    -s data.val_tokens=4096 -s data.val_chunk=1024 -s data.val_every=65 \
    -s schedule.steps=260 -o "$dir/run" > "$dir/run.log"
"$bin/gpt-logdiff" "$dir/run.log"
