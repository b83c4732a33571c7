"""Storages, each with a FileIO that reaches it, on servers of their own kind and on the local disk."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
from pyarrow.fs import AwsStandardS3RetryStrategy

from integration import servers, tools

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ARROW = "pyiceberg.io.pyarrow.PyArrowFileIO"
FSSPEC = "pyiceberg.io.fsspec.FsspecFileIO"

ACCESS_KEY = "testing"
SECRET_KEY = "testing-secret"
REGION = "us-east-1"
BUCKET = "warehouse"
S3_CLIENT = ("s3.endpoint", "s3.access-key-id", "s3.secret-access-key")  # Iceberg Java has the same names

# Azurite's well-known account: https://learn.microsoft.com/azure/storage/common/storage-use-azurite
AZURE_ACCOUNT = "devstoreaccount1"
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


class OneAttempt(AwsStandardS3RetryStrategy):  # type: ignore[misc]
    """For `s3.retry-strategy-impl`."""

    def __init__(self) -> None:
        super().__init__(max_attempts=1)


@dataclass(frozen=True)
class Storage:
    """Where tables are, and the folder of this machine in which the server keeps their bytes."""

    name: str
    warehouse: str
    folder: Path
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def place(self) -> str:
        return self.name.partition(",")[0]


def local(folder: Path, file_io: str = ARROW) -> Storage:
    return Storage(f"local, {_short(file_io)}", f"file://{folder}", folder, {"py-io-impl": file_io})


@contextlib.contextmanager
def s3(folder: Path) -> Iterator[tuple[dict[str, str], Path]]:
    """versitygw, which keeps objects as files of a folder. Yields the properties of a client, and the folder."""
    endpoint, others_folder = (servers.started_by_others(what) for what in ("S3_ENDPOINT", "S3_FOLDER"))
    if endpoint and others_folder:
        yield _s3_client(endpoint), Path(others_folder)
        return
    folder.mkdir(exist_ok=True)
    port = servers.free_port()
    command = [str(tools.versitygw()), "--access", ACCESS_KEY, "--secret", SECRET_KEY, "--region", REGION]
    with servers.running([*command, "--port", f"127.0.0.1:{port}", "--quiet", "posix", str(folder)], port):
        yield _s3_client(f"http://127.0.0.1:{port}"), folder


def _s3_client(endpoint: str) -> dict[str, str]:
    """With its bucket made."""
    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name=REGION,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
    )
    with contextlib.suppress(client.exceptions.BucketAlreadyOwnedByYou, client.exceptions.BucketAlreadyExists):
        client.create_bucket(Bucket=BUCKET)
    client.close()
    return {
        "s3.endpoint": endpoint,
        "s3.region": REGION,
        "s3.access-key-id": ACCESS_KEY,
        "s3.secret-access-key": SECRET_KEY,
        "s3.force-virtual-addressing": "false",
    }


def on_s3(folder: Path, client: Mapping[str, str], file_io: str) -> Storage:
    return Storage(f"S3, {_short(file_io)}", f"s3://{BUCKET}", folder, {**client, "py-io-impl": file_io})


@contextlib.contextmanager
def azure(folder: Path) -> Iterator[dict[str, str]]:
    """Azurite. Yields the properties of a client."""
    folder.mkdir(exist_ok=True)
    port = servers.free_port()
    command = [*tools.azurite(), "--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(folder)]
    with servers.running([*command, "--silent", "--skipApiVersionCheck"], port):
        from azure.storage.blob import BlobServiceClient

        connection = (
            f"DefaultEndpointsProtocol=http;AccountName={AZURE_ACCOUNT};AccountKey={AZURE_KEY};"
            f"BlobEndpoint=http://127.0.0.1:{port}/{AZURE_ACCOUNT};"
        )
        with BlobServiceClient.from_connection_string(connection) as client:
            client.create_container(BUCKET)
        yield {
            "adls.connection-string": connection,
            "adls.account-name": AZURE_ACCOUNT,
            "adls.account-key": AZURE_KEY,
            "adls.blob-storage-authority": f"127.0.0.1:{port}",
            "adls.blob-storage-scheme": "http",
            "adls.dfs-storage-authority": f"127.0.0.1:{port}",
            "adls.dfs-storage-scheme": "http",
        }


def on_azure(folder: Path, client: Mapping[str, str], file_io: str) -> Storage:
    return Storage(f"Azure Blob, {_short(file_io)}", f"abfs://{BUCKET}", folder, {**client, "py-io-impl": file_io})


def _short(file_io: str) -> str:
    return "PyArrow" if file_io == ARROW else "fsspec"
