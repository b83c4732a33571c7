from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.table_support import Lake


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    from tests.table_support import Lake

    lake = Lake(tmp_path)
    yield lake
    lake.close()
