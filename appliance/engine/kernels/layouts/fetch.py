"""Where the kernels that fetch tiles find things: tables of 64-bit words, each word with a name.

A table STREAM for a model, one WORKER for each thread, one MATRIX for each streamed matrix. Filled by
`engine.streaming`. The kernels change FAULT and the words of their own worker.
"""

from __future__ import annotations

from appliance.engine.kernels.layouts.step import frozen, words

# Addresses of C functions: READ (preadv2), ERRNO (__errno_location) and ADVISE (posix_fadvise) of the C library, the
# others of libcrypto. DESCRIPTOR: of the file. EXTRA: address and size of the associated data of every tile. PIECE:
# bytes that are read at a time, a multiple of 4096. FAULT: 0, or what failed first (see below). WORKERS: address of the
# first worker's table. PLAN: address of PLAN_COUNT pairs of words, offset and size of every record that a pass reads,
# in the order of their use. WINDOW: records ahead of the one in use that the system is told of; it is while COLD is not
# 0, which is counted down with each tile and set when a read has to wait. CURSOR: records of the plan that it was told
# of. DROP: 1 to let the page cache forget a record that was read while COLD is not 0.
STREAM = words("READ ERRNO ADVISE INIT UPDATE CONTROL FINAL DESCRIPTOR EXTRA EXTRA_NBYTES PIECE FAULT WORKERS "
               "TILE_NBYTES PLAN PLAN_COUNT WINDOW COLD CURSOR DROP")
STREAM_NBYTES = 8 * len(STREAM)

# CONTEXT: the thread's EVP_CIPHER_CTX, which has the key. TILE: address of TILE_NBYTES for plaintext; OTHER: another;
# the two change places with each tile that is fetched. HELD: number of the tile in TILE plus 1, OTHER_HELD: of that in
# OTHER; 0: none. RECORD: of PIECE bytes for what is read. ALIVE: the most bytes of a tile since it was set to 0.
# COUNT, NONCE (two words), TAG (two words), VECTOR (two words): room for the C functions' arguments.
WORKER = words("CONTEXT TILE OTHER RECORD HELD OTHER_HELD ALIVE COUNT NONCE NONCE_END TAG TAG_END VECTOR VECTOR_NBYTES")
WORKER_NBYTES = 128

# Tile n of a matrix is number FIRST_TILE + n of the file, has NBYTES (the one with number LAST: LAST_NBYTES) of
# plaintext, and a record of RECORD_NBYTES (LAST_RECORD_NBYTES) at offset OFFSET + n * RECORD_NBYTES of the file or,
# where KEPT is not 0, that far from the address KEPT. FIRST_PLANNED: number of tile 0's record in the plan.
# Of a plain model, the record is the tile's rows of ROW_NBYTES as the file has them. CHUNK: bytes of whole groups of 16
# rows that are read at a time, for which RECORD of the worker has room, and for 8 bytes more. PACK: the table with
# which BLOCKS blocks of each row are packed. TAGS: address of the tiles' tags.
MATRIX = words("STREAM_TABLE FIRST_TILE LAST NBYTES LAST_NBYTES OFFSET RECORD_NBYTES LAST_RECORD_NBYTES KEPT "
               "FIRST_PLANNED ROW_NBYTES CHUNK PACK BLOCKS TAGS")
MATRIX_NBYTES = 8 * len(MATRIX)

S, K, M = (frozen(table) for table in (STREAM, WORKER, MATRIX))

# A fault is FAULTS.index(kind) << 48 | errno << 32 | number of the tile.
FAULTS = ("none", "read", "end", "tag", "padding", "range")
