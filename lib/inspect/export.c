#include "inspect/export.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 1 << 14 }; /* elements converted at a time */

static int note_number(struct st_writer *w, const char *key, int64_t v)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRId64, v);
    return st_note(w, key, text);
}

static int note_state(struct st_writer *w, const struct ckpt_kv *kv)
{
    char *key;
    if (asprintf(&key, "gpt.state.%s", kv->key) < 0)
        return err_memory();
    int rc = st_note(w, key, kv->value);
    free(key);
    return rc;
}

static int note_info(struct st_writer *w, const struct ckpt_info *info)
{
    int rc = st_note(w, "format", "pt"); /* PyTorch's own loaders ask for it */
    if (!info)
        return rc;
    rc = rc ? rc : st_note(w, "gpt.tool", info->tool);
    rc = rc ? rc : note_number(w, "gpt.step", info->step);
    rc = rc ? rc : note_number(w, "gpt.tokens", info->tokens);
    rc = rc ? rc : st_note(w, "gpt.recipe", info->recipe);
    for (int i = 0; !rc && i < info->nstate; i++)
        rc = note_state(w, &info->state[i]);
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
    return o->bf16 && is_weight(v) ? DT_BF16 : DT_F32;
}

/* Writes the stored bytes of a view. */
static int copy_bytes(struct tensors *s, const struct view *v, struct st_writer *w,
                      unsigned char *buf)
{
    struct tensor_bytes b;
    size_t size = dtype_size(v->t->dtype);
    int rc = bytes_open(&b, s, v->t, v->first * size);
    for (uint64_t left = v->elements, n; !rc && left > 0; left -= n) {
        n = left < CHUNK ? left : CHUNK;
        if (!(rc = bytes_read(&b, buf, n * size)))
            rc = st_write(w, buf, n * size);
    }
    bytes_close(&b);
    return rc;
}

/* Writes values as fp32, or rounded to bf16. bits: of the stored bf16 without its low half. */
static int convert(struct tensors *s, const struct view *v, enum dtype type, bool bits,
                   struct st_writer *w, double *x, unsigned char *out)
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
        rc = st_write(w, out, n * dtype_size(type));
    }
    values_close(&in);
    return rc;
}

static int write_view(struct tensors *s, const struct view *v, const struct export_options *o,
                      struct st_writer *w, double *x, unsigned char *out)
{
    enum dtype type = out_type(v, o);
    bool as_stored = type == v->t->dtype && !v->t->scale && (!v->t->low || type == DT_BF16);
    if (as_stored)
        return copy_bytes(s, v, w, out);
    return convert(s, v, type, o->bf16 && v->t->low, w, x, out);
}

/* States are written as what they stand for, and their scales beside them under a name by which no
 * reader multiplies again, so that import finds the same bits. */
static bool is_scale_of_state(const struct view *v)
{
    return strstr(v->t->kind, ".scale") || strstr(v->t->kind, ".row_scale");
}

static bool exported(const struct view *v, const struct export_options *o)
{
    if (v->t->is_part && !is_scale_of_state(v))
        return false;
    return is_weight(v) || o->states;
}

static int declare(struct st_writer *w, const struct view *v, enum dtype type)
{
    size_t n = strlen(v->name);
    char name[256];
    if (!is_scale_of_state(v) || strstr(v->t->kind, ".row_scale") || n + 5 > sizeof name)
        return st_declare(w, v->name, type, v->rank, v->shape);
    snprintf(name, sizeof name, "%.*srow_scale", (int)(n - strlen("scale")), v->name);
    return st_declare(w, name, type, v->rank, v->shape);
}

static int write_views(struct tensors *s, const struct views *v, const struct export_options *o,
                       struct st_writer *w)
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
        else
            rc = declare(w, &v->v[i], out_type(&v->v[i], o));
    }
    for (int i = 0; !rc && i < v->n; i++)
        if (exported(&v->v[i], o))
            rc = write_view(s, &v->v[i], o, w, x, out);
    free(x);
    free(out);
    return rc ? rc : st_writer_finish(w);
}

int export_tensors(struct tensors *s, const struct name_map *map, const struct export_options *o,
                   FILE *f, const char *name)
{
    const struct ckpt *c = tensors_ckpt(s);
    struct st_writer *w = NULL;
    struct views v;
    int rc = c ? ckpt_verify_files(c, 0) : 0;
    if (rc || (rc = views_make(&v, s, map, NULL,
                               VIEWS_SCALARS | VIEWS_STORED | (o->padding ? VIEWS_PADDING : 0))))
        return rc;
    rc = st_writer_new(&w, f, name, o->level);
    if (!rc)
        rc = note_info(w, c ? ckpt_info(c) : NULL);
    if (!rc)
        rc = write_views(s, &v, o, w);
    st_writer_free(w);
    views_release(&v);
    return rc;
}
