/* hash.h - SHA-256 (FIPS 180-4) and XXH3-128, in lower-case hexadecimal.
 *
 * SHA-256 identifies a published vocabulary. XXH3-128, which is faster and no protection against
 * forgery, checks the files that we write and identifies recipes and data.
 *
 *     struct xxh x;
 *     char hex[33];
 *     if ((rc = xxh_init(&x))) return rc;
 *     xxh_add(&x, data, n);
 *     xxh_hex(&x, hex);
 *     xxh_release(&x);
 *
 * A struct belongs to one thread at a time.
 */
#ifndef BASE_HASH_H
#define BASE_HASH_H

#include <stddef.h>
#include <stdint.h>
#include "base/err.h"

struct sha256 {
    uint32_t h[8];
    uint64_t bytes;
    unsigned char block[64];
};
void sha256_init(struct sha256 *s);
void sha256_add(struct sha256 *s, const void *data, size_t n);
void sha256_hex(struct sha256 *s, char out[65]); /* ends the hash */

struct xxh {
    void *state;
};
int xxh_init(struct xxh *x) MUST_CHECK; /* GPT_SYSTEM when out of memory */
void xxh_add(struct xxh *x, const void *data, size_t n);
void xxh_hex(struct xxh *x, char out[33]); /* XXH3-128, big-endian canonical form */
void xxh_release(struct xxh *x);
void xxh_hex_of(const void *data, size_t n, char out[33]);

#endif
