"""Google's word on the firmware of its confidential machines: launch endorsements."""

__all__ = ["endorsement", "launches", "requests", "rule"]
