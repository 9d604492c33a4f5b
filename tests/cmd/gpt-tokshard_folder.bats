#!/usr/bin/env bats
# gpt-tokshard's folder of shards: kept, verified, repaired, and whole whatever happens to the job.

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
    for more in "" --resume; do
        run --separate-stderr T --tokenizer byte -o out $more c.jsonl
        [ "$status" -eq 4 ]
        [[ $stderr == *"'out/text_train_000001.bin' exists without a MANIFEST (--repair makes that again, --force the shards anew)" ]]
    done
    bytes -o out --force --name other c.jsonl
    [ "$(ls out)" = "MANIFEST
other_train_000001.bin
text_train_000001.bin" ]
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

@test "--repair makes damaged and missing shards again, and only those" {
    corpus 2000 > c.jsonl
    cp c.jsonl other.jsonl
    sed -i '900s/document/dOcument/' other.jsonl
    for options in "--split 0.1" "--val-tokens 9000 --shuffle 3 --level 1" \
                   "--val-first --val-tokens 9000" "--val-first"; do
        echo "$options"
        bytes -f -o out --shard-tokens 4000 $options c.jsonl
        rm -rf good; cp -r out good
        for damage in "val_000000" "train_000003" "train_000005 train_000007" "val_000000 train_000002"; do
            for d in $damage; do
                f=$(ls out/text_$d*)
                printf '\x07' | dd of=$f bs=1 seek=1600 conv=notrunc status=none
            done
            touch -d @1 out/*
            bytes --repair -o out --shard-tokens 4000 $options c.jsonl
            diff -r good out
            [ "$(find out -newermt @2 -name '*.bin*' | wc -l)" -eq "$(wc -w <<< "$damage")" ]
        done
        rm out/text_train_000002*
        bytes --repair -o out --shard-tokens 4000 $options c.jsonl
        diff -r good out
        run --separate-stderr "$GPT_BIN/gpt-tokshard" --tokenizer byte --repair -o out \
            --shard-tokens 4000 $options c.jsonl
        [ "$status" -eq 0 ]
        [[ $stderr == *"0 of "*" shards made again" ]]
    done
    # another input, other options: refused, and nothing changes
    rm out/text_train_000002.bin
    rm -rf good; cp -r out good
    run --separate-stderr T --tokenizer byte --repair -o out --shard-tokens 4000 --val-first other.jsonl
    [ "$status" -eq 3 ] || [ "$(grep -c dOc <(T --decode out/text_train_000002.bin))" -eq 0 ]
    run --separate-stderr T --tokenizer byte --repair -o out --shard-tokens 5000 --val-first c.jsonl
    [ "$status" -eq 3 ]
    [[ $stderr == *"expected 'shard-tokens=5000' as this command has it, found 'shard-tokens=4000'"* ]]
    head -50 c.jsonl > short.jsonl
    rm -f out/text_train_000005.bin
    run --separate-stderr T --tokenizer byte --repair -o out --shard-tokens 4000 --val-first short.jsonl
    [ "$status" -eq 3 ]
    [[ $stderr == *"the input ended before"* ]]
}

@test "--repair makes a damaged or missing MANIFEST again, where all shards come out as they stand" {
    corpus 2000 > c.jsonl
    for options in "--split 0.1 --index" "--val-tokens 9000 --shuffle 3 --level 1" "--val-first"; do
        echo "$options"
        o="--tokenizer byte -o out --shard-tokens 4000 $options"
        T -f $o c.jsonl
        sed -i '/^arguments:/d;/^manifest:/d' out/MANIFEST     # of the command, and the hash with them
        rm -rf good; cp -r out good
        for damage in "rm out/MANIFEST" "truncate -s -9 out/MANIFEST" \
                      "sed -i s/gpt-shards.2/gpt-shards.1/ out/MANIFEST" "rm out/MANIFEST out/text_*2.*"; do
            $damage
            run --separate-stderr "$GPT_BIN/gpt-tokshard" $o --repair c.jsonl
            [ "$status" -eq 0 ]
            [[ $stderr == *" shards made again, and the MANIFEST" ]]
            T --verify --full out
            grep -q "^arguments: .*--repair" out/MANIFEST
            sed -i '/^arguments:/d;/^manifest:/d' out/MANIFEST
            diff -r good out
        done
    done
    [[ $stderr == *": "[1-9]*" of "* ]]

    # What is there is of another input or other options, or damaged: told, kept, and not named.
    rm out/MANIFEST good/MANIFEST
    o="--tokenizer byte --repair -o out --shard-tokens 4000 --val-first"
    refused() {        # EXPECTED ARGUMENT...
        run --separate-stderr T "${@:2}"
        [ "$status" -eq 3 ]
        [[ $stderr == *"$1"* ]]
        diff -r good out
    }
    sed '900s/document/dOcument/' c.jsonl > other.jsonl
    head -1500 c.jsonl > short.jsonl
    refused "found other tokens" $o other.jsonl
    refused "found other tokens" $o --shard-tokens 5000 c.jsonl
    refused "is there, but this input and these options do not make it" $o --level 1 c.jsonl
    refused "found other tokens" $o short.jsonl
    cp out/text_train_000003.bin good/text_train_000999.bin
    cp out/text_train_000003.bin out/text_train_000999.bin
    refused "out/text_train_000999.bin: is there, but this input" $o c.jsonl
    rm {good,out}/text_train_000999.bin
    printf '\x07' | dd of=out/text_train_000003.bin bs=1 seek=1600 conv=notrunc status=none
    cp out/text_train_000003.bin good
    refused "out/text_train_000003.bin: expected what this input and these options make" $o c.jsonl
    touch good/text_train_000003.idx out/text_train_000003.idx
    refused "out/text_train_000003.idx: is there" $o c.jsonl
    rm out/text_train_000003.*
    T $o c.jsonl
    T --verify --full out
    rm -r out/*
    run --separate-stderr T $o c.jsonl
    [ "$status" -eq 3 ]
    [[ $stderr == *"out: holds neither a MANIFEST nor a shard: nothing to repair" ]]
}

@test "--repair refuses a shard that comes out otherwise" {
    corpus 200 > c.jsonl
    bytes -o out --shard-tokens 4000 c.jsonl
    sed -i 's/document/dOcument/' c.jsonl
    rm out/text_train_000002.bin
    run --separate-stderr T --tokenizer byte --repair -o out --shard-tokens 4000 c.jsonl
    [ "$status" -eq 3 ]
    [[ $stderr == *"expected to make it again with the hash "*": the input is another" ]]
    [ ! -e out/text_train_000002.bin ]
}

# A pipe that takes half a second for a file.
slowly() {
    local size k
    size=$(stat -c %s "$1")
    for k in $(seq 0 19); do
        tail -c +$((k * (size / 20 + 1) + 1)) "$1" | head -c $((size / 20 + 1))
        sleep 0.025
    done
}

@test "killed at any moment and resumed: the shards of an undisturbed run, and never half of one" {
    corpus 20000 > c.jsonl
    n=0
    for options in "--split 0.1 --level 1" "--val-first --val-tokens 100k" "--shuffle 4 --split 0.2"; do
        o="--tokenizer byte --format jsonl -j 2 --shard-tokens 100k $options"
        rm -rf whole out
        T $o -o whole - < c.jsonl
        for t in 0.1 0.2 0.3 0.4 0.5; do
            run timeout -s KILL $t "$GPT_BIN/gpt-tokshard" -q $o -o out --resume - < <(slowly c.jsonl)
            [ "$status" -eq 0 ] || [ "$status" -eq 137 ]
            if [ "$status" -ne 0 ]; then n=$((n + 1)); fi
            # whatever the journal names is whole
            if [ -e out/MANIFEST.partial ]; then
                grep ^shard: out/MANIFEST.partial | while read -r _ _ name size _; do
                    [ "$(stat -c %s "out/$name")" -eq "$size" ]
                    cmp "out/$name" "whole/$name"
                done
            fi
        done
        T $o -o out --resume - < c.jsonl
        diff -r -x MANIFEST whole out
        diff <(grep -v -e ^arguments -e ^manifest whole/MANIFEST) \
             <(grep -v -e ^arguments -e ^manifest out/MANIFEST)
    done
    echo "$n killed"
    [ "$n" -ge 6 ]
}

@test "--resume of a job that is done: nothing to do, if it is the same" {
    corpus > c.jsonl
    bytes -o out --shard-tokens 4000 c.jsonl
    cp -r out good
    touch out/MANIFEST.partial                     # killed before it was removed
    bytes -o out --shard-tokens 4000 --resume c.jsonl
    diff -r good out
    for other in "--shard-tokens 5000" "--level 1" "--index" "--format text" "--ext md" "--field id" \
                 "--invalid error" "--split 0.1" "--shuffle 1" "--val-tokens 9" "--val-first"; do
        run --separate-stderr T --tokenizer byte -o out --shard-tokens 4000 $other --resume c.jsonl
        [ "$status" -eq 3 ]
        name=${other%% *}
        [[ $stderr == *"out/MANIFEST: expected '${name#--}="* ]]
        [ "$(wc -l <<< "$stderr")" -eq 1 ]
    done
    if printf x | T --stats - > /dev/null 2>&1; then
        run --separate-stderr T -o out --shard-tokens 4000 --resume c.jsonl
        [ "$status" -eq 3 ]
        [[ $stderr == *"expected 'tokenizer=gpt2' as this command has it, found 'tokenizer=bytes'"* ]]
    fi
    diff -r good out
}

@test "--resume with another input is refused" {
    corpus 20000 > c.jsonl
    { cat c.jsonl; echo '{"txt": "the job ends here"}'; } > bad.jsonl
    run T --tokenizer byte --shard-tokens 200k --split 0.1 -o stopped bad.jsonl
    [ "$status" -eq 3 ]
    [ "$(grep -c ^shard: stopped/MANIFEST.partial)" -ge 5 ]
    sed '7s/document/dOcument/' c.jsonl > changed.jsonl
    sed 7d c.jsonl > shorter.jsonl
    head -50 c.jsonl > short.jsonl
    for other in changed shorter short; do
        rm -rf out; cp -r stopped out
        run --separate-stderr T --tokenizer byte --shard-tokens 200k --split 0.1 -o out --resume $other.jsonl
        [ "$status" -eq 3 ]
        [[ $stderr == "gpt-tokshard: text_"*"made of another input: "* ]]
        [ ! -e out/MANIFEST ]
    done
    bytes --shard-tokens 200k --split 0.1 -o stopped --resume c.jsonl
    bytes --shard-tokens 200k --split 0.1 -o whole c.jsonl
    diff -r -x MANIFEST whole stopped
}

@test "an interrupted job is neither overwritten nor continued by mistake" {
    corpus 20000 > c.jsonl
    for t in 1 2 4 8; do                    # killed while it waits for more input
        rm -rf out
        run timeout -s KILL $t "$GPT_BIN/gpt-tokshard" -q --tokenizer byte --format jsonl \
            --shard-tokens 10k -o out - < <(cat c.jsonl; exec sleep $((t + 1)) 3>&-)
        grep -q ^shard: out/MANIFEST.partial && break
    done
    [ -e out/MANIFEST.partial ]
    grep -q ^shard: out/MANIFEST.partial
    run --separate-stderr T --tokenizer byte -o out --shard-tokens 10k c.jsonl
    [ "$status" -eq 4 ]
    [[ $stderr == *"--resume continues it, --force starts again"* ]]
    run --separate-stderr T --tokenizer byte -o out --format jsonl --resume c.jsonl
    [ "$status" -eq 3 ]
    [[ $stderr == *"found 'shard-tokens=10000'"* ]]
    f=$(ls out/*.bin | head -1)
    truncate -s -2 $f
    run --separate-stderr T --tokenizer byte -o out --format jsonl --shard-tokens 10k --resume c.jsonl
    [ "$status" -eq 3 ]
    [[ $stderr == *"$f: expected"* ]]
    touch out/MANIFEST.partial.1.0.tmp out/text_train_000002.bin.1.0.tmp
    bytes -o out --shard-tokens 10k --force c.jsonl
    T --verify --full out
    [ -z "$(ls out | grep tmp)" ]
}

@test "a damaged input in the middle says where, and what was whole stays" {
    corpus 20000 > c.jsonl
    sed '15000s/"text"/"txt"/' c.jsonl > bad.jsonl
    run --separate-stderr T --tokenizer byte -j 2 --shard-tokens 50k -o out bad.jsonl
    [ "$status" -eq 3 ]
    [ "$stderr" = "gpt-tokshard: bad.jsonl: line 15000: expected a field 'text', found none" ]
    [ "$(grep -c ^shard: out/MANIFEST.partial)" -ge 3 ]
    [ "$(ls out/*.tmp 2> /dev/null | wc -l)" -eq 0 ]
    bytes -o whole --shard-tokens 50k c.jsonl
    bytes -o out --shard-tokens 50k --resume c.jsonl
    diff -r -x MANIFEST whole out
}

@test "a damaged file among others: which, and where; the rest can go on without it" {
    corpus 20000 > c.jsonl
    zstd -q c.jsonl
    size=$(stat -c %s c.jsonl.zst)
    cp c.jsonl.zst bad.jsonl.zst
    printf 'xxxx' | dd of=bad.jsonl.zst bs=1 seek=$((size / 2)) conv=notrunc status=none
    run --separate-stderr T --tokenizer byte -o out --shard-tokens 100k c.jsonl bad.jsonl.zst a.txt
    [ "$status" -eq 3 ]
    [ "${#stderr_lines[@]}" -eq 1 ]
    [[ $stderr =~ ^"gpt-tokshard: bad.jsonl.zst: ".*"(in or after line "[0-9]+")"$ ]]
    [ "$(grep -c ^shard: out/MANIFEST.partial)" -ge $(($(stat -c %s c.jsonl) / 2 / 100000)) ]
    mkdir in
    cp a.txt in/a.txt
    ln -s nowhere in/b.txt
    run --separate-stderr T --tokenizer byte -o out2 in
    [ "$status" -eq 4 ]
    [[ $stderr == "gpt-tokshard: cannot open 'in/b.txt', "*": No such file or directory" ]]
}

@test "a full disk in the middle: whole shards stay, half of one does not" {
    corpus 20000 > c.jsonl
    # 4 MiB a file at most, which is what a full disk is like; then room again
    run --separate-stderr bash -c 'trap "" XFSZ; ulimit -f 4096
        exec "$GPT_BIN/gpt-tokshard" -q --tokenizer byte -o out --shard-tokens 3M c.jsonl'
    [ "$status" -eq 4 ]
    [ "${#stderr_lines[@]}" -eq 1 ]
    [[ $stderr == "gpt-tokshard: cannot write "*": File too large" ]]
    [ ! -e out/MANIFEST ]
    [ "$(ls out | grep -v MANIFEST | wc -l)" -eq 0 ]
    bytes -o out --resume --shard-tokens 3M c.jsonl
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
    rm out/text_train_000001.idx
    bytes -o out --index --level 1 --shard-tokens 8000 --repair c.jsonl
    [ -e out/text_train_000001.idx ]
    T --verify --full out
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
