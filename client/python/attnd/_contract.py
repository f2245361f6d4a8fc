"""The wire contract as Python sees it: messages, methods and the names of enum values, all from contract.binpb.

Messages live in a pool of their own, so a program may load stubs of any version of attnd.v1 beside this package.
"""

from __future__ import annotations

from importlib import resources
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from attnd._errors import InvalidArgument

PACKAGE = "attnd.v1"


def _load() -> Any:
    pool = descriptor_pool.DescriptorPool()
    files = descriptor_pb2.FileDescriptorSet.FromString(
        resources.files(__package__).joinpath("contract.binpb").read_bytes()
    )
    for file in files.file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool


_POOL = _load()


def message(name: str) -> Any:
    """The class of the message attnd.v1.NAME."""
    descriptor = _POOL.FindMessageTypeByName(f"{PACKAGE}.{name}")
    if hasattr(message_factory, "GetMessageClass"):  # from protobuf 4.22 on
        return message_factory.GetMessageClass(descriptor)
    return message_factory.MessageFactory(_POOL).GetPrototype(descriptor)


def assign(message: Any, name: str, value: Any, said: str | None = None) -> None:
    """Sets a field. InvalidArgument, about `said` or its name, for a value of another type than the field's."""
    try:
        setattr(message, name, value)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"{said or name}: {value!r}: {error}") from None


def filled(kind: str, /, **values: Any) -> Any:
    """The message attnd.v1.KIND with those of its plain fields that are not None."""
    made = message(kind)()
    for field, value in values.items():
        if value is not None:
            assign(made, field, value)
    return made


def names(enum: str) -> dict[str, int]:
    """Its values by the names that callers use: OUTPUT_KIND_SCORES_DOT is "scores_dot"; without UNSPECIFIED."""
    descriptor = _POOL.FindEnumTypeByName(f"{PACKAGE}.{enum}")
    prefix = descriptor.values_by_number[0].name.removesuffix("UNSPECIFIED")
    return {value.name.removeprefix(prefix).lower(): value.number for value in descriptor.values if value.number}


def _methods() -> dict[str, tuple[str, str]]:
    """Method -> (its path, the name of what makes a callable of it on a channel), of every service."""
    found = {}
    for service in ("AttentionService", "StoreService"):
        proto = descriptor_pb2.ServiceDescriptorProto()
        _POOL.FindServiceByName(f"{PACKAGE}.{service}").CopyToProto(proto)
        for method in proto.method:
            how = "_".join(
                "stream" if streams else "unary" for streams in (method.client_streaming, method.server_streaming)
            )
            found[method.name] = (f"/{PACKAGE}.{service}/{method.name}", how)
    return found


def callables(channel: Any) -> dict[str, Any]:
    """Every method on a channel of grpc or grpc.aio, from bytes to bytes."""
    return {name: getattr(channel, how)(path) for name, (path, how) in _METHODS.items()}


def number(message_class: Any, field: str) -> int:
    """The field's number."""
    return int(message_class.DESCRIPTOR.fields_by_name[field].number)


DTYPES = names("DataType")
OUTPUTS = names("OutputKind")
LAYOUTS = names("Layout")
MODES = names("ComputeMode")
PRIORITIES = names("Priority")
ROTARY_STYLES = names("RotaryStyle")
DTYPE_NAMES = {value: name for name, value in DTYPES.items()}
OUTPUT_NAMES = {value: name for name, value in OUTPUTS.items()}
_METHODS = _methods()
