"""AWS KMS, wire-compatible with Iceberg Java's AwsKeyManagementClient (no encryption context)."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from pyiceberg_encryption import process
from pyiceberg_encryption.errors import (
    ClosedError,
    ConfigurationError,
    EncryptionError,
    IntegrityError,
    KmsAccessDeniedError,
    KmsError,
    KmsKeyError,
    KmsThrottledError,
    KmsUnavailableError,
)
from pyiceberg_encryption.kms.client import KeyGenerationResult, KeyManagementClient
from pyiceberg_encryption.kms.guard import RetryPolicy
from pyiceberg_encryption.kms.silence import calling, silence

try:
    import boto3
    from botocore import exceptions as botocore_errors
    from botocore.config import Config
except ImportError:
    raise ConfigurationError("AWS KMS needs boto3: pip install boto3, or this package with its extra 'aws'") from None

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping

# Iceberg Java: AwsProperties
ENDPOINT = "kms.endpoint"
ENCRYPTION_ALGORITHM_SPEC = "kms.encryption-algorithm-spec"
SYMMETRIC_DEFAULT = "SYMMETRIC_DEFAULT"
ENCRYPTION_ALGORITHM_SPECS = (SYMMETRIC_DEFAULT, "RSAES_OAEP_SHA_1", "RSAES_OAEP_SHA_256", "SM2PKE")
DATA_KEY_SPEC = "kms.data-key-spec"
DATA_KEY_SPEC_DEFAULT = "AES_256"
DATA_KEY_SPECS = ("AES_128", "AES_256")

# PyIceberg: pyiceberg.io
PROFILE_NAME = "client.profile-name"
REGION = "client.region"
ACCESS_KEY_ID = "client.access-key-id"
SECRET_ACCESS_KEY = "client.secret-access-key"
SESSION_TOKEN = "client.session-token"
ROLE_ARN = "client.role-arn"
ROLE_SESSION_NAME = "client.role-session-name"
ROLE_SESSION_NAME_DEFAULT = "pyiceberg-encryption"
ROLE_RENEWAL = timedelta(minutes=5)  # before a role's credentials end

# https://docs.aws.amazon.com/kms/latest/APIReference/CommonErrors.html, and those of Encrypt, Decrypt, GenerateDataKey
ERRORS: dict[type[Exception], tuple[str, frozenset[str]]] = {
    KmsThrottledError: (
        "AWS KMS throttles this caller",
        frozenset(
            {
                "RequestLimitExceeded",
                "Throttling",
                "ThrottledException",
                "ThrottlingException",
                "TooManyRequestsException",
            }
        ),
    ),
    KmsUnavailableError: (
        "AWS KMS is not available",
        frozenset(
            {
                "DependencyTimeoutException",
                "InternalFailure",
                "KMSInternalException",
                "KeyUnavailableException",
                "RequestTimeout",
                "RequestTimeoutException",
                "ServiceUnavailable",
                "ServiceUnavailableException",
            }
        ),
    ),
    KmsAccessDeniedError: (
        "AWS refuses these credentials. They need kms:Encrypt, kms:Decrypt and kms:GenerateDataKey on the master key",
        frozenset(
            {
                "AccessDenied",
                "AccessDeniedException",
                "ExpiredToken",
                "ExpiredTokenException",
                "IncompleteSignature",
                "InvalidClientTokenId",
                "InvalidSignatureException",
                "MissingAuthenticationToken",
                "NotAuthorized",
                "OptInRequired",
                "RequestExpired",
                "SignatureDoesNotMatch",
                "UnrecognizedClientException",
            }
        ),
    ),
    KmsKeyError: (
        "the master key does not exist here, or is disabled, pending deletion or of another kind. Check the key id, "
        "the region and the state of the key",
        frozenset(
            {"DisabledException", "InvalidArnException", "InvalidKeyUsageException", "KMSInvalidStateException"}
            | {"NotFoundException", "UnsupportedOperationException"}
        ),
    ),
    IntegrityError: (
        "the wrapped key is not one that this master key wrapped: the table's metadata was changed",
        frozenset({"IncorrectKeyException", "InvalidCiphertextException"}),
    ),
}


silence("botocore.endpoint", "botocore.parsers")


class AwsKeyManagementClient(KeyManagementClient):
    _lock: threading.Lock

    def __init__(self, properties: Mapping[str, str]) -> None:
        super().__init__(properties)
        self._algorithm = _one_of(properties, ENCRYPTION_ALGORITHM_SPEC, SYMMETRIC_DEFAULT, ENCRYPTION_ALGORITHM_SPECS)
        self._data_key_spec = _one_of(properties, DATA_KEY_SPEC, DATA_KEY_SPEC_DEFAULT, DATA_KEY_SPECS)
        if (ACCESS_KEY_ID in properties) != (SECRET_ACCESS_KEY in properties):
            raise ConfigurationError(f"{ACCESS_KEY_ID} and {SECRET_ACCESS_KEY} go together; only one of them is set")
        timeout = RetryPolicy.from_properties(properties).request_timeout
        # The guard around every client retries; botocore would multiply that.
        self._config = Config(connect_timeout=timeout, read_timeout=timeout, retries={"total_max_attempts": 1})
        process.give_lock(self)
        self._closed = False
        self._kms: Any = None
        self._kms_generation = process.generation()
        self._credentials_end: datetime | None = None

    def wrap_key(self, key: bytes, wrapping_key_id: str) -> bytes:
        response = self._call(
            lambda kms: kms.encrypt(KeyId=wrapping_key_id, Plaintext=key, EncryptionAlgorithm=self._algorithm)
        )
        return bytes(response["CiphertextBlob"])

    def unwrap_key(self, wrapped_key: bytes, wrapping_key_id: str) -> bytes:
        response = self._call(
            lambda kms: kms.decrypt(
                KeyId=wrapping_key_id, CiphertextBlob=wrapped_key, EncryptionAlgorithm=self._algorithm
            )
        )
        return bytes(response["Plaintext"])

    def supports_key_generation(self) -> bool:
        return self._algorithm == SYMMETRIC_DEFAULT

    def generate_key(self, wrapping_key_id: str) -> KeyGenerationResult:
        response = self._call(lambda kms: kms.generate_data_key(KeyId=wrapping_key_id, KeySpec=self._data_key_spec))
        return KeyGenerationResult(bytes(response["Plaintext"]), bytes(response["CiphertextBlob"]))

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._kms is not None:
                self._kms.close()
                self._kms = None

    def _call(self, call: Callable[[Any], Any]) -> Any:
        failure: Exception
        try:
            with calling():
                return call(self._client())
        except EncryptionError:
            raise
        except botocore_errors.ClientError as error:
            failure = _translate(error)
        except (botocore_errors.NoCredentialsError, botocore_errors.PartialCredentialsError):
            failure = KmsAccessDeniedError(
                f"no AWS credentials were found. Set {ACCESS_KEY_ID} and {SECRET_ACCESS_KEY}, {PROFILE_NAME}, or what "
                "boto3 reads from the environment"
            )
        except (botocore_errors.ConnectionError, botocore_errors.HTTPClientError) as error:
            failure = KmsUnavailableError(
                f"AWS KMS cannot be reached ({type(error).__name__}). Check {ENDPOINT}, {REGION}"
            )
        except botocore_errors.BotoCoreError as error:  # not its text, which may quote the call and so the key
            failure = KmsError(
                f"boto3 could not make the call ({type(error).__name__}). Check the id of the master key, "
                f"{REGION} and the other client.* properties"
            )
        except ValueError:
            failure = ConfigurationError(f"boto3 does not take the value of {ENDPOINT} or {REGION}")
        raise failure

    def _client(self) -> Any:
        """The boto3 client, made anew when the credentials of an assumed role come to their end."""
        with self._lock:
            if self._closed:
                raise ClosedError("this KMS client is closed")
            now = datetime.now(timezone.utc)
            if self._kms is None or self._kms_generation != process.generation():  # a fork would share its connections
                self._connect()
            elif self._credentials_end is not None and now > self._credentials_end - ROLE_RENEWAL:
                try:
                    self._connect()
                except (botocore_errors.ClientError, botocore_errors.BotoCoreError):
                    if now > self._credentials_end:
                        raise
            return self._kms

    def _connect(self) -> None:
        session = boto3.Session(
            profile_name=self.properties.get(PROFILE_NAME),
            region_name=self.properties.get(REGION),
            aws_access_key_id=self.properties.get(ACCESS_KEY_ID),
            aws_secret_access_key=self.properties.get(SECRET_ACCESS_KEY),
            aws_session_token=self.properties.get(SESSION_TOKEN),
        )
        if ROLE_ARN in self.properties:
            session = self._assume_role(session)
        self._kms = session.client("kms", endpoint_url=self.properties.get(ENDPOINT), config=self._config)
        self._kms_generation = process.generation()

    def _assume_role(self, session: boto3.Session) -> boto3.Session:
        credentials = session.client("sts", config=self._config).assume_role(
            RoleArn=self.properties[ROLE_ARN],
            RoleSessionName=self.properties.get(ROLE_SESSION_NAME, ROLE_SESSION_NAME_DEFAULT),
        )["Credentials"]
        self._credentials_end = credentials["Expiration"]
        return boto3.Session(
            region_name=session.region_name,
            aws_access_key_id=credentials["AccessKeyId"],
            aws_secret_access_key=credentials["SecretAccessKey"],
            aws_session_token=credentials["SessionToken"],
        )


def _translate(error: botocore_errors.ClientError) -> Exception:
    details = error.response.get("Error", {})
    code, message = details.get("Code", "unknown"), details.get("Message", "")
    for kind, (advice, codes) in ERRORS.items():
        if code in codes:
            return kind(f"{advice} ({code}: {message})")
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return KmsThrottledError(f"AWS KMS throttles this caller ({code})")
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return KmsUnavailableError(f"AWS KMS failed ({code})")
    return KmsError(f"AWS KMS answered {code}")


def _one_of(properties: Mapping[str, str], name: str, default: str, allowed: tuple[str, ...]) -> str:
    value = properties.get(name, default)
    if value not in allowed:
        raise ConfigurationError(f"Property {name} is '{value}'; it must be one of {', '.join(allowed)}")
    return value
