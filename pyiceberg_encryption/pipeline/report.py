"""What was found out about the files of a table."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

Problem = Literal["plaintext", "damaged", "missing", "orphaned", "unreadable"]
FileKind = Literal["metadata", "statistics", "manifest list", "manifest", "data", "delete"]
FILE_KINDS: tuple[FileKind, ...] = ("metadata", "statistics", "manifest list", "manifest", "data", "delete")


@dataclass(frozen=True)
class Finding:
    """`unreadable` is what could not be looked at, so that it is not known whether it is sound."""

    problem: Problem
    path: str
    reason: str


@dataclass(frozen=True)
class Count:
    files: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class KekUse:
    """`files` are those to which the manifest lists lead that it sealed, these included. A file can have several."""

    kek_id: str
    master_key_id: str | None
    files: int


@dataclass(frozen=True)
class Report:
    table: str
    metadata_location: str
    counts: Mapping[FileKind, Count]
    unproven_metadata: int  # metadata files whose name does not prove their content. No damage, but no proof either
    keks: tuple[KekUse, ...]
    findings: tuple[Finding, ...]
    orphans_not_sought: str | None  # why orphans were not looked for, if so

    @property
    def ok(self) -> bool:
        return not self.findings

    @property
    def exit_code(self) -> int:
        return 0 if self.ok else 1

    def to_json(self) -> str:
        return json.dumps({"ok": self.ok, **asdict(self)}, indent=2)

    def __str__(self) -> str:
        problems = Counter(finding.problem for finding in self.findings)
        verdict = ", ".join(f"{number} {problem}" for problem, number in problems.items()) or "all is well"
        lines = [f"{self.table}: {verdict}", f"  {self.metadata_location}"]
        lines += [
            f"  {kind:<13} {count.files:>9,} files {count.bytes:>20,} bytes" for kind, count in self.counts.items()
        ]
        if self.unproven_metadata:
            lines.append(f"  {self.unproven_metadata} of the metadata files have names that prove nothing")
        lines += [f"  KEK {kek.kek_id} of master key {kek.master_key_id}: {kek.files:,} files" for kek in self.keks]
        if self.orphans_not_sought:
            lines.append(f"  Orphans were not looked for: {self.orphans_not_sought}")
        lines += [f"  {finding.problem}: {finding.path}: {finding.reason}" for finding in self.findings]
        return "\n".join(lines)
