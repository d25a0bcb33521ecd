"""The pool of MFedPBA (Appendix C.2): what may be drawn, from which numbers, and how often."""

import collections

import pytest
from scipy import stats

from fedjax_mm.models.pool import DEPTHS, SHARED_WIDTHS, WIDTHS, draw_encoder, shared_encoder


def draw(client=0, modality=0, split_seed=0, kinds=("dnn",)):
    return draw_encoder((6,), 48, kinds=kinds, split_seed=split_seed, client=client, modality=modality)


@pytest.fixture(scope="module")
def many():
    return [draw(client, modality, kinds=("dnn", "dnn_bn")) for client in range(400) for modality in range(3)]


def test_every_draw_is_an_architecture_of_the_paper(many):
    for spec in many:
        assert len(spec.widths) in DEPTHS
        assert spec.widths[0] in WIDTHS
        assert (spec.shape, spec.dim) == ((6,), 48)
        assert all(width % 32 == 0 for width in spec.widths)
        narrow = [width for width in spec.widths if width != spec.widths[0]]
        if narrow:
            depth = len(spec.widths)
            assert spec.widths == (spec.widths[0],) * (depth - depth // 2) + (spec.widths[0] // 2,) * (depth // 2)


def test_96_is_never_halved_and_64_and_128_are_half_of_the_time(many):
    shrunk = collections.Counter((spec.widths[0], spec.widths[-1] != spec.widths[0]) for spec in many)
    assert shrunk[96, True] == 0
    for width in (64, 128):
        halved = shrunk[width, True]
        assert stats.binomtest(halved, halved + shrunk[width, False]).pvalue > 1e-3


@pytest.mark.parametrize(
    ("of", "values"),
    [
        (lambda spec: len(spec.widths), DEPTHS),
        (lambda spec: spec.widths[0], WIDTHS),
        (lambda spec: spec.kind, ("dnn", "dnn_bn")),
    ],
)
def test_depths_widths_and_kinds_are_uniform(many, of, values):
    seen = collections.Counter(map(of, many))
    assert set(seen) == set(values)
    assert stats.chisquare([seen[value] for value in values]).pvalue > 1e-3


def test_the_draw_depends_on_split_seed_client_and_modality_and_on_nothing_else():
    assert draw(3, 1, 5) == draw(3, 1, 5)
    table = {(s, c, m): draw(c, m, s) for s in range(4) for c in range(4) for m in range(4)}
    # Drawn in another order, and among fewer clients: the same architectures.
    for place in sorted(table, reverse=True)[::5]:
        assert draw(place[1], place[2], place[0]) == table[place]
    for axis in range(3):
        lines = collections.defaultdict(set)
        for place, spec in table.items():
            lines[place[:axis] + place[axis + 1 :]].add(spec)
        assert any(len(specs) > 1 for specs in lines.values())


def test_the_shared_encoder_is_the_same_for_all():
    assert shared_encoder((6,), 48, kind="dnn") == shared_encoder((6,), 48, kind="dnn")
    assert shared_encoder((6,), 48, kind="dnn_bn").widths == SHARED_WIDTHS


TABLE_4 = ("dnn", "cnn1d", "resmodel")


def drawn(size, *, clients=300, modality=0, split_seed=0, kinds=TABLE_4):
    return [
        draw_encoder((6,), 48, kinds=kinds, split_seed=split_seed, client=k, modality=modality, pool_size=size)
        for k in range(clients)
    ]


def test_a_pool_of_n_holds_n_architectures_drawn_evenly():
    assert len(set(drawn(1))) == 1
    for size in (2, 7):
        seen = collections.Counter(drawn(size))
        assert len(seen) == size
        assert stats.chisquare(list(seen.values())).pvalue > 1e-3


def test_a_pool_larger_than_all_there_is_holds_all_there_is():
    expected = {draw(client, kinds=TABLE_4) for client in range(2000)}
    assert len(expected) == 3 * 4 * 5
    assert set(drawn(1000, clients=1000)) == expected


def test_a_pool_belongs_to_modality_and_split_seed_and_grows_from_the_smaller():
    assert drawn(3, clients=50) == drawn(3)[:50]
    pools = {(m, s): frozenset(drawn(3, modality=m, split_seed=s)) for m in range(3) for s in range(3)}
    assert len(set(pools.values())) > 5
    assert set(drawn(3)) < set(drawn(5))


def test_kinds_are_even_over_pools():
    seen = collections.Counter(drawn(1, clients=1, split_seed=s)[0].kind for s in range(600))
    assert set(seen) == set(TABLE_4)
    assert stats.chisquare(list(seen.values())).pvalue > 1e-3


def test_widths_take_the_place_of_depth_and_width():
    widths = ((), (7,), (9, 5))
    options = {"kinds": ("mlp",), "split_seed": 0, "modality": 1, "widths": widths}
    specs = [draw_encoder((6,), 4, client=k, **options) for k in range(300)]
    seen = collections.Counter(spec.widths for spec in specs)
    assert set(seen) == set(widths)
    assert stats.chisquare(list(seen.values())).pvalue > 1e-3
    assert len({draw_encoder((6,), 4, client=k, pool_size=2, **options) for k in range(100)}) == 2
    assert len({draw_encoder((6,), 4, client=k, pool_size=9, **options) for k in range(100)}) == 3
    assert shared_encoder((6,), 4, kind="mlp", widths=widths[1:]).widths == (7,)
