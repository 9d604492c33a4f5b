/* gpt_safetensors.h - reading the public tensor format, plain or compressed, for programs outside of
 * this tree.
 *
 *     struct gpt_tensors *t;
 *     if (gpt_tensors_open(&t, "model.safetensors.zst")) return 1;
 *     for (int i = 0; i < gpt_tensors_count(t); i++) {
 *         const struct gpt_tensor *x = gpt_tensors_at(t, i);      // in the order of the file
 *         if (gpt_tensors_read(t, i, 0, buffer, x->bytes)) break;
 *     }
 *     gpt_tensors_close(t);
 *
 * Every rule of the format is checked when a file is opened. One thread a file.
 */
#ifndef GPT_SAFETENSORS_H
#define GPT_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct gpt_tensor {
    const char *name, *type; /* type as the format spells it: "F32", "BF16", "F8_E4M3", ... */
    int rank; /* 0: a scalar */
    const uint64_t *shape; /* [rank] */
    uint64_t bytes;
};

struct gpt_tensors;
int gpt_tensors_open(struct gpt_tensors **t, const char *path);
int gpt_tensors_count(const struct gpt_tensors *t);
const struct gpt_tensor *gpt_tensors_at(const struct gpt_tensors *t, int i);
int gpt_tensors_find(const struct gpt_tensors *t, const char *name); /* -1: there is none */
/* The value of a key of the file's metadata; NULL: it has none. */
const char *gpt_tensors_meta(const struct gpt_tensors *t, const char *key);
/* Reads n bytes of tensor i from byte `from` on. A compressed file is read forward only: what lies
 * before is GPT_ERROR_USAGE. */
int gpt_tensors_read(struct gpt_tensors *t, int i, uint64_t from, void *to, size_t n);
void gpt_tensors_close(struct gpt_tensors *t); /* NULL: nothing */

#ifdef __cplusplus
}
#endif
#endif
