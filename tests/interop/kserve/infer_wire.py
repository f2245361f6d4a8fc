"""AttendRequests as ModelInferRequests that ask the same, and the replies as answers of `wire`."""

import grpc
import numpy as np

import wire
from attnd.v1 import attention_pb2 as pb
from attnd_server import CALL_SECONDS_MAX
from inference import inference_pb2 as infer_pb
from inference import inference_pb2_grpc

DATATYPES = {
    "float32": "FP32",
    "float16": "FP16",
    "bfloat16": "BF16",
    "float64": "FP64",
    "bool": "BOOL",
    "int64": "INT64",
}
DTYPES = {datatype: dtype for dtype, datatype in DATATYPES.items()}
TYPED = {"FP32": "fp32_contents", "FP64": "fp64_contents", "BOOL": "bool_contents", "INT64": "int64_contents"}


def stub_of(server):
    return inference_pb2_grpc.GRPCInferenceServiceStub(server.channel())


def add_input(request, name, datatype, shape, data, typed=False):
    tensor = request.inputs.add(name=name, datatype=datatype, shape=shape)
    if typed:
        values = np.frombuffer(data, wire.STORAGE[DTYPES[datatype]])
        getattr(tensor.contents, TYPED[datatype]).extend(values.tolist())
    else:
        request.raw_input_contents.append(data)


def infer_request(message, typed=False, **fields):
    """What `message` asks for; every output that it asks for, or none where it asks for none."""
    request = infer_pb.ModelInferRequest(
        model_name="projected_attention" if message.HasField("x") else "attention", **fields
    )

    def add(fields_of):
        for field, value in fields_of.ListFields():
            name = "rotary_style" if field.name == "style" else field.name
            if isinstance(value, pb.Tensor):
                datatype = DATATYPES[wire.DTYPE_NAMES[value.dtype]]
                add_input(request, name, datatype, value.shape, value.data, typed)
            elif field.name == "outputs":
                request.outputs.add(name="output")
                for kind in value:
                    request.outputs.add(name=wire.OUTPUT_NAMES[kind])
            elif field.label == field.LABEL_REPEATED:
                kind = "float32" if field.type == field.TYPE_FLOAT else "int64"
                data = np.array(value, wire.STORAGE[kind]).tobytes()
                add_input(request, name, DATATYPES[kind], [len(value)], data, typed)
            elif field.name == "weight_set":
                continue  # a model of its own, which the caller names
            elif field.message_type is not None:
                add(value)
            elif field.enum_type is not None:
                request.parameters[name].string_param = field.enum_type.values_by_number[value].name
            elif isinstance(value, bool):
                request.parameters[name].bool_param = value
            elif isinstance(value, int):
                request.parameters[name].int64_param = value
            else:
                request.parameters[name].double_param = value

    add(message)
    return request


def raw_of(reply):
    """name -> (dtype's name, shape, bytes)."""
    return {
        tensor.name: (DTYPES[tensor.datatype], tuple(tensor.shape), data)
        for tensor, data in zip(reply.outputs, reply.raw_output_contents, strict=True)
    }


def native_of(stub, message):
    """The same from Attend."""
    reply = stub.Attend(message, timeout=CALL_SECONDS_MAX)
    tensors = [("output", reply.output), *((wire.OUTPUT_NAMES[e.kind], e.tensor) for e in reply.extras)]
    return {name: (wire.DTYPE_NAMES[t.dtype], tuple(t.shape), t.data) for name, t in tensors}


def refusal(call, *arguments):
    try:
        call(*arguments, timeout=CALL_SECONDS_MAX)
    except grpc.RpcError as error:
        return error.code(), error.details()
    raise AssertionError("it was answered")
