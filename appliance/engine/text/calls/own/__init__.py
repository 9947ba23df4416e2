"""Formats that are like no other, one file each."""
