"""The sources of a model's tiles: resident or streamed, plain or sealed."""
