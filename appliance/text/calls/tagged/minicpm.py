"""MiniCPM 5: `<function name="…">` and `<param name="…">`.

Source: the model's template.
"""

from __future__ import annotations

from appliance.text.calls.reading.heads import Head
from appliance.text.calls.tagged.shape import TaggedCalls, format_of

FORMAT = format_of("minicpm-5", lambda source: "<param name=" in source,
                   TaggedCalls(Head('<function name="{name}">'), "</function>", Head('<param name="{key}">'),
                               "</param>", quote=("<![CDATA[", "]]>"), between='\n<function name="'), ())
