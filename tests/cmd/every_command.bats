#!/usr/bin/env bats
# What every command does alike: help, versions, exit codes, completion, outputs that are complete or absent,
# standard streams that are closed or full, messages. base_tool is a command of nothing else.

bats_require_minimum_version 1.5.0
load few_steps
load logdiff

setup() {
    tool=$GPT_TESTS/base_tool
    # a directory of our own: bats keeps files in its own
    mkdir "$BATS_TEST_TMPDIR/d" && cd "$BATS_TEST_TMPDIR/d"
    printf 'some text\n' >in
}

# The files left in the directory, besides the input.
left() { ls -A | grep -v '^in$' | tr '\n' ' '; }

@test "--help: usage and every option on stdout, nothing on stderr, exit 0" {
    run --separate-stderr "$tool" --help
    [ "$status" -eq 0 ]
    [ -z "$stderr" ]
    [ "${lines[0]}" = 'Usage: base_tool [OPTION]... [FILE]' ]
    [[ $output == *'  -o, --output=FILE         write to FILE'* ]]
    [[ $output == *'      --repeat=N            write everything N times'* ]]
    [[ $output == *$'\n\nFor the test:\n'* ]]
    [[ $output == *$'      --an-option-with-a-long-name=ARG\n                            nothing'* ]]
    [[ $output == *'  -h, --help                show this help and exit'* ]]
    [[ $output != *hidden* && $output != *completion-words* ]]
    # long texts are broken at 80 columns, and only there
    [[ $output == *$'long text'* || $output == *$'a text so\n'* || $output == *$' with a\n'* ]]
    [ "$(awk 'length > 80' <<<"$output")" = '' ]
    run --separate-stderr "$tool" -h
    [ "$status" -eq 0 ]
}

@test "--version: compiler, zstd and what the program adds" {
    run --separate-stderr "$tool" --version
    [ "$status" -eq 0 ]
    [[ ${lines[0]} =~ ^base_tool\ [0-9]+\.[0-9]+\.[0-9]+$ ]]
    [ "${lines[1]}" = 'commit: unknown' ] # it is linked without
    [[ ${lines[2]} =~ ^program:\ [0-9a-f]{40}$ ]]
    [[ ${lines[3]} =~ ^compiler:\ (gcc|clang)\ [0-9]+ ]]
    [[ ${lines[4]} =~ ^zstd:\ 1\.[0-9]+ ]]
    [ "${lines[5]}" = 'nccl: none' ]
    [ -z "$stderr" ]
}

@test "--completion-words: names and arguments, one a line" {
    run --separate-stderr "$tool" --completion-words
    [ "$status" -eq 0 ]
    [ "${lines[0]}" = $'--output\tFILE' ]
    [ "${lines[1]}" = $'-o\tFILE' ]
    [ "${lines[2]}" = $'--force\t' ]
    [[ $output == *$'--help\t'* && $output != *hidden* ]]
}

@test "a mistake in the command line: message and hint on stderr, nothing on stdout, exit 2" {
    run --separate-stderr "$tool" --frobnicate
    [ "$status" -eq 2 ]
    [ -z "$output" ]
    [ "${stderr_lines[0]}" = 'base_tool: unknown option --frobnicate' ]
    [ "${stderr_lines[1]}" = "Try 'base_tool --help'." ]
    run --separate-stderr "$tool" a b
    [ "$status" -eq 2 ]
    [ "${stderr_lines[0]}" = 'base_tool: expected one file, found 2' ]
}

@test "a missing input is exit 4 and names the file; nothing is left" {
    run --separate-stderr "$tool" -o out none
    [ "$status" -eq 4 ]
    [ "$stderr" = "base_tool: cannot open 'none': No such file or directory" ]
    [ "$(left)" = '' ]
}

@test "plain, zstd and gzip inputs, from a file and from stdin" {
    zstd -q in -o in.zst && gzip -k in
    for f in in in.zst in.gz; do
        run --separate-stderr "$tool" "$f"
        [ "$status" -eq 0 ]
        [ "$output" = 'some text' ]
        run --separate-stderr "$tool" - <"$f"
        [ "$status" -eq 0 ]
        [ "$output" = 'some text' ]
        run --separate-stderr bash -c "cat $f | { sleep 0.1; '$tool'; }"
        [ "$output" = 'some text' ]
    done
}

@test "a truncated input is exit 3, and its output does not appear" {
    zstd -q in -o in.zst
    head -c 15 in.zst >cut.zst
    rm in.zst
    run --separate-stderr "$tool" -o out cut.zst
    [ "$status" -eq 3 ]
    [ "$stderr" = 'base_tool: cut.zst: offset 15: expected the rest of a zstd frame, found the end of the file' ]
    [ "$(left)" = 'cut.zst ' ]
}

@test "an existing output is kept without --force and replaced with it" {
    echo old >out
    run --separate-stderr "$tool" -o out in
    [ "$status" -eq 4 ]
    [[ $stderr == *"cannot write 'out': it exists (--force replaces it)"* ]]
    [ "$(cat out)" = old ]
    run --separate-stderr "$tool" -f -o out in
    [ "$status" -eq 0 ]
    [ "$(cat out)" = 'some text' ]
    [ "$(left)" = 'out ' ]
}

@test "a signal removes the temporary and ends the program as the signal would" {
    for sig in INT TERM HUP; do
        # a background job of a script ignores SIGINT, and the tool respects that
        rm -f err pid
        setsid env --default-signal=INT,TERM,HUP "$tool" --hold -o out in 2>err &
        pid=$!
        for _ in $(seq 100); do
            grep -q holding err 2>/dev/null && break
            sleep 0.05
        done
        grep -q holding err
        ls | grep -q '^out\..*\.tmp$'
        kill -"$sig" "$pid"
        run wait_for "$pid"
        [ "$(left)" = 'err ' ]
    done
}

wait_for() {
    for _ in $(seq 100); do
        kill -0 "$1" 2>/dev/null || return 0
        sleep 0.05
    done
    return 1
}

@test "the exit status after a signal is the signal's" {
    run --separate-stderr timeout -s TERM 1 env --default-signal=INT,TERM,HUP "$tool" --hold -o out in
    [ "$status" -eq 124 ]
    run --separate-stderr bash -c "'$tool' --hold -o out in & sleep 0.5; kill -TERM \$!; wait \$!"
    [ "$status" -eq 143 ]
    [ "$(left)" = '' ]
}

@test "/dev/full as stdout or as the output is exit 4, with the reason" {
    run --separate-stderr bash -c "'$tool' in >/dev/full"
    [ "$status" -eq 4 ]
    [[ $stderr == 'base_tool: cannot write standard output: No space left on device' ]]
    run --separate-stderr "$tool" -o /dev/full in
    [ "$status" -eq 4 ]
    [[ $stderr == *"cannot write '/dev/full': No space left on device" ]]
    [ -c /dev/full ]
    run --separate-stderr bash -c "'$tool' --help >/dev/full"
    [ "$status" -eq 4 ]
    [ "$stderr" = 'base_tool: cannot write standard output: No space left on device' ]
}

@test "a closed stdout is an error for who writes, and no file is taken for it" {
    run --separate-stderr bash -c "'$tool' in >&-"
    [ "$status" -eq 4 ]
    [[ $stderr == *'standard output'*': Bad file descriptor' ]]
    run --separate-stderr bash -c "'$tool' -o out in >&- 2>&-"
    [ "$status" -eq 0 ]
    [ "$(cat out)" = 'some text' ]
    run --separate-stderr bash -c "'$tool' <&-"
    [ "$status" -eq 4 ]
    [[ $stderr == *'cannot read'*': Bad file descriptor' ]]
}

@test "a reader that stops early ends the program quietly" {
    run --separate-stderr bash -c "set -o pipefail; '$tool' --repeat=1M in | head -1"
    [ "$status" -eq 141 ]
    [ "$output" = 'some text' ]
    [ -z "$stderr" ]
}

@test "progress is drawn on a terminal or when forced, and never in a pipe" {
    run --separate-stderr "$tool" in
    [ -z "$stderr" ]
    run --separate-stderr "$tool" --progress in
    [ "$stderr" = $'\rcopying in\r\r          \r' ]
    [ "$output" = 'some text' ]
}

@test "completion offers options, choices and files from the table" {
    mkdir bin && ln -s "$tool" bin/gpt-train
    run --separate-stderr bash -c "PATH=\$PWD/bin:\$PATH; . '$GPT_SHARE/completion.bash'
        COMP_WORDS=(gpt-train --ou) COMP_CWORD=1; _gpt_tools gpt-train; echo \"\${COMPREPLY[*]}\"
        COMP_WORDS=(gpt-train --output = i) COMP_CWORD=3; _gpt_tools gpt-train; echo \"\${COMPREPLY[*]}\"
        COMP_WORDS=(gpt-train i) COMP_CWORD=1; _gpt_tools gpt-train; echo \"\${COMPREPLY[*]}\"
        COMP_WORDS=(gpt-train --repeat '') COMP_CWORD=2; _gpt_tools gpt-train; echo \"<\${COMPREPLY[*]}>\""
    [ "$status" -eq 0 ]
    [ "${lines[0]}" = '--output' ]
    [ "${lines[1]}" = 'in' ]
    [ "${lines[2]}" = 'in' ]
    [ "${lines[3]}" = '<>' ]            # a number is no file
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

@test "shells offer table names, recipe names and keys of --set, from the tables of options" {
    mkdir "$BATS_TEST_TMPDIR/none" && cd "$BATS_TEST_TMPDIR/none" # files are offered, too
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

@test "the last of an option that is given twice counts, as gpt-tools(7) says" {
    grep -A1 'given twice' "$ROOT/man/gpt-tools.7" | grep -q 'the last counts'
    tool ns-coeffs list --format json --format tsv
    [ "${lines[0]}" = $'name\trows\tinput\tabout\tsource' ]
}

@test "a missing value is empty in TSV, null in JSON, a dash in tables, whatever prints it" {
    "$GPT_TESTS/ckpt_make" "$GPT_SHARE/recipes/tiny.recipe" ckpt 36 1 1 1 model.vocab=512 model.heads=4 model.head_dim=16 \
        model.mlp_width=256
    "$GPT_TESTS/make_runlog" today loss=3.275 time_ms=7201 seed=1 >run1.txt
    C=ckpt/step-000036
    "$GPT_BIN/gpt-ckpt" export "$C" -o weights.safetensors
    printf 'losses = [3.1, 3.2]\n' >list.txt
    sed 's/ train_time:.*//; /^step:60/d' run1.txt >untimed.txt
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
gpt-logdiff -q -c -s -w list.txt run1.txt untimed.txt
gpt-logdiff -q -c -s -w run1.txt list.txt
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
    [ "$(cells runs last_step steps time_s clock_from_step resumed_from gpu <<<"$output" | sort -u)" = '     ' ]
    tool gpt-logdiff -q --format tsv run1.txt
    [ "$(cells runs last_step steps clock_from_step resumed_from <<<"$output")" = '60 60 0 ' ]
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

@test "no control character and no bad UTF-8 reaches a terminal in a message" {
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

@test "a mistyped key, section, option, verb or name is named, with the nearest one" {
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
