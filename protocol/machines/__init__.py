"""State machines generated from tla/machines by `tidegate gen`; edit the TLA+, not these."""
