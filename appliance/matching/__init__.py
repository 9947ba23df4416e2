"""Matches of redaction patterns, the same ones as Python's `re` finds, in linear time by
construction.

    characters   which characters a set matches, and which sets a character belongs to
    tree         a parsed pattern as nodes
    program      nodes to the two programs that the `find_spans` kernel follows
    search       run them on a text
"""

from appliance.matching.characters import GROUP, PAGE, POINTS, Ranges, alphabet
from appliance.matching.search import Automaton, Places, Points, Spans, points

__all__ = ["GROUP", "PAGE", "POINTS", "Automaton", "Places", "Points", "Ranges", "Spans", "alphabet", "points"]
