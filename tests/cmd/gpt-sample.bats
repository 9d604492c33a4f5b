# gpt-sample as a user meets it: the same text whatever the batch, scores that are the run's own loss,
# and what it does with input that is empty, long or damaged.

bats_require_minimum_version 1.5.0

# A short run on bytes, long enough that its texts are not all alike.
setup_file() {
    export SHARDS=$BATS_FILE_TMPDIR/shards RUN=$BATS_FILE_TMPDIR/run
    mkdir "$BATS_FILE_TMPDIR/text"
    tests/inputs/text "$BATS_FILE_TMPDIR/text"
    "$GPT_BIN/gpt-tokshard" -q --tokenizer byte --val-tokens 8192 -o "$SHARDS" "$BATS_FILE_TMPDIR"/text/*
    "$GPT_BIN/gpt-train" -q -r "$GPT_SHARE/recipes/tiny.recipe" -d "$SHARDS" -o "$RUN" -s model.vocab=272 \
        -s schedule.steps=9 -s schedule.extension=2 -s data.val_tokens=8192 -s data.val_chunk=1024 \
        -s "stages.0=512 3 512 1 1,0.5,0.25>0" -s "stages.1=512 7 512 1.52 1,0.5>0" \
        -s "stages.2=1024 11 512 1.73 1" -s "stages.3=1024 13 512 - 1" > "$BATS_FILE_TMPDIR/run.log"
}

setup() { cd "$BATS_TEST_TMPDIR" || return; }

sample() { "$GPT_BIN/gpt-sample" -q -m "$RUN" "$@"; }

# NUMBER FIELD of line 2 of a score
field() { sed -n 2p <<< "$output" | cut -f "$1"; }

near() { awk -v a="$1" -v b="$2" -v e="$3" 'BEGIN { d = a - b; exit !(a ~ /[0-9]/ && b ~ /[0-9]/ && d <= e && d >= -e) }'; }

@test "a text begins with its prompt and ends with its line, after -n tokens" {
    run --separate-stderr sample -n 30 --ignore-end "static int "
    [ "$status" -eq 0 ]
    [ -z "$stderr" ]
    [[ $output = "static int "* ]]
    sample -n 30 --ignore-end --json --temperature 0 "static int " | grep -q '"tokens": 30, "ended": false}$'
}

@test "greedy texts and draws are the same with any batch, order and number of threads" {
    printf '%s\n' "a" "static int main" "" "The quick brown fox jumps over the lazy dog" ".It Fl" > p
    for options in "--temperature 0" "--temperature 1 --seed 3 --count 3" "--top-k 20 --top-p 0.9 --count 2"; do
        sample -n 50 --ignore-end --json $options --input p --batch 1 --threads 1 > one
        sample -n 50 --ignore-end --json $options --input p --batch 3 > three
        sample -n 50 --ignore-end --json $options --input p --batch 100 --threads 2 > all
        cmp one three
        cmp one all
        tac p | sample -n 50 --ignore-end --json $options | sort -t: -k 3 > turned
        diff <(sed 's/^{"id": [0-9]*, //' one | sort) <(sed 's/^{"id": [0-9]*, //' turned | sort)
    done
    [ "$(sort -u one | wc -l)" -eq 10 ]
    sample -n 50 --seed 4 "static" > a
    sample -n 50 --seed 5 "static" > b
    run ! cmp -s a b
}

@test "an exported file gives the text of its checkpoint, with the recipe that it carries" {
    sample -n 40 --temperature 0 "int " > a
    "$GPT_BIN/gpt-ckpt" export -q "$RUN" -o "$BATS_TEST_TMPDIR/x.safetensors"
    "$GPT_BIN/gpt-ckpt" export -q "$RUN" --dtype bf16 -o "$BATS_TEST_TMPDIR/y.safetensors.zst"
    for f in x.safetensors y.safetensors.zst; do
        "$GPT_BIN/gpt-sample" -m "$BATS_TEST_TMPDIR/$f" -n 40 --temperature 0 "int " | cmp a -
    done
}

@test "a packed checkpoint on standard input gives the text of its folder, and leaves nothing behind" {
    mkdir tmp
    export TMPDIR=$PWD/tmp
    sample -n 40 --temperature 0 "int " > a
    "$GPT_BIN/gpt-ckpt" pack "$RUN" > packed
    "$GPT_BIN/gpt-sample" -q -m - -n 40 --temperature 0 "int " < packed | cmp a -
    echo "int " > prompts
    "$GPT_BIN/gpt-sample" -q -m - -n 40 --temperature 0 --input prompts < packed | cmp a -
    "$GPT_BIN/gpt-sample" -q -m - --score -d "$SHARDS" < packed | cmp - <(sample --score -d "$SHARDS")
    head -c 100000 packed > cut.tar
    run --separate-stderr "$GPT_BIN/gpt-sample" -q -m - x < cut.tar
    [ "$status" -eq 3 ]
    [[ $stderr = "gpt-sample: standard input: "* ]]
    [ -z "$output" ]
    [ -z "$(ls tmp)" ]
    for wrong in "" "--input -" "--score --input -"; do
        run --separate-stderr "$GPT_BIN/gpt-sample" -q -m - $wrong < packed
        [ "$status" -eq 2 ]
        [[ $stderr = "gpt-sample: -m - reads the model from stdin: prompts from PROMPT or --input FILE"* ]]
    done
}

@test "the score of the validation tokens is the run's last val_loss" {
    run --separate-stderr sample --score -d "$SHARDS"
    [ "$status" -eq 0 ]
    [ "${lines[0]}" = $'id\ttokens\tbytes\tnats\tnats_a_token\tbits_a_byte' ]
    [ "$(field 2)" -eq 8192 ]
    loss=$(sed -n 's/^step:11.*val_loss:\([0-9.]*\).*/\1/p' "$BATS_FILE_TMPDIR/run.log")
    echo "$output" "$loss"
    near "$(field 5)" "-$loss" 1e-4
    near "$(field 6)" "$(awk -v n="$(field 4)" -v b="$(field 3)" 'BEGIN { print -n / log(2) / b }')" 1e-5
}

@test "a text's score is the sum over its parts; jsonl and lines agree" {
    run --separate-stderr sample --score "static int main" "static int" $'static int\t main'
    [ "$status" -eq 0 ]
    whole=$(sed -n 2p <<< "$output" | cut -f 4) first=$(sed -n 3p <<< "$output" | cut -f 4)
    rest=$(sed -n 4p <<< "$output" | cut -f 4)
    near "$whole" "$(awk -v a="$first" -v b="$rest" 'BEGIN { print a + b }')" 1e-3
    [ "$(sed -n 4p <<< "$output" | cut -f 1-3)" = $'3\t5\t5' ]
    run --separate-stderr sample --score --jsonl <<< '{"id": "x", "text": "static int", "continuation": " main"}'
    [ "$status" -eq 0 ]
    [[ $output = '{"id": "x", "tokens": 5, "bytes": 5, "nats": '"$rest"', '* ]]
}

@test "prompts of no token, of more than any window, and of bad UTF-8" {
    run --separate-stderr sample -n 5 ""
    [ "$status" -eq 0 ]
    long=$(printf 'word %.0s' $(seq 1000))     # 5,000 bytes; the long window has 640 tokens
    run --separate-stderr sample -n 5 --ignore-end --json "$long"
    [ "$status" -eq 0 ]
    [[ $output = *'"tokens": 5, '* ]]
    run --separate-stderr "$GPT_BIN/gpt-sample" -m "$RUN" -n 3 --temperature 0 $'a\xff\xc3b'
    [ "$status" -eq 0 ]
    [ "$stderr" = "gpt-sample: 2 bad UTF-8 sequences replaced by U+FFFD" ]
    [[ $output = $'a\xef\xbf\xbd\xef\xbf\xbdb'* ]]
    # Half a pair of surrogates in JSON is one character, as it is to gpt-tokshard.
    run --separate-stderr sample -n 1 --jsonl --input <(echo '{"text": "a\ud800b"}')
    [ "$status" -eq 0 ]
    [[ $output = *$'"prompt": "a\xef\xbf\xbdb"'* ]]
    run --separate-stderr sample < /dev/null
    [ "$status" -eq 0 ]
    [ -z "$output" ]
    run --separate-stderr sample --score ""
    [ "$status" -eq 0 ]
    [ "${lines[1]}" = $'1\t0\t0\t0\t\t' ]
}

@test "more texts than are counted are refused" {
    yes a | head -n 3000 > many
    run --separate-stderr sample --count 1000000 --input many
    [ "$status" -eq 2 ]
    [[ $stderr = *"--count: expected fewer than 2^31 texts, found 3000000000"* ]]
}

@test "output is UTF-8 whatever the model writes" {
    sample -n 300 --ignore-end --temperature 5 --count 4 "" > text
    iconv -f UTF-8 -t UTF-8 text > /dev/null
    grep -q $'\xef\xbf\xbd' text
}

@test "a closed pipe ends it silently, a full disk does not" {
    sample -n 2000 --ignore-end "x" 2> err | head -c 1 > /dev/null
    [ ! -s err ]
    run --separate-stderr bash -c '"$GPT_BIN/gpt-sample" -q -m "$RUN" -n 5 x > /dev/full'
    [ "$status" -eq 4 ]
    [[ $stderr = *"cannot write standard output"* ]]
}

@test "what is no model of ours is named" {
    run --separate-stderr "$GPT_BIN/gpt-sample" -m "$BATS_TEST_TMPDIR/nothing" x
    [ "$status" -eq 4 ]
    cp -r "$RUN/step-000011" "$BATS_TEST_TMPDIR/step-000011"
    sed -i '1s/1$/2/' "$BATS_TEST_TMPDIR/step-000011/MANIFEST"
    run --separate-stderr "$GPT_BIN/gpt-sample" -m "$BATS_TEST_TMPDIR/step-000011" x
    [ "$status" -eq 3 ]
    [[ $stderr = *"step-000011/MANIFEST: expected XXH3 "*": it is damaged" ]]
    # with the hash that it should have, which the message says, it is whole, and of another version
    found=${stderr##*found } found=${found%%:*}
    sed -i "\$s/.*/end $found/" "$BATS_TEST_TMPDIR/step-000011/MANIFEST"
    run --separate-stderr "$GPT_BIN/gpt-sample" -m "$BATS_TEST_TMPDIR/step-000011" x
    echo "$stderr"
    [ "$status" -eq 3 ]
    [[ $stderr = *"step-000011/MANIFEST: line 1: expected gpt checkpoint 1, found 'gpt checkpoint 2'"* ]]
    [ -z "$output" ]
    run --separate-stderr sample --vocab "$BATS_TEST_TMPDIR/none" x
    [ "$status" -eq 4 ]
    run --separate-stderr sample --tokenizer gpt2 x
    [ "$status" -eq 3 ]
    run --separate-stderr sample --jsonl <<< '{"id": 3}'
    [ "$status" -eq 3 ]
    [[ $stderr = *"line 1: expected a field 'text', found none" ]]
    for wrong in "--jsonl x" "--data $SHARDS" "--score --data $SHARDS x" "--top-p 0 x" "--no-graph x"; do
        run --separate-stderr sample $wrong
        echo "$wrong: $stderr"
        [ "$status" -eq 2 ]
    done
}
