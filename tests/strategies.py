"""Random shapes, budgets and references for the algebra of transfers."""

from __future__ import annotations

from hypothesis import strategies as st

import complete_mue as mue

widths = st.integers(1, 8).map(lambda k: 32 * k)


@st.composite
def uniform_layouts(draw: st.DrawFn) -> mue.FeedForward:
    groups = draw(st.sampled_from([1, 1, 2, 4]))
    per_group = draw(st.integers(1, 16))
    active = draw(st.integers(1, per_group))
    shared = draw(st.integers(0, 3))
    return mue.FeedForward.moe(
        per_group * groups, active * groups, draw(st.integers(1, 300)), groups=groups, shared=shared
    )


@st.composite
def hybrid_layouts(draw: st.DrawFn) -> mue.FeedForward:
    groups = draw(
        st.lists(
            st.builds(
                lambda experts, share, width: mue.RoutedGroup(experts, max(1, experts // share), width),
                st.integers(1, 32),
                st.integers(1, 8),
                st.integers(1, 300),
            ),
            min_size=1,
            max_size=4,
        )
    )
    return mue.FeedForward(tuple(draw(st.lists(st.integers(1, 500), max_size=3))), tuple(groups))


dense_layouts = st.integers(1, 2000).map(mue.FeedForward.dense)
layouts = st.one_of(dense_layouts, uniform_layouts(), hybrid_layouts())


@st.composite
def shapes(draw: st.DrawFn) -> mue.ModelShape:
    depth = draw(st.integers(1, 48))
    return mue.ModelShape(draw(widths), depth, draw(layouts), dense_layers=draw(st.integers(0, depth - 1)))


budgets = st.builds(mue.Budget, st.integers(1, 10**7), st.integers(100, 10**6))
hypers = st.builds(
    mue.Hyper,
    lr=st.floats(1e-5, 1e-1),
    weight_decay=st.one_of(st.just(0.0), st.floats(1e-6, 1)),
    init_std=st.floats(1e-4, 1),
    betas=st.tuples(st.floats(0.9, 0.999), st.floats(0.9, 0.999)),
    eps=st.floats(1e-12, 1e-3),
)


@st.composite
def references(draw: st.DrawFn) -> mue.Reference:
    shape = draw(shapes())
    scale = None if shape.main.is_dense else draw(st.one_of(st.none(), st.floats(0.1, 10)))
    return mue.Reference(shape, draw(budgets), draw(hypers), route_scale=scale)
