#!/bin/sh
# Rules and forms of Muon, some seeds each: does another end with a lower loss than the record's NorMuon?
#   run examples/train-on-text.sh first, for its shards, or name some: SHARDS=dir; options of gpt-train may follow,
#   as --device cuda; STEPS, SEEDS, SIDES, and JOBS runs at a time
# As it stands a few steps of a narrow model, 15 s on two cores, which answer nothing; in earnest, on some MB of text:
#   STEPS=600 SEEDS="1 2 3 4" examples/optimizers.sh -s model.head_dim=32 -s model.mlp_width=256
set -eu
# shellcheck source=examples/keep.sh
. "$(dirname "$0")/keep.sh"
bin=${GPT_BIN:-build/bin}
dir=${OUT:-build/example}
shards=${SHARDS:-$dir/shards}
[ -d "$shards" ] || { echo "no $shards: run examples/train-on-text.sh first" >&2; exit 1; }
steps=${STEPS:-6}
runs=$dir/optimizers-$steps
keep_asked "$runs" "$shards" "$@"
sides=${SIDES:-normuon muon adam-last aol-4 gram}  # and f32, gram-f32, which a CPU alone computes

# Rows of both banks with another rule and its betas.
banks() {
    printf '%s\n' "parameters.attn=40,d,d bf16 uniform:1,uniform:1,uniform:1,zero $1 1 1 no" \
        "parameters.mlp=24,f,d bf16 uniform:0.5,zero $1 1,2 1 no"
}

# What a side sets beside the recipe, a key a line.
side() {
    case $1 in
    normuon) ;;                                     # the record's
    muon) banks "muon sharded - -" ;;               # no row variance, plain decay
    adam-last)                                      # Adam over the last 10%, of moments kept from 80% on
        banks "normuon>adam sharded 0.9 0.95"
        printf '%s\n' optimizer.change=0.9 optimizer.change_moments=0.8 optimizer.mixed_adam_lr=0.1
        ;;
    aol-4) printf '%s\n' optimizer.aol=yes optimizer.coeffs=share/coeffs/aol-4.coeffs ;;
    gram) echo optimizer.polar_form=gram ;;
    f32) echo optimizer.polar=f32 ;;
    gram-f32) printf '%s\n' optimizer.polar=f32 optimizer.polar_form=gram ;;
    *) echo "no side '$1'" >&2 && exit 1 ;;
    esac
}

# Documents of up to 2,048 bytes, where tiny cuts them at 256 tokens: a text of some MB is not read twice.
stages() {
    printf 'stages.%s\n' "0=2048 3 2048 1 1,0.5,0.25>0" "1=2048 7 2048 1.52 1,0.5>0" \
        "2=2048 11 2048 1.73 1" "3=2048 13 2048 - 1"
}

train() { # SIDE SEED OPTION...
    log=$runs/$1/seed-$2.log
    [ ! -e "$log" ] || return 0                     # of a run of this script that was stopped
    echo "$log" >&2
    keys=$(stages && side "$1") seed=$2
    shift 2
    IFS='
'
    for key in $keys; do set -- -s "$key" "$@"; done
    "$bin/gpt-train" -q -r share/recipes/tiny.recipe -d "$shards" -s model.vocab=272 -s model.head_dim=16 \
        -s model.mlp_width=64 -s data.chunks=1 -s data.val_tokens=8192 -s data.val_chunk=1024 \
        -s data.val_every="$steps" -s schedule.steps="$steps" -s seed="$seed" "$@" > "$log.part"
    mv "$log.part" "$log"
}

started=0
for seed in ${SEEDS:-1 2}; do
    for s in $sides; do
        mkdir -p "$runs/$s"
        train "$s" "$seed" "$@" &
        started=$((started + 1))
        [ $((started % ${JOBS:-2})) != 0 ] || wait
    done
done
wait
set --
for s in $sides; do
    set -- "$@" "$runs/$s"
done
# 1 is an answer, too: none is shown to be better
"$bin/gpt-logdiff" --rules loss "$@" || [ $? = 1 ]
