"""Functionary: `<function=name>{…}</function>` of v3.1.

Source: MeetKai's functionary, and the models' templates.
"""

from __future__ import annotations

from appliance.text.calls.named.shape import NamedCalls, format_of
from appliance.text.calls.reading.heads import Head

_SHAPE = NamedCalls("<function=", Head("{name}>"), "</function>")

FORMAT = format_of("functionary-3.1", lambda source: "</function>" in source and "<function=' + " in source
                   and "<parameter=" not in source, _SHAPE, ())
