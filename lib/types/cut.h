/* cut.h - how the documents of a shard become what is trained on (gpt-recipe(5), data.cut). */
#ifndef TYPES_CUT_H
#define TYPES_CUT_H

enum cut {
    CUT_DOCUMENT, /* a document's first tokens, one piece a pass; what a cut leaves is not used */
    CUT_PIECES, /* all tokens: a document's pieces of equal size, one a round */
    CUT_ROWS /* rows of equal length, one behind the other, whatever the documents */
};

#endif
