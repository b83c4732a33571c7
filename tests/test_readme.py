"""What the README shows, works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def test_the_examples_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    examples = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(examples) == 2
    for example in examples:
        exec(compile(example, "README.md", "exec"), {})
    assert (tmp_path / "snap-1.avro").read_bytes().startswith(b"AGS1")


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
)
def test_links_lead_somewhere(page: str | Path) -> None:
    path = ROOT / page
    for link in re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text()):
        assert (path.parent / link).exists(), link
