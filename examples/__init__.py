"""Examples that tests and guides run. A package: no installed one of this name stands in for it."""
