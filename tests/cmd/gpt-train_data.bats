# Shards that gpt-train refuses, and what it says to do.

bats_require_minimum_version 1.5.0
load tiny_runs
load few_steps

@test "bad data are refused, each with its own message" {
    t=$BATS_TEST_TMPDIR
    run --separate-stderr "$GPT_BIN/gpt-train" -q -r "$GPT_SHARE/recipes/tiny.recipe" -d "$t"
    [ "$status" -eq 3 ]
    [[ "$stderr" == *MANIFEST* ]]
    run --separate-stderr train -d "$t/none"
    [ "$status" -ge 3 ]
    # token of 300 in a vocabulary of 272
    cp -r "$SHARDS" "$t/big"
    f=$(find "$t/big" -name '*train*.bin*' | sort | head -1)
    if [ "${f%.zst}" = "$f" ]; then
        printf '\x2c\x01' | dd of="$f" bs=1 seek=$((1024 + 20)) conv=notrunc status=none
        run --separate-stderr train -s data.bos=256 -s data.val_tokens=0 -d "$f"
        [ "$status" -eq 3 ]
        [[ "$stderr" == *"/${f##*/}: frame 1, tokens 0 to "*" of the MANIFEST, found "*": changed since it was written" ]]
        rm "$t/big/MANIFEST" # without it, only the token tells
        run --separate-stderr train -s data.bos=256 -s data.val_tokens=0 -d "$f"
        [ "$status" -eq 3 ]
        [[ "$stderr" == *"/${f##*/}: offset 1044: token 10: expected an id below 272, found 300" ]]
        truncate -s -2 "$f"
        run --separate-stderr train -s data.bos=256 -s data.val_tokens=0 -d "$f"
        [ "$status" -eq 3 ]
        printf 'nonsense' | dd of="$f" bs=1 conv=notrunc status=none
        run --separate-stderr train -s data.bos=256 -s data.val_tokens=0 -d "$f"
        [ "$status" -eq 3 ]
    fi
}

@test "a batch larger than the data is refused" {
    "$GPT_BIN/gpt-tokshard" -q --tokenizer byte -o "$BATS_TEST_TMPDIR/small" "$BATS_FILE_TMPDIR/text/001.txt"
    run --separate-stderr train -d "$BATS_TEST_TMPDIR/small" -s data.val_tokens=0 -s data.cut=document -s "stages.0=16384 3 512 1 1,0.5,0.25>0"
    echo "$stderr"
    [ "$status" -eq 3 ]
    [ "$(wc -l <<< "$stderr")" -eq 1 ]
}

@test "a bit that changed in a shard ends the run, with shard and frame" {
    few_shards
    shard --level 3 --val-tokens 2048 -o packed "$ROOT"/man/*.[157]
    RANDOM=10
    hit() { # FILE: flips a bit of it
        at=$((12 + (RANDOM << 15 | RANDOM) % ($(stat -c %s "$1") - 12)))
        [ "$2" ] && at=$2
        printf "$(printf '\\x%02x' $((0x$(xxd -s $at -l 1 -p "$1") ^ 1 << RANDOM % 8)))" |
            dd of="$1" bs=1 seek=$at conv=notrunc status=none
    }
    for i in {1..20}; do
        name=text_train_000001.bin
        ((i % 4)) || name=text_val_000000.bin
        cp shards/$name keep
        hit shards/$name
        echo "byte $at of $name"
        tool gpt-train "${FEW[@]}" -q
        [ "$status" -eq 3 ]
        [[ $stderr = "gpt-train: shards/$name: "@(frame 1, tokens 0 to|offset $at: expected a zero)* ]]
        mv keep shards/$name
        cp packed/$name.zst keep
        hit packed/$name.zst
        echo "byte $at of $name.zst"
        tool gpt-train "${FEW[@]}" -q -d packed
        [ "$status" -eq 3 ]
        [[ $stderr = "gpt-train: packed/$name.zst: "* ]]
        mv keep packed/$name.zst
    done
    few -d packed >log
    hit shards/text_train_000001.bin 5000
    tool gpt-train "${FEW[@]}" -q -d 'shards/*.bin' # the MANIFEST beside them
    [ "$status" -eq 3 ]
    [[ $stderr = *"shards/text_train_000001.bin: frame 1, tokens 0 to "*": expected the hash "*" of the MANIFEST, found "*": changed since it was written" ]]
    few --no-verify >log
    grep -q '^step:6/6' log
}

@test "what is likely to go wrong first says what to do" {
    cp "$ROOT/README.md" one.txt
    on=(-r "$GPT_SHARE/recipes/tiny.recipe" -s model.vocab=272)
    shard -o none "$ROOT"/man/*.[157]
    tool gpt-train "${on[@]}" -d none
    [ "$status" -eq 3 ]
    [[ $stderr = *"none: expected a validation shard, found none: name one with --val, make the shards with gpt-tokshard --val-tokens N, or train without validation: -s data.val_tokens=0" ]]
    shard -o few --val-tokens 5000 "$ROOT"/man/gpt-[!r]*.[157] # none of which has 27768 bytes
    tool gpt-train "${on[@]}" -d few
    [ "$status" -eq 3 ]
    remedy='make the shards with gpt-tokshard --val-tokens 32768, or take what is there: (-s data.val_tokens=[0-9]+ -s data.val_chunk=[0-9]+)$'
    [[ $stderr =~ found\ 0\ groups\ in\ [0-9]+\ tokens:\ $remedy ]]
    fewer=${BASH_REMATCH[1]}
    tool gpt-train "${on[@]}" -d few -s data.val_chunk=64 -s data.val_tokens=81920
    [[ $stderr = *"--val-tokens 81920, or take what is there: -s data.val_tokens="* ]]
    taken=${stderr##*=}
    [ "$taken" -ge 5000 ]
    for fix in "none -s data.val_tokens=0" "few -s data.val_chunk=64 -s data.val_tokens=$taken" "few $fewer"; do
        # shellcheck disable=SC2086
        tool gpt-train "${on[@]}" -q -s schedule.steps=1 -s schedule.extension=0 -s "stages.0=512 3 512 1 1" -d $fix
        echo "$stderr"
        [ "$status" -eq 0 ]
    done
    tool gpt-tokshard --tokenizer byte -o one --val-tokens 100 one.txt
    [ "$status" -eq 3 ]
    [[ $stderr = *" tokens in 1 document, and a document is not divided: --val-first takes tokens from its start, more files are more documents" ]]
    shard -o one --val-first --val-tokens 100 --force one.txt
    [ -e one/text_val_000000.bin ] && [ -e one/text_train_000001.bin ]
    seq -f '{"text": "%.0f"}' 10000 29999 >short.jsonl # more documents than a micro-batch has room for
    shard -o short --val-tokens 32768 short.jsonl
    short=("${on[@]}" -q -d short -s schedule.steps=1 -s schedule.extension=0)
    tool gpt-train "${short[@]}"
    [ "$status" -eq 3 ]
    [[ $stderr = *"found more: allow for them (-s data.max_documents=4096), join short documents, or set a smaller data.val_chunk" ]]
    tool gpt-train "${short[@]}" -s data.val_chunk=512 -s "stages.0=4096 3 512 1 1" -s data.chunks=2
    [ "$status" -eq 3 ]
    [[ $stderr = *"found more: allow for them (-s data.max_documents=2048), or join short documents" ]]
    tool gpt-train "${short[@]}" -s data.val_chunk=512 -s "stages.0=4096 3 512 1 1" -s data.chunks=8
    [ "$status" -eq 0 ]
}

@test "data.expect: on other shards the log and a message say so, on those of the id neither does" {
    train -s schedule.steps=2 -s data.val_tokens=0 > log 2> err
    id=$(sed -n 's/^data: //p' log)
    [ "${#id}" -eq 32 ]
    run ! grep -q "other data" log
    run --separate-stderr "$GPT_BIN/gpt-train" -r tiny "${SMALL[@]}" -d "$SHARDS" -s schedule.steps=2 \
        -s data.val_tokens=0 -s data.expect="$id"
    [ "$status" -eq 0 ]
    [[ "$output" == *"expect = $id"* && "$output" != *"other data"* ]]
    [[ "$stderr" != *"other training data"* ]]
    other=0123456789abcdef0123456789abcdef
    run --separate-stderr "$GPT_BIN/gpt-train" -r tiny "${SMALL[@]}" -d "$SHARDS" -s schedule.steps=2 \
        -s data.val_tokens=0 -s data.expect=$other
    [ "$status" -eq 0 ]
    [[ "$output" == *"other data: the recipe expects $other"* ]]
    [[ "$stderr" == *"data.expect: the recipe's losses are compared on other training data"* ]]
}

@test "data.val_every = N>M@P: every N steps, from P on every M, and at the end" {
    train -s schedule.steps=9 -s data.val_every='4>2@0.6' > log
    [ "$(sed -n 's/^step:\([0-9]*\)\/11 val_loss.*/\1/p' log | xargs)" = "0 4 6 8 10 11" ]
}
