"""`appliance image`: one file a verb."""

from appliance.cli.image.image import add_arguments, run

__all__ = ["add_arguments", "run"]
