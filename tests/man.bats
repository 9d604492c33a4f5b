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

@test "gpt-recipe(5) says what each key of the table is" {
    keys=$(sed -nE '/K_UNREAD/d; s/^ +\{ "[a-z]*", "([a-z0-9_]+)", K_.*/\1/p' "$man/../lib/recipe/keys.c")
    [ "$(wc -l <<< "$keys")" -ge 60 ]
    for key in $keys; do
        echo "$key"
        grep -qE "^\.(It )?Cm (.* )?$key( |\$)" "$man/gpt-recipe.5"
    done
}

@test "gpt-recipe(5) gives the default of each key that may be left out" {
    keys=$(sed -nE '/K_UNREAD/d; s/^ +\{ "[a-z]*", "([a-z0-9_]+)", .*, "([^"]+)", [^,]* \},$/\1 \2/p' \
        "$man/../lib/recipe/keys.c")
    [ "$(wc -l <<< "$keys")" -ge 20 ]
    while read -r key default; do
        echo "$key ($default)"
        # in the key's own entry, or before the first, where name and seed are
        sed 's/\\//g' "$man/gpt-recipe.5" | awk -v key="$key" -v d="$default" '
            BEGIN { own = 1 }
            /^\.It / { own = $0 ~ " " key "( |$)" }
            /^\.El/ { own = 0 }
            own && (index($0, "(" d ")") || $0 ~ "^\\.Pq (Cm )?" d "( |$)") { found = 1 }
            END { exit !found }'
    done <<< "$keys"
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
