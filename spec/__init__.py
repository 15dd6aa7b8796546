"""The toolchain: reads TLA+, emits Python, runs TLC, compares graphs. Imports `protocol`, never `engine`."""
