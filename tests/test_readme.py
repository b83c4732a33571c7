"""What the README shows, works."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent


def test_the_examples_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    examples = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(examples) == 2
    for example in examples:
        names: dict[str, Any] = {}
        exec(compile(example, "README.md", "exec"), names)
        if "catalog" in names:
            names["catalog"].close()
    (manifest_list, *_) = (tmp_path / "warehouse").rglob("snap-*.avro")
    assert manifest_list.read_bytes().startswith(b"AGS1")


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
)
def test_links_lead_somewhere(page: str | Path) -> None:
    path = ROOT / page
    for link in re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text()):
        assert (path.parent / link).exists(), link
