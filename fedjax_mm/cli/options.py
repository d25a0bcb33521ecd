"""The options of the command line, each described once. All values are text here; they are checked where they are used.

Nothing here imports JAX, so that `--help` answers at once.
"""

from typing import Annotated, Any

import typer

WHAT, FEDERATION, TRAINING, OUTPUT = "What to run", "Federation", "Training", "Output"


def _option(panel: str, metavar: str | None, text: str, default: str = "", *names: str) -> Any:
    text = f"{text} Default: {default}." if default else text
    return typer.Option(*names, metavar=metavar, help=text, show_default=False, rich_help_panel=panel)


Method = Annotated[
    str | None,
    _option(
        WHAT,
        "NAME",
        "The method: a name of `fedjax-mm list methods`, or module:Class or file.py:Class for one of your own. Needed, "
        "unless --config names it.",
    ),
]
Methods = Annotated[
    str | None,
    _option(WHAT, "A,B,C", "Methods, separated by commas, each as run --method takes it; or all that apply.", "all"),
]
Data = Annotated[
    str | None,
    _option(
        WHAT,
        "DATA",
        "Data set: a name of `fedjax-mm list data`, an .npz or .mat file, or a folder of .csv files.",
        "mfeat",
    ),
]
Label = Annotated[str | None, _option(WHAT, "NAME", "Label array of the data set.", "y")]
Config = Annotated[
    str | None,
    _option(
        WHAT,
        "FILE",
        "Options from a .toml file (same names without dashes in front; a table named set for --set) or from a "
        "manifest.json. Options on the command line win.",
    ),
]
Partition = Annotated[
    str | None,
    _option(
        FEDERATION,
        "NAME",
        "Who holds what: natural (the clients of the data), m1 (one modality each), m2 (two), m1+ (one or more), all, "
        "silos (all, labels and natural masks alike), masks (a client for each natural mask). "
        "With fewer clients than modalities, m1, m2 and m1+ deal out the rest in turn, so that each is held.",
        "natural if the data has clients, else m1+",
    ),
]
Clients = Annotated[
    str | None,
    _option(FEDERATION, "K", "Number of clients.", "the natural clients or masks, 5 silos, else one per modality"),
]
Alpha = Annotated[
    str | None,
    _option(
        FEDERATION,
        "A",
        "Concentration of the Dirichlet distribution of each class over the clients, above 0 (small is skewed); or "
        "iid. Not for natural clients, silos and masks.",
        "0.5",
    ),
]
Split = Annotated[
    str | None,
    _option(
        FEDERATION,
        "RULE",
        "How each client's samples become train (64 %), validation (11 %) and test (25 %): random, chronological or "
        "grouped.",
        "chronological if the data has an order, grouped if it has groups enough to deal whole ones, else random",
    ),
]
Missing = Annotated[
    str | None,
    _option(
        FEDERATION,
        "CLIENT,SAMPLE",
        "Modalities that are missing. CLIENT, those a client lacks: hom (none), mod, high, or a:b, where a client has "
        "each with probability q ~ Beta(a, b). SAMPLE, those that fail from sample to sample: none, mod, high, or "
        "p00:p11, the probabilities of staying missing and observed; left out, none. See `fedjax-mm list regimes`.",
        "hom,none",
    ),
]
TestMissing = Annotated[
    str | None,
    _option(FEDERATION, "CLIENT,SAMPLE", "The same for the test samples alone.", "as --missing"),
]
SplitSeed = Annotated[
    str | None,
    _option(
        FEDERATION,
        "N",
        "Seed of partition, masks and architectures, at least 0; or each: drawn anew for every seed.",
        "0",
    ),
]
Participation = Annotated[
    str | None,
    _option(
        TRAINING,
        "P",
        "Clients in a round: with a decimal point a rate in (0, 1], without one a number of clients.",
        "1.0",
    ),
]
Rounds = Annotated[str | None, _option(TRAINING, "R", "Rounds of communication, at least 1.", "100")]
EvalEvery = Annotated[
    str | None,
    _option(
        TRAINING, "E", "Rounds between evaluations and checkpoints, at least 1; the last block may be shorter.", "10"
    ),
]
Seeds = Annotated[
    str | None,
    _option(TRAINING, "S", "Seeds: 5 means 0,1,2,3,4; a list such as 0,3,7; or 3, (with a comma) for one.", "1"),
]
Model = Annotated[
    str | None,
    _option(
        TRAINING,
        "NAME",
        "pool: an own encoder per client and modality, drawn from DNN, CNN1D, CNN2D, TextCNN and Resmodel by what the "
        "modality is (--set encoders, pool_size), 2 local epochs, batches of 12, rounds selected by accuracy; "
        "shared: one encoder per modality, 3 epochs, batches of 32, rounds selected by macro-F1 (--set select).",
        "pool for m1, m2, m1+, else shared",
    ),
]
Set = Annotated[
    list[str] | None,
    _option(
        TRAINING,
        "KEY=VALUE",
        "Any other option; repeatable. Training: encoders, pool_size, widths, dim, fusion, epochs, batch, drop_last, "
        "optimizer, lr, momentum, weight_decay, clip, optimizer_state, statistics, nonfinite, select, client_state. "
        "Federation: fractions, minimum, gap, missing_protocol, empty. Methods: "
        "fedproto.lam=0.1 (run also takes lam=0.1); see `fedjax-mm list options`. "
        "Kinds of encoder: dnn, cnn1d, cnn2d, textcnn, resmodel, dnn_bn, mlp, sensing. Values: numbers, names, "
        "true or false, none, lists as a,b, in widths as a-b,c.",
        "",
        "--set",
    ),
]
Grid = Annotated[
    list[str] | None,
    _option(
        WHAT,
        "KEY=V1,V2",
        "An option and the values it takes; repeatable, for every combination. An option of the method (lambda_fea) or "
        "of training (lr). Numbers share one compiled program.",
    ),
]
Shard = Annotated[
    str | None,
    _option(WHAT, "I/N", "Only every N-th combination, from the I-th on, I from 1 to N: for job arrays.", "all"),
]
Executor = Annotated[
    str | None,
    _option(
        TRAINING,
        "NAME",
        "How clients are run: vmap or lockstep (all at once), map (one after another), chunk:N (N of one shape at a "
        "time), debug (a Python loop that names the client an error comes from), auto.",
        "auto",
    ),
]
Devices = Annotated[
    str | None,
    _option(
        TRAINING,
        "N",
        "The most devices to divide clients or seeds among; on a CPU so many cores become devices.",
        "auto: all accelerators, or all cores up to 8",
    ),
]
Precision = Annotated[
    str | None, _option(TRAINING, "TYPE", "Of parameters and features: float32 or float64.", "float32")
]
Out = Annotated[
    str | None,
    _option(
        OUTPUT, "DIR", "Run directory to make; one that holds something is never overwritten.", "runs/<date>-<method>"
    ),
]
Quiet = Annotated[
    bool,
    _option(OUTPUT, None, "No progress and no table: print only where the run directory is.", "", "--quiet"),
]
DryRun = Annotated[
    bool,
    _option(
        OUTPUT,
        None,
        "Print clients, encoders, parameters, bytes and memory (MiB); compile and write nothing.",
        "",
        "--dry-run",
    ),
]
Workload = Annotated[
    str | None,
    _option(
        WHAT,
        "A,B",
        "Workloads, separated by commas: W1 (FedAvg, an MLP), W2 (FedProto, three MLPs), W3 (MFedPBA without server "
        "steps), W3s (with them), W5 (W3 with several seeds).",
        "W1",
    ),
]
BenchClients = Annotated[
    str | None, _option(WHAT, "K,L", "Numbers of clients, separated by commas.", "100 for W1 and W2, else 20")
]
Variants = Annotated[
    str | None,
    _option(
        WHAT,
        "A,B",
        "What is compared, separated by commas, with the first: the executors auto, map, lockstep, vmap and debug, "
        "each also as map@1 (on at most one device); and, with the extra bench, torch-loop, torch-vmap (W1, W2) and "
        "torch-bmm (W1), the same work written by hand in PyTorch.",
        "auto,map,lockstep,debug",
    ),
]
BenchSeeds = Annotated[
    str | None, _option(WHAT, "S,T", "Numbers of seeds at once, separated by commas.", "1, for W5 1,5,20")
]
Repeats = Annotated[str | None, _option(WHAT, "N", "Timed blocks of rounds of each variant, at least 1.", "5")]
Json = Annotated[
    str | None, _option(OUTPUT, "FILE", "Also write what was measured to this file, as a list.", "", "--json")
]
BenchQuiet = Annotated[bool, _option(OUTPUT, None, "No progress: print the table alone.", "", "--quiet")]
