/* gradients.c - the gradients of one batch, at the weights that a run has, as a file of tensors. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/file.h"
#include "base/version.h"
#include "checkpoint/safetensors.h"
#include "train/rank.h"

/* -- the file ----------------------------------------------------------------------- */

static int note_number(struct st_writer *w, const char *key, const char *format, double v)
{
    char text[40];
    snprintf(text, sizeof text, format, v);
    return st_note(w, key, text);
}

/* Writes the loss and what made the gradients into the metadata: gpt-train(1) lists the keys. */
static int note_source(const struct rank *k, struct st_writer *w, const struct step_loss *l)
{
    const struct run *run = k->run;
    const struct run_one *g = &run->opt->one;
    char tool[128];
    int rc = st_note(w, "format", "pt");
    rc = rc ? rc : st_note(w, "gpt.tool", version_tool("gpt-train", tool, sizeof tool));
    if (run->opt->arguments)
        rc = rc ? rc : st_note(w, "gpt.arguments", run->opt->arguments);
    rc = rc ? rc : st_note(w, "gpt.recipe", recipe_canonical(run->recipe));
    rc = rc ? rc : st_note(w, "gpt.data", loader_id(run->loader));
    if (run->resume_dir)
        rc = rc ? rc : st_note(w, "gpt.checkpoint", run->resume_dir);
    rc = rc ? rc : note_number(w, "gpt.step", "%.0f", run->first);
    rc = rc ? rc : note_number(w, "gpt.batch", "%.0f", g->batch);
    rc = rc ? rc : note_number(w, "gpt.after", "%.0f", g->after);
    rc = rc ? rc : note_number(w, "gpt.loss", "%.9g", l->loss);
    if (k->model.next)
        rc = rc ? rc : note_number(w, "gpt.next_loss", "%.9g", l->next);
    return rc;
}

static int declare(struct st_writer *w, const struct param *p)
{
    const struct param_spec *s = p->spec;
    uint64_t shape[3] = { (uint64_t)s->matrices, (uint64_t)s->rows, (uint64_t)s->cols };
    bool bank = s->matrices > 1;
    char name[LABEL_SIZE + 12];
    snprintf(name, sizeof name, "%s.gradient", s->label);
    return st_declare(w, name, DT_F32, 2 + bank, shape + !bank);
}

/* Writes the whole gradient of p in f32, less the loss scale. */
static int write_gradient(struct rank *k, struct st_writer *w, const struct param *p)
{
    double by = 1 / k->run->recipe->optimizer.loss_scale;
    size_t n = (size_t)tensor_count(p->g);
    float *x;
    int rc = one_batch_floats(k, p->g, &x);
    for (size_t i = 0; i < n && !rc; i++)
        x[i] = (float)((double)x[i] * by);
    if (!rc)
        rc = st_write(w, x, n * sizeof *x);
    free(x);
    return rc;
}

static int write_file(struct rank *k, struct output *out, const struct step_loss *l)
{
    struct st_writer *w;
    int rc = st_writer_new(&w, out->f, k->run->opt->one.gradients, 0);
    for (int i = 0; i < k->banks.n && !rc; i++)
        rc = declare(w, &k->banks.p[i]);
    if (!rc)
        rc = note_source(k, w, l);
    for (int i = 0; i < k->banks.n && !rc; i++)
        rc = write_gradient(k, w, &k->banks.p[i]);
    if (!rc)
        rc = st_writer_finish(w);
    st_writer_free(w);
    return rc ? rc : output_commit(out);
}

/* -- forward and backward -------------------------------------------------------------- */

/* Makes the gradients of the batch, whole on each rank, under the schedule of the run's first step. */
static int make_gradients(struct rank *k, const struct step_batch *s, struct step_loss *l)
{
    struct batch b[MAX_MICRO];
    struct step_schedule p;
    real sum[LOSSES];
    schedule_at(k->run->recipe, k->run->first, &p);
    rank_enter(k, "gradients", false);
    if (k->optim.sparse)
        sparse_forget(k->optim.sparse);
    for (int i = 0; i < k->banks.n; i++) /* what no layer reads, too */
        k->ops->zero(k->ops, k->banks.p[i].g);
    upload_step(k, 0, s, false, b);
    k->ops->zero(k->ops, tensor_of(k->loss, DT_REAL, 1, LOSSES));
    step_launch_model(k, b);
    k->ops->download(k->ops, sum, k->loss, sizeof sum);
    int rc = optim_whole_gradients(&k->optim);
    if (!rc)
        rc = gather_loss(k, sum, &p, l);
    if (!rc && !isfinite(l->loss))
        rc = check_loss(k, k->run->first + 1, l->loss, !isfinite((double)sum[0]));
    return rc;
}

static int make_file(struct rank *k, const struct step_batch *s, struct output *out)
{
    const struct run_options *o = k->run->opt;
    struct step_loss l;
    char said[600];
    int rc = make_gradients(k, s, &l);
    if (!rc && !k->rank && !(rc = write_file(k, out, &l)) && o->note) {
        snprintf(said, sizeof said, "%.400s: gradients at step %d, batch %d, after %d: loss %.4f",
                 o->one.gradients, k->run->first, o->one.batch, o->one.after, l.loss);
        o->note(said);
    }
    return rc ? rc : k->comm->barrier(k->comm);
}

int gradients_of_batch(struct rank *k, const struct step_batch *s)
{
    struct output out = { 0 };
    int rc = k->rank ? 0 : output_open(&out, k->run->opt->one.gradients, false);
    if (!rc)
        rc = make_file(k, s, &out);
    if (!k->rank)
        output_abort(&out);
    return rc;
}
