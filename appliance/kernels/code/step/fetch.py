"""Tiles of a streamed model: read, authenticate, and decrypt or pack, without the interpreter.

    place = fetch_sealed(matrix, tile, thread)
    place = fetch_plain(matrix, tile, thread)

`matrix`: a table Matrix of `layouts.fetch`. The record is read a piece at a time into memory that
nobody else writes, and each piece is decrypted from there into the thread's tile; or the record is
kept in such memory. Of a plain model, rows are read so, and packed into the tile; their tag is that
of a message without text, all of it associated data (see `models.tagged`). One of the last two
tiles of the pass that a thread asks for again, for another part of it, is still there (the last one
alone, where a thread has one place). Only a tile whose tag is right leaves this function: after any
failure the thread's tile holds zeros, FAULT says what failed first, and every later fetch of the
model gives zeros, too. Cryptography and reading are calls of libcrypto and of the C library by
address.

A tile that a pass does not need may still be asked for, so that nobody sees which tiles it needs.
`tile` is then the complement of its number, and the address that comes is not used.

Where reads have to wait for the disk, the system is told of the next records of the pass, so that
it reads them meanwhile. At its end those are of the next pass: the plan goes round.
"""

from __future__ import annotations

from typing import Any

from appliance.kernels.code.product.pack import pack_groups
from appliance.kernels.compiler.atomic import exchange_long, load_long
from appliance.kernels.compiler.jit import device
from appliance.kernels.compiler.registry import kernel
from appliance.kernels.compiler.vector import get_i32, get_i64, pointer_call, prefetch, set_i64
from appliance.kernels.layouts.fetch import FAULTS, Matrix, Stream, Worker
from appliance.kernels.runtime.targets import compiling

call_read = pointer_call("i8(i4,i8,i4,i8,i4)")
call_advise = pointer_call("i4(i4,i8,i8,i4)")
call_errno = pointer_call("i8()")
call_init = pointer_call("i4(i8,i8,i8,i8,i8)")
call_update = pointer_call("i4(i8,i8,i8,i8,i4)")
call_control = pointer_call("i4(i8,i4,i4,i8)")
call_final = pointer_call("i4(i8,i8,i8)")

UNREADABLE, END, TAMPERED, PADDING, RANGE = (
    FAULTS.index(name) << 48 for name in ("read", "end", "tag", "padding", "range"))
TAG_NBYTES, SET_TAG = 16, 0x11  # EVP_CTRL_AEAD_SET_TAG
EINTR = 4
NOWAIT, WILL_NEED, DO_NOT_NEED = 8, 3, 4  # RWF_NOWAIT of preadv2; POSIX_FADV_*

KEPT_PIECE, KEPT_AHEAD = (2 << 10, 3 << 10) if compiling().amx else (256 << 10, 0)
"""Of a record in memory: bytes decrypted by one call, and how far ahead of them memory is asked for (0: left to the
CPU). Intel's CPUs bring next to nothing by themselves while they decrypt. Another, in calls for whole tiles, evenly
apart, read memory at a third of its rate. Each line of a piece is read, too, before the call: lines asked for one right
after the other come slower, and these reads lie in between."""


@device
def read_some(stream: Stream, worker: Worker, address: int, nbytes: int, offset: int, flags: int) -> int:
    """One call of preadv2: bytes read, or less than 0."""
    set_i64(worker.VECTOR, address)
    set_i64(worker.VECTOR_NBYTES, nbytes)
    return call_read(stream.READ, stream.DESCRIPTOR, worker.VECTOR, 1, offset, flags)


@device(inline=False)
def read(stream: Stream, worker: Worker, address: int, nbytes: int, offset: int) -> int:
    """Read `nbytes` from byte `offset` of the file; 0 or a fault."""
    if stream.WINDOW > 0:
        count = max(read_some(stream, worker, address, nbytes, offset, NOWAIT), 0)
        if count < nbytes:
            stream.COLD = stream.PLAN_COUNT
        address += count
        offset += count
        nbytes -= count
        worker.READ_NBYTES += count
    while nbytes > 0:
        count = read_some(stream, worker, address, nbytes, offset, 0)
        if count == 0:
            return END
        if count < 0:
            errno = get_i32(call_errno(stream.ERRNO))
            if errno != EINTR:
                return UNREADABLE | errno << 32
            count = 0
        address += count
        offset += count
        nbytes -= count
        worker.READ_NBYTES += count
    return 0


@device
def advise(stream: Stream, offset: int, nbytes: int, advice: int) -> None:
    """Tell the system about bytes of the file; what it makes of that does not matter."""
    call_advise(stream.ADVISE, stream.DESCRIPTOR, offset, nbytes, advice)


@device
def forget(stream: Stream, offset: int, nbytes: int) -> None:
    """Let the page cache drop what was read, where it has no room: not where a whole pass has found
    all of it there."""
    if stream.DROP != 0 and stream.COLD > 0:
        advise(stream, offset, nbytes, DO_NOT_NEED)


@device(inline=False)
def look_ahead(stream: Stream, matrix: Matrix, tile: int) -> None:
    """Tell the system of the records up to WINDOW after that of a tile in the plan; each is told of
    once a pass."""
    cold, count, position = stream.COLD, stream.PLAN_COUNT, matrix.FIRST_PLANNED + tile
    if cold <= 0 or stream.WINDOW <= 0 or matrix.FIRST_PLANNED < 0:
        return
    stream.COLD = cold - 1
    target, seen = position + stream.WINDOW, load_long(stream.CURSOR)
    while seen < target:
        first = max(seen, position + 1)
        now = exchange_long(stream.CURSOR, seen, target)
        if now == seen:
            for number in range(first, target):
                entry = stream.PLAN + 16 * (number % count)
                advise(stream, get_i64(entry), get_i64(entry + 8), WILL_NEED)
            return
        seen = now


@device
def turned(number: int) -> int:
    """The lower 32 bits, most significant byte first."""
    return (number & 0xff) << 24 | (number & 0xff00) << 8 | number >> 8 & 0xff00 | number >> 24 & 0xff


@device
def begin(stream: Stream, worker: Worker, number: int) -> bool:
    """Start a message: its nonce is `number` in 12 bytes, most significant first; and the
    associated data of all."""
    set_i64(worker.NONCE, 0)
    set_i64(worker.NONCE + 4, turned(number) << 32 | turned(number >> 32))
    context = worker.CONTEXT
    return (call_init(stream.INIT, context, 0, 0, 0, worker.NONCE) == 1
            and call_update(stream.UPDATE, context, 0, worker.COUNT, stream.EXTRA, stream.EXTRA_NBYTES) == 1)


@device
def keep_tag(worker: Worker, address: int) -> None:
    """The tag that the message must have."""
    set_i64(worker.TAG, get_i64(address))
    set_i64(worker.TAG_END, get_i64(address + 8))


@device
def end(stream: Stream, worker: Worker, out: int) -> bool:
    """Whether the message has the tag TAG."""
    context = worker.CONTEXT
    return (call_control(stream.CONTROL, context, SET_TAG, TAG_NBYTES, worker.TAG) == 1
            and call_final(stream.FINAL, context, out, worker.COUNT) == 1)


@device(inline=False)
def decrypt(stream: Stream, worker: Worker, piece: int, at: int, held: int, nbytes: int) -> int:
    """Bytes at .. at + held of a record are at address `piece`: decrypt ciphertext, keep the tag,
    check padding."""
    text, update = min(held, max(nbytes - at, 0)), stream.UPDATE
    out = worker.TILE + at
    if text > 0 and call_update(update, worker.CONTEXT, out, worker.COUNT, piece, text) != 1:
        return TAMPERED
    if at <= nbytes and nbytes + TAG_NBYTES <= at + held:  # a tag crosses no piece: both are multiples of 16
        keep_tag(worker, piece + text)
    for index in range(max(nbytes + TAG_NBYTES - at, 0), held, 8):
        if get_i64(piece + index) != 0:
            return PADDING
    return 0


@device(inline=False)
def open_read(stream: Stream, worker: Worker, offset: int, record_nbytes: int, nbytes: int) -> int:
    """Read a record from byte `offset` of the file, in pieces, and decrypt it; 0 or a fault."""
    piece, most, at = worker.RECORD, stream.PIECE, 0
    while at < record_nbytes:
        held = min(most, record_nbytes - at)
        fault = read(stream, worker, piece, held, offset + at)
        if fault == 0:
            fault = decrypt(stream, worker, piece, at, held, nbytes)
        if fault != 0:
            return fault
        at += held
    forget(stream, offset, record_nbytes)
    return 0


@device(inline=False)
def open_kept(stream: Stream, worker: Worker, record: int, nbytes: int) -> int:
    """Decrypt the record at address `record`; 0 or a fault. Its padding was looked at when it was
    read, for good."""
    update, context, count = stream.UPDATE, worker.CONTEXT, worker.COUNT
    out, at = worker.TILE, 0
    while at < nbytes:
        held = min(KEPT_PIECE, nbytes - at)
        if KEPT_AHEAD > 0:
            for line in range(at, at + held, 64):
                prefetch(record + KEPT_AHEAD + line)
                load_long(record + line)
        if call_update(update, context, out + at, count, record + at, held) != 1:
            return TAMPERED
        at += held
    keep_tag(worker, record + nbytes)
    return 0


@device
def place_of(matrix: Matrix, tile: int) -> int:
    """Bytes from the first record of a run to that of a tile."""
    run = tile // matrix.RUN_TILES
    return run * matrix.RUN_STRIDE + (tile - run * matrix.RUN_TILES) * matrix.RECORD_NBYTES


@device
def is_last(matrix: Matrix, tile: int) -> bool:
    """Whether a tile is the last one of its matrix."""
    return (tile + 1) % matrix.RUN_TILES == 0


@device
def record_nbytes(matrix: Matrix, tile: int) -> int:
    """Bytes of a tile's record."""
    return matrix.LAST_RECORD_NBYTES if is_last(matrix, tile) else matrix.RECORD_NBYTES


@device(inline=False)
def open_tile(stream: Stream, worker: Worker, matrix: Matrix, tile: int, nbytes: int) -> int:
    """Decrypt tile `tile` of a matrix into the worker's tile; 0 or a fault."""
    offset, kept = place_of(matrix, tile), matrix.KEPT
    if not begin(stream, worker, matrix.FIRST_TILE + tile):
        return TAMPERED
    if kept != 0:
        fault = open_kept(stream, worker, kept + offset, nbytes)
    else:
        look_ahead(stream, matrix, tile)
        fault = open_read(stream, worker, matrix.OFFSET + offset, record_nbytes(matrix, tile), nbytes)
    if fault != 0:
        return fault
    return 0 if end(stream, worker, worker.TILE + nbytes) else TAMPERED


@device(inline=False)
def pack_rows_read(stream: Stream, worker: Worker, matrix: Matrix, offset: int, nbytes: int) -> int:
    """Read `nbytes` bytes of rows from byte `offset` of the file, add them to the message, and pack
    them into the worker's tile; the last group is filled up with zeros. 0 or a fault."""
    rows, at = worker.RECORD, 0
    chunk, row_nbytes = matrix.CHUNK, matrix.ROW_NBYTES
    while at < nbytes:
        held = min(chunk, nbytes - at)
        groups = (held + 16 * row_nbytes - 1) // (16 * row_nbytes)
        for index in range(held // 8 * 8, 16 * groups * row_nbytes, 8):  # before reading: rows need not be whole words
            set_i64(rows + index, 0)
        fault = read(stream, worker, rows, held, offset + at)
        if fault != 0:
            return fault
        if (call_update(stream.UPDATE, worker.CONTEXT, 0, worker.COUNT, rows, held) != 1
                or pack_groups(matrix.PACK, rows, row_nbytes, matrix.BLOCKS, groups, worker.TILE + at) != 0):
            return TAMPERED
        at += held
    return 0


@device(inline=False)
def open_rows(stream: Stream, worker: Worker, matrix: Matrix, tile: int, nbytes: int) -> int:
    """Tile `tile` of a plain matrix, packed, in the worker's tile; 0 or a fault."""
    offset, record = matrix.OFFSET + place_of(matrix, tile), record_nbytes(matrix, tile)
    if not begin(stream, worker, offset):
        return TAMPERED
    look_ahead(stream, matrix, tile)
    fault = pack_rows_read(stream, worker, matrix, offset, record)
    if fault != 0:
        return fault
    forget(stream, offset, record)
    keep_tag(worker, matrix.TAGS + TAG_NBYTES * tile)
    return 0 if end(stream, worker, worker.TILE + nbytes) else TAMPERED


@device(inline=False)
def refuse(stream: Stream, worker: Worker, fault: int) -> None:
    """Record the first fault, if this is it, and wipe the worker's tile."""
    if fault != 0:
        exchange_long(stream.FAULT, 0, fault)
    tile = worker.TILE
    for at in range(0, stream.TILE_NBYTES, 8):
        set_i64(tile + at, 0)


@device(inline=False)
def pass_by(stream: Stream, worker: Worker, matrix: Matrix, tile: int) -> None:
    """Read the record of a tile that nobody needs, as if somebody did."""
    start, left, fault = matrix.OFFSET + place_of(matrix, tile), record_nbytes(matrix, tile), load_long(stream.FAULT)
    if fault == 0 and tile >= matrix.TILES:
        fault = RANGE
        refuse(stream, worker, fault)
    if matrix.TAGS != 0:  # rows of a plain model, which are wiped after the pass
        worker.ALIVE = max(worker.ALIVE, matrix.NBYTES)
    look_ahead(stream, matrix, tile)
    offset = start
    while left > 0 and fault == 0:
        held = min(stream.PIECE, left)
        fault = read(stream, worker, worker.RECORD, held, offset)
        if fault != 0:
            refuse(stream, worker, fault | matrix.FIRST_TILE + tile)
        offset += held
        left -= held
    forget(stream, start, offset - start)


def _fetch(open_one: Any) -> Any:
    """The kernel that opens tiles with a function."""
    def fetch(address: int, tile: int, thread: int) -> int:
        matrix = Matrix(address)
        stream = matrix.STREAM
        worker = stream.WORKERS[thread]
        if tile < 0:
            pass_by(stream, worker, matrix, ~tile)
            return worker.TILE
        place, number = worker.TILE, matrix.FIRST_TILE + tile
        if load_long(stream.FAULT) == 0:
            if worker.HELD == number + 1:
                return place
            if get_i64(worker.OTHER_HELD) == number + 1:
                return worker.OTHER
        # Not an assignment: the address comes before the choice, which keeps the instructions as
        # they were measured.
        set_i64(worker.OTHER_HELD, worker.HELD if place != worker.OTHER else 0)
        worker.HELD = 0
        worker.TILE = worker.OTHER
        worker.OTHER = place
        if load_long(stream.FAULT) != 0:
            refuse(stream, worker, 0)
        elif not 0 <= tile < matrix.TILES:
            refuse(stream, worker, RANGE | number & 0xffffffff)
        else:
            nbytes = matrix.LAST_NBYTES if is_last(matrix, tile) else matrix.NBYTES
            worker.ALIVE = max(worker.ALIVE, nbytes)
            worker.OPENED_NBYTES += nbytes
            fault = open_one(stream, worker, matrix, tile, nbytes)
            if fault != 0:
                refuse(stream, worker, fault | number)
            else:
                worker.HELD = number + 1
        return worker.TILE
    return fetch


kernel("fetch_sealed", "i8(i8,i8,i8)")(_fetch(open_tile))
kernel("fetch_plain", "i8(i8,i8,i8)")(_fetch(open_rows))
