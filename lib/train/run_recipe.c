/* run_recipe.c - the recipe that a run goes by: a file's, a checkpoint's, a run's folder's. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "recipe/named.h"
#include "train/run.h"

/* Reads the recipe in a checkpoint, or in the newest of a folder. */
static int read_saved(struct recipe **r, const char *path, const char *const *set, int n)
{
    char *dir;
    struct ckpt *c;
    int rc = run_checkpoint(path, &dir);
    if (rc)
        return rc;
    if (!(rc = ckpt_open(&c, dir))) {
        rc = recipe_parse(r, dir, ckpt_info(c)->recipe, set, n);
        ckpt_close(c);
    }
    free(dir);
    return rc;
}

/* Puts a recipe with more overrides in the place of *r. */
static int set_more(struct recipe **r, const char *const *set, int n)
{
    struct recipe *made;
    int rc = recipe_parse(&made, (*r)->name, recipe_canonical(*r), set, n);
    if (rc)
        return rc;
    recipe_free(*r);
    *r = made;
    return 0;
}

/* Reads a recipe by file or name; of a run's folder that of its newest checkpoint, else of its log. */
static int read_recipe(struct recipe **r, const char *from, const char *const *set, int n)
{
    struct stat st;
    if (recipe_named_find(from) || stat(from, &st) || !S_ISDIR(st.st_mode))
        return recipe_read(r, from, set, n);
    char *manifest = path_join(from, "MANIFEST"), *log = path_join(from, "log.txt");
    int rc = !manifest || !log ? err_memory() : !access(manifest, F_OK) ? 0 : run_begun(from);
    if (!rc)
        rc = read_saved(r, from, set, n);
    else if (rc == GPT_NO && !access(log, F_OK))
        rc = recipe_read(r, log, set, n);
    else if (rc == GPT_NO)
        rc = err_set(GPT_INPUT,
                     "%s: expected a recipe, or a run's folder with a checkpoint or log.txt", from);
    free(manifest);
    free(log);
    return rc;
}

/* The first line of a that b has not, where they part; its length in *n. */
static const char *first_difference(const char *a, const char *b, int *n)
{
    const char *line = a;
    for (; *a && *a == *b; a++, b++)
        if (*a == '\n')
            line = a + 1;
    *n = (int)strcspn(line, "\n");
    return line;
}

static int another_recipe(const struct run_source *s, const struct recipe *given,
                          const struct recipe *saved)
{
    int n, m;
    const char *there = recipe_canonical(saved), *here = recipe_canonical(given);
    const char *in_there = first_difference(there, here, &n);
    const char *in_here = first_difference(here, there, &m);
    return err_set(
        GPT_INPUT,
        "%s: the run there was made with another recipe (%s %s) than %s (%s %s): there "
        "'%.*s', here '%.*s'; leave -r out to continue it, with --set for what shall differ",
        s->resume, saved->name, saved->hash, s->recipe, given->name, given->hash, n, in_there, m,
        in_here);
}

static bool sets(const struct run_source *s, const char *key)
{
    for (int i = 0; i < s->n; i++)
        if (!strncmp(s->set[i], key, strlen(key)) && s->set[i][strlen(key)] == '=')
            return true;
    return false;
}

static const char once[] = "data.cycle=no";

/* Reads the recipe given, with what the beginning of the run that is resumed set in it: model.rope_windows
 * of --init, data.cycle of a pipe, the keys of --fit. */
static int read_given(const struct run_source *s, const struct recipe *saved, struct recipe **r)
{
    char windows[WINDOWS_KEY_SIZE], chunks[FIT_KEY_SIZE], block[FIT_KEY_SIZE];
    const char **set = calloc((size_t)s->n + FIT_KEYS + 2, sizeof *set);
    int n = 0;
    if (!set)
        return err_memory();
    if (s->init && saved->model.rope_windows.n) {
        run_windows_key(windows, saved->model.rope_windows.at, saved->model.rope_windows.n);
        set[n++] = windows;
    }
    if (s->pipe)
        set[n++] = once;
    for (int i = 0; i < s->n; i++)
        set[n++] = s->set[i];
    snprintf(chunks, sizeof chunks, "data.chunks=%d", saved->data.chunks);
    snprintf(block, sizeof block, "precision.head_block=%d", saved->precision.head.block);
    if (s->fit) {
        set[n++] = chunks;
        set[n++] = block;
    }
    int rc = read_recipe(r, s->recipe, set, n);
    free(set);
    return rc;
}

/* Reads a resumed run's recipe from its checkpoint; one that is given beside it must be equal, with the
 * overrides of this start in both, or where it is the same command again in the one given alone. */
static int resumed_recipe(struct recipe **r, const struct run_source *s)
{
    struct recipe *saved;
    int rc = read_saved(&saved, s->resume, s->set, s->recipe && s->again ? 0 : s->n);
    if (rc)
        return rc;
    if (!s->recipe) {
        *r = saved;
        return 0;
    }
    rc = read_given(s, saved, r);
    if (!rc && strcmp((*r)->hash, saved->hash)) {
        rc = another_recipe(s, *r, saved);
        recipe_free(*r);
        *r = NULL;
    }
    recipe_free(saved);
    return rc;
}

static int begun_recipe(struct recipe **r, const struct run_source *s)
{
    char said[400];
    int rc = run_init_recipe(r, s->init, s->recipe, s->set, s->n, said, sizeof said);
    if (!rc && *said && s->note)
        s->note(said);
    return rc;
}

int run_source_recipe(struct recipe **r, const struct run_source *s)
{
    const char *const more[] = { once };
    int rc = s->resume ? resumed_recipe(r, s)
             : s->init ? begun_recipe(r, s)
                       : read_recipe(r, s->recipe, s->set, s->n);
    if (rc || !s->pipe || !(*r)->data.cycle || sets(s, "data.cycle"))
        return rc;
    if (!(rc = set_more(r, more, 1)) && s->note)
        s->note("-d - passes once: data.cycle=no");
    return rc;
}

int run_fit_recipe(struct recipe **r, const struct backend *be, int ranks, bool fit,
                   void (*note)(const char *message), size_t *ops_bytes)
{
    struct run_fit f;
    const char *set[FIT_KEYS];
    int rc = run_fits(*r, be, ranks, &f);
    *ops_bytes = f.memory.ops;
    if (!rc || !fit || !f.n)
        return rc;
    if (be->world > ranks)
        return err_set(GPT_USAGE, "--fit is for one process: others may have other memory");
    if (note)
        note(err_message());
    for (int i = 0; i < f.n; i++)
        set[i] = f.set[i];
    return set_more(r, set, f.n);
}
