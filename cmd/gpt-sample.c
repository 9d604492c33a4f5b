/* gpt-sample - texts that a trained model writes, and how likely texts are to it.
 *
 *     gpt-sample -m run "Once upon a time"
 *     gpt-sample -m run --score --input questions.tsv
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/opt.h"
#include "base/text.h"
#include "recipe/named.h"
#include "sample/generate.h"
#include "sample/score.h"
#include "sample/trained.h"
#include "devices.h"

static struct {
    const char *model, *recipe, *tokenizer, *vocab, *input, *data, *device, *gpu_path;
    int64_t tokens, top_k, seed, count, batch, threads;
    double temperature, top_p;
    bool score, jsonl, json, no_prompt, ignore_end, no_graph, stats, quiet;
} o = { .tokens = 100, .count = 1, .temperature = 1, .top_p = 1, .device = "cpu" };

static const struct opt table[] = {
    OPT_HEADING("The model"),
    OPT_TEXT('m', "model", "RUN", &o.model,
             "a run's folder, a checkpoint, an exported .safetensors; -: gpt-ckpt pack's on stdin"),
    OPT_TEXT('r', "recipe", "RECIPE", &o.recipe, "recipe of an exported file that has none"),
    OPT_WORD("tokenizer", &o.tokenizer, "gpt2|byte", "as the checkpoint says, else by its ids"),
    OPT_TEXT(0, "vocab", "FILE", &o.vocab, "vocabulary: rank file, vocab.bpe or tokenizer.json"),
    OPT_HEADING("Input"),
    OPT_TEXT(0, "input", "FILE", &o.input,
             "prompts, one a line; - (without PROMPT the default) is stdin"),
    OPT_SWITCH(0, "jsonl", &o.jsonl,
               "lines are objects: text, maybe id and continuation; implies --json"),
    OPT_HEADING("Writing"),
    { .letter = 'n',
      .name = "tokens",
      .arg = "N",
      .kind = OPT_I64,
      .value = &o.tokens,
      .help = "tokens of a text at most (100)",
      .lo = 1,
      .hi = 1e6 },
    OPT_REAL("temperature", "T", &o.temperature, 0, 1000,
             "divides the logits (1); 0: always the likeliest token"),
    OPT_NUMBER("top-k", "K", &o.top_k, 0, 1e6, "draw from the K likeliest tokens; 0: all (0)"),
    OPT_REAL("top-p", "P", &o.top_p, 1e-9, 1,
             "draw from the likeliest tokens that have a probability of P together (1)"),
    OPT_NUMBER("seed", "S", &o.seed, 0, 1e18, "seed of the draws (0)"),
    OPT_NUMBER("count", "N", &o.count, 1, 1e6, "texts for each prompt (1)"),
    OPT_SWITCH(0, "ignore-end", &o.ignore_end, "never end a text before --tokens"),
    OPT_HEADING("Instead"),
    OPT_SWITCH(0, "score", &o.score,
               "the log-likelihood of each text, or of what follows a tab in its line"),
    OPT_TEXT('d', "data", "SHARDS", &o.data,
             "with --score: the validation tokens of SHARDS, as gpt-train validates"),
    OPT_HEADING("Output"),
    OPT_SWITCH(0, "json", &o.json, "JSON lines"),
    OPT_SWITCH(0, "no-prompt", &o.no_prompt, "texts without their prompt"),
    OPT_SWITCH(0, "stats", &o.stats, "at the end, tokens a second on stderr"),
    OPT_SWITCH('q', "quiet", &o.quiet, "errors only"),
    OPT_HEADING("Run"),
    DEVICES_NAME(&o.device),
    OPT_NUMBER("batch", "N", &o.batch, 1, GENERATE_MAX,
               "texts at a time; changes no text (16, on a GPU 64)"),
    OPT_NUMBER("threads", "N", &o.threads, 1, 1024, "threads on a CPU (processors)"),
    DEVICES_PATH(&o.gpu_path),
    OPT_SWITCH(0, "no-graph", &o.no_graph, "GPUs: launch each kernel instead of a graph a step"),
    OPT_END
};
static const struct command command = { "gpt-sample", "[OPTION]... -m RUN [PROMPT]...",
                                        "Continues texts with a trained model, or scores them.",
                                        table };

/* -- the model on it ---------------------------------------------------------------- */

struct run {
    struct trained trained;
    struct vocab *vocab;
    struct prompts prompts;
    struct backend backend;
    struct ops *ops;
    struct banks banks;
    struct model model;
};

static int new_device(struct run *x)
{
    struct backend_wants w = { .ranks = 1,
                               .world = 1,
                               .threads = (int)o.threads,
                               .gpu_path = o.gpu_path,
                               .cpu_alone = recipe_cpu_alone(x->trained.recipe) };
    int rc = devices_choose(&x->backend, o.device, &w);
    return rc ? rc : x->backend.ops_new(&x->ops, 0, x->backend.group);
}

/* Weights, and a model for calls of `tokens` rows at positions below `positions`. */
static int load_model(struct run *x, int tokens, int64_t positions)
{
    struct step_schedule at;
    int rc = new_device(x);
    if (rc || (rc = banks_init_weights(&x->banks, x->trained.recipe, x->ops)) ||
        (rc = model_init_to(&x->model, &x->banks, 0, tokens, positions)) ||
        (rc = trained_load(&x->trained, &x->banks)))
        return rc;
    trained_schedule(&x->trained, &at);
    model_set(&x->model, &at);
    return x->ops->status(x->ops);
}

/* -- output --------------------------------------------------------------------------- */

static void put_id(const struct run *x, int p)
{
    const char *id = x->prompts.v[p].id;
    printf("{\"id\": ");
    if (id)
        text_json(stdout, id, strlen(id), true);
    else
        printf("%d", p + 1);
}

static int written(void) { return ferror(stdout) ? err_sys("cannot write standard output") : 0; }

static bool in_text; /* the text being written has begun */

static int on_text(void *arg, int p, int k, const char *s, size_t n)
{
    const struct run *x = arg;
    const struct prompt *q = &x->prompts.v[p];
    if (!in_text && o.json) {
        put_id(x, p);
        printf(", \"sample\": %d, ", k);
        if (!o.no_prompt) {
            printf("\"prompt\": ");
            text_json(stdout, q->text, q->bytes, true);
            printf(", ");
        }
        printf("\"text\": \"");
    } else if (!in_text) {
        if (p || k)
            putchar('\n');
        if (!o.no_prompt)
            fwrite(q->text, 1, q->bytes, stdout);
    }
    in_text = true;
    if (o.json)
        text_json_part(stdout, s, n, true);
    else
        fwrite(s, 1, n, stdout);
    fflush(stdout);
    return written();
}

static int on_end(void *arg, int p, int k, int tokens, bool ended)
{
    (void)arg, (void)p, (void)k;
    if (o.json)
        printf("\", \"tokens\": %d, \"ended\": %s}", tokens, ended ? "true" : "false");
    putchar('\n');
    in_text = false;
    fflush(stdout);
    return written();
}

/* -- writing -------------------------------------------------------------------------- */

static int round_up(int64_t n, int to) { return (int)((n + to - 1) / to * to); }

/* Rows of a call: enough for all prompts, at most MOST. */
static int rows_for(const struct prompts *p, int sequences)
{
    enum { MOST = 512 };
    int64_t n = 0;
    for (int i = 0; i < p->n; i++)
        n += p->v[i].n;
    n = n < MOST ? n : MOST;
    return round_up(n > sequences ? n : sequences, DECODE_BLOCK);
}

static void print_stats(const struct run *x, const struct generate *g)
{
    int64_t prompt = 0;
    for (int i = 0; i < x->prompts.n; i++)
        prompt += (x->prompts.v[i].n - 1) * o.count;
    text_line(
        stderr,
        "gpt-sample: prompts: %lld tokens in %.3f s; texts: %lld tokens in %.3f s, %lld steps, "
        "%.1f tokens/s",
        (long long)prompt, g->fill_seconds, (long long)g->chosen, g->step_seconds,
        (long long)g->steps, (double)g->chosen / g->step_seconds);
}

static int write_texts(struct run *x)
{
    int64_t texts = x->prompts.n * o.count, batch = o.batch                    ? o.batch
                                                    : !strcmp(o.device, "cpu") ? 16
                                                                               : 64;
    int sequences = (int)(texts < batch ? texts : batch), rows = rows_for(&x->prompts, sequences);
    int64_t context = generate_context(&x->prompts, (int)o.tokens);
    struct decoder d = { 0 };
    int rc = texts > INT32_MAX
                 ? err_set(GPT_USAGE, "--count: expected fewer than 2^31 texts, found %lld",
                           (long long)texts)
                 : load_model(x, rows, context);
    if (rc || !texts)
        return rc;
    x->ops->rows_apart = true;
    rc = decoder_init(&d, &x->model, sequences, rows, context);
    struct generate g = { .decoder = &d,
                          .graphs = x->backend.capture && !o.no_graph ? &x->backend : NULL,
                          .vocab = x->vocab,
                          .choice = { .temperature = (real)o.temperature,
                                      .top_k = (int)o.top_k,
                                      .top_p = (real)o.top_p,
                                      .seed = (uint64_t)o.seed },
                          .tokens = (int)o.tokens,
                          .count = (int)o.count,
                          .ignore_end = o.ignore_end,
                          .text = on_text,
                          .end = on_end,
                          .arg = x };
    if (!rc)
        rc = generate(&g, &x->prompts);
    if (!rc && o.stats)
        print_stats(x, &g);
    decoder_release(&d);
    return rc;
}

/* -- scoring -------------------------------------------------------------------------- */

static void put_number(const char *json, double x)
{
    if (o.json)
        printf(isfinite(x) ? ", \"%s\": %.9g" : ", \"%s\": null", json, x);
    else
        printf(isfinite(x) ? "\t%.9g" : "\t", x);
}

/* id: already put in JSON. */
static int put_score(const char *id, const struct score *s)
{
    printf(o.json ? ", \"tokens\": %lld, \"bytes\": %lld" : "%3$s\t%1$lld\t%2$lld",
           (long long)s->tokens, (long long)s->bytes, id);
    put_number("nats", s->nats);
    put_number("nats_a_token", s->nats / (double)s->tokens);
    put_number("bits_a_byte", score_bits_a_byte(s));
    fputs(o.json ? "}\n" : "\n", stdout);
    return written();
}

static int score_prompts(struct run *x, struct scorer *s)
{
    int rc = 0;
    for (int i = 0; i < x->prompts.n && !rc; i++) {
        struct score score;
        char number[16];
        const char *id = x->prompts.v[i].id;
        snprintf(number, sizeof number, "%d", i + 1);
        if ((rc = score_text(s, &x->prompts.v[i], &score)))
            break;
        if (o.json)
            put_id(x, i);
        rc = put_score(id ? id : number, &score);
    }
    return rc;
}

static int score(struct run *x)
{
    int64_t most = o.data ? x->trained.recipe->data.val.chunk : 1;
    struct scorer s = { 0 };
    struct score all;
    for (int i = 0; i < x->prompts.n; i++)
        most = x->prompts.v[i].n > most ? x->prompts.v[i].n : most;
    int rc = load_model(x, (int)most, most);
    if (!rc && !(rc = scorer_init(&s, &x->model, (int)most))) {
        if (!o.json)
            puts("id\ttokens\tbytes\tnats\tnats_a_token\tbits_a_byte");
        if (!o.data)
            rc = score_prompts(x, &s);
        else if (!(rc = score_shards(&s, o.data, x->trained.data, x->vocab, &all))) {
            if (o.json)
                printf("{\"id\": \"validation\"");
            rc = put_score("validation", &all);
        }
    }
    scorer_release(&s);
    return rc;
}

/* -- all ------------------------------------------------------------------------------ */

static int check_options(int operands)
{
    bool cuda = !strcmp(o.device, "cuda");
    int rc = opt_choose(operands, "PROMPT", o.input, "--input");
    o.json |= o.jsonl;
    if (!o.model)
        return err_set(GPT_USAGE, "expected -m RUN");
    if (!rc && !strcmp(o.model, "-") && !o.data && (o.input ? !strcmp(o.input, "-") : !operands))
        return err_set(GPT_USAGE,
                       "-m - reads the model from stdin: prompts from PROMPT or --input FILE");
    if (!rc && operands && o.jsonl)
        return err_set(GPT_USAGE, "--jsonl is for --input and stdin, not for PROMPT");
    if (!rc && o.data && !o.score)
        return err_set(GPT_USAGE, "--data needs --score");
    if (!rc && o.data && (operands || o.input))
        return err_set(GPT_USAGE, "--data beside texts: choose one");
    if (!rc && o.threads && cuda)
        return err_set(GPT_USAGE, "--threads is for --device cpu alone");
    if (!rc && (o.no_graph || o.gpu_path) && !cuda)
        return err_set(GPT_USAGE, "%s needs --device cuda",
                       o.no_graph ? "--no-graph" : "--gpu-path");
    return rc;
}

/* Without a prompt a terminal would wait in silence. */
static void say_waiting(int prompts)
{
    bool standard = !o.input || !strcmp(o.input, "-");
    if (!prompts && !o.data && standard && !o.quiet && isatty(STDIN_FILENO))
        text_line(stderr, o.score ? "gpt-sample: reading texts, one a line; Ctrl-D ends them"
                                  : "gpt-sample: reading prompts, one a line; Ctrl-D ends them");
}

static int read_prompts(struct run *x, int n, char **text)
{
    int rc = 0;
    say_waiting(n);
    x->prompts.vocab = x->vocab;
    for (int i = 0; i < n && !rc; i++) {
        char *tab = o.score ? strchr(text[i], '\t') : NULL;
        if (tab)
            *tab = '\0';
        rc = prompts_add(&x->prompts, text[i], tab ? tab + 1 : NULL);
    }
    if (!rc && !n && !o.data)
        rc = prompts_read(&x->prompts, o.input ? o.input : "-", o.jsonl, o.score);
    if (!rc && x->prompts.invalid && !o.quiet)
        text_line(stderr, "gpt-sample: %lld bad UTF-8 sequence%s replaced by U+FFFD",
                  (long long)x->prompts.invalid, x->prompts.invalid > 1 ? "s" : "");
    return rc;
}

static int sample(int n, char **text)
{
    struct run x = { 0 };
    int rc = trained_open(&x.trained, o.model, o.recipe);
    if (rc)
        return rc;
    if (!(rc = trained_vocab(&x.trained, o.tokenizer, o.vocab, &x.vocab)) && o.ignore_end &&
        !generate_can_ignore_end(x.vocab))
        rc = err_set(GPT_USAGE,
                     "--ignore-end: expected a vocabulary whose last id %d ends a text, found %d",
                     x.vocab->size - 1, x.vocab->bos);
    if (!rc && !(rc = read_prompts(&x, n, text)))
        rc = o.score ? score(&x) : write_texts(&x);
    if (x.ops)
        x.ops->free(x.ops);
    backend_release(&x.backend);
    prompts_release(&x.prompts);
    vocab_free(x.vocab);
    trained_close(&x.trained);
    return rc;
}

int main(int argc, char **argv)
{
    int first, rc;
    opt_version_extra = device_versions;
    opt_words = recipe_words;
    if (!(rc = opt_parse(&command, argc, argv, &first)) && !(rc = check_options(argc - first)))
        rc = sample(argc - first, argv + first);
    return opt_exit(&command, rc);
}
