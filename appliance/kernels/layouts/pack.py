"""The tables that the `pack_rows` kernel follows; `engine.forward.packing` makes them.

A table Pack for a block format has MOVE_COUNT tables Move, done in their order for each block of 16
rows. A record of 16 rows has 16 times the bytes of a block.
"""

from __future__ import annotations

from appliance.kernels.layouts.tables import At, Table


class Term(Table):
    """Bits of a word of the record: those in MASK, of the word at byte SOURCE of the record, turned
    left by TURN."""

    SOURCE: int
    MASK: int
    TURN: int


class Move(Table):
    """Units from a block to the record."""

    KIND: int  # index in KINDS
    FROM: int  # byte of the block where the first unit is
    TO: int  # byte of the record where the first unit goes
    COUNT: int  # units; or tables Term
    NBYTES: int  # of a unit in the block; 16 times as many in the record
    FLIP: int  # what words are xor-ed with
    TERMS: At[Term]  # COUNT tables, whose sum is one word


class Pack(Table):
    """A block format."""

    BLOCK: int  # bytes of a block of one row
    MOVE_COUNT: int
    MOVE: Move  # the first


# The kinds of unit, and their NBYTES: 4 words of 4 bytes; a word; 8 halves of 2 bytes; a half. Then
# come a word of the even ones of 8 bytes, which fills half its place in the record; terms; a byte.
KINDS = {"quad": 16, "word": 4, "octet": 16, "half": 2, "evens": 8, "terms": 0, "byte": 1}
