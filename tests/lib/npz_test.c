/* NumPy's archives: what is written is read again, and nothing that is cut or damaged crashes. A
 * file as NumPy itself writes it (np.savez) is made by hand from its format. */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>
#include <zlib.h>
#include "base/file.h"
#include "base/rng.h"
#include "check.h"
#include "scratch.h"
#include "checkpoint/tensors.h"

static const float numbers[6] = { 1, -2, 3.5f, 0, 1e-20f, 6 };

static void write_npz(const char *path)
{
    struct output o;
    struct st_writer *w;
    CHECK_OK(output_open(&o, path, true));
    CHECK_OK(st_writer_new(&w, o.f, path, ST_NPZ));
    CHECK_OK(st_note(w, "step", "12"));
    CHECK_OK(st_note(w, "text", "two\nlines \"q\""));
    CHECK_OK(st_declare(w, "a.weight", DT_F32, 2, (uint64_t[]){ 2, 3 }));
    CHECK_OK(st_declare(w, "scalar", DT_F32, 0, NULL));
    CHECK_OK(st_declare(w, "row", DT_I16, 1, (uint64_t[]){ 2 }));
    CHECK_OK(st_declare(w, "none", DT_U8, 2, (uint64_t[]){ 0, 7 }));
    CHECK_OK(st_write(w, numbers, 8));
    CHECK_OK(st_write(w, numbers + 2, 16));
    CHECK_OK(st_write(w, numbers + 2, 4));
    CHECK_OK(st_write(w, "\1\0\2", 4));
    CHECK_OK(st_writer_finish(w));
    st_writer_free(w);
    CHECK_OK(output_commit(&o));
}

/* Opens and reads all; a failure is the code. */
static int read_all(const char *path)
{
    struct st_reader *r;
    const struct st_tensor *t;
    unsigned char buf[512];
    int rc = st_open(&r, path);
    if (rc)
        return rc;
    while (!rc && (t = st_next(r)))
        for (uint64_t at = 0; !rc && at < t->bytes; at += sizeof buf)
            rc = st_read(r, t, at, buf, t->bytes - at < 512 ? (size_t)(t->bytes - at) : 512);
    st_close(r);
    return rc;
}

static void test_round_trip(void)
{
    struct st_reader *r;
    const struct st_tensor *t;
    float x[6];
    write_npz(scratch("a.npz"));
    CHECK_OK(st_open(&r, scratch("a.npz")));
    CHECK_EQ(st_header(r)->n, 4);
    CHECK_STR(st_meta(st_header(r), "step"), "12");
    CHECK_STR(st_meta(st_header(r), "text"), "two\nlines \"q\"");
    CHECK((t = st_find(st_header(r), "a.weight")) && t->dtype == DT_F32 && t->rank == 2 &&
          t->shape[0] == 2 && t->shape[1] == 3);
    CHECK_OK(st_read(r, t, 0, x, 24));
    CHECK(!memcmp(x, numbers, 24));
    CHECK((t = st_find(st_header(r), "scalar")) && t->rank == 0 && t->elements == 1);
    CHECK((t = st_find(st_header(r), "row")) && t->dtype == DT_I16 && t->shape[0] == 2);
    CHECK((t = st_find(st_header(r), "none")) && t->elements == 0 && t->rank == 2);
    st_close(r);
    char *x1, *x2;
    size_t n1, n2;
    write_npz(scratch("b.npz"));
    CHECK_OK(file_read(scratch("a.npz"), 0, &x1, &n1));
    CHECK_OK(file_read(scratch("b.npz"), 0, &x2, &n2));
    CHECK(n1 == n2 && !memcmp(x1, x2, n1));
    free(x1);
    free(x2);
}

/* --- as NumPy writes --- */

/* Numbers of 2 and 4 bytes, as "242..." says. */
static size_t put(unsigned char *b, const char *sizes, const uint64_t *v)
{
    unsigned char *at = b;
    for (; *sizes; sizes++, v++)
        for (int i = 0; i < *sizes - '0'; i++)
            *at++ = (unsigned char)(*v >> 8 * i);
    return (size_t)(at - b);
}

/* `count` arrays of one name, the same each, in a zip of the plain kind, without zip64: dict as
 * given, then data. */
static size_t by_hand(unsigned char *z, const char *name, int count, const char *dict,
                      const void *data, size_t data_n, uint64_t method)
{
    unsigned char npy[1024];
    size_t h = strlen(dict), n = 10 + h + data_n, len = strlen(name), k = 0;
    memcpy(npy, "\x93NUMPY\1\0", 8);
    put(npy + 8, "2", (uint64_t[]){ h });
    memcpy(npy + 10, dict, h);
    memcpy(npy + 10 + h, data, data_n);
    uint64_t crc = crc32_z(0, npy, n), at[8], members = (uint64_t)count;
    for (int i = 0; i < count; i++) {
        at[i] = k;
        k += put(z + k,
                 "42224444"
                 "22",
                 (uint64_t[]){ 0x04034b50, 20, 0, method, 0, crc, n, n, len, 0 });
        memcpy(z + k, name, len);
        memcpy(z + k + len, npy, n);
        k += len + n;
    }
    uint64_t from = k;
    for (int i = 0; i < count; i++) {
        k += put(
            z + k,
            "422224444"
            "22222"
            "44",
            (uint64_t[]){ 0x02014b50, 20, 20, 0, method, 0, crc, n, n, len, 0, 0, 0, 0, 0, at[i] });
        memcpy(z + k, name, len);
        k += len;
    }
    return k + put(z + k, "42222442",
                   (uint64_t[]){ 0x06054b50, 0, 0, members, members, k - from, from, 0 });
}

static void test_by_hand(void)
{
    static const char good[] = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }   \n";
    static const struct {
        const char *dict, *message;
    } bad[] = {
        { "{'descr': '>f4', 'fortran_order': False, 'shape': (2, 3), }", "type '>f4', " },
        { "{'descr': '<c8', 'fortran_order': False, 'shape': (3,), }", "is not read" },
        { "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (6,), }", "a plain type" },
        { "{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }", "expected C order" },
        { "{'descr': '<f4', 'fortran_order': False, }", "expected a shape" },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (2, x), }", "expected ')'" },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 4), }",
          "8 elements of F32 do not take 24 bytes" },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296), }",
          "more than 2^64 - 1 elements" }
    };
    unsigned char z[1024];
    char *path = scratch("hand.npz");
    struct tensors *s;
    struct values v;
    double x[6];
    spill(path, z, by_hand(z, "arr.npy", 1, good, numbers, 24, 0));
    CHECK_OK(tensors_open(&s, path));
    CHECK_OK(values_open(&v, s, tensors_find(s, "arr"), 0));
    CHECK_OK(values_read(&v, x, 6));
    for (int i = 0; i < 6; i++)
        CHECK_NEAR(x[i], numbers[i], 0);
    values_close(&v);
    tensors_close(s);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        spill(path, z, by_hand(z, "arr.npy", 1, bad[i].dict, numbers, 24, 0));
        CHECK_ERR(read_all(path), GPT_INPUT, bad[i].message);
    }
    spill(path, z, by_hand(z, "arr.npy", 1, good, numbers, 24, 8));
    CHECK_ERR(read_all(path), GPT_INPUT, "expected np.savez, not np.savez_compressed");
}

/* A zip may hold two members of one name. Metadata that came twice was once written behind the end
 * of the list that the first had made. */
static void test_twice(void)
{
    char dict[96], text[512] = "{";
    unsigned char z[4096];
    char *path = scratch("twice.npz");
    for (int i = 0; i < 40; i++)
        sprintf(text + strlen(text), "%s\"k%d\":\"v\"", i ? "," : "", i);
    strcat(text, "}");
    int n = (int)strlen(text);
    sprintf(dict, "{'descr': '|u1', 'fortran_order': False, 'shape': (%d,), }\n", n);
    spill(path, z, by_hand(z, "__metadata__.npy", 1, dict, text, (size_t)n, 0));
    CHECK_OK(read_all(path));
    spill(path, z, by_hand(z, "__metadata__.npy", 2, dict, text, (size_t)n, 0));
    CHECK_ERR(read_all(path), GPT_INPUT, "'__metadata__' comes twice");
    spill(path, z, by_hand(z, "arr.npy", 2, dict, text, (size_t)n, 0));
    CHECK_ERR(read_all(path), GPT_INPUT, "'arr' comes twice");
}

/* Cut anywhere it is refused: the directory stands at the end. Changed anywhere it may be read, but
 * within the file. */
static void test_damage(void)
{
    struct rng r = rng_make((uint64_t)getpid(), 1);
    char *data, *path = scratch("damage.npz");
    size_t n;
    long taken = 0, odd = 0;
    write_npz(path);
    CHECK_OK(file_read(path, 0, &data, &n));
    for (size_t i = 0; i < n; i++) {
        spill(path, data, i);
        taken += read_all(path) != GPT_INPUT;
    }
    CHECK_EQ(taken, 0);
    for (uint64_t k = 0; k < 20000; k++) {
        size_t at = k < n ? k : rng_below(&r, 2 * k, n);
        char was = data[at];
        data[at] = (char)rng_below(&r, 2 * k + 1, 256);
        spill(path, data, n);
        int rc = read_all(path);
        odd += rc && rc != GPT_INPUT;
        data[at] = was;
    }
    CHECK_EQ(odd, 0);
    free(data);
}

int main(void)
{
    test_round_trip();
    test_by_hand();
    test_twice();
    test_damage();
    return check_done();
}
