"""The facts of a model that a forward pass needs: its family, and numbers. How they are read:
`header`."""

from __future__ import annotations

from dataclasses import dataclass

from appliance.kernels.layouts.step import delta_log_nbytes, mamba_log_nbytes

CONTEXT_CAP = 32_768  # positions; the default limit, where the policy names none
HEAD_SIZES = range(32, 513, 16)  # what the attention kernels are built for
LEAST_FACTOR = 1e-3  # of rotary positions, which it divides: near zero they would have no sine


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding, and how positions are scaled."""

    scaling: str  # "none", "linear" or "yarn"
    base: float  # frequency base
    factor: float  # context extension; 1.0 without scaling
    original_context: int  # positions the model was trained on (YaRN, long factors)
    magnitude: float  # factor on cosine and sine
    fast: float = 32.0  # turns over the original context from which YaRN keeps a frequency
    slow: float = 1.0  # and up to which it scales one
    turned: int | None = None  # elements of a head that are turned; None: all
    halves: bool = False  # pairs are halves of those, not neighbours
    factors: bool = True  # whether the file's factors of frequencies hold
    whole: bool = True  # whether YaRN blends frequencies from a whole pair on, and up to one


@dataclass(frozen=True, slots=True)
class Convolution:
    """A short convolution over the rows of a text, column by column, in place of attention."""

    columns: int
    width: int  # rows that a row sees, its own included

    @property
    def projected(self) -> int:
        """Floats of a row that it reads: two factors and what is convolved."""
        return 3 * self.columns

    @property
    def result(self) -> int:
        """Floats of a row that it gives."""
        return self.columns

    @property
    def convolved(self) -> int:
        """Floats of a row that something else reads before there is a result."""
        return 0

    @property
    def state_floats(self) -> int:
        """Floats of the state of a text: the rows that the next one sees."""
        return (self.width - 1) * self.columns

    @property
    def head_log_nbytes(self) -> int:
        """Bytes that the heads need to read a guess again: there are none."""
        return 0


@dataclass(frozen=True, slots=True)
class Delta:
    """A gated delta rule behind a short convolution, in place of attention."""

    heads: int  # of values
    key_heads: int  # of queries, and of keys; each serves heads // key_heads value heads
    size: int  # floats of a head
    width: int  # rows that a row sees in the convolution, its own included
    together: bool  # whether value heads with the same keys lie together; else those of all keys take turns

    @property
    def columns(self) -> int:
        """Floats of a row that are convolved: queries, keys and values."""
        return (2 * self.key_heads + self.heads) * self.size

    @property
    def result(self) -> int:
        """Floats of a row that it gives."""
        return self.heads * self.size

    @property
    def convolved(self) -> int:
        """Floats of a row that the delta rule reads."""
        return self.columns

    @property
    def projected(self) -> int:
        """Floats of a row that it reads: columns, gates, and two numbers for each head."""
        return self.columns + self.result + 2 * (self.heads + 15)

    @property
    def state_floats(self) -> int:
        """Floats of the state of a text: rows that the next sees, and a matrix of each head."""
        return (self.width - 1) * self.columns + self.heads * self.size**2

    @property
    def head_log_nbytes(self) -> int:
        """Bytes that the heads need to read a guess again."""
        return self.heads * delta_log_nbytes(self.size)


@dataclass(frozen=True, slots=True)
class Mamba:
    """Mamba-2, in place of attention: what its heads get, and their keys and queries, go through a
    short convolution before."""

    inner: int  # floats of all heads
    heads: int
    groups: int  # of heads that share keys and queries
    size: int  # floats of a key
    width: int  # rows that the convolution sees

    @property
    def columns(self) -> int:
        """Floats of a row that are convolved: of heads, then of keys, then of queries."""
        return self.inner + 2 * self.groups * self.size

    @property
    def result(self) -> int:
        """Floats of a row that it gives: those of heads, behind which keys and queries lie."""
        return self.columns

    @property
    def convolved(self) -> int:
        """Floats of a row that something else reads before there is a result."""
        return 0

    @property
    def projected(self) -> int:
        """Floats of a row that it reads: gates, what is convolved, and the pace of each head."""
        return self.inner + self.columns + self.heads

    @property
    def state_floats(self) -> int:
        """Floats of the state of a text: that of the convolution, then those of heads."""
        return (self.width - 1) * self.columns + self.inner * self.size

    @property
    def head_log_nbytes(self) -> int:
        """Bytes that the heads need to read a guess again."""
        return self.heads * mamba_log_nbytes(self.inner // self.heads, self.size)


Recurrence = Convolution | Delta | Mamba
"""How a layer keeps a state of a text in place of keys and values."""


@dataclass(frozen=True, slots=True)
class Layer:
    """The numbers of one layer."""

    heads: int  # query heads
    kv_heads: int  # key and value heads; each serves heads // kv_heads query heads; 0: it does not attend
    head_size: int
    feed_forward: int  # 0: there is no network
    rope: Rope | None  # None: heads are not turned
    window: int = 0  # positions that a row sees, its own included; 0: all
    recurrence: Recurrence | None = None  # in place of attention

    @property
    def query_width(self) -> int:
        """Floats of all query heads of a row."""
        return self.heads * self.head_size

    @property
    def kv_width(self) -> int:
        """Floats of all key (or value) heads of a row."""
        return self.kv_heads * self.head_size

    @property
    def group(self) -> int:
        """Query heads that share a key-value head; 0 without any."""
        return self.heads // self.kv_heads if self.kv_heads else 0


@dataclass(frozen=True, slots=True)
class Scales:
    """Factors that most families do not have."""

    embedding: float = 1.0
    query: float | None = None  # None: one over the root of the head size
    residual: float = 1.0  # of what a layer adds
    logits: float = 1.0
    cap: float = 0.0  # of logits; 0: none
    temperature: float = 0.0  # of queries, by the logarithm of their position
    temperature_step: int = 1  # positions, see `rotations.query_scales`


@dataclass(frozen=True, slots=True)
class Mixture:
    """The experts of a model, which are in all layers from `leading` on."""

    count: int
    used: int  # by each row
    width: int  # floats of a hidden row of one expert
    score: str  # "softmax", "chosen" or "sigmoid"
    least: float  # that weights are divided by, which is else their sum; 0: they are not
    added: float = 0.0  # to that sum
    scale: float = 1.0  # of weights
    groups: int = 1  # of experts with neighbouring numbers
    groups_used: int = 1  # groups that a row may choose from
    shared: int = 0  # floats of a hidden row of the shared expert; 0: there is none
    leading: int = 0  # layers without experts, the first ones
    beside: bool = False  # whether there is a dense network beside them


@dataclass(frozen=True, slots=True)
class Architecture:
    """The dimensions of one model. All counts are positive and within the ranges that the kernels
    take. Where layers differ, `heads` to `feed_forward` are the most of any."""

    family: str  # its row in `table`
    layers: int
    embedding: int  # floats of a residual row
    heads: int
    kv_heads: int
    head_size: int
    feed_forward: int
    vocabulary: int
    context_length: int  # positions that the file promises
    epsilon: float  # of the norms
    rope: Rope | None  # of the first layer that turns its heads; None: no layer does
    each: tuple[Layer, ...] = ()  # empty: all layers are alike
    window: int = 0  # of each layer, where they are alike
    scales: Scales = Scales()
    mixture: Mixture | None = None
    left_out: int = 0  # layers of the file, behind the others
    joined: bool = False  # whether a row joins a token with a row of another model: see `tensors.guess_head`

    def mixes(self, index: int) -> bool:
        """Whether a layer has experts."""
        return self.mixture is not None and index >= self.mixture.leading and self.layer(index).feed_forward > 0

    @property
    def stateful(self) -> bool:
        """Whether layers keep a state of a text, which cannot go back to an earlier position."""
        return any(layer.recurrence is not None for layer in self.every)

    @property
    def hidden(self) -> int:
        """Floats of a hidden row that every row has, at most."""
        beside = self.mixture is not None and self.mixture.beside
        own = [layer.feed_forward for index, layer in enumerate(self.every) if beside or not self.mixes(index)]
        return max([*own, *([] if self.mixture is None else [self.mixture.shared])])

    def layer(self, index: int) -> Layer:
        """The numbers of a layer."""
        return self.each[index] if self.each else Layer(self.heads, self.kv_heads, self.head_size, self.feed_forward,
                                                        self.rope, self.window)

    @property
    def every(self) -> tuple[Layer, ...]:
        """The numbers of all layers."""
        return tuple(map(self.layer, range(self.layers)))

    @property
    def query_width(self) -> int:
        """Floats of all query heads of a row, at most."""
        return max(layer.query_width for layer in self.every)

    @property
    def kv_width(self) -> int:
        """Floats of all key (or value) heads of a row, at most."""
        return max(layer.kv_width for layer in self.every)

    @property
    def group(self) -> int:
        """Query heads that share a key-value head, at most."""
        return max(layer.group for layer in self.every)

    def context(self, limit: int | None = None) -> int:
        """Positions to serve: the wanted number (None: CONTEXT_CAP), at most what the file
        promises."""
        return min(self.context_length, CONTEXT_CAP if limit is None else limit)
