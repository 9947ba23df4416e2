"""Formats whose calls are tags, one for each argument, one file each: `shape` reads and writes them
all."""
