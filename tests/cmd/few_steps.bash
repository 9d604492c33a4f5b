# few_steps.bash - six steps of the tiny recipe on the pages of man/, with shards in ./shards.

setup() { cd "$BATS_TEST_TMPDIR"; }

ROOT=$GPT_SHARE/..
tool() { run --separate-stderr "$GPT_BIN/$1" "${@:2}"; }
shard() { "$GPT_BIN/gpt-tokshard" -q --tokenizer byte "$@"; }

# Words that a command refuses with a message on stderr.
refused() { # STATUS MESSAGE PROGRAM ARGUMENT...
    tool "${@:3}"
    echo "$status $stderr"
    [ "$status" -eq "$1" ]
    [[ $stderr = *"$2"* ]]
    [ -z "$output" ]
}

FEW=(-r tiny -d shards -s model.vocab=272 -s model.head_dim=16 -s model.mlp_width=64 -s schedule.steps=5 -s schedule.extension=1 -s data.cycle=yes
     -s data.val_every=0 -s data.val_tokens=2048 -s data.val_chunk=256
     -s "stages.0=512 3 512 1 1,0.5,0.25>0" -s "stages.1=512 7 512 1.52 1,0.5>0"
     -s "stages.2=512 11 512 1.73 1" -s "stages.3=512 13 512 - 1")
few_shards() { shard --val-tokens 2048 -o shards "$ROOT"/man/*.[157]; }
few() {
    [ -e shards ] || few_shards
    "$GPT_BIN/gpt-train" --threads 1 "${FEW[@]}" -q "$@"
}
