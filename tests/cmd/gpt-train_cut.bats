# gpt-train on data of one's own: how much of it is trained on, and that it is said.

bats_require_minimum_version 1.5.0

setup_file() {
    cd "$BATS_FILE_TMPDIR"
    mkdir words
    # 40 files of 30,000 bytes and one of 1,200,000: lines of words that a generator of its own draws
    awk 'BEGIN {
        x = 7
        for (i = 0; i < 41; i++) {
            f = sprintf("words/%02d.txt", i); left = i < 40 ? 30000 : 1200000
            while (left > 0) {
                x = (x * 1103515245 + 12345) % 2147483648
                w = substr("thequickbrownfoxjumpsoverthelazydog", 1 + int(x / 65536) % 28, 1 + int(x / 1024) % 7)
                w = w (int(x / 4096) % 9 ? " " : "\n")
                w = substr(w, 1, left); left -= length(w); printf "%s", w > f
            }
            close(f)
        }
    }'
    mv words/40.txt input.txt
    [ "$(cat words/*.txt | wc -c)" -eq 1200000 ]
    [ "$(wc -c < input.txt)" -eq 1200000 ]
    bytes --val-tokens 40000 -o files words/*.txt
    bytes -o whole input.txt
    # of another tool: no document start, no MANIFEST
    cp whole/text_train_000001.bin input_train.bin
    printf 'A\0' | dd of=input_train.bin bs=1 seek=1024 conv=notrunc status=none
}
setup() { cd "$BATS_FILE_TMPDIR"; }

bytes() { "$GPT_BIN/gpt-tokshard" -q --tokenizer byte "$@"; }
# tiny at half its width, in steps of 8 x 256 tokens
SMALL=(-r tiny -s model.vocab=272 -s data.bos=256 -s model.head_dim=16 -s model.mlp_width=64
       -s schedule.steps=8 -s schedule.extension=2 -s data.val_tokens=2048 -s data.val_chunk=256
       -s data.val_every=0 -s data.checkpoint_every=2)
train() { "$GPT_BIN/gpt-train" --threads 1 "${SMALL[@]}" "$@"; }
losses() { grep -o '^step:[0-9]*/[0-9]* [a-z_]*loss:[^ ]*' "$1"; }
tokens_of() { awk '$1 == "shard:" && $2 == "train" { n += $5 } END { print n }' "$1/MANIFEST"; }
documents_of() { awk '$1 == "shard:" && $2 == "train" { n += $6 } END { print n }' "$1/MANIFEST"; }

# bats test_tags=long
@test "40 files of 30 kB: a pass trains on all but a shard's last token; with cut = document, on 256 of each that are used" {
    all=$(tokens_of files) n=$(documents_of files)
    [ "$n" -ge 36 ]
    run --separate-stderr train -d files
    [ "$status" -eq 0 ]
    [ -z "$stderr" ]
    grep -qx "pass: trains on $((all - 1)) of $all tokens (100%)" <<< "$output"
    [ "$(grep -c '^pass: .* ended' <<< "$output")" -eq 0 ]
    # 10 steps of 2,048 tokens
    grep -qx "passes: $(awk -v all="$all" 'BEGIN { printf "%.2f", 20480 / all }')" <<< "$output"

    # A chunk has 256 tokens of one document and the first of a second as the last target: 16 documents
    # a step, of which n - n % 16 fill steps.
    used=$((n / 16 * 2048))
    run --separate-stderr train -d files -s data.cut=document
    [ "$status" -eq 0 ]
    share=$(awk -v n=$used -v all="$all" 'BEGIN { printf "%.3g", 100 * n / all }')
    grep -qx "pass: trains on $used of $all tokens ($share%)" <<< "$output"
    [ "$stderr" = "gpt-train: a pass trains on $used of $all tokens ($share%): documents are cut, and what is cut off is not used; -s data.cut=pieces trains on all of it" ]
    # its end is told before the first step of the next pass, with what was counted
    steps=$((n / 16))
    [ "$(grep -A 1 '^pass: 1 has ended' <<< "$output" | tail -1 | grep -o '^step:[0-9]*')" = "step:$((steps + 1))" ]
    grep -qx "pass: 1 has ended, trained on $used of $all tokens ($share%)" <<< "$output"
    grep -q '^passes: [0-9.]*$' <<< "$output"
    run --separate-stderr train -q -d files -s data.cut=document
    [ "$status" -eq 0 ]
    [ -z "$stderr" ]
}

# bats test_tags=long
@test "one text of 1.2 MB is trained on whole, with a document start or without; cut = document names the remedy" {
    for data in whole input_train.bin; do
        run --separate-stderr train -d $data -s data.val_tokens=0
        [ "$status" -eq 0 ]
        case $data in
        whole) [ -z "$stderr" ] ;;
        *) [[ $stderr = *"token 256, which begins a document, is not among the first "*", taken for one document"* ]] ;;
        esac
        grep -qx 'pass: trains on 1200000 of 1200001 tokens (100%)' <<< "$output"
        grep -q '^step:10/10 train_loss:' <<< "$output"
        run --separate-stderr train -d $data -s data.val_tokens=0 -s data.cut=document
        [ "$status" -eq 3 ]
        [[ $stderr = *"expected a shard of enough documents for a step"*"document starts, token 256): -s data.cut=pieces uses all of a document, and needs no document start"* ]]
        [ "$(grep -c '^step:' <<< "$output")" -eq 0 ]
    done
}

@test "a text shorter than a step is passed over several times in it, and without cycle says so" {
    head -c 700 input.txt > short.txt
    bytes -o short short.txt
    run --separate-stderr train -d short -s data.val_tokens=0
    [ "$status" -eq 0 ]
    grep -qx 'pass: trains on 700 of 701 tokens (99.9%)' <<< "$output"
    # 20,480 tokens of 700 a pass
    [ "$(grep -c '^pass: .* has ended, trained on 700 of 701 tokens' <<< "$output")" -eq 10 ]
    grep -qx 'pass: 29 has ended, trained on 700 of 701 tokens (99.9%)' <<< "$output"
    run --separate-stderr train -q -d short -s data.val_tokens=0 -s data.cycle=no
    [ "$status" -eq 3 ]
    [[ $stderr = *"expected tokens for "*" steps, found enough for 0 at most"* ]]
}

# bats test_tags=long
@test "pieces: 1, 2 and 3 ranks see the same; a resumed run ends with the same bits, from a pipe too" {
    rm -rf a b c
    train -q -d files --keep 0 -o a -s "stages.1=2048 7 100 1.52 1,0.5>0" > a.log
    grep -q '^state loader.round [0-9]*$' a/step-000006/MANIFEST
    grep -q '^state loader.piece 256$' a/step-000006/MANIFEST
    grep -q '^state loader.used 12288$' a/step-000006/MANIFEST
    # bf16 weights may round otherwise, by 2^-9; other tokens would change the first loss by more
    for k in 2 3; do
        train -q -d files --ranks $k -s "stages.1=2048 7 100 1.52 1,0.5>0" > b.log
        paste <(losses a.log) <(losses b.log) |
            awk -F'[:\t ]' '{ d = $4 - $8; if (d < 0) d = -d; if (!(d <= (n ? 1e-3 : 1e-6) * $4)) bad = 1; n++ } END { exit bad || n < 10 }'
    done
    for from in 2 6; do
        rm -rf b
        "$GPT_BIN/gpt-train" -q -d files --resume a/step-00000$from -o b > b.log
        diff -r a/step-000010 b/step-000010
    done
    stream() { cat files/text_val_*.bin files/text_train_*.bin; }
    stream | train -q -d - -s data.cycle=no --keep 0 -o c > c.log
    run ! grep -q '^pass' c.log
    stream | "$GPT_BIN/gpt-train" -q -d - --resume c/step-000004 -o d > d.log
    diff -r c/step-000010 d/step-000010
    # another size of pieces in the middle of one
    run --separate-stderr "$GPT_BIN/gpt-train" -q -d files --resume a/step-000006 -s data.piece=128
    [ "$status" -eq 3 ]
    [[ $stderr = *"expected data.piece = 256, as the run had, found 128: it is constant in a run"* ]]
    run --separate-stderr "$GPT_BIN/gpt-train" -q -d files --resume a/step-000006 -s data.cut=document
    [ "$status" -eq 3 ]
}

@test "--plan -d says what a pass trains on, and without -d reads nothing" {
    all=$(tokens_of files)
    run --separate-stderr train --plan -d files
    [ "$status" -eq 0 ]
    [ -z "$stderr" ]
    [[ $output = *"a pass over the data trains on $((all - 1)) of $all tokens (100%)"* ]]
    run --separate-stderr train --plan -d files -s data.cut=document
    [[ $output = *"a pass over the data trains on $(($(documents_of files) / 16 * 2048)) of $all tokens ("* ]]
    run --separate-stderr train --plan
    [ "$status" -eq 0 ]
    [[ $output != *"a pass over"* ]]
    run --separate-stderr train --plan -d nothing-there
    [ "$status" -eq 4 ]
    [[ $stderr = *"cannot open 'nothing-there'"* ]]
}

# bats test_tags=long
@test "a hundred shards the start knows of them in less than a second" {
    mkdir many
    split -a 4 -l 15 input.txt doc.
    bytes --index --shard-tokens 100M -o many/one doc.* && rm doc.*
    for i in $(seq 100); do ln many/one/text_train_000001.bin "many/x_train_$(printf %06d "$i").bin"; done
    run --separate-stderr train -d 'many/x_train_*.bin' -s schedule.steps=1 -s data.val_tokens=0 -s data.cut=document
    [ "$status" -eq 0 ]
    [[ $output =~ pass:\ trains\ on\ ~[0-9]+\ of\ [0-9]+\ tokens\ \(~[0-9.]+%\) ]]
    [[ $output =~ start:\ .*took:\ data\ ([0-9.]+), ]]
    awk -v t="${BASH_REMATCH[1]}" 'BEGIN { exit !(t < 1) }'
    # all shards with their indexes: exact
    for i in $(seq 100); do ln many/one/text_train_000001.idx "many/x_train_$(printf %06d "$i").idx"; done
    run --separate-stderr train -d 'many/x_train_*.bin' -s schedule.steps=1 -s data.val_tokens=0 -s data.cut=document
    [[ $output =~ pass:\ trains\ on\ [0-9]+\ of\ [0-9]+\ tokens\ \([0-9.]+%\) ]]
    [[ $output =~ start:\ .*took:\ data\ ([0-9.]+), ]]
    awk -v t="${BASH_REMATCH[1]}" 'BEGIN { exit !(t < 1) }'
    rm -r many
}

# bats test_tags=long
@test "tweets: more documents than a micro-batch has room for are refused before the first step, or allowed for" {
    seq 40000 | awk '{ printf "{\"text\":\"%c\"}\n", ($1 % 2 ? 97 : 65) + $1 % 26 }' > t.jsonl
    bytes --val-tokens 2100 -o tweets t.jsonl
    for cut in document pieces; do
        run --separate-stderr train -d tweets -s data.cut=$cut
        [ "$status" -eq 3 ]
        [[ $stderr = *"expected at most 127 documents in 256 tokens, found more: allow for them (-s data.max_documents=256), or join short documents"* ]]
        [ "$(grep -c '^step:' <<< "$output")" -eq 0 ]
        run --separate-stderr train -d tweets -s data.cut=$cut -s data.max_documents=256
        [ "$status" -eq 0 ]
        grep -q '^step:10/10 val_loss:' <<< "$output"
    done
    run --separate-stderr train --plan -d tweets
    [ "$status" -eq 3 ]
    [[ $stderr = *"(-s data.max_documents=256)"* ]]
}

# bats test_tags=long
@test "pieces that are not cut so are refused; their size is the longest sequence where none is said" {
    run --separate-stderr "$GPT_BIN/gpt-train" --plan -r record-61 -s data.piece=512
    [ "$status" -eq 2 ]
    [[ $stderr = *"--set data.piece=512: pieces are of cut = pieces, and cut is another"* ]]
    train -q -d files -s data.cut=pieces -s data.piece=0 > a.log
    train -q -d files -s data.piece=256 > b.log
    diff <(losses a.log) <(losses b.log)
    train -q -d files -s data.piece=100 > c.log
    run ! diff <(losses a.log) <(losses c.log)
}
