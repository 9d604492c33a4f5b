#!/usr/bin/env bats
# The loss of the next token beside the objective: in the log and on the screen, where they are two numbers.

bats_require_minimum_version 1.5.0

setup_file() {
    export SHARDS=$BATS_FILE_TMPDIR/shards
    mkdir "$BATS_FILE_TMPDIR/text"
    (cd "$GPT_SHARE/.." && tests/inputs/text "$BATS_FILE_TMPDIR/text")
    "$GPT_BIN/gpt-tokshard" -q --tokenizer byte --val-tokens 1024 -o "$SHARDS" "$BATS_FILE_TMPDIR"/text/00*
}

# train OPTION...: a few steps of tiny at a quarter of its width.
train() {
    "$GPT_BIN/gpt-train" -r tiny -d "$SHARDS" -s model.vocab=272 -s model.head_dim=16 -s model.mlp_width=64 \
        -s data.val_tokens=1024 -s data.val_chunk=1024 -s schedule.steps=4 -s schedule.extension=1 -s data.chunks=2 \
        -s "stages.1=128 1 64 1 1" -s "stages.2=128 1 64 1 1" -s "stages.3=128 2 64 - 1" "$@"
}

column() { sed -n "s/.* $1:\([0-9.]*\).*/\1/p" "$2"; }

# With weights 1, 0.5 the objective is the next token's loss and half of another; with 1 alone it is that loss,
# of the same first batch: the weights of step 1 do not depend on the objective.
@test "the next token's loss is that of an objective of it alone" {
    cd "$BATS_TEST_TMPDIR"
    train -q -s "stages.0=128 1 64 1 1,0.5" > two.log
    train -q -s "stages.0=128 1 64 1 1" > one.log
    [ "$(column next_loss two.log | wc -l)" -eq 5 ]
    [ "$(column next_loss one.log | wc -l)" -eq 0 ] # one number: no column
    [ "$(column next_loss two.log | head -1)" = "$(column train_loss one.log | head -1)" ]
    # of stages whose weight is 1 both are the same number
    [ "$(column next_loss two.log | tail -2)" = "$(column train_loss two.log | tail -2)" ]
    # on any number of ranks
    train -q -s "stages.0=128 1 64 1 1,0.5" --ranks 2 > ranks.log
    paste <(column next_loss two.log) <(column next_loss ranks.log) |
        awk '{ d = $1 - $2; if (!(d < 1e-4 && d > -1e-4)) bad = 1 } END { exit bad || NR != 5 }'
    # a weight that is not 1 is another number, too
    train -q -s "stages.0=128 1 64 1 0.5" > half.log
    paste <(column next_loss half.log) <(column train_loss half.log) |
        awk 'NR == 1 { d = $1 - 2 * $2; exit !(d < 1e-5 && d > -1e-5) }'
}

@test "progress shows the next token's loss, and the objective behind it" {
    cd "$BATS_TEST_TMPDIR"
    train --progress -s "stages.0=128 1 64 1 1,0.5" > two.log 2> two.err
    tr '\r' '\n' < two.err | grep -oE '^step 1/5  loss [0-9.]+ \(objective [0-9.]+\)  [0-9]+ tokens/s' > line
    paste -d ' ' <(head -1 line) <(column next_loss two.log | head -1) <(column train_loss two.log | head -1) |
        awk '{ sub(/\)/, "", $6); a = $4 - $9; b = $6 - $10; exit !(a < 6e-5 && a > -6e-5 && b < 6e-5 && b > -6e-5) }'
    train --progress -s "stages.0=128 1 64 1 1" > one.log 2> one.err
    tr '\r' '\n' < one.err | grep -qE '^step 1/5  loss [0-9.]{6}  [0-9]+ tokens/s'
    [ "$(grep -c objective one.err)" -eq 0 ]
}
