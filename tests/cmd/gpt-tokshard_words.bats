# gpt-tokshard: what a message says of input that it cannot take.

bats_require_minimum_version 1.5.0

setup() { cd "$BATS_TEST_TMPDIR"; }
says() { # TEXT FILE
    run --separate-stderr "$GPT_BIN/gpt-tokshard" -q --tokenizer byte -o out "$2"
    echo "$status $stderr"
    [ "$status" -eq 3 ]
    [ "$stderr" = "gpt-tokshard: $2: $1" ]
}

@test "null, NaN and Infinity in .jsonl are named where they stand" {
    at='line 2: column 9: expected field '"'text'"' to be a string'
    for value in null true 5 -1.5e3; do
        printf '{"text":"a"}\n{"text":%s}\n' "$value" > a.jsonl
        says "$at, found $value" a.jsonl
    done
    for value in NaN Infinity -Infinity; do
        printf '{"text":"a"}\n{"text":%s}\n' "$value" > a.jsonl
        says "$at, found $value, which is not JSON" a.jsonl
        printf '{"text":"a"}\n{"text":"b","score":%s}\n' "$value" > a.jsonl
        says "line 2: column 21: expected a value, found $value, which is not JSON" a.jsonl
    done
    printf '{"text":"a"}\n{"text":["b"]}\n' > a.jsonl
    says "$at" a.jsonl
}

@test "a zstd window that is too large is named, with what reads it" {
    head -c 300000000 /dev/zero | zstd -q --long=30 -1 > a.txt.zst
    says "offset 0: expected a zstd window of at most 128 MiB, found a larger one: 'zstd -dc --long=31' decompresses it, into a pipe or a file" a.txt.zst
    zstd -dc --long=31 a.txt.zst | head -c 1000 | cmp - <(head -c 1000 /dev/zero)
}
