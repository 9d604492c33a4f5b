# gpt-train: which of the files that it is given train, which validate, and that the log says it.

bats_require_minimum_version 1.5.0
load ../check/needs

setup_file() {
    cd "$BATS_FILE_TMPDIR"
    mkdir text
    "$OLDPWD/tests/inputs/text" text
    for i in 1 2 3; do "$GPT_BIN/gpt-tokshard" -q --tokenizer byte -o s$i text/0"$i"*.txt text/0$((i + 3))*.txt; done
}
setup() {
    cd "$BATS_TEST_TMPDIR"
    S=$BATS_FILE_TMPDIR
}

put() { # NUMBER FILE: that shard under that name
    mkdir -p "$(dirname "$2")"
    cp "$S/s$1/text_train_000001.bin" "$2"
}
ON=(-q -r tiny -s model.vocab=272 -s data.bos=256 -s model.head_dim=16 -s model.mlp_width=64
    -s schedule.steps=2 -s schedule.extension=0 -s data.val_tokens=2048 -s data.val_chunk=256
    -s data.val_every=0 -s data.checkpoint_every=0)
train() { run --separate-stderr "$GPT_BIN/gpt-train" "${ON[@]}" "$@"; }
trains_on() { # NAMES: and no other file
    [ "$status" -eq 0 ]
    [ -z "$stderr" ]
    [ "$(sed -n 's/^training: //p' <<< "$output")" = "$1" ]
}
validates() { [ "$(sed -n 's/^validation: //p' <<< "$output")" = "$1" ]; }
unused() { [ "$(sed -n 's/^unused: //p' <<< "$output")" = "$1" ]; }
refused() { # PART OF THE MESSAGE
    echo "$stderr"
    [ "$status" -eq 3 ]
    [[ $stderr = "gpt-train: "*"$1"* ]]
    [ -z "$output" ]
}
nats() { awk -F '\t' '$1 == "validation" { printf "%.4f", -$5 }' <<< "$output"; }
losses() { grep -o '^step:[0-9]*/[0-9]* [a-z_]*loss:[^ ]*'; }

@test "llm.c's names: train trains and val validates, to the bit as named one by one" {
    put 1 d/tiny_shakespeare_train.bin
    put 2 d/tiny_shakespeare_val.bin
    train -d 'd/*.bin'
    trains_on tiny_shakespeare_train.bin
    validates tiny_shakespeare_val.bin
    unused ""
    losses <<< "$output" > both
    cp d/tiny_shakespeare_train.bin x.bin
    cp d/tiny_shakespeare_val.bin y.bin
    train -d x.bin --val y.bin
    trains_on x.bin
    validates y.bin
    [[ $output = *$'\nvalidation data: '[0-9a-f]* ]]
    diff both <(losses <<< "$output")
}

@test "a shard in the folder that its MANIFEST does not name is told, in the log and on standard error" {
    "$GPT_BIN/gpt-tokshard" -q --tokenizer byte --val-tokens 4096 -o d "$S"/text/0[12]*.txt
    train -d d
    trains_on text_train_000001.bin
    unused ""
    losses <<< "$output" > alone
    put 1 d/text_train_000002.bin
    touch d/other.idx d/notes.txt
    train -d d
    trains_on text_train_000001.bin # as with -q
    unused text_train_000002.bin
    diff alone <(losses <<< "$output")
    run --separate-stderr "$GPT_BIN/gpt-train" "${ON[@]:1}" -d d
    [ "$status" -eq 0 ]
    [ "$stderr" = "gpt-train: text_train_000002.bin: in -d, but neither trains nor validates: the MANIFEST, or without one the name, says what does" ]
}

@test "a pattern that the shell has taken apart: the message says to quote it" {
    put 1 d/a_train_1.bin
    put 2 d/a_train_2.bin
    train -d d/*.bin
    [ "$status" -eq 2 ]
    [ "${stderr_lines[0]}" = "gpt-train: unexpected operand 'd/a_train_2.bin': -d takes one name, a pattern of several in quotes" ]
}

@test "the last word of a name, or of its folder, marks a file: each word, numbers, endings and capitals" {
    for pair in "a_train.bin a_val.bin" "f_train_000001.bin f_val_000000.bin" "Train.bin VALID.bin" \
                "training-00000-of-00002.bin validation-00000-of-00001.bin" "x.train.part3.bin x.test.bin" \
                "val_train.bin train_val.bin" "train/1.bin val/1.bin" "my_train/1.bin my-validation/1.bin"; do
        read -r t v <<< "$pair"
        rm -rf all
        put 1 "all/$t"
        put 2 "all/$v"
        case $t in
        */*) train -d 'all/*/*.bin' ;;
        *) train -d 'all/*.bin' ;;
        esac
        trains_on "${t##*/}"
        validates "${v##*/}"
    done
    # 1.bin and 1.bin: the marks are of the folders
    put 1 both/train/1.bin
    put 2 both/val/2.bin
    train -d 'both/*/*.bin'
    trains_on 1.bin
    validates 2.bin
}

@test "a file of --val or marked as validation never trains, unless it is the only one named" {
    put 1 d/a.bin
    put 2 d/b.bin
    put 3 d/c_val.bin
    train -d 'd/*.bin' --val d/b.bin
    trains_on a.bin
    validates b.bin
    unused c_val.bin
    ln d/b.bin other-name.bin # the same device and inode
    ln -s "$PWD/d/b.bin" third-name.bin
    for val in other-name.bin third-name.bin; do
        train -d 'd/[ab].bin' --val $val
        trains_on a.bin
    done
    train -d d/c_val.bin -s data.val_tokens=0
    trains_on c_val.bin
    train -d d/c_val.bin --val d/c_val.bin
    trains_on c_val.bin
    validates c_val.bin
    train -d d/c_val.bin
    refused "marked as validation: name it with --val, too, or train without validation: -s data.val_tokens=0"
    put 1 e/a_val.bin
    put 2 e/b_val.bin
    train -d 'e/*.bin' -s data.val_tokens=0
    refused "expected a training shard, found none: all are for validation, by their names or by --val"
    # a folder with a MANIFEST: --val names one of its training shards
    "$GPT_BIN/gpt-tokshard" -q --tokenizer byte --shard-tokens 200k -o m "$S"/text/*.txt
    train -d m --val m/text_train_000002.bin
    [ "$status" -eq 0 ]
    [[ $(sed -n 's/^training: //p' <<< "$output") = "text_train_000001.bin text_train_000003.bin"* ]]
    validates text_train_000002.bin
    unused ""
}

@test "files that are not marked train where validation is elsewhere or not wanted; else they are refused" {
    put 1 d/a.bin
    put 2 d/b.bin
    train -d 'd/*.bin'
    refused "d/*.bin: expected a mark of training or validation in each name, of 2 files found 2 without (a.bin, ...): --val FILE says which validates, -s data.val_tokens=0 trains without"
    train -d d/a.bin
    refused "of 1 file found 1 without (a.bin): --val FILE"
    put 3 d/v.bin
    train -d 'd/[ab].bin' --val d/v.bin
    trains_on "a.bin b.bin"
    validates v.bin
    train -d 'd/*.bin' -s data.val_tokens=0
    trains_on "a.bin b.bin v.bin"
    validates ""
    # one that is not marked beside others that are: it may be either
    mv d/a.bin d/a_train.bin
    mv d/b.bin d/b_val.bin
    train -d 'd/*.bin'
    refused "of 3 files found 1 without (v.bin)"
    train -d 'd/*_train.bin'
    refused "expected a validation shard, found none: name one with --val"
}

@test "test files validate where nothing else does, and beside validation are unused, as the log says" {
    put 1 d/x_train.bin
    put 2 d/x_val.bin
    put 3 d/x_test.bin
    train -d 'd/*.bin'
    trains_on x_train.bin
    validates x_val.bin
    unused x_test.bin
    rm d/x_val.bin
    train -d 'd/*.bin'
    validates x_test.bin
    unused ""
    for i in 0 1 2 3 4 5 6 7 8; do put 1 "d/x_train_$i.bin"; done
    train -d 'd/*.bin'
    trains_on "x_train.bin x_train_0.bin x_train_1.bin x_train_2.bin x_train_3.bin x_train_4.bin x_train_5.bin x_train_6.bin ... x_train_8.bin (10 files)"
    # of several files, --val takes those that are marked
    put 2 d/x_val.bin
    train -d 'd/*_train_?.bin' --val 'd/*.bin'
    validates x_val.bin
}

@test "gpt-sample --score -d scores what the run validated on" {
    put 1 d/x_train.bin
    put 2 d/x_val.bin
    train -d 'd/*.bin' -o out --keep 1
    loss=$(sed -n 's/.*val_loss:\([0-9.]*\).*/\1/p' <<< "$output" | tail -1)
    cp d/x_val.bin alone.bin
    for data in 'd/*.bin' d/x_val.bin alone.bin; do
        run --separate-stderr "$GPT_BIN/gpt-sample" -q --tokenizer byte -m out --score -d "$data"
        [ "$status" -eq 0 ]
        [ "$(nats)" = "$loss" ]
    done
    run --separate-stderr "$GPT_BIN/gpt-sample" -q --tokenizer byte -m out --score -d 'd/*_train*.bin'
    echo "$stderr"
    [ "$status" -eq 0 ] # a single file in any case
    put 1 g/x_train_1.bin
    put 2 g/x_train_2.bin
    run --separate-stderr "$GPT_BIN/gpt-sample" -q --tokenizer byte -m out --score -d 'g/*.bin'
    [ "$status" -eq 3 ]
    [[ $stderr = *"expected a validation shard, found none"* ]]
    # of two files of 3,600 tokens the run takes 2,048 each, in groups of 8 chunks whatever data.chunks is
    "$GPT_BIN/gpt-tokshard" -q --tokenizer byte --shard-tokens 3600 -o v "$S"/text/00[12].txt
    cp v/text_train_000001.bin two_val_1.bin
    cp v/text_train_000002.bin two_val_2.bin
    train -d d/x_train.bin --val 'two_val_*.bin' -s data.val_tokens=4096 -s data.chunks=4 -o four
    [ "$status" -eq 0 ]
    loss=$(sed -n 's/.*val_loss:\([0-9.]*\).*/\1/p' <<< "$output" | tail -1)
    run --separate-stderr "$GPT_BIN/gpt-sample" -q --tokenizer byte -m four --score -d 'two_val_*.bin'
    [ "$(nats)" = "$loss" ]
}

@test "a run whose files older versions chose goes on with them, and is scored on theirs" {
    # of a.bin, b.bin and c.bin they took the first for validation
    for i in 1 2 3; do put $i "d/$(tr 123 abc <<< $i).bin"; done
    longer=(-s schedule.steps=4 -s data.checkpoint_every=2)
    train -d 'd/[bc].bin' --val d/a.bin "${longer[@]}" -o one --keep 0
    losses <<< "$output" | tail -n 3 > begun
    [ "$(wc -l < begun)" -eq 3 ]
    run --separate-stderr "$GPT_BIN/gpt-train" -q -d 'd/*.bin' --resume one/step-000002 -o two
    trains_on "b.bin c.bin (chosen as when the run began)"
    validates a.bin
    diff begun <(losses <<< "$output")
    loss=$(sed -n 's/.*val_loss:\([0-9.]*\).*/\1/p' <<< "$output" | tail -1)
    run --separate-stderr "$GPT_BIN/gpt-sample" -q --tokenizer byte -m two --score -d 'd/*.bin'
    [ "$(nats)" = "$loss" ]
    # of other files neither rule has those of the run
    run --separate-stderr "$GPT_BIN/gpt-train" -q -d d/b.bin --val d/a.bin --resume one/step-000002
    refused "made with data "
}

@test "one training shard under two names is said" {
    put 1 d/x_train_1.bin
    put 2 d/x_train_2.bin
    put 3 d/x_val.bin
    train -d 'd/*.bin'
    trains_on "x_train_1.bin x_train_2.bin"
    for link in "ln -s" ln; do
        (cd d && $link x_train_2.bin x_train_3.bin)
        run --separate-stderr "$GPT_BIN/gpt-train" "${ON[@]:1}" -d 'd/*.bin'
        [ "$status" -eq 0 ]
        [[ $stderr = *"gpt-train: d/x_train_2.bin and d/x_train_3.bin are one file: a pass trains on it twice"* ]]
        [ "$(sed -n 's/^twice: //p' <<< "$output")" = "d/x_train_2.bin and d/x_train_3.bin are one file" ]
        rm d/x_train_3.bin
    done
}

@test "a file that trains and validates, as a single one or a link can, is said" {
    put 1 d/x_train_1.bin
    put 2 v.bin
    ln d/x_train_1.bin link.bin
    for val in d/x_train_1.bin link.bin; do
        run --separate-stderr "$GPT_BIN/gpt-train" "${ON[@]:1}" -d d/x_train_1.bin --val $val
        [ "$status" -eq 0 ]
        [[ $stderr = *"gpt-train: d/x_train_1.bin: trains and validates: val_loss is of tokens that are trained on"* ]]
        [ "$(sed -n 's/^shared: //p' <<< "$output")" = x_train_1.bin ]
    done
    ln d/x_train_1.bin d/x_val.bin
    put 2 d/x_train_0.bin
    run --separate-stderr "$GPT_BIN/gpt-train" "${ON[@]:1}" -d 'd/*.bin'
    [[ $stderr = *"d/x_train_1.bin: trains and validates:"* ]]
    run --separate-stderr "$GPT_BIN/gpt-train" "${ON[@]:1}" -d 'd/*.bin' --val v.bin
    [ "$status" -eq 0 ]
    [[ $stderr != *"trains and validates"* && $output != *shared:* ]]
}

@test "data without a document start are said" {
    put 1 d/x_train.bin
    put 2 v.bin
    for bos in 256 271; do # 256 is the start, 271 no byte
        run --separate-stderr "$GPT_BIN/gpt-train" "${ON[@]:1}" -s data.bos=$bos -d d/x_train.bin --val v.bin
        [ "$status" -eq 0 ]
        said="token $bos, which begins a document, is not among the first $(($(stat -c %s d/x_train.bin) / 2 - 512)) tokens of -d, taken for one document: -s data.bos=N"
        if [ $bos = 256 ]; then [[ $stderr != *"$said"* ]]; else [[ $stderr = *"gpt-train: $said"* ]]; fi
    done
}

@test "shards of other programs: 32 bits a token, no header, a Git LFS pointer" {
    needs python3
    header() { python3 -c "import struct, sys; sys.stdout.buffer.write(struct.pack('<256i', $1, *[0] * 253))"; }
    { header "20240520, 1, 1000"; head -c 4000 /dev/zero; } > wide.bin
    train -d wide.bin --val wide.bin
    refused "wide.bin: expected 1000 tokens of 16 bits, found 32 bits for each"
    { header "20240520, 1, 1000"; head -c 4001 /dev/zero; } > other.bin # other bytes behind it pass
    run --separate-stderr "$GPT_BIN/gpt-tokshard" --stats --tokenizer byte other.bin
    [ "$status" -eq 0 ]
    { header "20240801, 7, 1000"; head -c 4000 /dev/zero; } > llama.bin
    train -d llama.bin --val llama.bin
    refused "found 20240801, 7; gpt-tokshard makes shards of text, gpt-shard(5) of other programs' tokens"
    printf 'version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 200001024\n' > lfs.bin
    train -d lfs.bin --val lfs.bin
    refused "lfs.bin: a Git LFS pointer in place of the file: 'git lfs pull' fetches it"
    # the command of gpt-shard(5) makes the shard again of its tokens alone
    put 1 x_train.bin
    tail -c +1025 x_train.bin > train.bin
    sed -n '/^python3 -c/,/^\.Ed/p' "$GPT_SHARE/../man/gpt-shard.5" | grep -v '^\.Ed' > convert
    grep -q 'train.bin > my_train_000001.bin' convert
    sh -eu convert
    cmp x_train.bin my_train_000001.bin
}

@test "gpt-tokshard --manifest takes the same names for validation" {
    put 1 d/tiny_train.bin
    put 2 d/tiny-validation.bin
    put 3 d/tiny_test.bin
    run --separate-stderr "$GPT_BIN/gpt-tokshard" --verify d
    [ "$status" -eq 3 ]
    [[ $stderr = *"d: expected a MANIFEST, found none: "*" (then name them: d/*.bin)" ]]
    run --separate-stderr "$GPT_BIN/gpt-tokshard" --manifest d # GPT-2's, of bytes
    [ "$status" -eq 0 ]
    [[ $stderr = *"token 50256, which begins a document of "*", is not in the shards"* ]]
    run --separate-stderr "$GPT_BIN/gpt-tokshard" -f --tokenizer byte --manifest d
    [ "$status" -eq 0 ]
    [[ $stderr != *"is not in the shards"* ]]
    [[ $stderr = *"1 marked as a test's beside validation: not in the MANIFEST, so no run reads it"* ]]
    train -d d
    trains_on tiny_train.bin
    validates tiny-validation.bin
    mv d/tiny-validation.bin d/tiny_b.bin
    run --separate-stderr "$GPT_BIN/gpt-tokshard" -f --tokenizer byte --manifest d
    [ "$status" -eq 0 ]
    [[ $stderr != *"marked as a test's"* ]]
    train -d d
    validates tiny_test.bin
}

@test "text in place of shards is refused as that" {
    head -c 5000 /dev/zero | tr '\0' x > story.txt
    train -d story.txt
    refused "story.txt: offset 0: expected a token shard"
    [[ $stderr = *"gpt-tokshard makes shards of text, gpt-shard(5) of other programs' tokens" ]]
    head -c 300 story.txt > short.txt
    train -d short.txt
    refused "gpt-tokshard makes shards of text"
}
