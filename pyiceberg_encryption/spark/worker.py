"""Python processes of Spark, each of which serves one task after the other."""

from __future__ import annotations

import gc
import os
import sys
import zipimport
from functools import cache


def make_ready_for_next_task() -> None:
    """Between two tasks Spark has all objects searched for garbage, and all zip files on the path for new modules.

    With the modules that are imported here, that takes longer than a small task. What stays for good is left out.
    """
    if "SPARK_REUSE_WORKER" not in os.environ:
        return
    _freeze_what_is_imported()
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimport.zipimporter):  # Python makes another when it next imports
            sys.path_importer_cache.pop(path, None)
            getattr(zipimport, "_zip_directory_cache", {}).pop(finder.archive, None)


@cache
def _freeze_what_is_imported() -> None:
    gc.collect()
    gc.freeze()
