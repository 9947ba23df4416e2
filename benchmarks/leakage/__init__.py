"""The leak of requests, measured: pairs that differ in one thing, observers and classifiers."""
