# The pictures of gpt-logdiff --plot.

bats_require_minimum_version 1.5.0
load few_steps

setup_file() {
    export LOGS=$BATS_FILE_TMPDIR
    for i in 1 2; do
        "$GPT_TESTS/make_runlog" today loss=3.275 time_ms=720$i seed=$i >"$LOGS/run$i.txt"
    done
}

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

# Losses of a log over its steps, each in the picture's range: nothing is cut, and training is drawn.
@test "losses from the first step to the last, of training and validation" {
    few -s data.val_every=2 >ours.log
    tool gpt-logdiff -q --plot x.svg ours.log
    [ "$status" -eq 0 ]
    curve() { grep -o "points='[^']*'><title>$1</title>" x.svg | sed -n "${2}p" | grep -oE '[0-9.]+,[0-9.]+'; }
    [ "$(curve 'ours.log, training' 1 | wc -l)" -eq "$(grep -c '^step:.*train_loss' ours.log)" ]
    [ "$(curve ours.log 1 | wc -l)" -eq "$(grep -c val_loss ours.log)" ]
    # the frame of the first panel: x from 80 to 656, y from 34 to 224
    for name in ours.log 'ours.log, training'; do
        curve "$name" 1 | awk -F , '!($1 >= 80 && $1 <= 656 && $2 >= 34 && $2 <= 224) { bad = 1 } END { exit bad || !NR }'
    done
    [ "$(curve ours.log 1 | head -n 1 | cut -d , -f 1)" = 80.0 ]
    # over steps, tokens and time
    for unit in step tokens seconds; do grep -q ">$unit</text>" x.svg; done
    [ -n "$(curve 'ours.log, training' 3)" ]
}

@test "a target is drawn where there is one" {
    tool gpt-logdiff -q --plot x.svg "$LOGS/run1.txt"
    grep -q '>target 3.28</text>' x.svg
    "$GPT_TESTS/make_runlog" ours >ours.log
    tool gpt-logdiff -q --plot y.svg ours.log
    run ! grep -q "target\|class='mark'\|nan" y.svg
    tool gpt-logdiff -q --target 3.3 --plot z.svg ours.log
    grep -q '>target 3.3</text>' z.svg
}

# list NAME@X LOSS,LOSS: results without a log
list() { printf '# %s\nlosses = [%s]\n' "$1" "${2//,/, }"; }

@test "groups called NAME@X are a curve over X, with errors" {
    { list a@10 1.0,1.0; list a@0.1 1.9,2.1; list b@1 1.5,1.5; list b@ 1.7,1.7; list c 1.2,1.2; list a@1 nan,1; } |
        tool gpt-logdiff -q --plot x.svg -
    curve() { grep -o "points='[^']*'><title>$1</title>" x.svg | grep -oE '[0-9.]+,[0-9.]+'; }
    [ "$(curve a | wc -l)" -eq 2 ]
    [ "$(curve b | wc -l)" -eq 1 ]
    # the frame: x from 80 to 656, a margin of 0.04 of two decades; y from 34 to 319, losses from log 1 to log 2.1, the margin 0.06
    { curve a; curve b; } | awk -F , '
        function x(v) { return 80 + 576 * (log(v / 0.1) / log(100) + 0.04) / 1.08 }
        function y(v) { return 319 - 285 * (log(v) / log(2.1) + 0.06) / 1.12 }
        function near(a, b) { return a - b <= 0.06 && b - a <= 0.06 }
        NR == 1 { ok += near($1, x(0.1)) && near($2, y(2)) }
        NR == 2 { ok += near($1, x(10)) && near($2, y(1)) }
        NR == 3 { ok += near($1, x(1)) && near($2, y(1.5)) }
        END { exit !(ok == 3) }'
    # 2 - 0.1 to 2 + 0.1
    grep -o "d='M[0-9.]* [0-9.]*V[0-9.]*'" x.svg | head -n 1 | tr "MV'" '   ' | awk '
        function y(v) { return 319 - 285 * (log(v) / log(2.1) + 0.06) / 1.12 }
        { a = $3 - y(1.9); b = $4 - y(2.1); exit !(a * a <= 0.0036 && b * b <= 0.0036) }'
    for i in $(seq 34); do list "n$i@$i" "1.$i"; done | tool gpt-logdiff -q --plot z.svg -
    [ "$(grep -c '<polyline' z.svg)" -eq 34 ]
    grep -q '>+2 more</text>' z.svg
    # one number is none that was varied, but a name
    { list a@1 1.5,1.6; list b 1.4,1.5; } | tool gpt-logdiff -q --plot y.svg -
    run ! grep -q '<polyline' y.svg
}

@test "the legend stands in the first panel, whose height it sets" {
    groups=()
    for i in $(seq 20); do groups+=("a name of more characters than fit $i=$LOGS/run1.txt"); done
    tool gpt-logdiff -q --plot x.svg "${groups[@]}"
    frame=$(grep -m 1 "class='frame'" x.svg | sed -E "s/.* y='([0-9]+)' .* height='([0-9]+)'.*/\1 \2/")
    grep -oE "y='[0-9]+'>a name of more" x.svg | tr -cd '0-9\n' |
        awk -v frame="$frame" 'BEGIN { split(frame, f, " ") } !($1 > f[1] && $1 < f[1] + f[2]) { bad = 1 } END { exit bad || NR != 20 }'
}

@test "a name of another format is refused, and told how" {
    for name in x.png x.jpg x.pdf; do
        tool gpt-logdiff -q --plot $name "$LOGS/run1.txt"
        [ "$status" -eq 2 ]
        [[ $stderr == *"'$name': pictures are SVG"*"rsvg-convert"* ]]
        [ ! -e $name ]
    done
}
