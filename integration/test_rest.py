"""Encrypted tables in a REST catalog: Iceberg's reference server, and what others do to its requests and answers."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitStateUnknownException, NoSuchTableError

from integration import rest, servers, storage
from integration.proxy import Answer, Proxy, Request
from pyiceberg_encryption import load_catalog
from pyiceberg_encryption.catalogs.rest import KeysNotKeptError
from pyiceberg_encryption.errors import ConfigurationError, IntegrityError
from pyiceberg_encryption.table.models import encryption_keys, key_id
from tests.support import MEMORY_PROPERTIES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.table import Table

    from pyiceberg_encryption.catalogs import EncryptingCatalog

KMS = {"encryption.kms-type": "memory", **MEMORY_PROPERTIES}
SCHEMA = pa.schema([("id", pa.int64())])
ENCRYPTED = {"encryption.key-id": "keyA"}
UNKNOWN = "Cannot convert metadata update action: add-encryption-key"
REASON = {"message": UNKNOWN, "type": "BadRequestException", "code": 400}
REFUSAL = Answer(HTTPStatus.BAD_REQUEST, json.dumps({"error": REASON}).encode())


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids)}, schema=SCHEMA)


def ids(table: Table) -> list[int]:
    return sorted(table.scan().to_arrow()["id"].to_pylist())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    folder = tmp_path_factory.mktemp("rest")
    with contextlib.ExitStack() as stack:
        warehouse = rest.folder_of_warehouse(folder)
        uri = stack.enter_context(rest.server(folder, f"file://{warehouse}"))
        yield uri, warehouse


@pytest.fixture
def proxy(server: tuple[str, Path]) -> Iterator[Proxy]:
    with Proxy(server[0]) as proxy:
        yield proxy


@pytest.fixture
def honest(server: tuple[str, Path]) -> Iterator[EncryptingCatalog]:
    """With an empty namespace `db`."""
    with opened(server[0]) as catalog:
        catalog.create_namespace_if_not_exists("db")
        for name in catalog.list_tables("db"):
            catalog.drop_table(name)
        shutil.rmtree(server[1] / "db", ignore_errors=True)
        yield catalog


@contextlib.contextmanager
def opened(uri: str, **more: str) -> Iterator[EncryptingCatalog]:
    catalog = load_catalog("rest", type="rest", uri=uri, **{**KMS, **more})
    with catalog:
        yield catalog


def drop_keys(request: Request) -> Answer | None:
    """As a server that ignores what it does not know."""
    with updates_of(request) as updates:
        updates[:] = [update for update in updates if not update["action"].endswith("encryption-key")]
    return None


def refuse_keys(request: Request) -> Answer | None:
    with updates_of(request) as updates:
        return REFUSAL if any(update["action"] == "add-encryption-key" for update in updates) else None


def drop_key_ids(request: Request) -> Answer | None:
    with updates_of(request) as updates:
        for update in updates:
            update.get("snapshot", {}).pop("key-id", None)
    return None


@contextlib.contextmanager
def updates_of(request: Request) -> Iterator[list[Any]]:
    """What a commit asks for, which may be changed."""
    body = json.loads(request.body) if request.method == "POST" else {}
    yield body.get("updates", [])
    if request.method == "POST":
        request.body = json.dumps(body).encode()


@contextlib.contextmanager
def content_of(answer: Answer) -> Iterator[Any]:
    """What a server says, which may be changed."""
    content = json.loads(answer.body) if answer.status == HTTPStatus.OK and answer.body else {}
    yield content
    if content:
        answer.body = json.dumps(content).encode()


def manifests(warehouse: Path) -> int:
    """And manifest lists. Data files of a failed commit stay, as in PyIceberg."""
    return len(list((warehouse / "db" / "t").rglob("*.avro")))


def test_keys_and_lineage_are_on_the_server(honest: EncryptingCatalog, server: tuple[str, Path]) -> None:
    table = honest.create_table("db.t", SCHEMA, properties=ENCRYPTED)
    table.append(rows(1, 2))
    table.delete("id = 1")
    content = json.loads(Path(urlsplit(table.metadata_location).path).read_text())
    kek, *others = [key["key-id"] for key in content["encryption-keys"]]
    assert [snapshot["key-id"] for snapshot in content["snapshots"]] == others
    assert {key.get("encrypted-by-id") for key in content["encryption-keys"]} == {"keyA", kek}
    assert [snapshot["first-row-id"] for snapshot in content["snapshots"]] == [0, 2]
    with opened(server[0]) as other:
        found = other.load_table("db.t").scan(selected_fields=("id", "_row_id")).to_arrow().to_pylist()
    assert found == [{"id": 2, "_row_id": 1}]


@pytest.mark.parametrize("on_request", [drop_keys, refuse_keys])
def test_a_server_without_keys_gets_no_data(
    honest: EncryptingCatalog, proxy: Proxy, server: tuple[str, Path], on_request: Any
) -> None:
    proxy.on_request = on_request
    with opened(proxy.uri) as catalog:
        table = catalog.create_table("db.t", SCHEMA, properties=ENCRYPTED)
        with pytest.raises(KeysNotKeptError, match=r"does not keep the encryption keys of db\.t"):
            table.append(rows(1))
    assert honest.load_table("db.t").snapshots() == []
    assert manifests(server[1]) == 0


@pytest.mark.parametrize("on_request", [drop_keys, refuse_keys])
def test_a_table_created_with_data_is_gone_again(honest: EncryptingCatalog, proxy: Proxy, on_request: Any) -> None:
    proxy.on_request = on_request
    with opened(proxy.uri) as catalog:
        transaction = catalog.create_table_transaction("db.t", SCHEMA, properties=ENCRYPTED)
        transaction.append(rows(1))
        with pytest.raises(KeysNotKeptError):
            transaction.commit_transaction()
    with pytest.raises(NoSuchTableError):
        honest.load_table("db.t")


@pytest.mark.parametrize("branch", ["main", "side"])
def test_a_commit_whose_key_id_is_dropped_is_undone(
    honest: EncryptingCatalog, proxy: Proxy, server: tuple[str, Path], branch: str
) -> None:
    table = honest.create_table("db.t", SCHEMA, properties=ENCRYPTED)
    table.append(rows(1))
    before = honest.load_table("db.t")
    proxy.on_request = drop_key_ids
    with opened(proxy.uri) as catalog:
        table = catalog.load_table("db.t")
        if branch != "main":
            snapshot = table.current_snapshot()
            assert snapshot is not None
            table.manage_snapshots().create_branch(snapshot.snapshot_id, branch).commit()
        with pytest.raises(KeysNotKeptError, match="removed again"):
            table.append(rows(2), branch=branch)
    after = honest.load_table("db.t")
    assert after.snapshots() == before.snapshots()
    assert encryption_keys(after.metadata) == encryption_keys(before.metadata)
    assert ids(after) == [1]
    assert manifests(server[1]) == 2


@pytest.mark.parametrize("write", ["two appends", "overwrite", "upsert"])
def test_a_transaction_with_several_snapshots_is_undone(honest: EncryptingCatalog, proxy: Proxy, write: str) -> None:
    honest.create_table("db.t", SCHEMA, properties=ENCRYPTED).append(rows(1, 2))
    proxy.on_request = drop_key_ids
    with opened(proxy.uri) as catalog:
        table = catalog.load_table("db.t")
        with pytest.raises(KeysNotKeptError, match="removed again"):
            if write == "two appends":
                with table.transaction() as transaction:
                    transaction.append(rows(3))
                    transaction.append(rows(4))
            elif write == "overwrite":
                table.overwrite(rows(3), overwrite_filter="id = 1")
            else:
                table.upsert(rows(2, 5), join_cols=["id"], when_matched_update_all=False)
    assert ids(honest.load_table("db.t")) == [1, 2]
    assert len(honest.load_table("db.t").snapshots()) == 1


def test_a_server_that_undoes_nothing(honest: EncryptingCatalog, proxy: Proxy, server: tuple[str, Path]) -> None:
    honest.create_table("db.t", SCHEMA, properties=ENCRYPTED).append(rows(1))

    def on_request(request: Request) -> Answer | None:
        drop_key_ids(request)
        with updates_of(request) as updates:
            updates[:] = [update for update in updates if update["action"] != "remove-snapshots"]
        return None

    proxy.on_request = on_request
    with opened(proxy.uri) as catalog, pytest.raises(CommitStateUnknownException, match="could not undo"):
        catalog.load_table("db.t").append(rows(2))
    assert manifests(server[1]) == 4


def test_keys_lost_by_a_commit_that_adds_none(honest: EncryptingCatalog, proxy: Proxy) -> None:
    honest.create_table("db.t", SCHEMA, properties=ENCRYPTED).append(rows(1))
    with opened(proxy.uri) as catalog:
        table = catalog.load_table("db.t")

        def forget(request: Request, answer: Answer) -> None:
            with content_of(answer) as content:
                content.get("metadata", {}).pop("encryption-keys", None)

        proxy.on_answer = forget
        with pytest.raises(IntegrityError, match="lost the encryption keys"):
            table.transaction().set_properties(owner="somebody").commit_transaction()


def test_what_cannot_be_undone_is_said(honest: EncryptingCatalog, proxy: Proxy, server: tuple[str, Path]) -> None:
    honest.create_table("db.t", SCHEMA, properties=ENCRYPTED).append(rows(1))
    commits = 0

    def on_request(request: Request) -> Answer | None:
        nonlocal commits
        drop_key_ids(request)
        commits += request.method == "POST"
        return REFUSAL if commits > 1 else None

    proxy.on_request = on_request
    with opened(proxy.uri) as catalog, pytest.raises(CommitStateUnknownException, match="could not undo"):
        catalog.load_table("db.t").append(rows(2))
    assert manifests(server[1]) == 4  # what the server lists must not be deleted
    with pytest.raises(IntegrityError, match="no key"):
        ids(honest.load_table("db.t"))


def test_keys_missing_from_an_answer(honest: EncryptingCatalog, proxy: Proxy) -> None:
    honest.create_table("db.t", SCHEMA, properties=ENCRYPTED).append(rows(1))

    def drop_keys_of_answers(request: Request, answer: Answer) -> None:
        with content_of(answer) as content:
            content.get("metadata", {}).pop("encryption-keys", None)

    proxy.on_answer = drop_keys_of_answers
    with opened(proxy.uri) as catalog:
        table = catalog.load_table("db.t")
        with pytest.raises(IntegrityError, match="missing from the table's encryption-keys"):
            ids(table)
        with pytest.raises(IntegrityError):
            table.append(rows(2))


def test_another_table_than_was_asked_for(honest: EncryptingCatalog, proxy: Proxy) -> None:
    def without_properties(request: Request, answer: Answer) -> None:
        with content_of(answer) as content:
            if "metadata" in content:
                content["metadata"]["properties"] = {}

    proxy.on_answer = without_properties
    with opened(proxy.uri) as catalog, pytest.raises(ConfigurationError, match=r"encryption\.key-id None"):
        catalog.create_table("db.t", SCHEMA, properties=ENCRYPTED)
    with pytest.raises(NoSuchTableError):
        honest.load_table("db.t")


def test_the_server_can_ask_for_more_encryption_but_not_for_less(honest: EncryptingCatalog, proxy: Proxy) -> None:
    settings = {"encryption.required": "true", "table-default.encryption.key-id": "keyB"}
    weaker = {"encryption.plaintext-data-files": "admit", "encryption.required": "false", "kms.memory.key.keyA": "AAAA"}

    def configure(request: Request, answer: Answer) -> None:
        with content_of(answer) as content:
            if request.path.startswith("/v1/config"):
                content |= {"defaults": settings, "overrides": overrides}

    proxy.on_answer = configure
    overrides: dict[str, str] = {}
    with opened(proxy.uri) as catalog:
        assert catalog.create_table("db.t", SCHEMA).properties["encryption.key-id"] == "keyB"
        assert catalog._policy.required
    overrides = weaker
    with opened(proxy.uri, **{"encryption.required": "true"}) as catalog:
        assert catalog._policy.required
        assert not catalog._policy.admits_plaintext_data
        catalog.create_table("db.u", SCHEMA, properties=ENCRYPTED).append(rows(1))  # by the client's own keys
    assert ids(honest.load_table("db.u")) == [1]


def test_properties_of_encryption_stay(honest: EncryptingCatalog) -> None:
    table = honest.create_table("db.t", SCHEMA, properties=ENCRYPTED)
    for change in ({"encryption.key-id": "keyB"}, {"encryption.data-key-length": "32"}):
        with pytest.raises(ConfigurationError, match="cannot be changed"):
            table.transaction().set_properties(change).commit_transaction()
    with pytest.raises(ConfigurationError):
        table.transaction().remove_properties("encryption.key-id").commit_transaction()
    plain = honest.create_table("db.p", SCHEMA)
    with pytest.raises(ConfigurationError):
        plain.transaction().set_properties(ENCRYPTED).commit_transaction()


def test_registered_metadata_is_checked_before(honest: EncryptingCatalog, server: tuple[str, Path]) -> None:
    sql = load_catalog("sql", type="sql", uri="sqlite:///:memory:", warehouse=f"file://{server[1]}", **KMS)
    with sql:
        sql.create_namespace("db")
        table = sql.create_table("db.from_sql", SCHEMA, properties=ENCRYPTED)
        table.append(rows(1, 2))
    assert ids(honest.register_table("db.t", table.metadata_location)) == [1, 2]
    path = Path(table.metadata_location.removeprefix("file://"))
    path.write_text(path.read_text().replace("keyA", "keyB"))
    with pytest.raises(IntegrityError, match="changed or replaced"):
        honest.register_table("db.u", table.metadata_location)
    with pytest.raises(NoSuchTableError):
        honest.load_table("db.u")


@pytest.mark.parametrize("change", ["a column", "the key id", "the location", "code"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_the_server_registers_something_else(
    honest: EncryptingCatalog, proxy: Proxy, server: tuple[str, Path], change: str, overwrite: bool
) -> None:
    """As when the file is replaced between the look at it here and that of the server."""
    good = honest.create_table("db.t", SCHEMA, properties=ENCRYPTED)
    good.append(rows(7))
    with load_catalog("sql", type="sql", uri="sqlite:///:memory:", warehouse=f"file://{server[1]}", **KMS) as sql:
        sql.create_namespace("db")
        location = sql.create_table("db.from_sql", SCHEMA, properties=ENCRYPTED).metadata_location

    def swap(request: Request, answer: Answer) -> None:
        if not request.path.endswith("/register") or b"from_sql" not in request.body:
            return
        with content_of(answer) as content:
            metadata = content["metadata"]
            if change == "a column":
                metadata["schemas"][0]["fields"][0]["name"] = "other"
            elif change == "the key id":
                del metadata["properties"]["encryption.key-id"]
            elif change == "the location":
                metadata["location"] = "file:///tmp/elsewhere"
            else:
                metadata["properties"]["py-io-impl"] = "attackers.FileIO"

    def replace_by_register(request: Request) -> Answer | None:
        """Which the reference server refuses to do."""
        if request.path.endswith("/register"):
            body = json.loads(request.body)
            if body.pop("overwrite", False):
                path = request.path.replace("/register", f"/tables/{body['name']}")
                proxy.ask(Request("DELETE", path, b"", request.headers))
            request.body = json.dumps(body).encode()
        return None

    proxy.on_request, proxy.on_answer = replace_by_register, swap
    name = "db.t" if overwrite else "db.u"
    with opened(proxy.uri) as catalog, pytest.raises(IntegrityError):
        catalog.register_table(name, location, overwrite=overwrite)
    assert ids(honest.load_table("db.t")) == [7]
    assert not honest.table_exists("db.u")


def test_metadata_of_a_server_proves_nothing(honest: EncryptingCatalog, proxy: Proxy) -> None:
    """A server may read metadata from the storage, and then what it says is what the storage says."""
    honest.create_table("db.t", SCHEMA, properties=ENCRYPTED).append(rows(1))
    strict = {"encryption.unverified-metadata": "refuse"}
    with opened(proxy.uri, **strict) as catalog, pytest.raises(IntegrityError, match="comes from a REST server"):
        catalog.load_table("db.t")

    def name_code(request: Request, answer: Answer) -> None:
        with content_of(answer) as content:
            content.get("metadata", {}).get("properties", {})["py-io-impl"] = "attackers.FileIO"

    proxy.on_answer = name_code
    with opened(proxy.uri) as catalog, pytest.raises(IntegrityError, match="names code to be run"):
        catalog.load_table("db.t")


def test_plain_tables_are_as_in_pyiceberg(honest: EncryptingCatalog, server: tuple[str, Path]) -> None:
    table = honest.create_table("db.p", SCHEMA)
    table.append(rows(1))
    assert table.format_version == 2
    (file,) = (server[1] / "db" / "p").rglob("*.parquet")
    assert file.read_bytes()[:4] == b"PAR1"


PROGRAM = """
import sys, pyarrow as pa
from pyiceberg_encryption import load_catalog
catalog = load_catalog("rest")
if sys.argv[1] == "append":
    catalog.load_table("db.t").append(pa.table({"id": [int(sys.argv[2])]}))
print(sorted(catalog.load_table("db.t").scan().to_arrow()["id"].to_pylist()))
"""


def test_programs_in_turns_and_a_server_that_starts_anew(tmp_path: Path) -> None:
    """Each program has nothing but the catalog and the KMS, and so has the server nothing but its database."""
    port = servers.free_port()
    warehouse = f"file://{tmp_path}/warehouse"
    environment = {
        "PYICEBERG_CATALOG__REST__TYPE": "rest",
        "PYICEBERG_CATALOG__REST__URI": f"http://127.0.0.1:{port}",
        "PYICEBERG_CATALOG__REST__ENCRYPTION__KMS_TYPE": "local",
        "PYICEBERG_CATALOG__REST__KMS__LOCAL__KEYSTORE": str(tmp_path / "keystore.json"),
        "PYICEBERG_CATALOG__REST__KMS__LOCAL__PASSPHRASE": "a passphrase",
        "PYTHONPATH": str(Path(__file__).parent.parent),
        "HOME": str(tmp_path),
    }

    def run(*arguments: str) -> list[int]:
        command = [sys.executable, "-c", PROGRAM, *arguments]
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
        numbers: list[int] = json.loads(ran.stdout)
        return numbers

    from pyiceberg_encryption.kms.keystore import Keystore

    Keystore.create(tmp_path / "keystore.json", "a passphrase", ["keyA"])
    with rest.server(tmp_path, warehouse, port=port) as uri:
        with load_catalog("x", type="rest", uri=uri, **KMS) as catalog:
            catalog.create_namespace("db")
            catalog.create_table("db.t", SCHEMA, properties=ENCRYPTED)
        assert [run("append", str(number)) for number in range(3)] == [[0], [0, 1], [0, 1, 2]]
    with rest.server(tmp_path, warehouse, port=port):
        assert run("read") == [0, 1, 2]


def test_credentials_that_the_server_vends(tmp_path: Path) -> None:
    """The client knows where the storage is, and gets the keys to it with each table."""
    with storage.s3(tmp_path / "s3") as (client, _):
        with_s3 = {
            "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
            "s3.path-style-access": "true",
            "client.region": storage.REGION,
            "include-credentials": "true",
            **{name: client[name] for name in storage.S3_CLIENT},
        }
        place = {"s3.endpoint": client["s3.endpoint"], "s3.region": storage.REGION}
        with rest.server(tmp_path, f"s3://{storage.BUCKET}", with_s3) as uri, opened(uri, **place) as catalog:
            catalog.create_namespace("db")
            catalog.create_table("db.t", SCHEMA, properties=ENCRYPTED)
            table = catalog.load_table("db.t")
            table.append(rows(1, 2))
            assert table.config["s3.access-key-id"] == storage.ACCESS_KEY
            assert ids(catalog.load_table("db.t")) == [1, 2]
            assert all(key_id(snapshot) for snapshot in table.metadata.snapshots)
