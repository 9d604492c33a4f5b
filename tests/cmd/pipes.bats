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
# tiny at half its width.
SMALL=(-s model.vocab=272 -s model.head_dim=16 -s model.mlp_width=64
       -s schedule.steps=6 -s schedule.extension=2 -s data.val_tokens=2048
       -s data.val_chunk=1024 -s data.val_every=4 -s data.checkpoint_every=2
       -s data.cycle=no -s data.bos=256 -s data.cut=document
       -s "stages.0=512 3 512 1 1,0.5,0.25>0" -s "stages.1=512 5 512 1.52 1,0.5>0"
       -s "stages.2=1024 7 512 1.73 1" -s "stages.3=1024 9 512 - 1")
train() { "$GPT_BIN/gpt-train" --threads 1 -r "$GPT_SHARE/recipes/tiny.recipe" "${SMALL[@]}" -q "$@"; }
shards() { cat "$SH"/text_val_*.bin "$SH"/text_train_*.bin; }
losses() { grep -o '^step:[0-9]*/[0-9]* [a-z_]*loss:[^ ]*' "$1"; }
# the log has the losses that the run from files had
same() { diff <(losses "$BATS_FILE_TMPDIR/files.log") <(losses "$1"); }

# bats test_tags=long
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

# bats test_tags=long
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

@test "a file of several shards is refused, and - named, plain, zstd and gzip" {
    shards > several.bin
    zstd -qc several.bin > several.zst
    gzip -c several.bin > several.gz
    cp "$SH"/text_train_000001.bin padded.bin
    printf 'more' >> padded.bin # what is no shard is ignored: gpt-shard(5)
    train -d padded.bin --val "$SH" -s data.cycle=yes > padded.log
    "$GPT_BIN/gpt-tokshard" -o frames --level 1 -q --tokenizer byte --shard-tokens 200k "$BATS_FILE_TMPDIR"/text.*
    cat frames/*.bin.zst > several.bin.zst
    for f in several.bin several.zst several.gz several.bin.zst; do
        for command in "gpt-tokshard --tokenizer byte --stats" "gpt-tokshard --tokenizer byte --decode"; do
            run --separate-stderr "$GPT_BIN"/$command $f
            echo "$command $f: $stderr"
            [ "$status" -eq 3 ]
            [[ $stderr = *" $f: expected one shard, found another behind it: "*" - in its place (-d -) "* ]] ||
                [[ $f = *.bin.zst && $stderr = *"damaged, or several shards (these with - and on standard input)"* ]]
        done
        "$GPT_BIN/gpt-tokshard" --tokenizer byte --stats - < $f | cmp - <(shards | "$GPT_BIN/gpt-tokshard" --tokenizer byte --stats -) ||
            [[ $f = *.bin.zst ]] # of other shards
    done
    truncate -s -2 frames/text_train_000002.bin.zst
    run --separate-stderr "$GPT_BIN/gpt-tokshard" --stats frames # not those of its other shards
    [ "$status" -eq 3 ]
    [[ $stderr = *"/text_train_000002.bin.zst: truncated: "* ]]
    [ -z "$output" ]
    for f in several.bin several.zst several.bin.zst; do
        run --separate-stderr train -d $f --val "$SH" -s data.cycle=yes -s schedule.steps=400
        echo "$f: $stderr"
        [ "$status" -eq 3 ]
        [[ $stderr = *" - "*"standard input"* ]]
    done
}

@test "gpt-tokshard -o - | zstd | cat | gpt-train -d -" {
    bytes -o - --shard-tokens 200k "$BATS_FILE_TMPDIR"/text.* | zstd -1 | cat | train -d - --val "$SH" > p.log
    bytes -o x --shard-tokens 200k "$BATS_FILE_TMPDIR"/text.*
    cat x/*.bin | cmp - <(bytes -o - --shard-tokens 200k "$BATS_FILE_TMPDIR"/text.*)
    train -d x --val "$SH" > f.log
    diff <(losses f.log) <(losses p.log)
}

# bats test_tags=long
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
    [[ $stderr == *"expected tokens for step 1, found the end after "*" tokens" ]]
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

@test "gpt-train -d -: data.cycle = no is implied, and said" {
    local kept=()
    for word in "${SMALL[@]}"; do # as a user would not write it
        [ "$word" = data.cycle=no ] && unset 'kept[-1]' || kept+=("$word")
    done
    run --separate-stderr bash -c '"$@"' - "$GPT_BIN/gpt-train" -r tiny "${kept[@]}" -d - -o run < <(shards)
    [ "$status" -eq 0 ]
    [ "$(grep -v ': stages\.[0-9, ]*: ' <<< "$stderr")" = "gpt-train: -d - passes once: data.cycle=no" ]
    printf '%s\n' "$output" > run.log
    same run.log
    grep -qx 'cycle = no' run.log
    # the recipe is that of a run that was told so, and says nothing of it when resumed
    [ "$(sed -n 's/^recipe: //p' run.log)" = "$(sed -n 's/^recipe: //p' "$BATS_FILE_TMPDIR/files.log")" ]
    run --separate-stderr "$GPT_BIN/gpt-train" -r tiny "${kept[@]}" -d - -q --plan < /dev/null
    [ "$status" -eq 0 ]
    [ -z "$stderr" ]
}

@test "gpt-train -s optimizer.coeffs=-: the table that ns-coeffs makes, in a pipe" {
    "$GPT_BIN/ns-coeffs" polar > p.coeffs
    "$GPT_BIN/gpt-train" -r tiny -s optimizer.coeffs=p.coeffs --plan > file.plan
    run --separate-stderr "$GPT_BIN/gpt-train" -r tiny -s optimizer.coeffs=- --plan < p.coeffs
    [ "$status" -eq 0 ]
    diff file.plan <(printf '%s\n' "$output")
    run --separate-stderr train -d - -s optimizer.coeffs=- < p.coeffs
    [ "$status" -eq 2 ]
    [[ $stderr == *"'-' twice among -r, -d, --resume, --init and -s optimizer.coeffs=-"* ]]
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

# bats test_tags=long
@test "gpt-ckpt pack | unpack: the same files, a tar, and nothing of a damaged one" {
    train -d "$SH" -o run > log
    "$GPT_BIN/gpt-ckpt" pack run > p
    "$GPT_BIN/gpt-ckpt" unpack -o out < p
    diff -r run/step-000008 out/step-000008
    mkdir tar
    zstd -dc p | tar -xf - -C tar
    diff -r run/step-000008 tar/step-000008
    "$GPT_BIN/gpt-ckpt" pack run --level 0 | gzip -1 | "$GPT_BIN/gpt-ckpt" unpack - -o gz
    diff -r run/step-000008 gz/step-000008
    # there already; --force
    run --separate-stderr "$GPT_BIN/gpt-ckpt" unpack p -o out
    [ "$status" -eq 4 ]
    "$GPT_BIN/gpt-ckpt" unpack p -o out --force
    # cut: the first kilobytes, the last ones, and some between (every one of them was tried once by hand)
    bytes=$(stat -c %s p)
    for at in 0 1 1024 2048 3072 $(seq 4096 100000 "$bytes") $((bytes - 1024)) $((bytes - 1)); do
        run --separate-stderr "$GPT_BIN/gpt-ckpt" unpack -o cut < <(head -c "$at" p)
        [ "$status" -eq 3 ]
        [ ! -e cut ]
    done
    # changed: a byte of a file in a plain tar; a file left out; one that MANIFEST has not
    zstd -dc p > t
    printf x | dd of=t bs=1 seek=$(($(stat -c %s t) / 2)) conv=notrunc status=none
    run --separate-stderr "$GPT_BIN/gpt-ckpt" unpack -o cut < t
    [ "$status" -eq 3 ]
    [[ $stderr == *"file 'rank0.safetensors.zst': expected XXH3 "* ]]
    [ ! -e cut ]
    tar --format=ustar -cf less.tar -C tar step-000008/MANIFEST step-000008/recipe.txt
    run --separate-stderr "$GPT_BIN/gpt-ckpt" unpack -o cut < less.tar
    [ "$status" -eq 3 ]
    [[ $stderr == *"expected the file 'rank0.safetensors.zst' of its MANIFEST, found none"* ]]
    echo more > tar/step-000008/more
    tar --format=ustar -cf more.tar -C tar step-000008/MANIFEST step-000008/more
    run --separate-stderr "$GPT_BIN/gpt-ckpt" unpack -o cut < more.tar
    [ "$status" -eq 3 ]
    [[ $stderr == *"file 'more' is not one of its MANIFEST"* ]]
    [ ! -e cut ]
    # --resume -: the end of the run again, and no folder stays
    TMPDIR=$PWD train -d "$SH" --resume - -s schedule.steps=12 < p > res.log
    grep -q '^resumed: step 8 ' res.log
    [ -z "$(ls -d gpt.* 2> /dev/null)" ]
    status=0
    head -c 100000 p | TMPDIR=$PWD train -d "$SH" --resume - > res.log 2> err || status=$?
    [ "$status" -eq 3 ]
    [ -z "$(ls -d gpt.* 2> /dev/null)" ]
}

@test "gpt-ckpt export -o - | import -: compressed when asked, the same checkpoint" {
    train -d "$SH" -o run > log
    "$GPT_BIN/gpt-ckpt" export run -o - --states --padding --level 3 > e
    [ "$(head -c 4 e | od -An -tx1 | tr -d ' ')" = 28b52ffd ]
    "$GPT_BIN/gpt-ckpt" export run -o - --states --padding | cmp - <(zstd -dc e)
    "$GPT_BIN/gpt-ckpt" import -q - -o back < e
    "$GPT_BIN/gpt-ckpt" diff -q run back > diff.txt
}

@test "gpt-logdiff --follow: a zstd log as it grows, frame by frame" {
    log=$BATS_FILE_TMPDIR/files.log
    mkfifo p out
    "$GPT_BIN/gpt-logdiff" --follow --rules loss --mixed base="$log" new=- < p > out 2> err &
    pid=$!
    exec 7> p
    exec 8< out
    sed '/^step:4\/.*val_loss/q' "$log" | zstd -qc >&7
    read -r -t 60 first <&8 # before the rest is written
    read -r -t 60 second <&8
    [[ $first == "step 0/"* ]]
    [[ $second == "step 4/"* ]]
    sed '1,/^step:4\/.*val_loss/d' "$log" | zstd -qc >&7
    exec 7>&-
    cat <&8 > rest
    wait $pid || :
    grep -q '^step 8/' rest
}

# What the rows of gpt-tools(7) need besides what they show. A row that is not here fails.
declare -gA MORE=(
    ['gpt-tokshard -o - -']='-q --tokenizer byte'
    ['gpt-tokshard --stats -']='--tokenizer byte'
    ['gpt-tokshard --decode -']='--tokenizer byte'
    ['gpt-tokshard --verify -']=''
    ['gpt-train -d -']='-q -r recipe'
    ['gpt-train -r -']='-q -d $SH'
    ['gpt-train -s optimizer.coeffs=-']='-q -r recipe -d $SH'
    ['gpt-train --resume -']='-q -d $SH -s schedule.steps=12'
    ['gpt-ckpt pack']='run'
    ['gpt-ckpt unpack -']='-q -o unpacked --force'
    ['gpt-ckpt export -o -']='run'
    ['gpt-ckpt import -']='-q -o imported --force'
    ['gpt-ckpt ls -']=''
    ['gpt-ckpt info -']=''
    ['gpt-ckpt stat -']=''
    ['gpt-ckpt spectrum -']='"layers.0.*" --summary --format tsv'
    ['gpt-ckpt diff - B']='--all'
    ['gpt-ckpt verify -']=''
    ['gpt-ckpt cat -']='layers.0.attn.q.weight[0]'
    ['gpt-logdiff -']=''
    ['gpt-logdiff --follow BASE -']=''
    ['gpt-sample --input -']='-q -n 1 -m run'
    ['gpt-sample -m -']='-q -n 1 x'
    ['ns-coeffs polar']='-q'
    ['ns-coeffs eval -']=''
    ['ns-coeffs fit --spectrum=-']='-q --iters 2'
)

# the beginning of a file of that kind
is_kind() {
    case $1 in
    nothing) [ ! -s "$2" ] ;;
    shards) [ "$(od -An -t d4 -N 8 "$2" | tr -s ' ')" = ' 20240520 1' ] ;;
    'run log') head -1 "$2" | grep -q '^tool: gpt-train' ;;
    tensors) [ "$(head -c 9 "$2" | tail -c 1)" = '{' ] ;;
    'packed checkpoint') zstd -dqc "$2" | tar -tf - | grep -q /MANIFEST ;;
    'coefficient table') grep -qE '^[-0-9.e]+ +[-0-9.e]+ +[-0-9.e]+( |$)' "$2" ;;
    text | table) [ -s "$2" ] ;;
    *) return 1 ;;
    esac
}

# bats test_tags=long
@test "gpt-tools(7): each row of the table of '-' is so, with plain, zstd and gzip input" {
    train -d "$SH" -o run > log
    sed -n '/^====/,/^====/p' log | grep -v ^==== > recipe
    mkdir in
    cp "$PAGE" in/text
    shards > in/shards
    cp recipe in/recipe
    cp log 'in/run log'
    "$GPT_BIN/gpt-ckpt" pack run --level 0 > 'in/packed checkpoint'
    "$GPT_BIN/gpt-ckpt" export run -o in/tensors
    cp in/tensors B
    cp log BASE
    cp "$GPT_SHARE/coeffs/spectrum-5.coeffs" 'in/coefficient table'
    "$GPT_BIN/gpt-ckpt" spectrum run 'layers.0.*' --values > 'in/singular values'
    n=0
    while IFS='|' read -r row reads writes; do
        echo "row: $row ($reads)" # in a failure's output
        [ "${MORE[$row]+there}" ]
        packs=(cat 'zstd -qc' 'gzip -c')
        [ "$reads" != nothing ] || packs=(cat)
        for k in "${!packs[@]}"; do
            [ "$reads" = nothing ] && input=/dev/null || input=in/$reads
            status=0
            ${packs[k]} < "$input" | eval "\"\$GPT_BIN\"/$row ${MORE[$row]}" > "out.$k" 2> err || status=$?
            cat err
            [ "$status" -eq 0 ] || [[ $row-$status = gpt-logdiff*-1 ]] # no record
            is_kind "$writes" "out.$k"
            [ "$writes" != 'run log' ] || { losses "out.$k" > l; mv l "out.$k"; }
            cmp out.0 "out.$k"
        done
        n=$((n + 1))
    done < <(awk -F '  +' '/^\.Bd/ { on = 1 } /^\.Ed/ { on = 0 }
        on && NF == 3 && /^(gpt|ns)-/ { print $1 "|" $2 "|" $3 }' "${PAGE%/*}/gpt-tools.7")
    [ "$n" -ge "${#MORE[@]}" ]
}
