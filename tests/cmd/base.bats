#!/usr/bin/env bats
# What every command has from lib/base and only a process can show: help, versions, exit codes,
# outputs that are complete or absent, standard streams that are closed or full.

bats_require_minimum_version 1.5.0
load ../check/needs

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
    [[ ${lines[1]} =~ ^compiler:\ (gcc|clang)\ [0-9]+ ]]
    [[ ${lines[2]} =~ ^zstd:\ 1\.[0-9]+ ]]
    [ "${lines[3]}" = 'nccl: none' ]
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

# One count: each source's kernels are there for every one of them.
@test "gpt-train holds code for each GPU that it was built for" {
    flags=$GPT_BIN/../nvcc-flags
    needs cuda
    run --separate-stderr "$BATS_TEST_DIRNAME/../fatbin" "$GPT_BIN/gpt-train"
    [ "$status" -eq 0 ]
    [ -n "$output" ]
    [ "$(cut -d' ' -f1 <<< "$output")" = "$(grep -o 'code=[a-z]*_[0-9]*' "$flags" | sed 's/code=compute/ptx/; s/code=//' | sort -u)" ]
    [ "$(cut -d' ' -f2 <<< "$output" | sort -u | wc -l)" -eq 1 ]
}

# A store in single words halves an Adam's speed on a GPU, and its bits are the same.
@test "Adam's kernels for one parameter store eight elements with wide stores" {
    flags=$GPT_BIN/../nvcc-flags
    needs cuda
    cd "$BATS_TEST_DIRNAME/../.."
    run --separate-stderr "$(cut -d' ' -f1 "$flags")" -std=c++17 --expt-relaxed-constexpr -O3 -D_GNU_SOURCE \
        -Ilib -Ikernels -arch=compute_80 -ptx -o "$BATS_TEST_TMPDIR/adam.ptx" kernels/adam.cu
    [ "$status" -eq 0 ]
    run awk '/^\.(visible \.)?entry/ { kernel = /adam_(any_)?flat/ ? $NF : ""; kernels += kernel != "" }
        kernel != "" && /st\.global\.v[24]/ { wide++ }
        kernel != "" && /st\.global\.[^v]/ { print kernel; exit }
        END { print (kernels >= 10 && wide > kernels) }' "$BATS_TEST_TMPDIR/adam.ptx"
    [ "$output" = 1 ]
}

@test "make's GPUs are this machine's, without one 9.0a and PTX of 8.0, or those of ARCH_GPU" {
    codes() {
        env -u MAKEFLAGS -u MAKELEVEL -u ARCH_GPU -u NVCCFLAGS PATH="$PWD/bin:$PATH" \
            make -n -C "$BATS_TEST_DIRNAME/../.." BUILD="$PWD/b" CUDA=1 NVCC="$PWD/nvcc" "$@" \
            "$PWD/b/obj/kernels/trace_mark.cu.o" | grep -o 'code=[a-z]*_[0-9a-z]*' | sort -u | tr -d '\n'
    }
    mkdir bin && touch nvcc
    printf '#!/bin/sh\nexit 9\n' > bin/nvidia-smi && chmod +x bin/nvidia-smi
    [ "$(codes)" = code=compute_80code=sm_90a ]
    printf '#!/bin/sh\nprintf "8.9\\n9.0\\n8.9\\n"\n' > bin/nvidia-smi
    [ "$(codes)" = code=sm_89code=sm_90a ]
    [ "$(codes ARCH_GPU=86)" = code=sm_86 ]
    [ "$(codes ARCH_GPU=all)" = "$(printf 'code=%s' compute_80 sm_100 sm_120 sm_80 sm_86 sm_89 sm_90a)" ]
}

@test "a compiler for processors of the other byte order is refused with the reason" {
    run cc -fsyntax-only -D_GNU_SOURCE -I"$BATS_TEST_DIRNAME/../../lib" -U__BYTE_ORDER__ -D__BYTE_ORDER__=4321 \
        "$BATS_TEST_DIRNAME/../../lib/base/version.c"
    [ "$status" -ne 0 ]
    [[ $output = *'a little-endian processor is needed'* ]]
}
