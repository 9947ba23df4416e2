"""The boot sequence: policy, self-test, models, attestation, service."""

import os

# Numpy's linear algebra is not used, and its library starts threads when it is loaded: the sandbox
# wants to be entered by the only thread, so that none stays outside.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

__all__ = ["booted", "checks", "identity", "oneshot", "report", "sequence"]
