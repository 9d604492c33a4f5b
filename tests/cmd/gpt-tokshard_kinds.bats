# gpt-tokshard and input that is not what its name says: refused with a command that helps, or taken for
# what it is, and said. kind_test draws such files by the hundred.

bats_require_minimum_version 1.5.0
load ../check/needs
load tokshard_setup

text_of() { "$GPT_BIN/gpt-tokshard" --decode "$1/text_train_000001.bin" | sed 's/<|endoftext|>/|/g'; }
says() { run --separate-stderr "$GPT_BIN/gpt-tokshard" --tokenizer byte -f -o out "$@"; }

# The command in quotes that a refusal of FILE gives, run: its shard is of the text `want`.
remedy_gives() { # WANT FILE [OPTION]...
    local want=$1 file=$2 command
    shift 2
    says "$file"
    echo "$stderr"
    [ "$status" -eq 3 ]
    [[ $stderr == "gpt-tokshard: $file: expected text, found "*" | gpt-tokshard ... -'"* ]]
    command=${stderr#*: \'}
    command=${command%%" | gpt-tokshard ... -'"*}
    bash -c "$command" | "$GPT_BIN/gpt-tokshard" -q --tokenizer byte -f -o out "$@" -
    [ "$(text_of out)" = "$want" ]
}

@test "compression that is not read: the command in the message reads it" {
    needs xz bzip2
    for tool in xz bzip2; do
        printf 'one two' > t.txt
        $tool t.txt
        remedy_gives '|one two' t.txt.*
        rm t.txt.*
        printf '{"text": "a"}\n{"text": "b"}\n' > t.jsonl
        $tool t.jsonl
        remedy_gives '|a|b' t.jsonl.*
        rm t.jsonl.*
    done
}

@test "a Git LFS pointer is not taken for text" {
    printf 'version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 1000000\n' > t.txt
    for format in auto text; do
        says --format $format t.txt
        [ "$status" -eq 3 ]
        [ "$stderr" = "gpt-tokshard: t.txt: a Git LFS pointer in place of the file: 'git lfs pull' fetches it" ]
    done
}

@test "archives: unpacked, the folder is taken" {
    mkdir t
    printf one > t/1.txt
    printf two > t/2.txt
    for args in -cf -czf; do
        tar $args t.tar t
        says t.tar
        [ "$status" -eq 3 ]
        [[ $stderr == *": 'mkdir FOLDER && tar -xf t.tar -C FOLDER', then gpt-tokshard takes the folder" ]]
        rm -rf FOLDER
        mkdir FOLDER && tar -xf t.tar -C FOLDER
        bytes -f -o out FOLDER
        [ "$(text_of out)" = '|one|two' ]
    done
}

@test "text in UTF-16 and UTF-32, with a mark and without" {
    for code in UTF-16 UTF-16LE UTF-16BE UTF-32 UTF-32LE UTF-32BE; do
        printf 'some text, and caf\xc3\xa9' | iconv -f UTF-8 -t $code > t.txt
        remedy_gives "|some text, and caf$(printf '\xc3\xa9')" t.txt
    done
}

@test "JSON arrays, objects over lines, tables" {
    if has jq; then
        printf '[{"text": "a"},\n {"text": "b"}]\n' > t.json
        remedy_gives '|a|b' t.json
        printf '{\n "text": "a"\n}\n{\n "text": "b"\n}\n' > t.json
        remedy_gives '|a|b' t.json
    fi
    needs python3
    printf 'id,body\r\n1,"a, ""b"""\r\n2,c\r\n' > t.csv
    remedy_gives '|a, "b"|c' t.csv --field body
    printf 'id\tbody\n1\ta b\n2\tc\n' > t.tsv
    remedy_gives '|a b|c' t.tsv --field body
}

@test "a name that a shell would take apart is not put into a command" {
    printf '\xff\xfea\0' > "a b;x.txt"
    says "a b;x.txt"
    [ "$status" -eq 3 ]
    [ "$stderr" = "gpt-tokshard: a b;x.txt: expected text, found text in UTF-16: 'iconv -f UTF-16 -t UTF-8 FILE | gpt-tokshard ... -'" ]
    says - < "a b;x.txt"
    [ "$stderr" = "gpt-tokshard: standard input: expected text, found text in UTF-16: 'iconv -f UTF-16 -t UTF-8 FILE | gpt-tokshard ... -'" ]
}

@test "--format text takes all but shards as they stand, --format jsonl as lines" {
    printf '{"text": "a"}\n{"text": "b"}\n' > t.json
    bytes -o out --format text t.json
    [ "$(text_of out)" = "|$(cat t.json)" ]
    printf '\xff\xfea\0b\0' > t.bin
    bytes -f -o out --format text --invalid bytes t.bin
    "$GPT_BIN/gpt-tokshard" --decode out/text_train_000001.bin 1: | cmp - t.bin
    says --format jsonl t.bin
    [ "$status" -eq 3 ]
    [[ $stderr == "gpt-tokshard: t.bin: line 1: column 1: expected '{'"* ]]
}

@test "JSON lines without the field name those that they have" {
    printf '{"id": "1", "n": 2, "content": "a"}\n{"id": "2", "content": "b"}\n' > t.json
    says t.json
    [ "$status" -eq 3 ]
    [ "$stderr" = "gpt-tokshard: t.json: expected text, found JSON lines without a field 'text' (text is in: 'id', 'content'): --field NAME says which; --format text takes it as it stands" ]
    bytes -o out --field content t.json
    [ "$(text_of out)" = '|a|b' ]
}

@test "what was decided without being asked is said, and -q says nothing" {
    printf '{"text": "a"}\n' | tee 1.json > 2.json
    printf '{{x}}' > 3.txt
    mkdir in
    printf b > in/a.txt
    printf c > in/b.rst
    printf d > in/c.rst
    ln -s a.txt in/d.txt
    says 1.json 2.json 3.txt in
    [ "$status" -eq 0 ]
    [ "$(text_of out)" = '|a|a|{{x}}|b|b' ]
    [ "$(head -4 <<< "$stderr")" = "gpt-tokshard: 1.json and 1 more: taken for JSON lines
gpt-tokshard: 3.txt: taken for text, which begins with '{'
gpt-tokshard: in/d.txt: given before; its documents come twice
gpt-tokshard: in/b.rst and 1 more: left out for its name: --ext says which are taken" ]
    [[ ${stderr_lines[4]} == "gpt-tokshard: 5 documents, "* ]]
    run --separate-stderr bytes -f -o out 1.json 2.json 3.txt in
    [ "$status" -eq 0 ]
    [ -z "$output$stderr" ]
}

@test "a text with <|endoftext|> is one document, which is said with the command that divides it" {
    printf 'a "b"\n<|endoftext|>\nc\n<|endoftext|>\nd' > t.txt
    says t.txt
    [ "$status" -eq 0 ]
    [ "$("$GPT_BIN/gpt-tokshard" --decode out/text_train_000001.bin 1:)" = "$(< t.txt)" ]
    [[ ${stderr_lines[0]} = "gpt-tokshard: t.txt: one document, in which '<|endoftext|>' is text; documents of what is between: jq "* ]]
    command=${stderr_lines[0]#*between: }
    run --separate-stderr "$GPT_BIN/gpt-tokshard" --tokenizer byte --val-tokens 4 -o val t.txt
    [ "$status" -eq 3 ]
    [[ $stderr = *"$command"*" tokens in 1 document"* ]]
    needs jq
    [ "$(eval "${command%% FILE*} t.txt" | "$GPT_BIN/gpt-tokshard" -q --tokenizer byte -o - - | "$GPT_BIN/gpt-tokshard" --tokenizer byte --decode -)" = \
        $'<|endoftext|>a "b"\n<|endoftext|>\nc\n<|endoftext|>\nd' ]
}

@test "a pipe that ends before its first byte is refused" {
    for input in - <(:); do
        run --separate-stderr bytes -o out $input < <(:)
        [ "$status" -eq 3 ]
        [[ $stderr == *": expected text, found nothing: has what writes it failed?" ]]
        [ ! -e out/MANIFEST ]
    done
}

@test "the last of many files is looked at before the first is read" {
    corpus 20000 > big.jsonl
    printf '\x7fELF\2\1\1' > last.txt
    says big.jsonl last.txt
    [ "$status" -eq 3 ]
    [[ $stderr == "gpt-tokshard: last.txt: expected text, found an ELF program: "* ]]
    [ ! -e out ]
}

@test "text of another encoding is refused, unless --invalid says what to do" {
    for _ in 1 2 3 4 5 6 7 8 9; do printf '\xef\xf0\xe8\xe2\xe5\xf2 \xec\xe8\xf0\n'; done > t.txt
    remedy='gpt-tokshard: t.txt: expected text, found 81 sequences in 99 bytes that are not UTF-8: '
    says t.txt
    [ "$status" -eq 3 ]
    [[ $stderr == "$remedy'iconv -f ENCODING -t UTF-8 t.txt | gpt-tokshard ... -'"* ]]
    for how in replace bytes; do bytes -f -o out --invalid $how t.txt; done
    "$GPT_BIN/gpt-tokshard" --decode out/text_train_000001.bin 1: | cmp - t.txt
}

@test "the summary tells validation from training" {
    for i in 1 2 3 4; do printf '%s' "12345678$i" > $i.txt; done     # of 10 tokens each
    says --val-tokens 15 1.txt 2.txt 3.txt 4.txt
    [ "$status" -eq 0 ]
    [ "${stderr_lines[0]}" = "gpt-tokshard: for validation 2 documents, 20 tokens, 50% of all; for training 2 and 20" ]
    [[ ${stderr_lines[1]} == "gpt-tokshard: 4 documents, 40 tokens in 2 shards; "* ]]
    says --split 1e-9 1.txt # no document is so low
    [ "${stderr_lines[0]}" = "gpt-tokshard: for validation 0 documents, 0 tokens, 0% of all; for training 1 and 10" ]
}

# The 256 bytes and two merges, as tokenizer.json with special tokens at 0 and behind all.
put_json() {
    needs python3
    python3 -c '
import json, sys
order = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
letter = {b: chr(b) for b in order} | {b: chr(256 + i) for i, b in enumerate(b for b in range(256) if b not in order)}
names = sorted(letter.values()) + ["th", "the"]
special = [{"id": i, "content": c, "special": True} for i, c in ((0, "<s>"), (259, "<pad>"))]
print(json.dumps({"added_tokens": special, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
    "model": {"type": "BPE", "vocab": {c: i + 1 for i, c in enumerate(names)}, "merges": ["t h", "th e"]}}))' > t.json
}

@test "tokenizer.json: its ids in shards, MANIFEST and back" {
    put_json
    printf 'the th<s>' > a.txt
    T --vocab t.json -o out a.txt
    # 0x21 is the first letter and so 1; the blank is U+0120, behind 188 letters and 32 others
    [ "$(tokens out/text_train_000001.bin | tr '\n' ' ')" = "0 258 221 257 28 83 30 " ]
    grep -qx 'vocab_size: 260' out/MANIFEST
    grep -qx 'bos: 0' out/MANIFEST
    [ "$("$GPT_BIN/gpt-tokshard" --vocab t.json --decode out/text_train_000001.bin)" = "<|endoftext|>the th<s>" ]
    run --separate-stderr T --vocab t.json --stats out
    [ "$status" -eq 0 ]
    [[ $output == *$'totals\t1\t7\t9\t'* ]]
    [ -z "$(T --verify -q --full out)" ]
    sed 's/"th", *"the"/&/; s/th e/th s/; s/"the":/"ths":/' t.json > other.json
    run --separate-stderr T --vocab other.json --decode out/text_train_000001.bin
    [ "$status" -eq 3 ]
    [[ $stderr == "gpt-tokshard: out/MANIFEST: made with the vocabulary other "*", found other "*" (--vocab)" ]]
}
