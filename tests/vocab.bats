#!/usr/bin/env bats
# share/get-vocab: keeps only GPT-2's ranks, says what to do where it cannot fetch them.

bats_require_minimum_version 1.5.0

setup() { cd "$BATS_TEST_TMPDIR"; }

get() { "$GPT_SHARE/get-vocab" "$@"; }

@test "another file is refused, and nothing is left" {
    printf 'IQ== 0\n' > other
    run --separate-stderr get -o out/gpt2.tiktoken other
    [ "$status" -eq 3 ]
    [[ $stderr == "get-vocab: other: expected GPT-2's ranks, SHA-256 306cd27f"*", found "* ]]
    [ ! -e out ]
    run --separate-stderr get -o out/gpt2.tiktoken nothing
    [ "$status" -eq 4 ]
    run --separate-stderr get --wrong
    [ "$status" -eq 2 ]
    run --separate-stderr get a b
    [ "$status" -eq 2 ]
}

@test "without npm, and without a network, it says what else can be done" {
    mkdir bin
    for p in sh mktemp rm sha256sum cut dirname grep head tr cat; do
        ln -s "$(command -v $p)" bin/
    done
    PATH=$PWD/bin run --separate-stderr get -o out
    [ "$status" -eq 4 ]
    [[ $stderr == "get-vocab: npm is not installed: "*"share/get-vocab FILE"*"--tokenizer byte"* ]]
    printf '#!/bin/sh\necho "npm error network" >&2\nexit 1\n' > bin/npm
    chmod +x bin/npm
    PATH=$PWD/bin run --separate-stderr get -o out
    [ "$status" -eq 4 ]
    [[ $stderr == "get-vocab: npm could not fetch js-tiktoken@"*"npm error network"*"share/get-vocab FILE"* ]]
    [ ! -e out ]
}

@test "GPT-2's ranks from a file, and again" {
    for from in "${GPT_VOCAB-}" "$GPT_BIN/../vocab/gpt2.tiktoken" \
                "${XDG_DATA_HOME:-$HOME/.local/share}/gpt-tools/gpt2.tiktoken"; do
        [ ! -f "$from" ] || break
    done
    [ -f "$from" ] || skip "needs vocab"
    run --separate-stderr get -o out/deep/v "$from"
    [ "$status" -eq 0 ]
    cmp "$from" out/deep/v
    PATH=/usr/bin:/bin run --separate-stderr get -o out/deep/v
    [ "$status" -eq 0 ]
    [[ $output == *"is there already" ]]
    printf x > t.txt
    [ "$(GPT_VOCAB=$PWD/out/deep/v "$GPT_BIN/gpt-tokshard" -q --stats t.txt | awk '$1 == "totals" { print $3 }')" = 2 ]
}
