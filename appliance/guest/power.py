"""Switch the machine off."""

from __future__ import annotations

import ctypes
import os
import time
from typing import NoReturn

_POWER_OFF = 0x4321FEDC  # linux/reboot.h, LINUX_REBOOT_CMD_POWER_OFF
_DRAIN_SECONDS = 0.2  # for the console


def off() -> NoReturn:
    """Power off; does not return."""
    os.sync()
    time.sleep(_DRAIN_SECONDS)
    ctypes.CDLL(None, use_errno=True).reboot(ctypes.c_int(_POWER_OFF))
    while True:
        time.sleep(60)
