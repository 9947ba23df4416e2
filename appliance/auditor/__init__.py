"""Judge an audit log offline, against what was kept outside of it. Nothing here ships in the image.
"""

__all__ = ["bundle", "examine", "held", "receipts", "records", "replay"]
