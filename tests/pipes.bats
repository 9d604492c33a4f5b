# Every arrow of the pipeline as a pipe: the same results as through files, and clear ends.

bats_require_minimum_version 1.5.0

setup_file() {
    export PAGE=$PWD/man/gpt-train.1
    export SH=$BATS_FILE_TMPDIR/sh
    cat man/*.[157] lib/*/*.[ch] | head -c 1000000 > "$BATS_FILE_TMPDIR/text"
    split -n l/200 "$BATS_FILE_TMPDIR/text" "$BATS_FILE_TMPDIR/text."
    bytes --shard-tokens 200k --val-first --val-tokens 8192 -o "$SH" "$BATS_FILE_TMPDIR"/text.*
    train -d "$SH" > "$BATS_FILE_TMPDIR/files.log"
}
setup() { cd "$BATS_TEST_TMPDIR"; }

bytes() { "$GPT_BIN/gpt-tokshard" -q --tokenizer byte "$@"; }
SMALL=(-s model.vocab=272 -s schedule.steps=6 -s schedule.extension=2 -s data.val_tokens=8192
       -s data.val_chunk=1024 -s data.val_every=4 -s data.checkpoint_every=2
       -s data.cycle=no -s data.bos=256
       -s "stages.0=1024 3 512 1 1,0.5,0.25>0" -s "stages.1=1024 5 512 1.52 1,0.5>0"
       -s "stages.2=2048 7 512 1.73 1" -s "stages.3=2048 9 512 - 1")
train() { "$GPT_BIN/gpt-train" -r "$GPT_SHARE/recipes/tiny.recipe" "${SMALL[@]}" -q "$@"; }
shards() { cat "$SH"/text_val_*.bin "$SH"/text_train_*.bin; }
losses() { grep -o '^step:[0-9]*/[0-9]* [a-z_]*loss:[^ ]*' "$1"; }
# the log has the losses that the run from files had
same() { diff <(losses "$BATS_FILE_TMPDIR/files.log") <(losses "$1"); }

@test "gpt-train -d -: plain, zstd and gzip have the bits of the files" {
    [ "$(losses "$BATS_FILE_TMPDIR/files.log" | wc -l)" -eq 11 ]
    shards | train -d - > plain.log
    same plain.log
    shards | zstd | train -d - > zst.log
    same zst.log
    shards | gzip -1 | train -d - > gz.log
    same gz.log
    # shards that are files of their own frames, one behind the other
    for f in "$SH"/text_val_*.bin "$SH"/text_train_*.bin; do zstd -qc "$f"; done | train -d - > frames.log
    same frames.log
}

@test "gpt-train: shards under wrong names, plain, zstd and gzip" {
    cat "$SH"/text_train_000001.bin > one.zst
    zstd -qc one.zst > two.bin
    gzip -c one.zst > three.txt
    zstd -qc "$SH"/text_val_*.bin > v.gz
    for f in one.zst two.bin three.txt; do
        train -d $f --val v.gz -s data.cycle=yes > $f.log
        losses $f.log > $f.losses
    done
    cmp one.zst.losses two.bin.losses
    cmp one.zst.losses three.txt.losses
    [ -s one.zst.losses ]
}

@test "gpt-tokshard -o - | zstd | cat | gpt-train -d -" {
    bytes -o - --shard-tokens 200k "$BATS_FILE_TMPDIR"/text.* | zstd -1 | cat | train -d - --val "$SH" > p.log
    bytes -o x --shard-tokens 200k "$BATS_FILE_TMPDIR"/text.*
    cat x/*.bin | cmp - <(bytes -o - --shard-tokens 200k "$BATS_FILE_TMPDIR"/text.*)
    train -d x --val "$SH" > f.log
    diff <(losses f.log) <(losses p.log)
}

@test "a writer that ends in the middle: status 3, and the checkpoint stands" {
    status=0
    { shards | head -c 450000; sleep 1; } | train -d - -o run > cut.log 2> err || status=$?
    [ "$status" -eq 3 ]
    grep -q '^gpt-train: standard input, shard [23]: truncated: expected 401024 bytes for 200000 tokens, found ' err
    "$GPT_BIN/gpt-ckpt" verify --full run
    # the stream given again from its beginning: what was used is passed over
    shards | train -d - --resume run -o run > rest.log
    grep -q '^skipped: [0-9]* tokens of the stream$' rest.log
    from=$(sed -n 's/^resumed: step \([0-9]*\) .*/\1/p' rest.log)
    [ "$from" -ge 2 ]
    diff <(losses "$BATS_FILE_TMPDIR/files.log" | awk -F'[:/]' -v n="$from" '$2 > n') <(losses rest.log | awk -F'[:/]' -v n="$from" '$2 > n')
    # cut in a frame of zstd
    status=0
    { shards | zstd -1 | head -c 30000; } | train -d - > cut.log 2> err || status=$?
    [ "$status" -eq 3 ]
    grep -q 'expected the rest of a zstd frame' err
    # ended at a shard's end
    run --separate-stderr train -d - < "$SH"/text_val_000000.bin
    [ "$status" -eq 3 ]
    [[ $stderr == *"expected tokens for step 0, found the end after "*" tokens" ]]
    run --separate-stderr train -d - < /dev/null
    [ "$status" -eq 3 ]
}

@test "a writer that stands still: a signal stops the run, which says what to skip" {
    mkfifo p
    (shards | head -c 450000; exec sleep 30) > p &
    writer=$!
    "$GPT_BIN/gpt-train" -r "$GPT_SHARE/recipes/tiny.recipe" "${SMALL[@]}" -d - -o run < p > s.log 2> err &
    pid=$!
    for _ in $(seq 1200); do grep -q '^step:2/' s.log && break; sleep 0.05; done
    sleep 0.5
    kill -TERM $pid
    status=0
    wait $pid || status=$?
    kill $writer || :
    [ "$status" -eq 0 ]
    grep -q 'the resumed run skips the [0-9]* tokens used so far' err
    shards | train -d - --resume run > rest.log
    from=$(sed -n 's/^resumed: step \([0-9]*\) .*/\1/p' rest.log)
    [ "$from" = "$(sed -n 's/^step:\([0-9]*\)\/.* train_loss.*/\1/p' s.log | tail -1)" ]
    diff <(losses "$BATS_FILE_TMPDIR/files.log" | awk -F'[:/]' -v n="$from" '$2 > n') <(losses rest.log | awk -F'[:/]' -v n="$from" '$2 > n')
}

@test "a reader that ends early: the writer ends by SIGPIPE" {
    run bash -c '"$GPT_BIN/gpt-tokshard" -q --tokenizer byte --shard-tokens 50k -o - "$0".* |
        head -c 100 > /dev/null; echo "${PIPESTATUS[0]}"' "$BATS_FILE_TMPDIR/text"
    [ "$output" = 141 ]
}

@test "gpt-train -d -: cycling, a second '-' and what is no shard are refused in a sentence" {
    run --separate-stderr train -d - -s data.cycle=yes < /dev/null
    [ "$status" -eq 2 ]
    [[ $stderr == *"a stream of shards passes once, so data.cycle must be no"* ]]
    run --separate-stderr train -d - -r - < /dev/null
    [ "$status" -eq 2 ]
    run --separate-stderr train -d - < "$PAGE"
    [ "$status" -eq 3 ]
    [[ $stderr == *"expected a token shard"* ]]
    run --separate-stderr train -d - -s data.val_tokens=1048576 < <(shards)
    [ "$status" -eq 3 ]
    [[ $stderr == *"validation tokens and a target in the first shard of the stream, found"* ]]
}

@test "gpt-train -r run.log: the recipe that a log carries, also compressed" {
    log=$BATS_FILE_TMPDIR/files.log
    zstd -qc "$log" > log.txt
    "$GPT_BIN/gpt-train" -q -r log.txt -d "$SH" > again.log
    same again.log
    "$GPT_BIN/gpt-train" -q -r - -s seed=5 -d "$SH" < log.txt > seed.log
    grep -q '^seed: 5$' seed.log
    [ "$(losses seed.log | wc -l)" -eq 11 ]
    run ! same seed.log
    sed 's/^muon_lr = .*/muon_lr = 0.5/' "$log" > changed.log
    run --separate-stderr "$GPT_BIN/gpt-train" -q -r changed.log -d "$SH"
    [ "$status" -eq 3 ]
    [[ $stderr == *"expected a recipe of hash "*" as the log says"* ]]
    grep -v '^====' "$log" > none.log
    run --separate-stderr "$GPT_BIN/gpt-train" -q -r none.log -d "$SH"
    [ "$status" -eq 3 ]
    [[ $stderr == *"expected a recipe in this run log, found none"* ]]
}

@test "gpt-tokshard: --stats, --decode and --verify of shards in a pipe, by content" {
    cp "$SH/text_train_000002.bin" named.txt
    [ "$(bytes --stats - < named.txt)" = "$(bytes --stats "$SH/text_train_000002.bin")" ]
    [ "$(bytes --stats named.txt)" = "$(bytes --stats "$SH/text_train_000002.bin")" ]
    [ "$(gzip -c named.txt | bytes --decode - 10:50)" = "$(bytes --decode named.txt 10:50)" ]
    [ "$(cat "$SH"/text_train_*.bin | bytes --decode - 200010:200050)" = "$(bytes --decode named.txt 10:50)" ]
    bytes --verify named.txt
    cat "$SH"/*.bin | zstd | bytes --verify -
    run --separate-stderr bytes --verify - < <(head -c 10000 named.txt)
    [ "$status" -eq 1 ]
    [[ $output == *"truncated: expected 401024 bytes for 200000 tokens, found 10000" ]]
    run --separate-stderr bytes --verify - < "$PAGE"
    [ "$status" -eq 3 ]
    [ "$(bytes --stats - < "$PAGE" | sed -n 2p | cut -f3)" -eq $(($(stat -c %s "$PAGE") + 1)) ]
    # no text that is a shard
    run --separate-stderr bytes -o out named.txt
    [ "$status" -eq 3 ]
    [[ $stderr == *"named.txt: expected text, found a shard of tokens"* ]]
}
