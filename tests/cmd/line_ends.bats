# What is read by lines is the same with a byte-order mark and CR LF, in every program.

bats_require_minimum_version 1.5.0
load few_steps

setup() { cd "$BATS_TEST_TMPDIR"; }
windows() { printf '\xef\xbb\xbf'; sed 's/$/\r/'; }
utf16() { iconv -f UTF-8 -t UTF-16; }

not_utf8() { # COMMAND...
    run --separate-stderr "$@"
    echo "$stderr"
    [ "$status" -eq 3 ]
    [[ $stderr == *"expected UTF-8, found UTF-16 or UTF-32: 'iconv -f UTF-16 -t UTF-8' makes UTF-8 of it" ]]
}

plan() { "$GPT_BIN/gpt-train" --plan -r "$1"; }

@test "recipes, and run logs as recipes and as logs" {
    few_shards
    "$GPT_BIN/gpt-train" "${FEW[@]}" > a.log
    windows < a.log > b.log
    windows < "$GPT_SHARE/recipes/tiny.recipe" > b.recipe
    for pair in "$GPT_SHARE/recipes/tiny.recipe b.recipe" "a.log b.log"; do
        # shellcheck disable=SC2086
        set -- $pair
        [ "$(plan "$1" | grep -cE '[0-9a-f]{32}')" -ge 1 ]
        diff <(plan "$1" | grep -oE '[0-9a-f]{32}') <(plan "$2" | grep -oE '[0-9a-f]{32}')
    done
    diff <("$GPT_BIN/gpt-logdiff" -q --format tsv a.log | sed 's/[ab].log//g') \
         <("$GPT_BIN/gpt-logdiff" -q --format tsv b.log | sed 's/[ab].log//g')
    utf16 < "$GPT_SHARE/recipes/tiny.recipe" > c.recipe
    not_utf8 "$GPT_BIN/gpt-train" --plan -r c.recipe
}

@test "lists of losses, tables of coefficients, singular values" {
    echo 'val_losses = [3.2794, 3.2777, 3.2793]' > a.txt
    windows < a.txt > b.txt
    diff <("$GPT_BIN/gpt-logdiff" -q --format tsv a.txt | sed 's/[ab].txt//g') \
         <("$GPT_BIN/gpt-logdiff" -q --format tsv b.txt | sed 's/[ab].txt//g')
    printf '# input: aol\n3.5 -4.5 2\n3 -4 2\n' > a.coeffs
    windows < a.coeffs > b.coeffs
    diff <("$GPT_BIN/ns-coeffs" eval --format tsv a.coeffs | sed 's/^[ab]\t//') \
         <("$GPT_BIN/ns-coeffs" eval --format tsv b.coeffs | sed 's/^[ab]\t//')
    utf16 < a.coeffs > c.coeffs
    not_utf8 "$GPT_BIN/ns-coeffs" eval c.coeffs
    printf '# w 4x4\n1\n0.5\n\n# v 4x4\n1\n0.25\n' > a.svals
    windows < a.svals > b.svals
    diff <("$GPT_BIN/ns-coeffs" eval --format tsv --spectrum a.svals a.coeffs) \
         <("$GPT_BIN/ns-coeffs" eval --format tsv --spectrum b.svals a.coeffs)
    utf16 < a.svals > c.svals
    not_utf8 "$GPT_BIN/ns-coeffs" eval --spectrum c.svals a.coeffs
}

@test "prompts and their scores, JSON lines of prompts" {
    few_shards
    "$GPT_BIN/gpt-train" "${FEW[@]}" -q -o run > /dev/null
    score() { "$GPT_BIN/gpt-sample" -m run --score --input "$@"; }
    printf 'one two\tthree\n\nfour\n' > a.txt
    windows < a.txt > b.txt
    [ "$(score a.txt | wc -l)" -eq 4 ]
    diff <(score a.txt) <(score b.txt)
    printf '{"text": "one"}\n\n{"text": "two"}\n' > a.jsonl
    windows < a.jsonl > b.jsonl
    [ "$(score a.jsonl --jsonl | wc -l)" -eq 2 ]
    diff <(score a.jsonl --jsonl) <(score b.jsonl --jsonl)
    utf16 < a.txt > c.txt
    not_utf8 "$GPT_BIN/gpt-sample" -m run --input c.txt
}

@test "vocabularies and a MANIFEST" {
    printf '#version: 0.2\nt h\nth e\n' > a.bpe
    printf 'the th' > t.txt
    windows < a.bpe > b.bpe
    for v in a b; do "$GPT_BIN/gpt-tokshard" -q --vocab $v.bpe -o $v t.txt; done
    cmp a/text_train_000001.bin b/text_train_000001.bin
    [ "$(grep ^vocabulary: a/MANIFEST)" = "$(grep ^vocabulary: b/MANIFEST)" ]
    windows < a/MANIFEST > m
    mv m a/MANIFEST
    [ "$("$GPT_BIN/gpt-tokshard" --vocab a.bpe --decode a/text_train_000001.bin 1:)" = 'the th' ]
    utf16 < a.bpe > c.bpe
    not_utf8 "$GPT_BIN/gpt-tokshard" -q --vocab c.bpe -o c t.txt
}
