"""Tells an object whether it is still in the process that made it, for much less than a call of os.getpid costs."""

from __future__ import annotations

import os

_generation = 0


def generation() -> int:
    """A number that differs between a process and the children it forks."""
    return _generation


def _forked() -> None:
    global _generation
    _generation += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
