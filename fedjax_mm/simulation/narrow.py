"""Plans narrowed for training: first layers that see more inputs than samples have a row for each sample instead."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_mm.methods.layout import Phase
from fedjax_mm.simulation.context import Context, Slots, World
from fedjax_mm.simulation.dense import LayerSpec, inputs_of
from fedjax_mm.simulation.forward import Crowd, read, read_slots
from fedjax_mm.simulation.optimise import Optimiser
from fedjax_mm.simulation.plans import Plan, PlanBucket
from fedjax_mm.simulation.span import Span, gram, kernel_of, pays

Array = jax.Array
Tree = Any


@dataclasses.dataclass(frozen=True, eq=False)
class Narrowing:
    """A plan, and how it is trained.

    Attributes:
        outer: The plan.
        plan: The plan that is trained: first layers in the span of their samples (see `span`) are one bucket for each
            width of their output, whatever they read; all else is as in `outer`.
        parts: For each of its encoder buckets, the positions of those of `outer` that it is made of.
        spanned: Whether their kernels are D `[slots, n, outputs]`.
    """

    outer: Plan
    plan: Plan
    parts: tuple[tuple[int, ...], ...]
    spanned: tuple[bool, ...]

    def enter(self, context: Context, world: World, crowd: Crowd, networks: Slots) -> tuple[Crowd, Slots]:
        """What `plan` trains, from the lanes and networks of `outer`."""
        if not any(self.spanned):
            return crowd, networks
        samples, dtype = self._samples(context, world, crowd), context.settings.dtype
        views = {"current": networks} | dict(crowd.views)
        spans = [
            Span(
                jnp.concatenate([gram(samples[b]) for b in part]),
                {view: self._base(samples, part, slots["encoders"]) for view, slots in views.items()},
            )
            if spanned
            else None
            for part, spanned in zip(self.parts, self.spanned, strict=True)
        ]

        def joined(slots: Slots, kernel: Callable[[Span], Array | None]) -> Slots:
            """Networks of `plan`, with other kernels where they are spanned."""
            encoders = [
                slots["encoders"][part[0]] if span is None else _together(slots["encoders"], part, kernel(span))
                for part, span in zip(self.parts, spans, strict=True)
            ]
            return slots | {"encoders": encoders}

        inside = joined(networks, lambda span: jnp.zeros(span.bases["current"].shape, dtype))
        frozen = {view: joined(slots, lambda span: None) for view, slots in crowd.views.items()}
        return crowd._replace(views=frozen, spans=spans), inside

    def leave(self, context: Context, world: World, crowd: Crowd, start: Slots, networks: Slots) -> Slots:
        """The networks of `outer` after training; `start` are those before it."""
        if not any(self.spanned):
            return networks
        samples, encoders = self._samples(context, world, crowd), [{}] * len(start["encoders"])
        for part, spanned, values in zip(self.parts, self.spanned, networks["encoders"], strict=True):
            first = 0
            for b in part:
                rows = slice(first, first + len(self.outer.buckets["encoders"][b].lanes))
                encoders[b] = jax.tree.map(lambda leaf, rows=rows: leaf[rows], values) if len(part) > 1 else values
                if spanned:
                    old, params = start["encoders"][b]["params"]["kernel"], encoders[b]["params"]
                    params = params | {"kernel": kernel_of(old, samples[b], params["kernel"])}
                    encoders[b] = encoders[b] | {"params": params}
                first = rows.stop
        return dict(networks, encoders=encoders)

    def _samples(self, context: Context, world: World, crowd: Crowd) -> dict[int, Array]:
        """For each spanned bucket of `outer` the inputs of all its clients' training samples, `[slots, n, inputs]`."""
        table, found = read(world, crowd, world.tables.train[crowd.member][:, : self.outer.longest]), {}
        for part, spanned in zip(self.parts, self.spanned, strict=True):
            for b in part if spanned else ():
                segments = [(s.j, s.positions) for s in self.outer.buckets["encoders"][b].segments]
                found[b] = inputs_of(segments, partial(read_slots, context, world, crowd, table))
        return found

    def _base(self, samples: Mapping[int, Array], part: Sequence[int], encoders: Sequence[dict[str, Tree]]) -> Array:
        return jnp.concatenate([samples[b] @ encoders[b]["params"]["kernel"] for b in part])


def _together(encoders: Sequence[dict[str, Tree]], part: Sequence[int], kernel: Array | None) -> dict[str, Tree]:
    bias = jnp.concatenate([encoders[b]["params"]["bias"] for b in part])
    return {"params": {"bias": bias, "kernel": kernel}, "statistics": {}}


def narrow(context: Context, plan: Plan, phases: Sequence[Phase], rules: Mapping[str, Optimiser]) -> Narrowing:
    """How a plan is trained.

    Args:
        context: The context.
        plan: The plan.
        phases: What is trained.
        rules: Optimiser group -> its optimiser; one that scales or bounds gradients entry by entry leaves the span.

    Returns:
        The narrowing.
    """
    outer = plan.buckets["encoders"]
    stays = rules[context.layout.modules["encoders"].group].keeps_span and not context.layout.quantities
    stays = stays and context.settings.optimizer_state == "reset"
    kept: list[int] = []
    spanned: dict[LayerSpec, list[int]] = {}
    for b, bucket in enumerate(outer):
        if stays and isinstance(bucket.spec, LayerSpec) and _shrinks(context, plan, phases, bucket, bucket.spec):
            spanned.setdefault(dataclasses.replace(bucket.spec, inputs=plan.longest), []).append(b)
        else:
            kept.append(b)
    merged = [
        PlanBucket(-1, spec, tuple(s for b in part for s in outer[b].segments), {}, frozenset())
        for spec, part in spanned.items()
    ]
    buckets = (*(outer[b] for b in kept), *merged)
    return Narrowing(
        outer=plan,
        plan=dataclasses.replace(plan, buckets={**plan.buckets, "encoders": buckets}),
        parts=(*((b,) for b in kept), *map(tuple, spanned.values())),
        spanned=(False,) * len(kept) + (True,) * len(merged),
    )


def _shrinks(context: Context, plan: Plan, phases: Sequence[Phase], bucket: PlanBucket, spec: LayerSpec) -> bool:
    """Whether a bucket holds first layers alone, and these are better off in the span of their samples."""
    if any(segment.j >= len(context.modalities) for segment in bucket.segments):
        return False
    batch = context.settings.batch or 1
    epochs = sum(context.spec.epochs if phase.epochs is None else phase.epochs for phase in phases)
    return pays(spec.inputs, spec.outputs, plan.longest, batch=batch, steps=epochs * -(-plan.mean // batch))
