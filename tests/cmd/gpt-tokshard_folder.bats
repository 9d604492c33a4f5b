#!/usr/bin/env bats
# gpt-tokshard's folder of shards: verified, replaced with --force, and whole
# or absent whatever happens to the job.

bats_require_minimum_version 1.5.0
load tokshard_setup

@test "shards are not overwritten without --force, and old ones do not stay" {
    corpus > c.jsonl
    bytes -o out --shard-tokens 1000 c.jsonl
    run --separate-stderr T --tokenizer byte -o out a.txt
    [ "$status" -eq 4 ]
    [[ $stderr == *"--force"* ]]
    bytes -o out --force a.txt
    [ "$(ls out)" = "MANIFEST
text_train_000001.bin" ]
    rm out/MANIFEST                        # shards of somebody else, as far as we know
    run --separate-stderr T --tokenizer byte -o out c.jsonl
    [ "$status" -eq 4 ]
    [ "$stderr" = "gpt-tokshard: 'out/text_train_000001.bin' exists without a MANIFEST (--force makes the shards anew)" ]
    bytes -o out --force --name other c.jsonl
    [ "$(ls out)" = "MANIFEST
other_train_000001.bin
text_train_000001.bin" ]
}

@test "--force takes only names of shards of this prefix, and not before the new ones are whole" {
    corpus > c.jsonl
    bytes -o out --index --level 1 --split 0.1 c.jsonl
    others="text_train_notes.bin text_train_000001.txt text_val_000000.bin.tmp text_train_01.bin text000001.bin mytext_train_000001.bin
        text_train_000002.bin.7.0.tmp MANIFEST.1.2.tmp notes.tmp"
    for name in $others; do echo "$name" > "out/$name"; done
    cp -r out before
    { cat c.jsonl; echo '{"txt": "the job ends here"}'; } > bad.jsonl
    run --separate-stderr T --tokenizer byte -o out --force bad.jsonl
    [ "$status" -eq 3 ]
    diff -r before out
    bytes -o out --force a.txt
    # shellcheck disable=SC2086
    [ "$(ls -A out)" = "$(printf '%s\n' MANIFEST text_train_000001.bin $others | sort)" ]
    for name in $others; do [ "$(cat "out/$name")" = "$name" ]; done
}

@test "--verify: quick sees sizes and headers, --full every byte and token" {
    corpus > c.jsonl
    for level in 0 3; do
        bytes -f -o out --shard-tokens 2000 --level $level --split 0.1 c.jsonl
        run --separate-stderr "$GPT_BIN/gpt-tokshard" --verify --full out
        [ "$status" -eq 0 ]
        [ "$(grep -c '^out/text_.*: ok$' <<< "$output")" -eq "$(grep -c ^shard: out/MANIFEST)" ]
        f=$(ls out/text_train_000002*)
        printf '\x07' | dd of=$f bs=1 seek=1500 conv=notrunc status=none
        run --separate-stderr T --verify out
        [ "$status" -eq 0 ]
        run --separate-stderr T --verify --full out
        [ "$status" -eq 1 ]
        [ "${#lines[@]}" -eq 1 ]
        [[ $output == "$f: "* ]]
        [ -z "$stderr" ]
        truncate -s -1 $f
        rm out/text_train_000001*
        run --separate-stderr T --verify out
        [ "$status" -eq 1 ]
        [[ ${lines[0]} == "out/text_train_000001"*"there is no such file" ]]
        [[ ${lines[1]} == "$f: truncated: expected "* ]]
    done
    sed -i 's/^tokens: ./&1/' out/MANIFEST
    run --separate-stderr T --verify out
    [ "$status" -eq 3 ]
    [[ $stderr == *"out/MANIFEST: expected the hash"* ]]
    sed -i 's/^format: gpt-shards 2/format: gpt-shards 1/' out/MANIFEST
    run --separate-stderr T --verify out
    [ "$status" -eq 3 ]
    [[ $stderr == *"found version 1: make these shards again" ]]
    run --separate-stderr T --verify a.txt # no shard
    [ "$status" -eq 3 ]
    [[ $stderr == *": a.txt: "*"expected a "* ]]
    run --separate-stderr T --verify none
    [ "$status" -eq 4 ]
}

# Starts a job, with further OPTIONs, on a pipe that stays open, and waits until it has a shard.
begin_job() {
    mkfifo pipe
    "$GPT_BIN/gpt-tokshard" -q --tokenizer byte --format jsonl -j 2 --shard-tokens 100k "$@" -o out pipe 3>&- &
    pid=$!
    exec 7> pipe
    rm pipe
    cat c.jsonl >&7
    for _ in $(seq 600); do [ -e out/.shards.tmp/text_train_000003.bin ] && break; sleep 0.05; done
    [ -e out/.shards.tmp/text_train_000003.bin ]
}

@test "a killed job leaves a temporary folder alone, which the next job removes and names" {
    corpus 20000 > c.jsonl
    for after in "" "--shuffle 1 --index" "--force --name other"; do
        rm -rf out
        begin_job
        kill -KILL $pid
        wait $pid || true
        exec 7>&-
        [ "$(ls -A out)" = "$(printf '.lock\n.shards.tmp')" ]
        # shellcheck disable=SC2086
        run --separate-stderr "$GPT_BIN/gpt-tokshard" --tokenizer byte -o out $after a.txt
        [ "$status" -eq 0 ]
        [ "${#stderr_lines[@]}" -eq 2 ]
        [ "${stderr_lines[0]}" = "gpt-tokshard: removed 'out/.shards.tmp', which a killed job had left" ]
        rm -f out/*.idx
        [ "$(ls -A out | sed 's/^other/text/')" = "$(printf 'MANIFEST\ntext_train_000001.bin')" ]
        T --verify --full out
    done
    mkdir -p out/.shards.tmp # also where the job is then refused
    run --separate-stderr "$GPT_BIN/gpt-tokshard" --tokenizer byte -o out a.txt
    [ "$status" -eq 4 ]
    [[ $stderr == *"removed 'out/.shards.tmp'"*"--force"* ]]
    [ ! -e out/.shards.tmp ]
    # what is no folder of a job stays, and is named
    mkdir else
    echo mine > else/mine
    ln -s ../else out/.shards.tmp
    run --separate-stderr "$GPT_BIN/gpt-tokshard" --tokenizer byte --force -o out a.txt
    [ "$status" -eq 4 ]
    [ "$stderr" = "gpt-tokshard: cannot make directory 'out/.shards.tmp': File exists" ]
    [ "$(cat else/mine)" = mine ]
}

@test "a signal leaves what was there: nothing, or the old shards under --force" {
    corpus 20000 > c.jsonl
    mkdir before
    for signal in TERM HUP; do # SIGINT is ignored by what a shell starts in the background
        begin_job --force
        kill -$signal $pid
        status=0
        wait $pid || status=$?
        exec 7>&-
        [ "$status" -eq $((128 + $(kill -l $signal))) ]
        diff -r before out
        bytes -f -o out a.txt
        rm -r before
        cp -r out before
    done
}

@test "a damaged input in the middle says where, and nothing is left" {
    corpus 20000 > c.jsonl
    sed '15000s/"text"/"txt"/' c.jsonl > bad.jsonl
    run --separate-stderr T --tokenizer byte -j 2 --shard-tokens 50k -o out bad.jsonl
    [ "$status" -eq 3 ]
    [ "$stderr" = "gpt-tokshard: bad.jsonl: line 15000: expected a field 'text', found none: --field NAME says which it is" ]
    [ "$(ls -A out)" = "" ]
    # standard output has the shards before, each whole
    run --separate-stderr bash -c '"$GPT_BIN/gpt-tokshard" -q --tokenizer byte -j 2 --shard-tokens 50k -o - bad.jsonl > got'
    [ "$status" -eq 3 ]
    [ "$stderr" = "gpt-tokshard: bad.jsonl: line 15000: expected a field 'text', found none: --field NAME says which it is" ]
    "$GPT_BIN/gpt-tokshard" --verify - < got > verified
    [ "$(grep -c ': ok$' verified)" -ge 3 ]
}

@test "a damaged file among others: which, and where" {
    corpus 20000 > c.jsonl
    zstd -q c.jsonl
    size=$(stat -c %s c.jsonl.zst)
    cp c.jsonl.zst bad.jsonl.zst
    printf 'xxxx' | dd of=bad.jsonl.zst bs=1 seek=$((size / 2)) conv=notrunc status=none
    run --separate-stderr T --tokenizer byte -o out --shard-tokens 100k c.jsonl bad.jsonl.zst a.txt
    [ "$status" -eq 3 ]
    [ "${#stderr_lines[@]}" -eq 1 ]
    [[ $stderr =~ ^"gpt-tokshard: bad.jsonl.zst: ".*"(in or after line "[0-9]+")"$ ]]
    mkdir in
    cp a.txt in/a.txt
    ln -s nowhere in/b.txt
    run --separate-stderr T --tokenizer byte -o out2 in
    [ "$status" -eq 4 ]
    [[ $stderr == "gpt-tokshard: cannot open 'in/b.txt', "*": No such file or directory" ]]
}

@test "a full disk in the middle: one message, and nothing is left" {
    corpus 20000 > c.jsonl
    # 4 MiB a file at most, which is what a full disk is like; then room again
    run --separate-stderr bash -c 'trap "" XFSZ; ulimit -f 4096
        exec "$GPT_BIN/gpt-tokshard" -q --tokenizer byte -o out --shard-tokens 3M c.jsonl'
    [ "$status" -eq 4 ]
    [ "${#stderr_lines[@]}" -eq 1 ]
    [[ $stderr == "gpt-tokshard: cannot write "*": File too large" ]]
    [ "$(ls -A out)" = "" ]
    bytes -o out --shard-tokens 3M c.jsonl
    T --verify --full out
}

@test "--index: where documents begin, checked by --verify --full" {
    corpus > c.jsonl
    bytes -o out --index --level 1 --shard-tokens 8000 c.jsonl
    for n in 1 2; do
        f=out/text_train_00000$n
        tail -c +1025 $f.idx | od -An -v -w4 -t u4 | tr -d ' ' |
            diff - <(tokens $f.bin.zst | awk '$1 == 256 { print NR - 1 }')
    done
    T --verify --full out
    printf '\x01' | dd of=out/text_train_000002.idx bs=1 seek=1100 conv=notrunc status=none
    run --separate-stderr T --verify --full out
    [ "$status" -eq 1 ]
    [[ $output == "out/text_train_000002.idx: "* ]]
    bytes -f -o out c.jsonl
    [ "$(ls out/*.idx 2> /dev/null | wc -l)" -eq 0 ]
}

@test "--verify --full sees each byte of an index; shards that MANIFEST does not name are told" {
    bytes --index -o s --val-tokens 100 "$GPT_SHARE"/../man/*.1
    for at in 0 4 8 12 20 32 100 1023 1024; do
        cp s/text_train_000001.idx keep
        printf 'X' | dd of=s/text_train_000001.idx bs=1 seek=$at conv=notrunc status=none
        run --separate-stderr "$GPT_BIN/gpt-tokshard" --verify --full s
        [ "$status" -eq 1 ]
        [[ $output = *"s/text_train_000001.idx: "* ]]
        mv keep s/text_train_000001.idx
    done
    cp s/text_train_000001.idx keep
    dd if=/dev/zero of=s/text_train_000001.idx bs=1 seek=16 count=16 conv=notrunc status=none
    run --separate-stderr "$GPT_BIN/gpt-tokshard" --verify --full s
    [ "$status" -eq 1 ]
    mv keep s/text_train_000001.idx
    run --separate-stderr "$GPT_BIN/gpt-tokshard" --verify --full s
    [ "$status" -eq 0 ]
    for name in text_train_000007.bin other_val_000000.bin.zst text_train_000007.idx; do
        cp s/text_train_000001.bin s/$name
        run --separate-stderr "$GPT_BIN/gpt-tokshard" -q --verify s
        [ "$status" -eq 1 ]
        [ "$output" = "s/$name: not in the MANIFEST" ]
        rm s/$name
    done
    run --separate-stderr "$GPT_BIN/gpt-tokshard" -q --verify s
    [ "$status" -eq 0 ]
}

@test "of two jobs into one folder the second is refused; a lock that was left is taken over" {
    mkfifo pipe
    "$GPT_BIN/gpt-tokshard" -q --tokenizer byte --format text -o out pipe &
    pid=$!
    exec 7>pipe
    for _ in $(seq 100); do [ -e out/.lock ] && break; sleep 0.05; done
    run --separate-stderr "$GPT_BIN/gpt-tokshard" --tokenizer byte -o out --force "$GPT_SHARE/../README.md"
    [ "$status" -eq 4 ]
    [ "$stderr" = "gpt-tokshard: 'out' is being written by process $pid on $(uname -n) (it holds 'out/.lock')" ]
    echo text >&7
    exec 7>&-
    wait $pid
    shopt -s dotglob
    names=(out/*)
    [ "${names[*]}" = "out/MANIFEST out/text_train_000001.bin" ]
    # killed without a chance to clean up
    "$GPT_BIN/gpt-tokshard" -q --tokenizer byte --format text -o killed pipe &
    pid=$!
    exec 7>pipe
    for _ in $(seq 100); do [ -s killed/.lock ] && break; sleep 0.05; done
    kill -KILL $pid
    wait $pid || true
    exec 7>&-
    [ "$(cat killed/.lock)" = "$pid $(uname -n)" ]
    bytes -o killed "$GPT_SHARE/../README.md"
    [ ! -e killed/.lock ]
    "$GPT_BIN/gpt-tokshard" --verify -q killed
}
