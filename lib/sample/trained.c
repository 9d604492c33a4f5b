/* trained.c - see trained.h. */
#include "sample/trained.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/num.h"
#include "checkpoint/pack.h"
#include "inspect/whole.h"

/* -- what it says of itself ------------------------------------------------------- */

static const char *state_of(const struct trained *t, const char *key)
{
    const struct ckpt *c = tensors_ckpt(t->x.tensors);
    char name[64];
    snprintf(name, sizeof name, "gpt.state.%s", key);
    return c ? ckpt_state(c, key) : tensors_note(t->x.tensors, name);
}

static int find_step(struct trained *t)
{
    const struct ckpt *c = tensors_ckpt(t->x.tensors);
    const char *step = c ? NULL : tensors_note(t->x.tensors, "gpt.step");
    int total = schedule_total(t->recipe);
    t->step = c ? ckpt_info(c)->step : total;
    int rc = step ? num_i64(step, "gpt.step", 0, INT64_MAX, &t->step) : 0;
    if (!rc && t->step > total)
        rc = err_set(GPT_INPUT, "%s: step %" PRId64 ", but the recipe ends at %d",
                     tensors_path(t->x.tensors), t->step, total);
    return rc;
}

static int open_packed(struct trained *t)
{
    output_cleanup_on_signal();
    int rc = temporary_dir_new(&t->unpacked);
    if (!rc && !(rc = ckpt_unpack_into("-", t->unpacked.path)))
        rc = inspect_open(&t->x, t->unpacked.path);
    return rc;
}

int trained_open(struct trained *t, const char *path, const char *recipe)
{
    *t = (struct trained){ 0 };
    int rc = strcmp(path, "-") ? inspect_open(&t->x, path) : open_packed(t);
    if (!rc && recipe) {
        recipe_free(t->x.recipe);
        t->x.recipe = NULL;
        name_map_release(&t->x.map);
        t->x.map = (struct name_map){ 0 };
        if (!(rc = recipe_read(&t->x.recipe, recipe, NULL, 0)))
            rc = name_map_make(&t->x.map, t->x.recipe);
    } else if (!rc && !t->x.recipe) {
        rc = err_set(GPT_INPUT, *t->x.why ? "%s" : "%s: carries no recipe; -r gives one",
                     *t->x.why ? t->x.why : path);
    }
    t->recipe = t->x.recipe;
    if (!rc)
        rc = find_step(t);
    if (!rc && state_of(t, "loader.id"))
        snprintf(t->data, sizeof t->data, "%s", state_of(t, "loader.id"));
    if (!rc && state_of(t, "tokenizer"))
        snprintf(t->tokenizer, sizeof t->tokenizer, "%s", state_of(t, "tokenizer"));
    if (rc)
        trained_close(t);
    return rc;
}

void trained_close(struct trained *t)
{
    inspect_close(&t->x);
    temporary_dir_remove(&t->unpacked);
    t->recipe = NULL;
}

void trained_schedule(const struct trained *t, struct step_schedule *p)
{
    schedule_at(t->recipe, (int)t->step, p);
}

/* -- its vocabulary --------------------------------------------------------------- */

static int load_vocab(const struct trained *t, const char *name, const char *file, struct vocab **v)
{
    enum { BYTES = 257, GPT2 = 50257 };
    bool bytes = name ? !strcmp(name, "byte")
                 : *t->tokenizer
                     ? !strncmp(t->tokenizer, "bytes ", 6)
                     : t->recipe->model.vocab >= BYTES && t->recipe->model.vocab < GPT2 && !file;
    char *found = NULL;
    int rc;

    if (bytes && !file)
        return vocab_bytes(v);
    if (file)
        return vocab_load(v, file);
    if (!name && !strncmp(t->tokenizer, "other ", 6))
        return err_set(GPT_INPUT,
                       "%s: the model's vocabulary is neither GPT-2's nor bytes: --vocab names it",
                       tensors_path(t->x.tensors));
    if ((rc = vocab_find(&found)))
        return rc;
    rc = vocab_load(v, found);
    free(found);
    return rc;
}

int trained_vocab(const struct trained *t, const char *name, const char *file, struct vocab **v)
{
    const char *wanted = strchr(t->tokenizer, ' ');
    int rc = load_vocab(t, name, file, v);
    if (rc)
        return rc;
    if (!name && wanted && strcmp(wanted + 1, (*v)->sha256))
        rc = err_set(GPT_INPUT, "%s: the model was trained with the vocabulary %s, found %s %s",
                     tensors_path(t->x.tensors), t->tokenizer, (*v)->name, (*v)->sha256);
    else if ((*v)->size > t->recipe->model.vocab)
        rc = err_set(GPT_INPUT, "%s: the model has %d ids, the vocabulary %s has %d",
                     tensors_path(t->x.tensors), t->recipe->model.vocab, (*v)->name, (*v)->size);
    if (rc) {
        vocab_free(*v);
        *v = NULL;
    }
    return rc;
}

/* -- its weights ------------------------------------------------------------------ */

/* Number i as training reads it: what stands for f16 and e4m3 is rounded to bf16. */
static float as_read(enum dtype stored, const void *bytes, size_t i)
{
    return stored == DT_BF16 ? bf16_to_f32(((const uint16_t *)bytes)[i])
                             : bf16_round(((const float *)bytes)[i]);
}

/* Uploads n elements of the stored type, bf16 or f32, from element `first` of w on. */
static void put(struct ops *o, const struct param *p, enum dtype stored, int64_t first,
                const void *bytes, void *room, size_t n)
{
    enum dtype t = p->w.dtype;
    float *wide = room;
    uint16_t *narrow = room;
    char *to = (char *)p->w.data + (size_t)first * dtype_size(t);
    bool as_is = t == stored && p->spec->stored == DT_NONE;
    for (size_t i = 0; i < n && !as_is; i++)
        if (t == DT_F32) /* bf16 as f32 (bank.h) */
            wide[i] = as_read(stored, bytes, i);
        else
            narrow[i] = bf16_from_f32(as_read(stored, bytes, i));
    o->upload(o, to, as_is ? bytes : room, n * dtype_size(t));
}

enum { PIECE = 1 << 20 }; /* elements */

/* Loads the stored bytes of a checkpoint's parameter, whole. */
static int load_stored(const struct ckpt *c, const struct param *p, struct ops *o, float *room)
{
    enum dtype t = p->spec->dtype;
    size_t size = dtype_size(t), n = (size_t)tensor_count(p->w);
    char name[96], *host = malloc(n * size);
    struct ckpt_want want = { name, t, 0, p->units, host };
    int rc = host ? 0 : err_memory();

    snprintf(name, sizeof name, "%s.weight", p->spec->label);
    if (!rc)
        rc = ckpt_load(c, &want, 1, 0);
    for (size_t i = 0, k; i < n && !rc; i += k) {
        k = n - i < PIECE ? n - i : PIECE;
        put(o, p, t, (int64_t)i, host + i * size, room, k);
    }
    free(host);
    return rc;
}

/* Loads a parameter as numbers: of a file, put together from its parts; of a checkpoint, decoded. */
static int load_parts(struct trained *t, struct whole *w, const struct param *p, struct ops *o,
                      float *room)
{
    struct feed f = { .s = t->x.tensors, .w = w };
    enum dtype stored = w->e->dtype;
    size_t size = dtype_size(stored), n = (size_t)tensor_count(p->w);
    char *host = malloc((size_t)PIECE * size);
    int states = 0, rc = host ? whole_find(w, t->x.tensors, &t->x.map, &states) : err_memory();

    for (size_t i = 0, k; i < n && !rc; i += k) {
        k = n - i < PIECE ? n - i : PIECE;
        if (!(rc = feed_read(&f, host, k * size)))
            put(o, p, stored, (int64_t)i, host, room, k);
    }
    feed_close(&f);
    whole_release(w);
    free(host);
    return rc;
}

/* Loads what validation reads of a parameter of which a checkpoint has an average (gpt-rules(5)). */
static int load_average(struct trained *t, const struct param *p, struct ops *o, float *room)
{
    const struct around *a = &t->recipe->optimizer.around;
    size_t n = (size_t)tensor_count(p->w);
    double *both = malloc(2 * (size_t)PIECE * sizeof *both);
    float *x = malloc(PIECE * sizeof *x), part = (float)around_part(a);
    const struct stored *of[2];
    char name[96];
    int rc = both && x ? 0 : err_memory();

    for (int k = 0; k < 2 && !rc; k++) {
        snprintf(name, sizeof name, "%s.%s", p->spec->label, k ? "around_mean" : "weight");
        if (!(of[k] = tensors_find(t->x.tensors, name)))
            rc = err_set(GPT_INPUT, "%s: no tensor '%s'", tensors_path(t->x.tensors), name);
    }
    for (size_t i = 0, k; i < n && !rc; i += k) {
        k = n - i < PIECE ? n - i : PIECE;
        if ((rc = values_load(t->x.tensors, of[0], i, both, k)) ||
            (rc = values_load(t->x.tensors, of[1], i, both + PIECE, k)))
            break;
        for (size_t e = 0; e < k; e++) { /* in f32, as op around */
            float w = (float)both[e], mean = (float)both[PIECE + e];
            x[e] = part == 1 ? mean : w + part * (mean - w);
            if (p->spec->dtype == DT_BF16) /* also where the bank has it in f32 */
                x[e] = bf16_round(x[e]);
        }
        put(o, p, DT_F32, (int64_t)i, x, room, k);
    }
    free(x);
    free(both);
    return rc;
}

int trained_load(struct trained *t, struct banks *b)
{
    const struct ckpt *c = tensors_ckpt(t->x.tensors);
    float *room = malloc(PIECE * sizeof *room);
    struct expected *e = NULL;
    int n = 0, rc = room ? expected_tensors(t->recipe, &e, &n) : err_memory();

    for (int i = 0; i < n && !rc; i++)
        if (!strcmp(e[i].kind, "weight")) {
            const struct param *p = &b->p[recipe_param(t->recipe, e[i].param)];
            struct whole w = whole_of(&e[i]);
            bool kept = p->spec->stored == DT_NONE;
            if (c && schedule_reads_apart(t->recipe, (int)t->step) &&
                around_takes(&t->recipe->optimizer.around, recipe_param(t->recipe, e[i].param))) {
                rc = load_average(t, p, b->ops, room);
                continue;
            }
            if (!kept) /* the values of f16 and of e4m3 with scales */
                e[i].dtype = DT_F32, e[i].scale = 0;
            rc = c && kept ? load_stored(c, p, b->ops, room) : load_parts(t, &w, p, b->ops, room);
        }
    free(e);
    free(room);
    return rc ? rc : b->ops->sync(b->ops);
}
