"""What users see who administer ACLs, SCRAM credentials and quotas through real clients: that there are none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from kafka import KafkaAdminClient
from kafka.admin import ACL, ACLFilter, ACLOperation, ACLPermissionType, ACLResourcePatternType, ResourcePattern
from kafka.admin import ResourceType as PythonResourceType
from kafka.errors import SecurityDisabledError

from tests.servers.process import RunningServer
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.servers, pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")]

ANY = AclBindingFilter(
    ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
)
BINDING = AclBinding(
    ResourceType.TOPIC,
    "t",
    ResourcePatternType.LITERAL,
    "User:a",
    "*",
    AclOperation.READ,
    AclPermissionType.ALLOW,
)


@pytest.fixture
def confluent(broker: RunningServer) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap})


@pytest.fixture
def kafka_python(broker: RunningServer) -> Iterator[KafkaAdminClient]:
    with closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap)) as made:
        yield made


def error_of(future: Any) -> KafkaError:
    with pytest.raises(KafkaException) as raised:
        future.result(PATIENCE_S)
    error: KafkaError = raised.value.args[0]
    return error


def test_librdkafka_tells_that_access_control_is_disabled(confluent: AdminClient) -> None:
    assert confluent.describe_acls(ANY).result(PATIENCE_S) == []  # librdkafka drops the error, from Kafka too
    for futures in (confluent.create_acls([BINDING]), confluent.delete_acls([ANY])):
        for future in futures.values():
            error = error_of(future)
            assert (error.code(), error.str()) == (KafkaError.SECURITY_DISABLED, "No Authorizer is configured.")


def test_librdkafka_tells_that_nobody_has_a_credential(confluent: AdminClient) -> None:
    assert confluent.describe_user_scram_credentials().result(PATIENCE_S) == {}
    error = error_of(confluent.describe_user_scram_credentials(["nobody"])["nobody"])
    assert error.code() == KafkaError.RESOURCE_NOT_FOUND
    deletion = UserScramCredentialDeletion("nobody", ScramMechanism.SCRAM_SHA_256)
    error = error_of(confluent.alter_user_scram_credentials([deletion])["nobody"])
    assert error.code() == KafkaError.RESOURCE_NOT_FOUND


def test_a_credential_that_is_not_stored_is_refused_in_words(headrace_server: RunningServer) -> None:
    admin = AdminClient({"bootstrap.servers": headrace_server.bootstrap})
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    upsertion = UserScramCredentialUpsertion("a", info, b"password", b"salt")
    error = error_of(admin.alter_user_scram_credentials([upsertion])["a"])
    assert error.code() == KafkaError.SECURITY_DISABLED
    assert error.str() == "headrace does not authenticate clients yet; the credential was not stored."
    assert admin.describe_user_scram_credentials().result(PATIENCE_S) == {}


def test_kafka_python_tells_that_access_control_is_disabled(kafka_python: KafkaAdminClient) -> None:
    everything = ACLFilter(
        principal=None,
        host=None,
        operation=ACLOperation.ANY,
        permission_type=ACLPermissionType.ANY,
        resource_pattern=ResourcePattern(PythonResourceType.TOPIC, "t", ACLResourcePatternType.LITERAL),
    )
    with pytest.raises(SecurityDisabledError, match="No Authorizer is configured on the broker"):
        kafka_python.describe_acls(everything)
    rule = ACL(
        principal="User:a",
        host="*",
        operation=ACLOperation.READ,
        permission_type=ACLPermissionType.ALLOW,
        resource_pattern=ResourcePattern(PythonResourceType.TOPIC, "t"),
    )
    assert kafka_python.create_acls([rule]) == {"succeeded": [], "failed": [SecurityDisabledError]}


def test_kafka_python_tells_that_nobody_has_a_credential(kafka_python: KafkaAdminClient) -> None:
    assert kafka_python.describe_user_scram_credentials() == {}
    nobody = kafka_python.describe_user_scram_credentials(["nobody"])["nobody"]
    assert nobody["error"] == "Attempt to describe a user credential that does not exist: nobody"
