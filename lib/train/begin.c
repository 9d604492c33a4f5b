/* begin.c - a new run that begins with another run's weights: which tensors of a checkpoint they are,
 * and their numbers. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "checkpoint/tensors.h"
#include "recipe/schedule.h"
#include "train/rank.h"

/* -- the recipe ------------------------------------------------------------------------ */

/* Is the line at s, up to its end, of the sections that say what is computed from the weights? */
static bool is_section(const char *s, bool *in)
{
    static const char *const of[] = { "[model]", "[layers]", "[scalars]", "[token_coefs]" };
    if (*s != '[')
        return false;
    *in = false;
    for (size_t i = 0; i < sizeof of / sizeof *of; i++)
        *in |= !strncmp(s, of[i], strlen(of[i]));
    return true;
}

/* The next line of a recipe's text that both must have alike; NULL: none. Sets *n to its length. */
static const char *model_line(const char **text, bool *in, size_t *n)
{
    while (**text) {
        const char *s = *text;
        *n = strcspn(s, "\n");
        *text = s + *n + (s[*n] == '\n');
        if (!is_section(s, in) && *in && *n && strncmp(s, "vocab =", 7) &&
            strncmp(s, "rope_windows =", 14))
            return s;
    }
    return NULL;
}

/* The first line in which the models of two recipes differ. */
static void compare_models(const struct recipe *r, const struct recipe *source, const char *path,
                           char *said, size_t size)
{
    const char *a = recipe_canonical(r), *b = recipe_canonical(source);
    bool in_a = false, in_b = false;
    *said = 0;
    for (;;) {
        size_t n, m;
        const char *x = model_line(&a, &in_a, &n), *y = model_line(&b, &in_b, &m);
        if (!x && !y)
            return;
        if (x && y && n == m && !strncmp(x, y, n))
            continue;
        snprintf(said, size, "--init %s: the models differ: '%.*s' there, '%.*s' in the recipe",
                 path, y ? (int)m : 4, y ? y : "none", x ? (int)n : 4, x ? x : "none");
        return;
    }
}

void run_windows_key(char set[WINDOWS_KEY_SIZE], const int *at, int n)
{
    int used = 0;
    for (int i = 0; i < n; i++)
        used += snprintf(set + used, WINDOWS_KEY_SIZE - (size_t)used, "%s%d",
                         i ? " " : "model.rope_windows=", at[i]);
}

/* The rotary frequencies of the source have followed its windows, and those of the new run go on from
 * there. */
static int take_windows(struct recipe **r, const struct recipe *source, int64_t step)
{
    int at[SCHEDULE_WINDOWS], total = schedule_total(source);
    int n = schedule_windows(source, (int)(step < total ? step : total), at);
    char set[WINDOWS_KEY_SIZE];
    const char *one = set;
    if ((*r)->model.rope_windows.n || (n == 1 && at[0] == (*r)->stages[0].window))
        return 0;
    run_windows_key(set, at, n);
    struct recipe *with;
    int rc = recipe_parse(&with, (*r)->name, recipe_canonical(*r), &one, 1);
    if (rc)
        return rc;
    recipe_free(*r);
    *r = with;
    return 0;
}

/* The source's own recipe with overrides; tables that have parted there are not tied again. */
static int own_recipe(struct recipe **r, const char *dir, const struct ckpt_info *info,
                      const struct recipe *source, const char *const *set, int n)
{
    const char **all = malloc(((size_t)n + 1) * sizeof *all);
    int untie = schedule_untie_step(source), k = 0;
    if (!all)
        return err_memory();
    if (untie >= 0 && info->step > untie)
        all[k++] = "order.tied=-";
    for (int i = 0; i < n; i++)
        all[k++] = set[i];
    int rc = recipe_parse(r, dir, info->recipe, all, k);
    free(all);
    return rc;
}

int run_init_recipe(struct recipe **r, const char *path, const char *recipe, const char *const *set,
                    int n, char *said, size_t size)
{
    struct recipe *source = NULL;
    struct ckpt *c = NULL;
    char *dir = NULL;
    *r = NULL;
    *said = 0;
    int rc = run_checkpoint(path, &dir);
    if (!rc && !(rc = ckpt_open(&c, dir)))
        rc = recipe_parse(&source, dir, ckpt_info(c)->recipe, NULL, 0);
    if (!rc)
        rc = recipe ? recipe_read(r, recipe, set, n)
                    : own_recipe(r, dir, ckpt_info(c), source, set, n);
    if (!rc)
        rc = take_windows(r, source, ckpt_info(c)->step);
    if (!rc)
        compare_models(*r, source, dir, said, size);
    if (rc) {
        recipe_free(*r);
        *r = NULL;
    }
    recipe_free(source);
    ckpt_close(c);
    free(dir);
    return rc;
}

/* -- which tensors --------------------------------------------------------------------- */

/* How a parameter of the recipe lies in the source's tensor: blocks of rows, of which the same first rows
 * and columns are taken. Without another vocabulary all are the whole. */
struct fit {
    int64_t blocks, rows, cols; /* taken, of each block */
    int64_t source_rows, source_cols; /* of a block there */
    int64_t own_rows, own_cols; /* and here */
};

struct begin {
    const struct recipe *r;
    struct tensors *s;
    const struct stored *t[MAX_PARAMS];
    struct fit fit[MAX_PARAMS];
    struct initial_source source;
};

static int64_t lesser(int64_t a, int64_t b) { return a < b ? a : b; }

/* Fits a tensor of the source to parameter s; false: it is of another shape. ids: of the source. */
static bool make_fit(struct fit *f, const struct param_spec *s, const struct stored *t, int64_t ids,
                     int64_t own_ids)
{
    bool bank = s->matrices > 1;
    int64_t rows = t->rank < 2 ? 0 : (int64_t)t->shape[t->rank - 2];
    int64_t cols = t->rank < 2 ? 0 : (int64_t)t->shape[t->rank - 1];
    if (t->rank != 2 + bank || (bank && (int64_t)t->shape[0] != s->matrices))
        return false;
    *f = (struct fit){ s->matrices, s->rows, s->cols, rows, cols, s->rows, s->cols };
    if (rows == s->rows && cols == s->cols)
        return true;
    if (bank || ids == own_ids)
        return false;
    if (cols == s->cols && rows % ids == 0 && rows / ids * own_ids == s->rows)
        *f = (struct fit){ rows / ids, lesser(ids, own_ids), cols, ids, cols, own_ids, cols };
    else if (rows == s->rows && cols == ids && s->cols == own_ids)
        *f = (struct fit){ 1, rows, lesser(ids, own_ids), rows, ids, rows, own_ids };
    else
        return false;
    return true;
}

static void shape_text(char *buf, size_t size, int rank, const uint64_t *shape)
{
    size_t at = 0;
    *buf = 0;
    for (int i = 0; i < rank && at < size; i++)
        at += (size_t)snprintf(buf + at, size - at, "%s%" PRIu64, i ? "x" : "", shape[i]);
}

static int wrong_shape(const struct begin *x, const struct param_spec *s, const struct stored *t)
{
    uint64_t own[3] = { (uint64_t)s->matrices, (uint64_t)s->rows, (uint64_t)s->cols };
    int first = s->matrices == 1;
    char here[96], there[96];
    shape_text(here, sizeof here, 3 - first, own + first);
    shape_text(there, sizeof there, t->rank, t->shape);
    return err_set(GPT_INPUT, "--init %s: '%s' is %s there, %s in the recipe", tensors_path(x->s),
                   t->name, there, here);
}

/* Names of parameters that the one has and the other lacks. */
struct names {
    char text[400];
    int n;
};

static void add_name(struct names *l, const char *label)
{
    size_t at = strlen(l->text);
    snprintf(l->text + at, sizeof l->text - at, "%s'%s'", l->n++ ? ", " : "", label);
}

static int check_names(const struct begin *x)
{
    struct names lacks = { "", 0 }, extra = { "", 0 };
    for (int i = 0; i < x->r->n_params; i++)
        if (!x->t[i])
            add_name(&lacks, x->r->params[i].label);
    for (int i = 0; i < tensors_count(x->s); i++) {
        const struct stored *t = tensors_at(x->s, i);
        if (!strcmp(t->kind, "weight") && recipe_param(x->r, t->param) < 0)
            add_name(&extra, t->param);
    }
    if (lacks.n)
        return err_set(GPT_INPUT,
                       "--init %s: the recipe has %s, of which there are no weights there",
                       tensors_path(x->s), lacks.text);
    if (extra.n)
        return err_set(GPT_INPUT,
                       "--init %s: there are weights of %s, which the recipe does not have",
                       tensors_path(x->s), extra.text);
    return 0;
}

static int find_tensors(struct begin *x, int64_t *ids)
{
    const struct stored *embed = tensors_find(x->s, "embed.weight");
    char name[LABEL_SIZE + 8];
    int rc = 0;
    *ids = embed && embed->rank == 2 ? (int64_t)embed->shape[0] : x->r->model.vocab;
    for (int i = 0; i < x->r->n_params; i++) {
        snprintf(name, sizeof name, "%s.weight", x->r->params[i].label);
        x->t[i] = tensors_find(x->s, name);
    }
    rc = check_names(x);
    for (int i = 0; i < x->r->n_params && !rc; i++) {
        const struct fit *f = &x->fit[i];
        if (!make_fit(&x->fit[i], &x->r->params[i], x->t[i], *ids, x->r->model.vocab))
            rc = wrong_shape(x, &x->r->params[i], x->t[i]);
        x->source.partial[i] = f->rows < f->own_rows || f->cols < f->own_cols;
    }
    return rc;
}

/* -- numbers --------------------------------------------------------------------------- */

enum { PIECE = 1 << 16 }; /* elements read at a time */

/* Puts elements first .. first + n - 1 of the source's tensor where they belong, or leaves them out. */
static void place(const struct fit *f, int64_t first, const double *x, size_t n, float *out)
{
    for (size_t k = 0; k < n; k++) {
        int64_t at = first + (int64_t)k, row = at / f->source_cols, col = at % f->source_cols;
        int64_t block = row / f->source_rows, in = row % f->source_rows;
        if (in < f->rows && col < f->cols)
            out[(block * f->own_rows + in) * f->own_cols + col] = (float)x[k];
    }
}

static int read_numbers(struct begin *x, int i, const struct stored *t, float *out)
{
    struct values v;
    double *piece = malloc(PIECE * sizeof *piece);
    int rc = piece ? values_open(&v, x->s, t, 0) : err_memory();
    for (uint64_t at = 0, n; !rc && at < t->elements; at += n) {
        n = t->elements - at < PIECE ? t->elements - at : PIECE;
        if (!(rc = values_read(&v, piece, n)))
            place(&x->fit[i], (int64_t)at, piece, n, out);
    }
    if (piece)
        values_close(&v);
    free(piece);
    return rc;
}

static int read_param(void *arg, int i, float *exact, float *reads)
{
    struct begin *x = arg;
    const struct stored *t = x->t[i];
    struct stored forward = stored_forward(t);
    int rc = read_numbers(x, i, t, exact);
    if (rc)
        return rc;
    if (t->master || t->low)
        return read_numbers(x, i, &forward, reads);
    memcpy(reads, exact,
           (size_t)x->fit[i].blocks * (size_t)x->fit[i].own_rows * (size_t)x->fit[i].own_cols *
               sizeof *reads);
    return 0;
}

/* -- the run ------------------------------------------------------------------------------ */

/* Ids that mean other tokens here. */
static int check_tokens(const struct run *run, const struct ckpt *c)
{
    const char *there = ckpt_state(c, "tokenizer"), *here = loader_tokenizer(run->loader);
    if (!there || !*here || !strcmp(there, here))
        return 0;
    return err_set(GPT_INPUT, "--init %s: its tokens are those of '%s', the shards' of '%s'",
                   ckpt_dir(c), there, here);
}

int begin_open(struct run *run)
{
    struct begin *x = calloc(1, sizeof *x);
    char *dir = NULL;
    int64_t ids = 0;
    run->from = x;
    int rc = x ? run_checkpoint(run->opt->init, &dir) : err_memory();
    if (!rc)
        rc = tensors_open(&x->s, dir);
    free(dir);
    if (rc)
        return rc;
    const struct ckpt *c = tensors_ckpt(x->s);
    x->r = run->recipe;
    x->source.name = tensors_path(x->s);
    x->source.read = read_param;
    x->source.arg = x;
    if ((rc = check_tokens(run, c)) || (rc = find_tensors(x, &ids)))
        return rc;
    snprintf(run->begun, sizeof run->begun, "%s step %" PRId64, ckpt_hash(c), ckpt_info(c)->step);
    run->init_ids = ids == run->recipe->model.vocab ? 0 : lesser(ids, run->recipe->model.vocab);
    return initial_new(&run->initial, run->recipe, (uint64_t)run->recipe->seed, &x->source);
}

const char *begin_path(const struct run *run) { return tensors_path(run->from->s); }

void begin_close(struct run *run)
{
    if (run->from)
        tensors_close(run->from->s);
    free(run->from);
    run->from = NULL;
}
