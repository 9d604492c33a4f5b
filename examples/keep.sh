#!/bin/sh
# Examples that go on where they were stopped read this: the runs in a folder answer one question, of one set of shards.

# keep FILE: FILE.part becomes FILE, unless that is there and says something else.
keep() {
    if [ -e "$1" ] && ! cmp -s "$1" "$1.part"; then
        rm "$1.part"
        echo "$1: of other settings or shards; remove ${1%/*}, or name another OUT" >&2
        exit 2
    fi
    mv "$1.part" "$1"
}

# keep_asked FOLDER SHARDS WORD...: the words, and what the lines of the MANIFEST are hashed to, are those of the runs there.
keep_asked() {
    asked=$1/asked
    mkdir -p "$1"
    { tail -n 1 "$2/MANIFEST" 2>/dev/null || echo "$2"; } >"$asked.part"
    shift 2
    printf '%s\n' "$@" >>"$asked.part"
    keep "$asked"
}
