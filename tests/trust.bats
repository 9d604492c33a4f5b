#!/usr/bin/env bats
# Inputs that once gave a wrong answer, lost work or an unclear message: one test a finding.

bats_require_minimum_version 1.5.0

setup_file() {
    export WORK=$BATS_FILE_TMPDIR ROOT=$GPT_SHARE/..
    small=(model.vocab=512 model.heads=4 model.head_dim=16 model.mlp_width=256)
    "$GPT_TESTS/ckpt_make" "$GPT_SHARE/recipes/tiny.recipe" "$WORK/ckpt" 36 1 1 1 "${small[@]}"
}

setup() { cd "$BATS_TEST_TMPDIR"; }

tool() { run --separate-stderr "$GPT_BIN/$1" "${@:2}"; }

# --- checkpoints ---

# A run of 6 steps and its shards.
short_run() {
    "$GPT_BIN/gpt-tokshard" -q --tokenizer byte --val-tokens 2048 -o shards "$ROOT"/man/*.[157]
    "$GPT_BIN/gpt-train" -r "$GPT_SHARE/recipes/tiny.recipe" -d shards -o run -q \
        -s model.vocab=272 -s schedule.steps=5 -s schedule.extension=1 -s data.val_every=0 \
        -s data.val_tokens=2048 -s data.val_chunk=256 -s data.checkpoint_every=4 \
        -s "stages.0=512 3 512 1 1,0.5,0.25>0" -s "stages.1=512 7 512 1.52 1,0.5>0" \
        -s "stages.2=512 11 512 1.73 1" -s "stages.3=512 13 512 - 1" >run.log
}

@test "3: what import makes is sound and continues, or is refused: verify and gpt-train agree" {
    short_run
    "$GPT_BIN/gpt-ckpt" export run/step-000004 --states --padding -o all.safetensors
    "$GPT_BIN/gpt-ckpt" export run/step-000004 -o weights.safetensors
    recipe=run/step-000004/recipe.txt
    sed 's/^mlp .*/mlp 24,f,d bf16 uniform:0.5,zero adam sharded 0.9 0.95 1 1 no/' $recipe >adam.recipe
    sed 's/^adam_states.*/adam_states = bf16/' $recipe >bf16.recipe
    run ! cmp -s $recipe adam.recipe
    run ! cmp -s $recipe bf16.recipe
    for file in all weights; do
        for r in $recipe adam.recipe bf16.recipe; do
            echo "$file $r"
            tool gpt-ckpt import $file.safetensors --recipe $r -o made --force
            [ "$status" -eq 0 ]
            tool gpt-ckpt verify --full made
            [ "$status" -eq 0 ]
            tool gpt-train -d shards --resume made -q
            [ "$status" -eq 0 ]
        done
    done
    tool gpt-ckpt import all.safetensors --recipe adam.recipe -o new
    tool gpt-ckpt info new
    grep -qxF $'adam.mlp.updates\t0' <<<"$output"
    grep -qxF $'adam.lm_head.updates\t2' <<<"$output" # its moments are the file's
    tool gpt-ckpt import weights.safetensors --like run/step-000004 -o counts
    tool gpt-ckpt info counts
    [[ $output = *$'adam.lm_head.updates\t0'* ]] # counts of moments that begin at zero
    sed 's/^steps = .*/steps = 2/' $recipe >short.recipe
    tool gpt-ckpt import all.safetensors --recipe short.recipe -o short
    [ "$status" -eq 3 ]
    [[ $stderr = *"step 4, but the recipe ends at 3"* ]]
    [ ! -e short ]
}

# Gives the MANIFEST of a checkpoint, which was changed, the hash that it has now.
resign() {
    tool gpt-ckpt verify "$1"
    hash=${output##*found }
    sed -i "s/^end .*/end ${hash:0:32}/" "$1/MANIFEST"
}

@test "3: a line of state that gpt-train needs and that is missing is a fault" {
    for key in adam.embed.updates loader.shard; do
        cp -r "$WORK/ckpt/step-000036" $key
        sed -i "/^state $key /d" $key/MANIFEST
        resign $key
        tool gpt-ckpt verify $key
        [ "$status" -eq 1 ]
        [[ $output = *"expected a line 'state $key', found none"* ]]
    done
}

@test "11: a checkpoint under the name of another step is not sound, whatever reads it" {
    mkdir r
    cp -r "$WORK/ckpt/step-000036" r/step-000001
    for path in r r/step-000001 r/step-000001/; do
        tool gpt-ckpt verify $path
        [ "$status" -eq 1 ]
        [[ $output = *"named as step 1, but MANIFEST says step 36"* ]]
    done
    tool gpt-ckpt info r
    [ "$status" -eq 3 ]
    mv r/step-000001 r/copy # a name that says no step
    tool gpt-ckpt verify --full r/copy
    [ "$status" -eq 0 ]
}
