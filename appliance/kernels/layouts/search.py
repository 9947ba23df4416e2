"""The tables that the `find_spans` kernel follows. `matching` fills them.

A *stream* has one bit for each position of the stretch of text at hand, first position in the
lowest bit. Where a field of Operation or Instruction is said to be a stream, it is the stream's
number.
"""

from __future__ import annotations

from appliance.kernels.layouts.tables import At, Numbers, Table


class Operation(Table):
    """One operation on whole streams; see OPERATIONS."""

    KIND: int  # index in OPERATIONS
    TO: int  # stream
    A: int  # stream
    B: int  # stream
    AMOUNT: int
    PLANES: int  # first of the streams that have the bits of a turn's number
    PLANE_COUNT: int
    QUEUE: int  # stream
    LOOP: int  # number of its counter
    BACK: int  # number of the operation to go on with


class Instruction(Table):
    """One instruction of the walk from the start of a match to its end; see INSTRUCTIONS."""

    KIND: int  # index in INSTRUCTIONS
    STREAM: int  # stream
    OTHER: int  # stream
    WIDTH: int  # characters
    LOW: int
    HIGH: int
    LAZY: int  # 1 to take the first end
    LOOP: int  # number of its counter
    PLANES: int  # first of the streams that have the bits of a turn's number
    PLANE_COUNT: int
    NEXT: int  # instructions to go on, of the jump if one is taken


class Search(Table):
    """One call."""

    TEXT: int  # address of code points, int32 each
    END: int  # position after the last
    POSITION: int  # where the search begins; where to go on
    STOP: int  # once a stretch begins here or later, the kernel returns
    OPEN: int  # 1 where text may follow
    PAGES: At[Numbers]  # for each 256 code points the address of their row numbers, int32 each
    ROWS: int  # address of GROUPS words a row, a bit a class
    GROUPS: int
    CLASSES: int
    STREAMS: int  # address of memory for all streams
    STRIDE: int  # bytes of a stream
    WORDS: int  # most words of a stream that a stretch uses
    OPERATIONS: At[Operation]
    OPERATION_COUNT: int
    WALK: At[Instruction]
    WIDTH: int  # characters of the longest match
    ROOT: int  # stream of all starts
    SPANS: int  # address where start and end of each match go
    CAPACITY: int  # most spans
    COUNTERS: int  # address of a word a loop, zero
    BUFFER: int  # address of 128 words
    EVEN: int  # 1 to write each class's stream, and to take all turns of each loop, whatever a text has


# The effect of an operation, bit by bit at each position i:
# shifted    TO[i] = A[i] and B[i + AMOUNT]
# either     TO[i] = A[i] or B[i]
# differ     TO[i] = A[i] xor B[i]
# previous   TO[i] = A[i - 1], 0 at the first
# gained     a turn of a loop of at most AMOUNT: bits of A that TO lacks are new
#            the turn's number is written to the planes at new bits, TO gets them
#            QUEUE = TO or B; again from BACK on unless nothing was new
# again      AMOUNT turns in all from BACK on
OPERATIONS = ("shifted", "either", "differ", "previous", "gained", "again")

# accept     the match ends here
# move       WIDTH characters on
# choice     jump unless STREAM has a bit here
# jump       jump
# run        LOW to HIGH times WIDTH characters on, as often as STREAM allows, to a bit of OTHER: last or (LAZY) first
# enter      the loop of LOOP begins
# test       another turn of the loop of LOOP, or jump: as LOW, HIGH, planes (greedy) or OTHER (LAZY) say
INSTRUCTIONS = ("accept", "move", "choice", "jump", "run", "enter", "test")

# Streams that the kernel fills, then one for each class.
GIVEN = ("ones", "nowhere", "begin", "end", "last_line", "beyond", "root", "forced")
