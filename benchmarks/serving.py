"""The loop of a measured process: one JSON command a line in, one JSON answer a line out.

Commands carry `do` and arguments; an engine is an object with methods of these names, each
measuring itself and answering seconds:

    open(model, threads, context, slots)   load a model; further calls replace it
    first(tokens)                          logits after `tokens` in an empty context
    decode(depth, tokens)                  single tokens after `depth` positions
    batch(sequences, depth, tokens)        `tokens` steps of one token for each of `sequences`
    limits()                               optional: read bandwidth and integer peak of this machine
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any, TextIO


def spread(token: int, sequence: int, vocabulary: int) -> int:
    """Return a token for one of many sequences. They differ: by its token, a sequence chooses the
    experts of a mixture."""
    return 3 + (token + 101 * sequence) % (vocabulary - 3)


def answers() -> TextIO:
    """The stream for answers: what was standard output. Text that libraries print there goes to
    standard error.
    """
    kept = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(kept, "w")


def serve(engine: Any) -> None:
    """Serve commands until the input ends; Ctrl+C, which a terminal sends to all, is for who gave
    them to tell of."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    out = answers()
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = getattr(engine, command.pop("do"))(**command)
        except Exception as error:  # noqa: BLE001  the runner shows it, and goes on with the others
            answer = {"error": f"{type(error).__name__}: {error}"}
        out.write(json.dumps(answer) + "\n")
        out.flush()
