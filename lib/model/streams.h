/* streams.h - the residual stream of a recipe as lists, made once.
 *
 * A mix is a weighted sum of streams with its norm (op_list.h: mix_norm, lanes_mix): an output and
 * terms, each with what it reads, its coefficient, and where its gradient goes. Six places of a
 * layer or of the model have steps, in the order in which forward and backward take them: mixes,
 * and what stands between mixes.
 *
 *     struct streams s;
 *     streams_make(&s, r);
 *     struct step_list l = streams_at(&s, STREAM_BACKWARD, STREAM_LEAVE, i);   // stream.c runs it
 *     streams_text(&s, print, NULL);                             // gpt-train --plan prints this
 *
 * References are symbolic: a buffer of model.h and its layer. So a list needs no memory and no
 * device, and the plan of memory asks it what is used. Which keys of a recipe mean which terms is
 * in streams.c alone.
 * Threads: read-only once made.
 */
#ifndef MODEL_STREAMS_H
#define MODEL_STREAMS_H

#include "ops/ops.h"
#include "recipe/recipe.h"

/* Buffers that terms read, mixes write and gradients go to: OF_LAYER(member of struct layer_acts),
 * OF_MODEL(member of struct acts). */
#define STREAM_BUFFERS(OF_LAYER, OF_MODEL) \
    OF_LAYER(in) \
    OF_LAYER(in1) \
    OF_LAYER(rows) \
    OF_LAYER(mixed) \
    OF_LAYER(y) \
    OF_LAYER(v) \
    OF_LAYER(o) \
    OF_LAYER(attended) \
    OF_LAYER(attended1) \
    OF_LAYER(y2) \
    OF_LAYER(m) \
    OF_LAYER(g) \
    OF_LAYER(dv) \
    OF_LAYER(drows) \
    OF_LAYER(din) \
    OF_MODEL(x0) \
    OF_MODEL(bigram) \
    OF_MODEL(z) \
    OF_MODEL(head) \
    OF_MODEL(dx) \
    OF_MODEL(dx1) \
    OF_MODEL(dbranch) \
    OF_MODEL(dx0) \
    OF_MODEL(dbigram) \
    OF_MODEL(dskip)

enum buffer {
    BUFFER_NONE,
#define ONE_BUFFER(name) BUFFER_##name,
    STREAM_BUFFERS(ONE_BUFFER, ONE_BUFFER)
#undef ONE_BUFFER
        N_BUFFERS,
    FIRST_OF_MODEL = BUFFER_x0
};
struct ref {
    uint8_t buffer, layer; /* layer 0: of the model */
};

enum scalar_role {
#define SCALAR_ROLE(name, count, ...) ROLE_##name,
#include "recipe/role_list.h"
    N_SCALAR_ROLES
};

/* The number that a term is multiplied by: 1; 1/2; a learnable number of [scalars]; or a number a token, of
 * [token_coefs]. */
struct coef {
    enum { COEF_ONE, COEF_HALF, COEF_SCALAR, COEF_TOKEN } kind;
    uint8_t role; /* COEF_SCALAR: enum scalar_role */
    uint8_t of; /* the layer; COEF_TOKEN: the row of [token_coefs] */
    uint8_t part; /* COEF_TOKEN: which of the row's coefficients */
    bool minus, plus_one; /* -c, 1 + c */
};

enum { LANE0 = 1, LANE1 = 2, BOTH_LANES = 3 };
enum { RUN_FORWARD = 1, RUN_BACKWARD = 2, RUN_AT_BEGIN = 4 };
struct term {
    struct ref x;
    struct ref dx; /* where its gradient goes; or none */
    bool add; /* to what dx holds by then; else dx is written */
    uint8_t runs; /* RUN_ bits: forward, backward; or at the begin in its place (inject_bwd) */
    uint8_t lanes; /* it is in */
    struct coef coef[2]; /* in each lane */
    int first, n; /* of so many channels alone; n = 0: all that x has */
};

/* Whose gain a norm has. */
enum norm_gain { GAIN_NONE, GAIN_ATTENTION, GAIN_MLP, GAIN_HEAD };

enum { MIX_TERMS = MIX_MAX + 1 }; /* forward and backward run at most MIX_MAX of them */
struct mix {
    uint8_t layer;
    uint8_t lanes; /* outputs: 1 or 2 */
    uint8_t normed; /* the lane whose norm y is */
    bool gates; /* the norm is read by gates as well, whose gradient is dy12 */
    uint8_t gain; /* enum norm_gain, of the norm */
    uint8_t of; /* the layer of the gain */
    struct ref out[2], y; /* the sums; the norm, or none */
    struct ref dout[2]; /* gradients of the sums; or none */
    int n;
    struct term term[MIX_TERMS];
};

enum stream_act {
    DO_MIX, /* which: of streams.mix */
    DO_SKIP, /* skip_gate of `to` with x; which: the row of [token_coefs] that is its gate, or -1 */
    DO_COEFS, /* which: the block of [token_coefs] whose MLP reads x; backward: gradient to `to` */
    DO_ROWS, /* which: the layer whose table's rows are gathered into `to` */
    DO_ADD, /* x to `to` */
    DO_ZERO, /* `to`, before it is added to */
    DO_INJECT /* which: of streams.injected */
};
struct stream_step {
    uint8_t act;
    int16_t which;
    struct ref to, x;
};
struct step_list {
    const struct stream_step *step;
    int n;
};

enum stream_pass { STREAM_FORWARD, STREAM_BACKWARD };
enum stream_place {
    STREAM_BEGIN, /* before layer 0 */
    STREAM_ENTER, /* before a layer's attention */
    STREAM_VALUES, /* within it: its values */
    STREAM_ATTENDED, /* between attention and MLP */
    STREAM_LEAVE, /* after the MLP */
    STREAM_END, /* before the head */
    STREAM_PLACES
};

/* Where attention's or the MLP's product goes. */
struct product {
    struct ref out; /* o or m, which a mix adds; or the stream itself */
    struct ref residual; /* what the product is added to; or none */
    struct ref dout; /* its gradient */
    struct coef scale; /* of the MLP's: within the product */
    bool kept; /* the backward reads it: a learnable coefficient multiplies it */
};

/* Buffers that attention and MLP of a layer read and write. */
struct layer_streams {
    struct ref y; /* norm that attention reads */
    struct ref attended, y2; /* stream between attention and MLP; the norm that the MLP reads */
    struct product attention, mlp;
    int lanes;
};

enum {
    MAX_MIXES = 5 * MAX_LAYERS + 2,
    MAX_STEPS = 20 * MAX_LAYERS,
    MAX_INJECTED = MAX_LAYERS / INJECT_MAX + 1
};
struct streams {
    const struct recipe *recipe;
    int n_mixes, n_steps, n_injected;
    struct mix mix[MAX_MIXES];
    struct stream_step step[MAX_STEPS];
    struct steps_at {
        int16_t first, n;
    } at[2][STREAM_PLACES][MAX_LAYERS + 1];
    /* Gradients of x0 and bigrams from the gradients g of the streams of many layers at once. */
    struct injected {
        int n, mix[INJECT_MAX];
    } injected[MAX_INJECTED];
    struct layer_streams layer[MAX_LAYERS];
    bool apart; /* the stream that enters layer 0 is not x0 itself */
    struct ref skip; /* what the skip takes; or none */
    bool products; /* a mix adds some product */
    uint32_t used[MAX_LAYERS + 1]; /* bit b: some list names buffer b of that layer */
};

void streams_make(struct streams *s, const struct recipe *r);
struct step_list streams_at(const struct streams *s, enum stream_pass pass, enum stream_place place,
                            int layer);
static inline bool streams_use(const struct streams *s, enum buffer b, int layer)
{
    return s->used[layer] >> b & 1;
}
/* Calls line() with each mix and product, in the order of the forward, as a line of text without
 * its end. */
typedef void line_fn(void *ctx, const char *text);
void streams_text(const struct streams *s, line_fn *line, void *ctx);

#endif
