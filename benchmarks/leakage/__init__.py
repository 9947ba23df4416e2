"""What an onlooker can tell of requests, measured: pairs of requests that differ in one thing, observers, classifiers.
"""
