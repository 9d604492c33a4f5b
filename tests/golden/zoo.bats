# Chains of stages against numbers that published optimizers made; a word of a line that is changed must be
# noticed.

bats_require_minimum_version 1.5.0

zoo() { "$GPT_TESTS/zoo" "$@"; }
GIVEN=tests/golden/zoo/zoo-gradients.safetensors

@test "published optimizers: weights of twelve steps and states, in f32" {
    files=()
    for file in tests/golden/zoo/zoo-*.safetensors; do
        [[ $file = *gradients* || $file = *bf16* ]] || files+=("$file")
    done
    [ ${#files[@]} -ge 10 ]
    zoo $GIVEN "${files[@]}"
}

@test "published optimizers that orthogonalise in bf16" {
    zoo --polar bf16 $GIVEN tests/golden/zoo/zoo-muon-bf16.safetensors tests/golden/zoo/zoo-normuon-bf16.safetensors
}

# noticed OPTION...: zoo says that the numbers are others.
noticed() {
    run --separate-stderr zoo "$@"
    echo "$*: $output"
    [ "$status" -eq 1 ]
    [[ $output = *FAILED* && $output != *refused* ]]
}

# mutant FILE OLD NEW: the same numbers beside a line in which NEW stands for OLD.
mutant() {
    local file="tests/golden/zoo/zoo-$1.safetensors" line
    line=$(LC_ALL=C grep -ao '"line": *"[^"]*"' "$file" | sed 's/.*: *"//; s/"$//')
    [[ $line = *"$2"* ]]
    noticed --line "${line/"$2"/$3}" $GIVEN "$file"
}

@test "a stage that is left out, a word or a number that is another is noticed" {
    mutant adamw "0.8 corrected" "0.8"
    mutant adamw "1e-10 corrected" "1e-10"
    mutant adamw "momentum 0.8" "momentum 0.7"
    mutant adamw "second 0.95" "second 0.94"
    mutant adamw "decay 0.001 |" "scale 1 |"
    mutant ademamix "0.9*1:c" "0.9*1"
    mutant ademamix "half(0.9,0.99,8)" "half(0.9,0.98,8)"
    mutant ademamix "half(0.9,0.99,8)" "0.99"
    mutant ademamix "alpha(5,8)" "alpha(5,7)"
    mutant ademamix "1e-8 corrected" "1e-2 corrected"
    mutant aurora "balance 2 0.5" "balance 2 0.4"
    mutant aurora "balance 2" "balance 1"
    mutant aurora " balance 2 0.5" ""
    mutant aurora "contra 0.2 power5 |" "scale 1 |"
    mutant aurora "contra 0.2" "contra 0.18"
    mutant aurora "| shape |" "|"
    mutant aurora "floor 0.35 |" "scale 1 |"
    mutant aurora "floor 0.35" "floor 0.32"
    mutant bimaxwell "0.4385" "0.40"
    mutant bimaxwell "0.98*" "0.97*"
    mutant bimaxwell "from 4 0.95" "from 3 0.95"
    mutant bimaxwell "from 4 0.95" ""
    mutant bimaxwell "nesterov 0.95" "nesterov 0.90"
    mutant dion2 "select 0.25 0.95" "select 0.25 0.85"
    mutant dion2 "select 0.25" "select 0.30"
    mutant dion2 "shape spectral" "shape"
    mutant dion2 "decay 0.01 |" "scale 1 |"
    mutant dynmuon "nesterov sum" "sum"
    mutant dynmuon "0.95 nesterov" "0.90 nesterov"
    mutant dynmuon "-0.25@0-11" "-0.22@0-11"
    mutant dynmuon "scale 1.9073486328125e-06 |" "scale 1.7e-06 |"
    mutant lion "lion 0.9 0.99" "lion 0.8 0.99"
    mutant lion "lion 0.9 0.99" "lion 0.9 0.98"
    mutant lion "| sign |" "|"
    mutant muown "weightnorm 2.496" "weightnorm 2.2"
    mutant muown "15 1.2" "14 1.2"
    mutant muown "15 1.2" "15 1.08"
    mutant muloco "hyperball" "step"
    mutant muloco "nesterov" ""
    mutant muloco "variance 0.95 free" "variance 0.85 free"
    mutant muloco "| shape | variance 0.95 free |" "|"
    mutant klsoaph "0.95 first" "0.95"
    mutant klsoaph "klsoap 0.9" "klsoap 0.8"
    mutant klsoaph "0.9 1e-8" "0.8 1e-8"
    mutant klsoaph "0.9 1e-8" "0.9 1e-2"
    mutant klsoaph "klsoap 0.9 0.9 1e-8" "soap 0.9 second g eps 1e-8"
    mutant pmuon "covpower 0.3" "covpower 0.25"
    mutant pmuon "0.3 0.95" "0.3 0.8"
    mutant pmuon "covpower 0.3 0.95 |" ""
    mutant psgd "psgd 1.0" "psgd 0.9"
    mutant psgd "0.95 corrected" "0.95"
    mutant shampoo "shampoo 0.9" "shampoo 0.8"
    mutant shampoo "-0.25" "-0.24"
    mutant sinksoap "sinkhorn 0.95" "sinkhorn 0.9"
    mutant sinksoap "0.95 10" "0.95 2"
    mutant soaph "soap 0.9" "soap 0.8"
    mutant soaph "second g" "second X late"
    mutant soaph "eps 1e-8" "eps 1e-2"
    mutant uwfloor "variance 0.95 |" "scale 1 |"
    mutant uwfloor "variance 0.95" "variance 0.85"
    mutant uwfloor "floor 0.35 |" "scale 1 |"
    mutant uwfloor "floor 0.35" "floor 0.32"
}

# soap_line MATRIX SOAP: what zoo says of that matrix with SOAP as the stage of result 44's line.
soap_line() {
    run --separate-stderr zoo --line "momentum 0.95 nesterov | $2 | polar cubic12 schatten4 | shape | radial 0.5 | floor 0.3825 | step pin" \
        $GIVEN tests/golden/zoo/zoo-soapmuon.safetensors
    [ "$status" -eq 1 ] # a gate is right for one matrix, and wrong for the others
    grep "$1" <<< "$output"
}

@test "soap's gate is square's, and none the others'; each number and word of both is noticed" {
    [[ $(soap_line square "soap 0.9 second X late norm gate 6-9") != *FAILED* ]]
    for gate in "gate 4-9" "gate 9-12" ""; do
        [[ $(soap_line square "soap 0.9 second X late norm $gate") = *FAILED* ]]
    done
    for matrix in full wide; do
        [[ $(soap_line $matrix "soap 0.9 second X late norm") != *FAILED* ]]
        for soap in "soap 0.8 second X late norm" "soap 0.9 second g norm" "scale 1" "soap 0.9 second X late norm gate 6-9"; do
            [[ $(soap_line $matrix "$soap") = *FAILED* ]]
        done
    done
}

@test "what is around the model: each number is noticed" {
    for around in "lookahead 0.54 0.9 from 3 to 10" "lookahead 0.6 0.81 from 3 to 10" "lookahead 0.6 0.9 from 2 to 10" \
        "lookahead 0.6 0.9 from 3 to 9"; do
        noticed --around "$around" $GIVEN tests/golden/zoo/zoo-emanesterov.safetensors
    done
    for around in "outer 0.63 0.5 every 3" "outer 0.7 0.45 every 3" "outer 0.7 0.5 every 4"; do
        noticed --around "$around" $GIVEN tests/golden/zoo/zoo-muloco.safetensors
    done
    for around in "free 0.8" "free 0.9 power 1" "average tail 3 from 3 blend 1"; do
        noticed --around "$around" $GIVEN tests/golden/zoo/zoo-schedulefree.safetensors
    done
    for line in "second 0.98 1e-8 corrected | decay 0.1" "second 0.99 1e-8 | decay 0.1" "second 0.99 1e-7 corrected | decay 0.1" \
        "second 0.99 1e-8 corrected | decay 0.09"; do
        noticed --line "$line | step" $GIVEN tests/golden/zoo/zoo-schedulefree.safetensors
    done
}
