"""Examples that tests and guides run; a package, so that no installed one of this name stands in for it."""
