# The pictures of gpt-logdiff --plot.

bats_require_minimum_version 1.5.0

setup_file() {
    export LOGS=$BATS_FILE_TMPDIR
    for i in 1 2; do
        "$GPT_TESTS/make_runlog" today loss=3.275 time_ms=720$i seed=$i >"$LOGS/run$i.txt"
    done
}

setup() { cd "$BATS_TEST_TMPDIR"; }

tool() { run --separate-stderr "$GPT_BIN/$1" "${@:2}"; }

@test "every line of a picture has its own style, or the legend says how many have none" {
    groups=()
    for i in $(seq 40); do groups+=("g$i=$LOGS/run1.txt"); done
    tool gpt-logdiff -q --plot x.svg "${groups[@]:0:32}"
    strokes() { grep -o "<path class='curve' stroke='[^']*' stroke-dasharray='[^']*'" "$1"; }
    [ "$(strokes x.svg | wc -l)" -eq 32 ]
    [ "$(strokes x.svg | sort -u | wc -l)" -eq 32 ]
    run ! grep -q 'more</text>' x.svg
    tool gpt-logdiff -q --plot y.svg "${groups[@]}"
    [ "$(strokes y.svg | wc -l)" -eq 32 ]
    grep -q '>+8 more</text>' y.svg
}

@test "a group's curve is drawn where all its runs have a loss" {
    mkdir g
    cp "$LOGS/run1.txt" g
    grep -v 'step:[1-4][0-9]*/60 val' "$LOGS/run2.txt" >g/fewer.txt
    points() { grep "<title>$2</title>" "$1" | head -1 | grep -o '[0-9.]*,[0-9.]*' | wc -l; }
    tool gpt-logdiff -q --plot x.svg whole="$LOGS/run1.txt" fewer=g/fewer.txt both=g
    [ "$(points x.svg fewer)" -lt "$(points x.svg whole)" ]
    [ "$(points x.svg both)" -eq "$(points x.svg fewer)" ]
}
