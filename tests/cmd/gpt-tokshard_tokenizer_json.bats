#!/usr/bin/env bats
# gpt-tokshard with a tokenizer.json against Hugging Face's tokenizers, the Rust library as an npm package,
# where it can be had: the same ids, whatever they are and wherever special tokens are.

bats_require_minimum_version 1.5.0

setup_file() {
    root=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
    ranks=$GPT_BIN/../vocab/gpt2.tiktoken
    export root ranks
    if ! FOLDER=$("$root/tests/cmd/npm-folder" @anush008/tokenizers@0.6.0 2>&1); then
        export WHY="tokenizers ($FOLDER)"
    elif [ ! -f "$ranks" ]; then
        export WHY=vocab
    else
        # A special token that text spells is one to them, and text to gpt-tokshard.
        for kind in random worst; do node "$root/tests/cmd/tiktoken.mjs" - $kind; done |
            grep -av '<|endoftext|>' | awk 'NR % 10 == 0' > "$BATS_FILE_TMPDIR/text.jsonl"
    fi
    export FOLDER
}

setup() {
    [ -z "${WHY-}" ] || skip "needs $WHY"
    cd "$BATS_TEST_TMPDIR"
}

same() { # FORM START
    node "$root/tests/cmd/tokenizers.mjs" make "$ranks" "$1" > t.json
    node "$root/tests/cmd/tokenizers.mjs" encode "$FOLDER" t.json "$2" < "$BATS_FILE_TMPDIR/text.jsonl" > theirs
    [ "$(stat -c %s theirs)" -ge 150000 ]
    "$GPT_BIN/gpt-tokshard" -q --vocab t.json -o - "$BATS_FILE_TMPDIR/text.jsonl" | tail -c +1025 | cmp - theirs
}

@test "GPT-2's own" { same plain 50256; }
@test "ids in another order, special tokens at 0" { same permuted 0; }
@test "the pattern apart from the bytes, special tokens behind a gap" { same split 50261; }
