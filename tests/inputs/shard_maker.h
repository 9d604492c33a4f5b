/* shard_maker.h - shards of random tokens for the tests, written by other code than
 * the program's. */
#ifndef SHARD_MAKER_H
#define SHARD_MAKER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BOS 50256

struct tokens {
    uint16_t *v;
    int n;
};

/* A document every `mean` tokens or so, the first after `lead`. */
struct tokens random_tokens(uint64_t seed, int n, int mean, int lead);
void put_bytes(const char *path, const void *a, size_t na, const void *b, size_t nb);
void shard_header(int32_t h[256], int n);
void put_shard(const char *path, struct tokens t);
void put_index(const char *shard, struct tokens t);
/* The same as .zst: one frame as `zstd` makes it, or frames of `bytes` and a table. */
void put_zst(const char *path, struct tokens t, size_t bytes, bool table);

#endif
