"""The tables that the `find_spans` kernel follows: words of 64 bits, each with a name. `engine.search` fills them.

A *stream* has one bit for each position of the block of text at hand, first position in the lowest bit.
"""

from __future__ import annotations

from appliance.engine.kernels.layouts.step import frozen, words

# TEXT: code points, int32 each, up to the position END. POSITION: where the search begins. STOP: once a block begins
# here or later, the kernel returns. OPEN: 1 where text may follow.
# PAGES: for each 256 code points the address of their row numbers, int32 each. ROWS: GROUPS words a row, a bit a class.
# STREAMS: memory for all streams, STRIDE bytes each, of which a block uses WORDS words at most.
# STEPS, WALK: addresses of the two programs. WIDTH: characters of the longest match. ROOT: number of the stream of all
# starts. SPANS: where start and end of each match go, CAPACITY at most.
# COUNTERS: a word a loop, zero. BUFFER: 128 words.
SEARCH = words("TEXT END POSITION STOP OPEN PAGES ROWS GROUPS CLASSES STREAMS STRIDE WORDS STEPS STEP_COUNT WALK "
               "WIDTH ROOT SPANS CAPACITY COUNTERS BUFFER")
SEARCH_NBYTES = 8 * len(SEARCH)

# One operation on whole streams, which are numbers here.
STEP = words("KIND TO A B AMOUNT PLANES PLANE_COUNT QUEUE SLOT BACK")
STEP_NBYTES = 8 * len(STEP)

# What a step does, bit by bit at each position i:
# shifted    TO[i] = A[i] and B[i + AMOUNT]
# either     TO[i] = A[i] or B[i]
# differ     TO[i] = A[i] xor B[i]
# previous   TO[i] = A[i - 1], 0 at the first
# gained     a turn of a loop of at most AMOUNT: bits of A that TO lacks are new. The turn's number is written to the
#            planes at new bits, TO gets them, QUEUE = TO or B; again from step BACK unless nothing was new
# again      AMOUNT turns in all from step BACK on
STEPS = ("shifted", "either", "differ", "previous", "gained", "again")

# One instruction of the walk from the start of a match to its end. NEXT: relative, of the jump if one is taken.
WALK = words("KIND STREAM OTHER WIDTH LOW HIGH LAZY SLOT PLANES PLANE_COUNT NEXT")
WALK_NBYTES = 8 * len(WALK)

# accept     the match ends here
# move       WIDTH characters on
# choice     jump unless STREAM has a bit here
# jump       jump
# run        LOW to HIGH times WIDTH characters on, as often as STREAM allows, to a bit of OTHER: last or (LAZY) first
# enter      the loop of SLOT begins
# test       another turn of the loop of SLOT, or jump: as LOW, HIGH, planes (greedy) or OTHER (LAZY) say
WALKS = ("accept", "move", "choice", "jump", "run", "enter", "test")

# Streams that the kernel fills, then one for each class.
GIVEN = ("ones", "nowhere", "begin", "end", "last_line", "beyond", "root", "forced")

S, T, W = (frozen(table) for table in (SEARCH, STEP, WALK))
