"""Data-path operations: native where a compiler was there at install time, numpy and torch elsewhere, with the same results."""
