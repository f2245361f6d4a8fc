"""Plan gives every figure of the lesson's cost section, and says what the server would refuse, without tensor bytes."""

import grpc
import pytest

import wire
from attnd.v1 import attention_pb2 as pb
from attnd_server import CALL_SECONDS_MAX


def plan(stub, heads, rows, width, layers=1, outputs=(), kv_rows=None, **options):
    problem = pb.AttendRequest(outputs=[wire.OUTPUTS[name] for name in outputs], options=pb.Options(**options))
    for name in "qkv":
        keys = rows if name == "q" or kv_rows is None else kv_rows
        getattr(problem, name).CopyFrom(pb.Tensor(dtype=pb.DATA_TYPE_FLOAT32, shape=[1, heads, keys, width]))
    return stub.Plan(pb.PlanRequest(problem=problem, layers=layers), timeout=CALL_SECONDS_MAX)


def test_the_lessons_figures(stub):
    at_4096 = plan(stub, 1, 4096, 128)
    assert at_4096.scores_per_head == 4096**2
    assert at_4096.score_multiply_adds_per_head == 2_147_483_648  # 2.1e9
    assert plan(stub, 1, 128_000, 128).scores_per_head == 16_384_000_000  # 1.64e10
    assert plan(stub, 1, 131_072, 128).scores_per_head == 17_179_869_184  # 1.72e10
    assert plan(stub, 1, 2048, 128).multiply_adds_per_head == 1_073_741_824  # 1.07e9, both products
    assert plan(stub, 96, 2048, 128, layers=96).multiply_adds == 9_895_604_649_984  # 9.9e12
    assert at_4096.naive_score_bytes_per_head == 64 << 20  # 64 MB a head
    assert plan(stub, 32, 4096, 128, layers=32).naive_score_bytes == 64 << 30  # 64 GB over heads and layers


def test_the_lessons_ratios(stub):
    small, double, large = (plan(stub, 1, rows, 128) for rows in (4096, 8192, 131_072))
    assert double.multiply_adds == 4 * small.multiply_adds
    assert large.multiply_adds == 1024 * small.multiply_adds
    assert small.flops == 2 * small.multiply_adds


def test_structure_saves_work(stub):
    whole, causal = plan(stub, 2, 1024, 64), plan(stub, 2, 1024, 64, causal=True)
    assert whole.flops_after_exclusion == whole.flops
    assert causal.flops_after_exclusion == whole.flops * 1025 // 2048
    cut = plan(stub, 2, 1024, 64, kv_len=[100], q_len=[10])
    assert cut.flops_after_exclusion == 4 * 2 * 10 * 100 * 64


def test_memory_is_named_and_linear(stub):
    small, large = plan(stub, 1, 4096, 64), plan(stub, 1, 65_536, 64)
    for answer in (small, large):
        items = {item.name: item.bytes for item in answer.memory}
        assert answer.memory_bytes == sum(items.values())
        assert items["inputs"] == answer.request_bytes
        assert items["scratch"] > 0
    assert large.memory_bytes <= 16 * small.memory_bytes
    assert {i.name: i.bytes for i in small.memory}["scratch"] == {i.name: i.bytes for i in large.memory}["scratch"]


def test_wire_bytes(stub):
    answer = plan(stub, 2, 100, 64, outputs=("weights", "lse"))
    assert answer.request_bytes == 3 * 2 * 100 * 64 * 4
    assert answer.reply_bytes == 2 * 100 * (64 + 100 + 1) * 4
    assert answer.predicted_compute_us >= 0 and answer.admitted and not answer.refusal


def test_pages_cost_what_their_keys_cost(stub):
    """32 sequences of 4096 keys in 256 places each, out of 1000 pages of 16 rows that they share."""
    problem = pb.AttendRequest()
    for name, shape in (("q", [32, 8, 5, 64]), ("k", [1000, 2, 16, 64]), ("v", [1000, 2, 16, 32])):
        getattr(problem, name).CopyFrom(pb.Tensor(dtype=pb.DATA_TYPE_FLOAT32, shape=shape))
    problem.options.page_table.CopyFrom(pb.Tensor(dtype=pb.DATA_TYPE_INT64, shape=[32, 256]))
    answer = stub.Plan(pb.PlanRequest(problem=problem), timeout=CALL_SECONDS_MAX)
    assert answer.request_bytes == 4 * (32 * 8 * 5 * 64 + 1000 * 2 * 16 * (64 + 32)) + 8 * 32 * 256
    assert answer.multiply_adds == 32 * 8 * 5 * 4096 * (64 + 32)
    items = {item.name: item.bytes for item in answer.memory}
    assert items["inputs"] == answer.request_bytes
    assert items["packed_v"] == 32 * 2 * 4096 * 32 * 4


@pytest.mark.parametrize("heads, rows, width, outputs", [(1, 1 << 24, 1, ()), (8, 131_072, 64, ("weights",))])
def test_what_the_server_would_refuse(stub, heads, rows, width, outputs):
    answer = plan(stub, heads, rows, width, outputs=outputs)
    assert not answer.admitted and answer.refusal
    assert "allowed" in answer.refusal and "_max" in answer.refusal  # the flag that sets the limit


def test_data_in_a_plan_is_refused(stub):
    problem = pb.AttendRequest()
    for name in "qkv":
        getattr(problem, name).CopyFrom(pb.Tensor(dtype=pb.DATA_TYPE_FLOAT32, shape=[1, 1, 1, 1], data=b"1234"))
    with pytest.raises(grpc.RpcError) as caught:
        stub.Plan(pb.PlanRequest(problem=problem), timeout=CALL_SECONDS_MAX)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "q.data" in caught.value.details()


def test_info_says_what_the_server_is(stub):
    info = stub.Info(pb.InfoRequest(), timeout=CALL_SECONDS_MAX)
    assert info.version and info.threads >= 1
    assert info.instruction_set_used and info.instruction_sets_found
    limits = {limit.flag: limit.value for limit in info.limits}
    assert limits["message_bytes_max"] == 256 << 20 and limits["block_bytes"] == 1 << 20
    assert limits["memory_bytes_max"] > 0
    assert {pb.DATA_TYPE_FLOAT32, pb.DATA_TYPE_FLOAT16, pb.DATA_TYPE_BFLOAT16} <= set(info.dtypes)
    assert list(info.options) == [field.name for field in pb.Options.DESCRIPTOR.fields]
