#include "coeffs/sets.h"

#include <string.h>
#include <unistd.h>
#include "base/suggest.h"

#define JORDAN \
    { \
        3.4445, -4.7750, 2.0315 \
    }
#define NEWTON \
    { \
        2, -1.5, 0.5 \
    }
#define HALLEY \
    { \
        1.875, -1.25, 0.375 \
    }
#define YOU_2_TO_5 \
    { 3.9505, -6.3029, 2.6377 }, { 3.7418, -5.5913, 2.3037 }, { 2.8769, -3.1427, 1.2046 }, \
    { \
        2.8366, -3.0525, 1.2012 \
    }

static const struct coeffs_set sets[] = {
    { "record-61",
      "Polar Express, 5 rows, lower 1e-3, safety 0.02, cushion 0.02",
      "modded-nanogpt pull requests 134 and 200; records 61 and 74",
      INPUT_NORM,
      5,
      { { 8.156554524902461, -22.48329292557795, 15.878769915207462 },
        { 4.042929935166739, -2.808917465908714, 0.5000178451051316 },
        { 3.8916678022926607, -2.772484153217685, 0.5060648178503393 },
        { 3.285753657755655, -2.3681294933425376, 0.46449024233003106 },
        { 2.3465413258596377, -1.7097828382687081, 0.42323551169305323 } } },
    { "paper",
      "Polar Express, 8 rows, lower 1e-3, no safety, cushion 0.02407327424182761",
      "arXiv 2505.16932, table in the listing, before its division by powers of 1.01",
      INPUT_NORM,
      8,
      { { 8.28721201814563, -23.595886519098837, 17.300387312530933 },
        { 4.107059111542203, -2.9478499167379106, 0.5448431082926601 },
        { 3.9486908534822946, -2.908902115962949, 0.5518191394370137 },
        { 3.3184196573706015, -2.488488024314874, 0.51004894012372 },
        { 2.300652019954817, -1.6689039845747493, 0.4188073119525673 },
        { 1.891301407787398, -1.2679958271945868, 0.37680408948524835 },
        { 1.8750014808534479, -1.2500016453999487, 0.3750001645474248 },
        { 1.875, -1.25, 0.375 } } },
    { "jordan",
      "one row five times; converges to 0.7..1.2, not to 1",
      "K. Jordan, Muon (2024), modded-nanogpt",
      INPUT_NORM,
      5,
      { JORDAN, JORDAN, JORDAN, JORDAN, JORDAN } },
    { "you",
      "five rows, optimised numerically",
      "Y. Jiacheng, modded-nanogpt",
      INPUT_NORM,
      5,
      { { 4.0848, -6.8946, 2.9270 }, YOU_2_TO_5 } },
    { "cans",
      "five rows, Chebyshev-optimised Newton-Schulz",
      "CANS, arXiv 2506.10935",
      INPUT_NORM,
      5,
      { { 8.4703, -25.1081, 18.6293 },
        { 4.1828, -3.1087, 0.5806 },
        { 3.9619, -2.9541, 0.5630 },
        { 3.2866, -2.4647, 0.5074 },
        { 2.2737, -1.6447, 0.4162 } } },
    { "cubic",
      "five rows of degree 3, into 0.7..1.3 from 7e-3",
      "arXiv 2606.00371",
      INPUT_NORM,
      5,
      { { 3.3656576, -3.3420992, 0 },
        { 2.5744352, -1.4957376, 0 },
        { 2.5368962, -1.4312570, 0 },
        { 2.4418906, -1.2764040, 0 },
        { 2.2230472, -0.9630650, 0 } } },
    { "deepseek-v4",
      "Jordan's row eight times, then (2, -1.5, 0.5) twice",
      "DeepSeek-V4",
      INPUT_NORM,
      10,
      { JORDAN,
        JORDAN,
        JORDAN,
        JORDAN,
        JORDAN,
        JORDAN,
        JORDAN,
        JORDAN,
        { 2, -1.5, 0.5 },
        { 2, -1.5, 0.5 } } },
    { "cubic12",
      "(2, -1.5, 0.5) twelve times",
      "modded-nanogpt, track 3",
      INPUT_NORM,
      12,
      { NEWTON, NEWTON, NEWTON, NEWTON, NEWTON, NEWTON, NEWTON, NEWTON, NEWTON, NEWTON, NEWTON,
        NEWTON } },
    { "long12",
      "Polar Express, seven rows of four digits, then (1.875, -1.25, 0.375) five times",
      "modded-nanogpt, track 3, result 23 (Muown)",
      INPUT_NORM,
      12,
      { { 8.2051, -22.9019, 16.4607 },
        { 4.0664, -2.8612, 0.5184 },
        { 3.9096, -2.8234, 0.5250 },
        { 3.2856, -2.4153, 0.4853 },
        { 2.2779, -1.6198, 0.3985 },
        { 1.8726, -1.2307, 0.3585 },
        { 1.8564, -1.2132, 0.3568 },
        HALLEY,
        HALLEY,
        HALLEY,
        HALLEY,
        HALLEY } },
    { "aol-2025",
      "four rows after AOL, of September 2025",
      "T. Boissin, flash-newton-schulz",
      INPUT_AOL,
      4,
      { { 4.6051, -9.6552, 5.6769 },
        { 4.7505, -6.0861, 2.1790 },
        { 2.7763, -2.3190, 0.5523 },
        { 2.4231, -2.2861, 0.8193 } } },
    { "aol-nvidia",
      "four rows after AOL",
      "NVIDIA Emerging-Optimizers, from flash-newton-schulz",
      INPUT_AOL,
      4,
      { { 4.0098, -7.0585, 2.4635 },
        { 3.4585, -5.5479, 2.5959 },
        { 2.7573, -3.2939, 1.4254 },
        { 2.7215, -3.0494, 1.3169 } } },
    { "turbo-muon",
      "four rows after AOL: you without its first",
      "arXiv 2512.04632, modded-nanogpt pull request 155",
      INPUT_AOL,
      4,
      { YOU_2_TO_5 } },
};

int coeffs_set_count(void) { return (int)(sizeof sets / sizeof sets[0]); }

const struct coeffs_set *coeffs_set_at(int i) { return &sets[i]; }

const struct coeffs_set *coeffs_set_find(const char *name)
{
    for (int i = 0; i < coeffs_set_count(); i++)
        if (!strcmp(sets[i].name, name))
            return &sets[i];
    return NULL;
}

static struct suggest nearest(const char *name)
{
    struct suggest s = suggest_for(name);
    for (int i = 0; i < coeffs_set_count(); i++)
        suggest_try(&s, sets[i].name);
    return s;
}

int coeffs_set_get(struct coeffs *c, const char *name)
{
    const struct coeffs_set *s = coeffs_set_find(name);
    struct suggest near = nearest(name);
    if (!s)
        return err_set(GPT_USAGE, "no set '%s' (ns-coeffs list shows them)%s", name,
                       suggest_text(&near));
    memset(c, 0, sizeof *c);
    snprintf(c->name, sizeof c->name, "%s", name);
    c->n = s->n;
    c->terms = 3;
    c->input = s->input;
    for (int i = 0; i < s->n; i++)
        memcpy(c->row[i], s->row[i], sizeof s->row[i]);
    return 0;
}

int coeffs_set_or_file(struct coeffs *c, const char *name)
{
    if (coeffs_set_find(name))
        return coeffs_set_get(c, name);
    struct suggest near = nearest(name);
    if (strcmp(name, "-") && !strpbrk(name, "./") && access(name, F_OK))
        return err_set(GPT_USAGE,
                       "'%s': no such set (ns-coeffs list shows them) and no such file%s", name,
                       suggest_text(&near));
    return coeffs_read(c, name);
}
