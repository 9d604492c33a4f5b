/* gpt_error.c - see gpt_error.h. */
#include "base/gpt_error.h"

#include "base/err.h"

_Static_assert(GPT_ERROR_USAGE == GPT_USAGE && GPT_ERROR_INPUT == GPT_INPUT &&
                   GPT_ERROR_SYSTEM == GPT_SYSTEM,
               "the codes outside are those inside");

const char *gpt_error(void) { return err_message(); }
