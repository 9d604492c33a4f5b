# Record 84's recipe at a small size: the same trainer, without special cases.

bats_require_minimum_version 1.5.0
load tiny_runs
load record84_runs

losses() { sed -n 's/^step:.* train_loss:\([^ ]*\).*/\1/p' "$1"; }

# bats test_tags=long
@test "resumed on 2 ranks: the same bits; gpt-ckpt knows its tensors" {
    cd "$BATS_TEST_TMPDIR"
    train -r "$RECIPE" --ranks 2 -o a > a.log
    resumed_alike 000008 000011 --ranks 2
    grep -q 'layers.9.attn.k' tensors.tsv
}

# bats test_tags=long
@test "gpt-sample: the run's last val_loss, greedy texts with any batch" {
    cd "$BATS_TEST_TMPDIR"
    train -r "$RECIPE" -o a > a.log
    samples_as_validated a 11
}

# Signs are drawn once and stay; what Adam moves beside them moves.
# bats test_tags=long
@test "the signs are the first ones at the end" {
    cd "$BATS_TEST_TMPDIR"
    train -r "$RECIPE" -o a > a.log
    "$GPT_BIN/gpt-ckpt" diff a/step-000008 a/step-000011 > moved.txt 2> /dev/null || [ $? -eq 1 ]
    grep -q '^mudd_w1.weight' moved.txt
    run ! grep -q '^bigram_sign_table.weight' moved.txt
    "$GPT_BIN/gpt-ckpt" stat --format=tsv --bank=bigram_sign_table a/step-000011 |
        awk -F'\t' '$1 ~ /weight$/ { n++; if ($7 != 1) exit 1 } END { exit !n }'
}

# Weights in f32: in bf16 a last bit of a sum moves roundings.
# bats test_tags=long
@test "1, 3 and 8 ranks agree to 1e-5" {
    cd "$BATS_TEST_TMPDIR"
    sed 's/ bf16 / f32  /' "$RECIPE" > f32.recipe
    for n in 1 3 8; do
        train -r f32.recipe -s optimizer.polar=f32 -s data.val_tokens=0 -s precision.mlp=bf16 \
            -s precision.check_weights=yes -s precision.head_fp8=no --ranks $n > $n.log
    done
    for n in 3 8; do
        paste <(losses 1.log) <(losses $n.log) |
            awk '{ d = $1 / $2 - 1; if (d < 0) d = -d; if (!(d <= 1e-5)) exit 1; n++ } END { exit n != 11 }'
    done
}

# A vocabulary of the 256 bytes and some merges: "t" is the prefix of "th", that of "the".
vocabulary() {
    local i
    for ((i = 0; i < 256; i++)); do
        printf '%s %d\n' "$(printf "\\x$(printf %02x "$i")" | base64)" "$i"
    done
    i=256
    for word in th the an and in ing ' t' ' th' ' the' er; do
        printf '%s %d\n' "$(printf %s "$word" | base64)" "$((i++))"
    done
}
first_loss() { sed -n 's/^step:1\/.* train_loss:\([^ ]*\).*/\1/p' "$1"; }

# bats test_tags=long
@test "data.val_canonical: validation without tokens that never follow, training as it was" {
    cd "$BATS_TEST_TMPDIR"
    vocabulary > small.tiktoken
    "$GPT_BIN/gpt-tokshard" -q --vocab small.tiktoken --val-tokens 8192 -o shards \
        "$BATS_FILE_TMPDIR"/text/*
    train -r "$RECIPE" -d shards -o off > off.log
    train -r "$RECIPE" -d shards -s data.val_canonical=yes --vocab small.tiktoken --ranks 2 \
        --threads 1 -o on > on.log
    train -r "$RECIPE" -d shards --ranks 2 --threads 1 -o two > two.log
    [ "$(losses on.log)" = "$(losses two.log)" ]
    validated() { sed -n 's/^step:.* val_loss:\([^ ]*\).*/\1/p' "$1"; }
    # What is barred has part of an untrained model's probability.
    paste <(validated off.log) <(validated on.log) | awk '
        { if (!($2 < $1 && $2 > $1 - 0.2)) exit 1 }
        END { exit !(NR >= 2) }'

    # Public shards do not say who made them: the first pair that the vocabulary cannot write is named.
    mkdir public && cp shards/*.bin public
    vocabulary | sed 's/^ZXI= /aGU= /' > other.tiktoken # "he" in place of "er"
    run --separate-stderr train -r "$RECIPE" -d 'public/*_train_*.bin' --val 'public/*_val_*.bin' \
        -s data.bos=266 -s data.val_canonical=yes --vocab other.tiktoken
    [ "$status" -eq 3 ]
    [[ $stderr == *"validation: token "*" after "*"data.val_canonical=no"* ]]
}

# bats test_tags=long
@test "tokens' prefixes: a term of the loss, linear in its weight, in the stages that have it" {
    cd "$BATS_TEST_TMPDIR"
    vocabulary > small.tiktoken
    "$GPT_BIN/gpt-tokshard" -q --vocab small.tiktoken --val-tokens 8192 -o shards \
        "$BATS_FILE_TMPDIR"/text/*
    for w in none 0 0.25 0.5; do
        stage="512 3 56 1 1,0.5,0.25>0${w/#/ }"
        [ $w = none ] && stage=${stage% none}
        [[ $w = 0* ]] && [ $w != 0 ] && vocab=(--vocab small.tiktoken) || vocab=()
        train -r "$RECIPE" -d shards -s "stages.0=$stage" "${vocab[@]}" -o $w > $w.log
    done
    [ "$(losses none.log)" = "$(losses 0.log)" ]
    awk -v a="$(first_loss 0.log)" -v b="$(first_loss 0.25.log)" -v c="$(first_loss 0.5.log)" \
        'BEGIN { d = (c - a) / (b - a) - 2; exit !(b > a && d < 1e-3 && d > -1e-3) }'
    # the same validation before the first step; a resumed run the same bits
    [ "$(grep -o '^step:0/.* val_loss:[^ ]*' 0.log)" = "$(grep -o '^step:0/.* val_loss:[^ ]*' 0.5.log)" ]
    cp -r 0.25/step-000008 b
    "$GPT_BIN/gpt-train" -q -d shards --resume b --vocab small.tiktoken -o c > c.log
    diff -r 0.25/step-000011 c/step-000011

    run --separate-stderr train -r "$RECIPE" -d shards --vocab small.tiktoken
    [ "$status" -eq 2 ]
    [[ $stderr == *"no stage of the recipe has a weight for prefixes"* ]]
    vocabulary | sed '$d' > other.tiktoken
    run --separate-stderr train -r "$RECIPE" -d shards --vocab other.tiktoken \
        -s "stages.0=512 3 56 1 1 0.25"
    [ "$status" -eq 3 ]
    [[ $stderr == *"shards: the shards were made with the vocabulary other "* ]]
}
