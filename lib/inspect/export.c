#include "inspect/export.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "inspect/npz_writer.h"

enum { CHUNK = 1 << 14 }; /* elements converted at a time */

/* One of the two formats. */
struct target {
    struct st_writer *st;
    struct npz_writer *npz;
};

static int note(struct target *t, const char *key, const char *value)
{
    return t->npz ? npz_note(t->npz, key, value) : st_note(t->st, key, value);
}

static int note_number(struct target *t, const char *key, int64_t v)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRId64, v);
    return note(t, key, text);
}

static int note_state(struct target *t, const struct ckpt_kv *kv)
{
    char *key;
    if (asprintf(&key, "gpt.state.%s", kv->key) < 0)
        return err_memory();
    int rc = note(t, key, kv->value);
    free(key);
    return rc;
}

static int note_info(struct target *t, const struct ckpt_info *info)
{
    int rc = note(t, "format", "pt"); /* PyTorch's own loaders ask for it */
    if (!info)
        return rc;
    rc = rc ? rc : note(t, "gpt.tool", info->tool);
    rc = rc ? rc : note_number(t, "gpt.step", info->step);
    rc = rc ? rc : note_number(t, "gpt.tokens", info->tokens);
    rc = rc ? rc : note(t, "gpt.recipe", info->recipe);
    for (int i = 0; !rc && i < info->nstate; i++)
        rc = note_state(t, &info->state[i]);
    return rc;
}

/* --- one tensor --- */

static bool is_float(enum dtype t)
{
    return t == DT_F64 || t == DT_F32 || t == DT_F16 || t == DT_BF16 || t == DT_E4M3 ||
           t == DT_E5M2;
}

static bool is_weight(const struct view *v)
{
    return !strcmp(v->t->kind, "weight") || !*v->t->kind;
}

/* The type that a view is written in. */
static enum dtype out_type(const struct view *v, const struct export_options *o)
{
    if (!is_float(v->t->dtype))
        return v->t->dtype;
    return o->bf16 && is_weight(v) && !o->npz ? DT_BF16 : DT_F32;
}

static int write_bytes(struct target *t, const void *data, size_t n)
{
    return t->npz ? npz_write(t->npz, data, n) : st_write(t->st, data, n);
}

/* Writes the stored bytes of a view. */
static int copy_bytes(struct tensors *s, const struct view *v, struct target *t, unsigned char *buf)
{
    struct tensor_bytes b;
    size_t size = dtype_size(v->t->dtype);
    int rc = bytes_open(&b, s, v->t, v->first * size);
    for (uint64_t left = v->elements, n; !rc && left > 0; left -= n) {
        n = left < CHUNK ? left : CHUNK;
        if (!(rc = bytes_read(&b, buf, n * size)))
            rc = write_bytes(t, buf, n * size);
    }
    bytes_close(&b);
    return rc;
}

/* Writes values as fp32, or rounded to bf16. bits: of the stored bf16 without its low half. */
static int convert(struct tensors *s, const struct view *v, enum dtype type, bool bits,
                   struct target *t, double *x, unsigned char *out)
{
    struct stored high = *v->t;
    struct values in;
    high.low = bits ? NULL : high.low;
    int rc = values_open(&in, s, &high, v->first);
    for (uint64_t left = v->elements, n; !rc && left > 0; left -= n) {
        n = left < CHUNK ? left : CHUNK;
        if ((rc = values_read(&in, x, n)))
            break;
        for (size_t i = 0; i < n; i++) {
            float f = (float)x[i];
            uint16_t h = bf16_from_f32(f);
            if (type == DT_BF16)
                memcpy(out + 2 * i, &h, 2);
            else
                memcpy(out + 4 * i, &f, 4);
        }
        rc = write_bytes(t, out, n * dtype_size(type));
    }
    values_close(&in);
    return rc;
}

static int write_view(struct tensors *s, const struct view *v, const struct export_options *o,
                      struct target *t, double *x, unsigned char *out)
{
    enum dtype type = out_type(v, o);
    bool as_stored = type == v->t->dtype && !v->t->scale && (!v->t->low || type == DT_BF16);
    if (t->npz) {
        int rc = npz_begin(t->npz, v->name, type, v->rank, v->shape);
        if (rc)
            return rc;
    }
    if (as_stored)
        return copy_bytes(s, v, t, out);
    return convert(s, v, type, o->bf16 && v->t->low, t, x, out);
}

static bool exported(const struct view *v, const struct export_options *o)
{
    return is_weight(v) || o->states;
}

static int write_views(struct tensors *s, const struct views *v, const struct export_options *o,
                       struct target *t)
{
    double *x = malloc(CHUNK * sizeof *x);
    unsigned char *out = malloc(CHUNK * 8);
    int rc = x && out ? 0 : err_memory();
    for (int i = 0; !rc && i < v->n; i++) {
        if (!exported(&v->v[i], o))
            continue;
        if (out_type(&v->v[i], o) == DT_NONE)
            rc = err_set(GPT_INPUT, "%s: tensor '%s': type %s cannot be exported", tensors_path(s),
                         v->v[i].name, v->v[i].t->type);
        else if (!t->npz)
            rc =
                st_declare(t->st, v->v[i].name, out_type(&v->v[i], o), v->v[i].rank, v->v[i].shape);
    }
    for (int i = 0; !rc && i < v->n; i++)
        if (exported(&v->v[i], o))
            rc = write_view(s, &v->v[i], o, t, x, out);
    free(x);
    free(out);
    if (!rc)
        rc = t->npz ? npz_finish(t->npz) : st_writer_finish(t->st);
    return rc;
}

int export_tensors(struct tensors *s, const struct name_map *map, const struct export_options *o,
                   FILE *f, const char *name)
{
    const struct ckpt *c = tensors_ckpt(s);
    struct target t = { NULL, NULL };
    struct views v;
    int rc = c ? ckpt_verify_files(c, 0) : 0;
    if (rc || (rc = views_make(&v, s, map, NULL, VIEWS_SCALARS | (o->padding ? VIEWS_PADDING : 0))))
        return rc;
    rc = o->npz ? npz_new(&t.npz, f, name) : st_writer_new(&t.st, f, name, o->level);
    if (!rc)
        rc = note_info(&t, c ? ckpt_info(c) : NULL);
    if (!rc)
        rc = write_views(s, &v, o, &t);
    npz_free(t.npz);
    st_writer_free(t.st);
    views_release(&v);
    return rc;
}
