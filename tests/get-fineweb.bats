# share/get-fineweb with a stand-in for the public client: what is fetched, what goes on, what is refused.
# No test fetches a real shard.

bats_require_minimum_version 1.5.0

# A shard of 1,000 tokens, the same four over and over, the first of them GPT-2's document start.
setup_file() {
    cd "$BATS_FILE_TMPDIR" || return
    {
        printf '\210\330\064\001\001\000\000\000\350\003\000\000'
        head -c 1012 /dev/zero
        for _ in $(seq 250); do printf '\120\304\001\000\002\000\003\000'; done
    } > shard
}

setup() {
    cd "$BATS_TEST_TMPDIR" || return
    mkdir hub bin
    for f in val_000000 train_000001 train_000002 train_000003; do
        cp "$BATS_FILE_TMPDIR/shard" "hub/fineweb_$f.bin"
    done
    # a PATH without the real client, whatever this machine has
    for tool in sh sed od wc mkdir dirname cat printf; do
        ln -s "$(command -v $tool)" bin/$tool
    done
}

# client NAME: hf download as it is called, from ./hub; FAIL_AT names a file that it cannot fetch.
client() {
    cat > "bin/$1" <<'END'
#!/bin/bash -u
echo "$*" >> calls
[ "$1 $2 $4 $5 $6" = "download kjj0/fineweb10B-gpt2 --repo-type dataset --local-dir" ] || exit 9
[ "$3" != "${FAIL_AT-}" ] || { echo "no network" >&2; head -c 500 "hub/$3" > "$7/$3.incomplete"; exit 1; }
cp "hub/$3" "$7/$3"
END
    ln -sf "$(command -v head)" "$(command -v cp)" bin
    chmod +x "bin/$1"
}
get() { run --separate-stderr env PATH="$PWD/bin" "$GPT_SHARE/get-fineweb" "$@"; }

@test "the shards, in one folder with a MANIFEST that holds" {
    client hf
    get -o data 2
    echo "$output $stderr"
    [ "$status" -eq 0 ]
    [ "$output" = "get-fineweb: 2 training shards and the validation shard are in data" ]
    [ "$(ls data)" = $'MANIFEST\nfineweb_train_000001.bin\nfineweb_train_000002.bin\nfineweb_val_000000.bin' ]
    cmp data/fineweb_train_000002.bin hub/fineweb_train_000002.bin
    [ "$(wc -l < calls)" -eq 3 ]
    "$GPT_BIN/gpt-tokshard" --verify --full data
    grep -qx 'tokenizer: gpt2' data/MANIFEST
    grep -qx 'bos: 50256' data/MANIFEST
    grep -qx 'documents: 750' data/MANIFEST
    grep -q '^shard: val fineweb_val_000000.bin 3024 1000 250 ' data/MANIFEST
    # again: nothing is fetched, and the MANIFEST is not written
    touch -d 2001-01-01 data/MANIFEST
    get -o data 2
    [ "$status" -eq 0 ]
    [ "$(wc -l < calls)" -eq 3 ]
    [ ! data/MANIFEST -nt hub ]
    # one more: that alone
    get -o data 3
    [ "$status" -eq 0 ]
    [ "$(tail -n +4 calls | cut -d ' ' -f 3)" = fineweb_train_000003.bin ]
    "$GPT_BIN/gpt-tokshard" --verify data | grep -qx 'data/fineweb_train_000003.bin: ok'
}

@test "what was interrupted goes on: a client that fails, a file that is cut short" {
    client huggingface-cli
    export FAIL_AT=fineweb_train_000002.bin
    get -o data 3
    [ "$status" -eq 4 ]
    [[ "$stderr" == *"huggingface-cli could not fetch fineweb_train_000002.bin: see above; run this again to go on, 2 fetched so far" ]]
    [ ! -e data/MANIFEST ]
    unset FAIL_AT
    head -c 1500 hub/fineweb_train_000001.bin > data/fineweb_train_000001.bin
    : > calls
    get -o data 3
    [ "$status" -eq 0 ]
    [ "$(cut -d ' ' -f 3 calls | tr '\n' ' ')" = "fineweb_train_000001.bin fineweb_train_000002.bin fineweb_train_000003.bin " ]
    "$GPT_BIN/gpt-tokshard" --verify --full -q data
}

@test "what is no shard is refused by its name" {
    client hf
    echo "Access to this data set is restricted" > hub/fineweb_train_000001.bin
    get -o data 1
    [ "$status" -eq 3 ]
    [[ "$stderr" == *"data/fineweb_train_000001.bin: expected a shard (20240520, 1, its tokens), found 38 bytes that are none" ]]
    # a token that GPT-2 has not: the size is right, and the MANIFEST is not written
    cp "$BATS_FILE_TMPDIR/shard" hub/fineweb_train_000001.bin
    printf '\377\377' | dd of=hub/fineweb_train_000001.bin bs=1 seek=2000 conv=notrunc status=none
    rm data/fineweb_train_000001.bin
    get -o data 1
    [ "$status" -eq 3 ]
    [[ "$stderr" == *"fineweb_train_000001.bin: offset 2000: token 488: expected an id below 50257, found 65535"* ]]
    [ ! -e data/MANIFEST ]
}

@test "without a client: what to install, and the command that fetches them" {
    get -o data 2
    [ "$status" -eq 4 ]
    [ -z "$output" ]
    [[ "$stderr" == *"neither hf nor huggingface-cli is installed"* ]]
    [[ "$stderr" == *"    pip install -U huggingface_hub"* ]]
    [[ "$stderr" == *"    hf download kjj0/fineweb10B-gpt2 --repo-type dataset --local-dir data fineweb_val_000000.bin fineweb_train_000001.bin fineweb_train_000002.bin" ]]
    [ ! -e data ]
    # shards that were brought another way are enough
    mkdir data
    cp hub/fineweb_val_000000.bin hub/fineweb_train_00000[12].bin data
    get -o data 2
    [ "$status" -eq 0 ]
    [ -e data/MANIFEST ]
}

@test "a number that there is not, and another operand" {
    for n in 0 104 x -5 1.5 99999999999999999999; do
        get "$n"
        echo "$n: $status $stderr"
        [ "$status" -eq 2 ]
    done
    get 1 2
    [ "$status" -eq 2 ]
    get --help
    [ "$status" -eq 0 ]
    [[ "$output" == "get-fineweb [-o DIR] [N]"* ]]
}
