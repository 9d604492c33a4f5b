#include "base/suggest.h"

#include <stdio.h>
#include <string.h>

enum { MOST = 63 };

static int least(int a, int b) { return a < b ? a : b; }

/* Optimal string alignment: Levenshtein's distance with exchanges of neighbours. */
int suggest_edits(const char *a, const char *b)
{
    int n = (int)strnlen(a, MOST), m = (int)strnlen(b, MOST);
    int d[MOST + 1][MOST + 1];
    for (int i = 0; i <= n; i++)
        for (int k = 0; k <= m; k++) {
            if (!i || !k) {
                d[i][k] = i + k;
                continue;
            }
            int replaced = d[i - 1][k - 1] + (a[i - 1] != b[k - 1]);
            d[i][k] = least(replaced, 1 + least(d[i - 1][k], d[i][k - 1]));
            if (i > 1 && k > 1 && a[i - 1] == b[k - 2] && a[i - 2] == b[k - 1])
                d[i][k] = least(d[i][k], d[i - 2][k - 2] + 1);
        }
    return d[n][m];
}

struct suggest suggest_for(const char *found)
{
    int n = (int)strnlen(found, MOST);
    /* A word of one letter is one edit from every other. */
    return (struct suggest){ .found = found, .edits = n > 1 ? 2 + n / 4 : 0 };
}

void suggest_try(struct suggest *s, const char *word)
{
    int edits = suggest_edits(s->found, word);
    if (edits < s->edits && edits < (int)strlen(word)) {
        s->edits = edits;
        s->best = word;
    }
}

const char *suggest_text(struct suggest *s)
{
    if (s->best)
        snprintf(s->text, sizeof s->text, ", did you mean '%.63s'?", s->best);
    return s->text;
}
