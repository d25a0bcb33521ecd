"""The engine: lanes, local training, cohorts, rounds, executors."""
