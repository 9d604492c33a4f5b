/* save.c - writes the state of a run to checkpoints and loads it (checkpoint/checkpoint.h). */
#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include "base/file.h"
#include "base/version.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_write.h"
#include "data/shard_stream.h"
#include "optim/untie.h"
#include "train/rank.h"

/* 0 if all ranks have succeeded. Else the own code of a rank that has not, and -code of another on
 * the rest. */
static int agree(struct rank *k, int mine)
{
    double code = mine, all[MAX_RANKS];
    int rc = k->comm->gather_host(k->comm, &code, 1, all);
    if (rc || mine)
        return rc ? rc : mine;
    for (int i = 0; i < k->world; i++)
        if (all[i] != 0)
            return -(int)all[i];
    return 0;
}

/* -- tensors of a rank ------------------------------------------------------------ */

/* Whole shape of a state: (matrices, rows, cols) of a bank, (rows, cols) of others. */
static struct ckpt_tensor describe(const struct rank *k, const struct optim_tensor *t)
{
    const struct param_spec *s = k->banks.p[t->param].spec;
    struct ckpt_tensor c = { .param = s->label,
                             .kind = t->kind,
                             .dtype = t->t.dtype,
                             .begin = t->first,
                             .count = t->count };
    c.shape[c.rank++] = t->total;
    if (t->state->matrices > 1)
        c.shape[c.rank++] = t->state->rows;
    c.shape[c.rank++] = t->t.cols;
    return c;
}

/* Multiplies n bytes of numbers in f32 or bf16. */
static void multiply(enum dtype t, void *x, size_t n, double by)
{
    assert((t == DT_F32 || t == DT_BF16) && n % dtype_size(t) == 0);
    for (size_t i = 0; by != 1 && i < n / dtype_size(t); i++)
        if (t == DT_F32)
            ((float *)x)[i] = (float)(((float *)x)[i] * by);
        else
            ((uint16_t *)x)[i] = bf16_from_f32((float)(bf16_to_f32(((uint16_t *)x)[i]) * by));
}

/* Where the next bytes of a tensor are: on the device, or, copied, on the host. */
struct source {
    struct rank *k;
    const char *at;
    bool copied;
    enum dtype dtype;
    double times; /* by what its numbers are multiplied */
};

static int next_bytes(void *arg, void *dst, size_t n)
{
    struct source *s = arg;
    if (s->copied)
        memcpy(dst, s->at, n);
    else
        s->k->ops->download(s->k->ops, dst, s->at, n);
    s->at += n;
    int rc = s->k->ops->status(s->k->ops);
    if (!rc && s->times != 1)
        multiply(s->dtype, dst, n, s->times);
    return rc;
}

static bool is_gradient(const struct optim_tensor *t) { return t->state->role == STATE_GRADIENT; }

/* The embedding follows the head until they part, and its master only here. */
static bool follows_head(const struct rank *k, const struct optim_tensor *t)
{
    struct step_schedule at;
    schedule_at(k->run->recipe, k->step, &at);
    return at.tied && t->param == k->run->recipe->order.tied_embed &&
           t->state->role == STATE_MASTER;
}

/* Makes t's gradients copies on the host, k->aside, since optim_tie_master needs their memory. */
static int copy_gradients(struct rank *k, struct optim_tensor *t, int n)
{
    size_t bytes = 0, at = 0;
    bool first = !k->aside;
    for (int i = 0; i < n; i++)
        bytes += is_gradient(&t[i]) ? tensor_bytes(t[i].t) : 0;
    if (bytes && first && !(k->aside = malloc(bytes)))
        return err_memory();
    for (int i = 0; i < n; i++)
        if (is_gradient(&t[i])) {
            if (first)
                k->ops->download(k->ops, k->aside + at, t[i].t.data, tensor_bytes(t[i].t));
            t[i].t.data = k->aside + at;
            at += tensor_bytes(t[i].t);
        }
    return 0;
}

/* Lists this rank's state: *n tensors, which are downloaded as they are written. Collective where
 * the embedding's master follows the head's. */
static int list_state(struct rank *k, struct ckpt_tensor *out, struct source *from, int *n)
{
    struct optim_tensor t[OPTIM_MAX_TENSORS];
    int have = optim_tensors(&k->optim, t);
    bool follows = false;
    *n = 0;
    for (int i = 0; i < have; i++)
        follows |= follows_head(k, &t[i]);
    if (follows) {
        int rc = agree(k, copy_gradients(k, t, have));
        if (rc)
            return rc;
        optim_tie_master(&k->optim);
    }
    for (int i = 0; i < have; i++) {
        if (t[i].replicated && k->rank)
            continue;
        bool gradient = is_gradient(&t[i]);
        from[*n] = (struct source){ k, t[i].t.data, gradient && follows, t[i].t.dtype,
                                    gradient ? 1 / k->run->recipe->optimizer.loss_scale : 1 };
        out[*n] = describe(k, &t[i]);
        out[*n].fill = next_bytes;
        out[*n].arg = &from[*n];
        ++*n;
    }
    return 0;
}

/* Returns the bytes of all ranks' state, at most: at the run's end gradients may wait. */
static double state_bytes(const struct rank *k)
{
    const struct recipe *r = k->run->recipe;
    struct state s[MAX_STATES];
    double bytes = 0;
    for (int i = 0; i < r->n_params; i++)
        for (int j = 0, n = states_of(r, i, s); j < n; j++)
            if (s[j].role != STATE_GRADIENT || recipe_waits(&r->params[i], k->run->total))
                bytes += (double)states_bytes(r, i, &s[j], 1);
    return bytes;
}

/* -- key-value state ----------------------------------------------------------------- */

enum { MAX_STATE = MAX_PARAMS + 13, STATE_TEXT = 80 };
struct kv_state {
    struct ckpt_kv kv[MAX_STATE];
    char text[MAX_STATE][2][STATE_TEXT];
    int n;
};

static void put_text(struct kv_state *s, const char *key, const char *v)
{
    char(*text)[STATE_TEXT] = s->text[s->n];
    snprintf(text[0], STATE_TEXT, "%s", key);
    snprintf(text[1], STATE_TEXT, "%s", v);
    s->kv[s->n++] = (struct ckpt_kv){ text[0], text[1] };
}

static void put(struct kv_state *s, const char *key, const char *label, int64_t v)
{
    char name[STATE_TEXT], number[24];
    snprintf(name, sizeof name, key, label);
    snprintf(number, sizeof number, "%lld", (long long)v);
    put_text(s, name, number);
}

static void gather_kv(const struct rank *k, struct kv_state *s)
{
    const struct loader_pos *p = &k->after;
    s->n = 0;
    put(s, "loader.step", NULL, p->step);
    put(s, "loader.epoch", NULL, p->epoch);
    put(s, "loader.shard", NULL, p->shard);
    put(s, "loader.document", NULL, p->at.document);
    if (cut_reads_on(k->run->recipe->data.cut)) {
        put(s, "loader.round", NULL, p->at.round);
        put(s, "loader.token", NULL, p->at.token);
    }
    if (k->run->recipe->data.cut == CUT_PIECES)
        put(s, "loader.piece", NULL, k->run->recipe->data.piece);
    if (k->run->repeat_from)
        put(s, "loader.repeat_from", NULL, k->run->repeat_from);
    if (p->used >= 0)
        put(s, "loader.used", NULL, p->used);
    for (int i = 0; i < k->banks.n; i++)
        if (rule_has_adam(&k->banks.p[i].spec->rule))
            put(s, "adam.%s.updates", k->banks.p[i].spec->label, k->optim.p[i].count);
    put_text(s, "loader.id", loader_id(k->run->loader));
    if (k->run->stream && shard_stream_is_short(k->run->stream))
        put(s, "loader.bytes", NULL, shard_stream_id_bytes(k->run->stream));
    if (*loader_tokenizer(k->run->loader))
        put_text(s, "tokenizer", loader_tokenizer(k->run->loader));
    if (*k->run->begun)
        put_text(s, "init", k->run->begun);
}

/* -- writing --------------------------------------------------------------------------- */

/* Checkpoints of later steps may be removed. */
static int64_t removes_above(const struct run *run)
{
    return run->opt->keep_all_else ? run->first : -1;
}

/* Removes checkpoints but the newest `keep`. *text: "; removed: step 2 4", or nothing. */
static int prune(const struct run *run, int keep, char *text, size_t size)
{
    const char *out = run->opt->out;
    int64_t *steps, above = removes_above(run);
    int n, at = 0, rc = ckpt_prunable(out, keep, 0, above, &steps, &n);
    *text = 0;
    for (int i = 0; i < n && !rc && (size_t)at < size; i++)
        at += snprintf(text + at, size - (size_t)at, i ? " %lld" : "; removed: step %lld",
                       (long long)steps[i]);
    free(steps);
    return rc ? rc : ckpt_prune(out, keep, 0, above, NULL);
}

static int commit(struct rank *k)
{
    struct run *run = k->run;
    char removed[400] = "";
    struct kv_state s;
    char tool[128];
    gather_kv(k, &s);
    struct ckpt_info info = {
        .step = k->step,
        .tokens = k->tokens_seen,
        .ranks = k->world,
        .tool = version_tool("gpt-train", tool, sizeof tool),
        .recipe = recipe_canonical(run->recipe),
        .state = s.kv,
        .nstate = s.n,
    };
    int rc = ckpt_commit(run->opt->out, &info);
    if (rc)
        return rc;
    if (run->opt->keep && prune(run, run->opt->keep, removed, sizeof removed))
        run_warn(run, err_message());
    runlog_key(&run->log, "checkpoint", "step %d%s", k->step, removed);
    rc = runlog_status(&run->log);
    runlog_sync(&run->log);
    return rc;
}

static int write_state(struct rank *k)
{
    const char *out = k->run->opt->out;
    struct ckpt_tensor t[OPTIM_MAX_TENSORS];
    struct source from[OPTIM_MAX_TENSORS];
    int rc = agree(k, k->rank ? 0 : ckpt_begin(out, k->step));
    if (rc)
        return rc;
    int n;
    if (!(rc = list_state(k, t, from, &n)))
        rc = agree(k, ckpt_write_rank(out, k->step, k->rank, t, n, 1));
    if (rc) {
        if (k->rank == 0)
            ckpt_abort(out, k->step);
        return rc;
    }
    return agree(k, k->rank ? 0 : commit(k));
}

static double room_on_disk(const char *out)
{
    struct statvfs fs;
    return statvfs(out, &fs) || !fs.f_blocks ? INFINITY /* some file systems do not say */
                                             : (double)fs.f_bavail * (double)fs.f_frsize;
}

/* Collective, after a failure to write. Where the disk is full and there are two checkpoints or more that
 * this run removes in time, removes the oldest of them now. */
static bool make_room(struct rank *k)
{
    const struct run_options *o = k->run->opt;
    char why[sizeof k->run->message], removed[400], text[600];
    double gave = 0, all[MAX_RANKS];
    int64_t *steps;
    int n = 0, code = err_code();
    snprintf(why, sizeof why, "%s", err_message());
    if (!k->rank && o->keep && room_on_disk(o->out) < state_bytes(k) &&
        !ckpt_prunable(o->out, 1, 0, removes_above(k->run), &steps, &n)) {
        free(steps);
        gave = n > 0 && !prune(k->run, n, removed, sizeof removed);
    }
    if (gave != 0) {
        snprintf(text, sizeof text, "%s: the disk is full%s, for step %d", o->out, removed,
                 k->step);
        run_warn(k->run, text);
    }
    bool heard = !k->comm->gather_host(k->comm, &gave, 1, all);
    err_set(code, "%s", why);
    return heard && all[0] != 0;
}

/* The message of the first rank of this process that says it. */
static void warn_unsaved(struct rank *k)
{
    struct run *run = k->run;
    char text[sizeof run->message];
    pthread_mutex_lock(&run->lock);
    bool first = run->unsaved != k->step;
    run->unsaved = k->step;
    pthread_mutex_unlock(&run->lock);
    snprintf(text, sizeof text,
             "no checkpoint of step %d: %.400s; the run goes on, and the next one is tried",
             k->step, err_message());
    if (first)
        run_warn(run, text);
}

/* Reduces gradients that wait. Where one is not finite, with which a run could not go on, none is
 * kept. */
static int set_aside(struct rank *k)
{
    double mine, all[MAX_RANKS];
    char text[160];
    bool bad = false;
    int rc = optim_set_aside(&k->optim, k->step);
    mine = !rc && !check_gradients(k);
    if (!rc && !(rc = rank_status(k)))
        rc = k->comm->gather_host(k->comm, &mine, 1, all);
    for (int i = 0; i < k->world && !rc; i++)
        bad |= all[i] != 0;
    for (int i = 0; i < k->banks.n && bad; i++)
        k->optim.p[i].waits = false;
    snprintf(text, sizeof text,
             "step %d: gradients that wait for the next update are not finite: they are not kept",
             k->step);
    if (bad && !k->rank)
        run_warn(k->run, text);
    return rc;
}

int save_checkpoint(struct rank *k, bool required)
{
    struct run *run = k->run;
    rank_enter(k, "checkpoint", false);
    bool disk = false;
    int rc = k->step % run->recipe->optimizer.period ? set_aside(k) : 0;
    if (rc)
        return rc;
    /* A checkpoint does not have the record of touched rows. */
    assert(!k->optim.sparse || sparse_settled(k->optim.sparse));
    rc = agree(k, check_states(k));
    if (!rc)
        do {
            rc = write_state(k);
            disk = abs(rc) == GPT_SYSTEM && !rank_status(k);
        } while (disk && make_room(k));
    if (!rc) {
        run_keeps(k->step);
        return 0;
    }
    if (!disk || required) /* a rank that has no message waits for the end that the other brings */
        return rc < 0 ? k->comm->barrier(k->comm) : rc;
    if (rc > 0)
        warn_unsaved(k);
    return 0;
}

bool save_whole(const struct rank *k)
{
    return k->step % k->run->recipe->optimizer.period == 0 || k->step == k->run->total;
}

int save_room(struct rank *k)
{
    const char *out = k->run->opt->out;
    if (!out || k->rank)
        return 0;
    double one = state_bytes(k), room = room_on_disk(out), unit = one < 1e9 ? 1 << 20 : 1 << 30;
    const char *name = one < 1e9 ? "MiB" : "GiB";
    char text[400];
    snprintf(text, sizeof text, "%.200s: %.1f %s free, and a checkpoint may take %.1f", out,
             room / unit, name, one / unit);
    if (room < one)
        return err_set(GPT_SYSTEM, "%s: name a folder on another disk", text);
    if (room < 2 * one) {
        snprintf(text + strlen(text), sizeof text - strlen(text),
                 ": a second beside it, as the next one is written, may not fit");
        run_warn(k->run, text);
    }
    return 0;
}

int run_try_output(const char *dir, bool *made)
{
    struct stat st;
    *made = stat(dir, &st) && errno == ENOENT;
    int rc = file_mkdirs(dir);
    char *probe = rc ? NULL : path_join(dir, ".probe.tmp");
    if (!rc && !probe)
        return err_memory();
    if (!rc && mkdir(probe, 0777) && errno != EEXIST)
        rc = err_sys("cannot write into '%s'", dir);
    else if (!rc)
        rmdir(probe);
    free(probe);
    return rc;
}

/* -- reading ---------------------------------------------------------------------------- */

int run_checkpoint(const char *path, char **dir)
{
    struct stat st;
    int rc = ckpt_at(path, dir);
    if (rc && !stat(path, &st) && S_ISREG(st.st_mode))
        return err_set(GPT_INPUT,
                       "%s: expected a folder, found a file: gpt-ckpt import makes a checkpoint of "
                       "tensors, gpt-ckpt unpack of a packed one",
                       path);
    if (rc == GPT_NO)
        return err_set(GPT_INPUT, "%s: no complete checkpoint", path);
    return rc;
}

int run_begun(const char *dir)
{
    struct stat st;
    char *newest = NULL;
    int rc = stat(dir, &st) && errno == ENOENT ? GPT_NO : ckpt_latest(dir, &newest);
    free(newest);
    return rc;
}

/* Reads a number that not every checkpoint has. */
static int state_or(const struct ckpt *c, const char *key, int64_t otherwise, int64_t *out)
{
    *out = otherwise;
    return ckpt_state(c, key) ? ckpt_state_i64(c, key, out) : 0;
}

/* Reads what only runs with data.cut = pieces have, and how much of the pass was trained on, which
 * checkpoints of older versions do not say. */
static int read_pieces(struct run *run, struct ckpt *c, struct loader_pos *p)
{
    bool begin = !p->epoch && !p->shard && !p->at.document;
    int64_t piece;
    int rc;
    if ((rc = state_or(c, "loader.round", 0, &p->at.round)) ||
        (rc = state_or(c, "loader.token", 0, &p->at.token)) ||
        (rc = state_or(c, "loader.piece", run->recipe->data.piece, &piece)) ||
        (rc = state_or(c, "loader.used", begin ? 0 : -1, &p->used)))
        return rc;
    if ((p->at.round || p->at.token) && piece != run->recipe->data.piece)
        return err_set(
            GPT_INPUT,
            "%s: expected data.piece = %lld, as the run had, found %d: it is constant in "
            "a run",
            run->resume_dir, (long long)piece, run->recipe->data.piece);
    return 0;
}

static int read_position(struct run *run, struct ckpt *c)
{
    struct loader_pos *p = &run->start;
    const char *id = ckpt_state(c, "loader.id");
    int rc;
    if (id && strcmp(id, loader_id(run->loader)))
        return err_set(GPT_INPUT,
                       "%s: made with data %s, but -d %s is %s: name the shards that the run began "
                       "with, in the same order; on others its place in the data means nothing, "
                       "and --init begins a new run with its weights",
                       run->resume_dir, id, run->opt->data, loader_id(run->loader));
    if ((rc = ckpt_state_i64(c, "loader.step", &p->step)) ||
        (rc = ckpt_state_i64(c, "loader.epoch", &p->epoch)) ||
        (rc = ckpt_state_i64(c, "loader.shard", &p->shard)) ||
        (rc = ckpt_state_i64(c, "loader.document", &p->at.document)) ||
        (rc = read_pieces(run, c, p)))
        return rc;
    if (!id && (p->epoch || p->shard || p->at.document)) /* without: at the beginning of any data */
        return err_set(GPT_INPUT,
                       "%s: does not say with which data it was made, and stands in their middle",
                       run->resume_dir);
    return 0;
}

/* Reads the step that data.repeat counts from: that of the run, or, where it is another number now, the
 * one to begin with. */
static int read_repeat(struct run *run, const struct ckpt *c)
{
    struct recipe *had;
    if (run->recipe->data.repeat < 2)
        return 0;
    int rc = recipe_parse(&had, run->resume_dir, ckpt_info(c)->recipe, NULL, 0);
    if (rc)
        return rc;
    if (had->data.repeat == run->recipe->data.repeat)
        rc = state_or(c, "loader.repeat_from", 0, &run->repeat_from);
    else
        run->repeat_from = run->first;
    recipe_free(had);
    return rc;
}

int resume_find(struct run *run)
{
    const struct run_options *o = run->opt;
    struct ckpt *c;
    int rc = run_checkpoint(o->resume, &run->resume_dir);
    if (rc || (rc = ckpt_open(&c, run->resume_dir)))
        return rc;
    run->first = (int)ckpt_info(c)->step;
    run->tokens_seen = ckpt_info(c)->tokens;
    if (ckpt_state(c, "loader.id"))
        snprintf(run->saved_data, sizeof run->saved_data, "%s", ckpt_state(c, "loader.id"));
    rc = state_or(c, "loader.bytes", 0, &run->saved_bytes);
    if (!rc)
        rc = read_repeat(run, c);
    ckpt_close(c);
    if (rc)
        return rc;
    if (run->first > run->total)
        return err_set(
            GPT_INPUT,
            "%s: step %d, but the recipe ends at %d; -s schedule.steps=N with N above %d "
            "goes on",
            run->resume_dir, run->first, run->total, run->first - run->recipe->schedule.extension);
    if (run->first == run->total && run_looks(o))
        return err_set(GPT_INPUT,
                       "%s: step %d is the last, and %s is of the step that comes next; -s "
                       "schedule.steps=N with N above %d goes on",
                       run->resume_dir, run->first, o->one.stats ? "--stats" : "--gradients",
                       run->first - run->recipe->schedule.extension);
    bool validated =
        !run->recipe->data.val.tokens || runlog_validated(o->out ? o->out : o->resume, run->total);
    return run->first == run->total && validated ? RUN_ENDED : 0;
}

int resume_open(struct run *run)
{
    struct ckpt *c;
    int rc = ckpt_open(&c, run->resume_dir);
    if (rc)
        return rc;
    rc = read_position(run, c);
    if (ckpt_state(c, "init"))
        snprintf(run->begun, sizeof run->begun, "%s", ckpt_state(c, "init"));
    ckpt_close(c);
    return rc;
}

/* Refuses a folder with a MANIFEST: it would be read as a checkpoint, not as the run with those in it. */
static int check_no_manifest(const char *out)
{
    return !file_is_in(out, "MANIFEST")
               ? 0
               : err_set(GPT_INPUT,
                         "%s: has a MANIFEST, as a checkpoint or a folder of shards has: name "
                         "another folder for the run",
                         out);
}

/* Two runs that write to one directory would prune each other's checkpoints. A checkpoint of a
 * later step than this run's first would count as its newest, and its own would be pruned as
 * older. */
int save_check(const struct run *run)
{
    const char *out = run->opt->out;
    int64_t *steps, newest = 0;
    int n, rc;
    if (!out || run->opt->backend->first)
        return 0;
    if ((rc = check_no_manifest(out)) || (rc = ckpt_hold(out)) || (rc = ckpt_list(out, &steps, &n)))
        return rc;
    if (n)
        newest = steps[n - 1];
    free(steps);
    if (newest > run->first)
        return err_set(GPT_INPUT,
                       "%s: holds step %lld of an earlier run, and this one begins at "
                       "step %d: go on with that one (--continue), name another folder, or remove "
                       "this one",
                       out, (long long)newest, run->first);
    return 0;
}

/* Returns the first unit that this rank loads of t. Of a state that each rank has for itself, a
 * checkpoint of n ranks gives rank r that of its rank r mod n. */
static int64_t first_unit(const struct ckpt *c, const struct optim_tensor *t, const char *name)
{
    const struct ckpt_entry *e = t->state->each_rank ? ckpt_find(c, name) : NULL;
    int64_t held = e ? e->shape[0] - e->shape[0] % t->count : 0;
    return held ? t->first % held : t->first;
}

/* Loads this rank's shard of every sharded tensor, and the replicated ones whole. */
static int load_tensors(struct rank *k, struct ckpt *c)
{
    struct optim_tensor t[OPTIM_MAX_TENSORS];
    struct ckpt_want want[OPTIM_MAX_TENSORS];
    char names[OPTIM_MAX_TENSORS][96], *host;
    int n = optim_tensors(&k->optim, t), rc;
    size_t bytes = 0, at = 0;
    for (int i = 0; i < n; i++)
        bytes += tensor_bytes(t[i].t);
    if (!(host = malloc(bytes ? bytes : 1)))
        return err_sys("resume: %zu bytes", bytes);
    for (int i = 0; i < n; i++) {
        snprintf(names[i], sizeof names[i], "%s.%s", k->banks.p[t[i].param].spec->label, t[i].kind);
        want[i] = (struct ckpt_want){ names[i], t[i].t.dtype, first_unit(c, &t[i], names[i]),
                                      t[i].count, host + at };
        at += tensor_bytes(t[i].t);
    }
    rc = ckpt_load(c, want, n, 1);
    for (int i = 0; i < n && !rc; i++)
        if (is_gradient(&t[i]))
            multiply(t[i].t.dtype, want[i].dst, tensor_bytes(t[i].t),
                     optim_share(&k->optim, t[i].param) * k->run->recipe->optimizer.loss_scale);
    for (int i = 0; i < n && !rc; i++)
        k->ops->upload(k->ops, t[i].t.data, want[i].dst, tensor_bytes(t[i].t));
    if (!rc)
        rc = k->ops->sync(k->ops);
    free(host);
    return rc;
}

/* Makes room for gradients of a run that ended between two updates. Checkpoints of older versions
 * have none: these begin at zero. Where this recipe has an update there, nothing waits. */
static void expect_gradients(struct rank *k, const struct ckpt *c)
{
    char name[96], text[240];
    for (int i = 0; i < k->banks.n; i++) {
        const struct param_spec *s = k->banks.p[i].spec;
        snprintf(name, sizeof name, "%s.gradient", s->label);
        bool held = ckpt_find(c, name) != NULL;
        if (recipe_waits(s, k->run->first))
            optim_expects(&k->optim, i, held);
        else if (held && !k->rank) {
            snprintf(text, sizeof text,
                     "resume: '%s', which waits in the checkpoint of step %d, is not used: with an "
                     "update every %d step%s nothing waits there",
                     name, k->run->first, s->every, s->every > 1 ? "s" : "");
            run_warn(k->run, text);
        }
    }
}

int resume_rank(struct rank *k)
{
    struct ckpt *c;
    int rc = ckpt_open(&c, k->run->resume_dir);
    if (rc)
        return rc;
    expect_gradients(k, c);
    rc = load_tensors(k, c);
    for (int i = 0; i < k->banks.n && !rc; i++)
        if (rule_has_adam(&k->banks.p[i].spec->rule)) {
            char key[STATE_TEXT];
            snprintf(key, sizeof key, "adam.%s.updates", k->banks.p[i].spec->label);
            rc = ckpt_state_i64(c, key, &k->optim.p[i].count);
        }
    ckpt_close(c);
    if (!rc)
        rc = optim_loaded(&k->optim);
    if (!rc)
        optim_gather_weights(&k->optim);
    return rc ? rc : k->ops->sync(k->ops);
}
