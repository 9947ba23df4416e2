"""The sources of a model's tiles: resident or streamed, plain or sealed."""

__all__ = [
    "hidden_rows", "native", "read_ahead", "resident", "sealed_resident", "source", "streamed",
    "tagged", "tile_threads", "worker",
]
