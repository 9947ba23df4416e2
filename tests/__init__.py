"""The test suite. Imported before numpy is: its matrix products run in one thread, for a pool of spinning threads
costs many times the work of our small matrices, and disturbs whatever else is timed."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
