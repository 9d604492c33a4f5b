/* import.c - see import.h. */
#include "inspect/import.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/file.h"
#include "base/num.h"
#include "base/version.h"
#include "checkpoint/checkpoint_write.h"
#include "inspect/expected.h"
#include "inspect/inspect.h"
#include "inspect/whole.h"
#include "recipe/schedule.h"
#include "recipe/share.h"

static int write_rank(struct tensors *s, const struct whole *w, int n, const struct ckpt_info *info,
                      const struct recipe *r, const char *root, int level, int rank)
{
    struct ckpt_tensor *t = calloc((size_t)n + 1, sizeof *t);
    struct feed *f = calloc((size_t)n + 1, sizeof *f);
    int rc = t && f ? 0 : err_memory();
    for (int i = 0; !rc && i < n; i++) {
        const struct expected *e = w[i].e;
        struct span own = e->sharded ? share_of(r, recipe_param(r, e->param), rank, info->ranks)
                                     : (struct span){ 0, rank ? 0 : e->shape[0] };
        f[i] = (struct feed){ .s = s, .w = &w[i] };
        f[i].at = whole_elements(e) / (uint64_t)e->shape[0] * (uint64_t)own.first;
        t[i] = (struct ckpt_tensor){ .param = e->param,
                                     .kind = e->kind,
                                     .dtype = e->dtype,
                                     .rank = e->rank,
                                     .begin = own.first,
                                     .count = own.count,
                                     .fill = feed_read,
                                     .arg = &f[i] };
        memcpy(t[i].shape, e->shape, sizeof t[i].shape);
    }
    if (!rc)
        rc = ckpt_write_rank(root, info->step, rank, t, n, level);
    for (int i = 0; f && i < n; i++)
        feed_close(&f[i]);
    free(t);
    free(f);
    return rc;
}

static int write_all(struct tensors *s, const struct whole *w, int n, const struct ckpt_info *info,
                     const struct recipe *r, const char *root, int level)
{
    int rc = ckpt_begin(root, info->step);
    for (int k = 0; !rc && k < info->ranks; k++)
        rc = write_rank(s, w, n, info, r, root, level, k);
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
        rc = write_all(s, w, n, &with, r, job->root, job->level);
    free(state.kv);
    free(state.expected);
    return rc;
}

static int write_tensors(struct tensors *s, const struct name_map *map, const struct expected *e,
                         int n, const struct ckpt_info *info, const struct recipe *r,
                         const struct import_job *job, int *states)
{
    struct whole *w = calloc((size_t)n + 1, sizeof *w);
    int rc = w ? 0 : err_memory(), have = 0;
    *states = 0;
    for (int i = 0; !rc && i < n; i++) {
        struct whole *x = &w[have];
        *x = whole_of(&e[i]);
        rc = whole_find(x, s, map, states);
        if (!rc && strstr(e[i].kind, ".scale")) /* it follows what it scales */
            rc = whole_scales(x, x - 1, s);
        if (x->n || !e[i].optional)
            have++;
        else
            whole_release(x);
    }
    if (!rc)
        rc = write_with_state(s, w, have, info, r, job);
    for (int i = 0; w && i < have; i++)
        whole_release(&w[i]);
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
    size_t notes;
    const struct st_meta *note = tensors_notes(x->tensors, &notes);
    int n = c ? ckpt_info(c)->nstate : (int)notes;
    struct ckpt_kv *kv = calloc((size_t)n + 1, sizeof *kv);
    int rc = 0;
    *info = c ? *ckpt_info(c) : (struct ckpt_info){ .tool = tensors_note(x->tensors, "gpt.tool") };
    info->state = kv;
    info->tool = info->tool ? info->tool : "gpt-ckpt " GPT_VERSION;
    if (!kv)
        return err_memory();
    for (int i = 0; c && i < n; i++)
        kv[i] = ckpt_info(c)->state[i];
    for (int i = 0; !c && i < n; i++)
        if (!strncmp(note[i].key, "gpt.state.", 10))
            kv[info->nstate++] = (struct ckpt_kv){ note[i].key + 10, note[i].value };
    const char *step = c ? NULL : tensors_note(x->tensors, "gpt.step");
    const char *tokens = c ? NULL : tensors_note(x->tensors, "gpt.tokens");
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
    const char *text = is_ckpt ? NULL : tensors_note(x->tensors, "gpt.recipe");
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

/* Takes the number of ranks whose own states the file holds from the file. */
static void count_ranks(struct expected *e, int n, const struct tensors *s)
{
    char name[96];
    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof name, "%s.%s", e[i].param, e[i].kind);
        const struct stored *t = e[i].each_rank ? tensors_find(s, name) : NULL;
        uint64_t one = (uint64_t)e[i].shape[0];
        if (t && t->elements >= one && t->elements % one == 0)
            e[i].shape[0] = (int64_t)t->elements;
    }
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
    if (!(rc = expected_tensors(r, &e, &n))) {
        count_ranks(e, n, x->tensors);
        rc = write_tensors(x->tensors, &map, e, n, info, r, job, &states);
    }
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
    const char *file = job->file;
    /* It is read more than once, in the order of the recipe. */
    int rc = strcmp(file, "-") ? 0 : file_spool_stdin(&file);
    if (!rc)
        rc = inspect_open(&x, file);
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
