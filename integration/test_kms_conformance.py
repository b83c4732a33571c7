"""The conformance tests against servers. Those of the clients that need none are in `tests/`."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import boto3
import pytest

from pyiceberg_encryption.testing import KmsClientTests

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from integration.vault import Vault

AWS_CREDENTIALS = {"client.access-key-id": "testing", "client.secret-access-key": "testing"}
REGION = "eu-west-1"
pytestmark = pytest.mark.timeout(1800)  # Vault may have to be built


class AwsTests(KmsClientTests):
    generates_keys = True

    @pytest.fixture
    def admin(self, endpoint: str) -> Any:
        return boto3.client(
            "kms",
            endpoint_url=endpoint,
            region_name=REGION,
            aws_access_key_id="testing",
            aws_secret_access_key="testing",
        )

    @pytest.fixture
    def properties(self, endpoint: str) -> Mapping[str, str]:
        return {
            "encryption.kms-type": "aws",
            "kms.endpoint": endpoint,
            "client.region": REGION,
            "kms.max-attempts": "1",
            **AWS_CREDENTIALS,
        }

    @pytest.fixture
    def master_key_ids(self, admin: Any) -> tuple[str, str]:
        first, second = (str(admin.create_key()["KeyMetadata"]["Arn"]) for _ in range(2))
        return first, second

    @pytest.fixture
    def unknown_master_key_id(self, master_key_ids: tuple[str, str]) -> str:
        return master_key_ids[0][:-12] + "0" * 12


class TestAwsOnMoto(AwsTests):
    """Moto lets a disabled key encrypt."""

    @pytest.fixture
    def endpoint(self, aws_endpoint: str) -> str:
        return aws_endpoint


class TestAwsOnLocalStack(AwsTests):
    @pytest.fixture
    def endpoint(self, localstack_endpoint: str) -> str:
        return localstack_endpoint

    @pytest.fixture
    def disable_master_key(self, admin: Any) -> Callable[[str], object]:
        return lambda key_id: admin.disable_key(KeyId=key_id)


class TestVault(KmsClientTests):
    generates_keys = True

    @pytest.fixture
    def mount(self, vault: Vault) -> str:
        path = f"transit-{secrets.token_hex(4)}"
        vault.admin().sys.enable_secrets_engine("transit", path=path)
        return path

    @pytest.fixture
    def properties(self, vault: Vault, mount: str) -> Mapping[str, str]:
        return {
            "encryption.kms-type": "vault",
            "kms.vault.address": vault.address,
            "kms.vault.token": vault.root_token,
            "kms.vault.mount": mount,
            "kms.max-attempts": "1",
        }

    @pytest.fixture
    def master_key_ids(self, vault: Vault, mount: str) -> tuple[str, str]:
        first, second = "orders", "people"
        for name in (first, second):
            vault.admin().secrets.transit.create_key(name, mount_point=mount)
        return first, second

    @pytest.fixture
    def disable_master_key(self, vault: Vault, mount: str) -> Callable[[str], object]:
        """Vault cannot switch a key off, but delete it."""

        def delete(key_id: str) -> None:
            transit = vault.admin().secrets.transit
            transit.update_key_configuration(key_id, deletion_allowed=True, mount_point=mount)
            transit.delete_key(key_id, mount_point=mount)

        return delete
