"""Benchmarks of a served appliance with several tenants: each is a program, `python -m
benchmarks.tenants.NAME`."""
