"""The framework's caches of words of callers, switched off.

Litestar keeps the paths of a thousand requests, with the names in them, their queries and their
cookies. That spares less time than a request's other work takes.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from litestar import Litestar

_CACHE: Any = functools._lru_cache_wrapper  # the type of what `functools.lru_cache` makes


def uncache(app: Litestar) -> Litestar:
    """Return the application, with every cache of the framework's functions and of its own router
    off."""
    for name, module in tuple(sys.modules.items()):
        if name.partition(".")[0] == "litestar":
            for owner in (module, *(each for each in vars(module).values() if isinstance(each, type))):
                _without_caches(owner)
    router: Any = app.asgi_router
    if isinstance(router.handle_routing, _CACHE):
        router.handle_routing = router.handle_routing.__wrapped__
    return app


def _without_caches(owner: Any) -> None:
    """Put functions in the place of their caches in a module, and in a class of the framework."""
    if isinstance(owner, type) and not owner.__module__.startswith("litestar."):
        return
    for name, value in tuple(vars(owner).items()):
        if isinstance(value, _CACHE):
            setattr(owner, name, value.__wrapped__)
        elif isinstance(value, classmethod) and isinstance(value.__func__, _CACHE):
            setattr(owner, name, classmethod(value.__func__.__wrapped__))
