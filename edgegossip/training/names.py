"""Names in recipes: the nearest valid choice, and a user's custom `module:function`."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from edgegossip.choices import did_you_mean
from edgegossip.types import ConfigError, EdgegossipError, UsageError


def unknown(key: str, value: str, choices: Iterable[str]) -> ConfigError:
    """Return the error for a value that is none of `choices`; it names the nearest one."""
    names = sorted(choices)
    if not names:
        return ConfigError(f"{key} = {value!r} is not known, and there is nothing to choose from")
    return ConfigError(f"{key} = {value!r} is not known{did_you_mean(value, names)} (choices: {', '.join(names)})")


def check_params(key: str, name: str, params: Iterable[str], allowed: Sequence[str]) -> None:
    """Raise ConfigError for a parameter, set at `key` of a recipe, that `name` has not."""
    for param in params:
        if not allowed:
            raise ConfigError(f"{key}.{param} cannot be set: {name} has no parameters")
        if param not in allowed:
            raise unknown(f"a key of {key} for {name}", param, allowed)


def is_custom_function(name: str) -> bool:
    """Tell whether a recipe's name is a user's own `module:function`."""
    return ":" in name


def import_function(key: str, spec: str) -> Callable[..., Any]:
    """Import the function that `spec` = "module:function" names. The current directory is
    importable, as with `python -m`.

    Raises ConfigError when the text is malformed or nothing of that name exists, UsageError when
    importing the module fails."""
    module_name, _, attribute = spec.partition(":")
    if not (module_name and attribute.isidentifier()):
        raise ConfigError(f"{key} = {spec!r} must read module:function, such as my_models:build")
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(error.name + ".")):
            raise ConfigError(
                f"{key} = {spec!r}: no module {module_name!r} in {os.getcwd()} or among the installed packages"
            ) from None
        raise UsageError(f"{spec}: importing {module_name} failed: {error}") from error
    except Exception as error:
        raise UsageError(f"{spec}: importing {module_name} failed: {type(error).__name__}: {error}") from error
    function = getattr(module, attribute, None)
    if not callable(function):
        own = [n for n, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == module_name]
        raise unknown(key, spec, [f"{module_name}:{n}" for n in own if not n.startswith("_")])
    found: Callable[..., Any] = function
    return found


def call_custom(spec: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a user's function. Whatever it raises becomes a UsageError that names it and keeps the
    original message."""
    try:
        return function(*args, **kwargs)
    except EdgegossipError:
        raise
    except Exception as error:
        failure = UsageError(f"{spec} failed: {type(error).__name__}: {error}")
        failure.public_message = f"{spec} failed: {type(error).__name__} (its message stays in that board's log)"
        raise failure from error
