# gpt-train: what a message says where something failed: whose memory, which step, what to do.

bats_require_minimum_version 1.5.0
load tiny_runs
load run_ends
load ../check/needs

says() { # STATUS TEXT OPTION...
    local code=$1 text=$2
    run --separate-stderr "$GPT_BIN/gpt-train" "${@:3}"
    echo "$status $stderr"
    [ "$status" -eq "$code" ]
    # shellcheck disable=SC2053  # a pattern
    [[ ${stderr_lines[0]} == $text ]]
}

@test "too little memory says that it is the CPU's, in a unit that shows it" {
    says 4 "gpt-train: too little memory on the CPU: the run needs * GiB, 0.1 available; no number of micro-batches would fit; --gpus N computes on GPUs" \
        -r record-61 -d "$SHARDS" --memory 100M
    says 4 "gpt-train: too little memory on the CPU: the run needs [1-9]*.* MiB, 19.1 available; *" -r tiny -d "$SHARDS" --memory 20M
}

@test "a recipe's name may have blanks: its log is a recipe all the same" {
    "$GPT_BIN/gpt-train" -q -r tiny -s name='two words' "${SMALL[@]}" -s schedule.steps=2 -d "$SHARDS" > two.log
    grep -q '^recipe: two words [0-9a-f]*$' two.log
    "$GPT_BIN/gpt-train" --plan -r two.log > plan
    grep -q "^$(sed -n 's/^recipe: /recipe /p' two.log) on 1 rank" plan
}

@test "a table of coefficients may have a name that begins like nan or inf" {
    "$GPT_BIN/ns-coeffs" show jordan > jordan
    for name in jordan nano.coeffs info.coeffs ./nano.coeffs; do
        cp -n jordan "$name" || true
        "$GPT_BIN/gpt-train" --plan -r tiny -s optimizer.coeffs="$name" | grep '^recipe ' > "of.${name##*/}"
    done
    [ "$(cat of.* | sort -u | wc -l)" -eq 1 ]
    says 2 "*optimizer.coeffs*row 1: not a number: '1nano'" --plan -r tiny -s optimizer.coeffs=1nano
}

@test "--plan labels whose memory it prints" {
    run --separate-stderr "$GPT_BIN/gpt-train" --plan -r tiny --ranks 8
    [ "$status" -eq 0 ]
    [ "$(grep -c '^memory of a rank on the CPU  *MiB' <<< "$output")" -eq 1 ]
}

# bats test_tags=long
@test "the loader counts steps as the log does" {
    make_documents
    run --separate-stderr train -d "$DOCS" -s data.cut=document -s data.cycle=no -s data.val_every=0 -s data.checkpoint_every=0 -s schedule.steps=60 -o run
    [ "$status" -eq 3 ]
    last=$(sed -n 's/^step:\([0-9]*\)\/.*/\1/p' <<< "$output" | tail -n 1)
    [[ $stderr == *"expected tokens for step $((last + 1)), "* ]]
}

@test "a resume on other data names both, and says what to do; a recipe that ends before, too" {
    train -s schedule.steps=4 -o run > /dev/null
    "$GPT_BIN/gpt-tokshard" -q --tokenizer byte --val-tokens 16384 -o other "$BATS_FILE_TMPDIR"/text/0*
    says 3 "gpt-train: run/step-000006: made with data *, but -d other is *: name the shards that the run began with, in the same order; *" \
        --resume run -d other -s schedule.steps=9
    says 3 "gpt-train: run/step-000006: step 6, but the recipe ends at 4; -s schedule.steps=N with N above 4 goes on" \
        --resume run -d "$SHARDS" -s schedule.steps=2
}

# bats test_tags=long
@test "-r takes a run's folder: its newest checkpoint, else its log; and says so of another" {
    train -o run > run.log
    "$GPT_BIN/gpt-train" -q -r run -d "$SHARDS" > a.log
    "$GPT_BIN/gpt-train" -q -r run/step-000008 -d "$SHARDS" > b.log
    rm -r run/step-*
    "$GPT_BIN/gpt-train" -q -r run -d "$SHARDS" > c.log
    for log in a b c; do diff <(losses run.log) <(losses $log.log); done
    mkdir none
    says 3 "gpt-train: none: expected a recipe, or a run's folder with a checkpoint or log.txt" -r none -d "$SHARDS"
    mkdir tiny                          # a name of --recipes stays that
    "$GPT_BIN/gpt-train" --plan -r tiny > /dev/null
}

@test "an instruction set that is none is refused" {
    run --separate-stderr env GPT_SIMD=avx9 "$GPT_BIN/gpt-train" -r tiny --bench 1 --device cpu
    [ "$status" -eq 2 ]
    [ "${stderr_lines[0]}" = "gpt-train: GPT_SIMD: expected none, fma or avx512, found 'avx9'" ]
}

@test "a fault that --set made names what was set, and what would do" {
    says 2 "gpt-train: --set model.bigram_signs=5: signs need a bigram table, but model.bigram_rows is 0: model.bigram_rows=N makes one" \
        --plan -r tiny -s model.bigram_signs=5
    says 2 "gpt-train: --set data.chunks=3: tiny:*: stages.0: 2048 tokens a step do not divide into 3 chunks (data.chunks); 2 and 4 divide them" \
        --plan -r tiny -s data.chunks=3
    says 2 "gpt-train: --set precision.weight_scale=fixed: expected row, delayed or a number in \[1e-12, 1e+12\], found 'fixed'" \
        --plan -r tiny -s precision.weight_scale=fixed
    # what is checked is a default
    says 2 "gpt-train: --set optimizer.coeffs=1 2 3 / 1 2 3: tiny: optimizer.restart = 1,3, the default: the table has 2 rows: *" \
        --plan -r tiny -s optimizer.polar_form=gram -s "optimizer.coeffs=1 2 3 / 1 2 3"
    grep -v '^checkpoint_every' "$GPT_SHARE/recipes/tiny.recipe" | sed 's/^val_chunk = .*/val_chunk = 4095/' > my.recipe
    says 3 "gpt-train: my.recipe:*: data.val_tokens: expected a multiple of val_chunk, *" --plan -r my.recipe
}

@test "a row of a table that is out of order is named with its line" {
    line=$(grep -n '^5  *paired' "$GPT_SHARE/recipes/tiny.recipe" | cut -d : -f 1)
    for row in 05 12; do
        sed "$line s/^5/$row/" "$GPT_SHARE/recipes/tiny.recipe" > my.recipe
        says 3 "gpt-train: my.recipe:$line: layers.$row: expected row 5: the 11 rows of \[layers\] are 0, 1, 2 ..., one each" --plan -r my.recipe
    done
    says 2 "gpt-train: --set stages.7=*: expected row 4: the 5 rows of \[stages\] are 0, 1, 2 ..., one each" --plan -r tiny -s "stages.7=2048 3 512 - 1"
}

@test "--recipes: a whole sentence a line" {
    "$GPT_BIN/gpt-train" --recipes > list
    run ! grep -vE '[a-z0-9.")]$' list
    [ "$(tr -cd '(' < list | wc -c)" -eq "$(tr -cd ')' < list | wc -c)" ]
    [ "$(($(tr -cd '"' < list | wc -c) % 2))" -eq 0 ]
}

# On a terminal a message does not stand in the progress line, and elsewhere no line is empty.
# bats test_tags=long
@test "a message beside progress begins its line" {
    needs script
    mkdir run
    touch run/step-000004
    command=$(printf '%q ' "$GPT_BIN/gpt-train" -r tiny "${SMALL[@]}" -d "$SHARDS" -o run --progress)
    script -qec "$command > run.log" typescript > /dev/null < /dev/null
    tr '\r' '\n' < typescript | grep -q '^gpt-train: no checkpoint of step 4: .* is tried$'
    rm -r run
    "$GPT_BIN/gpt-train" -r tiny "${SMALL[@]}" -s schedule.steps=400 -d "$SHARDS" -o run > run.log 2> err & pid=$!
    await step:2/ run.log
    kill -TERM $pid
    wait $pid
    sed -i '/: stages\.[0-9, ]*: /d' err   # remarks on the recipe
    [ "$(wc -l < err)" -eq 2 ]
    [ "$(grep -c '^gpt-train: ' err)" -eq 2 ]
}
