#!/usr/bin/env bats
# gpt-ckpt from outside: each verb on a checkpoint and on plain files, its exit codes, and what it
# does with damage, full disks and closed pipes.

bats_require_minimum_version 1.5.0
load ../check/needs
load few_steps

setup_file() {
    export CK=$BATS_FILE_TMPDIR
    small=(model.vocab=512 model.heads=4 model.head_dim=16 model.mlp_width=256)
    "$GPT_TESTS/ckpt_make" "$GPT_SHARE/recipes/tiny.recipe" "$CK/run" 10 2 1 1 "${small[@]}"
    "$GPT_TESTS/ckpt_make" "$GPT_SHARE/recipes/tiny.recipe" "$CK/run" 20 2 2 1 "${small[@]}"
    "$GPT_TESTS/ckpt_make" "$GPT_SHARE/recipes/tiny.recipe" "$CK/plain" 10 2 1 0 "${small[@]}"
}

setup() {
    cd "$BATS_TEST_TMPDIR"
    one=$CK/run/step-000010
}

ckpt() { run --separate-stderr "$GPT_BIN/gpt-ckpt" "$@"; }

# Changes one byte of a file in place.
flip() {
    local byte
    byte=$(od -An -tu1 -j "$2" -N 1 "$1")
    printf "$(printf '\\x%02x' $((byte ^ 16)))" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}

@test "ls: names of the model, a row a matrix, all bytes accounted for" {
    ckpt ls "$one"
    [ "$status" -eq 0 ]
    [ -z "$stderr" ]
    [ "${lines[0]}" = $'name\tstored\tdtype\tshape\tbytes\trank' ]
    grep -qxF $'layers.7.attn.k.momentum\tattn.momentum\tf32\t64x64\t16384\t1' <<<"$output"
    grep -qxF $'layers.0.mlp.proj.weight\tmlp.weight\tbf16\t256x64\t32768\t0' <<<"$output"
    grep -qxF $'layers.10.ve_gate.weight\tve_gate_bank.weight\tbf16\t4x12\t96\t0' <<<"$output"
    grep -qxF $'embed.exp_avg\tembed.exp_avg\tf32\t512x64\t131072\t0-1' <<<"$output"
    grep -q '^mlp.padding.22.weight' <<<"$output"
    [ "$(grep -c '^layers.6.attn' <<<"$output")" -eq 0 ]
    # bytes: weights 2, mantissa 2, momentum 4 and a row 4; Adam 2 + 8; fp32 4 + 8
    attn=$((40 * 64 * 64)) mlp=$((24 * 256 * 64)) rows=$((40 * 64 + 24 * 256))
    adam=$((5 * 512 * 64 + 2 * 12 + 15 * 4 * 12)) f32=$((36 + 11))
    want=$(((attn + mlp) * 8 + rows * 4 + adam * 10 + f32 * 12))
    [ "$(awk -F'\t' 'NR > 1 { n += $5 } END { print n }' <<<"$output")" -eq "$want" ]
}

@test "ls: a pattern holds against names, stored names and labels" {
    ckpt ls "$one" 'layers.3.*'
    [ "${#lines[@]}" -eq 28 ]           # a heading, 4 and 2 matrices of 4 kinds, a gate of 3
    ckpt ls "$one" 'attn.second_momentum'
    [ "${#lines[@]}" -eq 41 ]
    ckpt ls "$one" --bank x0_lambdas
    [ "${#lines[@]}" -eq 4 ]
    ckpt ls "$one" 'nothing*'
    [ "$status" -eq 3 ]
    [[ $stderr = *"no tensor matches 'nothing*'"* ]]
}

# bats test_tags=long
@test "json is json, and says the same as tsv" {
    needs python3
    for verb in ls info 'stat --bank attn' 'spectrum --bank attn --summary' "diff $CK/run/step-000020"; do
        set -- $verb
        v=$1
        shift
        "$GPT_BIN/gpt-ckpt" "$v" -q --format json "$@" "$one" >x.json || [ $? -eq 1 ]
        "$GPT_BIN/gpt-ckpt" "$v" -q --format tsv "$@" "$one" >x.tsv || [ $? -eq 1 ]
        rows=$(($(wc -l <x.tsv) - 1))
        [ "$rows" -gt 0 ]
        python3 - "$rows" "$(head -1 x.tsv)" <<'END'
import json, sys
rows = json.load(open("x.json"))
assert len(rows) == int(sys.argv[1]), len(rows)
assert all("\t".join(row) == sys.argv[2] for row in rows)
END
    done
}

@test "info: of a checkpoint, of a directory of them (the newest), of a file" {
    ckpt info "$one"
    [ "$status" -eq 0 ]
    grep -qxF $'step\t10' <<<"$output"
    grep -qxF $'ranks\t2' <<<"$output"
    grep -qxF $'recipe\ttiny' <<<"$output"
    grep -qxF $'loader.shard\t0' <<<"$output"
    ckpt info "$CK/run"
    grep -qxF $'step\t20' <<<"$output"
    ckpt info "$GPT_SHARE/../tests/golden/r61-forward-small.safetensors"
    [ "$status" -eq 0 ]
}

@test "stat: masters from bf16 and mantissa, as cat prints them" {
    ckpt stat "$one" layers.2.attn.v.weight
    [ "$status" -eq 0 ]
    "$GPT_BIN/gpt-ckpt" cat "$one" layers.2.attn.v.weight | tr '\t' '\n' >numbers
    [ "$(wc -l <numbers)" -eq 4096 ]
    # mean and rms to seven digits, from the text
    awk -F'\t' 'NR == FNR { n++; s += $1; q += $1 * $1; next }
                FNR == 2 { d = $6 - s / n; r = $7 - sqrt(q / n)
                           exit !(d * d < 1e-16 && r * r < 1e-16 && $2 ~ /mantissa/ && $11 > 0) }' \
        numbers <(printf '%s\n' "$output")
    ckpt stat "$one" layers.2.attn.v.weight --histogram
    [[ $output = *'2^-5 '*█* ]]
}

@test "spectrum: one value a line for ns-coeffs, a row a matrix otherwise" {
    ckpt spectrum "$one" --bank mlp
    [ "$status" -eq 0 ]
    [ "$(grep -c '^#' <<<"$output")" -eq 22 ]
    [ "${lines[0]}" = '# layers.0.mlp.fc.momentum 256x64' ]
    [ "$(grep -vc '^#' <<<"$output")" -eq $((22 * 64)) ]
    awk '/^#/ { last = 1e30; next } { if (!($1 > 0 && $1 <= last)) exit 1; last = $1 }' <<<"$output"
    ckpt spectrum "$one" --summary --of weight 'layers.*.attn.?.weight'
    [ "${#lines[@]}" -eq 41 ]
    ckpt spectrum "$one" --summary --of update --bank attn
    awk -F'\t' 'NR > 1 && !($4 < 1.15 && $11 < 0.2) { exit 1 }' <<<"$output"
    # AOL leaves nothing above 1, rounding of what it was computed in aside, and less of a spread
    ckpt spectrum "$one" --summary --of aol --bank mlp
    [ "$status" -eq 0 ]
    [ "${#lines[@]}" -eq 23 ]
    awk -F'\t' 'NR > 1 && !($4 <= 1.000001 && $4 > 0.3) { exit 1 }' <<<"$output"
}

@test "spectrum: the change since another checkpoint" {
    ckpt spectrum "$CK/run/step-000020" --since "$one" --bank attn --summary
    [ "$status" -eq 0 ]
    [ "${#lines[@]}" -eq 41 ]
    # |B - A| is what diff says
    max=$("$GPT_BIN/gpt-ckpt" diff -q "$one" "$CK/run/step-000020" layers.0.attn.q.weight |
        awk 'NR == 2 { printf "%.12g", $6 * 64 }')
    awk -F'\t' -v f="$max" 'NR == 2 { d = $7 / f - 1; exit !(d * d < 1e-12) }' <<<"$output"
    ckpt spectrum "$one" --since "$one" --bank attn
    [ "$(grep -c 'is zero$' <<<"$output")" -eq 40 ]
}

@test "spectrum: a picture" {
    ckpt spectrum "$one" --bank attn --plot x.svg
    [ "$status" -eq 0 ]
    [ -z "$output" ]
    [ "$(grep -c '<polyline' x.svg)" -eq 40 ]
    [ "$(tail -1 x.svg)" = '</svg>' ]
    ckpt spectrum "$one" --bank attn --plot x.svg
    [ "$status" -eq 4 ]
    [[ $stderr = *--force* ]]
}

@test "diff: 0 the same, 1 differs, tolerance, one table for files of both kinds" {
    ckpt diff "$one" "$CK/plain/step-000010"
    [ "$status" -eq 0 ]
    [ "${#lines[@]}" -eq 1 ]
    ckpt diff "$one" "$CK/run/step-000020"
    [ "$status" -eq 1 ]
    [[ $stderr = *"step: 10 in A, 20 in B"* ]]
    ckpt diff "$one" "$CK/run/step-000020" 'layers.0.attn.q.weight' --tolerance 2
    [ "$status" -eq 0 ]
    [[ ${lines[1]} = *$'\twithin\t'* ]]
    ckpt diff "$one" nowhere
    [ "$status" -eq 4 ]
}

@test "verify: sound, quick and full" {
    for dir in "$CK/run" "$CK/plain/step-000010"; do
        ckpt verify "$dir"
        [ "$status" -eq 0 ]
        ckpt verify --full "$dir"
        [ "$status" -eq 0 ]
        [[ $output = "$dir"*": sound" ]]
    done
    ckpt verify --full "$CK/run"         # of several, the one that was read
    [ "$output" = "$CK/run/step-000020: sound" ]
    ckpt verify --full "$GPT_SHARE/../tests/golden/r61-optimizer-small.safetensors"
    [ "$status" -eq 0 ]
}

@test "verify: damage is named with file, tensor and offset" {
    cp -r "$CK/plain/step-000010" bad
    at=$(awk '$1 == "tensor" && $2 == "mlp.momentum" && $7 == "rank1.safetensors" { print $8 }' bad/MANIFEST)
    flip bad/rank1.safetensors $((at + 1000))
    ckpt verify bad
    [ "$status" -eq 0 ]                 # without --full no data is read
    ckpt verify --full bad
    [ "$status" -eq 1 ]
    [[ $output = *"tensor 'mlp.momentum', units 12:24: bad/rank1.safetensors: offset $at: "* ]]
    cp -r "$one" bad2
    size=$(stat -c %s bad2/rank0.safetensors.zst)
    flip bad2/rank0.safetensors.zst $((size / 2))
    flip bad2/rank1.safetensors.zst $((size / 3))
    ckpt verify --full bad2
    [ "$status" -eq 1 ]
    [[ $output = *rank0.safetensors.zst* && $output = *rank1.safetensors.zst* ]]
    [[ ${lines[0]} = *tensor*offset* ]]
    ckpt stat bad2                      # others refuse
    [ "$status" -eq 3 ]
}

@test "verify: a number that is not finite, a tensor that the recipe does not know" {
    printf '\x40\0\0\0\0\0\0\0{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}          ' >n.safetensors
    printf '\0\0\x80\x3f\0\0\x80\x7f' >>n.safetensors
    ckpt verify n.safetensors
    [ "$status" -eq 0 ]
    ckpt verify --full n.safetensors
    [ "$status" -eq 1 ]
    [[ $output = *"tensor 'x': element 1 (byte 4 of its data) is not finite"* ]]
    "$GPT_TESTS/ckpt_make" "$GPT_SHARE/recipes/tiny.recipe" odd 1 1 1 1 model.vocab=512
    sed -i 's/^tensor skip_gate.weight/tensor skip_gaze.weight/' odd/step-000001/MANIFEST
    ckpt verify odd
    [ "$status" -eq 1 ]
    [[ $output = *"MANIFEST: expected XXH3"* ]]
}

@test "no MANIFEST, a cut file, a missing file" {
    cp -r "$one" bad
    rm bad/MANIFEST
    ckpt ls bad
    [ "$status" -eq 3 ]
    [[ $stderr = *"has no MANIFEST"* ]]
    cp -r "$one" cut
    truncate -s -1 cut/rank1.safetensors.zst
    ckpt ls cut
    [ "$status" -eq 3 ]
    [[ $stderr = *"cut/rank1.safetensors.zst: expected "*" bytes, found "* ]]
    rm cut/rank1.safetensors.zst
    ckpt info cut
    [ "$status" -eq 3 ]
    [[ $stderr = *"MANIFEST lists it, but it is missing"* ]]
}

# bats test_tags=long
@test "reshard: 2 to 4 to 8 to 1 to 2, to 3 to 50 to 2 ranks, the same bytes again" {
    from=$one
    for n in 4 8 1 2; do
        ckpt reshard "$from" --ranks $n -o "to$n"
        [ "$status" -eq 0 ]
        from=to$n
        ckpt verify --full "to$n"
        [ "$status" -eq 0 ]
        ckpt diff "$one" "to$n"
        [ "$status" -eq 0 ]
    done
    diff -r "$one" to2/step-000010
    for n in 3 50 2; do # shares differ, and some of 50 ranks own no matrix
        ckpt reshard "$from" --ranks $n -o "uneven$n"
        [ "$status" -eq 0 ]
        from=uneven$n
        ckpt verify --full "uneven$n"
        [ "$status" -eq 0 ]
        ckpt diff "$one" "uneven$n"
        [ "$status" -eq 0 ]
    done
    diff -r "$one" uneven2/step-000010
    ckpt reshard "$one" --ranks 4 -o to4
    [ "$status" -eq 4 ]
    [[ $stderr = *--force* ]]
}

# bats test_tags=long
@test "export and import: the same bytes again, through safetensors, plain and zst" {
    for f in e.safetensors e.safetensors.zst; do
        ckpt export "$one" -o $f --states --padding
        [ "$status" -eq 0 ]
        ckpt diff "$one" $f
        [ "$status" -eq 0 ]
        ckpt import $f -o "from-$f" --ranks 2
        [ "$status" -eq 0 ]
        [ -z "$stderr" ]
        diff -r "$one" "from-$f/step-000010"
    done
}

@test "export: weights alone, as fp32 and as bf16; import says what is missing" {
    ckpt export "$one" -o f32.safetensors
    [ "$status" -eq 0 ]
    ckpt export "$one" -o bf16.safetensors --dtype bf16
    ckpt ls f32.safetensors
    grep -qxF $'layers.0.attn.q.weight\tlayers.0.attn.q.weight\tf32\t64x64\t16384\t' <<<"$output"
    grep -qF $'layers.3.residual.weight\t' <<<"$output"
    run ! grep -q padding <<<"$output"
    run ! grep -q momentum <<<"$output"
    ckpt ls bf16.safetensors
    grep -qxF $'layers.0.attn.q.weight\tlayers.0.attn.q.weight\tbf16\t64x64\t8192\t' <<<"$output"
    # bf16 are the stored weights: the masters cut, not rounded
    "$GPT_BIN/gpt-ckpt" cat --raw bf16.safetensors layers.0.attn.q.weight >a
    "$GPT_BIN/gpt-ckpt" cat --raw "$one" 'attn.weight[0]' >b
    cmp a b
    ckpt import bf16.safetensors -o w --ranks 4
    [ "$status" -eq 0 ]
    [[ $stderr = *"weights only"* ]]
    ckpt diff "$one" w '*.exp_avg'
    [ "$status" -eq 1 ]
    ckpt diff "$one" w 'embed.weight'
    [ "$status" -eq 0 ]
    ckpt import "$GPT_SHARE/../tests/golden/r61-forward-small.safetensors" -o g
    [ "$status" -eq 3 ]
    [[ $stderr = *"carries no recipe; --recipe or --like gives one"* ]]
    ckpt import "$GPT_SHARE/../tests/golden/r61-forward-small.safetensors" -o g --like "$one"
    [ "$status" -eq 3 ]
    [[ $stderr = *"expected a tensor "*", found none"* ]]
    [ ! -e g ]
}

@test "rm: keeps the last and every so many, names what goes" {
    for step in 100 200 300 400 500; do
        cp -r "$one" "$(printf 'r-tmp')" && mkdir -p r && mv r-tmp "$(printf 'r/step-%06d' $step)"
    done
    mkdir r/step-000250                  # incomplete
    ckpt rm r --keep-last 2 --keep-every 200 --dry-run
    [ "$status" -eq 0 ]
    [ "$output" = $'step-000100\nstep-000300' ]
    [ -e r/step-000100 ]
    run --separate-stderr bash -c '"$GPT_BIN/gpt-ckpt" rm r --keep-last 1 > /dev/full'
    [ "$status" -eq 4 ]                  # and nothing is gone that is not named
    [ "$(cd r && echo *)" = "step-000100 step-000200 step-000250 step-000300 step-000400 step-000500" ]
    ckpt rm r --keep-last 2 --keep-every 200
    [ "$output" = $'step-000100\nstep-000300' ]
    [ "$(cd r && echo *)" = "step-000200 step-000250 step-000400 step-000500" ]
    ckpt rm r
    [ "$status" -eq 2 ]
    ckpt rm r --keep-last 0
    [ "$status" -eq 2 ]
}

@test "streams: a compressed file, standard input" {
    zstd -q "$GPT_SHARE/../tests/golden/r61-forward-small.safetensors" -o g.safetensors.zst
    "$GPT_BIN/gpt-ckpt" stat "$GPT_SHARE/../tests/golden/r61-forward-small.safetensors" >a
    "$GPT_BIN/gpt-ckpt" stat g.safetensors.zst >b
    "$GPT_BIN/gpt-ckpt" stat - <g.safetensors.zst >c
    zstd -dcq g.safetensors.zst | "$GPT_BIN/gpt-ckpt" stat - >d
    [ "$(wc -l <a)" -gt 20 ]
    cmp a b
    cmp a c
    cmp a d
}

@test "a full disk, a closed pipe, an unwritable directory" {
    run --separate-stderr bash -c '"$GPT_BIN/gpt-ckpt" ls "$1" >/dev/full' - "$one"
    [ "$status" -eq 4 ]
    [[ $stderr = *"No space left on device"* ]]
    run bash -c 'set -o pipefail; "$GPT_BIN/gpt-ckpt" cat "$1" embed.weight | head -1 >/dev/null' - "$one"
    [ "$status" -ne 0 ]
    ckpt export "$one" -o /dev/full
    [ "$status" -eq 4 ]
    ckpt reshard "$one" --ranks 1 -o /proc/none
    [ "$status" -eq 4 ]
}

@test "usage: each mistake is told, with status 2" {
    ckpt
    [ "$status" -eq 2 ]
    ckpt look "$one"
    [ "$status" -eq 2 ]
    [[ $stderr = "gpt-ckpt: expected ls, info, "*" or rm first, found 'look'"* ]]
    ckpt --format json ls "$one"         # the verb is not first
    [ "$status" -eq 2 ]
    [[ $stderr = *"first, found '--format'"* ]]
    ckpt ls
    [ "$status" -eq 2 ]
    ckpt ls "$one" --ranks 2             # another verb's option
    [ "$status" -eq 2 ]
    [[ $stderr = *"--ranks is not an option of ls"* ]]
    ckpt ls "$one" -n                    # the same by its letter
    [ "$status" -eq 2 ]
    [[ $stderr = *"--dry-run is not an option of ls"* ]]
    for option in --help --version --completion-words; do
        ckpt look $option                # no help of a verb that there is not
        [ "$status" -eq 2 ]
        [ -z "$output" ]
    done
    ckpt info "$one" more
    [ "$status" -eq 2 ]
    ckpt reshard "$one" --ranks 2
    [ "$status" -eq 2 ]
    ckpt spectrum --help
    [ "$status" -eq 0 ]
    [[ $output = *--since* && $output != *--keep-last* ]]
}

@test "options that contradict each other or would do nothing are refused, and nothing is written" {
    mkdir here && cd here
    while IFS='|' read -r args part; do
        echo "$args"
        # shellcheck disable=SC2086
        ckpt $args
        [ "$status" -eq 2 ]
        [ -z "$output" ]
        [[ $stderr = *"$part"*"Try 'gpt-ckpt "* ]]
        [ -z "$(ls -A)" ]
    done <<END
ls $one embed* --bank attn|a pattern beside --bank
diff $one $one embed* --bank attn|a pattern beside --bank
stat $one --histogram --format json|--histogram beside --format
spectrum $one --values --summary|--values beside --summary
spectrum $one --values --format json|--values beside --format
spectrum $one --of update --since $one|--of beside --since
spectrum $one --plot - --summary|--plot - beside --summary
spectrum $one --quiet --progress|--quiet beside --progress
spectrum - --since -|read once only
diff - -|read once only
export $one -o m.npz|-o m.npz: expected another name, for safetensors
export $one -o m.npz.zst|-o m.npz.zst: expected another name, for safetensors
export $one -o m.pt|-o m.pt: expected another name, for safetensors
export $one -o m.safetensors.gz|-o m.safetensors.gz: expected another name, for safetensors
export $one --level 3 -o m.safetensors|'m.safetensors' is written plain
reshard $one --ranks 1 -o -|'-': expected a directory
reshard $one -o r|expected --ranks N
export $one|expected -o FILE
END
}

@test "the wrong kind of file or folder is said to be that" {
    ckpt ls "$GPT_SHARE/recipes/tiny.recipe"
    [ "$status" -eq 3 ]
    [[ $stderr = *"tiny.recipe: offset 0: "*": no safetensors file" ]]
    mkdir shards && echo 'format: gpt-shards 2' >shards/MANIFEST
    ckpt info shards
    [ "$status" -eq 3 ]
    [[ $stderr = *"expected 'gpt checkpoint 1', found 'format: gpt-shards 2'" ]]
    ckpt rm shards --keep-last 1
    [ "$status" -eq 3 ]
    [[ $stderr = *"shards: holds no complete checkpoint"* ]]
    ckpt import "$one" -o i
    [ "$status" -eq 3 ]
    [[ $stderr = *"is a checkpoint already"* ]]
    [ ! -e i ]
}

@test "export: into a pipe what is in the file" {
    ckpt export "$one" -o m.safetensors
    [ "$status" -eq 0 ]
    "$GPT_BIN/gpt-ckpt" stat m.safetensors >a
    "$GPT_BIN/gpt-ckpt" export "$one" -o /dev/stdout | "$GPT_BIN/gpt-ckpt" stat - >b
    cmp a b
}

# The literal block of the page of gpt-ckpt that has the text.
example_with() {
    awk -v part="$1" '/^\.Bd/ { text = ""; next }
                      /^\.Ed/ { if (index(text, part)) printf "%s", text; text = ""; next }
                      { text = text $0 "\n" }' "$GPT_SHARE/../man/gpt-ckpt.1"
}

# bats test_tags=long
@test "an .npz of NumPy is refused by its name, and the page's example makes safetensors of it" {
    needs numpy
    python=$(numpy)
    "$python" -c "import numpy as n
n.savez('model.npz', **{'a.weight': n.float32([[1, -2.5], [3, 4]]), 'b': n.int64(7), 'none': n.zeros((0, 3))})"
    refused="a .pt of PyTorch, an .npz of NumPy, or another zip: expected safetensors, which safetensors.torch.save_file makes of a .pt's tensors, the last example of gpt-ckpt(1) of an .npz"
    ckpt ls model.npz
    [ "$status" -eq 3 ]
    [ -z "$output" ]
    [ "$stderr" = "gpt-ckpt ls: model.npz: $refused" ]
    run --separate-stderr "$GPT_BIN/gpt-ckpt" ls - <model.npz
    [ "$status" -eq 3 ]
    [ "$stderr" = "gpt-ckpt ls: -: $refused" ]
    example_with .npz | sed "s|^python3|'$python'|" >convert
    grep -q model.safetensors convert
    sh -eu convert
    ckpt cat model.safetensors a.weight
    [ "$output" = $'1\t-2.5\n3\t4' ]
    ckpt cat model.safetensors b
    [ "$output" = 7 ]
    ckpt ls model.safetensors --format tsv
    [ "${#lines[@]}" -eq 4 ]
}

@test "the page's example: NumPy reads the numbers of an export that cat prints" {
    python=$(numpy)
    [ -n "$python" ] || skip 'no NumPy'
    example_with "numpy.frombuffer" | sed "s|^python3|'$python'|; s|^gpt-ckpt|'$GPT_BIN/gpt-ckpt'|; s| run | '$one' |" >show
    run --separate-stderr sh -eu show
    [ "$status" -eq 0 ]
    [ -z "$stderr" ]
    [ "${#lines[@]}" -eq 2 ]
    "$python" -c "import sys
a, b = sys.argv[1].split(), sys.argv[2].strip('[]').split()
sys.exit(not (len(a) == len(b) == 4 and all(abs(float(x) - float(y)) <= 1e-6 * abs(float(x)) for x, y in zip(a, b))))" \
        "${lines[0]}" "${lines[1]}"
}

@test "completion: verbs first, then the verb's own options" {
    run --separate-stderr bash -c "PATH=$GPT_BIN:\$PATH; . '$GPT_SHARE/completion.bash'
        try() { COMP_WORDS=(\"\$@\") COMP_CWORD=\$((\$# - 1)); _gpt_tools \$1; echo \"\${COMPREPLY[*]}\"; }
        try gpt-ckpt sp; try gpt-ckpt verify --f; try gpt-ckpt spectrum --of = m; try ns-coeffs fit --obj"
    [ "$status" -eq 0 ]
    [ "$output" = $'spectrum\n--full\nmomentum\n--objective' ]
}

# bats test_tags=long
@test "a run's own checkpoint: sound, and NumPy finds its validation loss in the export" {
    root=$GPT_SHARE/..
    "$GPT_BIN/gpt-tokshard" -q --tokenizer byte --val-tokens 8192 -o shards \
        "$root"/man/*.[157] "$root"/lib/*/*.h
    "$GPT_BIN/gpt-train" -r "$GPT_SHARE/recipes/tiny.recipe" -d shards -o run -q --ranks 2 \
        -s model.vocab=272 -s schedule.steps=6 -s schedule.extension=1 -s data.val_every=7 \
        -s data.val_tokens=2048 -s data.val_chunk=1024 -s data.checkpoint_every=0 \
        -s "stages.0=1024 3 512 1 1,0.5,0.25>0" -s "stages.1=1024 7 512 1.52 1,0.5>0" \
        -s "stages.2=1024 11 512 1.73 1" -s "stages.3=1024 13 512 - 1" >run.log
    ckpt verify --full run
    [ "$status" -eq 0 ]
    ckpt stat run '*.weight'
    awk -F'\t' 'NR > 1 && !($11 >= 0 && $11 < 1000) { exit 1 }' <<<"$output"     # all are known
    needs numpy
    ckpt export run --dtype bf16 -o m.safetensors
    [ "$status" -eq 0 ]
    found=$("$(numpy)" "$root/examples/numpy_loss.py" m.safetensors shards/*_val_*.bin 2048 1024)
    logged=$(sed -n 's/^step:7.*val_loss:\([0-9.]*\).*/\1/p' run.log)
    # four digits are logged; rotary angles differ in their last bits
    awk -v a="$found" -v b="$logged" 'BEGIN { d = a - b; exit !(d * d < 1e-4 * 1e-4 && b > 1) }'
}

# bats test_tags=long
@test "what import makes is sound and continues, or is refused: verify and gpt-train agree" {
    few -s data.checkpoint_every=4 -o run > run.log
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
            ckpt import $file.safetensors --recipe $r -o made --force
            [ "$status" -eq 0 ]
            ckpt verify --full made
            [ "$status" -eq 0 ]
            tool gpt-train -d shards --resume made -q
            [ "$status" -eq 0 ]
        done
    done
    ckpt import all.safetensors --recipe adam.recipe -o new
    ckpt info new
    grep -qxF $'adam.mlp.updates\t0' <<<"$output"
    grep -qxF $'adam.lm_head.updates\t2' <<<"$output" # its moments are the file's
    ckpt import weights.safetensors --like run/step-000004 -o counts
    ckpt info counts
    [[ $output = *$'adam.lm_head.updates\t0'* ]] # counts of moments that begin at zero
    sed 's/^steps = .*/steps = 2/' $recipe >short.recipe
    ckpt import all.safetensors --recipe short.recipe -o short
    [ "$status" -eq 3 ]
    [[ $stderr = *"step 4, but the recipe ends at 3"* ]]
    [ ! -e short ]
}

# Gives the MANIFEST of a checkpoint, which was changed, the hash that it has now.
resign() {
    ckpt verify "$1"
    hash=${output##*found }
    sed -i "s/^end .*/end ${hash:0:32}/" "$1/MANIFEST"
}

@test "a line of state that gpt-train needs and that is missing is a fault" {
    for key in adam.embed.updates loader.shard; do
        cp -r "$one" $key
        sed -i "/^state $key /d" $key/MANIFEST
        resign $key
        ckpt verify $key
        [ "$status" -eq 1 ]
        [[ $output = *"expected a line 'state $key', found none"* ]]
    done
}

@test "a checkpoint under the name of another step is not sound, whatever reads it" {
    mkdir r
    cp -r "$one" r/step-000001
    for path in r r/step-000001 r/step-000001/; do
        ckpt verify $path
        [ "$status" -eq 1 ]
        [[ $output = *"named as step 1, but MANIFEST says step 10"* ]]
    done
    ckpt info r
    [ "$status" -eq 3 ]
    mv r/step-000001 r/copy # a name that says no step
    ckpt verify --full r/copy
    [ "$status" -eq 0 ]
}
