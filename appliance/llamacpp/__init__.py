"""llama.cpp as a second engine, for developers. Never in the image."""

from appliance.llamacpp.choice import foreign_reason
from appliance.llamacpp.engine import ForeignSource, loaded, open_foreign

__all__ = ["ForeignSource", "foreign_reason", "loaded", "open_foreign"]
