#include "inspect/export.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "base/grow.h"

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

/* --- what is written --- */

/* A tensor of the file: part of a stored one, or of what it stands for. */
struct item {
    char *name;
    const struct view *v;
    struct stored t; /* of which values or bytes are taken, from v->first on */
    enum dtype type;
};
struct items {
    struct item *v;
    int n;
};

static bool is_float(enum dtype t)
{
    return t == DT_F64 || t == DT_F32 || t == DT_F16 || t == DT_BF16 || t == DT_E4M3 ||
           t == DT_E5M2;
}

static bool is_weight(const struct view *v)
{
    return !strcmp(v->t->kind, "weight") || !*v->t->kind;
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

/* True if the forward pass reads another number than the exact weight in bf16. */
static bool reads_another(const struct stored *t)
{
    return t->forward || (t->master && (t->dtype != DT_BF16 || t->master->dtype != DT_F32));
}

/* Adds v under its name, or with `kind` in place of the end `old` of it. */
static int add(struct items *l, const struct view *v, struct stored t, enum dtype type,
               const char *old, const char *kind)
{
    if (grow_one(&l->v, (size_t)l->n, sizeof *l->v))
        return GPT_SYSTEM;
    struct item *x = &l->v[l->n];
    *x = (struct item){ .v = v, .t = t, .type = type };
    int stem = (int)(strlen(v->name) - strlen(old));
    if (asprintf(&x->name, "%.*s%s", stem, v->name, kind) < 0)
        return err_memory();
    l->n++;
    return 0;
}

static int add_view(struct items *l, const struct view *v, const struct export_options *o)
{
    bool weight = is_weight(v), scale = is_scale_of_state(v) && !strstr(v->t->kind, ".row_scale");
    bool number = is_float(v->t->dtype);
    struct stored t = weight && o->bf16 ? stored_forward(v->t) : *v->t;
    enum dtype type = !number ? v->t->dtype : weight && o->bf16 ? DT_BF16 : DT_F32;
    int rc = add(l, v, t, type, scale ? "scale" : "", scale ? "row_scale" : "");
    if (!rc && weight && !o->bf16 && reads_another(v->t))
        rc = add(l, v, stored_forward(v->t), DT_F32, "weight", "rounded");
    return rc;
}

/* --- one tensor --- */

static int copy_bytes(struct tensors *s, const struct item *x, struct st_writer *w,
                      unsigned char *buf)
{
    struct tensor_bytes b;
    size_t size = dtype_size(x->t.dtype);
    int rc = bytes_open(&b, s, &x->t, x->v->first * size);
    for (uint64_t left = x->v->elements, n; !rc && left > 0; left -= n) {
        n = left < CHUNK ? left : CHUNK;
        if (!(rc = bytes_read(&b, buf, n * size)))
            rc = st_write(w, buf, n * size);
    }
    bytes_close(&b);
    return rc;
}

/* Writes values as fp32, or rounded to bf16. */
static int convert(struct tensors *s, const struct item *item, struct st_writer *w, double *x,
                   unsigned char *out)
{
    struct values in;
    int rc = values_open(&in, s, &item->t, item->v->first);
    for (uint64_t left = item->v->elements, n; !rc && left > 0; left -= n) {
        n = left < CHUNK ? left : CHUNK;
        if ((rc = values_read(&in, x, n)))
            break;
        for (size_t i = 0; i < n; i++) {
            float f = (float)x[i];
            uint16_t h = bf16_from_f32(f);
            if (item->type == DT_BF16)
                memcpy(out + 2 * i, &h, 2);
            else
                memcpy(out + 4 * i, &f, 4);
        }
        rc = st_write(w, out, n * dtype_size(item->type));
    }
    values_close(&in);
    return rc;
}

static int write_items(struct tensors *s, const struct items *l, struct st_writer *w)
{
    double *x = malloc(CHUNK * sizeof *x);
    unsigned char *out = malloc(CHUNK * 8);
    int rc = x && out ? 0 : err_memory();
    for (int i = 0; !rc && i < l->n; i++) {
        const struct item *t = &l->v[i];
        if (t->type == DT_NONE)
            rc = err_set(GPT_INPUT, "%s: tensor '%s': type %s cannot be exported", tensors_path(s),
                         t->v->name, t->t.type);
        else
            rc = st_declare(w, t->name, t->type, t->v->rank, t->v->shape);
    }
    for (int i = 0; !rc && i < l->n; i++) {
        const struct item *t = &l->v[i];
        bool as_stored = t->type == t->t.dtype && !t->t.scale && !t->t.low && !t->t.master;
        rc = as_stored ? copy_bytes(s, t, w, out) : convert(s, t, w, x, out);
    }
    free(x);
    free(out);
    return rc ? rc : st_writer_finish(w);
}

static int write_views(struct tensors *s, const struct views *v, const struct export_options *o,
                       struct st_writer *w)
{
    struct items l = { NULL, 0 };
    int rc = 0;
    for (int i = 0; !rc && i < v->n; i++)
        if (exported(&v->v[i], o))
            rc = add_view(&l, &v->v[i], o);
    if (!rc)
        rc = write_items(s, &l, w);
    for (int i = 0; i < l.n; i++)
        free(l.v[i].name);
    free(l.v);
    return rc;
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
