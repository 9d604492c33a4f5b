#!/bin/sh
# A coefficient table for a run's own momenta: spectra of a checkpoint, a fit, a judgement on the
# next checkpoint, which the fit has not seen, and a run with the table.
#   examples/fit-coeffs.sh FILE...      (default: this project's own words); options of gpt-train in OPTIONS
set -eu
bin=${GPT_BIN:-build/bin}
dir=${OUT:-build/example-coeffs}
[ $# -gt 0 ] || set -- README.md man/*.[157] lib/*/*.[ch]
small="-s model.vocab=272 -s data.val_tokens=8192 -s data.val_chunk=1024 -s schedule.steps=18 ${OPTIONS:-}"

"$bin/gpt-tokshard" --tokenizer byte --val-tokens 8192 --force -o "$dir/shards" "$@"
rm -rf "$dir/run"
# shellcheck disable=SC2086
"$bin/gpt-train" -r share/recipes/tiny.recipe $small -d "$dir/shards" --ranks 2 \
    -s data.checkpoint_every=12 --keep 0 -o "$dir/run" > "$dir/run.log"

# The momenta of all banks after 12 steps, without what is too small to be lifted in five rows.
"$bin/gpt-ckpt" spectrum "$dir/run/step-000012" |
    "$bin/ns-coeffs" fit --spectrum - --lower 1e-3 --upper 1.01 -f -o "$dir/my.coeffs"
"$bin/ns-coeffs" eval record-61 you "$dir/my.coeffs" --checkpoint "$dir/run/step-000024" \
    --bf16 --format table --plot "$dir/coeffs.svg" -f

# shellcheck disable=SC2086
"$bin/gpt-train" -r share/recipes/tiny.recipe $small -d "$dir/shards" --ranks 2 \
    -s optimizer.coeffs="$dir/my.coeffs" > "$dir/again.log"
last() { sed -n 's/.*val_loss:\([0-9.]*\).*/\1/p' "$1" | tail -1; }
echo "validation loss: $(last "$dir/run.log") with record-61's table, $(last "$dir/again.log") with" \
    "the fitted one (one run of each does not tell which is better: see compare-runs.sh)"
echo "table: $dir/my.coeffs   picture: $dir/coeffs.svg"
