/* Each expected tensor is put together from parts, element by element in order, so that it can be
 * written as a stream. */
#include "inspect/import.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/num.h"
#include "base/version.h"
#include "checkpoint/checkpoint_write.h"
#include "inspect/expected.h"
#include "inspect/inspect.h"
#include "model/schedule.h"

enum { CHUNK = 1 << 13 };

/* Elements first .. first + n - 1 of an expected tensor are those of t. */
struct part {
    uint64_t first, n;
    const struct stored *t;
};

struct whole {
    const struct expected *e;
    struct part *parts; /* by first, without overlap; what is between them is zero */
    int n;
    bool cut; /* a weight whose low half is a tensor of its own */
    bool away; /* a weight beside an f32 master: halves are rounded away from zero */
    bool master; /* of the weight where the file has none */
    bool low; /* that low half */
};

static uint64_t elements_of(const struct expected *e)
{
    uint64_t n = 1;
    for (int i = 0; i < e->rank; i++)
        n *= (uint64_t)e->shape[i];
    return n;
}

static const struct stored *find(const struct tensors *s, const char *part, const char *kind)
{
    char name[256];
    snprintf(name, sizeof name, "%s.%s", part, kind);
    return tensors_find(s, name);
}

static int wrong_size(const struct tensors *s, const struct stored *t, uint64_t n)
{
    return err_set(GPT_INPUT, "%s: tensor '%s': expected %" PRIu64 " elements, found %" PRIu64,
                   tensors_path(s), t->name, n, t->elements);
}

/* Looks for the pieces of w under the names of the map. */
static int find_parts(const struct tensors *s, const struct name_map *map, const char *kind,
                      struct whole *w, const char **missing)
{
    uint64_t each = elements_of(w->e) / (uint64_t)w->e->shape[0];
    if (!(w->parts = calloc((size_t)map->n + 1, sizeof *w->parts)))
        return err_memory();
    for (int i = 0; i < map->n; i++) {
        const struct part_name *p = &map->v[i];
        if (strcmp(p->param, w->e->param))
            continue;
        const struct stored *t = find(s, p->name, kind);
        uint64_t n = p->elements ? p->elements : p->units * each;
        if (!t && !p->padding && !*missing)
            *missing = p->name;
        if (!t)
            continue;
        if (t->elements != n)
            return wrong_size(s, t, n);
        w->parts[w->n++] = (struct part){ p->unit * each + p->inner, n, t };
    }
    return 0;
}

static int by_first(const void *a, const void *b)
{
    const struct part *x = a, *y = b;
    return x->first < y->first ? -1 : x->first > y->first;
}

static int collect(const struct tensors *s, const struct name_map *map, struct whole *w,
                   int *states)
{
    bool derived = w->low || (w->master && !find(s, w->e->param, "master"));
    const char *kind = derived ? "weight" : w->e->kind, *missing = NULL;
    const struct stored *t = find(s, w->e->param, kind);
    bool weight = !strcmp(kind, "weight");
    int rc = 0;
    if (t) {
        if (t->elements != elements_of(w->e))
            return wrong_size(s, t, elements_of(w->e));
        if (!(w->parts = calloc(1, sizeof *w->parts)))
            return err_memory();
        w->parts[w->n++] = (struct part){ 0, t->elements, t };
    } else if (map) {
        if ((rc = find_parts(s, map, kind, w, &missing)))
            return rc;
        qsort(w->parts, (size_t)w->n, sizeof *w->parts, by_first);
    }
    if (weight && (missing || !w->n))
        return err_set(GPT_INPUT, "%s: expected a tensor '%s.weight', found none", tensors_path(s),
                       missing ? missing : w->e->param);
    *states += !weight && w->n > 0;
    return 0;
}

/* --- a piece as a stream --- */

struct feed {
    struct tensors *s;
    const struct whole *w;
    uint64_t at; /* next element of the whole */
    struct values v;
    int open; /* index of the part that v reads, + 1 */
};

static void close_part(struct feed *f)
{
    if (f->open)
        values_close(&f->v);
    f->open = 0;
}

/* Up to n elements from f->at on: of one part, or of a gap. */
static int next_values(struct feed *f, double *x, size_t *n)
{
    const struct whole *w = f->w;
    int i = 0, rc = 0;
    while (i < w->n && w->parts[i].first + w->parts[i].n <= f->at)
        i++;
    if (i == w->n || w->parts[i].first > f->at) {
        uint64_t gap = i < w->n ? w->parts[i].first - f->at : UINT64_MAX;
        *n = *n < gap ? *n : (size_t)gap;
        memset(x, 0, *n * sizeof *x);
    } else {
        const struct part *p = &w->parts[i];
        uint64_t left = p->first + p->n - f->at;
        *n = *n < left ? *n : (size_t)left;
        if (f->open != i + 1) {
            close_part(f);
            f->open = i + 1;
            rc = values_open(&f->v, f->s, p->t, f->at - p->first);
        }
        if (!rc)
            rc = values_read(&f->v, x, *n);
    }
    f->at += *n;
    return rc;
}

static void encode(const struct whole *w, const double *x, size_t n, unsigned char *out)
{
    for (size_t i = 0; i < n; i++) {
        float f = (float)x[i];
        uint32_t bits = f32_bits(f);
        uint16_t half = w->low                  ? (uint16_t)bits
                        : w->cut                ? (uint16_t)(bits >> 16)
                        : w->away && f == f     ? (uint16_t)((bits + 0x8000) >> 16)
                        : w->e->dtype == DT_F16 ? f16_from_f32(f)
                                                : bf16_from_f32(f);
        if (dtype_size(w->e->dtype) == 4)
            memcpy(out + 4 * i, &f, 4);
        else
            memcpy(out + 2 * i, &half, 2);
    }
}

static int feed(void *arg, void *dst, size_t n)
{
    struct feed *f = arg;
    double x[CHUNK];
    unsigned char *out = dst;
    size_t size = dtype_size(f->w->e->dtype);
    for (size_t left = n / size, k; left > 0; left -= k) {
        k = left < CHUNK ? left : CHUNK;
        int rc = next_values(f, x, &k);
        if (rc)
            return rc;
        encode(f->w, x, k, out);
        out += k * size;
    }
    return 0;
}

static int write_rank(struct tensors *s, const struct whole *w, int n, const struct ckpt_info *info,
                      const char *root, int level, int rank)
{
    struct ckpt_tensor *t = calloc((size_t)n + 1, sizeof *t);
    struct feed *f = calloc((size_t)n + 1, sizeof *f);
    int rc = t && f ? 0 : err_memory();
    for (int i = 0; !rc && i < n; i++) {
        const struct expected *e = w[i].e;
        int64_t count = e->sharded ? e->shape[0] / info->ranks : rank ? 0 : e->shape[0];
        int64_t begin = e->sharded ? count * rank : 0;
        f[i] = (struct feed){ .s = s, .w = &w[i] };
        f[i].at = elements_of(e) / (uint64_t)e->shape[0] * (uint64_t)begin;
        t[i] = (struct ckpt_tensor){ .param = e->param,
                                     .kind = e->kind,
                                     .dtype = e->dtype,
                                     .rank = e->rank,
                                     .begin = begin,
                                     .count = count,
                                     .fill = feed,
                                     .arg = &f[i] };
        memcpy(t[i].shape, e->shape, sizeof t[i].shape);
    }
    if (!rc)
        rc = ckpt_write_rank(root, info->step, rank, t, n, level);
    for (int i = 0; f && i < n; i++)
        close_part(&f[i]);
    free(t);
    free(f);
    return rc;
}

static int write_all(struct tensors *s, const struct whole *w, int n, const struct ckpt_info *info,
                     const char *root, int level)
{
    int rc = ckpt_begin(root, info->step);
    for (int r = 0; !rc && r < info->ranks; r++)
        rc = write_rank(s, w, n, info, root, level, r);
    if (!rc)
        return ckpt_commit(root, info);
    ckpt_abort(root, info->step);
    return rc;
}

/* --- small state --- */

/* How many of the two moments of a parameter the file has. */
static int moments_of(const struct whole *w, int n, const char *param)
{
    int found = 0;
    for (int i = 0; i < n; i++)
        found += !strncmp(w[i].e->kind, "exp_avg", 7) && w[i].n && !strcmp(w[i].e->param, param);
    return found;
}

static struct expected_state *expected_of(struct expected_state *s, int n, const char *key)
{
    for (int i = 0; i < n; i++)
        if (!strcmp(s[i].key, key))
            return &s[i];
    return NULL;
}

/* Adam's counts go with its moments: zero without them, and none for a parameter that Adam does not
 * update. A data position that is missing is the beginning of the data at this step. */
struct small_state {
    struct expected_state *expected;
    int nexpected, nkv;
    struct ckpt_kv *kv;
    char step[24];
};

static void keep_state(struct small_state *s, const struct ckpt_info *info, const struct whole *w,
                       int n)
{
    for (int i = 0; i < info->nstate; i++) {
        struct ckpt_kv kv = info->state[i];
        const struct expected_state *e = expected_of(s->expected, s->nexpected, kv.key);
        if (!e && !strncmp(kv.key, "adam.", 5))
            continue;
        if (e && e->param && !moments_of(w, n, e->param))
            kv.value = "0";
        s->kv[s->nkv++] = kv;
    }
}

static int add_missing_state(struct small_state *s, const struct ckpt_info *info,
                             const struct tensors *from, const struct whole *w, int n)
{
    snprintf(s->step, sizeof s->step, "%" PRId64, info->step);
    for (int i = 0; i < s->nexpected; i++) {
        const struct expected_state *e = &s->expected[i];
        int moments = e->param ? moments_of(w, n, e->param) : 0;
        bool known = ckpt_info_state(info, e->key);
        if (moments && (moments < 2 || !known))
            return err_set(GPT_INPUT,
                           "%s: expected '%s.exp_avg', '%s.exp_avg_sq' and state %s together: "
                           "--like gives the state",
                           tensors_path(from), e->param, e->param, e->key);
        if (!known)
            s->kv[s->nkv++] =
                (struct ckpt_kv){ e->key, strcmp(e->key, "loader.step") ? "0" : s->step };
    }
    return 0;
}

static int make_state(struct small_state *s, const struct recipe *r, const struct ckpt_info *info,
                      const struct tensors *from, const struct whole *w, int n)
{
    int rc = expected_state(r, &s->expected, &s->nexpected);
    if (rc)
        return rc;
    s->kv = calloc((size_t)(info->nstate + s->nexpected) + 1, sizeof *s->kv);
    if (!s->kv)
        return err_memory();
    keep_state(s, info, w, n);
    return add_missing_state(s, info, from, w, n);
}

static int write_with_state(struct tensors *s, const struct whole *w, int n,
                            const struct ckpt_info *info, const struct recipe *r,
                            const struct import_job *job)
{
    struct small_state state = { 0 };
    struct ckpt_info with = *info;
    int rc = make_state(&state, r, info, s, w, n);
    with.state = state.kv;
    with.nstate = state.nkv;
    if (!rc)
        rc = write_all(s, w, n, &with, job->root, job->level);
    free(state.kv);
    free(state.expected);
    return rc;
}

static int write_tensors(struct tensors *s, const struct name_map *map, const struct expected *e,
                         int n, const struct ckpt_info *info, const struct recipe *r,
                         const struct import_job *job, int *states)
{
    struct whole *w = calloc((size_t)n + 1, sizeof *w);
    int rc = w ? 0 : err_memory();
    *states = 0;
    for (int i = 0; !rc && i < n; i++) {
        w[i].e = &e[i];
        w[i].low = !strcmp(e[i].kind, "mantissa") || !strcmp(e[i].kind, "remainder");
        w[i].master = !strcmp(e[i].kind, "master");
        for (int k = 0; k < n; k++)
            if (!strcmp(e[i].kind, "weight") && !strcmp(e[i].param, e[k].param)) {
                w[i].cut |= !strcmp(e[k].kind, "mantissa");
                w[i].away |= !strcmp(e[k].kind, "remainder") || !strcmp(e[k].kind, "master");
            }
        if (strchr(e[i].kind, '.'))
            rc = err_set(GPT_INPUT,
                         "'%s.%s': import makes states in f32 and bf16, and this recipe keeps "
                         "some in f16 or e4m3",
                         e[i].param, e[i].kind);
        else if (e[i].sharded && e[i].shape[0] % info->ranks)
            rc = err_set(GPT_INPUT, "%d ranks do not divide the %" PRId64 " units of '%s.%s'",
                         info->ranks, e[i].shape[0], e[i].param, e[i].kind);
        else
            rc = collect(s, map, &w[i], states);
    }
    if (!rc)
        rc = write_with_state(s, w, n, info, r, job);
    for (int i = 0; w && i < n; i++)
        free(w[i].parts);
    free(w);
    return rc;
}

/* --- the job --- */

static void release_info(struct ckpt_info *info)
{
    free((void *)info->state);
    info->state = NULL;
}

/* Step, tokens, tool and small state, of a checkpoint or as export wrote them into a file; zero and
 * none where it has none. recipe and ranks are the caller's to set. */
static int read_info(const struct inspect *x, struct ckpt_info *info)
{
    const struct ckpt *c = tensors_ckpt(x->tensors);
    const struct st_header *h = tensors_header(x->tensors);
    int n = c ? ckpt_info(c)->nstate : (int)h->nmeta;
    struct ckpt_kv *kv = calloc((size_t)n + 1, sizeof *kv);
    int rc = 0;
    *info = c ? *ckpt_info(c) : (struct ckpt_info){ .tool = st_meta(h, "gpt.tool") };
    info->state = kv;
    info->tool = info->tool ? info->tool : "gpt-ckpt " GPT_VERSION;
    if (!kv)
        return err_memory();
    for (int i = 0; c && i < n; i++)
        kv[i] = ckpt_info(c)->state[i];
    for (int i = 0; !c && i < n; i++)
        if (!strncmp(h->meta[i].key, "gpt.state.", 10))
            kv[info->nstate++] = (struct ckpt_kv){ h->meta[i].key + 10, h->meta[i].value };
    const char *step = c ? NULL : st_meta(h, "gpt.step");
    const char *tokens = c ? NULL : st_meta(h, "gpt.tokens");
    if (step)
        rc = num_i64(step, "gpt.step", 0, INT64_MAX, &info->step);
    if (!rc && tokens)
        rc = num_i64(tokens, "gpt.tokens", 0, INT64_MAX, &info->tokens);
    if (rc)
        release_info(info);
    return rc;
}

/* The recipe of job->recipe, else of job->like, else of the file. */
static int find_recipe(const struct import_job *job, const struct inspect *x,
                       const struct inspect *like, struct recipe **r)
{
    bool is_ckpt = tensors_ckpt(x->tensors);
    const char *path = tensors_path(x->tensors);
    const char *text = is_ckpt ? NULL : st_meta(tensors_header(x->tensors), "gpt.recipe");
    *r = NULL;
    if (job->recipe)
        return recipe_read(r, job->recipe, NULL, 0);
    if (job->like && tensors_ckpt(like->tensors))
        text = ckpt_info(tensors_ckpt(like->tensors))->recipe;
    if (!text)
        return err_set(GPT_INPUT,
                       is_ckpt ? "%s: is a checkpoint already; import makes one of a "
                                 "file, reshard writes one for another number of ranks"
                               : "%s: carries no recipe; --recipe or --like gives one",
                       path);
    return recipe_parse(r, path, text, NULL, 0);
}

static int write_as(const struct import_job *job, struct inspect *x, const struct recipe *r,
                    const struct ckpt_info *info, bool *only_weights)
{
    struct expected *e = NULL;
    struct name_map map;
    int n, states, rc = job->force ? 0 : ckpt_check_free(job->root, info->step);
    if (!rc && info->step > schedule_total(r))
        rc = err_set(GPT_INPUT, "%s: step %" PRId64 ", but the recipe ends at %d", job->file,
                     info->step, schedule_total(r));
    if (rc || (rc = name_map_make(&map, r)))
        return rc;
    if (!(rc = expected_tensors(r, &e, &n)))
        rc = write_tensors(x->tensors, &map, e, n, info, r, job, &states);
    *only_weights = !rc && states == 0;
    free(e);
    name_map_release(&map);
    return rc;
}

int import_checkpoint(const struct import_job *job, bool *only_weights)
{
    struct inspect x = { 0 }, like = { 0 };
    struct recipe *r = NULL;
    struct ckpt_info info;
    int rc = inspect_open(&x, job->file);
    if (!rc && job->like)
        rc = inspect_open(&like, job->like);
    if (!rc && !(rc = find_recipe(job, &x, &like, &r)) &&
        !(rc = read_info(job->like ? &like : &x, &info))) {
        info.ranks = job->ranks;
        info.recipe = recipe_canonical(r);
        rc = write_as(job, &x, r, &info, only_weights);
        release_info(&info);
    }
    recipe_free(r);
    inspect_close(&like);
    inspect_close(&x);
    return rc;
}
