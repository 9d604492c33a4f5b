#!/usr/bin/env bats
# gpt-sample on a terminal: what it says before it reads.

bats_require_minimum_version 1.5.0
load few_steps
load ../check/needs

# On a terminal that ends its input at once (Ctrl-D), what stdout and stderr show.
on_terminal() { # OPTION...
    printf '\004' | script -qec "$(printf '%q ' "$GPT_BIN/gpt-sample" -m run -n 1 "$@")" /dev/null | tr -d '\r'
}

@test "without a prompt a terminal is told what is waited for; others are not" {
    needs script
    few_shards
    few -o run > run.log
    on_terminal > shown
    grep -q 'gpt-sample: reading prompts, one a line; Ctrl-D ends them' shown
    on_terminal --score > shown
    grep -q 'gpt-sample: reading texts, one a line; Ctrl-D ends them' shown
    for args in "-q" "x"; do
        on_terminal $args > shown
        run ! grep -q 'Ctrl-D' shown
    done
    run --separate-stderr "$GPT_BIN/gpt-sample" -m run -n 1 < /dev/null
    [ "$status" -eq 0 ]
    [ -z "$stderr" ]
}
