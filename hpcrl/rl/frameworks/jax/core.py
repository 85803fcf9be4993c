"""The JAX learner. Lazy mode jits a whole update; eager mode runs the same pure functions without jit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from hpcrl.rl import checkpoint
from hpcrl.rl.distributed.collective import Collective
from hpcrl.rl.frameworks.jax import optimizers, runtime
from hpcrl.rl.frameworks.jax.layers import Layout
from hpcrl.rl.interfaces import Actions, Algorithm, Arrays, Observations, Step, Weights
from hpcrl.rl.staging import Staging

Constants = list[jax.Array]


class Learner:
    """The learner, on the CPU or one GPU; `page` is the algorithm's module of this package.

    `pure_updates` (vector, slots, constants, batch, rate -> vector, slots, aux), `pure_greedy` (vector, observations ->
    actions) and `pure_sample` (vector, observations, noise -> actions, log-probabilities, values) are the functions that
    compiled loops contain. The vectors of further groups with which the algorithm samples follow the first.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        page: Any,
        weights: dict[str, Weights],
        execution: str = "eager",
        device: str = "cpu",
        collective: Collective | None = None,
    ) -> None:
        runtime.check_device(device)
        self.algorithm, self._execution, self._collective = algorithm, execution, collective
        self._page, self._settings, self._optimizer = page, algorithm.settings, optimizers.make(algorithm.settings)
        self._device = jax.local_devices()[0]
        self._inputs = runtime.staging(self._device) if execution == "lazy" else None
        origins = algorithm.origins.items()
        self._layouts = {name: Layout(weights[group], transposed=self._inputs is None) for name, group in origins}
        self.vectors = {name: self._put(self._layouts[name].vector(weights[group])) for name, group in origins}
        self.slots = {name: self._put(self._optimizer.init(self.vectors[name])) for name in algorithm.groups}
        self._taken = dict.fromkeys(algorithm.groups, 0)
        self.pure_updates, self._programs = dict[str, Callable[..., Any]](), list[Any]()
        self._updates = {step.name: self._bound(step, self._program(step)) for step in algorithm.steps}
        self._bursts, self._move = self._burst_programs(), self._moving()
        self.pure_greedy = self._acting("greedy", algorithm.acts_with)
        self.pure_sample = self._acting("sample", algorithm.acts_with, *algorithm.samples_with)
        self._greedy, self._sample = self._compile(self.pure_greedy), self._compile(self.pure_sample)

    def _compile(self, function: Callable[..., Any], **options: Any) -> Any:
        return function if self._execution == "eager" else jax.jit(function, **options)

    def _put(self, values: Any) -> Any:
        """Commit arrays to the device: for uncommitted arrays a program is compiled again."""
        return jax.device_put(values, self._device)

    def _acting(self, name: str, *groups: str) -> Callable[..., Any]:
        """Return a function of the page that acts, of the groups' vectors and arrays; not every page has `sample`."""
        function: Any = getattr(self._page, name, None)
        settings, layouts = self._settings, [self._layouts[group] for group in groups]

        def acting(*arrays: Any) -> Any:
            vectors, given = arrays[: len(layouts)], arrays[len(layouts) :]
            networks = [layout.layers(vector) for layout, vector in zip(layouts, vectors, strict=True)]
            return function(*given, settings, *networks)

        return acting

    def policy(self, name: str, *vectors: jax.Array) -> Callable[..., Any]:
        """Return `pure_greedy` or `pure_sample` (by `name` without "pure") of vectors whose layers are cut once, for a loop that does not change them."""
        groups = (self.algorithm.acts_with, *self.algorithm.samples_with)
        networks = [self._layouts[group].layers(vector) for group, vector in zip(groups, vectors, strict=False)]
        function, settings = getattr(self._page, name), self._settings
        return lambda *arrays: function(*arrays, settings, *networks)

    def _gradient(self, step: Step) -> Callable[[jax.Array, Constants, Any], tuple[jax.Array, tuple[jax.Array, ...]]]:
        """Return the pure function: vector, constants, batch -> flat gradient, aux."""
        loss, settings, layers = getattr(self._page, step.loss), self._settings, self._layouts[step.group].layers
        layouts = [self._layouts[name] for name in step.uses]

        def value(vector: jax.Array, constants: Constants, batch: Any) -> Any:
            uses = [layout.layers(constant) for layout, constant in zip(layouts, constants, strict=True)]
            result = loss(layers(vector), batch, settings, *uses)
            return result if step.aux else (result, ())

        return jax.grad(value, has_aux=True)

    def _program(self, step: Step) -> Callable[..., tuple[jax.Array, Any, tuple[jax.Array, ...]]]:
        """Return the update of a step: one program, or two with the averaging between."""
        gradient, optimizer, largest = self._gradient(step), self._optimizer, self._settings.max_gradient_norm

        def apply(vector: jax.Array, slots: Any, change: jax.Array, rate: Any) -> tuple[jax.Array, Any]:
            direction, slots = optimizer.update(_clipped(change, largest), slots)
            return vector - rate * direction, slots

        def whole_update(vector: jax.Array, slots: Any, constants: Constants, batch: Any, rate: Any) -> Any:
            change, aux = gradient(vector, constants, batch)
            return *apply(vector, slots, change, rate), aux

        self.pure_updates[step.name] = whole_update
        if self._collective is None:
            self._programs.append(whole := self._compile(whole_update, donate_argnums=(0, 1)))
            return whole
        self._programs.append(compiled := self._compile(gradient))
        mean, finish = self._collective.averaged(compiled), self._compile(apply, donate_argnums=(0, 1))

        def update_in_parts(vector: jax.Array, slots: Any, constants: Constants, batch: Any, rate: Any) -> Any:
            change, aux = mean(vector, constants, batch)
            return *finish(vector, slots, change, rate), aux

        return update_in_parts

    def _burst_programs(self) -> dict[str, Callable[..., tuple[jax.Array, ...]]]:
        """Return for each step its updates from stacked batches; nothing where Python has a part in each update."""
        if self._execution != "lazy" or self._collective is not None:
            return {}
        return {step.name: self._bound(step, self._burst_program(step)) for step in self.algorithm.steps}

    def _burst_program(self, step: Step) -> Callable[..., tuple[jax.Array, Any, tuple[jax.Array, ...]]]:
        """Return the updates of a step from stacked batches, as one program."""
        update = self.pure_updates[step.name]

        def updates(vector: jax.Array, slots: Any, constants: Constants, batches: Any, rate: Any) -> Any:
            def one(carry: Any, batch: Any) -> Any:
                *carry, aux = update(*carry, constants, batch, rate)
                return tuple(carry), aux

            (vector, slots), aux = jax.lax.scan(one, (vector, slots), batches)
            return vector, slots, aux

        self._programs.append(program := self._compile(updates, donate_argnums=(0, 1)))
        return program

    def _bound(self, step: Step, program: Callable[..., Any]) -> Callable[..., tuple[jax.Array, ...]]:
        """Return the update of a step that reads and replaces this learner's vectors."""
        group, uses = step.group, step.uses
        vectors, slots, taken = self.vectors, self.slots, self._taken

        def bound_update(batch: Any, learning_rate: float, count: int = 1) -> tuple[jax.Array, ...]:
            taken[group] += count
            constants = [vectors[name] for name in uses]
            rate = self._rate(learning_rate)
            vectors[group], slots[group], aux = program(vectors[group], slots[group], constants, batch, rate)
            return aux

        return bound_update

    def _moving(self) -> Any:
        """Return the function that moves a target copy by a share of the way to its vector. Each learner has its own, and counts its programs."""

        def moved(copy: jax.Array, vector: jax.Array, share: Any) -> jax.Array:
            return copy + share * (vector - copy)

        return self._compile(moved, donate_argnums=0)

    def _inputs_of_updates(self) -> Staging | None:
        """Return the inputs when no update reads them any more. Those of acting are always free: its actions are read at once."""
        if self._inputs is not None:
            self.synchronize()
        return self._inputs

    def _rate(self, learning_rate: float) -> Any:
        inputs, rate = self._inputs_of_updates(), np.float32(learning_rate)
        return rate if inputs is None else inputs.one(rate)

    def act(self, observations: Observations) -> Actions:
        shown = observations if self._inputs is None else self._inputs.one(observations)
        return np.asarray(self._greedy(self.vectors[self.algorithm.acts_with], shown))

    def sample(self, observations: Observations, noise: NDArray[np.float32]) -> Arrays:
        others = [self.vectors[name] for name in self.algorithm.samples_with]
        shown = (observations, noise) if self._inputs is None else self._inputs.put((observations, noise)).arrays
        sampled = self._sample(self.vectors[self.algorithm.acts_with], *others, *shown)
        return tuple(np.asarray(array) for array in sampled)

    def transfer(self, batch: Arrays) -> tuple[Any, ...]:
        if (inputs := self._inputs_of_updates()) is not None:
            return tuple(inputs.put(batch).arrays)
        # On the CPU, passing NumPy's arrays directly is faster than an explicit transfer.
        return batch if self._device.platform == "cpu" else tuple(self._put(batch))

    def update(self, step: str, batch: Any, learning_rate: float) -> tuple[jax.Array, ...]:
        return self._updates[step](batch, learning_rate)

    @property
    def burst(self) -> Callable[[str, Any, float], tuple[jax.Array, ...]] | None:
        """Return the function that takes the updates of stacked batches, if there is one."""
        return self._burst if self._bursts else None

    def _burst(self, step: str, batches: Any, learning_rate: float) -> tuple[jax.Array, ...]:
        return self._bursts[step](batches, learning_rate, len(batches[0]))

    def read(self, aux: Any) -> Arrays:
        return tuple(np.asarray(array) for array in aux)

    def sync(self, target: str, share: float = 1.0) -> None:
        vector = self.vectors[self.algorithm.targets[target]]
        if share == 1.0:
            self.vectors[target] = jnp.copy(vector)  # because the update donates its own buffers
        else:
            self.vectors[target] = self._move(self.vectors[target], vector, np.float32(share))

    def synchronize(self) -> None:
        for vector in self.vectors.values():  # faster than jax.block_until_ready
            vector.block_until_ready()

    def compiled(self) -> str:
        if self._execution == "eager":
            return "nothing: eager, not jitted"
        acting = f"{self._greedy._cache_size()} acting programs"
        if self._execution == "fused":
            return f"jax.jit: environment and updates in one scan, {acting}"
        moves = self._move._cache_size()
        copies = f", {moves} programs that move target copies" if moves else ""
        return f"jax.jit: {sum(program._cache_size() for program in self._programs)} update programs, {acting}{copies}"

    def peak_memory(self) -> int | None:
        return runtime.peak_memory()

    def weights(self, name: str) -> Weights:
        return self._layouts[name].weights(self.vectors[name])

    def state(self) -> Weights:
        state: Weights = {}
        for name in self.vectors:
            state |= checkpoint.nested(name, self.weights(name))
        for group, slots in self.slots.items():
            arrays = [self._layouts[group].stored(leaf) for leaf in jax.tree.leaves(slots)]
            state |= checkpoint.optimizer_state(group, self._taken[group], arrays)
        return state

    def load_state(self, state: Weights) -> None:
        for name, layout in self._layouts.items():
            self.vectors[name] = self._put(layout.vector(checkpoint.part(name, state)))
        for group, slots in self.slots.items():
            self._taken[group], arrays = checkpoint.optimizer_part(group, state)
            leaves, structure = jax.tree.flatten(slots)
            arrays = [self._layouts[group].restored(array) for array in arrays]
            restored = [jnp.asarray(array, leaf.dtype) for array, leaf in zip(arrays, leaves, strict=True)]
            self.slots[group] = self._put(jax.tree.unflatten(structure, restored))


def _clipped(change: jax.Array, largest: float) -> jax.Array:
    """Scale a flat gradient so that its norm is at most `largest` (0: never)."""
    return change * jnp.minimum(1.0, largest / (jnp.linalg.norm(change) + 1e-6)) if largest else change
