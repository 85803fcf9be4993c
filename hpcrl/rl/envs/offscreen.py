"""Which GL library MuJoCo draws with, on machines that mostly have no display."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from importlib.util import find_spec

from hpcrl.catalogue.environments import OWN_ENVIRONMENTS
from hpcrl.errors import UsageError

# By the value of MUJOCO_GL. MuJoCo reads that variable once, when it is imported.
_LIBRARIES = {"egl": "libEGL.so.1", "osmesa": "libOSMesa.so.8"}
# Other values that MuJoCo knows: those that draw on a screen, and those that draw nothing.
_ON_SCREEN = ("glfw", "glx", "enable", "enabled", "on", "true", "1")
_OFF = ("disable", "disabled", "off", "false", "0")
_INSTALL = "install a GL library (Debian: libegl1, libgl1 and libgl1-mesa-dri, or libosmesa6 with MUJOCO_GL=osmesa; conda: mesalib)"


def choose_gl() -> str:
    """Return MUJOCO_GL. If it is not set, set it to EGL, or to OSMesa where EGL cannot be loaded.

    DISPLAY does not come first: Slurm hands that of the login node to a job, where it does not lead to a screen.

    Raises:
        UsageError: MUJOCO_GL names what cannot draw here, or neither can be loaded, and there is no display.
    """
    if given := os.environ.get("MUJOCO_GL"):
        if wrong := fault_of_drawing(os.environ):
            raise UsageError(wrong)
        return given
    if name := next(filter(_can_be_loaded, _LIBRARIES), None):
        os.environ["MUJOCO_GL"] = name
        return name
    if os.environ.get("DISPLAY"):
        return "glfw"  # MuJoCo's own choice
    raise _without_library()


def fault_of_drawing(variables: Mapping[str, str]) -> str | None:
    """Say why a process with these environment variables could not draw here; None if it could, as far as its GL library tells.

    MuJoCo is neither needed nor imported.
    """
    if given := variables.get("MUJOCO_GL", "").lower().strip():
        wrong = _fault_of(given, bool(variables.get("DISPLAY")))
        mend = f"unset it, or {_INSTALL}" if given in _LIBRARIES else "unset it, or set it to egl or osmesa"
        return str(cannot_draw(f"MUJOCO_GL is {given}, {wrong}", mend)) if wrong else None
    if variables.get("DISPLAY") or any(map(_can_be_loaded, _LIBRARIES)):
        return None
    return str(_without_library())


def fault_of_name(environment: str, variables: Mapping[str, str]) -> str | None:
    """Say that MuJoCo cannot be imported with these variables, also where nothing is drawn; None if it can, if the environment is none of MuJoCo's, or
    if Gymnasium is not installed here.
    """
    given = variables.get("MUJOCO_GL", "").lower().strip()
    own = OWN_ENVIRONMENTS.get(environment)
    concerned = own.drawn if own else is_mujoco(environment)
    if not given or given in (*_ON_SCREEN, *_OFF) or not concerned:
        return None
    if given not in _LIBRARIES:
        return f"MUJOCO_GL is {given}, and MuJoCo knows egl, osmesa and glfw: set it to one of them, or unset it"
    wrong = _fault_of(given, has_display=False)
    return wrong and f"MUJOCO_GL is {given}, {wrong}, so that MuJoCo cannot be imported: unset it, or {_INSTALL}"


def is_mujoco(environment: str) -> bool:
    """Tell whether an environment is one of Gymnasium's with MuJoCo; False if Gymnasium is not installed here."""
    if not find_spec("gymnasium"):
        return False
    from gymnasium.envs.registration import registry

    known = registry.get(environment)
    return "mujoco" in str(known and known.entry_point)


def _fault_of(given: str, has_display: bool) -> str | None:
    """Say what is wrong with a value of MUJOCO_GL here; None if nothing is known to be."""
    if given in _LIBRARIES:
        return None if _can_be_loaded(given) else f"and {_LIBRARIES[given]} cannot be loaded"
    if given in _ON_SCREEN:
        return None if has_display else "which needs a display, and DISPLAY is not set"
    return "which turns drawing off" if given in _OFF else "and MuJoCo knows egl, osmesa and glfw"


def _can_be_loaded(name: str) -> bool:
    try:
        ctypes.CDLL(_LIBRARIES[name])
    except OSError:
        return False
    return True


def _without_library() -> UsageError:
    return cannot_draw(f"neither {' nor '.join(_LIBRARIES.values())} can be loaded")


def cannot_draw(reason: str, mend: str = _INSTALL) -> UsageError:
    """Return the error of an environment that has images, where nothing can draw them."""
    return UsageError(f"MuJoCo cannot draw images here: {reason.rstrip('.')}: {mend}")
