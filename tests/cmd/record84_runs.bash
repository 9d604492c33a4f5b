# record84_runs.bash - beside tiny_runs, short runs of record 84's recipe.

# A few steps on bytes: all stages, the untie step, the extension.
SMALL=(-s model.vocab=272 -s model.bigram_rows=496 -s model.bigram_width=16 -s model.bigram_signs=64
       -s model.heads=2 -s model.head_dim=32 -s model.mlp_width=64 -s model.block=32 -s schedule.steps=9
       -s schedule.extension=2 -s data.bos=-1 -s data.cycle=yes -s data.val_tokens=2048
       -s data.val_chunk=256 -s data.checkpoint_every=4 -s "stages.0=512 3 56 1 1,0.5,0.25>0"
       -s "stages.1=512 7 256 1.52 1,0.5>0" -s "stages.2=1024 11 256 1.73 1" -s "stages.3=1024 13 256 - 1")
export RECIPE=${GPT_SHARE:-share}/recipes/record-84.recipe
train() { "$GPT_BIN/gpt-train" --threads 1 "${SMALL[@]}" -d "$SHARDS" -q "$@"; }
