"""Many clients with encoders of their own, of whom few take part: what `client_state` saves on the device.

    python examples/many_clients.py device 10000
    python examples/many_clients.py host 10000

prints what the compiled programs need on the device, and how long a round takes.
"""

import sys

import numpy as np

import fedjax_mm as fmm

EACH, WIDTH, CLASSES = 6, 64, 10


def made_up(clients: int) -> fmm.MultimodalDataset:
    """`EACH` samples of every client, around a centre for each class."""
    rng = np.random.default_rng(0)
    labels = np.tile(np.arange(CLASSES), clients * EACH // CLASSES + 1)[: clients * EACH]
    inputs = rng.normal(size=(CLASSES, WIDTH))[labels] + rng.normal(size=(len(labels), WIDTH))
    owners = np.repeat(np.arange(clients), EACH)
    return fmm.from_arrays({"x": inputs.astype(np.float32)}, labels, client=owners)


def main(client_state: str, clients: int) -> None:
    """Trains LG-FedAvg, whose encoders are each client's own, for twenty rounds of twenty clients."""
    federation = fmm.federate(made_up(clients), partition="natural")
    options = {
        "rounds": 20,
        "eval_every": 10,
        "participation": 20,
        "encoders": ("mlp",),
        "widths": ((256,),),
        "dim": 64,
    }
    run = fmm.simulate("lg_fedavg", federation, client_state=client_state, devices=1, progress=True, **options)
    costs = run.costs().iloc[0]
    print(run.summary().to_string())
    print(f"program: {costs['program_bytes'] / 2**20:.0f} MiB, round: {costs['seconds_per_round']:.2f} s")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
