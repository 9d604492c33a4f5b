/* hopper.cc - instructions of tensor cores and copies: Hopper's (barriers in shared memory, the
 * TMA, wgmma) and those of every GPU (ldmatrix, mma.sync, cp.async).
 * Source of the layouts: PTX ISA 9.0, tensor maps, swizzling modes, wgmma matrix descriptors.
 */
#include "emu.h"
#include <cuda.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

namespace emu
{

/* -- addresses ------------------------------------------------------------------------------- */

/* An address in shared memory: 18 bits of place, then rank + 1 of a block of the cluster, or 0. */
static block *block_of(uint32_t address)
{
    unsigned rank = address >> 24;
    if (rank > blocks.size())
        fail("address %x in block %u of a cluster of %zu", address, rank - 1, blocks.size());
    return rank ? &blocks[rank - 1] : now->block;
}

static char *pointer_in(block *b, uint32_t address, size_t bytes)
{
    uint32_t at = address & 0xffffff;
    bool is_dynamic = at >= b->dynamic_at && at + bytes <= WINDOW;
    if (!is_dynamic && at + bytes > b->used)
        fail("%zu bytes at %x of shared memory, which ends at %x; dynamic: %x to %x", bytes, at,
             b->used, b->dynamic_at, WINDOW);
    return b->window + at;
}

void *shared_pointer(uint32_t address, size_t bytes)
{
    if (address % bytes)
        fail("%zu bytes at %x of shared memory, not aligned", bytes, address);
    return pointer_in(block_of(address), address, bytes);
}

/* -- barriers -------------------------------------------------------------------------------- */

enum { MAGIC = 0x5a5 };
struct barrier {
    int64_t bytes : 25;
    uint64_t count : 13, pending : 13, phase : 1, magic : 12;
};
static_assert(sizeof(struct barrier) == 8, "as on the GPU");

static barrier *barrier_at(block *b, uint32_t bar)
{
    if (bar % 8)
        fail("a barrier at %x", bar);
    barrier *p = (barrier *)pointer_in(b, bar, sizeof *p);
    if (p->magic != MAGIC)
        fail("the barrier at %x of shared memory was not initialised, or is overwritten", bar);
    return p;
}

static void barrier_moved(block *b, uint32_t bar, barrier *p)
{
    if (p->pending || p->bytes)
        return;
    wake(b, "barrier", bar << 1 | p->phase);
    p->phase ^= 1;
    p->pending = p->count;
}

void barrier_init(uint32_t bar, int arrivals)
{
    barrier *p = (barrier *)shared_pointer(bar, sizeof *p);
    *p = { 0, (unsigned)arrivals, (unsigned)arrivals, 0, MAGIC };
}

static void arrive(block *b, uint32_t bar, int bytes)
{
    barrier *p = barrier_at(b, bar);
    if (!p->pending)
        fail("an arrival too many at the barrier %x", bar);
    p->bytes += bytes;
    p->pending--;
    barrier_moved(b, bar, p);
}
void barrier_expect(uint32_t bar, int bytes) { arrive(now->block, bar, bytes); }
void barrier_arrive(uint32_t bar, int rank)
{
    if (rank >= (int)blocks.size())
        fail("an arrival in block %d of a cluster of %zu", rank, blocks.size());
    arrive(rank < 0 ? now->block : &blocks[rank], bar, 0);
}

void barrier_wait(uint32_t bar, uint32_t parity)
{
    if (barrier_at(now->block, bar)->phase == (parity & 1))
        wait_for("barrier", bar << 1 | (parity & 1), NULL, 0);
}

/* -- TMA ------------------------------------------------------------------------- */

/* What lies in a CUtensorMap. */
enum { DIMS = 5 };
struct tensor_map {
    char *data;
    uint64_t size[DIMS], stride[DIMS - 1]; /* elements, bytes; absent: 1, 0 */
    uint16_t box[DIMS], element, swizzle;
};
static_assert(sizeof(struct tensor_map) <= sizeof(CUtensorMap), "fits");

static uint32_t box_bytes(const tensor_map &m)
{
    uint32_t bytes = m.element;
    for (int i = 0; i < DIMS; i++)
        bytes *= m.box[i];
    return bytes;
}

extern "C" CUresult CUDAAPI encode_tensor_map(CUtensorMap *out, CUtensorMapDataType type,
                                              cuuint32_t rank, void *data, const cuuint64_t *size,
                                              const cuuint64_t *stride, const cuuint32_t *box,
                                              const cuuint32_t *step, CUtensorMapInterleave,
                                              CUtensorMapSwizzle swizzle, CUtensorMapL2promotion,
                                              CUtensorMapFloatOOBfill)
{
    struct tensor_map m = { (char *)data, { 1, 1, 1, 1, 1 }, {}, { 1, 1, 1, 1, 1 }, 4, 0 };
    m.element = type == CU_TENSOR_MAP_DATA_TYPE_UINT8      ? 1
                : type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 ? 2
                                                           : 4;
    m.swizzle = swizzle == CU_TENSOR_MAP_SWIZZLE_128B  ? 128
                : swizzle == CU_TENSOR_MAP_SWIZZLE_64B ? 64
                                                       : 0;
    uint32_t inner = box[0] * m.element;
    bool fits = rank >= 2 && rank <= DIMS && (uintptr_t)data % 16 == 0 && inner % 16 == 0 &&
                (!m.swizzle || inner <= m.swizzle);
    for (unsigned i = 0; i < rank && fits; i++) {
        fits = size[i] > 0 && size[i] <= 1ull << 32 && box[i] > 0 && box[i] <= 256 &&
               step[i] == 1 && (i + 1 == rank || stride[i] % 16 == 0);
        m.size[i] = size[i], m.box[i] = (uint16_t)box[i];
        if (i + 1 < rank)
            m.stride[i] = stride[i];
    }
    memset(out, 0, sizeof *out);
    memcpy(out, &m, sizeof m);
    return fits ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static uint32_t swizzled(uint32_t at, uint32_t width)
{
    return at ^ (width == 128 ? at >> 3 & 0x70 : width == 64 ? at >> 3 & 0x30 : 0);
}

static float from_bf16(uint16_t x)
{
    uint32_t u = (uint32_t)x << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}
/* *to += x, rounded to nearest. */
static void add_bf16(uint16_t *to, uint16_t x)
{
    uint32_t bits;
    float sum = from_bf16(*to) + from_bf16(x);
    memcpy(&bits, &sum, sizeof bits);
    *to = sum == sum ? (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16) : 0x7fff;
}

/* The box at `first` between memory and shared memory at `at`; what lies outside reads as zeros and is
 * not written. */
enum move { LOAD, STORE, ADD };
static void move_box(const tensor_map &m, place first, block *b, uint32_t at, enum move move)
{
    bool store = move != LOAD;
    uint32_t bytes = box_bytes(m), base = at & 0xffffff;
    char *window = pointer_in(b, at, bytes) - base;

    if (at % 128 || (m.swizzle && at % (8 * m.swizzle)))
        fail("a box at %x of shared memory, swizzle %u", at, m.swizzle);
    for (uint32_t c = 0, row = m.box[0] * m.element; c < bytes; c += row) {
        char *start = m.data + first.at[0] * (int64_t)m.element;
        bool row_inside = true;
        uint32_t left = c / row;
        for (int i = 1; i < DIMS; i++) {
            int64_t k = first.at[i] + (int64_t)(left % m.box[i]);
            left /= m.box[i];
            row_inside = row_inside && k >= 0 && k < (int64_t)m.size[i];
            start += k * (int64_t)m.stride[i - 1];
        }
        for (uint32_t x = 0, n; x < row; x += n) {
            int64_t k = first.at[0] + (int64_t)(x / m.element), rest = (int64_t)m.size[0] - k;
            char *here = window + swizzled(base + c + x, m.swizzle), *there = start + x;
            bool inside = row_inside && k >= 0 && rest > 0;
            /* A swizzle moves 16 bytes together. */
            bool many = inside && move != ADD && (base + c + x) % 16 == 0 && x + 16 <= row &&
                        rest * m.element >= 16;
            n = many ? 16 : m.element;
            if (many)
                memcpy(store ? there : here, store ? here : there, 16);
            else if (!store && !inside)
                memset(here, 0, n);
            else if (inside && move == ADD)
                add_bf16((uint16_t *)there, *(uint16_t *)here);
            else if (inside)
                memcpy(store ? there : here, store ? here : there, n);
        }
    }
}

/* Bytes that come, by `move`, count on a block's barrier. */
template <typename F> static void copy_later(block *b, uint32_t bar, uint32_t bytes, F move)
{
    barrier_at(b, bar);
    later(NULL, [=] {
        barrier *p = barrier_at(b, bar);
        move();
        p->bytes -= bytes;
        barrier_moved(b, bar, p);
    });
}

void load_box(unsigned mask, uint32_t to, const void *map, place at, uint32_t bar)
{
    tensor_map m;
    memcpy(&m, map, sizeof m);
    for (unsigned r = 0; r < blocks.size(); r++) {
        block *b = mask ? &blocks[r] : now->block;
        if (mask ? !(mask >> r & 1) : r > 0)
            continue;
        copy_later(b, bar, box_bytes(m), [=] { move_box(m, at, b, to, LOAD); });
    }
}

void load_bytes(uint32_t to, const void *from, uint32_t bytes, uint32_t bar)
{
    block *b = now->block;
    if (to % 16 || bytes % 16 || (uintptr_t)from % 16)
        fail("%u bytes at %p to %x of shared memory, not aligned", bytes, from, to);
    copy_later(b, bar, bytes, [=] { memcpy(pointer_in(b, to, bytes), from, bytes); });
}

/* To the block of the cluster that both addresses name. */
void send(uint32_t to, float x, uint32_t bar)
{
    block *b = block_of(to);
    if (to >> 24 != bar >> 24 || to % 4)
        fail("4 bytes to %x of shared memory, the barrier at %x", to, bar);
    copy_later(b, bar & 0xffffff, 4, [=] { *(float *)pointer_in(b, to, 4) = x; });
}

void store_box(const void *map, place at, uint32_t from, bool add)
{
    tensor_map m;
    block *b = now->block;
    memcpy(&m, map, sizeof m);
    if (add && m.element != 2)
        fail("numbers of %u bytes are added to memory", m.element);
    later(now, [=] { move_box(m, at, b, from, add ? ADD : STORE); });
}

void stores_commit() { now->store_groups++; }
void stores_wait(int left) { finish_copies(now, left); }

/* -- matrices of 8 x 8 ----------------------------------------------------------------------- */

/* Row `lane % 8` of matrix `lane / 8` is at a lane's address; a register has two neighbours. */
void load_matrices(uint32_t *const r[4], uint32_t from, bool turned)
{
    const uint64_t *rows = warp_values("ldmatrix", ~0u, from, 0);
    for (int m = 0; m < 4; m++) {
        uint32_t pair = 0;
        for (int e = 0; e < 2; e++) {
            int row = now->lane / 4, column = now->lane % 4 * 2 + e;
            if (turned)
                std::swap(row, column);
            uint16_t *p = (uint16_t *)shared_pointer((uint32_t)rows[8 * m + row], 16);
            pair |= (uint32_t)p[column] << 16 * e;
        }
        *r[m] = pair;
    }
    warp_values("ldmatrix", ~0u, 0, 0);
}

void store_matrices(uint32_t to, const uint32_t r[4], bool turned)
{
    const uint64_t *rows = warp_values("stmatrix", ~0u, to, 0);
    for (int m = 0; m < 4; m++)
        for (int e = 0; e < 2; e++) {
            int row = now->lane / 4, column = now->lane % 4 * 2 + e;
            if (turned)
                std::swap(row, column);
            uint16_t *p = (uint16_t *)shared_pointer((uint32_t)rows[8 * m + row], 16);
            p[column] = (uint16_t)(r[m] >> 16 * e);
        }
    warp_values("stmatrix", ~0u, 0, 0);
}

/* -- products -------------------------------------------------------------------------------- */

/* The numbers that a byte is in fp8. */
template <class T> struct byte_table {
    float x[256];
    byte_table()
    {
        for (int i = 0; i < 256; i++) {
            T t;
            t.__x = (__nv_fp8_storage_t)i;
            x[i] = (float)t;
        }
    }
};
static const byte_table<__nv_fp8_e4m3> e4m3;
static const byte_table<__nv_fp8_e5m2> e5m2;

/* An operand that a descriptor names: rows r, numbers k of each, 32 bytes of them. */
struct operand {
    uint32_t start, leading, stride, width;
    bool turned, fp8;
    product_type type;
    const char *window;
    operand(block *b, uint64_t d, bool t, int rows, product_type of)
        : start((uint32_t)(d & 0x3fff) << 4), leading((uint32_t)(d >> 16 & 0x3fff) << 4),
          stride((uint32_t)(d >> 32 & 0x3fff) << 4), width(d >> 62 == 1 ? 128 : 64), turned(t),
          fp8(of >= PRODUCT_E4M3), type(of), window(b->window)
    {
        pointer_in(b, start, 2);
        pointer_in(b, at(rows - 1, fp8 ? 31 : 15), fp8 ? 1 : 2);
    }
    uint32_t at(unsigned r, unsigned k) const
    {
        unsigned each = width == 128 ? 64 : 32, page = width == 128 ? r / 64 : r / 32;
        return turned
                   ? start + page * leading + k / 8 * stride + k % 8 * width + (r - page * each) * 2
                   : start + r / 8 * stride + r % 8 * width + k * (fp8 ? 1 : 2);
    }
    /* Of a row that is not turned, 16 bytes lie beside each other; of one that is, a number, 8 of them `width` apart. */
    template <int BYTES, class F> void read(float *x, int step, unsigned r, F number) const
    {
        enum { DEPTH = 32 / BYTES, PIECE = 16 / BYTES };
        float all[DEPTH];
        for (int k = 0; k < DEPTH && !turned; k += PIECE) {
            const char *p = window + swizzled(at(r, k), width);
            for (int i = 0; i < PIECE; i++)
                all[k + i] = number(p + BYTES * i);
        }
        for (int k = 0; k < DEPTH && turned; k += 8) {
            uint32_t from = at(r, k);
            for (int i = 0; i < 8; i++)
                all[k + i] = number(window + swizzled(from + i * width, width));
        }
        for (int k = 0; k < DEPTH; k++)
            x[k * step] = all[k];
    }
    /* All numbers of row r, `step` apart. */
    void row(float *x, int step, unsigned r) const
    {
        if (type == PRODUCT_E4M3_E5M2)
            read<1>(x, step, r, [](const char *p) { return e5m2.x[*(const uint8_t *)p]; });
        else if (fp8)
            read<1>(x, step, r, [](const char *p) { return e4m3.x[*(const uint8_t *)p]; });
        else if (type == PRODUCT_F16)
            read<2>(x, step, r, [](const char *p) { return __half2float(*(const __half *)p); });
        else
            read<2>(x, step, r, [](const char *p) { return from_bf16(*(const uint16_t *)p); });
    }
};

/* Columns that are summed at once. */
typedef float eight __attribute__((vector_size(32), may_alias));

/* The columns of b that a lane has, which are those of every fourth lane of four warps. */
struct columns {
    unsigned run;
    product_job of;
    alignas(eight) float x[32][64];
};
/* Reads them once for the group, of some products that its threads have not all done. */
static const columns &columns_of(const product_job &j, int depth)
{
    enum { GROUPS = 16, PRODUCTS = 8 };
    static columns all[GROUPS][PRODUCTS][4];
    const block *b = now->block;
    int lane = now->lane, n = j.n / 2;
    columns &own = all[(b->rank * 8 + now->number / 128) % GROUPS][j.number % PRODUCTS][lane % 4];

    if (own.run == b->run && own.of.number == j.number && own.of.b == j.b && own.of.n == j.n &&
        own.of.tb == j.tb && own.of.type == j.type)
        return own;
    own.run = b->run, own.of = j;
    operand ob(now->block, j.b, j.tb, 2 * j.n, j.type);
    for (int c = 0; c < n; c++)
        ob.row(&own.x[0][c], 64, c / 2 * 8 + lane % 4 * 2 + c % 2);
    for (int c = n; c % 8; c++)
        for (int k = 0; k < depth; k++)
            own.x[k][c] = 0;
    return own;
}

/* Columns 8 q + 2 (lane % 4) + e of the warp's rows 8 h + lane / 4. */
static void run_product(const product_job &j)
{
    int lane = now->lane, warp = now->number % 128 / WARP, columns = j.n / 2,
        depth = j.type >= PRODUCT_E4M3 ? 32 : 16;
    float a[2][32];
    const struct columns &b = columns_of(j, depth);

    if (j.rows) {
        for (int h = 0; h < 2; h++)
            memcpy(a[h], j.row[h], sizeof j.row[h]);
    } else {
        operand oa(now->block, j.a, j.ta, 64,
                   j.type == PRODUCT_E4M3_E5M2 ? PRODUCT_E4M3
                                               : j.type); /* the name of both is b's */
        for (int h = 0; h < 2; h++)
            oa.row(a[h], 1, 16 * warp + 8 * h + lane / 4);
    }
    for (int h = 0; h < 2; h++)
        for (int c = 0; c < columns; c += 8) {
            eight sum = {};
            for (int k = 0; k < depth; k++)
                sum += a[h][k] * *(const eight *)&b.x[k][c];
            for (int i = 0; i < 8 && c + i < columns; i++) {
                float *d = &j.d[(c + i) / 2 * 4 + 2 * h + i % 2];
                *d = j.add ? *d + sum[i] : sum[i];
            }
        }
}

/* Registers 2 i + h of the four lanes of a row: columns 8 i .. 8 i + 7, of 8 bits 16 i .. 16 i + 15. */
static void take_rows(product_job &j, int i, const uint64_t *lanes)
{
    for (int c = 0; c < 8 && j.type == PRODUCT_BF16; c++)
        j.row[i % 2][i / 2 * 8 + c] = from_bf16((uint16_t)(lanes[c / 2] >> 16 * (c % 2)));
    for (int c = 0; c < 16 && j.type >= PRODUCT_E4M3; c++) {
        __nv_fp8_e5m2 wide;
        __nv_fp8_e4m3 fine;
        wide.__x = fine.__x = (__nv_fp8_storage_t)(lanes[c / 4] >> 8 * (c % 4));
        j.row[i % 2][i / 2 * 16 + c] = j.type == PRODUCT_E5M2_E4M3 ? (float)wide : (float)fine;
    }
}

void product(float *d, int n, const uint32_t *rows, uint64_t a, uint64_t b, bool add, bool ta,
             bool tb, product_type type)
{
    product_job j = { d, n, add, ta, tb, rows != NULL, type, now->issued++, a, b, {} };
    for (uint64_t descriptor : { a, b })
        if (descriptor && descriptor >> 62 != 1 && descriptor >> 62 != 2)
            fail("an operand without swizzle");
    for (int i = 0; rows && i < 4; i++)
        take_rows(j, i, warp_values("wgmma", ~0u, rows[i], 0) + now->lane / 4 * 4);
    now->products.push_back(j);
}

/* The last group: those of `all` that are in none yet. */
static void close_group(std::vector<size_t> &groups, size_t all)
{
    for (size_t g : groups)
        all -= g;
    groups.push_back(all);
}

void products_commit() { close_group(now->groups, now->products.size()); }

void products_wait(int left)
{
    while ((int)now->groups.size() > left) {
        size_t n = now->groups[0];
        for (size_t i = 0; i < n; i++)
            run_product(now->products[i]);
        now->products.erase(now->products.begin(), now->products.begin() + n);
        now->groups.erase(now->groups.begin());
    }
    warp_values("wgmma.wait_group", ~0u, 0, 0);
}

/* Lane l: rows l / 4 and l / 4 + 8 of a, columns 2 (l % 4) .. of the result. */
struct warp_operands {
    uint32_t a[4], b[2];
};

/* c = a b: bf16 (16, 16) and (16, 8), each number once; a sum in the order of k. */
static void multiply(float c[16][8], const uint64_t *lanes)
{
    float a[16][16];
    alignas(eight) float b[16][8];

    for (int lane = 0; lane < WARP; lane++) {
        const warp_operands &x = *(const warp_operands *)lanes[lane];
        int row = lane / 4, k = lane % 4 * 2;
        for (int i = 0; i < 4; i++)
            for (int e = 0; e < 2; e++)
                a[row + i % 2 * 8][k + i / 2 * 8 + e] = from_bf16((uint16_t)(x.a[i] >> 16 * e));
        for (int i = 0; i < 2; i++)
            for (int e = 0; e < 2; e++)
                b[k + i * 8 + e][row] = from_bf16((uint16_t)(x.b[i] >> 16 * e));
    }
    for (int row = 0; row < 16; row++) {
        eight sum = {};
        for (int k = 0; k < 16; k++)
            sum += a[row][k] * *(const eight *)b[k];
        memcpy(c[row], &sum, sizeof sum);
    }
}

/* The first lane that goes on multiplies for all, while their operands are there. */
void warp_product(float *const d[4], const uint32_t a[4], const uint32_t b[2])
{
    const warp_operands mine = { { a[0], a[1], a[2], a[3] }, { b[0], b[1] } };
    const uint64_t *lanes = warp_values("mma", ~0u, (uint64_t)&mine, 0);
    warp *w = now->warp;
    int row = now->lane / 4, column = now->lane % 4 * 2;

    if (w->product_round != w->round) {
        multiply(w->product, lanes);
        w->product_round = w->round;
    }
    for (int i = 0; i < 4; i++)
        *d[i] += w->product[row + i / 2 * 8][column + i % 2];
}

/* -- copies of a thread ---------------------------------------------------------------------- */

static void do_copy(const thread_copy &c)
{
    void *to = shared_pointer(c.to, 16);
    if (c.from)
        memcpy(to, c.from, 16);
    else
        memset(to, 0, 16);
}

/* At once or as late as can be: both must be right. */
void copy_16(uint32_t to, const void *from)
{
    if ((uintptr_t)from % 16)
        fail("a copy of 16 bytes from %p", from);
    if (random_below(2))
        do_copy({ to, from });
    else
        now->copies.push_back({ to, from });
}

void copies_commit() { close_group(now->copy_groups, now->copies.size()); }

void copies_wait(int left)
{
    while ((int)now->copy_groups.size() > left) {
        size_t n = now->copy_groups[0];
        for (size_t i = 0; i < n; i++)
            do_copy(now->copies[i]);
        now->copies.erase(now->copies.begin(), now->copies.begin() + n);
        now->copy_groups.erase(now->copy_groups.begin());
    }
}

} /* namespace emu */
