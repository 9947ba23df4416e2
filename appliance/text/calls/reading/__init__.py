"""The ground of all formats: pieces of an answer, a tape of its text, a writer of grammars."""

__all__ = ["format", "grammar", "heads", "pieces", "script", "tape", "thinking", "typed"]
