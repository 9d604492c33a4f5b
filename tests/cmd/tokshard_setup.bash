# tokshard_setup.bash - what the tests of gpt-tokshard share; see tokshard.bats.

T() { "$GPT_BIN/gpt-tokshard" -q "$@"; }
bytes() { "$GPT_BIN/gpt-tokshard" -q --tokenizer byte "$@"; }

# tokens of a shard file, one a line
tokens() {
    case $1 in *.zst) zstd -dc "$1" ;; *) cat "$1" ;; esac |
        tail -c +1025 | od -An -v -w2 -t u2 | tr -d ' '
}

setup() {
    cd "$BATS_TEST_TMPDIR"
    printf 'one two' > a.txt
    printf '{"id": 1, "text": "caf\\u00e9 \\ud83d\\ude00\\n"}\n\n{"text": "x\\"\\\\y"}' > b.jsonl
}

# A few hundred documents of changing length, as .jsonl.
corpus() {
    awk -v n="${1:-300}" 'BEGIN {
        srand(7)
        for (i = 0; i < n; i++) {
            s = "document " i ":"
            for (k = int(rand() * 60); k > 0; k--) s = s " word" int(rand() * 1000)
            printf "{\"text\": \"%s\\n\"}\n", s
        }
    }'
}
