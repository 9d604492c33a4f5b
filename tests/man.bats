#!/usr/bin/env bats
# The man pages against the programs: every command has a page, a page, --help and the completion
# name the same options, and the pages read to their end. tests/lint.bats has what mandoc says of them.

bats_require_minimum_version 1.5.0
load check/needs

setup() {
    man=$(cd "$GPT_SHARE/../man" && pwd)
}

commands() {
    for c in "$GPT_BIN"/*; do
        [ -x "$c" ] && echo "${c##*/}"
    done
}

# Long options of a command, sorted: as --help prints them in its first columns.
options_in_help() {
    "$GPT_BIN/$1" --help | sed -nE 's/^ +(-[a-zA-Z], )?(--[a-z][a-z0-9-]*).*/\2/p' | sort -u
}

# Long options that have an entry of their own in the page.
options_in_page() {
    grep -E '^\.It .*Fl ' "$1" | sed 's/\\-/-/g' | grep -oE 'Fl -[a-z][a-z0-9-]*' |
        sed 's/^Fl -/--/' | sort -u
}

@test "there are commands, and each has a man page that names it" {
    [ "$(commands | wc -l)" -ge 1 ]
    for c in $(commands); do
        echo "$c"
        [ -f "$man/$c.1" ]
        grep -q "^\.Nm $c\$" "$man/$c.1"
    done
}

@test "every man page of section 1 is of a command" {
    for page in "$man"/*.1; do
        echo "$page"
        c=${page##*/}
        [ -x "$GPT_BIN/${c%.1}" ]
    done
}

@test "a command's --help and its man page name the same options" {
    for c in $(commands); do
        [ -n "$(options_in_help "$c")" ]
        diff <(options_in_help "$c") <(options_in_page "$man/$c.1") || {
            echo "$c: < in --help only, > in the page only"
            false
        }
    done
}

@test "each option has its letter and its argument in the page as in --help" {
    for c in $(commands); do
        "$GPT_BIN/$c" --help | sed -nE 's/^  -([a-zA-Z]), --([a-z][a-z0-9-]*).*/\1 \2/p' |
            while read -r letter name; do
                echo "$c -$letter --$name"
                sed 's/\\-/-/g' "$man/$c.1" | grep -qE "^\.It .*Fl $letter .*Fl -$name( |\$)" || exit 1
            done
    done
}

@test "each command tells its exit codes and shows an example" {
    for c in $(commands); do
        echo "$c"
        grep -q '^\.Sh EXIT STATUS' "$man/$c.1"
        grep -q '^\.Sh EXAMPLES' "$man/$c.1"
    done
}

@test "--help of programs and verbs has 80 columns at most" {
    for c in $(commands); do
        for verb in '' $("$GPT_BIN/$c" --completion-words | cut -f 1 | grep -v '^[-=]'); do
            echo "$c $verb"
            "$GPT_BIN/$c" $verb --help > "$BATS_TEST_TMPDIR/help"
            [ -z "$(awk 'length > 80' "$BATS_TEST_TMPDIR/help")" ]
        done
    done
}

# "key = type, range (default)" of each key, from the program's table.
keys_in_table() {
    (cd "$man/.." && awk -f tests/check/recipe_keys.awk lib/recipe/rule.h lib/recipe/recipe.h lib/recipe/keys.c)
}

# The same from the first lines of the page's entries.
keys_in_page() {
    sed -nE '/^\.It Cm [a-z0-9_]+ No = /{
        s/^\.It Cm ([a-z0-9_]+) No = /\1 = /; s/\\//g; s/(^| )(No|Cm) /\1/g; s/ (No|Cm) / /g; p; }' "$1"
}

@test "gpt-recipe(5) has an entry a key: type, range and default as in the program's table" {
    cd "$BATS_TEST_TMPDIR"
    keys_in_table | sort > table
    keys_in_page "$man/gpt-recipe.5" | sort > page
    [ "$(wc -l < table)" -ge 100 ]
    diff table page
}

@test "a range, a default, a word or a key that gpt-recipe(5) has otherwise is found" {
    keys_in_table | sort > "$BATS_TEST_TMPDIR/table"
    for change in 's/(No = integer, 1 to 65536) \(required\)/\1 (default: 8)/' 's/1e-12 to 1e12/0 to 1e12/' \
                  's/before [|] Cm after/before/' '/^\.It Cm untie_state/d'; do
        sed -E "$change" "$man/gpt-recipe.5" > "$BATS_TEST_TMPDIR/changed"
        run ! cmp -s "$man/gpt-recipe.5" "$BATS_TEST_TMPDIR/changed"
        run ! diff "$BATS_TEST_TMPDIR/table" <(keys_in_page "$BATS_TEST_TMPDIR/changed" | sort)
    done
}

@test "the examples of gpt-recipe(5) are planned as they stand" {
    sed -nE 's/^\.Dl (gpt-train .*)/\1/; t found; d; :found s/\\//g; p' "$man/gpt-recipe.5" > "$BATS_TEST_TMPDIR/examples"
    [ "$(wc -l < "$BATS_TEST_TMPDIR/examples")" -ge 10 ]
    while read -r example; do
        echo "$example"
        PATH=$GPT_BIN:$PATH run --separate-stderr bash -c "$example" < /dev/null
        echo "$stderr"
        [ "$status" -eq 0 ]
    done < "$BATS_TEST_TMPDIR/examples"
}

@test "man, which is groff, shows each page to its end" {
    needs groff
    for page in "$man"/*.[157]; do
        echo "$page"
        [ -z "$(groff -mandoc -Tutf8 -ww "$page" 2>&1 > /dev/null)" ]
    done
}

@test "pages refer only to pages that exist" {
    for page in "$man"/*.[157]; do
        grep -hE '^\.(It )?Xr (gpt-|ns-)' "$page" | sed 's/^\.It //' |
            while read -r _ name section _; do
                [ -f "$man/$name.$section" ] || { echo "${page##*/} refers to $name($section)"; exit 1; }
            done
    done
}

@test "each command has --help and --version on stdout, and a completion" {
    for c in $(commands); do
        echo "$c"
        for option in --help --version; do
            run --separate-stderr "$GPT_BIN/$c" "$option"
            [ "$status" -eq 0 ]
            [ -z "$stderr" ]
            [[ $output = *"$c "* ]]
        done
        run --separate-stderr bash -c ". '$GPT_SHARE/completion.bash'; complete -p '$c'"
        [ "$status" -eq 0 ]
        diff <("$GPT_BIN/$c" --completion-words | cut -f 1 | grep '^--' | sort) \
            <(options_in_help "$c")
    done
}
