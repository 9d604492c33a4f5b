#!/usr/bin/env bats
# What `make lint` holds: formatting of C and CUDA, and what static analysis finds. Where an analyser is
# not installed (share/deps.txt names it), its test is skipped.

bats_require_minimum_version 1.5.0
load check/needs

setup() { cd "$BATS_TEST_DIRNAME/.." || exit; }

# Scripts by their first line, not by their names.
scripts() { find .ci share tests examples -type f -exec grep -lE -m1 '^#!.*[/ ](ba)?sh$' {} +; }

@test "clang-format leaves C and CUDA as they are" {
    needs clang-format-14
    MAKEFLAGS='' make -s format CHECK=1
}

@test "a line that clang-format would change is found" {
    needs clang-format-14
    cp -r Makefile .clang-format "$BATS_TEST_TMPDIR"
    cd "$BATS_TEST_TMPDIR"
    mkdir -p cmd lib kernels tests/emu
    echo 'int  x;' > lib/x.c
    MAKEFLAGS='' run ! make -s format CHECK=1
    [[ $output = *lib/x.c:1:* ]]
}

@test "cppcheck finds nothing in lib and cmd" {
    needs cppcheck
    # The compilers' own names that cppcheck does not know: quad.h asks for the first, and on the
    # second, behind a member that is a function pointer, its parser stops.
    cppcheck -q -j2 --error-exitcode=1 --enable=warning,portability --inline-suppr --std=c11 \
        --language=c -Ilib -D_GNU_SOURCE -D__SIZEOF_FLOAT128__=16 '-D__attribute__(x)=' lib cmd
}

@test "shellcheck finds nothing in scripts" {
    needs shellcheck
    mapfile -t files < <(scripts)
    [ "${#files[@]}" -ge 15 ]
    shellcheck "${files[@]}" share/completion.bash
}

@test "shellcheck warns of nothing in bats files" {
    needs shellcheck
    # SC2154: `run` sets variables. SC2164: in a test, a cd that fails ends it. SC2010: tests name
    # the files that `ls | grep` looks through.
    shellcheck --severity=warning --exclude=SC2154,SC2164,SC2010 tests/*.bats tests/*/*.bats tests/*/*.bash
}

@test "mandoc warns of nothing in man pages" {
    needs mandoc
    mandoc -T lint -W warning man/*.[157]
}

too_long() { grep -nP '^(?!\||    |<).{101,}' "$@"; }

@test "documents have lines of up to 100 columns, but for tables and listings" {
    run ! too_long README.md CONTRIBUTING.md CHANGELOG.md share/doc/*.md
    printf -- '- %099d\n| %0120d |\n' 1 2 >"$BATS_TEST_TMPDIR/x.md"
    [ "$(too_long "$BATS_TEST_TMPDIR/x.md" | wc -l)" -eq 1 ]
}

# Finds the lines that a merge leaves where both sides changed a place.
left_by_merge() { grep -rnE '^(<{7}|>{7})( |$)' --include='*.*' --include=Makefile "$@"; }

@test "no file has what a merge leaves" {
    run ! left_by_merge cmd examples kernels lib man share tests ./*.md Makefile
    printf '%s\n' a '<<<<<<< HEAD' b '=======' c '>>>>>>> other' >"$BATS_TEST_TMPDIR/x.md"
    [ "$(left_by_merge "$BATS_TEST_TMPDIR" | wc -l)" -eq 2 ]
}
