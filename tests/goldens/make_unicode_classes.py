"""Write appliance/text/tokenizer/unicode_classes.json from the Unicode Character Database, version 15.1.

Run with Python 3.13, whose `unicodedata` is that version: `python3.13 tests/goldens/make_unicode_classes.py`.
"""

from __future__ import annotations

import json
import sys
import unicodedata
from pathlib import Path

VERSION = "15.1.0"
TARGET = Path(__file__).parents[2] / "appliance/text/tokenizer/unicode_classes.json"
# White_Space of PropList.txt beyond ASCII; str.isspace() differs from it (U+001C to U+001F).
WHITE_SPACE = frozenset([0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000])
SAYS = (
    "Each entry is a first code point (hexadecimal) and the class from there to the next entry: L letter, N number, "
    "P punctuation, S symbol, M mark, w white space, o anything else (control, format, surrogate, private use, "
    "unassigned). llama.cpp classes by the same version.")


def class_of(code: int) -> str:
    """The class letter of one code point."""
    if code in WHITE_SPACE:
        return "w"
    major = unicodedata.category(chr(code))[0]
    return major if major in "LNPSM" else "o"


def main() -> None:
    """Write the table."""
    if unicodedata.unidata_version != VERSION:
        sys.exit(f"this Python has Unicode {unicodedata.unidata_version}; needed: {VERSION} (Python 3.13)")
    entries, last = [], ""
    for code in range(0x80, 0x110000):
        name = class_of(code)
        if name != last:
            entries.append(f"{code:x}{name}")
            last = name
    rows, row = [], ""
    for entry in entries:
        if len(row) + len(entry) + 1 > 110:
            rows.append(row)
            row = ""
        row = f"{row} {entry}" if row else entry
    found = {"made_by": "tests/goldens/make_unicode_classes.py", "says": SAYS, "unicode": VERSION,
             "ranges": [*rows, row]}
    TARGET.write_text(json.dumps(found, indent=1) + "\n", encoding="ascii")


if __name__ == "__main__":
    main()
