/* gpu_start_test.c - what a GPU that does not fit, or fails, leads to: code 5 and one message.
 *
 * Machines that are not here are facts made up. Failures of the GPU that is here: more memory
 * than it has, launches that fail, eagerly and in a capture, and a kernel that reads where nothing
 * is, last, since it ends the CUDA context.
 * Exit 77 without a GPU, when nothing failed before.
 */
#include <string.h>
#include "../kernels/ops_cuda.h"
#include "check.h"
#include "ops/ops.h"

static void refused(struct gpu_facts f, int device, const char *what)
{
    CHECK_ERR(ops_cuda_fits(&f, device), GPT_DEVICE, what);
}

static void test_facts(void)
{
    const struct gpu_facts good = { 13000, 13000, 2, NULL, 9, 0, 90 };
    struct gpu_facts f;

    CHECK_EQ(ops_cuda_fits(&good, 0), GPT_OK);
    CHECK_EQ(ops_cuda_fits(&good, 1), GPT_OK);
    refused(good, 2, "GPU 2 asked for, 2 visible");
    refused(good, -1, "GPU -1 asked for");
    f = good;
    f.driver = 0;
    refused(f, 0, "no NVIDIA driver");
    f = good;
    f.driver = 12080;
    refused(f, 0, "too old: it supports CUDA 12.8, this program needs 13.0");
    f.major = 8; /* the driver first: what to do about it is known */
    refused(f, 0, "too old");
    f = good;
    f.driver = 13020; /* newer ones of the same major version do */
    CHECK_EQ(ops_cuda_fits(&f, 0), GPT_OK);
    f = good;
    f.runtime = 13010;
    CHECK_EQ(ops_cuda_fits(&f, 0), GPT_OK);
    f = good;
    f.visible = 0;
    refused(f, 0, "no GPU is visible");
    f.error = "unknown error";
    refused(f, 0, "no GPU: unknown error");
    f = good;
    f.major = 7, f.minor = 5;
    refused(f, 1, "GPU 1 has compute capability 7.5, this program needs 8.0 or newer");
    f = good;
    f.major = 8, f.minor = 9, f.code = 80; /* from PTX */
    CHECK_EQ(ops_cuda_fits(&f, 0), GPT_OK);
    f.code = 0;
    refused(f, 1, "no code for GPU 1 of compute capability 8.9: build it with ARCH_GPU=89");
}

static void path(struct gpu_facts f, const char *wanted, bool expected)
{
    bool portable = !expected;
    if (CHECK_OK(ops_cuda_path(&f, 0, wanted, &portable)))
        CHECK_EQ(portable, expected);
}

static void test_paths(void)
{
    const struct gpu_facts hopper = { 13000, 13000, 2, NULL, 9, 0, 90 };
    struct gpu_facts f = hopper;
    bool portable;

    path(hopper, NULL, false);
    path(hopper, "native", false);
    path(hopper, "portable", true);
    f.code = 80;
    path(f, NULL, true);
    CHECK_ERR(ops_cuda_path(&f, 1, "native", &portable), GPT_DEVICE,
              "no native path on GPU 1: this program was built without sm_90a");
    f.major = 10, f.code = 100;
    path(f, NULL, true);
    path(f, "portable", true);
    CHECK_ERR(ops_cuda_path(&f, 0, "native", &portable), GPT_DEVICE,
              "no native path on GPU 0: it has compute capability 10.0");
    CHECK_ERR(ops_cuda_path(&f, 0, "fast", &portable), GPT_USAGE, "GPU path 'fast'");
}

/* The first failure sticks; what comes after does nothing, and free() is fine. */
static void failed(struct ops *o, const char *what)
{
    struct tensor t = tensor_of(o->alloc(o, 4, "after"), DT_F32, 1, 1);
    char host[4] = "abc";

    CHECK(!t.data);
    o->zero(o, t);
    o->upload(o, NULL, host, 4);
    o->download(o, host, NULL, 4);
    CHECK_ERR(o->sync(o), GPT_DEVICE, what);
    CHECK_STR(host, "abc");
    CHECK_ERR(o->status(o), GPT_DEVICE, what);
    o->free(o);
}

static void test_memory(void)
{
    struct ops *o;
    size_t half = (size_t)96 << 30; /* of no Hopper GPU twice */

    if (!CHECK_OK(ops_cuda_new(&o, 0)))
        return;
    void *first = o->alloc(o, half, "one half"), *second = o->alloc(o, half, "the other half");
    CHECK(!first || !second);
    failed(o, first ? "98304 MiB for the other half after" : "98304 MiB for one half after");
    CHECK(strstr(err_message(), " MiB free"));
    CHECK_OK(ops_cuda_new(&o, 0)); /* all was given back */
    CHECK(o->alloc(o, 1 << 20, "a little"));
    CHECK_OK(o->sync(o));
    o->free(o);
}

/* A grid of 2^31 blocks is refused when it is launched; the context is as good as before. */
static void test_bad_launch(bool capture)
{
    struct rope huge = { tensor_of((void *)256, DT_BF16, (int64_t)1 << 39, 2) };
    void *graph = &graph;
    float freq = 1;
    struct ops *o;

    if (!CHECK_OK(ops_cuda_new(&o, 0)))
        return;
    if (capture)
        CHECK_OK(ops_cuda_capture(o));
    o->rope_table(o, huge, &freq, 0, false);
    if (capture) {
        CHECK_ERR(ops_cuda_capture_end(o, &graph), GPT_DEVICE, "invalid argument");
        CHECK(!graph);
    }
    failed(o, "rope_table.cu:");
    CHECK(strstr(err_message(), "invalid argument"));
    CHECK_OK(ops_cuda_new(&o, 0));
    CHECK(o->alloc(o, 1 << 20, "a little"));
    CHECK_OK(o->sync(o));
    o->free(o);
}

static void test_bad_kernel(void)
{
    struct ops *o;

    if (!CHECK_OK(ops_cuda_new(&o, 0)))
        return;
    struct tensor dst = tensor_of(o->alloc(o, 1024, "test"), DT_F32, 1, 256);
    o->copy(o, dst, tensor_of((void *)256, DT_BF16, 1, 256)); /* a kernel: it converts */
    CHECK_EQ(o->sync(o), GPT_DEVICE);
    failed(o, "illegal memory access");
}

int main(void)
{
    test_facts();
    test_paths();
    if (!ops_cuda_count())
        return check_done() ? 1 : check_skip("gpu");
    test_memory();
    test_bad_launch(false);
    test_bad_launch(true);
    test_bad_kernel();
    return check_done();
}
