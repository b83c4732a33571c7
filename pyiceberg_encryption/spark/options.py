"""The options of the data source: some of its own, and all else are properties of the catalog."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyiceberg_encryption.catalogs import load_catalog
from pyiceberg_encryption.errors import ConfigurationError
from pyiceberg_encryption.kms.registry import public_properties
from pyiceberg_encryption.spark.sql import is_credential
from pyiceberg_encryption.table.policy import EXPECTED_KEY_ID

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyiceberg_encryption.catalogs import EncryptingCatalog

CATALOG, TABLE = "catalog", "table"
# Of reads. Iceberg Java: SparkReadOptions, where it has them
COLUMNS, ROW_FILTER, CASE_SENSITIVE = "columns", "row-filter", "case-sensitive"
SNAPSHOT_ID, AS_OF_TIMESTAMP, BRANCH, TAG = "snapshot-id", "as-of-timestamp", "branch", "tag"
START_SNAPSHOT_ID, END_SNAPSHOT_ID = "start-snapshot-id", "end-snapshot-id"
SPLIT_SIZE, LOOKBACK, OPEN_FILE_COST = "split-size", "lookback", "file-open-cost"
# Of streams that read
FROM_TIMESTAMP = "stream-from-timestamp"
SKIP_DELETES, SKIP_OVERWRITES = "streaming-skip-delete-snapshots", "streaming-skip-overwrite-snapshots"
# Of writes
FANOUT, OVERWRITE_MODE, OVERWRITE_FILTER = "fanout-enabled", "overwrite-mode", "overwrite-filter"
CREATE, COMMIT_ID = "create-table", "commit-id"
SUMMARY_PREFIX, TABLE_PROPERTY_PREFIX = "snapshot-property.", "table-property."
_OF_SPARK = ("path", "checkpointlocation", "queryname")  # Spark adds these for itself, in lower case

_READS = frozenset(
    (
        *(COLUMNS, ROW_FILTER, CASE_SENSITIVE, SNAPSHOT_ID, AS_OF_TIMESTAMP, BRANCH, TAG),
        *(START_SNAPSHOT_ID, END_SNAPSHOT_ID, SPLIT_SIZE, LOOKBACK, OPEN_FILE_COST),
        *(FROM_TIMESTAMP, SKIP_DELETES, SKIP_OVERWRITES),
    )
)
_WRITES = frozenset((BRANCH, FANOUT, OVERWRITE_MODE, OVERWRITE_FILTER, CREATE, COMMIT_ID))
# As partitionOverwriteMode and replaceWhere, which users of Spark know
_OF_OTHER_FORMATS = re.compile(r"overwrite|replace|filter|where|merge-?schema")
_PASSWORD = re.compile(r"://[^/@]*:[^/@]+@|(password|pwd|secret|token|key)=", re.IGNORECASE)
_PREFIXES = (SUMMARY_PREFIX, TABLE_PROPERTY_PREFIX)


@dataclass(frozen=True)
class Options:
    catalog: str | None
    table: str
    own: Mapping[str, str]
    properties: Mapping[str, str]

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Options:
        options = {str(name).lower(): str(value) for name, value in given.items()}
        table = options.get(TABLE) or options.get("path")
        if not table:
            raise ConfigurationError("Name the table: .option('table', 'namespace.table')")
        own, properties = {}, {}
        for name, value in options.items():
            if name in (CATALOG, TABLE, *_OF_SPARK):
                continue
            if name in _READS | _WRITES or name.startswith(_PREFIXES):
                if not value and not name.startswith(_PREFIXES):
                    raise ConfigurationError(f"{name} is empty: leave it out, or set it")
                own[name] = value
            else:
                properties[name] = value
        for name, value in properties.items():
            _check_is_not_meant_otherwise(name)
            _check_may_be_shown(name, value)
        return cls(options.get(CATALOG), table, own, properties)

    def check_for_reading(self) -> None:
        self._check_no(_WRITES - _READS, "reads")

    def check_for_writing(self) -> None:
        """A filter that is meant to spare rows from an overwrite, and is one of reads, would spare none."""
        self._check_no(_READS - _WRITES, "writes")

    def _check_no(self, others: frozenset[str], what: str) -> None:
        found = sorted(others & self.own.keys())
        if found:
            raise ConfigurationError(f"{', '.join(found)}: not an option of {what}")

    def load_catalog(self) -> EncryptingCatalog:
        return load_catalog(self.catalog, **self.properties)

    def flag(self, name: str, default: bool) -> bool:
        text = self.own.get(name, str(default)).lower()
        if text not in ("true", "false"):
            raise ConfigurationError(f"{name} is {text!r}; it must be true or false")
        return text == "true"

    def number(self, name: str) -> int | None:
        text = self.own.get(name)
        if text is None:
            return None
        if not text.lstrip("-").isdigit():
            raise ConfigurationError(f"{name} is {text!r}; it must be a number")
        return int(text)

    def after(self, prefix: str) -> dict[str, str]:
        return {name[len(prefix) :]: value for name, value in self.own.items() if name.startswith(prefix)}


def _check_is_not_meant_otherwise(name: str) -> None:
    """A misspelt option would go to the catalog, which takes any property, and do nothing."""
    meant = difflib.get_close_matches(name, [CATALOG, TABLE, *sorted(_READS | _WRITES)], 1, 0.85)
    if meant:
        raise ConfigurationError(f"{name} is no option. Did you mean {meant[0]}?")
    if _OF_OTHER_FORMATS.search(name):
        raise ConfigurationError(
            f"{name} is no option of this format, and more would be overwritten than it asks for: see {OVERWRITE_MODE} "
            f"and {OVERWRITE_FILTER}"
        )


def _check_may_be_shown(name: str, value: str) -> None:
    """Spark shows options in its UI and keeps them in its event log, and does not know which of ours are secrets."""
    is_public = name.startswith("encryption.") or bool(public_properties({name: ""}))
    may_be_secret = name.startswith("kms.") or is_credential(name)
    if (may_be_secret and not is_public) or _PASSWORD.search(value):
        raise ConfigurationError(
            f"{name} may be a secret, and Spark would show it: set it in .pyiceberg.yaml, or in a variable "
            "PYICEBERG_CATALOG__…, on the driver and on the executors"
        )
    if name.startswith(f"{EXPECTED_KEY_ID}."):
        raise ConfigurationError(f"An option is about one table: set {EXPECTED_KEY_ID}, without the table's name")
