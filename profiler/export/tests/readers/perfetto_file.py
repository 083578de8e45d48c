"""Reads a trace with Perfetto's published schema."""

from google.protobuf.unknown_fields import UnknownFieldSet
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace


def unknown_fields(message):
    """How many fields the schema does not know, in all messages."""
    count = len(UnknownFieldSet(message))
    for field, value in message.ListFields():
        if field.message_type is not None:
            values = value if field.is_repeated else [value]
            count += sum(unknown_fields(inner) for inner in values)
    return count


def read(path):
    """The whole trace."""
    trace = Trace()
    with open(path, "rb") as file:
        trace.ParseFromString(file.read())
    assert trace.IsInitialized()
    return trace
