"""The data source in Spark, beside Iceberg Java's runtime in the same session, on several catalogs and storages."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse

import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)

from integration.environments import Environments
from integration.spark import QUICK, configured
from integration.storage import BUCKET
from integration.unitest_kms import UnitestKms
from pyiceberg_encryption.catalogs import load_catalog
from pyiceberg_encryption.catalogs.base import checked
from pyiceberg_encryption.kms.registry import JAVA_KMS_IMPL, KMS_TYPE, PY_KMS_IMPL

pytest.importorskip("pyspark", reason="needs Spark: `pip install --group test`")

from pyiceberg_encryption.spark import register
from pyiceberg_encryption.spark.sql import add_java_catalog, java_catalog_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.table import Table

    from integration.conftest import SparkOnHive
    from pyiceberg_encryption.catalogs import EncryptingCatalog

# PySpark leaves sockets to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

NAMESPACE = "source"
KEY = {"encryption.key-id": "keyA"}
CREATED = {"create-table": "true", "table-property.encryption.key-id": "keyA"}
HIVE, HIVE_ON_S3 = "Hive", "Hive on S3"
OTHERS = [
    ("SQL (SQLite)", "local, PyArrow"),
    ("SQL (SQLite)", "S3, fsspec"),
    ("REST", "local, fsspec"),
    ("REST", "S3, PyArrow"),
]
JAVA_PROPERTIES = "tblproperties ('format-version' = '3', 'encryption.key-id' = 'keyA'{})"
ZONE = "America/Los_Angeles"  # in which a day has another date than in UTC
KMS = {PY_KMS_IMPL: f"{UnitestKms.__module__}.{UnitestKms.__name__}"}

INNER = StructType(
    NestedField(101, "an_id", UUIDType()),
    NestedField(102, "at", TimestamptzType()),
    NestedField(103, "some", ListType(104, DecimalType(5, 2), element_required=False)),
)
TYPES = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "a_boolean", BooleanType()),
    NestedField(3, "an_int", IntegerType()),
    NestedField(4, "a_float", FloatType()),
    NestedField(5, "a_double", DoubleType()),
    NestedField(6, "a_decimal", DecimalType(38, 9)),
    NestedField(7, "a_date", DateType()),
    NestedField(8, "at", TimestamptzType()),
    NestedField(9, "at_ntz", TimestampType()),
    NestedField(10, "a_string", StringType()),
    NestedField(11, "a_binary", BinaryType()),
    NestedField(12, "a_uuid", UUIDType()),
    NestedField(13, "a_fixed", FixedType(3)),
    NestedField(14, "a_list", ListType(15, StringType(), element_required=False)),
    NestedField(16, "a_map", MapType(17, StringType(), 18, LongType(), value_required=False)),
    NestedField(19, "a_struct", INNER),
    NestedField(20, "ids", ListType(21, UUIDType(), element_required=False)),
    NestedField(22, "structs", ListType(23, INNER, element_required=False)),
    NestedField(24, "by_name", MapType(25, StringType(), 26, INNER, value_required=False)),
)
AN_ID, ANOTHER_ID = "00000000-0000-0000-0000-000000000007", "f79c3e09-677c-4bbd-a479-3f349cb785e7"
STRUCT = f"named_struct('an_id', '{AN_ID}', 'at', timestamp'1969-12-31 23:00:00.000001', 'some', array(1.50, null))"
NULL_STRUCT = "named_struct('an_id', null, 'at', null, 'some', null)"
ROWS = [
    f"""1, true, -2147483648, 1.5, 0.1, -12345678901234567890.123456789, date'1969-07-20',
    timestamp'2024-01-01 00:00:00', timestamp_ntz'2024-01-01 00:00:00', 'Grüße 🔑', X'00ff', '{AN_ID}', X'616263',
    array('a', null), map('k', 1, 'n', null), {STRUCT}, array('{ANOTHER_ID}', null), array({STRUCT}, null),
    map('one', {STRUCT}, 'none', null)""",
    f"""2, false, 7, float('nan'), double('nan'), 1.5, date'2024-02-29', timestamp'1969-12-31 16:00:00',
    timestamp_ntz'1960-01-02 03:04:05.000006', '', X'', '{ANOTHER_ID}', X'000102',
    array(), map(), {NULL_STRUCT}, array(), array({NULL_STRUCT}), map()""",
    """3, null, 0, float('-infinity'), -0.0, 0, date'0001-01-01', timestamp'1500-01-01 00:00:00',
    timestamp_ntz'9999-12-31 23:59:59.999999', 'x', X'01', null, null, null, null, null, null, null, null""",
    ", ".join(["4", *["null"] * (len(TYPES.fields) - 1)]),
]
FILTERS = [
    "a_boolean",
    "not a_boolean",
    "an_int <> 7 and an_int in (7, 0, -2147483648)",
    "a_float >= float('-infinity') and a_float < 2",
    "a_double = double('nan')",
    "a_double = 0.0",
    "a_decimal = 1.5",
    "a_decimal in (1.5, 0)",
    "a_date < date'1970-01-01' and a_date > date'0001-01-01'",
    "at >= timestamp'2024-01-01 00:00:00'",
    "at in (timestamp'1969-12-31 16:00:00', null)",
    "at_ntz <= timestamp_ntz'1960-01-02 03:04:05.000006'",
    "a_string like 'Gr%' and a_string >= 'G'",
    "a_string <=> ''",
    "a_binary = X'00ff'",
    f"a_uuid = '{AN_ID}'",
    f"a_struct.an_id = '{AN_ID}' and a_struct.at < timestamp'1970-01-01 00:00:00'",
    "a_struct.at is null and a_string is not null",
    "a_list is null or a_map['k'] = 1",
]
# In Spark NaN is greater than any number. Iceberg Java passes over files that have nothing else.
FILTERS_OF_NAN = ["a_double > 0.05", "a_float > float('-infinity')"]


class Source:
    """Tables of a catalog, in the data source and in PyIceberg."""

    def __init__(self, session: Any, catalog: EncryptingCatalog, location: str | None = None) -> None:
        """A Hive metastore makes tables in the location of their namespace, wherever the catalog's warehouse is."""
        self.session = session
        self.catalog = catalog
        self.namespace = NAMESPACE if location is None else location.rpartition("/")[2]
        catalog.create_namespace_if_not_exists(self.namespace, {} if location is None else {"location": location})

    def create(self, name: str, schema: Schema, **more: Any) -> Table:
        properties = {**KEY, **more.pop("properties", {})}
        return self.catalog.create_table((self.namespace, name), schema, properties=properties, **more)

    def table(self, name: str) -> Table:
        return self.catalog.load_table((self.namespace, name))

    def options(self, name: str, options: dict[str, str]) -> dict[str, str]:
        own = {option.replace("_", "-"): text for option, text in options.items()}
        return {"catalog": self.catalog.name, "table": f"{self.namespace}.{name}", **own}

    def read(self, name: str, schema: str | None = None, **options: str) -> Any:
        reader = self.session.read.format("iceberg_encrypted").options(**self.options(name, options))
        return (reader if schema is None else reader.schema(schema)).load()

    def write(self, frame: Any, name: str, mode: str = "append", **options: str) -> None:
        frame.write.format("iceberg_encrypted").options(**self.options(name, options)).mode(mode).save()


class Both(Source):
    """Beside Iceberg Java, in the same session."""

    def java(self, statement: str) -> Any:
        """In the statement, {n} is the namespace."""
        return self.session.sql(statement.replace("{n}", f"h.{NAMESPACE}"))

    def agree(self, name: str, *filters: str, columns: str = "*", **options: str) -> list[str]:
        """Whether Java and the data source read the same rows. Returns them, as text."""
        for text in ("true", *filters):
            expected = as_text(self.java(f"select {columns} from {{n}}.{name} where {text}"))
            assert as_text(self.read(name, **options).filter(text).selectExpr(*columns.split(", "))) == expected, text
        return as_text(self.java(f"select {columns} from {{n}}.{name}"))


def as_text(frame: Any) -> list[str]:
    """For NaN is not equal to itself."""
    return sorted(map(str, frame.collect()))


def ids(frame: Any) -> list[int]:
    return sorted(row.id for row in frame.select("id").collect())


@pytest.fixture(scope="module")
def catalogs(tmp_path_factory: pytest.TempPathFactory, spark_on_hive: SparkOnHive) -> Iterator[dict[str, str]]:
    """The names of catalogs by what they are, all configured where every process finds it, and no other secret."""
    home = tmp_path_factory.mktemp("home")
    hive = {"type": "hive", "uri": spark_on_hive.uri, "warehouse": f"file://{spark_on_hive.warehouse}"}
    with Environments(tmp_path_factory.mktemp("environments")) as environments:
        on_s3 = environments.storage("S3, PyArrow")
        kinds = {HIVE: hive, HIVE_ON_S3: {**hive, **on_s3.properties, "warehouse": on_s3.warehouse}}
        for kind, place in OTHERS:
            kinds[f"{kind} on {place}"] = environments.properties(kind, environments.storage(place))
        names = {name: f"catalog_{number}" for number, name in enumerate(kinds)}
        own = {names[name]: {**without_kms(properties), **KMS} for name, properties in kinds.items()}
        with configured(spark_on_hive.session, home, own):
            yield names


def without_kms(properties: dict[str, str]) -> dict[str, str]:
    return {name: text for name, text in properties.items() if name != KMS_TYPE and not name.startswith("kms.")}


@contextlib.contextmanager
def new_session(spark: Any, **how: bool) -> Iterator[Any]:
    """With settings and data sources of its own."""
    session, in_java = spark.newSession(), spark._jvm.org.apache.spark.sql.classic.SparkSession
    before = in_java.active()
    in_java.setActiveSession(session._jsparkSession)  # where Java looks for both
    for name, value in {**QUICK, "spark.sql.session.timeZone": ZONE}.items():
        session.conf.set(name, value)
    register(session, **how)
    yield session
    in_java.setActiveSession(before)


@pytest.fixture(scope="module")
def session(spark_on_hive: SparkOnHive, catalogs: dict[str, str]) -> Iterator[Any]:
    with new_session(spark_on_hive.session) as session:
        yield session


@pytest.fixture(scope="module")
def both(session: Any, catalogs: dict[str, str]) -> Iterator[Both]:
    with load_catalog(catalogs[HIVE]) as catalog:
        yield Both(session, checked(catalog))


@pytest.fixture
def filtering(both: Both) -> Iterator[Both]:
    """Filters of queries come to the source."""
    with new_session(both.session, push_filters=True) as session:
        yield Both(session, both.catalog)


def of_all_types(session: Any) -> Any:
    """As Spark has them: UUIDs are text."""
    selected = " union all ".join(f"select {row}" for row in ROWS)
    columns = session.sql(selected).toDF(*(field.name for field in TYPES.fields))
    kinds = {
        "an_int": "int",
        "a_float": "float",
        "a_double": "double",
        "a_decimal": "decimal(38,9)",
        "a_map": "map<string,bigint>",
        "id": "bigint",
    }
    struct = "struct<an_id:string,at:timestamp,some:array<decimal(5,2)>>"
    kinds |= {"a_struct": struct, "structs": f"array<{struct}>", "by_name": f"map<string,{struct}>"}
    return columns.selectExpr(
        *(f"cast({name} as {kinds[name]}) as {name}" if name in kinds else name for name in columns.columns)
    )


# All types


def test_java_and_the_source_read_the_same_values(both: Both) -> None:
    frame = of_all_types(both.session)
    written = as_text(frame)
    for name in ("types_of_java", "types_of_source"):
        both.create(name, TYPES)
    frame.writeTo(f"h.{NAMESPACE}.types_of_java").append()
    both.write(frame, "types_of_source")
    for name in ("types_of_java", "types_of_source"):
        assert as_text(both.java(f"select * from {{n}}.{name}")) == written
        assert as_text(both.read(name)) == written


def test_filters_find_the_same_rows_in_files_that_the_other_wrote(filtering: Both) -> None:
    frame = of_all_types(filtering.session)
    for text in [*FILTERS, *FILTERS_OF_NAN]:
        expected = ids(frame.filter(text))
        assert ids(filtering.read("types_of_java").filter(text)) == expected, text
        if text in FILTERS:
            assert ids(filtering.java(f"select id from {{n}}.types_of_source where {text}")) == expected, text


def test_files_that_a_filter_rules_out_are_not_read(filtering: Both) -> None:
    """Each row of this table has a file of its own, and here each file is read by a task of its own."""
    split = {"split_size": "1", "file_open_cost": "1"}
    assert filtering.read("types_of_source", **split).rdd.getNumPartitions() == 4
    assert filtering.read("types_of_source", **split).filter("an_int >= 0").rdd.getNumPartitions() == 2
    assert filtering.read("types_of_source", row_filter="a_date < '1970-01-01'", **split).rdd.getNumPartitions() == 2


def test_a_frame_is_used_again(both: Both) -> None:
    """Of which Spark would read no more than what the first filter let pass, if it offered filters."""
    frame = both.read("types_of_source")
    assert ids(frame.filter("id > 2")) == [3, 4]
    assert ids(frame.filter("id < 2").union(frame.filter("id > 3"))) == [1, 4]
    assert ids(frame) == [1, 2, 3, 4]


# Catalogs and storages


@pytest.mark.parametrize(("kind", "place"), OTHERS)
def test_spark_and_pyiceberg_read_what_the_other_wrote(
    session: Any, catalogs: dict[str, str], kind: str, place: str
) -> None:
    frame = of_all_types(session).selectExpr("*", "'a b' as kind")
    written = as_text(frame)
    schema = Schema(*TYPES.fields, NestedField(30, "kind", StringType()))
    spec = PartitionSpec(PartitionField(30, 1000, IdentityTransform(), "kind"))
    name = place.replace(", ", "_").lower()
    with load_catalog(catalogs[f"{kind} on {place}"]) as catalog:
        source = Source(session, checked(catalog))
        source.create(name, schema, partition_spec=spec)
        source.write(frame, name)
        assert as_text(source.read(name)) == written
        rows = source.table(name).scan("id < 3").to_arrow()
        assert sorted(rows["id"].to_pylist()) == [1, 2]
        source.table(name).append(rows)
        assert as_text(source.read(name)) == sorted([*written, *as_text(frame.filter("id < 3"))])
        source.write(frame.filter("id > 2"), name, "overwrite", overwrite_mode="dynamic")
        assert as_text(source.read(name, row_filter="kind = 'a b'")) == as_text(frame.filter("id > 2"))
        source.write(frame.select("id", "a_string"), f"new_{name}", **CREATED)
        created = source.table(f"new_{name}").schema().fields
        assert [(field.name, field.required) for field in created] == [("id", False), ("a_string", False)]
        assert sorted(source.table(f"new_{name}").scan().to_arrow()["id"].to_pylist()) == [1, 2, 3, 4]


def test_java_and_the_source_take_turns_on_s3(session: Any, catalogs: dict[str, str]) -> None:
    """The configuration of the one is that of the other."""
    name, own = catalogs[HIVE_ON_S3], {JAVA_KMS_IMPL: "org.apache.iceberg.encryption.UnitestKMS"}
    add_java_catalog(session, java_catalog_settings(name, own, spark_name="s3", with_credentials=True))
    frame = of_all_types(session)
    with load_catalog(name) as catalog:
        source = Source(session, checked(catalog), f"s3://{BUCKET}/on_s3")
        source.create("t", TYPES, partition_spec=PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "id")))
        source.write(frame.filter("id < 3"), "t")
        frame.filter("id >= 3").writeTo("s3.on_s3.t").append()
        written = as_text(frame)
        assert as_text(session.table("s3.on_s3.t")) == as_text(source.read("t")) == written
        assert source.table("t").location().startswith(f"s3://{BUCKET}/")
        session.sql("delete from s3.on_s3.t where id = 1")
        source.write(frame.filter("id = 2"), "t", "overwrite", overwrite_mode="dynamic")
        source.table("t").append(source.table("t").scan("id = 2").to_arrow())
        rest = as_text(frame.filter("id > 1").union(frame.filter("id = 2")))
        assert as_text(session.table("s3.on_s3.t")) == as_text(source.read("t")) == rest


# Partitions and evolution

PARTITIONED = """
    create table {n}.partitioned (id bigint, kind string, data string, at timestamp, later timestamp_ntz) using iceberg
    partitioned by (kind, bucket(3, id), truncate(2, data), days(at), hours(later)) """
SOME_ROWS = """
    select id, concat('kind ', id % 3) as kind, if(id % 7 = 0, null, concat(id, '/row=', id)) as data,
    if(id % 5 = 0, null, timestamp'2023-12-31 22:30:00' + make_interval(0, 0, 0, 0, id)) as at,
    timestamp_ntz'1969-12-31 23:30:00' + make_interval(0, 0, 0, 0, id) as later from range({first}, {last})"""


def some_rows(session: Any, first: int, last: int) -> Any:
    return session.sql(SOME_ROWS.format(first=first, last=last))


def test_partitioned_tables(both: Both) -> None:
    both.java(PARTITIONED + JAVA_PROPERTIES.format(""))
    some_rows(both.session, 0, 12).writeTo(f"h.{NAMESPACE}.partitioned").append()
    both.write(some_rows(both.session, 12, 24), "partitioned")
    found = both.agree(
        "partitioned",
        "kind = 'kind 1' and id > 3",
        "data like '1%'",
        "at >= timestamp'2024-01-01 00:00:00' and at < timestamp'2024-01-01 12:00:00'",
        "later < timestamp_ntz'1970-01-01 00:00:00'",
    )
    assert len(found) == 24
    partitions = both.java(
        "select partition, count(*) as files from {n}.partitioned.files group by partition"
    ).collect()
    assert len(partitions) > 15
    both.write(some_rows(both.session, 12, 13), "partitioned", "overwrite", overwrite_mode="dynamic")
    assert both.agree("partitioned") == found
    both.write(some_rows(both.session, 30, 33), "partitioned", "overwrite", overwrite_filter="kind = 'kind 0'")
    kept = [number for number in range(24) if number % 3]
    assert ids(both.read("partitioned")) == [*kept, 30, 31, 32]
    both.write(some_rows(both.session, 1, 3), "partitioned", "overwrite")
    assert ids(both.read("partitioned")) == ids(both.java("select id from {n}.partitioned")) == [1, 2]


def test_rows_that_come_sorted_need_no_fanout(both: Both) -> None:
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "kind", StringType()))
    both.create("sorted", schema, partition_spec=PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "kind")))
    frame = both.session.sql("select id, concat('kind ', id % 3) as kind from range(0, 300, 1, 1)")
    both.write(frame.sortWithinPartitions("kind"), "sorted", fanout_enabled="false")
    assert len(both.agree("sorted")) == 300
    with pytest.raises(Exception, match="Sort them by partition"):
        many = both.session.sql("select id, concat('kind ', id % 3) as kind from range(0, 100000, 1, 1)")
        both.write(many, "sorted", fanout_enabled="false")
    assert stored(both.table("sorted")) == listed(both.table("sorted"))


def test_evolved_tables(both: Both) -> None:
    both.java(
        "create table {n}.evolved (id int, name string, gone string, x float, d decimal(5, 2), "
        "s struct<a: int, b: string>, l array<struct<c: int>>) using iceberg partitioned by (name) "
        + JAVA_PROPERTIES.format("")
    )
    both.java(
        "insert into {n}.evolved values (1, 'a', 'g', 1.5, 1.25, named_struct('a', 1, 'b', 'x'), "
        "array(named_struct('c', 1), null)), (2, 'b', null, null, null, null, null)"
    )
    for change in (
        *("alter column id type bigint", "alter column x type double", "alter column d type decimal(10, 2)"),
        *("rename column name to title", "drop column gone", "add column more map<string, int> first"),
        *("add column s.z timestamp", "drop column s.b", "add column l.element.e string", "alter column s.z first"),
        *("replace partition field title with bucket(2, id)", "add column gone int"),
    ):
        both.java(f"alter table {{n}}.evolved {change}")
    frame = both.session.sql(
        "select map('k', 1) as more, 2147483648 as id, 'c' as title, 0.1D as x, 12345678.25 as d, "
        "named_struct('z', timestamp'2024-01-01 00:00:00', 'a', 2) as s, "
        "array(named_struct('c', 2, 'e', 'y')) as l, 7 as gone"
    )
    both.write(frame.select(*reversed(frame.columns)), "evolved")
    found = both.agree(
        "evolved",
        *("id > 1", "title = 'a'", "title >= 'b' and x is null", "d > 1.00", "gone = 7", "s.a = 1", "s.z is null"),
    )
    assert len(found) == 3
    assert both.agree("evolved", "s.a = 2", columns="id, s.z, l") == both.agree("evolved", columns="id, s.z, l")
    first = both.java("select snapshot_id from {n}.evolved.snapshots order by committed_at").first().snapshot_id
    before = both.java(f"select * from {{n}}.evolved version as of {first}")
    assert as_text(both.read("evolved", snapshot_id=str(first))) == as_text(before)
    assert before.columns == ["id", "name", "gone", "x", "d", "s", "l"]


# What is read of a table


def test_deletion_vectors_and_lineage(both: Both) -> None:
    both.java(
        "create table {n}.deleted (id bigint, data string) using iceberg "
        + JAVA_PROPERTIES.format(
            ", 'write.delete.mode' = 'merge-on-read', 'write.update.mode' = 'merge-on-read'"
            ", 'write.parquet.row-group-size-bytes' = '20000'"
        )
    )
    both.java("insert into {n}.deleted select id, concat(uuid(), id) from range(0, 3000, 1, 1)")
    both.java("delete from {n}.deleted where id % 10 = 3 or id < 5")
    both.java("update {n}.deleted set data = 'updated' where id % 100 = 7")
    lineage = "id, data, _row_id, _last_updated_sequence_number"
    frame = both.read("deleted", columns=lineage.replace(" ", ""), split_size="1")
    assert frame.rdd.getNumPartitions() > 5
    expected = both.java(f"select {lineage} from {{n}}.deleted")
    assert as_text(frame) == as_text(expected)
    assert ids(frame.filter("id > 1000 and data = 'updated'")) == [*range(1007, 3000, 100)]
    assert frame.count() == 3000 - 300 - 4


def test_large_files_are_read_in_parts(both: Both) -> None:
    both.java(
        "create table {n}.large (id bigint, data string) using iceberg "
        + JAVA_PROPERTIES.format(", 'write.parquet.row-group-size-bytes' = '50000'")
    )
    both.java("insert into {n}.large select id, concat(uuid(), uuid()) from range(0, 20000, 1, 1)")
    (file,) = both.java("select file_size_in_bytes, size(split_offsets) as parts from {n}.large.files").collect()
    assert file.parts > 10
    frame = both.read("large", split_size=str(file.file_size_in_bytes // 5))
    assert 4 < frame.rdd.getNumPartitions() < 8
    assert both.read("large").rdd.getNumPartitions() == 1
    counts = frame.groupBy("id").count().groupBy("count").count().collect()
    assert [(row[0], row[1]) for row in counts] == [(1, 20000)]


def test_columns_are_those_that_are_asked_for_and_in_that_order(both: Both) -> None:
    both.create("ordered", Schema(*(NestedField(number, name, StringType()) for number, name in enumerate("abc", 1))))
    both.write(both.session.sql("select 'c' as c, 'a' as a, 'b' as b"), "ordered")
    assert both.read("ordered", "c string, a string").collect() == [("c", "a")]
    assert both.read("ordered", columns="b, a").collect() == [("a", "b")]
    assert both.read("ordered").select("b").collect() == [("b",)]
    assert both.read("ordered", "b string").filter("b = 'b'").count() == 1
    for schema, message in (
        ("a int", "cannot be read as int"),
        ("A string", "Could not find column"),
    ):
        with pytest.raises(Exception, match=message):
            both.read("ordered", schema).collect()
    with pytest.raises(Exception, match="has no column 'A'"):
        both.read("ordered", "A string", case_sensitive="false").collect()


def test_branches_tags_times_and_increments(both: Both) -> None:
    both.java("create table {n}.history (id bigint) using iceberg " + JAVA_PROPERTIES.format(""))
    both.java("insert into {n}.history values (1)")
    both.java("alter table {n}.history create tag start")
    both.java("alter table {n}.history create branch side")
    both.java("insert into {n}.history.branch_side values (10)")
    both.write(both.session.sql("select 2L as id"), "history")
    both.write(both.session.sql("select 11L as id"), "history", branch="side")
    both.java("insert into {n}.history values (3)")
    both.java("delete from {n}.history where id = 2")
    main = {row.snapshot_id for row in both.java("select snapshot_id from {n}.history.history").collect()}
    first, second, _, _ = (one for one in both.table("history").metadata.snapshots if one.snapshot_id in main)
    assert ids(both.read("history")) == [1, 3]
    assert ids(both.read("history", tag="start")) == [1]
    assert ids(both.read("history", snapshot_id=str(first.snapshot_id))) == [1]
    assert ids(both.read("history", branch="side")) == [1, 10, 11]
    assert ids(both.java("select id from {n}.history version as of 'side'")) == [1, 10, 11]
    assert ids(both.read("history", as_of_timestamp=str(second.timestamp_ms))) == [1, 2]
    since_first = {"start_snapshot_id": str(first.snapshot_id)}
    assert ids(both.read("history", **since_first)) == [2, 3]
    assert ids(both.read("history", **since_first, end_snapshot_id=str(second.snapshot_id))) == [2]
    assert ids(both.read("history", **since_first).filter("id > 2")) == [3]


# What is written


def test_a_write_that_was_done_is_not_done_again(both: Both) -> None:
    both.create("once", Schema(NestedField(1, "id", LongType())))
    frame = both.session.sql("select id from range(0, 10, 1, 2)")
    for _ in range(2):
        both.write(frame, "once", commit_id="first", **{"snapshot-property.team": "x"})
    both.write(frame, "once", commit_id="second")
    assert both.read("once").count() == 20
    summaries = [snapshot.summary for snapshot in both.table("once").metadata.snapshots]
    assert [summary and summary["team"] for summary in summaries] == ["x", None]
    assert stored(both.table("once")) == listed(both.table("once"))


def test_nothing_to_write_makes_no_snapshot(both: Both) -> None:
    both.create("nothing", Schema(NestedField(1, "id", LongType())))
    both.write(both.session.sql("select id from range(0)"), "nothing")
    assert not both.table("nothing").metadata.snapshots
    assert ids(both.read("nothing")) == []
    assert stored(both.table("nothing")) == set()


def test_rows_that_do_not_fit_are_refused(both: Both) -> None:
    schema = Schema(NestedField(1, "id", LongType(), required=True), NestedField(2, "data", StringType()))
    both.create("strict", schema)
    for selected, message in (
        ("'x' as id", "Mismatch in fields"),
        ("1L as id, 1 as other", "more columns"),
        ("'x' as data", "Mismatch in fields"),
        ("cast(null as bigint) as id, 'x' as data", "id is required"),
    ):
        with pytest.raises(Exception, match=message):
            both.write(both.session.sql(f"select {selected}"), "strict")
    both.write(both.session.sql("select 'x' as data, 1 as id"), "strict")
    assert both.agree("strict") == ["Row(id=1, data='x')"]
    assert stored(both.table("strict")) == listed(both.table("strict"))
    with pytest.raises(Exception, match="would be created without encryption"):
        both.write(both.session.sql("select 1 as id"), "unencrypted", create_table="true")
    assert not both.catalog.table_exists((NAMESPACE, "unencrypted"))


def test_a_batch_of_a_stream_that_is_written_by_a_function(both: Both, tmp_path: Path) -> None:
    """There the properties of the stream are those of the batch's tasks too."""
    for name in ("one", "other"):
        both.create(name, Schema(NestedField(1, "id", LongType())))

    def write_both(frame: Any, number: int) -> None:
        both.write(frame, "one")
        both.write(frame.filter("id % 2 = 0"), "other")

    (tmp_path / "input").mkdir()
    (tmp_path / "input" / "rows.json").write_text("".join(f'{{"id": {number}}}\n' for number in range(10)))
    stream = both.session.readStream.schema("id bigint").json(str(tmp_path / "input")).writeStream
    query = stream.foreachBatch(write_both).option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True)
    assert query.start().awaitTermination(60)
    assert both.agree("one") == sorted(f"Row(id={number})" for number in range(10))
    assert both.agree("other") == sorted(f"Row(id={number})" for number in range(0, 10, 2))
    for name in ("one", "other"):
        assert stored(both.table(name)) == listed(both.table(name))


def stored(table: Table) -> set[str]:
    folder = Path(urlparse(table.location()).path) / "data"
    return {str(path) for path in folder.rglob("*") if path.is_file() and path.suffix != ".crc"}


def listed(table: Table) -> set[str]:
    return {urlparse(task.file.file_path).path for task in table.scan().plan_files()}
