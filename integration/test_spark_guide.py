"""The steps of docs/spark.md, as someone who follows them does them: in an empty folder, one after the other."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from integration import spark

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).parent.parent
GUIDE = (ROOT / "docs" / "spark.md").read_text()


def test_the_steps_from_a_plaintext_lake_to_an_encrypted_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps, _, others = GUIDE.partition("## The data source")
    lake = tmp_path / "lake"
    (configuration,) = re.findall(r"```yaml\n(.*?)```", steps, re.DOTALL)
    (tmp_path / ".pyiceberg.yaml").write_text(configuration.replace("/tmp/lake", str(lake)))
    (stream,) = (code for code in re.findall(r"```python\n(.*?)```", others, re.DOTALL) if "readStream" in code)
    copy = 'catalog.create_table("shop.copy", rows.schema, properties={"encryption.key-id": "orders"})\n'
    program = [
        *re.findall(r"```python\n(.*?)```", steps, re.DOTALL),
        copy + stream.replace("/tmp/lake", str(lake)),
        'assert query.awaitTermination(120) and catalog.load_table("shop.copy").scan().count() == 1100',
    ]
    assert len(program) == 8
    monkeypatch.setenv("JAVA_HOME", str(spark.java_home()))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(program)], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "1000 rows" in done.stdout
    files = [path for path in lake.rglob("*") if path.suffix in (".parquet", ".avro")]
    assert files and not [path for path in files if path.read_bytes()[:4] not in (b"PARE", b"AGS1")]
