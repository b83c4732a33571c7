"""The conformance tests against servers. Those of the clients that need none are in `tests/`."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import pytest

from integration import azure_key_vault_server as azure
from integration import google_kms_server as google
from integration.kms_support import AWS_CREDENTIALS, AWS_REGION, aws_admin
from pyiceberg_encryption.testing import KmsClientTests

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from integration.internet import Internet
    from integration.vault import Vault

pytestmark = pytest.mark.timeout(1800)  # Vault may have to be built


class AwsTests(KmsClientTests):
    generates_keys = True

    @pytest.fixture
    def admin(self, endpoint: str) -> Any:
        return aws_admin(endpoint)

    @pytest.fixture
    def properties(self, endpoint: str) -> Mapping[str, str]:
        return {
            "encryption.kms-type": "aws",
            "kms.endpoint": endpoint,
            "client.region": AWS_REGION,
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


class TestGoogle(KmsClientTests):
    @pytest.fixture
    def cloud(self, in_the_cloud: Internet) -> Iterator[google.CloudKms]:
        cloud = google.CloudKms()
        server = google.Server(cloud, in_the_cloud)
        yield cloud
        server.close()

    @pytest.fixture
    def properties(self, cloud: google.CloudKms) -> Mapping[str, str]:
        return {"encryption.kms-type": "gcp", "gcs.oauth2.token": google.TOKEN, "kms.max-attempts": "1"}

    @pytest.fixture
    def master_key_ids(self, cloud: google.CloudKms) -> tuple[str, str]:
        ring = "projects/shop/locations/europe-west1/keyRings/tables"
        first, second = f"{ring}/cryptoKeys/orders", f"{ring}/cryptoKeys/people"
        for name in (first, second):
            cloud.create_key(name)
        return first, second

    @pytest.fixture
    def disable_master_key(self, cloud: google.CloudKms) -> Callable[[str], object]:
        def disable(key_id: str) -> None:
            for version in cloud.keys[key_id]:
                version.state = "DISABLED"

        return disable


class TestAzure(KmsClientTests):
    @pytest.fixture
    def key_vault(self, in_the_cloud: Internet) -> Iterator[azure.KeyVault]:
        key_vault = azure.KeyVault()
        server = azure.Server(key_vault, in_the_cloud)
        yield key_vault
        server.close()

    @pytest.fixture
    def properties(self, key_vault: azure.KeyVault) -> Mapping[str, str]:
        return {
            "encryption.kms-type": "azure",
            "azure.keyvault.url": f"https://{azure.VAULT}",
            "adls.tenant-id": azure.TENANT,
            "adls.client-id": azure.CLIENT,
            "adls.client-secret": azure.CLIENT_SECRET,
            "kms.max-attempts": "1",
        }

    @pytest.fixture
    def master_key_ids(self, key_vault: azure.KeyVault) -> tuple[str, str]:
        first, second = "orders", "people"
        for name in (first, second):
            key_vault.create_key(name)
        return first, second

    @pytest.fixture
    def disable_master_key(self, key_vault: azure.KeyVault) -> Callable[[str], object]:
        """Key Vault goes on wrapping with a disabled key. So it is deleted."""
        return lambda key_id: key_vault.keys.pop(key_id)
