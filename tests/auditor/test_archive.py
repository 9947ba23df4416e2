"""A pack's archive: each bit that is another is told by the name of a file, or as the archive's end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from appliance.auditor.archive import zipped
from appliance.errors import AuditError

CONTENT = {"policy.hcl": b"schema = 2\n", "empty": b"", "log/audit.jsonl": b"{}\n" * 100}


@pytest.mark.parametrize("form", [zipped.stored, zipped.entry])
def test_each_bit_is_told(form: Callable[[str, bytes], zipped.Entry]) -> None:
    """Also in the end's count: an entry that it counts and nobody wrote has no name. The bits that fill up the last
    byte of deflated content say nothing, and change nothing."""
    data = zipped.written([form(name, content) for name, content in CONTENT.items()])
    silent, errors = 0, list[AuditError]()
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        try:
            found = {name: each.content() for name, each in zipped.read(bytes(changed), lambda _: 1 << 20).items()}
        except AuditError as error:
            errors.append(error)
        else:
            assert CONTENT == found
            silent += 1
    assert silent < 8 * (form is zipped.entry) + 1
    words = {*CONTENT, "the archive's end"}
    assert [] == [error for error in errors if not any(word in error.summary for word in words)]
