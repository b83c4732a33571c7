"""Classes that properties name."""

from __future__ import annotations

import importlib
from typing import Any

from pyiceberg_encryption.errors import ConfigurationError, EncryptionError


def import_class(path: str, property_name: str) -> Any:
    module_name, _, class_name = path.replace(":", ".").rpartition(".")
    if not module_name:
        raise ConfigurationError(f"{property_name} is {path!r}; write it as module.Class")
    try:
        return getattr(importlib.import_module(module_name), class_name)
    except EncryptionError:
        raise
    except Exception as error:
        needs_more = isinstance(error, ModuleNotFoundError) and not path.startswith(str(error.name))
        advice = ". Install that, or this package with the extra that brings it" if needs_more else ""
        raise ConfigurationError(f"{property_name} needs {path}, which cannot be imported: {error}{advice}") from error
