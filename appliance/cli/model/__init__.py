"""`appliance model`: one file a verb."""

from appliance.cli.model.model import add_arguments, run

__all__ = ["add_arguments", "run"]
