# A small run on bytes, for tests of how runs begin, end and go on: shards in $SHARDS, and in $DOCS of
# 300 documents of 400 bytes, made by make_shards; `train` runs it, `start` with exec, so that the
# process of `start ... &` is the program.

make_shards() {
    export SHARDS=$BATS_FILE_TMPDIR/shards
    mkdir "$BATS_FILE_TMPDIR/text"
    tests/inputs/text "$BATS_FILE_TMPDIR/text"
    "$GPT_BIN/gpt-tokshard" -q --tokenizer byte --val-tokens 16384 -o "$SHARDS" "$BATS_FILE_TMPDIR"/text/*
    export DOCS=$BATS_FILE_TMPDIR/docs
    cat "$BATS_FILE_TMPDIR"/text/* | tr -cd 'a-zA-Z0-9 .,\n' | tr '\n' ' ' | fold -w 400 | head -n 300 |
        sed 's/.*/{"text":"&"}/' > "$BATS_FILE_TMPDIR/docs.jsonl"
    "$GPT_BIN/gpt-tokshard" -q --tokenizer byte --val-tokens 8192 -o "$DOCS" "$BATS_FILE_TMPDIR/docs.jsonl"
}

# The tiny recipe at half its width: 11 steps, Adam's parameters move in the even ones, checkpoints
# after steps 4 and 8.
SMALL=(-s model.vocab=272 -s model.head_dim=16 -s model.mlp_width=64 -s schedule.steps=9
       -s schedule.extension=2 -s data.val_tokens=2048 -s data.val_chunk=256 -s data.val_every=5
       -s data.checkpoint_every=4
       -s "stages.0=1024 3 512 1 1,0.5,0.25>0" -s "stages.1=1024 7 512 1.52 1,0.5>0"
       -s "stages.2=2048 11 512 1.73 1" -s "stages.3=2048 13 512 - 1")
train() { "$GPT_BIN/gpt-train" -r tiny "${SMALL[@]}" -d "$SHARDS" -q "$@"; }
start() { exec "$GPT_BIN/gpt-train" -r tiny "${SMALL[@]}" -d "$SHARDS" -q "$@"; }

# until the log of a run in the background has a line that begins so
await() { # TEXT LOG
    for _ in $(seq 1200); do grep -q "^$1" "$2" 2>/dev/null && return; sleep 0.02; done
    return 1
}
# step and loss columns of a log, without clocks and header
losses() { grep -o '^step:[0-9]*/[0-9]* [a-z_]*loss:[^ ]*' "$1"; }
