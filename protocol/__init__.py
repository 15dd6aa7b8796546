"""The sans-IO core: machines generated from TLA+, messages, sessions. Imports nothing of the other layers."""
