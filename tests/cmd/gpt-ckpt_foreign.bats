#!/usr/bin/env bats
# gpt-ckpt on tensor files of other programs: types that are not decoded, an index, null metadata, padded gzip.

bats_require_minimum_version 1.5.0

setup() {
    cd "$BATS_TEST_TMPDIR"
    mkdir model
    # 256 bytes of header and 32 of data: u32 1 2 3 4, fp4, u64
    printf '%-256s' '{"__metadata__":null,"u":{"dtype":"U32","shape":[4],"data_offsets":[0,16],"note":{"a":[null]}},"f":{"dtype":"F4","shape":[2,8],"data_offsets":[16,24]},"l":{"dtype":"U64","shape":[1],"data_offsets":[24,32]}}' >header
    { printf '\0\1\0\0\0\0\0\0'; cat header; printf '\1\0\0\0\2\0\0\0\3\0\0\0\4\0\0\0abcdefgh\xff\xff\xff\xff\xff\xff\xff\xff'; } >model/a.safetensors
    { printf '\x40\0\0\0\0\0\0\0'; printf '%-64s' '{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'; printf '\0\0\x80\x3f\0\0\0\x40'; } >model/b.safetensors
    echo '{"metadata": {"total_size": 40}, "weight_map": {"w": "b.safetensors", "u": "a.safetensors", "f": "a.safetensors", "l": "a.safetensors"}}' >model/model.safetensors.index.json
}

ckpt() { run --separate-stderr "$GPT_BIN/gpt-ckpt" "$@"; }

@test "a table goes on where a type is not decoded, and integers are" {
    ckpt stat model/a.safetensors
    [ "$status" -eq 0 ]
    [ -z "$stderr" ]
    [ "${#lines[@]}" -eq 4 ]
    [ "${lines[1]}" = $'u\tu32\t4\t1\t4\t2.5\t2.738612788\t0\t0\t0\t' ]   # the rms is sqrt(30/4)
    [ "${lines[2]}" = $'f\tF4\t16\t\t\t\t\t\t\t\t' ]
    [[ ${lines[3]} = $'l\tu64\t1\t1.844674407e+19\t'* ]]
    ckpt ls model/a.safetensors
    [ "$status" -eq 0 ]
    [ "${lines[2]}" = $'f\tf\tF4\t2x8\t8\t' ]
    ckpt cat model/a.safetensors u
    [ "$output" = $'1\t2\t3\t4' ]
    ckpt cat model/a.safetensors l
    [ "$output" = 18446744073709551615 ]
    ckpt cat model/a.safetensors f
    [ "$status" -eq 3 ]
    [[ $stderr = *"tensor 'f': type F4 cannot be decoded" ]]
    ckpt verify --full model/a.safetensors
    [ "$status" -eq 0 ]
}

@test "diff sees a changed bit of what is not decoded" {
    cp model/a.safetensors other
    ckpt diff model/a.safetensors other
    [ "$status" -eq 0 ]
    printf i | dd of=other bs=1 seek=281 conv=notrunc status=none      # b, 0x62, becomes i, 0x69
    ckpt diff model/a.safetensors other
    [ "$status" -eq 1 ]
    [ "${#lines[@]}" -eq 2 ]
    [ "${lines[1]}" = $'f\tdiffers\t16\t1\t\t\t\t\t' ]
}

@test "model.safetensors.index.json: the tensors of its files" {
    for at in model/model.safetensors.index.json "$PWD/model/model.safetensors.index.json"; do
        ckpt stat "$at"
        [ "$status" -eq 0 ]
        [ "$(printf '%s\n' "${lines[@]}" | cut -f1 | tr '\n' ' ')" = "name u f l w " ]
        ckpt cat "$at" w
        [ "$output" = $'1\t2' ]
    done
    (cd model && "$GPT_BIN/gpt-ckpt" cat model.safetensors.index.json w) >w
    [ "$(cat w)" = $'1\t2' ]
    ckpt info model/model.safetensors.index.json
    grep -qxF $'total_size\t40' <<<"$output"
    ckpt verify --full model/model.safetensors.index.json
    [ "$status" -eq 0 ]
    ckpt diff model/model.safetensors.index.json model/b.safetensors w
    [ "$status" -eq 0 ]
    zstd -q --rm model/b.safetensors -o model/c && mv model/c model/b.safetensors   # a stream among them
    ckpt cat model/model.safetensors.index.json w
    [ "$output" = $'1\t2' ]
    ckpt stat model/model.safetensors.index.json
    [ "${#lines[@]}" -eq 5 ]
    truncate -s -1 model/a.safetensors
    ckpt verify model/model.safetensors.index.json
    [ "$status" -eq 1 ]
    [[ $output = *"model/a.safetensors: "* ]]
    rm model/a.safetensors
    ckpt ls model/model.safetensors.index.json
    [ "$status" -eq 4 ]
    [[ $stderr = *"model/a.safetensors"* ]]
}

@test "gzip with zeros behind it, from a file and from a pipe" {
    { gzip -c model/b.safetensors; head -c 3000 /dev/zero; } >padded
    ckpt cat padded w
    [ "$status" -eq 0 ]
    [ "$output" = $'1\t2' ]
    [ "$("$GPT_BIN/gpt-ckpt" cat - w <padded)" = $'1\t2' ]
    ckpt verify --full padded
    [ "$status" -eq 0 ]
    printf x >>padded
    ckpt verify --full padded
    [ "$status" -eq 1 ]
    [[ $output = *"found: data behind zero padding"* ]]
}

@test "a folder of Hugging Face's and what is no safetensors file: what to name" {
    for name in model.safetensors.index.json model.safetensors; do
        ckpt ls model
        [ "$status" -eq 3 ]
        [ "$stderr" = "gpt-ckpt ls: model: no checkpoint of gpt-train: name the file in it, $name" ]
        ckpt ls "model/$name"
        [ "$status" -eq 0 ]
        cp model/a.safetensors model/model.safetensors
        rm -f model/*.json
    done
    printf 'version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 548105171\n' >lfs.safetensors
    ckpt ls lfs.safetensors
    [ "$status" -eq 3 ]
    [ "$stderr" = "gpt-ckpt ls: lfs.safetensors: a Git LFS pointer in place of the file: 'git lfs pull' fetches it" ]
    run --separate-stderr "$GPT_BIN/gpt-train" -r tiny -d . --init model/a.safetensors
    [ "$status" -eq 3 ]
    [[ $stderr = "gpt-train: model/a.safetensors: expected a folder, found a file: gpt-ckpt import makes"* ]]
}
