"""Tiles of a streamed model: read, authenticate, and decrypt or pack, without the interpreter.

    address = fetch_sealed(matrix, tile, thread)
    address = fetch_plain(matrix, tile, thread)

`matrix`: a table MATRIX of `fetch_layout`. The record is read a piece at a time into memory that nobody else writes,
and each piece is decrypted from there into the thread's tile; or the record is kept in such memory. Of a plain model,
rows are read so, and packed into the tile; their tag is that of a message without text, all of it associated data (see
`models.tagged`). One of the last two tiles of the pass that a thread asks for again, for another part of it, is still
there (the last one alone, where a thread has one place). Only a tile whose tag is right leaves this function: after
any failure the thread's tile holds zeros, FAULT says what failed first, and every later fetch of the model gives zeros,
too. Cryptography and reading are calls of libcrypto and of the C library by address.

Where reads have to wait for the disk, the system is told of the next records of the pass, and of those of the next pass
at its end (the plan goes round), so that it reads them meanwhile.
"""

from __future__ import annotations

from typing import Any

from appliance.engine.kernels.code.product.pack import pack_groups
from appliance.engine.kernels.compiler.atomic import exchange_long, load_long
from appliance.engine.kernels.compiler.jit import device
from appliance.engine.kernels.compiler.vector import get_i32, get_i64, pointer_call, prefetch, set_i64
from appliance.engine.kernels.layouts.fetch import FAULTS, WORKER_NBYTES, K, M, S
from appliance.engine.kernels.runtime.registry import kernel
from appliance.engine.kernels.runtime.targets import compiling

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

KEPT_PIECE, KEPT_AHEAD = (2 << 10, 3 << 10) if compiling().tiles else (256 << 10, 0)
"""Of a record in memory: bytes decrypted by one call, and how far ahead of them memory is asked for (0: left to the
CPU). Intel's CPUs bring next to nothing by themselves while they decrypt. Another, in calls for whole tiles, evenly
apart, read memory at a third of its rate. Each line of a piece is read, too, before the call: lines asked for one right
after the other come slower, and these reads lie in between."""


@device
def read_some(stream: int, worker: int, address: int, nbytes: int, offset: int, flags: int) -> int:
    """One call of preadv2: bytes read, or less than 0."""
    set_i64(worker + K.VECTOR, address)
    set_i64(worker + K.VECTOR_NBYTES, nbytes)
    return call_read(get_i64(stream + S.READ), get_i64(stream + S.DESCRIPTOR), worker + K.VECTOR, 1, offset, flags)


@device(inline=False)
def read(stream: int, worker: int, address: int, nbytes: int, offset: int) -> int:
    """Read `nbytes` from byte `offset` of the file; 0 or a fault."""
    if get_i64(stream + S.WINDOW) > 0:
        count = max(read_some(stream, worker, address, nbytes, offset, NOWAIT), 0)
        if count < nbytes:
            set_i64(stream + S.COLD, get_i64(stream + S.PLAN_COUNT))
        address += count
        offset += count
        nbytes -= count
    while nbytes > 0:
        count = read_some(stream, worker, address, nbytes, offset, 0)
        if count == 0:
            return END
        if count < 0:
            errno = get_i32(call_errno(get_i64(stream + S.ERRNO)))
            if errno != EINTR:
                return UNREADABLE | errno << 32
            count = 0
        address += count
        offset += count
        nbytes -= count
    return 0


@device
def advise(stream: int, offset: int, nbytes: int, advice: int) -> None:
    """Tell the system about bytes of the file; what it makes of that does not matter."""
    call_advise(get_i64(stream + S.ADVISE), get_i64(stream + S.DESCRIPTOR), offset, nbytes, advice)


@device
def forget(stream: int, offset: int, nbytes: int) -> None:
    """Let the page cache drop what was read, where it has no room: not where a whole pass has found all of it there."""
    if get_i64(stream + S.DROP) != 0 and get_i64(stream + S.COLD) > 0:
        advise(stream, offset, nbytes, DO_NOT_NEED)


@device(inline=False)
def look_ahead(stream: int, position: int) -> None:
    """Tell the system of the records up to WINDOW after number `position` of the plan; each is told of once a pass."""
    cold, count = get_i64(stream + S.COLD), get_i64(stream + S.PLAN_COUNT)
    if cold <= 0 or get_i64(stream + S.WINDOW) <= 0:
        return
    set_i64(stream + S.COLD, cold - 1)
    target, seen = position + get_i64(stream + S.WINDOW), load_long(stream + S.CURSOR)
    while seen < target:
        first = max(seen, position + 1)
        now = exchange_long(stream + S.CURSOR, seen, target)
        if now == seen:
            for number in range(first, target):
                entry = get_i64(stream + S.PLAN) + 16 * (number % count)
                advise(stream, get_i64(entry), get_i64(entry + 8), WILL_NEED)
            return
        seen = now


@device
def turned(number: int) -> int:
    """The lower 32 bits, most significant byte first."""
    return (number & 0xff) << 24 | (number & 0xff00) << 8 | number >> 8 & 0xff00 | number >> 24 & 0xff


@device
def begin(stream: int, worker: int, number: int) -> bool:
    """Start a message: its nonce is `number` in 12 bytes, most significant first; and the associated data of all."""
    set_i64(worker + K.NONCE, 0)
    set_i64(worker + K.NONCE + 4, turned(number) << 32 | turned(number >> 32))
    context = get_i64(worker + K.CONTEXT)
    return (call_init(get_i64(stream + S.INIT), context, 0, 0, 0, worker + K.NONCE) == 1
            and call_update(get_i64(stream + S.UPDATE), context, 0, worker + K.COUNT, get_i64(stream + S.EXTRA),
                            get_i64(stream + S.EXTRA_NBYTES)) == 1)


@device
def keep_tag(worker: int, address: int) -> None:
    """The tag that the message must have."""
    set_i64(worker + K.TAG, get_i64(address))
    set_i64(worker + K.TAG_END, get_i64(address + 8))


@device
def end(stream: int, worker: int, out: int) -> bool:
    """Whether the message has the tag TAG."""
    context = get_i64(worker + K.CONTEXT)
    return (call_control(get_i64(stream + S.CONTROL), context, SET_TAG, TAG_NBYTES, worker + K.TAG) == 1
            and call_final(get_i64(stream + S.FINAL), context, out, worker + K.COUNT) == 1)


@device(inline=False)
def decrypt(stream: int, worker: int, piece: int, at: int, held: int, nbytes: int) -> int:
    """Bytes at .. at + held of a record are at address `piece`: decrypt ciphertext, keep the tag, check padding."""
    text, update = min(held, max(nbytes - at, 0)), get_i64(stream + S.UPDATE)
    out = get_i64(worker + K.TILE) + at
    if text > 0 and call_update(update, get_i64(worker + K.CONTEXT), out, worker + K.COUNT, piece, text) != 1:
        return TAMPERED
    if at <= nbytes and nbytes + TAG_NBYTES <= at + held:  # a tag crosses no piece: both are multiples of 16
        keep_tag(worker, piece + text)
    for index in range(max(nbytes + TAG_NBYTES - at, 0), held, 8):
        if get_i64(piece + index) != 0:
            return PADDING
    return 0


@device(inline=False)
def open_read(stream: int, worker: int, offset: int, record_nbytes: int, nbytes: int) -> int:
    """Read a record from byte `offset` of the file, in pieces, and decrypt it; 0 or a fault."""
    piece, most, at = get_i64(worker + K.RECORD), get_i64(stream + S.PIECE), 0
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
def open_kept(stream: int, worker: int, record: int, nbytes: int) -> int:
    """Decrypt the record at address `record`; 0 or a fault. Its padding was looked at when it was read, for good."""
    update, context, count = get_i64(stream + S.UPDATE), get_i64(worker + K.CONTEXT), worker + K.COUNT
    out, at = get_i64(worker + K.TILE), 0
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


@device(inline=False)
def open_tile(stream: int, worker: int, matrix: int, tile: int, nbytes: int) -> int:
    """Decrypt tile `tile` of a matrix into the worker's tile; 0 or a fault."""
    last = tile == get_i64(matrix + M.LAST)
    record = get_i64(matrix + M.LAST_RECORD_NBYTES) if last else get_i64(matrix + M.RECORD_NBYTES)
    offset, kept = tile * get_i64(matrix + M.RECORD_NBYTES), get_i64(matrix + M.KEPT)
    if not begin(stream, worker, get_i64(matrix + M.FIRST_TILE) + tile):
        return TAMPERED
    if kept != 0:
        fault = open_kept(stream, worker, kept + offset, nbytes)
    else:
        look_ahead(stream, get_i64(matrix + M.FIRST_PLANNED) + tile)
        fault = open_read(stream, worker, get_i64(matrix + M.OFFSET) + offset, record, nbytes)
    if fault != 0:
        return fault
    return 0 if end(stream, worker, get_i64(worker + K.TILE) + nbytes) else TAMPERED


@device(inline=False)
def pack_rows_read(stream: int, worker: int, matrix: int, offset: int, nbytes: int) -> int:
    """Read `nbytes` bytes of rows from byte `offset` of the file, add them to the message, and pack them into the
    worker's tile; the last group is filled up with zeros. 0 or a fault."""
    rows, at = get_i64(worker + K.RECORD), 0
    chunk, row_nbytes = get_i64(matrix + M.CHUNK), get_i64(matrix + M.ROW_NBYTES)
    while at < nbytes:
        held = min(chunk, nbytes - at)
        groups = (held + 16 * row_nbytes - 1) // (16 * row_nbytes)
        for index in range(held // 8 * 8, 16 * groups * row_nbytes, 8):  # before reading: rows need not be whole words
            set_i64(rows + index, 0)
        fault = read(stream, worker, rows, held, offset + at)
        if fault != 0:
            return fault
        if (call_update(get_i64(stream + S.UPDATE), get_i64(worker + K.CONTEXT), 0, worker + K.COUNT, rows, held) != 1
                or pack_groups(get_i64(matrix + M.PACK), rows, row_nbytes, get_i64(matrix + M.BLOCKS), groups,
                               get_i64(worker + K.TILE) + at) != 0):
            return TAMPERED
        at += held
    return 0


@device(inline=False)
def open_rows(stream: int, worker: int, matrix: int, tile: int, nbytes: int) -> int:
    """Tile `tile` of a plain matrix, packed, in the worker's tile; 0 or a fault."""
    last = tile == get_i64(matrix + M.LAST)
    record = get_i64(matrix + M.LAST_RECORD_NBYTES) if last else get_i64(matrix + M.RECORD_NBYTES)
    offset = get_i64(matrix + M.OFFSET) + tile * get_i64(matrix + M.RECORD_NBYTES)
    if not begin(stream, worker, offset):
        return TAMPERED
    look_ahead(stream, get_i64(matrix + M.FIRST_PLANNED) + tile)
    fault = pack_rows_read(stream, worker, matrix, offset, record)
    if fault != 0:
        return fault
    forget(stream, offset, record)
    keep_tag(worker, get_i64(matrix + M.TAGS) + TAG_NBYTES * tile)
    return 0 if end(stream, worker, get_i64(worker + K.TILE) + nbytes) else TAMPERED


@device(inline=False)
def refuse(stream: int, worker: int, fault: int) -> None:
    """Record the first fault, if this is it, and wipe the worker's tile."""
    if fault != 0:
        exchange_long(stream + S.FAULT, 0, fault)
    tile = get_i64(worker + K.TILE)
    for at in range(0, get_i64(stream + S.TILE_NBYTES), 8):
        set_i64(tile + at, 0)


def _fetch(open_one: Any) -> Any:
    """The kernel that opens tiles with a function."""
    def fetch(matrix: int, tile: int, thread: int) -> int:
        stream = get_i64(matrix + M.STREAM_TABLE)
        worker = get_i64(stream + S.WORKERS) + WORKER_NBYTES * thread
        place, number = get_i64(worker + K.TILE), get_i64(matrix + M.FIRST_TILE) + tile
        if load_long(stream + S.FAULT) == 0:
            if get_i64(worker + K.HELD) == number + 1:
                return place
            if get_i64(worker + K.OTHER_HELD) == number + 1:
                return get_i64(worker + K.OTHER)
        set_i64(worker + K.OTHER_HELD, get_i64(worker + K.HELD) if place != get_i64(worker + K.OTHER) else 0)
        set_i64(worker + K.HELD, 0)
        set_i64(worker + K.TILE, get_i64(worker + K.OTHER))
        set_i64(worker + K.OTHER, place)
        if load_long(stream + S.FAULT) != 0:
            refuse(stream, worker, 0)
        elif not 0 <= tile <= get_i64(matrix + M.LAST):
            refuse(stream, worker, RANGE | number & 0xffffffff)
        else:
            nbytes = get_i64(matrix + M.LAST_NBYTES) if tile == get_i64(matrix + M.LAST) else get_i64(matrix + M.NBYTES)
            set_i64(worker + K.ALIVE, max(get_i64(worker + K.ALIVE), nbytes))
            fault = open_one(stream, worker, matrix, tile, nbytes)
            if fault != 0:
                refuse(stream, worker, fault | number)
            else:
                set_i64(worker + K.HELD, number + 1)
        return get_i64(worker + K.TILE)
    return fetch


kernel("fetch_sealed", "i8(i8,i8,i8)")(_fetch(open_tile))
kernel("fetch_plain", "i8(i8,i8,i8)")(_fetch(open_rows))
