"""Other projects' envelopes of evidence: a reader for each envelope, and the registry that names
them.

Nothing signs an envelope, so all that it says beside the evidence is a stranger's word. A reader
takes bytes apart and judges nothing.
"""

__all__ = ["registry"]
