# Record 74's recipe at a small size: the same trainer, without special cases.

bats_require_minimum_version 1.5.0

setup_file() {
    export SHARDS=$BATS_FILE_TMPDIR/shards
    mkdir "$BATS_FILE_TMPDIR/text"
    tests/inputs/text "$BATS_FILE_TMPDIR/text"
    "$GPT_BIN/gpt-tokshard" -q --tokenizer byte --val-tokens 16384 -o "$SHARDS" "$BATS_FILE_TMPDIR"/text/*
}

# A few steps on bytes: all stages, the untie step, the extension; a bigram table of 500 rows.
SMALL=(-s model.vocab=272 -s model.bigram_rows=496 -s model.heads=2 -s model.head_dim=32
       -s model.mlp_width=64 -s model.block=32 -s schedule.steps=9 -s schedule.extension=2
       -s data.bos=-1 -s data.cycle=yes -s data.val_tokens=2048 -s data.val_chunk=1024 -s data.val_every=5
       -s data.checkpoint_every=4
       -s "stages.0=512 3 112 1 1,0.5,0.25>0" -s "stages.1=512 7 512 1.52 1,0.5>0"
       -s "stages.2=1024 11 512 1.73 1" -s "stages.3=1024 13 512 - 1")
start() { exec "$GPT_BIN/gpt-train" --threads 1 -r "$GPT_SHARE/recipes/record-74.recipe" "${SMALL[@]}" -d "$SHARDS" -q "$@"; }
train() { (start "$@"); }
losses() { grep -o '^step:[0-9]*/[0-9]* [a-z_]*loss:[^ ]*' "$1"; }

# worst relative difference of the training losses of two logs, in parts per 1e-7
worst_difference() {
    paste <(losses "$1" | sed -n 's/.*train_loss://p') <(losses "$2" | sed -n 's/.*train_loss://p') |
        awk '{ d = ($1 - $2) / $2; if (d < 0) d = -d; if (d > w) w = d; n++ } END { if (!n) exit 1; printf "%d %.0f\n", n, w * 1e7 }'
}

# bats test_tags=long
@test "a run of all stages learns, and leaves a checkpoint that gpt-ckpt finds sound" {
    train -o "$BATS_TEST_TMPDIR/run" > "$BATS_TEST_TMPDIR/log"
    [ "$(losses "$BATS_TEST_TMPDIR/log" | grep -c train_loss)" -eq 11 ]
    losses "$BATS_TEST_TMPDIR/log" | awk -F'[: /]' '/val_loss/ { if (!n++) first = $NF; last = $NF } END { exit !(last < first - 1) }'
    "$GPT_BIN/gpt-ckpt" verify --full "$BATS_TEST_TMPDIR/run"
    "$GPT_BIN/gpt-ckpt" stat "$BATS_TEST_TMPDIR/run" | grep -q '^bigram_embed.weight'
}

# bats test_tags=long
@test "killed in the middle and resumed: the same bits" {
    cd "$BATS_TEST_TMPDIR"
    train -o a > a.log
    start -o b > b.log &
    pid=$!
    while [ ! -f b/step-000004/MANIFEST ]; do kill -0 $pid; sleep 0.02; done
    kill -KILL $pid
    wait $pid || true
    [ ! -e b/step-000011 ]
    "$GPT_BIN/gpt-train" -q -d "$SHARDS" --resume b -o b > c.log
    diff -r a/step-000011 b/step-000011
}

# Weights in f32: in bf16 a last bit of a sum moves roundings.
# bats test_tags=long
@test "1, 2, 4 and 8 ranks agree to 1e-5" {
    cd "$BATS_TEST_TMPDIR"
    sed 's/ bf16 / f32  /' "$GPT_SHARE/recipes/record-74.recipe" > f32.recipe
    for n in 1 2 4 8; do
        "$GPT_BIN/gpt-train" -r f32.recipe "${SMALL[@]}" -s optimizer.polar=f32 -s data.val_tokens=0 \
            -s precision.check_weights=yes -s precision.head_fp8=no -d "$SHARDS" -q --ranks $n > $n.log
    done
    for n in 2 4 8; do
        read -r steps worst < <(worst_difference 1.log $n.log)
        [ "$steps" -eq 11 ]
        [ "$worst" -le 100 ]
    done
}

# bats test_tags=long
@test "the open questions of the record are keys that run" {
    for key in inject=before inject_bare=yes post_single=yes fold_mlp=yes; do
        run --separate-stderr train -s model.$key -s data.val_tokens=0
        [ "$status" -eq 0 ]
        [ "$(grep -c 'train_loss:[0-9]' <<< "$output")" -eq 11 ]
    done
}

@test "--plan: its parameters, stages and last learning rates" {
    run --separate-stderr "$GPT_BIN/gpt-train" --plan -r "$GPT_SHARE/recipes/record-74.recipe" --ranks 8
    [ "$status" -eq 0 ]
    grep -q '^bigram_embed  *1 x 251520 x 768 .* sparse  *31440 ' <<< "$output"
    grep -q '^ *483  *262144  *32768  *896 ' <<< "$output"
    grep -q '^ *1450  *393216 .* 0.1500 ' <<< "$output"
}

# bats test_tags=long
@test "the sparse exchange trains as the dense one does, and the log says what it saved" {
    cd "$BATS_TEST_TMPDIR"
    dense="parameters.bigram_embed=b,d bf16 zero adam sharded 0.75 0.95 75 5 no"
    train > 1.log
    [ "$(grep -c '^sparse: ' 1.log)" -eq 0 ]                # one rank has nobody to exchange with
    for n in 2 8; do
        train --ranks $n -s precision.check_weights=yes > s.log
        train --ranks $n -s "$dense" > d.log
        diff <(losses s.log) <(losses d.log)
        grep '^sparse: ' s.log
        grep -q '^sparse: 5 exchanges, [0-5] dense; a rank sent [0-9.]* MB in place of [0-9.]* MB$' \
            s.log
        [ "$(grep -c '^sparse: ' d.log)" -eq 0 ]
    done
    # On 8 ranks a rank's 256 tokens of two steps touch few of 496 rows; of 48 rows all of them.
    awk '/^sparse: / { exit !($4 == 0 && $9 < 0.7 * $14) }' s.log
    train --ranks 8 -s model.bigram_rows=48 > few.log
    awk '/^sparse: / { exit !($4 > 0 && $9 <= $14) }' few.log
}

# By layers only what a rank owns is final; a replicated bank is reduced when all of it is. Its padding
# (matrices 40 to 43) has a gradient of zero.
@test "a replicated bank with padding, reduced early or not: the same losses as a sharded one's" {
    cd "$BATS_TEST_TMPDIR"
    short=(--ranks 2 -s data.val_tokens=0 -s schedule.steps=6 -s schedule.extension=0)
    train "${short[@]}" > sharded.log
    for early in no yes; do
        train "${short[@]}" > $early.log \
            -s "parameters.attn=44,d,d bf16 uniform:0.5 normuon replicated - 0.95 1 1 $early"
        diff <(losses sharded.log) <(losses $early.log)
    done
    [ "$(losses yes.log | wc -l)" -eq 6 ]
}

# The largest table of all may be on its way while the next forward begins.
@test "the bigram table gathered late: the same losses" {
    cd "$BATS_TEST_TMPDIR"
    train --ranks 2 -s data.val_tokens=0 > a.log
    train --ranks 2 -s data.val_tokens=0 -s "order.late=bigram_embed value_embed" \
        -s precision.check_weights=yes > b.log
    diff <(losses a.log) <(losses b.log)
}

# No checkpoint has which rows were touched: on the way none is written between the two steps that Adam
# sees, whatever is asked for, and at the end what waits is exchanged for it.
@test "resumed between two sparse exchanges: the same bits" {
    cd "$BATS_TEST_TMPDIR"
    train --ranks 4 -s data.checkpoint_every=3 --keep 0 -o a > a.log
    [ "$(ls a | grep -c step)" -eq 2 ]
    cp -r a b
    rm -r b/step-000011
    "$GPT_BIN/gpt-train" -q -d "$SHARDS" --ranks 4 --resume b/step-000006 -o b > b.log
    diff -r a/step-000011 b/step-000011
    grep '^sparse: 3 exchanges' b.log
}

@test "exported and imported, it is the same checkpoint: no number is left out" {
    cd "$BATS_TEST_TMPDIR"
    train --ranks 2 -s data.val_tokens=0 -s precision.adam_states=bf16 -o run > log
    "$GPT_BIN/gpt-ckpt" export run --states --padding -o all.safetensors
    "$GPT_BIN/gpt-ckpt" ls all.safetensors 'layers.10.mlp_lane1.*' > lanes
    [ "$(grep -c '^layers.10.mlp_lane1.weight' lanes)" -eq 1 ]
    "$GPT_BIN/gpt-ckpt" import all.safetensors -q --like run --ranks 2 -o again
    run --separate-stderr "$GPT_BIN/gpt-ckpt" diff run again
    [ "$status" -eq 0 ]
    [ -z "$stderr" ]
}
