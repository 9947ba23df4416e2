"""The search of a text by an automaton."""
