#!/usr/bin/env bats
# Inputs that once gave a wrong answer, lost work or an unclear message: one test a finding.

bats_require_minimum_version 1.5.0

setup_file() {
    export WORK=$BATS_FILE_TMPDIR ROOT=$GPT_SHARE/..
    small=(model.vocab=512 model.heads=4 model.head_dim=16 model.mlp_width=256)
    for i in 1 2 3; do
        "$GPT_TESTS/make_runlog" today loss=3.275 time_ms=720$i seed=$i >"$WORK/run$i.txt"
    done
    "$GPT_TESTS/ckpt_make" "$GPT_SHARE/recipes/tiny.recipe" "$WORK/ckpt" 36 1 1 1 "${small[@]}"
}

setup() { cd "$BATS_TEST_TMPDIR"; }

tool() { run --separate-stderr "$GPT_BIN/$1" "${@:2}"; }

# --- run logs ---

# The cells of a row of a TSV report, by heading: cells PART NAME...
cells() {
    awk -F'\t' -v part="$1" -v want="${*:2}" '
        $1 == "#" part { for (i = 2; i <= NF; i++) at[$i] = i }
        $1 == part { n = split(want, w, " ")
                     for (i = 1; i <= n; i++) printf "%s%s", (i > 1 ? " " : ""), $(at[w[i]])
                     print "" }' <<<"$output"
}

@test "1: a log and an excerpt of it are one run, in any order" {
    mkdir x
    cp "$WORK/run1.txt" x/stdout.txt
    for excerpt in 'step:60/60 val' '/60 val_loss' 'step:5[0-9]*/60\|step:60'; do
        grep "$excerpt" "$WORK/run1.txt" >x/final_val_loss.txt
        for order in "x=x/stdout.txt x=x/final_val_loss.txt" "x=x/final_val_loss.txt x=x/stdout.txt" x; do
            # shellcheck disable=SC2086
            tool gpt-logdiff --format tsv -c $order
            [ "$status" -eq 1 ]
            [ "$(cells groups runs p)" = '1 ' ]
            [ "$(cells runs ended | wc -l)" -eq 1 ]
            [[ $stderr = *"the same run as in x/"*": it counts once"* ]]
        done
    done
    tool gpt-logdiff -q x # without the remark, too, the report says why n is 1
    [ -z "$stderr" ]
    [[ $output = *"(n = 1; 1 further log of a counted run)"* ]]
    tool gpt-logdiff --format tsv x y="$WORK/run2.txt" y="$WORK/run3.txt" -c -s
    [ "$(cells curves base_sd | sort -u)" = '' ] # one run at each step
}

@test "1: equal losses and equal times show nothing" {
    tool gpt-logdiff x="$WORK/run1.txt" x="$WORK/run2.txt" x="$WORK/run3.txt"
    [ "$status" -eq 1 ]
    [[ $output = *"loss not demonstrated: 3 equal losses have no deviation"* ]]
    run ! grep -qE 'NaN|nan| 0\.0000  0\.0000' <<<"$output"
    for i in 1 2; do
        "$GPT_TESTS/make_runlog" today loss=3.27$i time_ms=7200 seed=$i >same$i.txt
        "$GPT_TESTS/make_runlog" today loss=3.27$i time_ms=7100 seed=$i >less$i.txt
    done
    tool gpt-logdiff --mixed x=same1.txt x=same2.txt y=less1.txt y=less2.txt
    [ "$status" -eq 1 ]
    [[ $output = *"not demonstrated to be faster: -0.1000 s, but equal values have no deviation"* ]]
}

@test "18: every line of a picture has its own style, or the legend says how many have none" {
    groups=()
    for i in $(seq 40); do groups+=("g$i=$WORK/run1.txt"); done
    tool gpt-logdiff -q --plot x.svg "${groups[@]:0:32}"
    strokes() { grep -o "<path class='curve' stroke='[^']*' stroke-dasharray='[^']*'" "$1"; }
    [ "$(strokes x.svg | wc -l)" -eq 32 ]
    [ "$(strokes x.svg | sort -u | wc -l)" -eq 32 ]
    run ! grep -q 'more</text>' x.svg
    tool gpt-logdiff -q --plot y.svg "${groups[@]}"
    [ "$(strokes y.svg | wc -l)" -eq 32 ]
    grep -q '>+8 more</text>' y.svg
}

@test "18: a group's curve is drawn where all its runs have a loss" {
    mkdir g
    cp "$WORK/run1.txt" g
    grep -v 'step:[1-4][0-9]*/60 val' "$WORK/run2.txt" >g/fewer.txt
    points() { grep "<title>$2</title>" "$1" | head -1 | grep -o '[0-9.]*,[0-9.]*' | wc -l; }
    tool gpt-logdiff -q --plot x.svg whole="$WORK/run1.txt" fewer=g/fewer.txt both=g
    [ "$(points x.svg fewer)" -lt "$(points x.svg whole)" ]
    [ "$(points x.svg both)" -eq "$(points x.svg fewer)" ]
}

@test "18: eval draws f about its upper end, where tables explode" {
    tool ns-coeffs eval record-61 --plot x.svg
    [ "$status" -eq 0 ]
    for tick in 0.95 1.05; do grep -q ">$tick</text>" x.svg; done
}

@test "21: --at-step judges runs that were ended early at a step that all have" {
    step=$(sed -n 's/^step:\([1-9][0-9]*\)\/60 val.*/\1/p' "$WORK/run1.txt" | head -1)
    [ "$step" -lt 60 ]
    for i in 1 2 3; do sed "/^step:$step.60 val/q" "$WORK/run$i.txt" >cut$i.txt; done
    tool gpt-logdiff x=cut1.txt x=cut2.txt x=cut3.txt
    [[ $status -eq 1 && $output = *"no run reached its end"* ]]
    tool gpt-logdiff -q --format tsv --at-step "$step" cut=cut1.txt cut=cut2.txt cut=cut3.txt whole="$WORK/run3.txt"
    [ "$(cells groups runs steps)" = "3 $step"$'\n'"1 $step" ]
    [ "$(cells runs ended loss time_s)" = "$(for i in 1 2 3 3; do
        sed -n "s/^step:$step.60 val_loss:\([0-9.]*\) train_time:\([0-9]*\)ms.*/1 \1 \2/p" "$WORK/run$i.txt" |
            awk '{ print $1, $2 + 0, $3 / 1000 }'
    done)" ]
    tool gpt-logdiff --at-step 59 "$WORK/run1.txt"
    [ "$status" -eq 1 ]
    [[ $stderr = *"no validation of the step of --at-step"* ]]
    tool gpt-logdiff --at-step 10 --follow "$WORK/run1.txt" -
    [[ $status -eq 2 && $stderr = *"--at-step beside --follow"* ]]
}

@test "21: losses and times as they are published are runs" {
    # of the table published with record 61: mean, deviation and p are printed beside them there
    printf '%s\n' 'import torch' 'losses = [3.2777, 3.2785, 3.2790, 3.2785,' \
        '          3.2788, 3.2791, 3.2766, 3.2784] # eight' \
        'times  = [105.369, 105.595, 105.414, 105.552, 105.561, 105.582, 105.609, 105.607]' >list.txt
    tool gpt-logdiff list.txt
    [ "$status" -eq 0 ]
    [ -z "$stderr" ]
    [[ $output = *" 105.5361  0.0923 "*" 3.2783  0.0008 "*" 0.0003 "* ]]
    printf '%s\n' "$output" >report.txt # what it prints, it reads
    tool gpt-logdiff --format tsv report.txt
    [ "$(cells runs loss time_s | tail -1)" = '3.2784 105.607' ]
    while IFS='|' read -r text why; do
        printf "$text" >bad.txt
        tool gpt-logdiff bad.txt
        [ "$status" -eq 3 ]
        [[ $stderr = *"$why"* ]]
    done <<'END'
losses = [3.1, x]\n|a list of other than numbers
losses = [3.1, 3.2\n|a list that is not closed
losses = [3.1, 3.2]\ntimes = [1]\n|2 losses and 1 times
losses = []\n|no step lines
END
    { echo 'losses = [1.0, 2.0]'; cat "$WORK/run1.txt"; } >log.txt # a log's own text is not a list
    tool gpt-logdiff --format tsv log.txt
    [ "$(cells runs loss)" = 3.275 ]
}

# --- all programs ---

@test "17: a byte-order mark before a recipe is passed over" {
    { printf '\xef\xbb\xbf'; cat "$GPT_SHARE/recipes/tiny.recipe"; } >marked.recipe
    for r in "$GPT_SHARE/recipes/tiny.recipe" marked.recipe; do
        tool gpt-train -r "$r" --plan
        [ "$status" -eq 0 ]
        printf '%s\n' "$output" >"${r##*/}.plan"
    done
    cmp tiny.recipe.plan marked.recipe.plan
}

@test "17: the last of an option that is given twice counts, as gpt-tools(7) says" {
    grep -A1 'given twice' "$ROOT/man/gpt-tools.7" | grep -q 'the last counts'
    tool ns-coeffs list --format json --format tsv
    [ "${lines[0]}" = $'name\trows\tinput\tabout\tsource' ]
}

@test "17: a missing value is empty in TSV, null in JSON, a dash in tables, whatever prints it" {
    C=$WORK/ckpt/step-000036
    "$GPT_BIN/gpt-ckpt" export "$C" -o weights.safetensors
    printf 'losses = [3.1, 3.2]\n' >list.txt
    sed 's/ train_time:.*//; /^step:60/d' "$WORK/run1.txt" >untimed.txt
    few_shards
    # Neither a word for nothing nor a number in its place: each cell of TSV is also looked at in JSON.
    while read -r -a command; do
        echo "${command[*]}"
        "$GPT_BIN/${command[0]}" "${command[@]:1}" --format tsv >out.tsv || [ $? -eq 1 ]
        "$GPT_BIN/${command[0]}" "${command[@]:1}" --format json >out.json || [ $? -eq 1 ]
        [ -s out.tsv ]
        sed -i '/loader.id.*none/d' out.tsv out.json # the fixture's word
        run ! grep -qiP '(\t|^)(-?nan|-|–|none|null|\(null\)|\?|-9223372036854775808)(\t|$)' out.tsv
        run ! grep -qiP ': *("(-|–|none|null|nan)"|-?nan|-?inf|-9223372036854775808)' out.json
        [ "${command[0]}" = gpt-logdiff ] && table=text || table=table
        "$GPT_BIN/${command[0]}" "${command[@]:1}" --format $table >out.txt || [ $? -eq 1 ]
        run ! grep -qiP '(^|[ \[])(-?nan|\(null\)|-9223372036854775808)([ ,\]]|$)' out.txt
    done <<END
gpt-logdiff -q -c -s -w list.txt $WORK/run1.txt untimed.txt
gpt-logdiff -q -c -s -w $WORK/run1.txt list.txt
gpt-ckpt ls weights.safetensors
gpt-ckpt ls $C
gpt-ckpt info $C
gpt-ckpt info weights.safetensors
gpt-ckpt stat $C
gpt-ckpt stat weights.safetensors
gpt-ckpt diff $C weights.safetensors
ns-coeffs list
ns-coeffs eval record-61 paper
END
    tool gpt-logdiff -q --format tsv list.txt
    [ "$(cells runs last_step steps time_s clock_from_step resumed_from gpu | sort -u)" = '     ' ]
    tool gpt-logdiff -q --format tsv "$WORK/run1.txt"
    [ "$(cells runs last_step steps clock_from_step resumed_from)" = '60 60 0 ' ]
    tool gpt-ckpt ls weights.safetensors --format tsv
    [ "$(tail -n +2 <<<"$output" | cut -f6 | sort -u)" = '' ]
    tool gpt-ckpt diff "$C" weights.safetensors --format tsv
    [ "$(awk -F'\t' '$2 == "only in A" { print $4 }' <<<"$output" | sort -u)" = '' ]
    few -o run >few.log
    for part in stats bench score; do
        case $part in
        stats) tool gpt-tokshard --tokenizer byte --stats shards/text_train_000001.bin ;;
        bench) tool gpt-train "${FEW[@]}" --bench 1 ;;
        score) tool gpt-sample -m run --score "" "a text" ;; # no token has no mean
        esac
        [ "$status" -eq 0 ]
        run ! grep -qiP '(\t|^)(-?nan|-|–|-?inf)(\t|$)' <<<"$output"
    done
    tool gpt-sample -m run --score "" "a text"
    [ "${lines[1]}" = $'1\t0\t0\t0\t\t' ]
    tool gpt-sample -m run --score --json ""
    [ "$output" = '{"id": 1, "tokens": 0, "bytes": 0, "nats": 0, "nats_a_token": null, "bits_a_byte": null}' ]
    # --plan, also of a recipe without a matrix to orthogonalise, whose ratios are 0 / 0
    adam=(-s "parameters.attn=40,d,d bf16 normal:0.02 adam sharded 0.9 0.95 1 1 no"
          -s "parameters.mlp=24,f,d bf16 normal:0.02 adam sharded 0.9 0.95 1 1 no")
    for ranks in 1 2; do
        for count in 0 ${#adam[@]}; do
            tool gpt-train "${FEW[@]}" "${adam[@]:0:count}" --plan --ranks $ranks
            [ "$status" -eq 0 ]
            run ! grep -qiP '(^|[ \[])(-?nan|-?inf|\(null\)|-9223372036854775808)([ ,\]]|$)' <<<"$output"
        done
    done
}

@test "17: runs on a CPU differ in their device" {
    for ranks in 1 2; do
        printf 'tool: gpt-train 0.1.0\ndevice: cpu\nranks: %d\n%s\n' $ranks "$(printf '=%.0s' {1..80})" >$ranks.log
        printf 'step:2/2 val_loss:3.2%d00 train_time:10%dms step_avg:50.50ms\n' $ranks $ranks >>$ranks.log
    done
    tool gpt-logdiff --target 3.28 1.log 2.log
    [[ $output = *"unequal device: 1 x cpu and 2 x cpu"* ]]
    mkdir both && mv [12].log both
    tool gpt-logdiff --target 3.28 both
    [[ $output = *"unequal device: 'both' mixes 2"* ]]
}

# --- coefficients ---

@test "19: polar says that its rows do not reach the lower end" {
    tool ns-coeffs polar --lower 1e-300
    [ "$status" -eq 0 ]
    [[ $stderr = *"5 rows do not reach 1e-300: it stays at 2.35e-297"* ]]
    grep -q '^# 5 rows do not reach 1e-300' <<<"$output"
    tool ns-coeffs polar
    [ -z "$stderr" ]
    run ! grep -q reach <<<"$output"
}

@test "19: the page's fit is to all banks, as its table serves all" {
    run grep -rhE 'gpt-ckpt.*spectrum .*\|$' "$ROOT/man" "$ROOT/examples"
    [ "${#lines[@]}" -ge 2 ]
    run ! grep -q -e --bank <<<"$output"
}

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
    sed 's/^mlp [0-9].*/mlp 24,f,d bf16 uniform:0.5,zero adam sharded 0.9 0.95 1 1 no/' $recipe >adam.recipe
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

# --- training ---

# Some steps of the tiny recipe on the files of man/.
FEW=(-r tiny -d shards -s model.vocab=272 -s schedule.steps=5 -s schedule.extension=1 -s data.cycle=yes
     -s data.val_every=0 -s data.val_tokens=2048 -s data.val_chunk=256
     -s "stages.0=512 3 512 1 1,0.5,0.25>0" -s "stages.1=512 7 512 1.52 1,0.5>0"
     -s "stages.2=512 11 512 1.73 1" -s "stages.3=512 13 512 - 1")
few_shards() { "$GPT_BIN/gpt-tokshard" -q --tokenizer byte --val-tokens 2048 -o shards "$ROOT"/man/*.[157]; }
few() {
    [ -e shards ] || few_shards
    "$GPT_BIN/gpt-train" "${FEW[@]}" -q "$@"
}

@test "2: order.tied_mix = 0 ignores the embedding's gradient, as a mix near 0 almost does" {
    last() { few -s order.tied_mix="$1" -s schedule.untie=2 | sed -n 's/^step:6.*val_loss:\([^ ]*\).*/\1/p'; }
    for mix in 0 1e-9 0.5 1 -1; do
        eval "m_${mix//[-.]/_}=$(last $mix)"
    done
    echo "$m_0 $m_1e_9 $m_0_5 $m_1 $m__1"
    [ "$m_0" = "$m_1e_9" ] # the product is below the rounding of the sum
    [ "$m_0" != "$m_0_5" ] && [ "$m_0_5" != "$m_1" ] && [ "$m__1" != "$m_0" ]
}

# --- tokenizing ---

shard() { "$GPT_BIN/gpt-tokshard" -q --tokenizer byte "$@"; }
decoded() { "$GPT_BIN/gpt-tokshard" --tokenizer byte --decode "$1" 1:; }

@test "4: half a pair of surrogates is one U+FFFD, wherever it stands" {
    R=$(printf '\xef\xbf\xbd')
    printf '{"text": "a\\ud800\\udc00b\\ud800c\\udfff\xed\xa0\x80 d"}\n' >lone.jsonl
    tool gpt-tokshard --tokenizer byte -o l lone.jsonl
    [ "$status" -eq 0 ]
    [[ $stderr = *"3 sequences are not UTF-8"* ]]
    [ "$(decoded l/text_train_000001.bin)" = "a$(printf '\xf0\x90\x80\x80')b${R}c$R$R d" ]
    # in a line of several units without a place to cut: none is cut in two
    { printf '{"text": "'; yes '\ud800' | head -900000 | tr -d '\n'; printf '"}\n'; } >long.jsonl
    shard -o long long.jsonl
    decoded long/text_train_000001.bin >got
    [ "$(wc -c <got)" -eq 2700000 ]
    [ "$(tr -d '\357\277\275' <got | wc -c)" -eq 0 ]
    # three bytes that are in a text file as they are stay what browsers and Python make of them
    printf 'a\xed\xa0\x80' >raw.txt
    shard -o raw raw.txt
    [ "$(decoded raw/text_train_000001.bin)" = "a$R$R$R" ]
}

@test "4: a line of .jsonl with the field twice is refused, with line and field" {
    for second in '"b"' 1 '{}'; do
        printf '{"text": "a"}\n{"text": "a", "x": {"text": "b"}, "te\\u0078t": %s}\n' "$second" >two.jsonl
        tool gpt-tokshard --tokenizer byte -o out --force two.jsonl
        [ "$status" -eq 3 ]
        [[ $stderr = "gpt-tokshard: two.jsonl: line 2: column "*": field 'text' comes twice" ]]
    done
    printf '{"text": "a", "x": {"text": "b"}}\n' >one.jsonl
    shard -o one one.jsonl
    printf '{"model": {"vocab": {}, "merges": [],\n"merges": []}}' >tokenizer.json
    tool gpt-tokshard --vocab tokenizer.json -o v one.jsonl
    [ "$status" -eq 3 ]
    [[ $stderr = *"tokenizer.json: line 2: field 'merges' comes twice" ]]
}

@test "12: no control character and no bad UTF-8 reaches a terminal in a message" {
    evil=$'a\e[31mb\x9b\xc2\x9bc\xffd\ne'
    head -c 3000 /dev/urandom >"$evil"
    printf '%s\n' "$evil" $'\e]0;title\a = 1' >words
    cp words words.recipe
    bytes=$(head -c 300 "$GPT_BIN/gpt-train" | tr '\0' ' '; printf '\x1b\x9b\n')
    printf '%s' "$bytes" >binary
    clean() {
        echo "$*"
        "$GPT_BIN/$1" "${@:2}" >out.txt 2>err.txt </dev/null || true
        [ -s err.txt ] || [ -s out.txt ]
        run ! grep -qaP '[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]' out.txt err.txt
        iconv -f UTF-8 -t UTF-8 out.txt err.txt >/dev/null
    }
    # shellcheck disable=SC2043
    for file in "$evil" "no$evil" words words.recipe binary; do
        clean gpt-tokshard --tokenizer byte --verify "$file"
        clean gpt-tokshard --tokenizer byte --decode "$file"
        clean gpt-tokshard -o o --vocab "$file" "$ROOT/README.md"
        clean gpt-tokshard --tokenizer byte -o o --format jsonl "$file"
        clean gpt-train --plan -r "$file"
        clean gpt-train -r "$GPT_SHARE/recipes/tiny.recipe" -d "$file"
        clean gpt-train -d . --resume "$file"
        clean gpt-logdiff "$file"
        clean gpt-logdiff "x$file=$file" "$file"
        clean gpt-ckpt ls "$file"
        clean gpt-ckpt verify "$file"
        clean gpt-ckpt import "$file" -o made --recipe "$file"
        clean ns-coeffs eval "$file"
        clean ns-coeffs "$file"
    done
    for word in "$evil" "$evil=1" "model.heads=$evil" "stages.0=$evil" "model.$evil=1"; do
        clean gpt-train --plan -r "$GPT_SHARE/recipes/tiny.recipe" -s "$word"
        clean gpt-tokshard "--$word"
        clean gpt-logdiff --format "$word"
    done
    shard -o "$evil.d" "$ROOT/README.md"
    clean gpt-tokshard --verify "$evil.d"
    truncate -s 100 "$evil.d/text_train_000001.bin"
    clean gpt-tokshard --verify "$evil.d"
}

@test "15: what is likely to go wrong first says what to do" {
    cp "$ROOT/README.md" one.txt
    on=(-r "$GPT_SHARE/recipes/tiny.recipe" -s model.vocab=272)
    shard -o none "$ROOT"/man/*.[157]
    tool gpt-train "${on[@]}" -d none
    [ "$status" -eq 3 ]
    [[ $stderr = *"none: expected a validation shard, found none: make the shards with gpt-tokshard --val-tokens N, or train without validation: -s data.val_tokens=0" ]]
    shard -o few --val-tokens 5000 "$ROOT"/man/*.[157]
    tool gpt-train "${on[@]}" -d few
    [ "$status" -eq 3 ]
    [[ $stderr = *"found 0 groups in "*": make the shards with gpt-tokshard --val-tokens 32768, or train without validation: -s data.val_tokens=0" ]]
    tool gpt-train "${on[@]}" -d few -s data.val_chunk=64 -s data.val_tokens=81920
    [[ $stderr = *"--val-tokens 81920, or take what is there: -s data.val_tokens="* ]]
    taken=${stderr##*=}
    [ "$taken" -ge 5000 ]
    for fix in "none -s data.val_tokens=0" "few -s data.val_chunk=64 -s data.val_tokens=$taken"; do
        # shellcheck disable=SC2086
        tool gpt-train "${on[@]}" -q -s schedule.steps=1 -s schedule.extension=0 -s "stages.0=512 3 512 1 1" -d $fix
        echo "$stderr"
        [ "$status" -eq 0 ]
    done
    tool gpt-tokshard --tokenizer byte -o one --val-tokens 100 one.txt
    [ "$status" -eq 3 ]
    [[ $stderr = *" tokens in 1 document, and a document is not divided: --val-first takes tokens from its start, more files are more documents" ]]
    shard -o one --val-first --val-tokens 100 --force one.txt
    [ -e one/text_val_000000.bin ] && [ -e one/text_train_000001.bin ]
    seq -f '{"text": "%.0f"}' 10000 29999 >short.jsonl # more documents than a micro-batch has room for
    shard -o short --val-tokens 32768 short.jsonl
    short=("${on[@]}" -q -d short -s schedule.steps=1 -s schedule.extension=0)
    tool gpt-train "${short[@]}"
    [ "$status" -eq 3 ]
    [[ $stderr = *"found more: join short documents, or set a smaller data.val_chunk" ]]
    tool gpt-train "${short[@]}" -s data.val_chunk=512 -s "stages.0=4096 3 512 1 1" -s data.chunks=2
    [ "$status" -eq 3 ]
    [[ $stderr = *"found more: join short documents, or set more data.chunks" ]]
    tool gpt-train "${short[@]}" -s data.val_chunk=512 -s "stages.0=4096 3 512 1 1" -s data.chunks=8
    [ "$status" -eq 0 ]
}

@test "11: --verify --full sees each byte of an index; shards that MANIFEST does not name are told" {
    shard --index -o s --val-tokens 100 "$ROOT"/man/*.1
    for at in 0 4 8 12 20 32 100 1023 1024; do
        cp s/text_train_000001.idx keep
        printf 'X' | dd of=s/text_train_000001.idx bs=1 seek=$at conv=notrunc status=none
        tool gpt-tokshard --verify --full s
        [ "$status" -eq 1 ]
        [[ $output = *"s/text_train_000001.idx: "* ]]
        mv keep s/text_train_000001.idx
    done
    cp s/text_train_000001.idx keep
    dd if=/dev/zero of=s/text_train_000001.idx bs=1 seek=16 count=16 conv=notrunc status=none
    tool gpt-tokshard --verify --full s
    [ "$status" -eq 1 ]
    mv keep s/text_train_000001.idx
    tool gpt-tokshard --verify --full s
    [ "$status" -eq 0 ]
    for name in text_train_000007.bin other_val_000000.bin.zst text_train_000007.idx; do
        cp s/text_train_000001.bin s/$name
        tool gpt-tokshard -q --verify s
        [ "$status" -eq 1 ]
        [ "$output" = "s/$name: not in the MANIFEST" ]
        rm s/$name
    done
    tool gpt-tokshard -q --verify s
    [ "$status" -eq 0 ]
}

@test "8: of two jobs into one folder the second is refused; a lock that was left is taken over" {
    mkfifo pipe
    "$GPT_BIN/gpt-tokshard" -q --tokenizer byte --format text -o out pipe &
    pid=$!
    exec 7>pipe
    for i in $(seq 100); do [ -e out/.lock ] && break; sleep 0.05; done
    tool gpt-tokshard --tokenizer byte -o out --force "$ROOT/README.md"
    [ "$status" -eq 4 ]
    [ "$stderr" = "gpt-tokshard: 'out' is being written by process $pid on $(uname -n) (it holds 'out/.lock')" ]
    echo text >&7
    exec 7>&-
    wait $pid
    shopt -s dotglob
    names=(out/*)
    [ "${names[*]}" = "out/MANIFEST out/text_train_000001.bin" ]
    # killed without a chance to clean up
    "$GPT_BIN/gpt-tokshard" -q --tokenizer byte --format text -o killed pipe &
    pid=$!
    exec 7>pipe
    for i in $(seq 100); do [ -s killed/.lock ] && break; sleep 0.05; done
    kill -KILL $pid
    wait $pid || true
    exec 7>&-
    [ "$(cat killed/.lock)" = "$pid $(uname -n)" ]
    shard -o killed "$ROOT/README.md"
    [ ! -e killed/.lock ]
    "$GPT_BIN/gpt-tokshard" --verify -q killed
}

@test "10: a bit that changed in a shard ends the run, with shard and frame" {
    few_shards
    shard --level 3 --val-tokens 2048 -o packed "$ROOT"/man/*.[157]
    RANDOM=10
    hit() { # FILE: flips a bit of it
        at=$((12 + (RANDOM << 15 | RANDOM) % ($(stat -c %s "$1") - 12)))
        [ "$2" ] && at=$2
        printf "$(printf '\\x%02x' $((0x$(xxd -s $at -l 1 -p "$1") ^ 1 << RANDOM % 8)))" |
            dd of="$1" bs=1 seek=$at conv=notrunc status=none
    }
    for i in {1..20}; do
        name=text_train_000001.bin
        ((i % 4)) || name=text_val_000000.bin
        cp shards/$name keep
        hit shards/$name
        echo "byte $at of $name"
        tool gpt-train "${FEW[@]}" -q
        [ "$status" -eq 3 ]
        [[ $stderr = "gpt-train: shards/$name: "@(frame 1, tokens 0 to|offset $at: expected a zero)* ]]
        mv keep shards/$name
        cp packed/$name.zst keep
        hit packed/$name.zst
        echo "byte $at of $name.zst"
        tool gpt-train "${FEW[@]}" -q -d packed
        [ "$status" -eq 3 ]
        [[ $stderr = "gpt-train: packed/$name.zst: "* ]]
        mv keep packed/$name.zst
    done
    few -d packed >log
    hit shards/text_train_000001.bin 5000
    tool gpt-train "${FEW[@]}" -q -d 'shards/*.bin' # the MANIFEST beside them
    [ "$status" -eq 3 ]
    [[ $stderr = *"shards/text_train_000001.bin: frame 1, tokens 0 to "*": expected the hash "*" of the MANIFEST, found "*": changed since it was written" ]]
    few --no-verify >log
    grep -q '^step:6/6' log
}

@test "6: on a CPU a step's line is written when that step has ended" {
    # Times of 1, 2 and 3 steps; with each line a step late they are those of 2, 3 and 4 in every try.
    # Other work on the machine can make one step longer, so there are three tries.
    for try in 1 2 3; do
        few -s "stages.0=4096 3 4096 1 1,0.5,0.25>0" -s schedule.steps=12 --threads 1 > "log.$try"
        sed -n 's/^step:[123]\/.*train_time:\([0-9]*\)ms.*/\1/p' "log.$try" |
            awk '{ t[NR] = $1 } END { print t[1], t[2], t[3]
                exit !(NR == 3 && t[1] > 0 && t[1] < 1.6 * (t[3] - t[1]) / 2) }' && return
    done
    return 1
}

# gpt-train on a terminal of so many columns, a line of the screen a line.
on_terminal() { # COLUMNS ARGUMENT...
    script -qec "stty cols $1; $(printf '%q ' "$GPT_BIN/gpt-train" "${FEW[@]}" "${@:2}") $to" /dev/null </dev/null |
        tr '\r' '\n' | sed 's/ *$//'
}

@test "16: progress fits a narrow terminal; the log there has no recipe" {
    few_shards
    export TERM=xterm
    to='>log' on_terminal 38 -s schedule.steps=60 >seen
    cat seen
    grep -q '^step [0-9]*/61  loss' seen
    [ "$(awk 'length > 37' seen)" = '' ]
    to='>log' on_terminal 100 -s schedule.steps=60 | grep -q '^step .* left$'
    to='' on_terminal 100 -q >seen
    grep -q '^step:6/6 train_loss' seen
    run ! grep -q '^\[model\]' seen
    grep -q '^\[model\]' log
}

@test "16: of the warnings about a file the first three of a kind are said, and how many more" {
    "$GPT_TESTS/make_runlog" today loss=3.27 time_ms=7200 seed=1 >good.txt
    "$GPT_TESTS/make_runlog" today loss=3.26 time_ms=7300 seed=2 >>good.txt
    awk '{ print } /^step:[1-9][0-9]*.* train_time/ && !/val/ { print "step:9/60 val_loss:x"; print }' good.txt >bad.txt
    bad=$(grep -c 'loss:x' bad.txt)
    [ "$bad" -ge 100 ]
    tool gpt-logdiff bad.txt
    [ "$(grep -c 'not read: ' <<<"$stderr")" -eq 3 ]
    [ "$(grep -c 'a second line of step' <<<"$stderr")" -eq 3 ]
    first=$(grep -n -m1 'loss:x' bad.txt | cut -d: -f1)
    [[ $stderr = *"gpt-logdiff: bad.txt: and $((bad - 3)) more like line $first"* ]]
    [[ $stderr = *"gpt-logdiff: bad.txt: and $((bad - 3)) more like line $((first + 1))"* ]]
    for i in 1 2 3 4 5; do cat good.txt; done >many.txt
    tool gpt-logdiff many.txt
    [ "$(grep -c 'the same run as in' <<<"$stderr")" -eq 3 ]
    [[ $stderr = *"many.txt: and 5 more like line "* ]]
}

# What a shell offers behind the words that are given, the last of which is begun.
completed() { # SHELL WORD...
    PATH=$GPT_BIN:$PATH
    case $1 in
    bash) bash -c '. "$GPT_SHARE/completion.bash"; shift
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)); _gpt_tools "$1"; printf "%s\n" "${COMPREPLY[@]}"' - "$@" ;;
    zsh) zsh -fc 'shift; words=("$@") CURRENT=$# PREFIX=$words[-1]
        compset() { return 1; }
        _files() { local -a f=($PREFIX*(N)); [[ -z $f ]] || print -l -- $f; }
        compadd() {
            local -a w; if [[ $1 = -a ]]; then w=(${(P)2}); else while [[ $1 != -- ]]; do shift; done; shift; w=("$@"); fi
            w=(${(M)w:#$PREFIX*}); [[ -z $w ]] || print -l -- $w
        }
        f() { . $GPT_SHARE/completion.zsh; }; f' - "$@" ;;
    fish) fish --no-config -c '. $GPT_SHARE/completion.fish; complete -C "'"${*:2}"'"' | cut -f1 ;;
    esac
}

@test "20: shells offer table names, recipe names and keys of --set, from the tables of options" {
    recipes=$("$GPT_BIN/gpt-train" --recipes | cut -f1 | sort)
    tables=$("$GPT_BIN/ns-coeffs" list --format tsv | tail -n +2 | cut -f1 | sort)
    for shell in bash zsh fish; do
        command -v $shell >/dev/null || continue
        echo "$shell"
        [ "$(completed $shell gpt-train -r '' | sort)" = "$recipes" ]
        [ "$(completed $shell gpt-train --recipe rec | sort)" = "$(grep ^rec <<<"$recipes")" ]
        [ "$(completed $shell gpt-ckpt import x --recipe ti)" = tiny ]
        [ "$(completed $shell ns-coeffs eval '' | sort)" = "$tables" ]
        [ "$(completed $shell ns-coeffs show '' | sort)" = "$tables" ]
        [ "$(completed $shell ns-coeffs fit --from record)" = record-61 ]
        [ "$(completed $shell gpt-train --set model.heads)" = 'model.heads=' ]
        [ "$(completed $shell gpt-train -s order.tied_)" = 'order.tied_mix=' ]
        [ "$(completed $shell gpt-ckpt sp)" = spectrum ]
        [ "$(completed $shell gpt-train --pla)" = --plan ]
        [ "$(completed $shell gpt-train --device c | sort)" = $'cpu\ncuda' ]
        touch some.bin
        [ "$(completed $shell gpt-train -d som)" = some.bin ]
        rm some.bin
    done
    ! command -v zsh >/dev/null || zsh -n "$GPT_SHARE/completion.zsh"
    ! command -v fish >/dev/null || fish -n "$GPT_SHARE/completion.fish"
}

@test "16: a signal is answered at once" {
    few_shards
    "$GPT_BIN/gpt-train" "${FEW[@]}" -s schedule.steps=3000 >log 2>err &
    pid=$!
    for i in $(seq 200); do grep -q '^step:1/' log && break; sleep 0.05; done
    kill -TERM $pid
    for i in $(seq 20); do [ -s err ] && break; sleep 0.01; done
    [[ $(<err) = *"gpt-train: stopping after this step"* ]]
    wait $pid
}

# The floor has 6 D 2 F of each token's products at least, at the rate that the table names, which no
# processor that runs this exceeds.
@test "7: --bench on a CPU has that CPU's floor, and says from which rates" {
    tool gpt-train "${FEW[@]}" --bench 1
    [ "$status" -eq 0 ]
    [ "$(cut -f1 <<<"$output" | grep -c '^[0-9]')" -eq 3 ]
    awk -F'\t' 'NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i; next }
        { rate = $(at["product_TFLOP_s"]); floor = $(at["floor_ms"])
          if (!(rate > 1e-4 && rate < 20 && $(at["copy_GB_s"]) > 0.1 && $(at["copy_GB_s"]) < 2000 &&
                floor * 1e-3 * rate * 1e12 > 512 * 11 * 6 * 64 * 2 * 256 && floor < 1e5 &&
                $(at["ratio"]) > 0.3 && $(at["ratio"]) < 1000)) exit 1 }' <<<"$output"
}

# Taken: the last line of the log, in whole MiB. Kinds of memory: of one rank and two, with padding and
# without, rows that are exchanged sparsely, fp8 head, states of other types, threads.
@test "5: --plan's sum is what a run takes, within 3%" {
    held() {
        set -- -s model.vocab=8192 "$@" # enough that a MiB is no 3%
        few "$@" >log
        tool gpt-train "${FEW[@]}" --plan "$@"
        [ "$status" -eq 0 ]
        taken=$(sed -n 's/^peak memory allocated: \([0-9]*\) .*/\1/p' log)
        sum=$(awk '$1 == "sum" { print $2 }' <<<"$output")
        echo "$*: taken $taken, plan $sum"
        awk -v a="$taken" -v b="$sum" 'BEGIN { exit !(a > 34 && b / a < 1.03 && b / a > 0.97) }'
    }
    held --threads 1
    held --ranks 2 --threads 3 -s order.padding=no
    held -s precision.head_fp8=yes -s precision.head_weight=fp8 -s precision.adam_states=bf16
    held -r record-74 --ranks 2 -s model.bigram_rows=496 -s model.heads=2 -s model.head_dim=32 \
        -s model.mlp_width=64 -s model.block=32 -s data.bos=-1
    held --ranks 2 -s data.val_tokens=0
}

# Attention's and the MLP's banks of tiny end in matrices that no layer reads.
@test "5: --plan counts what is sent without padding" {
    sent() { "$GPT_BIN/gpt-train" --plan -r record-74 --ranks 8 "$@" | awk '/^step without Adam/ { print $NF }'; }
    awk -v all="$(sent -s order.padding=yes)" -v used="$(sent -s order.padding=no)" \
        'BEGIN { exit !(used > 0.8 * all && used < 0.99 * all) }'
}

# stderr says what is needed, what is there, and a number of micro-batches that takes no more than that.
would_fit() {
    [[ $stderr =~ needs\ ([0-9.]+)\ GiB,\ ([0-9.]+)\ available\;\ data\.chunks=(16|32)\ would\ need\ ([0-9.]+)\ \(--fit ]] &&
        awk -v a="${BASH_REMATCH[1]}" -v b="${BASH_REMATCH[2]}" -v c="${BASH_REMATCH[4]}" 'BEGIN { exit !(a > b && b >= c) }'
}

@test "9: a run that does not fit into memory is refused before it begins, with what would fit" {
    few_shards
    run --separate-stderr bash -c "ulimit -v 6000000; '$GPT_BIN/gpt-train' -d shards -r record-61 -s data.val_tokens=0"
    echo "$status $stderr"
    [ "$status" -eq 4 ]
    [ -z "$output" ]
    [[ $stderr =~ needs\ [0-9.]+\ GiB,\ [0-9.]+\ available\;\ no\ number\ of\ micro-batches\ would\ fit$ ]]
    # More micro-batches do; --fit takes them, and the log's recipe has them.
    wide=("${FEW[@]}" -s schedule.steps=1 -s "stages.0=131072 3 512 1 1" -s data.val_tokens=0)
    base=50000 # KiB that the program takes by itself: 100 MB, or 2 GB of GPU libraries
    until (ulimit -v $base; "$GPT_BIN/gpt-train" -V >/dev/null 2>&1); do base=$((base + 50000)); done
    most=$((base + 650000))
    run --separate-stderr bash -c "ulimit -v $most; '$GPT_BIN/gpt-train' --threads 1 $(printf '%q ' "${wide[@]}")"
    echo "$status $stderr"
    [ "$status" -eq 4 ]
    would_fit
    run --separate-stderr "$GPT_BIN/gpt-train" --threads 1 "${wide[@]}" --memory 500Mi
    echo "$status $stderr"
    [ "$status" -eq 4 ]
    [ -z "$output" ]
    would_fit
    [ "${BASH_REMATCH[2]}" = 0.5 ]
    run --separate-stderr "$GPT_BIN/gpt-train" --fit --memory 500Mi --threads 1 --bench 1 "${wide[@]}"
    echo "$status $stderr $output"
    [ "$status" -eq 0 ]
    [[ $stderr = *"(--fit takes it)"* ]]
}

# Words that a command refuses with a message on stderr.
refused() { # STATUS MESSAGE PROGRAM ARGUMENT...
    tool "${@:3}"
    echo "$status $stderr"
    [ "$status" -eq "$1" ]
    [[ $stderr = *"$2"* ]]
    [ -z "$output" ]
}

@test "13: a mistyped key, section, option, verb or name is named, with the nearest one" {
    sed 's/^heads = /hedas = /' "$GPT_SHARE/recipes/tiny.recipe" >key.recipe
    sed 's/^\[schedule\]/[shedule]/' "$GPT_SHARE/recipes/tiny.recipe" >section.recipe
    sed 's/^lm_head /lm_haed /' "$GPT_SHARE/recipes/tiny.recipe" >label.recipe
    refused 3 "key.recipe:8: model.hedas: unknown key, did you mean 'heads'?" gpt-train --plan -r key.recipe
    refused 3 ": unknown section 'shedule', did you mean 'schedule'?" gpt-train --plan -r section.recipe
    refused 3 ".lm_haed: the model has no such parameter, did you mean 'lm_head'?" gpt-train --plan -r label.recipe
    refused 2 "--set model.hedas=4: unknown key, did you mean 'heads'?" gpt-train --plan -r tiny -s model.hedas=4
    refused 2 "unknown option --plna, did you mean '--plan'?" gpt-train --plna -r tiny
    refused 2 "found 'verfy', did you mean 'verify'?" gpt-ckpt verfy x
    refused 2 "did you mean 'record-61'?" ns-coeffs eval recrod-61
    refused 2 "did you mean 'record-61'?" gpt-train --plan -r recrod-61
}

@test "13: a fault that --set made names it, with status 2" {
    refused 2 "--set model.heads=5: tiny:" gpt-train --plan -r tiny -s schedule.steps=9 -s model.heads=5
}

@test "14: recipes have names, which --recipes lists" {
    tool gpt-train --recipes
    [ "$status" -eq 0 ]
    [ "$(cut -f1 <<<"$output" | sort)" = "$(basename -s .recipe "$GPT_SHARE"/recipes/*.recipe | sort)" ]
    for name in $(cut -f1 <<<"$output"); do
        "$GPT_BIN/gpt-train" --plan -r "$name" >by_name
        "$GPT_BIN/gpt-train" --plan -r "$GPT_SHARE/recipes/$name.recipe" | diff - by_name
    done
}
