/* gpt_shard.h - the tokens of one shard, for programs outside of this tree.
 *
 *     struct gpt_shard *s;
 *     if (gpt_shard_open(&s, "text_train_000001.bin", 50257, 50256)) return 1;
 *     for (int64_t i = 0, begin, end; !gpt_shard_document(s, i, 0, &begin, &end) && begin >= 0; i++)
 *         use(gpt_shard_tokens(s) + begin, end - begin);
 *     gpt_shard_close(s);
 *
 * A shard is what gpt-shard(5) says, plain or compressed by zstd or gzip, and is read by threads of its
 * own: a call waits for no more than it needs. One thread a shard.
 */
#ifndef GPT_SHARD_H
#define GPT_SHARD_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct gpt_shard;
/* vocab: a token of vocab or above is GPT_ERROR_INPUT; 0: any is taken. document_start: the token that
 * documents begin with; -1: the shard is one document. Checks the header. */
int gpt_shard_open(struct gpt_shard **s, const char *path, int vocab, int document_start);
int64_t gpt_shard_size(const struct gpt_shard *s); /* tokens */
/* Waits for the first n tokens, and checks them. */
int gpt_shard_wait(struct gpt_shard *s, int64_t n);
/* [size]; valid as far as waited for. */
const uint16_t *gpt_shard_tokens(const struct gpt_shard *s);
/* Sets where document i begins and ends, at most `limit` tokens behind its begin (0: no limit), and
 * waits for it; *begin = -1: there is no document i. */
int gpt_shard_document(struct gpt_shard *s, int64_t i, int64_t limit, int64_t *begin, int64_t *end);
void gpt_shard_close(struct gpt_shard *s); /* NULL: nothing */

#ifdef __cplusplus
}
#endif
#endif
