"""Every error this package raises on purpose.

Messages name the file, key id or property concerned and say what to do. They never contain key bytes.
"""

from __future__ import annotations


class EncryptionError(Exception):
    """Base of all errors of this package."""


class IntegrityError(EncryptionError):
    """Data failed authentication: it was changed, swapped or cut, or the key is not the one it was written with.

    AES-GCM cannot tell these cases apart, and neither does this package.
    """


class FormatError(EncryptionError):
    """The bytes do not have the structure that they must have."""


class ConfigurationError(EncryptionError, ValueError):
    """A property is missing, contradictory or out of range."""


class UsageError(EncryptionError, ValueError):
    """The program used an object in a way that it does not support."""


class ClosedError(UsageError):
    """A stream, secret or client was used after it was closed, or after it failed."""


class SecretExposureError(EncryptionError, TypeError):
    """Something tried to pickle, copy or otherwise let a secret escape."""


class KmsError(EncryptionError):
    """The key management service did not do what it was asked to."""


class KmsUnavailableError(KmsError):
    """The service could not be reached or did not answer in time. It may on another try."""


class KmsThrottledError(KmsUnavailableError):
    """The service asks its callers to slow down."""


class KmsAccessDeniedError(KmsError):
    """The service refuses this caller. Another try will not help."""


class KmsKeyError(KmsError):
    """The master key does not exist, or is disabled, deleted or of the wrong kind."""
