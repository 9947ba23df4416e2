"""Block formats of ggml that do not run here, each with the nearest that does."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

# By ggml's number: name, weights of a block, bytes of a block. With these a file that uses them can
# still be described.
SIZES: Mapping[int, tuple[str, int, int]] = MappingProxyType({
    number: (name, elements, nbytes) for number, name, elements, nbytes in (
        (15, "Q8_K", 256, 292), (16, "IQ2_XXS", 256, 66), (17, "IQ2_XS", 256, 74), (18, "IQ3_XXS", 256, 98),
        (19, "IQ1_S", 256, 50), (21, "IQ3_S", 256, 110), (22, "IQ2_S", 256, 82), (24, "I8", 1, 1), (25, "I16", 1, 2),
        (26, "I32", 1, 4), (27, "I64", 1, 8), (28, "F64", 1, 8), (29, "IQ1_M", 256, 56), (31, "Q4_0_4_4", 32, 18),
        (32, "Q4_0_4_8", 32, 18), (33, "Q4_0_8_8", 32, 18), (34, "TQ1_0", 256, 54), (35, "TQ2_0", 256, 66),
        (36, "IQ4_NL_4_4", 32, 18), (37, "IQ4_NL_4_8", 32, 18), (38, "IQ4_NL_8_8", 32, 18), (40, "NVFP4", 64, 36),
        (41, "Q1_0", 128, 18))})
UNSIZED = MappingProxyType({4: "Q4_2", 5: "Q4_3", 42: "Q2_0"})  # names of those whose sizes are not known here
_NEAREST: Mapping[str, str] = MappingProxyType({
    "Q8_K": "Q8_0", "NVFP4": "MXFP4", "F64": "F32", "Q4_2": "Q4_0", "Q4_3": "Q4_1",
    **dict.fromkeys(("Q4_0_4_4", "Q4_0_4_8", "Q4_0_8_8"), "Q4_0"),
    **dict.fromkeys(("IQ4_NL_4_4", "IQ4_NL_4_8", "IQ4_NL_8_8"), "IQ4_NL"),
    **dict.fromkeys(("IQ3_XXS", "IQ3_S"), "Q3_K"),
    **dict.fromkeys(("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ1_S", "IQ1_M", "TQ1_0", "TQ2_0", "Q1_0", "Q2_0"), "Q2_K")})


def name_of(ggml_id: int) -> str | None:
    """The name of a format; None for a number that ggml never used."""
    return SIZES[ggml_id][0] if ggml_id in SIZES else UNSIZED.get(ggml_id)


def use(name: str) -> str:
    """Return the remedy for a file with weights in a format that does not run."""
    nearest = _NEAREST.get(name)
    return ("no weights are stored so: use another file of the model" if nearest is None else
            f"use a file quantised to {nearest}, the nearest that runs; or to Q4_K_M, if there is no other")
