"""Plain model files opened without kernels: `boot.kernel_order` puts their rows in order."""

from __future__ import annotations

import functools

from appliance.boot.planning.footprint import known_roles
from appliance.models.sealed.order import interleave_into
from appliance.models.sources import resident, tagged

open_resident = functools.partial(resident.open_resident, interleave=interleave_into, roles=known_roles)
open_tagged = functools.partial(tagged.open_tagged, interleave=interleave_into)
