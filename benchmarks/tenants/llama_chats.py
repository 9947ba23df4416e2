"""llama.cpp's server as a process, by the Python of an environment that has `xllamacpp`: `PYTHON
llama_chats.py MODEL THREADS SLOTS CONTEXT`. It writes its port, and ends with its input. It imports
nothing of this project."""

from __future__ import annotations

import socket
import sys
from typing import Any


def main() -> None:
    """Serve until standard input ends."""
    import xllamacpp as llama  # type: ignore[import-not-found]  # of the other environment

    model, threads, slots, context = sys.argv[1], *map(int, sys.argv[2:5])
    params: Any = llama.CommonParams()
    params.model.path = model
    params.n_parallel, params.n_ctx = slots, slots * context
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.cache_prompt = True
    params.hostnames = ["127.0.0.1"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        params.port = free.getsockname()[1]
    server = llama.Server(params)  # held: it ends with its last reference
    print(params.port, flush=True)
    sys.stdin.read()
    del server


if __name__ == "__main__":
    main()
