"""Checks before and inside the `step` kernel, compiled in by a debug build only (`compile_for(name, debug=True)`).

What may be touched is a list of ranges (`boundary.Ranges`), each to read, to write or to call. Before a pass, the
kernel `step_verify`, which no other build has, judges every word of its tables: shapes against each other, every
address against the ranges, every token, position, slot, row, tile and span against its limits. During the pass,
`allowed` judges places as they are computed. What is refused is not touched: the number of the fault goes to the
status word, and the pass goes on without it (all threads must finish their phases).
"""

from __future__ import annotations

from appliance.engine.kernels.attention_layout import BLOCK, MOST_TOKENS, SPAN, TILE_ROWS, VALUES
from appliance.engine.kernels.jit import DEBUG, device
from appliance.engine.kernels.registry import kernel
from appliance.engine.kernels.step_layout import (
    CALL,
    COUNTER_NBYTES,
    FAULTS,
    LAYER_NBYTES,
    RANGE_NBYTES,
    READ,
    TILE_NBYTES,
    UNIT_NBYTES,
    WRITE,
    L,
    S,
    T,
    U,
    W,
)
from appliance.engine.kernels.team import LINE_NBYTES, LINES
from appliance.engine.kernels.vector import get_i64, set_i64

(BATCH, BUFFER, WEIGHT, CODE, VECTOR, CACHE, TILE) = (
    FAULTS.index(name) for name in ("batch", "buffer", "weight", "code", "vector", "cache", "tile"))


@device(inline=False)
def refuse(p: int, fault: int) -> bool:
    """Record the first fault; always False."""
    status = get_i64(p + S.STATUS)
    if get_i64(status) == 0:
        set_i64(status, fault)
    return False


@device(inline=False)
def found(p: int, fault: int, address: int, nbytes: int, access: int) -> bool:
    """Whether one range that may be accessed so holds `nbytes` at `address`; records the fault if not."""
    table = get_i64(p + S.RANGES)
    for index in range(get_i64(p + S.RANGE_COUNT)):
        place = table + RANGE_NBYTES * index
        offset = address - get_i64(place)
        if offset >= 0 and 0 <= nbytes <= get_i64(place + 8) - offset and get_i64(place + 16) & access == access:
            return True
    return refuse(p, fault)


@device
def allowed(p: int, fault: int, address: int, nbytes: int, access: int) -> bool:
    """`found` in a debug build; nothing otherwise."""
    if DEBUG:
        return found(p, fault, address, nbytes, access)
    return True


@device
def require(p: int, fault: int, condition: bool) -> bool:
    """The condition; records the fault if it does not hold."""
    return True if condition else refuse(p, fault)


@device(inline=False)
def verify_numbers(p: int, fault: int, table: int, count: int, end: int) -> bool:
    """`count` int64 at `table`, each within 0..end-1."""
    if not found(p, BUFFER, table, 8 * count, READ):
        return False
    for index in range(count):
        if not 0 <= get_i64(table + 8 * index) < end:
            return refuse(p, fault)
    return True


@device(inline=False)
def verify_batch(p: int) -> bool:
    """Counts of rows, and every token, position, slot and wanted row."""
    rows, wanted = get_i64(p + S.ROWS), get_i64(p + S.WANTED)
    return (require(p, BATCH, 1 <= rows <= get_i64(p + S.MOST_ROWS) and 0 <= wanted <= get_i64(p + S.MOST_WANTED))
            and verify_numbers(p, BATCH, get_i64(p + S.TOKENS), rows, get_i64(p + S.VOCABULARY))
            and verify_numbers(p, BATCH, get_i64(p + S.POSITIONS), rows, get_i64(p + S.CONTEXT))
            and verify_numbers(p, BATCH, get_i64(p + S.SLOTS), rows, get_i64(p + S.CACHE_SLOTS))
            and verify_numbers(p, BATCH, get_i64(p + S.WANTED_ROWS), wanted, rows))


@device
def verify_rows(p: int, word: int, width: int) -> bool:
    """The buffer of rows at `word`, whose stride is the next word: `width` bytes of every row of the batch."""
    stride = get_i64(p + word + 8)
    return (require(p, BUFFER, 0 < width <= stride)
            and found(p, BUFFER, get_i64(p + word), (get_i64(p + S.ROWS) - 1) * stride + width, READ | WRITE))


@device(inline=False)
def verify_buffers(p: int, threads: int) -> bool:
    """Buffers that a pass writes."""
    size, wanted = get_i64(p + S.HEAD_SIZE), get_i64(p + S.WANTED)
    heads, kv_heads, wide = get_i64(p + S.HEADS), get_i64(p + S.KV_HEADS), 4 * get_i64(p + S.FEED_FORWARD)
    logits, stride = 64 * get_i64(p + S.OUTPUT_WEIGHT + W.GROUPS), get_i64(p + S.LOGITS_STRIDE)
    group = heads // max(kv_heads, 1)
    rows = group * max(1, min(MOST_TOKENS, TILE_ROWS // max(group, 1)))
    states = (VALUES + 4 * size) * rows
    widest = 4 * max(get_i64(p + S.EMBEDDING), max(get_i64(p + S.FEED_FORWARD), heads * size))
    return (require(p, BUFFER, size > 0 and kv_heads > 0 and group * kv_heads == heads)
            and found(p, BUFFER, get_i64(p + S.TEAM), LINES + LINE_NBYTES * threads, READ | WRITE)
            and verify_rows(p, S.RESIDUAL, 4 * get_i64(p + S.EMBEDDING))
            and verify_rows(p, S.PROJECTED, 4 * size * (heads + 2 * kv_heads))
            and verify_rows(p, S.ATTENDED, 4 * size * heads)
            and require(p, BUFFER, get_i64(p + S.UP_OFFSET) == wide) and verify_rows(p, S.HIDDEN, 2 * wide)
            and require(p, BUFFER, logits <= stride)
            and found(p, BUFFER, get_i64(p + S.LOGITS), stride * wanted, READ | WRITE)
            and found(p, BUFFER, get_i64(p + S.PRIVATE), threads * get_i64(p + S.PRIVATE_STRIDE), READ | WRITE)
            and require(p, BUFFER, get_i64(p + S.PRIVATE_ROW) >= 0
                        and get_i64(p + S.PRIVATE_ROW) + widest <= get_i64(p + S.PRIVATE_QUERY)
                        and get_i64(p + S.PRIVATE_QUERY) + 4 * size * rows <= get_i64(p + S.PRIVATE_TOTAL)
                        and get_i64(p + S.PRIVATE_TOTAL) + states <= get_i64(p + S.PRIVATE_PART)
                        and get_i64(p + S.PRIVATE_PART) + states <= get_i64(p + S.PRIVATE_SCRATCH)
                        and get_i64(p + S.PRIVATE_SCRATCH) < get_i64(p + S.PRIVATE_STRIDE)))


@device(inline=False)
def verify_cache(p: int) -> bool:
    """Strides of the cache within each other, and its kernels."""
    blocks = (get_i64(p + S.CONTEXT) + (BLOCK - 1)) // BLOCK
    nbytes = get_i64(p + S.CACHE_SLOTS) * get_i64(p + S.SLOT_STRIDE)
    query = get_i64(p + S.QUERY_KERNEL)
    return (require(p, CACHE, get_i64(p + S.HEAD_STRIDE) > 0
                    and get_i64(p + S.HEAD_STRIDE) * get_i64(p + S.KV_HEADS) <= get_i64(p + S.LAYER_STRIDE)
                    and get_i64(p + S.LAYER_STRIDE) * get_i64(p + S.BLOCKS) <= get_i64(p + S.BLOCK_STRIDE)
                    and get_i64(p + S.BLOCK_STRIDE) * blocks <= get_i64(p + S.SLOT_STRIDE))
            and found(p, CACHE, get_i64(p + S.KEYS), nbytes, READ | WRITE)
            and found(p, CACHE, get_i64(p + S.VALUES), nbytes, READ | WRITE)
            and found(p, CODE, get_i64(p + S.REMEMBER), 1, CALL) and found(p, CODE, get_i64(p + S.ATTEND), 1, CALL)
            and (query == 0 or found(p, CODE, query, 1, CALL))
            and found(p, VECTOR, get_i64(p + S.TURNS), 4 * get_i64(p + S.HEAD_SIZE) * get_i64(p + S.CONTEXT), READ))


@device(inline=False)
def verify_tiles(p: int) -> bool:
    """Tiles within the batch and the cache; spans within their tile, and their states within PARTS."""
    table, tiles, heads = get_i64(p + S.TILE_TABLE), get_i64(p + S.TILES), get_i64(p + S.HEADS)
    each, group = VALUES + 4 * get_i64(p + S.HEAD_SIZE), heads // get_i64(p + S.KV_HEADS)
    most = max(1, min(MOST_TOKENS, TILE_ROWS // group))
    if not found(p, TILE, table, TILE_NBYTES * tiles, READ):
        return False
    for index in range(tiles):
        tile = table + TILE_NBYTES * index
        first, count, end = get_i64(tile + T.FIRST_ROW), get_i64(tile + T.COUNT), get_i64(tile + T.POSITION)
        end += count
        if not require(p, TILE, first >= 0 and 1 <= count <= most and first + count <= get_i64(p + S.ROWS)
                       and 0 <= get_i64(tile + T.SLOT) < get_i64(p + S.CACHE_SLOTS) and count <= end
                       and end <= get_i64(p + S.CONTEXT)):
            return False
        if get_i64(p + S.SPREAD) != 0 and not found(
                p, TILE, get_i64(p + S.PARTS) + each * get_i64(tile + T.FIRST_PART),
                each * count * heads * ((end + SPAN - 1) // SPAN), READ | WRITE):
            return False
        if get_i64(p + S.APART) != 0 and not verify_apart(p, table, index):
            return False
    return get_i64(p + S.SPREAD) == 0 or (
        found(p, TILE, get_i64(p + S.COUNTERS), COUNTER_NBYTES * tiles * get_i64(p + S.KV_HEADS), READ | WRITE)
        and verify_units(p, table, tiles))


@device
def verify_apart(p: int, table: int, index: int) -> bool:
    """Whether no tile before tile `index` has its slot."""
    for before in range(index):
        if get_i64(table + TILE_NBYTES * before + T.SLOT) == get_i64(table + TILE_NBYTES * index + T.SLOT):
            return refuse(p, TILE)
    return True


@device
def verify_units(p: int, table: int, tiles: int) -> bool:
    """Spans of tiles."""
    units, count = get_i64(p + S.UNIT_TABLE), get_i64(p + S.UNITS)
    if not found(p, TILE, units, UNIT_NBYTES * count, READ):
        return False
    for index in range(count):
        unit = units + UNIT_NBYTES * index
        number, span = get_i64(unit + U.UNIT_TILE), get_i64(unit + U.UNIT_SPAN)
        if not require(p, TILE, 0 <= number < tiles and span >= 0):
            return False
        tile = table + TILE_NBYTES * number
        if not require(p, TILE, span * SPAN < get_i64(tile + T.POSITION) + get_i64(tile + T.COUNT)):
            return False
    return True


@device(inline=False)
def verify_weight(p: int, w: int, rows: int, columns: int) -> bool:
    """One matrix of that shape: its packed rows, its kernels, its activations, its bias."""
    groups, each = (rows + 15) // 16, get_i64(w + W.TOKEN_NBYTES)
    quantise, fetch = get_i64(w + W.QUANTISE), get_i64(w + W.FETCH)
    if not require(p, WEIGHT, get_i64(w + W.GROUPS) == groups and get_i64(w + W.COLUMNS) == columns and each > 0
                   and get_i64(w + W.GROUP_NBYTES) > 0 and get_i64(w + W.TILE_GROUPS) > 0):
        return False
    if fetch == 0:
        if not found(p, WEIGHT, get_i64(w + W.ADDRESS), groups * get_i64(w + W.GROUP_NBYTES), READ):
            return False
    elif not found(p, CODE, fetch, 1, CALL):
        return False
    return (found(p, CODE, get_i64(w + W.PRODUCT), 1, CALL) and (quantise == 0 or found(p, CODE, quantise, 1, CALL))
            and found(p, BUFFER, get_i64(w + W.ACTIVATIONS), each * get_i64(p + S.ROWS), READ | WRITE)
            and require(p, BUFFER, get_i64(p + S.PRIVATE_SCRATCH) <= get_i64(w + W.PRIVATE_ACTIVATIONS)
                        and get_i64(w + W.PRIVATE_ACTIVATIONS) + each <= get_i64(p + S.PRIVATE_STRIDE))
            and (get_i64(w + W.BIAS) == 0 or found(p, VECTOR, get_i64(w + W.BIAS), 64 * groups, READ)))


@device(inline=False)
def verify_layers(p: int) -> bool:
    """The matrices and norms of every block of the model, the embedding and the output."""
    width, wide = get_i64(p + S.EMBEDDING), get_i64(p + S.FEED_FORWARD)
    queries, keys = get_i64(p + S.HEADS) * get_i64(p + S.HEAD_SIZE), get_i64(p + S.KV_HEADS) * get_i64(p + S.HEAD_SIZE)
    vocabulary, w = get_i64(p + S.VOCABULARY), p + S.EMBEDDING_WEIGHT
    if not (found(p, VECTOR, get_i64(p + S.LAYERS), LAYER_NBYTES * get_i64(p + S.BLOCKS), READ)
            and found(p, VECTOR, get_i64(p + S.OUTPUT_NORM), 4 * width, READ)
            and verify_weight(p, w, vocabulary, width) and found(p, CODE, get_i64(w + W.GATHER), 1, CALL)
            and verify_weight(p, p + S.OUTPUT_WEIGHT, vocabulary, width)):
        return False
    for index in range(get_i64(p + S.BLOCKS)):
        layer = get_i64(p + S.LAYERS) + LAYER_NBYTES * index
        if not (found(p, VECTOR, get_i64(layer + L.ATTENTION_NORM), 4 * width, READ)
                and found(p, VECTOR, get_i64(layer + L.FEED_FORWARD_NORM), 4 * width, READ)
                and verify_weight(p, layer + L.QUERY, queries, width) and verify_weight(p, layer + L.KEY, keys, width)
                and verify_weight(p, layer + L.VALUE, keys, width)
                and verify_weight(p, layer + L.OUTPUT, width, queries)
                and verify_weight(p, layer + L.GATE, wide, width) and verify_weight(p, layer + L.UP, wide, width)
                and verify_weight(p, layer + L.DOWN, width, wide)):
            return False
    return True


def step_verify(p: int, threads: int) -> None:
    """Whether the tables of a pass may be followed: the status word says."""
    if verify_batch(p) and verify_buffers(p, threads) and verify_cache(p) and verify_tiles(p):
        verify_layers(p)


if DEBUG:
    kernel("step_verify", "void(i8,i8)")(step_verify)
