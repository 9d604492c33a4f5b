# One name, one function: the rooms share a namespace, and an archive takes the first of two silently.

bats_require_minimum_version 1.5.0

@test "no global name is defined twice in libgpt.a" {
    lib=$(dirname "$GPT_BIN")/libgpt.a
    [ -f "$lib" ]
    names=$(nm -g --defined-only "$lib" | awk 'NF == 3 && $2 ~ /[TDBR]/ { print $3 }' | sort)
    [ "$(wc -l <<< "$names")" -gt 100 ]
    twice=$(uniq -d <<< "$names")
    echo "defined twice: $twice"
    [ -z "$twice" ]
}
