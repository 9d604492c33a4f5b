#include "recipe/named.h"

#include <string.h>

/* The file as it is, with a zero byte behind it; the path is relative to the top of the tree, where
 * make runs. */
#define TEXT(symbol, name) \
    __asm__(".pushsection .rodata\n" #symbol ":\n.incbin \"share/recipes/" name ".recipe\"\n" \
            ".byte 0\n.popsection\n"); \
    extern const char symbol[] __attribute__((visibility("hidden")))

TEXT(recipe_text_tiny, "tiny");
TEXT(recipe_text_bench_small, "bench-small");
TEXT(recipe_text_small, "small");
TEXT(recipe_text_record_61, "record-61");
TEXT(recipe_text_turbo_muon, "turbo-muon");
TEXT(recipe_text_record_74, "record-74");
TEXT(recipe_text_record_84, "record-84");
TEXT(recipe_text_record_89, "record-89");
TEXT(recipe_text_track_3, "track-3");

__asm__(
    ".pushsection .rodata\nrecipe_text_rules:\n.incbin \"share/recipes/rules/published.rules\"\n"
    ".byte 0\n.popsection\n");
extern const char recipe_text_rules[] __attribute__((visibility("hidden")));

static const struct recipe_named named[] = {
    { "tiny", recipe_text_tiny },           { "bench-small", recipe_text_bench_small },
    { "small", recipe_text_small },         { "record-61", recipe_text_record_61 },
    { "record-74", recipe_text_record_74 }, { "record-84", recipe_text_record_84 },
    { "record-89", recipe_text_record_89 }, { "turbo-muon", recipe_text_turbo_muon },
    { "track-3", recipe_text_track_3 },
};

int recipe_named_count(void) { return (int)(sizeof named / sizeof named[0]); }

const struct recipe_named *recipe_named_at(int i) { return &named[i]; }

const struct recipe_named *recipe_named_find(const char *name)
{
    for (int i = 0; i < recipe_named_count(); i++)
        if (!strcmp(named[i].name, name))
            return &named[i];
    return NULL;
}

void recipe_named_list(FILE *f)
{
    for (int i = 0; i < recipe_named_count(); i++) {
        const char *about = strstr(named[i].text, ": ") + 2; /* "# tiny: the topology ..." */
        fprintf(f, "%s\t%.*s\n", named[i].name, (int)strcspn(about, "\n"), about);
    }
}

const char *recipe_rule_published(const char *name, int *length)
{
    size_t n = strlen(name);
    for (const char *s = recipe_text_rules; *s; s += strcspn(s, "\n"), s += *s == '\n')
        if (!strncmp(s, name, n) && !strncmp(s + n, " = ", 3)) {
            *length = (int)strcspn(s + n + 3, "\n");
            return s + n + 3;
        }
    return NULL;
}

void recipe_rules_list(FILE *f) { fputs(recipe_text_rules, f); }

static void named_words(FILE *f)
{
    for (int i = 0; i < recipe_named_count(); i++)
        fprintf(f, " %s", recipe_named_at(i)->name);
}

const struct opt_words recipe_words[] = { { "RECIPE", named_words },
                                          { "KEY=VALUE", recipe_key_words },
                                          { NULL, NULL } };
