"""Where the kernels that fetch tiles find things: a table Stream for a model, a Worker for each
thread, a Matrix for each streamed matrix. Filled by `engine.forward.tile_tables`. The kernels
change FAULT, COLD, CURSOR and the words of their own worker.
"""

from __future__ import annotations

from appliance.kernels.layouts.pack import Pack
from appliance.kernels.layouts.tables import At, Room, Table


class Worker(Table):
    """The table of one thread alone."""

    CONTEXT: int  # address of its EVP_CIPHER_CTX, which has the key
    TILE: int  # address of TILE_NBYTES for plaintext; changes places with OTHER with each tile that is fetched
    OTHER: int  # address of as much; the same where the thread has one place
    RECORD: int  # address of PIECE bytes for what is read
    HELD: int  # number of the tile in TILE plus 1; 0: none
    OTHER_HELD: Room  # number of the tile in OTHER plus 1; 0: none
    ALIVE: int  # most bytes of a tile since it was set to 0
    COUNT: Room  # for what C functions count
    NONCE: Room  # two words
    NONCE_END: Room
    TAG: Room  # two words
    TAG_END: Room
    VECTOR: Room  # an iovec: address and size
    VECTOR_NBYTES: Room
    OPENED_NBYTES: int  # of tiles that were decrypted, since it was set to 0
    READ_NBYTES: int  # of the file, as much; ends two cache lines, which no other thread's words share


class Stream(Table):
    """The table of one model that all threads share."""

    READ: int  # C function preadv2
    ERRNO: int  # C function __errno_location
    ADVISE: int  # C function posix_fadvise
    INIT: int  # EVP_DecryptInit_ex of libcrypto
    UPDATE: int  # EVP_DecryptUpdate of libcrypto
    CONTROL: int  # EVP_CIPHER_CTX_ctrl of libcrypto
    FINAL: int  # EVP_DecryptFinal_ex of libcrypto
    DESCRIPTOR: int  # of the file
    EXTRA: int  # address of the associated data of every tile
    EXTRA_NBYTES: int
    PIECE: int  # bytes that are read at a time, a multiple of 4096
    FAULT: Room  # 0, or what failed first (see FAULTS)
    WORKERS: At[Worker]
    TILE_NBYTES: int  # most bytes of a tile
    PLAN: int  # address of PLAN_COUNT pairs: offset and size of every record that a pass reads, in the order of use
    PLAN_COUNT: int
    WINDOW: int  # records ahead of the one in use that the system is told of while COLD is not 0
    COLD: int  # counted down with each tile, and set when a read has to wait
    CURSOR: Room  # records of the plan that the system was told of
    DROP: int  # 1 to let the page cache forget a record that was read while COLD is not 0


class Matrix(Table):
    """One matrix, or a run of them. Tile n = r * RUN_TILES + i is tile i of matrix r, and number
    FIRST_TILE + n of the file. Its record is r * RUN_STRIDE + i * RECORD_NBYTES from OFFSET or
    KEPT.

    Of a plain model, a record is the tile's rows as the file has them.
    """

    STREAM: At[Stream]
    FIRST_TILE: int
    TILES: int  # of all matrices
    RUN_TILES: int  # of one matrix
    RUN_STRIDE: int
    NBYTES: int  # plaintext of a tile
    LAST_NBYTES: int  # plaintext of a matrix' last tile
    OFFSET: int  # of the first record in the file
    RECORD_NBYTES: int
    LAST_RECORD_NBYTES: int
    KEPT: int  # address of the first record in memory; 0: read the file
    FIRST_PLANNED: int  # number of the first tile's record in the plan; -1: none of them is in it
    # Of a plain model.
    ROW_NBYTES: int
    CHUNK: int  # bytes of whole groups of 16 rows that are read at a time; RECORD of a worker has room for 8 more
    PACK: At[Pack]
    BLOCKS: int  # of a row
    TAGS: int  # address of the tiles' tags


# A fault is FAULTS.index(kind) << 48 | errno << 32 | number of the tile.
FAULTS = ("none", "read", "end", "tag", "padding", "range")
