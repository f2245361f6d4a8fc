"""K and V as pages behind a table: the bytes of the same rows in one array, and refusals that name the entry."""

import numpy as np
import pytest

import oracle
import wire
from test_refusals import INVALID, refusal

OUTPUTS = ("weights", "lse", "scores_dot", "scores_biased")
NO_PAGE = -1


def gathered(pages, table, kv_len, layout):
    """pages [P, Hkv, R, d] by table [B, T] -> [B, Hkv, T * R, d]; zeros from kv_len on. By layout."""
    heads_first = pages if layout == "bhnd" else pages.transpose(0, 2, 1, 3)
    _, heads, rows, width = heads_first.shape
    whole = np.zeros((table.shape[0], heads, table.shape[1] * rows, width), pages.dtype)
    for b, keys in enumerate(kv_len):
        for j in range(keys):
            whole[b, :, j] = heads_first[table[b, j // rows], :, j % rows]
    return whole if layout == "bhnd" else np.ascontiguousarray(whole.transpose(0, 2, 1, 3))


def pair(seed, q_rows, rows, places, kv_len, layout="bhnd", **options):
    """One problem as pages and as one array. The sequences share their first page; what no key needs is NaN, and its
    entries are -1."""
    rng = np.random.default_rng(seed)
    batch, q_heads, kv_heads, d_k, d_v = len(kv_len), 4, 2, 20, 12
    count = batch * places + 2
    table = rng.permutation(count)[: batch * places].reshape(batch, places)
    table[:, 0] = table[0, 0]
    shape = (lambda heads, n, d: (heads, n, d)) if layout == "bhnd" else (lambda heads, n, d: (n, heads, d))
    q = rng.standard_normal((batch, *shape(q_heads, q_rows, d_k)))
    k = rng.standard_normal((count, *shape(kv_heads, rows, d_k)))
    v = rng.standard_normal((count, *shape(kv_heads, rows, d_v)))
    needed = [-(-keys // rows) for keys in kv_len]
    read = {page for b in range(batch) for page in table[b, : needed[b]]}
    for page in set(range(count)) - read:
        k[page] = v[page] = np.nan
    for b in range(batch):
        table[b, needed[b] :] = NO_PAGE
    shared = dict(kv_len=kv_len, q_len=[q_rows] * batch, layout=layout, outputs=OUTPUTS, **options)
    paged = wire.request(q, k, v, page_table=table, **shared)
    dense = wire.request(q, *(gathered(x, table, kv_len, layout) for x in (k, v)), **shared)
    return paged, dense


PAIRS = {
    "one key a page": dict(q_rows=5, rows=1, places=40, kv_len=[40, 17]),
    "small pages": dict(q_rows=130, rows=16, places=30, kv_len=[480, 301, 1], causal=True),
    "large pages": dict(q_rows=40, rows=300, places=2, kv_len=[600, 299]),
    "decoding": dict(q_rows=1, rows=16, places=30, kv_len=[480, 301, 16, 0]),
    "decoding bfloat16": dict(q_rows=3, rows=7, places=50, kv_len=[350, 200], dtype="bfloat16", causal=True),
    "float16": dict(q_rows=20, rows=16, places=20, kv_len=[320, 33], dtype="float16"),
    "heads inside": dict(q_rows=20, rows=16, places=20, kv_len=[320, 33], layout="bnhd"),
    "window and cap": dict(q_rows=20, rows=16, places=20, kv_len=[320, 33], window_left=40, softcap=2.0),
    "mask": dict(q_rows=6, rows=16, places=3, kv_len=[48, 20], mask=np.arange(48) % 3 > 0),
    "rotary": dict(
        q_rows=6,
        rows=16,
        places=3,
        kv_len=[48, 20],
        rotary=dict(style="half", dim=8, k_positions=np.arange(96).reshape(2, 48) * 3),
    ),
    "reference": dict(q_rows=6, rows=16, places=3, kv_len=[48, 20], reference=True),
}


@pytest.mark.parametrize("call", wire.CALLS)
@pytest.mark.parametrize("name", PAIRS)
def test_pages_have_the_bytes_of_one_array(stub, call, name):
    paged, dense = pair(51, **PAIRS[name])
    got, expected = wire.CALLS[call](stub, paged), wire.attend(stub, dense)
    assert set(got.raw) == {"output", *OUTPUTS}
    assert got.raw == expected.raw
    assert got.statistics.q_offset == expected.statistics.q_offset
    assert got.statistics.nonfinite_rows == 0


def test_two_sequences_of_one_page_against_the_formula(stub):
    """Both have the same prefix page; the second goes on in a page of its own."""
    rng = np.random.default_rng(52)
    q, k, v = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 2, 4, 8), (3, 1, 5, 8), (3, 1, 5, 8)))
    answer = wire.attend(stub, wire.request(q, k, v, page_table=[[2, NO_PAGE], [2, 0]], kv_len=[5, 8], outputs=OUTPUTS))
    for b, rows in enumerate((k[2], np.concatenate([k[2], k[0]], axis=1)[:, :8])):
        values = (v[2], np.concatenate([v[2], v[0]], axis=1)[:, :8])[b]
        right = oracle.attention(q[b : b + 1], rows[None], values[None])
        alone = {"output": answer["output"][b : b + 1], "lse": answer["lse"][b : b + 1]}
        oracle.assert_answer(alone, right)


def test_the_table_may_come_first_or_last_or_in_the_header(stub):
    paged, dense = pair(53, **PAIRS["small pages"])
    expected = wire.attend(stub, dense).raw
    for pieces in ({"piece_bytes": 13, "shuffle": 1}, {"inline": ("options.page_table",)}, {"inline": ("k", "v")}):
        small, _ = pair(53, **PAIRS["mask"])
        whole = paged if "piece_bytes" not in pieces else small
        right = expected if whole is paged else wire.attend(stub, small).raw
        assert wire.attend_stream(stub, whole, **pieces).raw == right


def good():
    """B = 2, Hq = 4, Hkv = 2, Nq = 3, P = 12, R = 5, T = 4, d_k = 4, d_v = 6; 6 and 20 keys."""
    rng = np.random.default_rng(54)
    table = np.arange(8).reshape(2, 4)
    table[0, 2:] = NO_PAGE
    return dict(
        q=rng.standard_normal((2, 4, 3, 4)),
        k=rng.standard_normal((12, 2, 5, 4)),
        v=rng.standard_normal((12, 2, 5, 6)),
        page_table=table,
        kv_len=[6, 20],
    )


def with_entry(b, t, page):
    table = good()["page_table"]
    table[b, t] = page
    return table


REFUSED = {
    "an entry beyond": (
        dict(page_table=with_entry(1, 3, 17)),
        "options.page_table: entry [1,3] is 17, expected 0 to 11 (k has 12 pages)",
    ),
    "-1 where a key is": (
        dict(page_table=with_entry(0, 1, NO_PAGE)),
        "options.page_table: entry [0,1] is -1, expected 0 to 11 (k has 12 pages)",
    ),
    "no kv_len": (
        dict(kv_len=None),
        "options.page_table: entry [0,2] is -1, expected 0 to 11 (k has 12 pages)",
    ),
    "other sequences": (
        dict(page_table=np.zeros((3, 4))),
        "options.page_table: shape [3,4], expected B = 2 as in q",
    ),
    "another rank": (
        dict(page_table=np.zeros(8)),
        "options.page_table: shape [8], expected 2 dimensions [B, T]",
    ),
    "other pages of v": (dict(v=np.zeros((11, 2, 5, 6))), "v: shape [11,2,5,6], expected P = 12 as in k"),
    "other rows of v": (dict(v=np.zeros((12, 2, 4, 6))), "v: shape [12,2,4,6], expected R = 5 as in k"),
    "other heads of v": (dict(v=np.zeros((12, 1, 5, 6))), "v: shape [12,1,5,6], expected Hkv = 2 as in k"),
    "pages without rows": (
        dict(k=np.zeros((12, 2, 0, 4)), v=np.zeros((12, 2, 0, 6)), kv_len=None),
        "k: shape [12,2,0,4], expected R of at least 1 where page_table has T = 4",
    ),
    "no pages": (
        dict(k=np.zeros((0, 2, 5, 4)), v=np.zeros((0, 2, 5, 6))),
        "options.page_table: sequence 0 has 6 keys, expected none (k has 0 pages)",
    ),
    "more keys than places": (dict(kv_len=[6, 21]), "options.kv_len: 21 for sequence 1, expected 0 to 20"),
    "a mask of one page": (
        dict(mask=np.ones(5)),
        "options.mask: shape [5], expected to broadcast to [B, Hq, Nq, Nk] = [2,4,3,20]",
    ),
}


@pytest.mark.parametrize("call", wire.CALLS)
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(stub, call, name):
    change, text = REFUSED[name]
    assert refusal(lambda: wire.CALLS[call](stub, wire.request(**{**good(), **change}))) == (INVALID, text)
    assert wire.attend(stub, wire.request(**good()))["output"].shape == (2, 4, 3, 6)


def test_a_table_of_another_type_or_with_x_is_refused(stub):
    message = wire.request(**good())
    message.options.page_table.CopyFrom(wire.tensor(np.zeros((2, 4))))
    assert refusal(lambda: wire.attend(stub, message)) == (INVALID, "options.page_table: dtype float32, expected int64")
    weights = {name: np.zeros((8, 8)) for name in ("w_q", "w_k", "w_v")}
    message = wire.request(
        x=np.zeros((2, 3, 8)), projection=wire.projection(2, 2, **weights), page_table=np.zeros((2, 1))
    )
    text = "options.page_table: given with x, expected with q, k and v only"
    assert refusal(lambda: wire.attend(stub, message)) == (INVALID, text)


@pytest.mark.parametrize(
    "change",
    [
        dict(page_table=np.zeros((2, 0))),
        dict(k=np.zeros((12, 2, 0, 4)), v=np.zeros((12, 2, 0, 6)), page_table=np.zeros((2, 0))),
        dict(k=np.zeros((0, 2, 5, 4)), v=np.zeros((0, 2, 5, 6)), page_table=np.zeros((2, 2))),
    ],
    ids=["no places", "no rows", "no pages"],
)
def test_no_pages_where_no_key_is(stub, change):
    answer = wire.attend(stub, wire.request(**{**good(), **change, "kv_len": [0, 0]}, outputs=("lse",)))
    assert not answer["output"].any() and np.all(answer["lse"] == -np.inf)
