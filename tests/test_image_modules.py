"""What the image leaves out of the appliance, it can do without."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from appliance.imaging import recipe, tree

ROOT = Path(__file__).parents[1]

LOADED = """
import sys
from appliance.cli.main import main
try:
    main(["serve", "--help"])
finally:
    print("\\n".join(sorted(name for name in sys.modules if name.split(".")[0] == "appliance")), file=sys.stderr)
"""


def test_the_service_loads_nothing_that_the_image_leaves_out() -> None:
    """By the names of modules after `appliance serve --help`, which declares the arguments and ends."""
    prune = recipe.load().prune
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=False, cwd=ROOT)
    names = done.stderr.split()
    assert "appliance.cli.serve" in names
    places = (name.replace(".", "/") for name in names)
    files = [path for place in places for path in (f"{place}.py", f"{place}/__init__.py") if (ROOT / path).is_file()]
    assert len(names) == len(files)
    assert [] == [file for file in files if tree.matches(file, prune["appliance"])
                  and not tree.matches(file, prune["keep"])]
