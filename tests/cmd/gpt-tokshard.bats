#!/usr/bin/env bats
# gpt-tokshard as a user meets it: input, tokens, options. Tests of GPT-2's tokens are skipped where
# its vocabulary is not; all that is about documents, shards and failures uses the byte tokenizer.

bats_require_minimum_version 1.5.0
load tokshard_setup

@test "bytes: a document is its start and its bytes, in input order" {
    bytes -o out a.txt b.jsonl
    tokens out/text_train_000001.bin > found
    { echo 256; printf 'one two' | od -An -v -w1 -t u1 | tr -d ' '
      echo 256; printf 'caf\xc3\xa9 \xf0\x9f\x98\x80\n' | od -An -v -w1 -t u1 | tr -d ' '
      echo 256; printf 'x"\\y' | od -An -v -w1 -t u1 | tr -d ' '; } > expected
    diff expected found
    grep -q '^documents: 3$' out/MANIFEST
    grep -q '^tokens: 25$' out/MANIFEST
    grep -q '^bos: 256$' out/MANIFEST
}

@test "the header says what the public format says" {
    bytes -o out a.txt
    [ "$(od -An -t d4 -N 16 out/text_train_000001.bin | tr -s ' ')" = " 20240520 1 8 0" ]
    [ "$(stat -c %s out/text_train_000001.bin)" -eq $((1024 + 16)) ]
}

@test "plain, zstd and gzip, files and pipes give the same shard" {
    corpus > c.jsonl
    bytes -o plain c.jsonl
    zstd -q c.jsonl
    gzip -k c.jsonl
    bytes -o zst c.jsonl.zst
    bytes -o gz c.jsonl.gz
    bytes -o pipe --format jsonl - < c.jsonl
    bytes -o zpipe --format jsonl - < c.jsonl.zst
    for d in zst gz pipe zpipe; do
        cmp plain/text_train_000001.bin $d/text_train_000001.bin
    done
    bytes -o - c.jsonl | cmp - plain/text_train_000001.bin
}

@test "any number of threads writes the same bytes" {
    corpus 3000 > c.jsonl
    for j in 1 2 5; do
        bytes -j $j -o j$j --shard-tokens 50k --split 0.1 --level 1 c.jsonl
    done
    [ "$(ls j1 | wc -l)" -ge 6 ]
    for j in 2 5; do
        diff -r -x MANIFEST j1 j$j
        diff <(grep ^shard: j1/MANIFEST) <(grep ^shard: j$j/MANIFEST)
    done
}

@test "documents straddle shards; shards put together are the whole" {
    corpus > c.jsonl
    bytes -o whole c.jsonl
    bytes -o cut --shard-tokens 1000 c.jsonl
    for f in cut/*.bin; do tokens "$f"; done | cmp - <(tokens whole/text_train_000001.bin)
    [ "$(awk '/^shard:/ { n += $6 } END { print n }' cut/MANIFEST)" -eq 300 ]
    [ "$(awk '/^shard:/ && $5 != 1000' cut/MANIFEST | wc -l)" -eq 1 ]
}

@test ".bin.zst is the .bin, in frames that zstd can check, with the hash of the MANIFEST" {
    corpus 3000 > c.jsonl
    bytes -o plain c.jsonl
    bytes -o packed --level 5 c.jsonl
    zstd -tq packed/text_train_000001.bin.zst
    zstd -dcq packed/text_train_000001.bin.zst | cmp - plain/text_train_000001.bin
    [ "$(grep ^shard: plain/MANIFEST | awk '{ print $NF }')" = \
      "$(grep ^shard: packed/MANIFEST | awk '{ print $NF }')" ]
}

@test "--split goes by the text: the same documents in any order" {
    corpus > c.jsonl
    shuf --random-source=<(yes) c.jsonl > d.jsonl
    bytes -o c --split 0.2 c.jsonl
    bytes -o d --split 0.2 --shard-tokens 2000 d.jsonl
    texts() { "$GPT_BIN/gpt-tokshard" --decode "$1" | sed 's/<|endoftext|>//' | sort; }
    for f in d/*_val_*; do texts "$f"; done | sort > d.txt
    # documents that straddle d's shards are cut there, so compare what was not
    texts c/text_val_000000.bin > c.txt
    [ "$(wc -l < c.txt)" -ge 30 ]
    [ "$(wc -l < c.txt)" -le 90 ]
    [ "$(comm -12 c.txt d.txt | wc -l)" -ge $(( $(wc -l < c.txt) - 2 * $(ls d/*_val_* | wc -l) )) ]
}

@test "--val-tokens takes whole documents of the lowest hash; --val-first what comes first" {
    corpus > c.jsonl
    bytes -o hash --val-tokens 3000 c.jsonl
    n=$(awk '/^shard: val/ { print $5 }' hash/MANIFEST)
    [ "$n" -ge 3001 ]
    [ "$n" -lt 4000 ]
    tokens hash/text_val_000000.bin | head -1 | grep -qx 256
    bytes -o first --val-first --val-tokens 3000 c.jsonl
    bytes -o whole c.jsonl
    [ "$(awk '/^shard: val/ { print $5 }' first/MANIFEST)" -eq 3001 ]
    for f in first/text_val_000000.bin first/text_train_000001.bin; do tokens $f; done |
        cmp - <(tokens whole/text_train_000001.bin)
    run --separate-stderr T --tokenizer byte -o x --val-tokens 1M c.jsonl
    [ "$status" -eq 3 ]
    [[ $stderr == *"expected whole documents of 1000001 tokens for validation"* ]]
    yes '{"text": "the same"}' | head -n 5 > same.jsonl # which would all be validation
    run --separate-stderr T --tokenizer byte -o x --val-tokens 10 same.jsonl
    [ "$status" -eq 3 ]
    [[ $stderr == *"and more for training, found 45 tokens in 5 documents"* ]]
}

@test "folders are walked in the order of bytes, by extension" {
    mkdir -p in/b in/.hidden
    printf 1 > in/b/z.txt; printf 2 > in/B.txt; printf 3 > in/a.md; printf 4 > in/c.dat
    printf 5 | gzip > in/d.txt.gz; printf 6 > in/.hidden/e.txt
    bytes -o out in
    [ "$("$GPT_BIN/gpt-tokshard" --decode out/text_train_000001.bin)" = \
      "<|endoftext|>2<|endoftext|>3<|endoftext|>1<|endoftext|>5" ]
    bytes -o dat --ext dat in
    [ "$("$GPT_BIN/gpt-tokshard" --decode dat/text_train_000001.bin)" = "<|endoftext|>4" ]
    run --separate-stderr T --tokenizer byte -o no --ext pdf in
    [ "$status" -eq 3 ]
    [ "$stderr" = "gpt-tokshard: in: expected files named *.{pdf}, found others, as 'in/B.txt': --ext says which are taken" ]
    mkdir empty
    run --separate-stderr T --tokenizer byte -o no empty
    [ "$status" -eq 3 ]
    [ "$stderr" = "gpt-tokshard: empty: expected files named *.{txt,md,jsonl}, found none" ]
}

@test "folders: links are followed, but not back up; what is not wanted need not be there" {
    mkdir -p in/sub out-of-it
    printf 1 > in/a.txt; printf 2 > in/sub/b.txt; printf 3 > out-of-it/c.txt
    ln -s .. in/sub/up; ln -s ../out-of-it in/linked; ln -s nowhere in/d.dat; mkfifo in/e.txt
    run --separate-stderr timeout 20 "$GPT_BIN/gpt-tokshard" -q --tokenizer byte -o out in
    [ "$status" -eq 0 ]
    [ "$("$GPT_BIN/gpt-tokshard" --decode out/text_train_000001.bin)" = \
      "<|endoftext|>1<|endoftext|>3<|endoftext|>2" ]
    ln -s nowhere in/f.txt
    run --separate-stderr T --tokenizer byte -o out2 in
    [ "$status" -eq 4 ]
    [ "$stderr" = \
      "gpt-tokshard: cannot open 'in/f.txt', a link to 'nowhere': No such file or directory" ]
}

@test "--decode gives the text back, and any range of it" {
    printf 'The quick brown f\xc3\xb6x' > t.txt
    bytes -o out --level 1 t.txt
    f=out/text_train_000001.bin.zst
    [ "$("$GPT_BIN/gpt-tokshard" --decode $f 1:)" = "$(cat t.txt)" ]
    [ "$("$GPT_BIN/gpt-tokshard" --decode $f 5:10)" = "quick" ]
    [ "$("$GPT_BIN/gpt-tokshard" --decode $f :4)" = "<|endoftext|>The" ]
    run --separate-stderr T --decode $f 5:400
    [ "$status" -eq 2 ]
}

@test "--invalid: replaced, kept or refused, and counted" {
    printf 'a\xff\xc3(\xe2\x82b\xed\xa0\x80' > bad.txt
    run --separate-stderr "$GPT_BIN/gpt-tokshard" --tokenizer byte -o r bad.txt
    [ "$status" -eq 0 ]
    [[ $stderr == *"6 sequences are not UTF-8: replaced by U+FFFD"* ]]
    R=$(printf '\xef\xbf\xbd')
    [ "$("$GPT_BIN/gpt-tokshard" --decode r/text_train_000001.bin 1:)" = "a$R$R($R""b$R$R$R" ]
    bytes -o b --invalid bytes bad.txt
    "$GPT_BIN/gpt-tokshard" --decode b/text_train_000001.bin 1: | cmp - bad.txt
    grep -q '^invalid: 6$' b/MANIFEST
    run --separate-stderr T --tokenizer byte -o e --invalid error a.txt bad.txt
    [ "$status" -eq 3 ]
    [ "$stderr" = "gpt-tokshard: bad.txt: document offset 1: expected UTF-8, found byte 0xff" ]
    [ ! -e e/MANIFEST ]
    printf '{"text": "ok \\ud800 x"}\n' > lone.jsonl
    run --separate-stderr T --tokenizer byte -o l --invalid error lone.jsonl
    [ "$status" -eq 3 ]
    [[ $stderr == "gpt-tokshard: lone.jsonl: line 1: document offset 3: expected UTF-8"* ]]
}

@test "bad .jsonl: file, line and what was expected" {
    check() {
        printf '{"text": "good"}\n%s\n' "$1" > bad.jsonl
        run --separate-stderr T --tokenizer byte -f -o out bad.jsonl
        echo "$stderr"
        [ "$status" -eq 3 ]
        [ "$stderr" = "gpt-tokshard: bad.jsonl: line 2: $2" ]
    }
    check '{"txt": "x"}' "expected a field 'text', found none: --field NAME says which it is"
    check '{"text": 5}' "column 10: expected field 'text' to be a string, found 5"
    check '{"text": "x"' "column 13: expected ',' or '}', found the end of the line"
    check '{"text": "x' "column 12: expected the closing '\"' of a string, found the end of the line"
    check '{"text": "\q"}' 'column 11: expected one of \" \\ \/ \b \f \n \r \t \u'
    check '["text"]' "column 1: expected '{'"
    check '{"text": "a"} x' "column 15: expected the end of the line, found x"
    check '{"a": [1, {"b": tru}], "text": "a"}' "column 17: expected a value, found tru"
}

# Lines of .jsonl without a text: some that do not parse, without the field, with another type, with
# the field twice, and one longer than what is held of a line (2 MiB).
bad_lines() {
    printf '%s\n' '{"text": "x"' '{"text": "x' '{"text": "\q"}' '["text"]' '{"text": "a"} x' 'no json' '{' \
        '{"txt": "x"}' '{}' '{"x": {"text": "a"}}' '{"text": 5}' '{"text": null}' '{"text": ["a"]}' \
        '{"text": "a", "text": "b"}'
    head -c 3000000 /dev/zero | tr '\0' x | sed 's/^/{"text": "/'
    echo
}

@test "--skip-bad: lines without a text are counted; the shards are those of the other lines" {
    corpus > good.jsonl
    bad_lines > lines
    bad=$(wc -l < lines)
    [ "$bad" -eq 15 ]
    # each before some line of good.jsonl, blank lines between
    awk 'NR == FNR { bad[n++] = $0; next }
         { if (FNR % 18 == 7 && k < n) print bad[k++] "\n\n  "; print }' lines good.jsonl > mixed.jsonl
    [ "$(wc -l < mixed.jsonl)" -eq $(($(wc -l < good.jsonl) + 3 * bad)) ]
    zstd -q mixed.jsonl
    for options in "--shard-tokens 1000 --split 0.2 --level 1 -j 3" "--shuffle 5 --val-tokens 2000 -j 1" \
                   "--val-first --val-tokens 1000 --index"; do
        # shellcheck disable=SC2086
        bytes -f -o good $options good.jsonl
        for input in mixed.jsonl mixed.jsonl.zst; do
            # shellcheck disable=SC2086
            run --separate-stderr "$GPT_BIN/gpt-tokshard" --tokenizer byte -f -o out --skip-bad $options $input
            [ "$status" -eq 0 ]
            [ "${stderr_lines[0]}" = "gpt-tokshard: $bad lines without a text passed over, the first: \
$input: line 7: column 13: expected ',' or '}', found the end of the line" ]
            [[ ${stderr_lines[1]} == "gpt-tokshard: for validation "* ]]
            [[ ${stderr_lines[2]} == "gpt-tokshard: 300 documents, "* ]]
            [ "${#stderr_lines[@]}" -eq 3 ]
            diff -r -x MANIFEST good out
            diff <(grep -v -e ^arguments -e ^skipped -e ^manifest good/MANIFEST) \
                 <(grep -v -e ^arguments -e ^skipped -e ^manifest out/MANIFEST)
            grep -qx "skipped: $bad" out/MANIFEST
            grep -qx 'skipped: 0' good/MANIFEST
            [ -z "$(bytes --verify -q out)" ]
        done
    done
    run --separate-stderr "$GPT_BIN/gpt-tokshard" --tokenizer byte --stats --skip-bad mixed.jsonl
    [ "$status" -eq 0 ]
    [ "$output" = "$(bytes --stats good.jsonl)" ]
    [[ $stderr == "gpt-tokshard: $bad lines without a text passed over, "* ]]
    bytes -o - --skip-bad --format jsonl - < mixed.jsonl | cmp - <(bytes -o - good.jsonl)
    run --separate-stderr T --tokenizer byte -o quiet --skip-bad mixed.jsonl
    [ "$status" -eq 0 ]
    [ -z "$output$stderr" ]
}

@test "without --skip-bad each such line is refused, with file and line; with it, all else still is" {
    bad_lines > lines
    n=0
    while IFS= read -r line; do
        printf '{"text": "good"}\n%s\n{"text": "good"}\n' "$line" > bad.jsonl
        run --separate-stderr T --tokenizer byte -o no bad.jsonl
        [ "$status" -eq 3 ]
        [[ $stderr == "gpt-tokshard: bad.jsonl: line 2: "* ]]
        [ ! -e no/MANIFEST ]
        run --separate-stderr "$GPT_BIN/gpt-tokshard" --tokenizer byte -f -o out --skip-bad bad.jsonl
        [ "$status" -eq 0 ]
        [[ ${stderr_lines[0]} == "gpt-tokshard: 1 line without a text passed over, the first: bad.jsonl: line 2: "* ]]
        n=$((n + 1))
    done < lines
    [ "$n" -eq 15 ]
    run --separate-stderr "$GPT_BIN/gpt-tokshard" --tokenizer byte -o none --skip-bad lines --format jsonl
    [ "$status" -eq 3 ]
    [ "${stderr_lines[1]}" = "gpt-tokshard: lines: expected a document, found none" ]
    printf '{"text": "\xff"}\n' > invalid.jsonl
    run --separate-stderr T --tokenizer byte -o none --skip-bad --invalid error invalid.jsonl
    [ "$status" -eq 3 ]
    [[ $stderr == "gpt-tokshard: invalid.jsonl: line 1: document offset 0: expected UTF-8"* ]]
    # a compressed file that is cut off, also in a line of more than 2 MiB
    awk 'BEGIN { srand(1); printf "{\"text\": \""; for (i = 0; i < 3000000; i++) printf "%c", 97 + rand() * 26; print "\"}" }' |
        zstd -q > long.jsonl.zst
    head -c 1500000 long.jsonl.zst > cut.jsonl.zst
    run --separate-stderr T --tokenizer byte -o none --skip-bad cut.jsonl.zst
    [ "$status" -eq 3 ]
    [[ $stderr == "gpt-tokshard: cut.jsonl.zst: "*"(in or after line 1)" ]]
    run --separate-stderr env TMPDIR=/proc/x "$GPT_BIN/gpt-tokshard" -q --tokenizer byte --skip-bad -o none long.jsonl.zst
    [ "$status" -eq 4 ]
    [[ $stderr == *"cannot open a temporary file in '/proc/x': No such file or directory" ]]
}

@test "a key may be spelt with escapes, and stand anywhere" {
    printf '{"a":[1.5e3,{"text":"no"},null,true],"t\\u0065xt":"yes","z":{}}\r\n' > k.jsonl
    bytes -o out k.jsonl
    [ "$("$GPT_BIN/gpt-tokshard" --decode out/text_train_000001.bin 1:)" = "yes" ]
    printf '\xef\xbb\xbf{"text":"yes"}\r\n' > k.jsonl          # a byte order mark
    bytes -f -o out k.jsonl
    [ "$("$GPT_BIN/gpt-tokshard" --decode out/text_train_000001.bin 1:)" = "yes" ]
    printf '{"body":"yes"}' > k.jsonl
    bytes -f -o out --field body k.jsonl
    [ "$("$GPT_BIN/gpt-tokshard" --decode out/text_train_000001.bin 1:)" = "yes" ]
}

@test "damaged and missing inputs: one message, the exit code, no MANIFEST" {
    corpus > c.jsonl
    zstd -q --check c.jsonl
    head -c 500 c.jsonl.zst > cut.jsonl.zst
    run --separate-stderr T --tokenizer byte -o out cut.jsonl.zst
    [ "$status" -eq 3 ]
    [[ $stderr == "gpt-tokshard: cut.jsonl.zst: "* ]]
    [ "${#stderr_lines[@]}" -eq 1 ]
    [ ! -e out/MANIFEST ]
    run --separate-stderr T --tokenizer byte -o out nothing.txt
    [ "$status" -eq 4 ]
    [ "$stderr" = "gpt-tokshard: cannot open 'nothing.txt': No such file or directory" ]
    : > none.jsonl
    run --separate-stderr T --tokenizer byte -o none none.jsonl
    [ "$status" -eq 3 ]
    [ "$stderr" = "gpt-tokshard: none.jsonl: expected a document, found none" ]
}

@test "usage" {
    run --separate-stderr T -o out
    [ "$status" -eq 2 ]
    [[ $stderr == "gpt-tokshard: expected input files, folders, or -"* ]]
    run --separate-stderr T a.txt
    [ "$status" -eq 2 ]
    run --separate-stderr T -o out --split 0.5 --val-first a.txt
    [ "$status" -eq 2 ]
    run --separate-stderr T -o out --name "$(printf '%0300d' 0)" a.txt
    [ "$status" -eq 2 ]
    run --separate-stderr T -o out --shard-tokens 1 a.txt
    [ "$status" -eq 2 ]
    bytes -o made a.txt
    while IFS='|' read -r args part; do
        echo "$args"
        # shellcheck disable=SC2086
        run --separate-stderr "$GPT_BIN/gpt-tokshard" $args
        [ "$status" -eq 2 ]
        [ -z "$output" ]
        [[ $stderr == "gpt-tokshard: "*"$part"*"Try 'gpt-tokshard --help'." ]]
        [ ! -e out ]
        [ "$(bytes --verify --full made)" = '' ]
    done <<'END'
--verify --decode made|--decode beside --verify
--verify --stats made|--verify beside --stats
--verify -o out made|--verify beside -o
--decode -o out made/text_train_000001.bin|--decode beside -o
--full -o out a.txt|--full needs --verify
--tokenizer byte --vocab none -o out a.txt|--vocab beside --tokenizer byte
--quiet --progress -o out a.txt|--quiet beside --progress
--stats --index a.txt|--index needs -o DIR
--stats -o - a.txt|-o - beside --stats
--index -o - a.txt|no index
-o out - -|'-' is given twice
--stats made made|'made' is of shards
--stats a.txt made/text_train_000001.bin|'made/text_train_000001.bin' is of shards
END
    printf '{"text": "x"}' > p
    bytes -o lines - < p
    [ "$("$GPT_BIN/gpt-tokshard" --decode lines/text_train_000001.bin 1:)" = x ]
    bytes -o out --format text - < p
    [ "$("$GPT_BIN/gpt-tokshard" --decode out/text_train_000001.bin 1:)" = '{"text": "x"}' ]
}

@test "a full disk, an unwritable folder and a closed stdout are failures" {
    corpus > c.jsonl
    run --separate-stderr bash -c '"$GPT_BIN/gpt-tokshard" -q --tokenizer byte -o - c.jsonl > /dev/full'
    [ "$status" -eq 4 ]
    [ "${#stderr_lines[@]}" -eq 1 ]
    for more in "" "--shuffle 1"; do
        run --separate-stderr env TMPDIR=/proc/x "$GPT_BIN/gpt-tokshard" -q --tokenizer byte $more -o - c.jsonl
        [ "$status" -eq 4 ]
        [[ $stderr == *"cannot open a temporary file in '/proc/x': No such file or directory" ]]
    done
    run --separate-stderr T --tokenizer byte -o /proc/x a.txt
    [ "$status" -eq 4 ]
    [ -n "$stderr" ]
    run --separate-stderr bash -c '"$GPT_BIN/gpt-tokshard" --stats --tokenizer byte a.txt >&-'
    [ "$status" -eq 4 ]
}

# --- what is there already ---

@test "--shuffle: every document once, an order that goes by the seed alone" {
    corpus 3000 > c.jsonl
    bytes -o a --shuffle 1 -j 1 c.jsonl
    bytes -o b --shuffle 1 -j 3 --memory 300Mi c.jsonl
    bytes -o other --shuffle 2 c.jsonl
    bytes -o plain c.jsonl
    cmp a/text_train_000001.bin b/text_train_000001.bin
    documents() { "$GPT_BIN/gpt-tokshard" --decode $1/text_train_000001.bin | sed 's/<|endoftext|>//'; }
    documents plain > plain.txt
    for d in a other; do
        documents $d > $d.txt
        [ "$(diff plain.txt $d.txt | grep -c '^<')" -ge 2800 ]       # all but the longest run in order, 2 sqrt(3000)
        sort $d.txt | diff - <(sort plain.txt)
    done
    run ! cmp -s a.txt other.txt
    # where a document went says nothing about where it was: rank correlation of 3000
    # independent places is below 4 / sqrt(3000) = 0.07 but once in 16000 seeds
    sed 's/^document \([0-9]*\):.*/\1/' a.txt | awk '{ x = NR - 1500.5; y = $1 - 1499.5; s += x * y; q += x * x }
        END { r = s / q; if (r < 0) r = -r; exit !(r < 0.07) }'
    [ "$(ls -A a | wc -l)" -eq 2 ]
}

@test "--val-tokens of a pipe takes the same documents as of a file" {
    corpus 3000 > c.jsonl
    bytes -o a --val-tokens 20k c.jsonl
    bytes -o b --val-tokens 20k --format jsonl - < c.jsonl
    diff -r -x MANIFEST a b
}

@test "--stats of text and of its shards agree" {
    corpus > c.jsonl
    bytes -o out --shard-tokens 2000 --split 0.1 c.jsonl
    bytes --stats c.jsonl > text.stats
    bytes --stats out > shard.stats
    without() { awk -F'\t' -v OFS='\t' '$1 == "totals" { $2 = "" } $1 != "lengths"' "$1"; }
    diff <(without text.stats) <(without shard.stats)
    total() { awk -F'\t' -v want="$1" '$1 == "#totals" { for (i = 2; i <= NF; i++) at[$i] = i }
                                       $1 == "totals" { print $(at[want]) }'; }
    # 4 symbols, 8 4 2 2 of 16: 1.75 bits
    printf 'aaaaaaaabbbbcc' > h.txt
    [ "$(bytes --stats h.txt | total tokens)" = 15 ]
    printf 'aaaaaaaabbbbccd' > h.txt
    bytes --stats h.txt > h.stats
    # 8 4 2 1 1 (the start) of 16: 1.875 bits = 1.29965 nats
    [[ $(total entropy_nats < h.stats) = 1.29965* ]]
    # no byte in no token of text is no number
    : > empty.txt
    bytes --stats empty.txt > e.stats
    [ "$(total text_bytes < e.stats)" = 0 ]
    run grep -i nan e.stats
    [ "$status" -eq 1 ]
}

@test "without a vocabulary the message says what to do" {
    mkdir bin
    cp "$GPT_BIN/gpt-tokshard" bin/             # a vocabulary may lie beside the folder of the other
    HOME=$PWD XDG_DATA_HOME=$PWD GPT_VOCAB='' run --separate-stderr bin/gpt-tokshard -o out a.txt
    [ "$status" -eq 3 ]
    [[ $stderr == *"make vocab"*"--tokenizer byte"* ]]
    GPT_VOCAB=$PWD/none run --separate-stderr "$GPT_BIN/gpt-tokshard" -o out2 a.txt
    [ "$status" -eq 4 ]
    [[ $stderr == *"cannot open '$PWD/none'"* ]]
}

# The text of a shard, without its first token.
decoded() { bytes --decode "$1" 1:; }

@test "half a pair of surrogates is one U+FFFD, wherever it stands" {
    R=$(printf '\xef\xbf\xbd')
    printf '{"text": "a\\ud800\\udc00b\\ud800c\\udfff\xed\xa0\x80 d"}\n' >lone.jsonl
    run --separate-stderr "$GPT_BIN/gpt-tokshard" --tokenizer byte -o l lone.jsonl
    [ "$status" -eq 0 ]
    [[ $stderr = *"3 sequences are not UTF-8"* ]]
    [ "$(decoded l/text_train_000001.bin)" = "a$(printf '\xf0\x90\x80\x80')b${R}c$R$R d" ]
    # in a line of several units without a place to cut: none is cut in two
    { printf '{"text": "'; yes '\ud800' | head -900000 | tr -d '\n'; printf '"}\n'; } >long.jsonl
    bytes -o long long.jsonl
    decoded long/text_train_000001.bin >got
    [ "$(wc -c <got)" -eq 2700000 ]
    [ "$(tr -d '\357\277\275' <got | wc -c)" -eq 0 ]
    # three bytes that are in a text file as they are stay what browsers and Python make of them
    printf 'a\xed\xa0\x80' >raw.txt
    bytes -o raw raw.txt
    [ "$(decoded raw/text_train_000001.bin)" = "a$R$R$R" ]
}

@test "a line of .jsonl with the field twice is refused, with line and field" {
    for second in '"b"' 1 '{}'; do
        printf '{"text": "a"}\n{"text": "a", "x": {"text": "b"}, "te\\u0078t": %s}\n' "$second" >two.jsonl
        run --separate-stderr "$GPT_BIN/gpt-tokshard" --tokenizer byte -o out --force two.jsonl
        [ "$status" -eq 3 ]
        [[ $stderr = "gpt-tokshard: two.jsonl: line 2: column "*": field 'text' comes twice" ]]
    done
    printf '{"text": "a", "x": {"text": "b"}}\n' >one.jsonl
    bytes -o one one.jsonl
    printf '{"model": {"vocab": {}, "merges": [],\n"merges": []}}' >tokenizer.json
    run --separate-stderr "$GPT_BIN/gpt-tokshard" --vocab tokenizer.json -o v one.jsonl
    [ "$status" -eq 3 ]
    [[ $stderr = *"tokenizer.json: line 2: field 'model.merges' comes twice" ]]
}
