#!/usr/bin/env bats
# gpt-tokshard against tiktoken itself, the npm package, where it can be had: the same tokens on our
# own sources, on the code points of Unicode in seven contexts, on 100,000 random strings, and on
# repetitions. (Ordinary words and units are in bpe_test, which needs no tiktoken.)

bats_require_minimum_version 1.5.0

setup_file() {
    root=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
    export root
    if ! FOLDER=$("$root/tests/cmd/npm-folder" tiktoken@1.0.22 2>&1); then
        export WHY="tiktoken ($FOLDER)"
    elif ! printf x | "$GPT_BIN/gpt-tokshard" -q --stats - > /dev/null 2>&1; then
        export WHY=vocab
    fi
    export FOLDER
}

setup() {
    [ -z "${WHY-}" ] || skip "needs $WHY"
    cd "$BATS_TEST_TMPDIR"
    js="$root/tests/cmd/tiktoken.mjs"
}

ours() { "$GPT_BIN/gpt-tokshard" -q -o - "$@" | tail -c +1025; }
theirs() { node "$js" "$FOLDER" encode; }

# .jsonl on stdin: the same streams of tokens, and not empty ones
same() {
    cat > text.jsonl
    theirs < text.jsonl > theirs
    [ "$(stat -c %s theirs)" -ge "$1" ]
    ours text.jsonl | cmp - theirs
}

@test "the units of tests/golden are tiktoken's" {
    node "$js" "$FOLDER" units | diff - "$root/tests/golden/bpe-units.tsv"
}

@test "our own sources, as text files" {
    shopt -s globstar
    files=("$root"/lib/**/*.[ch] "$root"/man/* "$root"/README.md)
    node "$js" - files "${files[@]}" | theirs > theirs
    [ "$(stat -c %s theirs)" -ge 500000 ]
    ours --format text "${files[@]}" | cmp - theirs
}

@test "every code point of the planes that have characters, in words, numbers, spaces, symbols" {
    node "$js" - unicode | same 4000000
}

@test "100,000 random strings" {
    node "$js" - random | same 1000000
}

@test "repetitions and runs of one script, of many lengths" {
    node "$js" - worst | same 50000
}
