#include "inspect/name_map.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include "base/grow.h"

/* Banks that hold a row, or some matrices, of each layer: which field of a layer is its index. */
static const struct bank_names {
    const char *label;
    size_t index; /* offset of an int in struct layer_spec */
    int parts;
    const char *part[4];
} banks[] = {
    { "attn", offsetof(struct layer_spec, bank), 4, { "attn.q", "attn.k", "attn.v", "attn.o" } },
    { "qk_bank", offsetof(struct layer_spec, bank), 2, { "attn.q", "attn.k" } },
    { "vo_bank", offsetof(struct layer_spec, bank), 2, { "attn.v", "attn.o" } },
    { "q_bank", offsetof(struct layer_spec, bank), 1, { "attn.q" } },
    { "k_bank", offsetof(struct layer_spec, bank), 1, { "attn.k" } },
    { "v_bank", offsetof(struct layer_spec, bank), 1, { "attn.v" } },
    { "o_bank", offsetof(struct layer_spec, bank), 1, { "attn.o" } },
    { "mlp", offsetof(struct layer_spec, mlp), 2, { "mlp.fc", "mlp.proj" } },
    { "up_bank", offsetof(struct layer_spec, mlp), 1, { "mlp.fc" } },
    { "down_bank", offsetof(struct layer_spec, mlp), 1, { "mlp.proj" } },
    { "attn_gate_bank", offsetof(struct layer_spec, out_gate), 1, { "attn_gate" } },
    { "ve_gate_bank", offsetof(struct layer_spec, value_gate), 1, { "ve_gate" } },
};

static struct part_name *add(struct name_map *m)
{
    if (grow_one(&m->v, m->n, sizeof *m->v))
        return NULL;
    memset(&m->v[m->n], 0, sizeof *m->v);
    return &m->v[m->n++];
}

/* The layer whose index in this bank is `row`, or -1. */
static int layer_at(const struct recipe *r, const struct bank_names *b, int row)
{
    for (int i = 0; i < r->n_layers; i++) {
        int index;
        memcpy(&index, (const char *)&r->layers[i] + b->index, sizeof index);
        if (index == row)
            return i;
    }
    return -1;
}

/* The layer whose attention has this matrix of the MLP bank, or -1. */
static int spare_at(const struct recipe *r, int matrix)
{
    for (int i = 0; i < r->n_layers; i++)
        if (r->layers[i].spare == matrix)
            return i;
    return -1;
}

static void name_part(struct part_name *p, int layer, const char *part, int piece)
{
    int n = snprintf(p->name, sizeof p->name, "layers.%d.%s", layer, part);
    if (piece >= 0 && n < (int)sizeof p->name)
        snprintf(p->name + n, sizeof p->name - (size_t)n, ".%d", piece);
}

/* Returns how many of the bank's matrices part k of a layer is: Q and K may be several each, of some heads. */
static int64_t pieces_of(const struct recipe *r, const struct param_spec *s,
                         const struct bank_names *b, int layer, int k)
{
    bool qk = !strcmp(b->part[k], "attn.q") || !strcmp(b->part[k], "attn.k");
    int64_t rows = !qk         ? r->model.width
                   : layer < 0 ? (int64_t)r->model.heads * r->model.qk_dim
                               : recipe_qk_rows(r, layer);
    bool cut = b->index == offsetof(struct layer_spec, bank) && s->rows < rows;
    return cut && rows % s->rows == 0 ? rows / s->rows : 1;
}

static int name_matrix(const struct recipe *r, const struct param_spec *s, int layer, int64_t u,
                       const char *part, int piece, struct name_map *m)
{
    struct part_name *p = add(m);
    if (!p)
        return GPT_SYSTEM;
    if (layer < 0 && !strcmp(s->label, "mlp") && (layer = spare_at(r, (int)u)) >= 0)
        part = "attn.qkvo";
    snprintf(p->param, sizeof p->param, "%s", s->label);
    p->unit = (uint64_t)u;
    p->units = 1;
    p->padding = layer < 0;
    if (layer < 0)
        snprintf(p->name, sizeof p->name, "%s.padding.%d", s->label, (int)u);
    else
        name_part(p, layer, part, piece);
    return 0;
}

static int name_bank(const struct recipe *r, const struct param_spec *s, const struct bank_names *b,
                     struct name_map *m)
{
    int64_t u = 0;
    int rc = 0;
    for (int at = 0; u < s->matrices; at++)
        for (int k = 0; k < b->parts; k++)
            u += pieces_of(r, s, b, layer_at(r, b, at), k);
    if (u != s->matrices)
        return 0;
    u = 0;
    for (int at = 0; u < s->matrices; at++) {
        int layer = layer_at(r, b, at);
        for (int k = 0; k < b->parts; k++) {
            int n = (int)pieces_of(r, s, b, layer, k);
            for (int piece = 0; piece < n && !rc; piece++)
                rc = name_matrix(r, s, layer, u + piece, b->part[k], n > 1 ? piece : -1, m);
            u += n;
        }
    }
    return rc;
}

static int name_scalar(const struct recipe *r, const struct scalar_spec *s, int layer,
                       struct name_map *m)
{
    const struct param_spec *spec = &r->params[s->param];
    int64_t i = s->first + (layer < 0 ? 0 : (int64_t)s->stride * layer);
    int64_t unit = spec->cols * (spec->matrices > 1 ? spec->rows : 1);
    struct part_name *p;
    if (i >= spec->matrices * spec->rows * spec->cols)
        return 0;
    if (!(p = add(m)))
        return GPT_SYSTEM;
    snprintf(p->param, sizeof p->param, "%s", spec->label);
    p->unit = (uint64_t)(i / unit);
    p->units = 1;
    p->inner = (uint64_t)(i % unit);
    p->elements = 1;
    if (layer < 0)
        snprintf(p->name, sizeof p->name, "%s", s->name);
    else
        snprintf(p->name, sizeof p->name, "layers.%d.%s", layer, s->name);
    return 0;
}

int name_map_make(struct name_map *map, const struct recipe *r)
{
    int rc = 0;
    *map = (struct name_map){ NULL, 0 };
    for (int i = 0; !rc && i < r->n_params; i++)
        for (size_t k = 0; !rc && k < sizeof banks / sizeof banks[0]; k++)
            if (!strcmp(r->params[i].label, banks[k].label))
                rc = name_bank(r, &r->params[i], &banks[k], map);
    for (int i = 0; !rc && i < r->n_scalars; i++)
        for (int layer = 0; !rc && layer < (r->scalars[i].stride ? r->n_layers : 1); layer++)
            rc = name_scalar(r, &r->scalars[i], r->scalars[i].stride ? layer : -1, map);
    if (rc)
        name_map_release(map);
    return rc;
}

void name_map_release(struct name_map *map)
{
    free(map->v);
    *map = (struct name_map){ NULL, 0 };
}
