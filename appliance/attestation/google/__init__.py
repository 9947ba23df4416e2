"""Google's word on the firmware of its confidential machines: launch endorsements, and where they are."""

__all__ = ["endorsement", "requests", "rule"]
