/* ckpt_fixture.h - a small model's state, saved and loaded by any number of ranks. */
#ifndef CKPT_FIXTURE_H
#define CKPT_FIXTURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "scratch.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_write.h"

/* Two sharded tensors with state, one table by rows, one that rank 0 writes alone. */
enum { CKPT_TENSORS = 8 };
struct ckpt_whole {
    const char *param, *kind;
    enum dtype dtype;
    int rank;
    int64_t shape[3];
    bool replicated;
};
extern const struct ckpt_whole ckpt_model[CKPT_TENSORS];

struct model_state {
    unsigned char *data[CKPT_TENSORS];
};
struct model_state new_state(uint64_t seed); /* random bytes */
void free_state(struct model_state *s);
bool same_state(const struct model_state *a, const struct model_state *b);
size_t whole_bytes(int tensor);

/* What `rank` of `ranks` writes of s; returns how many. */
int rank_tensors(const struct model_state *s, int rank, int ranks, struct ckpt_tensor *t);
struct ckpt_info info_of(int64_t step, int ranks);
/* Writes ROOT/step-N with a thread a rank. */
int save_state(const char *root, const struct model_state *s, int64_t step, int ranks, int level);
/* Loads all of dir as `ranks` ranks would, each its share; s is poisoned first. */
int load_state(const char *dir, struct model_state *s, int ranks, int threads);

#endif
