/* loader_impl.h - what the training and the validation loader share. */
#ifndef DATA_LOADER_IMPL_H
#define DATA_LOADER_IMPL_H

#include "data/loader.h"

/* A vocabulary or document start that a model of `vocab` ids cannot take is
 * GPT_INPUT. corpus_vocab 0: unknown. */
int check_vocab(const char *data, int corpus_vocab, int vocab, int bos) MUST_CHECK;

#endif
