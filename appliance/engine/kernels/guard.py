"""Checks before and inside the `step` kernel, compiled in by a debug build only (`compile_for(name, debug=True)`).

What may be touched is a list of ranges (`boundary.Ranges`), each to read, to write or to call. Before a pass, the
kernel `step_verify`, which no other build has, judges every word of its tables: shapes against each other, every
address against the ranges, every token, position, slot, row, tile and span against its limits. During the pass,
`allowed` judges places as they are computed. What is refused is not touched: the number of the fault goes to the
status word, and the pass goes on without it (all threads must finish their phases).
"""

from __future__ import annotations

from appliance.engine.kernels import step_layout, team
from appliance.engine.kernels.attention_layout import BLOCK, MOST_TOKENS, SPAN, TILE_ROWS, VALUES
from appliance.engine.kernels.jit import DEBUG, device
from appliance.engine.kernels.registry import kernel
from appliance.engine.kernels.vector import get_i64, set_i64

_S, _W, _L, _T, _U, _F = (step_layout.STEP, step_layout.WEIGHT, step_layout.LAYER, step_layout.TILE,
                          step_layout.UNIT, step_layout.FAULTS)
(BATCH, BUFFER, WEIGHT, CODE, VECTOR, CACHE, TILE) = (
    _F.index(name) for name in ("batch", "buffer", "weight", "code", "vector", "cache", "tile"))
READ, WRITE, CALL = step_layout.READ, step_layout.WRITE, step_layout.CALL
STATUS, RANGES, RANGE_COUNT, RANGE_NBYTES = _S["STATUS"], _S["RANGES"], _S["RANGE_COUNT"], step_layout.RANGE_NBYTES
TEAM, LINES, LINE_NBYTES = _S["TEAM"], team.LINES, team.LINE_NBYTES
MOST_ROWS, MOST_WANTED, VOCABULARY = _S["MOST_ROWS"], _S["MOST_WANTED"], _S["VOCABULARY"]
CONTEXT, CACHE_SLOTS = _S["CONTEXT"], _S["CACHE_SLOTS"]
BLOCKS, EMBEDDING, HEADS, KV_HEADS = _S["BLOCKS"], _S["EMBEDDING"], _S["HEADS"], _S["KV_HEADS"]
HEAD_SIZE, FEED_FORWARD, UP_OFFSET = _S["HEAD_SIZE"], _S["FEED_FORWARD"], _S["UP_OFFSET"]
LAYERS, OUTPUT_NORM, TURNS = _S["LAYERS"], _S["OUTPUT_NORM"], _S["TURNS"]
REMEMBER, QUERY_KERNEL, ATTEND, KEYS, VALUES_ = (
    _S["REMEMBER"], _S["QUERY_KERNEL"], _S["ATTEND"], _S["KEYS"], _S["VALUES"])
SLOT_STRIDE, BLOCK_STRIDE = _S["SLOT_STRIDE"], _S["BLOCK_STRIDE"]
LAYER_STRIDE, HEAD_STRIDE = _S["LAYER_STRIDE"], _S["HEAD_STRIDE"]
RESIDUAL, PROJECTED, ATTENDED = _S["RESIDUAL"], _S["PROJECTED"], _S["ATTENDED"]
HIDDEN, LOGITS, LOGITS_STRIDE = _S["HIDDEN"], _S["LOGITS"], _S["LOGITS_STRIDE"]
PRIVATE, PRIVATE_STRIDE, PRIVATE_ROW = _S["PRIVATE"], _S["PRIVATE_STRIDE"], _S["PRIVATE_ROW"]
PRIVATE_QUERY, PRIVATE_TOTAL, PRIVATE_PART = _S["PRIVATE_QUERY"], _S["PRIVATE_TOTAL"], _S["PRIVATE_PART"]
PRIVATE_SCRATCH, PARTS = _S["PRIVATE_SCRATCH"], _S["PARTS"]
ROWS, TOKENS_, POSITIONS, SLOTS = _S["ROWS"], _S["TOKENS"], _S["POSITIONS"], _S["SLOTS"]
TILES, TILE_TABLE, UNITS, UNIT_TABLE = _S["TILES"], _S["TILE_TABLE"], _S["UNITS"], _S["UNIT_TABLE"]
SPREAD, APART, WANTED, WANTED_ROWS = _S["SPREAD"], _S["APART"], _S["WANTED"], _S["WANTED_ROWS"]
COUNTERS, COUNTER_NBYTES = _S["COUNTERS"], step_layout.COUNTER_NBYTES
EMBEDDING_WEIGHT, OUTPUT_WEIGHT = _S["EMBEDDING_WEIGHT"], _S["OUTPUT_WEIGHT"]
PRODUCT, ADDRESS, GROUPS, COLUMNS = _W["PRODUCT"], _W["ADDRESS"], _W["GROUPS"], _W["COLUMNS"]
QUANTISE, ACTIVATIONS, PRIVATE_ACTIVATIONS = _W["QUANTISE"], _W["ACTIVATIONS"], _W["PRIVATE_ACTIVATIONS"]
BIAS, FETCH, TILE_GROUPS, GATHER = _W["BIAS"], _W["FETCH"], _W["TILE_GROUPS"], _W["GATHER"]
GROUP_NBYTES, TOKEN_NBYTES = _W["GROUP_NBYTES"], _W["TOKEN_NBYTES"]
ATTENTION_NORM, FEED_FORWARD_NORM = _L["ATTENTION_NORM"], _L["FEED_FORWARD_NORM"]
QUERY, KEY, VALUE, OUTPUT = _L["QUERY"], _L["KEY"], _L["VALUE"], _L["OUTPUT"]
GATE, UP, DOWN, LAYER_NBYTES = _L["GATE"], _L["UP"], _L["DOWN"], step_layout.LAYER_NBYTES
FIRST_ROW, COUNT, SLOT, POSITION, FIRST_PART = (
    _T["FIRST_ROW"], _T["COUNT"], _T["SLOT"], _T["POSITION"], _T["FIRST_PART"])
TILE_NBYTES, UNIT_NBYTES = step_layout.TILE_NBYTES, step_layout.UNIT_NBYTES
UNIT_TILE, UNIT_SPAN = _U["UNIT_TILE"], _U["UNIT_SPAN"]


@device(inline=False)
def refuse(p: int, fault: int) -> bool:
    """Record the first fault; always False."""
    status = get_i64(p + STATUS)
    if get_i64(status) == 0:
        set_i64(status, fault)
    return False


@device(inline=False)
def found(p: int, fault: int, address: int, nbytes: int, access: int) -> bool:
    """Whether one range that may be accessed so holds `nbytes` at `address`; records the fault if not."""
    table = get_i64(p + RANGES)
    for index in range(get_i64(p + RANGE_COUNT)):
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
    rows, wanted = get_i64(p + ROWS), get_i64(p + WANTED)
    return (require(p, BATCH, 1 <= rows <= get_i64(p + MOST_ROWS) and 0 <= wanted <= get_i64(p + MOST_WANTED))
            and verify_numbers(p, BATCH, get_i64(p + TOKENS_), rows, get_i64(p + VOCABULARY))
            and verify_numbers(p, BATCH, get_i64(p + POSITIONS), rows, get_i64(p + CONTEXT))
            and verify_numbers(p, BATCH, get_i64(p + SLOTS), rows, get_i64(p + CACHE_SLOTS))
            and verify_numbers(p, BATCH, get_i64(p + WANTED_ROWS), wanted, rows))


@device
def verify_rows(p: int, word: int, width: int) -> bool:
    """The buffer of rows at `word`, whose stride is the next word: `width` bytes of every row of the batch."""
    stride = get_i64(p + word + 8)
    return (require(p, BUFFER, 0 < width <= stride)
            and found(p, BUFFER, get_i64(p + word), (get_i64(p + ROWS) - 1) * stride + width, READ | WRITE))


@device(inline=False)
def verify_buffers(p: int, threads: int) -> bool:
    """Buffers that a pass writes."""
    size, wanted = get_i64(p + HEAD_SIZE), get_i64(p + WANTED)
    heads, kv_heads, wide = get_i64(p + HEADS), get_i64(p + KV_HEADS), 4 * get_i64(p + FEED_FORWARD)
    logits, stride = 64 * get_i64(p + OUTPUT_WEIGHT + GROUPS), get_i64(p + LOGITS_STRIDE)
    group = heads // max(kv_heads, 1)
    rows = group * max(1, min(MOST_TOKENS, TILE_ROWS // max(group, 1)))
    states = (VALUES + 4 * size) * rows
    widest = 4 * max(get_i64(p + EMBEDDING), max(get_i64(p + FEED_FORWARD), heads * size))
    return (require(p, BUFFER, size > 0 and kv_heads > 0 and group * kv_heads == heads)
            and found(p, BUFFER, get_i64(p + TEAM), LINES + LINE_NBYTES * threads, READ | WRITE)
            and verify_rows(p, RESIDUAL, 4 * get_i64(p + EMBEDDING))
            and verify_rows(p, PROJECTED, 4 * size * (heads + 2 * kv_heads))
            and verify_rows(p, ATTENDED, 4 * size * heads)
            and require(p, BUFFER, get_i64(p + UP_OFFSET) == wide) and verify_rows(p, HIDDEN, 2 * wide)
            and require(p, BUFFER, logits <= stride)
            and found(p, BUFFER, get_i64(p + LOGITS), stride * wanted, READ | WRITE)
            and found(p, BUFFER, get_i64(p + PRIVATE), threads * get_i64(p + PRIVATE_STRIDE), READ | WRITE)
            and require(p, BUFFER, get_i64(p + PRIVATE_ROW) >= 0
                        and get_i64(p + PRIVATE_ROW) + widest <= get_i64(p + PRIVATE_QUERY)
                        and get_i64(p + PRIVATE_QUERY) + 4 * size * rows <= get_i64(p + PRIVATE_TOTAL)
                        and get_i64(p + PRIVATE_TOTAL) + states <= get_i64(p + PRIVATE_PART)
                        and get_i64(p + PRIVATE_PART) + states <= get_i64(p + PRIVATE_SCRATCH)
                        and get_i64(p + PRIVATE_SCRATCH) < get_i64(p + PRIVATE_STRIDE)))


@device(inline=False)
def verify_cache(p: int) -> bool:
    """Strides of the cache within each other, and its kernels."""
    blocks = (get_i64(p + CONTEXT) + (BLOCK - 1)) // BLOCK
    nbytes = get_i64(p + CACHE_SLOTS) * get_i64(p + SLOT_STRIDE)
    query = get_i64(p + QUERY_KERNEL)
    return (require(p, CACHE, get_i64(p + HEAD_STRIDE) > 0
                    and get_i64(p + HEAD_STRIDE) * get_i64(p + KV_HEADS) <= get_i64(p + LAYER_STRIDE)
                    and get_i64(p + LAYER_STRIDE) * get_i64(p + BLOCKS) <= get_i64(p + BLOCK_STRIDE)
                    and get_i64(p + BLOCK_STRIDE) * blocks <= get_i64(p + SLOT_STRIDE))
            and found(p, CACHE, get_i64(p + KEYS), nbytes, READ | WRITE)
            and found(p, CACHE, get_i64(p + VALUES_), nbytes, READ | WRITE)
            and found(p, CODE, get_i64(p + REMEMBER), 1, CALL) and found(p, CODE, get_i64(p + ATTEND), 1, CALL)
            and (query == 0 or found(p, CODE, query, 1, CALL))
            and found(p, VECTOR, get_i64(p + TURNS), 4 * get_i64(p + HEAD_SIZE) * get_i64(p + CONTEXT), READ))


@device(inline=False)
def verify_tiles(p: int) -> bool:
    """Tiles within the batch and the cache; spans within their tile, and their states within PARTS."""
    table, tiles, heads = get_i64(p + TILE_TABLE), get_i64(p + TILES), get_i64(p + HEADS)
    each, group = VALUES + 4 * get_i64(p + HEAD_SIZE), heads // get_i64(p + KV_HEADS)
    most = max(1, min(MOST_TOKENS, TILE_ROWS // group))
    if not found(p, TILE, table, TILE_NBYTES * tiles, READ):
        return False
    for index in range(tiles):
        tile = table + TILE_NBYTES * index
        first, count, end = get_i64(tile + FIRST_ROW), get_i64(tile + COUNT), get_i64(tile + POSITION)
        end += count
        if not require(p, TILE, first >= 0 and 1 <= count <= most and first + count <= get_i64(p + ROWS)
                       and 0 <= get_i64(tile + SLOT) < get_i64(p + CACHE_SLOTS) and count <= end
                       and end <= get_i64(p + CONTEXT)):
            return False
        if get_i64(p + SPREAD) != 0 and not found(
                p, TILE, get_i64(p + PARTS) + each * get_i64(tile + FIRST_PART),
                each * count * heads * ((end + SPAN - 1) // SPAN), READ | WRITE):
            return False
        if get_i64(p + APART) != 0 and not verify_apart(p, table, index):
            return False
    return get_i64(p + SPREAD) == 0 or (
        found(p, TILE, get_i64(p + COUNTERS), COUNTER_NBYTES * tiles * get_i64(p + KV_HEADS), READ | WRITE)
        and verify_units(p, table, tiles))


@device
def verify_apart(p: int, table: int, index: int) -> bool:
    """Whether no tile before tile `index` has its slot."""
    for before in range(index):
        if get_i64(table + TILE_NBYTES * before + SLOT) == get_i64(table + TILE_NBYTES * index + SLOT):
            return refuse(p, TILE)
    return True


@device
def verify_units(p: int, table: int, tiles: int) -> bool:
    """Spans of tiles."""
    units, count = get_i64(p + UNIT_TABLE), get_i64(p + UNITS)
    if not found(p, TILE, units, UNIT_NBYTES * count, READ):
        return False
    for index in range(count):
        unit = units + UNIT_NBYTES * index
        number, span = get_i64(unit + UNIT_TILE), get_i64(unit + UNIT_SPAN)
        if not require(p, TILE, 0 <= number < tiles and span >= 0):
            return False
        tile = table + TILE_NBYTES * number
        if not require(p, TILE, span * SPAN < get_i64(tile + POSITION) + get_i64(tile + COUNT)):
            return False
    return True


@device(inline=False)
def verify_weight(p: int, w: int, rows: int, columns: int) -> bool:
    """One matrix of that shape: its packed rows, its kernels, its activations, its bias."""
    groups, each = (rows + 15) // 16, get_i64(w + TOKEN_NBYTES)
    quantise, fetch = get_i64(w + QUANTISE), get_i64(w + FETCH)
    if not require(p, WEIGHT, get_i64(w + GROUPS) == groups and get_i64(w + COLUMNS) == columns and each > 0
                   and get_i64(w + GROUP_NBYTES) > 0 and get_i64(w + TILE_GROUPS) > 0):
        return False
    if fetch == 0:
        if not found(p, WEIGHT, get_i64(w + ADDRESS), groups * get_i64(w + GROUP_NBYTES), READ):
            return False
    elif not found(p, CODE, fetch, 1, CALL):
        return False
    return (found(p, CODE, get_i64(w + PRODUCT), 1, CALL) and (quantise == 0 or found(p, CODE, quantise, 1, CALL))
            and found(p, BUFFER, get_i64(w + ACTIVATIONS), each * get_i64(p + ROWS), READ | WRITE)
            and require(p, BUFFER, get_i64(p + PRIVATE_SCRATCH) <= get_i64(w + PRIVATE_ACTIVATIONS)
                        and get_i64(w + PRIVATE_ACTIVATIONS) + each <= get_i64(p + PRIVATE_STRIDE))
            and (get_i64(w + BIAS) == 0 or found(p, VECTOR, get_i64(w + BIAS), 64 * groups, READ)))


@device(inline=False)
def verify_layers(p: int) -> bool:
    """The matrices and norms of every block of the model, the embedding and the output."""
    width, wide = get_i64(p + EMBEDDING), get_i64(p + FEED_FORWARD)
    queries, keys = get_i64(p + HEADS) * get_i64(p + HEAD_SIZE), get_i64(p + KV_HEADS) * get_i64(p + HEAD_SIZE)
    vocabulary, w = get_i64(p + VOCABULARY), p + EMBEDDING_WEIGHT
    if not (found(p, VECTOR, get_i64(p + LAYERS), LAYER_NBYTES * get_i64(p + BLOCKS), READ)
            and found(p, VECTOR, get_i64(p + OUTPUT_NORM), 4 * width, READ)
            and verify_weight(p, w, vocabulary, width) and found(p, CODE, get_i64(w + GATHER), 1, CALL)
            and verify_weight(p, p + OUTPUT_WEIGHT, vocabulary, width)):
        return False
    for index in range(get_i64(p + BLOCKS)):
        layer = get_i64(p + LAYERS) + LAYER_NBYTES * index
        if not (found(p, VECTOR, get_i64(layer + ATTENTION_NORM), 4 * width, READ)
                and found(p, VECTOR, get_i64(layer + FEED_FORWARD_NORM), 4 * width, READ)
                and verify_weight(p, layer + QUERY, queries, width) and verify_weight(p, layer + KEY, keys, width)
                and verify_weight(p, layer + VALUE, keys, width) and verify_weight(p, layer + OUTPUT, width, queries)
                and verify_weight(p, layer + GATE, wide, width) and verify_weight(p, layer + UP, wide, width)
                and verify_weight(p, layer + DOWN, width, wide)):
            return False
    return True


def step_verify(p: int, threads: int) -> None:
    """Whether the tables of a pass may be followed: the status word says."""
    if verify_batch(p) and verify_buffers(p, threads) and verify_cache(p) and verify_tiles(p):
        verify_layers(p)


if DEBUG:
    kernel("step_verify", "void(i8,i8)")(step_verify)
