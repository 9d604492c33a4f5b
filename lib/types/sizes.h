/* sizes.h - sizes that a recipe is checked against and that ops and kernels are compiled for. */
#ifndef TYPES_SIZES_H
#define TYPES_SIZES_H

enum { GATE_WIDTH = 12 }; /* channels that a gate reads */
enum { GATE_LOGITS = 16 }; /* numbers in a row of gates' logits: GATE_WIDTH heads and zeros */
enum { MAX_MTP = 4 }; /* predicted tokens a position, at most */

#endif
