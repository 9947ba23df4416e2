"""The process sandbox: what a process gives up before it reads a key or a model."""

import os

# Numpy's linear algebra is not used, and its library starts threads when it is loaded: the sandbox
# wants to be entered by the only thread, so that none stays outside.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

__all__ = ["box", "capabilities", "hardening", "landlock", "measure", "syscalls"]
