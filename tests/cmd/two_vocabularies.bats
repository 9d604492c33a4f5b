# Shards of one tokenizer beside shards of another, or beside a model of another: refused, everywhere.

bats_require_minimum_version 1.5.0
load few_steps

other() { # another tokenizer of as many ids: the bytes and no merge, which vocab.bpe has in another order
    printf '#version: 0.2\n' > none.bpe
    "$GPT_BIN/gpt-tokshard" -q --vocab none.bpe --val-tokens 2048 -o other "$ROOT"/man/*.[157]
}

@test "a pattern over folders of two tokenizers" {
    few_shards
    other
    tool gpt-train -r tiny -d '*/*.bin' -s model.vocab=272 --plan
    [ "$status" -eq 3 ]
    [[ $stderr = "gpt-train: shards/MANIFEST: expected shards of one tokenizer, 'other "*", found 'bytes "* ]]
    cp -r shards more                               # of one tokenizer they are taken
    tool gpt-train -r tiny -d '[ms][oh]*/*.bin' -s model.vocab=272 --plan
    [ "$status" -eq 0 ]
}

@test "--val of another tokenizer than -d" {
    few_shards
    other
    refused 3 "other: validation has the tokens of 'other " gpt-train "${FEW[@]}" --val other
}

@test "gpt-sample --score -d and --decode with another vocabulary" {
    few -o run > /dev/null
    other
    tool gpt-sample -m run --score -d other
    [ "$status" -eq 3 ]
    [[ $stderr = "gpt-sample: other: the shards were made with the vocabulary other "*", found bytes "* ]]
    refused 3 "other/MANIFEST: made with the vocabulary other " gpt-tokshard --tokenizer byte \
        --decode other/text_val_000000.bin
    refused 3 "other/MANIFEST: made with the vocabulary other " gpt-tokshard --tokenizer byte --stats other
}
