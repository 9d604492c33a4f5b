# Words and recipes that gpt-train refuses, and what it takes for a recipe.

bats_require_minimum_version 1.5.0
load tiny_runs
load few_steps

@test "unknown keys, missing options and operands are usage errors" {
    run --separate-stderr train -s model.depth=3
    [ "$status" -eq 2 ]
    [[ "$stderr" == *model.depth* ]]
    run --separate-stderr "$GPT_BIN/gpt-train" -d "$SHARDS"
    [ "$status" -eq 2 ]
    run --separate-stderr train extra
    [ "$status" -eq 2 ]
    run --separate-stderr "$GPT_BIN/gpt-train" -r "$GPT_SHARE/recipes/tiny.recipe"
    [ "$status" -eq 2 ]
    run --separate-stderr "$GPT_BIN/gpt-train" --device tpu -r "$GPT_SHARE/recipes/tiny.recipe" -d "$SHARDS"
    [ "$status" -eq 2 ]
    run --separate-stderr train --plan --bench 1
    [ "$status" -eq 2 ]
    [[ "$stderr" == *"--plan beside --bench"* ]]
    for words in --no-graph "--gpu-path portable" "--ranks-timeout 9" --profile "--profile --plan" "--trace t.json" "--stage 1" "--keep 3" --progress; do
        run --separate-stderr train $words
        echo "$words: $status $stderr"
        [ "$status" -eq 2 ]
        [ -z "$output" ]
        [[ "$stderr" == *"${words%% *}"* ]]
    done
}

@test "a parameter that the forward does not wait for cannot be late" {
    run --separate-stderr train -s order.late=smear_gate
    [ "$status" -eq 2 ]
    [[ $stderr == *"order.late=smear_gate: the forward does not wait for 'smear_gate'"* ]]
    run --separate-stderr train -s "order.late=mlp mlp"
    [ "$status" -eq 2 ]
    [[ $stderr == *"'mlp' stands twice"* ]]
}

@test "more ranks than a step has micro-batches are refused" {
    run --separate-stderr train --ranks 16
    [ "$status" -eq 2 ]
    [[ "$stderr" == "gpt-train: 16 ranks, and a step has 8 chunks: expected one a rank at least (data.chunks)"* ]]
}

@test "a fault that --set made names it, with status 2" {
    refused 2 "--set model.heads=5: tiny:" gpt-train --plan -r tiny -s schedule.steps=9 -s model.heads=5
}

@test "recipes have names, which --recipes lists" {
    tool gpt-train --recipes
    [ "$status" -eq 0 ]
    [ "$(cut -f1 <<<"$output" | sort)" = "$(basename -s .recipe "$GPT_SHARE"/recipes/*.recipe | sort)" ]
    for name in $(cut -f1 <<<"$output"); do
        "$GPT_BIN/gpt-train" --plan -r "$name" >by_name
        "$GPT_BIN/gpt-train" --plan -r "$GPT_SHARE/recipes/$name.recipe" | diff - by_name
    done
}

@test "a byte-order mark before a recipe is passed over" {
    { printf '\xef\xbb\xbf'; cat "$GPT_SHARE/recipes/tiny.recipe"; } >marked.recipe
    for r in "$GPT_SHARE/recipes/tiny.recipe" marked.recipe; do
        tool gpt-train -r "$r" --plan
        [ "$status" -eq 0 ]
        printf '%s\n' "$output" >"${r##*/}.plan"
    done
    cmp tiny.recipe.plan marked.recipe.plan
}
