"""Judge an audit log offline, against what was kept outside of it. Nothing here ships in the image.
"""

__all__ = ["archive", "bundle", "claims", "examine", "held", "outcome", "pack", "receipts", "records", "replay",
           "report", "statedisk", "unsealing"]
