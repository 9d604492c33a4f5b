/* toy_vocab.c - see toy_vocab.h. */
#include "toy_vocab.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"

struct toy_token toy[TOY_TOKENS];
int toys;

size_t toy_encode(const uint8_t *s, size_t n, uint16_t *out)
{
    for (size_t i = 0; i < n; i++)
        for (int k = 0; k < 256; k++)
            if (toy[k].bytes[0] == s[i])
                out[i] = (uint16_t)k;
    for (int k = 256; k < toys; k++) {
        size_t m = 0;

        for (size_t i = 0; i < n; i++) {
            bool both = i + 1 < n && out[i] == toy[k].left && out[i + 1] == toy[k].right;

            out[m++] = both ? (uint16_t)k : out[i];
            i += both;
        }
        n = m;
    }
    return n;
}

static bool printable(int b)
{
    return (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
}

void draw_toy(uint64_t seed)
{
    static const char bytes[] = "aab'st 1.\n\xc3\xa9\xe4";
    struct rng r = rng_make(seed, 5);
    uint64_t draw = 0;

    toys = 0;
    for (int pass = 1; pass >= 0; pass--)
        for (int b = 0; b < 256; b++)
            if (printable(b) == pass) {
                toy[toys].n = 1;
                toy[toys++].bytes[0] = (uint8_t)b;
            }
    for (int tries = 0; tries < 20000 && toys < TOY_TOKENS; tries++) {
        int pair[2], n;
        uint8_t joined[64];
        uint16_t out[64];

        for (int k = 0; k < 2; k++) {
            int t = 256 + (int)rng_below(&r, draw++, (uint64_t)(toys - 256 + 20));

            pair[k] = t;
            if (t >= toys)
                for (pair[k] = 0; toy[pair[k]].bytes[0] != (uint8_t)bytes[(t - toys) % 12];)
                    pair[k]++;
        }
        n = toy[pair[0]].n + toy[pair[1]].n;
        if (n > 32)
            continue;
        memcpy(joined, toy[pair[0]].bytes, (size_t)toy[pair[0]].n);
        memcpy(joined + toy[pair[0]].n, toy[pair[1]].bytes, (size_t)toy[pair[1]].n);
        if (toy_encode(joined, (size_t)n, out) != 2 || out[0] != pair[0] || out[1] != pair[1])
            continue;
        memcpy(toy[toys].bytes, joined, (size_t)n);
        toy[toys].n = n;
        toy[toys].left = pair[0];
        toy[toys++].right = pair[1];
    }
}

/* A token in GPT-2's printable alphabet. */
static void put_mapped(FILE *f, int id)
{
    for (int i = 0; i < toy[id].n; i++) {
        unsigned b = toy[id].bytes[i], c = b;

        if (!printable((int)b))
            for (unsigned k = c = 256; k < 256 + b; k++)
                c += !printable((int)k - 256);
        if (c < 0x80)
            fputc((int)c, f);
        else
            fprintf(f, "%c%c", (int)(0xc0 | c >> 6), (int)(0x80 | (c & 63)));
    }
}

static void put_base64(FILE *f, const uint8_t *s, int n)
{
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

    for (int i = 0; i < n; i += 3) {
        unsigned x = (unsigned)s[i] << 16 | (i + 1 < n ? (unsigned)s[i + 1] << 8 : 0) |
                     (i + 2 < n ? s[i + 2] : 0);

        fprintf(f, "%c%c%c%c", digit[x >> 18], digit[x >> 12 & 63],
                i + 1 < n ? digit[x >> 6 & 63] : '=', i + 2 < n ? digit[x & 63] : '=');
    }
}

static void put_json_token(FILE *f, int id)
{
    char *text;
    size_t n;
    FILE *m = open_memstream(&text, &n);

    put_mapped(m, id);
    fclose(m);
    for (size_t i = 0; i < n; i++)
        fprintf(f, text[i] == '"' || text[i] == '\\' ? "\\%c" : "%c", text[i]);
    free(text);
}

int toy_id(enum form form, int rank) { return form == JSON_IDS ? toys + 2 - rank : rank; }

static void put_special(FILE *f, int id, const char *name, const char *behind)
{
    fprintf(f,
            "{\"id\": %d, \"content\": \"%s\", \"single_word\": false, \"lstrip\": true, "
            "\"rstrip\": false, \"normalized\": true, \"special\": true}%s",
            id, name, behind);
}

int put_vocab(const char *path, enum form form)
{
    FILE *f = fopen(path, "w");

    if (form == RANKS)
        for (int k = 0; k < toys; k++) {
            put_base64(f, toy[k].bytes, toy[k].n);
            fprintf(f, " %d\n", k);
        }
    if (form == MERGES)
        fprintf(f, "#version: 0.2\n");
    for (int k = 256; k < toys && form == MERGES; k++) {
        put_mapped(f, toy[k].left);
        fputc(' ', f);
        put_mapped(f, toy[k].right);
        fputc('\n', f);
    }
    if (form >= JSON_STRINGS) {
        fprintf(f, "{\"version\": \"1.0\", \"truncation\": null, \"added_tokens\": [");
        if (form == JSON_IDS) {
            put_special(f, 0, "<pad>", ", ");
            put_special(f, 1, "<|endoftext|>", ", ");
            put_special(f, 2, "the", ""); /* which the letters spell, too */
        } else {
            put_special(f, toys, "<|endoftext|>", "");
        }
        fprintf(f, "], \"normalizer\": null, \"pre_tokenizer\": {\"type\": \"ByteLevel\", "
                   "\"add_prefix_space\": false, \"trim_offsets\": true}, \"post_processor\": "
                   "null, \"model\": {\"type\": \"BPE\", \"dropout\": null, \"vocab\": {");
        for (int k = 0; k < toys; k++) {
            fprintf(f, "%s\"", k ? "," : "");
            put_json_token(f, k);
            fprintf(f, "\":%d", toy_id(form, k));
        }
        fprintf(f, ",\"<|endoftext|>\":%d}, \"merges\": [", form == JSON_IDS ? 1 : toys);
        for (int k = 256; k < toys; k++) {
            fprintf(f, form == JSON_PAIRS ? "%s[\"" : "%s\"", k > 256 ? "," : "");
            put_json_token(f, toy[k].left);
            fprintf(f, form == JSON_PAIRS ? "\", \"" : " ");
            put_json_token(f, toy[k].right);
            fprintf(f, form == JSON_PAIRS ? "\"]" : "\"");
        }
        fprintf(f, "]}}");
    }
    return fclose(f);
}
