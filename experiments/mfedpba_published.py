"""Numbers of the MFedPBA paper (Liao et al., ICML 2026), as printed there.

Test accuracy in %, in Table 2 the mean over five trials. Figures 4, 5, 7 and 8 come without numbers but for those in
`REMARKS`.
"""

from experiments.published import read

METHODS = ("local", "fedproto", "fedtgp", "fedpall", "harmony", "fedmvp", "fedmobile", "mfedpba")
"""The columns of Tables 2 and 3, by the names of this package."""


TABLE2 = read(
    """
    Caltech101 M2   42.65±1.47 38.72±0.42 40.78±1.31 42.29±0.27 45.29±0.38 40.23±0.65 43.51±0.54 49.04±0.21
    Caltech101 M1+  40.83±1.12 36.81±0.35 40.71±1.23 41.8±0.77  43.04±0.64 38.91±1.25 42.29±0.6  46.82±0.54
    Caltech101 M1   38.47±0.45 31.57±1.23 36.18±0.72 40.77±0.36 40.1±0.69  38.92±0.62 40.09±0.13 43.64±0.11
    Caltech101 K50  29.38±1.63 25.17±1.78 28.77±1.43 30.59±1.26 30.58±0.65 27.74±1.5  30.88±0.81 31.19±0.92
    Reuters    M2   70.61±0.28 73.39±0.57 69.73±0.88 73.08±1.04 72.18±0.41 74.07±1.08 73.19±0.26 75.16±0.45
    Reuters    M1+  70.85±0.59 68.54±1.46 69.8±0.59  71.09±1.56 72.28±0.47 68.09±0.82 72.79±0.44 75.01±0.22
    Reuters    M1   67.05±1.04 68.75±0.63 65.81±0.33 66.96±0.22 70.16±1.14 70.18±0.57 69.92±0.95 72.09±0.79
    Reuters    K100 52.88±1.08 46.48±0.93 48.31±1.41 56.55±0.53 53.96±0.51 52.28±1.53 56.64±0.29 57.83±0.97
    NUS-WIDE   M2   32.18±0.64 29.28±0.46 31.19±0.51 33.38±0.91 32.97±0.28 31.89±0.4  33.86±0.22 35.2±0.46
    NUS-WIDE   M1+  28.72±0.71 27.79±0.55 27.13±0.18 30.99±0.63 31.56±0.61 29.82±0.59 30.95±0.57 32.15±0.36
    NUS-WIDE   M1   31.15±0.14 24.96±0.52 29.55±0.73 31.02±0.96 32.19±0.35 32.7±0.51  31.2±0.36  33.25±0.24
    NUS-WIDE   K20  24.52±0.5  24.47±0.95 24.15±0.37 26.35±0.44 26.28±0.41 26.61±0.86 27.34±0.37 28.08±0.37
    Youtube    M2   41.72±0.66 41.12±0.68 45.16±1.02 44.23±0.3  43.8±0.76  45.53±0.52 44.83±0.53 47.92±0.93
    Youtube    M1+  41.89±0.76 38.82±1.12 44.55±0.68 43.04±1.09 43.47±0.91 44.24±0.36 44.28±0.64 47.21±0.59
    Youtube    M1   40.01±0.41 36.59±0.39 38.62±0.64 39.15±1.5  41.07±0.42 40.04±0.46 39.48±0.99 44.52±0.54
    Youtube    K20  32.01±0.25 30.57±1.49 34.15±0.31 32.59±0.47 33.5±0.49  31.12±0.77 34.22±0.63 35.07±0.92
    """,
    METHODS,
    keys=2,
)
"""Table 2: (data set, partition) -> method -> test accuracy. `K` rows: so many clients, in M1+."""

TABLE3 = read(
    """
    24  41.19 30.12 41.19 42.56 42.06 43.85 40.91 44.43
    48  42.34 39.05 43.85 44.63 44.43 45.21 44.57 47.02
    64  43.02 37.82 45.22 42.27 43.13 43.21 44.24 46.46
    128 42.64 31.24 45.01 42.15 43.24 44.33 44.33 45.68
    256 41.95 26.32 43.22 41.75 42.74 42.84 42.54 43.84
    """,
    METHODS,
    keys=1,
)
"""Table 3: (feature dimension d,) -> method -> test accuracy on Youtube in M1+."""

REMARKS = {
    "figure5": "Section 6.2: features of different modalities are clearly separated; those of MFedPBA are more compact "
    "and better structured than those of Local.",
    "figure7": "Section 6.2, on Caltech101 in M2: leaving out any module of the server lowers the accuracy, "
    "leaving out the reconstruction most.",
    "figure8": "Section 6.2, on Youtube: above 46 % for most weights, 48.9 % at best; more server steps help, little "
    "beyond 50; S = 10 is taken.",
}
"""What the paper says of the figures that carry no numbers."""
