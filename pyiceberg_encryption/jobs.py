"""Jobs on whole tables. Each runs on Spark, or without a session in threads of this process."""

from __future__ import annotations

from pyiceberg_encryption.pipeline.encrypt import Encrypted, encrypt_in_place, encrypt_into
from pyiceberg_encryption.pipeline.orphans import remove_orphan_files
from pyiceberg_encryption.pipeline.rekey import Rekeyed, rekey
from pyiceberg_encryption.pipeline.report import Report
from pyiceberg_encryption.pipeline.verify import verify

__all__ = [
    "Encrypted",
    "Rekeyed",
    "Report",
    "encrypt_in_place",
    "encrypt_into",
    "rekey",
    "remove_orphan_files",
    "verify",
]
