/* loader_impl.h - what the training and the validation loader share. */
#ifndef DATA_LOADER_IMPL_H
#define DATA_LOADER_IMPL_H

#include "data/loader.h"

/* Bytes of the block of a chunk; csr for vocab > 0. */
size_t chunk_block_bytes(int tokens, int bound, int vocab);
/* Points c's arrays into the block and sets the sizes. */
void chunk_place(struct chunk *c, void *block, int tokens, int bound, int vocab);
/* A vocabulary or document start that a model of `vocab` ids cannot take is
 * GPT_INPUT. corpus_vocab 0: unknown. */
int check_vocab(const char *data, int corpus_vocab, int vocab, int bos) MUST_CHECK;

#endif
