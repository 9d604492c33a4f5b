/* facts.h - what a run log contains besides its numbers: program text, recipe, machine, data.
 *
 * The text of a log stands in sections between rules, lines of '=' only. A section is
 * known by what is in it, not by its place: program text (import, def, class at the margin),
 * our own header (`key: value` lines from `tool:` on) and recipe, or the environment and
 * other remarks. Of the environment only what tells machines and versions apart is kept, as
 * `key: value` lines: not the date, temperatures, memory in use or process numbers.
 *
 * Of a recipe numbers are compared as numbers: `.03`, `0.03` and `3/100` are one. What is kept has them
 * in one form.
 *
 *     facts_init(&f, true);                        // true: keep texts; else the recipe's alone
 *     while (...) facts_line(&f, line, n);         // every line that is no step line
 *     facts_section(&f);                           // before step lines begin
 *     ... facts_finish(&f); f.of[FACT_SOURCE].hash, f.of[FACT_ENVIRONMENT].text ...
 *     facts_release(&f);
 *
 * Threads: one.
 */
#ifndef RUNS_FACTS_H
#define RUNS_FACTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/hash.h"

enum fact {
    FACT_SOURCE,
    FACT_RECIPE,
    FACT_DATA,
    FACT_GPU,
    FACT_DRIVER,
    FACT_ENVIRONMENT,
    FACT_CODE, /* of gpt-train: a commit whose sources were as they stand there, else the program, too */
    FACTS
};
extern const char *const fact_name[FACTS];

enum { FACT_TEXT_MAX = 4 << 20 }; /* of a longer text the beginning is kept, and all is hashed */

struct fact_text {
    char hash[33]; /* "" when the log has none */
    char *text; /* NULL when not kept; not terminated */
    size_t n, room;
    bool cut;
};

enum { ENV_KEYS = 16, ENV_VALUE = 160 };
struct facts {
    bool keep, own; /* own: the header of our gpt-train was seen */
    bool record; /* with it: the recipe is a record's, by its name */
    int64_t seed; /* with it: the recipe's; -1: not known */
    uint64_t identity; /* with it: of recipe and data */
    struct fact_text of[FACTS]; /* from GPU on they are made by facts_finish */
    char env[ENV_KEYS][ENV_VALUE];
    int gpus;
    int resumed; /* the step this run continues from; 0: from the beginning */
    double pass_tokens; /* that a pass over the data trains on; 0: not known */
    /* the section being read */
    struct xxh xxh;
    struct fact_text section;
    long lines, code_lines, sections;
    bool stale_text, stale_env, failed;
};

int facts_init(struct facts *f, bool keep) MUST_CHECK;
void facts_release(struct facts *f);
bool facts_is_rule(const char *line, size_t n);
/* A line without its end; pieces of a line too long to hold are given with facts_piece. */
void facts_line(struct facts *f, const char *line, size_t n);
void facts_piece(struct facts *f, const char *text, size_t n);
/* True when the present section is program text; step lines in it are not of a run. */
bool facts_in_source(const struct facts *f);
/* Ends the present section and stores its text or hash under its kind. */
void facts_section(struct facts *f);
/* Discards the present section: other output between step lines. */
void facts_drop_section(struct facts *f);
/* What follows may be another log: its facts replace those there are. */
void facts_next_log(struct facts *f);
/* Sets the facts that are made of several lines. GPT_SYSTEM: memory ran out, here or before. */
int facts_finish(struct facts *f) MUST_CHECK;

#endif
