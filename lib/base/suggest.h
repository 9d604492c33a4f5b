/* suggest.h - the known word nearest to one that is not known, for messages.
 *
 *     struct suggest s = suggest_for("hedas");
 *     for (int i = 0; i < n; i++) suggest_try(&s, word[i]);
 *     err_set(GPT_USAGE, "unknown key 'hedas'%s", suggest_text(&s));  // ", did you mean 'heads'?"
 *
 * Near: at most one edit and one more for every four letters of the unknown word, an edit being a
 * letter inserted, left out or replaced, or two neighbours exchanged. The first of equals is kept.
 */
#ifndef BASE_SUGGEST_H
#define BASE_SUGGEST_H

struct suggest {
    const char *found; /* must stay valid, like the words tried */
    const char *best; /* NULL: none is near */
    int edits;
    char text[128];
};
struct suggest suggest_for(const char *found);
void suggest_try(struct suggest *s, const char *word);
const char *suggest_text(struct suggest *s); /* "": none */
/* Edits from a to b; words longer than 63 are compared in their first 63 letters. */
int suggest_edits(const char *a, const char *b);

#endif
