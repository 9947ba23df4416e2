"""The table that the `pack_rows` kernel follows: words of 64 bits, each with a name. `engine.packing` makes it.

A table PACK for a block format, and after it MOVES tables MOVE, done in their order for each block of 16 rows.
"""

from __future__ import annotations

from appliance.engine.kernels.layouts.step import frozen, words

# BLOCK: bytes of a block of one row; a record of 16 rows has 16 times as many.
PACK = words("BLOCK MOVES")
PACK_NBYTES = 8 * len(PACK)

# KIND: index in KINDS. FROM: byte of the block, TO: byte of the record, where the first unit is. COUNT: units. NBYTES:
# of a unit in the block, 16 times as many in the record. FLIP: what words are xor-ed with. TERMS: address of COUNT
# tables TERM, whose sum is one word.
MOVE = words("KIND FROM TO COUNT NBYTES FLIP TERMS")
MOVE_NBYTES = 8 * len(MOVE)

# Bits of a word of the record: those in MASK, of the word at byte SOURCE of the record, turned left by TURN.
TERM = words("SOURCE MASK TURN")
TERM_NBYTES = 8 * len(TERM)

P, M, T = (frozen(table) for table in (PACK, MOVE, TERM))

# What a unit is, and its NBYTES: 4 words of 4 bytes; a word; 8 halves of 2 bytes; a half; a word of the even ones of 8
# bytes (which fills half its place in the record); terms.
KINDS = {"quad": 16, "word": 4, "octet": 16, "half": 2, "evens": 8, "terms": 0}
