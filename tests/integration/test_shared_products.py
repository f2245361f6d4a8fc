"""Many callers of one weight set at the same time: they share products, and each has the bytes that it has alone."""

import threading

import numpy as np

import wire
from attnd.v1 import attention_pb2 as pb
from attnd_server import AttndServer
from prometheus_page import Page
from weight_sets import Store

SHARED = "attnd_compute_weight_blocks_shared_total"
D_MODEL, HEADS, WIDTH, D_OUT = 1024, 8, 128, 1000
CALLERS, ROUNDS_MAX = 8, 50


def named(rng, rows):
    message = wire.request(x=rng.standard_normal((1, rows, D_MODEL)), projection=pb.Projection(), causal=True)
    message.ClearField("projection")
    message.weight_set.name = "shared"
    return message


def test_callers_of_one_set_share_its_products():
    rng = np.random.default_rng(71)
    with AttndServer(admin=True) as server:
        store = Store(server)
        arrays = {role: rng.standard_normal((D_MODEL, HEADS * WIDTH)) / 32 for role in ("w_q", "w_k", "w_v")}
        arrays["w_o"] = rng.standard_normal((HEADS * WIDTH, D_OUT)) / 32
        store.put("shared", message=wire.projection(HEADS, HEADS, **arrays))
        requests = [named(rng, rows) for rows in range(1, CALLERS + 1)]
        alone = [wire.attend(store.attention, request).raw for request in requests]
        assert Page(server).sum(SHARED) == 0
        wrong, meet = [], threading.Barrier(CALLERS)

        def call(caller):
            meet.wait()
            if wire.attend(store.attention, requests[caller]).raw != alone[caller]:
                wrong.append(caller)

        for _ in range(ROUNDS_MAX):
            callers = [threading.Thread(target=call, args=(caller,)) for caller in range(CALLERS)]
            for caller in callers:
                caller.start()
            for caller in callers:
                caller.join()
            assert not wrong
            if Page(server).sum(SHARED) > 0:
                break
        # A block that is shared is counted for each of those that share it.
        assert Page(server).sum(SHARED) > 1
