#!/bin/sh
# A trained model in other hands: export its last checkpoint, and let NumPy say its validation loss.
#   run examples/train-on-text.sh first; needs NumPy (Debian: python3-numpy)
set -eu
bin=${GPT_BIN:-build/bin}
dir=${OUT:-build/example}
[ -d "$dir/run" ] || { echo "no $dir/run: run examples/train-on-text.sh first" >&2; exit 1; }
python=${PYTHON:-python3}

"$bin/gpt-ckpt" export "$dir/run" --dtype bf16 --force -o "$dir/model.safetensors"
printf 'NumPy:     '
"$python" examples/numpy_loss.py "$dir/model.safetensors" "$dir"/shards/*_val_*.bin 8192 1024
echo "gpt-train: $(sed -n 's/.*val_loss:\([0-9.]*\).*/\1/p' "$dir/run.log" | tail -1)"
