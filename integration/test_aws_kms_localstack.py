"""The AWS client against LocalStack, which minds what moto does not: which key is used, and in which state it is."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import pytest

from integration.kms_support import AWS_CREDENTIALS, aws_admin
from pyiceberg_encryption import Secret, load_kms_client
from pyiceberg_encryption.errors import IntegrityError, KmsKeyError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyiceberg_encryption.kms import GuardedClient

KEY = bytes(range(16))


@pytest.fixture
def admin_of(localstack_endpoint: str) -> Callable[[str], Any]:
    """A client of boto3's, for a region."""
    return lambda region: aws_admin(localstack_endpoint, region)


@pytest.fixture
def kms_of(localstack_endpoint: str) -> Callable[[str], GuardedClient]:
    """A client of ours, for a region."""
    properties = {
        "encryption.kms-type": "aws",
        "kms.endpoint": localstack_endpoint,
        "kms.max-attempts": "1",
        **AWS_CREDENTIALS,
    }
    return lambda region: load_kms_client({**properties, "client.region": region})


@pytest.fixture
def admin(admin_of: Callable[[str], Any]) -> Any:
    return admin_of("eu-west-1")


@pytest.fixture
def kms(kms_of: Callable[[str], GuardedClient]) -> GuardedClient:
    return kms_of("eu-west-1")


@pytest.fixture
def key_arn(admin: Any) -> str:
    return str(admin.create_key()["KeyMetadata"]["Arn"])


def _schedule_deletion(admin: Any, key_arn: str) -> None:
    admin.schedule_key_deletion(KeyId=key_arn, PendingWindowInDays=7)


@pytest.mark.parametrize(
    ("retire", "code"),
    [
        (lambda admin, key_arn: admin.disable_key(KeyId=key_arn), "DisabledException"),
        (_schedule_deletion, "KMSInvalidStateException"),
    ],
)
def test_a_key_that_is_out_of_use(kms: GuardedClient, admin: Any, key_arn: str, retire: Any, code: str) -> None:
    wrapped = kms.wrap_key(Secret(KEY), key_arn)
    retire(admin, key_arn)
    for call in (
        lambda: kms.wrap_key(Secret(KEY), key_arn),
        lambda: kms.unwrap_key(wrapped, key_arn),
        lambda: kms.generate_key(key_arn),
    ):
        with pytest.raises(KmsKeyError, match=code):
            call()


def test_a_key_that_is_enabled_again(kms: GuardedClient, admin: Any, key_arn: str) -> None:
    wrapped = kms.wrap_key(Secret(KEY), key_arn)
    admin.disable_key(KeyId=key_arn)
    admin.enable_key(KeyId=key_arn)
    assert kms.unwrap_key(wrapped, key_arn) == Secret(KEY)


def test_a_key_wrapped_by_another_master_key(kms: GuardedClient, admin: Any, key_arn: str) -> None:
    wrapped = kms.wrap_key(Secret(KEY), str(admin.create_key()["KeyMetadata"]["Arn"]))
    with pytest.raises(IntegrityError, match="IncorrectKeyException"):
        kms.unwrap_key(wrapped, key_arn)


def test_an_alias_that_was_moved_to_another_key(kms: GuardedClient, admin: Any, key_arn: str) -> None:
    """It does not unwrap what its former key wrapped."""
    alias = f"alias/orders-{secrets.token_hex(4)}"
    admin.create_alias(AliasName=alias, TargetKeyId=key_arn)
    wrapped = kms.wrap_key(Secret(KEY), alias)
    assert kms.unwrap_key(wrapped, alias) == kms.unwrap_key(wrapped, key_arn) == Secret(KEY)
    admin.update_alias(AliasName=alias, TargetKeyId=admin.create_key()["KeyMetadata"]["KeyId"])
    with pytest.raises(IntegrityError, match="IncorrectKeyException"):
        kms.unwrap_key(wrapped, alias)


def test_a_multi_region_key(kms: GuardedClient, kms_of: Callable[[str], GuardedClient], admin: Any) -> None:
    """Wrapped in one region, unwrapped in another: there by the ARN of the replica, which differs in the region."""
    primary = str(admin.create_key(MultiRegion=True)["KeyMetadata"]["Arn"])
    replica = str(admin.replicate_key(KeyId=primary, ReplicaRegion="us-east-1")["ReplicaKeyMetadata"]["Arn"])
    assert replica == primary.replace("eu-west-1", "us-east-1")
    wrapped = kms.wrap_key(Secret(KEY), primary)
    elsewhere = kms_of("us-east-1")
    assert elsewhere.unwrap_key(wrapped, replica) == Secret(KEY)
    with pytest.raises(KmsKeyError, match="NotFoundException"):
        elsewhere.unwrap_key(wrapped, primary)
