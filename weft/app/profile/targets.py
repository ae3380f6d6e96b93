"""The target and the device of a profile, as named by the user."""

from __future__ import annotations

import platform

import torch

from weft.runtime.interface.factory import FactoryError, load_factory
from weft.runtime.interface.training import Training


class ProfileFault(ValueError):
    """The target cannot be profiled; the message names it and gives the reason."""


def load_stages(stages: str) -> Training:
    """The return value of the function named by ``FILE.py:FUNCTION`` or ``MODULE:FUNCTION``, called without arguments.

    Raises :class:`ProfileFault`.
    """
    try:
        return load_factory(stages)()
    except FactoryError as error:
        raise ProfileFault(str(error)) from error


def device_of(name: str | None) -> torch.device:
    """The device named ``cpu`` or ``cuda``; without a name, a GPU if there is one. Raises :class:`ProfileFault`."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(name)
    except RuntimeError:
        raise ProfileFault(f"--device is {name!r}, it must be cpu or cuda") from None
    if found.type not in ("cpu", "cuda") or (found.type == "cuda" and not torch.cuda.is_available()):
        raise ProfileFault(f"--device is {name!r}, but torch here has no such device")
    return found


def device_name(device: torch.device) -> str:
    """The device's name in a file of figures."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU ({platform.machine()}, 1 thread)"
