# run_ends.bash - beside tiny_runs, what tests of how runs begin, end and go on have in common.

# Shards of 300 documents of 400 bytes.
make_documents() {
    export DOCS=$BATS_FILE_TMPDIR/docs
    cat "$BATS_FILE_TMPDIR"/text/* | tr -cd 'a-zA-Z0-9 .,\n' | tr '\n' ' ' | fold -w 400 | head -n 300 |
        sed 's/.*/{"text":"&"}/' > "$BATS_FILE_TMPDIR/docs.jsonl"
    "$GPT_BIN/gpt-tokshard" -q --tokenizer byte --val-tokens 8192 -o "$DOCS" "$BATS_FILE_TMPDIR/docs.jsonl"
}

# Waits until the log of a run in the background has a line that begins so.
await() { # TEXT LOG
    for _ in $(seq 1200); do grep -q "^$1" "$2" 2>/dev/null && return; sleep 0.02; done
    return 1
}
