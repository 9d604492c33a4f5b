/* Tensor files of other programs: types that are not decoded do not end a table, and one index names
 * the files of a model. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "check.h"
#include "scratch.h"
#include "inspect/diff.h"
#include "inspect/show.h"
#include "inspect/spectrum.h"
#include "inspect/tensor_stats.h"
#include "inspect/verify.h"

/* A safetensors file of this header and n bytes, which are first, first + step, ... */
static void make(const char *path, const char *header, size_t n, unsigned first, unsigned step)
{
    size_t size = strlen(header);
    unsigned char *b = calloc(1, 8 + size + n);
    for (int i = 0; i < 8; i++)
        b[i] = (unsigned char)((uint64_t)size >> 8 * i);
    memcpy(b + 8, header, size);
    for (size_t i = 0; i < n; i++)
        b[8 + size + i] = (unsigned char)(first + step * i);
    spill(path, b, 8 + size + n);
    free(b);
}

#define T(name, type, shape, a, b) \
    "\"" name "\":{\"dtype\":\"" type "\",\"shape\":" shape ",\"data_offsets\":[" a "," b "]}"

/* Integers, types that are not decoded, an e4m3 matrix whose scales are of such a type, and one of as
 * many 4-bit numbers that a matrix of it does not end with a byte; 162 bytes. */
static const char mixed[] = "{" T("a.u32", "U32", "[2,2]", "0", "16") "," T("b.u64", "U64", "[2]", "16", "32") "," T(
    "c.e8m0", "F8_E8M0", "[4]",
    "32",
    "36") "," T("d.f4", "F4", "[2,4]", "36",
                "40") "," T("e.fnuz", "F8_E5M2FNUZ", "[2,2]", "40",
                            "44") "," T("f.f6", "F6_E2M3", "[4,2]", "44",
                                        "50") "," T("g.c64", "C64", "[3]", "50",
                                                    "74") "," T("h.weight", "F8_E4M3", "[2,32]",
                                                                "74",
                                                                "138") "," T("h.scale", "F8_E8M0",
                                                                             "[2,1]", "138",
                                                                             "140") "," T("i.f4",
                                                                                          "F4",
                                                                                          "[2,3,3]",
                                                                                          "140",
                                                                                          "149") "," T("j.f32",
                                                                                                       "F32",
                                                                                                       "[3]",
                                                                                                       "149",
                                                                                                       "161") "," T("k.bool",
                                                                                                                    "BOOL",
                                                                                                                    "[1]",
                                                                                                                    "161",
                                                                                                                    "162") "}";
enum { MIXED = 162, VIEWS = 11 };

static const struct tensor_stats *row_of(const struct views *v, const struct tensor_stats *rows,
                                         const char *name)
{
    const struct view *x = views_find(v, name);
    CHECK(x != NULL);
    return &rows[x - v->v];
}

static void test_stat(void)
{
    struct tensors *s;
    struct views v;
    struct tensor_stats rows[VIEWS];
    make(scratch("mixed"), mixed, MIXED, 1, 1);
    CHECK_OK(tensors_open(&s, scratch("mixed")));
    CHECK_OK(views_make(&v, s, NULL, NULL, 0));
    CHECK_EQ(v.n, VIEWS); /* h.scale is h's */
    CHECK_OK(tensor_stats_views(s, &v, NULL, rows));
    static const char *const known[] = { "a.u32", "b.u64", "j.f32", "k.bool" };
    int n = 0;
    for (int i = 0; i < VIEWS; i++)
        n += rows[i].known;
    CHECK_EQ(n, 4);
    for (int i = 0; i < 4; i++)
        CHECK(row_of(&v, rows, known[i])->known);
    CHECK_NEAR(row_of(&v, rows, "a.u32")->min, 0x04030201, 0);
    CHECK_NEAR(row_of(&v, rows, "a.u32")->max, 0x100f0e0d, 0);
    CHECK_EQ(row_of(&v, rows, "i.f4")->elements, 18);
    CHECK_EQ(view_bytes(views_find(&v, "i.f4")), 9);
    CHECK_EQ(view_bytes(views_find(&v, "f.f6")), 6);
    char text[4096];
    FILE *f = fmemopen(text, sizeof text, "w");
    CHECK_OK(show_stats(f, REPORT_TSV, &v, rows));
    CHECK(!fclose(f));
    CHECK(strstr(text, "\nd.f4\tF4\t8\t\t\t\t\t\t\t\t\n") != NULL);
    CHECK(strstr(text, "\nh.weight\te4m3 x scale\t64\t\t\t\t\t\t\t\t\n") != NULL);
    CHECK(strstr(text, "\nk.bool\tbool\t1\t") != NULL);
    views_release(&v);
    tensors_close(s);
}

/* Of matrices those that are not decoded have a row without numbers. */
static void test_spectrum(void)
{
    struct tensors *s;
    struct views v;
    make(scratch("mixed"), mixed, MIXED, 1, 1);
    CHECK_OK(tensors_open(&s, scratch("mixed")));
    CHECK_OK(views_make(&v, s, NULL, NULL, 0));
    views_keep_matrices(&v, "weight");
    CHECK_EQ(v.n, 5);
    struct spectrum sp[VIEWS];
    CHECK_OK(spectrum_views(&(struct spectrum_job){ .s = s, .v = &v }, sp));
    char text[4096];
    FILE *f = fmemopen(text, sizeof text, "w");
    CHECK_OK(show_spectra(f, REPORT_TSV, &v, sp));
    CHECK_OK(show_values(f, &v, sp));
    CHECK(!fclose(f));
    CHECK(strstr(text, "\nd.f4\t2\t4\t\t\t\t\t\t\t\t\n") != NULL);
    CHECK(strstr(text, "# d.f4 2x4 is not decoded\n") != NULL);
    CHECK(strstr(text, "# a.u32 2x2\n") != NULL);
    for (int i = 0; i < v.n; i++)
        spectrum_release(&sp[i]);
    views_release(&v);
    tensors_close(s);
}

/* Bits are compared of what is not decoded, scales among them. */
static void test_diff(void)
{
    static const struct {
        int byte; /* of the data, changed */
        const char *name; /* that differs; NULL: none */
        int bits; /* elements */
    } change[] = {
        { -1, NULL, 0 },    { 0, "a.u32", 1 },   { 33, "c.e8m0", 1 },    { 37, "d.f4", 2 },
        { 45, "f.f6", 2 },  { 57, "g.c64", 1 },  { 139, "h.weight", 0 }, { 100, "h.weight", 1 },
        { 148, "i.f4", 2 }, { 150, "j.f32", 1 },
    };
    struct tensors *s, *t;
    make(scratch("mixed"), mixed, MIXED, 1, 1);
    CHECK_OK(tensors_open(&s, scratch("mixed")));
    for (size_t i = 0; i < sizeof change / sizeof change[0]; i++) {
        size_t n;
        unsigned char *b = slurp(scratch("mixed"), &n);
        if (change[i].byte >= 0)
            b[8 + sizeof mixed - 1 + (size_t)change[i].byte] ^= 0xff;
        spill(scratch("other"), b, n);
        free(b);
        struct diff_row *row;
        int rows, differs = 0;
        bool same;
        CHECK_OK(tensors_open(&t, scratch("other")));
        CHECK_OK(diff_tensors(s, t, NULL, NULL, 0, false, &row, &rows, &same));
        CHECK_EQ(rows, VIEWS);
        CHECK_EQ(same, !change[i].name);
        for (int k = 0; k < rows; k++) {
            differs += row[k].what != DIFF_SAME;
            if (row[k].what != DIFF_SAME) {
                CHECK_STR(row[k].name, change[i].name ? change[i].name : "none");
                CHECK_EQ(row[k].bits, change[i].bits);
            }
        }
        CHECK_EQ(differs, change[i].name != NULL);
        diff_free(row, rows);
        tensors_close(t);
    }
    tensors_close(s);
}

/* --- an index --- */

static char *index_text(const char *map)
{
    static char text[1024];
    snprintf(
        text, sizeof text,
        "{\n  \"metadata\": {\"total_size\": 48, \"by\": \"a \\u00e9\"},\n  \"weight_map\": %s\n}\n",
        map);
    return text;
}

static int faults;
static char last_fault[512];
static void count_fault(void *arg, const char *fault)
{
    (void)arg;
    faults++;
    snprintf(last_fault, sizeof last_fault, "%s", fault);
}

static int opened(const char *map)
{
    struct tensors *s;
    const char *text = index_text(map);
    spill(scratch("model.safetensors.index.json"), text, strlen(text));
    int rc = tensors_open(&s, scratch("model.safetensors.index.json"));
    if (!rc)
        tensors_close(s);
    return rc;
}

static void test_index(void)
{
    static const char map[] = "{\"x\": \"m-1-of-2.safetensors\", \"y\": \"m-2-of-2.safetensors\","
                              " \"z\": \"m-1-of-2.safetensors\"}";
    const char *text = index_text(map);
    char *path = strdup(scratch("model.safetensors.index.json")), *checked;
    struct tensors *s;
    double v[4];
    make(scratch("m-1-of-2.safetensors"),
         "{" T("x", "U8", "[4]", "0", "4") "," T("z", "U8", "[4]", "4", "8") "}", 8, 1, 1);
    make(scratch("m-2-of-2.safetensors"), "{" T("y", "U8", "[4]", "0", "4") "}", 4, 100, 2);
    spill(path, text, strlen(text));
    CHECK_OK(tensors_open(&s, path));
    CHECK_EQ(tensors_count(s), 3);
    CHECK_EQ(tensors_files(s), 2);
    CHECK_STR(tensors_note(s, "total_size"), "48");
    CHECK_STR(tensors_note(s, "by"), "a \xc3\xa9");
    static const struct {
        const char *name;
        double first, step;
    } want[] = { { "z", 5, 1 }, { "y", 100, 2 }, { "x", 1, 1 } };
    for (int i = 0; i < 3; i++) {
        const struct stored *t = tensors_find(s, want[i].name);
        CHECK(t != NULL);
        CHECK_OK(values_load(s, t, 0, v, 4));
        for (int k = 0; k < 4; k++)
            CHECK_NEAR(v[k], want[i].first + want[i].step * k, 0);
    }
    tensors_close(s);
    faults = 0;
    CHECK_OK(verify_path(path, true, count_fault, NULL, &checked));
    CHECK_STR(checked, path);
    free(checked);

    /* Two names of the index for one, and the other way round. */
    CHECK_ERR(opened("{\"x\": \"m-1-of-2.safetensors\", \"w\": \"m-2-of-2.safetensors\"}"),
              GPT_INPUT, "weight_map: tensor 'w': 'm-2-of-2.safetensors' holds none of that name");
    CHECK_ERR(opened("{\"x\": \"m-2-of-2.safetensors\"}"), GPT_INPUT, "tensor 'x': 'm-2-of-2");
    CHECK_OK(opened("{\"x\": \"m-1-of-2.safetensors\", \"y\": \"m-2-of-2.safetensors\"}"));
    CHECK_EQ(verify_path(path, false, count_fault, NULL, &checked), GPT_NO);
    CHECK_EQ(faults, 1);
    CHECK(strstr(last_fault, "weight_map: names 2 tensors, its files hold 3") != NULL);
    CHECK_ERR(opened("{\"x\": \"../m-1-of-2.safetensors\"}"), GPT_INPUT, "a file beside this one");
    CHECK_ERR(opened("{\"x\": \"/etc/passwd\"}"), GPT_INPUT, "a file beside this one");
    CHECK_ERR(opened("{\"x\": \"none.safetensors\"}"), GPT_SYSTEM, "none.safetensors");
    CHECK_ERR(opened("{\"x\": \"m-1-of-2.safetensors\", \"\\u0078\": \"m-2-of-2.safetensors\"}"),
              GPT_INPUT, "tensor 'x' comes twice");
    CHECK_ERR(opened("[]"), GPT_INPUT, "index: expected '{', found '['");
    CHECK_ERR(opened("{\"x\" \"m\"}"), GPT_INPUT, "index: expected ':'");
    CHECK_OK(opened("{}"));
    spill(path, " {\"model_type\": \"gpt2\", \"n\": 1}", 31);
    CHECK_ERR(tensors_open(&s, path), GPT_INPUT, "JSON without 'weight_map'");
    free(path);
}

int main(void)
{
    test_stat();
    test_spectrum();
    test_diff();
    test_index();
    return check_done();
}
