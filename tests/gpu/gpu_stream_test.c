/* gpu_stream_test.c - the mixes of the residual stream on a GPU against the plain C ops, on fresh
 * random inputs; ragged shapes and the records' width.
 *
 * Outputs hold NaN before. Tolerances in gpu_both.h. Exit 77 without a GPU.
 */
#include "gpu_both.h"

/* A letter a term: c with a coefficient, s with one whose gradient goes where that of other s goes,
 * m minus it, 1 without. */
static void test_mix(int tokens, int width, const char *terms, bool norm, bool dy12, bool dout,
                     bool in_place, bool add)
{
    int n = (int)strlen(terms);
    struct both x[MIX_MAX], coef[MIX_MAX], dx[MIX_MAX], dcoef[MIX_MAX];
    struct both out = blank(tokens, width), y = norm ? blank(tokens, width) : none;
    struct both saved = drawn(tokens, width, 2), g = dout ? drawn(tokens, width, 1) : none;
    struct both dy = norm ? drawn(tokens, width, 1) : none;
    struct both d12 = dy12 ? drawn(tokens, GATE_WIDTH, 1) : none, one = number(0.75);

    snprintf(label, sizeof label,
             "mix_norm T=%d D=%d %s norm=%d dy12=%d dout=%d in_place=%d "
             "add=%d",
             tokens, width, terms, norm, dy12, dout, in_place, add);
    for (int k = 0; k < n; k++) {
        x[k] = drawn(tokens, width, 1);
        coef[k] = terms[k] == '1' ? none : number(0.5 + k);
        dcoef[k] = terms[k] == '1' ? none : terms[k] == 's' ? one : number(0.25);
        dx[k] = k == 0 && in_place ? g : drawn(tokens, width, 1);
    }
    ON_BOTH
    {
        struct mix_term in[MIX_MAX];
        struct mix_grad d[MIX_MAX];
        for (int k = 0; k < n; k++) {
            in[k] = (struct mix_term){ .x = ON(x[k], o),
                                       .coef = REAL(coef[k], o),
                                       .minus = terms[k] == 'm' };
            d[k] =
                (struct mix_grad){ ON(dx[k], o), add && !(k == 0 && in_place), REAL(dcoef[k], o) };
        }
        o->mix_norm(o, ON(out, o), ON(y, o), n, in);
        o->mix_norm_bwd(o, d, ON(g, o), ON(dy, o), ON(d12, o), ON(saved, o), n, in);
    }
    same_bf16("out", out);
    if (norm)
        same_bf16("y", y);
    for (int k = 0; k < n; k++) {
        same_bf16("dx", dx[k]);
        if (terms[k] != '1')
            same("dcoef", dcoef[k], f32_tolerance,
                 sqrt((terms[k] == 's' ? n : 1.0) * tokens * width));
    }
}

/* Codes beside the norm of n terms are those of the norm as it is stored; it has the bits that it has without
 * them. n above 4: another kernel. */
static void test_norm_codes(int tokens, int width, int n)
{
    struct both x[MIX_MAX], out = blank(tokens, width), y = blank(tokens, width);
    struct both plain = blank(tokens, width), y8 = blank_as(DT_E4M3, DT_E4M3, tokens, width);
    const float scale = 2.0f / 448;
    int64_t off = 0, other = 0;

    snprintf(label, sizeof label, "norm_codes T=%d D=%d n=%d", tokens, width, n);
    for (int k = 0; k < n; k++)
        x[k] = drawn(tokens, width, 1);
    ON_BOTH
    {
        struct mix_term in[MIX_MAX];
        for (int k = 0; k < n; k++)
            in[k] = (struct mix_term){ .x = ON(x[k], o) };
        o->mix_norm(o, ON(out, o), ON(plain, o), n, in);
        o->mix_norm_codes(o, ON(out, o), ON(y, o), ON(y8, o), scale, n, in);
    }
    same_bf16("y", y);
    struct tensor codes = fetched(y8.g), has = fetched(y.g), had = fetched(plain.g);
    for (int64_t i = 0; i < (int64_t)tokens * width; i++) {
        off += ((uint8_t *)codes.data)[i] != e4m3_from_f32((float)get(has, i) / scale);
        other += get(has, i) != get(had, i);
    }
    check_that(!off && !other, __FILE__, __LINE__, "%s: %lld codes, %lld numbers differ", label,
               (long long)off, (long long)other);
    free(codes.data), free(has.data), free(had.data);
}

/* A letter a term: c with a coefficient, p with 1 more, t with one a token, m with minus one a token; and
 * its channels: a all, l and r the lower and the upper half of an x of D, n the lower half of an x of
 * D / 2. Of equal x ("tl", then "tr") the gradients are in one memory. */
static void test_mix_any(int tokens, int width, const char *terms, bool norm, bool dy12, bool add)
{
    int n = (int)strlen(terms) / 2, half = width / 2;
    struct both x[MIX_MAX], coef[MIX_MAX], dx[MIX_MAX], dcoef[MIX_MAX];
    struct both all = draw(blank_as(DT_F32, DT_F32, tokens, MIX_MAX), 1);
    struct both of_all = blank_as(DT_F32, DT_F32, tokens, MIX_MAX);
    struct both out = blank(tokens, width), y = norm ? blank(tokens, width) : none;
    struct both saved = drawn(tokens, width, 2), g = drawn(tokens, width, 1);
    struct both dy = norm ? drawn(tokens, width, 1) : none;
    struct both d12 = dy12 ? drawn(tokens, GATE_WIDTH, 1) : none;

    snprintf(label, sizeof label, "mix_any T=%d D=%d %s norm=%d dy12=%d add=%d", tokens, width,
             terms, norm, dy12, add);
    draw(of_all, 1); /* what no term writes stays */
    for (int k = 0; k < n; k++) {
        char part = terms[2 * k + 1];
        bool again = part == 'r' && terms[2 * k - 1] == 'l';
        x[k] = again ? x[k - 1] : drawn(tokens, part == 'n' ? half : width, 1);
        dx[k] = again ? dx[k - 1] : drawn(tokens, part == 'n' ? half : width, 1);
        coef[k] = number(0.5 + k), dcoef[k] = number(0.25);
    }
    ON_BOTH
    {
        struct mix_term in[MIX_MAX] = { 0 };
        struct mix_grad d[MIX_MAX];
        for (int k = 0; k < n; k++) {
            char kind = terms[2 * k], part = terms[2 * k + 1];
            bool token = kind == 't' || kind == 'm';
            in[k] = (struct mix_term){ .x = ON(x[k], o),
                                       .coef = token ? REAL(all, o) + k : REAL(coef[k], o),
                                       .stride = token ? MIX_MAX : 0,
                                       .minus = kind == 'm',
                                       .plus_one = kind == 'p',
                                       .first = part == 'r' ? half : 0,
                                       .n = part == 'a' ? 0 : half };
            d[k] = (struct mix_grad){ ON(dx[k], o), add,
                                      token ? REAL(of_all, o) + k : REAL(dcoef[k], o) };
        }
        o->mix_norm(o, ON(out, o), ON(y, o), n, in);
        o->mix_norm_bwd(o, d, ON(g, o), ON(dy, o), ON(d12, o), ON(saved, o), n, in);
    }
    same_bf16("out", out);
    if (norm)
        same_bf16("y", y);
    same("of tokens", of_all, f32_tolerance, sqrt((double)tokens * MIX_MAX * width));
    for (int k = 0; k < n; k++) {
        same_bf16("dx", dx[k]);
        same("dcoef", dcoef[k], f32_tolerance, sqrt((double)tokens * width));
    }
}

/* Terms: a, b are in lane 0, 1 alone, c in both; capitals without a coefficient. The first dx is in
 * the memory of lane 0's dout; `shared`: all dcoef are one number. */
static void test_lanes(int tokens, int width, const char *terms, int normed, bool norm, bool dy12,
                       bool shared)
{
    int n = (int)strlen(terms);
    struct both x[LANES_MAX], dx[LANES_MAX], coef[LANES_MAX][2], dcoef[LANES_MAX][2];
    struct both out[2] = { blank(tokens, width), blank(tokens, width) };
    struct both dout[2] = { drawn(tokens, width, 1), drawn(tokens, width, 1) };
    struct both saved = drawn(tokens, width, 2), one = number(0.5);
    struct both y = norm ? blank(tokens, width) : none, dy = norm ? drawn(tokens, width, 1) : none;
    struct both d12 = dy12 ? drawn(tokens, GATE_WIDTH, 1) : none;

    snprintf(label, sizeof label, "lanes T=%d D=%d %s normed=%d norm=%d dy12=%d shared=%d", tokens,
             width, terms, normed, norm, dy12, shared);
    for (int k = 0; k < n; k++) {
        x[k] = drawn(tokens, width, 1);
        dx[k] = k ? blank(tokens, width) : dout[0];
        for (int j = 0; j < 2; j++) {
            coef[k][j] = terms[k] < 'a' ? none : number(0.5 + k - 1.2 * j);
            dcoef[k][j] = terms[k] < 'a' ? none : shared ? one : number(0.25);
        }
    }
    ON_BOTH
    {
        struct lanes_term in[LANES_MAX];
        struct lanes_grad d[LANES_MAX];
        struct tensor to[2] = { ON(out[0], o), ON(out[1], o) };
        struct tensor from[2] = { ON(dout[0], o), ON(dout[1], o) };
        for (int k = 0; k < n; k++) {
            unsigned lanes = terms[k] % 32; /* a 1, b 2, c 3 */
            in[k] = (struct lanes_term){ .x = ON(x[k], o), .lanes = lanes };
            d[k] = (struct lanes_grad){ .dx = ON(dx[k], o) };
            for (int j = 0; j < 2; j++)
                if (lanes >> j & 1)
                    in[k].coef[j] = REAL(coef[k][j], o), d[k].dcoef[j] = REAL(dcoef[k][j], o);
        }
        o->lanes_mix(o, to, ON(y, o), normed, n, in);
        o->lanes_mix_bwd(o, d, from, ON(dy, o), ON(d12, o), ON(saved, o), normed, n, in);
    }
    same_bf16("out 0", out[0]);
    same_bf16("out 1", out[1]);
    if (norm)
        same_bf16("y", y);
    for (int k = 0; k < n; k++) {
        same_bf16("dx", dx[k]);
        for (int j = 0; j < 2 && terms[k] >= 'a'; j++)
            same("dcoef", dcoef[k][j], f32_tolerance, sqrt(2.0 * n * tokens * width));
    }
}

/* The last place of the second stream is not one of its own; `shared`: all dcoef are one number; the first
 * stream has `less` channels less. */
static void test_inject(int tokens, int width, int n, int m, bool add, bool shared, int less)
{
    struct both one = number(0.5);
    struct both g[INJECT_MAX], x[INJECT_STREAMS], dx[INJECT_STREAMS];
    struct both coef[INJECT_STREAMS][INJECT_MAX], dcoef[INJECT_STREAMS][INJECT_MAX];

    snprintf(label, sizeof label, "inject T=%d D=%d n=%d m=%d add=%d shared=%d less=%d", tokens,
             width, n, m, add, shared, less);
    for (int i = 0; i < n; i++)
        g[i] = drawn(tokens, width, 1);
    for (int k = 0; k < m; k++) {
        int own = width - (k == 0 ? less : 0);
        x[k] = drawn(tokens, own, 1), dx[k] = drawn(tokens, own, 1);
        for (int i = 0; i < n; i++)
            coef[k][i] = number(0.5 - 0.3 * i + k), dcoef[k][i] = shared ? one : number(0.25 * i);
    }
    ON_BOTH
    {
        struct injection in[INJECT_STREAMS] = { { .add = add }, { .add = add } };
        struct tensor t[INJECT_MAX];
        for (int i = 0; i < n; i++)
            t[i] = ON(g[i], o);
        for (int k = 0; k < m; k++) {
            in[k].x = ON(x[k], o), in[k].dx = ON(dx[k], o);
            for (int i = 0; i < n - k; i++)
                in[k].coef[i] = REAL(coef[k][i], o), in[k].dcoef[i] = REAL(dcoef[k][i], o);
        }
        o->inject_bwd(o, n, t, m, in);
    }
    for (int k = 0; k < m; k++) {
        same_bf16("dx", dx[k]);
        for (int i = 0; i < n; i++)
            same("dcoef", dcoef[k][i], f32_tolerance,
                 sqrt((shared ? n * m : 1.0) * tokens * width));
    }
}

/* Norm of what is there: out stays. */
static void test_norm_only(int tokens, int width)
{
    struct both x = drawn(tokens, width, 3), y = blank(tokens, width);

    snprintf(label, sizeof label, "norm T=%d D=%d", tokens, width);
    ON_BOTH
    {
        struct mix_term in = { .x = ON(x, o) };
        o->mix_norm(o, ON(x, o), ON(y, o), 1, &in);
    }
    same("x", x, 0, 0);
    same_bf16("y", y);
}

static void test_skip(int tokens, int width, bool numbers)
{
    struct both of = draw(blank_as(DT_F32, DT_F32, tokens, 3), 1);
    struct both dof = draw(blank_as(DT_F32, DT_F32, tokens, 3), 1);
    struct both x = drawn(tokens, width, 1), skip = drawn(tokens, width, 1);
    struct both x0 = drawn(tokens, width, 1), gate = weight(1, GATE_WIDTH, 0.5);
    struct both lambda = number(-1.5), out = blank(tokens, width);
    struct both dskip = blank(tokens, width), dx0 = drawn(tokens, width, 1);
    struct both dgate = weight(1, GATE_WIDTH, 1), dlambda = number(0.1);
    struct both dout = drawn(tokens, width, 1);

    snprintf(label, sizeof label, "skip_gate T=%d D=%d numbers=%d", tokens, width, numbers);
    ON_BOTH
    {
        struct token_numbers n = { REAL(of, o) + 1, REAL(dof, o) + 1, 3 };
        o->skip_gate(o, ON(out, o), ON(x, o), ON(skip, o), ON(x0, o), ON(gate, o), REAL(lambda, o),
                     numbers ? &n : NULL);
        o->skip_gate_bwd(o, ON(dskip, o), ON(dx0, o), ON(dgate, o), REAL(dlambda, o), ON(dout, o),
                         ON(skip, o), ON(x0, o), ON(gate, o), REAL(lambda, o), numbers ? &n : NULL);
    }
    same("numbers", dof, f32_tolerance, sqrt((double)tokens * width));
    same_bf16("out", out);
    same_bf16("dskip", dskip);
    same_bf16("dx0", dx0);
    same_bf16("dgate", dgate);
    same("dlambda", dlambda, f32_tolerance, 0.1 * sqrt((double)tokens * width));
}

static void test_small(void)
{
    fresh();
    if (check_of("mix_norm")) {
        test_mix(1, 16, "c", true, false, true, false, false);
        test_mix(5, 24, "11", true, false, true, true, false);
        test_mix(7, 40, "cc", true, true, true, false, true);
        test_mix(13, 264, "1m", true, false, false, false, false);
        test_mix(3, 520, "cmc1", true, true, false, false, true);
        test_mix(17, 264, "c1cc", true, false, true, true, true);
        test_mix(6, 1288, "ccc", true, false, true, false, true);
        test_mix(21, 264, "scs1", true, true, true, false, true);
        test_mix(11, 1000, "c1", false, false, true, true, false);
        test_mix(200, 1544, "1", true, true, true, true, false);
        test_norm_codes(1, 8, 1);
        test_norm_codes(37, 264, 2);
        test_norm_codes(21, 1544, 4);
        test_norm_codes(13, 520, 5);
        test_norm_only(77, 136);
    }
    if (check_of("lanes")) {
        test_lanes(1, 8, "c", 0, true, false, false);
        test_lanes(5, 40, "abc", 0, true, true, false);
        test_lanes(33, 264, "abc", 1, false, false, true);
        test_lanes(7, 520, "ccaa", 1, true, false, true);
        test_lanes(300, 1032, "Abcaa", 1, true, true, false);
    }
    if (check_of("inject")) {
        test_inject(1, 8, 1, 1, false, false, 0);
        test_inject(13, 24, 2, 2, true, false, 0);
        test_inject(301, 264, 12, 2, false, false, 0);
        test_inject(50, 1032, 7, 1, true, false, 0);
        test_inject(60, 264, 11, 2, true, true, 0);
        test_inject(37, 264, 5, 1, true, false, 72);
        test_inject(9, 40, 12, 2, false, false, 24);
    }
    if (check_of("mix_norm")) {
        test_mix_any(1, 16, "ta", true, false, false);
        test_mix_any(13, 48, "cacn", false, false, true);
        test_mix_any(33, 272, "patamaca", false, true, false);
        test_mix_any(40, 528, "tatatatatacn", true, true, true);
        test_mix_any(70, 1040, "catatatatltrpncl", true, false, true);
    }
    if (check_of("skip_gate")) {
        test_skip(1, 16, false);
        test_skip(13, 264, false);
        test_skip(11, 264, true);
    }
}

static void test_real(void)
{
    fresh();
    if (check_of("mix_norm")) {
        test_mix(2048, 768, "cc", true, true, true, true, true);
        test_mix(2048, 768, "1", true, false, true, true, false);
        test_mix(2048, 768, "c1cc", true, true, true, true, true);
        test_mix(2048, 768, "cccc", false, false, true, true, true);
        test_mix(2048, 768, "11m", true, false, false, false, false);
        test_mix(2048, 768, "1m", true, false, false, false, false);
        test_norm_codes(2048, 768, 2);
    }
    if (check_of("lanes")) {
        test_lanes(2048, 768, "abcaa", 1, true, false, false);
        test_lanes(2048, 768, "abc", 0, true, true, true);
    }
    if (check_of("inject")) {
        test_inject(2048, 768, 10, 2, true, true, 0);
        test_inject(2048, 768, 11, 1, true, false, 576);
    }
    if (check_of("mix_norm")) {
        test_mix_any(2048, 768, "tatatatatata", true, false, false);
        test_mix_any(2048, 768, "catatatatltr", false, false, true);
    }
    if (check_of("skip_gate"))
        test_skip(2048, 768, false), test_skip(2048, 768, true);
}

/* gpu_stream_test [SEED [small]]: that seed again; the small shapes only. */
int main(int argc, char **argv)
{
    if (!both_begin(argc, argv))
        return check_skip("gpu");
    test_small();
    if (argc < 3)
        test_real();
    return both_end();
}
